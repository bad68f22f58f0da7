//! The reference model: each algorithm by its definition, in 128-bit rational arithmetic and
//! without optimizations. Waits are found by a search for the first time at which the cost fits.

use std::collections::HashMap;

use rlaas::algorithm::{Algorithm, Cost, Decision, Limit, Outcome};
use rlaas::clock::{Micros, Timestamp};
use rlaas::control::{KeyGrant, OverrideChange, OverrideKind};
use rlaas::rules::Grant;
use rlaas::store::Action;

use super::grants::{Granted, Grants, LimitNumbers};
use super::kept_limits::KeptLimits;

/// Longer than any wait: 300 years.
const FOREVER_US: i128 = 300 * 366 * 86_400 * 1_000_000;
/// Maximum number of entries that one request may write to a log.
const MAX_WRITTEN: i128 = 10_000;

/// Makes the decisions that the stores must make.
#[derive(Debug)]
pub(crate) struct Model {
    pub(super) algorithm: Algorithm,
    pub(super) window: i128,
    /// Whether windows begin with the first use.
    pub(super) at_first_use: bool,
    /// The limit by which the current action is decided.
    pub(super) units: i128,
    pub(super) burst: i128,
    /// Maximum debt in units; `None` if reports above the limit make no debt.
    pub(super) max_debt: Option<i128>,
    pub(super) grants: Grants,
    pub(super) states: HashMap<u8, State>,
    seen: Timestamp,
    /// Limits by which ids were counted, if they are kept.
    pub(super) kept: KeptLimits,
    /// Whether a full fixed window without debt counts denied requests.
    pub(super) counts_attempts: bool,
    /// `true` once the stores may have forgotten parts of a state that the model has: entries that
    /// have left a shorter window.
    pub(crate) has_lost_its_way: bool,
}

/// The state of a key. Each field belongs to one algorithm, or to the buckets. Times are in µs.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// Fixed window: index, count, expiry in ms.
    pub(super) fixed: Option<(i128, i128, i128)>,
    /// Fixed window from the first use: start, count, last millisecond in which the state exists.
    pub(super) first_use: Option<(i128, i128, i128)>,
    /// Log: the ms of each entry.
    pub(super) log: Vec<i128>,
    /// Counter: start, current, previous.
    pub(super) counter: Option<(i128, i128, i128)>,
    pub(super) bucket: Option<Bucket>,
}

/// A bucket at its last change.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// Token bucket: tokens × window. Others: units in use × window.
    amount: i128,
    at: i128,
    /// Units per window at that time.
    units: i128,
    /// The last millisecond in which the state exists.
    pub(super) expires_at_ms: i128,
}

impl Model {
    pub(crate) fn new(algorithm: Algorithm, limit: &Limit) -> Self {
        let LimitNumbers { units, burst, max_debt } = LimitNumbers::new(limit);
        Self {
            algorithm,
            window: limit.window().as_micros().into(),
            at_first_use: limit.windows().is_from_first_use(),
            units,
            burst,
            max_debt,
            grants: Grants::new(algorithm, limit),
            states: HashMap::new(),
            seen: Timestamp::EPOCH,
            kept: KeptLimits::default(),
            counts_attempts: true,
            has_lost_its_way: false,
        }
    }

    /// Grants something else to an id by an override of the rule.
    pub(crate) fn override_by_file(&mut self, id: u8, grant: Grant) {
        self.grants.override_by_file(id, grant);
    }

    /// Ends [`Model::override_by_file`].
    pub(super) fn forget_override_by_file(&mut self, id: u8) {
        self.grants.forget_by_file(id);
    }

    pub(crate) fn set_override(&mut self, id: u8, time: Timestamp, change: &OverrideChange) {
        self.grants.set(id, time, change);
    }

    pub(crate) fn clear_override(&mut self, id: u8, kind: OverrideKind) {
        self.grants.clear(id, kind);
    }

    /// Returns the overrides of an id that have not ended: the ban first.
    pub(crate) fn overrides(&self, id: u8, time: Timestamp) -> Vec<(KeyGrant, Timestamp)> {
        self.grants.in_force(id, time)
    }

