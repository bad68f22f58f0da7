//! Overrides, bans and changes of keys in a cluster: their ids lie on several masters.

use std::collections::BTreeSet;
use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::audit_entry::State;
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_proto::ratelimit::v1::{CheckRequest, check_result};
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::process::{Rlaas, check, request};
use rlaas_testkit::{TempDir, eventually};
use tonic::Code;

use super::audit::newest;
use super::overrides::{clear, set};
use super::{AdminClient, admin, inspect, of_user, refund, reset, selector};

const TIMEOUT: Duration = Duration::from_secs(20);
const RULES: &str = "\
rate-limiter: {max-requests: 3, use-algo: gcra, window-size: 1h, overridable: true}
deny-cache: {enabled: false}
rules:
  - {name: by-user, endpoint: /both, limit: 5, window: 1h, algorithm: gcra}
  - {name: by-tenant, endpoint: /both, key-by: [tenant], limit: 5, window: 1h, algorithm: gcra}
";
const MASTERS: usize = 3;

async fn start(dir: &TempDir) -> (RedisCluster, Rlaas) {
    let cluster = RedisCluster::start(MASTERS, 0).await;
    let settings = cluster.settings();
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let settings = [&settings[..], &["store.redis.timeout=10s"]].concat();
    let server = Rlaas::start_from(&dir.write("rlaas.yaml", RULES), &settings);
    let decides = async || check(&mut server.client().await, "nobody").await.is_ok();
    eventually("the cluster decides", TIMEOUT, decides).await;
    (cluster, server)
}

/// Returns an id on each master.
fn ids(cluster: &RedisCluster, prefix: &str) -> [String; MASTERS] {
    [0, 1, 2].map(|master| {
        let mut all = (0..).map(|number| format!("{prefix}-{number}"));
        all.find(|id| cluster.master_of_id(id) == master).expect("an id on each master")
    })
}

type Page = Result<proto::ListOverridesResponse, tonic::Status>;

async fn page(client: &mut AdminClient, page_size: i32, page_token: &str) -> Page {
    let page_token = page_token.to_owned();
    let request = proto::ListOverridesRequest { page_size, page_token, ..Default::default() };
    client.list_overrides(request).await.map(tonic::Response::into_inner)
}

/// Lists everything: the user and whether it is a ban, once for each override.
async fn list(client: &mut AdminClient, page_size: i32) -> Vec<(String, bool)> {
    let (mut all, mut token) = (Vec::new(), String::new());
    loop {
        let page = page(client, page_size, &token).await.expect("a page");
        let most = usize::try_from(page_size).expect("a size").max(2);
        assert!(page.overrides.len() <= most, "{} of {page_size}", page.overrides.len());
        all.extend(page.overrides.iter().map(|one| {
            let is_ban = one.grant.and_then(|grant| grant.kind) == Some(Kind::Banned(true));
            (one.key.as_ref().expect("a key").id.clone(), is_ban)
        }));
        token = page.next_page_token;
        if token.is_empty() {
            all.sort_unstable();
            return all;
        }
    }
}

async fn assert_refused(client: &mut AdminClient, token: &str, text: &str) {
    let page = page(client, 5, token).await;
    let status = page.expect_err(&format!("{token:.200} is of another list"));
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, text), "{token:.200}");
}

const FORGED: &str = "page_token must be the next_page_token of the response before";
const CHANGED: &str =
    "page_token must be empty: other servers have the keys by now, so list them again";

