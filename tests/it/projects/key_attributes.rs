//! Attributes of API keys: rules match on them and take limits from them, and no caller sets them.

use rlaas_proto::ratelimit::v1::CheckRequest;
use rlaas_testkit::TempDir;
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, request, run};
use serde_json::{Value, json};
use std::time::Duration;
use tonic::Request;

use super::client::http;

const SOON: Duration = Duration::from_secs(20);

async fn called(server: &Rlaas, method: &str, path: &str, body: Value) -> Value {
    let response = http(server, method, path, "", &body.to_string()).await;
    assert!((200..300).contains(&response.status), "{path}: {response:?}");
    response.body
}

/// A server with a project whose rules use attributes of keys, and a key. Returns its secret and its id.
async fn shop(server: &Rlaas, attributes: Value) -> (String, String) {
    called(server, "POST", "/v1/projects", json!({"project": {"id": "shop"}})).await;
    let rule = |name: &str, more: Value| {
        let mut rule = json!({
            "name": name, "algorithm": "FIXED_WINDOW", "maxRequests": "1", "window": "86400s",
            "matchers": [{"part": "resource", "anyOf": [format!("/{name}")]}]
        });
        rule.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
        rule
    };
    let pro = json!([
        {"part": "resource", "anyOf": ["/plan"]}, {"part": "attributes.key.plan", "anyOf": ["pro"]}
    ]);
    let rules = json!({"rules": [
        rule("quota", json!({"limitFrom": "attributes.key.daily"})),
        rule("plan", json!({"maxRequests": "9", "matchers": pro})),
        rule("tenant", json!({"keyBy": ["attributes.key.tenant"]})),
        rule("own", json!({"limitFrom": "attributes.daily"})),
    ]});
    called(server, "POST", "/v1/projects/shop/rules:apply", rules).await;
    let key = json!({"key": {"displayName": "web", "attributes": attributes}});
    let made = called(server, "POST", "/v1/projects/shop/keys", key).await;
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    (text(&made["secret"]), text(&made["key"]["id"]))
}

fn asked(resource: &str, attributes: &[(&str, &str)]) -> CheckRequest {
    let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let attributes = attributes.iter().map(pair).collect();
    CheckRequest { resource: resource.to_owned(), attributes, ..request("alice") }
}

/// Returns the limit that has decided, and whether it allows; over gRPC.
async fn check(server: &Rlaas, key: &str, request: CheckRequest) -> (u64, bool) {
    let mut call = Request::new(request);
    call.metadata_mut().insert("x-api-key", key.parse().expect("a header"));
    let answer = server.client().await.check(call).await.expect("a decision").into_inner();
    (u64::try_from(answer.limit).expect("a limit"), answer.allowed)
}

