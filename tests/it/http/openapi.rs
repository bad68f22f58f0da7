//! `/openapi.json` lists exactly the paths, methods, fields and statuses of the server. The routes of
//! administration are made from descriptors; see `tests/it/admin/openapi.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use prost_reflect::{DescriptorPool, Kind};
use serde_json::Value;

use super::auth::{ADMIN, CHECK, send_as, start_with_auth};
use super::client::{HttpResponse, get, post, send, send_raw};
use super::schema::{problems, resolve};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::free_port;

const METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS"];

fn document() -> Value {
    serde_json::from_str(include_str!("../../../src/api/http/openapi.json")).expect("JSON")
}

/// Returns the operations by path and method in upper case.
fn operations(document: &Value) -> BTreeMap<&str, BTreeMap<String, &Value>> {
    let paths = document["paths"].as_object().expect("paths").iter();
    let of = |item: &'_ Value| -> Vec<String> {
        item.as_object().expect("methods").keys().cloned().collect()
    };
    paths
        .map(|(path, item)| {
            let methods = of(item).into_iter();
            (path.as_str(), methods.map(|name| (name.to_uppercase(), &item[&name])).collect())
        })
        .collect()
}

#[tokio::test]
async fn openapi_document_is_served() {
    let server = Rlaas::start(&[]);
    let answer = get(&server, "/openapi.json").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    // The routes of administration and of projects are added to the file.
    let (mut found, file) = (answer.json(), document());
    for part in ["/paths", "/components/schemas", "/components/responses"] {
        let names = |of: &Value| -> BTreeSet<String> {
            of.pointer(part).and_then(Value::as_object).expect(part).keys().cloned().collect()
        };
        let added: BTreeSet<String> = names(&found).difference(&names(&file)).cloned().collect();
        assert!(!added.is_empty(), "{part}");
        let members = found.pointer_mut(part).and_then(Value::as_object_mut).expect(part);
        members.retain(|name, _| !added.contains(name));
    }
    assert_eq!(found, file);
}

#[test]
fn openapi_document_has_every_path_of_the_router() {
    let mut routes = BTreeSet::new();
    for file in fs::read_dir("src/api/http").expect("the sources") {
        let path = file.expect("a source").path();
        if path.is_dir() {
            continue;
        }
        let text = fs::read_to_string(path).expect("a source");
        let route = |call: &str| call.split('"').next().map(str::to_owned);
        routes.extend(text.split(".route(\"").skip(1).filter_map(route));
    }
    let document = document();
    let described: BTreeSet<String> =
        operations(&document).into_keys().map(str::to_owned).collect();
    assert_eq!(described, routes);
}

#[tokio::test]
async fn openapi_document_has_every_method_of_a_path() {
    let server = Rlaas::start(&[]);
    let document = document();
    for (path, operations) in operations(&document) {
        for method in METHODS {
            let answer = send(&server, method, path, Some("")).await;
            let is_there = operations.contains_key(method);
            match method {
                "OPTIONS" => assert_eq!(answer.status, 204, "{path}"),
                _ => assert_eq!(answer.status != 405, is_there, "{method} {path}: {answer:?}"),
            }
        }
    }
}

#[test]
fn openapi_fields_and_enums_match_the_proto() {
    let pool = DescriptorPool::decode(rlaas_proto::FILE_DESCRIPTOR_SET).expect("descriptors");
    let document = document();
    let schemas = &document["components"]["schemas"];
    let names = |list: &Value| -> BTreeSet<String> {
        let names = list.as_array().into_iter().flatten();
        names.map(|name| name.as_str().expect("a name").to_owned()).collect()
    };
    for name in ["CheckRequest", "CheckResponse", "RuleDecision"] {
        let message = pool.get_message_by_name(&format!("ratelimit.v1.{name}")).expect(name);
        let schema = &schemas[name];
        let fields: BTreeSet<String> =
            message.fields().map(|field| field.json_name().to_owned()).collect();
        let described: BTreeSet<String> =
            schema["properties"].as_object().expect("properties").keys().cloned().collect();
        assert_eq!(described, fields, "{name}");
        // Responses always have the fields without presence.
        if name != "CheckRequest" {
            let always = message.fields().filter(|field| !field.supports_presence());
            let always: BTreeSet<String> =
                always.map(|field| field.json_name().to_owned()).collect();
            assert_eq!(names(&schema["required"]), always, "{name}");
        }
        for field in message.fields() {
            let described = resolve(&document, &schema["properties"][field.json_name()]);
            if let Kind::Enum(of) = field.kind() {
                let values = of.values().map(|value| value.name().to_owned());
                let values = values.filter(|value| !value.ends_with("_UNSPECIFIED")).collect();
                assert_eq!(names(&described["enum"]), values, "{}", field.name());
            }
        }
    }
}

