//! A client that runs, and what each of them has to answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rlaas_testkit::process::Rlaas;
use rlaas_testkit::{TempDir, eventually};

/// The longest that a client may take to start and answer.
const TIMEOUT: Duration = Duration::from_mins(1);

const RULES: &str = "rules: [{name: users, limit: 5, window: 60s, overrides: \
                     [{match: {user_id: mallory}, limit: 0}]}]";

/// Puts a client through all that its callers have to expect.
pub(super) async fn assert_conforms(command: impl Fn() -> Command) {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    let server = Rlaas::start_from(&rules, &[]);
    let address = server.grpc().to_owned();
    // The deadline is no subject here: a busy machine takes its time.
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
    // A call that meets the end of its connection may have a status of its own in a language.
    let away = async || {
        let answer = plain(&client.check("alice"));
        assert!(answer.starts_with("no answer (") && answer.ends_with("): it passes"), "{answer}");
        answer == "no answer (unavailable): it passes"
    };
    eventually("the server is away", TIMEOUT, away).await;
    let server = Rlaas::start_from(&rules, &[&format!("server.listen={address}")]);
    let back = async || client.check("bob") == "allowed, 4 left";
    eventually("the channel connects again", TIMEOUT, back).await;

    server.signal("STOP");
    let mut hasty = ExampleClient::start(command().arg(&address).env("DEADLINE_MS", "200"));
    assert_eq!(plain(&hasty.check("alice")), "no answer (deadlineexceeded): it passes");
    server.signal("CONT");

    let socket = format!("unix:{}", dir.path("rlaas.sock").display());
    let _beside = Rlaas::start(&[&format!("server.listen={socket}")]);
    let mut neighbour = ExampleClient::start(command().arg(&socket).env("DEADLINE_MS", "60000"));
    assert_eq!(neighbour.check("alice"), "allowed, 4 left");

    let failure = client.fails_on("");
    assert!(plain(&failure).contains("invalidargument"), "{failure}");
    assert!(failure.contains("user_id: valid is 1 to 1024 bytes"), "{failure}");
}

/// The name of a status as every language writes it.
fn plain(text: &str) -> String {
    text.to_lowercase().replace('_', "")
}

/// A running client; killed when it is dropped.
#[derive(Debug)]
struct ExampleClient {
    process: Child,
    users: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl ExampleClient {
    fn start(command: &mut Command) -> Self {
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

    /// Names a user and returns the answer.
    fn check(&mut self, user: &str) -> String {
        self.name(user);
        match self.answers.recv_timeout(TIMEOUT) {
            Ok(line) => line.strip_prefix(&format!("{user}: ")).expect("the user").to_owned(),
            Err(error) => panic!("{error}: {}", self.end()),
        }
    }

    /// Names a user and returns what the client fails with.
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
        let users = self.users.as_mut().expect("it was not ended");
        writeln!(users, "{user}").expect("a client that reads");
    }

    /// Ends it, and returns what it said besides answers.
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
