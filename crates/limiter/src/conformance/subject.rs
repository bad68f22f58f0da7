//! The subject of a test case: a limiter on the store under test, with a clock that cases move.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::CheckError;
use crate::algorithm::{Algorithm, Cost, Decision, TakenUnits};
use crate::clock::{Deadline, ManualClock, Micros, Timestamp};
use crate::limiter::Limiter;
use crate::operation::{Action, HitReply, Receipt, Reply, StoreHit, StoreRequest};
use crate::plan::Plan;
use crate::rules::{Coupling, Request, RequestFields};
use crate::store::StoreError;
use crate::verdict::Verdict;

/// The initial time of a subject: 28333335 × 60 s after the Unix epoch.
pub const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);

/// Returns a length of time given in seconds, with up to 6 decimals.
///
/// # Panics
///
/// If it is negative, or exceeds 2^64 µs.
pub fn span(seconds: f64) -> Micros {
    let duration = Duration::from_secs_f64(seconds) + Duration::from_nanos(500);
    Micros::from_micros(u64::try_from(duration.as_micros()).expect("less than 2^64 microseconds"))
}

/// Access to a store under test, beside requests to it.
pub trait Backend: Send + Sync {
    /// Sets the clock by which the store decides.
    fn set_clock(&self, now: Timestamp);

    /// Returns the records of the store that have not expired; `None` if it can't list them.
    fn stored(&self) -> Option<Vec<Stored>> {
        None
    }
}

/// A record of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Key in the format of the store.
    pub key: String,
    /// Stored bytes.
    pub value: Vec<u8>,
    /// Time to live; `None` if the record never expires.
    pub time_to_live: Option<Micros>,
}

impl Backend for ManualClock {
    fn set_clock(&self, now: Timestamp) {
        self.set(now);
    }
}

/// A limiter on an empty store, whose clock stands at [`T0`] until a case moves it. Clones share
/// the limiter.
#[derive(Clone)]
pub struct Subject {
    /// The limiter itself.
    pub limiter: Limiter,
    backend: Arc<dyn Backend>,
}

impl fmt::Debug for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Subject").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

#[allow(clippy::missing_panics_doc, reason = "a case panics if its promise is broken")]
impl Subject {
    /// Creates the subject of a limiter on an empty store.
    pub fn new(limiter: Limiter, backend: impl Backend + 'static) -> Self {
        backend.set_clock(T0);
        Self { limiter, backend: Arc::new(backend) }
    }

    /// Sets the clock to `seconds` after [`T0`].
    pub fn at(&self, seconds: f64) {
        self.set_clock(if seconds < 0.0 { T0 - span(-seconds) } else { T0 + span(seconds) });
    }

    /// Sets the clock.
    pub fn set_clock(&self, now: Timestamp) {
        self.backend.set_clock(now);
    }

    /// Returns the records of the store, ordered by key; `None` if it can't list them.
    pub fn stored(&self) -> Option<Vec<Stored>> {
        let mut stored = self.backend.stored()?;
        stored.sort_by(|left, right| left.key.cmp(&right.key));
        Some(stored)
    }

    /// Returns `true` if the store is empty, or can't list its records.
    pub fn is_empty(&self) -> bool {
        self.stored().is_none_or(|stored| stored.is_empty())
    }

    /// Returns the algorithm of the default rule.
    pub fn algorithm(&self) -> Algorithm {
        self.limiter.snapshot().rules.default_rule().algorithm
    }

    /// Checks a request of cost 1.
    pub async fn check(&self, user: &str) -> Decision {
        self.check_cost(user, 1).await
    }

    /// Checks a request of this cost.
    pub async fn check_cost(&self, user: &str, cost: u64) -> Decision {
        self.verdict(user, Some(cost), false).await.expect("a verdict").deciding().decision
    }

    /// Checks a request of this cost without taking units.
    pub async fn dry_run(&self, user: &str, cost: u64) -> Decision {
        self.verdict(user, Some(cost), true).await.expect("a verdict").deciding().decision
    }

    /// Executes an action on the state of a user.
    pub async fn act(&self, user: &str, action: Action, coupling: Coupling) -> Decision {
        self.act_on(user, &[action], coupling).await[0]
    }

