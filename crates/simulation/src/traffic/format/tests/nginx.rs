//! Formats of nginx.

use proptest::prelude::*;

use super::*;

#[test]
fn a_format_is_read_as_nginx_writes_it() {
    let format = "nginx:$remote_addr [$time_iso8601] \"$request\" $status ${request_time}s \
                  \"$http_x_user\" $upstream_response_time;";
    let wanted = [
        "$remote_addr",
        "request_method",
        "request_uri",
        "uri",
        "args",
        "server_protocol",
        "status",
        "${request_time}",
        "http_x_user",
        "upstream_response_time",
    ];
    let mut parser = parser(format, &wanted);
    let line = r#"10.0.0.1 [2024-05-01T10:00:00+02:00] "POST /a?b=c HTTP/2.0" 200 0.012s "\x22u\x5C\xC3\xA9" 0.001, 0.002;"#;
    assert_eq!(
        values(&mut parser, line).expect("a line"),
        [
            "10.0.0.1",
            "POST",
            "/a?b=c",
            "/a",
            "b=c",
            "HTTP/2.0",
            "200",
            "0.012",
            r#"\"u\\\xc3\xa9"#,
            "0.001, 0.002",
        ]
    );
}

#[test]
fn a_directive_may_be_pasted() {
    let directive = "nginx:log_format main escape=json\n  '{\"user\":\"$http_x_user\",'\n  \
                     '\"status\":$status}';";
    let mut whole = parser(directive, &["http_x_user", "status"]);
    let line = r#"{"user":"\"a\",\"status\":\u0001\\","status":429}"#;
    let expected = [r#"\"a\",\"status\":\x01\\"#, "429"];
    assert_eq!(values(&mut whole, line).expect("a line"), expected);
    let pieces = "nginx:escape=json '{\"user\":\"$http_x_user\",' '\"status\":$status}'";
    assert_eq!(
        values(&mut parser(pieces, &["http_x_user", "status"]), line).expect("a line"),
        expected
    );
    let absent = values(&mut whole, r#"{"user":"","status":200}"#).expect("a line");
    assert_eq!(absent, ["∅", "200"]);
}

#[test]
fn values_without_escapes_are_taken_as_they_are() {
    let mut parser = parser("nginx:escape=none $http_x|$status", &["http_x"]);
    assert_eq!(values(&mut parser, r#"a"\x22|b|200"#).expect("a line"), [r#"a\"\\x22|b"#]);
}

#[test]
fn the_names_of_nginx_are_those_of_its_combined_format() {
    let line = r#"h - u [10/Oct/2000:13:55:36 -0700] "GET /?q HTTP/1.0" 200 1 "-" "curl""#;
    for format in ["nginx", "nginx:combined"] {
        let mut parser = parser(format, &["remote_user", "http_user_agent", "args"]);
        assert_eq!(values(&mut parser, line).expect("a line"), ["u", "curl", "q"]);
    }
}

#[test]
fn formats_that_can_not_be_read_are_refused() {
    for (format, why) in [
        (
            "$host$request_uri",
            "a format of nginx must have text between $host and $request_uri: nothing else shows \
             where the first one ends",
        ),
        ("$", "a format of nginx must have $name or ${name} for each $"),
        ("${a", "a format of nginx must have $name or ${name} for each $"),
        ("text", "a format of nginx must have a variable"),
        ("$a\n$b", "a format of nginx must be one line; several pieces must each be in quotes"),
        ("escape=html $a", "escape= of a format of nginx must be default, json or none"),
        ("log_format x '$a", "a log_format directive must have its text in quotes that are closed"),
    ] {
        assert_eq!(refusal(&format!("nginx:{format}"), &[]), why, "{format}");
    }
    let many = "$a ".repeat(200);
    assert!(refusal(&format!("nginx:{many}"), &[]).contains("at most 128 variables"));
    let long = "x".repeat(20_000);
    assert!(refusal(&format!("nginx:{long}"), &[]).contains("at most 16384 bytes"));
    let listed = refusal("nginx:$host $status", &["request_uri"]);
    assert_eq!(listed, "request_uri is not a field of the format, must be one of: host, status");
}

/// Writes a value as nginx does (`ngx_http_log_escape`, `ngx_http_log_json_escape`).
fn escaped(value: &[u8], kind: &str) -> Vec<u8> {
    if value.is_empty() {
        return if kind == "default" { b"-".to_vec() } else { Vec::new() };
    }
    let mut text = Vec::new();
    for byte in value {
        match (kind, byte) {
            ("default", b'"' | b'\\' | 0..0x20 | 0x7f..) => {
                text.extend_from_slice(format!("\\x{byte:02X}").as_bytes());
            }
            ("json", b'"' | b'\\') => text.extend([b'\\', *byte]),
            ("json", b'\n') => text.extend(b"\\n"),
            ("json", b'\r') => text.extend(b"\\r"),
            ("json", b'\t') => text.extend(b"\\t"),
            ("json", 0x08) => text.extend(b"\\b"),
            ("json", 0x0c) => text.extend(b"\\f"),
            ("json", 0..0x20) => text.extend_from_slice(format!("\\u{byte:04X}").as_bytes()),
            _ => text.push(*byte),
        }
    }
    text
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let hostile = prop::sample::select(b"\"\\ -[]x2\n\t\0,\x7f\xc3\xff".to_vec());
    prop::collection::vec(prop_oneof![hostile, any::<u8>()], 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn values_that_nginx_escapes_are_read_again(
        user in value(),
        agent in value(),
        kind in prop::sample::select(vec!["default", "json"]),
    ) {
        // A value in quotation marks, which its escapes keep apart from the text around it.
        let format = format!("nginx:escape={kind} \"$http_x_user\" $status \"$http_user_agent\"");
        let mut parser = parser(&format, &["http_x_user", "status", "http_user_agent"]);
        let quoted = |value: &[u8]| [b"\"", &escaped(value, kind)[..], b"\""].concat();
        let line = [&quoted(&user)[..], b" 200 ", &quoted(&agent)].concat();
        let expected = |value: &[u8]| match value {
            b"" | b"-" => "∅".to_owned(),
            value => value.escape_ascii().to_string(),
        };
        let found = values(&mut parser, line);
        prop_assert_eq!(found, Ok(vec![expected(&user), "200".to_owned(), expected(&agent)]));
    }
}
