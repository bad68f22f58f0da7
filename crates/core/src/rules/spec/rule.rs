//! Specifications of flat rules.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::problem::{InvalidField, Problems};
use super::rate::{self, BOOLEAN, DebtSpec, HoldSpec, Rate, SHARE};
use super::{
    CalendarSpec, Field, Problem, RateSpec, StoreFailurePolicy, StoreFailureSpec, Whole, key_by,
};
use crate::algorithm::{Algorithm, Cost, Limit, OnChange, Window, WindowFrom};
use crate::clock::Micros;
use crate::rules::{
    EnforcedShare, Grant, LimitFrom, Matcher, Mode, Override, Part, Pattern, Percentage, Rule,
    RuleMode, Share,
};

/// Most bytes of the endpoint in a name that is made from it.
const MAX_SLUG: usize = 40;
/// Most overrides of a rule.
const MAX_OVERRIDES: usize = 100_000;

const RESERVED_NAME: &str =
    "must not be \"default\": that is the default rule, which rate-limiter sets";
const NAME: &str = "must be 1 to 64 letters, digits, '-', '_' or '.', and not \"default\"";
const TEXTS: &str = "must be a string or a list of strings; quote numbers and booleans";
const MODE: &str = "must be enforce, shadow or off";
const PERCENTAGE: &str = "must be a percentage from 0% to 100%, such as 25%";
const WINDOW_FROM: &str = "must be epoch or first-use";
const NOTIFY_AT: &str = "must be 1 to 5 percentages from 1% to 100%, such as [80%, 100%]";
const MAX_THRESHOLDS: usize = 5;
const LIMIT_FROM: &str = "must be attributes.NAME, with a name of 1 to 64 bytes, or request";
const LIMIT_FROM_ALGORITHM: &str =
    "only with fixed-window, sliding-window-counter or sliding-window-log";
const ON_CHANGE: &str = "must be keep-used, keep-left, scale or reset";
pub(super) const COSTS: Whole = Whole { from: 1, to: u32::MAX as u64 };
pub(super) const UNITS: Whole = Whole { from: 0, to: Limit::MAX_COUNTED };

