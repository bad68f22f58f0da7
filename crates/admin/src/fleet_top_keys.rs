//! Top keys over the fleet: the instance that is asked for them asks the others.
//!
//! No instance sends counts of a rule that nobody asks for. A query is published; each instance that
//! counts keys puts its summary into the map of the query, for [`TTL`]. The asking one adds them up,
//! and so does the next one that asks within that time. The result names the instances that are in
//! it, and those that are not.
//!
//! A query of version 1 is for one rule, one of version 2 for all rules of some projects or of all.
//! An instance that does not know a version does not answer, and is named as missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prost::Message;
use rlaas_limiter::fleet::{Fleet, FleetEvent, MAX_VALUE_LEN};
use rlaas_telemetry::top_keys::{
    BusiestKeys, CountQuery, Counter, MAX_COUNTERS, MAX_KEY, Summary, TopKeys, TopKind, Window,
};
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
/// Version of queries for a rule and their answers, and of queries for all rules.
const VERSION: u32 = 1;
const VERSION_OF_ALL: u32 = 2;

/// Answers of the fleet to a query.
#[derive(Clone, Debug, Default)]
pub(super) struct FleetAnswers<A> {
    /// The answers, that of this instance first.
    pub(super) answers: Vec<A>,
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
    #[prost(string, tag = "1")]
    rule: String,
    /// Position in [`TopKind::ALL`].
    #[prost(uint32, tag = "2")]
    kind: u32,
    #[prost(bool, tag = "3")]
    is_hour: bool,
    #[prost(uint32, tag = "4")]
    version: u32,
    #[prost(string, tag = "5")]
    project: String,
    /// Of all rules: the projects. None: every one.
    #[prost(string, repeated, tag = "6")]
    projects: Vec<String>,
    /// Of all rules: a value that the keys must have. Empty: any. Hashed if the sender hashes parts of
    /// keys, so that the store never has it in clear.
    #[prost(string, tag = "7")]
    value: String,
    #[prost(bool, tag = "8")]
    is_hashed: bool,
}

/// The counts of one instance as they are sent.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct SummaryMessage {
    #[prost(uint64, tag = "1")]
    total: u64,
    #[prost(uint64, tag = "2")]
    error: u64,
    #[prost(message, repeated, tag = "3")]
    counters: Vec<CounterMessage>,
    /// Last, so that an answer that was cut has none.
    #[prost(uint32, tag = "4")]
    version: u32,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct CounterMessage {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(uint64, tag = "2")]
    least: u64,
}

impl FleetTopKeys {
    pub(super) fn new(fleet: Fleet, instances: Instances, hasher: SharedHasher) -> Self {
        Self { fleet, instances, hasher, others: Mutex::default() }
    }

    /// Asks the other instances, and adds their answers to that of this one, which is `own`. Takes
    /// at most a second, and half of the time until the deadline.
    pub(super) async fn add_others<A>(
        &self,
        own: A,
        query: &QueryMessage,
        read: fn(&[u8]) -> Option<A>,
        deadline: Deadline,
    ) -> FleetAnswers<A> {
        let mut answers = BTreeMap::new();
        let problem = if self.fleet.is_shared() {
            let time = MAX_TIME.min(deadline.remaining() / 2);
            self.collect(query, read, time, &mut answers).await.err()
        } else {
            None
        };
        let mut missing = self.others.lock().unwrap_or_else(PoisonError::into_inner).clone();
        missing.retain(|id| !answers.contains_key(id));
        let mut instances: BTreeSet<String> = answers.keys().cloned().collect();
        instances.insert(self.instances.id().to_owned());
        let answers = std::iter::once(own).chain(answers.into_values()).collect();
        FleetAnswers { answers, instances, missing, problem }
    }

