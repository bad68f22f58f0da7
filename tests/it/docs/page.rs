//! The shape of README, and the table of contents of the book.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::links::links;
use super::markdown::{Document, readme_and_book};

const MAX_README_LINES: usize = 120;
const MAX_README_WIDTH: usize = 100;

#[test]
fn the_readme_is_short() {
    let pages = readme_and_book();
    let readme = pages.first().expect("README");
    let lines = readme.text.lines().count();
    assert!(lines <= MAX_README_LINES, "README has {lines} lines, not {MAX_README_LINES}");
    for (index, line) in readme.text.lines().enumerate() {
        let is_table = line.starts_with('|') || line.starts_with('[');
        let width = line.chars().count();
        assert!(is_table || width <= MAX_README_WIDTH, "README, line {}: {width}", index + 1);
    }
}

#[test]
fn every_page_is_once_in_the_table_of_contents() {
    let pages = readme_and_book();
    let is_summary = |page: &&Document| page.path == Path::new("docs/SUMMARY.md");
    let summary = pages.iter().find(is_summary).expect("SUMMARY.md");
    let targets: Vec<PathBuf> =
        links(summary).into_iter().map(|link| Path::new("docs").join(link.target)).collect();
    let listed: BTreeSet<&Path> = targets.iter().map(PathBuf::as_path).collect();
    assert_eq!(listed.len(), targets.len(), "a page is listed twice");
    let paths = pages.iter().map(|page| page.path.as_path());
    let book = paths.filter(|path| path.starts_with("docs") && !path.ends_with("SUMMARY.md"));
    assert_eq!(listed, book.collect());
}

#[test]
fn every_decision_has_a_number_and_is_once_in_their_index() {
    let pages = readme_and_book();
    let folder = Path::new("docs/decisions");
    let index = pages.iter().find(|page| page.path == folder.join("README.md"));
    let mut listed: Vec<PathBuf> =
        links(index.expect("the index")).into_iter().map(|link| folder.join(link.target)).collect();
    listed.sort();
    let decisions = pages.iter().filter(|page| page.path.starts_with(folder));
    let decisions: Vec<&Document> =
        decisions.filter(|page| !page.path.ends_with("README.md")).collect();
    let paths: Vec<PathBuf> = decisions.iter().map(|page| page.path.clone()).collect();
    assert_eq!(listed, paths);
    for (decision, number) in decisions.into_iter().zip(1..) {
        let path = decision.path.display().to_string();
        assert!(path.contains(&format!("/{number:04}-")), "{path} is not number {number}");
        assert!(decision.text.starts_with(&format!("# {number}. ")), "{path}: its title");
    }
}
