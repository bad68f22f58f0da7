//! A catalogue that vanishes: Redis comes back empty or with an older one, and a person decides.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use rlaas_auth::{KeyRefusal, KnownApiKeys, ProjectId};
use rlaas_limiter::fleet::{Document, Fleet, Lineage, RestoreStep};
use rlaas_projects::registry::{
    CatalogueSource, Change, ChangeError, ChangeRank, ProjectState, RestoreError,
};
use rlaas_projects::{ApiKeySecret, ApiKeyState, Environment, NewKey, Others};
use rlaas_testkit::eventually;
use rlaas_testkit::redis::RedisServer;

use super::instance::{Running, make_change, now, project_id, rule, soon};
use crate::fleet::instance::standalone;

const SOON: Duration = Duration::from_secs(10);
/// Longest time until all instances obey.
const OBEYED: Duration = Duration::from_secs(2);

fn on(redis: &RedisServer) -> Running {
    Running::on_redis(&standalone(&redis.url()))
}

/// Creates a key.
pub(super) async fn create_key(on: &Running, id: &str) -> Arc<ApiKeySecret> {
    let secret = Arc::new(new_secret());
    let made = Arc::clone(&secret);
    change(on, id, move |state| {
        let key = state.project.create_key(NewKey::default(), &made, now());
        key.expect("a key");
    })
    .await
    .expect("a change");
    secret
}

pub(super) async fn revoke(
    on: &Running,
    id: &str,
    secret: &ApiKeySecret,
) -> Result<(), ChangeError<Infallible>> {
    let key = secret.id().to_owned();
    change(on, id, move |state| {
        state.project.revoke_key(&key, now()).expect("a key");
    })
    .await
}

async fn change(
    on: &Running,
    id: &str,
    edit: impl Fn(&mut ProjectState) + Send + 'static,
) -> Result<(), ChangeError<Infallible>> {
    let change = move |before: Option<&ProjectState>| {
        let mut state = before.expect("a project").clone();
        edit(&mut state);
        Ok(Change { after: Some((state.project, state.rules)), revision: None, result: () })
    };
    make_change(&on.registry, project_id(id), ChangeRank::default(), change).await.map(drop)
}

pub(super) fn refusal(on: &Running, secret: &ApiKeySecret) -> Option<KeyRefusal> {
    on.registry.keyring().find(secret.expose(), now()).err()
}

/// Makes two projects with rules, and returns the key of the first one.
pub(super) async fn make_projects(on: &Running) -> Arc<ApiKeySecret> {
    for id in ["shop", "other"] {
        on.put(id, id).await.expect("a change");
        on.apply(id, &[rule("a", 1), rule("b", 2)], Others::Kept).await.expect("a change");
    }
    create_key(on, "shop").await
}

/// Waits until the instances have a conflict, and asserts that they refuse writes.
pub(super) async fn assert_conflict(instances: &[&Running]) {
    for instance in instances {
        let conflicts = async || instance.metrics.catalogue_conflict.get() == 1;
        eventually("a conflict", SOON, conflicts).await;
        let refused = instance.put("new", "New").await;
        assert!(matches!(refused, Err(ChangeError::Conflict)), "{refused:?}");
    }
}

/// Waits until the instances have the same projects without a conflict, and asserts that each can write.
pub(super) async fn assert_agreed(instances: &[&Running]) {
    let agree = async || {
        // The first instance may not have taken the restored catalogue yet.
        let expected = instances[0].registry.projects();
        instances.iter().all(|of| {
            of.registry.projects() == expected && of.metrics.catalogue_conflict.get() == 0
        })
    };
    eventually("the same projects", SOON, agree).await;
    for (number, instance) in instances.iter().enumerate() {
        instance.put("other", &number.to_string()).await.expect("a change");
    }
}

pub(super) fn names(on: &Running) -> Vec<ProjectId> {
    on.registry.projects().iter().map(|state| state.project.id.clone()).collect()
}

