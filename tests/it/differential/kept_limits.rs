//! The reference model of changed limits: the units in use after a change, by the definition of the
//! policies.

use std::collections::HashMap;

use rlaas::algorithm::{Algorithm, Cost, Decision, Limit, OnChange};
use rlaas::clock::Timestamp;
use rlaas::store::Action;

use super::grants::LimitNumbers;
use super::model::{Model, State};

/// Most limits of one id.
const MAX_LIMITS: usize = 4;

/// The policy, and the limits by which each id was counted.
#[derive(Debug, Default)]
pub(super) struct KeptLimits {
    policy: Option<OnChange>,
    /// The latest one first.
    limits: HashMap<u8, Vec<KeptLimit>>,
    /// Revision of the rule; 0 if it has none.
    revision: u64,
    /// The newest revision that has counted each id, and its limit.
    newest: HashMap<u8, (u64, KeptLimit)>,
    /// The last millisecond in which the limits of an id are known.
    known_until_ms: HashMap<u8, i128>,
}

#[derive(Clone, Copy, Debug)]
struct KeptLimit {
    numbers: LimitNumbers,
    window: i128,
    /// Time in µs from which it is forgotten, unless it is the latest one.
    forgotten_at: i128,
}

impl KeptLimit {
    fn is(&self, other: &Self) -> bool {
        let numbers = |one: &Self| (one.numbers.units, one.numbers.burst, one.window);
        numbers(self) == numbers(other)
    }

    /// The time to fill the burst from the largest debt.
    fn fill_time(&self) -> i128 {
        let LimitNumbers { units, burst, max_debt } = self.numbers;
        let most = burst + max_debt.unwrap_or_default();
        (most * self.window + units - 1) / units
    }

    /// The time for which it is known after it was replaced.
    fn span(&self) -> i128 {
        self.window.max(self.fill_time())
    }
}

impl Model {
    /// Keeps the limits by which ids are counted.
    pub(super) fn keep_limits(&mut self, policy: OnChange) {
        self.kept.policy = Some(policy);
    }

    /// Replaces the limit of the rule, which this revision has set.
    pub(super) fn change_limit(&mut self, limit: &Limit, revision: u64) {
        self.kept.revision = revision;
        self.grants.set_rule(limit);
        self.window = limit.window().as_micros().into();
    }

    /// As [`Model::act`], for a rule whose limit may have changed.
    pub(super) fn act_keeping_limits(
        &mut self,
        id: u8,
        time: Timestamp,
        action: Action,
    ) -> Decision {
        let counts = match action {
            Action::Peek(_) => false,
            Action::Reset => true,
            other => other.cost() != Cost::NONE,
        };
        let state_before = self.states.get(&id).cloned();
        let limits_before = self.kept.limits.get(&id).cloned();
        let newest_before = self.kept.newest.get(&id).copied();
        let latest = self.latest();
        let now = i128::from(time.as_micros());
        if self.kept.known_until_ms.get(&id).is_some_and(|until_ms| now / 1000 > *until_ms) {
            // By then no unit is in use, and the stores have no state.
            self.kept.limits.remove(&id);
            self.kept.newest.remove(&id);
            self.states.remove(&id);
        }
        self.adopt(id, time, latest);
        let decision = self.act(id, time, action);
        if !counts {
            restore(&mut self.states, id, state_before);
            restore(&mut self.kept.limits, id, limits_before);
            restore(&mut self.kept.newest, id, newest_before);
        } else if decision.is_allowed() && matches!(action, Action::Take(_))
            || matches!(action, Action::Report(_))
        {
            self.kept.limits.entry(id).or_insert_with(|| vec![latest]);
            self.kept.newest.entry(id).or_insert((self.kept.revision, latest));
        }
        if counts && let Some(limits) = self.kept.limits.get(&id) {
            let of_state = now + (2 * latest.window).max(latest.fill_time());
            let last = limits[1..].iter().map(|one| one.forgotten_at).fold(of_state, i128::max);
            self.kept.known_until_ms.insert(id, (last + 999) / 1000 + 1000);
        }
        decision
    }

    fn latest(&self) -> KeptLimit {
        KeptLimit { numbers: self.grants.rule(), window: self.window, forgotten_at: 0 }
    }

