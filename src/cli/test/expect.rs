//! Expectations of a step, and how an answer differs from them: expected and got, field by field.

use std::collections::BTreeMap;

use rlaas_limiter::RuleDecision;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::one_or::OneOr;
use super::outcome::{DecidedStep, StepError};
use super::request::StepRequest;
use super::rule_names::RuleNames;
use super::value::{NONE, Tolerance, Value};
use rlaas_proto::verdict_messages::rule_decision;

use crate::api::envoy;

/// Errors that a request can have without a server.
const ERRORS: [&str; 3] = ["INVALID_ARGUMENT", "NO_RULE", "FAILED_PRECONDITION"];

/// `expect` of a step.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ExpectFields {
    error: Option<String>,
    matched: Option<Vec<String>>,
    rules: BTreeMap<String, BTreeMap<String, String>>,
    statuses: Option<Vec<OneOr<BTreeMap<String, String>>>>,
    /// Of the request and of the deciding rule. Unknown ones are refused when values are parsed.
    #[serde(flatten)]
    fields: BTreeMap<String, OneOr<IgnoredAny>>,
}

/// What a step expects of its requests.
#[derive(Debug)]
pub(super) struct Expectation {
    /// Code of the error.
    error: Option<String>,
    fields: Vec<ExpectedField>,
}

#[derive(Debug)]
struct ExpectedField {
    subject: Subject,
    field: String,
    expected: Value,
}

/// What a field belongs to.
#[derive(Clone, Debug)]
enum Subject {
    /// The request, and the deciding rule.
    Request,
    /// All requests of a loop.
    Loop,
    /// A rule.
    Rule(String),
    /// A descriptor, by its position.
    Status(usize),
}

/// A field that is not as expected.
#[derive(Debug)]
pub(super) struct Difference {
    pub(super) field: String,
    pub(super) expected: String,
    pub(super) got: String,
}

/// The requests of a loop, at its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopEnd {
    pub(super) passed: u64,
    pub(super) all: u64,
}

impl Expectation {
    /// Reads `expect` of a step with this request: fields, or an outcome alone.
    ///
    /// # Errors
    ///
    /// The first field that can't be as it is, and why.
    pub(super) fn read(
        read: OneOr<ExpectFields>,
        request: &StepRequest,
        rules: &RuleNames,
    ) -> Result<Self, String> {
        let given = match read {
            OneOr::Other(fields) => fields,
            OneOr::One(word) => {
                let fields = [(word, OneOr::One("true".to_owned()))].into();
                ExpectFields { fields, ..ExpectFields::default() }
            }
        };
        let mut read = Self { error: given.error, fields: Vec::new() };
        for (field, value) in given.fields {
            let OneOr::One(text) = value else {
                return Err(format!("{field}: must be a single value"));
            };
            let is_outcome = ["allowed", "ok", "denied", "over_limit"].contains(&field.as_str());
            match text.parse::<u32>() {
                Ok(count) if is_outcome => {
                    read.push(Subject::Loop, field, Value::Units(count.into()));
                }
                _ if is_outcome => {
                    let value = Value::parse("allowed", text);
                    let value = value.map_err(|error| format!("{field}: {error}, or a count"))?;
                    read.push(Subject::Request, field, value);
                }
                _ => read.parse(Subject::Request, field, text, rules)?,
            }
        }
        if let Some(mut names) = given.matched {
            names.sort();
            names.iter().try_for_each(|name| rules.check(name))?;
            read.push(Subject::Request, "matched".to_owned(), Value::Names(names));
        }
        for (name, fields) in given.rules {
            rules.check(&name)?;
            for (field, text) in fields {
                read.parse(Subject::Rule(name.clone()), field, text, rules)?;
            }
        }
        if given
            .statuses
            .as_ref()
            .is_some_and(|statuses| Some(statuses.len()) != request.descriptors())
        {
            return Err("statuses: must have one entry for each descriptor".to_owned());
        }
        for (at, status) in given.statuses.into_iter().flatten().enumerate() {
            let fields = match status {
                OneOr::One(word) if word == NONE => [("rule".to_owned(), word)].into(),
                OneOr::One(code) => [("code".to_owned(), code)].into(),
                OneOr::Other(fields) => fields,
            };
            for (field, text) in fields {
                read.parse(Subject::Status(at), field, text, rules)?;
            }
        }
        match &read.error {
            Some(error) if !ERRORS.contains(&error.as_str()) => {
                Err(format!("error: must be one of {}", ERRORS.join(", ")))
            }
            Some(_) if !read.fields.is_empty() => {
                Err("error: must be alone: there is no decision then".to_owned())
            }
            _ => Ok(read),
        }
    }

