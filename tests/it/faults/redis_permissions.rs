//! Access to Redis: the limit of connections, passwords, databases and ACL permissions.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use deadpool_redis::redis::Value;
use rlaas::algorithm::Algorithm;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_proto::ratelimit::v1::CheckRequest;

use super::load::{
    COUNTED, Load, RECOVERY, SOON, assert_sound, assert_unavailable, breaker, store_errors,
    wait_for_store,
};
use rlaas_testkit::process::{Rlaas, check, request};
use rlaas_testkit::proxy::Proxy;
use rlaas_testkit::redis::{RedisServer, command};
use rlaas_testkit::{TempDir, eventually};
use tonic::Code;

/// The commands that the service needs, in addition to the key pattern `~rlaas:*`.
const COMMANDS: [&str; 15] = [
    "eval",
    "evalsha",
    "time",
    "info",
    "get",
    "set",
    "incrby",
    "del",
    "pttl",
    "pexpireat",
    "zadd",
    "zcount",
    "zrangebyscore",
    "zremrangebyscore",
    "zremrangebyrank",
];

/// The commands that reservations need in addition.
const HOLDS_COMMANDS: [&str; 7] = ["hdel", "hmget", "hset", "zcard", "zrange", "zrem", "zscore"];

/// The commands that administration and the registry of instances need in addition, in scripts, with
/// the channel pattern `&rlaas:*` and [`DIRECT_COMMANDS`].
pub(super) const FLEET_COMMANDS: [&str; 9] =
    ["hdel", "hget", "hgetall", "hlen", "hset", "persist", "publish", "xadd", "xrevrange"];

/// What administration needs outside of scripts.
const DIRECT_COMMANDS: [&str; 2] = ["subscribe", "scan"];

pub(super) const PASSWORD: &str = "s3cret";

/// Adds a user with the minimal permissions.
pub(super) fn add_user(redis: &RedisServer) {
    let commands = COMMANDS.map(|command| format!("+{command}"));
    let password = format!(">{PASSWORD}");
    let mut words = vec!["ACL", "SETUSER", "app", "on", &password, "~rlaas:*"];
    words.extend(commands.iter().map(String::as_str));
    redis.query::<()>(&words);
}

pub(super) fn as_user(redis: &RedisServer, settings: &[&str]) -> Rlaas {
    let password = format!("store.redis.password={PASSWORD}");
    Rlaas::on_redis(redis, &[settings, &["store.redis.username=app", &password]].concat())
}

fn rules_of_all_algorithms() -> String {
    let rule = |algorithm: &Algorithm| {
        let name = algorithm.name();
        format!(
            "  - {{name: {name}, algorithm: {name}, endpoint: /{name}, limit: 5, window: 366d}}\n"
        )
    };
    format!("rules:\n{}", Algorithm::RATES.iter().map(rule).collect::<String>())
}

#[tokio::test]
async fn reconnects_at_maxclients_are_made_one_at_a_time() {
    let redis = RedisServer::start();
    let proxy = Proxy::to(redis.port());
    let url = format!("store.redis.url={}", proxy.url());
    let always = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    let server = Rlaas::start(&[&always, COUNTED].concat());
    wait_for_store(&server).await;
    let load = Load::start_apart(&server, 4).await;
    load.wait_for_passed(50, SOON).await;

    let mut admin = redis.connect();
    command(&["CONFIG", "SET", "maxclients", "1"]).query::<()>(&mut admin).expect("set");
    command(&["CLIENT", "KILL", "TYPE", "normal"]).query::<()>(&mut admin).expect("killed");
    load.wait_for_failed(50).await;
    let before = proxy.accepted();
    let attempts = async || {
        assert!(proxy.open() <= 1, "{} attempts at the same time", proxy.open());
        proxy.accepted() >= before + 10
    };
    // The backoff grows to 150 ms with jitter: ten attempts take at least half of the full pauses.
    let took = eventually("attempts are made", SOON * 2, attempts).await;
    assert!(took.as_millis() >= 400, "ten attempts within {took:?}");
    assert!(server.log().contains("redis connection failed"), "{}", server.log());

    command(&["CONFIG", "SET", "maxclients", "100"]).query::<()>(&mut admin).expect("set");
    load.wait_for_passed(1, RECOVERY).await;
    load.wait_for_passed(50, SOON).await;
    load.finish().await;
    assert_sound(&server);
}

