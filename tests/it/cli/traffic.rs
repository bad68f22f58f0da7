//! The options of traffic: logs that are mapped, standard input, and what is said of
//! options that can't be.

use std::io::Write;
use std::process::Stdio;

use rlaas_proto::ratelimit::v1::CheckRequest;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, finish, request, rlaas, run};
use serde_json::{Value, json};

const LOG: &str = r#"[2001:db8::1]:4711 - - [17/May/2026:10:05:03 +0000] "GET /pay?a HTTP/1.1" 200 3 "-" "curl"
[2001:db8::1]:4712 - - [17/May/2026:10:05:02 +0000] "GET /pay?b HTTP/1.1" 429 3 "-" "curl"
192.0.2.1 - - [17/May/2026:10:05:04 +0000] "GET /health HTTP/1.1" 200 3 "-" "curl"
"#;

/// A folder with a log and rules: one request a minute for each user and resource.
fn files() -> TempDir {
    let files = TempDir::new();
    let rule = "name: each, limit: 1, window: 1m, key-by: [user_id, resource]";
    files.write("rules.yaml", &format!("rules: [{{ {rule} }}]\n"));
    files.write("a.log", LOG);
    files
}

fn path(files: &TempDir, name: &str) -> String {
    files.path(name).to_str().expect("UTF-8").to_owned()
}

fn parsed(out: &str) -> Value {
    serde_json::from_str(out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

#[test]
fn a_log_is_mapped_as_its_format_suggests_or_as_options_say() {
    let files = files();
    let (rules, log) = (path(&files, "rules.yaml"), path(&files, "a.log"));
    let command = ["simulate", "--config", &rules, "--traffic", &log, "--format", "combined"];
    let (code, out, error) = run(&command);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("1 refused"), "an address without its port, paths without query: {out}");
    assert!(out.contains("user_id=host, resource=uri"), "{out}");

    let options = ["--map", "user_id=user_agent", "--map", "attributes.verb=method", "--json"];
    let (code, out, error) = run(&[&command[..], &options].concat());
    assert_eq!(code, 0, "{error}");
    let report = parsed(&out);
    let traffic = &report["traffic"];
    assert_eq!((&traffic["arrivals"], &report["all"]["refused"]), (&3.into(), &1.into()), "{out}");
    assert_eq!(traffic["defaultMappings"][0], "resource=uri");
    assert_eq!(traffic["late"], 0, "out of order by a second");
    assert_eq!(traffic["refusedBefore"], 1);
}

#[test]
fn standard_input_is_read() {
    let files = files();
    let rules = path(&files, "rules.yaml");
    let options = ["--format", "combined", "--json"];
    let command = ["simulate", "--config", &rules, "--traffic"];
    let mut child = rlaas(&[&command[..], &["-"], &options].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(LOG.as_bytes()).expect("the program reads");
    drop(input);
    let (code, out, _) = finish(child.wait_with_output().expect("an end"));
    assert_eq!((code, &parsed(&out)["traffic"]["lines"]), (0, &3.into()));
}

/// Logs of 300 requests of a few users, of which some are written late, and of two other lines.
fn logs(requests: &[(String, String)]) -> (String, String) {
    let (mut combined, mut jsonl) = (String::new(), String::new());
    for (number, (user, resource)) in requests.iter().enumerate() {
        let second = if number % 50 == 49 { 0 } else { number / 10 };
        let time = format!("17/May/2026:10:05:{second:02} +0000");
        let line = format!(
            "{user} - - [{time}] \"GET {resource}?n={number} HTTP/1.1\" 200 3 \"-\" \"-\"\n"
        );
        combined.push_str(&line);
        let time = 1_779_012_300 + second;
        let line =
            json!({ "time": time, "user": { "id": user }, "uri": format!("{resource}?{number}") });
        jsonl.push_str(&line.to_string());
        jsonl.push('\n');
    }
    (combined + "garbage\n\n\"\"\n", jsonl + "{\n[]\n")
}

#[tokio::test]
async fn a_log_is_decided_as_a_server_decides_its_requests() {
    let files = files();
    // A unit comes back after 8 hours, later than both end.
    let rule = "name: each, limit: 3, window: 24h, algorithm: gcra, key-by: [user_id, resource]";
    let rules = files.write("rules.yaml", &format!("rules: [{{ {rule} }}]\n"));
    let requests: Vec<(String, String)> = (0..300_usize)
        .map(|number| {
            let user = format!("192.0.2.{}", number * number % 23);
            (user, format!("/{}", number * 7 % 5))
        })
        .collect();
    let server = Rlaas::start_from(&rules, &[]);
    let (mut client, mut denied) = (server.client().await, 0_u64);
    for (user, resource) in &requests {
        let asked = CheckRequest { resource: resource.clone(), ..request(user) };
        denied += u64::from(!client.check(asked).await.expect("a decision").into_inner().allowed);
    }
    assert!((50..250).contains(&denied), "{denied}");

    let (combined, jsonl) = logs(&requests);
    files.write("combined.log", &combined);
    files.write("json.log", &jsonl);
    let line = |(user, resource): &(String, String)| {
        let request = json!({ "userId": user, "resource": resource });
        format!("{}\n", json!({ "time": 1_779_012_300, "request": request }))
    };
    files.write("requests.jsonl", &requests.iter().map(line).collect::<String>());
    let lines = path(&files, "requests.jsonl");
    let (combined, jsonl) = (path(&files, "combined.log"), path(&files, "json.log"));
    let mapped = ["--map", "user_id=user.id", "--map", "resource=uri", "--map", "time=time"];
    let json_options = [&["--traffic", &jsonl, "--format", "jsonl"], &mapped[..]].concat();
    for (options, unread, late) in [
        (&["--traffic", &combined, "--format", "combined"][..], 2, 4),
        (&json_options[..], 2, 4),
        (&["--traffic", &lines], 0, 0),
    ] {
        let rules = rules.display().to_string();
        let command = ["simulate", "--config", &rules, "--max-unreadable", "1%", "--json"];
        let (code, out, error) = run(&[&command[..], options].concat());
        assert_eq!(code, 0, "{options:?}: {error}");
        let report = parsed(&out);
        let traffic = &report["traffic"];
        assert_eq!(report["all"]["requests"], 300, "{options:?}");
        assert_eq!(report["all"]["refused"], denied, "{options:?}");
        assert_eq!((&traffic["unread"], &traffic["late"]), (&unread.into(), &late.into()));
    }
}
