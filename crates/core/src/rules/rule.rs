//! Rules: matcher, key, limit, algorithm and policies.

use std::cmp::Ordering;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use smallvec::SmallVec;

use super::key::KeyProject;
use super::modes::{RuleMode, SetMode};
use super::pattern::Matcher;
use super::{
    Costs, EnforcedShare, HashedParts, HashedValue, Hashing, Key, LimitFrom, OwnLimit, Part,
    Request,
};
use crate::algorithm::{Algorithm, Cost, Limit, OnChange, Window};
use crate::clock::{Micros, Timestamp};

/// A rule for requests by user, resource and attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Unique name, for callers and metrics.
    pub name: Arc<str>,
    /// Requests to which the rule applies.
    pub matcher: Matcher,
    /// Parts of a request whose values name the state.
    pub key_by: Vec<Part>,
    /// Algorithm that decides.
    pub algorithm: Algorithm,
    /// Grant to requests without an override.
    pub grant: Grant,
    /// Window of the grants of the rule, of its overrides, and of those set at run time.
    pub window: Window,
    /// Attribute of a request that names the day on which its windows of a calendar begin, in the place of
    /// that of `window`. It is a part of the key.
    pub anchor_from: Option<Arc<str>>,
    /// Where requests have limits of their own, in the place of that of `grant`.
    pub limit_from: Option<LimitFrom>,
    /// Grants to some requests. The closest match counts.
    pub overrides: Vec<Override>,
    /// Whether overrides and bans of single keys can be set at run time.
    pub overridable: bool,
    /// Units that each request takes, whatever it says itself, unless it names the rule.
    pub cost: Option<Cost>,
    /// Whether costs are also reported after the fact. The limits then keep debt.
    pub is_post_paid: bool,
    /// Set if reservations hold units, which are charged when they are settled. The limits then keep
    /// debt.
    pub holds: Option<HoldTerms>,
    /// Whether the rule is enforced, at this time.
    pub mode: Mode,
    /// Set if `mode` is not that of the configuration.
    pub set_mode: Option<SetMode>,
    /// Keys for which the rule is enforced, if it is.
    pub enforce: EnforcedShare,
    /// Units in use after a change of limit, burst or window. `None`: the state stays as it is, and
    /// the limits by which keys were counted are not kept.
    pub on_change: Option<OnChange>,
    /// Revision that has set the rule; it grows with each change. `None` for rules of files, whose
    /// changes have no common order.
    pub revision: Option<NonZeroU64>,
    /// Policy for the time when the store fails.
    pub on_store_failure: OnStoreFailure,
    /// Whether requests pass while the circuit breaker of the store is open.
    pub breaker_opens: bool,
    /// Part of the limit from which a key is near it. `None`: never.
    pub near_limit: Option<Share>,
    /// Parts of the limit at which an event is told, the lowest first.
    pub notify_at: Arc<[Share]>,
    /// Path of the file that the rule is from. Empty if there is none.
    pub file: Arc<str>,
}

/// How long, and how often, a key of a rule may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldTerms {
    /// Longest time of a hold: 100 ms to 24 h.
    pub longest: Micros,
    /// Most holds of a key: 1 to 10,000.
    pub most: u32,
    /// Most that a reservation may hold, as a part of the units that its grant allows at once. `None`: its
    /// cost.
    pub share: Option<Share>,
}

/// The common data of flat rules and rules for descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleInfo<'a> {
    /// Name of the rule, or label of its descriptor.
    pub name: &'a Arc<str>,
    /// Algorithm that decides.
    pub algorithm: Algorithm,
    /// Whether the rule is enforced, at this time.
    pub mode: Mode,
    /// Set if `mode` is not that of the configuration.
    pub set_mode: Option<SetMode>,
    /// Policy for the time when the store fails.
    pub on_store_failure: OnStoreFailure,
    /// Whether requests pass while the circuit breaker of the store is open.
    pub breaker_opens: bool,
    /// Part of the limit from which a key is near it. `None`: never.
    pub near_limit: Option<Share>,
    /// Parts of the limit at which an event is told, the lowest first.
    pub notify_at: &'a [Share],
    /// Whether overrides and bans of single keys can be set at run time.
    pub overridable: bool,
}