/// A rule that is not checked yet.
///
/// The fields correspond to the message `Rule` of `ratelimit.proto`, under their names in rules
/// files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields, rename_all = "kebab-case"))]
pub struct RuleSpec {
    /// Version of this format: [`RuleSpec::VERSION`], which is also the default.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub version: Field<u64>,
    /// Unique name: 1 to 64 letters, digits, `-`, `_` or `.`. Required; see
    /// [`name_by_endpoint`](Self::name_by_endpoint).
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub name: Field<String>,
    /// Short form of `match.resource`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub endpoint: Field<Vec<String>>,
    /// Requests to which the rule applies; by default all.
    #[cfg_attr(feature = "serde", serde(rename = "match"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "MatcherSpec::is_empty"))]
    pub matcher: MatcherSpec,
    /// Parts of a request whose values name the state: `user_id`, `resource`, names of attributes,
    /// or `NAME|user_id`: the user in requests without that attribute. By default `user_id`.
    #[cfg_attr(feature = "serde", serde(alias = "key_by"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub key_by: Field<Vec<String>>,
    /// The algorithm that decides; by default the sliding window log.
    #[cfg_attr(
        feature = "serde",
        serde(alias = "use-algo", alias = "use_algo", alias = "strategy")
    )]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub algorithm: Field<Algorithm>,
    /// Units per window: 1 to 1,000,000,000, of a fixed window to [`Limit::MAX_COUNTED`], slots to 10,000; or 0,
    /// which denies everything. Required.
    #[cfg_attr(feature = "serde", serde(alias = "limit-count", alias = "limit_count"))]
    #[cfg_attr(feature = "serde", serde(alias = "max-requests", alias = "max_requests"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub limit: Field<u64>,
    /// The window: 1 ms to 366 days, in whole milliseconds. Required, but not with slots.
    #[cfg_attr(feature = "serde", serde(alias = "window-seconds", alias = "window_seconds"))]
    #[cfg_attr(feature = "serde", serde(alias = "window-size", alias = "window_size"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub window: Field<Micros>,
    /// The windows of a calendar, in the place of `window`. Fixed windows only.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "CalendarSpec::is_empty"))]
    pub calendar: CalendarSpec,
    /// Where windows of one length begin; by default at multiples of it since the Unix epoch. Fixed windows only.
    #[cfg_attr(feature = "serde", serde(alias = "window_from"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub window_from: Field<WindowFrom>,
    /// Units at once, for algorithms that have a burst; by default the units per window.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub burst: Field<u64>,
    /// Where requests have limits of their own: `attributes.NAME`, or `request` for the limit of a descriptor.
    #[cfg_attr(feature = "serde", serde(alias = "limit_from"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub limit_from: Field<String>,
    /// Units that each request takes, whatever it says itself: 1 to 2^32 - 1.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub cost: Field<u64>,
    /// Whether costs are also reported after the fact, and counted even if too few units are left.
    #[cfg_attr(feature = "serde", serde(alias = "post_paid"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub post_paid: Field<bool>,
    /// Most units of debt, with `post_paid`; by default [as many as can be kept](Algorithm::max_debt).
    #[cfg_attr(feature = "serde", serde(alias = "max_debt"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub max_debt: Field<u64>,
    /// Whether reservations hold units, which are charged when they are settled.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub reservable: Field<bool>,
    /// Longest time of a hold, with `reservable` or slots: 100 ms to 24 h; by default 60 s.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub hold: Field<Micros>,
    /// Most holds of a key, with `reservable`: 1 to 10,000; by default 1,000.
    #[cfg_attr(feature = "serde", serde(alias = "max_holds"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub max_holds: Field<u64>,
    /// Most that a reservation may hold, with `reservable`: 1 % to 100 % of the units at once; by default
    /// its cost.
    #[cfg_attr(feature = "serde", serde(alias = "hold_share"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub hold_share: Field<Percentage>,
    /// Other notation of `mode`: `true` is `shadow`, `false` is `enforce`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub shadow: Field<bool>,
    /// Whether the rule is enforced, in shadow mode or off; by default it is enforced.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub mode: Field<RuleMode>,
    /// Part of the keys for which the rule is enforced; by default all. For the others it is in
    /// shadow mode.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub enforce: Field<EnforcedShare>,
    /// Units in use after a change of limit, burst or window. If it is unset, the state stays as it
    /// is, and the limits by which keys were counted are not kept.
    #[cfg_attr(feature = "serde", serde(alias = "on_change"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub on_change: Field<OnChange>,
    /// Part of the limit that an instance grants when it decides alone; by default half.
    #[cfg_attr(feature = "serde", serde(alias = "local_share"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub local_share: Field<Share>,
    /// Policy for the time when the store fails; by default the call fails.
    #[cfg_attr(feature = "serde", serde(alias = "on_store_failure"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub on_store_failure: Field<StoreFailurePolicy>,
    /// Other notation of `on_store_failure`: `true` is `allow`, `false` is `error`.
    #[cfg_attr(feature = "serde", serde(alias = "fail_open"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub fail_open: Field<bool>,
    /// Whether requests pass while the circuit breaker of the store is open.
    #[cfg_attr(feature = "serde", serde(alias = "breaker_opens_rule"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub breaker_opens_rule: Field<bool>,
    /// Part of the limit from which a key is near it; by default never.
    #[cfg_attr(feature = "serde", serde(alias = "near_limit"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub near_limit: Field<Share>,
    /// Parts of the limit at which an event is told, with fixed windows: up to 5, each 1 % to 100 %.
    #[cfg_attr(feature = "serde", serde(alias = "notify_at"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub notify_at: Field<Vec<Percentage>>,
    /// Whether overrides and bans of single keys can be set at run time; by default not.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub overridable: Field<bool>,
    /// Different grants for some requests. The closest match counts.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub overrides: Vec<OverrideSpec>,
    /// Path of the file that the rule is from. Empty if there is none.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub file: Arc<str>,
    /// Revision that has set the rule. `None` for rules of files.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub revision: Option<NonZeroU64>,
}