#[tokio::test]
async fn emptied_redis_gets_the_catalogue_of_an_instance() {
    let mut redis = RedisServer::start();
    let (one, other) = (on(&redis), on(&redis));
    let secret = make_projects(&one).await;
    eventually("in force", SOON, async || other.registry.revision() == one.registry.revision())
        .await;
    let (expected, before) = (names(&one), one.registry.revision());
    redis.kill();
    redis.restart();
    assert_conflict(&[&one, &other]).await;
    let fresh = on(&redis);
    assert_conflict(&[&fresh]).await;
    assert!(!fresh.registry.keyring().is_known(), "it is not ready");
    assert!(!one.registry.keyring().is_barred(), "it knows the newest keys");
    assert_eq!(refusal(&fresh, &secret), Some(KeyRefusal::Unavailable));
    for (on, from) in [(&fresh, CatalogueSource::Instance), (&one, CatalogueSource::Store)] {
        let refused = on.registry.restore_catalogue(from, 0, soon()).await;
        assert!(matches!(refused, Err(RestoreError::Nothing)), "{refused:?}");
    }
    let from = CatalogueSource::Instance;
    let stale = other.registry.restore_catalogue(from, before + 1, soon()).await;
    assert!(matches!(stale, Err(RestoreError::Stale { revision }) if revision == before));
    let restored = other.registry.restore_catalogue(from, before, soon()).await;
    assert!(restored.expect("a revision") > before);
    assert_agreed(&[&other, &one, &fresh]).await;
    assert_eq!(names(&fresh), expected);
    assert_eq!(refusal(&fresh, &secret), None);
    let again = one.registry.restore_catalogue(from, 1, soon()).await;
    assert!(matches!(again, Err(RestoreError::NoConflict)), "{again:?}");
    // Rules and what counts them are whole.
    let documents: u64 = redis.query(&["HGET", "rlaas:catalog", "documents"]);
    let counted: u64 = redis.query(&["HGET", "rlaas:catalog", "counted"]);
    assert_eq!((documents, counted), (2, 4));
}

#[tokio::test]
async fn fresh_instance_makes_no_catalogue_where_others_have_lost_one() {
    let redis = RedisServer::start();
    let one = on(&redis);
    make_projects(&one).await;
    redis.query::<()>(&["FLUSHALL"]);
    let fresh = on(&redis);
    fresh.registry.set_new_catalogue_delay(Duration::from_secs(3));
    let refused = fresh.put("new", "New").await;
    assert!(matches!(refused, Err(ChangeError::Conflict)), "{refused:?}");
    assert_eq!(refusal(&fresh, &new_secret()), Some(KeyRefusal::Unavailable));
}

fn new_secret() -> ApiKeySecret {
    ApiKeySecret::generate(&Environment::default()).expect("random numbers")
}

/// An older catalogue in Redis, whose later writes some instances know.
struct RolledBack {
    redis: RedisServer,
    ahead: Running,
    /// It started after the loss, and has written first.
    behind: Running,
    revoked: Arc<ApiKeySecret>,
    kept: Arc<ApiKeySecret>,
}

async fn roll_back() -> RolledBack {
    let mut redis = RedisServer::start();
    let ahead = on(&redis);
    let revoked = make_projects(&ahead).await;
    let kept = create_key(&ahead, "shop").await;
    redis.query::<()>(&["SAVE"]);
    revoke(&ahead, "shop", &revoked).await.expect("a change");
    ahead.put("late", "Late").await.expect("a change");
    redis.kill();
    redis.restart();
    let behind = on(&redis);
    // Whether the other instance has marked the conflict by then or not.
    let _written_or_refused = behind.put("branch", "Branch").await;
    assert_conflict(&[&ahead, &behind]).await;
    assert!(!behind.registry.keyring().is_barred(), "it goes on");
    RolledBack { redis, ahead, behind, revoked, kept }
}

#[tokio::test]
async fn catalogue_that_lost_writes_gets_them_back_from_an_instance() {
    let RolledBack { redis, ahead, behind, revoked, kept } = roll_back().await;
    let (revision, branched) = (ahead.registry.revision(), behind.registry.revision());
    let restored =
        ahead.registry.restore_catalogue(CatalogueSource::Instance, revision, soon()).await;
    assert!(restored.expect("a revision") > revision.max(branched));
    let fresh = on(&redis);
    assert_agreed(&[&ahead, &behind, &fresh]).await;
    for instance in [&ahead, &behind, &fresh] {
        assert!(instance.registry.project(&project_id("late")).is_some());
        assert!(instance.registry.project(&project_id("branch")).is_none());
        assert_eq!(refusal(instance, &revoked), Some(KeyRefusal::Revoked));
        assert_eq!(refusal(instance, &kept), None);
    }
}

