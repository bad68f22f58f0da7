//! Invalid settings: each problem names its key, its line and the value.

use rlaas::algorithm::Algorithm;

use super::{assert_rejected, effective, problems};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{finish, rlaas, run};
use rlaas_testkit::tls::{Certificate, Certificates};

#[test]
fn problems_are_reported_at_once_with_their_keys() {
    let text = "server: {listen: nowhere, worker: 2}\nstore: {backend: disk}\n\
                rate-limiter: {max-requests: -1, window-size: 0, use-algo: unknown}\nextra: 1\n";
    let mut reported = problems(text);
    reported.sort();
    let names: Vec<&str> = Algorithm::RATES.iter().map(|algorithm| algorithm.name()).collect();
    assert_eq!(
        reported,
        [
            "extra: unknown key (line 4)",
            "rate-limiter.max-requests: must be a whole number from 0 to 999999999999999 (line 3: found -1)",
            &*format!(
                "rate-limiter.use-algo: must be {} (line 3: found unknown)",
                names.join(", ")
            ),
            "rate-limiter.window-size: must be a window from 1ms to 366d in whole milliseconds \
             (line 3: found 0)",
            "server.listen: must be host:port, such as 127.0.0.1:50051 or [::1]:0, \
             or unix:/path of up to 107 bytes (line 1: found nowhere)",
            "server.worker: unknown key, did you mean server.workers? (line 1)",
            "store.backend: must be memory or redis (line 2: found disk)",
        ]
    );
}

