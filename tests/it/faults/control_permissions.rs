//! ACLs without what overrides and their publication need: decisions that do not need it go on.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::AuditEntry;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::admin::v1::audit_entry::State;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_proto::ratelimit::v1::{CheckRequest, Grant};
use rlaas_testkit::process::{Rlaas, check, request};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tonic::Code;

use super::load::{Load, SOON, assert_sound, breaker, store_errors, wait_for_store};
use super::redis_permissions::{FLEET_COMMANDS, PASSWORD, add_user, as_user};

/// A plain rule, and overridable ones with different policies.
const OVERRIDABLE: &str = "\
rate-limiter: {max-requests: 1000000000, use-algo: fixed-window, window-size: 366d}
rules:
  - {name: error, endpoint: /error, limit: 5, window: 366d, overridable: true}
  - {name: allow, endpoint: /allow, limit: 5, window: 366d, overridable: true, on-store-failure: allow}
";

#[tokio::test]
async fn missing_permission_for_overrides_fails_only_decisions_of_overridable_rules() {
    // The ACL of plain decisions lacks HGET. Then the keys are missing.
    for (given, keys, missing) in [
        ("-hget", "~rlaas:*", "HGET"),
        ("+hget", "~rlaas:rate_limit:* ~rlaas:rule:*", "keys with :control:"),
    ] {
        let redis = RedisServer::start();
        add_user(&redis);
        let words = ["ACL", "SETUSER", "app", given, "resetkeys"];
        let keys: Vec<&str> = words.into_iter().chain(keys.split(' ')).collect();
        redis.query::<()>(&keys);
        let dir = TempDir::new();
        let file = dir.write("rlaas.yaml", OVERRIDABLE);
        let (url, password) = (
            format!("store.redis.url={}", redis.url()),
            format!("store.redis.password={PASSWORD}"),
        );
        let settings =
            ["store.backend=redis", &url, "store.redis.timeout=10s", "store.redis.username=app"];
        let server = Rlaas::start_from(&file, &[&settings[..], &[&password]].concat());
        wait_for_store(&server).await;
        let load = Load::start(&server, 8).await;
        let mut client = server.client().await;
        let of =
            |resource: &str| CheckRequest { resource: resource.to_owned(), ..request("alice") };
        for _ in 0..20 {
            let status = client.check(of("/error")).await.expect_err("no permission");
            assert_eq!((status.code(), status.message()), (Code::Unavailable, "store unavailable"));
            let open = client.check(of("/allow")).await.expect("by policy").into_inner();
            assert_eq!((open.allowed, open.source().as_str_name()), (true, "FAIL_OPEN"));
            load.wait_for_passed(10, SOON).await;
        }
        assert_eq!(breaker(&server).await, 0, "{missing}");
        assert_eq!(load.unavailable(), 0, "{missing}: calls of plain rules");
        load.finish().await;
        assert_eq!(store_errors(&server, "noperm").await, 0, "{missing}");
        let log = server.log();
        let logged = |line: &&str| line.contains("redis denied access") && line.contains(missing);
        assert_eq!(log.lines().filter(logged).count(), 1, "{missing}:\n{log}");
        // An administrator is told, and changes nothing.
        let mut admin = AdminServiceClient::new(server.channel().await);
        let target = Some(Target::Request(of("/error")));
        let selector =
            Some(proto::Selector { target, rule: "error".to_owned(), project_id: String::new() });
        let status = admin.inspect(proto::InspectRequest { selector }).await.expect_err(missing);
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(status.message().contains("lacks +hget"), "{status:?}");

        redis.query::<()>(&["ACL", "SETUSER", "app", "+hget", "~rlaas:control:*"]);
        for expected in [4, 3] {
            let answer = client.check(of("/error")).await.expect("a decision").into_inner();
            assert_eq!((answer.allowed, answer.remaining), (true, expected), "{missing}");
        }
        assert_sound(&server);
    }
}

/// Publication alone is denied: the change is made, and the other instance obeys it by the time that
/// the reply names.
#[tokio::test]
async fn without_permission_to_publish_a_change_holds_everywhere_by_the_age_of_cached_denials() {
    let redis = RedisServer::start();
    add_user(&redis);
    let mut words = vec!["ACL", "SETUSER", "app", "+subscribe", "&rlaas:*"];
    let given = FLEET_COMMANDS.map(|command| format!("+{command}"));
    words.extend(given.iter().map(String::as_str));
    words.push("-publish");
    redis.query::<()>(&words);
    let settings = &[
        "rate-limiter.overridable=true",
        "rate-limiter.use-algo=gcra",
        "rate-limiter.window-size=1h",
        "deny-cache.max-age=1s",
    ];
    let [one, other] = [as_user(&redis, settings), as_user(&redis, settings)];
    wait_for_store(&one).await;
    wait_for_store(&other).await;
    let mut client = other.client().await;
    let denied = async || !check(&mut client.clone(), "alice").await.expect("an answer").allowed;
    eventually("alice is denied", SOON, denied).await;

    let mut admin = AdminServiceClient::new(one.channel().await);
    let request = proto::SetOverrideRequest {
        selector: Some(proto::Selector {
            target: Some(Target::Request(request("alice"))),
            ..proto::Selector::default()
        }),
        grant: Some(Grant { kind: Some(Kind::Limit(1_000_000)), burst: 0 }),
        ttl: Some(prost_types::Duration { seconds: 3600, nanos: 0 }),
        reason: "a test".to_owned(),
        ..proto::SetOverrideRequest::default()
    };
    let before = now();
    let change = admin.set_override(request).await.expect("an override");
    let replied = now();
    let everywhere_by = change.into_inner().change.expect("a change").everywhere_by;
    let everywhere_by = everywhere_by.expect("a time");
    let everywhere_by =
        Duration::new(everywhere_by.seconds.unsigned_abs(), everywhere_by.nanos.unsigned_abs());
    let second = Duration::from_secs(1);
    assert!(before + second <= everywhere_by && everywhere_by <= replied + second);
    // At once on the instance that answered.
    let answer = check(&mut one.client().await, "alice").await.expect("an answer");
    assert_eq!((answer.allowed, answer.limit), (true, 1_000_000));
    let mut was_late = false;
    let obeys = async || {
        let asked = now();
        let answer = check(&mut client, "alice").await.expect("an answer");
        was_late |= !answer.allowed;
        assert!(asked < everywhere_by || answer.limit == 1_000_000, "{answer:?}");
        asked >= everywhere_by
    };
    eventually("everywhere_by", SOON, obeys).await;
    assert!(was_late, "the cached denial was not forgotten at once");
    let entries = admin.list_audit(proto::ListAuditRequest::default()).await.expect("a page");
    let entries = entries.into_inner().entries;
    assert_eq!(entries.iter().map(AuditEntry::state).collect::<Vec<_>>(), [State::Done]);
    assert_eq!(breaker(&one).await, 0);
}

#[expect(clippy::disallowed_methods, reason = "`everywhere_by` is wall time")]
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970")
}