    /// Applies an action to the state of an id.
    pub(crate) fn act(&mut self, id: u8, time: Timestamp, action: Action) -> Decision {
        let window = Micros::from_micros(u64::try_from(self.window).expect("a window"));
        let frozen = time.freeze(self.seen, window);
        self.seen = frozen;
        let now = i128::from(frozen.as_micros());
        // Expired by the time that the clock shows.
        let now_ms = i128::from(time.as_micros()) / 1000;
        let has_expired = |bucket: &Bucket| now_ms > bucket.expires_at_ms;
        if let Some(state) = self.states.get_mut(&id) {
            state.bucket.take_if(|bucket| has_expired(bucket));
            state.first_use.take_if(|(.., last_ms)| now_ms > *last_ms);
        }
        let action = match action {
            // Units come back, and states are removed, whatever a ban says.
            Action::Reset => {
                self.states.remove(&id);
                Action::Peek(Cost::NONE)
            }
            Action::Credit(cost) => {
                if let Granted::Limited(limit) = self.grants.below_ban(id, time) {
                    self.decide_by(limit);
                    self.credit(id, now, cost);
                }
                Action::Peek(Cost::NONE)
            }
            action => action,
        };
        if let Action::Report(cost) = action
            && !matches!(self.grants.by(id, time), Granted::Limited(_))
            && let Some(limit) = self.grants.charging(id, time).filter(|_| cost != Cost::NONE)
        {
            self.decide_by(limit);
            self.report(id, now, cost);
        }
        let uncounted = |outcome| Decision { at: frozen, ..Decision::uncounted(outcome) };
        match self.grants.by(id, time) {
            Granted::Limited(limit) => self.decide_by(limit),
            Granted::Unlimited => return uncounted(Outcome::Allowed),
            Granted::Banned { until: None } => return uncounted(Outcome::Impossible),
            Granted::Banned { until: Some(until) } => {
                let wait = until.since(time);
                let denied = uncounted(Outcome::Denied { retry_after: wait });
                let current_count = match (action, self.grants.below_ban(id, time)) {
                    // Those who look see what was used.
                    (Action::Peek(_), Granted::Limited(limit)) => {
                        self.decide_by(limit);
                        self.check(id, now, Action::Peek(Cost::NONE)).current_count
                    }
                    _ => 0,
                };
                return Decision { reset_after: wait, current_count, ..denied };
            }
        }
        let mut decision = match action {
            Action::Report(cost) if cost != Cost::NONE => self.report(id, now, cost),
            _ => self.check(id, now, action),
        };
        decision.at = frozen;
        decision.extend_waits(frozen.since(time));
        decision
    }

    pub(super) fn decide_by(&mut self, limit: LimitNumbers) {
        LimitNumbers { units: self.units, burst: self.burst, max_debt: self.max_debt } = limit;
    }

    /// Returns units, up to full and no further.
    fn credit(&mut self, id: u8, now: i128, cost: Cost) {
        let cost = i128::from(cost.units());
        let Some(before) = self.states.get(&id).cloned().filter(|_| cost > 0) else { return };
        let mut after = before.clone();
        match self.algorithm {
            Algorithm::FixedWindow if self.at_first_use => {
                let used = self.used(&before, now);
                if used > 0 {
                    let left = used - cost;
                    after.first_use = (left > 0).then(|| self.begun(&before, now, left));
                }
            }
            Algorithm::FixedWindow => {
                let most = self.units + self.max_debt.unwrap_or_default();
                // What is above the limit are attempts, if these are counted.
                let most = if self.counts_attempts { most } else { i128::MAX };
                let left = self.used(&before, now).min(most) - cost;
                after.fixed = (left > 0).then(|| self.counted(&before, now, left));
            }
            Algorithm::SlidingWindowLog => {
                let counted = self.used(&before, now).min(cost);
                let newest = after.log.len() - usize::try_from(counted).expect("few entries");
                after.log.truncate(newest);
            }
            Algorithm::SlidingWindowCounter if before.counter.is_some() => {
                let (start, current, previous) = self.rolled(&before, now);
                let rest = (cost - current).max(0);
                after.counter = match ((current - cost).max(0), (previous - rest).max(0)) {
                    (0, 0) => None,
                    (0, previous) => Some((start - self.window, previous, 0)),
                    (current, previous) => Some((start, current, previous)),
                };
            }
            Algorithm::SlidingWindowCounter => {}
            _ => {
                let left = self.in_use_numerator(&before, now) - cost * self.window;
                after.bucket = (left > 0).then(|| self.bucket(left, now));
            }
        }
        self.states.insert(id, after);
    }

