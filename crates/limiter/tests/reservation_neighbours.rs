//! Neighbours of reservations in memory: one project takes neither the holds nor the settlements of others.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rlaas_limiter::algorithm::{Algorithm, Cost, Limit, Outcome};
use rlaas_limiter::clock::{Clock, ManualClock, Micros, Timestamp};
use rlaas_limiter::control::{KeyGrant, OverrideChange};
use rlaas_limiter::idempotency::{CallId, IdempotencyRecord, Operation};
use rlaas_limiter::journal::SnapshotSettings;
use rlaas_limiter::observer::{NoObserver, Observer, RuleObserver, StoreEvent};
use rlaas_limiter::operation::{Action, Shard, StoreHit, StoreRequest};
use rlaas_limiter::rules::{Costs, Coupling, HoldTerms, Key, Mode, RuleInfo, RuleSet};
use rlaas_limiter::store::{MemorySettings, MemoryStore, Store};
use rlaas_limiter::{
    CheckError, Deadline, Limiter, OpenReservation, Request, Reserved, Rule, Settled, Settling,
    Verdict,
};

const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);
const HOLD: Micros = Micros::from_secs(60);
const SECOND: Micros = Micros::from_secs(1);

/// Counts denials and evictions.
#[derive(Debug, Default)]
struct Counts {
    denied: AtomicU64,
    evicted: AtomicU64,
}

impl Observer for Counts {
    fn rule(&self, rule: RuleInfo<'_>) -> Arc<dyn RuleObserver> {
        NoObserver.rule(rule)
    }

    fn store(&self, event: StoreEvent) {
        match event {
            StoreEvent::HoldDenied => _ = self.denied.fetch_add(1, Ordering::Relaxed),
            StoreEvent::SettlementEvicted => _ = self.evicted.fetch_add(1, Ordering::Relaxed),
            _ => {}
        }
    }
}

/// A limiter with a clock that is set, and the same rule of a million units without and in each project.
struct Neighbours {
    clock: ManualClock,
    limiter: Limiter,
    counts: Arc<Counts>,
}

fn rule(mode: Mode) -> Rule {
    let limit = Limit::new(1_000_000, Micros::from_secs(86_400)).expect("a limit");
    let holds = Some(HoldTerms { longest: HOLD, most: 10_000, share: None });
    Rule { holds, mode, ..Rule::new_default(Algorithm::TokenBucket, limit) }
}

impl Neighbours {
    fn new(max_holds: u32, max_settlement_bytes: usize) -> Self {
        Self::with_rules(
            max_holds,
            max_settlement_bytes,
            &RuleSet::new(rule(Mode::Enforced), vec![]),
        )
    }

    fn with_rules(max_holds: u32, max_settlement_bytes: usize, rules: &RuleSet) -> Self {
        Self::with_store(rules, |store| {
            store.with_max_reservations(max_holds, max_settlement_bytes)
        })
    }

    /// With a snapshot in this folder, if there is one.
    fn restored(folder: &Path, max_settlement_bytes: usize) -> Self {
        let path = folder.to_owned();
        let settings = SnapshotSettings { path, interval: Duration::from_secs(3_600) };
        Self::with_store(&RuleSet::new(rule(Mode::Enforced), vec![]), |store| {
            let store = store.with_max_reservations(1_000, max_settlement_bytes);
            store.with_snapshots(&settings, Arc::new(NoObserver)).expect("a folder")
        })
    }

    /// Writes a snapshot, and ends.
    fn close(self) {
        if let Store::Memory(store) = self.limiter.store() {
            store.close_journal();
        }
    }

    fn with_store(rules: &RuleSet, bound: impl FnOnce(MemoryStore) -> MemoryStore) -> Self {
        let (clock, counts) = (ManualClock::new(T0), Arc::new(Counts::default()));
        let of_store = Clock::Manual(clock.clone());
        let store = MemoryStore::new(MemorySettings::default(), of_store, counts.clone());
        let store = bound(store);
        let limiter = Limiter::new(rules.clone(), Store::Memory(store), counts.clone());
        for project in ["large", "middle", "small"] {
            limiter.replace_project_rules(project, rules.clone());
        }
        Self { clock, limiter, counts }
    }

    async fn reserve(&self, project: &str, user: &str) -> Reserved {
        let request = Request::user(user).in_project(project).build().expect("a request");
        self.limiter.reserve(&request, None, Deadline::NEVER).await.expect("a verdict")
    }

