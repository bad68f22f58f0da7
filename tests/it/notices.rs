//! `THIRD_PARTY_NOTICES.txt` lists the crates of the program: every one, and no other version.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use rlaas_testkit::tools::finish;

const UPDATE: &str = "scripts/notices.sh --update writes the file";

#[test]
fn notices_list_every_crate_of_the_program() {
    let listed = listed();
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--package", "rlaas", "--edges", "normal", "--prefix", "none"]);
    tree.args(["--format", "{p}", "--locked", "--offline"]);
    let tree = finish(&mut tree).expect("a tree of dependencies");
    // "tokio v1.54.1", "thiserror-impl v2.0.21 (proc-macro)"; those of this workspace have a path.
    let crates: BTreeSet<String> = tree
        .lines()
        .filter(|line| !line.contains("(/"))
        .filter_map(|line| {
            let (name, version) = line.split_once(" v")?;
            Some(format!("{name} {}", version.split(' ').next()?))
        })
        .collect();
    assert!(crates.len() > 100, "{tree}");
    let unlisted: Vec<&String> = crates.difference(&listed).collect();
    assert!(unlisted.is_empty(), "{UPDATE}: it lacks {unlisted:?}");
}

#[test]
fn notices_list_no_crate_that_is_not_locked() {
    let lock = fs::read_to_string("Cargo.lock").expect("a file of the project");
    let locked: BTreeSet<String> = lock
        .split("[[package]]\nname = \"")
        .skip(1)
        .map(|package| package.replace("\"\nversion = \"", " "))
        .filter_map(|package| Some(package.split('"').next()?.to_owned()))
        .collect();
    let gone: Vec<String> = listed().difference(&locked).cloned().collect();
    assert!(gone.is_empty(), "{UPDATE}: Cargo.lock has no {gone:?}");
}

/// The crates in the file, as "name version". A line of a list is "- name version (license)".
fn listed() -> BTreeSet<String> {
    let notices = fs::read_to_string("THIRD_PARTY_NOTICES.txt").expect("a file of the project");
    let mut is_text = false;
    let mut crates = BTreeSet::new();
    for line in notices.lines() {
        // Texts of licenses stand between such lines; the lists stand outside.
        is_text ^= line.starts_with("````");
        if let Some((name, _)) = line.strip_prefix("- ").and_then(|line| line.split_once(" ("))
            && !is_text
        {
            crates.insert(name.to_owned());
        }
    }
    crates
}