#[tokio::test]
async fn attributes_of_a_key_decide_and_no_caller_sets_them() {
    let server = Rlaas::start(&["auth.api-keys=accepted"]);
    let (key, id) = shop(&server, json!({"daily": "2", "plan": "pro", "tenant": "t1"})).await;
    let forged = [("key.daily", "1000"), ("key.plan", "free"), ("key.tenant", "t2")];
    assert_eq!(check(&server, &key, asked("/quota", &forged)).await, (2, true));
    // Over HTTP, in both forms.
    let header = format!("x-api-key: {key}\r\n");
    let body = r#"{"userId":"alice","resource":"/quota","attributes":{"key.daily":"1000"}}"#;
    let answer = http(&server, "POST", "/v1/check", &header, body).await;
    assert_eq!((answer.status, &answer.body["limit"]), (200, &json!("2")), "{answer:?}");
    let body = json!({"endpoint": "/quota", "key": "alice", "api_key": key}).to_string();
    assert_eq!(server.post("/check", &body).await.0, 429);
    // It is denied, and that counts nothing.
    assert_eq!(check(&server, &key, asked("/quota", &forged)).await, (2, false));
    assert_eq!(check(&server, &key, asked("/plan", &forged)).await, (9, true));
    // The state is that of the key's tenant, whatever a caller says.
    assert_eq!(check(&server, &key, asked("/tenant", &forged)).await, (1, true));
    assert_eq!(check(&server, &key, asked("/tenant", &[("key.tenant", "t9")])).await, (1, false));
    // Beside the 32 of a request, and as many of the key.
    let names: Vec<String> = (0..33).map(|number| format!("a{number}")).collect();
    let pairs: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "x")).collect();
    let path = "/v1/projects/shop/keys/".to_owned() + &id;
    let many: serde_json::Map<String, Value> =
        (0..16).map(|number| (format!("{number:0>64}"), json!("v".repeat(256)))).collect();
    let changed = json!({"key": {"attributes": many}, "reason": "a plan"});
    let changed = called(&server, "PATCH", &path, changed).await;
    assert_eq!(changed["key"]["displayName"], "web");
    eventually("the new attributes", SOON, async || {
        check(&server, &key, asked("/quota", &pairs[..31])).await == (1, false)
    })
    .await;
    let mut call = Request::new(asked("/quota", &pairs));
    call.metadata_mut().insert("x-api-key", key.parse().expect("a header"));
    assert!(server.client().await.check(call).await.is_err(), "33 attributes");
    // The audit has what was set.
    let audit = called(&server, "GET", "/v1/admin/audit?projectId=shop", json!({})).await;
    let entry = &audit["entries"][0];
    assert_eq!((&entry["action"], &entry["reason"]), (&json!("UpdateKey"), &json!("a plan")));
    assert!(entry["summary"].as_str().is_some_and(|text| text.contains("attributes")), "{entry}");
    // They stay with the line of the key.
    let rotated = called(&server, "POST", &format!("{path}:rotate"), json!({})).await;
    assert_eq!(rotated["key"]["attributes"], changed["key"]["attributes"]);
    for (attributes, what) in [
        (json!({"a".repeat(65): "x"}), "a long name"),
        (json!({"": "x"}), "no name"),
        (json!({"a": "x".repeat(257)}), "a long value"),
        (
            json!({"0":"","1":"","2":"","3":"","4":"","5":"","6":"","7":"","8":"","9":"","a":"","b":"",
                "c":"","d":"","e":"","f":"","g":""}),
            "17 attributes",
        ),
    ] {
        let body = json!({"key": {"attributes": attributes}}).to_string();
        for (method, path) in [("PATCH", &*path), ("POST", "/v1/projects/shop/keys")] {
            let refused = http(&server, method, path, "", &body).await;
            assert_eq!(refused.status, 400, "{what}");
            assert!(refused.body.to_string().contains("key.attributes must have at most 16"));
        }
    }
    let body = r#"{"key":{"attributes":{"a":"b"}},"updateMask":"environment"}"#;
    let refused = http(&server, "PATCH", &path, "", body).await;
    assert!(refused.body.to_string().contains("update_mask must name"), "{refused:?}");
    http(&server, "DELETE", &path, "", "").await;
    let body = r#"{"key":{"attributes":{"a":"b"}}}"#;
    let ended = http(&server, "PATCH", &path, "", body).await;
    assert!(ended.body.to_string().contains("is revoked, expired or replaced"), "{ended:?}");
}