    /// Executes several actions on the state of a user, in one step.
    pub async fn act_on(
        &self,
        user: &str,
        actions: &[Action],
        coupling: Coupling,
    ) -> Vec<Decision> {
        self.reply_to(user, actions, coupling).await.iter().map(|hit| hit.decision).collect()
    }

    /// As [`Subject::act_on`], with the counted units.
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

    /// Executes an action on the state of a user in every matching rule.
    pub async fn report(&self, user: &str, action: Action) -> Vec<Decision> {
        let plan = self.plan(user, 1);
        let hits = plan.hits.iter().map(|hit| hit.for_store().expect("a rule with a limit"));
        let hits: Vec<StoreHit<'_>> = hits.map(|hit| StoreHit { action, ..hit }).collect();
        let replies = self.execute(&hits, Coupling::AllOrNothing).await;
        replies.iter().map(|hit| hit.decision).collect()
    }

    /// Refunds the units that the decisions in `taken` took for a request of this cost. Returns a
    /// decision for each rule.
    pub async fn refund_decisions(
        &self,
        user: &str,
        cost: u64,
        taken: &[Decision],
    ) -> Vec<Decision> {
        let plan = self.plan(user, cost);
        let hits = plan.hits.iter().map(|hit| hit.for_store().expect("a rule with a limit"));
        let refund = |decided: &Decision| {
            let cost = if decided.is_allowed() { cost } else { 0 };
            let cost = Cost::new(u32::try_from(cost).expect("a cost"));
            let (at, reset_after) = (decided.at, decided.reset_after);
            Action::Refund(TakenUnits { cost, at, reset_after })
        };
        let hits: Vec<StoreHit<'_>> =
            hits.zip(taken).map(|(hit, taken)| StoreHit { action: refund(taken), ..hit }).collect();
        let replies = self.execute(&hits, Coupling::AllOrNothing).await;
        replies.iter().map(|hit| hit.decision).collect()
    }

    async fn execute(&self, hits: &[StoreHit<'_>], coupling: Coupling) -> Vec<HitReply> {
        self.try_execute(hits, coupling).await.expect("a reply").hits.to_vec()
    }

    /// Executes hits in the store.
    ///
    /// # Errors
    ///
    /// As [`Store::execute`](crate::store::Store::execute).
    pub async fn try_execute(
        &self,
        hits: &[StoreHit<'_>],
        coupling: Coupling,
    ) -> Result<Reply, StoreError> {
        let store = self.limiter.store();
        let shard = hits.first().map(|hit| store.shard(hit.key)).unwrap_or_default();
        let request = StoreRequest { hits, coupling, shard, once: None, reservation: None };
        store.execute(request, Deadline::NEVER).await
    }

    /// Returns the plan for a request of a user.
    pub fn plan(&self, user: &str, cost: u64) -> Plan {
        let attributes = HashMap::new();
        Plan::for_request(&self.limiter.snapshot().rules, &request(user, cost, &attributes))
    }

    /// Checks a request, and returns receipts for the units that it took.
    pub async fn take(&self, user: &str, cost: u64) -> (Decision, Vec<Receipt>) {
        let attributes = HashMap::new();
        let request = request(user, cost, &attributes);
        let taken = self.limiter.check_with_receipts(&request, Deadline::NEVER).await;
        let (verdict, receipts) = taken.expect("a verdict");
        (verdict.deciding().decision, receipts)
    }

    /// Refunds the units of these receipts.
    pub async fn refund(&self, receipts: Vec<Receipt>) {
        self.limiter.refund(receipts, Deadline::NEVER).await.expect("a refund");
    }

    /// Checks a request; a cost of `None` is the default cost.
    ///
    /// # Errors
    ///
    /// As [`Limiter::check`].
    pub async fn verdict(
        &self,
        user: &str,
        cost: Option<u64>,
        dry_run: bool,
    ) -> Result<Verdict, CheckError> {
        let attributes = HashMap::new();
        let fields =
            RequestFields { user_id: user, resource: "", attributes: &attributes, cost, dry_run };
        let request = Request::new(fields).expect("a valid request");
        self.limiter.check(&request, Deadline::NEVER).await
    }
}

fn request<'a>(user: &'a str, cost: u64, attributes: &'a HashMap<String, String>) -> Request<'a> {
    let cost = Some(cost);
    let fields = RequestFields { user_id: user, resource: "", attributes, cost, dry_run: false };
    Request::new(fields).expect("a valid request")
}
