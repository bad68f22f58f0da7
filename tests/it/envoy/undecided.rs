//! Requests that no rule decides: they are counted and logged, and a client does not choose an error, which
//! a proxy may let pass.

use std::time::Duration;

use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use rlaas_proto::kuadrant::service::ratelimit::v1::{CommitRequest, ReserveRequest};
use rlaas_testkit::process::{Rlaas, run};
use rlaas_testkit::{TempDir, eventually};
use serde_json::json;

use super::client::{EnvoyClient, check, client};
use super::kuadrant::KuadrantClient;
use super::notation;
use super::proxy::Envoy;

const SOON: Duration = Duration::from_secs(20);
const FILE: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}
";

fn serve(dir: &TempDir, settings: &[&str]) -> Rlaas {
    let files = format!("envoy.files={}", dir.write("rules.yaml", FILE).display());
    Rlaas::start(&[&[files.as_str(), "envoy.deadline=10s"], settings].concat())
}

/// Starts a server with the project `acme`, whose users have one request an hour.
async fn serve_project(dir: &TempDir, settings: &[&str]) -> Rlaas {
    let projects = ["auth.api-keys=accepted", "envoy.project-entry=tenant"];
    let server = serve(dir, &[&projects[..], settings].concat());
    let created = async || {
        let project = json!({ "project": { "id": "acme" } }).to_string();
        server.post("/v1/projects", &project).await.0 == 201
    };
    eventually("a project", SOON, created).await;
    let rule = json!({ "name": "users", "maxRequests": "1", "window": "3600s",
                       "algorithm": "GCRA", "keyBy": ["user_id"] });
    let rules = json!({ "rules": [rule] }).to_string();
    let (status, answer) = server.post("/v1/projects/acme/rules:apply", &rules).await;
    assert_eq!(status, 200, "{answer}");
    server
}

async fn counted(server: &Rlaas, outcome: &str, reason: &str) -> u64 {
    let labels = [format!("outcome=\"{outcome}\""), format!("reason=\"{reason}\"")];
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    server.metric_sum("rlaas_unmatched_total", &labels).await
}

async fn answers(client: &mut EnvoyClient, request: &str, expected: &str) {
    let answer = check(client, request).await;
    assert!(answer.starts_with(expected), "{request}: {answer}");
}

/// Sends a request to every method of Kuadrant's service, and returns the codes of all but Commit.
async fn kuadrant(server: &Rlaas, request: &str) -> [Code; 3] {
    let mut client = KuadrantClient::new(server.channel().await);
    let request = notation::request(request);
    let RateLimitRequest { domain, descriptors, hits_addend } = request.clone();
    let looked = client.check_rate_limit(request.clone()).await.expect("a look").into_inner();
    let reported = client.report(request).await.expect("a report").into_inner();
    let (amount, ttl) = (u64::from(hits_addend), None);
    let commit = CommitRequest {
        domain: domain.clone(),
        descriptors: descriptors.clone(),
        reservation_id: String::new(),
        actual_amount: 1,
    };
    let reserve = ReserveRequest { domain, descriptors, amount, ttl };
    let reserved = client.reserve(reserve).await.expect("a reservation").into_inner();
    assert_eq!(reserved.reservation_id, "");
    assert!(!client.commit(commit).await.expect("a commit").into_inner().reservation_released);
    [looked.overall_code(), reported.overall_code(), reserved.code()]
}

#[tokio::test]
async fn what_passes_without_a_rule_is_counted_by_reason_and_logged_once_a_minute() {
    let dir = TempDir::new();
    let server = serve(&dir, &[]);
    let mut envoy = client(&server).await;
    for reason in ["rule", "domain", "descriptor", "no_entry", "own_limit"] {
        let series = format!("rlaas_unmatched_total{{outcome=\"allowed\",reason=\"{reason}\"}}");
        assert_eq!(server.metric(&series).await, Some(0.0), "{reason}");
    }
    for (request, expected) in [
        ("nowhere: user=alice", "OK [OK]"),
        ("nowhere: user=alice =5/minute", "OK [OK]"),
        ("shop: stranger=1", "OK [OK]"),
        ("shop: user=alice,path=/", "OK [OK]"),
        // A rule decides these.
        ("shop: user=alice; stranger=1", "OK [OK 3/HOUR left 2"),
        ("shop: stranger=1 =5/minute", "OK [OK 5/MINUTE left 4"),
    ] {
        answers(&mut envoy, request, expected).await;
    }
    for _ in 0..20 {
        answers(&mut envoy, "elsewhere: user=alice", "OK [OK]").await;
    }
    assert_eq!(counted(&server, "allowed", "domain").await, 22);
    assert_eq!(counted(&server, "allowed", "descriptor").await, 2);
    let is_logged = async || server.log().contains("descriptor");
    eventually("the log", SOON, is_logged).await;
    let log = server.log();
    for (domain, reason) in [("nowhere", "domain"), ("shop", "descriptor")] {
        let lines = log.lines().filter(|line| {
            line.contains("unmatched request of Envoy")
                && line.contains(&format!("reason=\"{reason}\""))
        });
        let lines: Vec<&str> = lines.collect();
        // Two, if a minute has passed meanwhile.
        assert!((1..=2).contains(&lines.len()), "{log}");
        assert!(lines[0].contains(&format!("domain=\"{domain}\"")), "{lines:?}");
    }
    assert!(!log.contains("alice"), "{log}");
    // Kuadrant's calls alike.
    assert_eq!(kuadrant(&server, "nowhere: user=alice").await, [Code::Ok; 3]);
    assert_eq!(counted(&server, "allowed", "domain").await, 25);
}