/// The units that a rule grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// A number of units per window.
    Limited(Limit),
    /// No units: `limit: 0`.
    Banned,
    /// Any number of units: `unlimited: true`.
    Unlimited,
}

/// A different grant for some requests, a headroom for them, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Requests to which the override applies.
    pub matcher: Matcher,
    /// Replaces the grant of the rule.
    pub grant: Option<Grant>,
    /// Part of the units at once that these requests leave to others: they pass only while so much would be left.
    pub headroom: Option<Share>,
}

impl Override {
    /// Creates a different grant for some requests.
    pub const fn new(matcher: Matcher, grant: Grant) -> Self {
        Self { matcher, grant: Some(grant), headroom: None }
    }
}

/// How the decision of a rule affects the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A denial refuses the request.
    #[default]
    Enforced,
    /// Decides, counts and reports, but never refuses a request.
    Shadow,
    /// One of the quotas of a request, which is refused if all of its quotas deny.
    Quota,
    /// Decides, counts and reports, but always allows as a quota.
    ShadowQuota,
    /// The rule is ignored: it has no hits.
    Off,
}

impl Mode {
    /// Returns `true` for the shadow modes, in which a denial refuses no request.
    pub fn is_shadow(self) -> bool {
        matches!(self, Self::Shadow | Self::ShadowQuota)
    }

    /// Replaces the mode of a rule by one that is set, or by that of the configuration.
    pub(super) fn switch(
        &mut self,
        set_mode: &mut Option<SetMode>,
        wanted: Option<(RuleMode, Timestamp)>,
    ) {
        let configured = set_mode.map_or(*self, |set| set.configured);
        *self = wanted.map_or(configured, |(mode, _)| mode.in_place_of(configured));
        *set_mode = wanted.map(|(_, ends_at)| SetMode { configured, ends_at });
    }

    /// Returns `true` if the decisions of these rules refuse the request: an enforced rule denies,
    /// or all quotas deny. Each item is the mode of a rule and whether it denies.
    pub fn refuse(denials: impl Iterator<Item = (Self, bool)>) -> bool {
        let (mut has_quotas, mut quotas_deny) = (false, true);
        for (mode, denies) in denials {
            match mode {
                Self::Enforced if denies => return true,
                Self::Quota | Self::ShadowQuota => {
                    has_quotas = true;
                    quotas_deny &= denies && mode == Self::Quota;
                }
                Self::Enforced | Self::Shadow | Self::Off => {}
            }
        }
        has_quotas && quotas_deny
    }

    /// Returns `true` if there are quotas and all of them deny.
    pub fn quotas_refuse(denials: impl Iterator<Item = (Self, bool)>) -> bool {
        Self::refuse(denials.filter(|(mode, _)| *mode != Self::Enforced))
    }
}

/// How the hits of a request depend on each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coupling {
    /// Units are taken only if no hit refuses the request. Reports are counted first.
    #[default]
    AllOrNothing,
    /// Each hit is decided independently, in order. A hit that is denied takes the remaining units.
    EachAlone,
}

/// Policy of a rule for the time when the store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// The call fails, so that the caller decides (fail-closed).
    Error,
    /// The request is allowed (fail-open).
    Allow,
    /// The request is denied.
    Deny,
    /// This instance decides alone in memory, by its share of the limit.
    Local(Share),
}

/// A part of a limit: above 0 and at most 1, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(NonZeroU32);

/// A part of a limit that is written as a percentage, such as `20%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percentage(pub Share);

impl Share {
    /// The whole limit, in millionths.
    pub const WHOLE: u32 = 1_000_000;
    /// Half of the limit.
    pub const HALF: Self = Self(NonZeroU32::new(Self::WHOLE / 2).expect("not zero"));

    /// Creates a share of `millionths`; `None` unless they are 1 to [`Share::WHOLE`].
    pub fn new(millionths: u32) -> Option<Self> {
        NonZeroU32::new(millionths).filter(|part| part.get() <= Self::WHOLE).map(Self)
    }

    /// Returns the share in millionths.
    pub const fn millionths(self) -> u32 {
        self.0.get()
    }

