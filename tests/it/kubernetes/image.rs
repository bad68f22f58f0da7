//! The image: its build context is complete. Building it needs base images, which these tests have
//! not.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::project;
use rlaas_testkit::TempDir;
use rlaas_testkit::tools::finish;

/// The build command of the Dockerfile.
const BUILD: &str = "cargo build --profile dist --locked";

/// A command that stops before compilation: Cargo has read the manifest and found its targets.
const CHECK_MANIFEST: &str =
    "cargo build --offline --locked --bin none 2>&1 | tee cargo.log | grep 'no bin target named'";

#[test]
fn image_build_context_has_what_cargo_needs() {
    let dir = TempDir::new();
    let root = dir.path("build");
    fs::create_dir(&root).expect("a directory");
    let admitted = fs::read_to_string(project(".dockerignore")).expect("a file of the project");
    let mut builds = 0;
    for (word, rest) in steps("build") {
        match word.as_str() {
            "COPY" => {
                let (from, to) = rest.rsplit_once(' ').expect("from and to");
                for from in from.split(' ') {
                    assert!(admitted.lines().any(|line| line == format!("!{from}")), "{from}");
                    let to = if to == "./" { root.join(from) } else { root.join(to) };
                    copy(&project(from), &to);
                }
            }
            "RUN" => {
                builds += rest.matches(BUILD).count();
                let script = rest.replace(BUILD, CHECK_MANIFEST);
                let mut shell = Command::new("sh");
                shell.args(["-ec", &script]).current_dir(&root);
                let checked = finish(&mut shell);
                let log = || fs::read_to_string(root.join("cargo.log")).unwrap_or_default();
                checked.unwrap_or_else(|why| panic!("{why}\n{}", log()));
            }
            _ => {}
        }
    }
    assert_eq!(builds, 2, "the dependencies, then the program");
}

#[test]
fn copied_files_exist_and_are_admitted_to_the_build_context() {
    let admitted = fs::read_to_string(project(".dockerignore")).expect("a file of the project");
    let steps = steps("");
    let copies = steps.iter().filter(|(word, rest)| word == "COPY" && !rest.starts_with("--from"));
    let mut files = 0;
    for (_, rest) in copies {
        let (from, _) = rest.rsplit_once(' ').expect("from and to");
        for file in from.split(' ') {
            assert!(admitted.lines().any(|line| line == format!("!{file}")), "{file}");
            assert!(project(file).exists(), "{file}");
            files += 1;
        }
    }
    assert!(files > 10, "the reader of the Dockerfile sees only {files} files");
}

#[test]
fn image_user_is_numeric_and_not_root() {
    let steps = steps("");
    let (_, user) = steps.iter().rfind(|(word, _)| word == "USER").expect("a user");
    assert_eq!(user, "65532:65532");
}

/// Returns the instructions of a stage, or of all stages, as keyword and arguments.
fn steps(stage: &str) -> Vec<(String, String)> {
    let file = fs::read_to_string(project("Dockerfile")).expect("a file of the project");
    let lines: Vec<&str> = file.lines().filter(|line| !line.starts_with('#')).collect();
    let joined = lines.join("\n").replace("\\\n", "");
    let steps = joined.lines().filter_map(|line| line.split_once(' '));
    let mut steps: Vec<_> =
        steps.map(|(word, rest)| (word.to_owned(), rest.trim().to_owned())).collect();
    if !stage.is_empty() {
        let is_named = |(word, rest): &(String, String)| {
            word == "FROM" && rest.ends_with(&format!(" AS {stage}"))
        };
        steps.drain(..=steps.iter().position(is_named).expect("a stage of this name"));
        let end = steps.iter().position(|(word, _)| word == "FROM");
        steps.truncate(end.unwrap_or(steps.len()));
    }
    steps
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().expect("a folder")).expect("a directory");
    let mut copy = Command::new("cp");
    finish(copy.arg("-rT").args([from, to])).expect("a copy");
}
