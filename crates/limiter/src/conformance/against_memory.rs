//! Random sequences of all actions. Every field of every reply must equal that of the memory store.

use super::{Subject, T0, on_memory, owing};
use crate::algorithm::{Algorithm, Cost, TakenUnits};
use crate::clock::Micros;
use crate::operation::{Action, HitReply};
use crate::rules::{Coupling, RuleSet};

/// 10 units a minute, with a debt of up to 10.
pub(super) fn ten(algorithm: Algorithm) -> RuleSet {
    owing(algorithm, 10)
}

pub(super) async fn several_hits_of_one_key(on: Subject) {
    let memory = on_memory(ten(on.algorithm()));
    // A small random generator with a fixed seed.
    let mut random = 7_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (random >> 33) % below
    };
    let (mut now, mut all_taken) = (T0, Vec::<TakenUnits>::new());
    for step in 0..300 {
        now = now + Micros::from_micros([0, next(20_000_000), next(150_000_000)][step % 3]);
        on.set_clock(now);
        memory.set_clock(now);
        let mut action = |_| {
            let cost = Cost::new(u32::try_from(next(6)).unwrap_or_default());
            match next(12) {
                0..=4 => Action::Take(cost),
                5 | 6 => Action::Peek(cost),
                7 | 8 => Action::Report(cost),
                9 => Action::Credit(cost),
                10 if next(4) == 0 => Action::Reset,
                _ if all_taken.is_empty() => Action::Peek(cost),
                _ => Action::Refund(all_taken[step % all_taken.len()]),
            }
        };
        let actions: Vec<Action> = (0..=step % 4).map(&mut action).collect();
        let coupling = [Coupling::AllOrNothing, Coupling::EachAlone][step / 2 % 2];
        let replies = on.reply_to("alice", &actions, coupling).await;
        let expected = memory.reply_to("alice", &actions, coupling).await;
        assert_eq!(replies, expected, "step {step}: {coupling:?} {actions:?} at {now:?}");
        all_taken.extend(replies.iter().filter_map(taken));
    }
}

fn taken(reply: &HitReply) -> Option<TakenUnits> {
    let cost = u32::try_from(reply.taken).ok().filter(|units| *units > 0).map(Cost::new)?;
    Some(TakenUnits { cost, at: reply.decision.at, reset_after: reply.decision.reset_after })
}
