//! Rules without a project, which may not use the attribute `api_key` while API keys are taken.

use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, run};

use super::client::http;

#[tokio::test]
async fn rules_without_a_project_may_not_use_the_api_key_at_run_time() {
    let apply = |of: &str| {
        format!(
            r#"{{"rules":[{{"name":"a","maxRequests":1,"window":"60s"}},
                {{"name":"b","maxRequests":1,"window":"60s",{of}}}]}}"#
        )
    };
    let by_key = r#""keyBy":["attributes.api_key"]"#;
    let cases = [
        (by_key, "rules[1].key_by"),
        (r#""matchers":[{"part":"attributes.api_key","anyOf":["x"]}]"#, "rules[1].matchers"),
        (
            r#""overrides":[{"matchers":[{"part":"attributes.api_key","anyOf":["x"]}],"grant":{"limit":2}}]"#,
            "rules[1].overrides[0].matchers",
        ),
    ];
    let server = Rlaas::start(&["auth.api-keys=accepted"]);
    for (of, field) in cases {
        for (route, status) in [("apply", 400), ("validate", 200)] {
            let path = format!("/v1/projects/_/rules:{route}");
            let response = http(&server, "POST", &path, "", &apply(of)).await;
            assert_eq!(response.status, status, "{response:?}");
            let text = response.body.to_string();
            assert!(text.contains(field), "{field}: {text}");
            assert!(text.contains("must not use api_key unless auth.api-keys is off"), "{text}");
        }
    }
    let rule = |limit: u32| {
        format!(r#"{{"rule":{{"name":"c","maxRequests":{limit},"window":"60s",{by_key}}}}}"#)
    };
    let put = async |server: &Rlaas, limit| {
        http(server, "PUT", "/v1/projects/_/rules/c", "", &rule(limit)).await.status
    };
    assert_eq!(put(&server, 1).await, 400);
    let listed = http(&server, "GET", "/v1/projects/_/rules", "", "").await.body;
    assert!(!listed.to_string().contains("\"c\""), "{listed}");
    let off = Rlaas::start(&["auth.api-keys=off"]);
    assert_eq!(put(&off, 1).await, 201, "the attribute is the caller's");
}

#[test]
fn rules_of_files_may_not_use_the_api_key() {
    let dir = TempDir::new();
    let rules = "rules:\n  \
        - {name: a, key-by: [api_key], limit: 1, window: 1s}\n  \
        - {name: b, match: {attributes: {api_key: x}}, limit: 1, window: 1s}\n  \
        - {name: c, limit: 1, window: 1s, \
           overrides: [{match: {attributes: {api_key: x}}, limit: 2}]}\n";
    let off = dir.write("off.yaml", rules);
    let path = off.to_str().expect("a path");
    assert_eq!(run(&["check-config", path]).0, 0);
    for mode in ["accepted", "required"] {
        let on = dir.write("on.yaml", &format!("auth: {{api-keys: {mode}}}\n{rules}"));
        let (code, _, problems) = run(&["check-config", on.to_str().expect("a path")]);
        assert_eq!(code, 64, "{problems}");
        for field in [
            "rules[0].key-by: must not use api_key unless auth.api-keys is off",
            "rules[1].match.attributes.api_key: must not use api_key",
            "rules[2].overrides[0].match.attributes.api_key: must not use api_key",
        ] {
            assert!(problems.contains(field), "{field}: {problems}");
        }
    }
}
