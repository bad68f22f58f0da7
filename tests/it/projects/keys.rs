//! Keys of a project: administered by those who have a role in it, and apart from those of others.

use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::admin::v1::rule_explanation::Applies;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_proto::ratelimit::v1::rule_origin::Kind as OriginKind;
use rlaas_proto::ratelimit::v1::{CheckRequest, Grant, Rule, RuleMode, RuleOrigin, grant};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, request, signal};
use tokio::time::timeout;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Streaming};

use super::client::{Client, Token, client, rule};
use super::roles::{DESK, ROOT, TEAM, start_on};

pub(super) type AdminOfToken = AdminServiceClient<InterceptedService<Channel, Token>>;

/// Time for what happens soon, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// A server with projects that have the same rule, and an API key of each.
pub(super) struct Shops {
    pub(super) server: Rlaas,
    dir: TempDir,
    pub(super) root: AdminOfToken,
    pub(super) team: AdminOfToken,
    pub(super) desk: AdminOfToken,
    pub(super) projects: Client,
    pub(super) keys: [String; 2],
}

impl Shops {
    pub(super) async fn start() -> Self {
        let settings = ["telemetry.top-keys=true"];
        let (server, dir) = start_on("  api-keys: accepted\n", &settings);
        let mut projects = client(&server, ROOT).await;
        let mut keys = [String::new(), String::new()];
        for (id, key) in ["shop", "blog"].into_iter().zip(&mut keys) {
            let project = Some(proto::Project { id: id.to_owned(), ..Default::default() });
            let new = proto::CreateProjectRequest { project, ..Default::default() };
            projects.create_project(new).await.expect("a project");
            let pay = Rule { overridable: true, max_requests: 3, ..rule("pay", "/pay") };
            let new = proto::CreateRuleRequest {
                project_id: id.to_owned(),
                rule: Some(pay),
                ..Default::default()
            };
            projects.create_rule(new).await.expect("a rule");
            let new = proto::CreateKeyRequest { project_id: id.to_owned(), ..Default::default() };
            *key = projects.create_key(new).await.expect("a key").into_inner().secret;
        }
        let admin = async |token| {
            AdminServiceClient::with_interceptor(server.channel().await, Token(token))
        };
        let (root, team, desk) = (admin(ROOT).await, admin(TEAM).await, admin(DESK).await);
        Self { server, dir, root, team, desk, projects, keys }
    }

    /// Returns whether the request of a key passes.
    pub(super) async fn pays(&self, key: &str) -> bool {
        let mut call = Request::new(pay());
        call.metadata_mut().insert("x-api-key", key.parse().expect("a header"));
        self.server.client().await.check(call).await.expect("a decision").into_inner().allowed
    }

    /// Returns the units that are left to the user of a project.
    async fn left(&self, project: &str) -> i64 {
        let request = proto::InspectRequest { selector: alice(project) };
        let keys = self.root.clone().inspect(request).await.expect("keys").into_inner().keys;
        let [key] = &*keys else { panic!("{keys:?}") };
        let name = key.key.as_ref().expect("a key").storage_key.clone();
        assert!(name.contains(project), "{name}");
        key.remaining
    }
}

pub(super) fn pay() -> CheckRequest {
    CheckRequest { resource: "/pay".to_owned(), ..request("alice") }
}

/// Selects the keys of the user in a project.
#[expect(clippy::unnecessary_wraps, reason = "the field of a request is optional")]
pub(super) fn alice(project: &str) -> Option<proto::Selector> {
    let target = Some(Target::Request(pay()));
    Some(proto::Selector { target, rule: String::new(), project_id: project.to_owned() })
}

pub(super) fn ban(project: &str) -> proto::SetOverrideRequest {
    proto::SetOverrideRequest {
        selector: alice(project),
        grant: Some(Grant { kind: Some(grant::Kind::Banned(true)), burst: 0 }),
        ttl: Some(prost_types::Duration { seconds: 3_600, nanos: 0 }),
        reason: "a test".to_owned(),
        ..proto::SetOverrideRequest::default()
    }
}

pub(super) fn mode(project: &str, rule: &str) -> proto::SetModeRequest {
    proto::SetModeRequest {
        project_id: project.to_owned(),
        rule: rule.to_owned(),
        mode: RuleMode::Shadow.into(),
        ttl: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
        reason: "a test".to_owned(),
        ..Default::default()
    }
}

pub(super) fn watched(project: &str) -> proto::WatchDecisionsRequest {
    proto::WatchDecisionsRequest { project_id: project.to_owned(), ..Default::default() }
}

