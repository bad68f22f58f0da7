//! The commands `check`, `health`, `serve` and `config`, and their help.

use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, finish, rlaas, run};
use rlaas_testkit::redis::{RedisServer, free_port};

#[test]
fn check_prints_five_allowed_and_one_denied() {
    let redis = RedisServer::start();
    for server in [Rlaas::start(&[]), Rlaas::on_redis(&redis, &[])] {
        for left in (0..5).rev() {
            let (code, out, _) = run(&["check", "alice", "--addr", server.grpc()]);
            assert_eq!(code, 0);
            assert!(out.starts_with(&format!("allowed  alice: {left} of 5 left")), "{out}");
        }
        let (code, out, _) = run(&["check", "alice", "--addr", server.grpc()]);
        assert_eq!(code, 1);
        assert!(out.starts_with("denied   alice: try again in "), "{out}");
    }
    assert_eq!(redis.keys(), ["rlaas:rate_limit:alice"]);
}

#[test]
fn check_takes_options_and_prints_json() {
    let server = Rlaas::start(&[]);
    let options = ["--resource", "/v1/pay", "--attribute", "plan=free", "--cost", "2", "--json"];
    let command = [&["check", "alice", "--addr", server.grpc()], &options[..]].concat();
    let (code, out, _) = run(&command);
    assert_eq!(code, 0);
    let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(answer["allowed"], true);
    assert_eq!(answer["remaining"], "3");
    assert_eq!(answer["algorithm"], "SLIDING_WINDOW_LOG");
    assert_eq!(answer.get("retryAfter"), None);

    let (code, out, _) = run(&[&command[..], &["--dry-run", "--cost", "4"]].concat());
    assert_eq!((code, out.as_str()), (2, ""), "an option may be given once");
    let (code, out, _) =
        run(&["check", "alice", "--cost", "4", "--dry-run", "--json", "--addr", server.grpc()]);
    let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(code, 1);
    assert_eq!(answer["remaining"], "3");
}

#[test]
fn check_takes_endpoint_for_resource_and_says_what_a_cost_must_be() {
    let rule = "rules=[{name: pay, endpoint: /pay, limit: 1, window: 1h}]";
    let server = Rlaas::start(&[rule]);
    let (code, out, error) =
        run(&["check", "alice", "--endpoint", "/pay", "--addr", server.grpc()]);
    assert_eq!((code, out.contains("(pay)")), (0, true), "{out}{error}");
    for command in ["check", "report"] {
        let (code, _, error) = run(&[command, "alice", "--cost", "-1", "--addr", server.grpc()]);
        let text = "invalid value '-1' for '--cost <N|RULE=N>': must be N or RULE=N, such as tokens=500: \
                    a whole number from 0";
        assert_eq!((code, error.contains(text)), (2, true), "{error}");
    }
}

#[test]
fn check_says_that_every_rule_is_in_shadow() {
    let rule = "rules=[{name: pay, endpoint: /pay, limit: 1, window: 1h, shadow: true}]";
    let server = Rlaas::start(&[rule, "unmatched=allow"]);
    for (resource, why) in [
        ("/pay", "every rule that matches is in shadow (NO_RULE)"),
        ("/other", "no rule matches (NO_RULE)"),
    ] {
        let (code, out, _) =
            run(&["check", "alice", "--resource", resource, "--addr", server.grpc()]);
        assert_eq!((code, out), (0, format!("allowed  alice: {why}\n")));
    }
}

/// Replaces the values of members that depend on time.
fn timeless(mut answer: serde_json::Value) -> serde_json::Value {
    let members = answer.as_object_mut().expect("an object");
    for (name, value) in members {
        match name.as_str() {
            "retryAfter" | "resetAfter" | "delay" => *value = "some time".into(),
            "decisions" => {
                let decisions = value.as_array_mut().expect("a list");
                for decision in decisions {
                    *decision = timeless(decision.take());
                }
            }
            _ => {}
        }
    }
    answer
}

