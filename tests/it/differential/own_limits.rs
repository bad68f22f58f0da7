//! Random histories of requests with limits of their own (`limit-from`), on both stores: by the reference model,
//! which decides each action by the limit in force; and with reservations, by a limiter that has an override of
//! the rule for each limit that a request may bring.

use std::fmt::Debug;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use rlaas::algorithm::{Algorithm, Cost, Decision, Limit};
use rlaas::clock::{Deadline, Micros, Timestamp};
use rlaas::control::{KeyGrant, OverrideChange, OverrideKind};
use rlaas::plan::{Selector, SelectorTarget};
use rlaas::rules::{Costs, Grant, Request, Rule, RuleSet, Unmatched};
use rlaas::store::{Action, MemorySettings};
use rlaas_limiter::{CheckError, KeyChange, OpenReservation, Settling, Verdict};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::Service;

use super::model::Model;
use super::trio::{HistoryClock, OpenOnEach, STEP_BACK};

/// The user of an override of the rule.
const BY_FILE: u8 = 1;

/// What requests say, and the units that it stands for; `None`: those of the rule count.
const VALUES: [(&str, Option<u64>); 12] = [
    ("0", Some(0)),
    ("1", Some(1)),
    ("3", Some(3)),
    ("007", Some(7)),
    ("20", Some(20)),
    ("99999", Some(99_999)),
    ("1000000000000000", None),
    ("100000000000000000000", None),
    ("-1", None),
    ("+5", None),
    (" 5", None),
    ("٥", None),
];

/// A rule without its limit.
#[derive(Clone, Copy, Debug)]
struct KindOfRule {
    algorithm: &'static str,
    window: &'static str,
    window_us: u64,
    /// Whether costs may come later.
    later: &'static str,
    mode: &'static str,
}

#[derive(Clone, Debug)]
pub(super) struct OwnLimitCase {
    kinds: Vec<KindOfRule>,
    units: u64,
    by_file: Option<u64>,
    acts: Vec<(i64, OwnLimitAct)>,
}

/// Who asks for how much, and says what of a limit.
#[derive(Clone, Copy, Debug)]
struct OwnLimitRequest {
    user: u8,
    cost: u32,
    daily: Option<(&'static str, Option<u64>)>,
    dry_run: bool,
}

#[derive(Clone, Debug)]
enum OwnLimitAct {
    Check(OwnLimitRequest),
    Report(OwnLimitRequest),
    Reserve(OwnLimitRequest, u64),
    Extend { which: prop::sample::Index, cost: u32 },
    Settle { which: prop::sample::Index, actual: Option<u32>, counts_ended: bool },
    Override { user: u8, grant: KeyGrant, seconds: u64 },
    Clear { user: u8 },
    Refund { user: u8, units: u32 },
    Reset { user: u8 },
}

fn kind(later: &'static [&'static str]) -> impl Strategy<Value = KindOfRule> {
    let windows = vec![
        ("fixed-window", "window: 60s", 60),
        ("fixed-window", "window: 60s", 60),
        ("fixed-window", "calendar: {unit: day}", 86_400),
        ("fixed-window", "window: 60s, window-from: first-use", 60),
        ("sliding-window-counter", "window: 60s", 60),
        ("sliding-window-log", "window: 60s", 60),
    ];
    let modes = vec!["", "", ", mode: shadow", ", enforce: 25%"];
    let parts = (
        prop::sample::select(windows),
        prop::sample::select(later.to_vec()),
        prop::sample::select(modes),
    );
    parts.prop_map(|((algorithm, window, seconds), later, mode)| {
        let later = if algorithm == "sliding-window-log" { "" } else { later };
        KindOfRule { algorithm, window, window_us: seconds * 1_000_000, later, mode }
    })
}

fn asked() -> impl Strategy<Value = OwnLimitRequest> {
    let daily = prop::option::weighted(0.7, prop::sample::select(VALUES.to_vec()));
    let parts = (0..=2_u8, prop_oneof![4 => Just(1), 3 => 0..=5_u32, 1 => 0..=60_u32], daily);
    (parts, prop::bool::weighted(0.15)).prop_map(|((user, cost, daily), dry_run)| OwnLimitRequest {
        user,
        cost,
        daily,
        dry_run,
    })
}