#[tokio::test]
async fn password_change_takes_effect_on_reload() {
    let dir = TempDir::new();
    let redis = RedisServer::start_with(&["--requirepass", "s3cret-old"]);
    let mut admin = redis.connect();
    let write = |password: &str| {
        let url = format!("redis://127.0.0.1:{}", redis.port());
        let text = format!(
            "store: {{backend: redis, redis: {{url: '{url}', password: {password}, timeout: 10s}}}}"
        );
        dir.write("rlaas.yaml", &text)
    };
    let server = Rlaas::start_from(&write("s3cret-old"), &[]);
    wait_for_store(&server).await;
    let mut client = server.client().await;
    assert!(check(&mut client, "alice").await.expect("an answer").allowed);

    command(&["CONFIG", "SET", "requirepass", "s3cret-new"]).query::<()>(&mut admin).expect("set");
    command(&["CLIENT", "KILL", "TYPE", "normal"]).query::<()>(&mut admin).expect("killed");
    let refused = async || {
        let log = server.log();
        log.lines().any(|line| line.contains("ERROR") && line.contains("authentication failed"))
    };
    eventually("the error is logged", SOON, refused).await;
    assert_unavailable(&mut client, "alice").await;
    let opened = async || check(&mut client, "alice").await.is_err() && breaker(&server).await > 0;
    eventually("the breaker opens", SOON, opened).await;

    write("s3cret-new");
    server.signal("HUP");
    let heals = async || check(&mut client, "alice").await.is_ok();
    eventually("calls pass without a restart", RECOVERY, heals).await;
    let log = server.log();
    assert!(!log.contains("s3cret"), "{log}");
    assert!(!log.contains("takes effect after a restart"), "{log}");
    assert_sound(&server);
}

#[tokio::test]
async fn database_change_requires_a_restart() {
    let dir = TempDir::new();
    let redis = RedisServer::start();
    let write = |database: u32| {
        let url = format!("redis://127.0.0.1:{}/{database}", redis.port());
        let text = format!("store: {{backend: redis, redis: {{url: '{url}', timeout: 10s}}}}");
        dir.write("rlaas.yaml", &text)
    };
    let server = Rlaas::start_from(&write(0), &[]);
    wait_for_store(&server).await;
    write(1);
    server.signal("HUP");
    let logged = async || server.log().contains("takes effect after a restart");
    eventually("the required restart is logged", SOON, logged).await;
    // New connections use the same database as the old ones.
    redis.query::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let mut client = server.client().await;
    eventually("the store answers", RECOVERY, async || check(&mut client, "alice").await.is_ok())
        .await;
    let keyspace = redis.query::<String>(&["INFO", "keyspace"]);
    assert!(keyspace.contains("db0:") && !keyspace.contains("db1:"), "{keyspace}");
}