#[tokio::test]
async fn catalogue_of_the_store_is_kept_without_keys_that_an_instance_knows_revoked() {
    // The instance that restores may know the revocation, or not.
    for by_ahead in [true, false] {
        let RolledBack { redis, ahead, behind, revoked, kept } = roll_back().await;
        let by = if by_ahead { &ahead } else { &behind };
        let catalogue = Fleet::new(by.registry.limiter().store()).catalogue();
        let (head, _) = catalogue.head(None, soon()).await.expect("an answer").expect("a head");
        let restored =
            by.registry.restore_catalogue(CatalogueSource::Store, head.revision, soon()).await;
        assert!(restored.expect("a revision") > head.revision);
        let third = on(&redis);
        for instance in [&ahead, &behind, &third] {
            let is_revoked = async || refusal(instance, &revoked) == Some(KeyRefusal::Revoked);
            eventually("the key stays revoked", SOON, is_revoked).await;
            let is_gone = async || instance.registry.project(&project_id("late")).is_none();
            eventually("the catalogue of the store", SOON, is_gone).await;
            assert_eq!(refusal(instance, &kept), None);
        }
        assert_agreed(&[&ahead, &behind, &third]).await;
    }
}

#[tokio::test]
async fn key_is_revoked_during_a_conflict() {
    let RolledBack { redis, ahead, behind, kept, .. } = roll_back().await;
    let third = on(&redis);
    let shop = project_id("shop");
    revoke(&ahead, "shop", &kept).await.expect("a change");
    assert_eq!(refusal(&ahead, &kept), Some(KeyRefusal::Revoked));
    let keys = &ahead.registry.project(&shop).expect("a project").project.keys;
    let key = keys.iter().find(|key| key.id == kept.id()).expect("the key");
    assert_eq!(key.state(now()), ApiKeyState::Revoked);
    let is_revoked = async || refusal(&behind, &kept) == Some(KeyRefusal::Revoked);
    eventually("obeyed", OBEYED, is_revoked).await;
    let revision = ahead.registry.revision();
    ahead
        .registry
        .restore_catalogue(CatalogueSource::Instance, revision, soon())
        .await
        .expect("a revision");
    assert_agreed(&[&ahead, &behind, &third]).await;
    for instance in [&ahead, &behind, &third] {
        assert_eq!(refusal(instance, &kept), Some(KeyRefusal::Revoked));
    }
}

#[tokio::test]
async fn restore_that_ends_half_way_is_repeated() {
    let redis = RedisServer::start();
    let one = on(&redis);
    make_projects(&one).await;
    let expected = names(&one);
    redis.query::<()>(&["FLUSHALL"]);
    assert_conflict(&[&one]).await;
    // As if a process had ended after each step before the last one.
    let catalogue = Fleet::new(one.registry.limiter().store()).catalogue();
    let head = catalogue.head(None, soon()).await.expect("an answer").map(|(head, _)| head);
    let shared = catalogue.shared().expect("a shared catalogue");
    let begun = shared.begin_restore(head, &Lineage::default(), "one", soon()).await;
    let generation = begun.expect("an answer").expect("a conflict");
    let document = Document { revision: 1, fields: [("project".to_owned(), Vec::new())].into() };
    let staged = shared.stage(generation, "half", Some(&document), false, soon()).await;
    assert_eq!(staged.expect("an answer"), RestoreStep::Done);
    let fresh = on(&redis);
    assert_conflict(&[&one, &fresh]).await;
    assert_eq!(names(&fresh), [ProjectId::UNNAMED]);
    let revision = one.registry.revision();
    let from = CatalogueSource::Instance;
    one.registry.restore_catalogue(from, revision, soon()).await.expect("a revision");
    let late = shared.stage(generation, "half", Some(&document), false, soon()).await;
    assert_eq!(late.expect("an answer"), RestoreStep::Changed);
    assert_agreed(&[&one, &fresh]).await;
    assert_eq!(names(&fresh), expected);
    let left = generation.to_string();
    assert!(!redis.keys().iter().any(|key| key.contains(&left)), "{:?}", redis.keys());
}

#[tokio::test]
async fn instance_that_missed_two_restores_takes_the_last_one() {
    let redis = RedisServer::start();
    let (one, mut late) = (on(&redis), on(&redis));
    let secret = make_projects(&one).await;
    eventually("in force", SOON, async || late.registry.revision() == one.registry.revision())
        .await;
    late.stop_following();
    for restore in 0..2 {
        redis.query::<()>(&["FLUSHALL"]);
        assert_conflict(&[&one]).await;
        let revision = one.registry.revision();
        let from = CatalogueSource::Instance;
        one.registry.restore_catalogue(from, revision, soon()).await.expect("a revision");
        one.put("other", &format!("restored {restore}")).await.expect("a change");
    }
    revoke(&one, "shop", &secret).await.expect("a change");
    late.resume_following();
    assert_agreed(&[&one, &late]).await;
    assert_eq!(refusal(&late, &secret), Some(KeyRefusal::Revoked));
    let replaced: String = redis.query(&["HGET", "rlaas:catalog", "lineage"]);
    assert_eq!(replaced.split(' ').count(), 2);
}

