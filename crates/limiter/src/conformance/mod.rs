//! A conformance suite for stores: the promises of every store, as test cases.
//!
//! Each case runs on an empty store. It moves the store's clock, sends requests through a
//! [`Limiter`], and panics if a promise is broken. [`run`] runs all cases and reports the failed
//! ones. [`conformance_tests!`](crate::conformance_tests) makes a test of each case for each
//! algorithm, named `module::case::algorithm::store`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use rlaas_limiter::Limiter;
//! use rlaas_limiter::clock::{Clock, ManualClock};
//! use rlaas_limiter::conformance::{self, Subject};
//! use rlaas_limiter::observer::NoObserver;
//! use rlaas_limiter::store::{MemorySettings, MemoryStore, Store};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let report = conformance::run(|rules| {
//!     let clock = ManualClock::default();
//!     let (settings, observer) = (MemorySettings::default(), Arc::new(NoObserver));
//!     let store = MemoryStore::new(settings, Clock::Manual(clock.clone()), observer.clone());
//!     Subject::new(Limiter::new(rules, Store::Memory(store), observer), clock)
//! })
//! .await;
//! assert!(report.failures.is_empty(), "{report}");
//! # }
//! ```

#![allow(clippy::missing_panics_doc, reason = "a case panics if its promise is broken")]

mod against_memory;
mod buckets;
mod changed_rules;
mod each_alone;
mod every_algorithm;
mod fixed_window;
mod list;
mod many_rules;
mod overrides;
mod projects;
mod promise;
mod refunds;
mod reports;
mod request_ids;
mod sliding_window_counter;
mod sliding_window_log;
mod subject;
mod tests_macro;

pub use subject::{Backend, Stored, Subject, T0, span};

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::algorithm::{Algorithm, Decision, Limit, Outcome};
use crate::clock::{Clock, ManualClock, Micros};
use crate::limiter::Limiter;
use crate::observer::NoObserver;
use crate::rules::{Rule, RuleSet};
use crate::store::{BoxFuture, MemorySettings, MemoryStore, Store};

/// A test case: a promise, and the algorithms that keep it.
pub struct Case {
    module: &'static str,
    name: &'static str,
    /// An algorithm, `all`, `buckets`, or `mixed` if the rules name their algorithms.
    algorithms: &'static str,
    rules: Box<dyn Fn(Algorithm) -> RuleSet + Send>,
    run: fn(Subject) -> BoxFuture<'static, ()>,
}

impl fmt::Debug for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}::{}", self.module, self.name)
    }
}

impl Case {
    /// Returns the name of the case in its module.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the rules of the case for an algorithm by its name, or for `mixed`.
    pub fn rules(&self, algorithm: &str) -> RuleSet {
        (self.rules)(Algorithm::from_name(algorithm).unwrap_or(Algorithm::Gcra))
    }

    /// Runs the case.
    ///
    /// # Panics
    ///
    /// If the promise is broken.
    pub async fn run(&self, subject: &impl Borrow<Subject>) {
        (self.run)(subject.borrow().clone()).await;
    }

    fn algorithms(&self) -> Vec<&'static str> {
        match self.algorithms {
            "all" => Algorithm::RATES.iter().map(|algorithm| algorithm.lua_name()).collect(),
            "buckets" => {
                let buckets = Algorithm::RATES.iter().filter(|algorithm| algorithm.has_burst());
                buckets.map(|algorithm| algorithm.lua_name()).collect()
            }
            algorithm => vec![algorithm],
        }
    }
}

/// Adds the cases of a module to a list: see `list.rs`.
macro_rules! add_cases {
    ([$cases:ident] $module:ident; $($algorithms:ident { $($case:ident($rules:expr))+ })+) => {
        $cases.extend([$($(Case {
            module: stringify!($module),
            name: stringify!($case),
            algorithms: stringify!($algorithms),
            rules: Box::new($rules),
            run: |subject| Box::pin($module::$case(subject)),
        },)+)+]);
    };
}

