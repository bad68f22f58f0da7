//! `hold-share` over gRPC and HTTP.

use rlaas_proto::ratelimit::admin::v1::ExplainRequest;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::v1::GetConfigRequest;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, request, run};

use crate::http::client::post;

const RULES: &str = "\
rules:
  - {name: tokens, endpoint: /llm, algorithm: token-bucket, limit: 30000, window: 1d, reservable: true,
     hold_share: 20%}
";

#[tokio::test]
async fn the_share_is_shown_and_what_is_held() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    let server = Rlaas::start_from(&rules, &[]);
    let config = server.client().await.get_config(GetConfigRequest::default()).await;
    let rules_in_force = config.expect("the configuration").into_inner().rules;
    let shown = rules_in_force.iter().find(|rule| rule.name == "tokens").expect("the rule");
    assert_eq!(shown.hold_share_ppm, 200_000);

    let wanted = r#"{"request": {"userId": "alice", "resource": "/llm", "cost": 12000}}"#;
    let reserved = post(&server, "/v1/reserve", wanted).await;
    assert!(reserved.body.contains(r#""held":"6000""#), "{}", reserved.body);
    let check = r#"{"userId": "alice", "resource": "/llm", "cost": 1}"#;
    let checked = post(&server, "/v1/check", check).await;
    assert!(checked.body.contains(r#""held":"0""#), "{}", checked.body);

    let mut admin = AdminServiceClient::new(server.channel().await);
    let asked = rlaas_proto::ratelimit::v1::CheckRequest {
        resource: "/llm".to_owned(),
        ..request("alice")
    };
    let explained = admin.explain(ExplainRequest { request: Some(asked), ..Default::default() });
    let explained = explained.await.expect("an explanation").into_inner();
    assert_eq!(explained.rules[0].hold_share_ppm, 200_000);
    let file = rules.display().to_string();
    let (code, out, error) = run(&["explain", "--config", &file, "alice", "--resource", "/llm"]);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("token-bucket, held by at most 20%, by the rule"), "{out}");
}
