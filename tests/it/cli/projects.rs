//! The commands that manage projects and their API keys, against real servers.

use prost_types::Duration;
use rlaas_proto::ratelimit::admin::v1::CreateRuleRequest;
use rlaas_proto::ratelimit::admin::v1::project_service_client::ProjectServiceClient;
use rlaas_proto::ratelimit::v1::{PartMatcher, Rule};
use rlaas_testkit::process::{Rlaas, run};
use serde_json::Value;

/// Runs a command. Returns its exit code, output and errors.
fn called(server: &Rlaas, command: &[&str]) -> (i32, String, String) {
    run(&[command, &["--addr", server.grpc()]].concat())
}

/// Runs a command that must succeed, and returns what it prints.
fn printed(server: &Rlaas, command: &[&str]) -> String {
    let (code, out, error) = called(server, command);
    assert_eq!(code, 0, "{command:?}: {error}");
    out
}

fn json(server: &Rlaas, command: &[&str]) -> Value {
    let text = printed(server, &[command, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn project_is_created_listed_changed_and_deleted() {
    let server = Rlaas::start(&[]);
    let shown = printed(&server, &["project", "create", "shop", "--name", "The shop\nforged"]);
    assert!(shown.starts_with("PROJECT  REVISION  UNMATCHED  CREATED"), "{shown}");
    assert!(shown.contains("\nshop ") && shown.ends_with("  The shop\\nforged\n"), "{shown}");
    let shown = printed(&server, &["project", "list"]);
    let first: Vec<_> = shown.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(first, ["PROJECT", "shop", "_"]);
    let shown = printed(&server, &["project", "list", "--max", "1"]);
    assert!(shown.contains("\nshop ") && shown.ends_with("there are more: --max\n"), "{shown}");

    let before = json(&server, &["project", "get", "shop"])["project"].clone();
    assert_eq!(before["unmatched"], "UNMATCHED_POLICY_DENY");
    let set = ["project", "set", "shop", "--unmatched", "allow"];
    let after = json(&server, &set)["project"].clone();
    assert_eq!(after["unmatched"], "UNMATCHED_POLICY_ALLOW");
    assert_eq!(after["displayName"], before["displayName"]);
    let etag = before["etag"].as_str().expect("an etag");
    for command in [
        &["project", "set", "shop", "--name", "x", "--etag", etag][..],
        &["project", "delete", "shop", "--etag", etag],
    ] {
        let (code, out, error) = called(&server, command);
        assert_eq!((code, &*out), (2, ""), "{command:?}");
        assert!(error.contains("ABORTED"), "{error}");
    }
    assert_eq!(printed(&server, &["project", "delete", "shop"]), "project shop deleted\n");
    assert_eq!(called(&server, &["project", "get", "shop"]).0, 2);
    assert!(printed(&server, &["project", "get", "_"]).contains("\n_ "));
}

#[test]
fn secret_of_a_key_is_alone_on_standard_output_and_never_shown_again() {
    let server = Rlaas::start(&["auth.api-keys=accepted"]);
    printed(&server, &["project", "create", "shop", "--unmatched", "allow"]);
    let again = ["--request-id", "one"];
    let create = ["key", "create", "shop", "--name", "web", "--environment", "test"];
    let create = [&create[..], &["--expires", "2100-01-31T00:00:00Z"], &again].concat();
    let (code, secret, error) = called(&server, &create);
    assert_eq!(code, 0, "{error}");
    let secret = secret.strip_suffix('\n').expect("a line");
    assert!(secret.starts_with("rlaas_test_") && !secret.contains(char::is_whitespace));
    let id = &secret["rlaas_test_".len()..][..8];
    let warning = format!("rlaas: warning: this is the only copy of the secret of key {id}\n");
    assert_eq!(error, warning);

    let (code, out, error) = called(&server, &create);
    assert_eq!((code, &*out), (0, ""));
    assert!(error.contains("was created before, under this request id"), "{error}");
    let list = printed(&server, &["key", "list", "shop"]);
    assert!(list.lines().nth(1).is_some_and(|line| line.starts_with(&format!("{id}  active"))));
    assert!(list.ends_with("  web\n") && !list.contains(secret), "{list}");
    let keys = json(&server, &["key", "list", "shop"]);
    assert_eq!(keys["keys"][0]["expiresAt"], "2100-01-31T00:00:00Z");
    assert_eq!(keys["keys"].as_array().map(Vec::len), Some(1));
}

#[test]
fn keys_that_would_be_ignored_are_refused_and_told() {
    let server = Rlaas::start(&["auth.api-keys=off"]);
    let (code, _, error) = called(&server, &["project", "create", "shop"]);
    assert_eq!(code, 0, "{error}");
    assert!(error.contains("warning: API keys are ignored: set auth.api-keys"), "{error}");
    let (code, _, error) = called(&server, &["key", "create", "shop"]);
    assert_eq!(code, 2);
    assert!(error.contains("FAILED_PRECONDITION: API keys are ignored: set auth"), "{error}");
    let (code, out, error) = called(&server, &["check", "alice", "--api-key", "any"]);
    assert!(code == 0 && out.starts_with("allowed"), "{out}{error}");
    assert!(
        error.contains("warning: the API key was not checked: auth.api-keys is off"),
        "{error}"
    );
    let (_, _, error) = called(&server, &["check", "alice"]);
    assert_eq!(error, "");
}

#[test]
fn key_is_rotated_and_revoked() {
    let server = Rlaas::start(&["auth.api-keys=accepted"]);
    printed(&server, &["project", "create", "shop"]);
    assert_eq!(printed(&server, &["key", "list", "shop"]), "no keys\n");
    let key = json(&server, &["key", "create", "shop", "--expires", "90d"]);
    assert!(key["key"]["expiresAt"].is_string(), "{key}");
    let id = key["key"]["id"].as_str().expect("an id");
    let (code, secret, error) = called(&server, &["key", "rotate", "shop", id, "--grace", "1h"]);
    assert_eq!((code, secret.lines().count()), (0, 1), "{error}");
    assert!(error.contains(&format!("; key {id} ends at 20")), "{error}");
    let new = &secret["rlaas_live_".len()..][..8];
    let (code, out, error) = called(&server, &["key", "rotate", "shop", id]);
    assert_eq!((code, &*out), (2, ""), "{error}");
    assert!(error.contains("FAILED_PRECONDITION"), "{error}");
    let revoked = printed(&server, &["key", "revoke", "shop", new, "--reason", "a leak"]);
    assert_eq!(revoked, format!("key {new} is revoked\n"));
    let list = printed(&server, &["key", "list", "shop"]);
    assert!(list.contains(&format!("{new}  revoked")), "{list}");
    assert!(list.contains(&format!("{id}  active")), "{list}");
    assert!(printed(&server, &["audit"]).contains("a leak"));
}

#[test]
fn wrong_options_and_refusals_of_project_commands_exit_2() {
    let server = Rlaas::start(&[]);
    for (command, expected) in [
        (&["project", "create", "No"][..], "INVALID_ARGUMENT"),
        (&["project", "get", "nobody"], "NOT_FOUND"),
        (&["project", "set", "shop"], "--name"),
        (&["project", "set", "_", "--name", "x"], "FAILED_PRECONDITION"),
        (&["project", "create", "shop", "--unmatched", "ask"], "deny, allow, default"),
        (&["key", "create", "_"], "FAILED_PRECONDITION"),
        (&["key", "create", "shop", "--expires", "soon"], "such as 90d"),
        (&["key", "rotate", "shop", "12345678", "--grace", "31d"], "0s to 30d"),
        (&["key", "revoke", "nobody", "12345678"], "NOT_FOUND"),
    ] {
        let (code, out, error) = called(&server, command);
        assert_eq!((code, &*out), (2, ""), "{command:?}");
        assert!(error.contains(expected), "{command:?}: {error}");
    }
}

/// Makes a rule of five requests an hour.
async fn create_rule(server: &Rlaas, project_id: &str, name: &str) {
    let any_of = vec!["/login".to_owned()];
    let rule = Rule {
        name: name.to_owned(),
        max_requests: 5,
        window: Some(Duration { seconds: 3_600, nanos: 0 }),
        matchers: vec![PartMatcher { part: "resource".to_owned(), any_of }],
        ..Rule::default()
    };
    let request = CreateRuleRequest {
        project_id: project_id.to_owned(),
        rule: Some(rule),
        reason: format!("makes {name}"),
    };
    let mut client = ProjectServiceClient::new(server.channel().await);
    client.create_rule(request).await.expect("a rule");
}

#[tokio::test]
async fn rules_are_listed_deleted_and_restored() {
    let server = Rlaas::start(&[]);
    printed(&server, &["project", "create", "shop"]);
    let of = ["--project", "shop"];
    let shop = |command: &[&str]| printed(&server, &[&["rule"], command, &of].concat());
    assert_eq!(shop(&["list"]), "no rules\n");
    assert_eq!(shop(&["history"]), "no revisions\n");
    create_rule(&server, "shop", "login").await;
    create_rule(&server, "shop", "pay").await;

    let list = shop(&["list"]);
    let login = list.lines().nth(1).expect("a rule");
    assert!(login.starts_with("login      5  "), "{list}");
    assert!(login.contains("  sliding-window-log  enforce  run time  "), "{list}");
    assert!(login.ends_with("  resource=/login"), "{list}");
    assert_eq!(shop(&["get", "login"]).lines().nth(1).map(str::trim_end), Some(login));
    assert!(shop(&["list", "--max", "1"]).ends_with("there are more: --max\n"));

    let delete = [&["rule", "delete", "pay", "--etag", "other"][..], &of].concat();
    let (code, _, error) = called(&server, &delete);
    assert_eq!(code, 2, "{error}");
    assert_eq!(shop(&["delete", "pay", "--reason", "not paid"]), "rule pay deleted\n");
    let history = json(&server, &[&["rule", "history"][..], &of].concat());
    let before = history["revisions"][1]["revision"].as_str().expect("a revision");
    let newest = history["revisions"][0]["revision"].as_str().expect("a revision");
    let shown = shop(&["history"]);
    assert!(shown.lines().nth(1).is_some_and(|line| line.ends_with("  1  not paid")), "{shown}");

    let late = ["rule", "rollback", before, "--expected-revision", before, "--project", "shop"];
    let (code, _, error) = called(&server, &late);
    assert!(code == 2 && error.contains("ABORTED"), "{error}");
    let restored = shop(&["rollback", before, "--expected-revision", newest]);
    assert!(restored.contains("\n  + pay\n      limit: 5\n"), "{restored}");
    assert!(shop(&["list"]).contains("\npay "));
    assert!(shop(&["rollback", before]).ends_with(": nothing was changed\n"));
}
