//! Reads the merged values section by section, and collects all problems.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use figment::Source;
use figment::value::{Dict, Empty, Tag, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::problem::{Notice, Problem, ProblemKind};
use super::removed::{RemovedKind, instead_of};
use super::setting::{Declared, Effective, Kind, Setting, Takes};
use super::sources::{join, without_urls};
use super::tree::{Nulls, Tree};
use super::values::{self, Invalid, Read};
use super::{problem, removed, yaml};
use crate::rules::spec::{self, Field, FieldKind, RuleField};

/// Keys that rules have, and the files of GoRL at their top.
const KEYS_OF_RULES: [&str; 4] = ["endpoint", "key-by", "resources", "strategy"];
const WRITE_RULES: &str = "is no key of the service: write a list, one rule for each resource, such as rules: \
                           [{endpoint: /login, strategy: token_bucket, limit: 5, window: 60s}]";

/// The values below one key.
#[derive(Debug)]
pub(super) struct Section<'a> {
    tree: &'a Tree,
    /// The canonical key of the section; empty for the root.
    path: String,
    dict: Option<&'a Dict>,
    /// The tag of the source, for a section without values.
    tag: Tag,
    /// The keys that were read: all others are unknown.
    known: Vec<&'static str>,
    /// The number of problems before this section.
    problems_before: usize,
}

impl<'a> Section<'a> {
    pub(super) fn new(tree: &'a Tree, path: String, dict: Option<&'a Dict>, tag: Tag) -> Self {
        let problems_before = tree.problems.borrow().len();
        Self { tree, path, dict, tag, known: Vec::new(), problems_before }
    }

