//! Holds: random histories of reservations on both stores, beside a twin that takes only what was charged,
//! when it was charged.

mod amounts;
mod late;
mod shares;
mod what_is_there;

use std::sync::Arc;

use rlaas_limiter::Deadline;
use rlaas_limiter::algorithm::{Algorithm, Cost, Decision, Limit, OnChange, Outcome};
use rlaas_limiter::clock::{Micros, Timestamp};
use rlaas_limiter::control::{KeyGrant, OverrideChange, OverrideKind};
use rlaas_limiter::operation::{Action, Reply, StoreHit, StoreRequest};
use rlaas_limiter::reservation::{Reservation, ReservationReply, ReservationUse, Settlement};
use rlaas_limiter::rules::{Coupling, Grant, HoldTerms, Rule, RuleSet};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0};

/// The algorithms that hold.
const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingWindowCounter,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::Gcra,
    Algorithm::Concurrency,
];
const MEMORY: Micros = Micros::from_secs(600);
/// Most holds of a key, so few that histories meet them.
const MAX_HOLDS: u32 = 6;

/// What changes of a limit leave in use: with it Redis keeps the limits of keys, and no request is plain.
const KEPT: Option<OnChange> = Some(OnChange::KeepUsed);

/// So many units a minute, with any debt, and overridable.
fn rule(algorithm: Algorithm, units: u64, on_change: Option<OnChange>) -> Rule {
    let limit = Limit::new(units, Micros::from_secs(60)).expect("a limit");
    let limit = limit.with_max_debt(algorithm.max_debt(&limit)).expect("a debt");
    let holds = Some(HoldTerms { longest: Micros::from_secs(60), most: MAX_HOLDS, share: None });
    Rule { holds, on_change, overridable: true, ..Rule::new_default(algorithm, limit) }
}

/// As [`rule`], by a fixed window from the first use.
fn at_first_use(_: Algorithm, units: u64, on_change: Option<OnChange>) -> Rule {
    let rule = rule(Algorithm::FixedWindow, units, on_change);
    let limit = rule.grant.limit().expect("a limit");
    let window = limit.windows().at_first_use();
    let debt = limit.max_debt().expect("a debt");
    let limit = Limit::new(units, window).and_then(|limit| limit.with_max_debt(debt));
    Rule { grant: Grant::Limited(limit.expect("a limit")), window, ..rule }
}

/// Returns a rule by an algorithm, with so many units.
type MakeRule = fn(Algorithm, u64, Option<OnChange>) -> Rule;

fn rules(rule: Rule) -> RuleSet {
    RuleSet::new(rule, Vec::new())
}

/// Services on both stores with a rule that is not overridable: a take or a look is plain.
fn plain_services(algorithm: Algorithm, units: u64, server: &Arc<RedisServer>) -> [Service; 2] {
    let rules = || rules(Rule { overridable: false, ..rule(algorithm, units, None) });
    let _flushed: String = server.query(&["FLUSHALL"]);
    [Service::on_memory(rules()), Service::on_redis(rules(), Arc::clone(server))]
}

/// A generator of random numbers with a seed.
struct HistoryRandom(u64);

impl HistoryRandom {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % below
    }

    fn cost(&mut self, below: u64) -> Cost {
        Cost::new(u32::try_from(self.below(below)).expect("small"))
    }
}

/// One act of a history.
#[derive(Clone, Debug)]
enum HoldAct {
    Hit(Action),
    Reserve {
        number: u128,
        cost: Cost,
        hold_for: Micros,
    },
    Extend {
        number: u128,
        cost: Cost,
        hold_for: Option<Micros>,
    },
    Settle {
        number: u128,
        actual: Option<Cost>,
    },
    Override(OverrideChange),
    /// Changes the limit.
    Limit(u64),
}

