//! Clients in four languages check one user while their server is stopped by SIGTERM and started again: no unit is
//! lost, and none is counted twice.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rlaas_client::rlaas_core::rules::Request;
use rlaas_client::{AnsweredBy, Client, OnNoAnswer};
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::tls::{Certificate, Certificates};
use rlaas_testkit::{TempDir, eventually};
use tokio::runtime::Handle;

use super::client::ExampleClient;
use super::packages::{GO, NODE, PYTHON};

const LIMIT: i64 = 1_000_000_000;

/// With a fixed window, whose answers differ in what is left.
const RULE: [&str; 3] = [
    "rate-limiter.max-requests=1000000000",
    "rate-limiter.use-algo=fixed-window",
    "rate-limiter.window-size=366d",
];

/// Answers that each client gets before the first restart and after each.
const ANSWERS: usize = 500;

const RESTARTS: usize = 2;

/// The longest time in which a client reconnects and gets its answers, on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Timeout of a call: so long that none is given up which the server has counted.
const CALL_TIMEOUT: Duration = Duration::from_mins(1);

/// Pause of a client after a call without an answer.
const PAUSE: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_with_a_snapshot_lose_no_unit() {
    let dir = TempDir::new();
    assert_counts(&[&format!("state-dir={}", dir.path("state").display())], None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_beside_redis_lose_no_unit() {
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    assert_counts(&["store.backend=redis", &url, "store.redis.timeout=10s"], None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_with_tls_lose_no_unit() {
    let (dir, certificates) = (TempDir::new(), Certificates::make());
    let setting = |name, path: PathBuf| format!("{name}={}", path.display());
    let settings = [
        setting("state-dir", dir.path("state")),
        setting("server.tls.cert", certificates.certificate(Certificate::Server)),
        setting("server.tls.key", certificates.key(Certificate::Server)),
    ];
    assert_counts(&settings.each_ref().map(String::as_str), Some(certificates.authority())).await;
}

/// Asserts that a server with these settings counts what its clients were answered, across restarts. With the
/// certificate of an authority it has TLS.
async fn assert_counts(settings: &[&str], authority: Option<PathBuf>) {
    let mut server = Rlaas::start(&[&RULE, settings].concat());
    let listen = format!("server.listen={}", server.grpc());
    let scheme = if authority.is_some() { "https" } else { "http" };
    let address = format!("{scheme}://{}", server.grpc());
    let rust = rust_client(&address, authority.as_ref());
    let mut clients = vec![LoadClient::start(rust_checks(rust.clone()))];
    for example in [&GO, &NODE, &PYTHON].into_iter().filter_map(|example| example.as_ref()) {
        let mut command = example.command();
        command.arg(&address).env("DEADLINE_MS", CALL_TIMEOUT.as_millis().to_string());
        if let Some(authority) = &authority {
            // Of Go, and of gRPC for the others.
            command.env("SSL_CERT_FILE", authority);
            command.env("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", authority);
        }
        let mut example = ExampleClient::start(&mut command);
        clients.push(LoadClient::start(move || left(&example.check("alice"))));
    }
    for restarts in 0..=RESTARTS {
        if restarts > 0 {
            server.signal("TERM");
            assert!(server.wait().success(), "{}", server.log());
            server = Rlaas::start(&[&RULE, settings, &[&listen]].concat());
        }
        for client in &clients {
            let enough = client.answers.load(Ordering::Relaxed) + ANSWERS;
            let answered = async || {
                assert!(!client.thread.is_finished(), "a client has failed");
                client.answers.load(Ordering::Relaxed) >= enough
            };
            eventually("each client is answered", TIMEOUT, answered).await;
        }
    }
    let (mut answers, mut unanswered) = (Vec::new(), 0);
    for client in clients {
        let calls = client.finish();
        unanswered += calls.unanswered;
        answers.extend(calls.answers);
    }
    let look = Request::user("alice").cost(0).build().expect("a valid request");
    let look = rust.check(&look).await.expect("an answer");
    assert_eq!(look.answered_by(), AnsweredBy::Server);
    let counted = usize::try_from(LIMIT - look.response().remaining).expect("units in use");
    let answered = answers.len();
    assert!(answered <= counted, "{answered} calls were answered, {counted} units counted");
    assert!(counted <= answered + unanswered, "{answered}, {unanswered} unanswered: {counted}");
    assert!(unanswered < answered, "{answered} calls were answered, {unanswered} not");
    answers.sort_unstable();
    let repeated = answers.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(repeated, None, "units that were counted were free again");
}

fn rust_client(address: &str, authority: Option<&PathBuf>) -> Client {
    let mut builder = Client::builder(address).timeout(CALL_TIMEOUT).retries(1);
    if let Some(authority) = authority {
        builder = builder.ca(std::fs::read(authority).expect("a certificate"));
    }
    builder.on_no_answer(OnNoAnswer::Allow).connect_lazy().expect("a client")
}

/// Returns what is left after a check; `None` without an answer.
fn rust_checks(client: Client) -> impl FnMut() -> Option<i64> + Send {
    let runtime = Handle::current();
    move || {
        let request = Request::user("alice").build().expect("a valid request");
        let verdict = runtime.block_on(client.check(&request)).expect("a verdict");
        // An instance that has not found its store yet decides nothing.
        let is_answer = verdict.answered_by() == AnsweredBy::Server && verdict.is_allowed();
        is_answer.then_some(verdict.response().remaining)
    }
}

/// Returns what an example says is left; `None` without an answer.
fn left(outcome: &str) -> Option<i64> {
    if outcome == "no response: allowed" {
        return None;
    }
    let left = outcome.strip_prefix("allowed, ").and_then(|rest| rest.strip_suffix(" left"));
    Some(left.and_then(|left| left.parse().ok()).unwrap_or_else(|| panic!("{outcome}")))
}

/// A client that checks until it is finished.
struct LoadClient {
    answers: Arc<AtomicUsize>,
    is_finished: Arc<AtomicBool>,
    thread: JoinHandle<CallResults>,
}

#[derive(Default)]
struct CallResults {
    /// What each answer says is left.
    answers: Vec<i64>,
    unanswered: usize,
}

impl LoadClient {
    #[expect(clippy::disallowed_methods, reason = "without an answer a client does not spin")]
    fn start(mut check: impl FnMut() -> Option<i64> + Send + 'static) -> Self {
        let answers = Arc::new(AtomicUsize::new(0));
        let is_finished = Arc::new(AtomicBool::new(false));
        let (counter, finished) = (Arc::clone(&answers), Arc::clone(&is_finished));
        let thread = std::thread::spawn(move || {
            let mut calls = CallResults::default();
            while !finished.load(Ordering::Relaxed) {
                if let Some(left) = check() {
                    calls.answers.push(left);
                    counter.fetch_add(1, Ordering::Relaxed);
                } else {
                    calls.unanswered += 1;
                    std::thread::sleep(PAUSE);
                }
            }
            calls
        });
        Self { answers, is_finished, thread }
    }

    fn finish(self) -> CallResults {
        self.is_finished.store(true, Ordering::Relaxed);
        self.thread.join().expect("a client that does not fail")
    }
}
