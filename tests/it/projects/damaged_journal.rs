//! A damaged journal of the memory store: no key that was revoked is accepted again.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rlaas::clock::Clock;
use rlaas::observer::NoObserver;
use rlaas::store::{MemorySettings, MemoryStore, Store};
use rlaas_auth::{KeyRefusal, KnownApiKeys};
use rlaas_limiter::journal::{Journal, JournalSettings};
use rlaas_projects::ApiKeySecret;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::UnmatchedPolicy;
use rlaas_testkit::process::{Rlaas, request, run};
use rlaas_testkit::{TempDir, eventually};
use tonic::{Code, Request};

use super::client::client;
use super::conflict::{create_key, make_projects, refusal, revoke};
use super::instance::{Running, soon};

const SOON: Duration = Duration::from_secs(20);
/// Damages of one kind, at places that are far apart.
const DAMAGES: usize = 300;

async fn open(folder: &Path) -> MemoryStore {
    let (journal, mut store) = (JournalSettings::new(folder), None);
    // A process that another test is starting may hold the lock for a moment.
    eventually("the folder is unlocked", SOON, async || {
        let (settings, clock) = (MemorySettings::default(), Clock::default());
        store = MemoryStore::open(settings, &journal, clock, Arc::new(NoObserver)).ok();
        store.is_some()
    })
    .await;
    store.expect("a journal")
}

/// Starts an instance with the journal in a folder.
async fn start(store: &MemoryStore) -> Running {
    let instance = Running::on(Store::Memory(store.clone()));
    instance.registry.sync(soon()).await.expect("an answer");
    instance
}

/// Returns why an instance with this journal refuses keys, and whether it is ready.
async fn refusals(folder: &Path, keys: &[Arc<ApiKeySecret>; 2]) -> ([Option<KeyRefusal>; 2], bool) {
    let store = open(folder).await;
    let instance = start(&store).await;
    let refused = keys.each_ref().map(|key| refusal(&instance, key));
    let is_ready = !instance.registry.keyring().is_barred();
    drop(instance);
    store.close_journal();
    (refused, is_ready)
}

/// A journal of projects with a key that was revoked and one that was not.
struct KeyJournal {
    folder: PathBuf,
    log: PathBuf,
    bytes: Vec<u8>,
    keys: [Arc<ApiKeySecret>; 2],
}

impl KeyJournal {
    async fn new(dir: &TempDir) -> Self {
        let folder = dir.path("journal");
        let store = open(&folder).await;
        let instance = start(&store).await;
        let revoked = make_projects(&instance).await;
        let other = create_key(&instance, "other").await;
        revoke(&instance, "shop", &revoked).await.expect("a change");
        drop(instance);
        store.close_journal();
        let log = folder.join("changes-0000000001.log");
        let bytes = fs::read(&log).expect("a log");
        Self { folder, log, bytes, keys: [revoked, other] }
    }

    /// Puts a log in place of all files.
    fn replace(&self, bytes: &[u8]) {
        fs::remove_dir_all(&self.folder).expect("a folder");
        fs::create_dir(&self.folder).expect("a folder");
        fs::write(&self.log, bytes).expect("a log");
    }

    /// Returns places in the log, the last bytes among them.
    fn places(&self) -> BTreeSet<usize> {
        let len = self.bytes.len();
        (0..len).step_by(len.div_ceil(DAMAGES)).chain(len - 400..len).collect()
    }
}

#[tokio::test]
async fn no_damage_of_a_journal_lets_a_revoked_key_in() {
    let dir = TempDir::new();
    let written = KeyJournal::new(&dir).await;
    let keys = &written.keys;
    let (whole, is_ready) = refusals(&written.folder, keys).await;
    assert_eq!((whole, is_ready), ([Some(KeyRefusal::Revoked), None], true));
    for at in written.places() {
        let mut flipped = written.bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        written.replace(&flipped);
        let ([revoked, other], is_ready) = refusals(&written.folder, keys).await;
        assert!(revoked.is_some(), "byte {at} flipped");
        let is_harmless = is_ready && other.is_none();
        assert!(is_harmless || other == Some(KeyRefusal::Unavailable), "byte {at}: {other:?}");
        // What can't be read is lost once that is accepted, but keys that have ended stay so.
        Journal::accept(&written.folder).expect("a folder");
        let ([revoked, _], is_ready) = refusals(&written.folder, keys).await;
        assert!(revoked.is_some() && is_ready, "byte {at} flipped and accepted: {revoked:?}");

        let mut inserted = written.bytes.clone();
        inserted.insert(at, inserted[at]);
        written.replace(&inserted);
        let ([revoked, _], _) = refusals(&written.folder, keys).await;
        assert!(revoked.is_some(), "a byte inserted at {at}");
    }
}

