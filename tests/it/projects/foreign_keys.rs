//! Keys of projects in which a caller has no role: no method and no route shows or changes them.

use prost_reflect::DescriptorPool;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::RuleMode;
use serde_json::json;
use tonic::{Code, Status};

use super::client::{client, http};
use super::keys::{AdminOfToken, Shops, alice, ban, mode, pay, watched};
use super::roles::{self, TEAM};

/// Calls every method for keys of a project, and returns the refusals by method.
async fn refusals(client: &mut AdminOfToken, project: &str) -> Vec<(&'static str, Option<Status>)> {
    let mut all = Vec::new();
    let reason = || "a test".to_owned();
    macro_rules! call {
        ($method:ident, $request:expr) => {
            all.push((stringify!($method), client.$method($request).await.err()));
        };
    }
    let project_id = || project.to_owned();
    call!(inspect, proto::InspectRequest { selector: alice(project) });
    let selector = alice(project);
    call!(reset, proto::ResetRequest { selector, reason: reason(), ..Default::default() });
    call!(refund, {
        let (selector, request_id) = (alice(project), "a".to_owned());
        proto::RefundRequest { selector, units: 1, reason: reason(), request_id }
    });
    let request = Some(pay());
    call!(
        explain,
        proto::ExplainRequest { request, project_id: project_id(), ..Default::default() }
    );
    call!(set_override, ban(project));
    let selector = alice(project);
    call!(clear_override, {
        proto::ClearOverrideRequest { selector, reason: reason(), ..Default::default() }
    });
    call!(list_overrides, {
        proto::ListOverridesRequest { project_id: project_id(), ..Default::default() }
    });
    call!(list_audit, proto::ListAuditRequest { project_id: project_id(), ..Default::default() });
    call!(set_mode, mode(project, "*"));
    call!(watch_decisions, watched(project));
    call!(top_keys, {
        proto::TopKeysRequest {
            project_id: project_id(),
            rule: "pay".to_owned(),
            ..Default::default()
        }
    });
    call!(watch_stats, proto::WatchStatsRequest { project_id: project_id(), ..Default::default() });
    call!(ban_key, {
        let part = proto::KeyPart { name: "user_id".to_owned(), value: Some("bob".to_owned()) };
        proto::BanKeyRequest {
            project_id: project_id(),
            parts: vec![part],
            ttl: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
            reason: reason(),
            end: false,
        }
    });
    call!(look_up, {
        proto::LookUpRequest { user_id: "bob".to_owned(), project_id: project_id() }
    });
    all
}

