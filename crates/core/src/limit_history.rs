//! The limits by which a key was counted: what a store keeps beside a state, to convert it when the
//! limit of its rule changes.
//!
//! Instances with other limits may count the same key: before and after a new configuration is
//! read, or for as long as it differs. If each converted the state for itself, they would do so in
//! turn, and with [`OnChange::Reset`] nobody would be limited.
//!
//! - Rules that were made at run time have revisions. A state is converted forward only: if the
//!   revision of a hit is newer than all that have counted the key, and has set another limit than
//!   the newest of these. A hit of an older revision carries the state over as it is, and so does
//!   the next one of the newer revision, however long ago that was.
//! - Rules of files have none. So limits of the recent past are kept: a hit by one of them carries
//!   the state over as it is. A limit is forgotten one window after it was replaced, or in the time
//!   to fill a burst if that is longer; the longer one of both limits counts. No more than
//!   [`LimitHistory::MAX_LIMITS`] limits are kept, and while there are so many, no state is
//!   converted. So a key is converted at most three times in one window.
//!
//! Twin: `lua/on_change.lua`.
//!
//! [`OnChange::Reset`]: crate::algorithm::OnChange::Reset

use std::num::NonZeroU64;

use crate::algorithm::{Limit, OnChange};
use crate::clock::{Micros, Timestamp};

/// Time for which a history outlives the state that it belongs to.
const MARGIN: Micros = Micros::from_millis(1_000);

/// End of limits that are kept until others replace them.
const KEPT: Timestamp = Timestamp::EPOCH;

/// The limits by which a key was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct LimitHistory {
    /// Newest revision of the rules by which the key was counted. Rules of files have none: 0.
    revision: u64,
    /// The limit that has counted last first, at least one.
    limits: Vec<CountedLimit>,
    /// Time of the last conversion that did not keep the units in use: units that were taken before
    /// are not given back.
    settled_at: Timestamp,
    expires_at: Timestamp,
}

/// Limit, burst and window by which a key was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
struct CountedLimit {
    units: u64,
    burst: u64,
    window: Micros,
    /// Time from which the limit is forgotten. [`KEPT`] for the latest one, and for that of the
    /// revision, if a hit of an older revision has counted since.
    until: Timestamp,
}

impl CountedLimit {
    fn new(limit: &Limit) -> Self {
        let until = KEPT;
        Self { units: limit.units(), burst: limit.burst(), window: limit.window(), until }
    }

    fn is(&self, limit: &Limit) -> bool {
        (self.units, self.burst, self.window) == (limit.units(), limit.burst(), limit.window())
    }

    /// Returns the limit, with windows that begin as those of `to`, and with debt if that has any: up to the units
    /// per window.
    fn limit(&self, to: &Limit) -> Option<Limit> {
        let window = to.windows().with_length(self.window);
        let limit = Limit::new(self.units, window).ok()?.with_burst(self.burst).ok()?;
        let limit = match to.shared_units() {
            Some(units) => limit.sharing_state(to.shared_burst(), units),
            None => limit,
        };
        match to.max_debt() {
            Some(_) => limit.with_max_debt(self.units).ok(),
            None => Some(limit),
        }
    }
}

/// A change of the limit by which a key is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangedLimit {
    /// The limit that has counted last.
    pub(crate) from: Limit,
    /// The limit that is replaced.
    pub(crate) replaced: Limit,
    /// The policy, unless the state stays as it is.
    pub(crate) on_change: Option<OnChange>,
}

impl LimitHistory {
    /// Most limits of one history.
    pub const MAX_LIMITS: usize = 4;

    /// Creates the history of a key that is counted for the first time.
    pub fn new(limit: &Limit) -> Self {
        Self {
            revision: 0,
            limits: vec![CountedLimit::new(limit)],
            settled_at: Timestamp::EPOCH,
            expires_at: Timestamp::EPOCH,
        }
    }

    /// Returns `true` if such a history can have been written.
    pub fn is_valid(&self) -> bool {
        let is_limit = |counted: &CountedLimit| {
            Limit::new(counted.units, counted.window)
                .and_then(|limit| limit.with_burst(counted.burst))
                .is_ok()
        };
        (1..=Self::MAX_LIMITS).contains(&self.limits.len()) && self.limits.iter().all(is_limit)
    }

    /// Returns the time from which the history makes no difference.
    pub fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    /// Returns `true` if the history has not expired. As a key in Redis, it expires at the end of
    /// its last millisecond.
    pub fn is_alive(&self, time: Timestamp) -> bool {
        time < self.expires_at + Micros::from_millis(1)
    }

