//! Neighbours: when a bound that projects share is reached, the project with most entries loses
//! first.

use std::sync::Arc;

use rlaas_limiter::algorithm::{Algorithm, Limit};
use rlaas_limiter::clock::{Clock, ManualClock, Micros};
use rlaas_limiter::observer::NoObserver;
use rlaas_limiter::rules::RuleSet;
use rlaas_limiter::store::{MemorySettings, MemoryStore, Store};
use rlaas_limiter::{Limiter, Request, Rule, Verdict};

/// Returns how many ids of one project push at the entries of another.
fn ids() -> u32 {
    std::env::var("NEIGHBOUR_IDS").ok().and_then(|ids| ids.parse().ok()).unwrap_or(50_000)
}

/// A limiter whose rules, in each project, are 3 units a minute, with these bounds.
fn limiter(max_keys: u32, max_request_ids: u32) -> Limiter {
    let clock = Clock::Manual(ManualClock::default());
    let store = MemoryStore::new(MemorySettings { max_keys }, clock, Arc::new(NoObserver));
    let store = Store::Memory(store.with_max_request_ids(max_request_ids));
    let limit = Limit::new(3, Micros::from_secs(60)).expect("a valid limit");
    let rules = RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), Vec::new());
    let limiter = Limiter::new(rules.clone(), store, Arc::new(NoObserver));
    for project in ["small", "large", "middle"] {
        limiter.replace_project_rules(project, rules.clone());
    }
    limiter
}

fn check(limiter: &Limiter, project: &str, user: &str, request_id: &str) -> Verdict {
    let request = Request::user(user).in_project(project).request_id(request_id);
    let request = request.build().expect("a valid request");
    limiter.check_now(&request).expect("memory never waits").expect("a verdict")
}

fn remaining(verdict: &Verdict) -> i64 {
    verdict.deciding().decision.remaining
}

/// Projects of few ids, and one of many.
const CASES: [(&[&str], &str); 3] =
    [(&["small", "middle"], "large"), (&["", "small"], "large"), (&["small", "middle"], "")];

#[test]
fn many_ids_of_one_project_leave_the_counters_of_others_whole() {
    for (few, many) in CASES {
        // Of several stripes, and of one.
        for max_keys in [20_000, 1_500] {
            let limiter = limiter(max_keys, 1_000);
            let users: Vec<_> = (0..300).map(|user| format!("user-{user}")).collect();
            for project in few {
                for user in &users {
                    assert_eq!(remaining(&check(&limiter, project, user, "")), 2);
                }
            }
            for id in 0..ids() {
                check(&limiter, many, &id.to_string(), "");
            }
            for project in few {
                for user in &users {
                    let left = remaining(&check(&limiter, project, user, ""));
                    assert_eq!(left, 1, "{project} beside {many}: {user}");
                }
            }
        }
    }
}

#[test]
fn keys_are_evicted_without_neighbours_and_by_equal_ones() {
    let limiter = limiter(1_000, 1_000);
    for id in 0..20_000 {
        let project = ["small", "middle"][id % 2];
        assert_eq!(remaining(&check(&limiter, project, &id.to_string(), "")), 2);
    }
    for id in 0..20_000 {
        check(&limiter, "large", &id.to_string(), "");
    }
    assert_eq!(remaining(&check(&limiter, "large", "19999", "")), 1, "the youngest is kept");
}

#[test]
fn request_ids_of_a_project_outlive_those_of_a_larger_one() {
    for (few, many) in CASES {
        let limiter = limiter(1_000_000, 1_000);
        for project in few {
            for user in 0..100 {
                assert!(!check(&limiter, project, &user.to_string(), "x").replayed);
            }
        }
        for id in 0..20_000 {
            assert!(!check(&limiter, many, &format!("id-{id}"), "x").replayed);
        }
        for project in few {
            for user in 0..100 {
                assert!(check(&limiter, project, &user.to_string(), "x").replayed, "{project}");
            }
        }
        assert!(check(&limiter, many, "id-19999", "x").replayed);
        assert!(!check(&limiter, many, "id-0", "x").replayed);
    }
}
