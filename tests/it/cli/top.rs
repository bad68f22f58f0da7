//! `rlaas top`, on a terminal and without one.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check, program, rlaas, run, signal};

const TIMEOUT: Duration = Duration::from_secs(30);
/// What a terminal would obey.
const HOSTILE: &str = "evil\u{1b}[31m\u{9b}32m\u{202e}\u{7}";
/// Sequences that end the live view: the former screen, and the cursor.
const GIVEN_BACK: [&str; 2] = ["\u{1b}[?1049l", "\u{1b}[?25h"];
const EACH_SECOND: [&str; 4] = ["top", "--this-instance", "--interval", "1s"];

#[tokio::test]
async fn newest_point_is_a_table_and_json_has_a_line_for_each() {
    let server = Rlaas::start(&[]);
    let mut client = server.client().await;
    check(&mut client, "alice").await.expect("a decision");
    let addr = ["--addr", server.grpc()];
    let (code, text, error) = run(&[&EACH_SECOND[..], &addr].concat());
    assert_eq!(code, 0, "{error}");
    assert_eq!(error, "rlaas: not a terminal: one point (--json prints a line for each)\n");
    let columns: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(columns[0][..4], ["PROJECT", "RULE", "ALLOWED", "NEAR"]);
    assert_eq!(columns[1], ["-", "default", "1", "0", "0", "0", "1", "0", "0"], "{text}");

    let mut command = rlaas(&[&EACH_SECOND[..], &addr, &["--json"]].concat());
    let mut printing = command.stdout(Stdio::piped()).spawn().expect("a process");
    let mut lines = BufReader::new(printing.stdout.take().expect("a pipe")).lines();
    for _ in 0..2 {
        let line = lines.next().expect("a line").expect("text");
        let point: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert!(point["since"].is_string() && point["until"].is_string(), "{line}");
    }
    printing.kill().expect("a running process");
    printing.wait().expect("an ended process");
}

/// The live view on a terminal of 30 lines and 120 columns.
struct LiveTop {
    terminal: Child,
    top: u32,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl LiveTop {
    fn start(server: &Rlaas, environment: &[(&str, &str)]) -> Self {
        let (program, addr) = (program(), server.grpc());
        let options = EACH_SECOND.join(" ");
        let command = format!(
            "stty rows 30 cols 120; echo $$; exec {} {options} --addr {addr}",
            program.display()
        );
        let mut terminal = Command::new("script");
        terminal.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
        terminal.env("TERM", "xterm").envs(environment.iter().copied());
        let spawned = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut terminal = spawned.expect("script, of util-linux");
        let mut output = BufReader::new(terminal.stdout.take().expect("a pipe"));
        let mut first = String::new();
        output.read_line(&mut first).expect("the id of the process");
        let shown = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&shown);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                all.lock().expect("no panic").extend_from_slice(&bytes[..read]);
            }
        });
        let top = first.trim().parse().expect("a number");
        Self { terminal, top, shown, reader: Some(reader) }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("no panic")).into_owned()
    }

    async fn shows(&self, text: &str) {
        eventually(&format!("{text} is shown"), TIMEOUT, async || self.shown().contains(text))
            .await;
    }

    fn press(&mut self, keys: &str) {
        let input = self.terminal.stdin.as_mut().expect("a pipe");
        input.write_all(keys.as_bytes()).expect("a terminal that reads");
    }

    /// Waits for the end. Returns the exit code and all output.
    fn end(mut self) -> (Option<i32>, String) {
        let status = self.terminal.wait().expect("an ended process");
        self.reader.take().expect("a thread").join().expect("no panic");
        (status.code(), self.shown())
    }
}

impl Drop for LiveTop {
    fn drop(&mut self) {
        if self.reader.is_some() {
            signal(self.top, "KILL");
            let _already_gone = self.terminal.wait();
        }
    }
}

#[tokio::test]
async fn live_view_shows_rules_and_refusals_and_obeys_nothing_of_theirs() {
    let server = Rlaas::start(&["rate-limiter.max-requests=1"]);
    let mut client = server.client().await;
    let mut top = LiveTop::start(&server, &[]);
    top.shows("live").await;
    top.shows("newest first").await;
    let of_hostile = async || {
        check(&mut client, HOSTILE).await.expect("a decision");
        top.shown().contains(r"evil\u{1b}[31m\u{9b}32m\u{202e}")
    };
    eventually("a refusal is shown", TIMEOUT, of_hostile).await;
    top.shows("default").await;
    top.press("k");
    top.shows("keys denied most").await;
    top.shows("telemetry.top-keys is off").await;
    drop(server);
    top.shows("lost, trying again").await;
    top.press("\u{3}");
    let (code, shown) = top.end();
    assert_eq!(code, Some(0), "{shown:?}");
    assert!(GIVEN_BACK.iter().all(|sequence| shown.contains(sequence)), "{shown:?}");
    let obeyed = ["evil\u{1b}", "\u{9b}", "\u{202e}", "\u{7}"];
    assert!(obeyed.iter().all(|text| !shown.contains(text)), "{shown:?}");
}

#[tokio::test]
async fn live_view_goes_on_when_the_server_is_back_and_signals_give_the_terminal_back() {
    let server = Rlaas::start(&[]);
    let (grpc, http) = (server.grpc().to_owned(), server.http().to_owned());
    let top = LiveTop::start(&server, &[]);
    top.shows("live").await;
    drop(server);
    top.shows("lost, trying again").await;
    let listen = [format!("server.listen={grpc}"), format!("server.http={http}")];
    let lost = top.shown().len();
    let _server = Rlaas::start(&[&listen[0], &listen[1]]);
    let is_live = async || top.shown()[lost..].contains("live");
    eventually("the view is live again", TIMEOUT, is_live).await;
    signal(top.top, "TERM");
    let (code, shown) = top.end();
    assert_eq!(code, Some(0), "{shown:?}");
    assert!(GIVEN_BACK.iter().all(|sequence| shown.contains(sequence)), "{shown:?}");
}

#[test]
fn dumb_terminal_gets_a_table() {
    let server = Rlaas::start(&[]);
    let (code, shown) = LiveTop::start(&server, &[("TERM", "dumb")]).end();
    assert!(code == Some(0) && shown.contains("PROJECT") && !shown.contains('\u{1b}'), "{shown:?}");
}