/// Returns every case.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    crate::conformance_cases! { all_modules, [add_cases], [cases] }
    cases
}

/// Returns the case of this name.
///
/// # Panics
///
/// If there is no such case.
pub fn case(module: &str, name: &str) -> Case {
    let mut cases = cases().into_iter();
    let case = cases.find(|case| case.module == module && case.name == name);
    case.unwrap_or_else(|| panic!("no case {module}::{name}"))
}

/// Results of all cases.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of passed cases; a case counts once for each algorithm.
    pub passed: usize,
    /// The failed cases.
    pub failures: Vec<FailedCase>,
}

/// A failed case.
#[derive(Clone, Debug)]
pub struct FailedCase {
    /// Name of the case, `module::case::algorithm`.
    pub case: String,
    /// Message of the panic.
    pub message: String,
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{} passed, {} failed", self.passed, self.failures.len())?;
        for FailedCase { case, message } in &self.failures {
            writeln!(formatter, "{case}: {message}")?;
        }
        Ok(())
    }
}

/// Runs every case for each of its algorithms, one after the other, in tasks of the Tokio runtime.
/// `make` returns a limiter with these rules on an empty store.
pub async fn run<S: Borrow<Subject>>(make: impl Fn(RuleSet) -> S) -> Report {
    let mut report = Report::default();
    for case in cases() {
        for algorithm in case.algorithms() {
            let subject = make(case.rules(algorithm));
            let result = tokio::spawn((case.run)(subject.borrow().clone())).await;
            let Err(ended) = result else {
                report.passed += 1;
                continue;
            };
            let payload =
                ended.try_into_panic().unwrap_or_else(|ended| Box::new(ended.to_string()));
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string));
            let case = format!("{case:?}::{algorithm}");
            report.failures.push(FailedCase { case, message: text.unwrap_or_default() });
        }
    }
    report
}

/// Returns a default rule and no other.
fn rules(algorithm: Algorithm, units: u64, window: Micros) -> RuleSet {
    rules_with_burst(algorithm, units, window, units)
}

/// Returns a default rule with a burst.
fn rules_with_burst(algorithm: Algorithm, units: u64, window: Micros, burst: u64) -> RuleSet {
    let limit = Limit::new(units, window).and_then(|limit| limit.with_burst(burst));
    let limit = limit.expect("a valid limit");
    RuleSet::new(Rule::new_default(algorithm, limit), Vec::new())
}

/// Returns rules of this many units per window, for any algorithm.
fn per(units: u64, window: Micros) -> impl Fn(Algorithm) -> RuleSet {
    move |algorithm| rules(algorithm, units, window)
}

/// Returns rules of 10 units a minute, with a debt of up to `units`.
fn owing(algorithm: Algorithm, units: u64) -> RuleSet {
    let limit = Limit::new(10, Micros::from_secs(60)).and_then(|limit| limit.with_max_debt(units));
    let limit = limit.expect("a valid limit");
    RuleSet::new(Rule::new_default(algorithm, limit), Vec::new())
}

/// Returns a limiter on the memory store, the reference implementation.
fn on_memory(rules: RuleSet) -> Subject {
    let clock = ManualClock::default();
    let (settings, observer) = (MemorySettings::default(), Arc::new(NoObserver));
    let store = MemoryStore::new(settings, Clock::Manual(clock.clone()), observer.clone());
    Subject::new(Limiter::new(rules, Store::Memory(store), observer), clock)
}

/// Returns the wait of a denial.
fn retry_after(decision: &Decision) -> Option<Micros> {
    match decision.outcome {
        Outcome::Denied { retry_after } => Some(retry_after),
        Outcome::Allowed | Outcome::Impossible => None,
    }
}

/// Returns the remaining units of a state without debt.
fn left(decision: &Decision) -> u64 {
    u64::try_from(decision.remaining).expect("no debt")
}

/// Returns (allowed, `current_count`).
fn counted(decision: &Decision) -> (bool, u64) {
    (decision.is_allowed(), decision.current_count)
}