#[test]
fn invalid_values_are_rejected_by_their_key_as_written() {
    let cases = [
        ("http: {hosts: ['http://a']}", "http.hosts: must be names of hosts or addresses"),
        ("http: {hosts: [a, 'b:80']}", "http.hosts: must be names of hosts or addresses"),
        ("privacy: {hash: [user]}", "privacy.hash: must be a list of user_id, resource and"),
        ("privacy: {hash: [attributes.]}", "privacy.hash: must be a list of user_id, resource and"),
        ("privacy: {hash: user_id}", "privacy.hash: requires privacy.key-file"),
        ("privacy: {key-file: /nowhere}", "privacy.key-file: must be the path of a file that can"),
        ("privacy: {key-file: /dev/null}", "privacy.key-file: must be a file of 32 to 4096 bytes"),
        ("privacy: {key-file: /dev/zero}", "privacy.key-file: must be a file of 32 to 4096 bytes"),
        ("http: {cors: '*'}", "http.cors: must be origins such as https://app.example"),
        ("http: {cors: [app.example]}", "http.cors: must be origins such as https://app.example"),
        ("http: {hosts: 1}", "http.hosts: must be names of hosts or addresses"),
        ("rate-limiter: {max-requests: -5}", "rate-limiter.max-requests: must be"),
        ("rate-limiter: {max_requests: 1.5}", "rate-limiter.max_requests: must be"),
        ("rate-limiter: {limit: 1000000001}", "rate-limiter.limit: must be"),
        ("rate-limiter: {max-requests: many}", "rate-limiter.max-requests: must be"),
        ("rate-limiter: {max-requests: [5]}", "rate-limiter.max-requests: must be"),
        ("rate-limiter: {max-requests: }", "rate-limiter.max-requests: must be"),
        ("rate-limiter: {limit: 100001}", "rate-limiter.limit: must be a whole number from 1 to"),
        ("rate-limiter: {window-size: -1}", "rate-limiter.window-size: must be"),
        ("rate-limiter: {window: 500us}", "rate-limiter.window: must be"),
        ("rate-limiter: {window-size: 367d}", "rate-limiter.window-size: must be"),
        ("rate-limiter: {window-size: soon}", "rate-limiter.window-size: must be"),
        ("rate-limiter: {window-size: 1e30}", "rate-limiter.window-size: must be"),
        ("rate-limiter: {burst: 9}", "rate-limiter.burst: sliding-window-log has no burst"),
        ("rate-limiter: {use-algo: gcra, burst: 0}", "rate-limiter.burst: must be"),
        (
            "rate-limiter: {use-algo: gcra, window-size: 366d, limit: 1, burst: 101}",
            "rate-limiter.burst: must be a whole number from 1 to 100 for this",
        ),
        ("rate-limiter: {fail-open: maybe}", "rate-limiter.fail-open: must be true or false"),
        ("rate-limiter: {use-algo: 5}", "rate-limiter.use-algo: must be"),
        ("rate-limiter: {limit: 5, max-requests: 6}", "rate-limiter.max-requests: the same as"),
        ("rate-limiter: 5", "rate-limiter: must be a section"),
        ("server: []", "server: must be a section"),
        ("server: {listen: 5}", "server.listen: must be host:port"),
        ("server: {listen: []}", "server.listen: must be host:port"),
        ("server: {listen: ['h:1', 'unix:relative']}", "server.listen: must be host:port"),
        ("server: {http: 'unix:'}", "server.http: must be host:port"),
        ("server: {max-connection-age: 0}", "server.max-connection-age: must be never or"),
        ("server: {max-connection-age: 31d}", "server.max-connection-age: must be never or"),
        ("server: {max_connection_age_grace: -1}", "server.max_connection_age_grace: must be"),
        ("server: {keepalive: {interval: 0s}}", "server.keepalive.interval: must be a duration"),
        ("server: {limits: {connections: 0}}", "server.limits.connections: must be a whole"),
        ("server: {limits: {streams: 65537}}", "server.limits.streams: must be a whole number"),
        ("server: {limits: {request-time: 0}}", "server.limits.request-time: must be a duration"),
        ("server: {limits: {stream: 1}}", "server.limits.stream: unknown key, did you mean"),
        ("server: {keepalive: {timeout: never}}", "server.keepalive.timeout: must be a duration"),
        ("server: {workers: 0}", "server.workers: must be auto or"),
        ("server: {workers: 1025}", "server.workers: must be auto or"),
        ("server: {drain: {timeout: -1s}}", "server.drain.timeout: must be a duration"),
        ("health: {require-store: 1}", "health.require-store: must be true or false"),
        ("store: {memory: {max-keys: 0}}", "store.memory.max-keys: must be"),
        ("store: {redis: {url: 'http://h'}}", "store.redis.url: must be redis://"),
        ("store: {redis: {timeout: 0}}", "store.redis.timeout: must be a duration"),
        ("store: {redis: {timeout: 61s}}", "store.redis.timeout: must be a duration"),
        ("store: {redis: {key-prefix: 'a b'}}", "store.redis.key-prefix: must be"),
        ("store: {redis: {mode: raft}}", "store.redis.mode: must be"),
        ("Server: {listen: 'h:1'}", "Server: unknown key, did you mean server?"),
        ("http: {headers: all}", "http.headers: must be none, draft, legacy or both"),
        ("grpc: {headers: all}", "grpc.headers: must be none, draft, legacy or both"),
        ("5: 6", "5: unknown key"),
    ];
    assert_rejected(cases);
}

