//! Usage by project and day: counted by each instance, shown by any.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::{Clock, ManualClock, Micros, Timestamp};
use rlaas::rules::{Matcher, Part, Pattern, Request, Rule, RuleSet, Unmatched};
use rlaas::store::{MemorySettings, MemoryStore, Store};
use rlaas_auth::ProjectId;
use rlaas_limiter::Limiter;
use rlaas_limiter::fleet::Fleet;
use rlaas_projects::Keyring;
use rlaas_projects::usage::{
    DailyUsage, Day, RequestUsage, UsageBy, UsagePlace, UsageQuery, UsageRecorder,
};
use rlaas_telemetry::metrics::Metrics;
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check};
use rlaas_testkit::redis::RedisServer;

use super::instance::{project_id, soon};
use crate::fleet::instance::{Instance, standalone};

const DAY: Micros = Micros::from_secs(86_400);
/// 2023-11-14, 22:15 UTC.
const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);

/// An instance that decides in memory and records its usage in a fleet.
struct Counting {
    limiter: Limiter,
    usage: UsageRecorder,
}

impl Counting {
    fn new(fleet: &Fleet, name: &str, clock: &ManualClock) -> Self {
        let metrics = Arc::new(Metrics::new());
        let limit = Limit::new(3, DAY).expect("a limit");
        let rules = RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), Vec::new());
        let store = MemoryStore::new(MemorySettings::default(), Clock::default(), metrics.clone());
        let limiter = Limiter::new(rules.clone(), Store::Memory(store), metrics.clone());
        for project in ["shop", "blog"] {
            let rules = rules.clone().with_unmatched(Unmatched::DefaultRule);
            limiter.replace_project_rules(project, rules);
        }
        let (keyring, clock) = (Keyring::default(), Clock::Manual(clock.clone()));
        let usage = UsageRecorder::new(fleet.clone(), metrics, keyring, name, clock);
        Self { limiter, usage }
    }

    /// Makes requests of one unit, of which three are allowed.
    fn request(&self, project: &str, times: u32) {
        for _ in 0..times {
            let request = Request::user("alice").in_project(project).build().expect("a request");
            let decided = self.limiter.check_now(&request).expect("decided in memory");
            decided.expect("a verdict");
        }
    }

    async fn list(&self, project: &str) -> Vec<DailyUsage> {
        let projects = vec![project_id(project)];
        let page = self.usage.list(projects, UsageQuery::default(), None, 100, soon()).await;
        page.expect("usage").rows
    }

    /// Makes a request for a resource.
    fn request_for(&self, resource: &str) {
        let request = Request::user("alice").resource(resource).in_project("shop");
        let decided = self.limiter.check_now(&request.build().expect("a request"));
        decided.expect("decided in memory").expect("a verdict");
    }

    /// Returns allowed and denied requests and units by rule and day, page by page.
    async fn by_rule(&self, size: usize) -> Vec<(String, [u64; 3])> {
        let (mut rows, mut after): (_, Option<UsagePlace>) = (Vec::new(), None);
        loop {
            let projects = vec![project_id("shop")];
            let by = UsageQuery { by: UsageBy::Rule, ..UsageQuery::default() };
            let page = self.usage.list(projects, by, after.as_ref(), size, soon()).await;
            let page = page.expect("usage");
            assert!(page.rows.len() <= size);
            rows.extend(page.rows.into_iter().map(|DailyUsage { name, usage, .. }| {
                (name, [usage.allowed, usage.denied, usage.units])
            }));
            after = page.next;
            if after.is_none() {
                return rows;
            }
        }
    }
}

fn row(time: Timestamp, [allowed, denied, units]: [u64; 3], is_preliminary: bool) -> DailyUsage {
    let usage = RequestUsage { allowed, denied, units };
    let (project, name) = (project_id("shop"), String::new());
    DailyUsage { project, day: Day::at(time), name, usage, is_preliminary }
}

async fn redis_instance(redis: &RedisServer) -> Instance {
    Instance::start(standalone(&redis.url())).await
}

