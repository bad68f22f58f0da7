//! Load on a server under a fault, and what clients and operators observe.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use deadpool_redis::redis::{Value, from_redis_value_ref};
use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse};
use tokio::task::JoinSet;
use tonic::{Code, Status};

use rlaas_testkit::eventually;
pub(super) use rlaas_testkit::process::Client;
use rlaas_testkit::process::{Rlaas, request};
use rlaas_testkit::redis::RedisServer;

pub(super) const WIDE: &str = "rate-limiter.max-requests=1000000000";
pub(super) const WINDOW: &str = "rate-limiter.use-algo=fixed-window";

/// Settings by which no call is denied, and Redis has one count for each id.
pub(super) const COUNTED: &[&str] = &[WIDE, WINDOW, "rate-limiter.window-size=366d"];

/// Timeout for what should happen at once, on a busy machine.
pub(super) const SOON: Duration = Duration::from_secs(5);

/// Timeout for what is promised within a second of the end of a fault, on a busy machine.
pub(super) const RECOVERY: Duration = Duration::from_secs(2);

/// Clients that send checks until they are stopped.
pub(super) struct Load {
    clients: JoinSet<()>,
    stop: Arc<AtomicBool>,
    counts: Arc<CallCounts>,
}

#[derive(Default)]
pub(super) struct CallCounts {
    pub(super) passed: AtomicU64,
    pub(super) unavailable: AtomicU64,
    other: std::sync::Mutex<Vec<Status>>,
}

/// The id for which a client sends checks.
#[derive(Clone, Copy)]
enum Subject {
    /// An id that all clients share.
    Shared,
    /// An id of its own, whose counts differ from those of every other id.
    Own(u64),
}

impl Load {
    /// Starts clients that share one id.
    pub(super) async fn start(server: &Rlaas, clients: usize) -> Self {
        Self::start_with(server, (0..clients).map(|_| Subject::Shared)).await
    }

    /// Starts clients with an id of their own, which detect responses to other clients and calls
    /// that are counted twice. The server needs the settings of [`COUNTED`].
    pub(super) async fn start_apart(server: &Rlaas, clients: u64) -> Self {
        Self::start_with(server, (1..=clients).map(Subject::Own)).await
    }

    async fn start_with(server: &Rlaas, subjects: impl Iterator<Item = Subject>) -> Self {
        let mut load =
            Self { clients: JoinSet::new(), stop: Arc::default(), counts: Arc::default() };
        for subject in subjects {
            let client = server.client().await;
            let (stop, counts) = (Arc::clone(&load.stop), Arc::clone(&load.counts));
            load.clients.spawn(async move {
                match subject {
                    Subject::Shared => {
                        check_until_stopped(client, "alice", &stop, &counts, |_| {}).await;
                    }
                    Subject::Own(number) => check_own_id(client, number, &stop, &counts).await,
                }
            });
        }
        load
    }

    pub(super) fn passed(&self) -> u64 {
        self.counts.passed.load(Ordering::Relaxed)
    }

    pub(super) fn unavailable(&self) -> u64 {
        self.counts.unavailable.load(Ordering::Relaxed)
    }

    /// Waits until `count` more calls have passed, and returns how long that took.
    pub(super) async fn wait_for_passed(&self, count: u64, timeout: Duration) -> Duration {
        let wanted = self.passed() + count;
        eventually("calls pass", timeout, async || self.passed() >= wanted).await
    }

    pub(super) async fn wait_for_failed(&self, count: u64) -> Duration {
        let wanted = self.unavailable() + count;
        eventually("calls fail", SOON, async || self.unavailable() >= wanted).await
    }

    /// Ends the load. Asserts that no call failed with another code than UNAVAILABLE.
    pub(super) async fn finish(mut self) -> Arc<CallCounts> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("no panic in a client");
        }
        let other = std::mem::take(&mut *self.counts.other.lock().expect("no panic"));
        assert!(other.is_empty(), "{other:?}");
        self.counts
    }
}

impl CallCounts {
    pub(super) fn calls(&self) -> u64 {
        self.passed.load(Ordering::Relaxed) + self.unavailable.load(Ordering::Relaxed)
    }
}