#[tokio::test]
async fn a_request_without_the_entry_of_its_project_is_refused_or_allowed() {
    let dir = TempDir::new();
    let server = serve_project(&dir, &["envoy.projects.web=acme"]).await;
    let mut envoy = client(&server).await;
    for (request, expected) in [
        ("edge: user_id=alice", "OVER_LIMIT [OVER_LIMIT]"),
        ("edge: user_id=alice; other=1 =5/minute", "OVER_LIMIT [OVER_LIMIT | OVER_LIMIT]"),
        // Domains of the files and of the settings need none.
        ("shop: user=alice", "OK [OK 3/HOUR left 2"),
        ("shop: stranger=1", "OK [OK]"),
        ("web: user_id=web", "OK [OK 1/HOUR left 0"),
        ("edge: tenant=acme,user_id=alice", "OK [OK 1/HOUR left 0"),
        ("edge: tenant=nobody,user_id=alice", "OVER_LIMIT [OVER_LIMIT]"),
    ] {
        answers(&mut envoy, request, expected).await;
    }
    assert_eq!(kuadrant(&server, "edge: user_id=alice").await, [Code::OverLimit; 3]);
    assert_eq!(kuadrant(&server, "edge: tenant=nobody,user_id=alice").await, [Code::OverLimit; 3]);
    // A Commit that is denied counts, too.
    assert_eq!(counted(&server, "denied", "no_entry").await, 2 + 4);
    assert_eq!(counted(&server, "denied", "unknown_project").await, 1 + 4);
    assert_eq!(counted(&server, "allowed", "descriptor").await, 1);
    assert_eq!(counted(&server, "allowed", "domain").await, 0);
    drop(server);

    let server = serve_project(&dir, &["envoy.missing-entry=allow"]).await;
    let mut envoy = client(&server).await;
    answers(&mut envoy, "edge: user_id=alice", "OK [OK]").await;
    assert_eq!(kuadrant(&server, "edge: user_id=alice").await, [Code::Ok; 3]);
    assert_eq!(counted(&server, "allowed", "no_entry").await, 1 + 3);
    // A name that is empty is one, and of no project.
    answers(&mut envoy, "edge: tenant=,user_id=alice", "OVER_LIMIT [OVER_LIMIT]").await;
    let file = dir.write("rlaas.yaml", "envoy: { missing-entry: maybe }\n");
    let (code, _, problems) = run(&["check-config", file.to_str().expect("a path")]);
    assert!(code == 64 && problems.contains("envoy.missing-entry"), "{code}: {problems}");
}

#[tokio::test]
async fn a_client_does_not_choose_an_error() {
    let dir = TempDir::new();
    let server = serve_project(&dir, &[]).await;
    let mut envoy = client(&server).await;
    let long = "x".repeat(33 * 1024);
    for (request, expected) in [
        ("edge: tenant=acme; tenant=blog", "OVER_LIMIT [OVER_LIMIT | OVER_LIMIT]"),
        ("edge: tenant=acme,user_id=eve *4294967296", "OVER_LIMIT [OVER_LIMIT]"),
        ("shop: user=eve *18446744073709551615", "OVER_LIMIT [OVER_LIMIT]"),
        (&format!("shop: user={long},path={long}"), "OVER_LIMIT [OVER_LIMIT]"),
        // Nothing was taken, and a limit of the request's own is not that of the project.
        ("shop: user=eve", "OK [OK 3/HOUR left 2"),
        ("edge: tenant=acme,user_id=eve =9/minute", "OK [OK 1/HOUR left 0"),
        ("edge: tenant=acme,user_id=eve =9/minute", "OVER_LIMIT [OVER_LIMIT 1/HOUR left 0"),
        // What the configuration of Envoy has wrong is an error.
        (": user=eve", "INVALID_ARGUMENT domain"),
        ("shop:", "INVALID_ARGUMENT descriptors"),
        ("shop: user=eve =9/0", "INVALID_ARGUMENT descriptors[0].limit.unit"),
    ] {
        answers(&mut envoy, request, expected).await;
    }
    assert_eq!(counted(&server, "allowed", "own_limit").await, 1);
    assert_eq!(counted(&server, "denied", "own_limit").await, 1);
    assert_eq!(kuadrant(&server, "edge: tenant=acme; tenant=blog").await, [Code::OverLimit; 3]);
    let mut kuadrant = KuadrantClient::new(server.channel().await);
    let RateLimitRequest { domain, descriptors, .. } = notation::request("shop: user=bob");
    let amount = u64::from(u32::MAX) + 1;
    let reserve = ReserveRequest { domain, descriptors, amount, ttl: None };
    let reserved = kuadrant.reserve(reserve).await.expect("an answer").into_inner();
    assert_eq!((reserved.code(), &*reserved.reservation_id), (Code::OverLimit, ""));
}