    /// Returns the section below a key; an empty one if it is absent.
    pub(super) fn section(&mut self, setting: Setting) -> Section<'a> {
        let key = self.declare(setting, Kind::Section);
        let path = self.join(key);
        let given = self.dict.and_then(|dict| dict.get(key));
        let tag = given.map_or_else(|| self.nearest_tag(key), tag_of);
        let dict = match given {
            Some(Value::Dict(_, dict)) => Some(dict),
            Some(Value::Empty(..)) | None => None,
            Some(other) => {
                let invalid = Invalid::new("must be a section with keys of its own");
                self.tree.refuse(tag_of(other), &path, invalid, Some(other));
                None
            }
        };
        Section::new(self.tree, path, dict, tag)
    }

    /// Reads a setting, or `default`, which must be valid.
    pub(super) fn read<T>(
        &mut self,
        setting: Setting,
        default: &str,
        read: impl Fn(&Value) -> Read<T>,
    ) -> T {
        self.optional(setting, &read).unwrap_or_else(|| {
            let (key, origin) = (self.join(setting.key), "default".to_owned());
            let result = self.tree.read_as(key, origin, &Value::from(default), &read);
            result.unwrap_or_else(|invalid| {
                unreachable!("the default {default:?} is not valid: {}", invalid.text)
            })
        })
    }

    /// Reads a setting as a field of a specification.
    pub(super) fn field<T>(&mut self, setting: Setting) -> Field<T>
    where
        Field<T>: DeserializeOwned + Serialize,
    {
        let key = self.declare(setting, Kind::Value);
        let given = self.value(key);
        given.map_or(Field::Unset, |given| self.tree.read_field(self.join(key), given))
    }

    /// Reads a field of rules, or its default. A value of the wrong type is empty.
    pub(super) fn value_of(&mut self, field: &RuleField, default: Option<&str>) -> Option<Value> {
        let FieldKind::Value(_, read) = field.kind else { return None };
        let key = self.declare(field.into(), Kind::Value);
        self.note_takes(field);
        let unreadable = || Value::Empty(Tag::Default, Empty::None);
        let read_as = |origin, value: &Value| {
            self.tree.read_as(self.join(key), origin, value, |value| values::value_of(value, read))
        };
        let given = self.value(key).map(|given| {
            let result = read_as(self.tree.origin(given.tag()), given);
            result.unwrap_or_else(|_| unreadable())
        });
        let default = default.filter(|_| given.is_none() || self.tree.survey.is_some());
        let default =
            default.and_then(|default| read_as("default".to_owned(), &Value::from(default)).ok());
        given.or(default)
    }

    /// Notes in a survey what a field of rules takes.
    pub(super) fn note_takes(&self, field: &RuleField) {
        if self.tree.survey.is_some() {
            self.tree.note_takes(&self.join(field.key), Takes::of_field(field));
        }
    }

    /// Every key and value as fields of a specification: the keys are data, which the setting
    /// describes by its own key.
    pub(super) fn fields<T>(&mut self, setting: Setting) -> BTreeMap<String, Field<T>>
    where
        Field<T>: DeserializeOwned + Serialize,
    {
        if let Some(survey) = &self.tree.survey {
            let field = self.field(setting);
            survey.borrow_mut().last_mut().expect("it was declared").is_name = true;
            return BTreeMap::from([(setting.key.to_owned(), field)]);
        }
        let entries = self.dict.take().into_iter().flatten();
        let fields = entries.map(|(key, value)| {
            (key.clone(), self.tree.read_field(self.join(&yaml::key(key)), value))
        });
        fields.collect()
    }

    /// Reads a setting. Returns `None` if it is absent or not valid.
    pub(super) fn optional<T>(
        &mut self,
        setting: Setting,
        read: impl Fn(&Value) -> Read<T>,
    ) -> Option<T> {
        let key = self.declare(setting, Kind::Value);
        let given = self.value(key)?;
        self.tree.read_value(&self.join(key), given, read)
    }

    /// Records a value in force that is to be completed: the default depends on other sections.
    pub(super) fn leave_open(&self, setting: Setting) {
        if self.tree.survey.is_none() {
            let (key, value, origin) = (self.join(setting.key), String::new(), String::new());
            let open = Effective { key, value, origin, reads_back: true };
            self.tree.effective.borrow_mut().push(open);
        }
    }

    /// Completes a value in force that was left open.
    pub(super) fn complete(&self, key: &str, value: &str, reason: &str) {
        let mut effective = self.tree.effective.borrow_mut();
        if let Some(open) = effective.iter_mut().find(|open| open.key == key) {
            value.clone_into(&mut open.value);
            open.origin = format!("default: {reason}");
        }
    }

    /// Reads a setting that must be given.
    pub(super) fn required<T>(
        &mut self,
        setting: Setting,
        read: impl Fn(&Value) -> Read<T>,
    ) -> Option<T> {
        if !self.has(setting.key) {
            self.refuse(setting.key, Invalid::new("missing"));
        }
        self.optional(setting, read)
    }

    /// Returns the sections of a list.
    pub(super) fn list(&mut self, setting: Setting) -> Vec<Section<'a>> {
        self.items(setting).into_iter().flatten().collect()
    }

    /// Returns the items of a list. An item that is not a section is `None` and adds a problem.
    pub(super) fn items(&mut self, setting: Setting) -> Vec<Option<Section<'a>>> {
        const LIST: Invalid = Invalid::new("must be a list of sections");
        const ITEM: Invalid = Invalid::new("must be a section");
        let key = self.declare(setting, Kind::List);
        let path = self.join(key);
        if self.tree.survey.is_some() {
            // A list within itself is surveyed once.
            let is_nested = self.path.split(['.', '[']).any(|part| part == key);
            let item = || Some(Section::new(self.tree, format!("{path}[0]"), None, self.tag));
            return (!is_nested).then(item).into_iter().collect();
        }
        let items = match self.dict.and_then(|dict| dict.get(key)) {
            Some(Value::Array(_, items)) => items.as_slice(),
            Some(Value::Empty(..)) | None => &[],
            Some(other) => {
                self.tree.refuse(tag_of(other), &path, LIST, Some(other));
                &[]
            }
        };
        let sections = items.iter().enumerate().map(|(index, item)| {
            let path = format!("{path}[{index}]");
            let dict = item.as_dict();
            if dict.is_none() {
                self.tree.refuse(tag_of(item), &path, ITEM, Some(item));
            }
            dict.map(|dict| Section::new(self.tree, path, Some(dict), tag_of(item)))
        });
        sections.collect()
    }

    /// Returns `true` if the section is given.
    pub(super) fn is_given(&self) -> bool {
        self.dict.is_some() || self.tree.survey.is_some()
    }

    /// Returns `true` if `key` is given.
    pub(super) fn has(&self, key: &str) -> bool {
        self.given(key).is_some()
    }

    /// Returns the key of a setting that is read, and makes it a known one.
    fn declare(&mut self, setting: Setting, kind: Kind) -> &'static str {
        self.known.push(setting.key);
        if let Some(survey) = &self.tree.survey {
            let path = self.join(setting.key);
            let mut declared = survey.borrow_mut();
            if declared.iter().all(|other| other.path != path) {
                declared.push(Declared { path, kind, setting, takes: None, is_name: false });
            }
        }
        setting.key
    }

    fn value(&self, key: &str) -> Option<&'a Value> {
        /// A value that no setting accepts.
        static NOTHING: Value = Value::Empty(Tag::Default, Empty::None);
        if self.tree.survey.is_some() { Some(&NOTHING) } else { self.given(key) }
    }

    fn given(&self, key: &str) -> Option<&'a Value> {
        let is_unset =
            |value: &Value| self.tree.nulls == Nulls::Unset && matches!(value, Value::Empty(..));
        self.dict?.get(key).filter(|value| !is_unset(value))
    }

    /// Returns the tag of `key`. For an absent key, the tag of a neighbour or of the section.
    fn nearest_tag(&self, key: &str) -> Tag {
        let near = self.dict.and_then(|dict| dict.get(key).or_else(|| dict.values().next()));
        near.map_or(self.tag, tag_of)
    }

    /// Returns the folder of the file that sets `key`, if a file does.
    pub(super) fn folder_of(&self, key: &str) -> Option<PathBuf> {
        let value = self.dict.and_then(|dict| dict.get(key))?;
        self.file_of(tag_of(value))?.parent().map(Path::to_owned)
    }

    /// Returns the path of the file that the section is from, as it was given. Empty if there is none.
    pub(super) fn file(&self) -> Arc<str> {
        let file = self.file_of(self.tag);
        file.map_or_else(Arc::default, |file| file.display().to_string().into())
    }

    /// Returns the path of the file that the value with a tag is from, if it is from one.
    fn file_of(&self, tag: Tag) -> Option<&Path> {
        self.tree.figment.get_metadata(tag)?.source.as_ref().and_then(Source::file_path)
    }

    /// Adds a problem with `key` that depends on other values.
    pub(super) fn refuse(&self, key: &str, invalid: impl Into<Invalid>) {
        if self.tree.survey.is_some() {
            return;
        }
        // An absent key is reported where the rest of the section is.
        let given = self.dict.and_then(|dict| dict.get(key));
        let is_collection = |value: &Value| matches!(value, Value::Dict(..) | Value::Array(..));
        let given = given.filter(|value| !is_collection(value));
        self.tree.refuse(self.nearest_tag(key), &self.join(key), invalid.into(), given);
    }

    /// Adds a problem for the value of a setting below, if it is given and not off.
    pub(super) fn refuse_given(&self, path: &str, must: &str) {
        let (given, tag) = find(self.dict, path, self.tag);
        if given.is_some_and(|value| !removed::is_off(value)) {
            self.tree.refuse(tag, &self.join(path), Invalid::from_text(must.to_owned()), None);
        }
    }

    /// Adds the problems of a specification that was read from this section. Skips a field if it, a part
    /// of it or an enclosing section has a problem already.
    pub(super) fn refuse_fields(&self, problems: Vec<spec::Problem>) {
        let reported: HashSet<(String, String)> = {
            let problems = self.tree.problems.borrow();
            let place = |problem: &Problem| (problem.origin.clone(), problem.key.clone());
            problems[self.problems_before..].iter().map(place).collect()
        };
        let parts = reported.iter();
        let parts =
            parts.flat_map(|(origin, key)| prefixes(key).map(move |part| (&**origin, part)));
        let parts: HashSet<(&str, &str)> = parts.collect();
        for spec::Problem { field, text } in problems {
            let (given, tag) = find(self.dict, &field, self.tag);
            let path = self.join(&field);
            let origin = self.tree.origin(tag);
            let key = self.tree.spelling(&origin, &path);
            let is_reported = |part: &str| reported.contains(&(origin.clone(), part.to_owned()));
            if !parts.contains(&(&*origin, &*key)) && !prefixes(&key).any(is_reported) {
                self.tree.refuse(tag, &path, Invalid::from_text(text), given);
            }
        }
    }

    /// Adds a notice: the value of `key` is valid but has less effect than written.
    pub(super) fn warn(&self, key: &str, text: impl Into<Cow<'static, str>>) {
        let origin = self.tree.origin(self.nearest_tag(key));
        let key = self.tree.spelling(&origin, &self.join(key));
        self.add_notice(Notice { origin, key, others: 0, text: text.into() });
    }

    /// Adds a notice of another file.
    pub(super) fn add_notice(&self, notice: Notice) {
        notice.add_to(&mut self.tree.notices.borrow_mut());
    }

    /// Adds a problem of another file.
    pub(super) fn add_problem(&self, problem: Problem) {
        self.tree.add_problem(problem);
    }

    /// Returns `true` if this section has had no problem so far.
    pub(super) fn is_valid(&self) -> bool {
        self.tree.problems.borrow().len() == self.problems_before
    }

    /// Adds a problem for each unknown key, also if it was removed.
    pub(super) fn close(self) {
        for (key, value) in self.dict.into_iter().flatten() {
            if self.known.contains(&key.as_str()) {
                continue;
            }
            let (origin, path) = (self.tree.origin(tag_of(value)), self.join(key));
            let key = self.tree.spelling(&origin, &path);
            let unknown = if let Some(instead) = instead_of(RemovedKind::Setting, &path) {
                Problem::new(origin, key, ProblemKind::Removed(instead))
            } else if KEYS_OF_RULES.contains(&&*path) {
                Problem::invalid(origin, key, WRITE_RULES.to_owned())
            } else {
                let last = key.rsplit('.').next().unwrap_or(&key);
                let nearest =
                    problem::nearest(self.known.iter().copied(), last, problem::SIMILAR_KEY);
                // As the file has it: in the joined list of rules the item may have another index.
                let section = self.tree.spelling(&origin, &self.path);
                let suggestion = nearest.map(|known| join(&section, known));
                Problem::new(origin, without_urls(&key), ProblemKind::UnknownKey(suggestion))
            };
            self.tree.add_problem(unknown);
        }
    }

    fn join(&self, key: &str) -> String {
        join(&self.path, key)
    }
}