    /// Returns this part of the units that `limit` grants at once, rounded down.
    pub fn units_at_once(self, limit: &Limit) -> u64 {
        let [part, whole] = [self.millionths(), Self::WHOLE].map(u64::from);
        let (quotient, rest) = (limit.burst() / whole, limit.burst() % whole);
        quotient * part + rest * part / whole
    }

    /// Returns this part of the units that `limit` grants per window, rounded up.
    pub fn threshold(self, limit: &Limit) -> u64 {
        let units = u128::from(limit.units()) * u128::from(self.millionths());
        u64::try_from(units.div_ceil(Self::WHOLE.into())).unwrap_or(u64::MAX)
    }

    /// Compares the units in use with this part of the units that `limit` grants at once, of which
    /// `remaining` are left. Debt is in use too.
    pub fn compare_use(self, limit: &Limit, remaining: i64) -> Ordering {
        let capacity = limit.burst().cast_signed();
        let parts = |units: i64, whole: u32| i128::from(units) * i128::from(whole);
        let used = parts(capacity.saturating_sub(remaining), Self::WHOLE);
        used.cmp(&parts(capacity, self.millionths()))
    }
}

impl OnStoreFailure {
    /// Returns the name of the policy in configuration and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Local(_) => "local",
        }
    }
}

impl RuleInfo<'_> {
    /// Returns the policy that applies when the store fails.
    pub fn policy(&self, is_breaker_open: bool) -> OnStoreFailure {
        match self.on_store_failure {
            _ if is_breaker_open && self.breaker_opens => OnStoreFailure::Allow,
            // A rule in shadow mode refuses no request.
            OnStoreFailure::Error | OnStoreFailure::Deny if self.mode.is_shadow() => {
                OnStoreFailure::Allow
            }
            policy => policy,
        }
    }
}

impl Rule {
    /// Name of the default rule.
    pub const DEFAULT: &str = "default";

    /// Creates a default rule: a limit for each user, fail-closed.
    pub fn new_default(algorithm: Algorithm, limit: Limit) -> Self {
        Self {
            name: Self::DEFAULT.into(),
            matcher: Matcher::default(),
            key_by: vec![Part::UserId],
            algorithm,
            grant: Grant::Limited(limit),
            window: limit.windows(),
            anchor_from: None,
            limit_from: None,
            overrides: Vec::new(),
            overridable: false,
            cost: None,
            is_post_paid: false,
            holds: None,
            mode: Mode::Enforced,
            set_mode: None,
            enforce: EnforcedShare::ALL,
            on_change: None,
            revision: None,
            on_store_failure: OnStoreFailure::Error,
            breaker_opens: false,
            near_limit: None,
            notify_at: Arc::default(),
            file: Arc::default(),
        }
    }