#[test]
fn invalid_token_settings_are_rejected_by_key() {
    let hash = "5e8848".repeat(11);
    let hash = &hash[..64];
    let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let one = format!("name: a, sha256: {hash}, roles: [check]");
    let of = |token: &str| format!("auth: {{tokens: [{{{token}}}]}}");
    let cases = [
        ("auth: 1".to_owned(), "auth: must be a section"),
        ("auth: {tokens: s3cret}".to_owned(), "auth.tokens: must be a list of sections"),
        ("auth: {tokens: [s3cret]}".to_owned(), "auth.tokens[0]: must be a section"),
        (format!("auth: {{token: [{{{one}}}]}}"), "auth.token: unknown key, did you mean"),
        (of(&format!("sha256: {hash}, roles: [check]")), "auth.tokens[0].name: missing"),
        (of("name: a, roles: [check]"), "auth.tokens[0].sha256: missing"),
        (of(&format!("name: a, sha256: {hash}")), "auth.tokens[0].roles: missing"),
        (
            of("name: a, sha256: s3cret, roles: [check]"),
            "auth.tokens[0].sha256: must be the SHA-256 of a token: 64 hexadecimal digits",
        ),
        (
            of(&format!("name: a, sha256: {nothing}, roles: [check]")),
            "auth.tokens[0].sha256: must be the SHA-256 of a token, not of an empty",
        ),
        (
            of(&format!("name: a, sha256: {hash}, roles: [root]")),
            "auth.tokens[0].roles: must be a list of check, operate, admin and metrics",
        ),
        (of(&format!("name: a, sha256: {hash}, roles: []")), "auth.tokens[0].roles: must be"),
        (of(&format!("{one}, token: s3cret")), "auth.tokens[0].token: unknown key"),
        (of(&format!("{one}}}, {{{one}")), "auth.tokens[1].name: another token has this name"),
    ];
    for (text, expected) in cases {
        let reported = problems(&text);
        assert_eq!(reported.len(), 1, "{text}: {reported:?}");
        assert!(reported[0].starts_with(expected), "{text}: {reported:?}");
        assert!(!reported[0].contains("s3cret") && !reported[0].contains(hash), "{reported:?}");
    }
}

#[test]
fn invalid_settings_of_an_issuer_are_rejected_by_key() {
    let dir = TempDir::new();
    let not_pem = dir.write("ca.crt", "s3cret").display().to_string();
    let of = |settings: &str| format!("auth: {{oidc: {{{settings}}}}}");
    let with = |more: &str| of(&format!("issuer: 'http://127.0.0.1:1', audience: a, {more}"));
    let ca = |ca: &str| of(&format!("issuer: 'https://127.0.0.1:1', audience: a, ca: '{ca}'"));
    let claim = "auth.oidc.roles-claim: must be the name of a claim, or a list of at most 8 names";
    let algorithms = "auth.oidc.algorithms: must be a list of RS256, ES256 and EdDSA";
    let issuer = "auth.oidc.issuer: must be the https URL of an issuer";
    assert_rejected([
        ("auth: {oidc: s3cret}".to_owned(), "auth.oidc: must be a section"),
        (of("audience: a"), "auth.oidc.issuer: missing"),
        (of("issuer: 'http://127.0.0.1:1', audience: a, audiences: b"), "auth.oidc.audiences: unk"),
        (of("issuer: 'http://127.0.0.1:1'"), "auth.oidc.audience: missing"),
        (of("issuer: 'http://s3cret.example', audience: a"), issuer),
        (of("issuer: s3cret, audience: a"), issuer),
        (of("issuer: 1, audience: a"), issuer),
        (of("issuer: 'https://s3cret@a.example', audience: a"), issuer),
        (of("issuer: 'http://127.0.0.1:1', audience: []"), "auth.oidc.audience: must be a string"),
        (of("issuer: 'http://127.0.0.1:1', audience: 1"), "auth.oidc.audience: must be a string"),
        (of("issuer: 'http://127.0.0.1:1', audience: ''"), "auth.oidc.audience: must be a string"),
        (with("algorithms: [HS256]"), algorithms),
        (with("algorithms: none"), algorithms),
        (with("algorithms: []"), algorithms),
        (with("roles-claim: ''"), claim),
        (with("roles-claim: a..b"), claim),
        (with("roles-claim: [a, b, c, d, e, f, g, h, i]"), claim),
        (with("roles-claim: 1"), claim),
        (with(&format!("ca: '{not_pem}'")), "auth.oidc.ca: requires an https issuer"),
        (ca("/nowhere"), "auth.oidc.ca: must be the path of a file that can be read"),
        (ca(&not_pem), "auth.oidc.ca: must be a PEM file of certificates"),
        (with("client-id: s3cret"), "auth.oidc.client-id: unknown key"),
    ]);
}

