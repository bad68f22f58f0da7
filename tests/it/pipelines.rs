//! `action.yml` and `.pre-commit-hooks.yaml`: their steps do what they say with this program.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use rlaas_testkit::TempDir;
use rlaas_testkit::process::{program, run};
use rlaas_testkit::tools::finish;
use serde_json::Value;

const RULES: &str = "rules:\n  - { name: pay, match: { resource: /pay }, algorithm: gcra, limit: 2, window: 60s }\n";
const TEST: &str = "config: limits.yaml\ncases:\n  - name: pay\n    check: { user_id: alice, resource: /pay }\n    \
                    steps: [{ times: 3, expect: { allowed: 2, denied: 1 } }]\n";

#[test]
fn commands_of_pipelines_have_the_options_that_are_used() {
    let action = document("action.yml");
    let scripts: Vec<&str> =
        steps(&action).iter().filter_map(|step| step["run"].as_str()).collect();
    let hooks = fs::read_to_string(".pre-commit-hooks.yaml").expect("a file of the project");
    for command in ["check-config", "test", "simulate"] {
        let (code, help, _) = run(&[command, "--help"]);
        assert_eq!(code, 0, "{command}");
        let calls = format!("rlaas {command} ");
        let script = scripts.iter().find(|script| script.contains(&calls)).expect("a step");
        let words = script.split(|letter: char| letter != '-' && !letter.is_ascii_lowercase());
        // Those of git and of shopt are not ours.
        let of_others = ["--quiet", "--depth"];
        for option in words.filter(|word| word.starts_with("--") && !of_others.contains(word)) {
            assert!(help.contains(&format!("{option} <")), "{command} {option}");
        }
    }
    assert!(
        hooks.contains("entry: rlaas check-config\n") && hooks.contains("rlaas test'\n"),
        "{hooks}"
    );
}

#[test]
fn action_installs_the_release_that_it_belongs_to() {
    let inputs = document("action.yml")["inputs"].clone();
    assert_eq!(inputs["version"]["default"], env!("CARGO_PKG_VERSION"));
    let action = document("action.yml").to_string();
    for name in inputs.as_object().expect("inputs").keys() {
        assert!(action.contains(&format!("${{{{ inputs.{name} }}}}")), "{name} has no effect");
    }
}

#[test]
fn book_gives_the_action_inputs_that_it_has() {
    let book = fs::read_to_string("docs/simulation.md").expect("a page");
    let block =
        book.split("```yml,file=workflow.yml\n").nth(1).and_then(|rest| rest.split("```").next());
    let workflow: Value = serde_saphyr::from_str(block.expect("a workflow")).expect("YAML");
    let step = &workflow["jobs"]["limits"]["steps"][1];
    assert_eq!(step["uses"], format!("OWNER/rlaas@v{}", env!("CARGO_PKG_VERSION")));
    let inputs = &document("action.yml")["inputs"];
    for name in step["with"].as_object().expect("inputs").keys() {
        assert!(inputs[name].is_object(), "{name}");
    }
}

#[test]
fn action_refuses_rules_that_refuse_more_than_before() {
    let repository = Repository::new();
    repository.act("limits.test.yaml").expect("rules that are in force");
    repository.dir.write("limits.yaml", &RULES.replace("limit: 2", "limit: 1"));
    let refused = repository.act("limits.test.yaml").expect_err("a test that fails");
    assert!(refused.contains("FAILED: 0 passed, 1 failed"), "{refused}");
    let refused = repository.act("").expect_err("more denials");
    assert!(refused.contains("rule pay: 1 of 3 requests"), "{refused}");
    let read =
        |name: &str| fs::read_to_string(repository.dir.path(name)).expect("a file of a step");
    assert!(read("summary").contains("1 newly refused"), "{}", read("summary"));
    assert!(read("output").contains("report=") && read("rlaas.html").contains("<html"));
    repository.dir.write("limits.yaml", &RULES.replace("limit", "limits"));
    let refused = repository.act("").expect_err("rules that are not valid");
    assert!(refused.contains("did you mean rules[0].limit?"), "{refused}");
}

/// A repository with rules, a test of them, and traffic.
struct Repository {
    dir: TempDir,
}

impl Repository {
    fn new() -> Self {
        let dir = TempDir::new();
        dir.write("limits.yaml", RULES);
        dir.write("limits.test.yaml", TEST);
        let line = |second: u32| {
            format!(
                "192.0.2.1 - - [23/Nov/2026:08:00:{second} +0000] \"GET /pay HTTP/1.1\" 200 5\n"
            )
        };
        dir.write("access.log", &[10, 11, 12].map(line).concat());
        let commit = "git init --quiet && git add limits.yaml
                      git -c user.name=a -c user.email=a@example.com commit --quiet --message=base";
        finish(Command::new("bash").args(["-ec", commit]).current_dir(dir.path("")))
            .expect("a commit");
        Self { dir }
    }

    /// Runs the steps of the action as its runner does, except the installation.
    fn act(&self, tests: &str) -> Result<(), String> {
        let inputs = BTreeMap::from([
            ("config", "lim*ts.yaml"),
            ("tests", tests),
            ("traffic", "access.log"),
            ("format", "common"),
            ("max-new-denials", "0.1%"),
            ("simulate-options", "--top 3"),
            ("against", "HEAD"),
        ]);
        let action = document("action.yml");
        for step in steps(&action).iter().filter(|step| step["name"] != "install") {
            if step["name"] == "test" && tests.is_empty() {
                continue;
            }
            let script = step["run"].as_str().expect("a script");
            let mut shell = Command::new("bash");
            shell.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", script]);
            shell.current_dir(self.dir.path("")).env("RUNNER_TEMP", self.dir.path(""));
            for (name, file) in [("GITHUB_OUTPUT", "output"), ("GITHUB_STEP_SUMMARY", "summary")] {
                shell.env(name, self.dir.path(file));
            }
            for (name, value) in step["env"].as_object().expect("variables") {
                let value = value.as_str().expect("a text");
                let input = value.trim_start_matches("${{ inputs.").trim_end_matches(" }}");
                shell.env(name, inputs[input]);
            }
            let folder = Path::new(&program()).parent().expect("a folder").display().to_string();
            let path = std::env::var("PATH").unwrap_or_default();
            finish(shell.env("PATH", format!("{folder}:{path}")))?;
        }
        Ok(())
    }
}

fn document(path: &str) -> Value {
    let text = fs::read_to_string(path).expect("a file of the project");
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn steps(action: &Value) -> &[Value] {
    action["runs"]["steps"].as_array().expect("steps")
}
