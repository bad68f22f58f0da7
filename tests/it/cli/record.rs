//! Recordings that `simulate` reads: with hashed values, compressed, and of earlier versions.

use std::fs;
use std::path::Path;

use rlaas_simulation::recording::key_fingerprint;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::run;

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn recordings_are_read_plain_and_compressed_as_far_as_they_go() {
    let dir = TempDir::new();
    let config = text(&dir.write("rules.yaml", "rules: [{ name: each, limit: 1, window: 1m }]\n"));
    let lines = "{\"rlaas_recording\":2,\"created_us\":5,\"writer\":\"test\",\"keys\":\"clear\"}\n\
        {\"at_us\":1700000100000000,\"user_id\":\"alice\"}\n{\"lost\":3}\n\
        {\"at_us\":1700000100000020,\"user_id\":\"alice\",\"refused\":true}\n";
    let simulate = |name: &str, bytes: &[u8], options: &[&str]| {
        let file = dir.path(name);
        fs::write(&file, bytes).expect("a file");
        let command = ["simulate", "--config", &config, "--json", "--traffic", &text(&file)];
        let (code, out, error) = run(&[&command[..], options].concat());
        let report = serde_json::from_str::<serde_json::Value>(&out).unwrap_or_default();
        (code, report["all"]["refused"].as_u64(), report["traffic"].clone(), error)
    };
    let frames = lines.split_inclusive('\n').map(|line| zstd::encode_all(line.as_bytes(), 3));
    let zstd = frames.map(|frame| frame.expect("memory")).collect::<Vec<_>>().concat();
    for (name, bytes) in [("a.jsonl", lines.as_bytes()), ("a.jsonl.zst.1", &zstd)] {
        let (code, refused, traffic, error) = simulate(name, bytes, &[]);
        assert_eq!((code, refused), (0, Some(1)), "{name}: {error}");
        let counts = ["lines", "lost", "refusedBefore"].map(|count| traffic[count].as_u64());
        assert_eq!(counts, [Some(2), Some(3), Some(1)], "{name}: {traffic}");
    }
    // The writer was killed within the last line.
    let (code, _, traffic, error) =
        simulate("cut.jsonl", &lines.as_bytes()[..lines.len() - 9], &[]);
    assert_eq!((code, &traffic["unread"]), (2, &1.into()), "{error}");
    let cut = &zstd[..zstd.len() - 4];
    let (code, _, traffic, error) = simulate("cut.zst", cut, &[]);
    assert!(code == 2 && error.contains("--allow-truncated"), "{error}");
    assert!(traffic["damaged"][0]["input"].as_str().is_some_and(|name| name.ends_with("cut.zst")));
    for (bytes, expected) in [
        (&b"RLAASREC\x02\0"[..], "binary form, which was removed"),
        (b"{\"rlaas_recording\":3}\n", "recording of version 3: must be at most 2"),
    ] {
        let (code, _, _, error) = simulate("other.rec", bytes, &[]);
        assert!(code == 64 && error.contains(expected), "{error}");
        assert_eq!(fs::read(dir.path("other.rec")).expect("a file"), bytes, "left as it is");
    }
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
