//! Error replies of Redis: it is out of memory, cannot save, lacks replicas, is busy, or loads its
//! data. Also foreign values under keys of the service, which are no errors.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::load::{
    COUNTED, Load, RECOVERY, SOON, assert_sound, breaker, counted, store_errors, wait_for_store,
};
use rlaas_testkit::TempDir;
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check};
use rlaas_testkit::redis::{RedisServer, command};

/// A server under load, and a fault that makes Redis reply with errors of a kind.
struct ErrorReplyFault<'a> {
    redis: &'a RedisServer,
    server: Rlaas,
    load: Load,
    kind: &'a str,
}

impl<'a> ErrorReplyFault<'a> {
    /// Starts a server and its load, before the fault.
    async fn start(redis: &'a RedisServer, kind: &'a str) -> Self {
        let server = Rlaas::on_redis(redis, COUNTED);
        wait_for_store(&server).await;
        let load = Load::start_apart(&server, 4).await;
        load.wait_for_passed(50, SOON).await;
        Self { redis, server, load, kind }
    }

    /// Asserts during the fault that calls fail with its kind and that the breaker opens.
    async fn assert_failing(&self) {
        let met = async || store_errors(&self.server, self.kind).await > 0;
        eventually(self.kind, SOON, met).await;
        self.load.wait_for_failed(100).await;
        let logged = async || self.server.log().contains("breaker opened");
        eventually("the breaker opens", SOON, logged).await;
    }

    /// Asserts after the fault that calls soon pass, that each passed call was counted once, and
    /// that no failed call was counted.
    async fn assert_recovered(self) {
        self.load.wait_for_passed(1, RECOVERY).await;
        self.load.wait_for_passed(50, SOON).await;
        let counts = self.load.finish().await;
        assert_eq!(breaker(&self.server).await, 0);
        let passed = counts.passed.load(Ordering::Relaxed);
        let bases = (1..=4).map(|number| number * 10_000_000).sum::<u64>();
        assert_eq!(counted(self.redis), bases + passed);
        assert_sound(&self.server);
    }

    /// Asserts that an error with this text of Redis was logged.
    fn assert_logged(&self, text: &str) {
        let log = self.server.log();
        let logged = log.lines().any(|line| line.contains("ERROR") && line.contains(text));
        assert!(logged, "{text}:\n{log}");
    }
}

fn set(redis: &RedisServer, name: &str, value: &str) {
    redis.query::<()>(&["CONFIG", "SET", name, value]);
}

#[tokio::test]
async fn busy_redis_fails_calls_and_recovers() {
    let redis = RedisServer::start();
    set(&redis, "busy-reply-threshold", "50");
    let fault = ErrorReplyFault::start(&redis, "busy").await;
    let (mut busy, mut admin) = (redis.connect(), redis.connect());
    let endless = std::thread::spawn(move || {
        command(&["EVAL", "while true do end", "0"]).query::<()>(&mut busy).is_err()
    });
    fault.assert_failing().await;
    command(&["SCRIPT", "KILL"]).query::<()>(&mut admin).expect("a busy script");
    fault.assert_recovered().await;
    assert!(endless.join().expect("no panic"), "the script was killed");
}

#[tokio::test]
async fn loading_redis_fails_calls_and_recovers() {
    let redis = RedisServer::start();
    let fault = ErrorReplyFault::start(&redis, "loading").await;
    redis.query::<()>(&["DEBUG", "POPULATE", "2000"]);
    set(&redis, "loading-process-events-interval-bytes", "1024");
    set(&redis, "key-load-delay", "500");
    let mut admin = redis.connect();
    // The command ends when all data is loaded.
    let load = std::thread::spawn(move || {
        command(&["DEBUG", "RELOAD"]).query::<()>(&mut admin).expect("an answer");
    });
    fault.assert_failing().await;
    eventually("the data is loaded", SOON * 2, async || load.is_finished()).await;
    fault.assert_recovered().await;
}

#[tokio::test]
async fn redis_out_of_memory_fails_calls_and_recovers() {
    let redis = RedisServer::start();
    let fault = ErrorReplyFault::start(&redis, "oom").await;
    set(&redis, "maxmemory", "1");
    fault.assert_failing().await;
    fault.assert_logged("OOM");
    set(&redis, "maxmemory", "0");
    fault.assert_recovered().await;
}

#[tokio::test]
async fn redis_unable_to_save_fails_calls_and_recovers() {
    let redis = RedisServer::start();
    let fault = ErrorReplyFault::start(&redis, "misconf").await;
    let (_, dir): (String, String) = redis.query(&["CONFIG", "GET", "dir"]);
    // A directory takes the path of the dump file.
    let taken = Path::new(&dir).join("dump.rdb");
    fs::create_dir(&taken).expect("a directory");
    set(&redis, "save", "3600 1000000000");
    let saves = async |status: &str| {
        redis.query::<()>(&["BGSAVE"]);
        let ended = async || redis.query::<String>(&["INFO", "persistence"]).contains(status);
        eventually(status, SOON, ended).await;
    };
    saves("rdb_last_bgsave_status:err").await;
    fault.assert_failing().await;
    fault.assert_logged("MISCONF");
    fs::remove_dir(&taken).expect("an empty directory");
    saves("rdb_last_bgsave_status:ok").await;
    fault.assert_recovered().await;
}