/// Returns the value at a path such as `overrides[1].limit`, and its tag. Without a value, the tag of the
/// nearest one.
fn find<'a>(dict: Option<&'a Dict>, path: &str, near: Tag) -> (Option<&'a Value>, Tag) {
    let is_end = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
    let found = dict.into_iter().flatten().find_map(|(key, value)| {
        Some((value, path.strip_prefix(key.as_str()).filter(|rest| is_end(rest))?))
    });
    let Some((value, rest)) = found else {
        let first = dict.and_then(|dict| dict.values().next());
        return (None, first.map_or(near, tag_of));
    };
    let item = |items: &'a [Value]| {
        let (index, rest) = rest.strip_prefix('[')?.split_once(']')?;
        Some((items.get(index.parse::<usize>().ok()?)?, rest))
    };
    let (value, rest) = match value {
        Value::Array(_, items) => item(items).unwrap_or((value, rest)),
        value => (value, rest),
    };
    match rest.strip_prefix('.') {
        Some(below) => find(value.as_dict(), below, tag_of(value)),
        None => (Some(value).filter(|_| rest.is_empty()), tag_of(value)),
    }
}

/// Returns the prefixes of a path, and the path itself: `a`, `a.b`, `a.b[0]`.
fn prefixes(key: &str) -> impl Iterator<Item = &str> {
    let ends = key.match_indices(['.', '[']).map(|(end, _)| end).chain([key.len()]);
    ends.map(|end| &key[..end])
}

/// Returns the tag of a value. For a dictionary it is that of its first value: its own tag is that of
/// the last source merged into it.
fn tag_of(value: &Value) -> Tag {
    match value {
        Value::Dict(_, dict) => dict.values().next().map_or(value.tag(), tag_of),
        value => value.tag(),
    }
}
