//! Redis falls back to an older catalogue, or another one: nobody who remembers lets a revoked key in
//! again, all know of the conflict and go on serving, and a person decides.

use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rlaas_auth::{CallerScope, KeyRefusal, KnownApiKeys};
use rlaas_limiter::fleet::{
    CatalogueHead, CatalogueId, CatalogueSwitch, Document, Lineage, RestoreStep, StagedCatalogue,
};
use rlaas_projects::ApiKeySecret;
use rlaas_projects::registry::{CatalogueSource, Change, ChangeError, ChangeRank, ProjectState};
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};

use super::conflict::{
    assert_agreed, assert_conflict, create_key, make_projects, names, refusal, revoke,
};
use super::instance::{Running, make_change, now, project_id, soon};
use crate::fleet::instance::standalone;

const SOON: Duration = Duration::from_secs(15);

fn on(redis: &RedisServer) -> Running {
    Running::on_redis(&standalone(&redis.url()))
}

/// Starts an instance as a server does: with its folder, before it looks at Redis.
async fn starting(redis: &RedisServer, folder: &Path) -> Running {
    let mut instance = on(redis);
    instance.stop_following();
    eventually("the folder is unlocked", SOON, async || {
        instance.registry.open_state_dir(folder).await.is_ok()
    })
    .await;
    instance.resume_following();
    instance
}

async fn in_step(instances: &[&Running]) {
    let revision = instances[0].registry.revision();
    eventually("in step", SOON, async || {
        instances.iter().all(|of| of.registry.revision() == revision)
    })
    .await;
}

/// Waits until instances refuse a key as revoked.
async fn refused(instances: &[&Running], key: &ApiKeySecret) {
    for instance in instances {
        let is_refused = async || refusal(instance, key) == Some(KeyRefusal::Revoked);
        eventually("refused", SOON, is_refused).await;
    }
}

/// Asserts that instances are ready and accept a key.
fn assert_served(instances: &[&Running], key: &ApiKeySecret) {
    for instance in instances {
        assert!(!instance.registry.keyring().is_barred(), "it is ready");
        assert_eq!(refusal(instance, key), None);
    }
}

fn epoch(redis: &RedisServer) -> String {
    redis.query(&["HGET", "rlaas:catalog", "epoch"])
}

fn marks(redis: &RedisServer) -> Vec<String> {
    redis.query(&["HVALS", "{rlaas:catalog}:conflict"])
}

/// Restores the catalogue of a side.
async fn restore(by: &Running, redis: &RedisServer, from: CatalogueSource) {
    let expected = match from {
        CatalogueSource::Instance => by.registry.revision(),
        CatalogueSource::Store => redis.query(&["HGET", "rlaas:catalog", "revision"]),
    };
    let restored = by.registry.restore_catalogue(from, expected, soon()).await;
    assert!(restored.expect("a revision") > expected);
}

/// Loses all of Redis, and restores it from an instance.
async fn lose_and_restore(by: &Running, redis: &RedisServer) {
    redis.query::<()>(&["FLUSHALL"]);
    assert_conflict(&[by]).await;
    restore(by, redis, CatalogueSource::Instance).await;
}

/// What is left of the instance that knows what Redis has lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Memory {
    /// It runs.
    Running,
    /// It starts again with its folder.
    Folder,
    /// Nothing.
    None,
}

/// Redis after one restore and a later revocation, and then an older backup.
struct FallenBack {
    redis: RedisServer,
    dir: TempDir,
    /// The instance that remembers, if it runs. It does not follow yet.
    ahead: Option<Running>,
    revoked: Arc<ApiKeySecret>,
    others: Vec<Arc<ApiKeySecret>>,
}

impl FallenBack {
    async fn start(memory: Memory) -> Self {
        let (mut redis, dir) = (RedisServer::start(), TempDir::new());
        let ahead = starting(&redis, &dir.path("ahead")).await;
        let revoked = make_projects(&ahead).await;
        let mut others = Vec::new();
        for _ in 0..4 {
            others.push(create_key(&ahead, "shop").await);
        }
        redis.query::<()>(&["SAVE"]);
        lose_and_restore(&ahead, &redis).await;
        revoke(&ahead, "shop", &revoked).await.expect("a change");
        // The folder is written when the look ends.
        ahead.registry.sync(soon()).await.expect("an answer");
        ahead.stop_following();
        redis.kill();
        redis.restart();
        let ahead = Some(ahead).filter(|_| memory == Memory::Running);
        Self { redis, dir, ahead, revoked, others }
    }

