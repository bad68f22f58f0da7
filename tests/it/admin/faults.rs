//! Faults of Redis at each step of a change: it is told, and nothing is half done, or the audit says
//! which half.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rlaas_proto::ratelimit::admin::v1::audit_entry::State;
use rlaas_proto::ratelimit::admin::v1::{AuditEntry, Change, ResetRequest};
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check};
use rlaas_testkit::redis::RedisServer;
use tonic::{Code, Request, Status};

use super::audit::newest;
use super::step_proxy::{StepFault, StepProxy};
use super::{AdminClient, admin, inspect, of_user, refund};

const SOON: Duration = Duration::from_secs(20);

/// A step of a change: its commands have these words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeStep {
    /// The state before is read.
    Look,
    /// The intent is recorded.
    Intent,
    /// The state is changed.
    Change,
    /// The outcome is recorded.
    Outcome,
    /// The other instances are told.
    Publish,
}

impl ChangeStep {
    /// Words of the command, and the number of calls with them before that of the step.
    fn calls(self) -> (&'static [&'static str], usize) {
        match self {
            Self::Look => (&["rlaas:rate_limit:alice"], 0),
            Self::Intent => (&["append", "rlaas:audit"], 0),
            Self::Change => (&["rlaas:rate_limit:alice"], 1),
            Self::Outcome => (&["append", "rlaas:audit"], 1),
            Self::Publish => (&["publish", "rlaas:forget"], 0),
        }
    }
}

/// `deny-cache.max-age`.
const MAX_AGE: Duration = Duration::from_mins(1);
const NO_OUTCOME: &str = "the outcome of a change is not in the audit";

const READONLY: &[u8] = b"-READONLY You can't write against a read only replica.\r\n";
const NOPERM: &[u8] = b"-NOPERM this user has no permissions to run the 'eval' command\r\n";
const OOM: &[u8] = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n";

async fn reset_within(client: &mut AdminClient, timeout: Duration) -> Result<Change, Status> {
    let mut request = Request::new(ResetRequest {
        selector: of_user("alice"),
        reason: "a test".to_owned(),
        request_id: String::new(),
    });
    request.set_timeout(timeout);
    let response = client.reset(request).await?.into_inner();
    Ok(response.change.expect("a change"))
}

