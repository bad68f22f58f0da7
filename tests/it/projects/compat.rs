//! `/projects` without `/v1`: the management API of RLaaS on GoRL.

use ring::digest::{SHA256, digest};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;
use serde_json::{Value, json};

use super::client::http;
use crate::http::client::{HttpResponse, send_with};
use crate::http::schema::{problems, resolve};

pub(super) const ROOT: &str = "s3cret-of-root";
const TEAM: &str = "s3cret-of-the-team";
const DESK: &str = "s3cret-of-the-desk";
const CHECK: &str = "s3cret-of-checks";
pub(super) const LOGIN: &str = r#"{"endpoint":"/login","strategy":"sliding_window","key_by":"ip","limit_count":3,"window_seconds":60,"fail_open":true}"#;

/// Starts a server that lists a caller for all projects, one for `shop` and an operator of it.
pub(super) fn start(settings: &[&str]) -> (Rlaas, TempDir) {
    let sha256 = |token: &str| {
        let bytes = digest(&SHA256, token.as_bytes());
        bytes.as_ref().iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    };
    let dir = TempDir::new();
    let entry = |name: &str, token: &str, rest: &str| {
        format!("    - {{name: {name}, sha256: {}, {rest}}}\n", sha256(token))
    };
    let file = [
        "auth:\n  api-keys: accepted\n  tokens:\n".to_owned(),
        entry("root", ROOT, "roles: [admin]"),
        entry("team", TEAM, "roles: [admin], projects: [shop]"),
        entry("desk", DESK, "roles: [operate], projects: [shop]"),
        entry("check", CHECK, "roles: [check]"),
    ];
    let file = dir.write("rlaas.yaml", &file.concat());
    (Rlaas::start_from(&file, settings), dir)
}

/// Calls a route, and compares the response with the description of the API.
pub(super) async fn call(server: &Rlaas, token: &str, of: (&str, &str, &str)) -> HttpResponse {
    let (method, path, body) = of;
    let authorization =
        if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let body = (!["GET", "DELETE"].contains(&method)).then_some(body);
    let content = body.map_or("", |_| "Content-Type: application/json\r\n");
    let response =
        send_with(server, method, path, &format!("{authorization}{content}"), body).await;
    check_description(server, (method, path), &response).await;
    response
}

async fn check_description(server: &Rlaas, of: (&str, &str), response: &HttpResponse) {
    let (method, path) = of;
    let (_, document) = server.get("/openapi.json").await;
    let document: Value = serde_json::from_str(&document).expect("JSON");
    let template = match path.split('/').count() {
        2 => "/projects",
        3 => "/projects/{id}",
        4 => "/projects/{id}/rules",
        _ => "/projects/{id}/rules/{rule}",
    };
    let described = &document["paths"][template][method.to_lowercase()]["responses"];
    let described = resolve(&document, &described[response.status.to_string()]);
    assert!(described.is_object(), "{method} {path}: {response:?}");
    let is_stored = response.header("cache-control") != Some("no-store");
    assert!(!is_stored || response.status >= 400, "{response:?}");
    let Some(content_type) = response.header("content-type") else {
        assert_eq!((response.status, response.body.as_str()), (204, ""));
        return;
    };
    let content_type = content_type.split(';').next().expect("a first part");
    let schema = &described["content"][content_type]["schema"];
    assert!(schema.is_object(), "{method} {path} {content_type}: {response:?}");
    if content_type.ends_with("json") {
        let wrong = problems(&document, schema, &response.json(), "");
        assert!(wrong.is_empty(), "{method} {path}: {wrong:?}");
    }
}