    async fn remembering(&mut self) -> Running {
        match self.ahead.take() {
            Some(mut ahead) => {
                ahead.resume_following();
                ahead
            }
            None => starting(&self.redis, &self.dir.path("ahead")).await,
        }
    }
}

#[tokio::test]
async fn revoked_keys_stay_so_from_the_first_contact_of_an_instance_that_remembers() {
    for memory in [Memory::Running, Memory::Folder] {
        for (before, after) in [(0, 0), (0, 2), (1, 1), (2, 0)] {
            for from in [CatalogueSource::Instance, CatalogueSource::Store] {
                println!("{memory:?}, {before} others before it, {after} after it, {from:?} kept");
                let mut fallen = FallenBack::start(memory).await;
                let mut others = Vec::new();
                for _ in 0..before {
                    let other = on(&fallen.redis);
                    let has_taken = async || other.registry.keyring().is_known();
                    eventually("taken", SOON, has_taken).await;
                    // It can't know better.
                    assert_served(&[&other], &fallen.revoked);
                    others.push(other);
                }
                let ahead = fallen.remembering().await;
                refused(&[&ahead], &fallen.revoked).await;
                for _ in 0..after {
                    others.push(on(&fallen.redis));
                }
                let mut all: Vec<&Running> = others.iter().collect();
                all.push(&ahead);
                assert_conflict(&all).await;
                refused(&all, &fallen.revoked).await;
                assert_served(&all, &fallen.others[0]);
                let marked = marks(&fallen.redis);
                let revision = ahead.registry.revision();
                let is_named = |mark: &String| mark.starts_with(&format!("unnamed {revision} "));
                assert!(marked.len() == 1 && marked.iter().all(is_named), "{marked:?}");
                // Each of them revokes a key, which all obey.
                for (instance, key) in all.iter().zip(&fallen.others[1..]) {
                    revoke(instance, "shop", key).await.expect("a change");
                    refused(&all, key).await;
                }
                restore(all[0], &fallen.redis, from).await;
                let late = on(&fallen.redis);
                all.push(&late);
                assert_agreed(&all).await;
                for key in fallen.others[1..all.len()].iter().chain([&fallen.revoked]) {
                    refused(&all, key).await;
                }
                assert_served(&all, &fallen.others[0]);
            }
        }
    }
}

#[tokio::test]
async fn where_none_remembers_the_older_catalogue_is_taken() {
    let fallen = FallenBack::start(Memory::None).await;
    let (one, other) = (on(&fallen.redis), on(&fallen.redis));
    assert_agreed(&[&one, &other]).await;
    assert_served(&[&one, &other], &fallen.revoked);
}

#[tokio::test]
async fn branch_of_the_same_epoch_is_marked() {
    let mut redis = RedisServer::start();
    let mut ahead = on(&redis);
    let revoked = make_projects(&ahead).await;
    let kept = create_key(&ahead, "shop").await;
    redis.query::<()>(&["SAVE"]);
    revoke(&ahead, "shop", &revoked).await.expect("a change");
    ahead.stop_following();
    redis.kill();
    redis.restart();
    let branched = on(&redis);
    for number in 0..3 {
        let name = format!("branch {number}");
        eventually("written", SOON, async || branched.put("branch", &name).await.is_ok()).await;
    }
    assert!(branched.registry.revision() > ahead.registry.revision());
    assert_served(&[&branched], &revoked);
    ahead.resume_following();
    assert_conflict(&[&ahead, &branched]).await;
    refused(&[&ahead, &branched], &revoked).await;
    assert_served(&[&ahead, &branched], &kept);
    assert_eq!(marks(&redis).len(), 1);
    restore(&branched, &redis, CatalogueSource::Store).await;
    assert_agreed(&[&ahead, &branched]).await;
    assert!(names(&ahead).contains(&project_id("branch")));
    refused(&[&ahead, &branched], &revoked).await;
}