#[tokio::test]
async fn repeated_writes_count_once_and_instances_add_up() {
    let redis = RedisServer::start();
    let (store, clock) = (redis_instance(&redis).await, ManualClock::new(T0));
    let [one, other] = ["one", "other"].map(|name| Counting::new(&store.fleet, name, &clock));
    one.request("shop", 5);
    other.request("shop", 2);
    other.request("_", 0);
    for _ in 0..3 {
        one.usage.write().await;
        other.usage.write().await;
    }
    one.request("shop", 1);
    // What this instance has not written counts, too; of others only what they have written.
    assert_eq!(one.list("shop").await, [row(T0, [5, 3, 5], true)]);
    assert_eq!(other.list("shop").await, [row(T0, [5, 2, 5], true)]);
    // Killed: what it had not written is lost, and no more.
    drop(one);
    let next = Counting::new(&store.fleet, "next", &clock);
    next.request("shop", 1);
    other.usage.stop().await;
    assert_eq!(next.list("shop").await, [row(T0, [6, 2, 6], true)]);
    assert_eq!(next.list("blog").await, []);
    let keys: Vec<String> = redis.query(&["KEYS", "*usage*"]);
    for key in &keys {
        let is_of_project = key.starts_with("rlaas:p:shop:usage:");
        assert!(is_of_project || key.starts_with("rlaas:usage:instances:"), "{key}");
        let left: u64 = redis.query(&["TTL", key]);
        let days = if is_of_project { 41..=42 } else { 2..=3 };
        assert!(days.contains(&(left / 86_400)), "{key}: {left}");
    }
    // The project's, that of its rule, the list of its rules, and the instances.
    assert_eq!(keys.len(), 4, "{keys:?}");
}

#[tokio::test]
async fn day_changes_at_midnight_and_is_final_once_all_have_written() {
    let redis = RedisServer::start();
    let (store, clock) = (redis_instance(&redis).await, ManualClock::new(T0));
    let [one, other] = ["one", "other"].map(|name| Counting::new(&store.fleet, name, &clock));
    one.request("shop", 1);
    other.request("shop", 4);
    one.usage.write().await;
    other.usage.write().await;
    let next_day = T0 + DAY;
    clock.set(next_day);
    one.usage.write().await;
    one.request("shop", 1);
    assert_eq!(
        one.list("shop").await,
        [row(T0, [4, 1, 4], true), row(next_day, [1, 0, 1], true)],
        "the other instance may have counted more of the day before"
    );
    other.usage.write().await;
    assert_eq!(one.list("shop").await[0], row(T0, [4, 1, 4], false));
    // An instance that was killed is waited for until the next day is over.
    drop(other);
    one.usage.write().await;
    let killed = Counting::new(&store.fleet, "killed", &clock);
    killed.request("shop", 1);
    killed.usage.write().await;
    drop(killed);
    for (days, is_preliminary) in [(1, true), (2, false)] {
        clock.set(next_day + Micros::from_secs(days * 86_400));
        one.usage.write().await;
        assert_eq!(one.list("shop").await[1], row(next_day, [2, 0, 2], is_preliminary));
    }
}

#[tokio::test]
async fn steps_of_the_clock_lose_and_overwrite_nothing() {
    let fleet = memory_fleet();
    let clock = ManualClock::new(T0);
    let one = Counting::new(&fleet, "one", &clock);
    one.request("shop", 1);
    one.usage.write().await;
    // To the next day, back by more than a small step, and forward again.
    for step in 1..=3 {
        clock.set(if step == 2 { T0 } else { T0 + DAY });
        one.usage.write().await;
        one.request("shop", 1);
        one.usage.write().await;
    }
    let expected = [row(T0, [2, 0, 2], false), row(T0 + DAY, [1, 1, 1], true)];
    assert_eq!(one.list("shop").await, expected);
    // A small step back over midnight is frozen.
    let midnight = Day::at(T0 + DAY + DAY).start();
    clock.set(midnight);
    one.usage.write().await;
    clock.set(midnight - Micros::from_secs(60));
    one.usage.write().await;
    one.request("shop", 1);
    one.usage.write().await;
    clock.set(midnight);
    assert_eq!(one.list("shop").await[2], row(midnight, [0, 1, 0], true));
}