#[tokio::test]
async fn limit_of_a_request_is_a_number_or_is_counted() {
    let server = Rlaas::start(&["auth.api-keys=accepted"]);
    let (key, _) = shop(&server, json!({})).await;
    let own = async |daily: &str| check(&server, &key, asked("/own", &[("daily", daily)])).await;
    assert_eq!(own("007").await, (7, true));
    let ignored = ["100000000000000000000", "-1", "+5", " 5", "٥", "1000000000000000", ""];
    for daily in ignored {
        assert_eq!(own(daily).await, (1, false), "{daily:?}");
    }
    assert_eq!(own("999999999999999").await, (999_999_999_999_999, true));
    let (_, metrics) = server.get("/metrics").await;
    let counted = format!("rlaas_limit_from_ignored_total{{rule=\"other\"}} {}", ignored.len());
    assert!(metrics.contains(&counted), "{metrics}");
    // 0 denies, and no wait helps.
    let denied = asked("/own", &[("daily", "0")]);
    let mut call = Request::new(denied);
    call.metadata_mut().insert("x-api-key", key.parse().expect("a header"));
    let denied = server.client().await.check(call).await.expect("a decision").into_inner();
    assert_eq!((denied.allowed, denied.reason().as_str_name()), (false, "BANNED"));
    // Denials by small limits have counted nothing.
    for _ in 0..5 {
        assert_eq!(own("1").await, (1, false));
    }
    assert_eq!(own("3").await, (3, true));
    // A key alone knows no request.
    let inspect = json!({"selector": {"projectId": "shop", "request":
        {"userId": "alice", "resource": "/own"}}});
    let keys = called(&server, "POST", "/v1/admin/keys:inspect", inspect).await;
    let state = &keys["keys"][0];
    assert_eq!(state["limitFrom"], "attributes.daily");
    assert_eq!(
        (&state["limit"], &state["used"], &state["remaining"]),
        (&json!("1"), &json!("3"), &json!("0"))
    );
    let request = json!({"projectId": "shop", "request": {"userId": "alice", "resource": "/own",
        "attributes": {"daily": "500"}}});
    let explained = called(&server, "POST", "/v1/admin/explain", request).await;
    assert_eq!(explained["rules"][0]["grantFrom"], "GRANT_FROM_REQUEST");
    let address = server.grpc().to_string();
    let command =
        ["explain", "alice", "--resource", "/own", "--project", "shop", "--addr", &address];
    for (attribute, expected) in [
        ("daily=500", "limit 500, fixed-window, from attributes.daily"),
        ("daily=many", "limit 1, fixed-window, by the rule"),
    ] {
        let (code, out, error) = run(&[&command[..], &["--attribute", attribute]].concat());
        assert_eq!(code, 0, "{error}");
        assert!(out.contains(expected), "{out}");
    }
}

#[test]
fn rules_without_a_project_use_no_attribute_of_keys() {
    let dir = TempDir::new();
    for mode in ["off", "accepted"] {
        let file = dir.write(
            "rules.yaml",
            &format!(
                "auth: {{api-keys: {mode}}}\nrules:\n  \
                 - {{name: a, key-by: [key.plan], limit: 1, window: 1s}}\n  \
                 - {{name: b, match: {{attributes: {{key.plan: x}}}}, limit: 1, window: 1s, \
                      limit-from: attributes.key.daily}}\n  \
                 - {{name: c, limit: 1, window: 1s, limit-from: request, \
                      overrides: [{{match: {{attributes: {{key.plan: x}}}}, limit: 2}}]}}\n"
            ),
        );
        let (code, _, problems) = run(&["check-config", file.to_str().expect("a path")]);
        assert_eq!(code, 64, "{problems}");
        for problem in [
            "rules[0].key-by: must not use key.NAME",
            "rules[1].match.attributes.key.plan: must not use key.NAME",
            "rules[1].limit-from: must not use key.NAME",
            "rules[2].limit-from: must be attributes.NAME",
            "rules[2].overrides[0].match.attributes.key.plan: must not use key.NAME",
        ] {
            assert!(problems.contains(problem), "{problem}: {problems}");
        }
    }
}

#[tokio::test]
async fn rules_of_the_unnamed_project_use_none_at_run_time() {
    let server = Rlaas::start(&["auth.api-keys=off"]);
    let rule =
        |more: &str| format!(r#"{{"rule":{{"name":"a","maxRequests":1,"window":"60s",{more}}}}}"#);
    for (more, field) in [
        (r#""keyBy":["attributes.key.plan"]"#, "rule.key_by"),
        (r#""limitFrom":"attributes.key.daily""#, "rule.limit_from"),
        (r#""limitFrom":"request""#, "rule.limit_from"),
    ] {
        let put = http(&server, "PUT", "/v1/projects/_/rules/a", "", &rule(more)).await;
        assert_eq!(put.status, 400, "{put:?}");
        assert!(put.body.to_string().contains(field), "{put:?}");
    }
    // Whoever sends such an attribute without a key decides nothing by it.
    let own = rule(r#""limitFrom":"attributes.daily""#);
    let put = http(&server, "PUT", "/v1/projects/_/rules/a", "", &own).await;
    assert_eq!(put.status, 201);
    let answer =
        server.client().await.check(asked("/", &[("daily", "4"), ("key.daily", "9")])).await;
    assert_eq!(answer.expect("a decision").into_inner().limit, 4);
}
