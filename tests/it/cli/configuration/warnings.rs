//! Warnings about rules that are valid but probably wrong.

use std::path::Path;

use rlaas_testkit::TempDir;
use rlaas_testkit::process::run;

#[test]
fn key_by_attribute_without_a_matcher_is_warned_of() {
    let dir = TempDir::new();
    let text = "rules:\n  \
        - {name: login, match: {resource: /login}, key_by: ip, limit: 5, window: 1m}\n  \
        - {name: everybody, key_by: [user_id, tenant, api_key], limit: 5, window: 1m}\n  \
        - {name: matched, match: {attributes: {tenant: '*'}}, key_by: tenant, limit: 5, window: 1m}\n  \
        - {name: seed, endpoint: /login, strategy: sliding, key_by: ip, limit: 5, window: 1m}\n  \
        - {name: pay, endpoint: /pay, key_by: api_key, limit: 5, window: 1m}\n\
        rate-limiter: {key-by: plan}\n";
    let file = dir.write("rules.yaml", text).display().to_string();
    let (code, out, error) = run(&["check-config", &file]);
    assert_eq!((code, out.as_str()), (0, "valid\n"));
    let warned = |rule: &str, attribute: &str| {
        format!(
            "warning: {file}: rule {rule}: key-by: no matcher requires the attribute {attribute}: \
             requests without it share one bucket"
        )
    };
    assert_eq!(
        error.lines().collect::<Vec<_>>(),
        [
            warned("default", "plan"),
            warned("everybody", "tenant"),
            warned("everybody", "api_key"),
            warned("login", "ip"),
        ]
    );
}

#[test]
fn foreign_pattern_syntax_is_warned_of() {
    let dir = TempDir::new();
    let descriptors = "domain: shop\ndescriptors:\n  - key: path\n    value: /x/**\n    \
        descriptors: [{key: id, value: '{id}', rate_limit: {unit: day, \
        requests_per_unit: 1}}, {key: id, value: '\\*\\*'}]\n  \
        - {key: path, value: /x/*/y}\n";
    let envoy = dir.write("envoy.yaml", descriptors).display().to_string();
    let text = format!(
        r#"
envoy: {{ files: [{envoy}] }}
rules:
  - {{ name: braces, endpoint: "/users/{{id}}", limit: 1, window: 1s }}
  - {{ name: caret, match: {{ user_id: "^a" }}, limit: 1, window: 1s }}
  - {{ name: mark, match: {{ attributes: {{ "p	a": [a, "b?"] }} }}, limit: 1, window: 1s }}
  - name: stars
    endpoint: /search/**
    limit: 1
    window: 1s
    overrides: [{{ match: {{ user_id: "a/{{*}}" }}, limit: 2 }}]
  - {{ name: plain, endpoint: ["*.png", '/\*\*/\*', "/x/*/y", "/a}}{{b"], limit: 1, window: 1s }}
"#
    );
    let file = dir.write("rules.yaml", &text).display().to_string();
    let (code, out, error) = run(&["check-config", &file]);
    assert_eq!((code, out.as_str()), (0, "valid\n"), "{error}");
    let warned = |(file, rule, what): (&str, &str, &str)| {
        format!("warning: {file}: rule {rule}: {what}; `*` matches any text, `\\*` a star")
    };
    let expected = [
        (&*file, "braces", "resource: `{…}` is literal text, as in the template of a route"),
        (&*file, "caret", "user_id: `^` is a literal character"),
        (&*file, "mark", r"attributes.p\ta: `?` is a literal character"),
        (&*file, "stars", "resource: `**` is the same as `*`"),
        (
            &*file,
            "stars",
            "an override's user_id: `{…}` is literal text, as in the template of a route",
        ),
        (&*envoy, "shop.path_/x/**", "value: `**` is the same as `*`"),
        (
            &*envoy,
            "shop.path_/x/**.id_{id}",
            "value: `{…}` is literal text, as in the template of a route",
        ),
    ];
    assert_eq!(error.lines().collect::<Vec<_>>(), expected.map(warned));
}