    /// Reserves a unit for so many users, one after the other, until one is denied. Returns how many hold,
    /// and the denial.
    async fn fill(&self, project: &str, users: u32) -> (u32, Option<Verdict>) {
        for number in 0..users {
            let reserved = self.reserve(project, &format!("user-{number}")).await;
            if reserved.reservation.is_none() {
                return (number, Some(reserved.verdict));
            }
        }
        (users, None)
    }

    async fn settle(&self, open: &OpenReservation, units: u32) -> Result<Settled, CheckError> {
        let settling = Settling { actual: Some(Cost::new(units)), actuals: Costs::NONE };
        self.limiter.settle(open, settling, Deadline::NEVER).await
    }

    /// Settles with the request, so that what has ended is charged, too.
    async fn settle_late(
        &self,
        open: &OpenReservation,
        user: &str,
        units: u32,
    ) -> Result<Settled, CheckError> {
        let settling = Settling { actual: Some(Cost::new(units)), actuals: Costs::NONE };
        let request = Request::user(user).in_project(&open.project).build().expect("a request");
        let until = Deadline::NEVER;
        self.limiter.settle_or_count(Some(open), &request, settling, until).await
    }

    /// Reserves for a user, and settles that.
    async fn reserve_and_settle(&self, project: &str, user: &str, units: u32) -> OpenReservation {
        let open = self.reserve(project, user).await.reservation.expect("a reservation");
        assert_eq!(charged(&self.settle(&open, units).await), Ok((units.into(), false)));
        open
    }
}

/// Returns what was charged by the first rule, and whether that was done before.
fn charged(settled: &Result<Settled, CheckError>) -> Result<(u64, bool), String> {
    let settled = settled.as_ref().map_err(ToString::to_string)?;
    Ok((settled.settlements[0].1.charged, settled.replayed))
}

fn assert_held(verdict: Option<&Verdict>, retry_after: Micros) {
    let verdict = verdict.expect("a denial");
    let decided = verdict.deciding();
    assert!(decided.is_held, "{verdict:?}");
    assert_eq!(decided.decision.outcome, Outcome::Denied { retry_after });
}

#[tokio::test]
async fn one_project_leaves_an_eighth_of_all_holds_to_others() {
    let neighbours = Neighbours::new(MemoryStore::MAX_HOLDS, MemoryStore::MAX_SETTLEMENT_BYTES);
    let (held, denial) = neighbours.fill("large", 200_000).await;
    assert_eq!(held, 87_500);
    assert_held(denial.as_ref(), HOLD);
    // The last eighth is for holders of few, without and in a project.
    neighbours.clock.set(T0 + SECOND);
    for project in ["small", "middle", ""] {
        let (held, denial) = neighbours.fill(project, 2_000).await;
        assert_eq!(held, 1_000, "{project}");
        assert_held(denial.as_ref(), HOLD);
    }
    assert_eq!(neighbours.counts.denied.load(Ordering::Relaxed), 4);
    // A denial takes nothing, and other holders and looks are as before.
    let look = Request::user("user-87500").in_project("large").cost(0).build().expect("a look");
    let looked = neighbours.limiter.check(&look, Deadline::NEVER).await.expect("a verdict");
    assert_eq!(looked.deciding().decision.remaining, 1_000_000);
    // What has ended makes space at once, exactly then.
    neighbours.clock.set(T0 + HOLD - Micros::from_micros(1));
    let denial = neighbours.reserve("large", "another").await.verdict;
    assert_held(Some(&denial), Micros::from_micros(1));
    neighbours.clock.set(T0 + HOLD);
    assert!(neighbours.reserve("large", "another").await.reservation.is_some());
    assert_eq!(neighbours.fill("small", 10).await.0, 10);
}

