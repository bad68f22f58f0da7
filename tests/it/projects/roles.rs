//! Roles of projects: nobody sees or changes a project without a role in it.

use ring::digest::{SHA256, digest};
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::Rule;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, run};
use serde_json::{Value, json};
use tonic::Code;

use super::client::{client, http, rule};

pub(crate) const ROOT: &str = "s3cret-of-root";
pub(crate) const TEAM: &str = "s3cret-of-the-team";
pub(crate) const DESK: &str = "s3cret-of-the-desk";

fn start() -> (Rlaas, TempDir) {
    start_with("")
}

/// Starts a server with callers for all projects and for one, and other settings of `auth`.
pub(super) fn start_with(settings: &str) -> (Rlaas, TempDir) {
    start_on(settings, &[])
}

/// Returns the hash by which settings name a token.
pub(super) fn sha256(token: &str) -> String {
    let bytes = digest(&SHA256, token.as_bytes());
    bytes.as_ref().iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// The same, with options of the command line.
pub(crate) fn start_on(settings: &str, options: &[&str]) -> (Rlaas, TempDir) {
    let dir = TempDir::new();
    let file = dir.write(
        "rlaas.yaml",
        &format!(
            "auth:\n{settings}  tokens:\n    - {{name: root, sha256: {}, roles: [operate, admin]}}\n    \
             - {{name: team, sha256: {}, roles: [operate, admin], projects: [shop]}}\n    \
             - {{name: desk, sha256: {}, roles: [operate], projects: [shop]}}\n",
            sha256(ROOT),
            sha256(TEAM),
            sha256(DESK)
        ),
    );
    (Rlaas::start_from(&file, options), dir)
}

const ROUTES: &[(&str, &str, &str)] = &[
    ("GET", "", ""),
    ("PATCH", "", r#"{"project":{"displayName":"x"}}"#),
    ("DELETE", "", ""),
    ("POST", "/keys", "{}"),
    ("GET", "/keys", ""),
    ("POST", "/keys/k:rotate", "{}"),
    ("DELETE", "/keys/k", ""),
    ("POST", "/rules", r#"{"rule":{"name":"a","maxRequests":"1","window":"1s"}}"#),
    ("GET", "/rules/pay", ""),
    ("GET", "/rules", ""),
    ("PUT", "/rules/pay", r#"{"rule":{"maxRequests":"1","window":"1s"}}"#),
    ("PATCH", "/rules/pay", r#"{"rule":{"maxRequests":"1","window":"1s"}}"#),
    ("DELETE", "/rules/pay", ""),
    ("POST", "/rules:apply", r#"{"prune":true}"#),
    ("POST", "/rules:validate", "{}"),
    ("GET", "/revisions", ""),
    ("GET", "/revisions/0", ""),
    ("POST", "/revisions/1:rollback", "{}"),
    ("GET", "/usage", ""),
];

#[tokio::test]
async fn foreign_project_does_not_exist() {
    let (server, _dir) = start();
    let (mut root, mut team) = (client(&server, ROOT).await, client(&server, TEAM).await);
    for id in ["shop", "blog"] {
        let project = Some(proto::Project { id: id.to_owned(), ..Default::default() });
        let request = proto::CreateProjectRequest { project, ..Default::default() };
        root.create_project(request).await.expect("a project");
        let request = proto::CreateRuleRequest {
            project_id: id.to_owned(),
            rule: Some(rule("pay", "/pay")),
            reason: String::new(),
        };
        root.create_rule(request).await.expect("a rule");
    }
    let before = root.get_project(proto::GetProjectRequest { project_id: "blog".to_owned() }).await;
    let before = before.expect("a project").into_inner();
    let bearer = format!("Authorization: Bearer {TEAM}\r\n");
    for (method, path, body) in ROUTES {
        let mut answers = Vec::new();
        for project in ["nothing", "blog", "_"] {
            let path = format!("/v1/projects/{project}{path}");
            let answer = http(&server, method, &path, &bearer, body).await;
            assert_eq!(answer.status, 404, "{method} {path}: {answer:?}");
            answers.push(answer.body);
        }
        assert!(answers.iter().all(|body| *body == answers[0]), "{method} {path}: {answers:?}");
    }
    for project in ["nothing", "blog", ""] {
        for path in ["overrides?", "audit?", "decisions?", "stats?", "top-keys?rule=pay&"] {
            let path = format!("/v1/admin/{path}projectId={project}");
            let answer = http(&server, "GET", &path, &bearer, "").await;
            assert_eq!(answer.status, 404, "{path}: {answer:?}");
        }
        let selector = json!({ "projectId": project, "request": { "userId": "alice" } });
        let inspect = json!({ "selector": selector }).to_string();
        let answer = http(&server, "POST", "/v1/admin/keys:inspect", &bearer, &inspect).await;
        assert_eq!(answer.status, 404, "{project}: {answer:?}");
    }
    // For all projects alone.
    let request =
        proto::DeleteProjectRequest { project_id: "shop".to_owned(), ..Default::default() };
    let refused = team.delete_project(request).await.expect_err("a refusal");
    assert_eq!(refused.code(), Code::PermissionDenied);
    for project in ["blog", "shop", "nothing"] {
        let project = Some(proto::Project { id: project.to_owned(), ..Default::default() });
        let request = proto::CreateProjectRequest { project, ..Default::default() };
        let refused = team.create_project(request).await.expect_err("a refusal");
        assert_eq!(refused.code(), Code::PermissionDenied);
    }
    let after = root.get_project(proto::GetProjectRequest { project_id: "blog".to_owned() }).await;
    assert_eq!(after.expect("a project").into_inner(), before);
    let listed = team.list_projects(proto::ListProjectsRequest::default()).await.expect("a list");
    let ids: Vec<String> =
        listed.into_inner().projects.into_iter().map(|project| project.id).collect();
    assert_eq!(ids, ["shop"]);
}

/// Runs a command, which must succeed, and returns what it printed.
fn called(server: &Rlaas, token: &str, command: &[&str]) -> String {
    let (code, out, error) = run(&[command, &["--addr", server.grpc(), "--token", token]].concat());
    assert_eq!(code, 0, "{command:?}: {error}");
    out
}

#[tokio::test]
async fn overrides_of_all_projects_are_those_of_the_caller() {
    let (server, _dir) = start();
    let mut root = client(&server, ROOT).await;
    for id in ["shop", "blog"] {
        let project = Some(proto::Project { id: id.to_owned(), ..Default::default() });
        let request = proto::CreateProjectRequest { project, ..Default::default() };
        root.create_project(request).await.expect("a project");
        let rule = Some(Rule { overridable: true, ..rule("pay", "/pay") });
        let request =
            proto::CreateRuleRequest { project_id: id.to_owned(), rule, ..Default::default() };
        root.create_rule(request).await.expect("a rule");
        let ban = ["ban", "alice", "--project", id, "--rule", "pay", "--for", "1h"];
        called(&server, ROOT, &[&ban[..], &["--resource", "/pay", "--reason", "abuse"]].concat());
    }
    let list = |token| called(&server, token, &["override", "list", "--project", "-"]);
    let (all, own) = (list(ROOT), list(TEAM));
    assert!(all.contains("shop/pay") && all.contains("blog/pay"), "{all}");
    assert!(own.contains("shop/pay") && !own.contains("blog"), "{own}");
}

#[tokio::test]
async fn role_in_a_project_is_for_no_calls_about_all() {
    let (server, _dir) = start();
    for (token, is_admitted) in [(ROOT, true), (TEAM, false), (DESK, false)] {
        let bearer = format!("Authorization: Bearer {token}\r\n");
        for path in ["/v1/admin/instances", "/v1/admin/audit", "/v1/admin/overrides"] {
            let answer = http(&server, "GET", path, &bearer, "").await;
            assert_eq!(answer.status == 200, is_admitted, "{path}: {answer:?}");
        }
    }
    let anonymous = http(&server, "GET", "/v1/projects/shop", "", "").await;
    assert_eq!((anonymous.status, anonymous.body["detail"] == Value::Null), (401, false));
}
