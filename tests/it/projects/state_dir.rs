//! What an instance keeps on disk: the folder `state-dir`, and the journal of the memory store.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::Value;
use rlaas::clock::Clock;
use rlaas::observer::NoObserver;
use rlaas::store::{MemorySettings, MemoryStore, Store};
use rlaas_limiter::journal::{Journal, JournalError, JournalSettings};
use rlaas_projects::Others;
use rlaas_projects::registry::ChangeError;
use rlaas_testkit::process::{Rlaas, check, finish, rlaas};
use rlaas_testkit::redis::{RedisServer, free_port};
use rlaas_testkit::{TempDir, eventually};

use super::instance::{Running, project_id, rule, soon};
use crate::fleet::instance::standalone;

const SOON: Duration = Duration::from_secs(10);

/// Starts an instance whose catalogue is kept in a folder.
async fn keeping(url: &str, folder: &Path) -> Running {
    let mut instance = Running::on_redis(&standalone(url));
    instance.stop_following();
    // An instance that was dropped may still hold the lock for a moment.
    eventually("the folder is unlocked", SOON, async || {
        instance.registry.open_state_dir(folder).await.is_ok()
    })
    .await;
    instance.resume_following();
    instance
}

/// Makes a project with a rule, a second project, and a third one that is deleted.
async fn make_projects(on: &Running) {
    for id in ["shop", "other", "gone"] {
        on.put(id, id).await.expect("a change");
    }
    on.apply("shop", &[rule("a", 1), rule("b", 2)], Others::Kept).await.expect("a change");
    on.apply("shop", &[rule("a", 3)], Others::Deleted).await.expect("a change");
    on.apply("_", &[rule("everywhere", 9)], Others::Kept).await.expect("a change");
    on.delete("gone").await.expect("a change");
}

fn nowhere() -> String {
    format!("redis://127.0.0.1:{}", free_port())
}

