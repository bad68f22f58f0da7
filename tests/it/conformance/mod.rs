//! One suite of cases, instantiated for each store: what an algorithm promises holds on both.
//!
//! Every case goes through `Limiter::check`. Time is moved: in memory by a manual clock, in Redis
//! by the clock of a real redis-server. Times are seconds after T0 = Unix 1700000100.

mod buckets;
mod changed_rules;
mod every_algorithm;
mod fixed_window;
mod give_back;
mod many_rules;
mod memory_only;
mod previous_release;
mod promise;
mod redis_only;
mod reports;
mod several_hits;
mod sliding_window_counter;
mod sliding_window_log;
mod take_each;

use std::sync::Arc;

use rlaas::algorithm::{Algorithm, Decision, Outcome};
use rlaas::clock::Span;
use rlaas::rules::RuleSet;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::rules;
use rlaas_testkit::service::Service;

/// Makes a test of each case on each store.
macro_rules! on_each_store {
    ($($case:ident: $rules:expr;)*) => {
        mod memory {
            $(#[tokio::test]
            async fn $case() {
                super::$case(rlaas_testkit::service::Service::on_memory($rules)).await;
            })*
            use super::*;
        }
        mod redis {
            $(#[tokio::test]
            async fn $case() {
                super::$case($crate::conformance::on_redis($rules)).await;
            })*
            use super::*;
        }
    };
}
pub(crate) use on_each_store;

/// Makes a test of each case for each store, on every algorithm.
macro_rules! on_each_algorithm_and_store {
    ($($case:ident: $rules:expr;)*) => {
        mod memory {
            use super::*;
            $(#[tokio::test]
            async fn $case() {
                for algorithm in rlaas::algorithm::Algorithm::ALL {
                    eprintln!("{}", algorithm.name());
                    super::$case(rlaas_testkit::service::Service::on_memory($rules(*algorithm))).await;
                }
            })*
        }
        mod redis {
            use super::*;
            $(#[tokio::test]
            async fn $case() {
                for algorithm in rlaas::algorithm::Algorithm::ALL {
                    eprintln!("{}", algorithm.name());
                    super::$case($crate::conformance::on_redis($rules(*algorithm))).await;
                }
            })*
        }
    };
}
pub(crate) use on_each_algorithm_and_store;

/// So many per window, for any algorithm.
fn per(units: u64, window: Span) -> impl Fn(Algorithm) -> RuleSet {
    move |algorithm| rules(algorithm, units, window)
}

fn on_redis(rules: RuleSet) -> Service {
    Service::on_redis(rules, Arc::new(RedisServer::start()))
}

/// The wait of a denial.
fn retry_after(decision: &Decision) -> Option<Span> {
    match decision.outcome {
        Outcome::Denied { retry_after } => Some(retry_after),
        Outcome::Allowed | Outcome::Impossible => None,
    }
}

/// The units that are left, of a state without debt.
fn left(decision: &Decision) -> u64 {
    u64::try_from(decision.remaining).expect("no debt")
}

/// (allowed, `current_count`).
fn counted(decision: &Decision) -> (bool, u64) {
    (decision.is_allowed(), decision.current_count)
}
