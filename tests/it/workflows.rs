//! The workflows: what a release attests, what may not be skipped, and what is kept up to date.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

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

#[test]
fn release_attests_archives_and_image_and_keeps_the_digests_of_base_images() {
    let release = document(".github/workflows/release.yml");
    for (job, subject) in [
        ("archives", "target/package/rlaas-*"),
        ("image-of-both", "${{ steps.merged.outputs.digest }}"),
    ] {
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
    let kept = steps(&release, "image", "actions/upload-artifact");
    assert!(kept.iter().any(|step| step["with"]["path"] == "target/image"), "{kept:?}");
}

#[test]
fn nightly_and_release_skip_nothing() {
    for (file, job) in [("nightly", "soak"), ("release", "gate")] {
        let workflow = document(&format!(".github/workflows/{file}.yml"));
        let steps = workflow["jobs"][job]["steps"].as_array().expect("steps").iter();
        let gates = steps
            .filter(|step| step["run"].as_str().is_some_and(|run| run.starts_with("tests/run.sh")));
        let skips: Vec<&Value> = gates.map(|step| &step["env"]["NO_SKIP"]).collect();
        assert_eq!(skips, [&Value::from("1")], "{file}");
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
