//! Steps: when they happen, how often, and what they expect.

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use super::expect::{ExpectFields, Expectation};
use super::one_or::OneOr;
use super::request::{CheckFields, DescriptorsFields, GivenFields, StepRequest};
use super::rule_names::RuleNames;
use super::value::{Time, Tolerance, shown};
use crate::clock::Micros;

/// Most requests of a file.
pub(super) const MAX_REQUESTS: u64 = 10_000_000;

/// One request or several, or a list of steps that is repeated.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TestStep {
    at: Option<Time>,
    after: Option<Time>,
    every: Option<Time>,
    times: Option<u64>,
    check: Option<CheckFields>,
    descriptors: Option<DescriptorsFields>,
    expect: Option<OneOr<ExpectFields>>,
    tolerance: Option<OneOr<Tolerance>>,
    repeat: Option<u64>,
    #[serde(default)]
    steps: Vec<Spanned<Self>>,
    /// Made of the above; `None` for a step that repeats others.
    #[serde(skip)]
    request: Option<RequestStep>,
}

/// A request, and what is expected of it.
#[derive(Debug)]
pub(super) struct RequestStep {
    /// Number in the case, in the order of the file.
    pub(super) position: usize,
    /// Such as `steps[2]`.
    pub(super) path: String,
    pub(super) line: u64,
    pub(super) request: StepRequest,
    /// `None`: whatever is decided is right.
    pub(super) expectation: Option<Expectation>,
    pub(super) tolerance: Tolerance,
}

/// One request of a case.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedRequest<'a> {
    /// Number in the case, from 0 on.
    pub(super) number: u64,
    /// Time since the case began.
    pub(super) at: Micros,
    pub(super) step: &'a RequestStep,
    /// Number in the loop, from 1 on, and the length of the loop.
    pub(super) iteration: (u64, u64),
}

/// A problem with a place in the file.
pub(super) type PlacedProblem = (Location, String);

/// Reads the requests and expectations of the steps of a case.
pub(super) struct StepReader<'a> {
    /// What the case has for all of its steps.
    pub(super) case: GivenFields,
    pub(super) rules: &'a RuleNames,
    pub(super) problems: Vec<PlacedProblem>,
    /// Steps so far that make requests.
    pub(super) request_steps: usize,
}

impl StepReader<'_> {
    /// Reads steps. `path` is that of what they are in.
    pub(super) fn read(&mut self, steps: &mut [Spanned<TestStep>], path: &str) {
        for (at, step) in steps.iter_mut().enumerate() {
            let path = format!("{path}steps[{at}]");
            let TestStep { at, after, times, repeat, .. } = &step.value;
            let is_repeated = repeat.is_some() && !step.value.steps.is_empty();
            let read = if at.is_some() && after.is_some() {
                Err("after: must not be given with at".to_owned())
            } else if times.is_some_and(|times| times == 0) || *repeat == Some(0) {
                Err("times, repeat: must be at least 1".to_owned())
            } else if is_repeated && !step.value.has_request() {
                self.read(&mut step.value.steps, &format!("{path}."));
                Ok(())
            } else if repeat.is_some() || !step.value.steps.is_empty() {
                Err("repeat: must have steps, and no request beside them".to_owned())
            } else {
                self.read_request(&mut step.value, &path, step.referenced.line())
            };
            if let Err(problem) = read {
                self.problems.push((step.referenced, format!("{path}: {problem}")));
            }
        }
    }

    fn read_request(&mut self, step: &mut TestStep, path: &str, line: u64) -> Result<(), String> {
        let (check, descriptors) = (step.check.take(), step.descriptors.take());
        let own = GivenFields { check, descriptors };
        let request = StepRequest::new(self.case.clone(), own)?;
        let expectation = step.expect.take();
        let expectation =
            expectation.map(|expect| Expectation::read(expect, &request, self.rules)).transpose();
        let expectation = expectation.map_err(|problem| format!("expect: {problem}"))?;
        if !expectation.as_ref().is_some_and(Expectation::is_error)
            && let Some(invalid) = request.invalid()
        {
            return Err(invalid);
        }
        let tolerance = match step.tolerance.take() {
            None => Tolerance::default(),
            Some(OneOr::Other(tolerance)) => tolerance,
            Some(OneOr::One(text)) => {
                Tolerance::parse(text).map_err(|error| format!("tolerance: {error}"))?
            }
        };
        let position = self.request_steps;
        let path = path.split_once('.').map_or(path, |(_case, path)| path).to_owned();
        self.request_steps += 1;
        step.request = Some(RequestStep { position, path, line, request, expectation, tolerance });
        Ok(())
    }
}

impl TestStep {
    fn has_request(&self) -> bool {
        let Self { times, check, descriptors, expect, tolerance, .. } = self;
        let has_request = check.is_some() || descriptors.is_some() || expect.is_some();
        has_request || times.is_some() || tolerance.is_some()
    }
}

/// Calls `visit` with each request of a case, in order. The times are checked on the way.
///
/// # Errors
///
/// The first step that would go back in time, or has more requests than a file may have.
pub(super) fn for_each_request<'a>(
    steps: &'a [Spanned<TestStep>],
    visit: &mut dyn FnMut(PlannedRequest<'a>),
) -> Result<(), PlacedProblem> {
    Walk { now: Micros::ZERO, number: 0, visit }.run(steps)
}

struct Walk<'v, 'a> {
    /// Time of the last request.
    now: Micros,
    number: u64,
    visit: &'v mut dyn FnMut(PlannedRequest<'a>),
}

impl<'a> Walk<'_, 'a> {
    fn run(&mut self, steps: &'a [Spanned<TestStep>]) -> Result<(), PlacedProblem> {
        let base = self.now;
        for Spanned { value: step, referenced: place, .. } in steps {
            let after = step.after.unwrap_or_default().0;
            let mut begins = step.at.map_or(self.now + after, |Time(at)| base + at);
            let times = step.repeat.or(step.times).unwrap_or(1);
            for iteration in 1..=times {
                if begins < self.now {
                    let (begins, now) = (shown(begins), shown(self.now));
                    return Err((
                        *place,
                        format!("must not go back in time, from {now} to {begins}"),
                    ));
                }
                if begins > Time::MAX {
                    return Err((*place, "must end within 36500d of the start".to_owned()));
                }
                self.now = begins;
                match &step.request {
                    Some(request) => {
                        if self.number > MAX_REQUESTS {
                            return Ok(());
                        }
                        let (number, iteration) = (self.number, (iteration, times));
                        (self.visit)(PlannedRequest {
                            number,
                            at: begins,
                            step: request,
                            iteration,
                        });
                        self.number += 1;
                    }
                    None => self.run(&step.steps)?,
                }
                begins = step.every.map_or(self.now, |Time(every)| begins + every);
            }
        }
        Ok(())
    }
}