impl HoldAct {
    fn random(random: &mut HistoryRandom, reserved: u128) -> Self {
        // One of the last; the next one is not known.
        let number = (reserved + 1).saturating_sub(random.below(5).into());
        let seconds = |seconds: u64| Micros::from_micros(seconds * 1_000_000);
        match random.below(20) {
            0..=3 => Self::Hit(Action::Take(random.cost(8))),
            4 => Self::Hit(Action::Peek(random.cost(8))),
            5 => Self::Hit(Action::Report(random.cost(12))),
            6..=10 => {
                let hold_for = seconds(1 + random.below(150));
                Self::Reserve { number: reserved + 1, cost: random.cost(9), hold_for }
            }
            11 | 12 => {
                let hold_for = Some(seconds(1 + random.below(60))).filter(|_| random.below(2) == 0);
                Self::Extend { number, cost: random.cost(4), hold_for }
            }
            13..=17 => {
                let actual = Some(random.cost(12)).filter(|_| random.below(3) > 0);
                Self::Settle { number, actual }
            }
            18 => {
                let grant = match random.below(3) {
                    0 => KeyGrant::Banned,
                    1 => KeyGrant::Unlimited,
                    _ => KeyGrant::Limited { units: 12, burst: 12 },
                };
                let ttl = seconds(1 + random.below(40));
                Self::Override(OverrideChange::new(grant, ttl, b"why").expect("a change"))
            }
            _ if random.below(4) == 0 => Self::Hit(Action::Reset),
            _ if random.below(2) == 0 => Self::Limit(10 + random.below(20)),
            _ => Self::Hit(Action::ClearOverride(OverrideKind::Both)),
        }
    }

    fn reservation(&self) -> Option<Reservation> {
        let (number, purpose) = match *self {
            Self::Hit(_) | Self::Override(_) | Self::Limit(_) => return None,
            Self::Reserve { number, hold_for, .. } => {
                (number, ReservationUse::Reserve { hold_for })
            }
            Self::Extend { number, hold_for, .. } => (number, ReservationUse::Extend { hold_for }),
            Self::Settle { number, .. } => {
                let counts_ended = number % 2 == 0;
                let ends_at = T0 + Micros::from_secs(86_400);
                (number, ReservationUse::Settle { memory: MEMORY, ends_at, counts_ended })
            }
        };
        Some(Reservation { number, purpose })
    }

    fn action(&self) -> Action {
        match *self {
            Self::Hit(action) => action,
            Self::Reserve { cost, .. } | Self::Extend { cost, .. } => Action::Hold(cost),
            Self::Settle { actual, .. } => Action::Settle(actual),
            Self::Override(_) => Action::SetOverride,
            Self::Limit(_) => Action::Peek(Cost::NONE),
        }
    }

    fn change(&self) -> Option<&OverrideChange> {
        match self {
            Self::Override(change) => Some(change),
            _ => None,
        }
    }
}

async fn execute(on: &Service, act: &HoldAct) -> Reply {
    let plan = on.plan("alice", 1);
    let hit = plan.hits[0].for_store().expect("a limit");
    let hits = [StoreHit { action: act.action(), change: act.change(), ..hit }];
    let (coupling, shard) = (Coupling::AllOrNothing, on.limiter.store().shard(hit.key));
    let reservation = act.reservation();
    let reservation = reservation.as_ref();
    let request = StoreRequest { hits: &hits, coupling, shard, once: None, reservation };
    let mut reply = on.limiter.store().execute(request, Deadline::NEVER).await.expect("a reply");
    let was_settled = matches!(reply.reservation, Some(ReservationReply::Settled { .. }));
    if was_settled || reply.reservation == Some(ReservationReply::NotFound) {
        // Nothing was decided.
        reply.hits.clear();
    }
    reply
}

/// Returns the numbers of the key, and the units held of it: none of a ban and of an unlimited grant, which
/// have no numbers.
async fn peek(on: &Service) -> (Decision, u64) {
    let reply = execute(on, &HoldAct::Hit(Action::Peek(Cost::NONE))).await;
    let hit = &reply.hits[0];
    let is_limited = hit.applied.as_ref().is_none_or(|one| one.grant.limit().is_some());
    let held = hit.held.as_ref().filter(|_| is_limited).map_or(0, |held| held.units);
    (hit.decision, held)
}

fn settlement(reply: &Reply) -> Option<Settlement> {
    match &reply.reservation {
        Some(ReservationReply::Settled { settlements, replayed: false }) => Some(settlements[0].1),
        _ => None,
    }
}

