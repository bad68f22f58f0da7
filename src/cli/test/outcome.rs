//! What the limiter answered to one request of a step.

use futures_util::FutureExt;
use rlaas_limiter::{CheckError, Limiter, RuleDecision, Verdict};
use smallvec::SmallVec;
use thiserror::Error;

use super::request::StepRequest;
use rlaas_proto::values::check_request;

use crate::api::{check_status, code_name, envoy};
use crate::clock::Deadline;

/// A decided request.
#[derive(Debug)]
pub(super) struct DecidedStep {
    pub(super) verdict: Verdict,
    /// For each descriptor, the position of its decision.
    statuses: Vec<Option<usize>>,
}

/// The reason why a request was not decided.
#[derive(Debug, Error)]
#[error("{code}: {message}")]
pub(super) struct StepError {
    /// Name of the code, or `NO_RULE`.
    pub(super) code: &'static str,
    /// Begins with the field if one is not valid.
    message: String,
}

impl StepError {
    fn invalid(error: &impl ToString) -> Self {
        Self { code: "INVALID_ARGUMENT", message: error.to_string() }
    }

    fn failed(error: &CheckError) -> Self {
        let status = check_status(error);
        let code = match error {
            CheckError::NoRule => "NO_RULE",
            _ => code_name(status.code()),
        };
        Self { code, message: status.message().to_owned() }
    }
}

impl DecidedStep {
    /// Decides a request by the clock of the limiter's memory store.
    ///
    /// # Errors
    ///
    /// [`StepError`] if the request is not valid, or no rule matches and `unmatched` is `deny`.
    pub(super) fn decide(limiter: &Limiter, request: &StepRequest) -> Result<Self, StepError> {
        match request {
            StepRequest::Check(request) => {
                let request = check_request(request).map_err(|error| StepError::invalid(&error))?;
                let decided = limiter.check_now(&request).expect("memory never waits");
                let verdict = decided.map_err(|error| StepError::failed(&error))?;
                Ok(Self { verdict, statuses: Vec::new() })
            }
            StepRequest::Descriptors(request) => {
                let request = envoy::parse(request).map_err(|error| StepError::invalid(&error))?;
                let decided = limiter.check_descriptors(&request, Deadline::NEVER).now_or_never();
                let decided = decided.expect("memory never waits");
                let answers = decided.map_err(|error| StepError::failed(&error))?.answers;
                let answers = answers.into_iter().map(|answer| answer.map(|answer| answer.decided));
                Ok(Self::from_answers(answers))
            }
        }
    }

    fn from_answers(answers: impl Iterator<Item = Option<RuleDecision>>) -> Self {
        let mut decisions: SmallVec<[RuleDecision; 1]> = SmallVec::new();
        let statuses = answers.map(|decided| {
            decisions.push(decided?);
            Some(decisions.len() - 1)
        });
        let statuses = statuses.collect();
        let verdict = if decisions.is_empty() {
            Verdict::unmatched()
        } else {
            Verdict::from_decisions(decisions)
        };
        Self { verdict, statuses }
    }

    /// Returns the names of the rules that match, sorted.
    pub(super) fn matched(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.verdict.decisions.iter().map(|decided| decided.rule.to_string()).collect();
        names.sort();
        names
    }

    /// Returns the deciding decision.
    pub(super) fn deciding(&self) -> Option<&RuleDecision> {
        self.verdict.deciding_position().map(|at| &self.verdict.decisions[at])
    }

    /// Returns the decision of a rule. Several descriptors may match one rule: the first counts.
    pub(super) fn of_rule(&self, name: &str) -> Option<&RuleDecision> {
        self.verdict.decisions.iter().find(|decided| *decided.rule == *name)
    }

    /// Returns the decision on a descriptor.
    pub(super) fn status(&self, at: usize) -> Option<&RuleDecision> {
        let decided = (*self.statuses.get(at)?)?;
        self.verdict.decisions.get(decided)
    }
}