#[test]
fn openapi_examples_fit_their_schemas() {
    let document = document();
    let mut seen = 0;
    for (path, operations) in operations(&document) {
        for (method, operation) in operations {
            let responses = operation["responses"].as_object().expect("responses").values();
            let bodies = responses.map(|response| resolve(&document, response));
            let bodies = bodies.chain(operation.get("requestBody"));
            let contents = bodies.filter_map(|body| body["content"].as_object()).flatten();
            for (_, content) in contents {
                let several = content["examples"].as_object().into_iter().flatten();
                let several = several.map(|(_, example)| &example["value"]);
                for example in several.chain(content.get("example")) {
                    let wrong = problems(&document, &content["schema"], example, "");
                    assert!(wrong.is_empty(), "{method} {path}: {wrong:?}");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen >= 8, "only {seen} examples were found");
}

#[tokio::test]
async fn responses_of_every_status_match_the_openapi_document() {
    let dir = TempDir::new();
    let descriptors = "domain: shop\ndescriptors: [{ key: a, rate_limit: { unit: year, \
                       requests_per_unit: 1 } }]\n";
    let files = format!("envoy.files={}", dir.write("rules.yaml", descriptors).display());
    let server = Rlaas::start(&["rate-limiter.max-requests=1", &files]);
    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    let away = Rlaas::start(&["store.backend=redis", &url, &files]);
    let with_auth = start_with_auth();
    let denies = Rlaas::start(&["unmatched=deny"]);
    let issuer = format!("auth.oidc.issuer=http://127.0.0.1:{}", free_port());
    let no_keys = Rlaas::start(&[&issuer, "auth.oidc.audience=a"]);
    // {"alg":"EdDSA","kid":"a"}
    let signed = "eyJhbGciOiJFZERTQSIsImtpZCI6ImEifQ.e30.AA";
    let by_user = ("GET", "/check?userId=alice", None);
    let large = "x".repeat(300_000);
    let endpoint = r#"{"endpoint":"/r","key":"bob"}"#;
    let check = r#"{"userId":"carol"}"#;
    let incomplete = |path: &str| {
        let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n\r\n");
        let server = &server;
        async move { send_raw(server, head.as_bytes()).await }
    };
    let (late_endpoint, late_check, late_json) =
        tokio::join!(incomplete("/check"), incomplete("/v1/check"), incomplete("/json"));
    let json = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"a","value":"b"}]}]}"#;
    let rules = ("GET", "/rlconfig", None);
    let seen = [
        ("GET", "/check", get(&server, "/check?userId=alice").await),
        ("GET", "/check", get(&server, "/check?userId=alice").await),
        ("GET", "/check", get(&server, "/check").await),
        ("GET", "/check", get(&away, "/check?userId=alice").await),
        ("POST", "/check", post(&server, "/check", endpoint).await),
        ("POST", "/check", post(&server, "/check", endpoint).await),
        ("POST", "/check", post(&server, "/check", "{}").await),
        ("POST", "/check", post(&server, "/check", &large).await),
        ("POST", "/check", post(&away, "/check", endpoint).await),
        ("POST", "/check", late_endpoint),
        ("POST", "/v1/check", post(&server, "/v1/check", check).await),
        ("POST", "/v1/check", post(&server, "/v1/check", check).await),
        ("POST", "/v1/check", post(&server, "/v1/check", "{}").await),
        ("POST", "/v1/check", post(&server, "/v1/check", &large).await),
        ("POST", "/v1/check", post(&away, "/v1/check", check).await),
        ("POST", "/v1/check", late_check),
        ("GET", "/check", send_as(&with_auth, by_user, "wrong").await),
        ("GET", "/check", send_as(&with_auth, by_user, ADMIN).await),
        ("POST", "/check", send_as(&with_auth, ("POST", "/check", Some(endpoint)), "wrong").await),
        ("POST", "/check", send_as(&with_auth, ("POST", "/check", Some(endpoint)), ADMIN).await),
        (
            "POST",
            "/v1/check",
            send_as(&with_auth, ("POST", "/v1/check", Some(check)), "wrong").await,
        ),
        ("POST", "/v1/check", send_as(&with_auth, ("POST", "/v1/check", Some(check)), ADMIN).await),
        ("POST", "/json", post(&server, "/json", json).await),
        ("POST", "/json", post(&server, "/json", json).await),
        ("POST", "/json", post(&server, "/json", "{}").await),
        ("POST", "/json", post(&server, "/json", &large).await),
        ("POST", "/json", post(&away, "/json", json).await),
        ("POST", "/json", late_json),
        ("POST", "/json", send_as(&with_auth, ("POST", "/json", Some(json)), "wrong").await),
        ("POST", "/json", send_as(&with_auth, ("POST", "/json", Some(json)), ADMIN).await),
        ("GET", "/check", send_as(&no_keys, by_user, signed).await),
        ("GET", "/check", send_as(&no_keys, by_user, "a.b.c").await),
        ("POST", "/check", send_as(&no_keys, ("POST", "/check", Some(endpoint)), signed).await),
        ("POST", "/v1/check", send_as(&no_keys, ("POST", "/v1/check", Some(check)), signed).await),
        ("POST", "/json", send_as(&no_keys, ("POST", "/json", Some(json)), signed).await),
        ("GET", "/rlconfig", send_as(&no_keys, rules, signed).await),
        ("GET", "/rlconfig", get(&server, "/rlconfig").await),
        ("GET", "/rlconfig", send_as(&with_auth, rules, "wrong").await),
        ("GET", "/rlconfig", send_as(&with_auth, rules, CHECK).await),
        ("GET", "/healthcheck", get(&server, "/healthcheck").await),
        ("GET", "/healthcheck", get(&away, "/healthcheck").await),
        ("GET", "/check", get(&denies, "/check?userId=alice").await),
        ("POST", "/check", post(&denies, "/check", endpoint).await),
        ("POST", "/v1/check", post(&denies, "/v1/check", check).await),
        ("GET", "/openapi.json", get(&server, "/openapi.json").await),
        ("GET", "/metrics", get(&server, "/metrics").await),
        ("GET", "/livez", get(&server, "/livez").await),
        ("GET", "/readyz", get(&server, "/readyz").await),
        ("GET", "/readyz", get(&away, "/readyz").await),
    ];
    let document = document();
    let operations = operations(&document);
    let mut provoked = BTreeSet::new();
    for (method, path, answer) in &seen {
        let responses = &operations[path][*method]["responses"];
        let status = answer.status.to_string();
        let response = responses.get(&status);
        let response = response.unwrap_or_else(|| panic!("{method} {path}: {answer:?}"));
        assert_matches_description(&document, resolve(&document, response), answer);
        provoked.insert((*path, (*method).to_owned(), status));
    }
    let mut described = BTreeSet::new();
    for (path, operations) in operations {
        for (method, operation) in operations {
            let statuses = operation["responses"].as_object().expect("responses").keys();
            described.extend(statuses.map(|status| (path, method.clone(), status.clone())));
        }
    }
    assert_eq!(provoked, described);
}

