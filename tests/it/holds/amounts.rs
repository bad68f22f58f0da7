//! Holds of more units than one request may have: money, in fixed windows.

use rlaas_limiter::reservation::Hold;

use super::*;
use crate::differential::model::Model;

const BILLION: u64 = 1_000_000_000;

/// Services on both stores with a rule of a fixed window without debt.
fn services(units: u64) -> [Service; 2] {
    let rules = || {
        let limit = Limit::new(units, Micros::from_secs(3_600)).expect("a limit");
        let holds = Some(HoldTerms { longest: Micros::from_secs(600), most: 1_000, share: None });
        RuleSet::new(Rule { holds, ..Rule::new_default(Algorithm::FixedWindow, limit) }, Vec::new())
    };
    [Service::on_memory(rules()), Service::on_redis(rules(), Arc::new(RedisServer::start()))]
}

fn cost(units: u64) -> Cost {
    Cost::new(u32::try_from(units).expect("at most 2^32 - 1"))
}

fn reserve(number: u128, units: u64) -> HoldAct {
    HoldAct::Reserve { number, cost: cost(units), hold_for: Micros::from_secs(600) }
}

/// Returns whether the act was allowed, and what is left.
async fn decide(on: &Service, act: &HoldAct) -> (bool, i64) {
    let decision = execute(on, act).await.hits[0].decision;
    (decision.is_allowed(), decision.remaining)
}

#[tokio::test]
async fn no_more_is_held_than_there_is() {
    for service in services(10 * BILLION) {
        let name = service.limiter.store().name();
        let mut held = 0;
        let numbers = || (0..12).map(|number| 2 * number + 1);
        for number in numbers() {
            held += i64::from(decide(&service, &reserve(number, 3 * BILLION)).await.0);
        }
        assert_eq!(held, 3, "{name}: 3 of 10 billion each");
        for (units, expected) in
            [(4 * BILLION, (false, 1_000_000_000)), (BILLION, (true, 0)), (1, (false, 0))]
        {
            let take = HoldAct::Hit(Action::Take(cost(units)));
            assert_eq!(decide(&service, &take).await, expected, "{name}: {units}");
        }
        // What is held is charged, and no more was allowed beside it.
        for (at, number) in numbers().enumerate() {
            let settled = execute(&service, &HoldAct::Settle { number, actual: None }).await;
            let charged = settlement(&settled).map(|one| one.charged);
            assert_eq!(charged, (at < 3).then_some(3 * BILLION), "{name}: {number}");
        }
        assert_eq!(decide(&service, &HoldAct::Hit(Action::Take(cost(1)))).await, (false, 0));
    }
}

#[tokio::test]
async fn extended_hold_is_charged_whole() {
    for service in services(20 * BILLION) {
        let name = service.limiter.store().name();
        assert!(decide(&service, &reserve(1, 4 * BILLION)).await.0);
        let more = HoldAct::Extend { number: 1, cost: cost(4 * BILLION), hold_for: None };
        assert_eq!(decide(&service, &more).await, (true, 12_000_000_000), "{name}");
        let settled = execute(&service, &HoldAct::Settle { number: 1, actual: None }).await;
        let expected = Settlement { charged: 8 * BILLION, ..Settlement::default() };
        assert_eq!(settlement(&settled), Some(expected), "{name}");
        assert_eq!(peek(&service).await.0.remaining, 12_000_000_000, "{name}");
    }
}

#[tokio::test]
async fn several_takes_of_one_key_are_taken_together_or_not_at_all() {
    for service in services(5 * BILLION) {
        let name = service.limiter.store().name();
        let takes = [Action::Take(cost(3 * BILLION)); 2];
        let decided = service.act_on("alice", &takes, Coupling::AllOrNothing).await;
        assert!(!decided[1].is_allowed(), "{name}: {decided:?}");
        assert_eq!(peek(&service).await.0.remaining, 5_000_000_000, "{name}");
    }
}

/// The largest cost of a request.
const LARGEST: u64 = u32::MAX as u64;

/// The exact state of one key: a window by the rational model, and holds beside it.
struct ExactKey {
    model: Model,
    limit: i64,
    holds: Vec<Hold>,
    settled: Vec<u128>,
}

impl ExactKey {
    fn new(units: u64) -> Self {
        let limit = Limit::new(units, Micros::from_secs(60)).expect("a limit");
        let debt = Algorithm::FixedWindow.max_debt(&limit);
        let limit = limit.with_max_debt(debt).expect("a debt");
        let model = Model::new(Algorithm::FixedWindow, &limit);
        Self { model, limit: units.cast_signed(), holds: Vec::new(), settled: Vec::new() }
    }

