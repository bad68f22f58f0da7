//! Retries of calls without an answer.

use std::time::Duration;

use rlaas::rules::Request;
use rlaas_client::{CheckError, Client};
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::proxy::{Behaviour, Proxy};
use tokio::time::Instant;

use super::TIMEOUT;

/// The proxy loses each reply of this number. With more losses than one in ten calls, retries would be
/// throttled.
const LOST: u64 = 23;

fn behind_proxy(server: &Rlaas) -> Proxy {
    let port = server.grpc().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let proxy = Proxy::to(port.expect("an address with a port"));
    proxy.set(Behaviour::CutEvery(LOST));
    proxy
}

#[tokio::test]
async fn lost_replies_are_repeated_and_counted_once() {
    let server = Rlaas::start(&["rate-limiter.max-requests=1000", "rate-limiter.window-size=366d"]);
    let proxy = behind_proxy(&server);
    let client = Client::builder(format!("127.0.0.1:{}", proxy.port())).retries(3);
    let client = client.timeout(TIMEOUT).connect_lazy().expect("a client");
    let alice = Request::user("alice").build().expect("a valid request");
    for left in (800..1_000).rev() {
        let verdict = client.check(&alice).await.expect("an answer");
        assert_eq!((verdict.is_allowed(), verdict.decision().remaining), (true, left));
    }
    let replays = server.metric("rlaas_replays_total").await;
    assert!(replays >= Some(5.0), "{replays:?}");
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "measures how long the caller waits")]
async fn retries_stay_within_the_timeout() {
    let server = Rlaas::start(&[]);
    let client = Client::builder(server.grpc()).retries(5);
    let client = client.timeout(Duration::from_secs(2)).connect().await.expect("a server");
    let alice = Request::user("alice").build().expect("a valid request");
    assert!(client.check(&alice).await.expect("an answer").is_allowed());
    server.signal("STOP");
    let started = Instant::now();
    let result = client.check(&alice).await;
    let took = started.elapsed();
    server.signal("CONT");
    assert!(matches!(result, Err(CheckError::NoAnswer(_))), "{result:?}");
    // Twice the timeout, for busy machines; without a bound on all attempts together it would be
    // six times.
    assert!(took < Duration::from_secs(4), "{took:?}");
}
