//! A limiter on either store, with a clock that tests move.

use std::borrow::Borrow;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use rlaas_core::clock::{Clock, ManualClock, Micros, Timestamp};
use rlaas_core::rules::RuleSet;
use rlaas_limiter::Limiter;
use rlaas_limiter::conformance::{Backend, Stored};
pub use rlaas_limiter::conformance::{Subject, T0, span};
use rlaas_limiter::store::{
    MemorySettings, MemoryStore, RedisSettings, RedisStore, Servers, Store,
};
use rlaas_telemetry::metrics::Metrics;
use tokio::task::AbortHandle;

use crate::redis::RedisServer;

/// A limiter on a store. The store's clock stands at [`T0`] until a test moves it, except after
/// [`Service::with`].
#[derive(Debug)]
pub struct Service {
    subject: Subject,
    /// Metrics of the limiter.
    pub metrics: Arc<Metrics>,
    redis: Option<Arc<RedisServer>>,
    background: AbortHandle,
}

impl Service {
    /// Starts a limiter on a memory store.
    pub fn on_memory(rules: RuleSet) -> Self {
        Self::on_bounded_memory(rules, MemorySettings::default())
    }

    /// Starts a limiter on a memory store with these bounds.
    pub fn on_bounded_memory(rules: RuleSet, settings: MemorySettings) -> Self {
        let clock = ManualClock::new(T0);
        let metrics = Arc::new(Metrics::new());
        let store = MemoryStore::new(settings, Clock::Manual(clock.clone()), metrics.clone());
        let limiter = Limiter::new(rules, Store::Memory(store), metrics.clone());
        Self::spawn(Subject::new(limiter, clock), metrics, None)
    }

    /// Starts a limiter on a redis-server.
    pub fn on_redis(rules: RuleSet, server: Arc<RedisServer>) -> Self {
        let url = server.url().parse().map(Box::new).expect("a valid url");
        let settings = RedisSettings {
            timeout: Duration::from_secs(5),
            ..RedisSettings::new(Servers::Standalone(url))
        };
        let metrics = Arc::new(Metrics::new());
        let store = RedisStore::new(&settings, metrics.clone()).expect("valid settings");
        let limiter = Limiter::new(rules, Store::Redis(Arc::new(store)), metrics.clone());
        let subject = Subject::new(limiter, Redis(Arc::clone(&server)));
        Self::spawn(subject, metrics, Some(server))
    }

    /// Starts a limiter on the clock of the machine.
    pub fn with(limiter: Limiter, metrics: Arc<Metrics>) -> Self {
        Self::spawn(Subject::new(limiter, Machine), metrics, None)
    }

    fn spawn(subject: Subject, metrics: Arc<Metrics>, redis: Option<Arc<RedisServer>>) -> Self {
        let limiter = subject.limiter.clone();
        let background = tokio::spawn(async move { limiter.run().await }).abort_handle();
        Self { subject, metrics, redis, background }
    }

    /// Returns the redis-server, if there is one, so that cases can inspect its keys.
    pub fn redis(&self) -> Option<&Arc<RedisServer>> {
        self.redis.as_ref()
    }
}

impl Deref for Service {
    type Target = Subject;

    fn deref(&self) -> &Subject {
        &self.subject
    }
}

impl Borrow<Subject> for Service {
    fn borrow(&self) -> &Subject {
        &self.subject
    }
}

/// The clock of the machine, which can't be moved.
struct Machine;

impl Backend for Machine {
    fn set_clock(&self, now: Timestamp) {
        assert_eq!(now, T0, "the clock of the machine can't be moved");
    }
}

/// A redis-server, as the backend of cases.
struct Redis(Arc<RedisServer>);

impl Backend for Redis {
    fn set_clock(&self, now: Timestamp) {
        self.0.set_clock(now);
    }

    fn stored(&self) -> Option<Vec<Stored>> {
        let stored = |key: String| {
            let value = self.0.query(&["DUMP", &key]);
            let millis: i64 = self.0.query(&["PTTL", &key]);
            let time_to_live = u64::try_from(millis).ok().map(Micros::from_millis);
            Stored { key, value, time_to_live }
        };
        Some(self.0.keys().into_iter().map(stored).collect())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.background.abort();
    }
}