#[tokio::test]
async fn instance_starts_with_the_last_catalogue_while_redis_is_away() {
    let (redis, dir) = (RedisServer::start(), TempDir::new());
    let (writer, folder) = (keeping(&redis.url(), &dir.path("one")).await, dir.path("two"));
    let reader = keeping(&redis.url(), &folder).await;
    make_projects(&writer).await;
    let expected = writer.registry.projects();
    eventually("in force", SOON, async || reader.registry.projects() == expected).await;
    // What is in force is on disk when the look at the catalogue ends.
    reader.registry.sync(soon()).await.expect("an answer");
    for path in [dir.path("one"), folder.clone()] {
        for file in fs::read_dir(&path).expect("a folder") {
            let mode = file.expect("a file").metadata().expect("metadata").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }
    let locked = Running::on_redis(&standalone(&nowhere()));
    let refused = locked.registry.open_state_dir(&folder).await;
    assert!(matches!(refused, Err(JournalError::Locked { .. })), "{refused:?}");
    for folder in [dir.path("one"), folder] {
        let copy = dir.path("copy");
        fs::create_dir_all(&copy).expect("a folder");
        for file in fs::read_dir(&folder).expect("a folder") {
            let file = file.expect("a file");
            fs::copy(file.path(), copy.join(file.file_name())).expect("a copy");
        }
        let cut_off = keeping(&nowhere(), &copy).await;
        assert_eq!(cut_off.registry.projects(), expected);
        let rules = cut_off.registry.limiter().snapshot();
        assert!(rules.rules.iter().any(|rule| *rule.name == *"everywhere"), "{rules:?}");
        let refused = cut_off.put("shop", "Other").await;
        assert!(matches!(refused, Err(ChangeError::Unavailable(_))), "{refused:?}");
        fs::remove_dir_all(&copy).expect("a folder");
    }
}

/// Makes projects, and returns a damaged copy of the folder of an instance that knows them.
async fn damaged_copy(redis: &RedisServer, dir: &TempDir) -> PathBuf {
    let folder = dir.path("state");
    let instance = keeping(&redis.url(), &folder).await;
    make_projects(&instance).await;
    let copy = dir.path("copy");
    fs::create_dir_all(&copy).expect("a folder");
    for file in fs::read_dir(&folder).expect("a folder") {
        let file = file.expect("a file");
        let mut bytes = fs::read(file.path()).expect("a file");
        let middle = bytes.len() / 2;
        if let Some(byte) = bytes.get_mut(middle) {
            *byte ^= 1;
        }
        fs::write(copy.join(file.file_name()), bytes).expect("a file");
    }
    copy
}

#[tokio::test]
async fn damaged_folder_is_not_used() {
    let (redis, dir) = (RedisServer::start(), TempDir::new());
    let copy = damaged_copy(&redis, &dir).await;
    let knowing = Running::on_redis(&standalone(&redis.url()));
    knowing.registry.sync(soon()).await.expect("an answer");
    let expected = knowing.registry.projects();
    let cut_off = keeping(&nowhere(), &copy).await;
    assert_eq!(cut_off.registry.projects().len(), 1, "the unnamed project alone");
    drop(cut_off);
    let healed = keeping(&redis.url(), &copy).await;
    eventually("read from Redis", SOON, async || healed.registry.projects() == expected).await;
    // What was rewritten is used again.
    healed.registry.sync(soon()).await.expect("an answer");
    drop(healed);
    let cut_off = keeping(&nowhere(), &copy).await;
    assert_eq!(cut_off.registry.projects(), expected);
}

#[tokio::test]
async fn damaged_folder_is_not_used_at_a_later_start_either() {
    let (redis, dir) = (RedisServer::start(), TempDir::new());
    let copy = damaged_copy(&redis, &dir).await;
    // A process that ended before it had rewritten the folder.
    let (settings, clock) = (JournalSettings::new(&copy), Clock::default());
    Journal::open(&settings, clock, Arc::new(NoObserver)).expect("a journal").close();
    let cut_off = keeping(&nowhere(), &copy).await;
    assert_eq!(cut_off.registry.projects().len(), 1, "the unnamed project alone");
}

#[tokio::test]
async fn empty_redis_is_not_taken() {
    let redis = RedisServer::start();
    let instance = Running::on_redis(&standalone(&redis.url()));
    make_projects(&instance).await;
    let expected = instance.registry.projects();
    redis.query::<()>(&["FLUSHALL"]);
    let conflicts = async || instance.metrics.catalogue_conflict.get() == 1;
    eventually("a conflict", SOON, conflicts).await;
    assert_eq!(instance.registry.projects(), expected);
    let refused = instance.put("shop", "Other").await;
    assert!(matches!(refused, Err(ChangeError::Conflict)), "{refused:?}");
}

#[tokio::test]
async fn journal_keeps_projects_over_a_restart() {
    let dir = TempDir::new();
    let open = || {
        let journal = JournalSettings::new(dir.path("journal"));
        let (settings, clock) = (MemorySettings::default(), Clock::default());
        let store = MemoryStore::open(settings, &journal, clock, Arc::new(NoObserver));
        store.expect("a journal")
    };
    let store = open();
    let before = Running::on(Store::Memory(store.clone()));
    make_projects(&before).await;
    let (projects, id) = (before.registry.projects(), project_id("shop"));
    let history = before.registry.history_until(&id, |_| false, soon()).await.expect("an answer");
    assert_eq!(history.iter().count(), 2);
    store.close_journal();
    let refused = before.put("shop", "Late").await;
    assert!(matches!(refused, Err(ChangeError::Unavailable(_))), "{refused:?}");
    drop((before, store));

    let after = Running::on(Store::Memory(open()));
    after.registry.sync(soon()).await.expect("an answer");
    assert_eq!(after.registry.projects(), projects);
    assert_eq!(
        after.registry.history_until(&id, |_| false, soon()).await.expect("an answer"),
        history
    );
    let renamed = after.put("shop", "New").await.expect("a change");
    assert!(renamed.revision > projects.iter().map(|of| of.revision).max().unwrap_or_default());
}

#[tokio::test]
async fn server_starts_with_its_state_dir() {
    let (redis, dir) = (RedisServer::start(), TempDir::new());
    let state_dir = format!("state-dir={}", dir.path("state").display());
    let writer = Running::on_redis(&standalone(&redis.url()));
    let denying = [rule("denying", 0)];
    writer.apply("_", &denying, Others::Kept).await.expect("a change");
    let allow = "rate-limiter.on-store-failure=allow";
    let server = Rlaas::on_redis(&redis, &[&state_dir, allow]);
    let mut client = server.client().await;
    let is_in_force =
        async |client: &mut _| check(client, "alice").await.is_ok_and(|answer| !answer.allowed);
    eventually("in force", SOON, async || is_in_force(&mut client).await).await;
    // It is written to the folder afterwards.
    let is_kept = || {
        let mut files = fs::read_dir(dir.path("state")).expect("a folder");
        let holds = |bytes: Vec<u8>| bytes.windows(8).any(|text| text == b"denying\"");
        files.any(|file| fs::read(file.expect("a file").path()).is_ok_and(holds))
    };
    eventually("in the folder", SOON, async || is_kept()).await;
    drop(server);
    let url = format!("store.redis.url={}", nowhere());
    let server = Rlaas::start(&["store.backend=redis", &url, &state_dir, allow]);
    // The default rule would allow.
    let answer = check(&mut server.client().await, "alice").await.expect("an answer");
    assert_eq!((answer.allowed, answer.rule.as_str()), (false, "denying"));
    drop(server);
    // A memory store does not take them for its own; with a journal elsewhere it starts.
    let addresses = ["server.listen=127.0.0.1:0", "server.http=127.0.0.1:0", &state_dir];
    let mut command = rlaas(&["serve"]);
    for setting in addresses {
        command.args(["--set", setting]);
    }
    let (code, _, log) = finish(command.output().expect("the program"));
    assert!(code == 1 && log.contains("has the projects of a redis"), "{code}: {log}");
    drop(Rlaas::start(&[&state_dir, "store.memory.journal.path=off"]));
}

#[tokio::test]
async fn documented_permissions_are_enough_for_projects() {
    let redis = RedisServer::start();
    let book = fs::read_to_string("docs/redis.md").expect("the book");
    let commands = book.split("```console\n").skip(1).filter_map(|rest| {
        let command =
            rest.split("\nOK").next()?.strip_prefix("$ redis-cli -p 6379 ACL SETUSER ")?;
        Some(command.replace("\\\n", " ").replace('\'', ""))
    });
    let mut count = 0;
    for command in commands {
        let words: Vec<&str> =
            ["ACL", "SETUSER"].into_iter().chain(command.split_whitespace()).collect();
        redis.query::<()>(&words);
        count += 1;
    }
    assert_eq!(count, 3, "decisions, administration, projects");
    let settings = || crate::fleet::instance::as_user(&redis.url(), "rlaas", "password");
    let (one, other) = (Running::on_redis(&settings()), Running::on_redis(&settings()));
    make_projects(&one).await;
    let expected = one.registry.projects();
    eventually("in force", SOON, async || other.registry.projects() == expected).await;
    let history = other.registry.history_until(&project_id("shop"), |_| false, soon()).await;
    assert_eq!(history.expect("an answer").iter().count(), 2);
    let denied: Vec<Value> = redis.query(&["ACL", "LOG"]);
    // The client library sends its name; newer servers log that this is denied.
    let denied = denied.iter().map(|entry| format!("{entry:?}"));
    let denied: Vec<_> = denied.filter(|entry| !entry.contains("client|setinfo")).collect();
    assert!(denied.is_empty(), "{denied:?}");
}
