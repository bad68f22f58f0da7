//! Projects behind Envoy: their rules, made while the service runs, decide descriptors.

use std::time::Duration;

use rlaas_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use rlaas_testkit::process::{Rlaas, run};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use serde_json::{Value, json};

use super::client::{EnvoyClient, check, client};
use super::kuadrant::KuadrantClient;
use super::proxy::Envoy;

const SOON: Duration = Duration::from_secs(20);
const SETTINGS: [&str; 4] = [
    "auth.api-keys=accepted",
    "envoy.projects.web=shop",
    "envoy.project-entry=tenant",
    "envoy.deadline=10s",
];

async fn post(server: &Rlaas, path: &str, body: Value) -> Value {
    let (status, answer) = server.post(path, &body.to_string()).await;
    assert!((200..300).contains(&status), "{path}: {status} {answer}");
    serde_json::from_str(&answer).expect("JSON")
}

/// Creates a project with rules.
async fn create(server: &Rlaas, id: &str, rules: Value) {
    let created = async || {
        let project = json!({ "project": { "id": id } }).to_string();
        server.post("/v1/projects", &project).await.0 == 201
    };
    eventually("a project", SOON, created).await;
    apply(server, id, rules).await;
}

async fn apply(server: &Rlaas, id: &str, rules: Value) {
    let rules = json!({ "rules": rules, "prune": true });
    post(server, &format!("/v1/projects/{id}/rules:apply"), rules).await;
}

/// A rule of some requests an hour, by a part of the key.
fn rule(name: &str, limit: u64, key_by: &str) -> Value {
    json!({ "name": name, "maxRequests": limit.to_string(), "window": "3600s",
            "algorithm": "GCRA", "keyBy": [key_by] })
}

/// A rule that applies to one value of a part alone.
fn rule_for(name: &str, limit: u64, key_by: &str, (part, value): (&str, &str)) -> Value {
    let mut rule = rule(name, limit, key_by);
    rule["matchers"] = json!([{ "part": part, "anyOf": [value] }]);
    rule
}

/// Asserts that a request gets an answer that begins so, once the rules are in force.
async fn answers(client: &mut EnvoyClient, request: &str, expected: &str) {
    let answer = check(client, request).await;
    assert!(answer.starts_with(expected), "{request}: {answer}");
}

async fn usage(server: &Rlaas, project: &str) -> Value {
    let (_, body) = server.get(&format!("/v1/projects/{project}/usage")).await;
    let body: Value = serde_json::from_str(&body).expect("JSON");
    let row = &body["usage"][0];
    json!([row["allowed"], row["denied"], row["units"]])
}