#[test]
fn probable_mistakes_are_warned_of() {
    let dir = TempDir::new();
    let long = "x".repeat(1025);
    let text = format!(
        "rules:\n  - {{name: long, endpoint: {long}, limit: 1, window: 1s}}\n  \
         - {{name: nobody, match: {{user_id: ''}}, limit: 1, window: 1s}}\n  \
         - {{name: wide, endpoint: /a, limit: 9, window: 1s}}\n  \
         - {{name: strict, endpoint: /a, limit: 5, window: 1s}}\n  \
         - {{name: other, endpoint: /b, limit: 5, window: 1s}}\n  \
         - {{name: log, endpoint: /c, limit: 20000, window: 1s}}\n"
    );
    let file = dir.write("rules.yaml", &text).display().to_string();
    let (code, out, error) = run(&["check-config", &file]);
    assert_eq!((code, out.as_str()), (0, "valid\n"));
    let error = error.replace(&file, "FILE");
    let warned: Vec<&str> = error.lines().collect();
    assert_eq!(
        warned,
        [
            "warning: FILE: rule log: its log may have 20000 entries for one id; other algorithms need a few numbers",
            "warning: FILE: rule long: it never matches: no value can match",
            "warning: FILE: rule nobody: it never matches: no value can match",
            "warning: FILE: rule wide: it never decides: rule strict has the same scope and is stricter",
        ]
    );
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/rules.yaml");
    assert_eq!(run(&["check-config", &example.display().to_string()]).2, "");
}

#[test]
fn role_admin_without_operate_anywhere_is_warned_of() {
    let dir = TempDir::new();
    let hash = |digit: &str| digit.repeat(64);
    let token = |name: &str, digit: &str, roles: &str| {
        format!("    - {{name: {name}, sha256: '{}', roles: [{roles}]}}\n", hash(digit))
    };
    let warned = |tokens: &[String]| {
        let text = format!("auth:\n  tokens:\n{}", tokens.concat());
        let file = dir.write("auth.yaml", &text).display().to_string();
        let (code, out, error) = run(&["check-config", &file]);
        assert_eq!((code, out.as_str()), (0, "valid\n"), "{error}");
        let expected = format!(
            "warning: {file}: auth.tokens: role admin now also grants overrides, bans and the audit; \
             operate is enough to read the configuration (and inspects, resets, refunds)\n"
        );
        assert!(error.is_empty() || error == expected, "{error}");
        !error.is_empty()
    };
    assert!(warned(&[token("a", "1", "check"), token("b", "2", "admin")]));
    assert!(!warned(&[token("a", "1", "check")]));
    assert!(!warned(&[token("a", "1", "admin, operate")]));
    assert!(!warned(&[token("a", "1", "operate"), token("b", "2", "admin")]));
}

#[test]
fn rule_with_an_endpoint_and_no_name_is_given_one() {
    let dir = TempDir::new();
    let rule = r#"{"endpoint": "/v1/pay", "strategy": "token_bucket", "key_by": "api_key", "limit": 100, "window": "10s", "fail_open": false}"#;
    let file = dir.write("rules.yaml", &format!("rules:\n  - {rule}\n")).display().to_string();
    let (code, out, error) = run(&["check-config", &file]);
    assert_eq!((code, out.as_str()), (0, "valid\n"), "{error}");
    let name = "v1-pay-token-bucket";
    assert!(
        error.contains(&format!("{file}: rules[0].name: the rule has no name: {name} ")),
        "{error}"
    );

    let file = dir.write("twice.yaml", &format!("rules:\n  - {rule}\n  - {rule}\n"));
    let (code, _, error) = run(&["check-config", &file.display().to_string()]);
    assert_eq!(code, 64, "{error}");
    assert!(error.contains("rules[1].name"), "{error}");
}

#[test]
fn section_of_gorl_is_refused_with_what_to_write() {
    let dir = TempDir::new();
    let file = dir.write("gorl.yaml", "gorl:\n  strategy: token_bucket\n  limit: 100\n");
    let (code, _, error) = run(&["check-config", &file.display().to_string()]);
    assert_eq!(code, 64, "{error}");
    assert!(error.contains("gorl") && error.contains("rate-limiter"), "{error}");
}