#[tokio::test]
async fn store_that_was_away_or_lost_everything_gets_all_of_it() {
    let mut redis = RedisServer::start();
    let (store, clock) = (redis_instance(&redis).await, ManualClock::new(T0));
    let one = Counting::new(&store.fleet, "one", &clock);
    one.request("shop", 2);
    one.request("blog", 1);
    one.usage.write().await;
    redis.kill();
    one.request("shop", 2);
    one.usage.write().await;
    let away = one.usage.list(vec![project_id("shop")], UsageQuery::default(), None, 1, soon());
    away.await.expect_err("the store is away");
    redis.restart();
    eventually("the store is back", Duration::from_secs(10), async || {
        one.usage.write().await;
        redis.query::<Vec<String>>(&["KEYS", "rlaas:p:*"]).len() == 6
    })
    .await;
    let other = Counting::new(&store.fleet, "other", &clock);
    assert_eq!(other.list("shop").await, [row(T0, [3, 1, 3], true)]);
    assert_eq!(other.list("blog").await.len(), 1);
    // Lost while nothing changed, and while the connection stood.
    redis.query::<()>(&["FLUSHALL"]);
    one.usage.write().await;
    assert_eq!(other.list("shop").await, [row(T0, [3, 1, 3], true)]);
    assert_eq!(other.list("blog").await.len(), 1);
}

#[tokio::test]
async fn forty_days_are_listed_in_pages_by_project_and_day() {
    let (fleet, clock) = (memory_fleet(), ManualClock::new(T0));
    let one = Counting::new(&fleet, "one", &clock);
    for day in 0..45 {
        clock.set(T0 + Micros::from_secs(day * 86_400));
        one.usage.write().await;
        one.request("shop", 1);
        one.request("blog", 1);
        one.usage.write().await;
    }
    let last = T0 + Micros::from_secs(44 * 86_400);
    let first = T0 + Micros::from_secs(5 * 86_400);
    let (mut rows, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let projects = vec![project_id("shop"), project_id("_"), project_id("blog")];
        let page = one.usage.list(projects, UsageQuery::default(), after.as_ref(), 33, soon());
        let page = page.await.expect("usage");
        rows.extend(page.rows);
        pages += 1;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((rows.len(), pages), (80, 3));
    let places: Vec<(ProjectId, Day)> =
        rows.iter().map(|row| (row.project.clone(), row.day)).collect();
    assert!(places.is_sorted());
    assert_eq!(places[0], (project_id("blog"), Day::at(first)));
    assert_eq!(places[79], (project_id("shop"), Day::at(last)));
    let (from, until) = (Some(Day::at(T0)), Some(Day::at(first)));
    let query = UsageQuery { by: UsageBy::Day, first: from, last: until };
    let page = one.usage.list(vec![project_id("shop")], query, None, 100, soon()).await;
    assert_eq!(page.expect("usage").rows.len(), 1, "days before the last 40 are not kept");
}

#[tokio::test]
async fn removed_project_leaves_nothing() {
    let redis = RedisServer::start();
    let (store, clock) = (redis_instance(&redis).await, ManualClock::new(T0));
    let [one, other] = ["one", "other"].map(|name| Counting::new(&store.fleet, name, &clock));
    for instance in [&one, &other] {
        instance.request("shop", 1);
        instance.usage.write().await;
    }
    let keys = || redis.query::<Vec<String>>(&["KEYS", "rlaas:p:shop:*"]);
    one.limiter.remove_project("shop");
    one.usage.remove("shop", soon()).await.expect("removed");
    assert_eq!(keys(), <[String; 0]>::default());
    // An instance that learns of it later has written once more.
    other.request("shop", 1);
    other.usage.write().await;
    assert_eq!(keys().len(), 3);
    other.limiter.remove_project("shop");
    other.usage.write().await;
    assert_eq!(keys(), <[String; 0]>::default());
}

/// Returns rules by this name and of a resource each.
fn rules_named(names: impl IntoIterator<Item = String>) -> RuleSet {
    let limit = Limit::new(3, DAY).expect("a limit");
    let default = Rule::new_default(Algorithm::Gcra, limit);
    let rule = |name: String| {
        let matcher = Matcher { patterns: vec![(Part::Resource, Pattern::one(&name))] };
        Rule { name: name.into(), matcher, ..default.clone() }
    };
    let rules = names.into_iter().map(rule).collect();
    RuleSet::new(default, rules).with_unmatched(Unmatched::DefaultRule)
}

#[tokio::test]
async fn rules_have_rows_of_their_own_and_the_rest_is_together() {
    let (fleet, clock) = (memory_fleet(), ManualClock::new(T0));
    let [one, other] = ["one", "other"].map(|name| Counting::new(&fleet, name, &clock));
    let named = |number: usize| format!("rule-{number:04}");
    for instance in [&one, &other] {
        instance.limiter.replace_project_rules("shop", rules_named((0..1_100).map(named)));
    }
    (0..4).for_each(|_| one.request_for("rule-0003"));
    other.request_for("rule-0003");
    let first = [("rule-0003".to_owned(), [4, 1, 4])];
    one.usage.write().await;
    other.usage.write().await;
    for instance in [&one, &other] {
        assert_eq!(instance.by_rule(10).await, first);
    }
    // 999 more have a place.
    (0..1_100).for_each(|number| one.request_for(&named(number)));
    one.usage.write().await;
    let all = other.by_rule(300).await;
    assert_eq!(all.len(), 1_001);
    assert_eq!(all[0], (String::new(), [100, 0, 100]));
    let sum = all
        .iter()
        .fold([0; 2], |sum, (_, [allowed, denied, _])| [sum[0] + allowed, sum[1] + denied]);
    assert_eq!(sum, [1_103, 2], "{sum:?}");
    assert!(all.is_sorted_by(|a, b| a.0 < b.0));
    // The next day begins with 0.
    clock.set(T0 + DAY);
    one.usage.write().await;
    one.request_for("rule-0001");
    assert_eq!(one.by_rule(3_000).await.len(), 1_002);
}

fn memory_fleet() -> Fleet {
    let store = MemoryStore::new(
        MemorySettings::default(),
        Clock::Manual(ManualClock::new(T0)),
        Arc::new(Metrics::new()),
    );
    Fleet::new(&Store::Memory(store))
}

/// Returns the records of comma-separated values, as Python reads them.
fn parsed_csv(text: &str) -> Vec<Vec<String>> {
    let script = "import csv, json, sys; json.dump(list(csv.reader(sys.stdin)), sys.stdout)";
    let mut python = Command::new("python3")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    python.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("a reader");
    let output = python.wait_with_output().expect("an ended reader");
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).expect("records")
}