#[tokio::test]
async fn a_full_table_makes_space_when_the_first_hold_of_all_ends() {
    let neighbours = Neighbours::new(16, 1 << 20);
    for (second, project, expected) in [(0, "large", 14), (1, "middle", 2), (2, "small", 0)] {
        neighbours.clock.set(T0 + Micros::from_secs(second));
        let (held, denial) = neighbours.fill(project, 20).await;
        assert_eq!(held, expected, "{project}");
        // Of its own, if there are any, else of all.
        let first = if project == "small" { T0 } else { T0 + Micros::from_secs(second) };
        let until = (first + HOLD).since(T0 + Micros::from_secs(second));
        assert_held(denial.as_ref(), until);
    }
    // A settlement makes space, too, and the same request under an id keeps what it has.
    let neighbours = Neighbours::new(8, 1 << 20);
    let once = Request::user("alice").in_project("small").request_id("one").build();
    let once = once.expect("a request");
    let reserve = async || {
        let reserved = neighbours.limiter.reserve(&once, None, Deadline::NEVER).await;
        reserved.expect("a verdict").reservation
    };
    let first = reserve().await.expect("a reservation");
    assert_eq!(neighbours.fill("large", 9).await.0, 7);
    assert_eq!(reserve().await, Some(first.clone()));
    assert!(neighbours.reserve("middle", "bob").await.reservation.is_none());
    let longer = neighbours.limiter.extend(&first, Cost::ONE, Costs::NONE, None, Deadline::NEVER);
    assert!(longer.await.expect("an extension").0.is_allowed(), "what is held may grow");
    neighbours.settle(&first, 1).await.expect("a settlement");
    assert!(neighbours.reserve("middle", "bob").await.reservation.is_some());
}

#[tokio::test]
async fn a_full_table_refuses_neither_shadows_nor_unlimited_keys() {
    let rules = RuleSet::new(rule(Mode::Shadow), vec![]);
    let neighbours = Neighbours::with_rules(8, 1 << 20, &rules);
    assert_eq!(neighbours.fill("large", 20).await.0, 7);
    let reserved = neighbours.reserve("large", "bob").await;
    assert!(reserved.verdict.is_allowed() && reserved.reservation.is_none());

    let rules = RuleSet::new(Rule { overridable: true, ..rule(Mode::Enforced) }, vec![]);
    let neighbours = Neighbours::with_rules(8, 1 << 20, &rules);
    let key = Key::from_encoded_in("large", "", "bob");
    let change = OverrideChange::new(KeyGrant::Unlimited, HOLD, b"a test").expect("a change");
    let grant = rules.default_rule().grant;
    let hit = StoreHit::new(&key, Algorithm::TokenBucket, &grant, Action::SetOverride);
    let hits = [StoreHit { overridable: true, change: Some(&change), ..hit }];
    let (coupling, shard) = (Coupling::AllOrNothing, Shard::default());
    let set = StoreRequest { hits: &hits, coupling, shard, once: None, reservation: None };
    neighbours.limiter.store().execute(set, Deadline::NEVER).await.expect("an override");
    assert!(neighbours.reserve("large", "bob").await.reservation.is_some());
    assert_eq!(neighbours.fill("large", 20).await.0, 6);
    let reserved = neighbours.reserve("large", "bob").await;
    assert!(reserved.verdict.is_allowed() && reserved.reservation.is_none());
}

#[tokio::test]
async fn a_number_of_another_project_settles_and_bars_nothing() {
    let neighbours = Neighbours::new(100, 1 << 20);
    let request = Request::user("alice").cost(10).in_project("large").request_id("one").build();
    let request = request.expect("a request");
    let reserved = neighbours.limiter.reserve(&request, None, Deadline::NEVER).await;
    let open = reserved.expect("a verdict").reservation.expect("a reservation");
    // The number can be computed, in each process, and an id can be made of it.
    let record = IdempotencyRecord::for_request(&request, Operation::Reserve, HOLD, CallId(0));
    assert_eq!(record.map(|record| record.id ^ record.fingerprint), Some(open.number));
    let strange = OpenReservation {
        project: "small".to_owned(),
        keys: vec![Key::from_encoded_in("small", "", "mallory")],
        ends_at: T0,
        ..open.clone()
    };
    let settled = neighbours.settle_late(&strange, "mallory", 7).await;
    assert_eq!(charged(&settled), Ok((7, false)));
    assert_eq!(charged(&neighbours.settle(&open, 3).await), Ok((3, false)));
    for (open, units) in [(&strange, 7), (&open, 3)] {
        assert_eq!(charged(&neighbours.settle(open, 9).await), Ok((units, true)));
    }
    // Nor does it bar one that is made later.
    let later = OpenReservation { number: 77, ..strange };
    neighbours.settle_late(&later, "mallory", 7).await.expect("a settlement");
    let made = OpenReservation {
        project: "middle".to_owned(),
        keys: vec![Key::from_encoded_in("middle", "", "alice")],
        ..later
    };
    assert_eq!(charged(&neighbours.settle_late(&made, "alice", 2).await), Ok((2, false)));
}

