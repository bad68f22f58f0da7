//! Common parts of the specifications of flat rules and rules for descriptors: the rate, and the
//! policy for store failures.

use std::fmt;

use super::Field;
use super::problem::{InvalidField, Problems};
use crate::algorithm::{Algorithm, Limit, LimitError, Window};
use crate::clock::Micros;
use crate::reservation::{Holds, Reservation};
use crate::rules::{Grant, HoldTerms, OnStoreFailure, Percentage, Share};

pub(crate) const BOOLEAN: &str = "must be true or false";
pub(crate) const SHARE: &str = "must be a number above 0 and at most 1, such as 0.5";
pub(crate) const NO_DEBT: &str =
    "not with sliding-window-log, which can't be in debt; use token-bucket or fixed-window";
const HOLD: &str = "must be 100ms to 24h in whole milliseconds";
pub(super) const MAX_HOLDS: Whole = Whole { from: 1, to: Holds::MAX as u64 };
pub(super) const BURST: Whole = Whole { from: 1, to: Limit::MAX_UNITS };
pub(super) const PERCENTAGE: &str = "must be 1% to 100%, such as 20%";
/// The least part that a reservation may hold, and at which an event is told, in millionths.
const MIN_PERCENTAGE: u32 = 10_000;
const POLICY: &str = "must be error, allow, deny or local";

/// Units per window, and the algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateSpec {
    /// The algorithm that decides.
    pub algorithm: Field<Algorithm>,
    /// Units per window; 0 denies everything.
    pub limit: Field<u64>,
    /// The window.
    pub window: Field<Window>,
    /// Units at once, for algorithms that have a burst.
    pub burst: Field<u64>,
}

/// Policy of a rule for the time when the store fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreFailureSpec {
    /// Part of the limit that an instance grants when it decides alone.
    pub local_share: Field<Share>,
    /// The policy.
    pub on_store_failure: Field<StoreFailurePolicy>,
    /// Other notation of the policy: `true` is `allow`, `false` is `error`.
    pub fail_open: Field<bool>,
    /// Whether requests pass while the circuit breaker of the store is open.
    pub breaker_opens_rule: Field<bool>,
}

/// Whether, how long, and how often reservations hold units of a rule.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HoldSpec {
    pub(crate) reservable: Field<bool>,
    pub(crate) hold: Field<Micros>,
    pub(crate) max_holds: Field<u64>,
    pub(crate) hold_share: Field<Percentage>,
}

/// The debt of a rule whose costs come later.
pub(crate) struct DebtSpec {
    /// The field that says so; `None` if none does.
    pub(crate) later: Option<&'static str>,
    pub(crate) max_debt: Field<u64>,
}

/// The kind of an [`OnStoreFailure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFailurePolicy {
    /// The call fails.
    Error,
    /// The request passes.
    Allow,
    /// The request is denied.
    Deny,
    /// This instance decides alone.
    Local,
}

/// Bounds of a whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// The least.
    pub from: u64,
    /// The most.
    pub to: u64,
}

/// A rate whose values are valid one by one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) algorithm: Algorithm,
    pub(crate) units: u64,
    pub(crate) window: Window,
}

impl RateSpec {
    /// Returns the specification for an unlimited rule, in which a limit is optional and ignored.
    pub(crate) fn as_unlimited(self) -> Self {
        let limit = match self.limit {
            Field::Set(units) if units > u32::MAX.into() => self.limit,
            Field::Unset | Field::Set(_) => Field::Set(0),
            Field::Unreadable => Field::Unreadable,
        };
        Self { limit, window: Field::Set(Limit::MIN_WINDOW.into()), ..self }
    }

    /// Checks the rate. Returns it, for overrides in the same window, and the grant of the rule. Problems name
    /// `algorithms`.
    pub(crate) fn build(
        &self,
        default: Algorithm,
        algorithms: &'static [Algorithm],
        limits: Whole,
        problems: &mut Problems,
    ) -> (Option<Rate>, Option<Grant>) {
        let algorithm = problems.read("algorithm", self.algorithm, AlgorithmNames(algorithms));
        let units = problems.whole("limit", self.limit, limits);
        let units = problems.required("limit", units);
        let is_window = |window: &Window| Limit::new(1, *window).is_ok();
        let window = problems.check("window", &self.window, LimitError::Window, is_window);
        let window = problems.required("window", window.map(Option::<&Window>::copied));
        let burst = problems.whole("burst", self.burst, BURST);
        let (Ok(algorithm), Some(units), Some(window)) = (algorithm, units, window) else {
            return (None, None);
        };
        let algorithm = algorithm.unwrap_or(default);
        let rate = Rate { algorithm, units: units.min(Limit::MAX_COUNTED), window };
        (Some(rate), burst.ok().and_then(|burst| rate.grant(burst, problems)))
    }
}

impl HoldSpec {
    /// Longest time of a hold of a rule without `hold`.
    const DEFAULT_TIME: Micros = Micros::from_secs(60);
    /// Most holds of a key of a rule without `max-holds`.
    const DEFAULT_MOST: u32 = 1_000;

