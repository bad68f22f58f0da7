//! Steps: when they happen, how often, and what they expect.
//!
//! All times are known when the file is read, so a step that would go back in time is a problem of
//! the file, and so is a loop that is too long.

use super::decision::Tolerance;
use super::expect::Expectation;
use super::fields::{Fields, FileValue};
use super::request::{SharedRequest, StepRequest};
use super::rule_names::RuleNames;
use super::scalar::{self, MAX_TIME};
use crate::clock::Micros;

/// Levels of `repeat` within each other.
const MAX_LEVELS: usize = 8;
/// Most requests of a file.
pub(super) const MAX_REQUESTS: u64 = 10_000_000;

/// A step, or a list of them that is repeated.
#[derive(Clone, Debug)]
pub(super) struct TestStep {
    begins: StepBegin,
    times: u64,
    every: Option<Micros>,
    action: StepAction,
}

/// When a step begins.
#[derive(Clone, Copy, Debug)]
enum StepBegin {
    /// Since the case, or the round around it, began.
    At(Micros),
    /// Since the step before.
    After(Micros),
}

#[derive(Clone, Debug)]
enum StepAction {
    Request(Box<RequestStep>),
    Repeat(Vec<TestStep>),
}

/// A request, and what is expected of it.
#[derive(Clone, Debug)]
pub(super) struct RequestStep {
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

/// How long steps take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Schedule {
    /// From the beginning of the first to the last request.
    length: Micros,
    /// Number of requests.
    pub(super) requests: u64,
}

/// What the steps of a case have in common.
pub(super) struct StepContext<'a> {
    pub(super) shared: SharedRequest,
    pub(super) rules: &'a RuleNames,
}

/// Calls `visit` with each request of a case, in order.
pub(super) fn for_each_request<'a>(
    steps: &'a [TestStep],
    visit: &mut dyn FnMut(PlannedRequest<'a>),
) {
    run_steps(steps, Micros::ZERO, &mut 0, visit);
}

/// Returns the number of steps that make requests.
pub(super) fn request_steps(steps: &[TestStep]) -> usize {
    let of_step = |step: &TestStep| match &step.action {
        StepAction::Request(_) => 1,
        StepAction::Repeat(steps) => request_steps(steps),
    };
    steps.iter().map(of_step).sum()
}

/// Runs steps from `base` on; returns the time of the last request.
fn run_steps<'a>(
    steps: &'a [TestStep],
    base: Micros,
    number: &mut u64,
    visit: &mut dyn FnMut(PlannedRequest<'a>),
) -> Micros {
    let mut now = base;
    for TestStep { begins, times, every, action } in steps {
        let begin = begins.from(base, now);
        now = begin;
        let mut round = begin;
        for iteration in 1..=*times {
            now = match action {
                StepAction::Request(step) => {
                    let iteration = (iteration, *times);
                    visit(PlannedRequest { number: *number, at: round, step, iteration });
                    *number += 1;
                    round
                }
                StepAction::Repeat(steps) => run_steps(steps, round, number, visit),
            };
            round = every.map_or(now, |every| round + every);
        }
    }
    now
}

impl StepBegin {
    fn from(self, base: Micros, now: Micros) -> Micros {
        match self {
            Self::At(at) => base + at,
            Self::After(after) => now + after,
        }
    }
}

