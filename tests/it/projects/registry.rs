//! The registry on one real Redis, and in memory.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures_util::poll;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rlaas::clock::{Clock, Deadline};
use rlaas::observer::NoObserver;
use rlaas::rules::Grant;
use rlaas::rules::spec::Field;
use rlaas::store::{Health, MemorySettings, MemoryStore, Store, StoreError};
use rlaas_auth::{CallerScope, ProjectId};
use rlaas_limiter::fleet::Fleet;
use rlaas_projects::registry::{
    CatalogueSource, Change, ChangeError, ChangeRank, Changed, ProjectState, Registry,
    RestoreError, SyncError,
};
use rlaas_projects::{Etag, Others, RuleWriteError, WriteStamp};
use rlaas_testkit::eventually;
use rlaas_testkit::process::signal;
use rlaas_testkit::redis::RedisServer;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::instance::{Running, make_change, now, project_id, rule, soon};
use crate::fleet::instance::{as_user, standalone};

/// Longest time until a write is in force everywhere.
const IN_FORCE: Duration = Duration::from_secs(2);

fn three_on(redis: &RedisServer) -> [Running; 3] {
    [(); 3].map(|()| Running::on_redis(&standalone(&redis.url())))
}

pub(super) fn memory() -> Running {
    Running::on(Store::Memory(MemoryStore::new(
        MemorySettings::default(),
        Clock::default(),
        Arc::new(NoObserver),
    )))
}

/// An edit of one of a few projects.
#[derive(Clone, Debug)]
enum Edit {
    Put(u8),
    Delete,
    Apply(u64, bool),
}

fn edit() -> impl Strategy<Value = (usize, u8, Edit)> {
    let edit = prop_oneof![
        2 => any::<u8>().prop_map(Edit::Put),
        1 => Just(Edit::Delete),
        6 => (1..1_000_u64, any::<bool>()).prop_map(|(units, prune)| Edit::Apply(units, prune)),
    ];
    (0..3_usize, 0..8_u8, edit)
}