/// The conditions of a rule or an override, all of which a request must meet. Each condition is one
/// text or several, one of which must match. `*` matches any text and `\*` an asterisk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields, rename_all = "kebab-case"))]
pub struct MatcherSpec {
    /// The resource.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub resource: Field<Vec<String>>,
    /// The user.
    #[cfg_attr(feature = "serde", serde(alias = "user_id"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub user_id: Field<Vec<String>>,
    /// Attributes, by name.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "BTreeMap::is_empty"))]
    pub attributes: BTreeMap<String, Field<Vec<String>>>,
}

/// A different grant for some requests: `limit`, or `unlimited: true`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields, rename_all = "kebab-case"))]
pub struct OverrideSpec {
    /// Requests to which the override applies. Required.
    #[cfg_attr(feature = "serde", serde(rename = "match"))]
    pub matcher: MatcherSpec,
    /// Whether everything is allowed.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub unlimited: Field<bool>,
    /// Units per window; 0 denies everything.
    #[cfg_attr(feature = "serde", serde(alias = "limit-count", alias = "limit_count"))]
    #[cfg_attr(feature = "serde", serde(alias = "max-requests", alias = "max_requests"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub limit: Field<u64>,
    /// Units at once; by default the units per window.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub burst: Field<u64>,
    /// What these requests leave to others, beside a limit or alone: 1 % to 100 % of the units at once.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub headroom: Field<Percentage>,
}

impl RuleSpec {
    /// The version of this format.
    pub const VERSION: u64 = 1;
    /// The algorithm of rules without `algorithm`.
    pub const DEFAULT_ALGORITHM: Algorithm = Algorithm::SlidingWindowLog;
    /// Units per window of a default rule without `limit`.
    pub const DEFAULT_LIMIT: u64 = 5;
    /// Window of a default rule without `window`.
    pub const DEFAULT_WINDOW: Micros = Micros::from_secs(60);

    /// Builds the rule.
    ///
    /// # Errors
    ///
    /// All [`Problem`]s, each with the path of its field.
    pub fn build(&self) -> Result<Rule, Vec<Problem>> {
        let mut problems = Problems::default();
        let is_reserved = self.name.value().is_some_and(|name| name == Rule::DEFAULT);
        let valid_name = if is_reserved { RESERVED_NAME } else { NAME };
        let name = problems.check("name", &self.name, valid_name, |name| is_name(name));
        let name = problems.required("name", name);
        let rate = self.rate(self.window);
        let rule = self.build_as(name.map_or("", String::as_str), rate, &mut problems);
        problems.finish(rule)
    }

    /// Names a rule that has one endpoint and no name, as in `v1-pay-token-bucket` for a token bucket at
    /// `/v1/pay`. Returns the name if it was made.
    ///
    /// ```
    /// # use rlaas_core::rules::spec::{Field, RuleSpec};
    /// let endpoint = Field::Set(vec!["/v1/pay".to_owned()]);
    /// let mut spec = RuleSpec { endpoint, ..RuleSpec::default() };
    /// assert_eq!(spec.name_by_endpoint(), Some("v1-pay-sliding-window-log"));
    /// assert_eq!(spec.name_by_endpoint(), None);
    /// ```
    pub fn name_by_endpoint(&mut self) -> Option<&str> {
        let [endpoint] = self.endpoint.value()?.as_slice() else { return None };
        if !self.name.is_unset() {
            return None;
        }
        let algorithm = self.algorithm.value().unwrap_or(&Self::DEFAULT_ALGORITHM).name();
        self.name = format!("{}{algorithm}", Self::slug(endpoint)).into();
        self.name.value().map(String::as_str)
    }

    /// Returns the beginning of a name of a rule for an endpoint: its letters and digits, with `-` for
    /// what is between and at the end; at most 41 bytes.
    pub fn slug(endpoint: &str) -> String {
        let mut slug = String::new();
        for char in endpoint.chars() {
            let ends = slug.is_empty() || slug.ends_with('-');
            match char {
                char if char.is_ascii_alphanumeric() => slug.push(char.to_ascii_lowercase()),
                _ if !ends => slug.push('-'),
                _ => {}
            }
            if slug.len() == MAX_SLUG {
                break;
            }
        }
        match slug.as_str() {
            "" => "rule-".to_owned(),
            text if text.ends_with('-') => slug,
            _ => slug + "-",
        }
    }