    fn peek(&mut self, now: Timestamp) -> Decision {
        self.model.act(0, now, Action::Peek(Cost::NONE))
    }

    /// Returns what is left beside what is held.
    fn left(&mut self, now: Timestamp) -> i64 {
        self.holds.retain(|hold| hold.ends_at > now);
        let held: u64 = self.holds.iter().map(|hold| hold.units).sum();
        self.peek(now).remaining - held.cast_signed()
    }

    /// Executes an act. Returns whether it is allowed, or what is settled; `None` if nothing is known of
    /// the reservation.
    fn execute(&mut self, now: Timestamp, act: &HoldAct) -> Option<Result<bool, Settlement>> {
        let left = self.left(now);
        let fits = |cost: Cost| cost.units().cast_signed() <= left;
        match *act {
            HoldAct::Hit(action @ Action::Take(cost)) => {
                if fits(cost) {
                    self.model.act(0, now, action);
                }
                Some(Ok(fits(cost)))
            }
            HoldAct::Hit(action) => {
                self.model.act(0, now, action);
                Some(Ok(fits(action.cost())))
            }
            HoldAct::Reserve { number, .. } if self.settled.contains(&number) => None,
            HoldAct::Reserve { number, cost, hold_for } => {
                let is_allowed = fits(cost) && self.holds.len() < MAX_HOLDS as usize;
                let hold = Hold { number, units: cost.units(), ends_at: now + hold_for };
                self.holds.extend(Some(hold).filter(|_| is_allowed));
                Some(Ok(is_allowed))
            }
            HoldAct::Extend { number, cost, hold_for } => {
                let hold = self.holds.iter_mut().find(|hold| hold.number == number)?;
                let is_allowed = cost == Cost::NONE || fits(cost);
                if is_allowed {
                    hold.units += cost.units();
                    hold.ends_at = hold_for.map_or(hold.ends_at, |time| now + time);
                }
                Some(Ok(is_allowed))
            }
            HoldAct::Settle { number, actual } => {
                let at = self.holds.iter().position(|hold| hold.number == number);
                // Even ones are charged without a hold, too, once.
                if at.is_none() && (number % 2 == 1 || self.settled.contains(&number)) {
                    return None;
                }
                let units = at.map_or(0, |at| self.holds.remove(at).units);
                self.settled.push(number);
                let cost = actual.unwrap_or(Cost::total(units));
                let before = self.peek(now).remaining;
                self.model.act(0, now, Action::Report(cost));
                let after = self.peek(now).remaining;
                let charged = (before - after).cast_unsigned();
                let (returned, debt) = (units.saturating_sub(cost.units()), after.min(0));
                let uncounted = cost.units() - charged;
                Some(Err(Settlement { charged, returned, debt: debt.unsigned_abs(), uncounted }))
            }
            HoldAct::Override(_) | HoldAct::Limit(_) => unreachable!("not in these histories"),
        }
    }
}

fn random_cost(random: &mut HistoryRandom) -> Cost {
    let units = match random.below(6) {
        0 => random.below(3),
        1 => LARGEST,
        2 => LARGEST - 1,
        _ => random.below(1 << 31) * 2,
    };
    cost(units)
}

fn random_act(random: &mut HistoryRandom, reserved: u128) -> HoldAct {
    // One of the last. The next one is not known.
    let number = (reserved + 1).saturating_sub(random.below(5).into());
    let seconds = |seconds: u64| Micros::from_micros(seconds * 1_000_000);
    let cost = random_cost(random);
    match random.below(16) {
        0..=3 => HoldAct::Hit(Action::Take(cost)),
        4 => HoldAct::Hit(Action::Report(cost)),
        5..=8 => {
            let hold_for = seconds(1 + random.below(150));
            HoldAct::Reserve { number: reserved + 1, cost, hold_for }
        }
        9..=11 => {
            let hold_for = Some(seconds(1 + random.below(60))).filter(|_| random.below(2) == 0);
            HoldAct::Extend { number, cost, hold_for }
        }
        _ => HoldAct::Settle { number, actual: Some(cost).filter(|_| random.below(3) > 0) },
    }
}

