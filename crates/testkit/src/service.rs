//! A limiter on either store, with time that tests move.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rlaas::algorithm::{Algorithm, Cost, Decision, Taken};
use rlaas::clock::{Clock, Deadline, ManualClock, Span, Timestamp};
use rlaas::limiter::{CheckError, Limiter, Verdict};
use rlaas::operation::{Action, HitReply, Receipt, Reply, StoreHit, StoreRequest};
use rlaas::plan::Plan;
use rlaas::rules::{Coupling, Draft, Request, RuleSet};
use rlaas::store::{
    MemorySettings, MemoryStore, RedisSettings, RedisStore, Servers, Store, StoreError,
};
use rlaas::telemetry::metrics::Metrics;
use tokio::task::AbortHandle;

use crate::redis::RedisServer;

/// T0 of the cases: 28333335 × 60 s after the Unix epoch.
pub const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);

/// A length of time as the cases write it: seconds with up to 6 decimals.
pub fn span(seconds: f64) -> Span {
    let duration = Duration::from_secs_f64(seconds) + Duration::from_nanos(500);
    Span::from_micros(u64::try_from(duration.as_micros()).expect("less than an age"))
}

/// A limiter on a store whose time stands at [`T0`] until it is moved.
#[derive(Debug)]
pub struct Service {
    /// The limiter itself.
    pub limiter: Limiter,
    /// What it counts.
    pub metrics: Arc<Metrics>,
    time: Time,
    tending: AbortHandle,
}

#[derive(Debug)]
enum Time {
    Machine,
    Memory(ManualClock),
    Redis(Arc<RedisServer>),
}

impl Service {
    /// A limiter on a memory store.
    pub fn on_memory(rules: RuleSet) -> Self {
        Self::on_bounded_memory(rules, MemorySettings::default())
    }

    /// A limiter on a memory store with bounds of its own.
    pub fn on_bounded_memory(rules: RuleSet, settings: MemorySettings) -> Self {
        let clock = ManualClock::new(T0);
        let metrics = Arc::new(Metrics::new());
        let store = MemoryStore::new(settings, Clock::Manual(clock.clone()), metrics.clone());
        Self::new(rules, Store::Memory(store), metrics, Time::Memory(clock))
    }

    /// A limiter on a redis-server.
    pub fn on_redis(rules: RuleSet, server: Arc<RedisServer>) -> Self {
        server.set_clock(T0);
        let url = server.url().parse().map(Box::new).expect("a valid url");
        let settings = RedisSettings {
            timeout: Duration::from_secs(5),
            ..RedisSettings::of(Servers::Standalone(url))
        };
        let metrics = Arc::new(Metrics::new());
        let store = RedisStore::new(&settings, metrics.clone()).expect("valid settings");
        Self::new(rules, Store::Redis(Arc::new(store)), metrics, Time::Redis(server))
    }

    /// A limiter on the machine's clock.
    pub fn with(limiter: Limiter, metrics: Arc<Metrics>) -> Self {
        Self::tending(limiter, metrics, Time::Machine)
    }

    fn new(rules: RuleSet, store: Store, metrics: Arc<Metrics>, time: Time) -> Self {
        let limiter = Limiter::new(rules, store, metrics.clone());
        Self::tending(limiter, metrics, time)
    }

    fn tending(limiter: Limiter, metrics: Arc<Metrics>, time: Time) -> Self {
        let tended = limiter.clone();
        let tending = tokio::spawn(async move { tended.run().await }).abort_handle();
        Self { limiter, metrics, time, tending }
    }

    /// The redis-server, if there is one: some cases look at its keys.
    pub fn redis(&self) -> Option<&Arc<RedisServer>> {
        match &self.time {
            Time::Machine | Time::Memory(_) => None,
            Time::Redis(server) => Some(server),
        }
    }

    /// Moves the time to `seconds` after [`T0`].
    pub fn at(&self, seconds: f64) {
        let micros = T0.as_micros();
        self.set_clock(Timestamp::from_micros(if seconds < 0.0 {
            micros - span(-seconds).as_micros()
        } else {
            micros + span(seconds).as_micros()
        }));
    }

    /// Moves the time.
    pub fn set_clock(&self, now: Timestamp) {
        match &self.time {
            Time::Machine => panic!("the machine's clock is not moved"),
            Time::Memory(clock) => clock.set(now),
            Time::Redis(server) => server.set_clock(now),
        }
    }

    /// The algorithm of the default rule.
    pub fn algorithm(&self) -> Algorithm {
        self.limiter.snapshot().rules.default_rule().algorithm
    }

    /// Decides one request of cost 1.
    pub async fn check(&self, user: &str) -> Decision {
        self.check_cost(user, 1).await
    }

    /// Decides one request.
    pub async fn check_cost(&self, user: &str, cost: u64) -> Decision {
        self.verdict(user, Some(cost), false).await.expect("a verdict").deciding().decision
    }

