//! Runs a case: its requests in order, on an empty memory store whose clock the case sets.
//!
//! A case that fails runs a second time, to explain the requests that failed at their moments. It
//! takes the same course, since nothing but the file decides it.

use std::collections::BTreeMap;
use std::sync::Arc;

use rlaas_limiter::Limiter;
use rlaas_limiter::observer::NoObserver;
use tokio::runtime::Runtime;

use super::expect::Difference;
use super::explanation::explain;
use super::file::TestCase;
use super::outcome::StepOutcome;
use super::rule_names::ReachedRules;
use super::scalar::shown;
use super::step::{PlannedRequest, RequestStep, for_each_request, request_steps};
use crate::clock::{Clock, ManualClock};
use crate::config::Config;
use crate::rules::descriptors::DescriptorRequest;
use crate::store::{MemorySettings, MemoryStore, Store};

/// Steps whose failure is shown, of one case.
const MAX_SHOWN: usize = 10;

/// Keys for which any case has space.
const MIN_MAX_KEYS: u32 = 10_000;

/// How a case went.
#[derive(Debug, Default)]
pub(super) struct CaseResult {
    /// The first steps that failed, in the order of the file.
    pub(super) failures: Vec<StepFailure>,
    /// Number of further steps that failed.
    pub(super) not_shown: u64,
    /// Number of requests.
    pub(super) requests: u64,
}

/// A step that failed: its first request that was not as expected.
#[derive(Debug)]
pub(super) struct StepFailure {
    pub(super) line: u64,
    /// Path, time, and number in the loop.
    pub(super) place: String,
    /// The request.
    pub(super) request: String,
    pub(super) differences: Vec<Difference>,
    /// Requests of the step that were not as expected, this one included.
    pub(super) failed: u64,
    /// Why the request was decided as it was.
    pub(super) explanation: String,
    number: u64,
}

impl CaseResult {
    pub(super) fn is_ok(&self) -> bool {
        self.failures.is_empty()
    }
}

/// Runs a case, and records the rules that it reaches.
pub(super) fn run_case(
    case: &TestCase,
    config: &Config,
    runtime: &Runtime,
    reached: &mut ReachedRules,
) -> CaseResult {
    let subject = TestedLimiter::new(case, config);
    let mut failures = CaseFailures::default();
    let mut requests = 0;
    for_each_request(&case.steps, &mut |planned| {
        requests += 1;
        let outcome = subject.decide(&planned);
        if let StepOutcome::Decided(decided) = &outcome {
            reached.record(decided);
        }
        failures.check(&planned, &outcome);
    });
    let mut result = failures.into_result(requests);
    if !result.is_ok() {
        add_explanations(&mut result.failures, &TestedLimiter::new(case, config), case, runtime);
    }
    result
}

/// Runs the case again, and explains the requests that failed.
fn add_explanations(
    failures: &mut [StepFailure],
    subject: &TestedLimiter<'_>,
    case: &TestCase,
    runtime: &Runtime,
) {
    let mut wanted: BTreeMap<u64, &mut StepFailure> =
        failures.iter_mut().map(|failure| (failure.number, failure)).collect();
    for_each_request(&case.steps, &mut |planned| {
        if wanted.is_empty() {
            return;
        }
        if let Some(failure) = wanted.remove(&planned.number) {
            subject.set_time(&planned);
            failure.explanation = explain(&subject.limiter, &planned.step.request, runtime);
        }
        subject.decide(&planned);
    });
}

/// A limiter on empty state, at the time of the case.
struct TestedLimiter<'a> {
    case: &'a TestCase,
    clock: ManualClock,
    limiter: Limiter,
}

impl<'a> TestedLimiter<'a> {
    fn new(case: &'a TestCase, config: &Config) -> Self {
        let clock = ManualClock::new(case.start);
        let observer = Arc::new(NoObserver);
        let settings = MemorySettings { max_keys: max_keys(case, config) };
        let store = MemoryStore::new(settings, Clock::Manual(clock.clone()), observer.clone());
        let store = store.with_max_request_ids(config.idempotency.max_keys);
        let limiter = Limiter::new(config.rules.clone(), Store::Memory(store), observer);
        limiter.set_idempotency_ttl(config.idempotency.ttl);
        Self { case, clock, limiter }
    }

    fn set_time(&self, planned: &PlannedRequest<'_>) {
        self.clock.set(self.case.start + planned.at);
    }

    fn decide(&self, planned: &PlannedRequest<'_>) -> StepOutcome {
        self.set_time(planned);
        StepOutcome::decide(&self.limiter, &planned.step.request)
    }
}

/// Returns a bound that no case reaches, so that no key is evicted: each step has at most one key for
/// each rule that it matches. Four times as many, since keys are not spread evenly.
fn max_keys(case: &TestCase, config: &Config) -> u32 {
    let matches = config.rules.max_matches().max(DescriptorRequest::MAX_DESCRIPTORS);
    let keys = request_steps(&case.steps).saturating_mul(matches).saturating_mul(4);
    u32::try_from(keys).unwrap_or(u32::MAX).max(MIN_MAX_KEYS)
}

/// The failures of a case, and the counts of the loop that runs.
#[derive(Default)]
struct CaseFailures {
    /// By the line and path of the step.
    by_step: BTreeMap<(u64, String), StepFailure>,
    passed: u64,
}

impl CaseFailures {
    /// Compares an outcome with what its step expects.
    fn check(&mut self, planned: &PlannedRequest<'_>, outcome: &StepOutcome) {
        let (iteration, times) = planned.iteration;
        if iteration == 1 {
            self.passed = 0;
        }
        let RequestStep { expectation, tolerance, .. } = planned.step;
        let passes = |of: &StepOutcome| matches!(of, StepOutcome::Decided(decided) if decided.verdict.is_allowed());
        self.passed += u64::from(passes(outcome));
        let Some(expectation) = expectation else {
            if let StepOutcome::Failed { code, message } = outcome {
                let got = format!("{code}: {message}");
                let (field, expected) = ("error".to_owned(), "none".to_owned());
                self.push(planned, vec![Difference { field, expected, got }]);
            }
            return;
        };
        let mut differences = expectation.differences(outcome, *tolerance);
        if iteration == times {
            let counts = expectation.counts.iter();
            differences.extend(
                counts.filter_map(|count| count.difference(self.passed, times, *tolerance)),
            );
        }
        if !differences.is_empty() {
            self.push(planned, differences);
        }
    }

    fn push(&mut self, planned: &PlannedRequest<'_>, differences: Vec<Difference>) {
        let RequestStep { path, line, request, .. } = planned.step;
        let key = (*line, path.clone());
        if let Some(failure) = self.by_step.get_mut(&key) {
            failure.failed += 1;
            return;
        }
        let place = match planned.iteration {
            (_, 1) => format!("{path} at {}", shown(planned.at)),
            (iteration, times) => {
                format!("{path} at {}, request {iteration} of {times}", shown(planned.at))
            }
        };
        self.by_step.insert(
            key,
            StepFailure {
                line: *line,
                place,
                request: request.describe(),
                differences,
                failed: 1,
                explanation: String::new(),
                number: planned.number,
            },
        );
    }

    fn into_result(self, requests: u64) -> CaseResult {
        let not_shown = self.by_step.len().saturating_sub(MAX_SHOWN) as u64;
        let failures = self.by_step.into_values().take(MAX_SHOWN).collect();
        CaseResult { failures, not_shown, requests }
    }
}
