//! The audit of projects: each keeps changes of its own, whatever others do.

use std::time::Duration;

use rlaas::clock::{Clock, Micros};
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::admin::v1::audit_entry::State;
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::eventually;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;

use super::client::{Client, Token, client};
use super::roles::{ROOT, TEAM, start_on};

/// Changes of the busy project: with two records each more than Redis keeps of 5.
const MANY: usize = 100;
const YEAR_SECONDS: i64 = 366 * 24 * 3_600;

fn project(id: &str, name: &str) -> proto::Project {
    let (id, display_name) = (id.to_owned(), name.to_owned());
    proto::Project { id, display_name, ..Default::default() }
}

async fn create(projects: &mut Client, id: &str) {
    let request =
        proto::CreateProjectRequest { project: Some(project(id, "")), ..Default::default() };
    projects.create_project(request).await.expect("a project");
}

/// Changes the name of a project to each of these numbers.
async fn rename(projects: &mut Client, id: &str, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let request = proto::UpdateProjectRequest {
            project: Some(project(id, &format!("name {number}"))),
            reason: number.to_string(),
            ..Default::default()
        };
        projects.update_project(request).await.expect("a change");
    }
}

/// Returns reasons of the changes that are done, newest first, in pages of this size.
async fn reasons(server: &Rlaas, project: &str, page_size: i32) -> Vec<String> {
    let mut admin = AdminServiceClient::new(server.channel().await);
    let (mut all, mut page_token) = (Vec::new(), String::new());
    loop {
        let project_id = project.to_owned();
        let request =
            proto::ListAuditRequest { project_id, page_size, page_token, ..Default::default() };
        let page = admin.list_audit(request).await.expect("a page").into_inner();
        for entry in page.entries {
            assert_eq!(entry.state(), State::Done, "{entry:?}");
            all.push(entry.reason);
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return all;
        }
    }
}

#[tokio::test]
async fn busy_project_pushes_out_no_entries_of_a_quiet_one() {
    let redis = RedisServer::start();
    let settings = &["audit.max-entries=5"][..];
    for (server, is_shared) in
        [(Rlaas::start(settings), false), (Rlaas::on_redis(&redis, settings), true)]
    {
        let mut projects = client(&server, "").await;
        for id in ["quiet", "busy"] {
            create(&mut projects, id).await;
        }
        rename(&mut projects, "quiet", 0..3).await;
        rename(&mut projects, "busy", 0..MANY).await;
        for page_size in [1, 2, 100] {
            assert_eq!(reasons(&server, "quiet", page_size).await, ["2", "1", "0", ""]);
        }
        let busy = reasons(&server, "busy", 7).await;
        assert!(busy.len() < MANY && busy[0] == (MANY - 1).to_string(), "{busy:?}");
        let all = reasons(&server, "-", 1000).await;
        assert!(all.len() < MANY, "{}", all.len());
        if is_shared {
            // The log of all has none of the quiet project any more.
            assert_eq!(all, busy[..all.len()]);
            assert!(redis.query::<i64>(&["TTL", "rlaas:p:quiet:audit"]) == -1);
        }
        let delete =
            proto::DeleteProjectRequest { project_id: "quiet".to_owned(), ..Default::default() };
        projects.delete_project(delete).await.expect("a change");
        assert_eq!(reasons(&server, "quiet", 100).await, ["", "2", "1", "0", ""]);
        if is_shared {
            let left: i64 = redis.query(&["TTL", "rlaas:p:quiet:audit"]);
            assert!((YEAR_SECONDS - 60..=YEAR_SECONDS).contains(&left), "{left}");
        }
    }
}

#[tokio::test]
async fn entries_in_the_log_of_all_alone_are_listed_after_those_of_the_project() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[]);
    let mut projects = client(&server, "").await;
    create(&mut projects, "shop").await;
    create(&mut projects, "blog").await;
    rename(&mut projects, "shop", 0..4).await;
    rename(&mut projects, "blog", 0..4).await;
    let all = ["3", "2", "1", "0", ""];
    let key = "rlaas:p:shop:audit";
    // An odd number splits a change: its intent is in the log of all alone.
    for left in [10, 7, 4, 1, 0] {
        redis.query::<()>(&["XTRIM", key, "MAXLEN", &left.to_string()]);
        for page_size in [1, 2, 3, 100] {
            assert_eq!(reasons(&server, "shop", page_size).await, all, "{left} {page_size}");
        }
    }
    // As written by a version without logs of projects.
    redis.query::<()>(&["DEL", key]);
    rename(&mut projects, "shop", 4..6).await;
    assert_eq!(redis.query::<u64>(&["XLEN", key]), 4);
    assert_eq!(reasons(&server, "shop", 2).await, ["5", "4", "3", "2", "1", "0", ""]);
    assert_eq!(reasons(&server, "blog", 2).await, all);
}