#[tokio::test]
async fn minimal_acl_suffices_for_every_algorithm() {
    let redis = RedisServer::start();
    add_user(&redis);
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &rules_of_all_algorithms());
    let (url, password) =
        (format!("store.redis.url={}", redis.url()), format!("store.redis.password={PASSWORD}"));
    let user = ["store.redis.username=app", &*password];
    let store =
        ["store.backend=redis", &*url, "store.redis.timeout=10s", "deny-cache.enabled=false"];
    let server = Rlaas::start_from(&file, &[user.as_slice(), &store].concat());
    wait_for_store(&server).await;
    let mut client = server.client().await;
    let mut is_allowed = async |algorithm: &Algorithm, cost: u64| {
        let resource = format!("/{}", algorithm.name());
        let request = CheckRequest { resource, cost: Some(cost), ..request("alice") };
        let response = client.check(request).await.expect("an answer").into_inner();
        response.allowed
    };
    for algorithm in Algorithm::RATES {
        let allowed = [
            is_allowed(algorithm, 3).await,
            is_allowed(algorithm, 3).await,
            is_allowed(algorithm, 2).await,
        ];
        assert_eq!(allowed, [true, false, true], "{}", algorithm.name());
    }
    // Scripts also need permissions to replace foreign values and to set a missing time to live.
    for key in redis.keys() {
        redis.query::<()>(&["DEL", &key]);
        redis.query::<()>(&["HSET", &key, "a", "b"]);
    }
    for algorithm in Algorithm::RATES {
        assert!(is_allowed(algorithm, 5).await, "{}", algorithm.name());
    }
    for key in redis.keys() {
        redis.query::<()>(&["PERSIST", &key]);
    }
    for algorithm in Algorithm::RATES {
        assert!(!is_allowed(algorithm, 1).await, "{}", algorithm.name());
    }
    let denied: Vec<Value> = redis.query(&["ACL", "LOG"]);
    // The client library sends its name; newer servers log that this is denied. Scripts are loaded by EVAL where
    // SCRIPT LOAD is.
    let denied = denied.iter().map(|entry| format!("{entry:?}"));
    let is_expected = |entry: &String| {
        ["client|setinfo", "script|load"].map(|word| entry.contains(word)).contains(&true)
    };
    let denied = denied.filter(|entry| !is_expected(entry));
    // The service tries at the start what administration would need.
    let of_administration = |entry: &str| {
        let named = |name: &&str| entry.contains(&format!("\"{name}\""));
        FLEET_COMMANDS.iter().chain(&DIRECT_COMMANDS).any(named)
            || entry.contains("channel")
            || entry.contains("{rlaas:catalog}")
    };
    let denied: Vec<String> = denied.filter(|entry| !of_administration(entry)).collect();
    assert!(denied.is_empty(), "{denied:?}");
}

/// Returns the commands in a script, as arguments of these functions.
fn commands_of(path: &Path, functions: &[&str]) -> BTreeSet<String> {
    let text = fs::read_to_string(path).expect("a script");
    let command = |rest: &str| rest.split('\'').next().map(str::to_lowercase);
    let calls = functions.iter().flat_map(|function| text.split(function).skip(1));
    calls.filter_map(command).collect()
}

#[test]
fn acls_list_exactly_the_commands_of_the_scripts() {
    let lua = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let fleet = lua.join("fleet.lua");
    let holds = lua.join("holds.lua");
    let mut used: BTreeSet<String> = ["eval", "evalsha", "info", "time"].map(str::to_owned).into();
    for entry in fs::read_dir(lua).expect("the scripts") {
        let path = entry.expect("an entry").path();
        if path != fleet && path != holds {
            used.extend(commands_of(&path, &["redis.call('", "redis.pcall('", "read('"]));
        }
    }
    used.remove("zcard");
    let given: BTreeSet<String> = COMMANDS.map(str::to_owned).into();
    assert!(given.is_subset(&used), "{given:?} of {used:?}");
    // What decisions by overridable rules need in addition is in the list of administration.
    let overrides: Vec<&String> = used.difference(&given).collect();
    let is_listed = |command: &&String| FLEET_COMMANDS.contains(&command.as_str());
    assert!(overrides.iter().all(is_listed), "{overrides:?}");

    // Others look with ZCARD whether a key has holds.
    let used = commands_of(&holds, &["redis.call('", "redis.pcall('", "read('"]);
    let used = used.into_iter().chain(["zcard".to_owned()]).collect::<BTreeSet<_>>();
    let added: BTreeSet<String> = used.difference(&given).cloned().collect();
    assert_eq!(added, HOLDS_COMMANDS.map(str::to_owned).into());

    let used = commands_of(&fleet, &["redis.call('", "redis.pcall('", " call('", " try('"]);
    let added: BTreeSet<String> = used.difference(&given).cloned().collect();
    assert_eq!(added, FLEET_COMMANDS.map(str::to_owned).into());
}

