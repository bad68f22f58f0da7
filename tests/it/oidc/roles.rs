//! Tokens of a real issuer permit what their roles permit, by all protocols.

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_proto::ratelimit::v1::GetConfigRequest;
use tonic::Code;

use super::issuer::IssuerProcess;
use super::signing::SigningKey;
use super::{LISTED, admin, code, http, keys, refused, section, serve, with_token};
use crate::http::client::send_with;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, request};

fn alice() -> proto::Selector {
    let target = Some(Target::Request(request("alice")));
    proto::Selector { target, rule: String::new(), project_id: String::new() }
}

/// Returns the codes of Check, `GetConfig`, an operator's call and an administrator's.
async fn codes(server: &Rlaas, token: &str) -> [Code; 4] {
    let mut client = server.client().await;
    let config = client.get_config(with_token(GetConfigRequest::default(), token)).await.err();
    let mut client = admin(server).await;
    let inspect = proto::InspectRequest { selector: Some(alice()) };
    let inspect = client.inspect(with_token(inspect, token)).await.err();
    let audit = client.list_audit(with_token(proto::ListAuditRequest::default(), token)).await;
    let [config, inspect, audit] = [config, inspect, audit.err()]
        .map(|refused| refused.map_or(Code::Ok, |status| status.code()));
    [code(server, token).await, config, inspect, audit]
}

/// Returns the statuses of the same calls over HTTP.
async fn statuses(server: &Rlaas, token: &str) -> [u16; 4] {
    let status = async |method: &str, target: &str, body: &str| {
        http(server, method, target, token, body).await.0
    };
    let selector = r#"{"selector":{"request":{"userId":"alice"}}}"#;
    [
        status("POST", "/v1/check", r#"{"userId":"alice"}"#).await,
        status("GET", "/rlconfig", "").await,
        status("POST", "/v1/admin/keys:inspect", selector).await,
        status("GET", "/v1/admin/audit", "").await,
    ]
}

#[tokio::test]
async fn token_of_each_role_and_algorithm_permits_its_calls() {
    use Code::{Ok, PermissionDenied as No};
    let Some(issuer) = IssuerProcess::start(0, &keys(&SigningKey::new("ed"))) else { return };
    let server = serve(issuer.name(), "");
    for algorithm in ["RS256", "ES256", "EdDSA"] {
        for (client, expected) in [
            ("shop", [Ok, No, No, No]),
            ("desk", [No, Ok, Ok, No]),
            ("ops", [No, Ok, No, Ok]),
            ("guest", [No; 4]),
            ("nobody", [No; 4]),
        ] {
            let token = issuer.token(client, algorithm).await;
            assert_eq!(codes(&server, &token).await, expected, "{client} {algorithm}");
            let expected = expected.map(|code| if code == Ok { 200 } else { 403 });
            assert_eq!(statuses(&server, &token).await, expected, "{client} {algorithm}");
        }
    }
    assert_eq!(codes(&server, LISTED).await, [Ok, No, No, No]);
    assert_eq!(codes(&server, "unknown").await, [Code::Unauthenticated; 4]);
    assert_eq!(refused(&server, "unauthenticated").await, 4);
}

#[tokio::test]
async fn settings_select_algorithms_and_the_claim_of_roles() {
    let Some(issuer) = IssuerProcess::start(0, &keys(&SigningKey::new("ed"))) else { return };
    let more = ", algorithms: [ES256], roles-claim: realm_access.roles";
    let server = serve(issuer.name(), more);
    for (client, algorithm, expected) in [
        ("ops", "ES256", Code::Ok),
        ("shop", "ES256", Code::PermissionDenied),
        ("ops", "RS256", Code::Unauthenticated),
        ("ops", "EdDSA", Code::Unauthenticated),
    ] {
        let token = issuer.token(client, algorithm).await;
        assert_eq!(code(&server, &token).await, expected, "{client} {algorithm}");
    }
    assert_eq!(refused(&server, "oidc_algorithm").await, 2);
}

#[tokio::test]
async fn audit_names_issuer_and_subject() {
    let Some(issuer) = IssuerProcess::start(0, &keys(&SigningKey::new("ed"))) else { return };
    let server = serve(issuer.name(), "");
    let desk = issuer.token("desk", "RS256").await;
    let mut client = admin(&server).await;
    let reset = proto::ResetRequest {
        selector: Some(alice()),
        reason: "test".to_owned(),
        request_id: String::new(),
    };
    client.reset(with_token(reset, &desk)).await.expect("a reset key");
    let ops = issuer.token("ops", "RS256").await;
    let actor = format!("oidc:{}#desk", issuer.name());
    let filter = proto::ListAuditRequest { actor: actor.clone(), ..Default::default() };
    let entries = client.list_audit(with_token(filter, &ops)).await.expect("entries").into_inner();
    let actors: Vec<&str> = entries.entries.iter().map(|entry| &*entry.actor).collect();
    assert_eq!(actors, [&*actor]);
}

#[tokio::test]
async fn claim_of_projects_limits_the_roles_also_beside_an_api_key() {
    let Some(issuer) = IssuerProcess::start(0, &keys(&SigningKey::new("ed"))) else { return };
    let (dir, more) = (TempDir::new(), ", projects-claim: projects");
    let text = section(issuer.name(), more) + "  api-keys: accepted\n";
    let server = Rlaas::start_from(&dir.write("rlaas.yaml", &text), &[]);
    let ops = issuer.token("of-all", "ES256").await;
    for id in ["shop", "bank"] {
        let project = format!(r#"{{"project":{{"id":"{id}"}}}}"#);
        let (status, answer) = http(&server, "POST", "/v1/projects", &ops, &project).await;
        assert_eq!(status, 201, "{answer}");
    }
    let rules = r#"{"rules":[{"name":"all","maxRequests":1000,"window":"60s"}]}"#;
    // A project without a role does not exist for a caller.
    let clients = [
        ("of-all", [200, 200]),
        ("of-shop", [200, 404]),
        ("of-bank", [404, 200]),
        // A claim that is missing or of another type gives nothing.
        ("of-text", [403; 2]),
        ("of-mixture", [403; 2]),
        ("ops", [403; 2]),
    ];
    for (client, expected) in clients {
        let token = issuer.token(client, "ES256").await;
        for (project, expected) in ["shop", "bank"].into_iter().zip(expected) {
            let path = format!("/v1/projects/{project}");
            let seen = http(&server, "GET", &path, &token, "").await;
            let edited = http(&server, "POST", &format!("{path}/rules:apply"), &token, rules).await;
            assert_eq!([seen.0, edited.0], [expected; 2], "{client} {project}: {edited:?}");
        }
    }
    let (_, answer) = http(&server, "POST", "/v1/projects/shop/keys", &ops, "{}").await;
    let secret = answer.split("\"secret\":\"").nth(1).and_then(|rest| rest.split('"').next());
    let secret = secret.unwrap_or_else(|| panic!("{answer}"));
    let check = async |token: &str, key: &str| {
        let headers = format!("Authorization: Bearer {token}\r\nx-api-key: {key}\r\n");
        let body = r#"{"userId":"alice"}"#;
        send_with(&server, "POST", "/v1/check", &headers, Some(body)).await.status
    };
    for (client, [of_shop, _]) in clients {
        let token = issuer.token(client, "ES256").await;
        let expected = if of_shop == 200 { 200 } else { 403 };
        assert_eq!(check(&token, secret).await, expected, "{client}");
        assert_eq!(check(&token, "x").await, 401, "{client}");
    }
    assert_eq!(check("unknown", secret).await, 401);
}
