//! The outages of a server in the last hour, and what they cost the callers of this process.
//!
//! An outage lasts from the first probe without an answer until the monitor is connected again. Its
//! requests are those since the last probe with an answer, until the first one afterwards: some fail
//! before the outage is noticed, others until the circuit breaker closes.

use crate::clock::{Micros, Timestamp};
use crate::store::NodeOutage;

/// Time for which an outage is remembered, and most of them; the last one is remembered for ever.
const MEMORY: Micros = Micros::from_secs(3_600);
const MAX_REMEMBERED: usize = 16;

/// The outages of a server, and the requests of this process that were not decided meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    /// Counts at the last answer to a probe.
    answered: UndecidedCounts,
    probed_at: Option<Timestamp>,
    /// In their order.
    all: Vec<CountedOutage>,
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
        if let Some(CountedOutage { ended_at: Some(_), after, .. }) = self.all.last_mut() {
            after.get_or_insert(counts);
        }
    }

    /// Begins an outage, with the last probe that was sent, unless one lasts.
    pub(crate) fn begin(&mut self, now: Timestamp) {
        let (before, last) = (self.answered, self.all.last_mut());
        if last.as_ref().is_some_and(|last| last.ended_at.is_none()) {
            return;
        }
        if let Some(last) = last {
            last.after.get_or_insert(before);
        }
        self.all.retain(|outage| outage.is_recent(now));
        let shortest = (0..self.all.len()).min_by_key(|at| self.all[*at].length(now));
        if let Some(shortest) = shortest.filter(|_| self.all.len() >= MAX_REMEMBERED) {
            self.all.remove(shortest);
        }
        let started_at = self.probed_at.take().unwrap_or(now);
        self.all.push(CountedOutage { started_at, ended_at: None, before, after: None });
    }

    /// Ends the outage that lasts, and returns its length.
    pub(crate) fn end(&mut self, now: Timestamp, counts: UndecidedCounts) -> Option<Micros> {
        let last = self.all.last_mut().filter(|outage| outage.ended_at.is_none())?;
        last.ended_at = Some(now);
        self.answered = counts;
        Some(now.since(last.started_at))
    }

    /// Returns the outage that lasts, else the longest of the last hour, else the last one.
    pub(crate) fn worst(&self, now: Timestamp, counts: UndecidedCounts) -> Option<NodeOutage> {
        let last = self.all.last()?;
        let recent = self.all.iter().filter(|outage| outage.is_recent(now));
        let longest = recent.max_by_key(|outage| outage.length(now));
        let worst = longest.filter(|_| last.ended_at.is_some()).unwrap_or(last);
        let (before, after) = (worst.before, worst.after.unwrap_or(counts));
        Some(NodeOutage {
            started_at: worst.started_at,
            length: worst.length(now),
            failed: after[0] - before[0],
            allowed: after[1] - before[1],
        })
    }
}

impl CountedOutage {
    fn length(&self, now: Timestamp) -> Micros {
        self.ended_at.unwrap_or(now).since(self.started_at)
    }

    fn is_recent(&self, now: Timestamp) -> bool {
        now.since(self.ended_at.unwrap_or(now)) <= MEMORY
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
            let outage = outages.worst(at(now), counts).expect("an outage");
            (
                outage.started_at,
                outage.length.as_micros() / 1_000_000,
                outage.failed,
                outage.allowed,
            )
        };
        assert_eq!(outages.worst(at(1), [0, 0]), None);
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
        outages.end(at(96), [51, 17]);
        let hour = 3_600;
        for now in [96, 84 + hour] {
            assert_eq!(last(&outages, now, [60, 17]), (at(11), 73, 27, 7), "the longest");
        }
        assert_eq!(last(&outages, 85 + hour, [60, 17]), (at(86), 6, 11, 0), "of the last hour");
        (0..99).for_each(|more| {
            outages.begin(at(100 + 2 * more));
            outages.end(at(101 + 2 * more), [60, 17]);
        });
        assert_eq!(last(&outages, 400, [60, 17]), (at(11), 73, 27, 7), "of many");
        outages.begin(at(400 + hour));
        assert_eq!(outages.all.len(), 1);
    }
}
