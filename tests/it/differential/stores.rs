//! Both stores and the model, which take each step and compare their decisions.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use rlaas::algorithm::{self, Algorithm, Decision, Outcome};
use rlaas::clock::{Deadline, Micros, Timestamp};
use rlaas::control::{ControlRecord, OverrideChange};
use rlaas::plan::{Selector, SelectorTarget};
use rlaas::rules::{Grant, Mode, Request};
use rlaas::store::{Action, MemorySettings};
use rlaas_limiter::{KeyChange, KeyState};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0};
use tokio::task::JoinSet;

use super::cases::{
    AdminChange, Advance, Cost, DifferentialCase, OVERRIDDEN_BY_FILE, Shape, Step, Verb,
};
use super::model::Model;

/// A request that was allowed and took its cost.
struct TakenRequest {
    id: usize,
    cost: algorithm::Cost,
    decisions: Vec<Decision>,
}

/// Both stores and the model.
pub(super) struct StorePair {
    memory: Arc<Service>,
    redis: Arc<Service>,
    /// Present until the rule changes, and only in cases of one rule without refunds of requests.
    model: Option<Model>,
    /// The mode of each rule.
    modes: Vec<Mode>,
    /// Requests that were not refunded yet.
    taken: Vec<TakenRequest>,
    rule: Shape,
    window: Micros,
    now: Timestamp,
    /// The latest time so far, in microseconds.
    latest: u64,
    last_wait: Micros,
    /// Ends of overrides, ended or not.
    override_ends: Vec<Timestamp>,
}

impl StorePair {
    pub(super) fn new(case: &DifferentialCase, server: &Arc<RedisServer>) -> Self {
        server.query::<()>(&["FLUSHALL"]);
        let rule = case.rule;
        // With one shard, memory sees the same sequence of calls as Redis.
        let one_shard = MemorySettings { max_keys: 1_000 };
        let refunds = case.steps.iter().any(|step| step.refunds.is_some());
        let model = (case.more.is_empty() && !refunds).then(|| {
            let mut model = Model::new(rule.algorithm(), &rule.limit());
            if let Some(drawn) = case.by_file {
                model.override_by_file(OVERRIDDEN_BY_FILE, rule.grant(drawn));
            }
            model
        });
        Self {
            memory: Arc::new(Service::on_bounded_memory(case.rules(), one_shard)),
            redis: Arc::new(Service::on_redis(case.rules(), Arc::clone(server))),
            model,
            modes: case.shapes().map(|(_, mode)| mode).collect(),
            taken: Vec::new(),
            rule,
            window: case.shortest_window(),
            now: T0,
            latest: T0.as_micros(),
            last_wait: Micros::ZERO,
            override_ends: Vec::new(),
        }
    }

    pub(super) async fn take(&mut self, step: &Step) -> Result<usize, TestCaseError> {
        if let Some(rule) = step.rule.filter(|rule| self.rule.shares_keys_with(rule)) {
            self.rule = rule;
            self.window = rule.limit().window();
            self.model = None;
            self.memory.limiter.replace_rules(rule.rules());
            self.redis.limiter.replace_rules(rule.rules());
        }
        self.advance(step.advance);
        if let Some(which) = step.refunds.filter(|_| !self.taken.is_empty()) {
            let taken = self.taken.swap_remove(which.index(self.taken.len()));
            self.refund(&taken).await?;
        }
        if let Some((id, change)) = step.admin {
            self.administer(id, change).await?;
        }
        // Redis gets all requests at once, so that they are pipelined. Their ids differ.
        let mut requests = JoinSet::new();
        let actions: Vec<Action> =
            step.requests.iter().map(|request| self.action(request)).collect();
        for (id, action) in actions.iter().copied().enumerate() {
            let redis = Arc::clone(&self.redis);
            requests.spawn(async move { (id, decide(&redis, id, action).await) });
        }
        let mut on_redis = requests.join_all().await;
        on_redis.sort_by_key(|(id, _)| *id);
        for ((id, on_redis), action) in on_redis.into_iter().zip(actions) {
            let on_memory = decide(&self.memory, id, action).await;
            let context = format!("id {id}, {action:?}, at {:?}", self.now);
            prop_assert_eq!(&on_memory, &on_redis, "memory and Redis: {}", context);
            if let Some(model) = &mut self.model {
                let id = u8::try_from(id).expect("few ids");
                let expected = model.act(id, self.now, action);
                prop_assert_eq!(&on_memory, &[expected], "memory and the model: {}", context);
            }
            let stops =
                |(mode, one): (&Mode, &Decision)| *mode == Mode::Enforced && !one.is_allowed();
            if let Action::Take(cost) = action
                && !self.modes.iter().zip(&on_memory).any(stops)
            {
                self.taken.push(TakenRequest { id, cost, decisions: on_memory.clone() });
            }
            for decision in on_memory {
                if let Outcome::Denied { retry_after } = decision.outcome {
                    self.last_wait = retry_after;
                }
            }
        }
        Ok(step.requests.len())
    }

