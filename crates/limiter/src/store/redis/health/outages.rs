//! The last outage of a server, and what became of the requests that it did not decide meanwhile.
//!
//! An outage lasts from the first probe without an answer until the monitor is connected again. Its
//! requests are those since the last probe with an answer, until the first one afterwards: some fail
//! before the outage is noticed, others until the circuit breaker closes.

use crate::clock::{Micros, Timestamp};
use crate::store::{NodeOutage, Undecided};

/// The last outage of a server, and counts of requests that it failed to decide.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    counts: UndecidedCounts,
    /// Counts at the last answer to a probe.
    answered: UndecidedCounts,
    probed_at: Option<Timestamp>,
    last: Option<CountedOutage>,
}

/// Requests since this process started, by [`Undecided`].
type UndecidedCounts = [u64; 2];

#[derive(Debug)]
struct CountedOutage {
    started_at: Timestamp,
    ended_at: Option<Timestamp>,
    before: UndecidedCounts,
    /// Counts at the first answer to a probe after the outage.
    after: Option<UndecidedCounts>,
}

impl Outages {
    /// Counts a request that the server failed to decide.
    pub(crate) fn count(&mut self, request: Undecided) {
        self.counts[request as usize] += 1;
    }

    /// Records that a probe is sent.
    pub(crate) fn record_probe(&mut self, at: Timestamp) {
        self.probed_at = Some(at);
    }

    /// Records that the last probe was answered.
    pub(crate) fn record_answer(&mut self) {
        self.answered = self.counts;
        if let Some(CountedOutage { ended_at: Some(_), after, .. }) = &mut self.last {
            after.get_or_insert(self.counts);
        }
    }

    /// Begins an outage, with the last probe that was sent, unless one lasts.
    pub(crate) fn begin(&mut self, now: Timestamp) {
        let lasts = |outage: &CountedOutage| outage.ended_at.is_none();
        if !self.last.as_ref().is_some_and(lasts) {
            let started_at = self.probed_at.take().unwrap_or(now);
            let before = self.answered;
            self.last = Some(CountedOutage { started_at, ended_at: None, before, after: None });
        }
    }

    /// Ends the outage that lasts, and returns its length.
    pub(crate) fn end(&mut self, now: Timestamp) -> Option<Micros> {
        let last = self.last.as_mut().filter(|outage| outage.ended_at.is_none())?;
        last.ended_at = Some(now);
        self.answered = self.counts;
        Some(now.since(last.started_at))
    }

    /// Returns the outage that lasts, else the last one.
    pub(crate) fn last(&self, now: Timestamp) -> Option<NodeOutage> {
        let CountedOutage { started_at, ended_at, before, after } = self.last.as_ref()?;
        let after = after.unwrap_or(self.counts);
        Some(NodeOutage {
            started_at: *started_at,
            length: ended_at.unwrap_or(now).since(*started_at),
            failed: after[0] - before[0],
            allowed: after[1] - before[1],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Micros::from_secs(seconds)
    }

    #[test]
    fn an_outage_has_the_requests_from_the_last_answer_before_to_the_first_after_it() {
        let mut outages = Outages::default();
        let requests = |outages: &mut Outages, failed: usize, allowed: usize| {
            (0..failed).for_each(|_| outages.count(Undecided::Failed));
            (0..allowed).for_each(|_| outages.count(Undecided::Allowed));
        };
        let last = |outages: &Outages, now| {
            let outage = outages.last(at(now)).expect("an outage");
            (
                outage.started_at,
                outage.length.as_micros() / 1_000_000,
                outage.failed,
                outage.allowed,
            )
        };
        assert_eq!(outages.last(at(1)), None);
        requests(&mut outages, 3, 1);
        outages.record_probe(at(10));
        outages.record_answer();
        requests(&mut outages, 5, 0);
        outages.record_probe(at(11));
        outages.begin(at(12));
        requests(&mut outages, 20, 7);
        outages.begin(at(30));
        assert_eq!(last(&outages, 40), (at(11), 29, 25, 7), "it lasts");
        assert_eq!(outages.end(at(84)), Some(Micros::from_secs(73)));
        requests(&mut outages, 2, 0);
        outages.record_probe(at(85));
        outages.record_answer();
        requests(&mut outages, 9, 9);
        outages.record_probe(at(86));
        outages.record_answer();
        assert_eq!(last(&outages, 90), (at(11), 73, 27, 7));
        assert_eq!(outages.end(at(91)), None, "there is none");
        outages.begin(at(91));
        outages.end(at(92));
        outages.begin(at(95));
        assert_eq!(last(&outages, 95), (at(95), 0, 0, 0), "without an answer since the last one");
    }
}
