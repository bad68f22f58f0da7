//! Common and Combined Log, and regular expressions.

use super::*;

const ALL: [&str; 12] = [
    "host",
    "ident",
    "user",
    "time",
    "request",
    "method",
    "uri",
    "protocol",
    "status",
    "bytes",
    "referer",
    "user_agent",
];

#[test]
fn combined_lines_have_all_fields() {
    let mut parser = parser("combined", &ALL);
    let line = r#"::1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a?b=1 HTTP/1.0" 200 2326 "http://e.x/" "Mozilla/4.08 [en] (Win98; \"I\" \\ ;Nav)""#;
    assert_eq!(
        values(&mut parser, line).expect("a line"),
        [
            "::1",
            "∅",
            "frank",
            "10/Oct/2000:13:55:36 -0700",
            "GET /a?b=1 HTTP/1.0",
            "GET",
            "/a?b=1",
            "HTTP/1.0",
            "200",
            "2326",
            "http://e.x/",
            r#"Mozilla/4.08 [en] (Win98; \"I\" \\ ;Nav)"#,
        ]
    );
    let line = r#"h - - [10/Oct/2000:13:55:36 -0700] "-" 408 - "-" "-""#;
    let found = values(&mut parser, line).expect("a line");
    let time = "10/Oct/2000:13:55:36 -0700";
    assert_eq!(found, ["h", "∅", "∅", time, "∅", "∅", "∅", "∅", "408", "∅", "∅", "∅"]);
}

#[test]
fn common_lines_may_have_a_virtual_host() {
    let line = r#"h - u [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 304 -"#;
    let mut common = parser("common", &["$h", "u", "status", "remote_addr", "request_uri"]);
    assert_eq!(values(&mut common, line).expect("a line"), ["h", "u", "304", "h", "/"]);
    let mut with_host = parser("vhost_common", &["vhost", "host"]);
    let line = format!("e.x:443 {line}");
    assert_eq!(values(&mut with_host, &line).expect("a line"), ["e.x:443", "h"]);
    let mut with_host = parser("vhost_combined", &["vhost", "user_agent"]);
    let line = format!("{line} \"-\" \"curl\"");
    assert_eq!(values(&mut with_host, &line).expect("a line"), ["e.x:443", "curl"]);
}

#[test]
fn a_user_cannot_forge_the_fields_behind() {
    let mut parser = parser("combined", &["ident", "user", "time", "request", "status"]);
    let forged = r"a [01/Jan/1970:00:00:00 +0000] \x22GET /x\x22 200 1";
    let line = format!(
        r#"h - {forged} [10/Oct/2000:13:55:36 -0700] "GET \"/\" 429 HTTP/1.0" 503 5 "\"" "x""#
    );
    assert_eq!(
        values(&mut parser, line).expect("a line"),
        [
            "∅",
            r#"a [01/Jan/1970:00:00:00 +0000] \"GET /x\" 200 1"#,
            "10/Oct/2000:13:55:36 -0700",
            r#"GET \"/\" 429 HTTP/1.0"#,
            "503",
        ]
    );
}

#[test]
fn quotation_marks_that_were_not_escaped_are_read_if_only_one_way_fits() {
    let mut parser = parser("combined", &["referer", "user_agent"]);
    let start = r#"h - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 1"#;
    let line = format!(r#"{start} "-" "a "quoted" agent""#);
    assert_eq!(values(&mut parser, line).expect("a line"), ["∅", r#"a \"quoted\" agent"#]);
}

#[test]
fn lines_that_are_not_combined_say_why() {
    let mut parser = parser("combined", &["host"]);
    let start = r#"h - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0""#;
    for (line, why) in [
        ("h".to_owned(), "host at byte 0 is not as its format has it, or does not end"),
        (
            r#"h - - [yesterday] "GET /" 200 1 "-" "-""#.to_owned(),
            "time at byte 7 is not as its format has it, or does not end",
        ),
        (
            format!("{start} 2x0 1 \"-\" \"-\""),
            "status at byte 52 is not as its format has it, or does not end",
        ),
        (format!("{start} 200 1 \"-\" \"-\" 12"), "text behind the last field, at byte 65"),
        (
            format!("{start} 200 1 \"-\" \"-"),
            "user_agent at byte 63 is not as its format has it, or does not end",
        ),
    ] {
        assert_eq!(unreadable(&mut parser, &line), why, "{line}");
    }
}

#[test]
fn formats_know_their_time_and_status() {
    let known =
        |format: &str| format.parse::<LogFormat>().expect("a format").known_fields().clone();
    let combined = known("combined");
    assert_eq!(combined.stamped_at, Some(StampedAt::Start));
    assert_eq!(combined.time.expect("a time").form, StampForm::CommonLog);
    assert_eq!(combined.status.as_deref(), Some("status"));
    assert_eq!(known("jsonl"), KnownFields::default());
    assert_eq!(known("nginx").stamped_at, Some(StampedAt::End));
    let envoy = known("envoy-json");
    assert_eq!(envoy.duration.expect("a duration").unit, DurationUnit::Milliseconds);
    let exact = known("nginx:$time_local $msec $request_time");
    assert_eq!(exact.time.expect("a time").field, "msec");
    assert_eq!(exact.duration.expect("a duration").field, "request_time");
    assert_eq!(exact.status, None);
}

#[test]
fn groups_of_an_expression_are_fields() {
    let mut parser =
        parser(r#"regex:^(?<user>\S+) (?:n=(?<n>\d+)|-) "(?<rest>.*)"$"#, &["n", "rest", "$user"]);
    assert_eq!(values(&mut parser, b"u n=7 \"\xff\0\"").expect("a line"), ["7", r"\xff\x00", "u"]);
    assert_eq!(values(&mut parser, "u - \"-\"").expect("a line"), ["∅", "∅", "u"]);
    assert_eq!(unreadable(&mut parser, "u"), "the regular expression does not match");
}

#[test]
fn fields_and_formats_that_can_not_be_are_refused() {
    let listed = refusal("common", &["host", "user_agent"]);
    assert_eq!(
        listed,
        "user_agent is not a field of the format, must be one of: host, ident, user, time, request, \
         status, bytes, method, uri, protocol"
    );
    let listed = refusal("regex:(?<a>x)(?<b>y)", &["c"]);
    assert_eq!(listed, "c is not a field of the format, must be one of: a, b");
    assert!(refusal("regex:x", &[]).contains("must have a named group"));
    assert!(refusal("regex:(", &[]).contains("cannot be used"));
    assert!(refusal(r"regex:(?<a>\w{1000}{1000}{1000})", &[]).contains("cannot be used"));
    assert!(refusal("apache", &[]).starts_with("format must be common, combined,"));
    assert!(refusal("regex", &[]).starts_with("format must be common, combined,"));
    assert!(refusal("combined:x", &[]).starts_with("format must be common, combined,"));
}