#[tokio::test]
async fn server_with_a_damaged_journal_is_not_ready_until_that_is_accepted() {
    let dir = TempDir::new();
    let folder = dir.path("journal");
    let path = folder.display().to_string();
    let journal = format!("store.memory.journal.path={path}");
    let start = || Rlaas::start(&["auth.api-keys=accepted", &journal]);
    let mut server = start();
    let mut projects = client(&server, "").await;
    let unmatched = UnmatchedPolicy::Allow.into();
    let project = Some(proto::Project { id: "shop".to_owned(), unmatched, ..Default::default() });
    let new = proto::CreateProjectRequest { project, ..Default::default() };
    projects.create_project(new).await.expect("a project");
    let mut keys = Vec::new();
    for _ in 0..2 {
        let new = proto::CreateKeyRequest { project_id: "shop".to_owned(), ..Default::default() };
        keys.push(projects.create_key(new).await.expect("a key").into_inner());
    }
    let key_id = keys[0].key.as_ref().expect("a key").id.clone();
    let project_id = "shop".to_owned();
    let revoking = proto::RevokeKeyRequest { project_id, key_id, ..Default::default() };
    projects.revoke_key(revoking).await.expect("a change");
    let codes = async |server: &Rlaas| {
        let mut codes = Vec::new();
        for key in &keys {
            let mut call = Request::new(request("alice"));
            call.metadata_mut().insert("x-api-key", key.secret.parse().expect("a header"));
            let answer = server.client().await.check(call).await;
            codes.push(answer.map_or_else(|status| status.code(), |_| Code::Ok));
        }
        codes
    };
    assert_eq!(codes(&server).await, [Code::Unauthenticated, Code::Ok]);
    server.signal("KILL");
    server.wait();

    let log = folder.join("changes-0000000001.log");
    let mut bytes = fs::read(&log).expect("a log");
    let is_revoked = |bytes: &[u8]| bytes.starts_with(br#""revoked_at":1"#);
    let at = (0..bytes.len()).rev().find(|at| is_revoked(&bytes[*at..])).expect("the key");
    bytes[at] ^= 1;
    fs::write(&log, &bytes).expect("a log");
    let accept = || run(&["journal", "accept", &path]);
    for _ in 0..2 {
        let mut server = start();
        // It is told of the store after readiness.
        let of_store = ["health", "--service", "store", "--addr", server.grpc()];
        eventually("a store", SOON, async || run(&of_store).0 == 0).await;
        assert_eq!(server.get("/readyz").await.0, 503, "{}", server.log());
        // A change that is written unbars nothing.
        let new = proto::CreateKeyRequest { project_id: "shop".to_owned(), ..Default::default() };
        client(&server, "").await.create_key(new).await.expect("a key");
        let codes = codes(&server).await;
        assert_eq!(codes[1], Code::Unavailable);
        assert_ne!(codes[0], Code::Ok);
        assert_eq!(server.get("/readyz").await.0, 503, "{}", server.log());
        let log = server.log();
        assert!(log.contains(&format!("rlaas journal accept {path}")), "{log}");
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    }
    let accepted = folder.join("changes-0000000001.accepted");
    let told = format!("accepted: {}\n", accepted.display());
    assert_eq!(accept(), (0, told, String::new()));
    assert_eq!(fs::read(&accepted).expect("the damaged log"), bytes);
    let server = start();
    eventually("ready", SOON, async || server.get("/readyz").await.0 == 200).await;
    assert_eq!(codes(&server).await, [Code::Unauthenticated, Code::Ok]);
    let nothing = format!("rlaas: nothing is damaged in {path}\n");
    assert_eq!(accept(), (1, String::new(), nothing));
    let (code, _, error) = run(&["journal", "accept", "/proc/rlaas"]);
    assert!(code == 2 && error.contains("can't read /proc/rlaas"), "{code}: {error}");
}
