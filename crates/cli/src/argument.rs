//! The arguments of commands as rows of a table: how each is written, and which field of the request
//! it sets.

use clap::builder::{PossibleValuesParser, TypedValueParser, ValueParser};
use clap::{Arg, ArgAction};
use serde::Deserialize;

use crate::parse::{self, Input};

/// An argument of a command.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Argument {
    /// As usages write it: `<ID>`, `[ID]`, `--yes`, `--for <D>`, `--part <NAME=VALUE>...`, and
    /// `--key-by <PART>,...` if commas separate several values.
    syntax: String,
    /// Path of the field; empty for what the request does not have.
    #[serde(default)]
    pub(crate) field: String,
    /// It has no value.
    #[serde(default)]
    pub(crate) flag: bool,
    /// Least and largest number.
    number: Option<(u64, u64)>,
    /// Names, and what they stand for in the request.
    #[serde(default)]
    names: Vec<(String, String)>,
    /// Name of the function that parses the value.
    parser: Option<String>,
    help: String,
    #[serde(default)]
    required: bool,
    default: Option<String>,
    /// Another name of the option.
    alias: Option<String>,
    requires: Option<String>,
    #[serde(default)]
    conflicts: Vec<String>,
    /// It is required if another argument has one of these values.
    #[serde(default)]
    required_if: Vec<(String, String)>,
}

/// Returns names as clap takes them.
pub(crate) fn ids(names: &'static [String]) -> impl Iterator<Item = &'static str> {
    names.iter().map(String::as_str)
}

impl Argument {
    /// Returns the words of the syntax, without brackets: the option, its letter, its values.
    fn words(&self) -> impl Iterator<Item = &str> {
        let syntax = self.syntax.trim_end_matches("...").trim_end_matches(',');
        syntax.split(' ').map(|word| word.trim_matches(['<', '>', '[', ']']))
    }

    /// Returns the name by which clap knows the argument.
    pub(crate) fn id(&self) -> &str {
        self.words().next().unwrap_or_default().trim_start_matches('-')
    }

    pub(crate) fn is_option(&self) -> bool {
        self.syntax.starts_with('-')
    }

    /// Returns the argument for clap; `default` replaces its own.
    pub(crate) fn to_clap(&'static self, default: Option<&'static String>) -> Arg {
        let names: Vec<_> = self.words().filter(|word| !word.starts_with('-')).collect();
        let mut arg =
            Arg::new(self.id()).help(&*self.help).conflicts_with_all(ids(&self.conflicts));
        if self.is_option() {
            arg = arg.long(self.id()).required(self.required);
            let letter = self.words().find(|word| word.len() == 2 && word.starts_with('-'));
            if let Some(alias) = &self.alias {
                arg = arg.visible_alias(&**alias);
            }
            if let Some(letter) = letter.and_then(|letter| letter.chars().nth(1)) {
                arg = arg.short(letter);
            }
        } else {
            arg = arg.required(self.syntax.starts_with('<'));
        }
        if self.flag {
            return arg.action(ArgAction::SetTrue);
        }
        // The only values that begin with a hyphen: "-" is every project.
        arg = arg.value_parser(self.parser()).allow_hyphen_values(self.field == "project_id");
        if names.len() > 1 {
            arg = arg.num_args(2..);
        }
        arg = arg.value_names(names);
        if self.syntax.ends_with("...") {
            arg = arg.action(ArgAction::Append);
        }
        if self.syntax.ends_with(",...") {
            arg = arg.value_delimiter(',');
        }
        // What the help says by itself is not said again.
        if let Some(default) = default.or(self.default.as_ref()) {
            arg = arg
                .default_value(default.as_str())
                .hide_default_value(self.help.contains("[default"));
        }
        if self.names.iter().all(|(name, _)| self.help.contains(name)) {
            arg = arg.hide_possible_values(true);
        }
        if !self.required_if.is_empty() {
            let others = self.required_if.iter().map(|(id, value)| (id.as_str(), value.as_str()));
            arg = arg.required_if_eq_any(others);
        }
        match &self.requires {
            Some(other) => arg.requires(&**other),
            None => arg,
        }
    }

    fn parser(&'static self) -> ValueParser {
        if let Some((min, max)) = self.number {
            return clap::value_parser!(u64).range(min..=max).map(Input::Number).into();
        }
        if let Some(name) = &self.parser {
            return ValueParser::from(parse::by_name(name));
        }
        if self.names.is_empty() {
            return ValueParser::from(parse::text as parse::Parse);
        }
        let shown = PossibleValuesParser::new(self.names.iter().map(|(name, _)| name.as_str()));
        let stands_for = |given: String| {
            let found = self.names.iter().find(|(name, _)| *name == given);
            Input::Text(found.map_or(given, |(_, value)| value.clone()))
        };
        shown.map(stands_for).into()
    }
}
