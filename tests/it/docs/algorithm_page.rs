//! The page on adding an algorithm lists the names that the registry uses of each algorithm, and no other.

use std::collections::BTreeSet;
use std::fs;

use super::markdown::{code_spans, root};

const REGISTRY: &str = "crates/core/src/algorithm/mod.rs";
const PAGE: &str = "docs/architecture/new-algorithm.md";

/// Returns the names that the registry uses of each module and of its state.
fn used_names(registry: &str) -> BTreeSet<&str> {
    let of_module = registry.split("$module::").skip(1);
    let of_state = registry.split("(state) => state.").skip(1);
    let end = |rest: &str| rest.find(|char: char| !char.is_alphanumeric() && char != '_');
    of_module.chain(of_state).map(|rest| &rest[..end(rest).unwrap_or(rest.len())]).collect()
}

/// Returns the names in the first column of the page's table.
fn listed_names(page: &str) -> BTreeSet<&str> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    cells.flat_map(code_spans).collect()
}

#[test]
fn page_on_algorithms_lists_what_the_registry_uses() {
    let [registry, page] = [REGISTRY, PAGE]
        .map(|path| fs::read_to_string(root().join(path)).expect("a file in UTF-8"));
    let used = used_names(&registry);
    assert!(used.contains("MAX_COST") && used.contains("decide"), "{REGISTRY}: {used:?}");
    assert_eq!(listed_names(&page), used, "the table of {PAGE} and the registry in {REGISTRY}");
}

#[test]
fn names_of_registry_and_page_are_read() {
    let registry =
        "$module::HAS_BURST,\n$module::decide(state)\n$variant(state) => state.is_valid(),";
    assert_eq!(used_names(registry), ["HAS_BURST", "decide", "is_valid"].into());
    let page = "| name | `x` |\n| --- | --- |\n| `HAS_BURST`, `decide` | `other` |\n1. `NAME.rs`\n";
    assert_eq!(listed_names(page), ["HAS_BURST", "decide"].into());
}