impl StepContext<'_> {
    /// Reads a list of steps.
    pub(super) fn read_steps(&self, list: &FileValue<'_>) -> (Vec<TestStep>, Schedule) {
        self.read_level(list, MAX_LEVELS)
    }

    fn read_level(&self, list: &FileValue<'_>, levels: usize) -> (Vec<TestStep>, Schedule) {
        let Some(items) = list.items() else { return (Vec::new(), Schedule::default()) };
        if items.is_empty() {
            list.refuse("must have at least one step");
        }
        let mut steps = Vec::with_capacity(items.len());
        let mut all = Schedule::default();
        for item in &items {
            if let Some(step) = self.read_step(item, levels, &mut all) {
                steps.push(step);
            }
        }
        (steps, all)
    }

    fn read_step(
        &self,
        value: &FileValue<'_>,
        levels: usize,
        all: &mut Schedule,
    ) -> Option<TestStep> {
        let mut fields = value.fields()?;
        let at = fields.take("at");
        let after = fields.take("after");
        let begins = match (&at, &after) {
            (Some(at), None) => at.read(scalar::duration).map(StepBegin::At),
            (None, Some(after)) => after.read(scalar::duration).map(StepBegin::After),
            (None, None) => Some(StepBegin::After(Micros::ZERO)),
            (Some(_), Some(after)) => {
                after.refuse("must not be given with at");
                None
            }
        };
        let every = fields.take("every");
        let interval = every.as_ref().map(|every| every.read(scalar::duration));
        let repeat = fields.take("repeat");
        let read = match &repeat {
            Some(repeat) => self.read_repeat(repeat, &mut fields, levels),
            None => self.read_request(value, &mut fields),
        };
        fields.close();
        let (times, action, once) = read?;
        let step = TestStep {
            begins: begins?,
            times,
            every: match interval {
                Some(interval) => Some(interval?),
                None => None,
            },
            action,
        };
        let begin = step.begins.from(Micros::ZERO, all.length);
        if begin < all.length {
            let place = at.as_ref().unwrap_or(value);
            place.refuse(format!(
                "must not be before {}, when the step before ends",
                scalar::shown(all.length)
            ));
        }
        if let (Some(interval), Some(every)) = (step.every, &every)
            && times > 1
            && interval < once.length
        {
            every.refuse(format!(
                "must be at least {}, which its steps take",
                scalar::shown(once.length)
            ));
        }
        let length = begin + step.length(once.length);
        if length > MAX_TIME {
            value.refuse("must end within 36500d of the start");
        }
        all.length = all.length.max(length);
        all.requests = all.requests.saturating_add(times.saturating_mul(once.requests));
        Some(step)
    }

    fn read_repeat(
        &self,
        repeat: &FileValue<'_>,
        fields: &mut Fields<'_>,
        levels: usize,
    ) -> Option<(u64, StepAction, Schedule)> {
        let times = repeat.read(times);
        let steps = fields.require("steps")?;
        let Some(levels) = levels.checked_sub(1) else {
            repeat.refuse(format!("must be at most {MAX_LEVELS} levels deep"));
            return None;
        };
        let (steps, once) = self.read_level(&steps, levels);
        Some((times?, StepAction::Repeat(steps), once))
    }

    fn read_request(
        &self,
        value: &FileValue<'_>,
        fields: &mut Fields<'_>,
    ) -> Option<(u64, StepAction, Schedule)> {
        let times = fields.take("times").map_or(Some(1), |value| value.read(times));
        let (check, descriptors) = (fields.take("check"), fields.take("descriptors"));
        let tolerance = fields.take("tolerance").and_then(|value| read_tolerance(&value));
        let expect = fields.take("expect");
        let before = value.problem_count();
        let Some(request) = self.shared.read_step(check.as_ref(), descriptors.as_ref()) else {
            if check.is_none() && descriptors.is_none() {
                value.refuse("check, descriptors or repeat is missing");
            }
            return None;
        };
        let is_read = value.problem_count() == before;
        let expectation = expect.map(|expect| Expectation::read(&expect, &request, self.rules));
        if is_read
            && !expectation.as_ref().is_some_and(Expectation::is_error)
            && let Some(invalid) = request.invalid()
        {
            check.as_ref().or(descriptors.as_ref()).unwrap_or(value).refuse(invalid);
        }
        let path = value.path.split_once('.').map_or(&*value.path, |(_, path)| path).to_owned();
        let step = RequestStep {
            path,
            line: value.node.line,
            request,
            expectation,
            tolerance: tolerance.unwrap_or_default(),
        };
        let once = Schedule { length: Micros::ZERO, requests: 1 };
        Some((times?, StepAction::Request(Box::new(step)), once))
    }
}

impl TestStep {
    /// Returns the time from the beginning to the last request, if one round takes `once`.
    fn length(&self, once: Micros) -> Micros {
        let again = |interval: Micros| {
            let micros = interval.as_micros().saturating_mul(self.times - 1);
            Micros::from_micros(micros) + once
        };
        again(self.every.unwrap_or(once))
    }
}

/// Reads a duration, a count, or both by name.
fn read_tolerance(value: &FileValue<'_>) -> Option<Tolerance> {
    if !value.is_map() {
        return value.read(tolerance);
    }
    let mut fields = value.fields()?;
    let duration = fields.take("duration").and_then(|value| value.read(scalar::duration));
    let count = fields.take("count").and_then(|value| {
        value.read(|text| text.parse().map_err(|_| "must be a whole number from 0"))
    });
    fields.close();
    Some(Tolerance { duration: duration.unwrap_or_default(), count: count.unwrap_or_default() })
}

/// Parses a duration or a count.
fn tolerance(text: &str) -> Result<Tolerance, &'static str> {
    if let Ok(count) = text.parse() {
        return Ok(Tolerance { count, ..Tolerance::default() });
    }
    let duration = scalar::duration(text)
        .map_err(|_| "must be a duration with a unit, a count, or a map of duration and count")?;
    Ok(Tolerance { duration, ..Tolerance::default() })
}

fn times(text: &str) -> Result<u64, String> {
    let times = text.parse().ok().filter(|times| (1..=MAX_REQUESTS).contains(times));
    times.ok_or_else(|| format!("must be a whole number from 1 to {MAX_REQUESTS}"))
}
