//! Top keys of the rules of a project: counted beside those of others, over the fleet.

use std::time::Duration;

use futures_util::future::join_all;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::v1::{CheckRequest, Rule};
use rlaas_testkit::process::{Rlaas, request, run};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tonic::{Code, Request};

use super::client::{Token, client, http, rule};
use super::keys::{AdminOfToken, Shops};
use super::roles::{DESK, ROOT, TEAM, sha256};

const TIMEOUT: Duration = Duration::from_secs(20);

async fn top(client: &AdminOfToken, project: &str) -> [proto::TopKeyList; 2] {
    let request = proto::TopKeysRequest {
        project_id: project.to_owned(),
        rule: "pay".to_owned(),
        ..Default::default()
    };
    let found = client.clone().top_keys(request).await.expect("counts").into_inner();
    [found.used.expect("a list"), found.denied.expect("a list")]
}

/// Returns the users of keys, with their counts.
fn counts(list: &proto::TopKeyList) -> Vec<(&str, u64)> {
    let keys = list.keys.iter().map(|top| (top.key.as_ref().expect("a key"), top.count));
    keys.map(|(key, count)| (key.parts[0].value.as_deref().expect("a value"), count)).collect()
}

#[tokio::test]
async fn keys_are_counted_by_project() {
    let mut shops = Shops::start().await;
    let [shop, blog] = shops.keys.clone();
    for _ in 0..5 {
        shops.pays(&shop).await;
    }
    assert!(shops.pays(&blog).await);
    eventually("every unit is counted", TIMEOUT, async || {
        let totals = async |project| top(&shops.root, project).await.map(|list| list.total);
        totals("shop").await == [3, 2] && totals("blog").await == [1, 0]
    })
    .await;
    for (project, used, denied) in [("shop", 3, vec![("alice", 2)]), ("blog", 1, vec![])] {
        let found = top(&shops.root, project).await;
        assert_eq!(found.each_ref().map(counts), [vec![("alice", used)], denied], "{project}");
    }
    // By HTTP, and by command.
    let bearer = format!("Authorization: Bearer {TEAM}\r\n");
    let path = "/v1/admin/top-keys?projectId=shop&rule=pay";
    let answer = http(&shops.server, "GET", path, &bearer, "").await;
    assert_eq!(
        (answer.status, answer.body["denied"]["total"].as_str()),
        (200, Some("2")),
        "{answer:?}"
    );
    let addr = shops.server.grpc();
    let args = ["top", "--keys", "pay", "--project", "shop", "--addr", addr, "--token", TEAM];
    let (code, shown, error) = run(&args);
    assert_eq!(code, 0, "{error}");
    assert!(shown.contains("    2         2  user_id=alice  pay   shop     enforce\n"), "{shown}");
    assert_eq!(counts(&top(&shops.desk, "shop").await[0]), [("alice", 3)]);
    // A rule of one project is none of another, and of "" neither.
    for project in ["blog", ""] {
        let request = proto::TopKeysRequest {
            project_id: project.to_owned(),
            rule: "search".to_owned(),
            ..Default::default()
        };
        let refused = shops.root.top_keys(request).await.expect_err("no rule");
        assert_eq!(refused.code(), Code::NotFound, "{project}");
    }
}

#[tokio::test]
async fn keys_of_a_value_are_those_of_the_projects_of_the_caller() {
    let shops = Shops::start().await;
    for key in &shops.keys {
        for _ in 0..5 {
            shops.pays(key).await;
        }
    }
    let of = |project: &str| proto::TopKeysRequest {
        project_id: project.to_owned(),
        value: "alice".to_owned(),
        ..Default::default()
    };
    let found = async |client: &AdminOfToken, project: &str| {
        let found = client.clone().top_keys(of(project)).await.expect("counts").into_inner();
        let keys = found.denied.expect("a list").keys;
        let mut counts: Vec<_> =
            keys.into_iter().map(|top| (top.project_id, top.rule, top.count)).collect();
        counts.sort_unstable();
        counts
    };
    let pay = |project: &str| (project.to_owned(), "pay".to_owned(), 2);
    eventually("every refusal is counted", TIMEOUT, async || {
        found(&shops.root, "-").await == [pay("blog"), pay("shop")]
    })
    .await;
    for client in [&shops.team, &shops.desk] {
        for project in ["-", "shop"] {
            assert_eq!(found(client, project).await, [pay("shop")], "{project}");
        }
        let refused = client.clone().top_keys(of("blog")).await.expect_err("another project");
        assert_eq!(refused.code(), Code::NotFound);
    }
    // The same by command, with the user alone.
    let args = ["explain", "alice", "--addr", shops.server.grpc(), "--token", ROOT];
    let (code, shown, error) = run(&args);
    assert_eq!(code, 0, "{error}");
    assert!(shown.starts_with("alice is refused by pay (blog) and pay (shop) until "), "{shown}");
    assert!(
        shown.contains("\nshop     pay         2      3  user_id=alice  3 of 3 used, passes in "),
        "{shown}"
    );
    assert!(shown.contains("\nblog     pay"), "{shown}");
}