    /// Returns the data that rules of both kinds have.
    pub fn info(&self) -> RuleInfo<'_> {
        RuleInfo {
            name: &self.name,
            algorithm: self.algorithm,
            mode: self.mode,
            set_mode: self.set_mode,
            on_store_failure: self.on_store_failure,
            breaker_opens: self.breaker_opens,
            overridable: self.overridable,
            near_limit: self.near_limit,
            notify_at: &self.notify_at,
        }
    }

    /// Returns the grant to a request: that of the closest override, of equally close ones the
    /// strictest, else that of the request itself, else that of the rule, with the policy for its changes.
    pub(crate) fn grant_for(&self, request: &Request<'_>) -> (Grant, Option<OnChange>, OwnLimit) {
        if let Some((_, closest)) = self.closest_override(request) {
            return (self.anchored(closest, request), None, OwnLimit::None);
        }
        let (grant, own_limit) = self.grant_from(request);
        (self.anchored(grant, request), self.on_change, own_limit)
    }

    /// Returns `true` if the part is the anchor of the rule's calendar, which is not hashed in keys: the
    /// windows of a key follow from it.
    pub(crate) fn is_anchor(&self, part: &Part) -> bool {
        matches!((part, &self.anchor_from), (Part::Attribute(name), Some(anchor)) if **name == **anchor)
    }

    /// Returns the windows of a request.
    #[inline]
    pub(crate) fn window_for(&self, request: &Request<'_>) -> Window {
        let anchor = self.anchor_from.as_ref().and_then(|name| request.attributes().get(name));
        anchor.map_or(self.window, |anchor| self.window.with_anchor(anchor))
    }

    #[inline]
    fn anchored(&self, grant: Grant, request: &Request<'_>) -> Grant {
        match (grant, &self.anchor_from) {
            (Grant::Limited(limit), Some(_)) => {
                Grant::Limited(limit.anchored_as(self.window_for(request)))
            }
            (grant, _) => grant,
        }
    }

    /// Makes the limits of the rule and of its overrides known to each other, if they may decide on
    /// the same state: if not all that overrides look at is in the key.
    pub(super) fn share_states(&mut self) {
        let in_key = |part: &Part| self.key_by.contains(part);
        let granting = self.overrides.iter().filter(|other| other.grant.is_some());
        let mut parts = granting.flat_map(|other| &other.matcher.patterns);
        let shares = self.algorithm.has_burst() && !parts.all(|(part, _)| in_key(part));
        let mut limits: Vec<&mut Limit> = [&mut self.grant]
            .into_iter()
            .chain(self.overrides.iter_mut().filter_map(|other| other.grant.as_mut()))
            .filter_map(Grant::limit_mut)
            .collect();
        let shares = shares && limits.len() > 1;
        let burst = limits.iter().map(|limit| limit.burst()).max().unwrap_or_default();
        let units = limits.iter().map(|limit| limit.units()).max().unwrap_or_default();
        for limit in &mut limits {
            **limit =
                if shares { limit.sharing_state(burst, units) } else { limit.deciding_alone() };
        }
    }

    /// Returns the grant of the override that applies to a request, and its position.
    pub(crate) fn closest_override(&self, request: &Request<'_>) -> Option<(usize, Grant)> {
        let close = self.overrides.iter().enumerate().filter_map(|(position, other)| {
            let (grant, fit) = (other.grant?, other.matcher.fit(request)?);
            Some((fit, position, grant))
        });
        let closest =
            close.max_by_key(|(fit, _, grant)| (*fit, std::cmp::Reverse(grant.generosity())));
        closest.map(|(_, position, grant)| (position, grant))
    }

    /// Returns what a request leaves to others: the closest, of equally close ones the largest.
    pub(crate) fn headroom_for(&self, request: &Request<'_>) -> Option<Share> {
        let fits = self.overrides.iter().filter_map(|other| {
            let (share, fit) = (other.headroom?, other.matcher.fit(request)?);
            Some((fit, share))
        });
        fits.max_by_key(|(fit, share)| (*fit, share.millionths())).map(|(_, share)| share)
    }

    /// Returns the units that a request takes from the rule.
    #[inline]
    pub fn cost_for(&self, request: &Request<'_>) -> Cost {
        let own = self.cost.filter(|_| request.cost() != Cost::NONE);
        request.costs().get(&self.name).or(own).unwrap_or(request.cost())
    }

    /// Returns `true` if a request takes its own cost from the rule: the rule has none, and is not named.
    pub(crate) fn takes_cost_of(&self, request: &Request<'_>) -> bool {
        self.cost.is_none()
            && !self.algorithm.has_slots()
            && request.costs().get(&self.name).is_none()
    }

    /// Returns the units that a report counts by the rule; `None` if it leaves the rule out.
    pub(crate) fn reported_cost(&self, request: &Request<'_>) -> Option<Cost> {
        let of_request = || self.cost.is_none().then(|| request.cost());
        request.costs().get(&self.name).or_else(of_request).filter(|_| self.keeps_debt())
    }

    /// Returns the cost of a settlement; `None` for what is held.
    pub fn settled_cost(&self, actual: Option<Cost>, actuals: Costs<'_>) -> Option<Cost> {
        if self.algorithm.has_slots() {
            return Some(Cost::NONE);
        }
        let of_all = actual.filter(|cost| self.cost.is_none() || *cost == Cost::NONE);
        actuals.get(&self.name).or(of_all)
    }

    /// Returns the units that an extension adds. Slots are not added to.
    pub fn extended_cost(&self, cost: Cost, costs: Costs<'_>) -> Cost {
        if self.algorithm.has_slots() {
            return Cost::NONE;
        }
        let of_all = if self.cost.is_none() { cost } else { Cost::NONE };
        costs.get(&self.name).unwrap_or(of_all)
    }

    /// Returns `true` if costs may come later, so that the limits keep debt.
    pub fn keeps_debt(&self) -> bool {
        self.is_post_paid || (self.holds.is_some() && !self.algorithm.has_slots())
    }

    /// Returns the mode for a key: shadow mode if the rule is enforced for other keys only.
    pub(crate) fn mode_for(&self, key: &Key) -> Mode {
        if self.enforce.contains(key) { self.mode } else { Mode::Shadow }
    }

    /// Returns the mode of the configuration.
    pub(super) fn configured_mode(&self) -> Mode {
        self.set_mode.map_or(self.mode, |set| set.configured)
    }

    /// Returns the key of the state for a request.
    pub(super) fn key_for(
        &self,
        project: &KeyProject,
        request: &Request<'_>,
        hashing: Hashing<'_>,
    ) -> Key {
        if let Some(hashed) = hashing.parts() {
            return self.hashed_key_for(project, request, hashing, hashed);
        }
        let values = self.key_by.iter().map(|part| part.value_in(request));
        self.key_of(project, values)
    }

    #[inline]
    fn key_of<'a>(
        &self,
        project: &KeyProject,
        values: impl Iterator<Item = Option<&'a str>>,
    ) -> Key {
        let name = if &*self.name == Self::DEFAULT { "" } else { &*self.name };
        Key::for_rule(project, name, values)
    }
}

