//! What this release stores, read by the scripts of the release before: they may forgive debt, and
//! never take a state for a full one. Both run on one Redis while instances are replaced.

use rlaas::algorithm::{Algorithm, Cost, Limit};
use rlaas::clock::{Span, Timestamp};
use rlaas::rules::{Rule, RuleSet};
use rlaas::store::{Action, Coupling};
use rmp::decode::{Bytes, read_int, read_str_len};
use rmp::encode::{write_str, write_uint};

use super::common::redis::RedisServer;
use super::common::service::T0;
use super::on_redis;

const PRELUDE: &str = include_str!("previous_lua/prelude.lua");
const CHECK: &str = include_str!("previous_lua/check.lua");
const WINDOW: Span = Span::from_secs(60);
const UNITS: u64 = 10;

fn twin(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::FixedWindow => include_str!("previous_lua/fixed_window.lua"),
        Algorithm::SlidingWindowLog => include_str!("previous_lua/sliding_window_log.lua"),
        Algorithm::SlidingWindowCounter => include_str!("previous_lua/sliding_window_counter.lua"),
        Algorithm::TokenBucket => include_str!("previous_lua/token_bucket.lua"),
        Algorithm::LeakyBucket => include_str!("previous_lua/leaky_bucket.lua"),
        Algorithm::Gcra => include_str!("previous_lua/gcra.lua"),
    }
}

/// Units that the release before says are left for alice at this time, after a look.
fn left_before(server: &RedisServer, algorithm: Algorithm, now: Timestamp) -> u64 {
    let text = format!("{PRELUDE}\ndo\n{}\nend\n{CHECK}", twin(algorithm));
    let index = now.as_micros() / WINDOW.as_micros();
    let key = match algorithm {
        Algorithm::FixedWindow => format!("rlaas:rate_limit:alice:{index}"),
        _ => "rlaas:rate_limit:alice".to_owned(),
    };
    let mut argument = Vec::new();
    let text_of = |argument: &mut Vec<u8>, text| write_str(argument, text).expect("it grows");
    let number = |argument: &mut Vec<u8>, number| {
        write_uint(argument, number).expect("it grows");
    };
    text_of(&mut argument, "look");
    number(&mut argument, 1);
    text_of(&mut argument, algorithm.lua_name());
    // keys, first_index, units, window, burst, cost, mode, seen
    let first_index = if algorithm == Algorithm::FixedWindow { index } else { 0 };
    for value in [1, first_index, UNITS, WINDOW.as_micros(), UNITS, 0, 1, 0] {
        number(&mut argument, value);
    }
    let mut call = deadpool_redis::redis::cmd("EVAL");
    call.arg(text).arg(1).arg(key).arg("nonce").arg("note").arg(argument);
    let reply: Vec<u8> = call.query(&mut server.connect()).expect("a reply");
    let mut reply = Bytes::new(&reply);
    let length = read_str_len(&mut reply).expect("the nonce");
    let mut reply = Bytes::new(&reply.remaining_slice()[length as usize..]);
    let mut next = || read_int::<u64, _>(&mut reply).expect("a number");
    let (_time, decided, _outcome, _count) = (next(), next(), next(), next());
    assert_eq!(decided, 1, "{}", algorithm.name());
    next()
}

#[tokio::test]
async fn a_state_in_debt_is_at_most_forgiven() {
    let limit = Limit::new(UNITS, WINDOW).and_then(|limit| limit.with_max_debt(UNITS));
    let limit = limit.expect("a valid limit");
    for algorithm in Algorithm::ALL.iter().copied() {
        for reported in [10, 13, 20] {
            let on = on_redis(RuleSet::new(Rule::default_of(algorithm, limit), Vec::new()));
            let server = on.redis().expect("a redis-server");
            let report = Action::Report(Cost::new(reported));
            on.act("alice", report, Coupling::AllOrNothing).await;
            for seconds in [0, 7, 30, 59, 61, 90] {
                let now = T0 + Span::from_secs(seconds);
                on.set_clock(now);
                let left = left_before(server, algorithm, now);
                // As if it were just used up, and no more: the earliest that a unit comes back.
                let forgiven = match algorithm {
                    Algorithm::FixedWindow
                    | Algorithm::SlidingWindowLog
                    | Algorithm::SlidingWindowCounter
                        if seconds < 60 =>
                    {
                        0
                    }
                    _ => (UNITS * seconds / 60).min(UNITS),
                };
                let name = algorithm.name();
                assert!(left <= forgiven, "{name}, {reported} reported, {seconds} s: {left}");
            }
        }
    }
}
