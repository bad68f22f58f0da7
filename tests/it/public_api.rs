//! The public names of the library crates, compared with the reviewed lists in `docs/api`.
//!
//! `UPDATE_API=1 cargo test --test it public_api::` rewrites the lists.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const CRATES: [&str; 3] = ["rlaas-core", "rlaas-limiter", "rlaas-client"];

/// The kinds of members in the ids of rustdoc's pages.
const MEMBERS: [&str; 6] =
    ["variant", "structfield", "method", "tymethod", "associatedconstant", "associatedtype"];

#[test]
fn public_names_match_the_reviewed_lists() {
    let docs = document();
    let mut changed = Vec::new();
    for name in CRATES {
        let names = names_of(&docs.join(name.replace('-', "_")));
        assert!(names.lines().count() > 10, "{name}: {names}");
        let reviewed = Path::new("docs/api").join(format!("{name}.txt"));
        if std::env::var_os("UPDATE_API").is_some() {
            fs::write(&reviewed, &names).expect("a file that can be written");
        }
        if fs::read_to_string(&reviewed).unwrap_or_default() != names {
            changed.push(format!("{}:\n{}", reviewed.display(), difference(&reviewed, &names)));
        }
    }
    assert!(changed.is_empty(), "UPDATE_API=1 rewrites the lists:\n{}", changed.join("\n"));
}

/// Runs rustdoc and returns the folder of its pages.
fn document() -> PathBuf {
    let executable = std::env::current_exe().expect("a test executable");
    let target = executable.ancestors().nth(3).expect("target/PROFILE/deps/NAME").to_owned();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["doc", "--no-deps", "--all-features", "--locked", "--offline", "--quiet"]);
    cargo.args(CRATES.iter().flat_map(|name| ["-p", name]));
    let status = cargo.arg("--target-dir").arg(&target).status().expect("cargo");
    assert!(status.success(), "cargo doc: {status}");
    target.join("doc")
}

/// Returns every public item with its members, sorted.
fn names_of(docs: &Path) -> String {
    let all = fs::read_to_string(docs.join("all.html")).expect("a list of all items");
    let list = all.split("All Items").last().unwrap_or_default();
    let pages: BTreeSet<&str> = list
        .split("href=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .filter_map(|href| href.strip_suffix(".html"))
        .filter(|page| !page.contains("..") && *page != "all")
        .collect();
    let mut names = String::new();
    for name in pages {
        let page = docs.join(format!("{name}.html"));
        let page = fs::read_to_string(page).expect("a page of an item");
        let path = name.replace('/', "::");
        let (module, item) = path.rsplit_once("::").unwrap_or(("", &path));
        let (kind, name) = item.split_once('.').unwrap_or(("", item));
        let separator = if module.is_empty() { "" } else { "::" };
        writeln!(names, "{kind} {module}{separator}{name}").expect("a string grows");
        // Members of implemented traits are not part of this API.
        let own = page.split("id=\"trait-implementations\"").next().unwrap_or_default();
        for member in members(own) {
            writeln!(names, "    {member}").expect("a string grows");
        }
    }
    names
}

fn members(page: &str) -> BTreeSet<&str> {
    let ids = page.split("id=\"").skip(1).filter_map(|rest| rest.split('"').next());
    ids.filter(|id| {
        id.split_once('.')
            .is_some_and(|(kind, name)| MEMBERS.contains(&kind) && !name.contains('.'))
    })
    .collect()
}

fn difference(reviewed: &Path, names: &str) -> String {
    let before = fs::read_to_string(reviewed).unwrap_or_default();
    let (before, now): (BTreeSet<&str>, BTreeSet<&str>) =
        (before.lines().collect(), names.lines().collect());
    let gone = before.difference(&now).map(|line| format!("- {line}"));
    gone.chain(now.difference(&before).map(|line| format!("+ {line}")))
        .collect::<Vec<_>>()
        .join("\n")
}