fn act(reserves: bool) -> impl Strategy<Value = OwnLimitAct> {
    let user = || 0..=2_u8;
    let which = any::<prop::sample::Index>;
    let grant = prop_oneof![
        4 => (1..=40_u64).prop_map(|units| KeyGrant::Limited { units, burst: units }),
        1 => Just(KeyGrant::Unlimited),
        1 => Just(KeyGrant::Banned),
    ];
    let weight = if reserves { 6 } else { 0 };
    prop_oneof![
        8 => asked().prop_map(OwnLimitAct::Check),
        2 => asked().prop_map(OwnLimitAct::Report),
        weight => (asked(), 1..=100_u64).prop_map(|(asked, seconds)| OwnLimitAct::Reserve(asked, seconds)),
        weight / 3 => (which(), 0..=9_u32).prop_map(|(which, cost)| OwnLimitAct::Extend { which, cost }),
        weight / 2 => (which(), prop::option::weighted(0.7, 0..=60_u32), any::<bool>())
            .prop_map(|(which, actual, counts_ended)| OwnLimitAct::Settle { which, actual, counts_ended }),
        1 => (user(), grant, 1..=100_u64)
            .prop_map(|(user, grant, seconds)| OwnLimitAct::Override { user, grant, seconds }),
        1 => user().prop_map(|user| OwnLimitAct::Clear { user }),
        1 => (user(), 0..=9_u32).prop_map(|(user, units)| OwnLimitAct::Refund { user, units }),
        1 => user().prop_map(|user| OwnLimitAct::Reset { user }),
    ]
}

fn case(
    kinds: impl Strategy<Value = Vec<KindOfRule>>,
    reserves: bool,
) -> impl Strategy<Value = OwnLimitCase> {
    let micros = prop_oneof![
        4 => Just(0_i64),
        3 => 0..=2_000_000_i64,
        2 => 0..=70_000_000_i64,
        1 => 0..=90_000_000_000_i64,
        1 => -STEP_BACK.cast_signed()..=0,
    ];
    let acts = prop::collection::vec((micros, act(reserves)), 1..=40);
    let by_file = prop::option::weighted(0.5, 1..=30_u64);
    (kinds, 1..=30_u64, by_file, acts).prop_map(|(kinds, units, by_file, acts)| OwnLimitCase {
        kinds,
        units,
        by_file,
        acts,
    })
}

/// Histories of one rule without reservations.
pub(super) fn case_of_one() -> impl Strategy<Value = OwnLimitCase> {
    case(prop::collection::vec(kind(&["", "", ", post-paid: true"]), 1), false)
}

/// Histories of rules whose costs may come later, or that are logs.
pub(super) fn case_of_reservations() -> impl Strategy<Value = OwnLimitCase> {
    const LATER: &[&str] = &[
        ", post-paid: true",
        ", reservable: true, hold: 90s, max-holds: 6",
        ", reservable: true, hold: 90s, hold-share: 20%",
    ];
    case(prop::collection::vec(kind(LATER), 1..=3), true)
}

