//! `auth.api-keys` unset: keys are checked with the memory store, unless rules of files use them as texts.

use std::time::Duration;

use rlaas_testkit::process::{Rlaas, request, run};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use serde_json::json;

use super::client::http;
use crate::http::client::{HttpResponse, send_with};

const TIMEOUT: Duration = Duration::from_secs(10);
const OFF: &str = "the API key was not checked: auth.api-keys is off";
const BY_KEY: &str =
    "rules: [{name: pay, endpoint: /pay, key-by: [api_key], limit: 1, window: 1h}]\n";
const INVENTED: &str = r#"{"endpoint":"/a","key":"b","api_key":"invented"}"#;
const WITHOUT: &str = r#"{"endpoint":"/a","key":"b"}"#;

/// Asks `POST /check` with this header `x-api-key`, unless it is empty.
async fn check(server: &Rlaas, header: &str, body: &str) -> HttpResponse {
    let header = if header.is_empty() { String::new() } else { format!("x-api-key: {header}\r\n") };
    send_with(server, "POST", "/check", &header, Some(body)).await
}

/// Asks for a decision over gRPC with this `x-api-key`. Returns the warning, or the message of the refusal.
async fn grpc_warning(server: &Rlaas, key: &str) -> Result<Option<String>, String> {
    let mut request = tonic::Request::new(request("alice"));
    request.metadata_mut().insert("x-api-key", key.parse().expect("a header"));
    let response = server.client().await.check(request).await;
    let response = response.map_err(|status| status.message().to_owned())?;
    let warning = response.metadata().get("rlaas-warning");
    Ok(warning.map(|text| text.to_str().expect("a text").to_owned()))
}

