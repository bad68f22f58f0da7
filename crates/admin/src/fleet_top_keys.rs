//! Top keys over the fleet: the instance that is asked for them asks the others.
//!
//! No instance sends counts of a rule that nobody asks for. A query is published; each instance that
//! counts keys puts its lists, one of each kind, into the map of the query, for [`TTL`]. The asking one
//! adds them up, and so does the next one that asks within that time. The result names the instances
//! that are in it, and those that are not.
//!
//! An instance that does not know the version of a query does not answer, and is named as missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prost::Message;
use rlaas_limiter::fleet::{Fleet, FleetEvent, NamedValue};
use rlaas_telemetry::stats::StatsKey;
use rlaas_telemetry::top_keys::{BusiestKeys, TopKeys, TopKind, Window};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::debug;

use super::request_ids::{hash, hex};
use super::{Instances, SharedHasher};
use rlaas_core::clock::Deadline;
use rlaas_core::rules::{HashedValue, Key, KeyHasher};
use rlaas_limiter::store::StoreError;

/// Topic of the queries, and beginning of the names of the maps of answers.
pub(super) const TOPIC: &str = "top";
/// Longest time that other instances are asked. Half of it, their answers are waited for.
const MAX_TIME: Duration = Duration::from_secs(1);
/// Time for which an answer serves.
const TTL: Duration = Duration::from_secs(2);
/// First pause between two looks at the answers. It doubles up to the longest.
const INITIAL_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(100);
/// Longest time in which an instance puts its answer, or reads the key by which ids are hashed.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Version of queries.
const VERSION: u32 = 3;

/// The keys of one instance, by kind in the order of [`TopKind::ALL`].
pub(super) type KeyLists = [BusiestKeys; 3];

/// Answers of the fleet to a query.
#[derive(Clone, Debug, Default)]
pub(super) struct FleetAnswers {
    /// The lists of all instances, by kind in the order of [`TopKind::ALL`].
    pub(super) lists: [Vec<BusiestKeys>; 3],
    /// Ids of the instances that have answered.
    pub(super) instances: BTreeSet<String>,
    /// Ids of the other instances of the fleet, as far as they are known.
    pub(super) missing: BTreeSet<String>,
    /// Why the store did not tell the counts of other instances, if so.
    pub(super) problem: Option<StoreError>,
}

/// Asks other instances for counts, and answers them.
#[derive(Debug)]
pub(super) struct FleetTopKeys {
    fleet: Fleet,
    instances: Instances,
    hasher: SharedHasher,
    /// Ids of the other instances, as of the last query.
    others: Mutex<BTreeSet<String>>,
}

/// A query as it is sent.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct QueryMessage {
    /// Name of the rule. Empty: all.
    #[prost(string, tag = "1")]
    pub(super) rule: String,
    /// Projects of the rules. None: every one.
    #[prost(string, repeated, tag = "2")]
    pub(super) projects: Vec<String>,
    #[prost(bool, tag = "3")]
    pub(super) is_hour: bool,
    #[prost(uint32, tag = "4")]
    version: u32,
    /// A value that the keys must have. Empty: any. Hashed if the sender hashes parts of keys, so that
    /// the store never has it in clear.
    #[prost(string, tag = "5")]
    value: String,
    #[prost(bool, tag = "6")]
    is_hashed: bool,
}

/// The lists of other instances as far as they were read, by instance.
type Answers = BTreeMap<String, [Option<BusiestKeys>; 3]>;

impl FleetTopKeys {
    pub(super) fn new(fleet: Fleet, instances: Instances, hasher: SharedHasher) -> Self {
        Self { fleet, instances, hasher, others: Mutex::default() }
    }

