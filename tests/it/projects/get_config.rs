//! `GetConfig` of a project: to those with a role there.

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use rlaas_proto::ratelimit::v1::rule_origin::Kind;
use rlaas_proto::ratelimit::v1::{GetConfigRequest, UnmatchedPolicy};
use rlaas_testkit::process::Rlaas;
use tonic::{Code, Request};

use super::client::{client, rule};
use super::roles::{DESK, ROOT, start_with};

/// Names and origins of rules, and what becomes of unmatched requests.
type Config = (Vec<(String, Kind, String)>, UnmatchedPolicy);

/// Returns the rules in force, with where each comes from, and what becomes of unmatched requests.
async fn config(server: &Rlaas, token: &str, key: &str) -> Result<Config, Code> {
    let mut client = RateLimitServiceClient::new(server.channel().await);
    let mut request = Request::new(GetConfigRequest::default());
    for (name, value) in [("authorization", format!("Bearer {token}")), ("x-api-key", key.into())] {
        if !value.ends_with(' ') && !value.is_empty() {
            request.metadata_mut().insert(name, value.parse().expect("a header"));
        }
    }
    let config = client.get_config(request).await.map_err(|status| status.code())?.into_inner();
    let origin = |rule: &rlaas_proto::ratelimit::v1::Rule| {
        let origin = rule.origin.clone().expect("an origin");
        (rule.name.clone(), origin.kind(), origin.source)
    };
    Ok((config.rules.iter().map(origin).collect(), config.unmatched()))
}

#[tokio::test]
async fn rules_of_a_project_are_for_its_roles() {
    let (server, _dir) = start_with("  api-keys: accepted\n");
    let mut root = client(&server, ROOT).await;
    let mut keys = Vec::new();
    for id in ["shop", "blog"] {
        let project = Some(proto::Project { id: id.to_owned(), ..Default::default() });
        let request = proto::CreateProjectRequest { project, ..Default::default() };
        root.create_project(request).await.expect("a project");
        let rule = Some(rule(&format!("{id}-pay"), "/pay"));
        let project_id = || id.to_owned();
        let request =
            proto::CreateRuleRequest { project_id: project_id(), rule, ..Default::default() };
        root.create_rule(request).await.expect("a rule");
        let request = proto::CreateKeyRequest { project_id: project_id(), ..Default::default() };
        keys.push(root.create_key(request).await.expect("a key").into_inner().secret);
    }
    let [shop, blog] = &keys[..] else { panic!("two keys") };
    let default = || ("default".to_owned(), Kind::BuiltIn, String::new());
    let of_shop = ("shop-pay".to_owned(), Kind::RunTime, "shop".to_owned());
    let expected = (vec![default(), of_shop], UnmatchedPolicy::Deny);
    assert_eq!(config(&server, ROOT, shop).await, Ok(expected.clone()));
    assert_eq!(config(&server, DESK, shop).await, Ok(expected));
    let unnamed = (vec![default()], UnmatchedPolicy::DefaultRule);
    assert_eq!(config(&server, ROOT, "").await, Ok(unnamed));
    // No role in that project, or none at all.
    assert_eq!(config(&server, DESK, blog).await, Err(Code::PermissionDenied));
    assert_eq!(config(&server, DESK, "").await, Err(Code::PermissionDenied));
    assert_eq!(config(&server, "", shop).await, Err(Code::Unauthenticated));
}
