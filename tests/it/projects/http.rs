//! Projects over HTTP: statuses, etags and paths.

use rlaas_testkit::process::Rlaas;
use serde_json::json;

use super::client::http;

const RULE: &str = r#"{"rule":{"maxRequests":"5","window":"60s"}}"#;

#[tokio::test]
async fn resources_have_statuses_and_etags() {
    let server = Rlaas::start(&["auth.api-keys=accepted"]);
    let call = |method: &'static str, path: &'static str, headers: String, body: &'static str| {
        let server = &server;
        async move { http(server, method, path, &headers, body).await }
    };
    let none = String::new;
    let created =
        call("POST", "/v1/projects", none(), r#"{"project":{"id":"shop","displayName":"S"}}"#)
            .await;
    assert_eq!((created.status, &created.body["project"]["id"]), (201, &json!("shop")));
    let got = call("GET", "/v1/projects/shop", none(), "").await;
    assert_eq!((got.status, got.etag()), (200, created.etag()));
    let taken = call("POST", "/v1/projects", none(), r#"{"project":{"id":"shop"}}"#).await;
    assert_eq!(taken.status, 409, "{taken:?}");

    let rules = "/v1/projects/shop/rules/pay";
    let put = call("PUT", rules, none(), RULE).await;
    assert_eq!((put.status, &put.body["created"]), (201, &json!(true)), "{put:?}");
    let again = call("PUT", rules, none(), RULE).await;
    assert_eq!((again.status, again.etag()), (200, put.etag()));
    let patch = r#"{"rule":{"maxRequests":"9"},"updateMask":"maxRequests"}"#;
    let if_match = |etag: &str| format!("If-Match: {etag}\r\n");
    let patched = call("PATCH", rules, if_match(put.etag()), patch).await;
    assert_eq!((patched.status, &patched.body["rule"]["rule"]["maxRequests"]), (200, &json!("9")));
    let stale = call("PATCH", rules, if_match(put.etag()), patch).await;
    assert_eq!(stale.status, 409, "{stale:?}");
    let stale = call("DELETE", rules, if_match(put.etag()), "").await;
    assert_eq!(stale.status, 409, "{stale:?}");
    for unquoted in ["x", "\"\"", "\"a\", \"b\"", "W/\"a\""] {
        let refused = call("DELETE", rules, if_match(unquoted), "").await;
        assert_eq!(refused.status, 400, "{unquoted}: {refused:?}");
    }
    let deleted = call("DELETE", rules, if_match("*"), "").await;
    assert_eq!((deleted.status, deleted.body), (204, serde_json::Value::Null));
    assert_eq!(call("GET", rules, none(), "").await.status, 404);

    let key = call("POST", "/v1/projects/shop/keys", none(), "{}").await;
    assert_eq!(key.status, 201, "{key:?}");
    let id = key.body["key"]["id"].as_str().expect("an id").to_owned();
    let rotated =
        http(&server, "POST", &format!("/v1/projects/shop/keys/{id}:rotate"), "", "{}").await;
    assert_eq!((rotated.status, &rotated.body["previous"]["id"]), (200, &json!(id)), "{rotated:?}");
    let revoked = http(&server, "DELETE", &format!("/v1/projects/shop/keys/{id}"), "", "").await;
    assert_eq!(revoked.status, 204);
    let keys = call("GET", "/v1/projects/shop/keys?pageSize=1", none(), "").await;
    assert_eq!(keys.body["keys"].as_array().map(Vec::len), Some(1));
    assert_ne!(keys.body["nextPageToken"], "");

    let rules = format!(r#"{{"rules":[{}]}}"#, r#"{"name":"a","maxRequests":"1","window":"1s"}"#);
    let applied = http(&server, "POST", "/v1/projects/shop/rules:apply", "", &rules).await;
    assert_eq!(
        (applied.status, &applied.body["changes"][0]["kind"]),
        (200, &json!("KIND_CREATED"))
    );
    let number = applied.body["revision"]["revision"].as_str().expect("a number").to_owned();
    let revision = format!("/v1/projects/shop/revisions/{number}");
    assert_eq!(http(&server, "GET", &revision, "", "").await.status, 200);
    let back = http(&server, "POST", &format!("{revision}:rollback"), "", "{}").await;
    assert_eq!(back.status, 200, "{back:?}");
    let listed = call("GET", "/v1/projects/_/rules", none(), "").await;
    assert_eq!((listed.status, &listed.body["rules"]), (200, &json!([])), "{listed:?}");
    let deleted = call("DELETE", "/v1/projects/shop", if_match(created.etag()), "").await;
    assert_eq!(deleted.status, 204);
}

#[tokio::test]
async fn rules_take_up_to_4_mib_and_other_bodies_less() {
    let server = Rlaas::start(&[]);
    let rule = |number: usize| {
        format!(
            r#"{{"name":"r{number}","maxRequests":"1","window":"1s","matchers":[{{"part":"resource","anyOf":["/{number}"]}}]}}"#
        )
    };
    let rules: Vec<String> = (0..5_000).map(rule).collect();
    let body =
        |padding: usize| format!(r#"{{"rules":[{}]{}}}"#, rules.join(","), " ".repeat(padding));
    let most = (4 << 20) - body(0).len();
    for route in ["validate", "apply"] {
        let path = format!("/v1/projects/_/rules:{route}");
        let answer = http(&server, "POST", &path, "", &body(most)).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body["detail"]);
        assert_eq!(answer.body["changes"].as_array().map(Vec::len), Some(5_000), "{path}");
        let refused = http(&server, "POST", &path, "", &body(most + 1)).await;
        assert_eq!(refused.status, 413, "{refused:?}");
        assert_eq!(refused.body["detail"], "body must be at most 4194304 bytes");
    }
    let refused = http(&server, "POST", "/v1/projects/_/rules", "", &body(0)).await;
    assert_eq!(refused.body["detail"], "body must be at most 262144 bytes", "{refused:?}");
}

#[tokio::test]
async fn hostile_paths_and_bodies_are_refused() {
    let server = Rlaas::start(&[]);
    let ids = ["%2e%2e", "a%2Fb", "%00", "shop:x", "SHOP", "%F0%9F%A6%80", "__", "a%0d%0ab"];
    for id in ids {
        let refused = http(&server, "GET", &format!("/v1/projects/{id}"), "", "").await;
        assert_eq!(refused.status, 404, "{id}: {refused:?}");
    }
    for (method, path, body, status, detail) in [
        ("POST", "/v1/projects", "{}", 400, "project must be set"),
        ("POST", "/v1/projects", r#"{"project":{"id":"_"}}"#, 400, "project.id must be"),
        ("POST", "/v1/projects", r#"{"project":{"unmatched":"X"}}"#, 400, "project.unmatched"),
        ("POST", "/v1/projects", "[", 400, "body"),
        (
            "PATCH",
            "/v1/projects/shop",
            r#"{"project":{"id":"blog"}}"#,
            400,
            "project.id must be unset",
        ),
        ("GET", "/v1/projects/shop/revisions/x", "", 400, "revision must be a number"),
        ("GET", "/v1/projects/%ff", "", 400, "projectId must be UTF-8"),
        (
            "PUT",
            "/v1/projects/_/rules/a",
            r#"{"updateMask":"window","rule":{}}"#,
            400,
            "updateMask",
        ),
        ("PUT", "/v1/projects/_/rules/a%20b", RULE, 400, "rule.name must be"),
        ("PUT", "/v1/projects/shop", "{}", 405, "method not allowed"),
        ("GET", "/v1/projects/shop/nothing", "", 404, "unknown path"),
    ] {
        let refused = http(&server, method, path, "", body).await;
        let told = refused.body["detail"].as_str().unwrap_or_default();
        assert_eq!(refused.status, status, "{method} {path} {body}: {refused:?}");
        assert!(told.contains(detail), "{method} {path} {body}: {told}");
    }
    let forbidden =
        http(&server, "DELETE", "/v1/projects/shop", "Origin: http://evil\r\n", "").await;
    assert_eq!(forbidden.status, 403, "{forbidden:?}");
}

#[tokio::test]
async fn whole_rule_may_be_put_in_the_words_of_rules_files() {
    let server = Rlaas::start(&[]);
    http(&server, "POST", "/v1/projects", "", r#"{"project":{"id":"shop"}}"#).await;
    let path = "/v1/projects/shop/rules/pay";
    let seed = r#"{"endpoint":"/pay","strategy":"token_bucket","key_by":"ip","limit_count":5,"window_seconds":60}"#;
    let made = http(&server, "PUT", path, "", seed).await;
    let rule = &made.body["rule"]["rule"];
    assert_eq!((made.status, &rule["name"]), (201, &json!("pay")), "{made:?}");
    assert_eq!((&rule["maxRequests"], &rule["algorithm"]), (&json!("5"), &json!("TOKEN_BUCKET")));
    let named = r#"{"name":"pay","endpoint":"/pay","limit":9,"window":"1m"}"#;
    let again = http(&server, "PUT", path, "", named).await;
    assert_eq!((again.status, &again.body["rule"]["rule"]["maxRequests"]), (200, &json!("9")));
    let other = http(&server, "PUT", path, "", &named.replace("\"pay\"", "\"other\"")).await;
    assert_eq!(other.status, 400, "{other:?}");
    let wrong = http(&server, "PUT", path, "", &named.replace("\"1m\"", "\"never\"")).await;
    assert!(wrong.status == 400 && wrong.body.to_string().contains("window"), "{wrong:?}");
    // A part of a rule is a message.
    assert_eq!(http(&server, "PATCH", path, "", named).await.status, 400);
}