#[tokio::test]
async fn operations_are_on_keys_of_their_project_alone() {
    let mut shops = Shops::start().await;
    let keys = shops.keys.clone();
    for key in &keys {
        assert!(shops.pays(key).await && shops.pays(key).await);
    }
    assert_eq!((shops.left("shop").await, shops.left("blog").await), (1, 1));
    let reset = proto::ResetRequest {
        selector: alice("shop"),
        reason: "a test".to_owned(),
        request_id: "same".to_owned(),
    };
    shops.team.reset(reset.clone()).await.expect("a change");
    assert_eq!((shops.left("shop").await, shops.left("blog").await), (3, 1));
    // The same request id for another project is another request.
    let other = proto::ResetRequest { selector: alice("blog"), ..reset };
    shops.root.reset(other.clone()).await.expect("a change");
    let again = proto::ResetRequest { selector: alice("shop"), ..other };
    let refused = shops.root.reset(again).await.expect_err("another request");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(shops.pays(&keys[1]).await);
    let refund = proto::RefundRequest {
        selector: alice("blog"),
        units: 1,
        reason: "a test".to_owned(),
        request_id: "refund".to_owned(),
    };
    shops.root.refund(refund).await.expect("a change");
    assert_eq!((shops.left("shop").await, shops.left("blog").await), (3, 3));

    let change = shops.team.set_override(ban("shop")).await.expect("a change").into_inner().change;
    let after = change.expect("a change").after;
    assert_eq!(after[0].overrides[0].project_id, "shop");
    assert!(!shops.pays(&keys[0]).await && shops.pays(&keys[1]).await);
    for (project, count) in [("shop", 1), ("blog", 0), ("", 0)] {
        for (rule, is_known) in [("", true), ("pay", !project.is_empty()), ("other", false)] {
            let request = proto::ListOverridesRequest {
                project_id: project.to_owned(),
                rule: rule.to_owned(),
                ..Default::default()
            };
            match shops.root.list_overrides(request).await {
                Ok(page) => {
                    let listed = page.into_inner().overrides;
                    assert_eq!((listed.len(), is_known), (count, true), "{project} {rule}");
                    let of = listed.iter().map(|one| (&*one.project_id, &*one.rule));
                    assert!(of.clone().all(|one| one == (project, "pay")), "{listed:?}");
                }
                Err(status) => assert_eq!((status.code(), is_known), (Code::NotFound, false)),
            }
        }
    }
    let clear = proto::ClearOverrideRequest {
        selector: alice("shop"),
        reason: "a test".to_owned(),
        ..Default::default()
    };
    shops.team.clear_override(clear).await.expect("a change");
    assert!(shops.pays(&keys[0]).await);
    // Envoy's rules are of no project.
    let envoy = proto::DescriptorRef { domain: "a".to_owned(), entries: Vec::new() };
    let selector = Some(proto::Selector {
        target: Some(Target::Envoy(envoy)),
        ..alice("shop").expect("a selector")
    });
    let refused =
        shops.root.inspect(proto::InspectRequest { selector }).await.expect_err("a field");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("selector.project_id"), "{refused:?}");
}

type DecisionEvents = Streaming<proto::WatchDecisionsResponse>;

async fn watch(client: &AdminOfToken, project: &str) -> DecisionEvents {
    client.clone().watch_decisions(watched(project)).await.expect("a stream").into_inner()
}

/// Returns the project and the user of the next events.
async fn next(events: &mut DecisionEvents, count: usize) -> Vec<(String, String)> {
    let mut found = Vec::new();
    while found.len() < count {
        let response = timeout(SOON, events.message()).await.expect("more events");
        found.extend(response.expect("a response").expect("no end").events);
    }
    let shown = |event: proto::DecisionEvent| {
        let key = event.key.expect("a key");
        (event.project_id, key.parts[0].value.clone().expect("a value"))
    };
    found.into_iter().map(shown).collect()
}

#[tokio::test]
async fn decisions_are_watched_by_project() {
    let shops = Shops::start().await;
    let of = |project: &str| (project.to_owned(), "alice".to_owned());
    let [shop, blog] = ["shop", "blog"].map(of);
    let mut all = watch(&shops.root, "-").await;
    let mut blogs = watch(&shops.root, "blog").await;
    let mut own = [watch(&shops.team, "shop").await, watch(&shops.team, "-").await];
    for key in [0, 1, 0] {
        assert!(shops.pays(&shops.keys[key]).await);
    }
    assert_eq!(next(&mut all, 3).await, [shop.clone(), blog.clone(), shop.clone()]);
    assert_eq!(next(&mut blogs, 1).await, [blog]);
    for events in &mut own {
        assert_eq!(next(events, 2).await, [shop.clone(), shop.clone()]);
    }
}

#[tokio::test]
async fn stream_of_a_project_ends_with_the_role_there() {
    let shops = Shops::start().await;
    let mut moved = watch(&shops.team, "shop").await;
    let mut changed = watch(&shops.desk, "shop").await;
    let mut kept = watch(&shops.root, "shop").await;
    let file = shops.dir.path("rlaas.yaml");
    let before = std::fs::read_to_string(&file).expect("the settings");
    let lines = before.lines().map(|line| match line {
        line if line.contains("name: team") => line.replace("[shop]", "[blog]"),
        // Who may not see keys in clear any more.
        line if line.contains("name: desk") => line.replace("[operate]", "[admin]"),
        line => line.to_owned(),
    });
    std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).expect("a file");
    signal(shops.server.pid(), "HUP");
    for events in [&mut moved, &mut changed] {
        let end = timeout(SOON, events.message()).await.expect("an end");
        assert_eq!(end.expect_err("no role").code(), Code::Unauthenticated);
    }
    let refused = shops.team.clone().watch_decisions(watched("shop")).await.expect_err("no role");
    assert_eq!(refused.code(), Code::NotFound);
    let mut hashed = watch(&shops.desk, "shop").await;
    assert!(shops.pays(&shops.keys[0]).await);
    assert_eq!(next(&mut kept, 1).await[0].1, "alice");
    let shown = next(&mut hashed, 1).await;
    assert!(shown[0].1.starts_with('#') && shown[0].1.len() == 27, "{shown:?}");
}

