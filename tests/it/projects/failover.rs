//! A failover of Redis that loses writes: the replica that is promoted never had the last changes of
//! projects.

use std::sync::Arc;
use std::time::Duration;

use rlaas_auth::KeyRefusal;
use rlaas_projects::ApiKeySecret;
use rlaas_projects::registry::{CatalogueSource, ChangeError, SyncError};
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::{GetConfigRequest, UnmatchedPolicy};
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, request};
use rlaas_testkit::sentinel::Sentinels;
use tonic::{Code, Request};

use super::client::{Client, client};
use super::conflict::{
    assert_agreed, assert_conflict, create_key, make_projects, names, refusal, revoke,
};
use super::instance::{Running, project_id, soon};
use crate::fleet::instance::sentinel;

const SOON: Duration = Duration::from_secs(20);

fn on(sentinels: &Sentinels) -> Running {
    Running::on_redis(&sentinel(&sentinels.urls()))
}

/// Ends the replication once the replica has the whole catalogue.
async fn end_replication(sentinels: &Sentinels) {
    let revisions = || [0, 1].map(|i| sentinels.server(i).query(&["HGET", "rlaas:catalog", "id"]));
    let is_replicated = async || {
        let [of_master, of_replica]: [Option<String>; 2] = revisions();
        of_master == of_replica
    };
    eventually("the replica has the catalogue", SOON, is_replicated).await;
    sentinels.end_replication().await;
}

async fn fail_over(sentinels: &mut Sentinels) {
    let old = sentinels.kill_master();
    sentinels.wait_for_new_master(old).await;
}

/// Instances whose Redis was failed over. Neither of them has looked at it since.
struct FailedOver {
    sentinels: Sentinels,
    /// Its last writes were lost: it has revoked a key, and made the project `late`.
    ahead: Running,
    /// It has not looked at the catalogue since before these writes.
    behind: Running,
    revoked: Arc<ApiKeySecret>,
    kept: Arc<ApiKeySecret>,
}

impl FailedOver {
    async fn start() -> Self {
        let mut sentinels = Sentinels::start().await;
        let [ahead, behind] = [(); 2].map(|()| on(&sentinels));
        let revoked = make_projects(&ahead).await;
        let kept = create_key(&ahead, "shop").await;
        let is_in_force = async || behind.registry.revision() == ahead.registry.revision();
        eventually("in force", SOON, is_in_force).await;
        end_replication(&sentinels).await;
        ahead.stop_following();
        behind.stop_following();
        revoke(&ahead, "shop", &revoked).await.expect("a change");
        ahead.put("late", "Late").await.expect("a change");
        fail_over(&mut sentinels).await;
        Self { sentinels, ahead, behind, revoked, kept }
    }
}

#[tokio::test]
async fn first_write_by_an_instance_that_was_behind_brings_nothing_back() {
    let mut redis = FailedOver::start().await;
    let (ahead, behind) = (&redis.ahead, &redis.behind);
    eventually("it writes", SOON, async || behind.put("branch", "Branch").await.is_ok()).await;
    let expected = names(ahead);
    assert!(expected.contains(&project_id("late")));
    redis.ahead.resume_following();
    redis.behind.resume_following();
    let fresh = on(&redis.sentinels);
    let FailedOver { sentinels, ahead, behind, revoked, kept } = redis;
    assert_conflict(&[&ahead, &behind, &fresh]).await;
    assert_eq!(names(&ahead), expected);
    assert_eq!(refusal(&ahead, &revoked), Some(KeyRefusal::Revoked));
    for other in [&behind, &fresh] {
        let is_known = async || refusal(other, &revoked) == Some(KeyRefusal::Revoked);
        eventually("the end of the key is known", SOON, is_known).await;
        assert_eq!(refusal(other, &kept), None, "all others are served");
    }
    let revision = ahead.registry.revision();
    let from = CatalogueSource::Instance;
    let restored = ahead.registry.restore_catalogue(from, revision, soon()).await;
    assert!(restored.expect("a revision") > revision);
    let late = on(&sentinels);
    assert_agreed(&[&ahead, &behind, &fresh, &late]).await;
    for instance in [&ahead, &behind, &fresh, &late] {
        assert_eq!(names(instance), expected);
        assert_eq!(refusal(instance, &revoked), Some(KeyRefusal::Revoked));
        assert_eq!(refusal(instance, &kept), None);
    }
}