    /// Refunds a request on both stores. The windows of its rules may have passed.
    async fn refund(&self, taken: &TakenRequest) -> TestCaseResult {
        let TakenRequest { id, cost, decisions } = taken;
        let name = id.to_string();
        let on_memory = self.memory.refund_decisions(&name, cost.units(), decisions).await;
        let on_redis = self.redis.refund_decisions(&name, cost.units(), decisions).await;
        for (on_memory, on_redis) in on_memory.iter().zip(&on_redis) {
            prop_assert_eq!(on_memory.at, on_redis.at);
            let is_debt = (on_memory.remaining < 0, on_redis.remaining < 0);
            prop_assert_eq!(is_debt, (!on_memory.is_allowed(), !on_redis.is_allowed()));
        }
        let (on_memory, on_redis) =
            (decide(&self.memory, *id, LOOK).await, decide(&self.redis, *id, LOOK).await);
        prop_assert_eq!(on_memory, on_redis, "id {} after a refund of {:?}", id, cost);
        Ok(())
    }

    /// Changes the keys of an id on both stores and in the model.
    async fn administer(&mut self, id: usize, change: AdminChange) -> TestCaseResult {
        let set = self.override_change(change);
        let on_memory = administer(&self.memory, id, change, set.as_ref()).await;
        let on_redis = administer(&self.redis, id, change, set.as_ref()).await;
        let context = format!("id {id}: {change:?}, at {:?}", self.now);
        prop_assert_eq!(&on_memory, &on_redis, "memory and Redis: {}", &context);
        if let Some(set) = &set {
            self.override_ends.push(self.now + set.ttl());
        }
        let (now, Some(model)) = (self.now, &mut self.model) else { return Ok(()) };
        let id = u8::try_from(id).expect("few ids");
        let look = |model: &mut Model| {
            let decision = model.act(id, now, Action::Peek(algorithm::Cost::ONE));
            (decision, model.overrides(id, now))
        };
        let before = look(model);
        match change {
            AdminChange::Inspect => {}
            AdminChange::Reset => _ = model.act(id, now, Action::Reset),
            AdminChange::Refund(units) => {
                model.act(id, now, Action::Credit(algorithm::Cost::new(units)));
            }
            AdminChange::SetOverride(..) => {
                model.set_override(id, now, set.as_ref().expect("an override"));
            }
            AdminChange::ClearOverride(kind) => model.clear_override(id, kind),
        }
        let expected = [before, look(model)];
        for (states, expected) in on_memory.iter().zip(expected) {
            let Some(AdministeredKey { decision, overrides, .. }) = states.first() else {
                continue;
            };
            let overrides = overrides.iter().map(|one| (one.grant, one.ends_at)).collect();
            prop_assert_eq!((*decision, overrides), expected, "the model: {}", &context);
        }
        Ok(())
    }

    /// Returns the override that a change sets.
    fn override_change(&self, change: AdminChange) -> Option<OverrideChange> {
        let AdminChange::SetOverride(drawn, thousandths) = change else { return None };
        let micros = u128::from(self.window.as_micros()) * u128::from(thousandths) / 1_000;
        let ttl = Micros::from_micros(u64::try_from(micros).expect("a few windows"));
        let ttl = ttl.clamp(OverrideChange::MIN_TTL, OverrideChange::MAX_TTL);
        let change = OverrideChange::new(self.rule.key_grant(drawn), ttl, b"why");
        Some(change.expect("a valid override"))
    }

