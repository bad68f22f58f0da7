//! Every link of every Markdown file leads to a file and to a heading that exist. URLs are looked at for
//! their form alone: no test asks the network.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use super::markdown::{Document, documents, root, without_code};

/// A link or an image.
#[derive(Debug)]
pub(super) struct Link {
    line: usize,
    pub(super) target: String,
}

/// Returns the links of a document, and the definitions of its references.
///
/// # Panics
///
/// If a reference has no definition.
pub(super) fn links(document: &Document) -> Vec<Link> {
    let mut links = Vec::new();
    let mut definitions = Vec::new();
    let mut references = Vec::new();
    for (line, text) in document.prose() {
        let text = without_code(text);
        if let Some((name, target)) = definition(&text) {
            definitions.push(name.to_owned());
            links.push(Link { line, target: target.to_owned() });
            continue;
        }
        for part in text.split("](").skip(1) {
            let target = part.split_once(')').map(|(target, _)| target.to_owned());
            let target = target.unwrap_or_else(|| panic!("{}:{line}", document.path.display()));
            links.push(Link { line, target });
        }
        let names = text.split("][").skip(1).filter_map(|part| part.split_once(']'));
        references.extend(names.map(|(name, _)| (line, name.to_owned())));
    }
    // Other brackets are text: `host[:port][/database]`.
    let is_name = |name: &str| name.chars().all(|char| char.is_alphanumeric() || char == '-');
    for (line, name) in references.into_iter().filter(|(_, name)| is_name(name)) {
        let path = document.path.display();
        assert!(definitions.contains(&name), "{path}:{line}: [{name}] has no definition");
    }
    links
}

/// Returns the name and the target of `[name]: target`.
fn definition(line: &str) -> Option<(&str, &str)> {
    let (name, target) = line.strip_prefix('[')?.split_once("]: ")?;
    Some((name, target.trim()))
}

/// Returns why a link leads nowhere.
fn problem(from: &Document, target: &str, all: &HashMap<&Path, &Document>) -> Option<String> {
    if let Some((_, rest)) = target.split_once("://") {
        let host = rest.split(['/', '#', '?']).next().unwrap_or_default();
        let is_whole = target.starts_with("https://") || target.starts_with("http://");
        let is_plain =
            !target.contains(|char: char| char.is_whitespace() || "…<>{}".contains(char));
        let is_valid =
            is_whole && is_plain && (host.contains('.') || host.starts_with("localhost"));
        return (!is_valid).then(|| "no valid URL".to_owned());
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (target, None),
    };
    let file = match path {
        "" => from.path.clone(),
        path => match normal(&from.path.parent().expect("a folder").join(path)) {
            Some(file) => file,
            None => return Some("outside of the repository".to_owned()),
        },
    };
    if !root().join(&file).exists() {
        return Some(format!("there is no {}", file.display()));
    }
    if from.path.starts_with("docs") && !file.starts_with("docs") {
        return Some("outside of the book: the built site lacks it".to_owned());
    }
    let anchor = anchor?;
    let Some(document) = all.get(file.as_path()) else {
        return Some(format!("{} has no headings", file.display()));
    };
    let is_there = document.anchors().iter().any(|known| known == anchor);
    (!is_there).then(|| format!("{} has no heading #{anchor}", file.display()))
}

/// Resolves `..` without looking at the disk.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => normal.pop().then_some(())?,
            Component::CurDir => {}
            component => normal.push(component),
        }
    }
    Some(normal)
}

#[test]
fn every_link_leads_somewhere() {
    let documents = documents();
    let all: HashMap<&Path, &Document> =
        documents.iter().map(|document| (document.path.as_path(), document)).collect();
    let mut broken = Vec::new();
    let mut count = 0;
    for document in &documents {
        for Link { line, target } in links(document) {
            count += 1;
            if let Some(problem) = problem(document, &target, &all) {
                broken.push(format!("{}:{line}: {target}: {problem}", document.path.display()));
            }
        }
    }
    assert!(count > 100, "the reader of links sees only {count}");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn broken_links_are_found() {
    let text = "# Some title\n[a](#some-title) ![b](redis.md#other) `[c](code)`\n[d][e]\n\n[e]: https://x\n";
    let one = Document { path: PathBuf::from("docs/rules.md"), text: text.to_owned() };
    let there = Document { path: PathBuf::from("docs/redis.md"), text: String::new() };
    let all = HashMap::from([(one.path.as_path(), &one), (there.path.as_path(), &there)]);
    let found: Vec<(usize, String)> =
        links(&one).into_iter().map(|link| (link.line, link.target)).collect();
    let expected = [(2, "#some-title"), (2, "redis.md#other"), (5, "https://x")];
    assert_eq!(found, expected.map(|(line, target)| (line, target.to_owned())));
    assert_eq!(problem(&one, "#some-title", &all), None);
    assert_eq!(problem(&one, "redis.md", &all), None);
    assert_eq!(problem(&one, "https://example.org/a#b", &all), None);
    for (target, expected) in [
        ("#other", "docs/rules.md has no heading #other"),
        ("nowhere.md", "there is no docs/nowhere.md"),
        ("../../README.md", "outside of the repository"),
        ("../README.md", "outside of the book: the built site lacks it"),
        ("algorithms.svg#axis", "docs/algorithms.svg has no headings"),
        ("https://x", "no valid URL"),
        ("ftp://example.org", "no valid URL"),
    ] {
        assert_eq!(problem(&one, target, &all).as_deref(), Some(expected), "{target}");
    }
}
