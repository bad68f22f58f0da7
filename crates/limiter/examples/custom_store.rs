//! A custom store on a table that supports nothing but conditional writes, such as
//! `TransactWriteItems` of `DynamoDB` or an SQL table with a version column. The store reads,
//! decides, and writes on condition that no other client has written meanwhile. It passes the
//! conformance suite although every third write meets a conflict:
//!
//! ```console
//! cargo run --example custom_store
//! cargo test --example custom_store
//! ```

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use rlaas_limiter::clock::{Clock, Deadline, Timestamp};
use rlaas_limiter::operation::{Reply, StoreRequest};
use rlaas_limiter::rules::Key;
use rlaas_limiter::step::{Record, Records, execute_on_records};
use rlaas_limiter::store::{BoxFuture, CustomStore, Fate, StoreError};
use rlaas_limiter::{Limiter, Request, Rule};

/// How often a request is attempted before it fails because of conflicts.
const MAX_ATTEMPTS: u32 = 32;
/// Every third write meets a conflict, as on a busy table.
const INJECTED_CONFLICTS: u64 = 3;

/// The table: a version and a text for each key.
#[derive(Debug, Default)]
struct Table {
    items: HashMap<String, Item>,
    writes: u64,
}

#[derive(Clone, Debug)]
struct Item {
    version: u64,
    /// A [`Record`] as JSON.
    text: String,
}

/// A write on condition that the item has this version; 0 if there is no item.
struct Write {
    key: String,
    version: u64,
    /// The new text; `None` deletes the item.
    text: Option<String>,
}

impl Table {
    /// Writes all items, or none if one of them has changed or a conflict is injected.
    fn write_if_unchanged(&mut self, writes: &[Write]) -> bool {
        self.writes += 1;
        let version = |key: &str| self.items.get(key).map_or(0, |item| item.version);
        let is_unchanged = writes.iter().all(|write| version(&write.key) == write.version);
        if !is_unchanged || self.writes.is_multiple_of(INJECTED_CONFLICTS) {
            return false;
        }
        for Write { key, version, text } in writes {
            match text {
                Some(text) => {
                    let item = Item { version: version + 1, text: text.clone() };
                    self.items.insert(key.clone(), item);
                }
                None => drop(self.items.remove(key)),
            }
        }
        true
    }
}

/// The store. A real store has a client of its database in place of the table.
#[derive(Clone, Debug)]
struct TableStore {
    table: Arc<Mutex<Table>>,
    clock: Clock,
}

impl TableStore {
    fn new(clock: Clock) -> Self {
        Self { table: Arc::default(), clock }
    }

    fn with_table<T>(&self, act: impl FnOnce(&mut Table) -> T) -> T {
        act(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads, decides and writes. Returns `None` after a conflict.
    fn attempt(&self, request: StoreRequest<'_>) -> Result<Option<Reply>, StoreError> {
        let mut versions = HashMap::new();
        let mut before = Records::new();
        for hit in request.hits {
            let Some(item) = self.with_table(|table| table.items.get(&name(hit.key)).cloned())
            else {
                continue;
            };
            let record: Record = serde_json::from_str(&item.text)
                .map_err(|error| StoreError::custom(Fate::NotExecuted, error))?;
            versions.insert(hit.key, item.version);
            before.insert(hit.key, record);
        }
        let mut records = before.clone();
        let now = self.clock.now();
        let reply = execute_on_records(request, now, &mut records);
        let changed = records.iter().filter(|(key, record)| before.get(*key) != Some(*record));
        let writes = changed.map(|(key, record)| {
            let is_needed = record.expires_at() > now;
            let text = is_needed.then(|| serde_json::to_string(record)).transpose()?;
            Ok(Write { key: name(key), version: versions.get(key).copied().unwrap_or(0), text })
        });
        let writes = writes
            .collect::<Result<Vec<_>, serde_json::Error>>()
            .map_err(|error| StoreError::custom(Fate::NotExecuted, error))?;
        let is_written =
            writes.is_empty() || self.with_table(|table| table.write_if_unchanged(&writes));
        Ok(is_written.then_some(reply))
    }
}

/// Returns the name of a key in the table. Keys are text without control characters.
fn name(key: &Key) -> String {
    String::from_utf8_lossy(key.as_bytes()).into_owned()
}

impl CustomStore for TableStore {
    fn execute<'a>(
        &'a self,
        request: StoreRequest<'a>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Reply, StoreError>> {
        Box::pin(async move {
            for _ in 0..MAX_ATTEMPTS {
                if let Some(reply) = self.attempt(request)? {
                    return Ok(reply);
                }
                if deadline.has_passed() {
                    return Err(StoreError::Expired);
                }
                // A real store awaits its database; here the task yields to others.
                tokio::task::yield_now().await;
            }
            let conflict = io::Error::other("too many conflicts");
            Err(StoreError::custom(Fate::NotExecuted, conflict))
        })
    }

    fn now(&self, _key: &Key) -> Timestamp {
        self.clock.now()
    }

    fn name(&self) -> &'static str {
        "table"
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = TableStore::new(Clock::default());
    let login = Rule::gcra("login").limit(2).per(std::time::Duration::from_secs(60));
    let limiter = Limiter::builder().rule(login).custom(store).build()?;
    let alice = Request::user("alice").build()?;
    for _ in 0..3 {
        let verdict = limiter.check(&alice, Deadline::NEVER).await?;
        println!("alice: {}", if verdict.is_allowed() { "allowed" } else { "denied" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rlaas_limiter::clock::{ManualClock, Micros};
    use rlaas_limiter::conformance::{Backend, Stored, Subject};
    use rlaas_limiter::observer::NoObserver;
    use rlaas_limiter::rules::RuleSet;
    use rlaas_limiter::store::Store;

    use super::*;

    rlaas_limiter::conformance_tests! { table: crate::tests::subject }

    #[test]
    fn the_example_runs() {
        main().expect("a limiter on the table");
    }

    /// The access of the conformance suite to the table.
    struct TableBackend {
        store: TableStore,
        clock: ManualClock,
    }

    impl Backend for TableBackend {
        fn set_clock(&self, now: Timestamp) {
            self.clock.set(now);
        }

        fn stored(&self) -> Option<Vec<Stored>> {
            let now = self.clock.now();
            let stored = self.store.with_table(|table| -> Vec<Stored> {
                let stored = |(key, item): (&String, &Item)| {
                    let record: Record = serde_json::from_str(&item.text).ok()?;
                    let time_to_live = record.expires_at().since(now);
                    let value = item.text.clone().into_bytes();
                    let stored =
                        Stored { key: key.clone(), value, time_to_live: Some(time_to_live) };
                    (time_to_live > Micros::ZERO).then_some(stored)
                };
                table.items.iter().filter_map(stored).collect()
            });
            Some(stored)
        }
    }

    /// A limiter on an empty table, with a clock that the suite moves.
    fn subject(rules: RuleSet) -> Subject {
        let clock = ManualClock::default();
        let store = TableStore::new(Clock::Manual(clock.clone()));
        let custom = Store::Custom(Arc::new(store.clone()));
        Subject::new(
            Limiter::new(rules, custom, Arc::new(NoObserver)),
            TableBackend { store, clock },
        )
    }
}
