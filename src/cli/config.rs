//! `rlaas config`: prints the effective configuration as YAML, with the origin of each value; or the
//! reference of all settings, or an example configuration.

use std::process::ExitCode;

use clap::Args;
use rlaas_cli::print;

use super::{ConfigurationArgs, example, load, reference};
use crate::config::Effective;

#[derive(Args, Debug)]
pub(super) struct ConfigArgs {
    #[command(flatten)]
    configuration: ConfigurationArgs,
    /// Print every setting with its values, default and variable, as Markdown
    #[arg(long, conflicts_with_all = ["config", "set"])]
    reference: bool,
    /// Print a commented configuration file with every setting at its default
    #[arg(long, conflicts_with_all = ["config", "set", "reference"])]
    example: bool,
}

pub(super) fn run(args: ConfigArgs, given: ConfigurationArgs) -> ExitCode {
    if args.reference {
        return print(&reference::settings());
    }
    if args.example {
        return print(&example::configuration());
    }
    match load(&given.with(args.configuration).sources()) {
        Ok(config) => {
            let projects = config.effective_in_projects.iter();
            let projects = projects.map(|(_, effective)| format!("---\n{}", as_yaml(effective)));
            print(&(as_yaml(&config.effective) + &projects.collect::<String>()))
        }
        Err(code) => code,
    }
}

fn as_yaml(effective: &[Effective]) -> String {
    let mut yaml = Yaml::default();
    for value in effective {
        let (sections, name) = value.path();
        yaml.open(&sections);
        // The name of a file may contain control characters.
        let origin = value.origin.replace(char::is_control, "?");
        yaml.push_line(&format!("{name}: {}  # {origin}", value.to_yaml()));
    }
    yaml.lines
}

/// Lines of YAML, and the sections that are open after the last one.
#[derive(Default)]
struct Yaml<'a> {
    lines: String,
    open: Vec<&'a str>,
    indent: usize,
    /// The next line begins an item of a list.
    at_item: bool,
}

impl<'a> Yaml<'a> {
    /// Opens the sections of `path` that are not open yet; `name[2]` is an item of a list.
    fn open(&mut self, path: &[&'a str]) {
        let shared = self.open.iter().zip(path).take_while(|(open, name)| open == name).count();
        self.open.truncate(shared);
        self.indent = self.open.iter().map(|section| levels(section)).sum();
        for section in &path[shared..] {
            match section.split_once('[') {
                Some((list, index)) => {
                    if index == "0]" {
                        self.push_line(&format!("{list}:"));
                    }
                    self.at_item = true;
                }
                None => self.push_line(&format!("{section}:")),
            }
            self.open.push(section);
            self.indent += levels(section);
        }
    }

    fn push_line(&mut self, line: &str) {
        let dash = usize::from(std::mem::take(&mut self.at_item));
        self.lines.push_str(&"  ".repeat(self.indent - dash));
        self.lines.push_str(if dash == 1 { "- " } else { "" });
        self.lines.push_str(line);
        self.lines.push('\n');
    }
}

/// Returns the levels of indentation: two for an item of a list.
fn levels(section: &str) -> usize {
    if section.contains('[') { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_open_once() {
        let line = |key: &str| Effective {
            key: key.to_owned(),
            value: "1".to_owned(),
            origin: "default".to_owned(),
            reads_back: true,
        };
        let keys = ["a.x", "a.b.y", "a.b.z", "c[0].x", "c[0].y", "c[1].d[0].x", "c[1].e"];
        let yaml = as_yaml(&keys.map(line)).replace("  # default", "");
        let expected = "a:\n  x: 1\n  b:\n    y: 1\n    z: 1\n\
                        c:\n  - x: 1\n    y: 1\n  - d:\n      - x: 1\n    e: 1\n";
        assert_eq!(yaml, expected);
    }
}
