//! Overrides and bans of single keys, set at run time.

use super::{Subject, T0, on_memory, span};
use crate::algorithm::{Algorithm, Cost, Limit, TakenUnits};
use crate::clock::Micros;
use crate::control::{Applied, KeyGrant, OverrideChange, OverrideKind};
use crate::operation::{Action, HitReply, StoreHit};
use crate::rules::{Coupling, Grant, Mode, Part, Rule, RuleSet};

const MINUTE: Micros = Micros::from_secs(60);

/// 3 units a minute, overridable.
pub(super) fn three(algorithm: Algorithm) -> RuleSet {
    RuleSet::new(overridable(algorithm, Limit::new(3, MINUTE).expect("a valid limit")), Vec::new())
}

/// As [`three`], with a debt of up to 3.
pub(super) fn owing_three(algorithm: Algorithm) -> RuleSet {
    let limit = Limit::new(3, MINUTE).and_then(|limit| limit.with_max_debt(3));
    RuleSet::new(overridable(algorithm, limit.expect("a valid limit")), Vec::new())
}

/// Two overridable rules with the same ids, and one that is not overridable.
pub(super) fn several(_: Algorithm) -> RuleSet {
    let limit = Limit::new(3, MINUTE).expect("a valid limit");
    let named = |name: &str, algorithm, overridable| Rule {
        name: name.into(),
        key_by: vec![Part::UserId],
        overridable,
        ..Rule::new_default(algorithm, limit)
    };
    let rules = vec![
        named("a", Algorithm::Gcra, true),
        named("b", Algorithm::FixedWindow, true),
        named("c", Algorithm::TokenBucket, false),
    ];
    RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), rules)
}

fn overridable(algorithm: Algorithm, limit: Limit) -> Rule {
    Rule { overridable: true, ..Rule::new_default(algorithm, limit) }
}

pub(super) const fn limited(units: u64) -> KeyGrant {
    KeyGrant::Limited { units, burst: units }
}

/// Executes an action on the key of the first rule that a user meets.
async fn act(
    on: &Subject,
    user: &str,
    action: Action,
    change: Option<&OverrideChange>,
) -> HitReply {
    let plan = on.plan(user, 1);
    let hit = plan.hits[0].for_store().expect("an overridable hit");
    let hits = [StoreHit { action, change, overridable: true, ..hit }];
    on.try_execute(&hits, Coupling::AllOrNothing).await.expect("a reply").hits.swap_remove(0)
}

pub(super) async fn set(on: &Subject, user: &str, grant: KeyGrant, seconds: u64) -> HitReply {
    let change = OverrideChange::new(grant, Micros::from_secs(seconds), b"why \0 \xff");
    act(on, user, Action::SetOverride, Some(&change.expect("a valid change"))).await
}

pub(super) async fn clear(on: &Subject, user: &str, kind: OverrideKind) -> HitReply {
    act(on, user, Action::ClearOverride(kind), None).await
}

async fn inspect(on: &Subject, user: &str) -> HitReply {
    act(on, user, Action::Peek(Cost::NONE), None).await
}

/// Returns the kinds in force, with their ends after `T0`, and their notes.
fn in_force(reply: &HitReply) -> Vec<(KeyGrant, Micros, Vec<u8>)> {
    let record = reply.applied.as_ref().and_then(|applied| applied.record.clone());
    let record = record.unwrap_or_default();
    record.iter().map(|own| (own.grant, own.ends_at.since(T0), own.note.to_vec())).collect()
}

pub(super) async fn a_rule_keeps_its_overrides_to_itself(on: Subject) {
    set(&on, "alice", KeyGrant::Banned, 10).await;
    let verdict = on.verdict("alice", Some(1), false).await.expect("a verdict");
    let grants: Vec<(String, Grant)> =
        verdict.decisions.iter().map(|decided| (decided.rule.to_string(), decided.grant)).collect();
    assert!(!verdict.is_allowed());
    assert_eq!(grants[0], ("a".to_owned(), Grant::Banned));
    assert!(grants[1..].iter().all(|(_, grant)| grant.limit().is_some()), "{grants:?}");
    // Nothing was taken from the others.
    clear(&on, "alice", OverrideKind::Both).await;
    let verdict = on.verdict("alice", Some(3), false).await.expect("a verdict");
    assert!(verdict.is_allowed(), "{verdict:?}");
}

pub(super) async fn ids_of_any_text_have_their_own_overrides(on: Subject) {
    let users =
        ["{a}", "a", "{", "}", "{}", "a\0b", "a\nb", "\r\n$5\r\n", "a:b", "%", "ä{b}c", " "];
    for user in users {
        set(&on, user, KeyGrant::Banned, 10).await;
        for other in users {
            let reply = inspect(&on, other).await;
            assert_eq!(!reply.decision.is_allowed(), other == user, "{other:?} by {user:?}");
        }
        clear(&on, user, OverrideKind::Ban).await;
    }
    assert!(on.is_empty());
}

