//! The commands of the README's section on HTTP print what stands below them.

use std::process::Command;

use rlaas_testkit::process::{Rlaas, finish};

/// Each `$ curl` of the section with what follows it.
fn commands(readme: &str) -> Vec<(&str, Vec<&str>)> {
    let section = readme.split("\n## HTTP\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let blocks = section.expect("a section on HTTP").split("```console\n").skip(1);
    let mut commands: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in blocks.flat_map(|block| block.split("```").next().expect("a block").lines()) {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command, Vec::new())),
            (None, Some((_, printed))) => printed.push(line),
            (None, None) => panic!("{line} belongs to no command"),
        }
    }
    commands
}

/// Is it the line, with anything where it has an ellipsis?
fn fits(expected: &str, printed: &str) -> bool {
    let mut rest = printed;
    let mut parts = expected.split('…').map(str::trim).enumerate();
    parts.all(|(index, part)| match rest.find(part) {
        Some(found) if index > 0 || found == 0 => {
            rest = &rest[found + part.len()..];
            true
        }
        _ => false,
    }) && (expected.contains('…') || rest.is_empty())
}

#[test]
fn commands_print_what_the_readme_says() {
    let server = Rlaas::start(&[]);
    let commands = commands(include_str!("../../../README.md"));
    assert!(commands.len() >= 3, "{commands:?}");
    for (command, expected) in commands {
        assert!(command.starts_with("curl ") && command.contains("127.0.0.1:8080"), "{command}");
        let command = command.replace("127.0.0.1:8080", server.http());
        let command = command.replacen("curl", "curl --silent --show-error", 1);
        let output = Command::new("sh").args(["-c", &command]).output().expect("a shell");
        let (code, printed, error) = finish(output);
        assert_eq!(code, 0, "{command}: {error}");
        let printed: Vec<&str> = printed.lines().collect();
        assert_eq!(printed.len(), expected.len(), "{command}: {printed:?}");
        for (expected, printed) in expected.iter().zip(printed) {
            assert!(fits(expected, printed), "{command}: {printed} is not {expected}");
        }
    }
}