    /// Counts a cost even above the limit, up to the maximum debt.
    fn report(&mut self, id: u8, now: i128, cost: Cost) -> Decision {
        let before = self.states.get(&id).cloned().unwrap_or_default();
        let (left, cost) = (self.left(&before, now), i128::from(cost.units()));
        let used = self.used(&before, now);
        let available = (self.units + self.max_debt.unwrap_or_default() - used).max(0);
        let mut after = before;
        match self.algorithm {
            Algorithm::FixedWindow if self.at_first_use => {
                let counted = cost.min(available);
                if used + counted > 0 {
                    after.first_use = Some(self.begun(&after, now, used + counted));
                }
            }
            Algorithm::FixedWindow => {
                let counted = cost.min(available);
                if counted > 0 {
                    after.fixed = Some(self.counted(&after, now, used + counted));
                }
            }
            Algorithm::SlidingWindowLog => {
                let units = cost.min((self.units - used).max(0)).min(MAX_WRITTEN);
                after.log.extend((0..units).map(|_| now / 1000));
            }
            Algorithm::SlidingWindowCounter => {
                let (start, current, previous) = self.rolled(&after, now);
                let counted = cost.min(available);
                if counted > 0 {
                    after.counter = Some((start, current + counted, previous));
                }
            }
            _ => {
                let numerator = self.in_use_numerator(&after, now) + cost * self.window;
                after.bucket = Some(self.bucket(numerator.min(self.most_in_use()), now));
            }
        }
        let is_log = self.algorithm == Algorithm::SlidingWindowLog;
        let outcome = if cost <= left && !(is_log && cost > MAX_WRITTEN) {
            Outcome::Allowed
        } else if self.fits(&after, now, 1) {
            Outcome::Impossible
        } else {
            let wait = first(|wait| self.fits(&after, now + wait, 1));
            Outcome::Denied { retry_after: span(wait) }
        };
        self.states.insert(id, after.clone());
        self.describe(&after, &after, now, outcome)
    }

    fn check(&mut self, id: u8, now: i128, action: Action) -> Decision {
        let cost = i128::from(action.cost().units());
        let take = matches!(action, Action::Take(_));
        let state = self.states.get(&id).cloned().unwrap_or_default();

        let fits = self.fits(&state, now, cost);
        let outcome = if fits {
            Outcome::Allowed
        } else if cost > self.most() {
            Outcome::Impossible
        } else {
            let wait = first(|wait| self.fits(&state, now + wait, cost));
            Outcome::Denied { retry_after: span(wait) }
        };
        let takes = take && cost > 0;
        let mut after = state.clone();
        if takes {
            self.commit(&mut after, now, cost, fits);
            self.states.insert(id, after.clone());
        }
        self.describe(&state, &after, now, outcome)
    }

    /// Returns the largest cost that can ever fit.
    fn most(&self) -> i128 {
        match self.algorithm {
            Algorithm::SlidingWindowLog => self.units.min(MAX_WRITTEN),
            Algorithm::FixedWindow | Algorithm::SlidingWindowCounter => self.units,
            _ => self.burst,
        }
    }

    fn fits(&self, state: &State, now: i128, cost: i128) -> bool {
        cost <= self.most() && cost <= self.left(state, now)
    }

    /// Returns the remaining units; a negative number is debt.
    pub(super) fn left(&self, state: &State, now: i128) -> i128 {
        let whole = if self.algorithm.has_burst() { self.burst } else { self.units };
        let most = match self.algorithm {
            Algorithm::SlidingWindowLog => 0,
            _ => self.max_debt.unwrap_or_default(),
        };
        (whole - self.used(state, now)).max(-most)
    }