#[tokio::test]
async fn permissions_of_administration_are_missed_in_one_line_and_by_the_calls_that_need_them() {
    let redis = RedisServer::start();
    add_user(&redis);
    let server = as_user(&redis, &[]);
    wait_for_store(&server).await;
    let mut client = server.client().await;
    assert!(check(&mut client, "alice").await.expect("an answer").allowed);
    let lines = || {
        let log = server.log();
        let bad = log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR"));
        // Projects have permissions of their own.
        let bad = bad.filter(|line| !line.contains("redis denies access to projects"));
        bad.map(str::to_owned).collect::<Vec<_>>()
    };
    eventually("missing permissions are logged", SOON, async || !lines().is_empty()).await;

    let mut admin = AdminServiceClient::new(server.channel().await);
    let of_alice = || proto::Selector {
        target: Some(Target::Request(request("alice"))),
        ..proto::Selector::default()
    };
    let reset = || proto::ResetRequest {
        selector: Some(of_alice()),
        reason: "a test".to_owned(),
        request_id: String::new(),
    };
    let list = proto::ListInstancesRequest::default;
    let overrides = proto::ListOverridesRequest::default;
    let refused = [
        (admin.reset(reset()).await.map(drop), "+xadd"),
        (admin.list_audit(proto::ListAuditRequest::default()).await.map(drop), "+xrevrange"),
        (admin.list_instances(list()).await.map(drop), "+hgetall"),
        (admin.list_overrides(overrides()).await.map(drop), "+scan"),
    ];
    for (result, permission) in refused {
        let status = result.expect_err(permission);
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
        assert!(status.message().ends_with(&format!("lacks {permission}")), "{status:?}");
    }
    assert_eq!(breaker(&server).await, 0, "decisions go on");
    let response = check(&mut client, "alice").await.expect("an answer");
    assert_eq!((response.allowed, response.remaining), (true, 3), "nothing was reset");
    let logged = lines();
    let [line] = &*logged else { panic!("{logged:?}") };
    assert!(line.contains("the redis user lacks permissions of administration"), "{line}");
    for command in FLEET_COMMANDS.iter().chain(&DIRECT_COMMANDS) {
        assert!(line.contains(&format!("+{command}")), "{command}: {line}");
    }

    let given = FLEET_COMMANDS.iter().chain(&DIRECT_COMMANDS);
    let given: Vec<String> = given.map(|command| format!("+{command}")).collect();
    let mut words = vec!["ACL", "SETUSER", "app", "&rlaas:*"];
    words.extend(given.iter().map(String::as_str));
    redis.query::<()>(&words);
    admin.reset(reset()).await.expect("a change");
    admin.list_overrides(overrides()).await.expect("a page");
    let entries = admin.list_audit(proto::ListAuditRequest::default()).await.expect("a page");
    assert_eq!(entries.into_inner().entries.len(), 1);
    assert_eq!(admin.list_instances(list()).await.expect("a page").into_inner().instances.len(), 1);
    assert_sound(&server);
}

#[tokio::test]
async fn redis_that_may_evict_is_shown() {
    let evicting = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let metric = "rlaas_redis_may_evict";
    for (arguments, expected) in [(&[][..], 0.0), (&evicting, 1.0), (&evicting[..2], 0.0)] {
        let redis = RedisServer::start_with(arguments);
        let server = Rlaas::on_redis(&redis, &[]);
        wait_for_store(&server).await;
        let is_known = async || server.metric(metric).await == Some(expected);
        eventually("the policy is known", SOON, is_known).await;
        let is_logged = || server.log().contains("redis may evict counts, overrides and bans");
        if expected > 0.0 {
            eventually("the risk is logged", SOON, async || is_logged()).await;
        } else {
            assert!(!is_logged(), "{arguments:?}");
        }
    }
}