    /// Checks the terms. Rules with slots hold, too, as many as their limit allows.
    pub(crate) fn build(
        self,
        has_slots: bool,
        problems: &mut Problems,
    ) -> Result<Option<HoldTerms>, InvalidField> {
        let reservable = problems.read("reservable", self.reservable, BOOLEAN);
        let is_time =
            |time: &Micros| (Reservation::MIN_HOLD..=Reservation::MAX_HOLD).contains(time);
        let longest = problems.check("hold", &self.hold, HOLD, is_time);
        let most = problems.whole("max-holds", self.max_holds, MAX_HOLDS);
        let share = problems
            .check("hold-share", &self.hold_share, PERCENTAGE, |share| is_percentage(*share));
        let holds = reservable? == Some(true) || has_slots;
        if !holds && !self.hold.is_unset() {
            problems.add("hold", "only with reservable: true or concurrency");
        }
        if !holds && !self.max_holds.is_unset() {
            problems.add("max-holds", "only with reservable: true");
        }
        if !holds && !self.hold_share.is_unset() {
            problems.add("hold-share", "only with reservable: true");
        }
        let default = if has_slots { Holds::MAX } else { Self::DEFAULT_MOST };
        let (longest, most, share) = (longest?.copied(), most?, share?.copied());
        Ok(holds.then(|| HoldTerms {
            longest: longest.unwrap_or(Self::DEFAULT_TIME),
            most: most.and_then(|most| u32::try_from(most).ok()).unwrap_or(default),
            share: share.map(|Percentage(share)| share),
        }))
    }
}

pub(super) fn is_percentage(Percentage(share): Percentage) -> bool {
    share.millionths() >= MIN_PERCENTAGE
}

impl DebtSpec {
    /// Checks the debt for a grant by this algorithm. Returns the most that is set. `beside` is the
    /// problem of a rule that keeps no debt.
    pub(crate) fn build(
        self,
        algorithm: Option<Algorithm>,
        grant: Option<Grant>,
        beside: Option<&str>,
        problems: &mut Problems,
    ) -> Option<u64> {
        let is_debt = |units: &u64| *units <= Limit::MAX_DEBT;
        let error = LimitError::Debt { most: Limit::MAX_DEBT };
        let max_debt = problems.check("max-debt", &self.max_debt, error, is_debt).ok()?.copied();
        let algorithm = algorithm?;
        if let Some(field) = self.later
            && algorithm == Algorithm::SlidingWindowLog
        {
            problems.add(field, NO_DEBT);
            return None;
        }
        let units = max_debt?;
        let most = grant.as_ref().and_then(Grant::limit).map(|limit| algorithm.max_debt(limit));
        if let Some(beside) = beside {
            problems.add("max-debt", beside);
        } else if let Some(most) = most.filter(|most| units > *most) {
            problems.add("max-debt", LimitError::Debt { most });
        }
        max_debt
    }
}

impl Rate {
    /// Returns the grant of these units per window. 0 units are a ban, whatever the burst.
    pub(crate) fn grant(self, burst: Option<u64>, problems: &mut Problems) -> Option<Grant> {
        if self.units == 0 {
            return Some(Grant::Banned);
        }
        let limit = Limit::new(self.units, self.window)
            .and_then(|limit| burst.map_or(Ok(limit), |burst| limit.with_burst(burst)))
            .and_then(|limit| self.algorithm.accepts(&limit).map(|()| limit));
        match limit {
            Ok(limit) => Some(Grant::Limited(limit)),
            Err(error) => {
                let field = match error {
                    LimitError::Burst { .. } | LimitError::NoBurst { .. } => "burst",
                    LimitError::Window => "window",
                    LimitError::Debt { .. } => "max-debt",
                    LimitError::Units | LimitError::TooMany { .. } => "limit",
                };
                problems.add(field, error);
                None
            }
        }
    }
}

impl StoreFailureSpec {
    /// Checks the policy. Returns it, and whether requests pass while the circuit breaker is open.
    pub(crate) fn build(&self, problems: &mut Problems) -> Option<(OnStoreFailure, bool)> {
        let share = problems.read("local-share", self.local_share, SHARE);
        let policy = problems.read("on-store-failure", self.on_store_failure, POLICY);
        if let (Ok(Some(_)), Ok(policy)) = (share, policy)
            && policy != Some(StoreFailurePolicy::Local)
        {
            problems.add("local-share", "requires on-store-failure: local");
        }
        let fail_open = problems.read("fail-open", self.fail_open, BOOLEAN);
        if !self.on_store_failure.is_unset() && !self.fail_open.is_unset() {
            problems.add("fail-open", "the same as on-store-failure; give only one of them");
        }
        let breaker_opens = problems.read("breaker-opens-rule", self.breaker_opens_rule, BOOLEAN);
        let policy = match (policy.ok()?, fail_open.ok()?) {
            (Some(StoreFailurePolicy::Allow), _) | (None, Some(true)) => OnStoreFailure::Allow,
            (Some(StoreFailurePolicy::Error) | None, _) => OnStoreFailure::Error,
            (Some(StoreFailurePolicy::Deny), _) => OnStoreFailure::Deny,
            (Some(StoreFailurePolicy::Local), _) => {
                OnStoreFailure::Local(share.ok()?.unwrap_or(Share::HALF))
            }
        };
        Some((policy, breaker_opens.ok()?.unwrap_or(false)))
    }
}

impl StoreFailurePolicy {
    /// Every policy.
    pub const ALL: [Self; 4] = [Self::Error, Self::Allow, Self::Deny, Self::Local];

    /// Returns the name of the policy in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => OnStoreFailure::Error.name(),
            Self::Allow => OnStoreFailure::Allow.name(),
            Self::Deny => OnStoreFailure::Deny.name(),
            Self::Local => OnStoreFailure::Local(Share::HALF).name(),
        }
    }
}

impl fmt::Display for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "must be a whole number from {} to {}", self.from, self.to)
    }
}

/// The algorithms that a rule may have.
pub(super) struct AlgorithmNames(pub(super) &'static [Algorithm]);

impl fmt::Display for AlgorithmNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|algorithm| algorithm.name()).collect();
        write!(f, "must be {}", names.join(", "))
    }
}
