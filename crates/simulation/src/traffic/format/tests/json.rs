//! JSON lines and Envoy's logs.

use super::*;

#[test]
fn nested_values_are_found_by_their_paths() {
    let wanted =
        ["user.id", "hosts[1]", r#""http.status""#, "deep.list[0].x", "hosts", "ok", "none"];
    let mut parser = parser("jsonl", &wanted);
    let line = r#" {"user": {"id": "u\u00e9", "x": [1, {"id": 2}]}, "hosts": ["a", "b"],
        "http.status": 429, "deep": {"list": [{"x": 1.50e3}]}, "ok": true, "none": null} "#;
    assert_eq!(
        values(&mut parser, line).expect("a line"),
        [r"u\xc3\xa9", "b", "429", "1.50e3", r#"[\"a\", \"b\"]"#, "true", "∅"]
    );
}

#[test]
fn of_equal_keys_the_last_one_counts_with_all_that_is_in_it() {
    let mut parser = parser("jsonl", &["a.b", "c"]);
    let line = r#"{"a":{"b":1},"c":"x","\u0061":{"d":2},"c":"y"}"#;
    assert_eq!(values(&mut parser, line).expect("a line"), ["∅", "y"]);
    assert_eq!(values(&mut parser, r#"{"c":"x","c":null}"#).expect("a line"), ["∅", "∅"]);
}

#[test]
fn bytes_that_strict_json_does_not_have_are_kept() {
    let mut parser = parser("jsonl", &["a", "n"]);
    let line = b"{\"a\":\"\\x22\xff\t\",\"n\":12345678901234567890123}";
    assert_eq!(
        values(&mut parser, line).expect("a line"),
        [r#"\"\xff\t"#, "12345678901234567890123"]
    );
}

#[test]
fn lines_of_envoy_have_their_own_keys() {
    let mut parser = parser("envoy-json", &["start_time", "duration", "response_code", "path"]);
    let line = r#"{"start_time":"2024-05-01T10:00:00.123Z","duration":12,"response_code":200,"path":"/a","x":null}"#;
    assert_eq!(
        values(&mut parser, line).expect("a line"),
        ["2024-05-01T10:00:00.123Z", "12", "200", "/a"]
    );
}

#[test]
fn lines_that_are_no_json_object_say_why() {
    let mut parser = parser("jsonl", &["a"]);
    for (line, why) in [
        ("[1]", "no JSON object at byte 0"),
        ("text", "no JSON object at byte 0"),
        ("{\"a\":1", "JSON that breaks off at byte 6"),
        ("{\"a", "JSON that breaks off at byte 3"),
        ("{\"a\":\"\\", "JSON that breaks off at byte 7"),
        ("{\"a\":01}", "JSON with an unexpected character at byte 6"),
        ("{\"a\":nul}", "JSON with an unexpected character at byte 5"),
        ("{\"a\":1}{", "text behind the JSON object at byte 7"),
        ("{\"a\":1,}", "JSON with an unexpected character at byte 7"),
    ] {
        assert_eq!(unreadable(&mut parser, line), why, "{line}");
    }
    let deep = format!("{{\"a\":{}", "[".repeat(100_000));
    assert!(unreadable(&mut parser, deep).starts_with("JSON of more than 64 levels"));
    assert!(refusal("jsonl", &["a..b"]).starts_with("a..b must have a key"));
}