#[tokio::test]
async fn a_fault_at_any_step_is_told_and_the_audit_knows_its_outcome() {
    let steps = [ChangeStep::Look, ChangeStep::Intent, ChangeStep::Change, ChangeStep::Outcome];
    for step in [&steps[..], &[ChangeStep::Publish]].concat() {
        let mut faults = vec![
            StepFault::Away,
            StepFault::Hung,
            StepFault::Reply(READONLY),
            StepFault::Reply(OOM),
        ];
        if step == ChangeStep::Publish {
            faults.push(StepFault::Reply(NOPERM));
        }
        for fault in faults {
            let case = format!("{fault:?} at {step:?}");
            let begun = now();
            let (result, used, entries, log) = run(step, fault).await;
            let states: Vec<State> = entries.iter().map(AuditEntry::state).collect();
            // Without a reply nothing is known of a step that was sent: here it was not executed.
            let is_mute = matches!(fault, StepFault::Away | StepFault::Hung);
            match step {
                ChangeStep::Look => {
                    assert_told(&case, result);
                    assert_eq!((used, &*states), (3, &[][..]), "{case}");
                }
                ChangeStep::Intent => {
                    let told = assert_told(&case, result);
                    assert!(told.contains("audit") || is_mute, "{case}: {told}");
                    assert_eq!((used, &*states), (3, &[][..]), "{case}");
                }
                ChangeStep::Change => {
                    assert_told(&case, result);
                    assert_eq!(used, 3, "{case}");
                    let expected = if is_mute { State::Unknown } else { State::Failed };
                    let [entry] = &*entries else { panic!("{case}: {entries:?}") };
                    // A hung change may be recorded once Redis answers again.
                    let is_recorded = is_mute && entry.state() == State::Failed;
                    assert!(entry.state() == expected || is_recorded, "{case}: {entry:?}");
                    assert!(entry.after.is_empty(), "{case}: {entry:?}");
                }
                ChangeStep::Outcome => {
                    // The change was made; the caller may have waited in vain for its record.
                    if let Err(status) = result {
                        let codes = [Code::DeadlineExceeded, Code::Cancelled];
                        assert!(codes.contains(&status.code()), "{case}: {status:?}");
                    }
                    assert_eq!((used, &*states), (0, &[State::Unknown][..]), "{case}");
                    assert!(log.contains(NO_OUTCOME), "{case}:\n{log}");
                }
                ChangeStep::Publish => {
                    // The change stands, and the others follow by the age of their cached denials.
                    let change = result.unwrap_or_else(|status| panic!("{case}: {status:?}"));
                    let everywhere_by = change.everywhere_by.expect("a time");
                    let seconds = u64::try_from(everywhere_by.seconds).expect("after 1970");
                    let nanos = u32::try_from(everywhere_by.nanos).expect("a fraction");
                    let everywhere_by = Duration::new(seconds, nanos);
                    let expected = begun + MAX_AGE..=now() + MAX_AGE;
                    assert!(expected.contains(&everywhere_by), "{case}: {everywhere_by:?}");
                    assert_eq!((used, &*states), (0, &[State::Done][..]), "{case}");
                    assert_eq!(entries[0].after.len(), 1, "{case}: {entries:?}");
                    assert!(!log.contains(NO_OUTCOME), "{case}:\n{log}");
                }
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "`everywhere_by` is wall time")]
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970")
}

/// Returns the text of an error that says that the store, or the audit, did not answer.
fn assert_told(case: &str, result: Result<Change, Status>) -> String {
    let status = result.expect_err(case);
    // The client's own timer may be the first.
    let codes = [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled];
    assert!(codes.contains(&status.code()), "{case}: {status:?}");
    assert!(!status.message().contains("maxmemory"), "{case}: {status:?}");
    status.message().to_owned()
}

/// Resets the key of alice, of which 3 units are taken, with a fault at one step. Then returns the
/// result, the units in use, the audit and the log.
async fn run(
    step: ChangeStep,
    fault: StepFault,
) -> (Result<Change, Status>, i64, Vec<AuditEntry>, String) {
    let redis = RedisServer::start();
    let proxy = StepProxy::to(redis.port());
    let url = format!("store.redis.url=redis://127.0.0.1:{}", proxy.port());
    let settings =
        ["store.backend=redis", &url, "store.redis.timeout=300ms", "deny-cache.max-age=60s"];
    let server = Rlaas::start(&settings);
    let (mut client, mut admin) = (server.client().await, admin(&server).await);
    let decides = async || check(&mut client.clone(), "bob").await.is_ok();
    eventually("the store answers", SOON, decides).await;
    for _ in 0..3 {
        check(&mut client, "alice").await.expect("a decision");
    }
    // The secret that hashes keys, and the scripts, are there before.
    let request = ResetRequest {
        selector: of_user("bob"),
        reason: "a test".to_owned(),
        request_id: String::new(),
    };
    // The store has 300 ms, which a busy machine may exceed.
    let resets = async || admin.clone().reset(request.clone()).await.is_ok();
    eventually("a change is made", SOON, resets).await;
    redis.query::<()>(&["DEL", "rlaas:audit"]);
    let (words, before) = step.calls();
    proxy.fail_at(words, before, fault);
    let result = reset_within(&mut admin, Duration::from_secs(2)).await;
    assert!(proxy.has_failed(), "{fault:?} at {step:?} did not happen");
    // The record of an outcome has 2 seconds of its own.
    let is_over = async || {
        let log = server.log();
        step != ChangeStep::Outcome || log.contains(NO_OUTCOME)
    };
    eventually("the change is over", SOON, is_over).await;
    proxy.heal();
    let heals = async || {
        inspect(&mut admin.clone(), of_user("alice")).await.is_ok()
            && check(&mut client.clone(), "bob").await.is_ok()
    };
    eventually("the store answers again", SOON, heals).await;
    let states = inspect(&mut admin, of_user("alice")).await.expect("a state");
    let entries = newest(&mut admin).await;
    (result, states[0].used, entries, server.log())
}

/// The calls that claim a request id, and then make the claim last.
const CLAIM: &[&str] = &["claim", "rlaas:changes"];

/// Starts two servers on one Redis, the first one behind a proxy, with 3 units of alice in use.
async fn two_servers(redis: &RedisServer) -> (StepProxy, [Rlaas; 2], [AdminClient; 2]) {
    let proxy = StepProxy::to(redis.port());
    let servers = [proxy.port(), redis.port()].map(|port| {
        let url = format!("store.redis.url=redis://127.0.0.1:{port}");
        Rlaas::start(&["store.backend=redis", &url, "store.redis.timeout=10s"])
    });
    let mut clients = Vec::new();
    for server in &servers {
        let mut client = admin(server).await;
        // The scripts, and the secret that hashes keys, are there before.
        refund(&mut client, of_user("bob"), 1, "before").await.expect("an answer");
        clients.push(client);
    }
    for _ in 0..3 {
        check(&mut servers[1].client().await, "alice").await.expect("a decision");
    }
    redis.query::<()>(&["DEL", "rlaas:audit"]);
    (proxy, servers, clients.try_into().expect("two clients"))
}

#[tokio::test]
async fn lost_reply_to_a_claim_is_asked_for_again() {
    for passing in 0..2 {
        let redis = RedisServer::start();
        let (proxy, _servers, [mut client, _]) = two_servers(&redis).await;
        proxy.fail_at(CLAIM, passing, StepFault::ReplyLost);
        let change = refund(&mut client, of_user("alice"), 1, "once").await.expect("a change");
        assert!(proxy.has_failed() && !change.replayed);
        let again = refund(&mut client, of_user("alice"), 1, "once").await.expect("an answer");
        assert!(again.replayed);
        let states = inspect(&mut client, of_user("alice")).await.expect("a state");
        assert_eq!(states[0].used, 2);
    }
}

#[tokio::test]
async fn call_that_is_held_before_its_change_makes_none_after_a_retry() {
    let redis = RedisServer::start();
    let (proxy, _servers, [mut first, mut second]) = two_servers(&redis).await;
    proxy.fail_at(CLAIM, 1, StepFault::Hung);
    let held = tokio::spawn(async move { refund(&mut first, of_user("alice"), 1, "once").await });
    eventually("the first call is held", SOON, async || proxy.has_failed()).await;
    let retries = async || refund(&mut second.clone(), of_user("alice"), 1, "once").await.is_ok();
    eventually("a retry makes the change", SOON, retries).await;
    proxy.heal();
    held.await.expect("no panic").expect_err("the claim of another call");
    let states = inspect(&mut second, of_user("alice")).await.expect("a state");
    assert_eq!(states[0].used, 2);
    let states: Vec<State> = newest(&mut second).await.iter().map(AuditEntry::state).collect();
    assert_eq!(states, [State::Done]);
}
