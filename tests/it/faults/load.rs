//! Callers of a server that meets faults, and what they and its operator see.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse};
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Status};

use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, request};
use rlaas_testkit::redis::RedisServer;

pub(super) const WIDE: &str = "rate-limiter.max-requests=1000000000";
pub(super) const WINDOW: &str = "rate-limiter.use-algo=fixed-window";

/// Nobody is denied, and what was counted is one number for each id.
pub(super) const COUNTED: &[&str] = &[WIDE, WINDOW, "rate-limiter.window-size=366d"];

/// For what happens at once, on a machine that has other work.
pub(super) const SOON: Duration = Duration::from_secs(5);

/// For what is promised within a second of a fault's end, on a machine that has other work.
pub(super) const RECOVERY: Duration = Duration::from_secs(2);

pub(super) type Client = RateLimitServiceClient<Channel>;

/// Clients that ask until they are told to stop.
pub(super) struct Load {
    clients: JoinSet<()>,
    stop: Arc<AtomicBool>,
    tally: Arc<Tally>,
}

#[derive(Default)]
pub(super) struct Tally {
    pub(super) passed: AtomicU64,
    pub(super) unavailable: AtomicU64,
    other: std::sync::Mutex<Vec<Status>>,
}

/// Whom a client asks for.
#[derive(Clone, Copy)]
enum Subject {
    /// One id for all of them.
    Alice,
    /// An id of its own, whose count starts where no other comes to.
    Own(u64),
}

impl Load {
    /// Clients that all ask for one id.
    pub(super) async fn start(server: &Rlaas, clients: usize) -> Self {
        Self::of(server, (0..clients).map(|_| Subject::Alice)).await
    }

    /// Clients of which each asks for an id of its own: the answer to another is seen, and so is a
    /// call that is counted twice. The server counts by [`COUNTED`].
    pub(super) async fn start_apart(server: &Rlaas, clients: u64) -> Self {
        Self::of(server, (1..=clients).map(Subject::Own)).await
    }

    async fn of(server: &Rlaas, subjects: impl Iterator<Item = Subject>) -> Self {
        let mut load =
            Self { clients: JoinSet::new(), stop: Arc::default(), tally: Arc::default() };
        for subject in subjects {
            let client = server.client().await;
            let (stop, tally) = (Arc::clone(&load.stop), Arc::clone(&load.tally));
            load.clients.spawn(async move {
                match subject {
                    Subject::Alice => ask_on(client, "alice", &stop, &tally, |_| {}).await,
                    Subject::Own(number) => ask_apart(client, number, &stop, &tally).await,
                }
            });
        }
        load
    }

    pub(super) fn passed(&self) -> u64 {
        self.tally.passed.load(Ordering::Relaxed)
    }

    pub(super) fn unavailable(&self) -> u64 {
        self.tally.unavailable.load(Ordering::Relaxed)
    }

    /// Waits until `count` more calls have passed; how long that took.
    pub(super) async fn more_pass(&self, count: u64, patience: Duration) -> Duration {
        let wanted = self.passed() + count;
        eventually("calls pass", patience, async || self.passed() >= wanted).await
    }

    pub(super) async fn more_fail(&self, count: u64) -> Duration {
        let wanted = self.unavailable() + count;
        eventually("calls fail", SOON, async || self.unavailable() >= wanted).await
    }

    /// Ends the load; no call may have met anything else than an answer or UNAVAILABLE.
    pub(super) async fn finish(mut self) -> Arc<Tally> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("no panic in a client");
        }
        let other = std::mem::take(&mut *self.tally.other.lock().expect("no panic"));
        assert!(other.is_empty(), "{other:?}");
        self.tally
    }
}

impl Tally {
    pub(super) fn calls(&self) -> u64 {
        self.passed.load(Ordering::Relaxed) + self.unavailable.load(Ordering::Relaxed)
    }
}

