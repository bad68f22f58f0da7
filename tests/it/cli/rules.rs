//! The commands that write rules, against real servers.

use std::fmt::Write;
use std::io::{Read, Write as _};
use std::process::{Command, Stdio};

use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, finish, rlaas, run};

/// Runs a command of rules. Returns its exit code, output and errors.
fn called(server: &Rlaas, command: &[&str]) -> (i32, String, String) {
    run(&[&["rule"], command, &["--addr", server.grpc(), "--timeout", "60s"]].concat())
}

/// Runs a command that must succeed, and returns what it prints.
fn printed(server: &Rlaas, command: &[&str]) -> String {
    let (code, out, error) = called(server, command);
    assert_eq!(code, 0, "{command:?}: {error}");
    out
}

/// Runs a command that must fail, and returns its errors.
fn refused(server: &Rlaas, exit_code: i32, command: &[&str]) -> String {
    let (code, out, error) = called(server, command);
    assert_eq!((code, &*out), (exit_code, ""), "{command:?}: {error}");
    error
}

fn server_with_shop() -> Rlaas {
    let server = Rlaas::start(&[]);
    let (code, _, error) = run(&["project", "create", "shop", "--addr", server.grpc()]);
    assert_eq!(code, 0, "{error}");
    server
}

/// Returns the path of a file as text.
fn written(dir: &TempDir, name: &str, text: &str) -> String {
    dir.write(name, text).display().to_string()
}

#[test]
fn wrong_files_exit_64() {
    let server = server_with_shop();
    let dir = TempDir::new();
    let rule = "{name: a, limit: 5, window: 1s}";
    let two = format!("rules:\n  - {rule}\n  - {{name: b, limit: 1, window: 1s}}\n");
    for (text, expected) in [
        (
            "rules:\n  - {name: a, limit: many, window: 1s}\n",
            "rules[0].limit: must be a whole number",
        ),
        (
            "rules: [{name: a, limt: 5}]\n",
            "rules[0].limt: unknown key, did you mean rules[0].limit? (line 1)",
        ),
        ("rules: [\n", "at line 1, column 8"),
        (&two, "rules: must have one rule"),
        (
            &format!("project: other\nrules: [{rule}]\n"),
            "project: must be the project of the option",
        ),
        (
            "rules: [{name: b, limit: 5, window: 1s}]\n",
            "rules[0].name: must be the name of the command",
        ),
    ] {
        let file = written(&dir, "wrong.yaml", text);
        let error = refused(&server, 64, &["set", "a", "--project", "shop", "-f", &file]);
        assert!(error.contains(&file) && error.contains(expected), "{expected}: {error}");
    }
    let file = written(&dir, "unmatched.yaml", "unmatched: allow\nrules: []\n");
    assert!(
        refused(&server, 64, &["apply", "-f", &file]).contains("unmatched: must be in the conf")
    );
    assert!(refused(&server, 64, &["apply", "-f", "/no/such.yaml"]).contains("can't be read"));
    let file = written(&dir, "a.yaml", &format!("rules: [{rule}]\n"));
    assert!(refused(&server, 64, &["apply", "-f", &file, &file]).contains("another one"));
}

#[test]
fn problems_that_only_the_server_finds_name_the_rule() {
    let file = TempDir::new();
    let rules = file.write("rlaas.yaml", "rules: [{name: pay, limit: 5, window: 1m}]\n");
    let server = Rlaas::start_from(&rules, &[]);
    let dir = TempDir::new();
    let apply = written(&dir, "a.yaml", "rules: [{name: pay, limit: 6, window: 1m}]\n");
    let error = refused(&server, 2, &["apply", "-f", &apply]);
    assert!(error.contains("rule pay: name must not be that of a rule of a file"), "{error}");
    // The rule of the file is no rule to export, and is not pruned.
    let none = written(&dir, "none.yaml", "rules: []\n");
    assert_eq!(
        printed(&server, &["apply", "-f", &none, "--prune"]),
        "project _: no rule changes\n"
    );
    assert_eq!(printed(&server, &["export"]), "rules: []\n");
    let shown = printed(&server, &["list", "--in-force"]);
    let names: Vec<_> = shown.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, ["RULE", "default", "pay"]);
    assert!(shown.contains("  built in  ") && shown.contains("  file  "), "{shown}");
}