#[tokio::test]
async fn redis_with_too_few_replicas_fails_calls_and_recovers() {
    let redis = RedisServer::start();
    let fault = ErrorReplyFault::start(&redis, "noreplicas").await;
    set(&redis, "min-replicas-to-write", "1");
    fault.assert_failing().await;
    fault.assert_logged("NOREPLICAS");
    set(&redis, "min-replicas-to-write", "0");
    fault.assert_recovered().await;
}

#[tokio::test]
async fn unknown_redis_error_is_logged_with_its_text() {
    // Calls before the connection of the monitor have the text of the script.
    let without = [["--rename-command", "EVALSHA", ""], ["--rename-command", "EVAL", ""]];
    let redis = RedisServer::start_with(without.as_flattened());
    let server = Rlaas::on_redis(&redis, COUNTED);
    let mut client = server.client().await;
    for _ in 0..20 {
        assert!(check(&mut client, "alice").await.is_err());
    }
    assert_eq!(store_errors(&server, "refused").await, 20);
    let log = server.log();
    assert_eq!(log.matches("unknown command").count(), 1, "{log}");
    assert!(!log.contains("alice"), "{log}");
}

#[tokio::test]
async fn foreign_values_are_replaced_without_a_breaker_penalty() {
    let dir = TempDir::new();
    let algorithms = [
        "fixed-window",
        "sliding-window-log",
        "sliding-window-counter",
        "token-bucket",
        "leaky-bucket",
        "gcra",
    ];
    let rules = algorithms.map(|algorithm| {
        format!("  - {{name: {algorithm}, algorithm: {algorithm}, limit: 5, window: 366d}}\n")
    });
    let file = dir.write("rlaas.yaml", &format!("rules:\n{}", rules.concat()));
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    let server = Rlaas::start_from(&file, &settings);
    wait_for_store(&server).await;
    let mut client = server.client().await;
    check(&mut client, "alice").await.expect("an answer");
    let keys = redis.keys();
    assert_eq!(keys.len(), algorithms.len(), "{keys:?}");
    let foreign: [&[&str]; 4] =
        [&["LPUSH", "", "x"], &["SET", "", "abc"], &["SET", "", "-1"], &["HSET", "", "a", "b"]];
    for words in foreign {
        for key in &keys {
            let words: Vec<&str> =
                words.iter().map(|word| if word.is_empty() { key } else { *word }).collect();
            redis.query::<()>(&["DEL", key]);
            redis.query::<()>(&words);
        }
        let response = check(&mut client, "alice").await.expect("an answer");
        assert!(response.allowed, "{words:?}: {response:?}");
        assert!(response.decisions.iter().all(|decided| decided.remaining == 4), "{response:?}");
    }
    assert_eq!(breaker(&server).await, 0);
    assert_eq!(server.metric_sum("rlaas_store_errors_total", &[]).await, 0);
    assert_sound(&server);
}

#[tokio::test]
async fn fixed_window_accepts_only_counts_that_redis_could_have_stored() {
    let redis = RedisServer::start();
    let settings = ["rate-limiter.use-algo=fixed-window", "rate-limiter.max-requests=5"];
    let others = ["rate-limiter.window-size=366d", "deny-cache.enabled=false"];
    let server = Rlaas::on_redis(&redis, &[settings, others].concat());
    wait_for_store(&server).await;
    let mut client = server.client().await;
    check(&mut client, "alice").await.expect("an answer");
    let [key] = <[String; 1]>::try_from(redis.keys()).expect("one key");
    let counts = [
        ("0", 1),
        ("4", 5),
        ("5", 6),
        ("9007199254740000", 9_007_199_254_740_001),
        // Redis could not have stored any of these.
        ("9007199254740001", 1),
        ("9223372036854775807", 1),
        ("-1", 1),
        ("-5", 1),
        ("007", 1),
        ("1.0", 1),
        ("", 1),
    ];
    let window_ms = 366 * 24 * 3_600 * 1_000;
    for (value, count) in counts {
        // A count that expired before its window ends would be that of another window.
        for expiry in [&[][..], &["PX", "40000000000"]] {
            redis.query::<()>(&[&["SET", &key, value][..], expiry].concat());
            let response = check(&mut client, "alice").await.expect("an answer");
            assert_eq!(response.current_count, count, "{value:?} {expiry:?}");
            assert_eq!(response.allowed, count <= 5, "{value:?} {expiry:?}");
            assert_eq!(redis.query::<String>(&["GET", &key]), count.to_string());
            let left: i64 = redis.query(&["PTTL", &key]);
            let stays = count > 1 || value == "0";
            assert_eq!(left > window_ms, stays && !expiry.is_empty(), "{value:?}: {left} ms");
            assert!(left > 0, "{value:?}: {left} ms");
        }
    }
    assert_eq!(server.metric_sum("rlaas_store_errors_total", &[]).await, 0);
    assert_sound(&server);
}
