//! One step by request id, on a counter in place of states.

use super::*;
use crate::algorithm::{Algorithm, Limit};
use crate::operation::Shard;
use crate::plan::Plan;
use crate::rules::{Coupling, Rule, RuleSet};
use crate::step::{Records, execute_on_records};

const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);
const TTL: Micros = Micros::from_secs(60);

/// A store of one key, with the record of one request id.
struct OneKey {
    plan: Plan,
    records: Option<crate::step::Record>,
    remembered: Option<RememberedReply>,
}

impl OneKey {
    fn new() -> Self {
        let limit = Limit::new(5, TTL).expect("a valid limit");
        let rules = RuleSet::new(Rule::new_default(Algorithm::FixedWindow, limit), Vec::new());
        let request = Request::user("alice").build().expect("a valid request");
        Self { plan: Plan::for_request(&rules, &request), records: None, remembered: None }
    }

    fn execute(
        &mut self,
        action: Action,
        once: Option<IdempotencyRecord>,
        time: Timestamp,
    ) -> Result<Reply, RequestIdError> {
        let Self { plan, records, remembered } = self;
        let hit = plan.hits[0].for_store().expect("a limit").with_action(action);
        let (coupling, shard) = (Coupling::AllOrNothing, Shard(0));
        let request =
            StoreRequest { hits: &[hit], coupling, shard, once: once.as_ref(), reservation: None };
        execute(request, time, remembered, |request| {
            let mut all: Records<'_> =
                records.take().map(|record| (hit.key, record)).into_iter().collect();
            let reply = execute_on_records(request, time, &mut all);
            *records = all.remove(hit.key);
            reply
        })
    }

    /// Returns the units in use.
    fn used(&mut self) -> u64 {
        let reply = self.execute(Action::Peek(Cost::NONE), None, T0).expect("no request id");
        reply.hits[0].decision.current_count
    }
}

fn once(call: u64, purpose: RecordUse) -> Option<IdempotencyRecord> {
    let request = Request::user("alice").request_id("x").build().expect("a valid request");
    let record = IdempotencyRecord::for_request(&request, Operation::Check, TTL, CallId(call));
    record.map(|record| record.with_purpose(purpose))
}

const TAKE: Action = Action::Take(Cost::ONE);

fn undo(reply: &Reply) -> Action {
    let HitReply { decision, .. } = reply.hits[0];
    let (at, reset_after) = (decision.at, decision.reset_after);
    Action::Refund(crate::algorithm::TakenUnits { cost: Cost::ONE, at, reset_after })
}

#[test]
fn the_last_holder_refunds() {
    let mut store = OneKey::new();
    let mut execute = |action, call, purpose| {
        let reply = store.execute(action, once(call, purpose), T0).expect("a reply");
        (reply, store.used())
    };
    let (taken, used) = execute(TAKE, 1, RecordUse::Decide);
    assert_eq!((taken.replayed, used), (None, 1));
    let (replay, _) = execute(TAKE, 2, RecordUse::Decide);
    assert_eq!(replay, Reply { replayed: Some(CallId(1)), ..taken.clone() });
    let undo = undo(&taken);
    assert_eq!(execute(undo, 2, RecordUse::Undo).1, 1, "no holder");
    for call in [2, 3, 2] {
        assert_eq!(execute(TAKE, call, RecordUse::Confirm).0.replayed, Some(CallId(1)));
    }
    for call in [1, 2, 1, 2] {
        assert_eq!(execute(undo, call, RecordUse::Undo).1, 1, "another holder");
    }
    assert_eq!(execute(undo, 3, RecordUse::Undo).1, 0, "the last holder");
    let (afresh, used) = execute(TAKE, 3, RecordUse::Confirm);
    assert_eq!((afresh.replayed, used), (None, 1));
    assert_eq!(execute(undo, 1, RecordUse::Undo).1, 1, "no holder of the new record");
}

#[test]
fn a_call_that_is_sent_twice_is_no_replay() {
    let mut store = OneKey::new();
    store.execute(TAKE, once(1, RecordUse::Decide), T0).expect("a reply");
    for _ in 0..2 * MAX_REPLAYS {
        let again = store.execute(TAKE, once(1, RecordUse::Decide), T0).expect("a reply");
        assert_eq!((again.replayed, again.hits[0].taken), (Some(CallId(1)), 1));
        let confirmed = store.execute(TAKE, once(1, RecordUse::Confirm), T0).expect("a reply");
        assert_eq!(confirmed.replayed, Some(CallId(1)));
    }
    assert_eq!(store.used(), 1);
    let replays = (0..=MAX_REPLAYS).map(|_| store.execute(TAKE, once(2, RecordUse::Decide), T0));
    let failed: Vec<bool> = replays.map(|replay| replay.is_err()).collect();
    assert_eq!(failed.iter().filter(|failed| **failed).count(), 1);
    assert!(failed[MAX_REPLAYS as usize]);
}

#[test]
fn a_record_ends_after_its_time() {
    let mut store = OneKey::new();
    let taken = store.execute(TAKE, once(1, RecordUse::Decide), T0).expect("a reply");
    let end = T0 + TTL;
    let replay = store.execute(TAKE, once(2, RecordUse::Decide), end - Micros::from_micros(1));
    let reset_after = replay.expect("a reply").hits[0].decision.reset_after;
    assert_eq!(reset_after, taken.hits[0].decision.reset_after - TTL + Micros::from_micros(1));
    let afresh = store.execute(TAKE, once(2, RecordUse::Decide), end).expect("a reply");
    assert_eq!(afresh.replayed, None);
    // The first call's record is gone.
    store.execute(undo(&taken), once(1, RecordUse::Undo), end).expect("a reply");
    assert!(store.remembered.is_some());
}
