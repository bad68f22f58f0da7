//! Expectations of a step, and how what was decided differs from them.

use super::decision::{DecisionField, FieldValue, NONE, Tolerance};
use super::fields::{FileValue, did_you_mean, nearest};
use super::outcome::{DecidedStep, StepOutcome};
use super::request::StepRequest;
use super::rule_names::RuleNames;
use super::scalar;

/// Words for a request that may pass, and one that may not.
const PASSES: [&str; 2] = ["allowed", "ok"];
const REFUSED: [&str; 2] = ["denied", "over_limit"];
/// Errors that a request can have without a server.
const ERRORS: [&str; 3] = ["INVALID_ARGUMENT", "NO_RULE", "FAILED_PRECONDITION"];

/// What a step expects.
#[derive(Clone, Debug, Default)]
pub(super) struct Expectation {
    /// Of each request of the step.
    each: Vec<ExpectedField>,
    /// Of all requests of the step together.
    pub(super) counts: Vec<ExpectedCount>,
    /// The error that each request has.
    error: Option<String>,
}

/// A field and its expected value.
#[derive(Clone, Debug)]
struct ExpectedField {
    subject: Subject,
    value: FieldValue,
}

/// The number of requests of a loop that pass, or do not.
#[derive(Clone, Debug)]
pub(super) struct ExpectedCount {
    word: &'static str,
    is_of_passing: bool,
    count: i64,
}

/// What a field belongs to.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// Whether the request passes, under this word.
    Passes(&'static str),
    /// Whether the request is refused, under this word.
    Refused(&'static str),
    /// Whether an earlier request with the same id took the units.
    Replayed,
    /// The rules that match.
    Matched,
    /// The deciding rule.
    Deciding(DecisionField),
    /// A rule.
    Rule(String, DecisionField),
    /// The code of a descriptor's status.
    Code(usize),
    /// The rule of a descriptor.
    Status(usize, DecisionField),
}

/// A field that is not as expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) field: String,
    pub(super) expected: String,
    pub(super) got: String,
}

impl Expectation {
    /// Reads `expect` of a step with this request.
    pub(super) fn read(value: &FileValue<'_>, request: &StepRequest, rules: &RuleNames) -> Self {
        let mut read = Self::default();
        if !value.is_map() {
            if let Some(subject) = value.read(outcome_word) {
                read.each.push(ExpectedField { subject, value: FieldValue::Flag(true) });
            }
            return read;
        }
        let Some(mut fields) = value.fields() else { return read };
        let words = PASSES.map(|word| (word, true)).into_iter();
        for (word, is_of_passing) in words.chain(REFUSED.map(|word| (word, false))) {
            if let Some(value) = fields.take(word) {
                read.read_outcome(&value, word, is_of_passing);
            }
        }
        read.error = fields.take("error").and_then(|value| value.read(error));
        if let Some(value) = fields.take("replayed").and_then(|value| value.read(scalar::flag)) {
            read.push(Subject::Replayed, FieldValue::Flag(value));
        }
        for field in DecisionField::ALL {
            if matches!(field, DecisionField::Allowed | DecisionField::Shadow) {
                continue;
            }
            if let Some(value) = fields.take(field.name()) {
                read.read_field(&value, field, rules, Subject::Deciding(field));
            }
        }
        if let Some(value) = fields.take("matched") {
            read.read_matched(&value, rules);
        }
        if let Some(value) = fields.take("rules") {
            read.read_rules(&value, rules);
        }
        if let Some(value) = fields.take("statuses") {
            read.read_statuses(&value, request, rules);
        }
        if read.error.is_some() && !(read.each.is_empty() && read.counts.is_empty()) {
            value.refuse("must have nothing beside error: there is no decision then");
        }
        fields.close();
        read
    }

    /// Returns `true` if requests are expected to fail.
    pub(super) fn is_error(&self) -> bool {
        self.error.is_some()
    }