#[tokio::test]
async fn check_json_matches_the_http_response() {
    let settings = [
        "rate-limiter.algorithm=leaky-bucket",
        "rate-limiter.max-requests=100",
        "rate-limiter.burst=3",
        "rate-limiter.window=1h",
    ];
    let server = Rlaas::start(&settings);
    for (cost, code) in [("2", 0), ("2", 1), ("4", 1)] {
        let check = ["check", "alice", "--json", "--cost", cost, "--addr", server.grpc()];
        let (found, out, error) = run(&check);
        assert_eq!(found, code, "{error}");
        let by_command: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        let body = format!(r#"{{"userId":"bob","cost":{cost}}}"#);
        let (_, body) = server.post("/v1/check", &body).await;
        let mut by_http: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        for problem_member in ["type", "title", "status", "detail", "violated-policies"] {
            by_http.as_object_mut().expect("an object").remove(problem_member);
        }
        assert_eq!(by_command["decisions"][0]["allowed"], by_command["allowed"]);
        assert_eq!(by_command.get("delay").is_some(), code == 0, "{by_command}");
        assert_eq!(timeless(by_command), timeless(by_http));
    }
}

#[test]
fn check_describes_limits_and_bursts_in_words() {
    let dir = TempDir::new();
    let file = dir.write(
        "rlaas.yaml",
        "rules:
  - {name: bucket, match: {resource: /bucket}, algorithm: token-bucket,
     limit: 100, window: 1h, burst: 150}
  - {name: small, match: {resource: /small}, algorithm: gcra, limit: 100, window: 1h, burst: 2}
  - {name: open, match: {resource: /open}, limit: 1, window: 1m,
     overrides: [{match: {user_id: alice}, unlimited: true}, {match: {user_id: bob}, limit: 0}]}
",
    );
    let server = Rlaas::start_from(&file, &[]);
    for (arguments, code, expected) in [
        (
            &["alice", "--resource", "/bucket"][..],
            0,
            "149 of a burst of 150 left, all in 36s (bucket)",
        ),
        (&["alice", "--resource", "/small"], 0, "1 of a burst of 2 left, all in 36s (small)"),
        (
            &["alice", "--resource", "/small", "--cost", "3"],
            1,
            "a cost of 3 is above the burst of 2 (small)",
        ),
        (&["alice", "--resource", "/open"], 0, "no limit (open)"),
        (&["bob", "--resource", "/open"], 1, "banned, the limit is 0 (open)"),
        (&["alice", "--cost", "6"], 1, "a cost of 6 is above the limit of 5 (default)"),
    ] {
        let (found, out, error) = run(&[&["check", "--addr", server.grpc()], arguments].concat());
        assert_eq!(found, code, "{error}");
        let verb = if code == 0 { "allowed " } else { "denied  " };
        assert_eq!(out, format!("{verb} {}: {expected}\n", arguments[0]));
    }
}

#[test]
fn check_prints_the_wait_of_every_denial() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &["deny-cache.enabled=true"]);
    let check = ["check", "alice", "--addr", server.grpc()];
    assert_eq!(run(&[&check[..], &["--cost", "5"]].concat()).0, 0);
    for _ in 0..2 {
        let (code, out, _) = run(&check);
        assert_eq!(code, 1);
        assert!(out.starts_with("denied   alice: try again in "), "{out}");
        assert!(out.ends_with("s (default)\n"), "{out}");
    }
    let (_, out, _) = run(&[&check[..], &["--json"]].concat());
    assert!(out.contains(r#""source":"DENY_CACHE""#), "{out}");

    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    let away = ["store.backend=redis", &url];
    for (policy, code, expected) in [
        ("deny", 1, "denied   alice: try again in 1s, store unavailable (default)\n"),
        ("local", 0, "left, all in 60s, store unavailable, decided locally (default)\n"),
    ] {
        let policy = format!("rate-limiter.on-store-failure={policy}");
        let server = Rlaas::start(&[&away[..], &[&policy]].concat());
        let (found, out, error) = run(&["check", "alice", "--addr", server.grpc()]);
        assert_eq!(found, code, "{error}");
        assert!(out.ends_with(expected), "{out}");
    }
}

#[test]
fn check_reports_that_no_rule_matches() {
    for (policy, expected) in [
        ("unmatched=allow", (0, "allowed  alice: no rule matches (NO_RULE)\n")),
        ("unmatched=deny", (1, "denied   alice: no rule matches (NO_RULE)\n")),
    ] {
        let server = Rlaas::start(&[policy]);
        let (code, out, error) = run(&["check", "alice", "--addr", server.grpc()]);
        assert_eq!((code, &*out), expected, "{error}");
        let (_, out, _) = run(&["check", "alice", "--json", "--addr", server.grpc()]);
        let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(
            (&answer["allowed"], &answer["reason"]),
            (&(code == 0).into(), &"NO_RULE".into())
        );
    }
}

#[test]
fn check_exits_2_without_an_answer() {
    let unreachable = format!("127.0.0.1:{}", free_port());
    let (code, out, error) = run(&["check", "alice", "--addr", &unreachable]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(error.contains("rlaas serve"), "{error}");
    let server = Rlaas::start(&[]);
    let (code, _, error) = run(&["check", "", "--addr", server.grpc()]);
    assert_eq!(code, 2);
    assert!(error.contains("user_id must be 1 to 1024 bytes"), "{error}");
    let (code, _, error) = run(&["check", "alice", "--addr", "not an address"]);
    assert_eq!(code, 2);
    assert!(error.contains("--addr"), "{error}");
}

#[test]
fn health_exit_code_follows_the_status() {
    let server = Rlaas::start(&[]);
    for service in ["", "store", "ratelimit.v1.RateLimitService"] {
        let (code, out, _) = run(&["health", "--addr", server.grpc(), "--service", service]);
        assert_eq!((code, out.as_str()), (0, "SERVING\n"), "{service}");
    }
    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    let waiting = Rlaas::start(&["store.backend=redis", &url]);
    let (code, out, _) = run(&["health", "--addr", waiting.grpc()]);
    assert_eq!((code, out.as_str()), (1, "NOT_SERVING\n"));
    let (code, _, error) = run(&["health", "--addr", server.grpc(), "--service", "nobody"]);
    assert_eq!(code, 2);
    assert!(error.contains("not registered"), "{error}");
}

#[test]
fn serve_names_the_setting_of_an_address_in_use() {
    let server = Rlaas::start(&[]);
    let listen = format!("server.listen={}", server.grpc());
    let (code, _, error) = run(&["serve", "--set", &listen, "--set", "server.http=127.0.0.1:0"]);
    assert_eq!(code, 1);
    assert!(error.contains(server.grpc()) && error.contains("server.listen"), "{error}");
}

const COMMANDS: [&str; 18] = [
    "serve",
    "check",
    "check-config",
    "config",
    "health",
    "explain",
    "inspect",
    "reset",
    "refund",
    "ban",
    "unban",
    "override",
    "rule",
    "project",
    "key",
    "audit",
    "top",
    "tail",
];

#[test]
fn help_names_every_command() {
    let (code, out, _) = run(&["--help"]);
    assert_eq!(code, 0);
    for command in COMMANDS {
        assert!(out.lines().any(|line| line.starts_with(&format!("  {command} "))), "{out}");
        assert_eq!(run(&[command, "--help"]).0, 0);
    }
    assert_eq!(run(&["nothing"]).0, 2);
}

#[test]
fn help_fits_100_columns() {
    let nested = [
        "",
        "override set",
        "override clear",
        "override list",
        "rule mode",
        "rule list",
        "rule get",
        "rule delete",
        "rule history",
        "rule rollback",
        "project create",
        "project list",
        "project get",
        "project set",
        "project delete",
        "project restore",
        "key create",
        "key list",
        "key find",
        "key rotate",
        "key revoke",
    ];
    for command in COMMANDS.into_iter().chain(nested) {
        for help in ["-h", "--help"] {
            let arguments: Vec<&str> = command.split_whitespace().chain([help]).collect();
            let (code, out, error) = run(&arguments);
            assert_eq!(code, 0, "{error}");
            let wide: Vec<_> = out.lines().filter(|line| line.chars().count() > 100).collect();
            assert!(wide.is_empty(), "{command}: {wide:#?}");
        }
    }
}

#[test]
fn redis_url_alone_selects_redis() {
    let output = rlaas(&["config"]).env("REDIS_URL", "redis://:s3cret@h:7").output();
    let (code, out, error) = finish(output.expect("the program"));
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("backend: redis  # environment variable REDIS_URL"), "{out}");
    assert!(out.contains("url: redis://:***@h:7  # environment variable REDIS_URL"), "{out}");
}

#[test]
fn commands_use_the_server_of_their_environment() {
    let server = Rlaas::start(&[]);
    let everywhere = server.grpc().replace("127.0.0.1", "0.0.0.0");
    let output = rlaas(&["health"]).env("RLAAS_SERVER__LISTEN", everywhere).output();
    let (code, out, error) = finish(output.expect("the program"));
    assert_eq!((code, out.as_str()), (0, "SERVING\n"), "{error}");
}

#[test]
fn check_reports_fail_open_without_a_count() {
    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    let server = Rlaas::start(&["store.backend=redis", &url, "rate-limiter.fail-open=true"]);
    let (code, out, _) = run(&["check", "alice", "--addr", server.grpc()]);
    assert_eq!(
        (code, out.as_str()),
        (0, "allowed  alice: store unavailable, the rule fails open (default)\n")
    );
}

#[test]
fn reserve_runs_a_command_while_units_are_held() {
    let dir = TempDir::new();
    let rules = "rules:\n  - {name: builds, endpoint: /ci, algorithm: token-bucket, limit: 10, window: 1d,\n     \
                 reservable: true, hold: 1s}\n";
    let server = Rlaas::start_from(&dir.write("rules.yaml", rules), &[]);
    let reserve = |options: &[&str], command: &[&str]| {
        let first = ["reserve", "alice", "--resource", "/ci", "--addr", server.grpc()];
        run(&[&first[..], options, &["--"], command].concat())
    };
    let left = || {
        let (_, out, _) = run(&[
            "check",
            "alice",
            "--resource",
            "/ci",
            "--cost",
            "0",
            "--json",
            "--addr",
            server.grpc(),
        ]);
        let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        answer["remaining"].as_str().expect("a number").to_owned()
    };
    // What is held is charged, what the command wrote, or nothing.
    assert_eq!(reserve(&["--cost", "2"], &["sh", "-c", "echo $0", "x"]).1, "x\n");
    assert_eq!(left(), "8");
    let script = "echo 1 > $RLAAS_COST_FILE; test -f $RLAAS_COST_FILE";
    assert_eq!(reserve(&["--cost", "5"], &["sh", "-c", script]).0, 0);
    assert_eq!(left(), "7");
    assert_eq!(reserve(&["--cost", "5"], &["sh", "-c", "exit 3"]).0, 3);
    assert_eq!(left(), "7");
    assert_eq!(reserve(&["--cost", "5"], &["/nowhere"]).0, 127);
    assert_eq!(left(), "7");
    assert_eq!(reserve(&["--cost", "5"], &["sh", "-c", "kill -9 $$"]).0, 137);
    let (code, out, error) = reserve(&["--cost", "8"], &["echo", "never"]);
    assert_eq!((code, &*out), (75, ""));
    assert!(error.starts_with("denied   alice: try again in "), "{error}");
    // It is extended while the command runs, which is longer than `hold`.
    let held = "sleep 2.5; \"$0\" check alice --resource /ci --cost 7 --addr \"$1\"; echo $?";
    let program = rlaas_testkit::process::program().display().to_string();
    let (code, out, error) =
        reserve(&["--cost", "3"], &["sh", "-c", held, &program, server.grpc()]);
    assert_eq!(code, 0, "{error}");
    assert!(out.ends_with("\n1\n"), "denied while it is held: {out}");
    assert_eq!(left(), "4");
    let free = format!("127.0.0.1:{}", rlaas_testkit::redis::free_port());
    let unreachable = ["reserve", "alice", "--addr", &free, "--", "echo", "never"];
    let (code, out, _) = run(&unreachable);
    assert_eq!((code, &*out), (69, ""));
}