#[tokio::test]
async fn overrides_are_set_obeyed_shown_and_listed_on_every_shard() {
    let dir = TempDir::new();
    let (cluster, server) = start(&dir).await;
    let (mut client, mut admin) = (server.client().await, admin(&server).await);
    for (user, banned) in ids(&cluster, "user").iter().zip(&ids(&cluster, "banned")) {
        admin.set_override(set(of_user(user), Kind::Limit(7))).await.expect("an override");
        admin.set_override(set(of_user(banned), Kind::Banned(true))).await.expect("a ban");
        for left in (0..7).rev() {
            let answer = check(&mut client, user).await.expect("a decision");
            assert_eq!((answer.allowed, answer.remaining), (true, left), "{user}");
        }
        assert!(!check(&mut client, user).await.expect("a decision").allowed);
        let answer = check(&mut client, banned).await.expect("a decision");
        assert_eq!((answer.allowed, answer.reason().as_str_name()), (false, "BANNED"));
        for (id, limit) in [(user, 7), (banned, 0)] {
            let states = inspect(&mut admin, of_user(id)).await.expect("a state");
            assert_eq!((states[0].limit, states[0].overrides.len()), (limit, 1), "{id}");
            let explain =
                proto::ExplainRequest { request: Some(request(id)), ..Default::default() };
            let explained = admin.explain(explain).await.expect("an explanation").into_inner();
            let Some(check_result::Result::Response(answer)) =
                explained.result.expect("a result").result
            else {
                panic!("{id}: no answer")
            };
            assert_eq!((answer.allowed, answer.limit), (false, limit), "{id}");
            let rule = explained.rules.iter().find(|rule| rule.rule == "default").expect("a rule");
            assert_eq!(rule.grant_from(), proto::GrantFrom::KeyOverride, "{id}");
        }
        admin.clear_override(clear(of_user(banned))).await.expect("a change");
        assert!(check(&mut client, banned).await.expect("a decision").allowed, "{banned}");
    }

    // Some with both kinds, some cleared, some that end at once.
    for number in 0..40 {
        let user = format!("many-{number:02}");
        admin.set_override(set(of_user(&user), Kind::Unlimited(true))).await.expect("one");
        if number % 4 == 0 {
            admin.set_override(set(of_user(&user), Kind::Banned(true))).await.expect("a ban");
        } else if number % 4 == 1 {
            admin.clear_override(clear(of_user(&user))).await.expect("a change");
        } else if number % 4 == 2 {
            let ttl = Some(prost_types::Duration { seconds: 1, nanos: 0 });
            let short = set(of_user(&user), Kind::Banned(true));
            let short = proto::SetOverrideRequest { ttl, ..short };
            admin.set_override(short).await.expect("a ban");
        }
    }
    let of_many = (0..40).filter(|number| number % 4 != 1).flat_map(|number| {
        let has_ban = number % 4 == 0;
        let kinds = if has_ban { &[false, true][..] } else { &[false] };
        kinds.iter().map(move |is_ban| (format!("many-{number:02}"), *is_ban))
    });
    let users = ids(&cluster, "user").into_iter().map(|user| (user, false));
    let expected: BTreeSet<_> = users.chain(of_many).collect();
    let expected: Vec<_> = expected.into_iter().collect();
    let ended = async || list(&mut admin.clone(), 1_000).await == expected;
    eventually("the short bans have ended", TIMEOUT, ended).await;
    for page_size in [1, 2, 7, 50] {
        assert_eq!(list(&mut admin, page_size).await, expected, "pages of {page_size}");
    }

    // Tokens that are not those of the page before.
    let first = page(&mut admin, 5, "").await.expect("a page").next_page_token;
    assert!(!first.is_empty());
    for forged in ["x", "0 ", "0 0 0", "0 \u{661} 0 h:1", "-1 - 0 h:1", &"9".repeat(40_000)] {
        assert_refused(&mut admin, forged, FORGED).await;
    }
    let place = first.lines().next().expect("a place");
    let (before, _) = place.rsplit_once(' ').expect("a server");
    let other_layout = format!("{}{}", if first.starts_with('f') { 'e' } else { 'f' }, &first[1..]);
    for other in [format!("{before} 127.0.0.1:1"), format!("{place}0"), other_layout] {
        assert_refused(&mut admin, &other, CHANGED).await;
    }
    // A slot moves between two pages. A call for one of its keys tells of the move.
    let slot = cluster.slot_of("{many-00}");
    let from = cluster.master_of(slot);
    cluster.move_slot(slot, from, (from + 1) % MASTERS).await;
    let is_refused = async || {
        check(&mut client, "many-00").await.expect("a decision");
        page(&mut admin.clone(), 5, &first).await.is_err()
    };
    eventually("the move is known", TIMEOUT, is_refused).await;
    assert_refused(&mut admin, &first, CHANGED).await;
    assert_eq!(list(&mut admin, 7).await, expected);
}