#[tokio::test]
async fn missing_permission_is_logged_once_and_calls_recover_when_granted() {
    // The texts of Redis and of Valkey.
    for (taken, given, logged) in [
        ("-evalsha", "+evalsha", ["the 'evalsha' command"; 2]),
        (
            "-set",
            "+set",
            [
                "The user executing the script can't run this command",
                "ACL failure in script: User app has no permissions to run the 'set' command",
            ],
        ),
        (
            "resetkeys",
            "~rlaas:*",
            ["permissions to access one of the keys", "No permissions to access a key"],
        ),
    ] {
        let redis = RedisServer::start();
        add_user(&redis);
        let server = as_user(&redis, COUNTED);
        wait_for_store(&server).await;
        let mut client = server.client().await;
        redis.query::<()>(&["ACL", "SETUSER", "app", taken]);
        assert_unavailable(&mut client, "alice").await;
        assert_eq!(breaker(&server).await, 2, "{taken}: the breaker opens at once");
        for _ in 0..20 {
            assert_unavailable(&mut client, "alice").await;
        }
        assert!(store_errors(&server, "noperm").await >= 1, "{taken}");
        let matches =
            |line: &&str| line.contains("ERROR") && logged.iter().any(|text| line.contains(text));
        let errors = || server.log().lines().filter(matches).count();
        eventually("the missing permission is logged", SOON, async || errors() > 0).await;
        let log = server.log();
        assert_eq!(errors(), 1, "{taken}:\n{log}");
        assert!(!log.contains(PASSWORD), "{log}");
        redis.query::<()>(&["ACL", "SETUSER", "app", given]);
        let heals = async || check(&mut client, "alice").await.is_ok();
        eventually("calls pass without a restart", RECOVERY, heals).await;
        assert_sound(&server);
    }
}

#[tokio::test]
async fn missing_permission_at_connect_is_logged_with_the_command() {
    let redis = RedisServer::start();
    add_user(&redis);
    redis.query::<()>(&["ACL", "SETUSER", "app", "-time"]);
    let server = as_user(&redis, COUNTED);
    let logged = async || {
        let log = server.log();
        log.lines().any(|line| line.contains("ERROR") && line.contains("'time'"))
    };
    eventually("the missing permission is logged", SOON, logged).await;
    assert_unavailable(&mut server.client().await, "alice").await;

    // INFO is optional.
    redis.query::<()>(&["ACL", "SETUSER", "app", "+time", "-info"]);
    let mut client = server.client().await;
    let heals = async || check(&mut client, "alice").await.is_ok();
    eventually("calls pass again", RECOVERY, heals).await;
}

#[tokio::test]
async fn missing_permission_for_request_ids_fails_only_calls_with_an_id() {
    let redis = RedisServer::start();
    add_user(&redis);
    let server = as_user(&redis, COUNTED);
    wait_for_store(&server).await;
    redis.query::<()>(&["ACL", "SETUSER", "app", "resetkeys", "~rlaas:rate_limit:*"]);
    let load = Load::start(&server, 8).await;
    let mut client = server.client().await;
    for _ in 0..20 {
        let with_id = CheckRequest { request_id: "x".to_owned(), ..request("alice") };
        let status = client.check(with_id).await.expect_err("no permission for the record");
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(status.message(), "request_id needs a permission that the store lacks");
        load.wait_for_passed(10, SOON).await;
    }
    assert_eq!(breaker(&server).await, 0);
    assert_eq!(load.unavailable(), 0, "calls without an id");
    load.finish().await;
    assert_eq!(store_errors(&server, "noperm").await, 0);
    let log = server.log();
    assert!(log.lines().any(|line| line.contains("ERROR") && line.contains("NOPERM")), "{log}");
    redis.query::<()>(&["ACL", "SETUSER", "app", "~rlaas:once:*"]);
    for replayed in [false, true] {
        let with_id = CheckRequest { request_id: "x".to_owned(), ..request("bob") };
        let answer = client.check(with_id).await.expect("an answer").into_inner();
        assert_eq!((answer.allowed, answer.replayed), (true, replayed));
    }
}
