//! Fields of a test file, and all problems with them.

use std::cell::RefCell;
use std::fmt;

use super::yaml::{YamlNode, YamlValue};

/// Minimum Jaro-Winkler similarity at which a known name is suggested for an unknown one.
const MIN_SIMILARITY: f64 = 0.75;
/// Problems of a file that are shown.
const MAX_PROBLEMS: usize = 100;

/// The problems of one file.
#[derive(Debug)]
pub(super) struct FileProblems {
    file: String,
    found: RefCell<Vec<FileProblem>>,
}

/// One problem and where it is.
#[derive(Clone, Debug)]
struct FileProblem {
    line: u64,
    column: u64,
    text: String,
}

impl FileProblems {
    pub(super) fn new(file: &str) -> Self {
        Self { file: file.to_owned(), found: RefCell::default() }
    }

    pub(super) fn count(&self) -> usize {
        self.found.borrow().len()
    }
}

impl fmt::Display for FileProblems {
    /// Shows one line for each problem, in the order of the file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut found = self.found.borrow().clone();
        found.sort_by_key(|problem| (problem.line, problem.column));
        for FileProblem { line, column, text } in found.iter().take(MAX_PROBLEMS) {
            writeln!(f, "{}:{line}:{column}: {text}", self.file)?;
        }
        match found.len().saturating_sub(MAX_PROBLEMS) {
            0 => Ok(()),
            more => writeln!(f, "{}: … and {more} more", self.file),
        }
    }
}

/// A value of the file with its path, such as `cases[0].steps[2].at`.
#[derive(Clone, Debug)]
pub(super) struct FileValue<'a> {
    pub(super) node: &'a YamlNode,
    pub(super) path: String,
    problems: &'a FileProblems,
}

impl<'a> FileValue<'a> {
    /// Returns the value of the whole file.
    pub(super) fn root(node: &'a YamlNode, problems: &'a FileProblems) -> Self {
        Self { node, path: String::new(), problems }
    }

    /// Adds a problem with this value. `text` says what it must be.
    pub(super) fn refuse(&self, text: impl fmt::Display) {
        let YamlNode { line, column, .. } = *self.node;
        let text =
            if self.path.is_empty() { text.to_string() } else { format!("{}: {text}", self.path) };
        self.problems.found.borrow_mut().push(FileProblem { line, column, text });
    }

    /// Returns the number of problems of the file so far.
    pub(super) fn problem_count(&self) -> usize {
        self.problems.count()
    }

    /// Reads a scalar with `read`, whose error says what the value must be.
    pub(super) fn read<T, E: fmt::Display>(
        &self,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let Some(text) = self.node.scalar() else {
            self.refuse("must be a single value");
            return None;
        };
        read(text).map_err(|error| self.refuse(error)).ok()
    }

    /// Reads a text.
    pub(super) fn text(&self) -> Option<String> {
        self.read(|text| Ok::<_, &str>(text.to_owned()))
    }

    /// Returns `true` for a map.
    pub(super) fn is_map(&self) -> bool {
        matches!(self.node.value, YamlValue::Fields(_))
    }

    /// Returns the items of a list.
    pub(super) fn items(&self) -> Option<Vec<Self>> {
        let YamlValue::Items(items) = &self.node.value else {
            self.refuse("must be a list");
            return None;
        };
        let items = items.iter().enumerate();
        Some(items.map(|(at, node)| self.below(node, &format!("[{at}]"))).collect())
    }

    /// Returns the items of a list, or the single value.
    pub(super) fn one_or_items(&self) -> Vec<Self> {
        match &self.node.value {
            YamlValue::Items(_) => self.items().unwrap_or_default(),
            _ => vec![self.clone()],
        }
    }

    /// Returns names and values of a map whose names are data.
    pub(super) fn entries(&self) -> Option<Vec<(&'a str, Self)>> {
        let YamlValue::Fields(fields) = &self.node.value else {
            self.refuse("must be a map");
            return None;
        };
        let entry = |(key, value): &'a (YamlNode, YamlNode)| {
            let name = key.scalar().unwrap_or_default();
            (name, self.below(value, &format!(".{name}")))
        };
        Some(fields.iter().map(entry).collect())
    }

    /// Returns the fields of a map. Every field must be [read](Fields::take) or is unknown.
    pub(super) fn fields(&self) -> Option<Fields<'a>> {
        let entries = self.entries()?;
        Some(Fields { at: self.clone(), entries, known: Vec::new() })
    }

    fn below(&self, node: &'a YamlNode, path: &str) -> Self {
        let path = format!("{}{path}", self.path);
        let path = path.strip_prefix('.').map(str::to_owned).unwrap_or(path);
        Self { node, path, problems: self.problems }
    }
}

/// The fields of a map.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    /// The map.
    pub(super) at: FileValue<'a>,
    entries: Vec<(&'a str, FileValue<'a>)>,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// Returns a field; `None` if it is absent or null.
    pub(super) fn take(&mut self, name: &'static str) -> Option<FileValue<'a>> {
        self.known.push(name);
        let (_, value) = self.entries.iter().find(|(other, _)| *other == name)?;
        (!matches!(value.node.value, YamlValue::Null)).then(|| value.clone())
    }

    /// Returns a field that must be given.
    pub(super) fn require(&mut self, name: &'static str) -> Option<FileValue<'a>> {
        let value = self.take(name);
        if value.is_none() {
            self.at.refuse(format!("{name} is missing"));
        }
        value
    }

    /// Adds a problem for each unknown field.
    pub(super) fn close(self) {
        for (name, value) in &self.entries {
            if !self.known.contains(name) {
                let suggestion = nearest(name, self.known.iter().copied());
                value.refuse(format!("unknown field{}", did_you_mean(suggestion)));
            }
        }
    }
}

/// Returns the known name that is most like another one.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.map(|known| (strsim::jaro_winkler(known, name), known));
    let nearest = near.max_by(|(one, _), (other, _)| one.total_cmp(other));
    nearest.filter(|(similarity, _)| *similarity >= MIN_SIMILARITY).map(|(_, known)| known)
}

/// Returns the end of a message about an unknown name.
pub(super) fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |known| format!(", did you mean {known}?"))
}