/// Makes an edit on an instance. Returns the revision if it was made; 0 of a deleted project.
async fn make(on: &Running, id: &str, edit: Edit) -> Option<u64> {
    match edit {
        Edit::Put(name) => {
            let put = on.put(id, &name.to_string()).await.expect("a change");
            Some(put.revision)
        }
        Edit::Delete => {
            on.delete(id).await.expect("a change");
            Some(0)
        }
        Edit::Apply(units, prune) => {
            let others = if prune { Others::Deleted } else { Others::Kept };
            let third = format!("rule-{}", units % 5);
            let rules = [rule("a", units), rule("b", units), rule(&third, units)];
            match on.apply(id, &rules, others).await {
                Ok(changed) => Some(changed.revision),
                Err(ChangeError::Refused(RuleWriteError::NotFound)) => None,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Panics if the rules that each write gives the same limit have different ones.
fn assert_whole(registry: &Registry) {
    for state in registry.projects() {
        let limit = |name: &str| match state.rules.rule(name).map(|record| record.spec.limit) {
            Some(Field::Set(units)) => Some(units),
            _ => None,
        };
        assert_eq!(limit("a"), limit("b"), "{:?}", state.project.id);
        let Some(snapshot) = registry.limiter().project_snapshot(state.project.id.as_str()) else {
            continue;
        };
        let in_force = |name: &str| {
            let rule = snapshot.rules.iter().find(|rule| *rule.name == *name);
            rule.map(|rule| rule.grant)
        };
        assert_eq!(in_force("a"), in_force("b"), "{:?}", state.project.id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_edits_are_in_force_on_every_instance() {
    let redis = RedisServer::start();
    let instances = three_on(&redis);
    let is_over = Arc::new(AtomicBool::new(false));
    let readers = instances.each_ref().map(|instance| {
        let (registry, is_over) = (instance.registry.clone(), Arc::clone(&is_over));
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                assert_whole(&registry);
                tokio::task::yield_now().await;
            }
        })
    });
    let mut runner = TestRunner::deterministic();
    let (mut times, mut deleted) = (Vec::new(), [0; 8]);
    for _ in 0..300 {
        let (by, project, edit) = edit().new_tree(&mut runner).expect("an edit").current();
        // The id of a deleted project is not given again.
        let suffix = deleted[usize::from(project)];
        let id = if project == 0 { "_".to_owned() } else { format!("project-{project}-{suffix}") };
        if id == "_" && matches!(edit, Edit::Delete) {
            continue;
        }
        let Some(revision) = make(&instances[by], &id, edit.clone()).await else { continue };
        deleted[usize::from(project)] += u32::from(matches!(edit, Edit::Delete));
        assert_eq!(instances[by].revision(&id), revision, "in force where it was made");
        let is_everywhere =
            async || instances.iter().all(|instance| instance.revision(&id) == revision);
        times.push(eventually(&format!("{edit:?} in force"), IN_FORCE, is_everywhere).await);
    }
    times.sort_unstable();
    let p99 = times[times.len() * 99 / 100];
    assert!(times.len() > 200 && p99 < IN_FORCE, "{} edits, p99 {p99:?}", times.len());
    println!("{} edits, p99 until in force everywhere: {p99:?}", times.len());
    is_over.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.expect("no half revision");
    }
    let [one, other, another] = instances.each_ref().map(|of| of.registry.projects());
    assert_eq!(one, other);
    assert_eq!(one, another);
    for state in &one {
        let snapshot = instances[0].registry.limiter().project_snapshot(state.project.id.as_str());
        let named: Vec<_> = snapshot.expect("rules").rules.iter().skip(1).cloned().collect();
        let expected = state.rules.build().expect("valid rules");
        for rule in expected.iter().skip(1) {
            assert!(named.iter().any(|of| of.name == rule.name && of.grant == rule.grant));
        }
    }
    let late = Running::on_redis(&standalone(&redis.url()));
    eventually("a late instance has all", IN_FORCE, async || late.registry.projects() == one).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_that_others_overtake_each_time_ends_after_eight_tries() {
    let redis = RedisServer::start();
    let (one, other) = (
        Running::on_redis(&standalone(&redis.url())),
        Arc::new(Running::on_redis(&standalone(&redis.url()))),
    );
    one.put("shop", "Shop").await.expect("a change");
    let tries = Arc::new(AtomicUsize::new(0));
    let (overtakes, counter, runtime) =
        (Arc::clone(&other), Arc::clone(&tries), tokio::runtime::Handle::current());
    let change = move |before: Option<&ProjectState>| {
        let number = counter.fetch_add(1, Ordering::SeqCst);
        let name = format!("Other {number}");
        runtime.block_on(overtakes.put("shop", &name)).expect("a change");
        let mut project = before.expect("a project").project.clone();
        project.rename("Mine", now()).expect("a short name");
        let rules = before.expect("a project").rules.clone();
        Ok::<_, Infallible>(Change { after: Some((project, rules)), revision: None, result: () })
    };
    let raced = make_change(&one.registry, project_id("shop"), ChangeRank::default(), change).await;
    assert!(matches!(raced, Err(ChangeError::Raced)), "{raced:?}");
    assert_eq!(tries.load(Ordering::SeqCst), 8);
    one.registry.sync(soon()).await.expect("an answer");
    let shop = one.registry.project(&project_id("shop")).expect("the project");
    assert_eq!(shop.project.display_name, "Other 7");
}

/// A change that has the catalogue locked until it is ended.
struct HeldChange {
    end: mpsc::Sender<()>,
    task: JoinHandle<Result<Changed<()>, ChangeError<Infallible>>>,
}

impl HeldChange {
    async fn start(on: &Running) -> Self {
        let (end, ended) = mpsc::channel();
        let (start, started) = oneshot::channel();
        let (registry, mut start) = (on.registry.clone(), Some(start));
        let change = move |_: Option<&ProjectState>| {
            start.take().expect("one try").send(()).expect("a test that waits");
            ended.recv().expect("a test that ends it");
            Ok(unchanged())
        };
        let id = project_id("shop");
        let task =
            tokio::spawn(
                async move { make_change(&registry, id, ChangeRank::default(), change).await },
            );
        started.await.expect("a change");
        Self { end, task }
    }

    async fn end(self) {
        self.end.send(()).expect("a change that runs");
        self.task.await.expect("a task that ends").expect("an answer");
    }
}

/// A change of a project that does not exist: nothing is written.
fn unchanged() -> Change<()> {
    Change { after: None, revision: None, result: () }
}

#[tokio::test]
async fn reads_do_not_wait_in_the_queues_of_changes() {
    let redis = RedisServer::start();
    let one = Running::on_redis(&standalone(&redis.url()));
    one.put("blog", "Blog").await.expect("a change");
    let held = HeldChange::start(&one).await;
    let (id, rank) = (project_id("shop"), ChangeRank::default());
    let change = |_: Option<&ProjectState>| Ok::<_, Infallible>(unchanged());
    let mut next = Box::pin(make_change(&one.registry, id, rank, change));
    assert!(poll!(&mut next).is_pending(), "it is not its turn");
    let mut read = Box::pin(one.registry.sync(soon()));
    assert!(poll!(&mut read).is_pending(), "the catalogue is locked");
    held.end().await;
    // The next change has the turn, and does not go on.
    read.await.expect("an answer");
    next.await.expect("an answer");
}

#[tokio::test]
async fn catalogue_that_is_locked_is_busy_and_unreachable_only_while_redis_is() {
    let redis = RedisServer::start();
    let one = Running::on_redis(&standalone(&redis.url()));
    one.put("blog", "Blog").await.expect("a change");
    let held = HeldChange::start(&one).await;
    let deadline = || Deadline::within(Duration::ZERO);
    let synced = one.registry.sync(deadline()).await;
    assert!(matches!(synced, Err(SyncError::Busy)), "{synced:?}");
    let restored = one.registry.check_restore(CatalogueSource::Store, 1, deadline()).await;
    assert!(matches!(restored, Err(RestoreError::Changed)), "{restored:?}");
    signal(redis.pid(), "STOP");
    let health = one.registry.limiter().store().health();
    let is_down = async || *health.borrow() == Health::Down;
    eventually("redis is away", Duration::from_secs(20), is_down).await;
    let synced = one.registry.sync(deadline()).await;
    signal(redis.pid(), "CONT");
    let is_away = matches!(synced, Err(SyncError::Store(StoreError::Unreachable)));
    assert!(is_away, "{synced:?}");
    held.end().await;
}

#[tokio::test]
async fn write_is_found_without_publications() {
    let redis = RedisServer::start();
    let permissions = ["on", ">secret", "~*", "+@all", "resetchannels"];
    redis.query::<()>(&[&["ACL", "SETUSER", "deaf"], &permissions[..]].concat());
    let writer = Running::on_redis(&standalone(&redis.url()));
    let reader = Running::on_redis(&as_user(&redis.url(), "deaf", "secret"));
    for units in 1..4 {
        let revision = writer.put("shop", &units.to_string()).await.expect("a change").revision;
        eventually("the write is found", IN_FORCE, async || reader.revision("shop") == revision)
            .await;
    }
}

#[tokio::test]
async fn concurrent_changes_lose_nothing() {
    let redis = RedisServer::start();
    let instances = three_on(&redis);
    instances[0].put("shop", "Shop").await.expect("a change");
    let creating = instances.iter().enumerate().map(async |(by, instance)| {
        for number in 0..10 {
            let spec = rule(&format!("rule-{by}-{number}"), 5);
            loop {
                match instance.apply("shop", std::slice::from_ref(&spec), Others::Kept).await {
                    Ok(changed) => break assert_eq!(changed.result, 1),
                    // Eight others were faster.
                    Err(ChangeError::Raced) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
    futures_util::future::join_all(creating).await;
    instances[0].registry.sync(soon()).await.expect("an answer");
    let shop = instances[0].registry.project(&project_id("shop")).expect("a project");
    assert_eq!(shop.rules.len(), 30);
    let history = instances[1].registry.history_until(&project_id("shop"), |_| false, soon()).await;
    let history = history.expect("an answer");
    assert_eq!(history.iter().count(), 30);
    assert_eq!(history.iter().next().expect("a revision").number, shop.revision);
}

#[tokio::test]
async fn lost_update_is_refused_by_its_etag() {
    let redis = RedisServer::start();
    let [one, other, _] = three_on(&redis);
    one.put("shop", "Shop").await.expect("a change");
    one.apply("shop", &[rule("a", 1)], Others::Kept).await.expect("a change");
    let shop = one.registry.project(&project_id("shop")).expect("a project");
    let read = shop.rules.rule("a").expect("a rule").etag;
    let replace = |units| {
        move |rules: &mut rlaas_projects::ProjectRules, by| {
            let change = rules.replace(rule("a", units), Some(read), by)?;
            Ok((1, change.into_iter().collect()))
        }
    };
    other.change_rules("shop", replace(2)).await.expect("the etag is that of the rule");
    let stale = one.change_rules("shop", replace(3)).await;
    assert!(matches!(stale, Err(ChangeError::Refused(RuleWriteError::Stale))), "{stale:?}");
}

#[tokio::test]
async fn decisions_go_on_without_redis_and_writes_do_not() {
    let mut redis = RedisServer::start();
    let [one, other, _] = three_on(&redis);
    one.put("shop", "Shop").await.expect("a change");
    let revision =
        one.apply("shop", &[rule("a", 1)], Others::Kept).await.expect("a change").revision;
    eventually("in force", IN_FORCE, async || other.revision("shop") == revision).await;
    redis.kill();
    let refused = other.apply("shop", &[rule("a", 2)], Others::Kept).await;
    assert!(matches!(refused, Err(ChangeError::Unavailable(_))), "{refused:?}");
    eventually("the age grows", Duration::from_secs(10), async || {
        other.metrics.catalogue_age.get() > 1
    })
    .await;
    assert_eq!((one.revision("shop"), other.revision("shop")), (revision, revision));
}

#[tokio::test]
async fn rules_of_files_win_over_those_made_at_run_time() {
    let on = memory();
    on.apply("_", &[rule("file", 1), rule("more", 2)], Others::Kept).await.expect("a change");
    let limits = || {
        let rules = on.registry.limiter().snapshot().rules.clone();
        let named: Vec<_> = rules.iter().skip(1).map(|rule| rule.name.to_string()).collect();
        let file = rules.iter().find(|rule| *rule.name == *"file").expect("the rule");
        let Grant::Limited(limit) = file.grant else { panic!("{file:?}") };
        (named, limit.units())
    };
    assert_eq!(limits(), (vec!["file".to_owned(), "more".to_owned()], 7));
    let files = rlaas::rules::spec::RulesSpec::default().build().expect("rules");
    on.registry.replace_file_rules(files.into());
    assert_eq!(limits(), (vec!["file".to_owned(), "more".to_owned()], 1));
    on.apply("_", &[], Others::Deleted).await.expect("a change");
    assert_eq!(on.registry.limiter().snapshot().rules.iter().count(), 1);
    assert_eq!(on.registry.file_rules().iter().count(), 1);
}

#[tokio::test]
async fn projects_are_listed_newest_first() {
    let on = memory();
    for id in ["b", "c", "a"] {
        on.put(id, id).await.expect("a change");
    }
    on.delete("c").await.expect("a change");
    let ids: Vec<_> = on.registry.projects().iter().map(|of| of.project.id.clone()).collect();
    assert_eq!(ids, [project_id("a"), project_id("b"), ProjectId::UNNAMED]);
    assert_eq!(on.registry.project(&project_id("c")), None);
}

#[tokio::test]
async fn id_of_a_deleted_project_is_not_given_again() {
    let redis = RedisServer::start();
    for on in [memory(), Running::on_redis(&standalone(&redis.url()))] {
        on.put("shop", "Shop").await.expect("a change");
        on.delete("shop").await.expect("a change");
        let again = on.put("shop", "Another").await;
        assert!(matches!(again, Err(ChangeError::Deleted)), "{again:?}");
        on.put("shop-2", "Another").await.expect("a change");
    }
}

#[tokio::test]
async fn bounds_hold_over_all_projects() {
    let on = memory();
    on.put("shop", "Shop").await.expect("a change");
    let rules = |prefix: &str, count: u64| -> Vec<_> {
        (0..count)
            .map(|number| rule(&format!("{prefix}{number}"), 1).resource(format!("/{number}")))
            .collect()
    };
    // The history has no room for the differences of all at once.
    for part in 0..8 {
        let rules = rules(&format!("r{part}-"), 10_000);
        on.apply("shop", &rules, Others::Kept).await.expect("a change");
    }
    on.put("other", "Other").await.expect("a change");
    // An eighth is for callers of all projects.
    on.apply("other", &rules("r", 7_500), Others::Kept).await.expect("a change");
    let more = on.apply("other", &rules("more", 1), Others::Kept).await;
    assert!(matches!(more, Err(ChangeError::TooManyRules)), "{more:?}");
    on.apply("other", &[], Others::Deleted).await.expect("a change");
    on.apply("other", &rules("more", 1), Others::Kept).await.expect("a change");
}

#[tokio::test]
async fn bounds_are_counted_by_the_store_and_named() {
    let redis = RedisServer::start();
    let on = Running::on_redis(&standalone(&redis.url()));
    on.put("shop", "Shop").await.expect("a change");
    let count = |field: &str, number: u64| {
        redis.query::<()>(&["HSET", "rlaas:catalog", field, &number.to_string()]);
    };
    // An eighth is for callers of all projects.
    count("counted", Registry::MAX_RULES * 7 / 8 - 1);
    on.apply("shop", &[rule("last", 1)], Others::Kept).await.expect("a change");
    let more = on.apply("shop", &[rule("more", 1)], Others::Kept).await.expect_err("a bound");
    assert_eq!(more.to_string(), "there must be at most 100000 rules in all projects");
    let add = |state: Option<&ProjectState>| {
        let mut state = state.expect("a project").clone();
        let by = WriteStamp { at: now(), etag: Etag(1) };
        state.rules.apply(vec![rule("more", 1)], Others::Kept, by).expect("valid rules");
        let after = Some((state.project, state.rules));
        Ok::<_, Infallible>(Change { after, revision: None, result: () })
    };
    let (shop, scope) = (project_id("shop"), CallerScope::AllProjects);
    let as_root = ChangeRank { scope, is_revocation: false };
    make_change(&on.registry, shop, as_root, add).await.expect("the reserve");
    on.registry.set_max_rules(2);
    let more = on.apply("shop", &[rule("own", 1)], Others::Kept).await.expect_err("a bound");
    assert_eq!(more.to_string(), "a project must have at most 2 rules (projects.max-rules)");
    count("documents", Registry::MAX_PROJECTS - 1);
    on.put("last", "Last").await.expect("a change");
    let more = on.put("more", "More").await.expect_err("a bound");
    assert_eq!(more.to_string(), "there must be at most 10000 projects");
    on.delete("last").await.expect("a change");
    on.put("more", "More").await.expect("a change");
}

#[tokio::test]
async fn edit_of_a_project_costs_every_instance_that_project_alone() {
    let redis = RedisServer::start();
    let [one, other, _] = three_on(&redis);
    let ids: Vec<_> = (0..40).map(|number| format!("project-{number}")).collect();
    for id in &ids {
        one.put(id, id).await.expect("a change");
        one.apply(id, &[rule("a", 1)], Others::Kept).await.expect("a change");
    }
    let follows = async |id: &str| {
        let revision = one.revision(id);
        eventually("in force", IN_FORCE, async || other.revision(id) == revision).await;
    };
    follows(&ids[39]).await;
    let states = |on: &Running| -> Vec<_> {
        let state = |id: &String| on.registry.project(&project_id(id)).expect("a project");
        let rules = |id: &String| on.registry.limiter().project_snapshot(id).expect("rules");
        ids.iter().map(|id| (state(id), rules(id))).collect()
    };
    let before = [states(&one), states(&other)];
    redis.query::<()>(&["CONFIG", "RESETSTAT"]);
    one.apply(&ids[7], &[rule("a", 2)], Others::Kept).await.expect("a change");
    follows(&ids[7]).await;
    for (before, after) in before.into_iter().zip([states(&one), states(&other)]) {
        let changed = before.iter().zip(&after).enumerate().filter(|(_, (before, after))| {
            !Arc::ptr_eq(&before.0, &after.0) || !Arc::ptr_eq(&before.1, &after.1)
        });
        assert_eq!(changed.map(|(number, _)| number).collect::<Vec<_>>(), [7]);
    }
    let commands: String = redis.query(&["INFO", "commandstats"]);
    let reads =
        commands.split("cmdstat_hscan:calls=").nth(1).and_then(|rest| rest.split(',').next());
    let reads: u64 = reads.expect("reads").parse().expect("a number");
    assert!(reads <= 20, "{reads} steps were read for one project");
}

#[tokio::test]
async fn field_of_a_later_release_leaves_the_project_as_it_was() {
    let redis = RedisServer::start();
    let [one, other, _] = three_on(&redis);
    let revision = one.put("shop", "Shop").await.expect("a change").revision;
    eventually("in force", IN_FORCE, async || other.revision("shop") == revision).await;
    let catalogue = Fleet::new(one.registry.limiter().store()).catalogue();
    let head = catalogue.head(None, soon()).await.expect("an answer").map(|(head, _)| head);
    let mut write = rlaas_limiter::fleet::CatalogueWrite {
        expected: revision,
        ..rlaas_limiter::fleet::CatalogueWrite::new("shop")
    };
    write.set.insert("rule:a".to_owned(), b"{\"later\":1}".to_vec());
    catalogue.write(head, &write, soon()).await.expect("an answer");
    let refused = other.put("shop", "Other").await;
    assert!(matches!(refused, Err(ChangeError::Unreadable)), "{refused:?}");
    assert_eq!(other.revision("shop"), revision);
}
