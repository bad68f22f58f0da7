//! States of this release, read by the scripts of the previous one. Both releases use one Redis
//! while instances are replaced. The previous release may forgive debt, but grants no more than
//! that.

use rlaas::algorithm::{Algorithm, Cost, Limit};
use rlaas::clock::{Micros, Timestamp};
use rlaas::rules::{Rule, RuleSet};
use rlaas::store::{Action, Coupling};
use rmp::decode::{Bytes, read_int, read_str_len};
use rmp::encode::{write_str, write_uint};

use super::cases;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0};

const PRELUDE: &str = include_str!("previous_lua/prelude.lua");
const CHECK: &str = include_str!("previous_lua/check.lua");
const WINDOW: Micros = Micros::from_secs(60);
const UNITS: u64 = 10;

fn twin(algorithm: Algorithm) -> &'static str {
    match algorithm.lua_name() {
        "fixed_window" => include_str!("previous_lua/fixed_window.lua"),
        "sliding_window_log" => include_str!("previous_lua/sliding_window_log.lua"),
        "sliding_window_counter" => include_str!("previous_lua/sliding_window_counter.lua"),
        "token_bucket" => include_str!("previous_lua/token_bucket.lua"),
        "leaky_bucket" => include_str!("previous_lua/leaky_bucket.lua"),
        "gcra" => include_str!("previous_lua/gcra.lua"),
        other => unreachable!("the previous release had no {other}"),
    }
}

/// Runs a check by the scripts of the previous release, and returns whether it is allowed and the
/// remaining units.
fn taken_before(
    server: &RedisServer,
    algorithm: Algorithm,
    user: &str,
    now: Timestamp,
    cost: u64,
) -> (bool, u64) {
    let text = format!("{PRELUDE}\ndo\n{}\nend\n{CHECK}", twin(algorithm));
    let index = now.as_micros() / WINDOW.as_micros();
    let key = match algorithm {
        Algorithm::FixedWindow => format!("rlaas:rate_limit:{user}:{index}"),
        _ => format!("rlaas:rate_limit:{user}"),
    };
    let mut argument = Vec::new();
    let text_of = |argument: &mut Vec<u8>, text| write_str(argument, text).expect("it grows");
    let number = |argument: &mut Vec<u8>, number| {
        write_uint(argument, number).expect("it grows");
    };
    text_of(&mut argument, if cost == 0 { "look" } else { "take" });
    number(&mut argument, 1);
    text_of(&mut argument, algorithm.lua_name());
    // keys, first_index, units, window, burst, cost, mode, seen
    let first_index = if algorithm == Algorithm::FixedWindow { index } else { 0 };
    for value in [1, first_index, UNITS, WINDOW.as_micros(), UNITS, cost, 1, 0] {
        number(&mut argument, value);
    }
    let mut call = deadpool_redis::redis::cmd("EVAL");
    call.arg(text).arg(1).arg(key).arg("nonce").arg("note").arg(argument);
    let reply: Vec<u8> = call.query(&mut server.connect()).expect("a reply");
    let mut reply = Bytes::new(&reply);
    let length = read_str_len(&mut reply).expect("the nonce");
    let mut reply = Bytes::new(&reply.remaining_slice()[length as usize..]);
    let mut next = || read_int::<u64, _>(&mut reply).expect("a number");
    let (_time, decided, outcome, _count) = (next(), next(), next(), next());
    assert_eq!(decided, 1, "{}", algorithm.name());
    (outcome == 0, next())
}

cases! {
    fixed_window sliding_window_log sliding_window_counter token_bucket leaky_bucket gcra, redis;
    previous_release_at_most_forgives_debt: in_debt;
    both_releases_together_grant_no_more_than_forgiven_debt: in_debt;
}

fn in_debt(algorithm: Algorithm) -> RuleSet {
    let limit = Limit::new(UNITS, WINDOW).and_then(|limit| limit.with_max_debt(UNITS));
    RuleSet::new(Rule::new_default(algorithm, limit.expect("a valid limit")), Vec::new())
}

async fn previous_release_at_most_forgives_debt(on: Service) {
    let (algorithm, server) = (on.algorithm(), on.redis().expect("a redis-server"));
    let reports = [10, 13, 20];
    for reported in reports {
        let report = Action::Report(Cost::new(reported));
        on.act(&reported.to_string(), report, Coupling::AllOrNothing).await;
    }
    for seconds in [0, 7, 30, 59, 61, 90] {
        let now = T0 + Micros::from_secs(seconds);
        on.set_clock(now);
        for reported in reports {
            let (_, left) = taken_before(server, algorithm, &reported.to_string(), now, 0);
            let forgiven = forgiven(algorithm, seconds).min(UNITS);
            assert!(left <= forgiven, "{reported} reported, {seconds} s: {left}");
        }
    }
}

/// Returns the units that are refilled within these seconds after all were taken, without debt.
fn forgiven(algorithm: Algorithm, seconds: u64) -> u64 {
    match algorithm {
        Algorithm::FixedWindow | Algorithm::SlidingWindowLog => {
            if seconds < 60 {
                0
            } else {
                UNITS
            }
        }
        // The first window starts at T0. After its end it counts for less and less.
        Algorithm::SlidingWindowCounter => {
            (UNITS * seconds.saturating_sub(60)).div_ceil(60).min(UNITS)
        }
        _ => UNITS * seconds / 60,
    }
}

async fn both_releases_together_grant_no_more_than_forgiven_debt(on: Service) {
    let (algorithm, server) = (on.algorithm(), on.redis().expect("a redis-server"));
    on.act("alice", Action::Report(Cost::new(13)), Coupling::AllOrNothing).await;
    let mut granted = 0;
    for seconds in [0, 7, 13, 30, 59, 61, 70, 90, 110] {
        let now = T0 + Micros::from_secs(seconds);
        on.set_clock(now);
        let (allowed, _) = taken_before(server, algorithm, "alice", now, 1);
        granted += u64::from(allowed);
        granted += u64::from(on.check("alice").await.is_allowed());
        // All of these times are in two consecutive windows.
        assert!(granted <= forgiven(algorithm, seconds), "{seconds} s: {granted}");
        assert!(on.check_cost("alice", 0).await.remaining <= UNITS.cast_signed());
    }
}