#[test]
fn invalid_client_of_the_console_is_reported_without_its_value() {
    let dir = TempDir::new();
    let lines = dir.write("lines", "s3\ncret\n").display().to_string();
    let with = |console: &str| {
        format!(
            "auth: {{oidc: {{issuer: 'http://127.0.0.1:1', audience: a, console: {{{console}}}}}}}"
        )
    };
    let uri = "redirect-uri: 'http://127.0.0.1:1/console/oidc-callback'";
    let and = |more: &str| with(&format!("client-id: a, {uri}, {more}"));
    let scopes = "auth.oidc.console.scopes: must be a list of at most 20 scopes, openid among them";
    let redirect = "auth.oidc.console.redirect-uri: must be an https URL (http on loopback) that ends \
                    with /console/oidc-callback";
    let file = "auth.oidc.console.client-secret-file: must be ";
    assert_rejected([
        (with(uri), "auth.oidc.console.client-id: missing"),
        (with("client-id: a"), "auth.oidc.console.redirect-uri: missing"),
        (
            with("client-id: a, redirect-uri: 'http://s3cret.example/console/oidc-callback'"),
            redirect,
        ),
        (with("client-id: a, redirect-uri: 'https://s3cret.example/'"), redirect),
        (and("client-secret: s3cret"), "auth.oidc.console.client-secret: unknown key"),
        (and("client-secret-file: /nowhere/s3cret"), file),
        (and(&format!("client-secret-file: '{lines}'")), file),
        (and("scopes: [profile]"), scopes),
        (and("scopes: []"), scopes),
    ]);
}

#[test]
fn invalid_tls_files_are_reported_by_key_and_path() {
    let certificates = Certificates::make();
    let dir = TempDir::new();
    let cert = |of| certificates.certificate(of).display().to_string();
    let key = |of| certificates.key(of).display().to_string();
    let (cert, key) = (cert(Certificate::Server), key(Certificate::Server));
    let other_key = certificates.key(Certificate::Client).display().to_string();
    let write = |name: &str, text: &str| dir.write(name, text).display().to_string();
    let empty = write("empty.pem", "");
    let begin = "-----BEGIN CERTIFICATE-----\n";
    let cut_off = write("cut-off.pem", &format!("{begin}TUlJ\n"));
    let garbage =
        write("garbage.pem", &format!("{begin}s3cret==\n{}", begin.replace("BEGIN", "END")));
    let not_der = write("not-der.pem", &format!("{begin}TUlJ\n{}", begin.replace("BEGIN", "END")));
    let label = "ENCRYPTED PRIVATE KEY-----\n";
    let encrypted = write("key.pem", &format!("-----BEGIN {label}TUlJ\n-----END {label}"));
    let missing = dir.path("missing.pem").display().to_string();
    let belong = "missing: a certificate and its key belong together";
    let cases = [
        (format!("cert: {cert}"), format!("key: {belong}")),
        (format!("key: {key}"), format!("cert: {belong}")),
        (
            format!("cert: {missing}, key: {key}"),
            format!("cert: {missing}: can't be read: No such"),
        ),
        (format!("cert: {empty}, key: {key}"), format!("cert: {empty}: must be PEM with a cert")),
        (
            format!("cert: {key}, key: {key}"),
            format!("cert: {key}: must be PEM with a certificate"),
        ),
        (format!("cert: {cut_off}, key: {key}"), format!("cert: {cut_off}: certificate number 1")),
        (format!("cert: {garbage}, key: {key}"), format!("cert: {garbage}: certificate number 1")),
        (format!("cert: {not_der}, key: {key}"), format!("cert: {not_der}: certificate number 1")),
        (format!("cert: {cert}, key: {cert}"), format!("key: {cert}: must be PEM with a private")),
        (
            format!("cert: {cert}, key: {missing}"),
            format!("key: {missing}: can't be read: No such"),
        ),
        (
            format!("cert: {cert}, key: {encrypted}"),
            format!("key: {encrypted}: the private key must not be"),
        ),
        (
            format!("cert: {cert}, key: {other_key}"),
            format!("key: {other_key}: the private key does not belong to the certificate"),
        ),
        (
            format!("cert: {cert}, key: {key}, client-ca: {empty}"),
            format!("client-ca: {empty}: must be PEM with a certificate"),
        ),
        (
            format!("cert: {cert}, key: {key}, client-ca: {not_der}"),
            format!("client-ca: {not_der}: certificate number 1 can't be parsed"),
        ),
        (format!("cert: 7, key: {key}"), "cert: must be the path of a PEM file".to_owned()),
        (
            format!("cert: {cert}, key: '-----BEGIN PRIVATE KEY-----\n\n  s3cret'"),
            "key: must be the path of a PEM file".to_owned(),
        ),
    ];
    assert_rejected(cases.map(|(text, expected)| {
        (format!("server: {{tls: {{{text}}}}}"), format!("server.tls.{expected}"))
    }));
    let valid = format!("server: {{tls: {{cert: {cert}, key: {key}}}}}");
    let file = dir.write("tls.yaml", &valid).display().to_string();
    let out = effective(&["--config", &file], &[]);
    assert!(out.contains(&format!("key: '{key}'  # {file}")), "{out}");

    let client = "clients: [{name: shop, roles: [check]}]";
    let reported = problems(&format!("{valid}\nauth: {{{client}}}"));
    assert_eq!(reported, ["auth.clients: requires server.tls.client-ca (line 2)"]);
    let ca = format!("cert: {cert}, key: {key}, client-ca: {cert}");
    let reported = problems(&format!("server: {{tls: {{{ca}}}}}\nauth: {{{client}, clents: []}}"));
    assert_eq!(reported, ["auth.clents: unknown key, did you mean auth.clients? (line 2)"]);
    let twice = client.replace("}]", "}, {name: shop, roles: [admin]}]");
    let reported = problems(&format!("server: {{tls: {{{ca}}}}}\nauth: {{{twice}}}"));
    assert_eq!(reported, ["auth.clients[1].name: another client has this name (line 2)"]);
}

