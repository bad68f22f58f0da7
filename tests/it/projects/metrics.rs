//! Metrics name projects to those alone who may know them.

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;

use super::client::{client, rule};
use super::roles::{ROOT, TEAM, sha256};
use crate::http::client::exchange;

const SCRAPER: &str = "s3cret-of-the-scraper";

/// Starts a server with the project `shop`.
async fn start(options: &[&str]) -> (Rlaas, TempDir) {
    let dir = TempDir::new();
    let tokens = [
        ("root", ROOT, "[operate, admin]"),
        ("team", TEAM, "[operate, admin], projects: [shop]"),
        ("scraper", SCRAPER, "[metrics]"),
    ];
    let token = |(name, token, roles)| {
        format!("    - {{name: {name}, sha256: {}, roles: {roles}}}\n", sha256(token))
    };
    let tokens: String = tokens.map(token).concat();
    let file = dir.write("rlaas.yaml", &format!("auth:\n  tokens:\n{tokens}"));
    let server = Rlaas::start_from(&file, options);
    let mut root = client(&server, ROOT).await;
    let project = Some(proto::Project { id: "shop".to_owned(), ..Default::default() });
    let request = proto::CreateProjectRequest { project, ..Default::default() };
    root.create_project(request).await.expect("a project");
    let (project_id, rule) = ("shop".to_owned(), Some(rule("pay", "/pay")));
    let request = proto::CreateRuleRequest { project_id, rule, reason: String::new() };
    root.create_rule(request).await.expect("a rule");
    (server, dir)
}

/// Returns the projects that have series at an address, for a caller with this token.
async fn named(address: &str, token: &str) -> Vec<String> {
    let bearer = match token {
        "" => String::new(),
        token => format!("Authorization: Bearer {token}\r\n"),
    };
    let head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    let answer = exchange(address, format!("{head}{bearer}\r\n").as_bytes()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let series = answer.body.lines().filter_map(|line| {
        let (project, _) =
            line.strip_prefix("rlaas_project_decisions_total{project=\"")?.split_once('"')?;
        line.contains("allowed").then(|| project.to_owned())
    });
    series.collect()
}

#[tokio::test]
async fn on_loopback_metrics_name_projects() {
    let (server, _dir) = start(&[]).await;
    assert_eq!(named(server.http(), "").await, ["shop"]);
}

#[tokio::test]
async fn off_loopback_projects_are_named_to_the_role_metrics_alone() {
    let (server, _dir) = start(&["server.http=0.0.0.0:0"]).await;
    for token in ["", "unknown", TEAM, ROOT] {
        assert_eq!(named(server.http(), token).await, ["other"], "{token}");
    }
    assert_eq!(named(server.http(), SCRAPER).await, ["shop"]);
}

#[tokio::test]
async fn an_address_of_their_own_has_metrics_alone() {
    let (server, _dir) = start(&["server.http=0.0.0.0:0", "server.metrics=127.0.0.1:0"]).await;
    let address = &server.metrics_address();
    assert_eq!(named(address, "").await, ["shop"]);
    let get = async |address: &str, path: &str| {
        let head = "HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        exchange(address, format!("GET {path} {head}").as_bytes()).await.status
    };
    assert_eq!(get(server.http(), "/metrics").await, 404);
    assert_eq!(get(server.http(), "/livez").await, 200);
    for path in ["/livez", "/check?userId=alice", "/v1/projects", "/"] {
        assert_eq!(get(address, path).await, 404, "{path}");
    }
}
