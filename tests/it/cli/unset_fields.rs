//! Fields of rules that were never set: no answer, export or revision has them.

use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, run};
use serde_json::Value;

/// Runs a command that must succeed, and returns what it prints.
fn printed(server: &Rlaas, command: &[&str]) -> String {
    let (code, out, error) = run(&[command, &["--addr", server.grpc()]].concat());
    assert_eq!(code, 0, "{command:?}: {error}");
    out
}

fn json(server: &Rlaas, command: &[&str]) -> Value {
    let text = printed(server, &[command, &["--project", "shop", "--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns every value of the member `onChange` in an answer, but for that of an unset one.
fn policies(answer: &Value) -> Vec<&str> {
    let mut found = Vec::new();
    match answer {
        Value::Object(members) => {
            let policy = members.get("onChange").and_then(Value::as_str);
            found.extend(policy.filter(|policy| *policy != "ON_CHANGE_UNSPECIFIED"));
            found.extend(members.values().flat_map(policies));
        }
        Value::Array(items) => found.extend(items.iter().flat_map(policies)),
        _ => {}
    }
    found
}

#[test]
fn policy_for_changes_stays_unset() {
    let server = Rlaas::start(&[]);
    printed(&server, &["project", "create", "shop"]);
    let rule = ["rule", "create", "pay", "--limit", "5", "--window", "1m"];
    let made = json(&server, &rule);
    let changed = json(&server, &["rule", "set", "pay", "--limit", "6"]);
    let revision = made["rule"]["rule"]["origin"]["revision"].as_str().expect("a revision");
    let newer = changed["rule"]["rule"]["origin"]["revision"].as_str().expect("a revision");
    assert!(newer.parse::<u64>().expect("a number") > revision.parse().expect("a number"));
    let asked = [
        &["get", "pay"][..],
        &["list"],
        &["history"],
        &["diff"],
        &["diff", "--base", "0"],
        &["set", "pay", "--near-limit", "0.8"],
        &["rollback", revision],
    ];
    let answers = asked.map(|command| json(&server, &[&["rule"][..], command].concat()));
    for answer in [made.clone(), changed.clone()].iter().chain(&answers) {
        assert_eq!(policies(answer), Vec::<&str>::new(), "{answer}");
    }
    let export = ["rule", "export", "--project", "shop"];
    let exported = printed(&server, &export);
    assert!(!exported.contains("on-change") && !exported.contains("revision"), "{exported}");
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", &exported).display().to_string();
    let applied = printed(&server, &["rule", "apply", "-f", &file, "--project", "shop"]);
    assert_eq!(applied, "project shop: no rule changes\n");
    // It is shown where it was set, and unset again.
    json(&server, &["rule", "set", "pay", "--on-change", "scale"]);
    let shown = json(&server, &["rule", "get", "pay"]);
    assert_eq!(policies(&shown), ["ON_CHANGE_SCALE"], "{shown}");
    assert!(printed(&server, &export).contains("on-change: scale\n"));
    json(&server, &["rule", "set", "pay", "--unset", "on-change"]);
    let shown = json(&server, &["rule", "get", "pay"]);
    assert_eq!(policies(&shown), Vec::<&str>::new(), "{shown}");
    // Before the change, and not after it.
    let diff = json(&server, &["rule", "diff"]);
    assert_eq!(policies(&diff["changes"]), ["ON_CHANGE_SCALE"], "{diff}");
}