/// Plays a history on both stores beside the exact key. Returns how many acts were denied, and the largest
/// charge.
async fn play_amounts(seed: u64, units: u64, services: &[Service; 2]) -> (usize, u64) {
    let (mut random, mut exact) = (HistoryRandom(seed), ExactKey::new(units));
    let (mut now, mut reserved, mut denied, mut largest) = (T0, 0, 0, 0);
    for step in 0..40 {
        let spans = [0, random.below(2_000_000), random.below(12_000_000)];
        now = now + Micros::from_micros(spans[step % 3]);
        let act = match step {
            // A few units are left.
            0 => HoldAct::Hit(Action::Report(Cost::total(units.saturating_sub(5 * LARGEST)))),
            _ => random_act(&mut random, reserved),
        };
        reserved += u128::from(matches!(act, HoldAct::Reserve { .. }));
        let was_settled =
            matches!(act, HoldAct::Settle { number, .. } if exact.settled.contains(&number));
        let expected = exact.execute(now, &act);
        for service in services {
            service.set_clock(now);
            let reply = execute(service, &act).await;
            let name = service.limiter.store().name();
            let at = format!("{name}, {units}, seed {seed}, step {step} at {now:?}: {act:?}");
            match &expected {
                None if was_settled => {
                    let replayed = matches!(
                        reply.reservation,
                        Some(ReservationReply::Settled { replayed: true, .. })
                    );
                    assert!(replayed, "{at}: {reply:?}");
                }
                None => assert_eq!(reply.reservation, Some(ReservationReply::NotFound), "{at}"),
                Some(Err(settled)) => assert_eq!(settlement(&reply), Some(*settled), "{at}"),
                Some(Ok(is_allowed)) => {
                    assert_eq!(reply.hits[0].decision.is_allowed(), *is_allowed, "{at}: {reply:?}");
                }
            }
            let (found, held) = peek(service).await;
            assert_eq!(found.remaining, exact.left(now), "{at}");
            assert_eq!(found.current_count, exact.peek(now).current_count, "{at}");
            let expected: u64 = exact.holds.iter().map(|hold| hold.units).sum();
            assert_eq!(held, expected, "{at}");
            assert!(exact.peek(now).remaining <= exact.limit, "{at}");
        }
        denied += usize::from(expected == Some(Ok(false)));
        largest = expected.and_then(Result::err).map_or(0, |one| one.charged).max(largest);
    }
    (denied, largest)
}

#[tokio::test]
async fn histories_of_amounts_are_exact() {
    let server = Arc::new(RedisServer::start());
    let mut largest = 0;
    for units in [3 * LARGEST, 10 * BILLION, Limit::MAX_COUNTED] {
        let mut denied = 0;
        for seed in 0..histories() {
            let services = plain_services(Algorithm::FixedWindow, units, &server);
            let (more, charge) = play_amounts(seed, units, &services).await;
            (denied, largest) = (denied + more, largest.max(charge));
        }
        eprintln!("{units}: {denied} denied, at most {largest} charged at once");
        assert!(denied > 50, "{units}: {denied}");
    }
    assert!(largest > LARGEST, "{largest}");
}

#[tokio::test]
async fn limits_of_other_algorithms_are_far_below_the_largest_cost() {
    let server = Arc::new(RedisServer::start());
    for algorithm in &ALGORITHMS[1..] {
        // Redis cuts what is asked for and held at the largest cost.
        let units = algorithm.max_units();
        assert!(units <= BILLION && 2 * units < LARGEST, "{algorithm:?}");
        let [memory, redis] = plain_services(*algorithm, units, &server);
        let take = |units| HoldAct::Hit(Action::Peek(cost(units)));
        for (act, allows) in [
            (reserve(1, units), true),
            (reserve(2, 1), false),
            (reserve(3, LARGEST), false),
            (take(1), false),
            (take(units), false),
            (take(units + 1), false),
            (take(LARGEST), false),
            (HoldAct::Extend { number: 1, cost: cost(LARGEST), hold_for: None }, false),
            (HoldAct::Settle { number: 1, actual: Some(cost(LARGEST)) }, true),
            (take(1), *algorithm == Algorithm::Concurrency),
        ] {
            let reply = execute(&memory, &act).await;
            assert_eq!(execute(&redis, &act).await, reply, "{algorithm:?}: {act:?}");
            let is_allowed = reply.hits.first().is_none_or(|hit| hit.decision.is_allowed());
            assert_eq!(is_allowed, allows, "{algorithm:?}: {act:?}: {reply:?}");
        }
    }
}
