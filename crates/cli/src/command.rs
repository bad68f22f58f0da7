//! Commands as rows of a table, each of which calls one method, read from `commands.yaml`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use clap::{ArgGroup, Args as _, Command};
use serde::Deserialize;

use crate::argument::{Argument, ids};
use crate::call::CallArgs;
use crate::output::ColumnSpec;

/// All tables.
static DOCUMENT: LazyLock<Document> = LazyLock::new(|| {
    serde_saphyr::from_str(include_str!("commands.yaml")).expect("a document that a test reads")
});

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    /// Arguments that several commands have.
    shared: BTreeMap<String, Vec<Argument>>,
    tables: BTreeMap<String, Vec<ColumnSpec>>,
    /// Commands that have others below them, besides `rule`.
    groups: BTreeMap<String, String>,
    /// Commands below a group, or below the program, in the order of the help.
    order: BTreeMap<String, Vec<String>>,
    commands: Vec<CommandSpec>,
}

/// A command that calls a method.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandSpec {
    /// Such as `key create`.
    pub(crate) words: String,
    #[serde(default)]
    about: String,
    /// The usage, if it is not the one that clap makes.
    usage: Option<String>,
    /// The method after the package, such as `ProjectService.CreateKey`.
    pub(crate) method: String,
    #[serde(default)]
    arguments: Vec<ArgumentEntry>,
    /// Defaults of shared arguments.
    #[serde(default)]
    defaults: BTreeMap<String, String>,
    /// Arguments of which at least one is required.
    #[serde(default)]
    any_of: Vec<String>,
    /// Arguments of which exactly one is required.
    #[serde(default)]
    one_of: Vec<String>,
    /// The question on a terminal. `{keys}` stands for the keys that the selector names, other names
    /// for arguments.
    pub(crate) question: Option<String>,
    /// The message whose given options are the update mask.
    pub(crate) masked: Option<String>,
    /// Values of fields that no argument sets.
    #[serde(default)]
    pub(crate) fixed: BTreeMap<String, String>,
    /// Conditions on which another command answers: see `invocation::holds`.
    #[serde(default)]
    pub(crate) instead: BTreeMap<String, String>,
    /// The field of the response with the rows of the table.
    pub(crate) rows: Option<String>,
    #[serde(default)]
    pub(crate) table: String,
    /// The line in place of a table without rows.
    pub(crate) none: Option<String>,
    /// The function that returns the lines in place of a table.
    #[serde(default)]
    pub(crate) lines: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ArgumentEntry {
    /// The name of shared arguments.
    Shared(String),
    Own(Box<Argument>),
}

impl CommandSpec {
    pub(crate) fn all_arguments(&'static self) -> impl Iterator<Item = &'static Argument> {
        self.arguments.iter().flat_map(|entry| match entry {
            ArgumentEntry::Shared(name) => DOCUMENT.shared[name].as_slice(),
            ArgumentEntry::Own(argument) => std::slice::from_ref(&**argument),
        })
    }

    fn to_clap(&'static self) -> Command {
        let name = self.words.rsplit(' ').next().unwrap_or_default();
        let mut command = Command::new(name).about(&*self.about);
        for argument in self.all_arguments() {
            command = command.arg(argument.to_clap(self.defaults.get(argument.id())));
        }
        for (id, names, may_be_several) in
            [("any", &self.any_of, true), ("one_of", &self.one_of, false)]
        {
            let group = ArgGroup::new(id).args(ids(names)).required(!names.is_empty());
            command = command.group(group.multiple(may_be_several));
        }
        command = CallArgs::augment_args(command).about(&*self.about);
        match &self.usage {
            Some(usage) => command.override_usage(usage),
            None => command,
        }
    }
}

/// Returns the command of these words.
pub(crate) fn find(words: &str) -> Option<&'static CommandSpec> {
    DOCUMENT.commands.iter().find(|spec| spec.words == words)
}

/// Returns the columns of a table.
pub(crate) fn columns(table: &str) -> &'static [ColumnSpec] {
    &DOCUMENT.tables[table]
}

/// Adds the commands below this one to it, or all to the program, which has no name.
pub fn add_commands(to: Command, under: &str) -> Command {
    let mut command = to;
    for spec in DOCUMENT.commands.iter().filter(|spec| !spec.about.is_empty()) {
        let group = spec.words.split_once(' ').map_or("", |(group, _)| group);
        if group == under {
            command = command.subcommand(spec.to_clap());
        }
    }
    if under.is_empty() {
        for (name, about) in &DOCUMENT.groups {
            let group = Command::new(&**name).about(&**about);
            let group = group.subcommand_required(true).arg_required_else_help(true);
            command = command.subcommand(add_commands(group, name));
        }
    }
    let Some(order) = DOCUMENT.order.get(under) else { return command };
    command.mut_subcommands(|below| {
        let place = order.iter().position(|name| *name == below.get_name());
        below.display_order(place.unwrap_or(order.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_name_methods_fields_and_functions_that_exist() {
        let program = add_commands(Command::new("rlaas"), "");
        program.subcommand(add_commands(Command::new("rule"), "rule")).debug_assert();
        for spec in &DOCUMENT.commands {
            crate::invocation::tests::check(spec);
        }
        for columns in DOCUMENT.tables.values().flatten() {
            let _known = columns.show();
        }
    }
}
