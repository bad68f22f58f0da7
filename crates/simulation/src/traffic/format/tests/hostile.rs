//! Random and hostile lines for every format.

use proptest::prelude::*;

use super::*;

/// Every format, with fields of it.
const FORMATS: [(&str, &[&str]); 9] = [
    ("common", &["host", "user", "uri"]),
    ("combined", &["user", "user_agent"]),
    ("vhost_combined", &["vhost", "method"]),
    ("nginx:$a $b \"$request\" [$time_local]$status", &["a", "uri", "status"]),
    ("nginx:escape=none $a|$b||$c", &["a", "b", "c"]),
    ("envoy-json", &["start_time", "a.b[0]"]),
    ("jsonl", &["a", "a.b", "a[1]"]),
    ("w3c", &["@time", "@duration", "a"]),
    (r"regex:^(?<a>.*?) (?<b>\S*)$", &["a", "b"]),
];

fn read_all(lines: &[Vec<u8>]) {
    for (format, wanted) in FORMATS {
        for envelope in [Envelope::Auto, Envelope::None, Envelope::Docker, Envelope::Cri] {
            let format = format.parse::<LogFormat>().expect("a format").within(envelope);
            let wanted: Vec<_> = wanted.iter().map(|name| (*name).to_owned()).collect();
            let mut parser = LineParser::new(&format, &wanted).expect("fields");
            for line in lines {
                if let Err(why) = values(&mut parser, line) {
                    assert!(!why.to_string().is_empty());
                }
            }
        }
    }
}

/// Texts that formats have a meaning for.
const PIECES: [&str; 24] = [
    "\"",
    "\\",
    " ",
    "|",
    "||",
    "[",
    "]",
    "{",
    "}",
    ":",
    ",",
    "-",
    "\t",
    "#Fields: a time",
    "\\x",
    "\\u",
    "10/Oct/2000:13:55:36 -0700",
    "{\"a\":",
    "[1,",
    "{\"log\":\"",
    "\",\"stream\":\"stdout\",",
    "\"time\":\"x\"}",
    "2016-10-06T00:17:09Z stdout P ",
    "200",
];

fn line() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::sample::select(PIECES.to_vec()).prop_map(|piece| piece.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        if std::env::var_os("SOAK").is_some() { 20_000 } else { 200 }
    ))]

    #[test]
    fn random_lines_are_read_or_refused(lines in prop::collection::vec(line(), 1..6)) {
        read_all(&lines);
    }

    #[test]
    fn random_formats_are_compiled_or_refused(format in line()) {
        let format = String::from_utf8_lossy(&format).into_owned();
        for kind in ["nginx:", "nginx:$a", "nginx:log_format x '", "regex:", "regex:(?<a>"] {
            let _ = format!("{kind}{format}").parse::<LogFormat>();
        }
        let _ = LineParser::new(&"jsonl".parse().expect("a format"), &[format]);
    }
}

#[test]
fn a_line_with_many_readings_is_given_up() {
    let format = "nginx:escape=none $a $b $c $d $e $f $g $h!";
    let mut several = parser(format, &["a"]);
    let why = unreadable(&mut several, " ".repeat(1 << 20));
    assert_eq!(why, "there are too many ways to read the line");
    let mut quoted = parser("combined", &["user_agent"]);
    let line = format!("h - {}", "x [10/Oct/2000:13:55:36 -0700] \"\" ".repeat(20_000));
    unreadable(&mut quoted, line);
}

#[test]
fn values_do_not_stay_from_the_line_before() {
    let mut parser = parser("jsonl", &["a", "b"]);
    assert_eq!(values(&mut parser, r#"{"a":1,"b":2}"#).expect("a line"), ["1", "2"]);
    assert_eq!(values(&mut parser, r#"{"b":3}"#).expect("a line"), ["∅", "3"]);
}
