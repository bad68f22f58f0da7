//! `GetConfig`: every rule in force, in one response or in pages.

use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_proto::ratelimit::v1::rule_origin::Kind as OriginKind;
use rlaas_proto::ratelimit::v1::{
    DescriptorRule, DescriptorStep, GetConfigRequest, GetConfigResponse, Grant, OnStoreFailure,
    PartMatcher, Rule, RuleMode, RuleOverride, UnmatchedPolicy,
};
use tonic::{Code, Status};

use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;

const RULES: &str = r#"
rate-limiter: {on-store-failure: local, local-share: 0.25}
rules:
  - {name: keys, match: {resource: [/pay, "/api/*"], attributes: {api_key: "*"}},
     key-by: [user_id, resource, api_key], algorithm: token-bucket,
     limit: 10, window: 1s, burst: 20, on-store-failure: deny, breaker-opens-rule: true,
     overridable: true,
     overrides: [{match: {user_id: alice}, limit: 50, burst: 60},
                 {match: {user_id: ops}, unlimited: true},
                 {match: {user_id: "bad*"}, limit: 0}]}
  - {name: open, match: {resource: /open}, shadow: true, on-store-failure: allow,
     limit: 1, window: 1m}
  - {name: zeta, match: {resource: /z}, limit: 1, window: 1m}
envoy: {files: [DIR/shop.yaml]}
"#;

const DESCRIPTORS: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 7, name: per_user, on_store_failure: allow}
    descriptors:
      - {key: path, value: '/a/*', share_threshold: true, detailed_metric: true,
         rate_limit: {unit: hour, requests_per_unit: 0, replaces: [{name: per_user}]}}
  - {key: tokens, value_to_metric: true, quota_mode: true, rate_limit: {unlimited: true}}
";

fn start() -> (Rlaas, TempDir) {
    let dir = TempDir::new();
    dir.write("shop.yaml", DESCRIPTORS);
    let path = dir.path("").display().to_string();
    let file = dir.write("rlaas.yaml", &RULES.replace("DIR/", &path));
    (Rlaas::start_from(&file, &[]), dir)
}

async fn get(
    server: &Rlaas,
    page_size: i32,
    page_token: &str,
) -> Result<GetConfigResponse, Status> {
    let request = GetConfigRequest { page_size, page_token: page_token.to_owned() };
    server.client().await.get_config(request).await.map(tonic::Response::into_inner)
}

fn names(rules: &[Rule]) -> Vec<&str> {
    rules.iter().map(|rule| rule.name.as_str()).collect()
}

fn matcher(part: &str, any_of: &[&str]) -> PartMatcher {
    let any_of = any_of.iter().map(|text| (*text).to_owned()).collect();
    PartMatcher { part: part.to_owned(), any_of }
}

fn step(key: &str, value: &str) -> DescriptorStep {
    DescriptorStep { key: key.to_owned(), value: value.to_owned(), ..DescriptorStep::default() }
}

#[tokio::test]
async fn rules_report_matchers_keys_overrides_and_policies() {
    let (server, _dir) = start();
    let config = get(&server, 0, "").await.expect("a response");
    let names = names(&config.rules);
    assert_eq!(
        names,
        ["default", "keys", "open", "shop.tokens", "shop.user", "shop.user.path_/a/*", "zeta"]
    );
    assert_eq!(config.default_rule.as_ref(), config.rules.first());
    assert_eq!(config.next_page_token, "");

    let [default, keys, open, ..] = &*config.rules else { panic!("{names:?}") };
    assert_eq!((default.matchers.len(), default.overrides.len()), (0, 0));
    assert_eq!(default.key_by, ["user_id"]);
    assert_eq!(default.on_store_failure(), OnStoreFailure::Local);
    assert_eq!((default.local_share_ppm, default.fail_open), (250_000, false));
    assert_eq!((default.mode(), default.shadow), (RuleMode::Enforce, false));

    assert_eq!(
        keys.matchers,
        [matcher("resource", &["/pay", "/api/*"]), matcher("attributes.api_key", &["*"])]
    );
    assert_eq!(keys.key_by, ["user_id", "resource", "attributes.api_key"]);
    assert_eq!((keys.max_requests, keys.burst), (10, 20));
    assert_eq!(keys.on_store_failure(), OnStoreFailure::Deny);
    assert!(keys.breaker_opens_rule && !keys.fail_open);
    assert!(keys.overridable && !default.overridable);
    let other = |user: &str, kind, burst| RuleOverride {
        matchers: vec![matcher("user_id", &[user])],
        grant: Some(Grant { kind: Some(kind), burst }),
        headroom_ppm: 0,
    };
    assert_eq!(
        keys.overrides,
        [
            other("alice", Kind::Limit(50), 60),
            other("ops", Kind::Unlimited(true), 0),
            other("bad*", Kind::Banned(true), 0),
        ]
    );

    assert_eq!((open.mode(), open.shadow), (RuleMode::Shadow, true));
    assert_eq!((open.on_store_failure(), open.fail_open), (OnStoreFailure::Allow, true));
    assert_eq!(open.descriptor_rule, None);
    assert_eq!(config.unmatched(), UnmatchedPolicy::DefaultRule);
    assert_eq!(origin(default), (OriginKind::BuiltIn, ""));
    let (kind, file) = origin(open);
    assert!(kind == OriginKind::File && file.ends_with("/rlaas.yaml"), "{file}");
}

