//! The commands `check`, `health`, `serve` and `config`, and their help.

use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, finish, rlaas, run};
use rlaas_testkit::redis::free_port;

#[test]
fn check_says_how_an_outage_was_decided() {
    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    for (policy, code, expected) in [
        ("deny", 1, "denied   alice: try again in 1s, store unavailable (default)\n"),
        ("local", 0, "left, all in 60s, store unavailable, decided locally (default)\n"),
        ("allow", 0, "allowed  alice: store unavailable, the rule fails open (default)\n"),
    ] {
        let policy = format!("rate-limiter.on-store-failure={policy}");
        let server = Rlaas::start(&["store.backend=redis", &url, &policy]);
        let (found, out, error) = run(&["check", "alice", "--addr", server.grpc()]);
        assert_eq!(found, code, "{error}");
        assert!(out.ends_with(expected), "{out}");
    }
}

#[test]
fn check_reports_that_no_rule_decides() {
    let shadow = "rules=[{name: pay, limit: 1, window: 1h, shadow: true}]";
    for (settings, expected) in [
        (&["unmatched=allow"][..], (0, "allowed  alice: no rule matches (NO_RULE)\n")),
        (&["unmatched=deny"], (1, "denied   alice: no rule matches (NO_RULE)\n")),
        (
            &["unmatched=allow", shadow],
            (0, "allowed  alice: every rule that matches is in shadow (NO_RULE)\n"),
        ),
    ] {
        let server = Rlaas::start(settings);
        let (code, out, error) = run(&["check", "alice", "--addr", server.grpc()]);
        assert_eq!((code, &*out), expected, "{error}");
    }
}

#[test]
fn health_exit_code_follows_the_status() {
    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    let waiting = Rlaas::start(&["store.backend=redis", &url]);
    let (code, out, _) = run(&["health", "--addr", waiting.grpc()]);
    assert_eq!((code, out.as_str()), (1, "NOT_SERVING\n"));
    let (code, _, error) = run(&["health", "--addr", "not an address"]);
    assert!(code == 2 && error.contains("--addr"), "{error}");
}

#[test]
fn serve_names_the_setting_of_an_address_in_use() {
    let server = Rlaas::start(&[]);
    let listen = format!("server.listen={}", server.grpc());
    let (code, _, error) = run(&["serve", "--set", &listen, "--set", "server.http=127.0.0.1:0"]);
    assert_eq!(code, 1);
    assert!(error.contains(server.grpc()) && error.contains("server.listen"), "{error}");
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

#[test]
fn keys_that_would_be_ignored_are_refused_and_told() {
    let server = Rlaas::start(&["auth.api-keys=off"]);
    let called = |command: &[&str]| run(&[command, &["--addr", server.grpc()]].concat());
    let (code, _, error) = called(&["project", "create", "shop"]);
    assert_eq!(code, 0, "{error}");
    assert!(error.contains("warning: API keys are ignored: set auth.api-keys"), "{error}");
    let (code, _, error) = called(&["key", "create", "shop"]);
    assert_eq!(code, 2);
    assert!(error.contains("FAILED_PRECONDITION: API keys are ignored: set auth"), "{error}");
    let (code, out, error) = called(&["check", "alice", "--api-key", "any"]);
    assert!(code == 0 && out.starts_with("allowed"), "{out}{error}");
    assert!(
        error.contains("warning: the API key was not checked: auth.api-keys is off"),
        "{error}"
    );
    let (_, _, error) = called(&["check", "alice"]);
    assert_eq!(error, "");
}