#[test]
fn snapshots_need_a_folder_and_a_valid_interval() {
    let requires = "store.memory.snapshot: requires state-dir or store.memory.journal.path";
    assert_rejected([("store: {memory: {snapshot: 10s}}", requires)]);
    assert_rejected(["0s", "999ms", "61m", "often", "-1"].map(|interval| {
        let text = format!("state-dir: a\nstore: {{memory: {{snapshot: {interval}}}}}");
        (text, "store.memory.snapshot: must be off, or a duration from 1s to 1h, such as 10s")
    }));
}

#[test]
fn invalid_redis_settings_are_rejected_by_key() {
    let cases = [
        ("mode: raft", "mode: must be standalone, sentinel or cluster"),
        ("mode: 1", "mode: must be standalone, sentinel"),
        ("mode: sentinel", "urls: missing: the addresses to contact first"),
        ("mode: cluster", "urls: missing: the addresses to contact first"),
        ("mode: cluster, urls: []", "urls: must be"),
        ("mode: cluster, urls: ''", "urls: must be 1 to 64 addresses"),
        ("mode: cluster, urls: [7]", "urls: must be"),
        ("mode: cluster, urls: {a: 1}", "urls: must be"),
        ("mode: cluster, urls: ['redis://h:1', 'http://h:2']", "urls: must be redis://"),
        ("mode: cluster, urls: ['redis://h:1', 'rediss://h:2']", "urls: must be rediss:// for all"),
        ("mode: cluster, urls: ['redis://h:1/3']", "database: must be 0"),
        ("mode: cluster, urls: ['redis://h:1'], database: 3", "database: must be 0"),
        ("mode: sentinel, urls: ['redis://h:1'], master-name: ''", "master-name: must be a string"),
        ("mode: sentinel, urls: ['redis://h:1'], master-name: 7", "master-name: must be a string"),
        ("username: ''", "username: must be a string; quote numbers"),
        ("username: [s3cret]", "username: must be a string"),
        ("password: ''", "password: must be a string; quote numbers"),
        ("password: 12345678", "password: must be a string; quote numbers (line 1)"),
        ("password: [s3cret]", "password: must be a string"),
        ("password: {s3cret: 1}", "password: must be a string"),
        ("database: -1", "database: must be 0 to 1000000"),
        ("database: 1.5", "database: must be 0 to 1000000"),
        ("database: 1000001", "database: must be 0 to 1000000"),
        ("database: s3cret", "database: must be 0 to 1000000"),
        ("max-in-flight: 0", "max-in-flight: must be a whole number from 1 to 1000000"),
        ("max-in-flight: 1000001", "max-in-flight: must be a whole number from 1 to 1000000"),
        ("max_in_flight: many", "max_in_flight: must be a whole number from 1 to 1000000"),
        ("tls: 1", "tls: must be a section"),
        ("tls: {ca: /nowhere/s3cret.pem}", "tls.ca: must be the path of a file that can be read"),
        ("tls: {ca: 1}", "tls.ca: must be the path of a file that can be read"),
        ("tls: {cert: /dev/null}", "tls.cert: a certificate and its key belong together"),
        ("tls: {key: /dev/null}", "tls.cert: a certificate and its key belong together"),
        ("tls: {ca: /dev/null}", "tls: requires rediss:// addresses"),
        ("url: 'rediss://h', tls: {ca: /dev/null}", "tls: "),
        ("url: 'rediss://h', tls: {cert: /dev/null, key: /dev/null}", "tls: "),
        ("url: 'rediss://:s3cret@h/#insecure'", "url: must not contain #insecure"),
        ("tsl: {}", "tsl: unknown key"),
        ("passwort: s3cret", "passwort: unknown key, did you mean store.redis.password?"),
    ];
    assert_rejected(cases.map(|(text, expected)| {
        (format!("store: {{redis: {{{text}}}}}"), format!("store.redis.{expected}"))
    }));
}