    /// Asks the other instances, and adds their answers to that of this one, which is `own`. Takes
    /// at most a second, and half of the time until the deadline.
    pub(super) async fn add_others(
        &self,
        own: KeyLists,
        query: &QueryMessage,
        deadline: Deadline,
    ) -> FleetAnswers {
        let mut answers = Answers::new();
        let problem = if self.fleet.is_shared() {
            let time = MAX_TIME.min(deadline.remaining() / 2);
            self.collect(query, time, &mut answers).await.err()
        } else {
            None
        };
        answers.retain(|_, lists| is_whole(lists));
        let mut missing = self.others.lock().unwrap_or_else(PoisonError::into_inner).clone();
        missing.retain(|id| !answers.contains_key(id));
        let mut instances: BTreeSet<String> = answers.keys().cloned().collect();
        instances.insert(self.instances.id().to_owned());
        let mut lists = own.map(|list| vec![list]);
        for answer in answers.into_values() {
            lists.iter_mut().zip(answer).for_each(|(all, list)| all.extend(list));
        }
        FleetAnswers { lists, instances, missing, problem }
    }

    /// Collects the answers of other instances until all have answered, or time is over.
    async fn collect(
        &self,
        query: &QueryMessage,
        time: Duration,
        answers: &mut Answers,
    ) -> Result<(), StoreError> {
        let (until, deadline) = (Deadline::within(time / 2), Deadline::within(time));
        let others = self.instances.others(deadline).await?;
        let running = others.iter().filter(|other| !other.missing);
        let mut awaited: BTreeSet<String> = running.map(|other| other.id.clone()).collect();
        *self.others.lock().unwrap_or_else(PoisonError::into_inner) =
            others.into_iter().map(|other| other.id).collect();
        if awaited.is_empty() {
            return Ok(());
        }
        let map = query.map();
        let (mut is_sent, mut pause) = (false, INITIAL_PAUSE);
        loop {
            for NamedValue { name, value, .. } in self.fleet.values(&map, deadline).await? {
                let Some((id, kind)) = read_name(&name) else { continue };
                if id != self.instances.id() {
                    answers.entry(id.to_owned()).or_default()[kind] = BusiestKeys::read(&value);
                }
            }
            awaited.retain(|id| !answers.get(id).is_some_and(is_whole));
            if awaited.is_empty() || until.has_passed() {
                return Ok(());
            }
            if !is_sent {
                let message = query.encode_to_vec();
                self.fleet.publish(TOPIC, &message, deadline).await?;
                is_sent = true;
            }
            wait_for_answers(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Answers the queries of other instances, for ever. `hasher` returns that of the parts of keys.
    pub(super) async fn answer(&self, top_keys: &TopKeys, hasher: impl Fn() -> Option<KeyHasher>) {
        if !self.fleet.is_shared() {
            return std::future::pending().await;
        }
        let mut queries = self.fleet.subscribe(TOPIC);
        loop {
            let event = queries.next().await;
            let deadline = Deadline::within(CALL_TIMEOUT);
            let result = match event {
                // From now on keys can be shown hashed while the store is away.
                FleetEvent::Gap => self.hasher.hasher(deadline).await.map(drop),
                FleetEvent::Message(message) => {
                    self.put(&message, top_keys, hasher(), deadline).await
                }
            };
            if let Err(error) = result {
                debug!(%error, "top keys are not sent");
            }
        }
    }

    async fn put(
        &self,
        message: &[u8],
        top_keys: &TopKeys,
        hasher: Option<KeyHasher>,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let Ok(query) = QueryMessage::decode(message) else { return Ok(()) };
        let Some(lists) = query.busiest(top_keys, hasher).await else { return Ok(()) };
        let map = query.map();
        // One value would not hold three lists of long keys.
        for (kind, list) in lists.iter().enumerate() {
            let name = format!("{}/{kind}", self.instances.id());
            self.fleet.put(&map, &name, &list.encode_to_vec(), TTL, deadline).await?;
        }
        Ok(())
    }
}

impl QueryMessage {
    /// Returns the query for all rules of projects, or of every one: for keys that have `value`, which
    /// may be shown hashed, or for all if it is empty.
    pub(super) fn new(
        projects: Option<Vec<String>>,
        value: &str,
        hasher: Option<&KeyHasher>,
    ) -> Self {
        let hash = hasher.filter(|_| !value.is_empty()).map(|by| {
            let shown = HashedValue::from_shown(value);
            shown.unwrap_or_else(|| by.hash(value)).as_str().to_owned()
        });
        Self {
            version: VERSION,
            projects: projects.unwrap_or_default(),
            is_hashed: hash.is_some(),
            value: hash.unwrap_or_else(|| value.to_owned()),
            ..Self::default()
        }
    }

    /// Returns the keys of this instance, by the hasher of the parts of its keys. `None` if the query is
    /// of another version, or for a hashed value and this instance hashes none.
    pub(super) async fn busiest(
        &self,
        top_keys: &TopKeys,
        hasher: Option<KeyHasher>,
    ) -> Option<KeyLists> {
        if self.version != VERSION || self.is_hashed && hasher.is_none() {
            return None;
        }
        TopKeys::flush();
        let (query, top_keys) = (self.clone(), top_keys.clone());
        let busiest = spawn_blocking(move || {
            let hasher = hasher.filter(|_| !query.value.is_empty());
            let of_value = hasher.as_ref().filter(|_| !query.is_hashed);
            let of_value = of_value.map(|by| by.hash(&query.value));
            let is_value = |text: &str| {
                let of_text =
                    || hasher.as_ref().filter(|_| query.is_hashed).map(|by| by.hash(text));
                text == query.value
                    || of_value.is_some_and(|hash| text == hash.as_str())
                    || of_text().is_some_and(|hash| *hash.as_str() == *query.value)
            };
            let is_wanted = |key: &str| {
                query.value.is_empty() || Key::values_in(key).iter().any(|value| is_value(value))
            };
            TopKind::ALL.map(|kind| {
                let selects = |rule: &StatsKey| query.selects(rule);
                BusiestKeys::new(&top_keys.windows(kind, query.window(), selects), is_wanted)
            })
        });
        // None if the process ends.
        busiest.await.ok()
    }

    fn selects(&self, rule: &StatsKey) -> bool {
        let is_project = |id: &String| **id == *rule.project;
        (self.rule.is_empty() || *self.rule == *rule.rule)
            && (self.projects.is_empty() || self.projects.iter().any(is_project))
    }

    /// Returns the name of the map of answers, of the same length whatever the query.
    fn map(&self) -> String {
        format!("{TOPIC}:{}", hex(&hash(&[&self.encode_to_vec()])))
    }

    fn window(&self) -> Window {
        if self.is_hour { Window::Hour } else { Window::Quarter }
    }
}

/// Returns `true` if there is a list of each kind.
fn is_whole(lists: &[Option<BusiestKeys>; 3]) -> bool {
    lists.iter().all(Option::is_some)
}

/// Reads the name of a list: the instance, and the position of its kind in [`TopKind::ALL`].
fn read_name(name: &str) -> Option<(&str, usize)> {
    let (id, kind) = name.rsplit_once('/')?;
    Some((id, kind.parse().ok().filter(|kind| *kind < TopKind::ALL.len())?))
}

#[expect(clippy::disallowed_methods, reason = "nothing tells that an answer was put")]
async fn wait_for_answers(pause: Duration) {
    sleep(pause).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_have_maps_of_their_own_and_select_their_rules() {
        let mut maps = BTreeSet::new();
        let long = "r".repeat(10_000);
        let rules = [("", "pay"), ("", "{pay}"), ("", &*long), ("pay", ""), ("shop", "pay")];
        for (project, rule) in rules {
            for is_hour in [false, true] {
                let query = QueryMessage::new(Some(vec![project.to_owned()]), "", None);
                let query = QueryMessage { rule: rule.to_owned(), is_hour, ..query };
                assert!(query.selects(&StatsKey::of_rule(project, rule)));
                assert!(!query.selects(&StatsKey::of_rule("blog", "pay")));
                let map = query.map();
                assert_eq!(map.len(), "top:".len() + 32);
                maps.insert(map);
            }
        }
        assert_eq!(maps.len(), 10);
        assert!(QueryMessage::new(None, "", None).selects(&StatsKey::of_rule("blog", "pay")));
    }

    #[test]
    fn names_of_lists_that_no_instance_puts_are_not_read() {
        assert_eq!(read_name("host/7-a/2"), Some(("host/7-a", 2)));
        for name in ["host", "host/3", "host/-1", "host/", "/"] {
            assert_eq!(read_name(name), None, "{name}");
        }
    }
}