#[tokio::test]
async fn instances_that_know_lost_revisions_tell_each_other_which_keys_have_ended() {
    let mut sentinels = Sentinels::start().await;
    let [mut ahead, mut further] = [(); 2].map(|()| on(&sentinels));
    let revoked = make_projects(&ahead).await;
    let kept = create_key(&ahead, "shop").await;
    let of_deleted = create_key(&ahead, "other").await;
    let is_in_force = async || further.registry.revision() == ahead.registry.revision();
    eventually("in force", SOON, is_in_force).await;
    end_replication(&sentinels).await;
    ahead.stop_following();
    further.stop_following();
    ahead.put("late", "Late").await.expect("a change");
    further.registry.sync(soon()).await.expect("an answer");
    // The other instance does not hear of these writes before they are lost.
    revoke(&further, "shop", &revoked).await.expect("a change");
    further.delete("other").await.expect("a change");
    assert_eq!(further.registry.revision(), ahead.registry.revision() + 2);
    fail_over(&mut sentinels).await;
    ahead.resume_following();
    assert_conflict(&[&ahead]).await;
    let of = [&revoked, &kept, &of_deleted].map(|key| refusal(&ahead, key));
    assert_eq!(of, [None; 3], "it knows no better");
    further.resume_following();
    for key in [&revoked, &of_deleted] {
        let is_refused = async || refusal(&ahead, key) == Some(KeyRefusal::Revoked);
        eventually("it obeys", SOON, is_refused).await;
    }
    assert_conflict(&[&further]).await;
    for instance in [&ahead, &further] {
        assert_eq!(refusal(instance, &kept), None);
    }
    // Also by the instance that still has the project which the other one has deleted.
    let revision = ahead.registry.revision();
    let from = CatalogueSource::Instance;
    let restored = ahead.registry.restore_catalogue(from, revision, soon()).await;
    assert!(restored.expect("a revision") > revision);
    let late = on(&sentinels);
    assert_agreed(&[&ahead, &further, &late]).await;
    for instance in [&ahead, &further, &late] {
        for key in [&revoked, &of_deleted] {
            assert_eq!(refusal(instance, key), Some(KeyRefusal::Revoked));
        }
        assert_eq!(refusal(instance, &kept), None);
    }
}

#[tokio::test]
async fn first_look_by_an_instance_that_was_ahead_closes_the_store_for_writes() {
    let mut redis = FailedOver::start().await;
    let is_conflict = async || {
        let looked = redis.ahead.registry.sync(soon()).await;
        matches!(looked, Err(SyncError::Conflict))
    };
    eventually("a conflict", SOON, is_conflict).await;
    // The one has not looked since, the other has just started.
    let fresh = on(&redis.sentinels);
    for instance in [&redis.behind, &fresh] {
        let is_refused = async || match instance.put("branch", "Branch").await {
            Ok(_) => panic!("it has written"),
            Err(error) => matches!(error, ChangeError::Conflict),
        };
        eventually("the write is refused", SOON, is_refused).await;
    }
    redis.ahead.resume_following();
    redis.behind.resume_following();
    let FailedOver { sentinels, ahead, behind, revoked, kept } = redis;
    assert_conflict(&[&ahead, &behind, &fresh]).await;
    assert_eq!(refusal(&fresh, &kept), None, "it goes by the catalogue of the store");
    // A person may decide to lose the project. The key stays revoked.
    let revision = behind.registry.revision();
    let from = CatalogueSource::Store;
    let restored = behind.registry.restore_catalogue(from, revision, soon()).await;
    assert!(restored.expect("a revision") > revision);
    let late = on(&sentinels);
    for instance in [&ahead, &behind, &fresh, &late] {
        let is_revoked = async || refusal(instance, &revoked) == Some(KeyRefusal::Revoked);
        eventually("the key stays revoked", SOON, is_revoked).await;
        let is_gone = async || instance.registry.project(&project_id("late")).is_none();
        eventually("the catalogue of the store", SOON, is_gone).await;
        assert_eq!(refusal(instance, &kept), None);
    }
    assert_agreed(&[&ahead, &behind, &fresh, &late]).await;
}

fn serve(sentinels: &Sentinels) -> Rlaas {
    let urls = format!("store.redis.urls={}", sentinels.urls().join(","));
    let store = ["store.backend=redis", "store.redis.mode=sentinel", &urls];
    Rlaas::start(&[&store[..], &["store.redis.timeout=5s", "auth.api-keys=accepted"]].concat())
}

/// Creates a project whose requests all pass.
async fn create(client: &mut Client, id: &str) -> Result<(), tonic::Status> {
    let unmatched = UnmatchedPolicy::Allow.into();
    let project = proto::Project { id: id.to_owned(), unmatched, ..Default::default() };
    let request = proto::CreateProjectRequest { project: Some(project), ..Default::default() };
    client.create_project(request).await.map(drop)
}