    /// Returns the window of `now` with this count.
    pub(super) fn counted(&self, state: &State, now: i128, count: i128) -> (i128, i128, i128) {
        match self.current(state, now) {
            Some((index, _, expiry)) => (index, count, expiry),
            None => (now / self.window, count, (now / 1000 + self.window / 1000) * 1000),
        }
    }

    /// Returns the window that runs, or one that begins now, with this count.
    pub(super) fn begun(&self, state: &State, now: i128, count: i128) -> (i128, i128, i128) {
        let start = self.running(state, now).map_or(now, |(start, _)| start);
        (start, count, start / 1000 + self.window / 1000 + 1000)
    }

    /// Returns start and count of the window that runs.
    fn running(&self, state: &State, now: i128) -> Option<(i128, i128)> {
        let runs = |start: i128| start <= now + self.window && now < start + self.window;
        state.first_use.filter(|(start, ..)| runs(*start)).map(|(start, count, _)| (start, count))
    }

    /// Returns the count of the window of `now`. That of a window of another length with the same
    /// index ends before this window can, aside from a second.
    fn current(&self, state: &State, now: i128) -> Option<(i128, i128, i128)> {
        let index = now / self.window;
        let ends_from = (index + 1) * self.window - 1_000_000;
        state.fixed.filter(|(same, _, expiry)| *same == index && *expiry >= ends_from)
    }

    /// Returns the units in use at `now`. Fractions are rounded up, those of the sliding counter
    /// down.
    pub(super) fn used(&self, state: &State, now: i128) -> i128 {
        match self.algorithm {
            Algorithm::FixedWindow if self.at_first_use => {
                self.running(state, now).map_or(0, |(_, count)| count)
            }
            Algorithm::FixedWindow => self.current(state, now).map_or(0, |(_, count, _)| count),
            Algorithm::SlidingWindowLog => {
                let (now_ms, window_ms) = (now / 1000, self.window / 1000);
                let counts = |at: &&i128| **at > now_ms - window_ms && **at <= now_ms;
                state.log.iter().filter(counts).count() as i128
            }
            Algorithm::SlidingWindowCounter => {
                let (start, current, previous) = self.rolled(state, now);
                previous * (self.window - (now - start)) / self.window + current
            }
            _ => {
                let numerator = self.in_use_numerator(state, now);
                (numerator + self.window - 1) / self.window
            }
        }
    }

    /// Returns the units in use × window. Of a state by another limit a token bucket keeps the
    /// tokens, the others the units in use.
    pub(super) fn in_use_numerator(&self, state: &State, now: i128) -> i128 {
        let Some(Bucket { amount, at, units, .. }) = state.bucket else { return 0 };
        let (window, restored) = (self.window, (now - at) * self.units);
        let debt = self.max_debt.unwrap_or_default();
        let in_use = match self.algorithm {
            Algorithm::TokenBucket => {
                let (tokens, part) = (amount.div_euclid(window), amount.rem_euclid(window));
                let left = tokens.max(-debt) * window + part;
                self.burst * window - left
            }
            Algorithm::LeakyBucket => {
                let level = (amount + window - 1) / window;
                level.min(self.burst + debt) * window - (level * window - amount)
            }
            _ if units == self.units => amount.min(self.most_in_use()),
            _ => ((amount + window - 1) / window * window).min(self.most_in_use()),
        };
        (in_use - restored).max(0)
    }

    pub(super) fn most_in_use(&self) -> i128 {
        (self.burst + self.max_debt.unwrap_or_default()) * self.window
    }

    /// Returns the state of a bucket with these units in use × window.
    pub(super) fn bucket(&self, in_use: i128, now: i128) -> Bucket {
        let is_tokens = self.algorithm == Algorithm::TokenBucket;
        let amount = if is_tokens { self.burst * self.window - in_use } else { in_use };
        // It makes no difference once it is full, and stays for another second.
        let until_full = (in_use + self.units - 1) / self.units;
        let expires_at_ms = now / 1000 + (until_full + 999) / 1000 + 1000;
        Bucket { amount, at: now, units: self.units, expires_at_ms }
    }