    /// Builds the default rule, which has no name and no required fields.
    pub(super) fn build_default(&self) -> Result<Rule, Vec<Problem>> {
        let mut problems = Problems::default();
        if !self.name.is_unset() {
            problems.add("name", "the default rule has no other name");
        }
        let window = if self.calendar.is_empty() {
            self.window.or(Self::DEFAULT_WINDOW)
        } else {
            self.window
        };
        let rate = self.rate(window);
        let rate = RateSpec { limit: rate.limit.or(Self::DEFAULT_LIMIT), ..rate };
        let rule = self.build_as(Rule::DEFAULT, rate, &mut problems);
        problems.finish(rule)
    }

    fn rate(&self, window: Field<Micros>) -> RateSpec {
        let Self { algorithm, limit, burst, .. } = *self;
        RateSpec { algorithm, limit, window: window.map(Window::from), burst }
    }

    fn build_as(&self, name: &str, rate: RateSpec, problems: &mut Problems) -> Option<Rule> {
        let is_known = |version: &u64| *version == Self::VERSION;
        let _refused = problems.check("version", &self.version, "must be 1", is_known);
        let matcher = self.matcher(problems);
        let mut key_by = self.key_parts(problems);
        let (rate, anchor_from) = self.in_calendar(rate, problems);
        let rate = self.at_first_use(rate, problems);
        if let (Some(key_by), Some(name)) = (&mut key_by, &anchor_from) {
            let part = Part::Attribute(name.to_string());
            match key_by.iter().find(|other| key_by::is_same(other, &part)) {
                None => key_by.push(part),
                Some(other) if *other == part => {}
                Some(_) => {
                    let text = "must not be in key-by as NAME|user_id";
                    problems.add("calendar.anchor-from", text);
                }
            }
        }
        let has_slots = rate.algorithm.value().is_some_and(|algorithm| algorithm.has_slots());
        let rate = if has_slots { self.slots(name, rate, problems) } else { rate };
        let algorithms = if name == Rule::DEFAULT { Algorithm::RATES } else { Algorithm::ALL };
        let (rate, grant) = rate.build(Self::DEFAULT_ALGORITHM, algorithms, UNITS, problems);
        let cost = self.build_cost(problems);
        let post_paid = problems.read("post-paid", self.post_paid, BOOLEAN);
        let is_post_paid = post_paid.is_ok_and(|given| given == Some(true));
        let Self { reservable, hold, max_holds, hold_share, .. } = *self;
        let holds = HoldSpec { reservable, hold, max_holds, hold_share };
        let holds = holds.build(has_slots, problems);
        let is_reservable = matches!(holds, Ok(Some(_))) && !has_slots;
        let later = is_reservable.then_some("reservable");
        let later = is_post_paid.then_some("post-paid").or(later);
        let debt = DebtSpec { later, max_debt: self.max_debt };
        let beside = later.is_none().then_some("only with post-paid: true or reservable: true");
        let max_debt = debt.build(rate.map(|rate| rate.algorithm), grant, beside, problems);
        let mode = self.build_mode(problems);
        let enforce = problems.read("enforce", self.enforce, PERCENTAGE);
        if let (Ok(mode), Ok(Some(_))) = (mode, enforce)
            && mode != RuleMode::Enforce
        {
            problems.add("enforce", "requires mode: enforce");
        }
        let on_change = self.build_on_change(rate, problems);
        let limit_from = self.build_limit_from(rate, anchor_from.as_deref(), problems);
        let overridable = problems.read("overridable", self.overridable, BOOLEAN);
        let failure = StoreFailureSpec::from(self).build(problems);
        let near_limit = problems.read("near-limit", self.near_limit, SHARE);
        let notify_at = self.build_notify_at(rate, problems);
        if self.overrides.len() > MAX_OVERRIDES {
            problems.add("overrides", format!("must have at most {MAX_OVERRIDES} entries"));
        }
        let mut overrides = Vec::with_capacity(self.overrides.len());
        for (index, spec) in self.overrides.iter().enumerate() {
            let mut own = Problems::default();
            overrides.extend(spec.build(rate, &mut own));
            problems.add_below(&format!("overrides[{index}]"), own);
        }
        let (on_store_failure, breaker_opens) = failure?;
        let (rate, mut grant) = (rate?, grant?);
        if later.is_some() {
            let grants =
                overrides.iter_mut().filter_map(|other: &mut Override| other.grant.as_mut());
            let grants = grants.chain([&mut grant]);
            for limit in grants.filter_map(Grant::limit_mut) {
                *limit = rate.algorithm.with_debt(*limit, max_debt);
            }
        }
        Some(Rule {
            name: name.into(),
            matcher,
            key_by: key_by?,
            algorithm: rate.algorithm,
            grant,
            window: rate.window,
            anchor_from,
            limit_from: limit_from.ok()?,
            overrides,
            overridable: overridable.ok()? == Some(true),
            cost: cost.ok()?.or(has_slots.then_some(Cost::ONE)),
            is_post_paid,
            holds: holds.ok()?,
            mode: mode.ok()?.in_place_of(Mode::Enforced),
            set_mode: None,
            enforce: enforce.ok()?.unwrap_or_default(),
            on_change: on_change.ok()?,
            revision: self.revision,
            on_store_failure,
            breaker_opens,
            near_limit: near_limit.ok()?,
            notify_at: notify_at?,
            file: Arc::clone(&self.file),
        })
    }

