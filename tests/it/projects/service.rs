//! `ProjectService`: projects, keys, rules and revisions, in memory and on two instances.

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1 as rules;
use rlaas_proto::ratelimit::v1::UnmatchedPolicy;
use rlaas_proto::ratelimit::v1::rule_origin::Kind as OriginKind;
use rlaas_testkit::eventually;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use std::time::Duration;
use tonic::Code;
use tonic_types::StatusExt;

use super::client::{Client, client, rule};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Two clients: of one instance in memory, or of two on one Redis.
struct Pair {
    one: Client,
    other: Client,
    _servers: Vec<Rlaas>,
    _redis: Option<RedisServer>,
}

async fn pairs() -> Vec<Pair> {
    let keys = ["auth.api-keys=accepted"];
    let (memory, redis) = (Rlaas::start(&keys), RedisServer::start());
    let servers = vec![Rlaas::on_redis(&redis, &keys), Rlaas::on_redis(&redis, &keys)];
    vec![
        Pair {
            one: client(&memory, "").await,
            other: client(&memory, "").await,
            _servers: vec![memory],
            _redis: None,
        },
        Pair {
            one: client(&servers[0], "").await,
            other: client(&servers[1], "").await,
            _servers: servers,
            _redis: Some(redis),
        },
    ]
}

async fn create(client: &mut Client, id: &str) -> proto::Project {
    let project = Some(proto::Project { id: id.to_owned(), ..proto::Project::default() });
    let request = proto::CreateProjectRequest { project, ..Default::default() };
    let response = client.create_project(request).await.expect("a project");
    response.into_inner().project.expect("a project")
}

fn update_rule(project: &str, rule: rules::Rule) -> proto::UpdateRuleRequest {
    let (project_id, rule) = (project.to_owned(), Some(rule));
    proto::UpdateRuleRequest { project_id, rule, ..Default::default() }
}

#[tokio::test]
async fn project_is_created_changed_and_deleted() {
    for Pair { mut one, mut other, .. } in pairs().await {
        let created = create(&mut one, "shop").await;
        assert_eq!((&*created.id, created.unmatched()), ("shop", UnmatchedPolicy::Deny));
        assert!(created.revision > 0 && !created.etag.is_empty());
        // A write through the other instance sees it at once.
        let update = |etag: &str| proto::UpdateProjectRequest {
            project: Some(proto::Project {
                id: "shop".to_owned(),
                display_name: "The shop".to_owned(),
                unmatched: UnmatchedPolicy::Allow.into(),
                ..Default::default()
            }),
            update_mask: Some(prost_types::FieldMask { paths: vec!["display_name".to_owned()] }),
            etag: etag.to_owned(),
            reason: "spelling".to_owned(),
        };
        let changed = other.update_project(update(&created.etag)).await.expect("a project");
        let changed = changed.into_inner().project.expect("a project");
        assert_eq!(
            (&*changed.display_name, changed.unmatched()),
            ("The shop", UnmatchedPolicy::Deny)
        );
        assert_ne!(changed.etag, created.etag);
        let get = || proto::GetProjectRequest { project_id: "shop".to_owned() };
        eventually("the other instance has the project", TIMEOUT, async || {
            one.get_project(get()).await.expect("a project").into_inner().project
                == Some(changed.clone())
        })
        .await;
        let delete = |etag: &str| proto::DeleteProjectRequest {
            project_id: "shop".to_owned(),
            etag: etag.to_owned(),
            ..Default::default()
        };
        one.delete_project(delete(&changed.etag)).await.expect("a deletion");
        assert_eq!(one.get_project(get()).await.expect_err("gone").code(), Code::NotFound);
    }
}