#[test]
fn invalid_failure_and_deny_cache_settings_are_rejected_by_key() {
    let share = "must be a number above 0 and at most 1";
    let cases = [
        ("deny-cache: 5", "deny-cache: must be a section".to_owned()),
        ("deny-cache: {enabled: 1}", "deny-cache.enabled: must be true or false".to_owned()),
        ("deny-cache: {max-age: 0}", "deny-cache.max-age: must be a duration from".to_owned()),
        ("deny-cache: {max-age: 61m}", "deny-cache.max-age: must be a duration from".to_owned()),
        ("deny_cache: {max_age: soon}", "deny_cache.max_age: must be a duration from".to_owned()),
        ("deny-cache: {max-keys: 0}", "deny-cache.max-keys: must be a whole number".to_owned()),
        ("deny-cache: {max-keys: 1e9}", "deny-cache.max-keys: must be a whole number".to_owned()),
        ("deny-cache: {ttl: 1s}", "deny-cache.ttl: unknown key".to_owned()),
        (
            "rate-limiter: {on-store-failure: maybe}",
            "rate-limiter.on-store-failure: must be error, allow, deny or local".to_owned(),
        ),
        (
            "rate-limiter: {on-store-failure: true}",
            "rate-limiter.on-store-failure: must be error, allow".to_owned(),
        ),
        (
            "rate-limiter: {on-store-failure: allow, fail-open: true}",
            "rate-limiter.fail-open: the same as".to_owned(),
        ),
        (
            "rate-limiter: {local-share: 0.5}",
            "rate-limiter.local-share: requires on-store-failure: local".to_owned(),
        ),
        (
            "rate-limiter: {breaker-opens-rule: 1}",
            "rate-limiter.breaker-opens-rule: must be true or false".to_owned(),
        ),
        (
            "rate-limiter: {overridable: 1}",
            "rate-limiter.overridable: must be true or false".to_owned(),
        ),
    ];
    let shares = ["0", "0.0", "1.1", "2", "-0.5", "half", "0.0000001", "[0.5]", ".5.5", ""];
    let shares = shares.map(|given| {
        let text = format!("rate-limiter: {{on-store-failure: local, local-share: {given}}}");
        (text, format!("rate-limiter.local-share: {share}"))
    });
    let cases = cases.into_iter().map(|(text, expected)| (text.to_owned(), expected));
    assert_rejected(cases.chain(shares));
    for share in ["0.000001", "0.5", "1", "1.0", "1.000000"] {
        let dir = TempDir::new();
        let text = format!("rate-limiter: {{on-store-failure: local, local-share: {share}}}");
        let file = dir.write("share.yaml", &text).display().to_string();
        assert_eq!(run(&["check-config", &file]).0, 0, "{share}");
    }
}