#[tokio::test]
async fn instance_that_slept_through_a_restore_from_the_store_follows_and_its_ended_keys_stay_so() {
    let mut redis = RedisServer::start();
    let (ahead, mut sleeping) = (on(&redis), on(&redis));
    let revoked = make_projects(&ahead).await;
    let kept = create_key(&ahead, "shop").await;
    redis.query::<()>(&["SAVE"]);
    ahead.put("late", "Late").await.expect("a change");
    ahead.stop_following();
    // It alone knows of this.
    revoke(&sleeping, "shop", &revoked).await.expect("a change");
    sleeping.stop_following();
    redis.kill();
    redis.restart();
    let ahead = {
        let mut ahead = ahead;
        ahead.resume_following();
        ahead
    };
    assert_conflict(&[&ahead]).await;
    assert_eq!(refusal(&ahead, &revoked), None, "it can't know");
    restore(&ahead, &redis, CatalogueSource::Store).await;
    assert_agreed(&[&ahead]).await;
    sleeping.resume_following();
    refused(&[&ahead, &sleeping], &revoked).await;
    assert_agreed(&[&ahead, &sleeping]).await;
    assert!(!names(&sleeping).contains(&project_id("late")), "a person has dropped it");
    assert_served(&[&ahead, &sleeping, &on_and_read(&redis).await], &kept);
}

async fn on_and_read(redis: &RedisServer) -> Running {
    let fresh = on(redis);
    eventually("read", SOON, async || fresh.registry.keyring().is_known()).await;
    fresh
}

#[tokio::test]
async fn nobody_stops_serving_when_a_newcomer_creates_a_project_in_an_emptied_redis() {
    let redis = RedisServer::start();
    let (mut one, mut other) = (on(&redis), on(&redis));
    let key = make_projects(&one).await;
    in_step(&[&one, &other]).await;
    one.stop_following();
    other.stop_following();
    redis.query::<()>(&["FLUSHALL"]);
    let newcomer = on(&redis);
    newcomer.put("new", "New").await.expect("a change");
    let of_new = create_key(&newcomer, "new").await;
    let (foreign, expected) = (epoch(&redis), names(&one));
    one.resume_following();
    other.resume_following();
    assert_conflict(&[&one, &other, &newcomer]).await;
    assert_served(&[&one, &other], &key);
    assert_served(&[&newcomer], &of_new);
    assert_eq!((names(&one), epoch(&redis)), (expected.clone(), foreign));
    restore(&other, &redis, CatalogueSource::Instance).await;
    assert_agreed(&[&one, &other, &newcomer]).await;
    assert_eq!(names(&newcomer), expected);
    assert_served(&[&one, &other, &newcomer], &key);
}

#[tokio::test]
async fn two_that_each_know_a_different_loss_tell_each_other_the_keys_that_have_ended() {
    let mut redis = RedisServer::start();
    let (mut one, mut other) = (on(&redis), on(&redis));
    let of_one = make_projects(&one).await;
    let [of_other, kept] = [create_key(&one, "shop").await, create_key(&one, "shop").await];
    let of_deleted = create_key(&one, "other").await;
    in_step(&[&one, &other]).await;
    redis.query::<()>(&["SAVE"]);
    one.stop_following();
    other.stop_following();
    revoke(&one, "shop", &of_one).await.expect("a change");
    redis.kill();
    redis.restart();
    // The connection of before is noticed as lost.
    eventually("written", SOON, async || revoke(&other, "shop", &of_other).await.is_ok()).await;
    other.delete("other").await.expect("a change");
    redis.kill();
    redis.restart();
    one.resume_following();
    other.resume_following();
    assert_conflict(&[&one, &other]).await;
    let fresh = on_and_read(&redis).await;
    let all = [&one, &other, &fresh];
    for key in [&of_one, &of_other] {
        refused(&all, key).await;
    }
    refused(&[&one, &fresh], &of_deleted).await;
    assert_eq!(refusal(&other, &of_deleted), Some(KeyRefusal::Unknown), "its project is gone");
    assert_served(&all, &kept);
    restore(&fresh, &redis, CatalogueSource::Store).await;
    assert_eq!(names(&fresh).len(), 3, "of one side, whole");
    assert_agreed(&all).await;
    for key in [&of_one, &of_other, &of_deleted] {
        refused(&all, key).await;
    }
    assert_served(&all, &kept);
}

