//! check, health, serve, help.

use super::common::process::{Rlaas, finish, rlaas, run};
use super::common::redis::{RedisServer, free_port};

#[test]
fn six_checks_print_five_allowed_and_one_denied() {
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
    assert_eq!(answer["remaining"], 3);
    assert_eq!(answer["algorithm"], "SLIDING_WINDOW_LOG");
    assert_eq!(answer.get("retryAfter"), None);

    let (code, out, _) = run(&[&command[..], &["--dry-run", "--cost", "4"]].concat());
    assert_eq!((code, out.as_str()), (2, ""), "an option is given once");
    let (code, out, _) =
        run(&["check", "alice", "--cost", "4", "--dry-run", "--json", "--addr", server.grpc()]);
    let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(code, 1);
    assert_eq!(answer["remaining"], 3);
}

#[test]
fn check_says_that_no_rule_matches() {
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
fn check_without_an_answer_exits_2_and_says_why() {
    let nobody = format!("127.0.0.1:{}", free_port());
    let (code, out, error) = run(&["check", "alice", "--addr", &nobody]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(error.contains("rlaas serve"), "{error}");
    let server = Rlaas::start(&[]);
    let (code, _, error) = run(&["check", "", "--addr", server.grpc()]);
    assert_eq!(code, 2);
    assert!(error.contains("user_id: valid is 1 to 1024 bytes"), "{error}");
    let (code, _, error) = run(&["check", "alice", "--addr", "not an address"]);
    assert_eq!(code, 2);
    assert!(error.contains("--addr"), "{error}");
}

#[test]
fn health_is_for_container_health_checks() {
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
fn an_address_that_is_taken_is_named_with_its_setting() {
    let server = Rlaas::start(&[]);
    let listen = format!("server.listen={}", server.grpc());
    let (code, _, error) = run(&["serve", "--set", &listen, "--set", "server.http=127.0.0.1:0"]);
    assert_eq!(code, 1);
    assert!(error.contains(server.grpc()) && error.contains("server.listen"), "{error}");
}

#[test]
fn help_names_every_command() {
    let (code, out, _) = run(&["--help"]);
    assert_eq!(code, 0);
    for command in ["serve", "check", "check-config", "config", "health", "bench"] {
        assert!(out.lines().any(|line| line.starts_with(&format!("  {command} "))), "{out}");
        assert_eq!(run(&[command, "--help"]).0, 0);
    }
    assert_eq!(run(&["nothing"]).0, 2);
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
fn commands_ask_the_server_of_their_environment() {
    let server = Rlaas::start(&[]);
    let everywhere = server.grpc().replace("127.0.0.1", "0.0.0.0");
    let output = rlaas(&["health"]).env("RLAAS_SERVER__LISTEN", everywhere).output();
    let (code, out, error) = finish(output.expect("the program"));
    assert_eq!((code, out.as_str()), (0, "SERVING\n"), "{error}");
}

#[test]
fn an_answer_without_a_store_does_not_look_like_a_count() {
    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    let server = Rlaas::start(&["store.backend=redis", &url, "rate-limiter.fail-open=true"]);
    let (code, out, _) = run(&["check", "alice", "--addr", server.grpc()]);
    assert_eq!(
        (code, out.as_str()),
        (0, "allowed  alice: FAIL_OPEN, STORE_UNAVAILABLE (default)\n")
    );
}