    fn advance(&mut self, advance: Advance) {
        let window = self.window.as_micros();
        let part = |thousandths: u64| {
            let micros = u128::from(window) * u128::from(thousandths) / 1000;
            u64::try_from(micros).expect("a few windows")
        };
        let now = self.now.as_micros();
        let moved = match advance {
            Advance::Micros(micros) => now + micros,
            Advance::Window(thousandths) => now + part(thousandths),
            Advance::LastWait { too_early } => {
                (now + self.last_wait.as_micros()).saturating_sub(u64::from(too_early)).max(now)
            }
            Advance::OverrideEnd { too_early } => {
                let ends = self.override_ends.iter().map(|end| end.as_micros());
                let next = ends.map(|end| end - u64::from(too_early)).filter(|end| *end > now);
                next.min().unwrap_or(now)
            }
            // The stores follow a clock that jumps back further, but then remember different
            // states:
            // memory has one window of an id, Redis has each window until it expires.
            Advance::Back(thousandths) => (now - part(thousandths)).max(self.latest - window),
        };
        self.now = Timestamp::from_micros(moved);
        self.latest = self.latest.max(moved);
        self.memory.set_clock(self.now);
        self.redis.set_clock(self.now);
    }

    fn action(&self, (cost, verb): &(Cost, Verb)) -> Action {
        let cost = algorithm::Cost::new(self.units(*cost));
        match verb {
            Verb::Report if self.rule.debt_percent.is_some() => Action::Report(cost),
            Verb::Take | Verb::Report => Action::Take(cost),
            Verb::Look => Action::Peek(cost),
        }
    }

    fn units(&self, cost: Cost) -> u32 {
        match cost {
            Cost::Units(units) if self.rule.algorithm() == Algorithm::SlidingWindowLog => {
                units.min(1_000_000)
            }
            Cost::Units(units) => units,
            Cost::Share(percent) => {
                let burst = self.rule.limit().burst();
                let units = if percent > 100 { burst + 1 } else { burst * percent / 100 };
                u32::try_from(units).expect("a burst is below 2^32")
            }
        }
    }
}

/// The state of a key, as an administrator sees it.
#[derive(Debug, PartialEq)]
struct AdministeredKey {
    decision: Decision,
    grant: Grant,
    overrides: ControlRecord,
}

impl AdministeredKey {
    fn from_states(states: Vec<KeyState>) -> Vec<Self> {
        let shown =
            |KeyState { decision, grant, overrides, .. }| Self { decision, grant, overrides };
        states.into_iter().map(shown).collect()
    }
}

/// Returns the states before and after a change.
async fn administer(
    service: &Service,
    id: usize,
    change: AdminChange,
    set: Option<&OverrideChange>,
) -> [Vec<AdministeredKey>; 2] {
    let id = id.to_string();
    let request = Request::user(&id).build().expect("a valid request");
    let selector = Selector { target: SelectorTarget::Request(&request), rule: None };
    let limiter = &service.limiter;
    let keys = limiter.snapshot().rules.select(&selector).expect("keys");
    let change = match change {
        AdminChange::Inspect => {
            let states = limiter.inspect(&keys, Deadline::NEVER).await.expect("states");
            return [AdministeredKey::from_states(states), Vec::new()];
        }
        AdminChange::Reset => KeyChange::Reset,
        AdminChange::Refund(units) => KeyChange::Refund(algorithm::Cost::new(units)),
        AdminChange::SetOverride(..) => KeyChange::SetOverride(set.expect("an override").clone()),
        AdminChange::ClearOverride(kind) => KeyChange::ClearOverride(kind),
    };
    let changed = limiter.change(&keys, &change, Deadline::NEVER).await.expect("a change");
    [AdministeredKey::from_states(changed.before), AdministeredKey::from_states(changed.after)]
}

const LOOK: Action = Action::Peek(algorithm::Cost::NONE);

/// Returns the decision of each rule, ordered by name.
pub(super) async fn decide(service: &Service, id: usize, action: Action) -> Vec<Decision> {
    let (id, cost) = (id.to_string(), Some(action.cost().units()));
    let verdict = match action {
        Action::Take(_) => service.verdict(&id, cost, false).await,
        Action::Peek(_) => service.verdict(&id, cost, true).await,
        _ => return service.report(&id, action).await,
    };
    verdict.expect("a verdict").decisions.iter().map(|decided| decided.decision).collect()
}