impl OwnLimitCase {
    /// Returns the rules: with limits of requests, or with an override for each of them.
    fn rules(&self, by_override: bool) -> RuleSet {
        let Self { kinds, units, by_file, .. } = self;
        let mut overrides: Vec<String> = by_file
            .iter()
            .map(|units| format!("{{match: {{user-id: '{BY_FILE}'}}, limit: {units}}}"))
            .collect();
        let users = if by_file.is_some() { "['0', '2']" } else { "['0', '1', '2']" };
        let known = VALUES.iter().filter_map(|(text, units)| Some((text, (*units)?)));
        overrides.extend(known.filter(|_| by_override).map(|(text, units)| {
            format!(
                "{{match: {{user-id: {users}, attributes: {{daily: '{text}'}}}}, limit: {units}}}"
            )
        }));
        let from = if by_override { "" } else { ", limit-from: attributes.daily" };
        let rules = kinds.iter().enumerate().map(|(index, kind)| {
            let KindOfRule { algorithm, window, later, mode, .. } = kind;
            let text = format!(
                "{{name: r{index}, algorithm: {algorithm}, limit: {units}, {window}{later}{mode}{from}, \
                 overridable: true, overrides: [{}]}}",
                overrides.join(", ")
            );
            let spec: rlaas::rules::spec::RuleSpec =
                serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            spec.build().unwrap_or_else(|problems| panic!("{text}: {problems:?}"))
        });
        let wide = Limit::new(Limit::MAX_UNITS, Limit::MAX_WINDOW).expect("a valid limit");
        let default = Rule::new_default(Algorithm::Gcra, wide);
        // Beside a rule that is not enforced the default rule would decide, too.
        RuleSet::new(default, rules.collect()).with_unmatched(Unmatched::Allow)
    }

    /// Returns a limiter on memory, with one shard: it sees the same sequence of calls as Redis.
    fn on_memory(&self, by_override: bool) -> Service {
        Service::on_bounded_memory(self.rules(by_override), MemorySettings { max_keys: 1_000 })
    }
}