/// Creates a project; returns its path and its API key.
pub(super) async fn create(server: &Rlaas) -> (String, String) {
    let created = call(server, ROOT, ("POST", "/projects", r#"{"project_name":"My API"}"#)).await;
    assert_eq!(created.status, 201, "{created:?}");
    let project = created.json();
    let path = format!("/projects/{}", project["id"].as_str().expect("an id"));
    (path, project["api_key"].as_str().expect("a secret").to_owned())
}

pub(super) async fn check(server: &Rlaas, endpoint: &str, key: &str, api_key: &str) -> u16 {
    let body = json!({ "endpoint": endpoint, "key": key, "api_key": api_key }).to_string();
    send_with(server, "POST", "/check", "", Some(&body)).await.status
}

#[tokio::test]
async fn projects_and_rules_have_their_shapes_and_statuses() {
    let (server, _dir) = start(&[]);
    let (path, secret) = create(&server).await;
    assert!(secret.starts_with("rlaas_live_"), "{secret}");
    let rules = format!("{path}/rules");
    let made = call(&server, ROOT, ("POST", &rules, LOGIN)).await;
    assert_eq!(made.status, 201, "{made:?}");
    let made = made.json();
    let id = made["id"].as_str().expect("an id");
    assert!(id.starts_with("login-") && id.len() == 22, "{id}");
    let expected: Value = serde_json::from_str(LOGIN).expect("JSON");
    for (name, value) in expected.as_object().expect("members") {
        assert_eq!(made[name], *value, "{name}");
    }
    // A second rule for the same endpoint is another one.
    let other = call(&server, ROOT, ("POST", &rules, LOGIN)).await.json();
    assert_ne!(other["id"], made["id"]);
    let deleted = format!("{rules}/{}", other["id"].as_str().expect("an id"));
    assert_eq!(call(&server, ROOT, ("DELETE", &deleted, "")).await.status, 204);
    assert_eq!(call(&server, ROOT, ("DELETE", &deleted, "")).await.status, 404);
    assert_eq!(call(&server, ROOT, ("PUT", &deleted, LOGIN)).await.status, 404);

    let rule = format!("{rules}/{id}");
    let changed = call(&server, ROOT, ("PUT", &rule, r#"{"limit_count":9}"#)).await;
    let mut expected = made.clone();
    expected["limit_count"] = json!(9);
    assert_eq!((changed.status, changed.json()), (200, expected.clone()));
    let body =
        r#"{"endpoint":"/a*","strategy":"fixed_window","key_by":"user_id","fail_open":false}"#;
    for (name, value) in serde_json::from_str::<Value>(body).expect("JSON").as_object().expect("") {
        expected[name] = value.clone();
    }
    assert_eq!(call(&server, ROOT, ("PUT", &rule, body)).await.json(), expected);
    let whole = expected.to_string();
    assert_eq!(call(&server, ROOT, ("PUT", &rule, &whole)).await.json(), expected);
    assert_eq!(call(&server, ROOT, ("GET", &rules, "")).await.json(), json!([expected]));

    let second = call(&server, ROOT, ("POST", "/projects", r#"{"project_name":"B"}"#)).await;
    let second = second.json()["id"].clone();
    let listed = call(&server, ROOT, ("GET", "/projects", "")).await.json();
    let shown = |project: &Value| (project["id"].clone(), project["api_key"].clone());
    assert_eq!(shown(&listed[0]), (second, Value::Null));
    assert_eq!((&listed[1]["api_key"], &listed[1]["rules"]), (&Value::Null, &json!([expected])));
    assert_eq!(
        (&listed[1]["user_id"], &listed[1]["name"]),
        (&json!("token:root"), &json!("My API"))
    );
    assert!(listed.as_array().is_some_and(|list| list.len() == 2), "{listed}");
    assert_eq!(call(&server, ROOT, ("DELETE", &path, "")).await.status, 204);
    for (method, path) in [("DELETE", &path), ("GET", &rules), ("POST", &rules), ("PUT", &rule)] {
        assert_eq!(call(&server, ROOT, (method, path, LOGIN)).await.status, 403, "{method} {path}");
    }
    assert_eq!(check(&server, "/login", "a", &secret).await, 401);
}

/// Starts a server with the project `shop`, and returns the header of a caller for all projects too.
async fn start_with_shop() -> (Rlaas, TempDir, String) {
    let (server, dir) = start(&[]);
    let bearer = format!("Authorization: Bearer {ROOT}\r\n");
    let project = r#"{"project":{"id":"shop"}}"#;
    assert_eq!(http(&server, "POST", "/v1/projects", &bearer, project).await.status, 201);
    (server, dir, bearer)
}

/// A rule as clients of the library GoRL write it.
const PAY: &str = r#"{"endpoint":"/v1/pay","strategy":"token_bucket","key_by":"api_key","limit":100,"window":"10s","fail_open":false}"#;

#[tokio::test]
async fn limit_and_window_are_other_names() {
    let (server, _dir) = start(&[]);
    let (path, _secret) = create(&server).await;
    let rules = format!("{path}/rules");
    let made = call(&server, ROOT, ("POST", &rules, PAY)).await;
    assert_eq!(made.status, 201, "{made:?}");
    let made = made.json();
    assert_eq!((&made["limit_count"], &made["window_seconds"]), (&json!(100), &json!(10)));
    let rule = format!("{rules}/{}", made["id"].as_str().expect("an id"));
    let changed = call(&server, ROOT, ("PUT", &rule, r#"{"limit":7,"window":"1m"}"#)).await.json();
    assert_eq!((&changed["limit_count"], &changed["window_seconds"]), (&json!(7), &json!(60)));
    for (body, problem) in [
        (r#"{"limit":7,"limit_count":7}"#, "limit_count: given twice"),
        (r#"{"window":"1m","window_seconds":60}"#, "window: given twice"),
        (r#"{"window":"soon"}"#, "window must be a duration"),
    ] {
        let refused = call(&server, ROOT, ("PUT", &rule, body)).await;
        assert_eq!(refused.status, 400, "{body}: {refused:?}");
        assert!(refused.body.starts_with(problem), "{body}: {}", refused.body);
    }
}

#[tokio::test]
async fn rule_with_an_endpoint_is_created_over_v1_and_given_a_name() {
    let (server, _dir, bearer) = start_with_shop().await;
    let rules = "/v1/projects/shop/rules";
    let made = http(&server, "POST", rules, &bearer, PAY).await;
    assert_eq!(made.status, 201, "{made:?}");
    let rule = &made.body["rule"]["rule"];
    assert_eq!(rule["name"], "v1-pay-token-bucket", "{rule}");
    assert_eq!((&rule["maxRequests"], &rule["window"]), (&json!("100"), &json!("10s")), "{rule}");
    assert_eq!(rule["keyBy"], json!(["attributes.api_key"]), "{rule}");
    assert_eq!(http(&server, "POST", rules, &bearer, PAY).await.status, 409);
    for (body, problem) in [
        (r#"{"endpoint":"/a","limit":-1,"window":"10s"}"#, "limit: must be"),
        (r#"{"endpoint":"/a","window":"10s"}"#, "limit: missing"),
        (r#"{"endpoint":"/a","limit":1,"window":"1s","burts":2}"#, "unknown field `burts`"),
        (r#"{"endpoint":"/a","limit":0,"window":"10s"}"#, "limit: must be at least 1"),
    ] {
        let refused = http(&server, "POST", rules, &bearer, body).await;
        assert_eq!(refused.status, 400, "{body}: {refused:?}");
        let detail = refused.body["detail"].as_str().expect("a text");
        assert!(detail.contains(problem), "{body}: {detail}");
    }
}

#[tokio::test]
async fn rules_decide_by_the_key_of_post_check() {
    let (server, _dir) = start(&[]);
    let (path, secret) = create(&server).await;
    let rules = format!("{path}/rules");
    assert_eq!(check(&server, "/login", "a", &secret).await, 403);
    for (key_by, other) in
        [("ip", 200), ("user_id", 200), ("token", 200), ("custom", 200), ("api_key", 429)]
    {
        for strategy in ["fixed_window", "sliding_window", "token_bucket", "leaky_bucket"] {
            let endpoint = format!("/{key_by}/{strategy}");
            let rule = json!({
                "endpoint": endpoint, "strategy": strategy, "key_by": key_by, "limit_count": 2,
                "window_seconds": 86_400 * 366,
            });
            let made = call(&server, ROOT, ("POST", &rules, &rule.to_string())).await;
            assert_eq!((made.status, &made.json()["strategy"]), (201, &json!(strategy)));
            for status in [200, 200, 429] {
                assert_eq!(check(&server, &endpoint, "a", &secret).await, status, "{endpoint}");
            }
            assert_eq!(check(&server, &endpoint, "b", &secret).await, other, "{endpoint}");
        }
    }
    assert_eq!(check(&server, "/other", "a", &secret).await, 403);
    assert_eq!(check(&server, "/login", "a", &format!("{secret}0")).await, 401);
}

#[tokio::test]
async fn update_keeps_what_the_shape_does_not_show() {
    let (server, _dir, bearer) = start_with_shop().await;
    let v1 = "/v1/projects/shop/rules/pay";
    let rule = json!({ "rule": {
        "maxRequests": "5", "window": "1.500s", "burst": "7", "algorithm": "GCRA",
        "matchers": [{ "part": "resource", "anyOf": ["/a", "/b"] },
                     { "part": "attributes.plan", "anyOf": ["free"] }],
        "keyBy": ["user_id", "attributes.tenant"], "onStoreFailure": "ON_STORE_FAILURE_LOCAL",
        "localSharePpm": 250_000, "mode": "RULE_MODE_SHADOW",
    }});
    let put = http(&server, "PUT", v1, &bearer, &rule.to_string()).await;
    assert_eq!(put.status, 201, "{put:?}");
    let before = put.body["rule"]["rule"].clone();
    let shown = call(&server, TEAM, ("GET", "/projects/shop/rules", "")).await.json();
    let expected = json!([{
        "id": "pay", "project_id": "shop", "endpoint": "/a,/b", "strategy": "gcra",
        "key_by": "user_id,tenant", "limit_count": 5, "window_seconds": 2, "fail_open": false,
        "created_at": shown[0]["created_at"],
    }]);
    assert_eq!(shown, expected);
    let same =
        call(&server, TEAM, ("PUT", "/projects/shop/rules/pay", &shown[0].to_string())).await;
    assert_eq!((same.status, same.json()), (200, shown[0].clone()));
    let after = http(&server, "GET", v1, &bearer, "").await;
    assert_eq!((&after.body["rule"]["rule"], after.etag()), (&before, put.etag()));
    let one = r#"{"window_seconds":3}"#;
    assert_eq!(call(&server, TEAM, ("PUT", "/projects/shop/rules/pay", one)).await.status, 200);
    let mut expected = before;
    expected["window"] = json!("3s");
    let after = http(&server, "GET", v1, &bearer, "").await.body;
    expected["origin"]["revision"] = after["rule"]["rule"]["origin"]["revision"].clone();
    assert_eq!(after["rule"]["rule"], expected);
    // The other way round: a rule of these routes is changed by those with /v1.
    let made = call(&server, TEAM, ("POST", "/projects/shop/rules", LOGIN)).await.json();
    let v1 = format!("/v1/projects/shop/rules/{}", made["id"].as_str().expect("an id"));
    let patch = json!({ "rule": { "matchers": [{ "part": "resource", "anyOf": ["/c"] }] },
                        "updateMask": "matchers" });
    let patched = http(&server, "PATCH", &v1, &bearer, &patch.to_string()).await;
    assert_eq!(patched.status, 200, "{patched:?}");
    let shown = call(&server, TEAM, ("GET", "/projects/shop/rules", "")).await.json();
    let of = |id: &Value| shown.as_array().into_iter().flatten().find(|rule| rule["id"] == *id);
    let mut expected = made.clone();
    expected["endpoint"] = json!("/c");
    assert_eq!(of(&made["id"]), Some(&expected));
}

#[tokio::test]
async fn foreign_project_is_refused_like_one_that_does_not_exist() {
    let (server, _dir) = start(&[]);
    let bearer = format!("Authorization: Bearer {ROOT}\r\n");
    for id in ["shop", "blog"] {
        let body = json!({ "project": { "id": id } }).to_string();
        assert_eq!(http(&server, "POST", "/v1/projects", &bearer, &body).await.status, 201);
        let body = r#"{"rule":{"maxRequests":"5","window":"1s"}}"#;
        let rule = format!("/v1/projects/{id}/rules/pay");
        assert_eq!(http(&server, "PUT", &rule, &bearer, body).await.status, 201);
    }
    let of = |project: &str| {
        [("GET", ""), ("POST", ""), ("PUT", "/pay"), ("DELETE", "/pay"), ("DELETE", "/none")]
            .map(|(method, rule)| (method, format!("/projects/{project}/rules{rule}")))
    };
    for project in ["blog", "nothing", "_", "%2e%2e", "shop%2Fx", "SHOP", "%00", "%ff"] {
        for (method, path) in of(project) {
            let refused = call(&server, TEAM, (method, &path, LOGIN)).await;
            let body = "no such project, or not yours";
            assert_eq!((refused.status, &*refused.body), (403, body), "{method} {path}");
        }
    }
    for (method, path) in of("shop").into_iter().skip(1) {
        let refused = call(&server, DESK, (method, &path, LOGIN)).await;
        assert_eq!(refused.status, 403, "{method} {path}");
    }
    assert_eq!(call(&server, DESK, ("GET", "/projects/shop/rules", "")).await.status, 200);
    for token in [TEAM, DESK] {
        let listed = call(&server, token, ("GET", "/projects", "")).await.json();
        assert_eq!((&listed[0]["id"], &listed[1]), (&json!("shop"), &Value::Null));
        for (method, path) in [("POST", "/projects"), ("DELETE", "/projects/shop")] {
            let refused = call(&server, token, (method, path, r#"{"project_name":"x"}"#)).await;
            assert_eq!(refused.status, 403, "{method} {path}");
        }
    }
    for (token, status) in [("", 401), ("wrong", 401), (CHECK, 403)] {
        for (method, path) in of("shop").into_iter().chain([("GET", "/projects".to_owned())]) {
            let authorization = format!("Authorization: Bearer {token}\r\n");
            let refused = send_with(&server, method, &path, &authorization, None).await;
            assert_eq!(refused.status, status, "{token} {method} {path}");
        }
    }
}

#[tokio::test]
async fn bad_requests_are_refused_by_the_name_of_the_member() {
    let (server, _dir) = start(&[]);
    let (path, _) = create(&server).await;
    let rules = format!("{path}/rules");
    for (body, text) in [
        ("[]", "body must be a JSON object"),
        ("{", "body: not JSON"),
        ("{}", "project_name: missing"),
        (r#"{"project_name":""}"#, "project_name must be"),
        (r#"{"project_name":7}"#, "project_name must be"),
        (r#"{"project_name":"a","x":1}"#, "x: unknown field"),
        (r#"{"project_name":"a","project_name":"b"}"#, "project_name: given twice"),
        (&json!({ "project_name": "x".repeat(129) }).to_string(), "project_name must be"),
    ] {
        let refused = call(&server, ROOT, ("POST", "/projects", body)).await;
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.body.starts_with(text), "{body}: {}", refused.body);
    }
    let rule: Value = serde_json::from_str(LOGIN).expect("JSON");
    for name in ["endpoint", "strategy", "key_by", "limit_count", "window_seconds"] {
        let mut without = rule.clone();
        without.as_object_mut().expect("members").remove(name);
        let refused = call(&server, ROOT, ("POST", &rules, &without.to_string())).await;
        assert_eq!((refused.status, refused.body), (400, format!("{name}: missing")));
    }
    let mut wrong = vec![
        ("endpoint", json!("")),
        ("endpoint", json!("x".repeat(1025))),
        ("endpoint", json!(["/a"])),
        ("strategy", json!("guess")),
        ("key_by", json!("plan")),
        ("key_by", json!("")),
        ("fail_open", json!("yes")),
    ];
    for name in ["limit_count", "window_seconds"] {
        wrong.extend(
            [json!(0), json!(-1), json!(1.5), json!("5"), json!(1e12)].map(|of| (name, of)),
        );
    }
    let made = call(&server, ROOT, ("POST", &rules, LOGIN)).await.json();
    let of = format!("{rules}/{}", made["id"].as_str().expect("an id"));
    for (name, value) in wrong {
        let mut with = rule.clone();
        with[name] = value;
        for (method, path) in [("POST", &rules), ("PUT", &of)] {
            let refused = call(&server, ROOT, (method, path, &with.to_string())).await;
            assert_eq!(refused.status, 400, "{method} {with}");
            assert!(refused.body.starts_with(&format!("{name} must be")), "{}", refused.body);
            if name == "key_by" {
                assert_eq!(refused.body, "key_by must be ip, user_id, api_key, token or custom");
            }
        }
    }
    for (member, text) in [("id", "id must be that of the path"), ("x", "x: unknown field")] {
        let body = json!({ member: "x" }).to_string();
        assert_eq!(call(&server, ROOT, ("PUT", &of, &body)).await.body, text);
    }
    let most: Vec<u16> = call_many(&server, &rules).await;
    assert!(most[..62].iter().all(|status| *status == 201) && most[63..] == [400], "{most:?}");
    let large = format!(r#"{{"endpoint":"{}"}}"#, "x".repeat(300_000));
    assert_eq!(call(&server, ROOT, ("POST", &rules, &large)).await.status, 413);
    let bearer = format!("Authorization: Bearer {ROOT}\r\n");
    let form = format!("{bearer}Content-Type: text/plain\r\n");
    assert_eq!(send_with(&server, "POST", &rules, &form, Some(LOGIN)).await.status, 415);
    let foreign = format!("{bearer}Origin: http://evil.example\r\n");
    assert_eq!(send_with(&server, "DELETE", &path, &foreign, None).await.status, 403);
    for (method, path, allow) in [
        ("PATCH", "/projects", "GET, POST"),
        ("GET", path.as_str(), "DELETE"),
        ("PUT", &rules, "GET, POST"),
        ("GET", &of, "PUT, DELETE"),
    ] {
        let refused = send_with(&server, method, path, &bearer, None).await;
        assert_eq!((refused.status, refused.header("allow")), (405, Some(allow)), "{path}");
    }
    for unknown in ["/projects/", "/projects/a/keys", "/projects/a/rules/b/c"] {
        assert_eq!(send_with(&server, "GET", unknown, &bearer, None).await.status, 404);
    }
}

/// Creates rules that match every request, until there are more than a request may match.
async fn call_many(server: &Rlaas, rules: &str) -> Vec<u16> {
    let rule = LOGIN.replace("/login", "*");
    let mut statuses = Vec::new();
    for _ in 0..64 {
        statuses.push(call(server, ROOT, ("POST", rules, &rule)).await.status);
    }
    statuses
}

#[tokio::test]
async fn other_machines_and_hosts_manage_nothing_while_nobody_is_listed() {
    let server = Rlaas::start(&["auth.api-keys=accepted"]);
    let name = r#"{"project_name":"a"}"#;
    let json = "Content-Type: application/json\r\n";
    // Its Host is not local.
    assert_eq!(send_with(&server, "GET", "/projects", "", None).await.status, 403);
    assert_eq!(send_with(&server, "POST", "/projects", json, Some(name)).await.status, 403);
    let made = http(&server, "POST", "/projects", "", name).await;
    assert_eq!((made.status, &made.body["user_id"]), (201, &json!("local")), "{made:?}");
    let listed = http(&server, "GET", "/projects", "", "").await;
    assert_eq!(listed.body[0]["id"], made.body["id"]);
    let proxied = http(&server, "GET", "/projects", "X-Forwarded-For: 10.0.0.1\r\n", "").await;
    assert_eq!(proxied.status, 403);
}