    /// Returns the change to a limit; `None` if the key is counted by it already.
    pub(crate) fn change_to(
        &self,
        limit: &Limit,
        revision: Option<NonZeroU64>,
        policy: OnChange,
        now: Timestamp,
    ) -> Option<ChangedLimit> {
        let latest = self.limits.first()?;
        let converts = self.must_convert(limit, revision, now);
        if !converts && latest.is(limit) {
            return None;
        }
        let (from, replaced) = (latest.limit(limit)?, self.of_revision()?.limit(limit)?);
        Some(ChangedLimit { from, replaced, on_change: converts.then_some(policy) })
    }

    /// Returns `true` if the state must be converted to the limit of a hit.
    fn must_convert(&self, limit: &Limit, revision: Option<NonZeroU64>, now: Timestamp) -> bool {
        if let (Some(known), Some(own)) = (NonZeroU64::new(self.revision), revision) {
            return own > known && self.of_revision().is_some_and(|counted| !counted.is(limit));
        }
        let Some((latest, past)) = self.limits.split_first() else { return false };
        let mut recent = past.iter().filter(|counted| now < counted.until);
        let is_recent = recent.clone().any(|counted| counted.is(limit));
        let has_space = recent.by_ref().count() + 1 < Self::MAX_LIMITS;
        !latest.is(limit) && !is_recent && has_space
    }

    /// Returns the limit that the newest revision has set.
    fn of_revision(&self) -> Option<&CountedLimit> {
        let past = self.limits.iter().skip(1);
        past.clone().find(|counted| counted.until == KEPT).or_else(|| self.limits.first())
    }

    /// Records a change that [`LimitHistory::change_to`] has returned.
    pub(crate) fn apply(
        &mut self,
        limit: &Limit,
        revision: Option<NonZeroU64>,
        change: &ChangedLimit,
        now: Timestamp,
    ) {
        let is_older = revision.is_some_and(|own| own.get() < self.revision);
        let newer = self.of_revision().copied().filter(|counted| is_older && !counted.is(limit));
        let spans = [limit, &change.from].map(|limit| limit.window().max(limit.fill_time()));
        let longest = spans[0].max(spans[1]);
        if let Some(before) = self.limits.first_mut() {
            before.until = now + longest;
        }
        self.limits.retain(|counted| now < counted.until && !counted.is(limit));
        if let Some(newer) = newer {
            self.limits.insert(0, CountedLimit { until: KEPT, ..newer });
        }
        self.limits.insert(0, CountedLimit::new(limit));
        while self.limits.len() > Self::MAX_LIMITS {
            self.forget_one();
        }
        self.set_revision(revision);
        if change.on_change.is_some_and(|policy| !policy.keeps_units()) {
            self.settled_at = now;
        }
    }

    /// Forgets the limit that ends first, of equal ones the oldest. So the history lives as long as the
    /// state of any limit: a window that is forgotten earlier would be found again in Redis.
    fn forget_one(&mut self) {
        let ends =
            self.limits.iter().enumerate().rev().filter(|(_, counted)| counted.until != KEPT);
        if let Some((first, _)) = ends.min_by_key(|(_, counted)| counted.until) {
            self.limits.remove(first);
        }
    }

    fn set_revision(&mut self, revision: Option<NonZeroU64>) {
        self.revision = revision.map_or(0, |own| own.get().max(self.revision));
    }

    /// Extends the life of the history after a hit by its latest limit: as long as the state can
    /// make a difference, or one of the limits before.
    pub(crate) fn renew(&mut self, limit: &Limit, revision: Option<NonZeroU64>, now: Timestamp) {
        self.set_revision(revision);
        let window = limit.window();
        let of_state = now + (window + window).max(limit.fill_time());
        let ends = self.limits.iter().skip(1).map(|counted| counted.until);
        let last = ends.fold(of_state, Timestamp::max);
        let millis = last.as_micros().div_ceil(1_000);
        self.expires_at = Timestamp::from_millis(millis) + MARGIN;
    }

    /// Returns `true` if units that were taken at this time can't be given back any more.
    pub(crate) fn was_settled_since(&self, taken_at: Timestamp) -> bool {
        taken_at <= self.settled_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);
    const POLICY: OnChange = OnChange::Scale;

    fn limit(units: u64) -> Limit {
        Limit::new(units, Micros::from_secs(10)).expect("a limit")
    }