/// Settings of an instance with a token for all projects, and one that sees no keys of one.
fn settings(redis: &RedisServer) -> String {
    format!(
        "store: {{backend: redis, redis: {{url: '{}', timeout: 10s}}}}\ntelemetry: {{top-keys: true}}\nauth:\n  \
         api-keys: accepted\n  tokens:\n    - {{name: root, sha256: {}, roles: [operate, admin]}}\n    \
         - {{name: desk, sha256: {}, roles: [admin], projects: [shop]}}\n",
        redis.url(),
        sha256(ROOT),
        sha256(DESK)
    )
}

#[tokio::test]
async fn keys_of_a_project_are_counted_over_the_fleet() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let file = dir.write("rlaas.yaml", &settings(&redis));
    let servers = [(); 2].map(|()| Rlaas::start_from(&file, &[]));
    let mut projects = client(&servers[0], ROOT).await;
    let mut keys = Vec::new();
    for id in ["shop", "blog"] {
        let project = Some(proto::Project { id: id.to_owned(), ..Default::default() });
        let new = proto::CreateProjectRequest { project, ..Default::default() };
        projects.create_project(new).await.expect("a project");
        let pay = Some(Rule { max_requests: 100, ..rule("pay", "/pay") });
        let project_id = id.to_owned();
        let new = proto::CreateRuleRequest { project_id, rule: pay, ..Default::default() };
        projects.create_rule(new).await.expect("a rule");
        let new = proto::CreateKeyRequest { project_id: id.to_owned(), ..Default::default() };
        keys.push(projects.create_key(new).await.expect("a key").into_inner().secret);
    }
    let pays = async |server: &Rlaas, key: &str, cost| {
        let resource = "/pay".to_owned();
        let mut call = Request::new(CheckRequest { resource, cost, ..request("alice") });
        call.metadata_mut().insert("x-api-key", key.parse().expect("a header"));
        server.client().await.check(call).await
    };
    eventually("both instances know the keys", TIMEOUT, async || {
        let looks = [(0, 0), (0, 1), (1, 0), (1, 1)];
        let looks = looks.map(|(server, key)| pays(&servers[server], &keys[key], Some(0)));
        join_all(looks).await.iter().all(Result::is_ok)
    })
    .await;
    for (server, key, cost) in [(0, 0, 3), (1, 0, 4), (1, 1, 20)] {
        pays(&servers[server], &keys[key], Some(cost)).await.expect("a decision");
    }
    let admin = async |server: &Rlaas, token| {
        AdminServiceClient::with_interceptor(server.channel().await, Token(token))
    };
    let root = admin(&servers[0], ROOT).await;
    for (project, used) in [("shop", 7), ("blog", 20)] {
        eventually("every unit of the fleet is counted", TIMEOUT, async || {
            counts(&top(&root, project).await[0]) == [("alice", used)]
        })
        .await;
    }
    // Without the role `operate` in the project keys are hashed.
    let desk = admin(&servers[1], DESK).await;
    eventually("the other instance counts them too", TIMEOUT, async || {
        top(&desk, "shop").await[0].total == 7
    })
    .await;
    let [seen, _] = top(&desk, "shop").await;
    let [(hashed, 7)] = counts(&seen)[..] else { panic!("{seen:?}") };
    assert!(hashed.starts_with('#') && hashed.len() == 27, "{hashed}");
}
