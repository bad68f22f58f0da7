//! Warnings of validations.

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::{Rule, RuleMode};
use rlaas_testkit::process::Rlaas;

use super::client::{Client, client, rule};

pub(super) fn limited(name: &str, resource: &str, limit: i64) -> Rule {
    Rule { max_requests: limit, ..rule(name, resource) }
}

pub(super) async fn create(client: &mut Client, id: &str, rules: Vec<Rule>) -> String {
    let project = Some(proto::Project { id: id.to_owned(), ..Default::default() });
    let request = proto::CreateProjectRequest { project, ..Default::default() };
    client.create_project(request).await.expect("a project");
    let project_id = id.to_owned();
    let request = proto::ApplyRulesRequest { project_id, rules, ..Default::default() };
    client.apply_rules(request).await.expect("rules");
    let request = proto::CreateKeyRequest { project_id: id.to_owned(), ..Default::default() };
    client.create_key(request).await.expect("a key").into_inner().secret
}

#[tokio::test]
async fn validation_has_errors_first_and_then_warnings() {
    use proto::problem::Severity;
    let server = Rlaas::start(&[]);
    let mut client = client(&server, "").await;
    let stored =
        proto::CreateRuleRequest { rule: Some(limited("wide", "/x", 9)), ..Default::default() };
    client.create_rule(stored).await.expect("a rule");
    let long = "x".repeat(2_000);
    let rules = vec![
        limited("strict", "/x", 2),
        Rule { mode: RuleMode::Shadow.into(), ..limited("never", &long, 1) },
        Rule { key_by: vec!["attributes.plan".to_owned()], ..limited("keyed", "/**", 1) },
    ];
    let validate = |rules: Vec<Rule>| proto::ValidateRequest { rules, ..Default::default() };
    let answer = client.validate(validate(rules.clone())).await.expect("an answer").into_inner();
    let found: Vec<(Severity, &str)> =
        answer.problems.iter().map(|one| (one.severity(), one.field.as_str())).collect();
    let warning = |field| (Severity::Warning, field);
    let expected = ["rules[0]", "rules[1].matchers", "rules[2].key_by", "rules[2].matchers"];
    assert_eq!(found, expected.map(warning), "{answer:?}");
    let message = &answer.problems[0].message;
    assert_eq!(
        message,
        "rule wide: it never decides: rule strict has the same scope and is stricter"
    );
    assert_eq!(answer.changes.len(), 3, "warnings prevent nothing");
    let wrong = [rules, vec![limited("a", "/", -1)]].concat();
    let answer = client.validate(validate(wrong)).await.expect("an answer").into_inner();
    let first = &answer.problems[0];
    assert_eq!((first.severity(), &*first.field), (Severity::Error, "rules[3].max_requests"));
    let fields = answer.problems[1..].iter().map(|one| (one.severity(), one.field.as_str()));
    assert_eq!(
        fields.collect::<Vec<_>>(),
        expected[1..].iter().map(|field| warning(*field)).collect::<Vec<_>>()
    );
    assert!(answer.changes.is_empty());
    let many = (0..1_200).map(|number| limited(&format!("r{number}"), &long, 1 + number)).collect();
    let answer = client.validate(validate(many)).await.expect("an answer").into_inner();
    assert_eq!(answer.problems.len(), 1_000);
}