    /// Returns the thresholds of fixed windows, the lowest first.
    fn build_notify_at(&self, rate: Option<Rate>, problems: &mut Problems) -> Option<Arc<[Share]>> {
        let is_list = |list: &Vec<Percentage>| {
            (1..=MAX_THRESHOLDS).contains(&list.len())
                && list.iter().copied().all(rate::is_percentage)
        };
        let list = problems.check("notify-at", &self.notify_at, NOTIFY_AT, is_list).ok()?;
        let has_windows = rate.is_none_or(|rate| rate.algorithm == Algorithm::FixedWindow);
        if !self.notify_at.is_unset() && !has_windows {
            problems.add("notify-at", "only with algorithm: fixed-window");
        }
        let mut shares: Vec<Share> = list.into_iter().flatten().map(|share| share.0).collect();
        shares.sort_by_key(|share| share.millionths());
        shares.dedup();
        Some(shares.into())
    }

    /// Returns the rate in the windows of a calendar, if the rule has one, and the attribute that has their
    /// anchor.
    fn in_calendar(&self, rate: RateSpec, problems: &mut Problems) -> (RateSpec, Option<Arc<str>>) {
        if self.calendar.is_empty() {
            return (rate, None);
        }
        let mut own = Problems::default();
        let (window, anchor_from) = self.calendar.build(&mut own);
        problems.add_below("calendar", own);
        match self.window {
            Field::Unset => {}
            Field::Set(_) => problems.add("window", "not with calendar; give only one"),
            Field::Unreadable => return (rate, anchor_from),
        }
        if !matches!(self.algorithm, Field::Set(Algorithm::FixedWindow) | Field::Unreadable) {
            problems.add("calendar", "only with algorithm: fixed-window");
        }
        if !self.on_change.is_unset() {
            problems.add("on-change", "not with calendar");
        }
        // A window in its place, so that no other problem follows from this one.
        let window = window.value().copied().unwrap_or(Limit::MIN_WINDOW.into());
        (RateSpec { window: Field::Set(window), ..rate }, anchor_from)
    }