fn of_both(user: &str, tenant: &str) -> CheckRequest {
    CheckRequest {
        resource: "/both".to_owned(),
        attributes: [("tenant".to_owned(), tenant.to_owned())].into(),
        ..request(user)
    }
}

/// Units in use by rule: of the user, and of the tenant.
fn used(states: &[proto::KeyState]) -> Vec<(&str, i64)> {
    states.iter().map(|state| (state.rule.as_str(), state.used)).collect()
}

#[tokio::test]
async fn of_a_change_on_several_shards_the_audit_tells_which_half_is_done() {
    let dir = TempDir::new();
    let (cluster, server) = start(&dir).await;
    let (mut client, mut admin) = (server.client().await, admin(&server).await);
    // Shards are changed in the order of their slots. The audit and the claims of request ids are on
    // a master of their own.
    let [user, _, tenant] = ids(&cluster, "id");
    for name in ["rlaas:audit", "rlaas:changes"] {
        assert_eq!(cluster.master_of(cluster.slot_of(name)), 1, "{name}");
    }
    let node = cluster.node(cluster.master_of_id(&tenant));
    let request = || selector(proto::selector::Target::Request(of_both(&user, &tenant)));
    // The secret that hashes keys in the audit is there before.
    reset(&mut admin, request(), "").await.expect("a reset");
    for _ in 0..4 {
        let answer = client.check(of_both(&user, &tenant)).await.expect("a decision");
        assert!(answer.into_inner().allowed);
    }
    let keys = inspect(&mut admin, request()).await.expect("states");
    assert_eq!(used(&keys), [("by-tenant", 4), ("by-user", 4)]);

    // The tenant's master takes no writes.
    node.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let status = refund(&mut admin, request(), 1, "one").await.expect_err("no write");
    let told = "store unavailable: the change may have been made";
    assert_eq!((status.code(), status.message()), (Code::Unavailable, told));
    let status = reset(&mut admin, request(), "two").await.expect_err("no write");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, told));
    let entries = newest(&mut admin).await;
    for (entry, in_use) in entries.iter().zip([0, 3]) {
        assert_eq!(entry.state(), State::Failed, "{entry:?}");
        assert_eq!(used(&entry.after), [("by-user", in_use)], "{entry:?}");
        assert_eq!(entry.error.as_ref().map(|error| error.code), Some(14));
    }
    let keys = inspect(&mut admin, request()).await.expect("states");
    assert_eq!(used(&keys), [("by-tenant", 4), ("by-user", 0)]);
    // A refund is not made again under its id, a reset is.
    node.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    let status = refund(&mut admin, request(), 1, "one").await.expect_err("an unknown outcome");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let change = reset(&mut admin, request(), "two").await.expect("a reset");
    assert_eq!(used(&change.after), [("by-tenant", 0), ("by-user", 0)]);

    // The tenant's master is away: nothing is begun, and the other shard is served.
    client.check(of_both(&user, &tenant)).await.expect("a decision");
    let recorded = newest(&mut admin).await.len();
    rlaas_testkit::process::signal(node.pid(), "STOP");
    let mut late = tonic::Request::new(proto::ResetRequest {
        selector: request(),
        reason: "a test".to_owned(),
        request_id: String::new(),
    });
    late.set_timeout(Duration::from_millis(500));
    let status = admin.reset(late).await.expect_err("a hung master");
    let codes = [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled];
    assert!(codes.contains(&status.code()), "{status:?}");
    let keys = inspect(&mut admin, of_user(&user)).await.expect("the state of the user");
    assert_eq!(used(&keys), [("default", 0)]);
    assert_eq!(newest(&mut admin).await.len(), recorded);
    rlaas_testkit::process::signal(node.pid(), "CONT");
}
