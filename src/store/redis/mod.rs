//! The Redis store: one script call decides all hits of a request.
//!
//! Redis' own clock decides. Every key that a script touches is declared, so the key of a fixed
//! window names its window before the script runs: it comes from an estimate of Redis' clock, and a
//! script that finds itself in another window writes nothing and tells the time.
//!
//! A call whose fate is unknown is never repeated: a decision would count twice.

mod call;
mod lanes;
mod pulse;
mod scripts;
mod server_clock;
mod settings;

pub use settings::{KeyPrefix, RedisSettings, RedisUrl, SettingError};

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use deadpool_redis::redis;
use tokio::sync::watch;
use tokio::time::timeout;

use self::call::{Answer, Call, ServerTime};
use self::lanes::{Lane, Lanes};
use self::scripts::Scripts;
use self::server_clock::ServerClock;
use super::{Decisions, Health, Hit, Intent, StoreError};
use crate::clock::SystemClock;
use crate::telemetry::metrics::{Metrics, OperationLabels};

/// How often a call may find itself in another window than its keys: the first answer tells the
/// time, so a second miss needs a round trip as long as the window.
const WINDOW_ATTEMPTS: usize = 3;

/// State in Redis, shared by any number of instances.
#[derive(Debug)]
pub struct RedisStore {
    settings: RedisSettings,
    scripts: Scripts,
    lanes: Lanes,
    clock: Arc<ServerClock>,
    local: SystemClock,
    /// Together they make each call's nonce unique among all instances.
    instance: u64,
    calls: AtomicU64,
    metrics: Arc<Metrics>,
}

impl RedisStore {
    /// A store that connects as soon as it is tended.
    ///
    /// # Errors
    ///
    /// [`SettingError`] if the pool refuses the settings.
    pub fn new(settings: RedisSettings, metrics: Arc<Metrics>) -> Result<Self, SettingError> {
        let clock = Arc::new(ServerClock::default());
        let local = SystemClock::new();
        Ok(Self {
            scripts: Scripts::new(),
            lanes: Lanes::new(&settings, &clock, local)?,
            settings,
            clock,
            local,
            instance: RandomState::new().hash_one("instance"),
            calls: AtomicU64::new(0),
            metrics,
        })
    }

    /// Decides every hit and takes the units only if all allow. See [`super::Store::check`].
    ///
    /// # Errors
    ///
    /// [`StoreError`]; within `store.redis.timeout`, whatever Redis does.
    pub async fn check(&self, hits: &[Hit<'_>], intent: Intent) -> Result<Decisions, StoreError> {
        let operation = OperationLabels { operation: "check" };
        let timer = self.metrics.store_duration.get_or_create(&operation).start();
        let decisions = self.decide(hits, intent).await;
        timer.stop();
        if decisions.as_ref().is_err_and(StoreError::is_ambiguous) {
            self.metrics.ambiguous.inc();
        }
        decisions
    }

    /// Keeps the connections, for ever.
    pub async fn tend(&self) {
        self.lanes.tend().await;
    }

    /// Whether Redis answers, now and later.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.lanes.health()
    }

    async fn decide(&self, hits: &[Hit<'_>], intent: Intent) -> Result<Decisions, StoreError> {
        let deadline = self.settings.timeout;
        let started = self.local.now();
        let left = || deadline.saturating_sub(self.local.now().since(started).into());

        let lane =
            timeout(deadline, self.lanes.pick()).await.unwrap_or(Err(StoreError::Unreachable))?;
        let mut estimate = self.clock.estimate(self.local.now());
        for _ in 0..WINDOW_ATTEMPTS {
            if left().is_zero() {
                return Err(StoreError::Unreachable);
            }
            let time = ServerTime { estimate, clock: &self.clock };
            let call = Call::new(self.nonce(), &self.settings.key_prefix, hits, intent, time);
            match timeout(left(), self.send(&lane, &call, hits)).await {
                Ok(Ok(Answer::Decisions(decisions))) => return Ok(decisions),
                Ok(Ok(Answer::OtherWindow(time))) => estimate = time,
                Ok(Err(error)) => return Err(error),
                Err(_elapsed) => {
                    lane.give_up();
                    return Err(StoreError::Timeout(deadline));
                }
            }
        }
        Err(StoreError::WindowMissed)
    }

    /// Sends a call by its script's hash, and once more with the text if Redis does not know it.
    async fn send(&self, lane: &Lane, call: &Call, hits: &[Hit<'_>]) -> Result<Answer, StoreError> {
        let script = self.scripts.script_for(hits);
        let mut connection = lane.connection();
        let reply = match call.by_hash(script).query_async::<redis::Value>(&mut connection).await {
            Err(error) if is_unknown_script(&error) => {
                call.by_text(script).query_async(&mut connection).await
            }
            reply => reply,
        };
        let answer = reply.map_err(|e| refusal(&e)).and_then(|reply| call.read(hits, &reply));
        match &answer {
            Ok((time, answer)) => {
                self.clock.tell(*time, self.local.now());
                if let Answer::Decisions(_) = answer {
                    for hit in hits {
                        self.clock.see(*time, hit.limit.window());
                    }
                }
            }
            Err(error) if error.is_ambiguous() => lane.give_up(),
            Err(StoreError::Refused { code }) if code == "READONLY" => lane.give_up(),
            Err(_) => {}
        }
        answer.map(|(_, answer)| answer)
    }

    fn nonce(&self) -> String {
        format!("{:x}.{:x}", self.instance, self.calls.fetch_add(1, Ordering::Relaxed))
    }
}

fn is_unknown_script(error: &redis::RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript)
}

/// What an error of the driver means for the call that met it.
fn refusal(error: &redis::RedisError) -> StoreError {
    match error.kind() {
        redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => {
            StoreError::Refused { code: error.code().unwrap_or("ERR").to_owned() }
        }
        redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => StoreError::Garbled,
        _ => StoreError::Lost,
    }
}