    /// Returns the rate in windows from the first use, if the rule has these.
    fn at_first_use(&self, rate: RateSpec, problems: &mut Problems) -> RateSpec {
        let from = problems.read("window-from", self.window_from, WINDOW_FROM);
        if self.window_from.is_unset() {
            return rate;
        }
        match self.algorithm {
            Field::Set(Algorithm::FixedWindow) if !self.calendar.is_empty() => {
                problems.add("window-from", "not with calendar");
            }
            Field::Set(Algorithm::FixedWindow) | Field::Unreadable => {}
            _ => problems.add("window-from", "only with algorithm: fixed-window"),
        }
        match from {
            Ok(Some(WindowFrom::FirstUse)) => {
                RateSpec { window: rate.window.map(Window::at_first_use), ..rate }
            }
            _ => rate,
        }
    }

    /// Refuses the fields that slots don't have. Returns the rate, in a window that nobody sees.
    fn slots(&self, name: &str, rate: RateSpec, problems: &mut Problems) -> RateSpec {
        if name == Rule::DEFAULT {
            problems.add("algorithm", "the default rule can't be concurrency, which refuses Check");
        }
        for (field, is_set) in [
            ("window", !self.window.is_unset()),
            ("calendar", !self.calendar.is_empty()),
            ("post-paid", !self.post_paid.is_unset()),
            ("max-debt", !self.max_debt.is_unset()),
            ("reservable", !self.reservable.is_unset()),
            ("max-holds", !self.max_holds.is_unset()),
            ("hold-share", !self.hold_share.is_unset()),
            ("on-change", !self.on_change.is_unset()),
            ("near-limit", !self.near_limit.is_unset()),
        ] {
            if is_set {
                problems.add(field, "not with concurrency, which has limit and hold");
            }
        }
        if self.limit.value() == Some(&0) {
            problems.add("limit", "must be a whole number from 1 to 10000 with concurrency");
        }
        if self.on_store_failure.value() == Some(&StoreFailurePolicy::Local) {
            problems.add("on-store-failure", "must be error, allow or deny with concurrency");
        }
        RateSpec { window: Field::Set(Limit::MIN_WINDOW.into()), ..rate }
    }

    /// Reads where requests have limits of their own: beside a count that is compared with a limit.
    fn build_limit_from(
        &self,
        rate: Option<Rate>,
        anchor_from: Option<&str>,
        problems: &mut Problems,
    ) -> Result<Option<LimitFrom>, InvalidField> {
        let is_place = |text: &String| LimitFrom::from_text(text).is_some();
        let text = problems.check("limit-from", &self.limit_from, LIMIT_FROM, is_place)?;
        let Some(from) = text.and_then(|text| LimitFrom::from_text(text)) else { return Ok(None) };
        let compares_counts =
            |algorithm: Algorithm| !algorithm.has_burst() && !algorithm.has_slots();
        let anchor = anchor_from.map(|name| LimitFrom::Attribute(name.into()));
        for (is_wrong, field, problem) in [
            (
                rate.is_some_and(|rate| !compares_counts(rate.algorithm)),
                "limit-from",
                LIMIT_FROM_ALGORITHM,
            ),
            (self.limit.value() == Some(&0), "limit", "must be at least 1 with limit-from"),
            (!self.on_change.is_unset(), "limit-from", "not with on-change"),
            (!self.max_debt.is_unset(), "limit-from", "not with max-debt"),
            (
                anchor.as_ref() == Some(&from),
                "limit-from",
                "must not be that of calendar.anchor-from",
            ),
        ] {
            if is_wrong {
                problems.add(field, problem);
            }
        }
        Ok(Some(from))
    }

    fn build_cost(&self, problems: &mut Problems) -> Result<Option<Cost>, InvalidField> {
        let cost = problems.whole("cost", self.cost, COSTS)?;
        Ok(cost.and_then(|units| u32::try_from(units).ok()).map(Cost::new))
    }

    /// Reads the mode, in either notation.
    fn build_mode(&self, problems: &mut Problems) -> Result<RuleMode, InvalidField> {
        let shadow = problems.read("shadow", self.shadow, BOOLEAN);
        let mode = problems.read("mode", self.mode, MODE)?;
        let of_shadow =
            shadow?.map(|shadow| if shadow { RuleMode::Shadow } else { RuleMode::Enforce });
        if mode.is_some() && of_shadow.is_some() && mode != of_shadow {
            problems.add("shadow", "contradicts mode; give only one");
        }
        Ok(mode.or(of_shadow).unwrap_or(RuleMode::Enforce))
    }