#[tokio::test]
async fn a_flood_of_domains_adds_no_series_and_no_lines() {
    let dir = TempDir::new();
    let server = serve(&dir, &[]);
    let mut envoy = client(&server).await;
    let series = async || server.get("/metrics").await.1.matches("rlaas_unmatched_total{").count();
    let before = series().await;
    for number in 0..2_000 {
        let request = format!("domain-{number}: user=alice; path=/{number}");
        assert_eq!(check(&mut envoy, &request).await, "OK [OK | OK]");
    }
    assert_eq!(series().await, before);
    assert_eq!(counted(&server, "allowed", "domain").await, 2_000);
    assert!(server.log().matches("unmatched request of Envoy").count() <= 2, "{}", server.log());
    let long = "d".repeat(1_024);
    assert_eq!(check(&mut envoy, &format!("{long}: user=alice")).await, "OK [OK]");
}

#[tokio::test]
async fn a_domain_that_comes_into_force_needs_no_entry() {
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", FILE);
    let files = format!("envoy.files={}", file.display());
    let settings = [files.as_str(), "envoy.project-entry=tenant", "envoy.deadline=10s"];
    let server = Rlaas::start(&settings);
    let mut envoy = client(&server).await;
    for (domain, expected) in [("edge", "OK [OK 3/HOUR"), ("shop", "OVER_LIMIT [OVER_LIMIT]")] {
        answers(&mut envoy, "edge: user=alice", "OVER_LIMIT [OVER_LIMIT]").await;
        answers(&mut envoy, "shop: user=alice", "OK [OK 3/HOUR").await;
        dir.write("rules.yaml", &FILE.replace("shop", domain));
        eventually("the domain is in force or gone", SOON, async || {
            check(&mut envoy, "edge: user=alice *0").await.starts_with(expected)
        })
        .await;
        dir.write("rules.yaml", FILE);
        eventually("the first rules", SOON, async || {
            check(&mut envoy, "shop: user=alice *0").await.starts_with("OK")
        })
        .await;
    }
}

/// A number in a header of a client is counted or refused. Envoy does not ask for one above 10^9.
#[tokio::test]
async fn a_header_does_not_get_past_a_real_envoy() {
    let rules = "domain: shop\ndescriptors:\n  - {key: tenant, rate_limit: {unit: year, requests_per_unit: 3}}\n";
    let dir = TempDir::new();
    let files = format!("envoy.files={}", dir.write("rules.yaml", rules).display());
    let server = Rlaas::start(&[&files, "envoy.deadline=10s"]);
    let edits = [("timeout: 0.020s", "timeout: 20s")];
    let Some(envoy) = Envoy::in_front_of(&server, &edits).await else { return };
    let calls = async || {
        let name = "rlaas_check_duration_seconds_count{api=\"envoy\"}";
        server.metric(name).await.expect("a number")
    };
    for (units, expected) in [("3", 200), ("4", 429), ("1000000000", 429)] {
        let headers = [("x-tenant", units), ("x-units", units)];
        assert_eq!(envoy.get("/batch", &headers).await.status, expected, "{units}");
    }
    let before = calls().await;
    for units in ["1000000001", "4294967296", "18446744073709551616", "-1"] {
        let status = envoy.get("/batch", &[("x-tenant", "a"), ("x-units", units)]).await.status;
        let asked = calls().await > before;
        assert!(status == 429 || !asked, "{units}: {status}");
    }
}

#[tokio::test]
async fn long_headers_in_many_descriptors_are_decided() {
    let dir = TempDir::new();
    let server = serve(&dir, &[]);
    let mut client = client(&server).await;
    // As much as Envoy takes of headers, in each descriptor.
    let path = "x".repeat(58 * 1024);
    let users = ["alice", "alice", "alice", "alice"].map(|user| format!("user={user}"));
    let paths = (0..60).map(|_| format!("path={path}"));
    let request =
        format!("shop: {}", users.into_iter().chain(paths).collect::<Vec<_>>().join("; "));
    let answer = check(&mut client, &request).await;
    assert!(answer.starts_with("OVER_LIMIT ["), "{}", &answer[..200.min(answer.len())]);
}