#[tokio::test]
async fn response_without_a_rule_matches_the_openapi_document() {
    let server = Rlaas::start(&["unmatched=allow"]);
    let answer = post(&server, "/v1/check", r#"{"userId":"carol"}"#).await;
    let document = document();
    let content = &document["paths"]["/v1/check"]["post"]["responses"]["200"]["content"];
    let wrong = problems(&document, &content["application/json"]["schema"], &answer.json(), "");
    assert!(wrong.is_empty(), "{wrong:?}\n{answer:?}");
}

/// Asserts that a response has the documented body and headers.
fn assert_matches_description(document: &Value, response: &Value, answer: &HttpResponse) {
    let content_type = answer.header("content-type").expect("a content type");
    let content_type = content_type.split(';').next().expect("a type");
    let content = &response["content"][content_type];
    assert!(content.is_object(), "{content_type} is not documented: {answer:?}");
    let body = if content_type.ends_with("json") {
        answer.json()
    } else {
        Value::from(answer.body.as_str())
    };
    let wrong = problems(document, &content["schema"], &body, "");
    assert!(wrong.is_empty(), "{wrong:?}\n{answer:?}");
    let described = response["headers"].as_object().into_iter().flatten();
    let described: BTreeSet<String> = described.map(|(name, _)| name.to_lowercase()).collect();
    for name in answer.limit_headers() {
        assert!(described.contains(name), "{name} is not documented: {answer:?}");
    }
    for name in described {
        assert!(answer.header(&name).is_some(), "{name} is missing: {answer:?}");
    }
}
