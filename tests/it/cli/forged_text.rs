//! Texts of callers in the output of each command of administration, as text and as JSON: they forge
//! no line, no colour and no order of writing.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check, request, rlaas, run};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(20);
/// A line break, NUL, escape sequences with one byte and with two, bidirectional marks, and quotes.
const HOSTILE: &str = "O'Brien \"x\"\nbanned  FORGED\r\0\u{1b}[2J\u{1b}]0;t\u{7}\u{9b}31m\u{7f}\u{202e}\u{2066}\u{200f}";
/// The same for arguments of a process, which have no NUL.
const TYPED: &str =
    "O'Brien \"x\"\nbanned  FORGED\r\u{1b}[2J\u{9b}31m\u{7f}\u{202e}\u{2066}\u{200f}";

/// Asserts that a terminal would obey nothing in an output, and that no line of it is forged.
fn assert_harmless(face: &str, output: &str) {
    for line in output.lines() {
        let is_mark = |char: char| matches!(char, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
        let obeyed = line.chars().find(|char| char.is_control() || is_mark(*char));
        assert_eq!(obeyed, None, "{face}: {line:?}");
        assert!(!line.starts_with("banned"), "{face}: {line}");
    }
}

/// Returns `true` if a text is anywhere in a JSON value.
fn has_text(value: &Value, text: &str) -> bool {
    match value {
        Value::String(one) => one == text,
        Value::Array(all) => all.iter().any(|one| has_text(one, text)),
        Value::Object(all) => all.values().any(|one| has_text(one, text)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Asserts that a command shows a text in both forms.
fn assert_face(server: &Rlaas, command: &[&str], text: &str) {
    let command = [command, &["--addr", server.grpc()]].concat();
    let face = format!("{command:?}");
    let (code, out, error) = run(&command);
    assert_eq!((code, &*error), (0, ""), "{face}");
    assert_harmless(&face, &out);
    // As people read it: the apostrophe needs no escape.
    assert!(out.contains("O'Brien") && out.contains(r"\nbanned  FORGED\r"), "{face}: {out}");
    let (code, out, error) = run(&[&command[..], &["--json"]].concat());
    assert_eq!((code, &*error), (0, ""), "{face}");
    assert_harmless(&face, &out);
    assert_eq!(out.lines().count(), 1, "{face}: {out}");
    let json: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert!(has_text(&json, text), "{face}: {json}");
}

#[tokio::test]
async fn texts_of_callers_forge_nothing_in_any_command() {
    let settings = ["telemetry.top-keys=true", "rate-limiter.overridable=true", "audit.keys=clear"];
    let server = Rlaas::start(&settings);
    let mut checks = server.client().await;
    for _ in 0..6 {
        check(&mut checks, HOSTILE).await.expect("a decision");
    }
    let mut admin = AdminServiceClient::new(server.channel().await);
    let target = Some(Target::Request(request(HOSTILE)));
    let selector = Some(proto::Selector { target, rule: String::new(), project_id: String::new() });
    let kind = Some(rlaas_proto::ratelimit::v1::grant::Kind::Limit(9));
    let set = proto::SetOverrideRequest {
        selector: selector.clone(),
        grant: Some(rlaas_proto::ratelimit::v1::Grant { kind, burst: 0 }),
        ttl: Some(prost_types::Duration { seconds: 3_600, nanos: 0 }),
        reason: HOSTILE.to_owned(),
        ..proto::SetOverrideRequest::default()
    };
    admin.set_override(set).await.expect("a change");
    let found = admin.inspect(proto::InspectRequest { selector }).await.expect("a state");
    let id = found.into_inner().keys[0].key.clone().expect("a key").id;

    assert_face(&server, &["inspect", "--id", &id, "--rule", "default"], HOSTILE);
    assert_face(&server, &["override", "list"], HOSTILE);
    assert_face(&server, &["audit"], HOSTILE);
    assert_face(&server, &["explain", TYPED], TYPED);
    let top = ["top", "--keys", "default", "--kind", "used"];
    let is_counted = async || {
        let query = proto::TopKeysRequest {
            rule: "default".to_owned(),
            ..proto::TopKeysRequest::default()
        };
        let found = admin.top_keys(query).await.expect("counts").into_inner();
        !found.used.expect("a list").keys.is_empty()
    };
    eventually("the key is counted", SOON, is_counted).await;
    assert_face(&server, &top, HOSTILE);

    for form in [&[][..], &["--json"]] {
        let mut command = rlaas(&[&["tail", "--addr", server.grpc()], form].concat());
        let mut tail = command.stdout(Stdio::piped()).spawn().expect("the program");
        let out = tail.stdout.take().expect("a pipe");
        let reading = std::thread::spawn(move || {
            let mut lines = String::new();
            // A forged line would be the second one.
            let mut out = BufReader::new(out);
            for _ in 0..2 {
                out.read_line(&mut lines).expect("text");
            }
            lines
        });
        while !reading.is_finished() {
            check(&mut checks, HOSTILE).await.expect("a decision");
        }
        tail.kill().expect("a signal");
        tail.wait().expect("an end");
        let lines = reading.join().expect("lines");
        assert_harmless("tail", &lines);
        for line in lines.lines() {
            if form.is_empty() {
                assert!(line.contains("O'Brien") && line.contains(r"\nbanned"), "{line}");
            } else {
                let json =
                    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
                assert!(has_text(&json, HOSTILE), "{line}");
            }
        }
    }
}

#[test]
fn errors_are_printed_without_escapes_of_apostrophes() {
    let server = Rlaas::start(&[]);
    let command = ["inspect", "--part", "resource=/x", "--rule", "default"];
    let (code, _, error) = run(&[&command[..], &["--addr", server.grpc()]].concat());
    assert_eq!(code, 2);
    assert!(error.contains("must be those of the rule's keys"), "{error}");
}