#[test]
fn invalid_yaml_and_unreadable_files_are_reported() {
    for text in ["a: [", "\ta: 1", "a: 1\na: 2", "- 1", "just text", "a: &x [*x]", "%", "{\"a\""] {
        let reported = problems(text);
        assert!(!reported.is_empty(), "{text}");
    }
    let (code, _, error) = run(&["check-config", "/nowhere/rlaas.yaml"]);
    assert_eq!(code, 64);
    assert!(error.starts_with("/nowhere/rlaas.yaml: can't be read: "), "{error}");
    let dir = TempDir::new();
    let file = dir.path("latin1.yaml");
    std::fs::write(&file, b"a: \xff").expect("a file");
    assert_eq!(run(&["check-config", &file.display().to_string()]).0, 64);
}

#[test]
fn problems_report_their_line_and_the_value_found() {
    let text = "\
rules:
  - name: login
    endpoint: /login
    limit: many
    window: 1s
  - name: pay
    endpoint: /pay
    limit: 5
    match:
      attributes:
        api_key: 12345678
    overrides:
      - { match: { user_id: ops }, limit: [5] }
server:
  drain:
    timeout: forever and ever, and a while after that time
    delay:
  worker_s: 2
";
    let reported = problems(text);
    let expected = [
        "rules[0].limit: must be a whole number from 0 to 999999999999999 (line 4: found many)",
        "rules[1].window: missing (line 6)",
        "(line 11)",
        "(line 13: found a list)",
        "server.worker_s: unknown key, did you mean server.workers? (line 18)",
        "(line 16: found \"forever and ever, and a while after that…\")",
        "(line 17: found nothing)",
    ];
    for expected in expected {
        assert!(reported.iter().any(|line| line.ends_with(expected)), "{expected}: {reported:#?}");
    }
    assert!(!reported.concat().contains("12345678"), "{reported:?}");
    for command in
        [["config", "--set", "server.workers=no"], ["--set", "server.workers=no", "serve"]]
    {
        let (_, _, error) = finish(rlaas(&command).output().expect("the program"));
        assert!(error.ends_with("from 1 to 1024 (found no)\n"), "{error}");
    }
    let (code, _, error) = run(&["--set", "server.workers=2", "check", "alice"]);
    assert_eq!(
        (code, &*error),
        (64, "rlaas: --config and --set before a command are for serve and config\n")
    );
}

#[test]
fn problems_of_every_file_are_reported() {
    let dir = TempDir::new();
    let syntax = dir.write("syntax.yaml", "a: [").display().to_string();
    let unknown = dir.write("unknown.yaml", "sever: {}").display().to_string();
    let (code, _, error) = run(&["check-config", &syntax, "/missing.yaml", &unknown]);
    assert_eq!(code, 64);
    assert_eq!(error.lines().count(), 3, "{error}");
    assert!(error.contains("did you mean server?"), "{error}");
}