/// Keys whose values are hashed, apart because they are the exception.
impl Rule {
    #[inline(never)]
    fn hashed_key_for(
        &self,
        project: &KeyProject,
        request: &Request<'_>,
        hashing: Hashing<'_>,
        hashed: &HashedParts,
    ) -> Key {
        let values = self.key_by.iter().map(|part| {
            let value = part.value_in(request)?;
            let by = hashed.hasher_of(part).filter(|_| !self.is_anchor(part));
            let hash = by.map(|hasher| hashing.hash(hasher, value));
            Some((value, hash))
        });
        let values: SmallVec<[_; 4]> = values.collect();
        let values = values.iter().map(|value| {
            let (value, hash) = value.as_ref()?;
            Some(hash.as_ref().map_or(*value, HashedValue::as_str))
        });
        self.key_of(project, values)
    }
}

impl Grant {
    /// Returns the limit, if there is one.
    #[inline]
    pub const fn limit(&self) -> Option<&Limit> {
        match self {
            Self::Limited(limit) => Some(limit),
            Self::Banned | Self::Unlimited => None,
        }
    }

    pub(super) fn limit_mut(&mut self) -> Option<&mut Limit> {
        match self {
            Self::Limited(limit) => Some(limit),
            Self::Banned | Self::Unlimited => None,
        }
    }

    /// Returns the effective mode of a rule with this grant. An unlimited grant does not count as a
    /// quota: it neither refuses a request nor lets it pass.
    pub fn effective_mode(self, mode: Mode) -> Mode {
        if self == Self::Unlimited { Mode::Shadow } else { mode }
    }

    fn generosity(self) -> (u64, u64) {
        match self {
            Self::Banned => (0, 0),
            Self::Limited(limit) => (limit.units(), limit.burst()),
            Self::Unlimited => (u64::MAX, u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_rounded_down() {
        for (units, millionths, expected) in [
            (30_000, 200_000, 6_000),
            (99, 10_000, 0),
            (3, 500_000, 1),
            (199, 10_000, 1),
            (200, 10_000, 2),
            (999_999_999_999_999, 333_333, 333_332_999_999_999),
            (999_999_999_999_999, 1_000_000, 999_999_999_999_999),
        ] {
            let limit = Limit::new(units, Micros::from_secs(60)).expect("a limit");
            let share = Share::new(millionths).expect("a share");
            assert_eq!(share.units_at_once(&limit), expected, "{units} × {millionths}");
        }
    }
}
