//! The gateway for a language model: its load overspends without reservations, and never with them.

use std::path::Path;

use rlaas_testkit::process::Rlaas;
use rlaas_testkit::tools::finish;

use super::workbench::Workbench;

/// Duration of the load. The first completions of all users, which looks let in, are more than the
/// bucket grants in this time.
const SECONDS: &str = "3";

#[test]
fn gateway_overspends_only_without_reservations() {
    let bench = Workbench::new("examples/gateway");
    let packages = bench.packages().display().to_string();
    let install = "python3 -m pip install -q --disable-pip-version-check --retries 1 --upgrade -r \
                   requirements.txt --target";
    let install: Vec<&str> = install.split(' ').chain([&*packages]).collect();
    let generate = "python3 -m grpc_tools.protoc -I ../../proto --python_out=. \
                    --grpc_python_out=. ratelimit.proto reservation.proto";
    let generate: Vec<&str> = generate.split(' ').collect();
    if !bench.is_ready(&[&install], &[&generate]) {
        return;
    }
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/gateway/load.yaml");
    let server = Rlaas::start_from(&rules, &[]);
    let mut load = bench.command("python3", &["load.py", SECONDS, server.grpc()]);
    let printed = finish(&mut load).unwrap_or_else(|why| panic!("{why}\n{}", server.log()));
    let granted = number_after(&printed, "of the bucket: ");
    let reserved = number_after(&printed, "with reservations: ");
    let looked = number_after(&printed, "looks and reports: ");
    assert!(reserved > 0 && reserved <= granted, "{printed}");
    assert!(looked > granted, "{printed}");
}

#[test]
fn gateway_has_the_rules_of_the_book() {
    let rules = include_str!("../../../examples/gateway/rules.yaml");
    let page = include_str!("../../../docs/token-limits.md");
    let (schema, rules) = rules.split_once('\n').expect("a first line");
    assert!(schema.starts_with("# yaml-language-server: $schema="), "{schema}");
    assert!(page.contains(rules), "docs/token-limits.md has other rules");
}

/// Returns the number that follows a text.
fn number_after(printed: &str, text: &str) -> u32 {
    let (_, rest) = printed.split_once(text).unwrap_or_else(|| panic!("no {text} in {printed}"));
    let digits = rest.split(|char: char| !char.is_ascii_digit()).next().expect("a first part");
    digits.parse().expect("a number")
}
