//! The list of instances.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rlaas::clock::Timestamp;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::store_node::Breaker;
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check};
use rlaas_testkit::redis::RedisServer;

use super::{AdminClient, admin};

/// Time for the first report of an instance.
const REPORTED: Duration = Duration::from_secs(20);

async fn list(client: &mut AdminClient) -> Vec<proto::Instance> {
    let request = proto::ListInstancesRequest::default();
    client.list_instances(request).await.expect("a page").into_inner().instances
}

#[tokio::test]
async fn a_single_instance_lists_itself() {
    let server = Rlaas::start(&[]);
    let (mut client, mut admin) = (server.client().await, admin(&server).await);
    check(&mut client, "alice").await.expect("a decision");
    let instances = list(&mut admin).await;
    let [instance] = &*instances else { panic!("{instances:?}") };
    assert!(instance.answering && !instance.missing);
    assert_eq!((&*instance.version, instance.revision), (env!("CARGO_PKG_VERSION"), 1));
    assert!(instance.store_nodes.is_empty(), "memory");
    assert_eq!((instance.catalogue_revision, instance.catalogue_age), (0, None));
    assert!(instance.connections >= 1);
    let (started, reported) = (instance.started_at, instance.reported_at);
    let [Some(started), Some(reported)] = [started, reported] else { panic!("{instance:?}") };
    assert!((started.seconds, started.nanos) < (reported.seconds, reported.nanos));
    assert_eq!(list(&mut admin).await[0].id, instance.id);
    let other = Rlaas::start(&[]);
    let mut client = super::admin(&other).await;
    assert_ne!(list(&mut client).await[0].id, instance.id, "a random suffix");
}

#[expect(clippy::disallowed_methods, reason = "instances report wall time")]
#[tokio::test]
async fn instances_are_listed_by_each_other_are_missing_and_gone() {
    let redis = RedisServer::start();
    let [mut one, other] = [(); 2].map(|()| Rlaas::on_redis(&redis, &["server.workers=1"]));
    let mut admins = [admin(&one).await, admin(&other).await];
    for admin in &mut admins {
        let listed = async || list(&mut admin.clone()).await.len() == 2;
        eventually("both instances are listed", REPORTED, listed).await;
    }
    let by_one = list(&mut admins[0]).await;
    let by_other = list(&mut admins[1]).await;
    let ids = |of: &[proto::Instance]| of.iter().map(|one| one.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&by_one), ids(&by_other));
    assert!(ids(&by_one).is_sorted());
    let address = format!("127.0.0.1:{}", redis.port());
    for instance in by_one.iter().chain(&by_other) {
        assert!(!instance.missing);
        let [node] = &*instance.store_nodes else { panic!("{instance:?}") };
        assert_eq!((&node.address, node.available), (&address, true));
        assert_eq!(node.breaker(), Breaker::Closed);
    }
    let answering = |of: &[proto::Instance]| of.iter().find(|one| one.answering).cloned();
    let (first, second) = (answering(&by_one), answering(&by_other));
    let (first, second) = (first.expect("an instance"), second.expect("an instance"));
    assert_ne!(first.id, second.id);

    // Pages.
    let page = |page_token: String| proto::ListInstancesRequest { page_size: 1, page_token };
    let head = admins[1].list_instances(page(String::new())).await.expect("a page").into_inner();
    assert_eq!(ids(&head.instances), ids(&by_one)[..1]);
    let tail = admins[1].list_instances(page(head.next_page_token)).await.expect("a page");
    let tail = tail.into_inner();
    assert_eq!((ids(&tail.instances), &*tail.next_page_token), (ids(&by_one)[1..].into(), ""));
    one.signal("KILL");
    one.wait();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let later = |seconds| Timestamp::EPOCH + (now + Duration::from_secs(seconds)).into();
    redis.set_clock(later(45));
    let is_missing = async || {
        let listed = list(&mut admins[1].clone()).await;
        let of = |id: &str| listed.iter().find(|one| one.id == id).map(|one| one.missing);
        of(&first.id) == Some(true) && of(&second.id) == Some(false)
    };
    eventually("the killed instance is missing", REPORTED, is_missing).await;
    redis.set_clock(later(700));
    let listed = list(&mut admins[1]).await;
    assert_eq!(ids(&listed), std::slice::from_ref(&second.id), "the killed instance is gone");

    let (status, body) = other.get("/v1/admin/instances?pageSize=5").await;
    assert!(status == 200 && body.contains(&second.id), "{status}: {body}");
}

#[tokio::test]
async fn while_the_store_is_away_the_answering_instance_is_listed() {
    let mut redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[]);
    let admin = admin(&server).await;
    redis.kill();
    let is_away = async || {
        let instances = list(&mut admin.clone()).await;
        let [instance] = &*instances else { panic!("{instances:?}") };
        assert!(instance.answering);
        instance.store_nodes.iter().all(|node| !node.available)
    };
    eventually("the server is not available", REPORTED, is_away).await;
}
