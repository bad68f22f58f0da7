//! `rlaas record cat`.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use rlaas_simulation::recording::key_fingerprint;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{finish, rlaas, run};

const LINES: &str = r#"{"rlaas_recording":2,"created_us":5,"writer":"test","time_unit":"us","keys":"clear","dictionary_bytes":0}
{"at_us":1700000100000000,"user_id":"alice","resource":"/pay","attributes":{"plan":"free"},"cost":1,"refused":true}
{"at_us":1700000100000020,"domain":"web","descriptors":[{"entries":[{"key":"ip","value":"::1"}],"hits":1,"limit":{"units":5,"window_us":1000000}}]}
{"lost":3}
{"at_us":1700000100000010,"user_id":"alice","resource":"/pay","attributes":{"plan":"free"},"cost":1}
{"at_us":1700000100000011,"project":"shop","user_id":"alice","resource":"/pay","attributes":{"plan":"free"},"cost":1}
"#;

/// The first five lines of `LINES` in the compact form of version 1, which had no projects.
const VERSION_1: &str = "524c41415352454301005c0000007b22637265617465645f7573223a352c22777269746572223a2274657374\
    222c2274696d655f756e6974223a227573222c226b657973223a22636c656172222c2264696374696f6e6172\
    795f6279746573223a36373130383836347d6561d32c3b0000007836bbb8018084a1e1838985060005616c69\
    6365042f706179010104706c616e0466726565002801037765620101026970033a3a31020105c0843d020306\
    13000000004a7d2572";