/// Plays a history on all services. Returns how many reservations were settled and extended, and how many
/// hits were denied by holds alone.
async fn play(
    seed: u64,
    services: [&Service; 3],
    make: MakeRule,
    on_change: Option<OnChange>,
) -> [usize; 3] {
    let [memory, redis, twin] = services;
    let mut random = HistoryRandom(seed);
    let (mut now, mut reserved, mut counts) = (T0, 0, [0; 3]);
    let mut has_changed = false;
    for step in 0..40 {
        now = now
            + Micros::from_micros([0, random.below(4_000_000), random.below(40_000_000)][step % 3]);
        for service in services {
            service.set_clock(now);
        }
        let act = HoldAct::random(&mut random, reserved);
        if matches!(act, HoldAct::Reserve { .. }) {
            reserved += 1;
        }
        if let HoldAct::Limit(units) = act {
            let rule = make(memory.algorithm(), units, on_change);
            twin.limiter.replace_rules(rules(Rule { holds: None, ..rule.clone() }));
            memory.limiter.replace_rules(rules(rule.clone()));
            redis.limiter.replace_rules(rules(rule));
        }
        let at = format!("seed {seed}, step {step} at {now:?}: {act:?}");
        let reply = execute(memory, &act).await;
        assert_eq!(execute(redis, &act).await, reply, "{at}");

        let is_extended = matches!(reply.reservation, Some(ReservationReply::Held { .. }));
        counts[1] += usize::from(matches!(act, HoldAct::Extend { .. }) && is_extended);
        counts[2] += reply.hits.iter().flat_map(|hit| &hit.held).filter(|held| held.denies).count();

        // The twin takes what was charged.
        let on_twin = match (&act, settlement(&reply)) {
            (HoldAct::Settle { .. }, Some(Settlement { charged, .. })) => {
                counts[0] += 1;
                Some(Action::Report(Cost::new(u32::try_from(charged).expect("small"))))
            }
            (HoldAct::Hit(Action::Take(_)), _) if !reply.hits[0].decision.is_allowed() => None,
            (HoldAct::Hit(action), _) => Some(*action),
            (HoldAct::Override(_), _) => Some(act.action()),
            _ => None,
        };
        if let Some(action) = on_twin {
            let change = act.change().cloned();
            let act_of_twin = change.map_or(HoldAct::Hit(action), HoldAct::Override);
            let twin_reply = execute(twin, &act_of_twin).await;
            if let Action::Take(_) = action {
                assert!(has_changed || twin_reply.hits[0].decision.is_allowed(), "{at}");
            }
        }
        // The twin converts its state at other times.
        has_changed |= matches!(act, HoldAct::Limit(_));
        if has_changed {
            continue;
        }
        let (found, held) = peek(memory).await;
        let (expected, _) = peek(twin).await;
        let numbers = |one: &Decision| (one.current_count, one.reset_after, one.ttl);
        assert_eq!(numbers(&found), numbers(&expected), "{at}");
        assert_eq!(found.remaining, expected.remaining - held.cast_signed(), "{at}");
        now = check_wait(&services, &act, &reply, now, &at).await;
    }
    counts
}

/// Asserts that the cost of a denial fits after its wait, unless a ban denies it, and without holds in the
/// way not before. Returns the time then.
async fn check_wait(
    [memory, redis, twin]: &[&Service; 3],
    act: &HoldAct,
    reply: &Reply,
    now: Timestamp,
    at: &str,
) -> Timestamp {
    let (HoldAct::Hit(Action::Take(cost)), Some(hit)) = (act, reply.hits.first()) else {
        return now;
    };
    let (Outcome::Denied { retry_after }, None) = (hit.decision.outcome, &hit.applied) else {
        return now;
    };
    let look = HoldAct::Hit(Action::Peek(*cost));
    let is_free = hit.held.as_ref().is_none_or(|held| held.holds == 0);
    let then = now + retry_after;
    for service in [memory, redis] {
        service.set_clock(Timestamp::from_micros(then.as_micros() - 1));
        let early = execute(service, &look).await;
        assert!(!is_free || !early.hits[0].decision.is_allowed(), "{at}: {early:?}");
        service.set_clock(then);
        let later = execute(service, &look).await;
        assert!(later.hits[0].decision.is_allowed(), "{at}: {later:?}");
    }
    twin.set_clock(then);
    then
}

fn histories() -> u64 {
    if std::env::var_os("SOAK").is_some() { 3_000 } else { 60 }
}

async fn play_all(algorithm: Algorithm) {
    play_all_by(algorithm, rule).await;
}

