//! What problems say about mistakes that many make.

use super::problems;

#[test]
fn problems_say_what_to_write() {
    let rule = |fields: &str| format!("rules: [{{name: a, limit: 1, {fields}}}]");
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
            "rules[0].algorithm: must be fixed-window, sliding-window-log, sliding-window-counter, \
             token-bucket, leaky-bucket, gcra, concurrency, did you mean token-bucket? (line 1: found \
             tokenbucket)"
                .to_owned(),
        ),
        (
            "unmatched: dney".to_owned(),
            "unmatched: must be default, allow or deny, did you mean deny? (line 1: found dney)".to_owned(),
        ),
        (
            "auth: {api-keys: acepted}".to_owned(),
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
fn files_of_tls_are_reported_together() {
    let reported = problems("server: {tls: {cert: /no/cert, key: /no/key, client-ca: /no/ca}}");
    let of = ["cert: /no/cert", "key: /no/key", "client-ca: /no/ca"];
    let is_reported =
        |of: &&str| reported.iter().any(|one| one.starts_with(&format!("server.tls.{of}: can't")));
    assert!(reported.len() == 3 && of.iter().all(is_reported), "{reported:?}");
}
