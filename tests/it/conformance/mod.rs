//! One suite of cases, instantiated for each algorithm and store: what is promised holds on all.
//!
//! Every case goes through `Limiter::check`. Time is moved: in memory by a manual clock, in Redis
//! by the clock of a real redis-server. Times are seconds after T0 = Unix 1700000100.

mod buckets;
mod changed_rules;
mod every_algorithm;
mod failed_writes;
mod fixed_window;
mod give_back;
mod many_rules;
mod memory_only;
mod previous_release;
mod promise;
mod receipts;
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

/// Makes a test of each case for each algorithm and store, `case::algorithm::store`:
///
/// ```ignore
/// cases! { all; case: rules_of_an_algorithm; }
/// cases! { gcra leaky_bucket, redis; case: rules_of_an_algorithm; }
/// cases! { mixed; case: rules_that_name_their_algorithms; }
/// ```
///
/// A store that is neither `memory` nor `redis` is a function that makes a service of rules.
macro_rules! cases {
    (all $($rest:tt)*) => {
        $crate::conformance::cases! {
            fixed_window sliding_window_log sliding_window_counter token_bucket leaky_bucket gcra
            $($rest)*
        }
    };
    (buckets $($rest:tt)*) => {
        $crate::conformance::cases! { token_bucket leaky_bucket gcra $($rest)* }
    };
    ($($algorithm:ident)+ @names) => { [$(stringify!($algorithm)),+] };
    ($($algorithm:ident)+; $($cases:tt)*) => {
        $crate::conformance::cases! { $($algorithm)+, memory redis; $($cases)* }
    };
    ($($algorithm:ident)+, $($store:ident)+; $($cases:tt)*) => {
        $crate::conformance::cases! { @each [$($algorithm)+] [$($store)+] $($cases)* }
    };
    (@each $algorithms:tt $stores:tt $($case:ident: $rules:expr;)+) => {
        $(mod $case {
            use super::*;
            $crate::conformance::cases! { @case $case ($rules) $algorithms $stores }
        })+
    };
    (@case $case:ident $rules:tt [$($algorithm:ident)+] $stores:tt) => {
        $(mod $algorithm {
            use super::*;
            $crate::conformance::cases! { @algorithm $case $rules $algorithm $stores }
        })+
    };
    (@algorithm $case:ident $rules:tt $algorithm:ident [$($store:ident)+]) => {
        $(#[tokio::test]
        async fn $store() {
            let rules = $crate::conformance::cases!(@rules $algorithm $rules);
            super::$case($crate::conformance::cases!(@service $store rules)).await;
        })+
    };
    (@rules mixed ($rules:expr)) => { $rules };
    (@rules $algorithm:ident ($rules:expr)) => {
        $rules($crate::conformance::algorithm(stringify!($algorithm)))
    };
    (@service memory $rules:ident) => { rlaas_testkit::service::Service::on_memory($rules) };
    (@service redis $rules:ident) => { $crate::conformance::on_redis($rules) };
    (@service $other:ident $rules:ident) => { super::$other($rules) };
}
pub(crate) use cases;

/// The algorithm that tests call by this name.
fn algorithm(name: &str) -> Algorithm {
    Algorithm::from_name(name).expect("an algorithm of the registry")
}

#[test]
fn every_algorithm_of_the_registry_has_its_tests() {
    let names = |of: fn(&Algorithm) -> bool| -> Vec<&str> {
        let found = Algorithm::ALL.iter().copied().filter(of);
        found.map(Algorithm::lua_name).collect()
    };
    assert_eq!(names(|_| true), cases!(all @names));
    assert_eq!(names(|algorithm| algorithm.has_burst()), cases!(buckets @names));
}

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