    /// Decides one request and takes nothing.
    pub async fn dry_run(&self, user: &str, cost: u64) -> Decision {
        self.verdict(user, Some(cost), true).await.expect("a verdict").deciding().decision
    }

    /// Does one thing with the state of a user in the store.
    pub async fn act(&self, user: &str, action: Action, coupling: Coupling) -> Decision {
        self.act_on(user, &[action], coupling).await[0]
    }

    /// Does several things with the state of a user in the store, in one step.
    pub async fn act_on(
        &self,
        user: &str,
        actions: &[Action],
        coupling: Coupling,
    ) -> Vec<Decision> {
        self.reply_to(user, actions, coupling).await.iter().map(|hit| hit.decision).collect()
    }

    /// The same, with the units that were counted.
    pub async fn reply_to(
        &self,
        user: &str,
        actions: &[Action],
        coupling: Coupling,
    ) -> Vec<HitReply> {
        let plan = self.plan(user, 1);
        let [hit] = &*plan.hits else { panic!("several rules") };
        let hit = hit.for_store().expect("a rule with a limit");
        let hits: Vec<StoreHit<'_>> =
            actions.iter().map(|action| StoreHit { action: *action, ..hit }).collect();
        self.execute(&hits, coupling).await
    }

    /// Does one thing with the state of a user in every rule that it meets.
    pub async fn report(&self, user: &str, action: Action) -> Vec<Decision> {
        let plan = self.plan(user, 1);
        let hits = plan.hits.iter().map(|hit| hit.for_store().expect("a rule with a limit"));
        let hits: Vec<StoreHit<'_>> = hits.map(|hit| StoreHit { action, ..hit }).collect();
        let replies = self.execute(&hits, Coupling::AllOrNothing).await;
        replies.iter().map(|hit| hit.decision).collect()
    }

    /// Refunds what `taken` took for a request of this cost: a decision for each of its rules.
    pub async fn give_back(&self, user: &str, cost: u64, taken: &[Decision]) -> Vec<Decision> {
        let plan = self.plan(user, cost);
        let hits = plan.hits.iter().map(|hit| hit.for_store().expect("a rule with a limit"));
        let refund = |decided: &Decision| {
            let cost = if decided.is_allowed() { cost } else { 0 };
            let cost = Cost::new(u32::try_from(cost).expect("a cost"));
            let (at, reset_after) = (decided.at, decided.reset_after);
            Action::Refund(Taken { cost, at, reset_after })
        };
        let hits: Vec<StoreHit<'_>> =
            hits.zip(taken).map(|(hit, taken)| StoreHit { action: refund(taken), ..hit }).collect();
        let replies = self.execute(&hits, Coupling::AllOrNothing).await;
        replies.iter().map(|hit| hit.decision).collect()
    }

    async fn execute(&self, hits: &[StoreHit<'_>], coupling: Coupling) -> Vec<HitReply> {
        self.try_execute(hits, coupling).await.expect("a reply").hits.to_vec()
    }

    /// Has the store do something that may fail.
    pub async fn try_execute(
        &self,
        hits: &[StoreHit<'_>],
        coupling: Coupling,
    ) -> Result<Reply, StoreError> {
        let request = StoreRequest { hits, coupling };
        self.limiter.store().execute(request, Deadline::NEVER).await
    }

    /// What the rules plan for a request of a user.
    pub fn plan(&self, user: &str, cost: u64) -> Plan {
        let attributes = HashMap::new();
        Plan::of_request(&self.limiter.snapshot().rules, &request(user, cost, &attributes))
    }

    /// Decides one request, with receipts for what it takes.
    pub async fn take(&self, user: &str, cost: u64) -> (Decision, Vec<Receipt>) {
        let attributes = HashMap::new();
        let request = request(user, cost, &attributes);
        let taken = self.limiter.check_with_receipts(&request, Deadline::NEVER).await;
        let (verdict, receipts) = taken.expect("a verdict");
        (verdict.deciding().decision, receipts)
    }

    /// Gives back what was taken.
    pub async fn refund(&self, receipts: Vec<Receipt>) {
        self.limiter.refund(receipts, Deadline::NEVER).await.expect("a refund");
    }

    /// Decides one request, of the default cost with `None`.
    pub async fn verdict(
        &self,
        user: &str,
        cost: Option<u64>,
        dry_run: bool,
    ) -> Result<Verdict, CheckError> {
        let attributes = HashMap::new();
        let draft = Draft { user_id: user, resource: "", attributes: &attributes, cost, dry_run };
        let request = Request::new(draft).expect("a valid request");
        self.limiter.check(&request, Deadline::NEVER).await
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.tending.abort();
    }
}

fn request<'a>(user: &'a str, cost: u64, attributes: &'a HashMap<String, String>) -> Request<'a> {
    let cost = Some(cost);
    let draft = Draft { user_id: user, resource: "", attributes, cost, dry_run: false };
    Request::new(draft).expect("a valid request")
}