#[tokio::test]
async fn servers_share_usage_and_show_it_as_values() {
    let redis = RedisServer::start();
    let [mut stopped, mut killed, asked] = [(); 3].map(|()| Rlaas::on_redis(&redis, &[]));
    for server in [&stopped, &killed] {
        let mut client = server.client().await;
        for user in ["alice", "bob"] {
            check(&mut client, user).await.expect("an answer");
        }
    }
    stopped.signal("TERM");
    assert!(stopped.wait().success());
    let today = Day::at(Clock::default().now());
    let usage = async || {
        let accept = "Accept: text/csv\r\n";
        let (status, head, body) = asked.get_with("/v1/projects/_/usage", accept).await;
        assert_eq!(status, 200, "{body}");
        assert!(head.to_lowercase().contains("content-type: text/csv"), "{head}");
        parsed_csv(&body)
    };
    let header = ["project_id", "day", "allowed", "denied", "units", "preliminary", "key", "rule"];
    let of_stopped = usage().await;
    assert_eq!(of_stopped[0], header);
    assert!(["2", "4"].contains(&of_stopped[1][2].as_str()), "{of_stopped:?}");
    eventually("the other server writes", Duration::from_secs(15), async || {
        usage().await[1][2] == "4"
    })
    .await;
    killed.signal("KILL");
    killed.wait();
    let records = usage().await;
    assert_eq!(records[1], ["_", &today.to_string(), "4", "0", "4", "true", "", ""]);
    let (status, body) = asked.get("/v1/projects/-/usage?firstDay=2026-02-30").await;
    assert_eq!(status, 400, "{body}");
    assert!(body.contains("first_day must be a UTC day"), "{body}");
    let (_, body) = asked.get("/v1/projects/-/usage").await;
    let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(body["usage"][0]["allowed"], "4", "{body}");
}
