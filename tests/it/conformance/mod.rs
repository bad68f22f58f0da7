//! One suite of cases, instantiated for each algorithm and store.
//!
//! The cases that every store must pass are public, in `rlaas_limiter::conformance`. Here they run
//! on memory and on Redis, together with cases for only one of the two.
//!
//! Every case goes through `Limiter::check`. Tests set the time: in memory by a manual clock, in
//! Redis by the clock of a real redis-server. Times are seconds after T0, Unix 1700000100.

mod against_memory;
mod buckets;
mod changed_rules;
mod each_alone;
mod enforced_share;
mod every_algorithm;
mod failed_writes;
mod fixed_window;
mod many_rules;
mod memory_only;
mod near_limit;
mod on_change;
mod overrides;
mod overrides_in_turn;
mod previous_release;
mod projects;
mod promise;
mod receipts;
mod redis_only;
mod refunds;
mod reports;
mod request_ids;
mod several_hits;
mod sliding_window_counter;
mod sliding_window_log;

use std::sync::Arc;

use rlaas::algorithm::{Algorithm, Decision};
use rlaas::clock::Micros;
use rlaas::rules::RuleSet;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::rules;
use rlaas_testkit::service::Service;

/// Defines a test of each case for each algorithm and store, named `case::algorithm::store`:
///
/// ```ignore
/// cases! { all; case: rules_of_an_algorithm; }
/// cases! { gcra leaky_bucket, redis; case: rules_of_an_algorithm; }
/// cases! { mixed; case: rules_that_name_their_algorithms; }
/// ```
///
/// Any store other than `memory` and `redis` is a function from rules to a service.
macro_rules! cases {
    (all $($rest:tt)*) => {
        rlaas_limiter::with_algorithms! { all [$crate::conformance::cases] [] [$($rest)*] }
    };
    (buckets $($rest:tt)*) => {
        rlaas_limiter::with_algorithms! { buckets [$crate::conformance::cases] [] [$($rest)*] }
    };
    ([$($algorithm:ident)+] $($rest:tt)*) => {
        $crate::conformance::cases! { $($algorithm)+ $($rest)* }
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

/// Defines the tests of a module of the public suite on both stores, named
/// `case::algorithm::store`.
macro_rules! on_both {
    ($module:ident) => {
        rlaas_limiter::conformance_tests! {
            $module;
            memory: rlaas_testkit::service::Service::on_memory,
            redis: $crate::conformance::on_redis,
        }
    };
}
use on_both;

/// Runs a case of the public suite.
async fn conforms(module: &str, case: &str, on: &Service) {
    rlaas_limiter::conformance::case(module, case).run(on).await;
}

fn algorithm(name: &str) -> Algorithm {
    Algorithm::from_name(name).expect("an algorithm of the registry")
}

#[test]
fn every_registered_algorithm_is_tested() {
    let names = |of: fn(&Algorithm) -> bool| -> Vec<&str> {
        let found = Algorithm::RATES.iter().copied().filter(of);
        found.map(Algorithm::lua_name).collect()
    };
    assert_eq!(names(|_| true), cases!(all @names));
    assert_eq!(names(|algorithm| algorithm.has_burst()), cases!(buckets @names));
}

/// Returns rules of any algorithm with this limit.
fn per(units: u64, window: Micros) -> impl Fn(Algorithm) -> RuleSet {
    move |algorithm| rules(algorithm, units, window)
}

fn on_redis(rules: RuleSet) -> Service {
    Service::on_redis(rules, Arc::new(RedisServer::start()))
}

/// Returns whether a decision allows, and its `current_count`.
fn counted(decision: &Decision) -> (bool, u64) {
    (decision.is_allowed(), decision.current_count)
}
