//! Previews of rules, and warnings of validations.

use std::collections::BTreeMap;
use std::time::Duration;

use ring::digest::{SHA256, digest};
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::{CheckRequest, PartMatcher, Rule, RuleMode};
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::{TempDir, eventually};
use tonic::{Code, Request};

use super::client::{Client, client, rule};

const TIMEOUT: Duration = Duration::from_secs(20);
const SETTINGS: [&str; 3] =
    ["auth.api-keys=accepted", "telemetry.preview.keep=15m", "telemetry.preview.keys=clear"];

/// A request of a user for a resource.
type UserCall = (&'static str, &'static str);

pub(super) fn limited(name: &str, resource: &str, limit: i64) -> Rule {
    Rule { max_requests: limit, ..rule(name, resource) }
}

fn catch_all(limit: i64) -> Rule {
    Rule { matchers: Vec::new(), ..limited("all", "", limit) }
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

/// Makes requests with an API key, and returns which pass.
async fn decide(server: &Rlaas, secret: &str, asked: &[UserCall]) -> Vec<bool> {
    let mut client = server.client().await;
    let mut passed = Vec::new();
    for (user, resource) in asked {
        let message = CheckRequest {
            user_id: (*user).to_owned(),
            resource: (*resource).to_owned(),
            ..CheckRequest::default()
        };
        let mut request = Request::new(message);
        let key = secret.parse().expect("a header");
        request.metadata_mut().insert("x-api-key", key);
        passed.push(match client.check(request).await {
            Ok(response) => response.into_inner().allowed,
            Err(refused) if refused.code() == Code::PermissionDenied => false,
            Err(error) => panic!("{error}"),
        });
    }
    passed
}

pub(super) fn preview(id: &str, rules: Vec<Rule>, prune: bool) -> proto::PreviewRequest {
    proto::PreviewRequest { project_id: id.to_owned(), rules, prune, window: None }
}

/// Previews rules when the server keeps so many requests of the project.
async fn previewed(
    client: &mut Client,
    request: &proto::PreviewRequest,
    requests: usize,
) -> proto::PreviewResponse {
    let last = std::cell::RefCell::new(proto::PreviewResponse::default());
    eventually("the workers record their requests", TIMEOUT, async || {
        let response = client.clone().preview(request.clone()).await.expect("a preview");
        *last.borrow_mut() = response.into_inner();
        last.borrow().requests == requests as u64
    })
    .await;
    last.into_inner()
}

/// Whether a request passes, by two sets of rules.
#[derive(Clone, Copy, Debug)]
struct Passes {
    before: bool,
    after: bool,
}

/// What a preview says of one rule, by brute force.
#[derive(Debug, Default, PartialEq)]
struct Counted {
    decided: u64,
    denied: u64,
    denied_before: u64,
    newly_denied: u64,
    newly_allowed: u64,
    hit_hardest: BTreeMap<String, u64>,
}

impl Counted {
    /// Counts a request of a rule that `applies` before and after.
    fn count(&mut self, user: &str, passes: Passes, applies: Passes) {
        let Passes { before, after } = passes;
        self.decided += u64::from(applies.after);
        self.denied += u64::from(applies.after && !after);
        self.denied_before += u64::from(applies.before && !before);
        self.newly_denied += u64::from(applies.after && before && !after);
        self.newly_allowed += u64::from(applies.before && !before && after);
        if applies.after && before && !after {
            *self.hit_hardest.entry(user.to_owned()).or_default() += 1;
        }
    }

    fn without_keys(self) -> Self {
        Self { hit_hardest: BTreeMap::new(), ..self }
    }
}

impl From<&proto::RulePreview> for Counted {
    fn from(rule: &proto::RulePreview) -> Self {
        let counts: Vec<u64> = rule.hit_hardest.iter().map(|key| key.count).collect();
        assert!(counts.is_sorted_by(|one, other| one >= other), "{counts:?}");
        let key = |one: &proto::TopKey| {
            let key = one.key.clone().expect("a key");
            assert_eq!((&*key.parts[0].name, one.error), ("user_id", 0));
            assert_eq!(key.parts[0].value.as_ref(), Some(&key.id));
            (key.id, one.count)
        };
        Self {
            decided: rule.decided,
            denied: rule.denied,
            denied_before: rule.denied_before,
            newly_denied: rule.newly_denied,
            newly_allowed: rule.newly_allowed,
            hit_hardest: rule.hit_hardest.iter().map(key).collect(),
        }
    }
}

#[tokio::test]
async fn preview_has_the_numbers_of_a_replay_on_a_fresh_server() {
    let users = ["ann", "bob", "cid", "dan"];
    let resources = ["/pay", "/search", "/new"];
    // Each combination comes up, some of them often.
    let asked: Vec<UserCall> = (0..160_usize)
        .map(|number| (users[number * number % 7 % 4], resources[number * 5 % 11 % 3]))
        .collect();
    let before = vec![limited("pay", "/pay", 9), limited("search", "/search", 4)];
    let after = vec![limited("pay", "/pay", 3), limited("search", "/search", 11)];
    let more = [after.clone(), vec![limited("new", "/new", 2)]].concat();
    let server = Rlaas::start(&SETTINGS);
    let mut client = client(&server, "").await;
    let key = create(&mut client, "shop", before.clone()).await;
    let other = create(&mut client, "blog", vec![catch_all(1)]).await;
    let answers = [
        decide(&server, &key, &asked[..80]).await,
        decide(&server, &other, &asked[..80]).await,
        decide(&server, &key, &asked[80..]).await,
    ];
    let blog_denied = answers[1].iter().filter(|passes| !**passes).count() as u64;
    let answers: Vec<bool> = [&answers[0][..], &answers[2]].concat();
    let has = |rules: &[Rule], name: &str| rules.iter().any(|rule| rule.name == name);
    for (rules, prune) in [(after, false), (more.clone(), false), (more[..1].to_vec(), true)] {
        let fresh = Rlaas::start(&SETTINGS);
        let mut replay = super::client::client(&fresh, "").await;
        let kept = before.iter().filter(|old| !prune && !has(&rules, &old.name));
        let written: Vec<Rule> = rules.iter().chain(kept).cloned().collect();
        let key = create(&mut replay, "shop", written.clone()).await;
        let replayed = decide(&fresh, &key, &asked).await;
        let (mut total, mut by_rule) = (Counted::default(), BTreeMap::<&str, Counted>::new());
        for ((user, resource), (live, fresh)) in asked.iter().zip(answers.iter().zip(replayed)) {
            let (passes, name) = (Passes { before: *live, after: fresh }, &resource[1..]);
            total.count(user, passes, Passes { before: true, after: true });
            let applies = Passes { before: has(&before, name), after: has(&written, name) };
            if applies.before || applies.after {
                by_rule.entry(name).or_default().count(user, passes, applies);
            }
        }
        let response = previewed(&mut client, &preview("shop", rules, prune), asked.len()).await;
        let all = Counted::from(&response.total.clone().expect("a total"));
        assert_eq!(all.without_keys(), total.without_keys());
        let found = response.rules.iter().map(|rule| (rule.rule_name.as_str(), rule.into()));
        assert_eq!(found.collect::<BTreeMap<&str, Counted>>(), by_rule);
        assert!(response.since.is_some() && response.undecidable_rules.is_empty());
        let coverage = response.coverage.expect("the instance");
        assert_eq!((coverage.instances.len(), coverage.missing.len()), (1, 0));
    }
    let blog = previewed(&mut client, &preview("blog", vec![catch_all(1_000)], false), 80).await;
    let blog = blog.total.expect("a total");
    assert_eq!(
        (blog.denied, blog.denied_before, blog.newly_allowed),
        (0, blog_denied, blog_denied)
    );
    let unnamed = client.preview(preview("", vec![catch_all(1)], false)).await.expect("a preview");
    assert_eq!(unnamed.into_inner().requests, 0, "no request without an API key was made");
    let rules = proto::ListRulesRequest { project_id: "shop".to_owned(), ..Default::default() };
    let rules = client.list_rules(rules).await.expect("rules").into_inner().rules;
    assert_eq!(rules.len(), 2, "a preview writes nothing");
}

#[tokio::test]
async fn keys_are_shown_as_recorded_and_hashed_for_those_without_the_role() {
    const ROOT: &str = "s3cret-of-root";
    const DESK: &str = "s3cret-of-the-desk";
    const CHIEF: &str = "s3cret-of-the-chief";
    let sha256 = |token: &str| {
        let bytes = digest(&SHA256, token.as_bytes());
        bytes.as_ref().iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    };
    let of = |name: &str, token: &str, roles: &str| {
        format!(
            "    - {{name: {name}, sha256: {}, roles: [{roles}], projects: [shop]}}\n",
            sha256(token)
        )
    };
    let root = of("root", ROOT, "operate, admin").replace(", projects: [shop]", "");
    let (desk, chief) = (of("desk", DESK, "operate"), of("chief", CHIEF, "admin"));
    let tokens = format!("auth:\n  tokens:\n{root}{desk}{chief}");
    for keys in ["clear", "hashed"] {
        let dir = TempDir::new();
        let file = dir.write("rlaas.yaml", &tokens);
        let setting = format!("telemetry.preview.keys={keys}");
        let server = Rlaas::start_from(&file, &[SETTINGS[0], SETTINGS[1], &setting]);
        let mut root = client(&server, ROOT).await;
        let key = create(&mut root, "shop", vec![catch_all(9)]).await;
        decide(&server, &key, &[("ann", "/"), ("ann", "/"), ("bob", "/")]).await;
        let starred = PartMatcher { part: "user_id".to_owned(), any_of: vec!["an*".to_owned()] };
        let starred = Rule { matchers: vec![starred], ..limited("starred", "", 0) };
        let starred = Rule { max_requests: 1, ..starred };
        let request = preview("shop", vec![catch_all(1), starred], false);
        let mut shown = Vec::new();
        for token in [ROOT, DESK, CHIEF] {
            let mut client = client(&server, token).await;
            let response = previewed(&mut client, &request, 3).await;
            let rule = response.rules.iter().find(|rule| rule.rule_name == "all").expect("a rule");
            let [hit] = &rule.hit_hardest[..] else { panic!("{rule:?}") };
            let key = hit.key.clone().expect("a key");
            assert_eq!(hit.count, 1);
            shown.push(key.parts[0].value.clone().expect("a value"));
            let undecidable: &[&str] = if keys == "hashed" { &["default", "starred"] } else { &[] };
            assert_eq!(response.undecidable_rules, undecidable);
        }
        let is_hash = |text: &String| text.len() == 27 && text.starts_with('#');
        assert!(is_hash(&shown[2]), "{shown:?}");
        if keys == "clear" {
            assert_eq!(shown[..2], ["ann", "ann"]);
        } else {
            assert!(shown.iter().all(is_hash) && shown[0] == shown[1], "{shown:?}");
        }
    }
}

#[tokio::test]
async fn preview_that_is_not_possible_is_refused() {
    let off = Rlaas::start(&[]);
    let refused = client(&off, "").await.preview(preview("", Vec::new(), false)).await;
    assert_eq!(refused.expect_err("nothing is kept").code(), Code::FailedPrecondition);
    let server = Rlaas::start(&SETTINGS);
    let mut client = client(&server, "").await;
    let window = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
    for given in [window(59, 0), window(901, 0), window(-1, 0), window(i64::MIN, -1), window(0, 0)]
    {
        let request = proto::PreviewRequest { window: given, ..preview("", Vec::new(), false) };
        let refused = client.preview(request).await.expect_err("another window");
        assert_eq!(refused.code(), Code::InvalidArgument, "{given:?}");
        assert!(refused.message().starts_with("window must be"), "{refused:?}");
    }
    for given in [window(60, 0), window(900, 0), None] {
        let request = proto::PreviewRequest { window: given, ..preview("", Vec::new(), false) };
        client.preview(request).await.expect("a preview of nothing");
    }
    let wrong = vec![rule("a", "/a"), rule("a", "/b"), limited("b", "/", -1)];
    let refused = client.preview(preview("", wrong, false)).await.expect_err("problems");
    assert_eq!(refused.code(), Code::InvalidArgument);
    for field in ["rules[1].name", "rules[2].max_requests"] {
        assert!(refused.message().contains(field), "{refused:?}");
    }
    let refused = client.preview(preview("nothing", Vec::new(), false)).await;
    assert_eq!(refused.expect_err("no project").code(), Code::NotFound);
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