    fn push(&mut self, subject: Subject, field: String, expected: Value) {
        self.fields.push(ExpectedField { subject, field, expected });
    }

    fn parse(
        &mut self,
        subject: Subject,
        field: String,
        text: String,
        rules: &RuleNames,
    ) -> Result<(), String> {
        let in_problem = |problem: String| format!("{}: {problem}", subject.label(&field));
        let is_known = match (&subject, field.as_str()) {
            (Subject::Request, "code" | "shadow") | (Subject::Rule(_), "code" | "rule") => false,
            (subject, "replayed" | "taken") => matches!(subject, Subject::Request),
            _ => true,
        };
        if !is_known {
            return Err(in_problem("unknown field".to_owned()));
        }
        if field == "rule" && text != NONE {
            rules.check(&text).map_err(in_problem)?;
        }
        let value = Value::parse(&field, text).map_err(in_problem)?;
        self.push(subject, field, value);
        Ok(())
    }

    /// Returns `true` if requests are expected to fail.
    pub(super) fn is_error(&self) -> bool {
        self.error.is_some()
    }

    /// Returns how the answer to one request differs.
    pub(super) fn differences(
        &self,
        answer: &Result<DecidedStep, StepError>,
        end: Option<LoopEnd>,
        tolerance: Tolerance,
    ) -> Vec<Difference> {
        let expected = self.error.as_deref();
        let got = match answer {
            Err(error) if Some(error.code) == expected => return Vec::new(),
            Err(error) => error.to_string(),
            Ok(decided) if expected.is_none() => {
                let fields = self.fields.iter();
                return fields
                    .filter_map(|field| field.difference(decided, end, tolerance))
                    .collect();
            }
            Ok(decided) if decided.verdict.is_allowed() => format!("{NONE}, allowed"),
            Ok(_) => format!("{NONE}, denied"),
        };
        vec![Difference::new("error".to_owned(), expected.unwrap_or(NONE), got)]
    }
}

impl ExpectedField {
    fn difference(
        &self,
        decided: &DecidedStep,
        end: Option<LoopEnd>,
        tolerance: Tolerance,
    ) -> Option<Difference> {
        let Self { subject, field, expected } = self;
        let (got, of_all) = match (subject, end) {
            (Subject::Loop, None) => return None,
            (Subject::Loop, Some(LoopEnd { passed, all })) => {
                let is_passing = field == "allowed" || field == "ok";
                let got = if is_passing { passed } else { all - passed };
                (Value::Units(i64::try_from(got).unwrap_or(i64::MAX)), format!(" of {all}"))
            }
            (subject, _) => (subject.observe(field, decided), String::new()),
        };
        (!tolerance.accepts(expected, &got)).then(|| {
            let (expected, got) = (format!("{expected}{of_all}"), format!("{got}{of_all}"));
            Difference::new(subject.label(field), &expected, got)
        })
    }
}

impl Difference {
    pub(super) fn new(field: String, expected: &str, got: String) -> Self {
        Self { field, expected: expected.to_owned(), got }
    }
}

impl Subject {
    fn label(&self, field: &str) -> String {
        match self {
            Self::Request | Self::Loop => field.to_owned(),
            Self::Rule(name) => format!("rules.{name}.{field}"),
            Self::Status(at) => format!("statuses[{at}].{field}"),
        }
    }

    fn observe(&self, field: &str, decided: &DecidedStep) -> Value {
        let of_rule = |decided: Option<&RuleDecision>| {
            let decided = decided.map(rule_decision);
            decided.map_or(Value::word(NONE), |decided| Value::observe(field, &decided))
        };
        match (self, field) {
            (Self::Rule(name), _) => of_rule(decided.of_rule(name)),
            (Self::Status(at), "code") => match decided.status(*at) {
                Some(status) if !envoy::passes(status) => Value::word("OVER_LIMIT"),
                _ => Value::word("OK"),
            },
            (Self::Status(at), _) => of_rule(decided.status(*at)),
            (_, "allowed" | "ok") => Value::Flag(decided.verdict.is_allowed()),
            (_, "denied" | "over_limit") => Value::Flag(!decided.verdict.is_allowed()),
            (_, "replayed") => Value::Flag(decided.verdict.replayed),
            (_, "taken") => Value::Units(decided.verdict.taken.unwrap_or_default().cast_signed()),
            (_, "matched") => Value::Names(decided.matched()),
            (_, "reason") if decided.deciding().is_none() => Value::word("NO_RULE"),
            _ => of_rule(decided.deciding()),
        }
    }
}