    /// Reads the policy for changes. A log has an entry for each unit in use, which a conversion may
    /// have to write in one step.
    fn build_on_change(
        &self,
        rate: Option<Rate>,
        problems: &mut Problems,
    ) -> Result<Option<OnChange>, InvalidField> {
        let on_change = problems.read("on-change", self.on_change, ON_CHANGE)?;
        if rate.is_some_and(|rate| rate.units > Limit::MAX_UNITS)
            && on_change == Some(OnChange::Scale)
        {
            problems.add(
                "on-change",
                format!("must not be scale with a limit above {}", Limit::MAX_UNITS),
            );
        }
        if let (Some(rate), Some(policy)) = (rate, on_change)
            && policy != OnChange::Reset
            && rate.algorithm == Algorithm::SlidingWindowLog
            && rate.units > rate.algorithm.max_cost().into()
        {
            let (algorithm, most) = (rate.algorithm.name(), rate.algorithm.max_cost());
            problems.add(
                "on-change",
                format!("must be reset for {algorithm} with a limit above {most}"),
            );
        }
        Ok(on_change)
    }

    fn matcher(&self, problems: &mut Problems) -> Matcher {
        let endpoint = pattern("endpoint", &self.endpoint, problems);
        let mut patterns = self.matcher.patterns(problems);
        if !self.endpoint.is_unset() && !self.matcher.resource.is_unset() {
            problems.add("endpoint", "the same as match.resource; give only one");
        }
        // First, as `match.resource` would be.
        patterns.splice(..0, endpoint.map(|pattern| (Part::Resource, pattern)));
        Matcher { patterns }
    }

    fn key_parts(&self, problems: &mut Problems) -> Option<Vec<Part>> {
        let texts =
            problems.check("key-by", &self.key_by, TEXTS, |texts| !texts.is_empty()).ok()?;
        let Some(texts) = texts else { return Some(vec![Part::UserId]) };
        let mut parts = Vec::with_capacity(texts.len());
        for text in texts {
            let Some(part) = key_by::part(text) else {
                problems.add("key-by", key_by::VALID);
                return None;
            };
            if parts.iter().any(|other| key_by::is_same(other, &part)) {
                problems.add("key-by", "must not name a part twice");
                return None;
            }
            parts.push(part);
        }
        Some(if self.endpoint.is_unset() { parts } else { key_by::of_endpoint(parts) })
    }
}

/// Copies the policy.
impl From<&RuleSpec> for StoreFailureSpec {
    fn from(rule: &RuleSpec) -> Self {
        let RuleSpec { local_share, on_store_failure, fail_open, breaker_opens_rule, .. } = *rule;
        Self { local_share, on_store_failure, fail_open, breaker_opens_rule }
    }
}

impl OverrideSpec {
    fn build(&self, rate: Option<Rate>, problems: &mut Problems) -> Option<Override> {
        let patterns = self.matcher.patterns(problems);
        if self.matcher.is_empty() {
            problems.add("match", "missing");
        }
        let unlimited = problems.read("unlimited", self.unlimited, BOOLEAN);
        let limit = problems.whole("limit", self.limit, UNITS);
        let burst = problems.whole("burst", self.burst, rate::BURST);
        let headroom = problems.check("headroom", &self.headroom, rate::PERCENTAGE, |share| {
            rate::is_percentage(*share)
        });
        let headroom = headroom.ok()?.map(|Percentage(share)| *share);
        let grant = match (unlimited.ok()?.unwrap_or(false), limit.ok()?) {
            (true, None) => Some(Grant::Unlimited),
            (false, Some(units)) => Some(Rate { units, ..rate? }.grant(burst.ok()?, problems)?),
            (false, None) if headroom.is_some() && self.burst.is_unset() => None,
            (true, Some(_)) | (false, None) => {
                problems.add("limit", "give either limit or unlimited: true, or headroom alone");
                return None;
            }
        };
        Some(Override { matcher: Matcher { patterns }, grant, headroom })
    }
}

