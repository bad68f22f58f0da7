//! The merged values of all sources, and the results and problems of reading them. Secrets are masked.

use std::cell::RefCell;
use std::collections::BTreeMap;

use figment::Figment;
use figment::value::{Dict, Tag, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::key_lines::KeyLines;
use super::problem::{Notice, Problem, ProblemKind, Problems};
use super::section::Section;
use super::setting::{Declared, Effective, Takes};
use super::sources::{ROOT, Spellings, Texts};
use super::values::{self, Invalid, Read};
use super::{problem, yaml};
use crate::rules::spec::Field;

/// Most problems that are made: nobody reads more, and others decide how many there are.
const MAX_PROBLEMS: usize = 1_000;

/// The merged values of all sources, with the results and problems of reading them.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) figment: Figment,
    root: Dict,
    spellings: Spellings,
    texts: Texts,
    pub(super) problems: RefCell<Vec<Problem>>,
    pub(super) effective: RefCell<Vec<Effective>>,
    pub(super) notices: RefCell<Vec<Notice>>,
    pub(super) nulls: Nulls,
    /// The tag of the last source, for problems that have no value of their own.
    tag: Tag,
    /// The settings, in the order in which they are read; `None` except in a survey.
    pub(super) survey: Option<RefCell<Vec<Declared>>>,
}

/// The meaning of `key: null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nulls {
    /// A value, which most settings reject.
    Values,
    /// The same as an absent key.
    Unset,
}

impl Tree {
    pub(super) fn new(
        figment: Figment,
        spellings: Spellings,
        texts: Texts,
        problems: Vec<Problem>,
    ) -> Self {
        let root = figment.find_value(ROOT).ok();
        let tag = root.as_ref().map_or(Tag::Default, Value::tag);
        let root = root.and_then(Value::into_dict).unwrap_or_default();
        Self {
            figment,
            root,
            spellings,
            texts,
            problems: RefCell::new(problems),
            effective: RefCell::default(),
            notices: RefCell::default(),
            nulls: Nulls::Values,
            tag,
            survey: None,
        }
    }

    /// Creates a tree that records the settings read from it. Every list has one item, and every value is
    /// invalid, so each setting reports its valid values and then uses its default.
    pub(super) fn survey() -> Self {
        let tree = Self::new(Figment::new(), Spellings::new(), Texts::new(), Vec::new());
        Self { survey: Some(RefCell::default()), ..tree }
    }

    /// Returns the settings of a survey, their problems, and their defaults.
    pub(super) fn surveyed(self) -> (Vec<Declared>, Vec<Problem>, Vec<Effective>) {
        let declared = self.survey.map(RefCell::into_inner).unwrap_or_default();
        (declared, self.problems.into_inner(), self.effective.into_inner())
    }

    /// Sets the meaning of `null`.
    pub(super) fn with_nulls(self, nulls: Nulls) -> Self {
        Self { nulls, ..self }
    }