    /// Counts by a limit of a revision at a second. Returns the burst that was converted.
    fn hit_of(history: &mut LimitHistory, revision: u64, units: u64, second: u64) -> Option<u64> {
        let (limit, now) = (limit(units), T0 + Micros::from_secs(second));
        let revision = NonZeroU64::new(revision);
        let change = history.change_to(&limit, revision, POLICY, now);
        if let Some(change) = &change {
            history.apply(&limit, revision, change, now);
        }
        history.renew(&limit, revision, now);
        assert!(history.is_valid() && history.is_alive(now + Micros::from_secs(20)));
        assert!(history.change_to(&limit, revision, POLICY, now).is_none(), "{history:?}");
        change.filter(|change| change.on_change.is_some()).map(|change| change.replaced.burst())
    }

    /// Counts by a limit of a file. Returns whether the state was converted.
    fn hit(history: &mut LimitHistory, units: u64, second: u64) -> bool {
        hit_of(history, 0, units, second).is_some()
    }

    #[test]
    fn newer_revisions_convert_each_time() {
        let mut history = LimitHistory::new(&limit(1));
        for (revision, units, expected) in [
            (3, 1, None),
            (4, 2, Some(1)),
            (5, 1, Some(2)),
            (6, 1, None),
            (9, 2, Some(1)),
            (10, 3, Some(2)),
            (11, 4, Some(3)),
            (12, 5, Some(4)),
            (13, 1, Some(5)),
        ] {
            assert_eq!(hit_of(&mut history, revision, units, 0), expected, "{revision}");
        }
    }

    #[test]
    fn older_revision_converts_nothing_ever() {
        let mut history = LimitHistory::new(&limit(1));
        assert_eq!(hit_of(&mut history, 3, 1, 0), None);
        assert_eq!(hit_of(&mut history, 4, 2, 0), Some(1));
        for second in 1..100 {
            let (revision, units) = if second / 30 % 2 == 0 { (3, 1) } else { (4, 2) };
            assert_eq!(hit_of(&mut history, revision, units, second), None, "{second}");
        }
        // After a hit of the older one, too, the change is one from the newest.
        assert_eq!(hit_of(&mut history, 3, 1, 100), None);
        assert_eq!(hit_of(&mut history, 5, 1, 100), Some(2));
        assert_eq!(hit_of(&mut history, 4, 2, 101), None);
        assert_eq!(hit_of(&mut history, 3, 7, 101), None);
        assert_eq!(hit_of(&mut history, 6, 7, 101), Some(1));
    }

    #[test]
    fn history_lives_as_long_as_the_longest_window() {
        let hour = Limit::new(1, Micros::from_secs(3_600)).expect("a limit");
        let mut history = LimitHistory::new(&hour);
        for (revision, units) in (1..).zip([1, 2, 3, 4, 5, 6]) {
            hit_of(&mut history, revision, units, 0);
        }
        hit_of(&mut history, 3, 7, 0);
        assert!(history.is_alive(T0 + Micros::from_secs(3_600)), "{history:?}");
        assert_eq!(hit_of(&mut history, 7, 7, 1), Some(6));
    }

    #[test]
    fn limit_without_a_revision_is_one_of_files() {
        let mut history = LimitHistory::new(&limit(1));
        assert_eq!(hit_of(&mut history, 0, 1, 0), None);
        assert_eq!(hit_of(&mut history, 7, 2, 0), Some(1));
        // An instance of an earlier release knows no revisions.
        assert_eq!(hit_of(&mut history, 0, 1, 1), None);
        assert_eq!(hit_of(&mut history, 7, 2, 1), None);
        assert_eq!(hit_of(&mut history, 8, 1, 1), Some(2));
    }

    #[test]
    fn two_limits_in_turn_convert_once() {
        let mut history = LimitHistory::new(&limit(1));
        assert!(hit(&mut history, 2, 0));
        for second in 1..100 {
            assert!(!hit(&mut history, 1 + second % 2, second), "{second}");
        }
    }

    #[test]
    fn limit_of_the_past_converts_a_window_after_its_last_hit() {
        let mut history = LimitHistory::new(&limit(1));
        assert!(hit(&mut history, 2, 0));
        assert!(!hit(&mut history, 1, 9));
        assert!(!hit(&mut history, 2, 18));
        assert!(!hit(&mut history, 2, 27));
        assert!(hit(&mut history, 1, 28));
    }

    #[test]
    fn a_window_has_at_most_three_conversions() {
        let mut history = LimitHistory::new(&limit(1));
        let converted: Vec<_> = (2..=9).map(|units| hit(&mut history, units, 0)).collect();
        assert_eq!(converted, [true, true, true, false, false, false, false, false]);
        assert!(hit(&mut history, 99, 10));
    }
}