    /// Converts the state of an id to the limit of the rule.
    fn adopt(&mut self, id: u8, time: Timestamp, to: KeptLimit) {
        let now = i128::from(time.as_micros());
        let Some(limits) = self.kept.limits.get_mut(&id) else { return };
        let mut from = limits[0];
        let revision = self.kept.revision;
        let newest = self.kept.newest.entry(id).or_insert((revision, from));
        let (newest_revision, replaced) = *newest;
        if revision >= newest_revision {
            *newest = (revision, to);
        }
        let is_next = revision > newest_revision && !replaced.is(&to);
        if from.is(&to) && !is_next {
            return;
        }
        // Debt may be stored up to one limit.
        from.numbers.max_debt = to.numbers.max_debt.map(|_| from.numbers.units);
        let mut past = limits.split_off(1);
        past.retain(|one| now < one.forgotten_at);
        let is_recent = past.iter().any(|one| one.is(&to));
        // Rules without revisions have no order: those of the recent past convert nothing.
        let converts =
            if revision > 0 { is_next } else { !is_recent && past.len() + 1 < MAX_LIMITS };
        let replaced = if revision > 0 { replaced } else { from };
        from.forgotten_at = now + from.span().max(to.span());
        past.insert(0, from);
        past.retain(|one| !one.is(&to));
        if revision < newest_revision && !replaced.is(&to) {
            // The limit of the newest revision takes a place of its own.
            past.insert(0, KeptLimit { forgotten_at: 0, ..replaced });
        }
        while past.len() >= MAX_LIMITS {
            // The one that ends first, of equal ones the oldest.
            let ends = past.iter().map(|one| one.forgotten_at).filter(|at| *at > 0).min();
            let first = past.iter().rposition(|one| Some(one.forgotten_at) == ends);
            past.remove(first.expect("more than the limit of the newest revision"));
        }
        past.insert(0, to);
        *limits = past;

        let mut state = self.states.remove(&id).unwrap_or_default();
        state.bucket.take_if(|bucket| now / 1000 > bucket.expires_at_ms);
        state.first_use.take_if(|(.., last_ms)| now / 1000 > *last_ms);
        self.count_by(from);
        let policy = self.kept.policy.filter(|_| converts);
        let state = match policy {
            Some(policy) => {
                let used = self.used_after(&state, now, policy, [&replaced.numbers, &to.numbers]);
                self.count_by(to);
                (used > 0).then(|| self.with_used(state, now, used, from.window != to.window))
            }
            None => self.carried(state, now, &from, to),
        };
        self.count_by(to);
        if let Some(state) = state {
            self.states.insert(id, state);
        }
    }

    fn count_by(&mut self, limit: KeptLimit) {
        self.window = limit.window;
        self.decide_by(limit.numbers);
    }

    /// Returns the units in use after a change from one limit to another. The model counts by the limit
    /// that has counted last: counts are the same by the limit that is replaced, and the units left of
    /// buckets.
    fn used_after(
        &self,
        state: &State,
        now: i128,
        policy: OnChange,
        [from, to]: [&LimitNumbers; 2],
    ) -> i128 {
        let left = self.left(state, now);
        let own = self.burst - left;
        let used = if self.algorithm.has_burst() { from.burst - left } else { own };
        if own <= 0 || used <= 0 {
            return 0;
        }
        let left = from.burst - used;
        let used = match policy {
            // Counts may be above the limit.
            OnChange::KeepUsed if !self.algorithm.has_burst() => return used,
            OnChange::KeepUsed => used,
            OnChange::KeepLeft => to.burst - left.min(to.burst),
            OnChange::Scale => (used * to.burst + from.burst - 1) / from.burst,
            OnChange::Reset => 0,
        };
        used.min(to.burst + to.max_debt.unwrap_or_default())
    }

    /// Returns the state with as many units in use.
    fn with_used(&self, mut state: State, now: i128, used: i128, is_moved: bool) -> State {
        match self.algorithm {
            Algorithm::FixedWindow if self.at_first_use => {
                let start = state.first_use.map_or(now, |(start, ..)| start);
                state.first_use = Some((start, used, start / 1000 + self.window / 1000 + 1000));
            }
            Algorithm::FixedWindow => {
                if is_moved {
                    state.fixed = None;
                }
                state.fixed = Some(self.counted(&state, now, used));
            }
            Algorithm::SlidingWindowLog => {
                if is_moved {
                    state.log.clear();
                }
                let (now_ms, window_ms) = (now / 1000, self.window / 1000);
                state.log.retain(|at| *at > now_ms - window_ms);
                let used = usize::try_from(used).expect("few entries");
                let surplus = state.log.len().saturating_sub(used);
                state.log.drain(..surplus);
                state.log.resize(used, now_ms);
            }
            Algorithm::SlidingWindowCounter => {
                // The largest count of a window.
                let used = used.min((1 << 36) - 1);
                if is_moved || self.used(&state, now) != used {
                    state.counter = Some((now, used, 0));
                }
            }
            _ => state.bucket = Some(self.bucket(used * self.window, now)),
        }
        state
    }

    /// Returns the state as it is, by another limit. The model counts by `from`.
    fn carried(
        &mut self,
        mut state: State,
        now: i128,
        from: &KeptLimit,
        to: KeptLimit,
    ) -> Option<State> {
        let is_moved = from.window != to.window;
        match self.algorithm {
            Algorithm::FixedWindow if self.at_first_use => Some(state),
            Algorithm::FixedWindow if is_moved => {
                let used = self.burst - self.left(&state, now);
                self.count_by(to);
                (used > 0).then(|| self.with_used(State::default(), now, used, true))
            }
            Algorithm::FixedWindow => Some(state),
            Algorithm::SlidingWindowLog | Algorithm::SlidingWindowCounter => {
                self.has_lost_its_way |= is_moved;
                Some(state)
            }
            _ => {
                let left = self.burst * self.window - self.in_use_numerator(&state, now);
                self.count_by(to);
                let mut left = (left * to.window).div_euclid(from.window);
                let debt = self.max_debt.unwrap_or_default();
                if self.algorithm == Algorithm::TokenBucket {
                    let tokens = left.div_euclid(self.window).max(-debt);
                    left = tokens * self.window + left.rem_euclid(self.window);
                }
                let in_use = (self.burst * self.window - left).clamp(0, self.most_in_use());
                state.bucket = (in_use > 0).then(|| self.bucket(in_use, now));
                Some(state)
            }
        }
    }
}

fn restore<V>(map: &mut HashMap<u8, V>, id: u8, before: Option<V>) {
    match before {
        Some(value) => _ = map.insert(id, value),
        None => _ = map.remove(&id),
    }
}