    pub(super) fn root(&self) -> Section<'_> {
        Section::new(self, String::new(), Some(&self.root), self.tag)
    }

    /// Returns `true` if no problem was found so far.
    pub(super) fn is_valid(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    /// Returns the notices so far.
    pub(super) fn notices(&self) -> Vec<Notice> {
        self.notices.borrow().clone()
    }

    /// Returns the values in force, or all problems.
    pub(super) fn finish(self) -> Result<Vec<Effective>, Problems> {
        let mut problems = self.problems.into_inner();
        if problems.is_empty() {
            return Ok(self.effective.into_inner());
        }
        let lines: BTreeMap<&str, KeyLines> = self
            .texts
            .iter()
            .filter_map(|(origin, text)| Some((origin.as_str(), KeyLines::parse(text)?)))
            .collect();
        for problem in &mut problems {
            let line = || lines.get(&*problem.origin)?.line_of(&problem.key);
            problem.line = problem.line.or_else(line);
            problem.show_number_as_in(&self.texts);
        }
        // Sorted by line; problems of one line keep their order.
        problems.sort_by_cached_key(|problem| (problem.origin.clone(), problem.line));
        Err(Problems(problems))
    }

    pub(super) fn origin(&self, tag: Tag) -> String {
        let name = self.figment.get_metadata(tag).map(|metadata| metadata.name.to_string());
        name.unwrap_or_else(|| "default".to_owned())
    }

    /// Returns the original spelling of a canonical key, as far as the source has it.
    pub(super) fn spelling(&self, origin: &str, path: &str) -> String {
        let ends = path.rmatch_indices(['.', '[']).map(|(end, _)| end);
        let spelled = [path.len()].into_iter().chain(ends).find_map(|end| {
            let place = (origin.to_owned(), path[..end].to_owned());
            Some(self.spellings.get(&place)?.clone() + &path[end..])
        });
        spelled.unwrap_or_else(|| path.to_owned())
    }

    /// Reads a given value and records it as effective, or adds a problem.
    pub(super) fn read_value<T>(
        &self,
        path: &str,
        value: &Value,
        read: impl Fn(&Value) -> Read<T>,
    ) -> Option<T> {
        let result = self.read_as(path.to_owned(), self.origin(value.tag()), value, read);
        let refuse = |invalid: Invalid| {
            self.note_takes(path, invalid.takes.clone());
            self.refuse(value.tag(), path, invalid, Some(value));
        };
        result.map_err(refuse).ok()
    }

    /// Reads a value and records it as effective under `key`.
    pub(super) fn read_as<T>(
        &self,
        key: String,
        origin: String,
        value: &Value,
        read: impl Fn(&Value) -> Read<T>,
    ) -> Result<T, Invalid> {
        let (setting, shown) = read(value)?;
        let reads_back = yaml::reads_back(&shown, value, read);
        self.effective.borrow_mut().push(Effective { key, value: shown, origin, reads_back });
        Ok(setting)
    }

    /// Reads a value as a field of a specification, which reports its own problems when it is built.
    pub(super) fn read_field<T>(&self, key: String, value: &Value) -> Field<T>
    where
        Field<T>: DeserializeOwned + Serialize,
    {
        let result = self.read_as(key, self.origin(value.tag()), value, values::field);
        result.unwrap_or(Field::Unreadable)
    }

    /// Notes in a survey what a setting takes.
    pub(super) fn note_takes(&self, path: &str, takes: Option<Takes>) {
        let Some(survey) = &self.survey else { return };
        if let Some(declared) = survey.borrow_mut().iter_mut().find(|setting| setting.path == path)
        {
            declared.takes = takes;
        }
    }

    pub(super) fn refuse(
        &self,
        tag: Tag,
        path: &str,
        Invalid { text: valid, .. }: Invalid,
        given: Option<&Value>,
    ) {
        let origin = self.origin(tag);
        let key = self.spelling(&origin, path);
        let found = given.and_then(|value| shown(path, value));
        let hint = given.and_then(|value| problem::of_value(&valid, value));
        let must = valid.into_owned() + &hint.unwrap_or_default();
        self.add_problem(Problem::new(origin, key, ProblemKind::Invalid { must, found }));
    }

    /// Adds a problem, unless there are many.
    pub(super) fn add_problem(&self, problem: Problem) {
        let mut problems = self.problems.borrow_mut();
        if problems.len() < MAX_PROBLEMS {
            problems.push(problem);
        }
    }
}

/// Maximum number of characters shown of a value.
const MAX_SHOWN_CHARS: usize = 40;
/// Sections with secrets, or where a user may put one by mistake: a private key instead of its path.
const SECRET_SECTIONS: [&str; 7] = [
    "auth",
    "envoy.xds.headers",
    "envoy.xds.tls",
    "privacy.key-file",
    "server.tls",
    "store",
    "telemetry.otlp",
];
/// Keys in these sections that are never secret.
const PUBLIC_KEYS: [&str; 9] = [
    "store.backend",
    "store.memory.max-keys",
    "store.redis.max-in-flight",
    "store.redis.mode",
    "store.redis.timeout",
    "telemetry.otlp.metrics",
    "telemetry.otlp.metrics-interval",
    "telemetry.otlp.sample-ratio",
    "telemetry.otlp.traces",
];

/// Returns the value of a canonical key, or its type; `None` if it may be a secret. Values in `match`
/// may be secret as well: API keys.
fn shown(key: &str, value: &Value) -> Option<String> {
    let kind = match value {
        Value::Dict(..) => Some("a section"),
        Value::Array(..) => Some("a list"),
        Value::Empty(..) => Some("nothing"),
        _ => None,
    };
    if let Some(kind) = kind {
        return Some(kind.to_owned());
    }
    let text = values::scalar(value)?;
    let is_within = |section: &str| {
        let rest = key.strip_prefix(section);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let may_be_secret = (SECRET_SECTIONS.into_iter().any(is_within) && !PUBLIC_KEYS.contains(&key))
        || key.split('.').any(|part| part == "match")
        || text.contains("://")
        || text.contains('@')
        || text.contains('\n');
    if may_be_secret {
        return None;
    }
    let mut shown: String = text.chars().take(MAX_SHOWN_CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    let is_plain = !shown.is_empty() && !shown.contains(|c: char| c.is_control() || c == ' ');
    Some(if is_plain { shown } else { format!("{shown:?}") })
}