    /// Collects the answers of other instances until all have answered, or time is over.
    async fn collect<A>(
        &self,
        query: &QueryMessage,
        read: fn(&[u8]) -> Option<A>,
        time: Duration,
        answers: &mut BTreeMap<String, A>,
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
            for value in self.fleet.values(&map, deadline).await? {
                if value.name != self.instances.id()
                    && let Some(answer) = read(&value.value)
                {
                    awaited.remove(&value.name);
                    answers.insert(value.name, answer);
                }
            }
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
        let Ok(message) = QueryMessage::decode(message) else { return Ok(()) };
        let answer = if let Some(query) = message.query() {
            let summary = top_keys.window(&query).unwrap_or_default();
            SummaryMessage::new(&summary).encode_to_vec()
        } else if let Some(busiest) = message.busiest(top_keys, hasher).await {
            busiest.encode_to_vec()
        } else {
            return Ok(());
        };
        self.fleet.put(&message.map(), self.instances.id(), &answer, TTL, deadline).await
    }
}

impl QueryMessage {
    pub(super) fn new(query: &CountQuery<'_>) -> Self {
        let CountQuery { project, rule, kind, window } = *query;
        let is_hour = window == Window::Hour;
        let (project, rule) = (project.to_owned(), rule.to_owned());
        Self { rule, kind: kind as u32, is_hour, version: VERSION, project, ..Self::default() }
    }

    /// Returns the query for all rules of projects, or of every one: for keys that have `value`, which
    /// may be shown hashed, or for all if it is empty.
    pub(super) fn of_all(
        projects: Option<Vec<String>>,
        kind: TopKind,
        window: Window,
        value: &str,
        hasher: Option<&KeyHasher>,
    ) -> Self {
        let hash = hasher.filter(|_| !value.is_empty()).map(|by| {
            let shown = HashedValue::from_shown(value);
            shown.unwrap_or_else(|| by.hash(value)).as_str().to_owned()
        });
        Self {
            kind: kind as u32,
            is_hour: window == Window::Hour,
            version: VERSION_OF_ALL,
            projects: projects.unwrap_or_default(),
            is_hashed: hash.is_some(),
            value: hash.unwrap_or_else(|| value.to_owned()),
            ..Self::default()
        }
    }

    /// Returns the query for a rule; `None` if it is of another version.
    fn query(&self) -> Option<CountQuery<'_>> {
        let (kind, window) = (self.kind()?, self.window());
        let (project, rule) = (&*self.project, &*self.rule);
        (self.version == VERSION).then_some(CountQuery { project, rule, kind, window })
    }

    /// Returns the keys of all rules of this instance, by the hasher of the parts of its keys. `None`
    /// if the query is of another version, or for a hashed value and this instance hashes none.
    pub(super) async fn busiest(
        &self,
        top_keys: &TopKeys,
        hasher: Option<KeyHasher>,
    ) -> Option<BusiestKeys> {
        let kind = self.kind().filter(|_| self.version == VERSION_OF_ALL)?;
        if self.is_hashed && hasher.is_none() {
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
            let is_chosen = |project: &str| {
                query.projects.is_empty() || query.projects.iter().any(|id| *id == *project)
            };
            BusiestKeys::new(&top_keys.windows(kind, query.window(), is_chosen), is_wanted)
        });
        // None if the process ends.
        busiest.await.ok()
    }

    /// Returns the name of the map of answers, of the same length whatever the query.
    fn map(&self) -> String {
        let hash = if let Some(CountQuery { project, rule, kind, window }) = self.query() {
            hash(&[project.as_bytes(), rule.as_bytes(), &[kind as u8], &[window as u8]])
        } else {
            hash(&[&self.encode_to_vec()])
        };
        format!("{TOPIC}:{}", hex(&hash))
    }

    fn kind(&self) -> Option<TopKind> {
        TopKind::ALL.get(usize::try_from(self.kind).ok()?).copied()
    }

    fn window(&self) -> Window {
        if self.is_hour { Window::Hour } else { Window::Quarter }
    }
}