impl MatcherSpec {
    /// Returns `true` if it has no conditions.
    pub fn is_empty(&self) -> bool {
        self.resource.is_unset() && self.user_id.is_unset() && self.attributes.is_empty()
    }

    fn patterns(&self, problems: &mut Problems) -> Vec<(Part, Pattern)> {
        let resource = pattern("match.resource", &self.resource, problems);
        let user_id = pattern("match.user-id", &self.user_id, problems);
        let mut patterns = Vec::new();
        patterns.extend(resource.map(|pattern| (Part::Resource, pattern)));
        patterns.extend(user_id.map(|pattern| (Part::UserId, pattern)));
        for (name, texts) in &self.attributes {
            let texts = texts.clone().or(Vec::new());
            let pattern = pattern(&format!("match.attributes.{name}"), &texts, problems);
            patterns.extend(pattern.map(|pattern| (Part::Attribute(name.clone()), pattern)));
        }
        patterns
    }
}

fn pattern(key: &str, texts: &Field<Vec<String>>, problems: &mut Problems) -> Option<Pattern> {
    let texts = problems.check(key, texts, TEXTS, |texts| !texts.is_empty()).ok()??;
    Some(Pattern::any_of(texts))
}

fn is_name(name: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(valid) && name != Rule::DEFAULT
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;

    fn read(yaml: &str) -> RuleSpec {
        serde_saphyr::from_str(yaml).expect("a specification")
    }

    #[test]
    fn build_reports_all_problems_with_their_fields() {
        let spec = read(
            "{version: 2, name: a b, endpoint: 5, key-by: [a, a], algorithm: guess, limit: many,
              burst: 0, shadow: maybe, mode: sometimes, overridable: 1, on-store-failure: maybe, local-share: 2, fail-open: 1, near-limit: 0,
              match: {user-id: 7, attributes: {plan.x: [1]}},
              overrides: [{limit: 5, unlimited: true}, {match: {user-id: a}, limit: -1}]}",
        );
        let problems = spec.build().expect_err("problems");
        let fields: Vec<&str> = problems.iter().map(|problem| &*problem.field).collect();
        assert_eq!(
            fields,
            [
                "name",
                "version",
                "endpoint",
                "match.user-id",
                "match.attributes.plan.x",
                "key-by",
                "algorithm",
                "limit",
                "window",
                "burst",
                "shadow",
                "mode",
                "overridable",
                "local-share",
                "on-store-failure",
                "fail-open",
                "fail-open",
                "near-limit",
                "overrides[0].match",
                "overrides[0].limit",
                "overrides[1].limit",
            ]
        );
        assert!(problems.iter().all(|problem| !problem.text.contains("many")), "{problems:?}");
    }

    #[test]
    fn deserializing_refuses_unknown_fields() {
        for yaml in ["{limits: 5}", "{match: {resourc: a}}", "{overrides: [{window: 1s}]}"] {
            assert!(serde_saphyr::from_str::<RuleSpec>(yaml).is_err(), "{yaml}");
        }
    }

    #[test]
    fn deserializing_accepts_every_spelling_of_rules_files() {
        let one = "name: a\nkey-by: ip\nalgorithm: gcra\nlimit: 5\nwindow: 1m\nlocal-share: 0.25\n\
                   on-store-failure: local\nbreaker-opens-rule: true\nmatch: {user-id: x}\n\
                   near-limit: 0.8\n";
        let other = "name: a\nkey_by: [ip]\nstrategy: GCRA\nlimit_count: '5'\nwindow_seconds: 60\n\
                     local_share: '0.250'\non_store_failure: local\nbreaker_opens_rule: true\n\
                     match: {user_id: [x]}\nnear_limit: '0.80'\n";
        assert_eq!(read(one), read(other));
        let rule = read(one).build().expect("a valid rule");
        assert_eq!(rule.key_by, [Part::Attribute("ip".to_owned())]);
        let limit = Limit::new(5, Micros::from_secs(60)).expect("a valid limit");
        assert_eq!((rule.algorithm, rule.grant), (Algorithm::Gcra, Grant::Limited(limit)));
    }
}