/// Calls `ask` with the request.
async fn asking<T>(asked: OwnLimitRequest, ask: impl AsyncFnOnce(&Request<'_>) -> T) -> T {
    let user = asked.user.to_string();
    let pairs = [("daily", asked.daily.map_or("", |(text, _)| text))];
    let request = Request::user(&user).cost(asked.cost);
    let request = if asked.daily.is_some() { request.attributes(&pairs) } else { request };
    let request = if asked.dry_run { request.dry_run() } else { request };
    ask(&request.build().expect("a valid request")).await
}

/// Decides an act that needs no reservation. Returns the decisions.
async fn decide(service: &Service, act: &OwnLimitAct) -> Result<Verdict, CheckError> {
    let limiter = &service.limiter;
    match act {
        OwnLimitAct::Report(asked) => {
            asking(*asked, async |request| {
                let reported = limiter.report(request, Deadline::NEVER).await;
                reported.map(|reported| reported.verdict)
            })
            .await
        }
        OwnLimitAct::Check(asked) => {
            asking(*asked, async |request| limiter.check(request, Deadline::NEVER).await).await
        }
        // What has not decided is made smaller to one of the others.
        _ => Err(CheckError::NoReservation),
    }
}

/// Changes the keys of a user; a look if nothing is to be changed. Returns their decisions before and after.
async fn change(service: &Service, user: u8, change: Option<&KeyChange>) -> Vec<Decision> {
    let (limiter, user) = (&service.limiter, user.to_string());
    let request = Request::user(&user).build().expect("a valid request");
    let selector = Selector { target: SelectorTarget::Request(&request), rule: None };
    let keys = limiter.snapshot().rules.select(&selector).expect("keys");
    let states = match change {
        None => limiter.inspect(&keys, Deadline::NEVER).await.expect("states"),
        Some(change) => {
            let changed = limiter.change(&keys, change, Deadline::NEVER).await.expect("a change");
            [changed.before, changed.after].concat()
        }
    };
    states.into_iter().map(|state| state.decision).collect()
}

fn key_change(act: &OwnLimitAct) -> Option<(u8, KeyChange)> {
    Some(match act {
        OwnLimitAct::Override { user, grant, seconds } => {
            let change = OverrideChange::new(*grant, Micros::from_secs(*seconds), b"why");
            (*user, KeyChange::SetOverride(change.expect("a change")))
        }
        OwnLimitAct::Clear { user } => (*user, KeyChange::ClearOverride(OverrideKind::Both)),
        OwnLimitAct::Refund { user, units } => (*user, KeyChange::Refund(Cost::new(*units))),
        OwnLimitAct::Reset { user } => (*user, KeyChange::Reset),
        _ => return None,
    })
}

/// The reference model of one rule.
struct Expected {
    model: Model,
    kind: KindOfRule,
    algorithm: Algorithm,
    window: Micros,
    units: u64,
    by_file: Option<u64>,
}

impl Expected {
    fn new(case: &OwnLimitCase) -> Self {
        let kind = case.kinds[0];
        let algorithm = Algorithm::from_name(kind.algorithm).expect("an algorithm");
        let window = Micros::from_micros(kind.window_us);
        let mut this = Self {
            model: Model::new(algorithm, &Limit::new(1, window).expect("a limit")),
            kind,
            algorithm,
            window,
            units: case.units,
            by_file: case.by_file,
        };
        this.model = Model::new(algorithm, &this.limit(case.units, false));
        this.model.at_first_use = kind.window.contains("first-use");
        this.restore(BY_FILE);
        this
    }

    /// Leaves a user with the override of the file alone.
    fn restore(&mut self, user: u8) {
        self.model.forget_override_by_file(user);
        if let Some(units) = self.by_file.filter(|_| user == BY_FILE) {
            self.model.override_by_file(BY_FILE, Grant::Limited(self.limit(units, false)));
        }
    }

    /// Returns a limit with the debt that is kept beside it: a charge has room for as much as can be counted.
    fn limit(&self, units: u64, is_charge: bool) -> Limit {
        let limit = Limit::new(units, self.window).expect("a limit");
        if self.kind.later.is_empty() {
            return limit;
        }
        let debt = if self.algorithm == Algorithm::FixedWindow {
            9_007_199_254_740_000 - units
        } else {
            let most = (1 << 36) - 1 - units;
            let paid_back = units * 366 * 86_400_000_000 / self.kind.window_us;
            if is_charge { most } else { paid_back.min(most) }
        };
        limit.with_max_debt(debt).expect("a debt")
    }

    /// Returns the decision on an action by the limit of a request, as callers see it.
    fn act(&mut self, now: Timestamp, asked: OwnLimitRequest, action: Action) -> Decision {
        let OwnLimitRequest { user, daily, .. } = asked;
        let most = self.algorithm.max_units();
        let own = daily.and_then(|(_, units)| units).filter(|units| *units <= most);
        let by_file = self.by_file.filter(|_| user == BY_FILE);
        let own = own.filter(|_| by_file.is_none());
        // Counted by the limit of the rule, as beneath a ban in a file.
        let is_charge = matches!(action, Action::Report(cost) if cost != Cost::NONE);
        let own = own.filter(|units| *units > 0 || !is_charge);
        let units = own.or(is_charge.then(|| by_file.unwrap_or(self.units)));
        let grant = units.map(|units| match units {
            0 => Grant::Banned,
            units => Grant::Limited(self.limit(units, is_charge)),
        });
        // An override at run time beside a limit of 0 decides as one beside a ban in a file.
        self.model.counts_attempts = grant == Some(Grant::Banned);
        if let Some(grant) = grant {
            self.model.override_by_file(user, grant);
        }
        let decision = self.model.act(user, now, action);
        self.restore(user);
        let is_own = own.is_some() && self.model.overrides(user, now).is_empty();
        let remaining = if is_own { decision.remaining.max(0) } else { decision.remaining };
        self.shown(Decision { remaining, ..decision })
    }

    /// Returns a decision without what the model does not know.
    fn shown(&self, decision: Decision) -> Decision {
        let is_calendar = self.kind.window.contains("calendar");
        let ttl = if is_calendar { Micros::ZERO } else { decision.ttl };
        Decision { ttl, ..decision }
    }

    fn look(&mut self, user: u8, now: Timestamp) -> Decision {
        let asked = OwnLimitRequest { user, cost: 1, daily: None, dry_run: true };
        self.act(now, asked, Action::Peek(Cost::ONE))
    }

    /// Changes a key. Returns the decisions on looks before and after.
    fn change(&mut self, user: u8, now: Timestamp, change: &KeyChange) -> [Decision; 2] {
        let before = self.look(user, now);
        match change {
            KeyChange::Reset => _ = self.model.act(user, now, Action::Reset),
            KeyChange::Refund(cost) => _ = self.model.act(user, now, Action::Credit(*cost)),
            KeyChange::SetOverride(change) => self.model.set_override(user, now, change),
            KeyChange::ClearOverride(kind) => self.model.clear_override(user, *kind),
        }
        [before, self.look(user, now)]
    }
}

/// Runs a case of one rule. Returns how many decisions were made by limits of requests.
pub(super) async fn run(
    case: OwnLimitCase,
    server: &Arc<RedisServer>,
) -> Result<usize, TestCaseError> {
    server.query::<()>(&["FLUSHALL"]);
    let redis = Service::on_redis(case.rules(false), Arc::clone(server));
    let services = [case.on_memory(false), redis];
    let (mut expected, mut time, mut own) = (Expected::new(&case), HistoryClock::START, 0);
    for (micros, act) in &case.acts {
        time.advance(*micros, &services);
        let (now, context) = (time.now, format!("{act:?} at {:?}", time.now));
        if let Some((user, wanted)) = key_change(act) {
            time.record_end(&wanted);
            let on_memory = change(&services[0], user, Some(&wanted)).await;
            let on_redis = change(&services[1], user, Some(&wanted)).await;
            prop_assert_eq!(&on_memory, &on_redis, "memory and Redis: {}", &context);
            let shown: Vec<_> =
                on_memory.into_iter().map(|decision| expected.shown(decision)).collect();
            let model = expected.change(user, now, &wanted);
            prop_assert_eq!(shown, model, "memory and the model: {}", &context);
            continue;
        }
        let (on_memory, on_redis) =
            (decide(&services[0], act).await, decide(&services[1], act).await);
        prop_assert_eq!(shown(&on_memory), shown(&on_redis), "memory and Redis: {}", &context);
        let Ok(verdict) = on_memory else { continue };
        let (OwnLimitAct::Check(asked) | OwnLimitAct::Report(asked)) = act else { continue };
        let cost = Cost::new(asked.cost);
        let action = match act {
            _ if asked.dry_run => Action::Peek(cost),
            OwnLimitAct::Report(_) => Action::Report(cost),
            _ => Action::Take(cost),
        };
        let model = expected.act(now, *asked, action);
        let decided = expected.shown(verdict.decisions[0].decision);
        // What the rule counts by, beneath a ban, is nobody's grant; nor is it one of the request that an override has
        // replaced.
        let is_zero = asked.daily.is_some_and(|(_, units)| units == Some(0));
        let is_banned = is_zero || matches!(verdict.decisions[0].grant, Grant::Banned);
        if !(is_banned && matches!(act, OwnLimitAct::Report(_))) {
            prop_assert_eq!(decided, model, "memory and the model: {}", &context);
        }
        own += usize::from(asked.daily.is_some_and(|(_, units)| units.is_some()));
    }
    Ok(own)
}

/// A reservation as each limiter has it, and its request.
struct HeldRequest {
    open: OpenOnEach,
    asked: OwnLimitRequest,
}

/// Runs a case with reservations. Returns how many were made by limits of requests.
pub(super) async fn run_with_reservations(
    case: OwnLimitCase,
    server: &Arc<RedisServer>,
) -> Result<usize, TestCaseError> {
    server.query::<()>(&["FLUSHALL"]);
    let redis = Service::on_redis(case.rules(false), Arc::clone(server));
    let services = [case.on_memory(false), redis, case.on_memory(true)];
    let (mut reserved, mut time, mut own): (Vec<HeldRequest>, _, _) =
        (Vec::new(), HistoryClock::START, 0);
    for (micros, act) in &case.acts {
        if time.step(*micros) < 0 {
            // Memory does not note the time of a call that finds no reservation.
            let look = OwnLimitRequest { user: 0, cost: 0, daily: None, dry_run: false };
            for service in &services {
                decide(service, &OwnLimitAct::Check(look)).await.expect("a verdict");
            }
        }
        time.advance(*micros, &services);
        let context = format!("{act:?} at {:?}", time.now);
        let mut answers = Vec::new();
        if let Some((user, wanted)) = key_change(act) {
            time.record_end(&wanted);
            for service in &services {
                let states = change(service, user, Some(&wanted)).await;
                // Redis shows the holds after a change in the states before it, too.
                let after = states[states.len() / 2..].to_vec();
                answers.push(format!("{:?}", visible(after)));
            }
        } else if let OwnLimitAct::Check(_) | OwnLimitAct::Report(_) = act {
            for service in &services {
                answers.push(shown(&decide(service, act).await));
            }
        } else if let OwnLimitAct::Reserve(asked, seconds) = act {
            let mut opens = Vec::new();
            for service in &services {
                let hold_for = Some(Micros::from_secs(*seconds));
                let limiter = &service.limiter;
                let made = asking(*asked, async |request| {
                    limiter.reserve(request, hold_for, Deadline::NEVER).await
                });
                let made = made.await;
                let open = made.as_ref().ok().and_then(|made| made.reservation.clone());
                let ends_at = open.as_ref().map(|open| open.ends_at);
                answers.push(format!("{ends_at:?} {}", shown(&made.map(|made| made.verdict))));
                opens.extend(open);
            }
            time.ends.extend(opens.iter().map(|open: &OpenReservation| open.ends_at));
            if let Ok(open) = opens.try_into() {
                own += usize::from(asked.daily.is_some_and(|(_, units)| units.is_some()));
                reserved.push(HeldRequest { open, asked: *asked });
            }
        } else if let (
            OwnLimitAct::Extend { which, .. } | OwnLimitAct::Settle { which, .. },
            false,
        ) = (act, reserved.is_empty())
        {
            let HeldRequest { open, asked } = which.get(&reserved);
            for (service, open) in services.iter().zip(open) {
                answers.push(end(&service.limiter, open, *asked, act).await);
            }
        }
        equal(&answers, &context)?;
    }
    Ok(own)
}

/// Extends or settles a reservation.
async fn end(
    limiter: &rlaas_limiter::Limiter,
    open: &OpenReservation,
    asked: OwnLimitRequest,
    act: &OwnLimitAct,
) -> String {
    match act {
        OwnLimitAct::Extend { cost, .. } => {
            let (cost, costs) = (Cost::new(*cost), Costs::NONE);
            let extended = limiter.extend(open, cost, costs, None, Deadline::NEVER).await;
            shown(&extended.map(|(verdict, _)| verdict))
        }
        OwnLimitAct::Settle { actual, counts_ended, .. } => {
            let settling = Settling { actual: actual.map(Cost::new), actuals: Costs::NONE };
            let settled = if *counts_ended {
                let asked = OwnLimitRequest { dry_run: false, ..asked };
                asking(asked, async |request| {
                    let open = Some(open);
                    limiter.settle_or_count(open, request, settling, Deadline::NEVER).await
                })
                .await
            } else {
                limiter.settle(open, settling, Deadline::NEVER).await
            };
            format!("{settled:?}")
        }
        _ => unreachable!("only these end"),
    }
}

/// Returns decisions without debt: a limit of a request shows none.
fn visible(decisions: Vec<Decision>) -> Vec<Decision> {
    let without_debt = |shown: Decision| Decision { remaining: shown.remaining.max(0), ..shown };
    decisions.into_iter().map(without_debt).collect()
}

fn shown(verdict: &Result<Verdict, CheckError>) -> String {
    match verdict {
        Ok(verdict) => {
            let decided = verdict.decisions.iter().map(|decided| decided.decision).collect();
            let held: Vec<_> = verdict.decisions.iter().map(|decided| decided.held).collect();
            format!("{:?} {held:?}", visible(decided))
        }
        Err(error) => format!("{error:?}"),
    }
}

fn equal<T: Debug + PartialEq>(answers: &[T], context: &str) -> TestCaseResult {
    let [memory, redis, twin] = answers else { return Ok(()) };
    prop_assert_eq!(memory, redis, "memory and Redis: {}", context);
    prop_assert_eq!(memory, twin, "limits of requests and overrides: {}", context);
    Ok(())
}
