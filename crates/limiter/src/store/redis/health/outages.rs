//! The last outage of a server, and what it cost the callers of this process.
//!
//! An outage lasts from the first probe without an answer until the monitor is connected again. Its
//! requests are those since the last probe with an answer, until the first one afterwards: some fail
//! before the outage is noticed, others until the circuit breaker closes.

use crate::clock::{Micros, Timestamp};
use crate::store::NodeOutage;

/// The last outage of a server, and the requests of this process that were not decided meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    /// Counts at the last answer to a probe.
    answered: UndecidedCounts,
    probed_at: Option<Timestamp>,
    last: Option<CountedOutage>,
}

/// Requests of this process since it started, by [`Undecided`](crate::store::Undecided).
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
    /// Records that a probe is sent.
    pub(crate) fn record_probe(&mut self, at: Timestamp) {
        self.probed_at = Some(at);
    }

    /// Records that the last probe was answered.
    pub(crate) fn record_answer(&mut self, counts: UndecidedCounts) {
        self.answered = counts;
        if let Some(CountedOutage { ended_at: Some(_), after, .. }) = &mut self.last {
            after.get_or_insert(counts);
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
    pub(crate) fn end(&mut self, now: Timestamp, counts: UndecidedCounts) -> Option<Micros> {
        let last = self.last.as_mut().filter(|outage| outage.ended_at.is_none())?;
        last.ended_at = Some(now);
        self.answered = counts;
        Some(now.since(last.started_at))
    }

    /// Returns the outage that lasts, else the last one.
    pub(crate) fn last(&self, now: Timestamp, counts: UndecidedCounts) -> Option<NodeOutage> {
        let CountedOutage { started_at, ended_at, before, after } = self.last.as_ref()?;
        let after = after.unwrap_or(counts);
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
        let last = |outages: &Outages, now, counts| {
            let outage = outages.last(at(now), counts).expect("an outage");
            (
                outage.started_at,
                outage.length.as_micros() / 1_000_000,
                outage.failed,
                outage.allowed,
            )
        };
        assert_eq!(outages.last(at(1), [0, 0]), None);
        outages.record_probe(at(10));
        outages.record_answer([3, 1]);
        outages.record_probe(at(11));
        outages.begin(at(12));
        outages.begin(at(30));
        assert_eq!(last(&outages, 40, [28, 8]), (at(11), 29, 25, 7), "it lasts");
        assert_eq!(outages.end(at(84), [28, 8]), Some(Micros::from_secs(73)));
        outages.record_probe(at(85));
        outages.record_answer([30, 8]);
        outages.record_probe(at(86));
        outages.record_answer([39, 17]);
        assert_eq!(last(&outages, 90, [40, 17]), (at(11), 73, 27, 7));
        assert_eq!(outages.end(at(91), [40, 17]), None, "there is none");
        outages.begin(at(91));
        outages.end(at(92), [50, 17]);
        outages.begin(at(95));
        assert_eq!(last(&outages, 95, [50, 17]), (at(95), 0, 0, 0), "without an answer since");
    }
}