async fn check_until_stopped(
    mut client: Client,
    user: &str,
    stop: &AtomicBool,
    counts: &CallCounts,
    mut inspect: impl FnMut(Option<&CheckResponse>),
) {
    while !stop.load(Ordering::Relaxed) {
        let answer = client.check(request(user)).await.map(tonic::Response::into_inner);
        inspect(answer.as_ref().ok());
        match answer {
            Ok(_) => _ = counts.passed.fetch_add(1, Ordering::Relaxed),
            Err(status) if status.code() == Code::Unavailable => {
                assert_eq!(status.message(), "store unavailable");
                counts.unavailable.fetch_add(1, Ordering::Relaxed);
            }
            Err(status) => counts.other.lock().expect("no panic").push(status),
        }
    }
}

async fn check_own_id(mut client: Client, number: u64, stop: &AtomicBool, counts: &CallCounts) {
    let user = format!("user-{number}");
    let base = number * 10_000_000;
    let first = CheckRequest { cost: Some(base), ..request(&user) };
    client.check(first).await.expect("an answer before the fault");
    let (mut least, mut most) = (base, base);
    check_until_stopped(client, &user, stop, counts, |answer| {
        most += 1;
        let Some(answer) = answer else { return };
        let count = u64::try_from(answer.current_count).expect("a count");
        assert!((least + 1..=most).contains(&count), "{user}: {least} < {count} <= {most}");
        // Failed calls have been counted by now, or never will be.
        (least, most) = (count, count);
    })
    .await;
}

/// Waits until the store answers.
pub(super) async fn wait_for_store(server: &Rlaas) {
    let mut client = server.client().await;
    let look = || CheckRequest { cost: Some(0), ..request("nobody") };
    let answers = async || client.check(look()).await.is_ok();
    eventually("the store answers", SOON, answers).await;
}

/// Waits until the server has its connections to Redis beside the subscription: those of its only worker,
/// of the monitor and of the fleet. The last command of such a connection that is up is TIME or EVALSHA.
pub(super) async fn wait_for_connections(redis: &RedisServer) {
    let is_up = |line: &&str| line.contains(" cmd=time ") || line.contains(" cmd=evalsha ");
    let number_up = || redis.query::<String>(&["CLIENT", "LIST"]).lines().filter(is_up).count();
    eventually("three connections", SOON, async || number_up() == 3).await;
}

/// Asserts that a check fails because the store is unavailable and the policy is `error`.
pub(super) async fn assert_unavailable(client: &mut Client, user: &str) {
    let status = client.check(request(user)).await.expect_err("no decision");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "store unavailable"));
}

/// Returns the number of store errors of a kind.
pub(super) async fn store_errors(server: &Rlaas, kind: &str) -> u64 {
    let label = format!("kind=\"{kind}\"");
    server.metric_sum("rlaas_store_errors_total", &[&label]).await
}

pub(super) async fn ambiguous(server: &Rlaas) -> u64 {
    server.metric_sum("rlaas_ambiguous_total", &[]).await
}

/// Returns the state of the breaker: 0 closed, 1 half-open, 2 open.
pub(super) async fn breaker(server: &Rlaas) -> u64 {
    server.metric_sum("rlaas_breaker_state", &[]).await
}

/// Returns the sum of the counts of all ids in Redis.
pub(super) fn counted(redis: &RedisServer) -> u64 {
    let keys = redis.keys().into_iter().filter(|key| key.starts_with("rlaas:"));
    keys.map(|key| redis.query::<u64>(&["GET", &key])).sum()
}

/// Returns the number of script calls for decisions that Redis has received since the first look.
pub(super) fn script_calls(redis: &RedisServer) -> u64 {
    redis.query::<()>(&["CONFIG", "SET", "slowlog-max-len", "100000"]);
    redis.query::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    let entries: Vec<Vec<Value>> = redis.query(&["SLOWLOG", "GET", "100000"]);
    let is_decision = |entry: &&Vec<Value>| {
        let words: Vec<Vec<u8>> = from_redis_value_ref(&entry[3]).expect("the words of a command");
        words[0] == b"EVALSHA" && words.iter().any(|word| word.starts_with(b"MessagePack follows"))
    };
    entries.iter().filter(is_decision).count() as u64
}

/// Asserts that nothing panicked and that the log has few lines.
pub(super) fn assert_sound(server: &Rlaas) {
    let log = server.log();
    assert!(!log.contains("panicked"), "{log}");
    assert!(log.lines().count() < 60, "one line per change of state, not per call:\n{log}");
}