#[tokio::test]
async fn instance_with_the_folder_of_another_redis_is_not_ready_and_disturbs_nobody() {
    for from in [CatalogueSource::Store, CatalogueSource::Instance] {
        let (redis, dir) = (RedisServer::start(), TempDir::new());
        let one = on(&redis);
        let key = make_projects(&one).await;
        let (stranger, of_strange) = stranger(&redis, &dir.path("state")).await;
        for key in [&key, &of_strange] {
            assert_eq!(refusal(&stranger, key), Some(KeyRefusal::Unavailable));
        }
        assert_eq!(marks(&redis), Vec::<String>::new());
        one.put("other", "Goes on").await.expect("a change");
        restore(&stranger, &redis, from).await;
        assert_agreed(&[&one, &stranger]).await;
        let (served, gone) = match from {
            CatalogueSource::Store => (&key, &of_strange),
            CatalogueSource::Instance => (&of_strange, &key),
        };
        assert_served(&[&one, &stranger], served);
        assert_eq!(refusal(&one, gone), Some(KeyRefusal::Unknown));
    }
}

/// Starts an instance with the folder of another Redis. Also returns a key of that.
async fn stranger(redis: &RedisServer, folder: &Path) -> (Running, Arc<ApiKeySecret>) {
    let elsewhere = RedisServer::start();
    let stranger = starting(&elsewhere, folder).await;
    stranger.put("strange", "Strange").await.expect("a change");
    let key = create_key(&stranger, "strange").await;
    stranger.registry.sync(soon()).await.expect("an answer");
    drop(stranger);
    let stranger = starting(redis, folder).await;
    assert_conflict(&[&stranger]).await;
    assert!(stranger.registry.keyring().is_barred(), "it is not ready");
    (stranger, key)
}

#[tokio::test]
async fn instance_with_the_folder_of_another_redis_does_not_become_ready_by_an_empty_one() {
    let (redis, dir) = (RedisServer::start(), TempDir::new());
    make_projects(&on(&redis)).await;
    let (stranger, key) = stranger(&redis, &dir.path("state")).await;
    redis.query::<()>(&["FLUSHALL"]);
    for _ in 0..2 {
        assert_conflict(&[&stranger]).await;
        assert_eq!(refusal(&stranger, &key), Some(KeyRefusal::Unavailable));
    }
    restore(&stranger, &redis, CatalogueSource::Instance).await;
    assert_served(&[&stranger], &key);
}

#[tokio::test]
async fn sixteen_restores_are_followed_and_one_more_is_a_conflict() {
    let mut redis = RedisServer::start();
    let (one, mut late, mut later) = (on(&redis), on(&redis), on(&redis));
    let revoked = make_projects(&one).await;
    let kept = create_key(&one, "shop").await;
    redis.query::<()>(&["SAVE"]);
    in_step(&[&one, &late, &later]).await;
    late.stop_following();
    lose_and_restore(&one, &redis).await;
    in_step(&[&one, &later]).await;
    later.stop_following();
    revoke(&one, "shop", &revoked).await.expect("a change");
    for _ in 0..16 {
        lose_and_restore(&one, &redis).await;
    }
    later.resume_following();
    assert_agreed(&[&one, &later]).await;
    refused(&[&later], &revoked).await;
    // It has decided since it was in step, so it goes on, and says so.
    late.resume_following();
    assert_conflict(&[&one, &late, &later]).await;
    refused(&[&late], &revoked).await;
    assert_served(&[&one, &late, &later], &kept);
    restore(&one, &redis, CatalogueSource::Store).await;
    assert_agreed(&[&one, &late, &later]).await;
    // Redis falls back by all of them.
    redis.kill();
    redis.restart();
    let fresh = on(&redis);
    assert_conflict(&[&one, &late, &later, &fresh]).await;
    refused(&[&one, &late, &later, &fresh], &revoked).await;
}

