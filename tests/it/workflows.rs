//! The workflows: what a release attests, what may not be skipped, and what is kept up to date.

use std::fs;
use std::path::Path;
use std::process::Command;

use rlaas_testkit::TempDir;
use rlaas_testkit::tools::finish;
use serde_json::{Value, json};

const RELEASE: &str = ".github/workflows/release.yml";

fn document(path: &str) -> Value {
    let text = fs::read_to_string(path).expect("a file of the project");
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the steps of a job that use an action or, without one, that run something.
fn steps(workflow: &Value, job: &str, action: &str) -> Vec<Value> {
    let steps = workflow["jobs"][job]["steps"].as_array().expect("steps").iter();
    let uses = |step: &&Value| {
        step["uses"].as_str().unwrap_or_default().starts_with(&format!("{action}@"))
    };
    steps.filter(uses).cloned().collect()
}

/// Returns the commands of a job, in their order.
fn commands(workflow: &Value, job: &str) -> Vec<String> {
    let steps = workflow["jobs"][job]["steps"].as_array().expect("steps").iter();
    steps.filter_map(|step| step["run"].as_str().map(str::to_owned)).collect()
}

#[test]
fn release_attests_its_files_and_the_image() {
    let release = document(RELEASE);
    for (job, subject) in [("release", "files/*"), ("image", "${{ steps.pushed.outputs.digest }}")]
    {
        let attested = steps(&release, job, "actions/attest-build-provenance");
        let [step] = &attested[..] else { panic!("{job}: {attested:?}") };
        let with = &step["with"];
        assert!(with["subject-path"] == subject || with["subject-digest"] == subject, "{with}");
        let permissions = &release["jobs"][job]["permissions"];
        assert_eq!(
            (&permissions["id-token"], &permissions["attestations"]),
            (&"write".into(), &"write".into())
        );
    }
}

#[test]
fn release_has_what_the_script_has_tried_and_pushes_the_image_last() {
    let release = document(RELEASE);
    for job in ["linux", "macos"] {
        let all = commands(&release, job);
        assert!(all.iter().any(|one| one.ends_with("scripts/release.sh")), "{job}: {all:?}");
    }
    assert_eq!(release["jobs"]["release"]["needs"], json!(["linux", "macos"]));
    assert_eq!(release["jobs"]["image"]["needs"], "release");
    let jobs = release["jobs"].as_object().expect("jobs");
    let pushing = jobs.keys().filter(|job| {
        commands(&release, job).iter().any(|one| one.contains("image.sh") || one.contains("push"))
    });
    assert_eq!(pushing.collect::<Vec<_>>(), ["image"]);
}

#[test]
fn tag_of_a_prerelease_makes_a_prerelease() {
    let all = commands(&document(RELEASE), "release").join("\n");
    let decided = all.lines().find(|line| line.contains("--prerelease")).expect("the option");
    for (tag, is_prerelease) in [("v0.1.0", false), ("v0.1.0-rc.1", true)] {
        let script = format!("{decided}\necho \"${{options[*]}}\"");
        let mut shell = Command::new("bash");
        shell.args(["-ec", &script]).env("GITHUB_REF_NAME", tag);
        let options = finish(&mut shell).expect("options");
        assert_eq!(options.trim() == "--prerelease", is_prerelease, "{tag}: {options}");
    }
}

#[test]
fn notes_are_refused_while_changes_are_unreleased_or_without_a_date() {
    for (version, changes, expected) in [
        ("0.1.0", "## 0.1.0 - 2026-12-01\n\nThe first.\n\n## 0.0.1\n", Ok("The first.")),
        ("0.1.0", "## Unreleased\n\n## 0.1.0 - 2026-12-01\n\nThe first.\n", Ok("The first.")),
        ("0.1.0", "## 0.1.0\n\nThe first.\n", Err("no dated section for 0.1.0")),
        ("0.1.0-rc.1", "## 0.1.0\n\nThe first.\n", Ok("The first.")),
        (
            "0.1.0",
            "## Unreleased\n\n- More.\n\n## 0.1.0 - 2026-12-01\n\nThe first.\n",
            Err("lines under Unreleased"),
        ),
    ] {
        let dir = TempDir::new();
        for folder in ["scripts", "src"] {
            fs::create_dir(dir.path(folder)).expect("a folder");
        }
        let script = dir.path("scripts/release-notes.sh");
        fs::copy("scripts/release-notes.sh", &script).expect("a copy");
        dir.write("src/lib.rs", "");
        let package = format!("name = \"rlaas\"\nversion = \"{version}\"\n");
        dir.write("Cargo.toml", &format!("[package]\n{package}[workspace]\n"));
        dir.write("Cargo.lock", &format!("version = 4\n\n[[package]]\n{package}"));
        dir.write("CHANGELOG.md", &format!("# Changelog\n\n{changes}"));
        let notes = finish(Command::new(script).arg(format!("v{version}")));
        match (notes, expected) {
            (Ok(notes), Ok(expected)) => assert_eq!(notes.trim(), expected, "{changes}"),
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
            (notes, expected) => panic!("{changes}: {notes:?}, not {expected:?}"),
        }
    }
}

/// `cargo binstall` and `install.sh` look for an archive by the name that `package.sh` gives it.
#[test]
fn archives_are_found_by_their_names() {
    let manifest = fs::read_to_string("Cargo.toml").expect("a file of the project");
    let value = |key: &str| {
        let line = manifest.lines().find_map(|line| line.strip_prefix(&format!("{key} = \"")));
        let line = line.expect("a key of [package.metadata.binstall]").trim_end_matches('"');
        [("repo", "REPO"), ("version", "1.2.3"), ("target", "TARGET"), ("bin", "rlaas")]
            .iter()
            .fold(line.replace("{ binary-ext }", ""), |text, (name, value)| {
                text.replace(&format!("{{ {name} }}"), value)
            })
    };
    let archive = "rlaas-1.2.3-TARGET";
    assert_eq!(value("pkg-url"), format!("REPO/releases/download/v1.2.3/{archive}.tar.gz"));
    assert_eq!(value("bin-dir"), format!("{archive}/rlaas"));
    assert_eq!(value("pkg-fmt"), "tgz");
    let read = |file: &str| fs::read_to_string(file).expect("a file of the project");
    let (package, install) = (read("scripts/package.sh"), read("install.sh"));
    assert!(package.contains("local name=rlaas-$version-$1 "), "{package}");
    assert!(package.contains("tar -C \"$out\" -czf \"$out/$name.tar.gz\" \"$name\""));
    assert!(install.contains("name=rlaas-$version-$target\n"), "{install}");
    assert!(install.contains("${releases%/}/v$version/$file"), "{install}");
}

#[test]
fn nightly_and_release_skip_nothing() {
    for (file, job) in
        [("nightly", "soak"), ("release", "gate"), ("release", "linux"), ("release", "macos")]
    {
        let workflow = document(&format!(".github/workflows/{file}.yml"));
        let steps = workflow["jobs"][job]["steps"].as_array().expect("steps").iter();
        let is_run = |step: &&Value| {
            let run = step["run"].as_str().unwrap_or_default();
            run.contains("tests/run.sh") || run.contains("scripts/release.sh")
        };
        let runs: Vec<&Value> = steps.filter(is_run).collect();
        let [run] = runs[..] else { panic!("{file} {job}: {runs:?}") };
        let by_sudo = run["run"].as_str().is_some_and(|run| run.contains(" NO_SKIP=1 "));
        assert!(by_sudo || run["env"]["NO_SKIP"] == "1", "{file}: {run}");
    }
}

#[test]
fn dependabot_watches_the_images_of_dockerfile_and_compose() {
    let updates = document(".github/dependabot.yml");
    let updates = updates["updates"].as_array().expect("a list").iter();
    let watched: Vec<&str> = updates.filter_map(|one| one["package-ecosystem"].as_str()).collect();
    for ecosystem in ["docker", "docker-compose"] {
        assert!(watched.contains(&ecosystem), "{ecosystem}: {watched:?}");
    }
}

#[test]
fn parts_of_the_nightly_run_name_files_and_tests_that_exist() {
    let parts = fs::read_to_string("tests/nightly.parts").expect("the parts");
    let parts: Vec<&str> = parts.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(parts.len() >= 5, "{parts:?}");
    let listed = Command::new(std::env::current_exe().expect("this binary")).arg("--list").output();
    let listed = String::from_utf8(listed.expect("a list of tests").stdout).expect("UTF-8");
    for part in parts {
        let [_, tests, files] = part.split('|').collect::<Vec<_>>()[..] else {
            panic!("{part}: three columns")
        };
        for test in tests.split_whitespace() {
            assert!(listed.lines().any(|name| name.starts_with(test)), "{part}: no test {test}");
        }
        for file in files.split_whitespace() {
            assert!(Path::new(file).exists(), "{part}: no {file}");
        }
    }
}
