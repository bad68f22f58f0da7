//! The recipes of the book: each page in an empty folder, with the packages of this repository and those that it
//! installs, a server, and the programs of the page.

use rlaas_testkit::tools::skipped;

use super::blocks::{Report, try_block};
use super::markdown::{Document, readme_and_book};
use super::session::Session;

/// The folder of the pages.
pub(super) const FOLDER: &str = "docs/recipes";

/// A client gives a call 50 ms, which is too short at times on a machine that runs all tests at once.
const TRIES: usize = 2;

/// The pages. Each has a test here, so that they run side by side, but for `README`, which has no commands, and `rust`,
/// whose program `http::embedded` runs.
const PAGES: [&str; 11] = [
    "README", "ai-sdk", "go", "jobs", "litellm", "login", "node", "proxies", "python", "rust",
    "testing",
];

#[test]
fn ai_sdk() {
    assert_does_what_it_says("ai-sdk");
}

#[test]
fn go() {
    assert_does_what_it_says("go");
}

#[test]
fn jobs() {
    assert_does_what_it_says("jobs");
}

/// Without the proxy: the rules, and that what its configuration names is there.
#[test]
fn litellm() {
    assert_does_what_it_says("litellm");
    let module = include_str!("../../../clients/python/src/rlaas_client/litellm.py");
    assert!(module.contains("\nhook = Hook("), "the recipe names rlaas_client.litellm.hook");
}

#[test]
fn login() {
    assert_does_what_it_says("login");
}

#[test]
fn node() {
    assert_does_what_it_says("node");
}

#[test]
fn proxies() {
    assert_does_what_it_says("proxies");
}

#[test]
fn python() {
    assert_does_what_it_says("python");
}

#[test]
fn testing() {
    assert_does_what_it_says("testing");
}

#[test]
fn every_recipe_has_a_test() {
    let pages = readme_and_book().into_iter().filter(|page| page.path.starts_with(FOLDER));
    let name =
        |page: Document| page.path.file_stem().map(|name| name.to_string_lossy().into_owned());
    assert_eq!(pages.filter_map(name).collect::<Vec<_>>(), PAGES);
}

fn assert_does_what_it_says(name: &str) {
    let path = format!("{FOLDER}/{name}.md");
    let page = readme_and_book().into_iter().find(|page| page.path.ends_with(&path));
    let page = page.expect("a page");
    let mut problems = Vec::new();
    for _ in 0..TRIES {
        let Some(report) = run(&page) else { return };
        if report.failed.is_empty() {
            assert!(report.ran > 3, "{path}: only {} blocks ran", report.ran);
            return;
        }
        problems.extend(report.failed);
    }
    panic!("{}", problems.join("\n"));
}

/// Runs the blocks of a page up to the first that fails. Returns `None` if a package can't be had.
fn run(page: &Document) -> Option<Report> {
    let mut session = Session::of_recipe();
    let mut report = Report::default();
    for block in page.blocks() {
        let place = format!("{}:{}", page.path.display(), block.line);
        if block.option("installs").is_some() {
            let printed = session.install(&format!("set -euo pipefail\n{}", block.text));
            if printed.code != 0 {
                skipped(&place, &printed.text);
                return None;
            }
            continue;
        }
        try_block(&mut session, &place, &block, &mut report);
        if !report.failed.is_empty() {
            break;
        }
    }
    Some(report)
}
