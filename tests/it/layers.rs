//! The layers of the service: a module uses only those above it in the table of
//! `docs/architecture.md`.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use super::sources::{code_lines, files_below};

/// The modules of the service. Each may use those before it.
const LAYERS: [&str; 5] = ["api", "server", "config", "run", "cli"];

#[test]
fn modules_use_only_the_layers_above_them() {
    let (mut count, mut wrong) = (0, Vec::new());
    for file in files_below("src", "rs") {
        let path = file.strip_prefix("src").expect("a file below src");
        let name = path.iter().next().and_then(|first| first.to_str()).expect("a name");
        let module = name.trim_end_matches(".rs");
        if matches!(module, "lib" | "main") {
            continue;
        }
        let layer = LAYERS.iter().position(|layer| *layer == module);
        let layer = layer.unwrap_or_else(|| panic!("{module} has no layer"));
        let text = fs::read_to_string(&file).expect("a source file");
        for (number, line) in code_lines(&text) {
            assert!(!line.contains("crate::{"), "{}:{number}: one path a line", file.display());
            let used = line
                .split("crate::")
                .skip(1)
                .map(|rest| rest.split(|char: char| !char.is_alphanumeric() && char != '_').next());
            for used in used.flatten() {
                let Some(of) = LAYERS.iter().position(|layer| *layer == used) else { continue };
                count += 1;
                if of > layer {
                    wrong.push(format!("{}:{number}: {module} uses {used}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count > 100, "only {count} uses were found");
}

/// Pages call the service by messages: their crate knows neither stores nor the traits of the services.
#[test]
fn the_console_has_no_way_to_the_store() {
    let arguments =
        ["tree", "--locked", "--offline", "-p", "rlaas-console", "-e", "normal,features"];
    let tree = Command::new(env!("CARGO")).args(arguments).args(["--prefix", "none"]).output();
    let tree = String::from_utf8(tree.expect("cargo").stdout).expect("a tree");
    assert!(tree.contains("rlaas-proto feature \"client\""), "{tree}");
    for line in tree.lines() {
        let is_own = line.starts_with("rlaas-console ") || line.starts_with("rlaas-proto ");
        assert!(is_own || !(line.contains("rlaas") || line.contains("redis")), "{line}");
        assert!(!line.starts_with("rlaas-proto feature \"server\""), "{line}");
    }
}

#[test]
fn every_module_has_its_place_in_the_table() {
    let text = fs::read_to_string("src/lib.rs").expect("the modules");
    let modules = text.lines().filter_map(|line| {
        let line = line.strip_prefix("pub ").unwrap_or(line);
        line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'))
    });
    assert_eq!(modules.collect::<BTreeSet<_>>(), LAYERS.into_iter().collect());
    let map = fs::read_to_string("docs/architecture.md").expect("the map of the code");
    let row = |layer| map.find(&format!("\n| `{layer}` |"));
    let rows = LAYERS.map(|layer| row(layer).unwrap_or_else(|| panic!("no row of {layer}")));
    assert!(rows.is_sorted(), "the table is in the order of the layers");
}
