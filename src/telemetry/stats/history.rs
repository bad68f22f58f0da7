//! Points of the last 15 minutes and 24 hours.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{StatsCoverage, StatsPoint, StatsSum};
use crate::clock::{Micros, Timestamp};

/// Most points of 10 s: 15 min.
const MAX_RECENT: usize = 90;
/// Most points of 5 min: 24 h.
const MAX_DAY: usize = 288;
/// Length of the longer points.
const LONG: Micros = Micros::from_secs(300);
/// Most rules that are added up for a longer point.
const MAX_ADDED: usize = 4_000;

/// Points of the past.
#[derive(Debug, Default)]
pub struct StatsHistory {
    recent: VecDeque<Arc<StatsPoint>>,
    day: VecDeque<Arc<StatsPoint>>,
    /// The longer point that is not over.
    open: Option<OpenPoint>,
    last: u64,
    last_long: u64,
}

#[derive(Debug)]
struct OpenPoint {
    /// Number of its 5 minutes since the epoch.
    number: u64,
    since: Timestamp,
    until: Timestamp,
    sum: StatsSum,
    coverage: StatsCoverage,
}

impl StatsHistory {
    /// Returns the number of the newest point of 10 s; 0 if there is none.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Adds a point, which has the number that follows that of the last one.
    pub fn push_point(&mut self, point: &Arc<StatsPoint>) {
        self.last = point.number;
        push_bounded(&mut self.recent, Arc::clone(point), MAX_RECENT);
        let number = point.since.as_micros() / LONG.as_micros();
        if let Some(open) = self.open.take_if(|open| open.number != number) {
            self.last_long += 1;
            push_bounded(&mut self.day, Arc::new(open.point(self.last_long)), MAX_DAY);
        }
        let open = self.open.get_or_insert_with(|| OpenPoint {
            number,
            since: point.since,
            until: point.until,
            sum: StatsSum::default(),
            coverage: StatsCoverage::default(),
        });
        open.until = point.until;
        open.sum.add_point(point);
        open.sum.cut(MAX_ADDED);
        open.coverage.instances.extend(point.coverage.instances.iter().cloned());
        open.coverage.missing.clone_from(&point.coverage.missing);
    }

    /// Returns the points of 10 s with a number above `after`, oldest first: at most 90.
    pub fn recent(&self, after: u64) -> Vec<Arc<StatsPoint>> {
        self.recent.iter().filter(|point| point.number > after).cloned().collect()
    }

    /// Returns the points of 5 min, oldest first: at most 288, and one that is not over.
    pub fn day(&self) -> Vec<Arc<StatsPoint>> {
        let open = self.open.as_ref();
        let open = open.map(|open| Arc::new(open.clone_point(self.last_long + 1)));
        self.day.iter().cloned().chain(open).collect()
    }
}

impl OpenPoint {
    fn point(self, number: u64) -> StatsPoint {
        let Self { since, until, sum, coverage, .. } = self;
        let (rules, others) = sum.into_parts();
        StatsPoint { number, since, until, rules, others, coverage }
    }

    fn clone_point(&self, number: u64) -> StatsPoint {
        let Self { number: of, since, until, sum, coverage } = self;
        let (sum, coverage) = (sum.clone(), coverage.clone());
        Self { number: *of, since: *since, until: *until, sum, coverage }.point(number)
    }
}

fn push_bounded(points: &mut VecDeque<Arc<StatsPoint>>, point: Arc<StatsPoint>, most: usize) {
    if points.len() >= most {
        points.pop_front();
    }
    points.push_back(point);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::stats::{DecisionCounts, StatsFilter, StatsKey};

    const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);
    const TEN: Micros = Micros::from_secs(10);

    /// Adds a point with one decision.
    fn push(history: &mut StatsHistory, since: Timestamp) {
        let (number, until) = (history.last() + 1, since + TEN);
        let counts = DecisionCounts { allowed: 1, ..DecisionCounts::default() };
        let rules = vec![(Arc::new(StatsKey::of_rule("", "pay")), counts)];
        let point = StatsPoint { number, since, until, rules, ..StatsPoint::default() };
        history.push_point(&Arc::new(point));
    }

    fn allowed(points: &[Arc<StatsPoint>]) -> Vec<u64> {
        let all = |point: &Arc<StatsPoint>| {
            let selected = point.select(&StatsFilter::default(), 10);
            selected.rules.first().map_or(0, |(_, counts)| counts.allowed)
        };
        points.iter().map(all).collect()
    }

    #[test]
    fn points_are_kept_for_15_minutes_and_24_hours() {
        let mut history = StatsHistory::default();
        let mut at = T0;
        for _ in 0..3 * 8_640 {
            push(&mut history, at);
            at = at + TEN;
        }
        let (recent, day) = (history.recent(0), history.day());
        assert_eq!(allowed(&recent), [1; 90]);
        assert_eq!(history.recent(recent[88].number), recent[89..]);
        assert_eq!((day.len(), allowed(&day[..288])), (289, vec![30; 288]));
        for points in [&recent, &day] {
            assert!(points.windows(2).all(|two| two[0].until == two[1].since), "no gap");
            assert!(points.windows(2).all(|two| two[0].number + 1 == two[1].number));
        }
    }

    #[test]
    fn clock_that_steps_back_loses_nothing() {
        let mut history = StatsHistory::default();
        for at in [T0, T0 + TEN, T0 - LONG, T0 - LONG + TEN, T0 + LONG + LONG] {
            push(&mut history, at);
        }
        assert_eq!(allowed(&history.recent(0)), [1; 5]);
        assert_eq!(allowed(&history.day()), [2, 2, 1]);
    }
}
