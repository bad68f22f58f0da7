//! What the book names exists: files of the repository, and lines of the log.

use std::fs;
use std::path::{Path, PathBuf};

use super::markdown::{Document, code_spans, readme_and_book, root};

/// Folders at the top of the repository, whose files the book names in code spans.
const FOLDERS: [&str; 9] =
    ["benches", "config", "crates", "docs", "examples", "lua", "proto", "src", "tests"];

#[test]
fn files_that_the_book_names_exist() {
    let mut count = 0;
    let mut missing = Vec::new();
    for (document, line, span) in spans() {
        let is_path = FOLDERS.iter().any(|folder| span.starts_with(&format!("{folder}/")));
        let is_plain = !span.contains([' ', '*', '…', '{', '<', '=', ':']);
        // Capitals stand for any name: `lua/NAME.lua`.
        let is_template = span.split(['/', '.']).any(|part| part.len() > 1 && is_capital(part));
        if is_path && is_plain && !is_template {
            count += 1;
            if !root().join(&span).exists() {
                missing.push(format!("{document}:{line}: {span}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(count > 10, "the reader of code spans sees only {count} paths");
}

#[test]
fn lines_of_the_log_that_the_book_names_are_logged() {
    let sources = sources();
    let mut count = 0;
    for document in readme_and_book() {
        for (line, text) in document.prose() {
            let before = text.split("log `").skip(1).filter_map(|rest| rest.split('`').next());
            let after = text.split("` in the log").filter_map(|rest| rest.rsplit('`').next());
            let named_after = after.take(text.matches("` in the log").count());
            for text in before.chain(named_after) {
                count += 1;
                let is_there = sources.iter().any(|source| source.contains(text));
                assert!(is_there, "{}:{line}: nothing logs {text}", document.path.display());
            }
        }
    }
    assert!(count >= 5, "the reader of the book sees only {count} lines of the log");
}

#[test]
fn code_of_the_book_is_code_that_is_tested() {
    let mut count = 0;
    for document in readme_and_book() {
        for block in document.blocks().iter().filter(|block| block.language == "rust") {
            count += 1;
            let place = format!("{}:{}", document.path.display(), block.line);
            let from = block.option("from").unwrap_or_else(|| panic!("{place}: no from=FILE"));
            let source = fs::read_to_string(root().join(from)).expect("a source file");
            let lines = source.lines().map(|line| line.strip_prefix("//! ").unwrap_or(line));
            let source = lines.collect::<Vec<_>>().join("\n");
            assert!(source.contains(block.text.trim_end()), "{place}: {from} has other code");
        }
    }
    assert!(count >= 3, "the reader of the book sees only {count} blocks of Rust");
}

fn spans() -> Vec<(String, usize, String)> {
    let of = |document: &Document| {
        let lines = document.prose();
        let spans = lines.flat_map(|(line, text)| code_spans(text).map(move |span| (line, span)));
        let named = |(line, span): (usize, &str)| {
            (document.path.display().to_string(), line, span.to_owned())
        };
        spans.map(named).collect::<Vec<_>>()
    };
    readme_and_book().iter().flat_map(of).collect()
}

fn is_capital(part: &str) -> bool {
    part.chars().all(|char| char.is_ascii_uppercase())
}

/// The texts of all files in Rust of the service and of its crates.
fn sources() -> Vec<String> {
    let mut sources = Vec::new();
    let mut folders: Vec<PathBuf> = ["src", "crates"].map(|folder| root().join(folder)).into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of the project") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension() == Some("rs".as_ref()) {
                sources.push(fs::read_to_string(Path::new(&path)).expect("a source file"));
            }
        }
    }
    sources
}