/// Returns the kind and the source of the origin of a rule.
fn origin(rule: &Rule) -> (OriginKind, &str) {
    let origin = rule.origin.as_ref().expect("an origin");
    (origin.kind(), &origin.source)
}

#[tokio::test]
async fn descriptor_rules_report_their_path() {
    let (server, _dir) = start();
    let config = get(&server, 0, "").await.expect("a response");
    let [_, _, _, tokens, user, path, _] = &*config.rules else { panic!("{:?}", config.rules) };
    let shop = DescriptorRule { domain: "shop".to_owned(), ..DescriptorRule::default() };

    assert_eq!((tokens.max_requests, &tokens.window), (i64::MAX, &None));
    assert_eq!(tokens.mode(), RuleMode::Enforce);
    let of_tokens = DescriptorRule {
        path: vec![DescriptorStep { value_to_metric: true, ..step("tokens", "") }],
        quota: true,
        ..shop.clone()
    };
    assert_eq!(tokens.descriptor_rule, Some(of_tokens));

    assert_eq!((user.max_requests, user.on_store_failure()), (7, OnStoreFailure::Allow));
    assert!(user.matchers.is_empty() && user.key_by.is_empty() && user.overrides.is_empty());
    let of_user = DescriptorRule {
        path: vec![step("user", "")],
        limit_name: "per_user".to_owned(),
        ..shop.clone()
    };
    assert_eq!(user.descriptor_rule, Some(of_user));

    assert_eq!((path.max_requests, path.burst), (0, 0));
    assert_eq!(path.window.map(|window| window.seconds), Some(3600));
    let of_path = DescriptorRule {
        path: vec![step("user", ""), DescriptorStep { share: true, ..step("path", "/a/*") }],
        replaces: vec!["per_user".to_owned()],
        detailed_metric: true,
        ..shop
    };
    assert_eq!(path.descriptor_rule, Some(of_path));
    let (kind, file) = origin(path);
    assert!(kind == OriginKind::EnvoyFile && file.ends_with("/shop.yaml"), "{file}");
}

#[tokio::test]
async fn pages_contain_every_rule_once() {
    let (server, _dir) = start();
    let all = get(&server, 0, "").await.expect("a response");
    for size in [1, 3, 6, 7, i32::MAX] {
        let (mut rules, mut token) = (Vec::new(), String::new());
        loop {
            let page = get(&server, size, &token).await.expect("a page");
            assert!(!page.rules.is_empty() && page.rules.len() <= 1000);
            assert!(page.default_rule == all.default_rule && page.revision == all.revision);
            rules.extend(page.rules);
            token = page.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(names(&rules), names(&all.rules), "{size}");
    }
    for (size, token, field) in [(-1, "", "page_size"), (0, "one", "page_token")] {
        let error = get(&server, size, token).await.expect_err("out of bounds");
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().starts_with(&format!("{field} must be ")), "{error}");
        let counted = format!("rlaas_rejected_total{{reason=\"{field}\"}}");
        assert_eq!(server.metric(&counted).await, Some(1.0));
    }
}