impl SummaryMessage {
    fn new(summary: &Summary) -> Self {
        let counter = |counter: &Counter| CounterMessage {
            key: counter.key.to_string(),
            least: counter.least,
        };
        Self {
            total: summary.total(),
            error: summary.error(),
            counters: summary.counters().iter().map(counter).collect(),
            version: VERSION,
        }
    }

    /// Reads an answer. `None` if it is of another version, cut, or not what an instance counts.
    pub(super) fn read(value: &[u8]) -> Option<Summary> {
        if value.len() > MAX_VALUE_LEN {
            return None;
        }
        let Self { total, error, counters, version } = Self::decode(value).ok()?;
        let is_key = |counter: &CounterMessage| (1..=MAX_KEY).contains(&counter.key.len());
        // The guarantee of a summary.
        let sum = counters.iter().map(|counter| u128::from(counter.least)).sum::<u128>();
        let is_valid = version == VERSION
            && counters.len() <= MAX_COUNTERS
            && counters.iter().all(is_key)
            && sum + u128::from(error) * MAX_COUNTERS as u128 <= u128::from(total);
        let counter =
            |counter: CounterMessage| Counter { key: counter.key.into(), least: counter.least };
        is_valid.then(|| Summary::new(total, error, counters.into_iter().map(counter).collect()))
    }
}

#[expect(clippy::disallowed_methods, reason = "nothing tells that an answer was put")]
async fn wait_for_answers(pause: Duration) {
    sleep(pause).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(count: usize) -> Summary {
        let counter = |number: usize| Counter {
            key: format!("{number:0>MAX_KEY$}").into(),
            least: u64::MAX >> 8,
        };
        Summary::new(u64::MAX, 3, (0..count).map(counter).collect())
    }

    #[test]
    fn largest_answer_fits_into_a_value() {
        let largest = summary(MAX_COUNTERS);
        let answer = SummaryMessage::new(&largest).encode_to_vec();
        assert!(answer.len() <= MAX_VALUE_LEN, "{}", answer.len());
        assert_eq!(SummaryMessage::read(&answer), Some(largest));
    }

    #[test]
    fn answer_that_was_cut_or_is_foreign_is_not_read() {
        let answer = SummaryMessage::new(&summary(9));
        let bytes = answer.encode_to_vec();
        for len in 0..bytes.len() {
            assert_eq!(SummaryMessage::read(&bytes[..len]), None, "cut to {len} bytes");
        }
        let foreign = [
            SummaryMessage { version: 2, ..answer.clone() },
            SummaryMessage { total: 100, ..answer.clone() },
            SummaryMessage { error: u64::MAX / 100, ..answer.clone() },
            SummaryMessage::new(&summary(0)),
            SummaryMessage {
                counters: vec![CounterMessage { key: String::new(), least: 1 }],
                ..answer.clone()
            },
            SummaryMessage {
                counters: vec![CounterMessage { key: "k".into(), least: 0 }; 129],
                ..answer
            },
        ];
        let is_read = foreign.map(|answer| SummaryMessage::read(&answer.encode_to_vec()).is_some());
        assert_eq!(is_read, [false, false, false, true, false, false]);
        assert_eq!(SummaryMessage::read(&vec![b'x'; MAX_VALUE_LEN + 1]), None);
    }

    #[test]
    fn queries_have_maps_of_their_own_and_versions() {
        let mut maps = BTreeSet::new();
        let long = "r".repeat(10_000);
        let rules = [("", "pay"), ("", "{pay}"), ("", &*long), ("pay", ""), ("shop", "pay")];
        for (project, rule) in rules {
            for kind in TopKind::ALL {
                for window in [Window::Quarter, Window::Hour] {
                    let query = CountQuery { project, rule, kind, window };
                    let message = QueryMessage::new(&query);
                    assert_eq!(message.query(), Some(query));
                    assert_eq!(QueryMessage { version: 2, ..message.clone() }.query(), None);
                    let map = message.map();
                    assert_eq!(map.len(), "top:".len() + 32);
                    maps.insert(map);
                }
            }
        }
        assert_eq!(maps.len(), 30);
    }
}