#[tokio::test]
async fn projects_are_listed_newest_first_in_pages() {
    let server = Rlaas::start(&[]);
    let mut client = client(&server, "").await;
    for id in ["a", "b", "c"] {
        create(&mut client, id).await;
    }
    let (mut ids, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = proto::ListProjectsRequest { page_size: 2, page_token };
        let page = client.list_projects(request).await.expect("a page").into_inner();
        ids.extend(page.projects.into_iter().map(|project| project.id));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(ids, ["c", "b", "a", ""]);
}

#[tokio::test]
async fn request_id_makes_one_project_and_one_key() {
    for Pair { mut one, mut other, .. } in pairs().await {
        let create = |name: &str| proto::CreateProjectRequest {
            project: Some(proto::Project { display_name: name.to_owned(), ..Default::default() }),
            request_id: "r1".to_owned(),
            reason: String::new(),
        };
        let first = one.create_project(create("a")).await.expect("a project").into_inner();
        let id = first.project.as_ref().expect("a project").id.clone();
        assert_eq!(id.len(), 12);
        let get = proto::GetProjectRequest { project_id: id.clone() };
        eventually("the other instance has the project", TIMEOUT, async || {
            other.get_project(get.clone()).await.is_ok()
        })
        .await;
        let again = other.create_project(create("a")).await.expect("a project").into_inner();
        assert_eq!(first, again);
        let refused = one.create_project(create("b")).await.expect_err("another change");
        assert_eq!(refused.code(), Code::InvalidArgument);

        let create = proto::CreateKeyRequest {
            project_id: id.clone(),
            request_id: "k1".to_owned(),
            ..Default::default()
        };
        let first = one.create_key(create.clone()).await.expect("a key").into_inner();
        assert!(!first.replayed && first.secret.starts_with("rlaas_live_"));
        let again = one.create_key(create).await.expect("a key").into_inner();
        assert!(again.replayed && again.secret.is_empty());
        assert_eq!(again.key, first.key);
        let keys = proto::ListKeysRequest { project_id: id, ..Default::default() };
        assert_eq!(one.list_keys(keys).await.expect("keys").into_inner().keys.len(), 1);
    }
}

#[tokio::test]
async fn key_is_rotated_and_revoked() {
    use proto::api_key::State;
    for Pair { mut one, mut other, .. } in pairs().await {
        create(&mut one, "shop").await;
        let project_id = "shop".to_owned();
        let create =
            proto::CreateKeyRequest { project_id: project_id.clone(), ..Default::default() };
        let key = one.create_key(create).await.expect("a key").into_inner().key.expect("a key");
        assert_eq!((key.state(), &*key.environment), (State::Active, "live"));
        let rotate = |grace, key_id: &str| proto::RotateKeyRequest {
            project_id: project_id.clone(),
            key_id: key_id.to_owned(),
            grace: Some(prost_types::Duration { seconds: grace, nanos: 0 }),
            ..Default::default()
        };
        let get = proto::GetProjectRequest { project_id: "shop".to_owned() };
        eventually("the other instance has the project", TIMEOUT, async || {
            other.get_project(get.clone()).await.is_ok()
        })
        .await;
        let rotated = other.rotate_key(rotate(60, &key.id)).await.expect("keys").into_inner();
        let (new, previous) = (rotated.key.expect("a key"), rotated.previous.expect("a key"));
        assert!(!rotated.secret.is_empty());
        assert_eq!((&previous.id, &previous.replaced_by), (&key.id, &new.id));
        assert!(previous.expires_at.is_some() && new.expires_at.is_none());
        let revoke = |key_id: &str| proto::RevokeKeyRequest {
            project_id: project_id.clone(),
            key_id: key_id.to_owned(),
            reason: "leaked".to_owned(),
        };
        for _ in 0..2 {
            let revoked = one.revoke_key(revoke(&new.id)).await.expect("a key").into_inner();
            let revoked = revoked.key.expect("a key");
            assert!(revoked.state() == State::Revoked && revoked.revoked_at.is_some());
        }
        // That which was rotated is accepted for a minute.
        let shown = one.get_project(get).await.expect("a project").into_inner().project;
        assert_eq!((shown.expect("a project").keys, previous.revoked_at), (1, None));
    }
}

#[tokio::test]
async fn rules_are_written_with_all_problems_and_etags() {
    for Pair { mut one, mut other, .. } in pairs().await {
        create(&mut one, "shop").await;
        let create = |rule| proto::CreateRuleRequest {
            project_id: "shop".to_owned(),
            rule: Some(rule),
            reason: "first".to_owned(),
        };
        let wrong = rules::Rule { burst: -1, enforce_ppm: Some(2_000_000), ..rule("a b", "/a") };
        let refused = one.create_rule(create(wrong)).await.expect_err("problems");
        assert_eq!(refused.code(), Code::InvalidArgument);
        let details = refused.get_details_bad_request().expect("violations");
        let mut fields: Vec<_> =
            details.field_violations.iter().map(|violation| &*violation.field).collect();
        fields.sort_unstable();
        assert_eq!(fields, ["rule.burst", "rule.enforce_ppm", "rule.name"]);
        assert!(fields.iter().all(|field| refused.message().contains(field)), "{refused:?}");

        let created = one.create_rule(create(rule("pay", "/pay"))).await.expect("a rule");
        let created = created.into_inner().rule.expect("a rule");
        let of = created.rule.as_ref().expect("a rule");
        let origin = of.origin.as_ref().expect("an origin");
        assert_eq!((origin.kind(), &*origin.source), (OriginKind::RunTime, "shop"));
        assert_eq!((of.burst, &*of.key_by), (1, &["user_id".to_owned()][..]));
        let mask = |paths: &[&str]| {
            let paths = paths.iter().map(|path| (*path).to_owned()).collect();
            Some(prost_types::FieldMask { paths })
        };
        let change = proto::UpdateRuleRequest {
            update_mask: mask(&["max_requests"]),
            etag: created.etag.clone(),
            ..update_rule("shop", rules::Rule { max_requests: 7, ..rule("pay", "/other") })
        };
        let changed = other.update_rule(change.clone()).await.expect("a rule").into_inner();
        let (changed, is_new) = (changed.rule.expect("a rule"), changed.created);
        let after = changed.rule.as_ref().expect("a rule");
        assert_eq!((after.max_requests, is_new), (7, false));
        assert_eq!(after.matchers[0].any_of, ["/pay"]);
        let refused = one.update_rule(change).await.expect_err("a stale etag");
        assert_eq!(refused.code(), Code::Aborted);
        let missing = update_rule("shop", rule("new", "/new"));
        let missing = proto::UpdateRuleRequest { allow_missing: true, ..missing };
        assert!(one.update_rule(missing).await.expect("a rule").into_inner().created);

        let delete = |name: &str, etag: &str| proto::DeleteRuleRequest {
            project_id: "shop".to_owned(),
            rule_name: name.to_owned(),
            etag: etag.to_owned(),
            reason: String::new(),
        };
        let refused = one.delete_rule(delete("pay", &created.etag)).await.expect_err("stale");
        assert_eq!(refused.code(), Code::Aborted);
        one.delete_rule(delete("pay", &changed.etag)).await.expect("a deletion");
    }
}

#[tokio::test]
async fn rules_are_applied_as_revisions_and_rolled_back() {
    use proto::rule_change::Kind;
    for Pair { mut one, mut other, .. } in pairs().await {
        create(&mut one, "shop").await;
        let apply = |rules: Vec<rules::Rule>, expected_revision| proto::ApplyRulesRequest {
            project_id: "shop".to_owned(),
            rules,
            prune: true,
            expected_revision,
            reason: "from a file".to_owned(),
        };
        let wrong = vec![rule("a", "/a"), rules::Rule { max_requests: -1, ..rule("a", "/b") }];
        let refused = one.apply_rules(apply(wrong.clone(), None)).await.expect_err("problems");
        for field in ["rules[1].name", "rules[1].max_requests"] {
            assert!(refused.message().contains(field), "{refused:?}");
        }
        let validate =
            proto::ValidateRequest { project_id: "shop".to_owned(), rules: wrong, prune: false };
        let validated = one.validate(validate).await.expect("problems").into_inner();
        let fields: Vec<&str> = validated.problems.iter().map(|problem| &*problem.field).collect();
        assert_eq!(fields, ["rules[1].name", "rules[1].max_requests"]);

        let first = one.apply_rules(apply(vec![rule("a", "/a")], None)).await.expect("rules");
        let first = first.into_inner().revision.expect("a revision");
        assert_eq!(
            (first.changed_rules, &*first.action, &*first.actor),
            (1, "ApplyRules", "local")
        );
        let both = vec![rules::Rule { max_requests: 5, ..rule("a", "/a") }, rule("b", "/b")];
        let refused = other.apply_rules(apply(both.clone(), Some(first.revision + 1))).await;
        assert_eq!(refused.expect_err("another revision").code(), Code::Aborted);
        let second = other.apply_rules(apply(both, Some(first.revision))).await.expect("rules");
        let second = second.into_inner();
        let kinds: Vec<_> =
            second.changes.iter().map(|change| (&*change.rule_name, change.kind())).collect();
        assert_eq!(kinds, [("a", Kind::Updated), ("b", Kind::Created)]);
        let mask = second.changes[0].changed_fields.as_ref().expect("a mask");
        assert_eq!(mask.paths, ["max_requests", "burst"]);

        let back = proto::RollbackRequest {
            project_id: "shop".to_owned(),
            revision: first.revision,
            ..Default::default()
        };
        let back = one.rollback(back).await.expect("rules").into_inner();
        let kinds: Vec<_> =
            back.changes.iter().map(|change| (&*change.rule_name, change.kind())).collect();
        assert_eq!(kinds, [("a", Kind::Updated), ("b", Kind::Deleted)]);
        let list =
            proto::ListRevisionsRequest { project_id: "shop".to_owned(), ..Default::default() };
        let listed = one.list_revisions(list).await.expect("revisions").into_inner().revisions;
        let actions: Vec<&str> = listed.iter().map(|revision| &*revision.action).collect();
        assert_eq!(actions, ["Rollback", "ApplyRules", "ApplyRules"]);
        let diff = proto::GetRevisionRequest {
            project_id: "shop".to_owned(),
            revision: 0,
            base_revision: Some(first.revision),
        };
        let diff = one.get_revision(diff).await.expect("a revision").into_inner();
        assert_eq!(diff.changes, []);
    }
}

#[tokio::test]
async fn unnamed_project_has_the_rules_of_files() {
    let dir = rlaas_testkit::TempDir::new();
    let file =
        dir.write("rules.yaml", "rules:\n  - {name: pay, endpoint: /pay, limit: 5, window: 1m}\n");
    let server = Rlaas::start_from(&file, &[]);
    let mut client = client(&server, "").await;
    let create = |name: &str| proto::CreateRuleRequest {
        rule: Some(rule(name, "/new")),
        ..Default::default()
    };
    let refused = client.create_rule(create("pay")).await.expect_err("a rule of a file");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    client.create_rule(create("new")).await.expect("a rule");
    let listed = client.list_rules(proto::ListRulesRequest::default()).await.expect("rules");
    let listed: Vec<_> = listed.into_inner().rules;
    let origins: Vec<_> = listed
        .iter()
        .filter_map(|rule| rule.rule.as_ref())
        .map(|rule| (&*rule.name, rule.origin.as_ref().map(rules::RuleOrigin::kind)))
        .collect();
    assert_eq!(origins, [("new", Some(OriginKind::RunTime)), ("pay", Some(OriginKind::File))]);
    // It is in force.
    let mut decisions = server.client().await;
    let request = |user: &str| rules::CheckRequest {
        resource: "/new".to_owned(),
        ..rlaas_testkit::process::request(user)
    };
    for allowed in [true, false] {
        let response = decisions.check(request("alice")).await.expect("a response").into_inner();
        assert_eq!((response.allowed, &*response.rule), (allowed, "new"));
    }
    let config = decisions.get_config(rules::GetConfigRequest::default()).await.expect("rules");
    let config = config.into_inner();
    let origin = |rule: &rules::Rule| rule.origin.as_ref().map(rules::RuleOrigin::kind);
    let origins: Vec<_> = config.rules.iter().map(|rule| (&*rule.name, origin(rule))).collect();
    assert_eq!(
        origins,
        [
            ("default", Some(OriginKind::BuiltIn)),
            ("new", Some(OriginKind::RunTime)),
            ("pay", Some(OriginKind::File)),
        ]
    );
    assert_eq!(config.catalogue_revision, 1);
}

#[tokio::test]
async fn changes_are_in_the_audit_and_refused_ones_are_not() {
    use proto::admin_service_client::AdminServiceClient;
    let server = Rlaas::start(&["auth.api-keys=accepted"]);
    let mut projects = client(&server, "").await;
    create(&mut projects, "shop").await;
    let create = proto::CreateRuleRequest {
        project_id: "shop".to_owned(),
        rule: Some(rule("pay", "/pay")),
        reason: "launch".to_owned(),
    };
    projects.create_rule(create.clone()).await.expect("a rule");
    projects.create_rule(create).await.expect_err("a taken name");
    let key = proto::CreateKeyRequest { project_id: "shop".to_owned(), ..Default::default() };
    let secret = projects.create_key(key).await.expect("a key").into_inner().secret;
    let mut admin = AdminServiceClient::new(server.channel().await);
    let entries = admin.list_audit(every_project()).await.expect("entries");
    let entries = entries.into_inner().entries;
    assert!(!format!("{entries:?}").contains(&secret[11..]));
    let told: Vec<_> = entries
        .iter()
        .map(|entry| (&*entry.action, &*entry.project_id, entry.state(), entry.revision > 0))
        .collect();
    let done = proto::audit_entry::State::Done;
    assert_eq!(
        told,
        ["CreateKey", "CreateRule", "CreateProject"].map(|action| (action, "shop", done, true))
    );
    assert_eq!((&*entries[1].target, &*entries[1].reason), ("pay", "launch"));
}

/// Asks for the changes of all projects.
fn every_project() -> rlaas_proto::ratelimit::admin::v1::ListAuditRequest {
    rlaas_proto::ratelimit::admin::v1::ListAuditRequest {
        project_id: "-".to_owned(),
        ..Default::default()
    }
}
