//! Deadlines: no call outlasts the timeout of the client or the deadline of the caller.

use std::future::Future;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use rlaas::clock::Deadline;
use rlaas::rules::Request;
use rlaas_client::{CheckError, Client, ConnectError};
use tokio::time::timeout;

use super::{TIMEOUT, check, fields};
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, signal};
use rlaas_testkit::redis::RedisServer;

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_hours(1);

/// A server that reads and never writes.
fn silent() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address").to_string();
    let drain = |mut connection: TcpStream| {
        let mut buffer = [0; 1024];
        while connection.read(&mut buffer).is_ok_and(|read| read > 0) {}
    };
    thread::spawn(move || {
        listener.incoming().map_while(Result::ok).for_each(|connection| {
            thread::spawn(move || drain(connection));
        });
    });
    address
}

async fn in_time<T>(call: impl Future<Output = T>) -> T {
    timeout(TIMEOUT, call).await.expect("an end long before the server's")
}

#[tokio::test]
async fn silent_server_costs_only_the_timeout() {
    let client = Client::builder(silent()).timeout(SHORT).connect_lazy().expect("a client");
    let error = in_time(check(&client, fields("alice"))).await.expect_err("no answer");
    assert!(matches!(error, CheckError::NoAnswer(_)), "{error}");
    let tls = Client::builder(format!("https://{}", silent())).timeout(SHORT);
    let error = in_time(tls.clone().connect()).await.expect_err("no handshake");
    assert!(matches!(error, ConnectError::TimedOut(SHORT)), "{error}");
    let error = in_time(check(&tls.connect_lazy().expect("a client"), fields("alice"))).await;
    assert!(matches!(error, Err(CheckError::NoAnswer(_))), "{error:?}");
}

#[tokio::test]
async fn call_waits_no_longer_than_its_deadline() {
    let server = Rlaas::start(&[]);
    let client = |address: &str| Client::builder(address).timeout(LONG).connect_lazy();
    let (client, hanging) = (client(server.grpc()), client(&silent()));
    let (client, hanging) = (client.expect("a client"), hanging.expect("a client"));
    let request = Request::new(fields("alice")).expect("a valid request");
    for wait in [SHORT, Duration::ZERO] {
        let error = in_time(hanging.check_with_deadline(&request, Deadline::within(wait))).await;
        assert!(matches!(error, Err(CheckError::NoAnswer(_))), "{error:?}");
    }
    let verdict = in_time(client.check_with_deadline(&request, Deadline::within(LONG))).await;
    assert!(verdict.expect("an answer").is_allowed());
}

#[tokio::test]
async fn deadline_is_sent_to_the_server() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[]);
    let client = Client::builder(server.grpc()).timeout(TIMEOUT).connect().await;
    let client = client.expect("a server");
    assert!(check(&client, fields("alice")).await.expect("an answer").is_allowed());
    signal(redis.pid(), "STOP");
    // Without the deadline the server would wait ten seconds for its store. With it, the response
    // comes shortly before the client's timer, except on a busy machine.
    let answers_in_time = async || {
        let request = Request::new(fields("alice")).expect("a valid request");
        let deadline = Deadline::within(Duration::from_millis(200));
        let verdict = in_time(client.check_with_deadline(&request, deadline)).await;
        verdict.is_ok_and(|verdict| verdict.reason() == "STORE_UNAVAILABLE")
    };
    eventually("the server answers in time", TIMEOUT, answers_in_time).await;
    signal(redis.pid(), "CONT");
}
