//! Rules that were made without `/v1`, seen by all other ways: their keys stay what they are.

use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, run};
use serde_json::{Value, json};

use super::client::http;
use super::compat::{LOGIN, ROOT, call, check, create, start};

/// Runs a command that must succeed, and returns what it prints.
fn printed(server: &Rlaas, command: &[&str]) -> String {
    let options = ["--addr", server.grpc(), "--token", ROOT, "--timeout", "60s"];
    let (code, out, error) = run(&[command, &options[..]].concat());
    assert_eq!(code, 0, "{command:?}: {error}");
    out
}

/// Makes a rule by each key. Returns the names by key.
async fn make_rules(server: &Rlaas, path: &str) -> Vec<(&'static str, String)> {
    let mut made = Vec::new();
    for key_by in ["ip", "token", "custom", "user_id", "api_key"] {
        let mut rule: Value = serde_json::from_str(LOGIN).expect("JSON");
        rule["key_by"] = json!(key_by);
        rule["endpoint"] = json!(format!("/{key_by}"));
        let rules = format!("{path}/rules");
        let made_rule = call(server, ROOT, ("POST", &rules, &rule.to_string())).await.json();
        made.push((key_by, made_rule["id"].as_str().expect("an id").to_owned()));
    }
    made
}

/// The key of a rule in messages.
fn in_messages(key_by: &str) -> String {
    match key_by {
        "user_id" => key_by.to_owned(),
        "api_key" => "attributes.api_key".to_owned(),
        name => format!("attributes.{name}|user_id"),
    }
}

#[tokio::test]
async fn exported_rules_have_their_keys_on_another_server() {
    let (server, _dir) = start(&[]);
    let (path, _) = create(&server).await;
    let made = make_rules(&server, &path).await;
    let project = path.rsplit('/').next().expect("an id");
    let files = TempDir::new();
    let file = files.path("rules.yaml").display().to_string();
    printed(&server, &["rule", "export", "--project", project, "-o", &file]);
    let yaml = std::fs::read_to_string(&file).expect("a file");
    for key in ["ip|user_id", "token|user_id", "custom|user_id", "api_key"] {
        assert!(yaml.contains(&format!("key-by: {key}\n")), "{key}: {yaml}");
    }
    // On the same server nothing changes.
    let applied = printed(&server, &["rule", "apply", "-f", &file]);
    assert_eq!(applied, format!("project {project}: no rule changes\n"));

    let (other, _dir) = start(&[]);
    printed(&other, &["project", "create", project]);
    printed(&other, &["rule", "apply", "-f", &file]);
    let key: Value = {
        let command = ["key", "create", project, "--json"];
        serde_json::from_str(&printed(&other, &command)).expect("JSON")
    };
    let secret = key["secret"].as_str().expect("a secret");
    for (key_by, name) in &made {
        let endpoint = format!("/{key_by}");
        for status in [200, 200, 200, 429] {
            assert_eq!(check(&other, &endpoint, "a", secret).await, status, "{endpoint}");
        }
        let of_another = if *key_by == "api_key" { 429 } else { 200 };
        assert_eq!(check(&other, &endpoint, "b", secret).await, of_another, "{endpoint}");
        // It is shown there as here.
        let rules = format!("/projects/{project}/rules");
        let all = [&server, &other].map(|on| call(on, ROOT, ("GET", &rules, "")));
        for shown in futures_util::future::join_all(all).await {
            let shown = shown.json();
            let rule = shown.as_array().into_iter().flatten().find(|rule| rule["id"] == **name);
            assert_eq!(rule.map(|rule| &rule["key_by"]), Some(&json!(key_by)));
        }
    }
}

#[tokio::test]
async fn rule_that_is_written_as_it_is_shown_does_not_change() {
    let (server, _dir) = start(&[]);
    let (path, _) = create(&server).await;
    let bearer = format!("Authorization: Bearer {ROOT}\r\n");
    for (key_by, name) in make_rules(&server, &path).await {
        let rule = format!("/v1{path}/rules/{name}");
        let shown = http(&server, "GET", &rule, &bearer, "").await;
        let message = &shown.body["rule"]["rule"];
        assert_eq!(message["keyBy"], json!([in_messages(key_by)]), "{shown:?}");
        let body = json!({ "rule": message }).to_string();
        let put = http(&server, "PUT", &rule, &bearer, &body).await;
        assert_eq!((put.status, put.etag()), (200, shown.etag()), "{put:?}");
        assert_eq!(put.body["rule"], shown.body["rule"]);
        // A mask of the key alone writes what it says.
        let masked = json!({ "rule": { "keyBy": ["attributes.ip"] }, "updateMask": "keyBy" });
        let after = http(&server, "PATCH", &rule, &bearer, &masked.to_string()).await;
        assert_eq!(after.body["rule"]["rule"]["keyBy"], json!(["attributes.ip"]), "{after:?}");
    }
}