#[tokio::test]
async fn rules_of_a_project_decide_its_domain() {
    let server = Rlaas::start(&SETTINGS);
    let login = rule_for("login", 1, "attributes.ip", ("resource", "/login"));
    create(&server, "shop", json!([rule("users", 3, "user_id"), login])).await;
    let mut envoy = client(&server).await;
    let alice = "web: user_id=alice,resource=/,ip=::1";
    answers(&mut envoy, alice, "OK [OK 3/HOUR left 2").await;
    // Both rules apply to one descriptor: the answer is that of the one with the fewest units left.
    let at_login = "web: user_id=alice,resource=/login,ip=::1";
    answers(&mut envoy, at_login, "OK [OK 1/HOUR left 0").await;
    answers(&mut envoy, at_login, "OVER_LIMIT [OVER_LIMIT 1/HOUR left 0").await;
    // Nothing was taken from the other rule; and each descriptor has its own answer.
    let both = "web: user_id=alice,resource=/; user_id=bob *2; other=x";
    answers(&mut envoy, both, "OK [OK 3/HOUR left 0").await;
    let answer = check(&mut envoy, "web: user_id=carol; user_id=bob *2").await;
    assert!(answer.starts_with("OVER_LIMIT [OK 3/HOUR left"), "{answer}");
    assert!(answer.contains("| OVER_LIMIT 3/HOUR left 1"), "{answer}");
    // Units are returned; a limit of the request's own is ignored.
    answers(&mut envoy, "web: user_id=bob -2", "OK [OK 3/HOUR left 3").await;
    answers(&mut envoy, "web: user_id=bob =5/minute *0", "OK [OK 3/HOUR left 3").await;
    // No rule matches: refused, as the project says, and no error that a proxy may let pass.
    answers(&mut envoy, "web: other=x", "OVER_LIMIT [OVER_LIMIT]").await;
    // Three that passed, with 1, 1 and 2 units, a refund and a look; three that did not.
    assert_eq!(usage(&server, "shop").await, json!(["5", "3", "4"]));
    let (_, by_rule) = server.get("/v1/projects/shop/usage?by=rule").await;
    assert!(by_rule.contains(r#""rule":"login""#), "{by_rule}");
    // Rules change while the service runs, with the counts that they have.
    apply(&server, "shop", json!([rule("users", 5, "user_id")])).await;
    eventually("the new rules", SOON, async || {
        check(&mut envoy, "web: user_id=dave *0").await.starts_with("OK [OK 5/HOUR left 5")
    })
    .await;
    // A domain without a project is that of Envoy's files: here none, and no entry names a project.
    answers(&mut envoy, "blog: user_id=alice", "OVER_LIMIT [OVER_LIMIT]").await;
}

#[tokio::test]
async fn own_limit_of_a_descriptor_decides_rules_that_ask_for_it() {
    let server = Rlaas::start(&SETTINGS);
    let mut asks = rule("asks", 3, "user_id");
    asks["algorithm"] = json!("FIXED_WINDOW");
    asks["limitFrom"] = json!("request");
    let of_key = rule_for("of-key", 1, "user_id", ("attributes.key.plan", "pro"));
    create(&server, "shop", json!([asks, of_key])).await;
    let mut envoy = client(&server).await;
    for (request, expected) in [
        ("web: user_id=alice =5/hour", "OK [OK 5/HOUR left 4"),
        // No other rule is met: entries of keys are dropped.
        ("web: user_id=alice,key.plan=pro =5/hour", "OK [OK 5/HOUR left 3"),
        ("web: user_id=alice,key.plan=pro", "OK [OK 3/HOUR left 0"),
        ("web: user_id=alice", "OVER_LIMIT [OVER_LIMIT 3/HOUR left 0"),
        ("web: user_id=alice =1/hour", "OVER_LIMIT [OVER_LIMIT 1/HOUR left 0"),
        // Of another window: that of the rule counts.
        ("web: user_id=alice =500/minute", "OVER_LIMIT [OVER_LIMIT 3/HOUR left 0"),
        ("web: user_id=alice =5/hour", "OK [OK 5/HOUR left 1"),
    ] {
        answers(&mut envoy, request, expected).await;
    }
    let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
    let entries = vec![entry("user_id", "bob"), entry("key.plan", "pro")];
    let limit = Some(RateLimitOverride { requests_per_unit: 0, unit: 3, unit_multiplier: None });
    let descriptor = RateLimitDescriptor { entries, limit, ..RateLimitDescriptor::default() };
    let request = RateLimitRequest {
        domain: "web".to_owned(),
        descriptors: vec![descriptor],
        hits_addend: 1,
    };
    let mut kuadrant = KuadrantClient::new(server.channel().await);
    let looked = kuadrant.check_rate_limit(request).await.expect("a look").into_inner();
    assert_eq!(looked.statuses.len(), 1);
    assert_eq!(looked.overall_code(), Code::OverLimit);
    let (_, metrics) = server.get("/metrics").await;
    assert!(metrics.contains("rlaas_limit_from_ignored_total{rule=\"other\"} 1\n"), "{metrics}");
    assert!(!metrics.contains("reason=\"own_limit\",outcome=\"allowed\"} 1"), "{metrics}");
}

#[tokio::test]
async fn entry_names_the_project() {
    let server = Rlaas::start(&SETTINGS);
    for (id, limit) in [("acme", 1), ("blog", 2)] {
        create(&server, id, json!([rule("users", limit, "user_id")])).await;
    }
    let mut envoy = client(&server).await;
    for (request, expected) in [
        ("edge: tenant=acme,user_id=alice", "OK [OK 1/HOUR left 0"),
        ("edge: tenant=acme,user_id=alice", "OVER_LIMIT [OVER_LIMIT 1/HOUR"),
        ("edge: tenant=blog,user_id=alice", "OK [OK 2/HOUR left 1"),
        // One descriptor names it for all.
        ("edge: tenant=blog; user_id=alice", "OK [OK | OK 2/HOUR left 0"),
        ("edge: tenant=blog; tenant=acme", "OVER_LIMIT [OVER_LIMIT | OVER_LIMIT]"),
        // An invented name lets nothing pass.
        ("edge: tenant=nobody,user_id=alice", "OVER_LIMIT [OVER_LIMIT]"),
        ("edge: tenant=A%2F..,user_id=alice", "OVER_LIMIT [OVER_LIMIT]"),
        ("edge: tenant=,user_id=alice", "OVER_LIMIT [OVER_LIMIT]"),
        // A user without a name has no count.
        ("edge: tenant=blog,user_id=", "OVER_LIMIT [OVER_LIMIT]"),
        ("edge: user_id=alice", "OVER_LIMIT [OVER_LIMIT]"),
        // The project of a domain is that of the settings, whatever the entries say.
        ("web: tenant=acme,user_id=alice", "NOT_FOUND"),
    ] {
        answers(&mut envoy, request, expected).await;
    }
    // A key of the project is found by its parts.
    let key = json!({ "selector": { "projectId": "acme", "request": { "userId": "alice" } } });
    let found = post(&server, "/v1/admin/keys:inspect", key).await;
    assert_eq!(found["keys"][0]["rule"], "users", "{found}");
}

#[tokio::test]
async fn what_a_rule_says_holds_for_descriptors() {
    let server = Rlaas::start(&SETTINGS);
    let mut users = rule("users", 2, "user_id");
    users["overridable"] = json!(true);
    let mut calls = rule_for("calls", 10, "attributes.chat", ("attributes.kind", "chat"));
    calls["postPaid"] = json!(true);
    let mut slots = json!({ "name": "slots", "algorithm": "CONCURRENCY", "maxRequests": "1" });
    slots["matchers"] = json!([{ "part": "attributes.kind", "anyOf": ["job"] }]);
    create(&server, "shop", json!([users, calls, slots])).await;
    let mut envoy = client(&server).await;
    for (request, expected) in [
        // A response is charged whatever is left, and the next request is refused.
        ("web: kind=chat,chat=7 *0", "OK [OK 10/HOUR left 10"),
        ("web: kind=chat,chat=7 *25", "OVER_LIMIT [OVER_LIMIT 10/HOUR left 0"),
        ("web: kind=chat,chat=7 *0", "OVER_LIMIT [OVER_LIMIT 10/HOUR left 0"),
        // A look beside a request for the last unit.
        ("web: user_id=eve", "OK [OK 2/HOUR left 1"),
        ("web: user_id=eve; user_id=eve,x=1 *0", "OK [OK 2/HOUR left 0 "),
        // Slots are looked at; the other rules decide.
        ("web: user_id=dan,kind=job", "OK [OK"),
        ("web: user_id=dan,kind=job", "OK [OK"),
        ("web: user_id=dan,kind=job", "OVER_LIMIT [OVER_LIMIT 2/HOUR left 0"),
    ] {
        answers(&mut envoy, request, expected).await;
    }
    // A ban of a key, which names its parts, holds for descriptors with them.
    let ban = json!({ "reason": "abuse", "grant": { "banned": true }, "ttl": "600s",
        "selector": { "projectId": "shop", "rule": "users", "request": { "userId": "mallory" } } });
    post(&server, "/v1/admin/keys:override", ban).await;
    answers(&mut envoy, "web: user_id=mallory", "OVER_LIMIT [OVER_LIMIT").await;
    // The default rule decides descriptors that no other rule does and that name a user; others are refused.
    let policy =
        json!({ "project": { "id": "blog", "unmatched": "UNMATCHED_POLICY_DEFAULT_RULE" } });
    post(&server, "/v1/projects", policy).await;
    apply(&server, "blog", json!([rule("addresses", 1, "attributes.ip")])).await;
    for (request, expected) in [
        ("edge: tenant=blog,user_id=zoe", "OK [OK 5/MINUTE"),
        ("edge: tenant=blog,user_id=zoe,ip=::1", "OK [OK 1/HOUR left 0"),
        ("edge: tenant=blog,other=1", "OVER_LIMIT [OVER_LIMIT]"),
    ] {
        answers(&mut envoy, request, expected).await;
    }
    // More rules than a store decides in one step.
    let many: Vec<Value> = (0..40).map(|at| rule(&format!("r{at}"), 1, "user_id")).collect();
    apply(&server, "shop", json!(many)).await;
    let descriptors = vec!["user_id=a"; 13].join("; ");
    eventually("many rules", SOON, async || {
        let answer = check(&mut envoy, &format!("web: {descriptors}")).await;
        answer == format!("OVER_LIMIT [{}]", vec!["OVER_LIMIT"; 13].join(" | "))
    })
    .await;
    let rejected = server.metric("rlaas_rejected_total{reason=\"descriptors\"}").await;
    assert!(rejected >= Some(1.0), "{rejected:?}");
}

#[tokio::test]
async fn projects_that_are_not_known_are_a_failure() {
    let mut redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    redis.kill();
    let server = Rlaas::start(&[&SETTINGS[..], &["store.backend=redis", &url]].concat());
    let mut envoy = client(&server).await;
    for domain in ["web", "edge"] {
        let request = format!("{domain}: tenant=acme,user_id=alice");
        answers(&mut envoy, &request, "UNAVAILABLE the projects in force are not known").await;
    }
    assert_eq!(server.get("/readyz").await.0, 503);
    redis.restart();
    eventually("the projects are known", SOON, async || {
        let answer = check(&mut envoy, "edge: tenant=acme,user_id=alice").await;
        answer.starts_with("OVER_LIMIT [OVER_LIMIT]")
    })
    .await;
    eventually("it is ready", SOON, async || server.get("/readyz").await.0 == 200).await;
}

#[tokio::test]
async fn wrong_settings_are_named() {
    let dir = TempDir::new();
    let files = "domain: web\ndescriptors:\n  - { key: user, rate_limit: { unit: day, requests_per_unit: 1 } }\n";
    let files = format!("files: {}", dir.write("envoy.yaml", files).display());
    for (settings, expected) in [
        ("projects: { web: Shop }".to_owned(), "envoy.projects.web: must be the id of a project"),
        (format!("{files}, projects: {{ web: shop }}"), "must not be a domain of envoy.files"),
    ] {
        let file = dir.write("rlaas.yaml", &format!("envoy: {{ {settings} }}\n"));
        let (code, _, problems) = run(&["check-config", file.to_str().expect("a path")]);
        assert!(code == 64 && problems.contains(expected), "{code}: {problems}");
    }
}

/// A gateway that knows its customers: it names the project, the user, the path and the address.
#[tokio::test]
async fn customers_behind_a_real_envoy_have_rules_of_their_own() {
    const USER: &str = "- request_headers: { header_name: x-user, descriptor_key: user }";
    const CUSTOMER: &str = "\
        - request_headers: { header_name: x-customer, descriptor_key: tenant }\n\
        \x20                                 - request_headers: { header_name: x-user, descriptor_key: user_id }\n\
        \x20                                 - request_headers: { header_name: ':path', descriptor_key: resource }";
    let server = Rlaas::start(&SETTINGS);
    let edits = [("timeout: 0.020s", "timeout: 20s"), (USER, CUSTOMER)];
    let Some(envoy) = Envoy::in_front_of(&server, &edits).await else { return };
    create(&server, "acme", json!([rule("users", 2, "user_id")])).await;
    let login = rule_for("login", 1, "user_id", ("resource", "/login"));
    create(&server, "blog", json!([rule("users", 9, "user_id"), login])).await;
    let get = async |customer: &str, path: &str| {
        envoy.get(path, &[("x-customer", customer), ("x-user", "alice")]).await.status
    };
    let mut statuses = Vec::new();
    for (customer, path) in [
        ("acme", "/"),
        ("acme", "/"),
        ("acme", "/"),
        ("blog", "/login"),
        ("blog", "/login"),
        ("blog", "/"),
        ("nobody", "/"),
    ] {
        statuses.push(get(customer, path).await);
    }
    assert_eq!(statuses, [200, 200, 429, 200, 429, 200, 429]);
    // A customer pays for more, and has it at once.
    apply(&server, "acme", json!([rule("users", 4, "user_id")])).await;
    eventually("more", SOON, async || get("acme", "/").await == 200).await;
    let (_, rows) = server.get("/v1/projects/acme/usage").await;
    assert!(rows.contains(r#""allowed":"3""#), "{rows}");
}