#[tokio::test]
async fn audit_is_listed_by_project() {
    let mut shops = Shops::start().await;
    shops.team.set_override(ban("shop")).await.expect("a change");
    shops.root.set_override(ban("blog")).await.expect("a change");
    shops.team.set_mode(mode("shop", "pay")).await.expect("a mode");
    let entries = async |client: &AdminOfToken, project: &str| {
        let request =
            proto::ListAuditRequest { project_id: project.to_owned(), ..Default::default() };
        let page = client.clone().list_audit(request).await.expect("entries").into_inner();
        let of = |entry: proto::AuditEntry| format!("{} {}", entry.project_id, entry.action);
        page.entries.into_iter().map(of).collect::<Vec<_>>()
    };
    let made = |of: &str, rest: &[&str]| {
        let before = ["CreateKey", "CreateRule", "CreateProject"];
        let all = rest.iter().copied().chain(before);
        all.map(|action| format!("{of} {action}")).collect::<Vec<_>>()
    };
    let shop = made("shop", &["SetMode", "SetOverride"]);
    let blog = made("blog", &["SetOverride"]);
    for (project, expected) in [("shop", shop.clone()), ("blog", blog.clone()), ("", Vec::new())] {
        assert_eq!(entries(&shops.root, project).await, expected, "{project}");
    }
    assert_eq!(entries(&shops.root, "-").await.len(), shop.len() + blog.len());
    for project in ["shop", "-"] {
        assert_eq!(entries(&shops.team, project).await, shop, "{project}");
    }
    // That of a deleted project is for those with the role for all.
    let delete =
        proto::DeleteProjectRequest { project_id: "shop".to_owned(), ..Default::default() };
    shops.projects.delete_project(delete).await.expect("a change");
    assert_eq!(
        entries(&shops.root, "shop").await,
        made("shop", &["DeleteProject", "SetMode", "SetOverride"])
    );
    assert_eq!(entries(&shops.team, "-").await, Vec::<String>::new());
    let request = proto::ListAuditRequest { project_id: "shop".to_owned(), ..Default::default() };
    let refused = shops.team.list_audit(request).await.expect_err("no project");
    assert_eq!(refused.code(), Code::NotFound);
}

#[tokio::test]
async fn explanation_is_by_the_rules_of_the_project() {
    let mut shops = Shops::start().await;
    let explain = |project: &str| proto::ExplainRequest {
        request: Some(pay()),
        project_id: project.to_owned(),
        ..Default::default()
    };
    let of_shop = shops.team.explain(explain("shop")).await.expect("an explanation").into_inner();
    let pay = of_shop.rules.first().expect("a rule");
    assert_eq!((&*pay.rule, pay.applies(), pay.enforced), ("pay", Applies::Yes, true));
    let request =
        proto::GetRuleRequest { project_id: "shop".to_owned(), rule_name: "pay".to_owned() };
    let stored = shops.projects.get_rule(request).await.expect("a rule").into_inner().rule;
    let origin = stored.and_then(|rule| rule.rule?.origin).expect("an origin");
    assert_eq!((origin.kind(), &*origin.source), (OriginKind::RunTime, "shop"));
    assert!((1..=of_shop.catalogue_revision).contains(&origin.revision), "{origin:?}");
    assert_eq!(pay.origin, Some(origin));
    assert!(pay.key.as_ref().is_some_and(|key| key.storage_key.contains("shop")), "{pay:?}");
    assert!(of_shop.catalogue_revision > 0 && of_shop.result.is_some(), "{of_shop:?}");
    let nowhere = shops.root.explain(explain("")).await.expect("an explanation").into_inner();
    let default = nowhere.rules.iter().find(|rule| rule.rule == "default").expect("the default");
    assert_eq!(default.origin.as_ref().map(RuleOrigin::kind), Some(OriginKind::BuiltIn));
    assert!(nowhere.rules.iter().all(|rule| rule.rule != "pay"), "{nowhere:?}");
}

#[tokio::test]
async fn instances_report_the_revision_of_projects() {
    let mut shops = Shops::start().await;
    let request = proto::ListInstancesRequest::default;
    let listed = shops.root.list_instances(request()).await.expect("a page").into_inner();
    let [instance] = &*listed.instances else { panic!("{listed:?}") };
    // Two projects, each with a rule and a key.
    assert_eq!(instance.catalogue_revision, 6);
    assert!(instance.catalogue_age.is_some(), "{instance:?}");
    let refused = shops.team.list_instances(request()).await.expect_err("for all projects");
    assert_eq!(refused.code(), Code::PermissionDenied);
}
