//! Limits the work in flight to one server to what it does in half of the store's timeout, so that
//! an overloaded server answers those who are admitted, instead of executing what nobody waits for.
//!
//! The rate of the server follows from the replies by Little's law: a reply that took `t`, with `n`
//! in flight when its batch was sent, says that the server did `n` in `t`. A reply within the target
//! can only raise the limit; a later one, or none, lowers it, by an eighth of the difference, so that one
//! pause is no overload. If the limit is felt, it also grows a little with each reply, as TCP's window does:
//! the rate is known only as far as it was tried.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Work of one call, which is always admitted: it keeps Redis busy for a fifth of a millisecond.
pub(crate) const MAX_BATCH_WORK: u64 = 32;

/// Limit before the first reply, for bursts at the start: a tenth of a second of a usual server.
const INITIAL_LIMIT: u64 = 8192;

/// Work in flight to one server, of all workers: sent, or about to be sent.
#[derive(Debug)]
pub(crate) struct InFlight {
    work: AtomicU64,
    limit: AtomicU64,
    /// Longest time that a reply should take.
    target: Duration,
}

/// The work of one request. It is in flight until this is dropped.
#[derive(Debug)]
pub(crate) struct InFlightWork {
    in_flight: Arc<InFlight>,
    work: u64,
}

impl InFlight {
    pub(crate) fn new(timeout: Duration) -> Self {
        let (work, limit) = (AtomicU64::new(0), AtomicU64::new(INITIAL_LIMIT));
        Self { work, limit, target: timeout / 2 }
    }

    /// Returns the work in flight.
    pub(crate) fn work(&self) -> u64 {
        self.work.load(Ordering::Relaxed)
    }

    /// Adds work, unless it is more than the server does in time. Any work is admitted alone.
    pub(crate) fn admit(self: &Arc<Self>, work: u64) -> Option<InFlightWork> {
        let admitted = self.add(work);
        let others = self.work() - work;
        let fits = others == 0 || others + work <= self.limit.load(Ordering::Relaxed);
        fits.then_some(admitted)
    }

    /// Adds work that can't wait.
    pub(crate) fn add(self: &Arc<Self>, work: u64) -> InFlightWork {
        self.work.fetch_add(work, Ordering::Relaxed);
        InFlightWork { in_flight: Arc::clone(self), work }
    }

    /// Learns from a batch that was sent with `work` in flight, its own included, and was answered
    /// after `took`, or given up.
    pub(crate) fn observe(&self, work: u64, took: Duration) {
        let took = took.as_micros().max(1);
        let in_time = u128::from(work) * self.target.as_micros() / took;
        let in_time = u64::try_from(in_time).unwrap_or(u64::MAX).max(MAX_BATCH_WORK);
        let limit = self.limit.load(Ordering::Relaxed);
        let new = if took > self.target.as_micros() {
            limit - limit.saturating_sub(in_time).div_ceil(8)
        } else {
            let is_felt = work > limit / 2;
            limit.max(in_time).saturating_add(u64::from(is_felt))
        };
        self.limit.store(new, Ordering::Relaxed);
    }
}

impl Drop for InFlightWork {
    fn drop(&mut self) {
        self.in_flight.work.fetch_sub(self.work, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(50);

    /// Returns how much is admitted in units of one.
    fn admitted(in_flight: &Arc<InFlight>) -> usize {
        let works = std::iter::from_fn(|| in_flight.admit(1));
        works.take(100_000).collect::<Vec<_>>().len()
    }

    #[test]
    fn the_limit_is_what_the_server_does_in_half_of_the_timeout() {
        let in_flight = Arc::new(InFlight::new(TIMEOUT));
        assert_eq!(admitted(&in_flight), 8192);
        // 10 per millisecond.
        in_flight.observe(1000, Duration::from_millis(100));
        assert_eq!(admitted(&in_flight), 8192 - 993, "an eighth of the way");
        (0..100).for_each(|_| in_flight.observe(1000, Duration::from_millis(100)));
        assert_eq!(admitted(&in_flight), 250);
        in_flight.observe(10, Duration::from_millis(1));
        assert_eq!(admitted(&in_flight), 250);
        // 20 per millisecond.
        in_flight.observe(100, Duration::from_millis(5));
        assert_eq!(admitted(&in_flight), 500);
        in_flight.observe(400, Duration::from_millis(24));
        assert_eq!(admitted(&in_flight), 501, "it grows while it is felt");
        assert_eq!(in_flight.work(), 0);
    }

    #[test]
    fn one_batch_is_always_admitted_and_any_work_alone() {
        let in_flight = Arc::new(InFlight::new(TIMEOUT));
        (0..100).for_each(|_| in_flight.observe(2, Duration::from_secs(60)));
        assert_eq!(admitted(&in_flight), 32);
        let alone = in_flight.admit(10_000).expect("alone");
        assert!(in_flight.admit(1).is_none());
        let refund = in_flight.add(1);
        assert_eq!(in_flight.work(), 10_001);
        drop((alone, refund));
        assert!(in_flight.admit(1).is_some());
    }
}
