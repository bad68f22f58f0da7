//! A running example client, and the behavior that every example client must have.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rlaas_testkit::process::Rlaas;
use rlaas_testkit::proxy::{Behaviour, Proxy};
use rlaas_testkit::{TempDir, eventually};

/// The longest time that a client may take to start and answer.
const TIMEOUT: Duration = Duration::from_mins(1);

const RULES: &str = "rules: [{name: users, limit: 5, window: 60s, overrides: \
                     [{match: {user_id: mallory}, limit: 0}]}]";

/// The proxy loses each reply of this number. With more losses than one in ten calls, retries would be
/// throttled.
const LOST: u64 = 23;

/// Asserts that calls whose replies are lost are repeated, and take one unit each.
pub(super) async fn assert_retries(command: impl Fn() -> Command) {
    let server = Rlaas::start(&["rate-limiter.max-requests=1000", "rate-limiter.window-size=366d"]);
    let proxy = Proxy::to(port(&server));
    proxy.set(Behaviour::CutEvery(LOST));
    let address = format!("127.0.0.1:{}", proxy.port());
    let mut client = ExampleClient::start(command().arg(&address).env("DEADLINE_MS", "60000"));
    for left in (900..1_000).rev() {
        assert_eq!(client.check("alice"), format!("allowed, {left} left"));
    }
    let replays = server.metric("rlaas_replays_total").await;
    assert!(replays >= Some(1.0), "{replays:?}");
}

/// Asserts that calls are hedged, and take one unit each.
pub(super) async fn assert_hedges(command: impl Fn() -> Command) {
    let server = Rlaas::start(&["rate-limiter.max-requests=1000", "rate-limiter.window-size=366d"]);
    let proxy = Proxy::to(port(&server));
    proxy.set(Behaviour::Delay(Duration::from_millis(20)));
    let address = format!("127.0.0.1:{}", proxy.port());
    let mut command = command();
    command.arg(&address).env("DEADLINE_MS", "60000").env("HEDGING_DELAY_MS", "2");
    let mut client = ExampleClient::start(&mut command);
    for left in (980..1_000).rev() {
        assert_eq!(client.check("alice"), format!("allowed, {left} left"));
    }
    let replays = server.metric("rlaas_replays_total").await;
    assert!(replays >= Some(5.0), "{replays:?}");
}

fn port(server: &Rlaas) -> u16 {
    let port = server.grpc().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    port.expect("an address with a port")
}

/// Asserts that a client reports decisions, failures and timeouts as it should.
pub(super) async fn assert_conforms(command: impl Fn() -> Command) {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    let server = Rlaas::start_from(&rules, &[]);
    let address = server.grpc().to_owned();
    // A long deadline, for busy machines.
    let mut client = ExampleClient::start(command().arg(&address).env("DEADLINE_MS", "60000"));
    for left in (0..5).rev() {
        assert_eq!(client.check("alice"), format!("allowed, {left} left"));
    }
    let denied = client.check("alice");
    let wait = denied.strip_prefix("429 Too Many Requests, Retry-After: ");
    let wait: u32 = wait.and_then(|wait| wait.parse().ok()).expect("a wait in seconds");
    assert!((1..=60).contains(&wait), "{denied}");
    assert_eq!(client.check("mallory"), "403 Forbidden, BANNED");

    drop(server);
    // A refusal is remembered, so another user.
    assert_no_response(&client.check("carol"));
    let server = Rlaas::start_from(&rules, &[&format!("server.listen={address}")]);
    let back = async || client.check("bob") == "allowed, 4 left";
    eventually("the channel connects again", TIMEOUT, back).await;

    server.signal("STOP");
    let mut with_short_deadline =
        ExampleClient::start(command().arg(&address).env("DEADLINE_MS", "200"));
    assert_no_response(&with_short_deadline.check("alice"));
    server.signal("CONT");

    let socket = format!("unix:{}", dir.path("rlaas.sock").display());
    let _beside = Rlaas::start(&[&format!("server.listen={socket}")]);
    let mut over_socket = ExampleClient::start(command().arg(&socket).env("DEADLINE_MS", "60000"));
    assert_eq!(over_socket.check("alice"), "allowed, 4 left");

    let failure = client.fails_on("");
    // Languages spell the name of a status differently.
    assert!(failure.to_lowercase().replace('_', "").contains("invalidargument"), "{failure}");
    assert!(failure.contains("1 to 1024 bytes"), "{failure}");
}

/// Some clients say the status of the call, which depends on how the connection ended.
fn assert_no_response(answer: &str) {
    assert!(answer.starts_with("no response") && answer.ends_with(": allowed"), "{answer}");
}

/// A running client; killed when it is dropped.
#[derive(Debug)]
pub(super) struct ExampleClient {
    process: Child,
    users: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl ExampleClient {
    pub(super) fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("a client that was built");
        let users = process.stdin.take();
        let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let (answered, answers) = channel();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).try_for_each(|line| answered.send(line))
        });
        Self { process, users, answers }
    }

    /// Sends the name of a user to the client and returns its answer.
    pub(super) fn check(&mut self, user: &str) -> String {
        self.name(user);
        match self.answers.recv_timeout(TIMEOUT) {
            Ok(line) => line.strip_prefix(&format!("{user}: ")).expect("the user").to_owned(),
            Err(error) => panic!("{error}: {}", self.end()),
        }
    }

    /// Sends the name of a user to the client and returns the error with which the client exits.
    fn fails_on(mut self, user: &str) -> String {
        self.name(user);
        self.users = None;
        let mut output = String::new();
        let errors = self.process.stderr.as_mut().expect("a pipe");
        errors.read_to_string(&mut output).expect("UTF-8");
        let status = self.process.wait().expect("a child process");
        assert!(!status.success(), "{output}");
        output
    }

    fn name(&mut self, user: &str) {
        let users = self.users.as_mut().expect("the client was not ended");
        writeln!(users, "{user}").expect("a client that reads");
    }

    /// Kills the client and returns its standard error.
    fn end(&mut self) -> String {
        let _already_gone = self.process.kill();
        let mut output = String::new();
        let errors = self.process.stderr.as_mut().expect("a pipe");
        errors.read_to_string(&mut output).expect("UTF-8");
        output
    }
}

impl Drop for ExampleClient {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _already_gone = self.process.wait();
    }
}