    /// Returns how the outcome of one request differs.
    pub(super) fn differences(
        &self,
        outcome: &StepOutcome,
        tolerance: Tolerance,
    ) -> Vec<Difference> {
        let difference = |field: &str, expected: &str, got: String| {
            let (field, expected) = (field.to_owned(), expected.to_owned());
            vec![Difference { field, expected, got }]
        };
        match (outcome, &self.error) {
            (StepOutcome::Failed { code, .. }, Some(expected)) if code == expected => Vec::new(),
            (StepOutcome::Failed { code, message }, expected) => {
                let expected = expected.as_deref().unwrap_or(NONE);
                difference("error", expected, format!("{code}: {message}"))
            }
            (StepOutcome::Decided(decided), Some(expected)) => {
                let word = if decided.verdict.is_allowed() { PASSES[0] } else { REFUSED[0] };
                difference("error", expected, format!("{NONE}, {word}"))
            }
            (StepOutcome::Decided(decided), None) => self.differing_fields(decided, tolerance),
        }
    }

    fn differing_fields(&self, decided: &DecidedStep, tolerance: Tolerance) -> Vec<Difference> {
        let fields = self.each.iter().filter_map(|ExpectedField { subject, value }| {
            let got = subject.observe(decided);
            (!value.accepts(&got, tolerance)).then(|| Difference {
                field: subject.label(),
                expected: value.to_string(),
                got: got.to_string(),
            })
        });
        fields.collect()
    }

    fn push(&mut self, subject: Subject, value: FieldValue) {
        self.each.push(ExpectedField { subject, value });
    }

    /// Reads `allowed` and the like: `true` or `false` for each request, or a number for the loop.
    fn read_outcome(&mut self, value: &FileValue<'_>, word: &'static str, is_of_passing: bool) {
        enum FlagOrCount {
            Flag(bool),
            Count(i64),
        }
        let read = |text: &str| match (text.parse(), text.parse()) {
            (Ok(flag), _) => Ok(FlagOrCount::Flag(flag)),
            (_, Ok(count)) if count >= 0 => Ok(FlagOrCount::Count(count)),
            _ => Err("must be true or false, or how many requests of the loop"),
        };
        match value.read(read) {
            Some(FlagOrCount::Flag(flag)) => {
                let subject =
                    if is_of_passing { Subject::Passes(word) } else { Subject::Refused(word) };
                self.push(subject, FieldValue::Flag(flag));
            }
            Some(FlagOrCount::Count(count)) => {
                self.counts.push(ExpectedCount { word, is_of_passing, count });
            }
            None => {}
        }
    }

    fn read_field(
        &mut self,
        value: &FileValue<'_>,
        field: DecisionField,
        rules: &RuleNames,
        subject: Subject,
    ) {
        let Some(expected) = value.read(|text| field.parse(text)) else { return };
        if let (DecisionField::Rule, FieldValue::Word(name)) = (field, &expected)
            && name != NONE
        {
            check_rule(value, name, rules);
        }
        self.push(subject, expected);
    }

    fn read_matched(&mut self, value: &FileValue<'_>, rules: &RuleNames) {
        let items = value.items().unwrap_or_default();
        let mut names: Vec<String> = Vec::with_capacity(items.len());
        for item in &items {
            if let Some(name) = item.text() {
                check_rule(item, &name, rules);
                names.push(name);
            }
        }
        names.sort();
        self.push(Subject::Matched, FieldValue::Names(names));
    }

    fn read_rules(&mut self, value: &FileValue<'_>, rules: &RuleNames) {
        for (name, value) in value.entries().unwrap_or_default() {
            check_rule(&value, name, rules);
            let Some(mut fields) = value.fields() else { continue };
            for field in DecisionField::ALL {
                if field == DecisionField::Rule {
                    continue;
                }
                if let Some(value) = fields.take(field.name()) {
                    self.read_field(&value, field, rules, Subject::Rule(name.to_owned(), field));
                }
            }
            fields.close();
        }
    }

