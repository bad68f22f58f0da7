//! Two instances under load while an override and a ban are set through one of them: no decision by
//! the grant before, on that instance from the reply on, on the other from `everywhere_by` on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::Grant;
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check};
use rlaas_testkit::redis::RedisServer;

use super::{admin, of_user};

const CALLERS: usize = 1_000;
const SOON: Duration = Duration::from_mins(1);
/// The rule's limit is used up at once, so that both deny caches answer. Then come an override and
/// a ban.
const RULE: i64 = 5;
const OVERRIDE: i64 = 1_000_000;
const BAN: i64 = 0;
const SETTINGS: &[&str] = &[
    "rate-limiter.use-algo=gcra",
    "rate-limiter.window-size=366d",
    "rate-limiter.max-requests=5",
    "rate-limiter.overridable=true",
    "deny-cache.max-age=2s",
];

#[expect(clippy::disallowed_methods, reason = "`everywhere_by` is wall time")]
fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros()
}

/// A decision: when its call began, and by which limit it was made.
struct Decided {
    began: u128,
    limit: i64,
    allowed: bool,
}

/// The callers of one instance.
struct Callers {
    stops: Arc<AtomicBool>,
    decided: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<Vec<Decided>>>,
}

impl Callers {
    async fn start(server: &Rlaas) -> Self {
        let (stops, decided) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut tasks = Vec::new();
        let client = server.client().await;
        for _ in 0..CALLERS {
            let (mut client, stops, count) = (client.clone(), stops.clone(), decided.clone());
            tasks.push(tokio::spawn(async move {
                let mut all = Vec::new();
                while !stops.load(Ordering::Relaxed) {
                    let began = now();
                    let answer = check(&mut client, "alice").await.expect("a decision");
                    all.push(Decided { began, limit: answer.limit, allowed: answer.allowed });
                    count.fetch_add(1, Ordering::Relaxed);
                }
                all
            }));
        }
        Self { stops, decided, tasks }
    }

    /// Waits until as many calls as there are callers were answered twice more, so that some began
    /// meanwhile.
    async fn answers_more(&self) {
        let target = self.decided.load(Ordering::Relaxed) + 2 * CALLERS as u64;
        eventually("more decisions", SOON, async || self.decided.load(Ordering::Relaxed) >= target)
            .await;
    }

    async fn stop(self) -> Vec<Decided> {
        self.stops.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for task in self.tasks {
            all.extend(task.await.expect("no panic"));
        }
        all
    }
}

/// Sets an override, and returns when it was replied, when it holds everywhere.
async fn set(server: &Rlaas, kind: Kind) -> (u128, u128) {
    let request = proto::SetOverrideRequest {
        selector: of_user("alice"),
        grant: Some(Grant { kind: Some(kind), burst: 0 }),
        ttl: Some(prost_types::Duration { seconds: 3600, nanos: 0 }),
        reason: "a test".to_owned(),
        ..proto::SetOverrideRequest::default()
    };
    let change = admin(server).await.set_override(request).await.expect("an override");
    let replied = now();
    let everywhere_by = change.into_inner().change.expect("a change").everywhere_by;
    let everywhere_by = everywhere_by.expect("a time");
    let seconds = u128::try_from(everywhere_by.seconds).expect("after 1970");
    let micros = u128::try_from(everywhere_by.nanos / 1_000).expect("a fraction");
    (replied, seconds * 1_000_000 + micros)
}

/// Asserts that calls that began from `since` on, and before `until`, were decided by `limit`.
fn assert_by(all: &[Decided], since: u128, until: u128, limit: i64, which: &str) {
    let calls = all.iter().filter(|one| (since..until).contains(&one.began));
    let mut count = 0;
    for one in calls {
        let late = one.began - since;
        assert_eq!(one.limit, limit, "{which}: {late} µs after the change");
        assert_eq!(one.allowed, limit == OVERRIDE, "{which}: {late} µs after the change");
        count += 1;
    }
    println!("{which}: {count} calls by the limit {limit}");
    assert!(count > CALLERS, "{which}: {count} calls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_decision_by_the_grant_before() {
    let redis = RedisServer::start();
    let [one, other] = [Rlaas::on_redis(&redis, SETTINGS), Rlaas::on_redis(&redis, SETTINGS)];
    for server in [&one, &other] {
        eventually("the store", SOON, async || {
            check(&mut server.client().await, "bob").await.is_ok()
        })
        .await;
    }
    let callers = [Callers::start(&one).await, Callers::start(&other).await];
    let both_answer = async || {
        for callers in &callers {
            callers.answers_more().await;
        }
    };
    both_answer().await;
    let (raised, raised_everywhere) = set(&one, Kind::Limit(OVERRIDE)).await;
    eventually("everywhere_by", SOON, async || now() > raised_everywhere).await;
    both_answer().await;
    let before_ban = now();
    let (banned, banned_everywhere) = set(&one, Kind::Banned(true)).await;
    eventually("everywhere_by", SOON, async || now() > banned_everywhere).await;
    both_answer().await;
    let [of_one, of_other] = callers;
    let (of_one, of_other) = (of_one.stop().await, of_other.stop().await);

    assert!(of_one.iter().any(|decided| decided.limit == RULE && !decided.allowed));
    let (since, since_other) = (raised, raised_everywhere);
    assert!(since < before_ban && since_other < before_ban);
    let is_before = |all: &[Decided], since: u128| -> u128 {
        // The first call that the ban denied began then or later: calls before it are compared.
        let banned = all.iter().filter(|one| one.limit == BAN && one.began >= since);
        banned.map(|one| one.began).min().expect("a ban")
    };
    assert_by(&of_one, since, is_before(&of_one, since), OVERRIDE, "one");
    assert_by(&of_other, since_other, is_before(&of_other, since_other), OVERRIDE, "other");
    assert_by(&of_one, banned, u128::MAX, BAN, "one");
    assert_by(&of_other, banned_everywhere, u128::MAX, BAN, "other");
}