/// Number, time, microseconds, arguments, address and name of a slow call of Redis.
type SlowCall = (u64, u64, u64, Vec<Vec<u8>>, String, String);

/// Prints and checks how long the calls of scripts held Redis since the last time.
fn assert_short_calls(redis: &RedisServer, what: &str) {
    let stats: String = redis.query(&["INFO", "latencystats"]);
    let of_scripts = stats.lines().find(|line| line.contains("_evalsha:"));
    let of_scripts = of_scripts.unwrap_or_else(|| panic!("no script was called: {stats}"));
    let slow: Vec<SlowCall> = redis.query(&["SLOWLOG", "GET", "10000"]);
    let described = |call: &SlowCall| {
        // Those within a script stand alone, too.
        let texts: Vec<_> = call.3.iter().map(|text| String::from_utf8_lossy(text)).collect();
        let operation =
            if texts[0].to_ascii_lowercase().starts_with("eval") { texts.get(15) } else { None };
        format!("{} {} {} us", texts[0], operation.map_or("", |text| &**text), call.2)
    };
    let slow: Vec<String> = slow.iter().map(described).collect();
    println!("{what}: {of_scripts}; above 1 ms: {slow:?}");
    let median = of_scripts.split("p50=").nth(1).and_then(|rest| rest.split(',').next());
    let median: f64 = median.and_then(|text| text.parse().ok()).expect("a number");
    assert!(median < 1_000.0, "{median} us");
    redis.query::<()>(&["SLOWLOG", "RESET"]);
    redis.query::<()>(&["CONFIG", "RESETSTAT"]);
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "prints how long it took")]
async fn large_catalogue_is_restored_in_short_steps() {
    let (projects, rules_of_one) =
        if std::env::var_os("SOAK").is_some() { (10_000, 5_000) } else { (200, 500) };
    let redis = RedisServer::start();
    let one = on(&redis);
    let rules: Vec<_> = (0..9)
        .map(|number| rule(&format!("rule-{number}"), 5).resource(format!("/{number}")))
        .collect();
    // The bounds are 10,000 projects and 100,000 rules.
    for number in 1..projects {
        let id = format!("project-{number}");
        one.put(&id, "").await.expect("a change");
        one.apply(&id, &rules, Others::Kept).await.expect("a change");
    }
    let many: Vec<_> = (0..rules_of_one)
        .map(|number| rule(&format!("rule-{number}"), 5).resource(format!("/{number}")))
        .collect();
    one.put("many", "").await.expect("a change");
    one.apply("many", &many, Others::Kept).await.expect("a change");
    let expected = one.registry.projects();
    redis.query::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "1000"]);
    redis.query::<()>(&["CONFIG", "SET", "slowlog-max-len", "10000"]);
    redis.query::<()>(&["SLOWLOG", "RESET"]);
    redis.query::<()>(&["CONFIG", "RESETSTAT"]);
    let id = project_id("many");
    let history = one.registry.history_until(&id, |_| false, soon()).await.expect("a history");
    assert_eq!(history.iter().next().map(|newest| newest.changes.len()), Some(rules_of_one));
    assert_short_calls(&redis, "history of many rules");
    redis.query::<()>(&["FLUSHALL"]);
    redis.query::<()>(&["SLOWLOG", "RESET"]);
    assert_conflict(&[&one]).await;
    let (revision, begun) = (one.registry.revision(), std::time::Instant::now());
    let deadline = rlaas::clock::Deadline::within(Duration::from_mins(2));
    let from = CatalogueSource::Instance;
    one.registry.restore_catalogue(from, revision, deadline).await.expect("a revision");
    println!("{projects} projects restored in {:?}", begun.elapsed());
    assert_short_calls(&redis, "restore");
    assert_eq!(one.registry.projects(), expected);
    let fresh = on(&redis);
    eventually("read by another", Duration::from_mins(1), async || {
        fresh.registry.projects() == expected
    })
    .await;
    assert_short_calls(&redis, "start of another");
}
