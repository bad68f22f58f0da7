//! The W3C's Extended Log File Format.

use super::*;

const WANTED: [&str; 6] =
    ["@time", "@duration", "@status", "c-ip", "cs-uri-stem", "cs(User-Agent)"];

#[test]
fn lines_of_cloudfront_are_decoded_once() {
    let mut parser = parser("w3c", &WANTED);
    let fields =
        "#Fields: date time x-edge-location c-ip cs-uri-stem sc-status cs(User-Agent) time-taken";
    for directive in ["#Version: 1.0", fields] {
        assert_eq!(values(&mut parser, directive), Ok(Vec::new()));
    }
    let line = "2019-12-04\t21:02:31\tLAX1\t192.0.2.1\t/a%2520b\t200\tMozilla/5.0%20(a+b)\t0.001";
    assert_eq!(
        values(&mut parser, line).expect("a line"),
        ["2019-12-04 21:02:31", "0.001", "200", "192.0.2.1", "/a%20b", "Mozilla/5.0 (a+b)"]
    );
    let with_tab = values(&mut parser, format!("{line}\t")).expect("a line");
    assert_eq!(with_tab[1], "0.001");
    assert!(unreadable(&mut parser, format!("{line}\t\t")).contains("but has 9"));
}

#[test]
fn lines_of_iis_have_milliseconds_and_plus_signs() {
    let mut parser = parser("w3c", &WANTED);
    for directive in [
        "#Software: Microsoft Internet Information Services 10.0",
        "#Fields: date time c-ip cs-uri-stem cs(User-Agent) sc-status time-taken",
    ] {
        assert_eq!(values(&mut parser, directive), Ok(Vec::new()));
    }
    let line = "2024-05-01 10:00:00 ::1 /a+b%20 Mozilla/5.0+(\"x) 401 15";
    assert_eq!(
        values(&mut parser, line).expect("a line"),
        ["2024-05-01 10:00:00", "0.015", "401", "::1", "/a+b%20", r#"Mozilla/5.0 (\"x)"#]
    );
    // The columns may change within a file, and what the format knows may be missing.
    let fields = "#Fields: time sc-status cs-uri-stem c-ip cs(user-agent)";
    assert_eq!(values(&mut parser, fields), Ok(Vec::new()));
    let line = "10:00:00 200 / ::1 -";
    assert_eq!(values(&mut parser, line).expect("a line"), ["∅", "∅", "200", "::1", "/", "∅"]);
}

#[test]
fn values_of_other_servers_may_be_in_quotation_marks() {
    let mut parser = parser("w3c", &["c-ip", "cs(User-Agent)", "x"]);
    assert_eq!(values(&mut parser, "#Fields: c-ip cs(User-Agent) x"), Ok(Vec::new()));
    let line = r#"::1 "a ""b"" c" "d""#;
    assert_eq!(values(&mut parser, line).expect("a line"), ["::1", r#"a \"b\" c"#, "d"]);
    let line = r#"::1 "a b"#;
    assert_eq!(values(&mut parser, line).expect("a line"), ["::1", r#"\"a"#, "b"]);
    assert_eq!(values(&mut parser, "::1\ta b\tc").expect("a line"), ["::1", "a b", "c"]);
}

#[test]
fn lines_that_do_not_fit_their_directive_say_why() {
    let mut parser = parser("w3c", &["c-ip"]);
    let before = "there is no #Fields: directive before the line";
    assert_eq!(unreadable(&mut parser, "a b"), before);
    assert_eq!(values(&mut parser, "#Fields: c-ip sc-status"), Ok(Vec::new()));
    let columns = "the line must have 2 columns as #Fields: says, but has";
    assert_eq!(unreadable(&mut parser, "a"), format!("{columns} 1"));
    assert_eq!(unreadable(&mut parser, "a b c d"), format!("{columns} 3"));
    assert_eq!(values(&mut parser, "#Fields: time sc-status"), Ok(Vec::new()));
    assert_eq!(unreadable(&mut parser, "a b"), "c-ip is not among #Fields: time sc-status");
    let many = format!("#Fields:{}", " x".repeat(1_000));
    assert_eq!(unreadable(&mut parser, many), "#Fields: must have 1 to 512 names");
    assert_eq!(unreadable(&mut parser, "a b"), before);
}