async fn play_all_by(algorithm: Algorithm, make: MakeRule) {
    let server = Arc::new(RedisServer::start());
    let mut all = [0; 3];
    for seed in 0..histories() {
        let on_change = KEPT.filter(|_| seed % 2 == 0);
        let rule = make(algorithm, 20, on_change);
        let twin = Service::on_memory(rules(Rule { holds: None, ..rule.clone() }));
        let memory = Service::on_memory(rules(rule.clone()));
        let redis = Service::on_redis(rules(rule), Arc::clone(&server));
        let _flushed: String = server.query(&["FLUSHALL"]);
        let counts = play(seed, [&memory, &redis, &twin], make, on_change).await;
        all.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
    }
    eprintln!("{all:?} settled, extended, denied by holds");
    assert!(all.iter().all(|count| *count > 50), "{all:?}");
}

#[tokio::test]
async fn histories_of_a_fixed_window() {
    play_all(ALGORITHMS[0]).await;
}

#[tokio::test]
async fn histories_of_a_window_from_the_first_use() {
    play_all_by(ALGORITHMS[0], at_first_use).await;
}

#[tokio::test]
async fn histories_of_a_sliding_window_counter() {
    play_all(ALGORITHMS[1]).await;
}

#[tokio::test]
async fn histories_of_a_token_bucket() {
    play_all(ALGORITHMS[2]).await;
}

#[tokio::test]
async fn histories_of_a_leaky_bucket() {
    play_all(ALGORITHMS[3]).await;
}

#[tokio::test]
async fn histories_of_gcra() {
    play_all(ALGORITHMS[4]).await;
}

#[tokio::test]
async fn histories_of_slots() {
    play_all(ALGORITHMS[5]).await;
}

#[tokio::test]
async fn a_reset_between_looks_drops_open_and_ended_holds() {
    let server = Arc::new(RedisServer::start());
    for service in [
        Service::on_memory(rules(rule(Algorithm::Gcra, 20, KEPT))),
        Service::on_redis(rules(rule(Algorithm::Gcra, 20, KEPT)), server),
    ] {
        for (number, seconds) in [(1, 1), (2, 50)] {
            let hold_for = Micros::from_secs(seconds);
            let held = HoldAct::Reserve { number, cost: Cost::new(5), hold_for };
            assert!(execute(&service, &held).await.reservation.is_some());
        }
        service.at(10.0);
        // As administration changes a key.
        let look = Action::Peek(Cost::NONE);
        let coupling = Coupling::EachAlone;
        let replies = service.reply_to("alice", &[look, Action::Reset, look], coupling).await;
        let held: Vec<u64> =
            replies.iter().map(|hit| hit.held.as_ref().expect("holds").units).collect();
        assert_eq!((held[1], held[2], replies[2].decision.remaining), (0, 0, 20));
        assert_eq!(peek(&service).await.1, 0);
        let stored = service.stored().unwrap_or_default();
        assert!(stored.iter().all(|one| !one.key.contains(":%h")), "{stored:?}");
    }
}

#[tokio::test]
async fn takes_in_one_call_meet_the_holds_of_their_own_keys() {
    let server = Arc::new(RedisServer::start());
    for algorithm in ALGORITHMS {
        let services = plain_services(algorithm, 20, &server);
        let mut outcomes = Vec::new();
        for service in &services {
            let hold_for = Micros::from_secs(30);
            let held = HoldAct::Reserve { number: 1, cost: Cost::new(20), hold_for };
            assert!(execute(service, &held).await.reservation.is_some());
            // The argument of all is the same, so that the script reads it once.
            let (actions, coupling) = ([Action::Take(Cost::ONE)], Coupling::AllOrNothing);
            let take = |user| service.reply_to(user, &actions, coupling);
            let replies =
                tokio::join!(take("bob"), take("alice"), take("carol"), take("alice"), take("bob"));
            let replies = [replies.0, replies.1, replies.2, replies.3, replies.4];
            let allowed = replies.each_ref().map(|hits| hits[0].decision.is_allowed());
            assert_eq!(allowed, [true, false, true, false, true], "{algorithm:?}: {replies:?}");
            outcomes.push(replies);
        }
        assert_eq!(outcomes[0], outcomes[1], "{algorithm:?}");
    }
}
