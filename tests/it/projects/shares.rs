//! The operator of one project takes no places that others need: ids of changes, modes and watches.

use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::v1::RuleMode;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::client::{Token, client, rule};
use super::roles::sha256;

const ROOT: &str = "s3cret-of-root";
const SHOP: &str = "s3cret-of-the-shop";
const BLOG: &str = "s3cret-of-the-blog";

type Admin = AdminServiceClient<InterceptedService<Channel, Token>>;

/// Starts servers with two projects, in memory and on Redis.
async fn servers() -> Vec<(Rlaas, TempDir, Option<RedisServer>)> {
    let mut servers = Vec::new();
    for redis in [None, Some(RedisServer::start())] {
        let dir = TempDir::new();
        let token = |name: &str, token: &str, projects: &str| {
            let roles = "roles: [operate, admin]";
            format!("    - {{name: {name}, sha256: {}, {roles}{projects}}}\n", sha256(token))
        };
        let tokens = token("root", ROOT, "")
            + &token("shop", SHOP, ", projects: [shop]")
            + &token("blog", BLOG, ", projects: [blog]");
        let file = dir.write("rlaas.yaml", &format!("auth:\n  tokens:\n{tokens}"));
        let url = redis.as_ref().map(|redis| format!("store.redis.url={}", redis.url()));
        let settings =
            url.iter().flat_map(|url| ["store.backend=redis", url, "store.redis.timeout=10s"]);
        let server = Rlaas::start_from(&file, &settings.collect::<Vec<_>>());
        let mut root = client(&server, ROOT).await;
        for id in ["shop", "blog"] {
            let project = Some(proto::Project { id: id.to_owned(), ..Default::default() });
            let request = proto::CreateProjectRequest { project, ..Default::default() };
            root.create_project(request).await.expect("a project");
            let rules = (0..600).map(|number| rule(&format!("r{number}"), &format!("/{number}")));
            let request = proto::ApplyRulesRequest {
                project_id: id.to_owned(),
                rules: rules.collect(),
                ..Default::default()
            };
            root.apply_rules(request).await.expect("rules");
        }
        servers.push((server, dir, redis));
    }
    servers
}

async fn admin(server: &Rlaas, token: &'static str) -> Admin {
    AdminServiceClient::with_interceptor(server.channel().await, Token(token))
}

fn is_exhausted<T>(result: Result<T, Status>) -> bool {
    match result {
        Ok(_) => false,
        Err(status) if status.code() == Code::ResourceExhausted => true,
        Err(status) => panic!("{status:?}"),
    }
}

async fn reset(admin: &mut Admin, project: &str, id: usize) -> Result<(), Status> {
    let key = proto::KeyRef { id: "alice".to_owned(), ..Default::default() };
    let selector = proto::Selector {
        target: Some(proto::selector::Target::Key(key)),
        rule: "r0".to_owned(),
        project_id: project.to_owned(),
    };
    let (reason, request_id) = ("a test".to_owned(), id.to_string());
    let request = proto::ResetRequest { selector: Some(selector), reason, request_id };
    admin.reset(request).await.map(drop)
}

#[tokio::test]
async fn request_ids_of_one_project_leave_room_for_others() {
    for (server, _dir, _redis) in servers().await {
        let mut shop = admin(&server, SHOP).await;
        let mut count = 0;
        while !is_exhausted(reset(&mut shop, "shop", count).await) {
            count += 1;
        }
        assert_eq!(count, 1_024);
        reset(&mut admin(&server, BLOG).await, "blog", 0).await.expect("a change");
        reset(&mut admin(&server, ROOT).await, "shop", 0).await.expect("a change");
    }
}

async fn set_mode(admin: &mut Admin, project: &str, rule: &str) -> Result<(), Status> {
    let request = proto::SetModeRequest {
        project_id: project.to_owned(),
        rule: rule.to_owned(),
        mode: RuleMode::Shadow.into(),
        ttl: Some(prost_types::Duration { seconds: 3_600, nanos: 0 }),
        reason: "a test".to_owned(),
        request_id: String::new(),
    };
    admin.set_mode(request).await.map(drop)
}

#[tokio::test]
async fn modes_of_one_project_leave_room_for_others() {
    for (server, _dir, _redis) in servers().await {
        let mut shop = admin(&server, SHOP).await;
        let mut count = 0;
        while !is_exhausted(set_mode(&mut shop, "shop", &format!("r{count}")).await) {
            count += 1;
        }
        assert_eq!(count, 511);
        set_mode(&mut shop, "shop", "r0").await.expect("a mode that is set again");
        set_mode(&mut admin(&server, BLOG).await, "blog", "r0").await.expect("a mode");
        set_mode(&mut admin(&server, ROOT).await, "-", "*").await.expect("a mode");
    }
}

#[tokio::test]
async fn watches_of_one_project_leave_room_for_others() {
    for (server, _dir, _redis) in servers().await {
        let (mut shop, mut blog) = (admin(&server, SHOP).await, admin(&server, BLOG).await);
        let mut root = admin(&server, ROOT).await;
        let of =
            |id: &str| proto::WatchStatsRequest { project_id: id.to_owned(), ..Default::default() };
        let mut open = Vec::new();
        while let Ok(watch) = shop.watch_stats(of("shop")).await {
            open.push(watch);
        }
        assert_eq!(open.len(), 32);
        blog.watch_stats(of("blog")).await.expect("a watch");
        root.watch_stats(of("-")).await.expect("a watch");
        drop(open.pop());
        let is_free = async || shop.clone().watch_stats(of("shop")).await.is_ok();
        rlaas_testkit::eventually("a place is free", Duration::from_secs(20), is_free).await;

        let of = |id: &str| proto::WatchDecisionsRequest {
            project_id: id.to_owned(),
            ..Default::default()
        };
        let mut open = Vec::new();
        while let Ok(watch) = shop.watch_decisions(of("shop")).await {
            open.push(watch);
        }
        assert_eq!(open.len(), 4);
        blog.watch_decisions(of("blog")).await.expect("a watch");
        root.watch_decisions(of("-")).await.expect("a watch");
    }
}

/// A caller who watches every project, and the one that it has, has no more than one who watches that one.
#[tokio::test]
async fn watches_of_every_project_count_for_their_caller() {
    for (server, _dir, _redis) in servers().await {
        let (mut shop, mut blog) = (admin(&server, SHOP).await, admin(&server, BLOG).await);
        let mut root = admin(&server, ROOT).await;
        let of = |id: &str| proto::WatchDecisionsRequest {
            project_id: id.to_owned(),
            ..Default::default()
        };
        let mut open = Vec::new();
        for id in ["shop", "-", "-", "shop", "-", "shop", "-", "-"] {
            open.extend(shop.watch_decisions(of(id)).await.ok());
        }
        assert_eq!(open.len(), 4);
        let mut of_blog = Vec::new();
        for id in ["-", "blog", "-", "-"] {
            of_blog.extend(blog.watch_decisions(of(id)).await.ok());
        }
        assert_eq!(of_blog.len(), 3);
        root.watch_decisions(of("-")).await.expect("a watch");

        let of =
            |id: &str| proto::WatchStatsRequest { project_id: id.to_owned(), ..Default::default() };
        let mut open = Vec::new();
        for number in 0..64 {
            let id = if number % 2 == 0 { "-" } else { "shop" };
            open.extend(shop.watch_stats(of(id)).await.ok());
        }
        assert_eq!(open.len(), 32);
        blog.watch_stats(of("-")).await.expect("a watch");
        root.watch_stats(of("-")).await.expect("a watch");
    }
}
