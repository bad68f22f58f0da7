//! Lines within the envelopes of container runtimes.

use super::*;
use crate::traffic::input::MAX_LINE_BYTES;

const TIME: &str = "2016-10-06T00:17:09.669794202Z";

fn docker(log: &str, stream: &str) -> String {
    format!(r#"{{"log":"{log}","stream":"{stream}","time":"{TIME}"}}"#)
}

fn in_envelope(envelope: Envelope) -> LineParser {
    let format = "nginx:$http_x|$status".parse::<LogFormat>().expect("a format").within(envelope);
    let wanted = ["http_x", "@envelope_time", "@stream"].map(str::to_owned);
    LineParser::new(&format, &wanted).expect("fields of the format")
}

#[test]
fn envelopes_are_known_by_the_first_line() {
    for line in [docker(r"\\x22a\u003c|200\n", "stdout"), format!(r"{TIME} stdout F \x22a<|200")] {
        let mut parser = in_envelope(Envelope::Auto);
        assert_eq!(values(&mut parser, line).expect("a line"), [r#"\"a<"#, TIME, "stdout"]);
    }
    let mut parser = in_envelope(Envelope::Auto);
    assert_eq!(values(&mut parser, "a|200").expect("a line"), ["a", "∅", "∅"]);
    let chosen = values(&mut in_envelope(Envelope::None), format!("{TIME} stdout F a|200"));
    assert_eq!(chosen.expect("a line"), [&format!("{TIME} stdout F a"), "∅", "∅"]);
}

#[test]
fn parts_of_a_line_are_joined_for_each_stream() {
    let docker = [
        ("ab", "stdout"),
        ("X|4", "stderr"),
        ("c|2", "stdout"),
        (r"00\n", "stdout"),
        (r"29\n", "stderr"),
    ]
    .map(|(log, stream)| docker(log, stream));
    let cri = [
        format!("{TIME} stdout P ab"),
        format!("{TIME} stderr P X|4"),
        format!("{TIME} stdout P:x c|2"),
        format!("{TIME} stdout F 00"),
        format!("{TIME} stderr F 29"),
    ];
    for lines in [docker, cri] {
        let mut parser = in_envelope(Envelope::Auto);
        let found = lines.map(|line| values(&mut parser, line).expect("a line"));
        let [first, second, third, out, error] = found;
        assert!(first.is_empty() && second.is_empty() && third.is_empty());
        assert_eq!(
            (out, error),
            (
                vec!["abc".into(), TIME.into(), "stdout".into()],
                vec!["X".into(), TIME.into(), "stderr".into()]
            )
        );
        assert_eq!(parser.incomplete(), 0);
    }
}

#[test]
fn the_parts_of_a_line_are_bounded() {
    let mut parser = in_envelope(Envelope::Cri);
    let part = format!("{TIME} stdout P {}", "x".repeat(MAX_LINE_BYTES / 2));
    for _ in 0..5 {
        assert_eq!(values(&mut parser, &part), Ok(Vec::new()));
    }
    assert_eq!(parser.incomplete(), 1);
    let why = unreadable(&mut parser, format!("{TIME} stdout F |200"));
    assert_eq!(why, "the parts of the line have more than 1048576 bytes");
    let next = values(&mut parser, format!("{TIME} stdout F a|200")).expect("a line");
    assert_eq!(next[0], "a");
    assert_eq!(parser.incomplete(), 0);
}

#[test]
fn lines_without_their_envelope_say_so() {
    let why = unreadable(&mut in_envelope(Envelope::Cri), "a|200");
    assert!(why.starts_with("not a line of the Container Runtime Interface"), "{why}");
    let why = unreadable(&mut in_envelope(Envelope::Docker), "{\"log\":\"a|200\\n\"}");
    assert_eq!(why, "not a line of Docker's json-file: must have log, stream and time");
    let why = unreadable(&mut in_envelope(Envelope::Docker), "a|200");
    assert_eq!(why, "not a line of Docker's json-file: no JSON object at byte 0");
}

#[test]
fn directives_and_json_may_lie_within_an_envelope() {
    let mut w3c = parser("w3c", &["c-ip"]);
    assert_eq!(values(&mut w3c, docker(r"#Fields: c-ip x\r\n", "stdout")), Ok(Vec::new()));
    assert_eq!(values(&mut w3c, docker(r"::1 y\r\n", "stdout")).expect("a line"), ["::1"]);
    let mut json = parser("jsonl", &["a", "@stream"]);
    let line = docker(r#"{\"a\":\"\\u00e9\"}\n"#, "stderr");
    assert_eq!(values(&mut json, line).expect("a line"), [r"\xc3\xa9", "stderr"]);
}
