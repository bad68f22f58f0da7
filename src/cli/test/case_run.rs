//! Runs a case: its requests in order, on an empty memory store whose clock the case sets.
//!
//! A case that fails runs a second time, to explain the requests that failed at their moments. It
//! takes the same course, since nothing but the file decides it.

use std::collections::BTreeMap;
use std::sync::Arc;

use rlaas_limiter::Limiter;
use rlaas_limiter::observer::NoObserver;
use tokio::runtime::Runtime;

use super::expect::{Difference, LoopEnd};
use super::explanation::explain;
use super::file::TestCase;
use super::outcome::DecidedStep;
use super::rule_names::ReachedRules;
use super::step::{PlannedRequest, RequestStep, for_each_request};
use super::value::{NONE, shown};
use crate::clock::{Clock, ManualClock};
use crate::config::Config;
use crate::rules::descriptors::DescriptorRequest;
use crate::store::{MemorySettings, MemoryStore, Store};

/// Keys for which any case has space.
const MIN_MAX_KEYS: u32 = 10_000;

/// How a case went.
#[derive(Debug, Default)]
pub(super) struct CaseResult {
    /// The steps that failed, by their position in the file.
    pub(super) failures: BTreeMap<usize, StepFailure>,
    /// Number of requests.
    pub(super) requests: u64,
}

/// A step that failed: its first request that was not as expected.
#[derive(Debug)]
pub(super) struct StepFailure {
    pub(super) line: u64,
    /// Path, time, and number in the loop.
    pub(super) place: String,
    pub(super) differences: Vec<Difference>,
    /// Requests of the step that were not as expected, this one included.
    pub(super) failed: u64,
    /// Why the request was decided as it was.
    pub(super) explanation: String,
    number: u64,
}

/// Runs a case, and records the rules that it reaches.
pub(super) fn run_case(
    case: &TestCase,
    config: &Config,
    runtime: &Runtime,
    reached: &mut ReachedRules,
) -> CaseResult {
    let (mut result, mut passed) = (CaseResult::default(), 0);
    let (clock, limiter) = limiter(case, config);
    run(case, |planned| {
        clock.set(case.start.0 + planned.at);
        let RequestStep { expectation, tolerance, position, request, .. } = planned.step;
        let answer = DecidedStep::decide(&limiter, request);
        let decisions = answer.iter().flat_map(|decided| &decided.verdict.decisions);
        reached.extend(decisions.map(|decision| decision.index));
        let (iteration, all) = planned.iteration;
        let is_allowed = answer.as_ref().is_ok_and(|decided| decided.verdict.is_allowed());
        passed = u64::from(is_allowed) + if iteration == 1 { 0 } else { passed };
        let end = (iteration == all).then_some(LoopEnd { passed, all });
        let differences = match (expectation, &answer) {
            (Some(expectation), answer) => expectation.differences(answer, end, *tolerance),
            (None, Ok(_)) => Vec::new(),
            (None, Err(error)) => {
                vec![Difference::new("error".to_owned(), NONE, error.to_string())]
            }
        };
        if !differences.is_empty() {
            let failure = result.failures.entry(*position);
            failure.or_insert_with(|| StepFailure::new(&planned, differences)).failed += 1;
        }
        result.requests += 1;
    });
    explain_failures(&mut result, case, config, runtime);
    result
}

/// Runs the case again, and explains the requests that failed.
fn explain_failures(result: &mut CaseResult, case: &TestCase, config: &Config, runtime: &Runtime) {
    if result.failures.is_empty() {
        return;
    }
    let (clock, limiter) = limiter(case, config);
    run(case, |planned| {
        clock.set(case.start.0 + planned.at);
        let RequestStep { position, request, .. } = planned.step;
        if let Some(failure) = result.failures.get_mut(position)
            && failure.number == planned.number
        {
            failure.explanation = explain(&limiter, request, runtime);
        }
        let _as_before = DecidedStep::decide(&limiter, request);
    });
}

fn run<'a>(case: &'a TestCase, mut visit: impl FnMut(PlannedRequest<'a>)) {
    for_each_request(&case.steps, &mut visit).expect("checked when the file was read");
}

/// Returns a limiter with empty state, and its clock. No key is evicted: each step has at most one key
/// for each rule that it matches, and there is space for four times as many, since keys are not spread
/// evenly.
fn limiter(case: &TestCase, config: &Config) -> (ManualClock, Limiter) {
    let clock = ManualClock::new(case.start.0);
    let observer = Arc::new(NoObserver);
    let matches = config.rules.max_matches().max(DescriptorRequest::MAX_DESCRIPTORS);
    let keys = case.request_steps.saturating_mul(matches).saturating_mul(4);
    let max_keys = u32::try_from(keys).unwrap_or(u32::MAX).max(MIN_MAX_KEYS);
    let settings = MemorySettings { max_keys };
    let store = MemoryStore::new(settings, Clock::Manual(clock.clone()), observer.clone());
    let store = store.with_max_request_ids(config.idempotency.max_keys);
    let limiter = Limiter::new(config.rules.clone(), Store::Memory(store), observer);
    limiter.set_idempotency_ttl(config.idempotency.ttl);
    (clock, limiter)
}

impl StepFailure {
    fn new(planned: &PlannedRequest<'_>, differences: Vec<Difference>) -> Self {
        let RequestStep { path, line, .. } = planned.step;
        let at = shown(planned.at);
        let place = match planned.iteration {
            (1, _) => format!("{path} at {at}"),
            (iteration, all) => format!("{path} at {at}, request {iteration} of {all}"),
        };
        Self {
            line: *line,
            place,
            differences,
            failed: 0,
            explanation: String::new(),
            number: planned.number,
        }
    }
}