/// Returns the actions and reasons that a token may list, newest first.
async fn listed(server: &Rlaas, token: &'static str, project: &str) -> Vec<(String, String)> {
    let mut admin = AdminServiceClient::with_interceptor(server.channel().await, Token(token));
    let (project_id, page_size) = (project.to_owned(), 1_000);
    let request = proto::ListAuditRequest { project_id, page_size, ..Default::default() };
    let page = admin.list_audit(request).await.expect("a page").into_inner();
    page.entries.into_iter().map(|entry| (entry.action, entry.reason)).collect()
}

#[tokio::test]
async fn project_with_the_id_of_a_deleted_one_has_none_of_its_audit() {
    let redis = RedisServer::start();
    let year = Micros::from_secs(YEAR_SECONDS.unsigned_abs());
    let now = Clock::default().now();
    redis.set_clock(now - year - Micros::from_secs(24 * 3_600));
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    let (mut before, _dir) = start_on("", &settings);
    let mut projects = client(&before, ROOT).await;
    create(&mut projects, "shop").await;
    rename(&mut projects, "shop", 0..2).await;
    before.signal("TERM");
    assert!(before.wait().success());
    // What is left a year after it was deleted: its changes in the log of all.
    for key in redis.keys() {
        if key != "rlaas:audit" && !key.starts_with("rlaas:control") {
            redis.query::<i64>(&["DEL", &key]);
        }
    }
    redis.set_clock(now);
    let (server, _dir) = start_on("", &settings);
    let mut projects = client(&server, ROOT).await;
    create(&mut projects, "shop").await;
    rename(&mut projects, "shop", 7..8).await;
    let entry = |action: &str, reason: &str| (action.to_owned(), reason.to_owned());
    let own = [entry("UpdateProject", "7"), entry("CreateProject", "")];
    let of_deleted = ["1", "0"].map(|reason| entry("UpdateProject", reason));
    for project in ["shop", "-"] {
        assert_eq!(listed(&server, TEAM, project).await, own, "{project}");
        let all = listed(&server, ROOT, project).await;
        assert_eq!(all[..4], [&own[..], &of_deleted].concat(), "{project}");
    }
}

/// The log of all was lost, or its Redis is one with a clock that is behind.
#[tokio::test]
async fn entries_have_one_id_whichever_log_is_ahead() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[]);
    let mut projects = client(&server, "").await;
    create(&mut projects, "shop").await;
    let ids = |key: &str| redis.query::<Vec<(String, Vec<String>)>>(&["XRANGE", key, "-", "+"]);
    for ahead in ["rlaas:p:shop:audit", "rlaas:audit"] {
        let millis = if ahead == "rlaas:audit" { "9999999999999" } else { "9999999999998" };
        redis.query::<String>(&["XADD", ahead, &format!("{millis}-5"), "e", ""]);
        rename(&mut projects, "shop", 0..2).await;
        let (own, all) = (ids("rlaas:p:shop:audit"), ids("rlaas:audit"));
        let newest = own.iter().rev().take(4);
        assert!(newest.eq(all.iter().rev().take(4)), "{ahead}");
        assert!(own.last().is_some_and(|(id, _)| id.starts_with(millis)), "{ahead}");
    }
}

#[tokio::test]
async fn log_of_a_project_of_a_cluster_is_beside_that_of_all() {
    let cluster = RedisCluster::start(3, 0).await;
    let settings = cluster.settings();
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let server = Rlaas::start(&[&settings[..], &["store.redis.timeout=10s"]].concat());
    let mut projects = client(&server, "").await;
    // Without a catalogue the first project waits until none is found to be lost.
    let is_created = async || {
        let project = Some(project("shop", ""));
        let request = proto::CreateProjectRequest { project, ..Default::default() };
        projects.create_project(request).await.is_ok()
    };
    eventually("a project", Duration::from_secs(20), is_created).await;
    rename(&mut projects, "shop", 0..3).await;
    assert_eq!(reasons(&server, "shop", 2).await[..3], ["2", "1", "0"]);
    let key = "rlaas:p:shop:audit:{rlaas:audit}";
    assert!(cluster.keys().contains(&key.to_owned()), "{:?}", cluster.keys());
    let slot = cluster.slot_of("rlaas:audit");
    assert_eq!(cluster.slot_of(key), slot);
    let node = cluster.node(cluster.master_of(slot));
    assert!(node.query::<u64>(&["XLEN", key]) >= 8);
}
