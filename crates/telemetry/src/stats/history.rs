//! Points of the last 15 minutes.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use rlaas_core::clock::Timestamp;

use super::{StatsPoint, StatsSum};

/// Most points of 10 s: 15 min.
pub const MAX_POINTS: usize = 90;

/// Points of the past.
#[derive(Debug, Default)]
pub struct StatsHistory(VecDeque<Arc<StatsPoint>>);

impl StatsHistory {
    /// Returns the number of the newest point; 0 if there is none.
    pub fn last(&self) -> u64 {
        self.0.back().map_or(0, |point| point.number)
    }

    /// Adds a point, which has the number that follows that of the last one.
    pub fn push_point(&mut self, point: &Arc<StatsPoint>) {
        if self.0.len() >= MAX_POINTS {
            self.0.pop_front();
        }
        self.0.push_back(Arc::clone(point));
    }

    /// Adds what other instances have counted in the interval that ended at `until` to its point. Does nothing
    /// if that is not kept.
    pub fn add(&mut self, until: Timestamp, instances: BTreeSet<Arc<str>>, counted: &StatsSum) {
        let holds = |point: &&mut Arc<StatsPoint>| point.since < until && until <= point.until;
        let Some(point) = self.0.iter_mut().rev().find(holds) else { return };
        let (mut sum, mut coverage) = (StatsSum::default(), point.coverage.clone());
        sum.add_point(point);
        sum.add_sum(counted);
        coverage.missing.retain(|id| !instances.contains(id));
        coverage.instances.extend(instances);
        let (rules, others, requests) = sum.into_parts();
        let StatsPoint { number, since, until, .. } = **point;
        *point = Arc::new(StatsPoint { number, since, until, rules, others, requests, coverage });
    }

    /// Returns the points with a number above `after`, oldest first: at most 90.
    pub fn recent(&self, after: u64) -> Vec<Arc<StatsPoint>> {
        self.0.iter().filter(|point| point.number > after).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_kept_for_15_minutes() {
        let mut history = StatsHistory::default();
        assert_eq!((history.last(), history.recent(0)), (0, Vec::new()));
        for number in 1..=1_000 {
            let point = StatsPoint { number, ..StatsPoint::default() };
            history.push_point(&Arc::new(point));
        }
        let recent = history.recent(0);
        let numbers: Vec<u64> = recent.iter().map(|point| point.number).collect();
        assert_eq!(numbers, (911..=1_000).collect::<Vec<_>>());
        assert_eq!((history.last(), history.recent(999)), (1_000, recent[89..].to_vec()));
    }
}