#[tokio::test]
async fn keys_of_a_foreign_project_do_not_exist() {
    let mut shops = Shops::start().await;
    shops.root.set_override(ban("blog")).await.expect("a change");
    let unknown = refusals(&mut shops.team, "nothing").await;
    for project in ["blog", "", "_", "SHOP", "shop\0", "../shop"] {
        let refused = refusals(&mut shops.team, project).await;
        for ((method, refused), (_, unknown)) in refused.into_iter().zip(&unknown) {
            let refused = refused.unwrap_or_else(|| panic!("{method} {project:?}"));
            let unknown = unknown.as_ref().expect("a refusal");
            assert_eq!(refused.code(), Code::NotFound, "{method} {project:?}");
            let told = (unknown.message(), unknown.details());
            assert_eq!((refused.message(), refused.details()), told, "{method} {project:?}");
        }
    }
    for (method, refused) in refusals(&mut shops.team, "shop").await {
        assert!(refused.is_none(), "{method}: {refused:?}");
    }
    for (method, refused) in refusals(&mut shops.desk, "shop").await {
        let repairs = ["inspect", "reset", "refund", "explain", "watch_decisions", "top_keys"];
        let repairs = repairs.contains(&method) || ["watch_stats", "look_up"].contains(&method);
        let code = refused.map_or(Code::Ok, |refused| refused.code());
        let expected = if repairs { Code::Ok } else { Code::PermissionDenied };
        assert_eq!(code, expected, "{method}");
    }
    // One that does not exist is not found by those with a role for all either.
    for (method, refused) in refusals(&mut shops.root, "nothing").await {
        let code = refused.map_or(Code::Ok, |refused| refused.code());
        let expected = if method == "list_audit" { Code::Ok } else { Code::NotFound };
        assert_eq!(code, expected, "{method}");
    }
    let all = shops.team.set_mode(mode("-", "*")).await.expect_err("for all projects");
    assert_eq!(all.code(), Code::PermissionDenied);
    // Over HTTP too.
    let bearer = format!("Authorization: Bearer {TEAM}\r\n");
    let selector = |project: &str| {
        let request = json!({ "userId": "alice", "resource": "/pay" });
        json!({ "projectId": project, "request": request })
    };
    for (project, status) in [("shop", 200), ("blog", 404), ("", 404), ("nothing", 404)] {
        for (method, body) in [
            ("inspect", json!({ "selector": selector(project) })),
            ("reset", json!({ "selector": selector(project), "reason": "a test" })),
            (
                "refund",
                json!({ "selector": selector(project), "units": 1, "reason": "a test",
                        "requestId": "over HTTP" }),
            ),
            (
                "override",
                json!({ "selector": selector(project), "grant": { "banned": true }, "ttl": "60s",
                        "reason": "a test" }),
            ),
            ("clear-override", json!({ "selector": selector(project), "reason": "a test" })),
        ] {
            let path = format!("/v1/admin/keys:{method}");
            let answer = http(&shops.server, "POST", &path, &bearer, &body.to_string()).await;
            assert_eq!(answer.status, status, "{method} {project}: {answer:?}");
        }
        let shadow = RuleMode::Shadow.as_str_name();
        for (path, body) in [
            (
                "explain",
                json!({ "projectId": project,
                        "request": { "userId": "alice", "resource": "/pay" } }),
            ),
            (
                "mode",
                json!({ "projectId": project, "rule": "*", "mode": shadow, "ttl": "60s",
                        "reason": "a test" }),
            ),
        ] {
            let path = format!("/v1/admin/{path}");
            let answer = http(&shops.server, "POST", &path, &bearer, &body.to_string()).await;
            assert_eq!(answer.status, status, "{path} {project}: {answer:?}");
        }
        for path in ["overrides", "audit"] {
            let path = format!("/v1/admin/{path}?projectId={project}");
            let answer = http(&shops.server, "GET", &path, &bearer, "").await;
            assert_eq!(answer.status, status, "{path}: {answer:?}");
        }
    }
    for project in ["blog", "", "nothing"] {
        for path in ["decisions?", "stats?", "top-keys?rule=pay&"] {
            let path = format!("/v1/admin/{path}projectId={project}");
            let answer = http(&shops.server, "GET", &path, &bearer, "").await;
            assert_eq!(answer.status, 404, "{path}: {answer:?}");
        }
    }
    for path in ["instances", "explain-descriptors"] {
        let (method, body) =
            if path == "explain-descriptors" { ("POST", "{}") } else { ("GET", "") };
        let answer = http(&shops.server, method, &format!("/v1/admin/{path}"), &bearer, body).await;
        assert_eq!(answer.status, 403, "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn every_method_is_tried() {
    let mut shops = Shops::start().await;
    let pool = DescriptorPool::decode(rlaas_proto::FILE_DESCRIPTOR_SET).expect("descriptors");
    let of_keys = refusals(&mut shops.team, "nothing").await;
    let of_projects = roles::refusals(&mut client(&shops.server, TEAM).await, "nothing").await;
    // Those are for callers with a role for all projects, or list what the caller may see.
    let others: [(_, _, &[&str]); 2] = [
        ("AdminService", of_keys, &["explain_descriptors", "list_instances"]),
        ("ProjectService", of_projects, &["create_project", "list_projects", "restore_catalogue"]),
    ];
    for (service, tried, others) in others {
        let name = format!("ratelimit.admin.v1.{service}");
        let service = pool.get_service_by_name(&name).expect("the service");
        let mut expected: Vec<String> = service.methods().map(|one| snake(one.name())).collect();
        let tried = tried.into_iter().map(|(method, _)| method);
        let mut found: Vec<&str> = tried.chain(others.iter().copied()).collect();
        expected.sort();
        found.sort_unstable();
        assert_eq!(found, expected);
    }
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}