#[test]
fn terminal_is_asked_and_standard_input_is_a_file() {
    let server = server_with_shop();
    let mut command =
        rlaas(&["rule", "apply", "-f", "-", "--project", "shop", "--addr", server.grpc()]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("rlaas starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"rules: [{name: a, limit: 1, window: 1s}]\n").expect("it reads");
    drop(stdin);
    let (code, out, error) = finish(child.wait_with_output().expect("it ends"));
    assert!(code == 0 && out.ends_with("project shop: revision 2, 1 rule\n"), "{out}{error}");
}

/// Runs a command of rules at a terminal, where a person answers its question. Returns its exit code
/// and what the terminal shows.
fn at_terminal(server: &Rlaas, command: &str, answer: &str) -> (i32, String) {
    let program = env!("CARGO_BIN_EXE_rlaas");
    let command = format!("{program} rule {command} --addr {} --timeout 60s", server.grpc());
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
    let spawned = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut terminal = spawned.expect("script, of util-linux");
    let mut output = terminal.stdout.take().expect("a pipe");
    let mut shown = Vec::new();
    while !answer.is_empty() && !shown.ends_with(b"[y/N] ") {
        let mut byte = [0];
        let read = output.read(&mut byte).expect("text");
        assert!(read > 0, "it ended: {}", String::from_utf8_lossy(&shown));
        shown.extend(byte);
    }
    let mut input = terminal.stdin.take().expect("a pipe");
    input.write_all(answer.as_bytes()).expect("it reads");
    output.read_to_end(&mut shown).expect("text");
    let code = terminal.wait().expect("it ends").code().expect("an exit code");
    (code, String::from_utf8(shown).expect("UTF-8").replace('\r', ""))
}

#[test]
fn person_at_a_terminal_is_asked_before_rules_are_written() {
    let server = server_with_shop();
    let dir = TempDir::new();
    let file = "project: shop\nrules: [{name: a, limit: 1, window: 1s}]\n";
    let apply = format!("apply -f {}", written(&dir, "a.yaml", file));
    let plan = "project shop: 1 to create, 0 to update, 0 to delete\n";
    for answer in ["n\n", "\n", "yess\n"] {
        let (code, shown) = at_terminal(&server, &apply, answer);
        assert!(shown.starts_with(plan) && shown.contains("Write this? [y/N] "), "{shown}");
        assert!(shown.ends_with("rlaas: not confirmed, nothing was changed\n"), "{shown}");
        assert_eq!(code, 1);
        assert_eq!(printed(&server, &["list", "--project", "shop"]), "no rules\n");
    }
    let (code, shown) = at_terminal(&server, &apply, "y\n");
    assert!(code == 0 && shown.ends_with("project shop: revision 2, 1 rule\n"), "{shown}");
    // With nothing to write, or with --yes, nobody is asked.
    for command in [apply.clone(), format!("{apply} --prune --yes")] {
        let (code, shown) = at_terminal(&server, &command, "");
        assert_eq!((code, &*shown), (0, "project shop: no rule changes\n"));
    }
    let other = written(&dir, "b.yaml", "rules: [{name: b, limit: 1, window: 1s}]\n");
    let command = format!("apply -f {other} --project shop --prune --yes");
    let (code, shown) = at_terminal(&server, &command, "");
    assert!(code == 0 && shown.ends_with("project shop: revision 3, 2 rules\n"), "{shown}");
    let (code, shown) = at_terminal(&server, "rollback 2 --project shop", "n\n");
    assert!(code == 1 && shown.contains("Roll back to revision 2? [y/N] "), "{shown}");
}

/// Returns a file with rules that differ in every field. Fewer of them are as long as many: in one
/// revision they have a request and an entry of the history of less than 4 MiB.
fn many(count: usize, limit: usize) -> String {
    let mut yaml = String::from("rules:\n");
    let long =
        "x".repeat(1_500_000_usize.checked_div(count).unwrap_or_default().saturating_sub(400));
    for number in 0..count {
        let _infallible = write!(
            yaml,
            "  - name: r{number}\n    limit: {}\n    window: {}ms\n    match: {{ resource: /r/{number}, \
             attributes: {{ plan: [free, \"{long}\", \"{number}\"] }} }}\n    algorithm: gcra\n    \
             overrides:\n      - {{ match: {{ user-id: vip-{number} }}, limit: {} }}\n",
            limit + number,
            1_000 + number,
            2 * limit + number,
        );
    }
    yaml
}

/// 5,000 with `SOAK=1`. Else fewer that are as long together.
#[test]
fn thousands_of_rules_go_out_and_in_unchanged() {
    let count = if std::env::var_os("SOAK").is_some() { 5_000 } else { 200 };
    let server = server_with_shop();
    let dir = TempDir::new();
    let rules = written(&dir, "many.yaml", &many(count, 5));
    let applied = printed(&server, &["apply", "-f", &rules, "--project", "shop"]);
    let head = applied.lines().next().expect("a plan");
    assert_eq!(head, format!("project shop: {count} to create, 0 to update, 0 to delete"));
    let out = dir.path("out");
    let folder = out.to_str().expect("a path");
    let done = printed(&server, &["export", "--all", "-o", folder]);
    assert_eq!(
        done,
        format!(
            "project shop: {count} rules in {folder}/shop.yaml\nproject _: 0 rules in {folder}/_.yaml\n"
        )
    );
    let file = format!("{folder}/shop.yaml");
    assert_eq!(printed(&server, &["apply", "-f", &file]), "project shop: no rule changes\n");

    let other = server_with_shop();
    printed(&other, &["apply", "-f", &file, "--json"]);
    let again = dir.path("again.yaml");
    let again = again.to_str().expect("a path");
    printed(&other, &["export", "--project", "shop", "-o", again]);
    let read = |file: &str| std::fs::read_to_string(file).expect("a file");
    assert!(read(&file) == read(again), "{file} and {again} differ");

    let fewer = written(&dir, "fewer.yaml", &many(count - 2, 6));
    let applied = printed(&server, &["apply", "-f", &fewer, "--project", "shop", "--prune"]);
    let head = applied.lines().next().expect("a plan");
    let expected = format!("project shop: 0 to create, {} to update, 2 to delete", count - 2);
    assert_eq!(head, expected);
    assert_eq!(
        printed(&server, &["list", "--project", "shop", "--max", "20000"]).lines().count(),
        count - 1
    );
}
