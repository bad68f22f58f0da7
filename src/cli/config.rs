//! `rlaas config`: the effective configuration, as YAML with the origin of each value.

use std::io::{self, Write};
use std::process::ExitCode;

use super::ConfigurationArgs;
use crate::config::Effective;

pub(super) fn run(args: ConfigurationArgs) -> ExitCode {
    match args.load() {
        Ok(config) => {
            // A reader that closes the pipe has read enough.
            let _closed = io::stdout().write_all(as_yaml(&config.effective).as_bytes());
            ExitCode::SUCCESS
        }
        Err(code) => code,
    }
}

fn as_yaml(effective: &[Effective]) -> String {
    let mut lines = String::new();
    let mut open: Vec<&str> = Vec::new();
    for Effective { key, value, origin } in effective {
        let mut path: Vec<&str> = key.split('.').collect();
        let name = path.pop().unwrap_or_default();
        let shared = open.iter().zip(&path).take_while(|(one, other)| one == other).count();
        for (depth, section) in path.iter().enumerate().skip(shared) {
            push_line(&mut lines, depth, &format!("{section}:"));
        }
        let value = quoted(value);
        push_line(&mut lines, path.len(), &format!("{name}: {value}  # {origin}"));
        open = path;
    }
    lines
}

/// A text that YAML would read as something else in quotes.
fn quoted(value: &str) -> String {
    if value.starts_with(|first: char| first.is_ascii_alphanumeric()) && !value.contains(": ") {
        value.to_owned()
    } else {
        format!("'{}'", value.replace('\'', "''"))
    }
}

fn push_line(lines: &mut String, depth: usize, line: &str) {
    lines.push_str(&"  ".repeat(depth));
    lines.push_str(line);
    lines.push('\n');
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
        };
        let yaml = as_yaml(&[line("a.x"), line("a.b.y"), line("a.b.z"), line("c.x")]);
        let expected = "a:\n  x: 1  # default\n  b:\n    y: 1  # default\n    z: 1  # default\n\
                        c:\n  x: 1  # default\n";
        assert_eq!(yaml, expected);
    }
}
