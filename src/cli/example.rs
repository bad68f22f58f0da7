//! `rlaas config --example`: prints a configuration file with every setting at its default.
//!
//! Settings without a default, and items of lists, are commented out.

use std::iter;

use crate::config::{Kind, SettingReference, reference};

const HEADER: &str = "\
# All settings with their defaults. Every setting is optional: write only what you change.
# Printed by `rlaas config --example`; docs/reference/settings.md has the same as tables, and
# `rlaas schema config` prints what editors check it by.
#
# Order of precedence: defaults < files in order < environment < command line.
# Environment: RLAAS_ and the key, with __ between levels and _ for -, such as
# RLAAS_STORE__REDIS__KEY_PREFIX=shop. REDIS_URL alone selects the Redis store.
# In the environment and on the command line lists and sections are YAML, such as
# RLAAS_ENVOY__FILES='[a.yaml, b.yaml]'; other values are plain strings.
# Durations: 250ms, 30s, 5m, 1h, 1d; a number without a unit is in seconds.
";
/// Maximum width of a line.
const WIDTH: usize = 100;
/// Width of a level.
const INDENT: usize = 2;

/// Returns the whole file.
pub(super) fn configuration() -> String {
    let settings = reference();
    let mut file = File { lines: HEADER.to_owned(), at_item: false };
    for setting in &settings {
        if !setting.path.contains(['.', '[']) {
            file.lines.push('\n');
        }
        file.push(setting, commented_from(setting, &settings));
    }
    file.lines
}

/// Returns the level from which a setting is commented out: its own if it has no default, that of the
/// list whose item it is in, or that of a section in which nothing has a default.
fn commented_from(setting: &SettingReference, all: &[SettingReference]) -> Option<usize> {
    if let Some((list, _)) = setting.path.split_once("[]") {
        return Some(level(list));
    }
    let has_default = |path: &str| {
        let is_within = |other: &&SettingReference| {
            let rest = other.path.strip_prefix(path);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        all.iter()
            .filter(is_within)
            .any(|other| other.default.is_some() || other.kind == Kind::List)
    };
    let parents = setting.path.match_indices('.').map(|(end, _)| &setting.path[..end]);
    parents.chain([setting.path.as_str()]).find(|path| !has_default(path)).map(level)
}

/// Returns the level of indentation: settings of an item are two levels below its list.
fn level(path: &str) -> usize {
    path.matches('.').count() + path.matches("[]").count()
}

/// The lines so far.
struct File {
    lines: String,
    /// The next setting begins an item of a list.
    at_item: bool,
}

impl File {
    fn push(&mut self, setting: &SettingReference, commented: Option<usize>) {
        let SettingReference { path, kind, about, must_be, default, example, .. } = setting;
        let level = level(path);
        let key = path.rsplit('.').next().unwrap_or_default();
        let text = match kind {
            Kind::Value => format!("{about} Must be {must_be}."),
            Kind::Section | Kind::List => (*about).to_owned(),
        };
        // Where the comment mark begins it is not doubled.
        let marked = commented.filter(|from| *from < level);
        for line in wrapped(&text, WIDTH - INDENT * (level + 2)) {
            self.push_line(level, marked, &format!("# {line}"));
        }
        let value = default.as_deref().or(*example);
        match (kind, value) {
            (Kind::Value, Some(value)) => {
                self.push_key(level, commented, &format!("{key}: {value}"));
            }
            // An alternative to another setting.
            (Kind::Value, None) => self.push_line(level, commented, &format!("# {key}: …")),
            (Kind::Section, _) => self.push_key(level, commented, &format!("{key}:")),
            (Kind::List, _) => {
                if commented.is_none() {
                    self.push_line(level, None, &format!("{key}: []"));
                }
                self.push_key(level, commented.or(Some(level)), &format!("{key}:"));
                self.at_item = true;
            }
        }
    }

    /// Adds a line with a key, with a dash if it is the first of its item.
    fn push_key(&mut self, level: usize, commented: Option<usize>, text: &str) {
        if std::mem::take(&mut self.at_item) {
            self.push_line(level - 1, commented, &format!("- {text}"));
        } else {
            self.push_line(level, commented, text);
        }
    }

    fn push_line(&mut self, level: usize, commented: Option<usize>, text: &str) {
        let outside = commented.unwrap_or(level).min(level);
        let mark = if commented.is_some() { "# " } else { "" };
        let spaces = |levels: usize| iter::repeat_n(' ', levels * INDENT);
        self.lines.extend(spaces(outside));
        self.lines.push_str(mark);
        self.lines.extend(spaces(level - outside));
        self.lines.push_str(text);
        self.lines.push('\n');
    }
}

/// Splits a text into lines of up to `width` characters.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
