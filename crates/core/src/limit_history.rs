//! The limits by which a key was counted: what a store keeps beside a state, to convert it when the
//! limit of its rule changes.
//!
//! Instances with other limits may count the same key: before and after a new configuration is
//! read, or for as long as it differs. If each converted the state for itself, they would do so in
//! turn, and with [`OnChange::Reset`] nobody would be limited. So limits of the recent past are
//! kept: a hit by one of them carries the state over as it is. A limit is forgotten one window after
//! it was replaced, or in the time to fill a burst if that is longer; the longer one of both limits
//! counts. No more than
//! [`LimitHistory::MAX_LIMITS`] limits are kept, and while there are so many, no state is converted.
//! So a key is converted at most three times in one window.
//!
//! Twin: `lua/on_change.lua`.
//!
//! [`OnChange::Reset`]: crate::algorithm::OnChange::Reset

use crate::algorithm::{Limit, OnChange};
use crate::clock::{Micros, Timestamp};

/// Time for which a history outlives the state that it belongs to.
const MARGIN: Micros = Micros::from_millis(1_000);

/// The limits by which a key was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct LimitHistory {
    /// Revision of the rules that set the latest limit. Rules of files have none: 0.
    revision: u64,
    /// The latest limit first, at least one.
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
    /// Time from which the limit is forgotten. Has no meaning for the latest one.
    until: Timestamp,
}

impl CountedLimit {
    fn new(limit: &Limit) -> Self {
        let until = Timestamp::EPOCH;
        Self { units: limit.units(), burst: limit.burst(), window: limit.window(), until }
    }

    fn is(&self, limit: &Limit) -> bool {
        (self.units, self.burst, self.window) == (limit.units(), limit.burst(), limit.window())
    }

    /// Returns the limit, with debt if `to` has any: as much as may be stored.
    fn limit(&self, to: &Limit) -> Option<Limit> {
        let limit = Limit::new(self.units, self.window).ok()?.with_burst(self.burst).ok()?;
        match to.max_debt() {
            Some(_) => limit.with_max_debt(self.units).ok(),
            None => Some(limit),
        }
    }
}

/// A change of the limit by which a key is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangedLimit {
    /// The limit before.
    pub(crate) from: Limit,
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
        let is_limit = |one: &CountedLimit| {
            Limit::new(one.units, one.window).and_then(|limit| limit.with_burst(one.burst)).is_ok()
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
        policy: OnChange,
        now: Timestamp,
    ) -> Option<ChangedLimit> {
        let (latest, past) = self.limits.split_first()?;
        if latest.is(limit) {
            return None;
        }
        let mut recent = past.iter().filter(|one| now < one.until);
        let is_recent = recent.clone().any(|one| one.is(limit));
        let has_space = recent.by_ref().count() + 1 < Self::MAX_LIMITS;
        let on_change = Some(policy).filter(|_| !is_recent && has_space);
        Some(ChangedLimit { from: latest.limit(limit)?, on_change })
    }

    /// Records a change that [`LimitHistory::change_to`] has returned.
    pub(crate) fn apply(&mut self, limit: &Limit, change: &ChangedLimit, now: Timestamp) {
        let spans = [limit, &change.from].map(|one| one.window().max(one.fill_time()));
        let longest = spans[0].max(spans[1]);
        if let Some(before) = self.limits.first_mut() {
            before.until = now + longest;
        }
        self.limits.retain(|one| now < one.until && !one.is(limit));
        self.limits.insert(0, CountedLimit::new(limit));
        self.limits.truncate(Self::MAX_LIMITS);
        if change.on_change.is_some_and(|policy| !policy.keeps_units()) {
            self.settled_at = now;
        }
    }

    /// Extends the life of the history after a hit by its latest limit: as long as the state can
    /// make a difference, or one of the limits before.
    pub(crate) fn renew(&mut self, limit: &Limit, now: Timestamp) {
        let window = limit.window();
        let of_state = now + (window + window).max(limit.fill_time());
        let ends = self.limits.iter().skip(1).map(|one| one.until);
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

    /// Counts by a limit at a second. Returns whether the state was converted.
    fn hit(history: &mut LimitHistory, units: u64, second: u64) -> bool {
        let (limit, now) = (limit(units), T0 + Micros::from_secs(second));
        let change = history.change_to(&limit, POLICY, now);
        if let Some(change) = &change {
            history.apply(&limit, change, now);
        }
        history.renew(&limit, now);
        assert!(history.is_valid() && history.is_alive(now + Micros::from_secs(20)));
        change.is_some_and(|change| change.on_change.is_some())
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