#[tokio::test]
async fn keys_end_though_there_is_no_room_for_more_ends() {
    let redis = RedisServer::start();
    let one = on(&redis);
    let key = make_projects(&one).await;
    let fill = "for i = 1, 87500 do redis.call('ZADD', KEYS[1], i, \
        string.format(ARGV[1], i % 9, i)) end redis.call('ZADD', KEYS[2], 87500, 'filled')";
    let text = ended_key("p%d", "d%d", u64::MAX);
    let (ended, ids) = ("{rlaas:catalog}:ended", "{rlaas:catalog}:ended-ids");
    redis.query::<()>(&["EVAL", fill, "2", ended, ids, &text]);
    one.registry.sync(soon()).await.expect("an answer");
    let shop = project_id("shop");
    let [some, all] = [CallerScope::SomeProjects, CallerScope::AllProjects];
    let keeps = [some, all].map(|scope| one.registry.keeps_ends(&shop, scope));
    assert_eq!(keeps, [false, true], "the last eighth is for others");
    end(&one, &key, some).await;
    assert_eq!(refusal(&one, &key), Some(KeyRefusal::Revoked));
    assert_eq!(redis.query::<u64>(&["ZCARD", ended]), 87_500);
    let another = create_key(&one, "shop").await;
    end(&one, &another, all).await;
    assert_eq!(redis.query::<u64>(&["ZCARD", ended]), 87_501);
}

