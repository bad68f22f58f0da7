//! Overrides in the journal: a change is on disk before it is made.

#![cfg(feature = "journal")]

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rlaas_limiter::algorithm::{Algorithm, Cost, Limit};
use rlaas_limiter::clock::{Clock, Deadline, ManualClock, Micros, Timestamp};
use rlaas_limiter::control::{KeyGrant, KeyOverride, OverrideChange, OverrideKind};
use rlaas_limiter::journal::JournalSettings;
use rlaas_limiter::observer::NoObserver;
use rlaas_limiter::operation::{Action, Reply, Shard, StoreRequest};
use rlaas_limiter::plan::Plan;
use rlaas_limiter::rules::{Coupling, Request, Rule, RuleSet};
use rlaas_limiter::store::{MemorySettings, MemoryStore, Store, StoreError};

const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);

struct Journalled {
    folder: PathBuf,
    clock: ManualClock,
    store: Store,
    rules: RuleSet,
}

impl Journalled {
    fn new(test: &str) -> Self {
        let name = format!("rlaas-overrides-{test}-{}", std::process::id());
        let (folder, clock) = (std::env::temp_dir().join(name), ManualClock::new(T0));
        let limit = Limit::new(5, Micros::from_secs(60)).expect("a limit");
        let rule = Rule { overridable: true, ..Rule::new_default(Algorithm::Gcra, limit) };
        let store = open(&folder, &clock);
        Self { folder, clock, store, rules: RuleSet::new(rule, Vec::new()) }
    }

    fn restart(&mut self) {
        self.close();
        self.store = open(&self.folder, &self.clock);
    }

    fn close(&self) {
        if let Store::Memory(store) = &self.store {
            store.close_journal();
        }
    }

    async fn execute(
        &self,
        user: &str,
        action: Action,
        change: Option<&OverrideChange>,
    ) -> Result<Reply, StoreError> {
        let request = Request::user(user).build().expect("a user");
        let plan = Plan::for_request(&self.rules, &request);
        let mut hit = plan.hits[0].for_store().expect("a hit");
        (hit.action, hit.change) = (action, change);
        let coupling = Coupling::AllOrNothing;
        let request =
            StoreRequest { hits: &[hit], coupling, shard: Shard(0), once: None, reservation: None };
        self.store.execute(request, Deadline::NEVER).await
    }

    async fn set(&self, user: &str, grant: KeyGrant, seconds: u64) -> Result<Reply, StoreError> {
        let change = OverrideChange::new(grant, Micros::from_secs(seconds), b"ticket 7\n\0");
        let change = change.expect("a valid change");
        self.execute(user, Action::SetOverride, Some(&change)).await
    }

    async fn clear(&self, user: &str, kind: OverrideKind) {
        self.execute(user, Action::ClearOverride(kind), None).await.expect("cleared");
    }

    /// Returns all overrides by key.
    async fn overrides(&self) -> Vec<(String, Vec<KeyOverride>)> {
        let page = self.store.list_overrides("", 100, Deadline::NEVER).await.expect("a list");
        assert_eq!(page.next, None);
        let keys = page.keys.into_iter();
        let mut all: Vec<_> = keys
            .map(|one| (one.key.id().to_owned(), one.record.iter().cloned().collect()))
            .collect();
        all.sort_unstable_by(|(one, _), (other, _)| str::cmp(one, other));
        all
    }

    async fn is_allowed(&self, user: &str) -> bool {
        let reply = self.execute(user, Action::Take(Cost::ONE), None).await.expect("a decision");
        reply.hits[0].decision.is_allowed()
    }
}

impl Drop for Journalled {
    fn drop(&mut self) {
        self.close();
        let _kept = fs::remove_dir_all(&self.folder);
    }
}

fn open(folder: &PathBuf, clock: &ManualClock) -> Store {
    let (settings, journal) = (MemorySettings::default(), JournalSettings::new(folder));
    let clock = Clock::Manual(clock.clone());
    let store = MemoryStore::open(settings, &journal, clock, Arc::new(NoObserver));
    Store::Memory(store.expect("a journal"))
}

#[tokio::test]
async fn overrides_are_restored_with_their_ends_and_notes() {
    let mut one = Journalled::new("restart");
    let most = KeyGrant::Limited { units: 100, burst: 100 };
    one.set("alice", KeyGrant::Banned, 100).await.expect("set");
    one.set("alice", most, 200).await.expect("set");
    one.set("bob", KeyGrant::Unlimited, 300).await.expect("set");
    one.set("bob", KeyGrant::Banned, 300).await.expect("set");
    one.clear("bob", OverrideKind::Ban).await;
    one.set("carol", KeyGrant::Banned, 50).await.expect("set");
    one.set("dave", KeyGrant::Banned, 100).await.expect("set");
    one.set("dave", most, 100).await.expect("set");
    one.clear("dave", OverrideKind::Both).await;
    let before = one.overrides().await;
    let names: Vec<_> = before.iter().map(|(key, all)| (&**key, all.len())).collect();
    assert_eq!(names, [("alice", 2), ("bob", 1), ("carol", 1)]);
    assert_eq!(*before[0].1[0].note, *b"ticket 7\n\0");
    one.restart();
    assert_eq!(one.overrides().await, before);
    assert!(!one.is_allowed("alice").await);
    assert!(one.is_allowed("dave").await);
    for (seconds, left) in [(50, 2), (100, 2), (200, 1), (300, 0)] {
        one.close();
        one.clock.set(T0 + Micros::from_secs(seconds));
        one.restart();
        assert_eq!(one.overrides().await.len(), left, "after {seconds} s");
    }
}

#[tokio::test]
async fn a_change_that_the_journal_refuses_is_not_made() {
    let one = Journalled::new("refused");
    one.set("alice", KeyGrant::Banned, 100).await.expect("set");
    one.close();
    let error = one.set("bob", KeyGrant::Banned, 100).await.expect_err("a closed journal");
    assert!(matches!(error, StoreError::Journal(_)), "{error}");
    assert!(error.to_string().contains("store.memory.journal"), "{error}");
    let cleared = one.execute("alice", Action::ClearOverride(OverrideKind::Both), None).await;
    assert!(matches!(cleared, Err(StoreError::Journal(_))));
    assert_eq!(one.overrides().await.len(), 1);
    // Decisions go on.
    assert!(one.is_allowed("bob").await);
    assert!(!one.is_allowed("alice").await);
}

#[tokio::test]
async fn the_last_of_concurrent_changes_is_the_same_after_a_restart() {
    let mut one = Journalled::new("order");
    for round in 0..20 {
        let grants = (1..=8).map(|units| {
            let units = round * 8 + units;
            one.set("alice", KeyGrant::Limited { units, burst: units }, 1_000)
        });
        for set in futures(grants.collect()).await {
            set.expect("set");
        }
    }
    let before = one.overrides().await;
    one.restart();
    assert_eq!(one.overrides().await, before);
}

/// Polls all futures together.
async fn futures<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let std::task::Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *output = Some(ready);
            }
        }
        if outputs.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
