//! What the limiter answered to one request of a step.

use futures_util::FutureExt;
use rlaas_limiter::{CheckError, Limiter, RuleDecision, Verdict};
use smallvec::SmallVec;

use super::decision::{DecisionField, FieldValue};
use super::request::{StepRequest, parse_check};
use crate::api::envoy;
use crate::api::{check_status, code_name, rule_decision};
use crate::clock::Deadline;

/// The answer to a request.
#[derive(Debug)]
pub(super) enum StepOutcome {
    /// It was decided.
    Decided(DecidedStep),
    /// It was not.
    Failed {
        /// Name of the code, or `NO_RULE`.
        code: &'static str,
        /// The message, which begins with the field if one is not valid.
        message: String,
    },
}

/// A decided request.
#[derive(Debug)]
pub(super) struct DecidedStep {
    pub(super) verdict: Verdict,
    /// For each descriptor, the position of its decision.
    statuses: SmallVec<[Option<usize>; 1]>,
}

impl StepOutcome {
    /// Decides a request by the clock of the limiter's memory store.
    pub(super) fn decide(limiter: &Limiter, request: &StepRequest) -> Self {
        match request {
            StepRequest::Check(request) => {
                let request = match parse_check(request) {
                    Ok(request) => request,
                    Err(error) => return Self::invalid(&error),
                };
                let decided = limiter.check_now(&request).expect("memory never waits");
                decided.map_or_else(
                    |error| Self::failed(&error),
                    |verdict| Self::Decided(DecidedStep { verdict, statuses: SmallVec::new() }),
                )
            }
            StepRequest::Descriptors(request) => {
                let request = match envoy::parse(request) {
                    Ok(request) => request,
                    Err(error) => return Self::invalid(&error),
                };
                let decided = limiter.check_descriptors(&request, Deadline::NEVER).now_or_never();
                let decided = decided.expect("memory never waits");
                decided.map_or_else(
                    |error| Self::failed(&error),
                    |answered| {
                        let answers = answered.answers.into_iter();
                        Self::Decided(DecidedStep::from_answers(
                            answers.map(|answer| answer.map(|answer| answer.decided)),
                        ))
                    },
                )
            }
        }
    }

    fn invalid(error: &impl ToString) -> Self {
        Self::Failed { code: "INVALID_ARGUMENT", message: error.to_string() }
    }

    fn failed(error: &CheckError) -> Self {
        let status = check_status(error);
        let code = match error {
            CheckError::NoRule => "NO_RULE",
            _ => code_name(status.code()),
        };
        Self::Failed { code, message: status.message().to_owned() }
    }
}

impl DecidedStep {
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

    /// Returns a field of the deciding rule.
    pub(super) fn deciding(&self, field: DecisionField) -> FieldValue {
        match self.verdict.deciding_position() {
            Some(at) => field.observe(&rule_decision(&self.verdict.decisions[at])),
            None if field == DecisionField::Reason => FieldValue::Word("NO_RULE".to_owned()),
            None => FieldValue::none(),
        }
    }

    /// Returns a field of a rule. Several descriptors may match one rule: the first counts.
    pub(super) fn of_rule(&self, name: &str, field: DecisionField) -> FieldValue {
        let decided = self.verdict.decisions.iter().find(|decided| *decided.rule == *name);
        decided.map_or_else(FieldValue::none, |decided| field.observe(&rule_decision(decided)))
    }

    /// Returns the code of a descriptor's status.
    pub(super) fn code(&self, at: usize) -> &'static str {
        match self.status(at) {
            Some(decided) if !envoy::passes(decided) => "OVER_LIMIT",
            _ => "OK",
        }
    }

    /// Returns a field of the rule that a descriptor matches.
    pub(super) fn of_status(&self, at: usize, field: DecisionField) -> FieldValue {
        let decided = self.status(at);
        decided.map_or_else(FieldValue::none, |decided| field.observe(&rule_decision(decided)))
    }

    fn status(&self, at: usize) -> Option<&RuleDecision> {
        let decided = (*self.statuses.get(at)?)?;
        self.verdict.decisions.get(decided)
    }
}