/// Returns an end of a key as it is stored.
fn ended_key(project: &str, digest: &str, until: u64) -> String {
    let of_key = format!(r#""project":"{project}","key":"key","digest":"{digest}""#);
    format!(r#"{{{of_key},"end":{{"revoked":1}},"until":{until}}}"#)
}

/// Revokes a key.
async fn end(on: &Running, key: &ApiKeySecret, scope: CallerScope) {
    let id = key.id().to_owned();
    let change = move |before: Option<&ProjectState>| {
        let mut state = before.expect("a project").clone();
        state.project.revoke_key(&id, now()).expect("a key");
        let after = Some((state.project, state.rules));
        Ok::<_, Infallible>(Change { after, revision: None, result: () })
    };
    let rank = ChangeRank { scope, is_revocation: true };
    let changed = make_change(&on.registry, project_id("shop"), rank, change).await;
    changed.expect("a change");
}

#[tokio::test]
async fn ends_are_forgotten_when_no_catalogue_can_bring_the_key_back() {
    let redis = RedisServer::start();
    make_projects(&on(&redis)).await;
    let fresh = on(&redis);
    fresh.registry.sync(soon()).await.expect("an answer");
    let shared = fresh.registry.fleet().catalogue().shared().expect("a shared catalogue");
    let shop = fresh.registry.project(&project_id("shop")).expect("a project");
    // The catalogue may have been restored from a side that does not know the end.
    let of_shop = ended_key("shop", &shop.project.keys[0].digest.short(), 2);
    let kept = [ended_key("shop", "d", u64::MAX), of_shop];
    let ended = [ended_key("shop", "d", 2), kept[0].clone(), kept[1].clone()];
    shared.add_ended(&ended, soon()).await.expect("an answer");
    fresh.registry.sync(soon()).await.expect("an answer");
    assert_eq!(ended_keys(&redis), kept);
}

fn ended_keys(redis: &RedisServer) -> Vec<String> {
    redis.query(&["ZRANGE", "{rlaas:catalog}:ended", "0", "-1"])
}

#[tokio::test]
async fn ended_keys_are_united_though_redis_has_evicted_their_ids() {
    let redis = RedisServer::start();
    let one = on(&redis);
    let key = make_projects(&one).await;
    revoke(&one, "shop", &key).await.expect("a change");
    redis.query::<()>(&["DEL", "{rlaas:catalog}:ended-ids"]);
    for instance in [&one, &on(&redis)] {
        instance.registry.sync(soon()).await.expect("an answer");
        let key = create_key(instance, "shop").await;
        revoke(instance, "shop", &key).await.expect("a change");
    }
    assert_eq!(ended_keys(&redis).len(), 3);
}

#[tokio::test]
async fn first_write_that_redis_refuses_leaves_no_catalogue() {
    let redis = RedisServer::start();
    let one = on(&redis);
    redis.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    one.put("shop", "Shop").await.expect_err("out of memory");
    redis.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(!redis.query::<bool>(&["EXISTS", "rlaas:catalog"]));
    one.put("shop", "Shop").await.expect("a change");
}

#[tokio::test]
async fn restore_that_another_server_has_interrupted_is_refused() {
    let redis = RedisServer::start();
    let one = on(&redis);
    make_projects(&one).await;
    redis.query::<()>(&["FLUSHALL"]);
    assert_conflict(&[&one]).await;
    one.stop_following();
    let shared = one.registry.fleet().catalogue().shared().expect("a shared catalogue");
    let begun = shared.begin_restore(None, &Lineage::default(), "one", soon()).await;
    let generation = begun.expect("an answer").expect("a conflict");
    let staged = Some(StagedCatalogue { generation, documents: 1, counted: 0 });
    let (epoch, id) = (CatalogueId::random(), CatalogueId::random());
    let head = CatalogueHead { epoch, revision: 9, id };
    let lineage = Lineage::default();
    let switch = CatalogueSwitch { seen: None, marks: 1, head, lineage, staged };
    let step = shared.switch(&switch, soon()).await.expect("an answer");
    assert_eq!(step, RestoreStep::Changed, "the document is not there");
    let document = Document::default();
    let written = shared.stage(generation, "shop", Some(&document), false, soon()).await;
    assert_eq!(written.expect("an answer"), RestoreStep::Done);
    assert_eq!(shared.switch(&switch, soon()).await.expect("an answer"), RestoreStep::Done);
}

#[tokio::test]
async fn instance_on_an_empty_redis_is_ready_before_its_keys_are_known_to_be_none() {
    let redis = RedisServer::start();
    let mut one = on(&redis);
    one.stop_following();
    one.registry.set_new_catalogue_delay(Duration::from_hours(1));
    let mut changes = one.registry.keyring().changes();
    assert!(!one.registry.keyring().is_ready());
    one.resume_following();
    changes.changed().await.expect("a change");
    assert!(one.registry.keyring().is_ready() && !one.registry.keyring().is_known());
}

#[tokio::test]
async fn catalogue_of_an_earlier_format_is_refused_by_name_and_left_alone() {
    let redis = RedisServer::start();
    make_projects(&on(&redis)).await;
    redis.query::<()>(&["HDEL", "rlaas:catalog", "format"]);
    let before = redis.keys();
    let server = Rlaas::on_redis(&redis, &[]);
    let line = "rlaas:catalog has format 1, this release reads 2";
    eventually("the log", SOON, async || server.log().contains(line)).await;
    let fresh = on(&redis);
    let refused = fresh.put("new", "New").await;
    assert!(matches!(refused, Err(ChangeError::Unavailable(_))), "{refused:?}");
    assert_eq!(names(&fresh).len(), 1);
    let documents: u64 = redis.query(&["HGET", "rlaas:catalog", "documents"]);
    assert_eq!((documents, redis.query(&["HGET", "rlaas:catalog", "format"])), (2, None::<String>));
    assert!(before.iter().all(|key| redis.keys().contains(key)));
}

#[tokio::test]
async fn server_with_the_folder_of_another_redis_says_so_and_is_not_ready() {
    let (redis, elsewhere, dir) = (RedisServer::start(), RedisServer::start(), TempDir::new());
    make_projects(&on(&redis)).await;
    let (folder, copy) = (dir.path("state"), dir.path("copy"));
    let stranger = starting(&elsewhere, &folder).await;
    make_projects(&stranger).await;
    stranger.registry.sync(soon()).await.expect("an answer");
    // Its own is locked for a moment.
    fs::create_dir_all(&copy).expect("a folder");
    for file in fs::read_dir(&folder).expect("a folder") {
        let file = file.expect("a file");
        fs::copy(file.path(), copy.join(file.file_name())).expect("a copy");
    }
    let state_dir = format!("state-dir={}", copy.display());
    let is_ready = async |server: &Rlaas| server.get("/readyz").await.0 == 200;
    let server = Rlaas::start(&[
        "store.backend=redis",
        &format!("store.redis.url={}", redis.url()),
        &state_dir,
    ]);
    let is_in_conflict = async || server.metric("rlaas_catalogue_conflict").await == Some(1.0);
    eventually("a conflict", SOON, is_in_conflict).await;
    eventually("not ready", SOON, async || !is_ready(&server).await).await;
    let log = server.log();
    assert!(log.contains("state-dir has projects of another redis"), "{log}");
}