async fn ask_on(
    mut client: Client,
    user: &str,
    stop: &AtomicBool,
    tally: &Tally,
    mut look_at: impl FnMut(Option<&CheckResponse>),
) {
    while !stop.load(Ordering::Relaxed) {
        let answer = client.check(request(user)).await.map(tonic::Response::into_inner);
        look_at(answer.as_ref().ok());
        match answer {
            Ok(_) => _ = tally.passed.fetch_add(1, Ordering::Relaxed),
            Err(status) if status.code() == Code::Unavailable => {
                assert_eq!(status.message(), "store unavailable");
                tally.unavailable.fetch_add(1, Ordering::Relaxed);
            }
            Err(status) => tally.other.lock().expect("no panic").push(status),
        }
    }
}

async fn ask_apart(mut client: Client, number: u64, stop: &AtomicBool, tally: &Tally) {
    let user = format!("user-{number}");
    let base = number * 10_000_000;
    let first = CheckRequest { cost: Some(base), ..request(&user) };
    client.check(first).await.expect("an answer before the fault");
    let (mut least, mut most) = (base, base);
    ask_on(client, &user, stop, tally, |answer| {
        most += 1;
        let Some(answer) = answer else { return };
        let count = u64::try_from(answer.current_count).expect("a count");
        assert!((least + 1..=most).contains(&count), "{user}: {least} < {count} <= {most}");
        // What failed until now was counted by now, or never will be.
        (least, most) = (count, count);
    })
    .await;
}

/// Waits until the store answers, which it may not at the very start.
pub(super) async fn up(server: &Rlaas) {
    let mut client = server.client().await;
    let look = || CheckRequest { cost: Some(0), ..request("nobody") };
    let answers = async || client.check(look()).await.is_ok();
    eventually("the store answers", SOON, answers).await;
}

/// Waits until the server has both connections, that of its one worker and that of the monitor. One
/// that is being made, or probed, is asked for the time last.
pub(super) async fn both_up(redis: &RedisServer) {
    let is_up = |line: &&str| line.contains(" cmd=time ") || line.contains(" cmd=eval");
    let up = || redis.query::<String>(&["CLIENT", "LIST"]).lines().filter(is_up).count();
    eventually("two connections", SOON, async || up() == 2).await;
}

/// Asks once; the store must not decide, and the policy be `error`.
pub(super) async fn fails(client: &mut Client, user: &str) {
    let status = client.check(request(user)).await.expect_err("no decision");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "store unavailable"));
}

/// How many calls met this kind of failure.
pub(super) async fn failures(server: &Rlaas, kind: &str) -> u64 {
    let label = format!("kind=\"{kind}\"");
    server.metric_sum("rlaas_store_errors_total", &[&label]).await
}

pub(super) async fn ambiguous(server: &Rlaas) -> u64 {
    server.metric_sum("rlaas_ambiguous_total", &[]).await
}

/// 0 closed, 1 half-open, 2 open.
pub(super) async fn breaker(server: &Rlaas) -> u64 {
    server.metric_sum("rlaas_breaker_state", &[]).await
}

/// What the fixed windows of all ids have counted.
pub(super) fn counted(redis: &RedisServer) -> u64 {
    let keys: Vec<String> = redis.query(&["KEYS", "rlaas:*"]);
    keys.iter().map(|key| redis.query::<u64>(&["GET", key])).sum()
}

/// How often Redis was asked to run a script, whatever came of it.
pub(super) fn scripts(redis: &RedisServer) -> u64 {
    let info: String = redis.query(&["INFO", "commandstats"]);
    let calls = |name: &str| -> u64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        let calls = line.and_then(|line| line.split(',').next()?.parse().ok());
        calls.unwrap_or(0)
    };
    calls("cmdstat_evalsha:calls=") + calls("cmdstat_eval:calls=")
}

/// Has nothing gone wrong that must never go wrong?
pub(super) fn assert_sound(server: &Rlaas) {
    let log = server.log();
    assert!(!log.contains("panicked"), "{log}");
    assert!(log.lines().count() < 60, "one line for each change, not for each call:\n{log}");
}