    fn read_statuses(&mut self, value: &FileValue<'_>, request: &StepRequest, rules: &RuleNames) {
        let StepRequest::Descriptors(request) = request else {
            return value.refuse("must not be given with check: only descriptors have statuses");
        };
        let items = value.items().unwrap_or_default();
        if items.len() != request.descriptors.len() {
            let wanted = request.descriptors.len();
            value.refuse(format!("must have an entry for each descriptor: {wanted}"));
        }
        for (at, item) in items.iter().enumerate() {
            if item.is_map() {
                self.read_status(item, at, rules);
            } else if let Some(word) = item.read(code) {
                let subject = match word {
                    NONE => Subject::Status(at, DecisionField::Rule),
                    _ => Subject::Code(at),
                };
                self.push(subject, FieldValue::Word(word.to_owned()));
            }
        }
    }

    fn read_status(&mut self, item: &FileValue<'_>, at: usize, rules: &RuleNames) {
        let Some(mut fields) = item.fields() else { return };
        if let Some(word) = fields.take("code").and_then(|value| value.read(code)) {
            self.push(Subject::Code(at), FieldValue::Word(word.to_owned()));
        }
        for field in DecisionField::ALL {
            if let Some(value) = fields.take(field.name()) {
                self.read_field(&value, field, rules, Subject::Status(at, field));
            }
        }
        fields.close();
    }
}

impl ExpectedCount {
    /// Returns how the numbers of a loop differ: of `passed` requests of `all`.
    pub(super) fn difference(
        &self,
        passed: u64,
        all: u64,
        tolerance: Tolerance,
    ) -> Option<Difference> {
        let got = if self.is_of_passing { passed } else { all - passed };
        let got = i64::try_from(got).unwrap_or(i64::MAX);
        (!tolerance.accepts_count(self.count, got)).then(|| Difference {
            field: self.word.to_owned(),
            expected: format!("{} of {all}", self.count),
            got: format!("{got} of {all}"),
        })
    }
}

impl Subject {
    fn label(&self) -> String {
        match self {
            Self::Passes(word) | Self::Refused(word) => (*word).to_owned(),
            Self::Replayed => "replayed".to_owned(),
            Self::Matched => "matched".to_owned(),
            Self::Deciding(field) => field.name().to_owned(),
            Self::Rule(name, field) => format!("rules.{name}.{}", field.name()),
            Self::Code(at) => format!("statuses[{at}].code"),
            Self::Status(at, field) => format!("statuses[{at}].{}", field.name()),
        }
    }

    fn observe(&self, decided: &DecidedStep) -> FieldValue {
        match self {
            Self::Passes(_) => FieldValue::Flag(decided.verdict.is_allowed()),
            Self::Refused(_) => FieldValue::Flag(!decided.verdict.is_allowed()),
            Self::Replayed => FieldValue::Flag(decided.verdict.replayed),
            Self::Matched => FieldValue::Names(decided.matched()),
            Self::Deciding(field) => decided.deciding(*field),
            Self::Rule(name, field) => decided.of_rule(name, *field),
            Self::Code(at) => FieldValue::Word(decided.code(*at).to_owned()),
            Self::Status(at, field) => decided.of_status(*at, *field),
        }
    }
}

fn outcome_word(text: &str) -> Result<Subject, &'static str> {
    let passes = PASSES.into_iter().find(|word| *word == text).map(Subject::Passes);
    let refused = REFUSED.into_iter().find(|word| *word == text).map(Subject::Refused);
    passes.or(refused).ok_or("must be allowed, denied, ok, over_limit, or a map of fields")
}

fn error(text: &str) -> Result<String, String> {
    if ERRORS.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(format!("must be one of {}", ERRORS.join(", ")))
}

fn code(text: &str) -> Result<&'static str, &'static str> {
    match text {
        "ok" | "OK" => Ok("OK"),
        "over_limit" | "OVER_LIMIT" => Ok("OVER_LIMIT"),
        NONE => Ok(NONE),
        _ => Err("must be ok, over_limit, none (no limit matches), or a map of fields"),
    }
}

/// Checks that a rule exists.
fn check_rule(value: &FileValue<'_>, name: &str, rules: &RuleNames) {
    if !rules.may_have(name) {
        let suggestion = did_you_mean(nearest(name, rules.names()));
        value.refuse(format!("no rule has this name{suggestion}"));
    }
}
