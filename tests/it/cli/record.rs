//! Recordings that `simulate` reads: with hashed values, compressed, and of earlier versions.

use std::fs;
use std::path::Path;

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
fn rules_on_hashed_parts_are_refused_by_name_and_shares_of_keys_are_told() {
    let dir = TempDir::new();
    let mut lines = r#"{"rlaas_recording":2,"keys":{"hashed":{"parts":["user_id"],"key":"k"}},"#
        .to_owned()
        + r#""sample":{"share_ppm":50000,"by":["user_id"]}}"#
        + "\n";
    for at in 0..4 {
        let at = 1_700_000_000_000_000_u64 + at;
        let line = serde_json::json!({ "at_us": at, "user_id": "#alice", "resource": "/a" });
        lines += &(line.to_string() + "\n");
    }
    let traffic = text(&dir.write("hashed.jsonl", &lines));
    let simulate = |rule: &str| {
        let rules = format!("rules:\n  - {{name: tried, {rule}, limit: 1, window: 1h}}\n");
        let config = text(&dir.write("rules.yaml", &rules));
        run(&["simulate", "--config", &config, "--traffic", &traffic, "--json"])
    };
    let refused = "rule tried looks at user_id, which is hashed in the recording";
    for rule in ["match: {user_id: alice}", "match: {user_id: a*}", "enforce: 5%"] {
        let (code, _, error) = simulate(rule);
        assert!(code == 64 && error.contains(refused), "{rule}: {error}");
    }
    let (code, out, error) = simulate("match: {resource: /a}, key-by: [resource]");
    assert_eq!(code, 0, "{error}");
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let rules = report["rules"].as_array().expect("rules");
    let tried = rules.iter().find(|rule| rule["rule"] == "tried").expect("the rule");
    assert_eq!(tried["refused"], 3, "{out}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("tried (user_id)") && notes.contains("5 %"), "{notes}");
}