#[tokio::test]
async fn full_settlements_of_one_project_leave_those_of_others() {
    // Space for about 100 settlements.
    let neighbours = Neighbours::new(100_000, 32_000);
    let small = neighbours.reserve_and_settle("small", "alice", 3).await;
    let mut large = Vec::new();
    for number in 0..300 {
        // Those that end first are forgotten first.
        neighbours.clock.set(T0 + Micros::from_micros(number));
        large.push(neighbours.reserve_and_settle("large", &format!("user-{number}"), 7).await);
    }
    let evicted = neighbours.counts.evicted.load(Ordering::Relaxed);
    assert!((195..=210).contains(&evicted), "{evicted}");
    assert_eq!(charged(&neighbours.settle(&small, 9).await), Ok((3, true)));
    // Nobody knows any more whether the evicted ones were charged, so they are not charged again: neither
    // while they could stand, nor after their end.
    let evicted = usize::try_from(evicted).expect("a small number");
    let forgotten = Err(CheckError::SettlementForgotten.to_string());
    for time in [T0, T0 + HOLD + SECOND] {
        neighbours.clock.set(time);
        for (number, open) in large.iter().enumerate() {
            let again = neighbours.settle_late(open, &format!("user-{number}"), 9).await;
            let known = if number < evicted { forgotten.clone() } else { Ok((7, true)) };
            assert_eq!(charged(&again), known, "{number}");
        }
    }
    // One that ended later, and one of another project, are charged late.
    neighbours.clock.set(T0 + SECOND);
    let unsettled = neighbours.reserve("large", "later").await.reservation.expect("a reservation");
    neighbours.clock.set(T0);
    let other = neighbours.reserve("small", "other").await.reservation.expect("a reservation");
    neighbours.clock.set(T0 + HOLD + SECOND + SECOND);
    assert_eq!(charged(&neighbours.settle_late(&unsettled, "later", 2).await), Ok((2, false)));
    assert_eq!(charged(&neighbours.settle_late(&other, "other", 2).await), Ok((2, false)));
    // One that stands is not forgotten, whenever it ends.
    let short = Request::user("short").in_project("large").build().expect("a request");
    let short = neighbours.limiter.reserve(&short, Some(SECOND), Deadline::NEVER).await;
    let short = short.expect("a verdict").reservation.expect("a reservation");
    assert_eq!(charged(&neighbours.settle_late(&short, "short", 2).await), Ok((2, false)));
    // Of several, the one with most bytes.
    for number in 0..60 {
        neighbours.reserve_and_settle("middle", &format!("user-{number}"), 7).await;
    }
    assert_eq!(charged(&neighbours.settle(&small, 9).await), Ok((3, true)));
    assert_eq!(charged(&neighbours.settle(&large[299], 9).await), Ok((7, true)));
}

#[tokio::test]
async fn a_snapshot_has_settlements_by_project_and_what_was_evicted() {
    let name = format!("rlaas-neighbours-test-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let first = Neighbours::restored(&folder, 32_000);
    let small = first.reserve_and_settle("small", "alice", 3).await;
    let none = first.reserve_and_settle("", "alice", 5).await;
    let mut large = Vec::new();
    for number in 0..300 {
        first.clock.set(T0 + Micros::from_micros(number));
        large.push(first.reserve_and_settle("large", &format!("user-{number}"), 7).await);
    }
    let mut known = Vec::new();
    for open in &large {
        known.push(first.settle(open, 9).await.is_ok());
    }
    first.close();
    let again = Neighbours::restored(&folder, 32_000);
    for (number, (open, expected)) in large.iter().zip(known).enumerate() {
        let settled = again.settle_late(open, &format!("user-{number}"), 9).await;
        let forgotten = Err(CheckError::SettlementForgotten.to_string());
        assert_eq!(charged(&settled), if expected { Ok((7, true)) } else { forgotten });
    }
    assert_eq!(again.counts.evicted.load(Ordering::Relaxed), 0);
    again.close();
    // Within another bound.
    let fewer = Neighbours::restored(&folder, 16_000);
    let evicted = fewer.counts.evicted.load(Ordering::Relaxed);
    assert!((45..55).contains(&evicted), "{evicted}");
    assert_eq!(charged(&fewer.settle(&small, 9).await), Ok((3, true)));
    assert_eq!(charged(&fewer.settle(&none, 9).await), Ok((5, true)));
    assert_eq!(charged(&fewer.settle(&large[299], 9).await), Ok((7, true)));
    fewer.close();
    std::fs::remove_dir_all(&folder).expect("the folder");
}