    fn rolled(&self, state: &State, now: i128) -> (i128, i128, i128) {
        match state.counter {
            Some((start, current, previous)) if now - start < self.window => {
                (start, current, previous)
            }
            Some((start, current, _)) if now - start < 2 * self.window => {
                (start + self.window, 0, current)
            }
            _ => (now, 0, 0),
        }
    }

    fn commit(&self, state: &mut State, now: i128, cost: i128, fits: bool) {
        match self.algorithm {
            Algorithm::FixedWindow if self.at_first_use => {
                let count = self.used(state, now) + if fits { cost } else { 0 };
                if count > 0 {
                    state.first_use = Some(self.begun(state, now, count));
                }
            }
            Algorithm::FixedWindow => {
                let used = self.used(state, now);
                let is_attempt = self.counts_attempts
                    && used >= self.units
                    && cost == 1
                    && self.max_debt.is_none();
                if fits || is_attempt {
                    state.fixed = Some(self.counted(state, now, used + cost));
                }
            }
            Algorithm::SlidingWindowLog if fits => {
                state.log.extend((0..cost).map(|_| now / 1000));
            }
            Algorithm::SlidingWindowCounter if fits => {
                let (start, current, previous) = self.rolled(state, now);
                state.counter = Some((start, current + cost, previous));
            }
            _ if fits => {
                let numerator = self.in_use_numerator(state, now) + cost * self.window;
                state.bucket = Some(self.bucket(numerator, now));
            }
            _ => {}
        }
    }

    /// Returns the decision with the numbers of the state after the request.
    fn describe(&self, before: &State, after: &State, now: i128, outcome: Outcome) -> Decision {
        let used = self.used(after, now);
        let window = self.window;
        let (count, reset_after, ttl) = match self.algorithm {
            Algorithm::FixedWindow if self.at_first_use => {
                let until_end =
                    self.running(after, now).map_or(0, |(start, _)| start + window - now);
                (used, until_end, until_end)
            }
            Algorithm::FixedWindow => {
                let until_end = window - now % window;
                let ends_in = |(_, _, expiry)| expiry - now / 1000 * 1000;
                let ttl = self.current(after, now).map_or(window, ends_in);
                (used, until_end, ttl.max(1))
            }
            Algorithm::SlidingWindowLog => {
                let empty = first(|wait| self.used(after, now + wait) == 0);
                (self.used(before, now), empty, window)
            }
            Algorithm::SlidingWindowCounter => {
                let (start, current, previous) = self.rolled(after, now);
                let until_left = match (current, previous) {
                    (0, 0) => 0,
                    (0, _) => start + window - now,
                    _ => start + 2 * window - now,
                };
                (used, until_left, until_left)
            }
            _ => {
                let unused = first(|wait| self.in_use_numerator(after, now + wait) == 0);
                (used, unused, unused)
            }
        };
        let delay = match self.algorithm {
            Algorithm::LeakyBucket => {
                // The queue before this request is its delay.
                first(|wait| self.in_use_numerator(before, now + wait) == 0)
            }
            _ => 0,
        };
        Decision {
            at: Timestamp::EPOCH,
            outcome,
            current_count: natural(count),
            remaining: i64::try_from(self.left(after, now)).expect("few units"),
            reset_after: span(reset_after),
            ttl: span(ttl),
            delay: span(delay),
        }
    }
}

/// Returns the shortest wait for which `holds` returns `true`; it must hold for every longer wait.
fn first(holds: impl Fn(i128) -> bool) -> i128 {
    let (mut no, mut yes) = (-1, FOREVER_US);
    assert!(holds(yes), "the wait never ends");
    while yes - no > 1 {
        let middle = i128::midpoint(no, yes);
        if holds(middle) {
            yes = middle;
        } else {
            no = middle;
        }
    }
    yes
}

fn natural(number: i128) -> u64 {
    u64::try_from(number).expect("a natural number")
}

fn span(micros: i128) -> Micros {
    Micros::from_micros(natural(micros))
}