async fn new_key(client: &mut Client, project: &str) -> proto::CreateKeyResponse {
    let request = proto::CreateKeyRequest { project_id: project.to_owned(), ..Default::default() };
    client.create_key(request).await.expect("a key").into_inner()
}

fn revocation(key: &proto::CreateKeyResponse) -> proto::RevokeKeyRequest {
    let key_id = key.key.as_ref().expect("a key").id.clone();
    proto::RevokeKeyRequest { project_id: "shop".to_owned(), key_id, ..Default::default() }
}

/// Returns the code of a request with this key.
async fn code(server: &Rlaas, key: &proto::CreateKeyResponse) -> Code {
    let mut request = Request::new(request("alice"));
    request.metadata_mut().insert("x-api-key", key.secret.parse().expect("a header"));
    let response = server.client().await.check(request).await;
    response.map_or_else(|status| status.code(), |_| Code::Ok)
}

async fn readiness(server: &Rlaas) -> u16 {
    server.get("/readyz").await.0
}

async fn is_in_conflict(server: &Rlaas) -> bool {
    server.metric("rlaas_catalogue_conflict").await == Some(1.0)
}

#[tokio::test]
async fn all_go_on_without_revoked_keys_until_a_person_decides() {
    let mut sentinels = Sentinels::start().await;
    let ahead = serve(&sentinels);
    let mut admin = client(&ahead, "").await;
    eventually("created", SOON, async || create(&mut admin.clone(), "shop").await.is_ok()).await;
    let [revoked, kept] = [new_key(&mut admin, "shop").await, new_key(&mut admin, "shop").await];
    let stolen = new_key(&mut admin, "shop").await;
    end_replication(&sentinels).await;
    admin.revoke_key(revocation(&revoked)).await.expect("a change");
    create(&mut admin, "late").await.expect("a project");
    let late = new_key(&mut admin, "late").await;
    fail_over(&mut sentinels).await;

    // It writes first, or finds the conflict.
    let fresh = serve(&sentinels);
    let writer = client(&fresh, "").await;
    let has_ended = async || match create(&mut writer.clone(), "branch").await {
        Ok(()) => true,
        Err(status) => [Code::FailedPrecondition, Code::AlreadyExists].contains(&status.code()),
    };
    eventually("a write ends", SOON, has_ended).await;
    let fresher = serve(&sentinels);
    for server in [&ahead, &fresh, &fresher] {
        eventually("a conflict", SOON, async || is_in_conflict(server).await).await;
        let refused = create(&mut client(server, "").await, "new").await;
        let refused = refused.expect_err("a conflict");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    }
    assert_eq!([code(&ahead, &kept).await, code(&ahead, &late).await], [Code::Ok; 2]);
    for server in [&ahead, &fresh, &fresher] {
        eventually("ready", SOON, async || readiness(server).await == 200).await;
        let is_refused = async || code(server, &revoked).await == Code::Unauthenticated;
        eventually("the key stays revoked", SOON, is_refused).await;
        assert_eq!(code(server, &kept).await, Code::Ok);
    }

    // A key can be revoked meanwhile, which all obey.
    admin.revoke_key(revocation(&stolen)).await.expect("a revoked key");
    assert_eq!(code(&ahead, &stolen).await, Code::Unauthenticated);

    let config = ahead.client().await.get_config(GetConfigRequest::default()).await;
    let expected_revision = config.expect("the configuration").into_inner().catalogue_revision;
    let restore = proto::RestoreCatalogueRequest {
        from: proto::CatalogueSource::Instance.into(),
        reason: "failed over with lost writes".to_owned(),
        expected_revision,
    };
    admin.restore_catalogue(restore).await.expect("a restored catalogue");
    for server in [&ahead, &fresh, &fresher] {
        eventually("no conflict", SOON, async || !is_in_conflict(server).await).await;
        eventually("ready", SOON, async || readiness(server).await == 200).await;
        eventually("the project is back", SOON, async || code(server, &late).await == Code::Ok)
            .await;
        assert_eq!(code(server, &kept).await, Code::Ok);
        for ended in [&revoked, &stolen] {
            assert_eq!(code(server, ended).await, Code::Unauthenticated);
        }
        let again = create(&mut client(server, "").await, "shop").await;
        assert_eq!(again.expect_err("it stands").code(), Code::AlreadyExists);
    }
}