fn cat(arguments: &[&str]) -> (i32, String, String) {
    run(&[&["record", "cat"], arguments].concat())
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Writes the compact form of `LINES`.
fn compact(dir: &TempDir) -> Vec<u8> {
    let (lines, compact) = (dir.write("lines.jsonl", LINES), dir.path("compact.rec"));
    let (code, out, error) = cat(&[&text(&lines), "--compact", "-o", &text(&compact)]);
    assert_eq!((code, out.as_str(), error.as_str()), (0, "", ""));
    fs::read(compact).expect("a file")
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = Command::new("gzip");
    let gzip = gzip.arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut gzip = gzip.expect("gzip");
    gzip.stdin.take().expect("a pipe").write_all(bytes).expect("a reader");
    gzip.wait_with_output().expect("gzip").stdout
}

#[test]
fn both_forms_are_printed_plain_and_compressed() {
    let dir = TempDir::new();
    let bytes = compact(&dir);
    assert!(bytes.starts_with(b"RLAASREC\x02\0"));
    let expected = LINES.replace(r#""dictionary_bytes":0"#, r#""dictionary_bytes":67108864"#);
    for (name, bytes) in [("plain", bytes.clone()), ("gzip", gzipped(&bytes))] {
        let file = dir.path(name);
        fs::write(&file, bytes).expect("a file");
        let (code, out, error) = cat(&[&text(&file)]);
        assert_eq!((code, out.as_str(), error.as_str()), (0, expected.as_str(), ""), "{name}");
    }
    assert_eq!(cat(&[&text(&dir.path("lines.jsonl"))]).1, LINES);
    let mut child = rlaas(&["record", "cat", "-"]);
    let mut child =
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program");
    child.stdin.take().expect("a pipe").write_all(LINES.as_bytes()).expect("a reader");
    assert_eq!(finish(child.wait_with_output().expect("the program")).1, LINES);
}

#[test]
fn recordings_of_version_1_are_read_on() {
    let dir = TempDir::new();
    let byte = |at: usize| u8::from_str_radix(&VERSION_1[at..at + 2], 16).expect("two digits");
    let bytes: Vec<u8> = (0..VERSION_1.len()).step_by(2).map(byte).collect();
    let file = dir.path("old.rec");
    fs::write(&file, bytes).expect("a file");
    let expected = LINES.replace(r#""dictionary_bytes":0"#, r#""dictionary_bytes":67108864"#);
    let expected: String = expected.split_inclusive('\n').take(5).collect();
    assert_eq!(cat(&[&text(&file)]), (0, expected, String::new()));
    let newer = LINES.replace(r#""rlaas_recording":2"#, r#""rlaas_recording":3"#);
    let (code, out, error) = cat(&[&text(&dir.write("newer.jsonl", &newer))]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(error.contains("recording of version 3: must be at most 2"), "{error}");
}

#[test]
fn truncated_and_damaged_files_are_printed_as_far_as_they_go() {
    let dir = TempDir::new();
    let bytes = compact(&dir);
    let print = |bytes: &[u8]| {
        let file = dir.path("broken.rec");
        fs::write(&file, bytes).expect("a file");
        cat(&[&text(&file)])
    };
    let (code, out, error) = print(&bytes[..bytes.len() - 8]);
    assert_eq!((code, out.lines().count()), (2, 6), "all but the end: {error}");
    assert!(error.contains("broken.rec") && error.contains("no end"), "{error}");
    let (code, out, error) = print(&bytes[..bytes.len() - 9]);
    assert_eq!((code, out.lines().count()), (2, 1), "{error}");
    assert!(error.contains("ends within block 0"), "{error}");
    let mut flipped = bytes.clone();
    flipped[bytes.len() - 20] ^= 1;
    let (code, _, error) = print(&flipped);
    assert!(code == 2 && error.contains("block 0 of the recording is damaged"), "{error}");
    let gzip = gzipped(&bytes);
    let (code, out, error) = print(&gzip[..gzip.len() - 4]);
    assert_eq!((code, out.lines().count()), (2, 6), "{error}");
    let (code, _, error) =
        print(b"127.0.0.1 - - [01/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1\"\n");
    assert!(code == 2 && error.contains("not a recording"), "{error}");
}

#[test]
fn several_files_become_one_recording_if_their_keys_are_alike() {
    let dir = TempDir::new();
    let one = text(&dir.write("one.jsonl", LINES));
    let (code, out, _) = cat(&[&one, &one]);
    assert_eq!((code, out.lines().count()), (0, 11));
    let other = LINES.replace(r#""clear""#, r#"{"hashed":{"parts":["user_id"],"key":"k"}}"#);
    let other = text(&dir.write("other.jsonl", &other));
    let (code, out, error) = cat(&[&one, &other]);
    assert_eq!((code, out.as_str()), (64, ""));
    assert!(error.contains("must have the same keys"), "{error}");
    let (code, _, error) = cat(&[&one, "-o", &one]);
    assert!(code == 1 && error.contains("exists"), "an input is not overwritten: {error}");
}

#[test]
fn texts_that_a_terminal_obeys_stay_escaped() {
    let dir = TempDir::new();
    let lines = LINES.replace("alice", r"\u001b[2J");
    let file = text(&dir.write("forged.jsonl", &lines));
    let (code, out, _) = cat(&[&file]);
    assert!(code == 0 && out.contains(r"\u001b[2J") && !out.contains('\u{1b}'), "{out}");
}

#[test]
fn simulate_hashes_exact_texts_of_rules_and_leaves_out_patterns() {
    let dir = TempDir::new();
    let hasher = rlaas::admin::keyed(&[b'k'; 32]);
    let fingerprint = key_fingerprint(&hasher);
    let mut lines = format!(
        "{{\"rlaas_recording\":1,\"keys\":{{\"hashed\":{{\"parts\":[\"user_id\"],\"key\":\"{fingerprint}\"}}}},\
         \"sample\":{{\"share_ppm\":50000,\"by\":[\"user_id\"]}}}}\n"
    );
    for at in 0..4 {
        let user = hasher.shown("alice");
        let line = serde_json::json!({ "at_us": 1_700_000_000_000_000_u64 + at, "user_id": user, "resource": "/a" });
        lines += &(line.to_string() + "\n");
    }
    let traffic = text(&dir.write("hashed.jsonl", &lines));
    let rules = "rules:\n  \
        - {name: alice, match: {user_id: alice}, limit: 1, window: 1h, algorithm: gcra}\n  \
        - {name: vip, match: {user_id: vip-*}, limit: 1, window: 1h, algorithm: gcra}\n  \
        - {name: path, match: {resource: /a}, key-by: [resource], limit: 9, window: 1h}\n";
    let config = text(&dir.write("rules.yaml", rules));
    let (key, other) = (dir.write("key", &"k".repeat(32)), dir.write("other", &"o".repeat(32)));
    let simulate = |arguments: &[&str]| {
        let all = ["simulate", "--config", &config, "--traffic", &traffic, "--json"];
        run(&[&all, arguments].concat())
    };
    let (code, out, error) = simulate(&["--key-file", &text(&key)]);
    assert_eq!(code, 0, "{error}");
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let rule = |name: &str| {
        let rules = report["rules"].as_array().expect("rules").iter();
        rules.clone().find(|rule| rule["rule"] == name).cloned().unwrap_or_default()
    };
    assert_eq!(rule("alice")["refused"], 3, "{out}");
    assert_eq!((rule("vip"), rule("default")), Default::default());
    let notes = report["notes"].to_string();
    for part in ["vip (a pattern on user_id", "default (decides what", "path (user_id)", "5 %"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let (code, out, _) = simulate(&[]);
    assert!(code == 0 && out.contains("needs --key-file"), "{out}");
    let (code, _, error) = simulate(&["--key-file", &text(&other)]);
    assert!(code == 64 && error.contains("hashed by another key"), "{error}");
}
