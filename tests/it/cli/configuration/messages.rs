//! What problems say about mistakes that many make.

use std::net::TcpListener;

use rlaas::algorithm::Algorithm;

use super::problems;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{finish, rlaas, run};

#[test]
fn problems_say_what_to_write() {
    let rule = |fields: &str| format!("rules: [{{name: a, limit: 1, {fields}}}]");
    let algorithms: Vec<&str> = Algorithm::ALL.iter().map(|of| of.name()).collect();
    let flat = "is no key of the service: write a list, one rule for each resource, such as rules: \
                [{endpoint: /login, strategy: token_bucket, limit: 5, window: 60s}] (line 1)";
    for (text, expected) in [
        (
            "rules:\n  - name: a\n    limit: 1\n\twindow: 1s\n".to_owned(),
            "line 4 is indented by a tab: indent by spaces".to_owned(),
        ),
        (
            rule("window: 1mo"),
            "rules[0].window: must be a window from 1ms to 366d in whole milliseconds; units are ms, \
             s, m, h, d and w, and months are windows of calendar (line 1: found 1mo)"
                .to_owned(),
        ),
        (
            rule("window: 1s, algorithm: tokenbucket"),
            format!(
                "rules[0].algorithm: must be {}, did you mean token-bucket? (line 1: found \
                 tokenbucket)",
                algorithms.join(", ")
            ),
        ),
        (
            "unmatched: dney".to_owned(),
            "unmatched: must be default, allow or deny, did you mean deny? (line 1: found dney)".to_owned(),
        ),
        (
            "auth: {api-keys: accepteds}".to_owned(),
            "auth.api-keys: must be off, accepted or required, did you mean accepted? (line 1)".to_owned(),
        ),
        ("strategy: token_bucket".to_owned(), format!("strategy: {flat}")),
        ("resources: [{endpoint: /a}]".to_owned(), format!("resources: {flat}")),
        (
            "rules: [{name: default, limit: 1, window: 1s}]".to_owned(),
            "rules[0].name: must not be \"default\": that is the default rule, which rate-limiter \
             sets (line 1: found default)"
                .to_owned(),
        ),
    ] {
        assert_eq!(problems(&text), [expected], "{text}");
    }
}

#[test]
fn numbers_are_shown_as_they_are_written() {
    for number in ["1.50", "1_000_000_000_000_000_000", "-007"] {
        for text in [
            format!("rules: [{{name: a, window: 1s, limit: {number}}}]"),
            format!("rules:\n  - name: a\n    window: 1s\n    limit: {number} # much\n"),
        ] {
            let reported = problems(&text);
            assert!(reported[0].ends_with(&format!("found {number})")), "{text}: {reported:?}");
        }
    }
}

#[test]
fn files_of_tls_are_reported_together() {
    let reported = problems("server: {tls: {cert: /no/cert, key: /no/key, client-ca: /no/ca}}");
    let of = ["cert: /no/cert", "key: /no/key", "client-ca: /no/ca"];
    let is_reported =
        |of: &&str| reported.iter().any(|one| one.starts_with(&format!("server.tls.{of}: can't")));
    assert!(reported.len() == 3 && of.iter().all(is_reported), "{reported:?}");
}

#[test]
fn addresses_of_several_servers_without_a_mode_are_warned_of() {
    let dir = TempDir::new();
    let text = "server: {listen: '127.0.0.1:0', http: '127.0.0.1:0'}\n\
                store: {backend: redis, redis: {urls: ['redis://127.0.0.1:7000']}}\n";
    let config = dir.write("rlaas.yaml", text).display().to_string();
    let (code, out, error) = run(&["check-config", &config]);
    assert_eq!((code, &*out), (0, "valid\n"), "{error}");
    assert!(
        error.contains("store.redis.urls: ignored without mode sentinel or cluster"),
        "{error}"
    );
}

#[test]
fn what_this_machine_lacks_is_a_warning_and_said_once() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let dir = TempDir::new();
    let file = dir.write("file", "").display().to_string();
    let text =
        format!("state-dir: {file}/state\nserver: {{listen: '{address}', http: '127.0.0.1:0'}}\n");
    let config = dir.write("rlaas.yaml", &text).display().to_string();
    let (code, out, error) = run(&["check-config", &config]);
    assert_eq!((code, &*out, error.lines().count()), (0, "valid\n", 2), "{error}");
    assert!(
        error.contains(&format!("warning: server.listen: can't listen on {address}: ")),
        "{error}"
    );
    assert!(error.contains(&format!("warning: state-dir: can't create {file}/state: ")), "{error}");
    let missing = dir.write(
        "good.yaml",
        "state-dir: new/folder\nserver: {listen: 127.0.0.1:0, http: 127.0.0.1:0}\n",
    );
    let mut check = rlaas(&["check-config", &missing.display().to_string()]);
    let (_, _, error) = finish(
        check.current_dir(missing.parent().expect("a folder")).output().expect("the program"),
    );
    assert_eq!(error, "");
    assert!(!missing.with_file_name("new").exists(), "nothing is made");
    let (code, _, log) = run(&["serve", "--config", &config]);
    assert_eq!((code, log.matches("os error").count()), (1, 1), "{log}");
}