pub(super) async fn a_record_is_gone_with_its_last_part(on: Subject) {
    set(&on, "alice", KeyGrant::Banned, 2).await;
    set(&on, "alice", limited(5), 7).await;
    assert!(!on.stored().is_some_and(|stored| stored.is_empty()));
    on.at(2.0);
    // Written once more, without what has ended.
    let reply = set(&on, "alice", limited(6), 7).await;
    assert_eq!(in_force(&reply), [(limited(6), span(9.0), b"why \0 \xff".to_vec())]);
    on.at(9.001);
    assert_eq!(inspect(&on, "alice").await.applied, None);
    assert!(on.is_empty(), "{:?}", on.stored());
}

/// Random sequences of all actions, by all grants and overrides. Every field of every reply must
/// equal that of the memory store.
pub(super) async fn random_steps_agree_with_memory(on: Subject) {
    let limit = *on.limiter.snapshot().rules.default_rule().grant.limit().expect("a limit");
    let memory = on_memory(three(on.algorithm()));
    // A small random generator with a fixed seed.
    let mut random = 11_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (random >> 33) % below
    };
    let own = Grant::Limited(limit);
    let grants = if limit.max_debt().is_some() {
        vec![own]
    } else {
        vec![own, own, Grant::Banned, Grant::Unlimited]
    };
    let (mut now, mut all_taken) = (T0, Vec::<TakenUnits>::new());
    for step in 0..400 {
        now = now + Micros::from_micros([0, next(20_000_000), next(100_000_000)][step % 3]);
        on.set_clock(now);
        memory.set_clock(now);
        let change = {
            let grant = match next(4) {
                0 => KeyGrant::Banned,
                1 => KeyGrant::Unlimited,
                2 => KeyGrant::Limited { units: 1 + next(8), burst: 1 + next(12) },
                _ => KeyGrant::Limited { units: 1_000_000_000, burst: 1_000_000_000 },
            };
            let ttl = Micros::from_micros(1_000_000 + next(90_000_000));
            OverrideChange::new(grant, ttl, step.to_string().as_bytes()).expect("a valid change")
        };
        let grant = &grants[step / 7 % grants.len()];
        let coupling = [Coupling::AllOrNothing, Coupling::EachAlone][step / 2 % 2];
        let drawn: Vec<_> = (0..=step % 4)
            .map(|_| {
                let cost = Cost::new(u32::try_from(next(5)).unwrap_or_default());
                let action = match next(14) {
                    0..=4 => Action::Take(cost),
                    5 | 6 => Action::Peek(cost),
                    7 => Action::Report(cost),
                    8 => Action::Credit(cost),
                    9 => Action::SetOverride,
                    10 => Action::ClearOverride(
                        [OverrideKind::Both, OverrideKind::Ban, OverrideKind::Grant][step % 3],
                    ),
                    11 if next(3) == 0 => Action::Reset,
                    _ if all_taken.is_empty() => Action::Peek(cost),
                    _ => Action::Refund(all_taken[step % all_taken.len()]),
                };
                let modes = [Mode::Enforced, Mode::Enforced, Mode::Quota, Mode::Shadow];
                let mode = modes[usize::try_from(next(4)).unwrap_or_default()];
                let user = ["alice", "bob"][usize::from(next(4) == 0)];
                (user, action, mode)
            })
            .collect();
        let mut replies = Vec::new();
        for subject in [&on, &memory] {
            let plans: Vec<_> = drawn.iter().map(|(user, ..)| subject.plan(user, 1)).collect();
            let hits: Vec<StoreHit<'_>> = plans
                .iter()
                .zip(&drawn)
                .map(|(plan, (_, action, mode))| {
                    let hit = plan.hits[0].for_store().expect("an overridable hit");
                    let (action, mode, change) = (*action, *mode, Some(&change));
                    StoreHit { grant, action, mode, change, ..hit }
                })
                .collect();
            let reply = subject.try_execute(&hits, coupling).await.expect("a reply");
            replies.push(reply.hits.to_vec());
        }
        let [found, expected] = &replies[..] else { panic!("two stores") };
        assert_eq!(found, expected, "step {step}: {coupling:?} {grant:?} {change:?} {drawn:?}");
        all_taken.extend(found.iter().filter_map(taken));
    }
}

/// As [`random_steps_agree_with_memory`], for a limit that keeps debt.
pub(super) async fn random_steps_agree_with_memory_in_debt(on: Subject) {
    random_steps_agree_with_memory(on).await;
}

fn taken(reply: &HitReply) -> Option<TakenUnits> {
    let cost = u32::try_from(reply.taken).ok().filter(|units| *units > 0).map(Cost::new)?;
    Some(TakenUnits { cost, at: reply.decision.at, reset_after: reply.decision.reset_after })
}

/// An override must be told apart from the grant of the hit, even if both are equal.
pub(super) async fn an_equal_grant_is_told(on: Subject) {
    set(&on, "alice", limited(3), 5).await;
    let reply = act(&on, "alice", Action::Take(Cost::ONE), None).await;
    let Some(Applied { grant, ends_at, record }) = reply.applied.as_deref() else {
        panic!("{reply:?}")
    };
    assert_eq!((grant.limit().map(Limit::units), ends_at.since(T0)), (Some(3), span(5.0)));
    assert_eq!(record, &None);
}