#[tokio::test]
async fn fresh_server_makes_projects_and_refuses_invented_keys() {
    let server = Rlaas::start(&[]);
    let log = server.log();
    assert!(log.contains("auth.api-keys is not set mode=\"accepted\""), "{log}");
    let (_, config, _) = run(&["config"]);
    let line = "api-keys: accepted  # default: memory store, and no rule uses api_key\n";
    assert!(config.contains(line), "{config}");
    let made = http(&server, "POST", "/projects", "", r#"{"project_name":"a"}"#).await;
    assert_eq!(made.status, 201, "{made:?}");
    let key = made.body["api_key"].as_str().expect("a key");
    let own = json!({"endpoint": "/a", "key": "b", "api_key": key}).to_string();
    // The project has no rule for it: the key was read.
    assert_eq!(check(&server, "", &own).await.status, 403);
    assert_eq!(check(&server, key, WITHOUT).await.status, 403);
    assert_eq!(check(&server, "", INVENTED).await.status, 401);
    assert_eq!(check(&server, "", WITHOUT).await.status, 200);
    assert_eq!(check(&server, "rlaas_live_invented", WITHOUT).await.status, 401);
    assert_eq!(grpc_warning(&server, key).await, Err("no rule matches".to_owned()));
    assert!(grpc_warning(&server, "rlaas_live_invented").await.is_err());
}

#[tokio::test]
async fn keys_of_others_are_ignored_with_a_warning_unless_the_mode_is_set() {
    let server = Rlaas::start(&["rate-limiter.max-requests=100"]);
    let is_warned = |warning: Option<&str>| {
        assert!(
            warning.is_some_and(|text| text.starts_with("x-api-key was ignored")),
            "{warning:?}"
        );
    };
    for key in ["foreign", "\u{e9}"] {
        let answer = check(&server, key, WITHOUT).await;
        assert_eq!(answer.status, 200);
        is_warned(answer.header("rlaas-warning"));
        // What the body has is checked all the same.
        assert_eq!(check(&server, key, INVENTED).await.status, 401);
        let headers = format!("x-api-key: {key}\r\n");
        let body = Some(r#"{"userId":"a"}"#);
        let answer = send_with(&server, "POST", "/v1/check", &headers, body).await;
        assert_eq!(answer.status, 200);
        is_warned(answer.header("rlaas-warning"));
    }
    is_warned(grpc_warning(&server, "foreign").await.expect("a decision").as_deref());
    let without = check(&server, "", WITHOUT).await;
    assert_eq!((without.status, without.header("rlaas-warning")), (200, None));
    assert_eq!(server.log().matches("API key not checked").count(), 1, "{}", server.log());
    let set = Rlaas::start(&["auth.api-keys=accepted"]);
    assert_eq!(check(&set, "foreign", WITHOUT).await.status, 401);
    assert!(!set.log().contains("auth.api-keys is not set"), "{}", set.log());
}

#[tokio::test]
async fn rules_of_files_and_redis_turn_keys_off_and_each_face_warns() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let file = dir.write("rules.yaml", BY_KEY);
    let by_rule = Rlaas::start_from(&file, &[]);
    let reason = "auth.api-keys is not set mode=\"off\" reason=\"a rule of a file uses api_key\"";
    assert!(by_rule.log().contains(reason), "{}", by_rule.log());
    let on_redis = Rlaas::on_redis(&redis, &[]);
    let reason = "auth.api-keys is not set mode=\"off\" reason=\"the store is redis\"";
    assert!(on_redis.log().contains(reason), "{}", on_redis.log());
    for server in [by_rule, on_redis, Rlaas::start(&["auth.api-keys=off"])] {
        for (header, body) in [("", INVENTED), ("foreign", WITHOUT), ("rlaas_live_x", WITHOUT)] {
            let answer = check(&server, header, body).await;
            assert_eq!((answer.status, answer.header("rlaas-warning")), (200, Some(OFF)));
        }
        assert_eq!(grpc_warning(&server, "foreign").await, Ok(Some(OFF.to_owned())));
        assert_eq!(check(&server, "", WITHOUT).await.header("rlaas-warning"), None);
        assert_eq!(server.log().matches("API key not checked").count(), 1, "{}", server.log());
    }
    for rule in [
        "rate-limiter: {key-by: [api_key]}",
        "rules: [{name: a, limit: 1, window: 1s, match: {attributes: {api_key: x}}}]",
        "rules: [{name: a, limit: 1, window: 1s, overrides: [{match: {attributes: {api_key: x}}, limit: 2}]}]",
    ] {
        let file = dir.write("one.yaml", rule).display().to_string();
        let (_, config, error) = run(&["config", "--config", &file]);
        assert!(
            config.contains("api-keys: off  # default: a rule of a file uses api_key"),
            "{error}"
        );
    }
    // Rules of a project are for requests with a key.
    let service = dir.write("service.yaml", "unmatched: allow\n").display().to_string();
    let shop = dir.write("shop.yaml", &format!("project: shop\n{BY_KEY}")).display().to_string();
    let (_, config, error) = run(&["config", "--config", &service, "--config", &shop]);
    assert!(config.contains("api-keys: accepted"), "{config}{error}");
}

#[tokio::test]
async fn reload_does_not_change_the_mode_and_refuses_rules_that_need_another() {
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", "unmatched: default\n");
    let server = Rlaas::start_from(&file, &[]);
    for text in [BY_KEY.to_owned(), format!("auth: {{api-keys: off}}\n{BY_KEY}")] {
        dir.write("rules.yaml", &text);
        let failed = "must not use api_key unless auth.api-keys is off since the start";
        let is_refused = async || server.log().contains(failed);
        eventually("the reload is refused", TIMEOUT, is_refused).await;
        assert_eq!(check(&server, "", INVENTED).await.status, 401);
    }
    let off = Rlaas::start_from(&file, &[]);
    let _fixed = dir.write("rules.yaml", "unmatched: default\n");
    let is_reloaded = async || off.log().contains("configuration reloaded");
    eventually("the reload ends", TIMEOUT, is_reloaded).await;
    assert_eq!(check(&off, "", INVENTED).await.status, 200, "until a restart");
    assert!(!off.log().contains("takes effect after a restart"), "{}", off.log());
}
