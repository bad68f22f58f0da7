//! Rules of files for projects.

use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::v1 as rules;
use rlaas_proto::ratelimit::v1::rule_origin::Kind;
use rlaas_testkit::process::{Rlaas, request, run};
use rlaas_testkit::{TempDir, eventually};
use tonic::{Code, Request};

use super::client::{Client, client, rule};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a server with a file for the service and one for a project.
fn start(dir: &TempDir, settings: &[&str], shop: &str) -> Rlaas {
    let service = dir.write("rlaas.yaml", "auth: { api-keys: accepted }\nunmatched: allow\n");
    let shop = dir.write("shop.yaml", shop);
    let mut command = rlaas_testkit::process::rlaas(&["serve", "--config"]);
    command.arg(service).arg("--config").arg(shop);
    Rlaas::start_with(command, settings)
}

const SHOP: &str = "project: shop\nrules:\n  - name: login\n    match: { resource: /login }\n    \
                    limit: 1\n    window: 1h\n";

async fn key(client: &mut Client) -> String {
    let request = proto::CreateKeyRequest { project_id: "shop".to_owned(), ..Default::default() };
    client.create_key(request).await.expect("a key").into_inner().secret
}

/// Returns whether a request of the key is allowed, and by which rule.
async fn check(server: &Rlaas, key: &str, resource: &str) -> Result<(bool, String), Code> {
    let request = rules::CheckRequest { resource: resource.to_owned(), ..request("alice") };
    let mut request = Request::new(request);
    request.metadata_mut().insert("x-api-key", key.parse().expect("a header"));
    let response = server.client().await.check(request).await.map_err(|status| status.code())?;
    let response = response.into_inner();
    Ok((response.allowed, response.rule))
}

async fn rules_of(client: &mut Client) -> Vec<(String, Kind, bool)> {
    let request = proto::ListRulesRequest { project_id: "shop".to_owned(), ..Default::default() };
    let listed = client.list_rules(request).await.expect("rules").into_inner().rules;
    let one = |rule: proto::ProjectRule| {
        assert_eq!(rule.project_id, "shop");
        let of = rule.rule.expect("a rule");
        (of.name.clone(), of.origin.expect("an origin").kind(), rule.hidden)
    };
    listed.into_iter().map(one).collect()
}

fn named(name: &str) -> (String, Kind, bool) {
    (name.to_owned(), Kind::File, false)
}

#[tokio::test]
async fn file_makes_a_project_that_works_like_others() {
    let dir = TempDir::new();
    let server = start(&dir, &[], SHOP);
    let mut client = client(&server, "").await;
    let project = || proto::GetProjectRequest { project_id: "shop".to_owned() };
    let found = client.get_project(project()).await.expect("a project").into_inner().project;
    let found = found.expect("a project");
    assert_eq!((found.unmatched(), found.revision), (rules::UnmatchedPolicy::Deny, 0));
    assert_eq!((&*found.etag, found.created_at), ("0000000000000000", None));
    assert_eq!((found.keys, found.rules), (0, 1));
    let listed = client.list_projects(proto::ListProjectsRequest::default()).await;
    let listed = listed.expect("projects").into_inner().projects;
    let ids: Vec<_> = listed.iter().map(|project| &*project.id).collect();
    assert_eq!(ids, ["shop", ""]);

    let key = key(&mut client).await;
    let login = || "login".to_owned();
    assert_eq!(check(&server, &key, "/login").await, Ok((true, login())));
    assert_eq!(check(&server, &key, "/login").await, Ok((false, login())));
    assert_eq!(check(&server, &key, "/other").await, Err(Code::PermissionDenied));
    // Rules made at run time are in force beside those of the file.
    let create = |name: &str| proto::CreateRuleRequest {
        project_id: "shop".to_owned(),
        rule: Some(rule(name, "/other")),
        reason: String::new(),
    };
    client.create_rule(create("other")).await.expect("a rule");
    assert_eq!(check(&server, &key, "/other").await, Ok((true, "other".to_owned())));
    let of_run_time = ("other".to_owned(), Kind::RunTime, false);
    assert_eq!(rules_of(&mut client).await, [named("login"), of_run_time]);
    let explain = proto::ExplainRequest {
        request: Some(rules::CheckRequest { resource: "/login".to_owned(), ..request("alice") }),
        project_id: "shop".to_owned(),
        ..Default::default()
    };
    let mut admin = AdminServiceClient::new(server.channel().await);
    let explained = admin.explain(explain).await.expect("an explanation").into_inner().rules;
    let origin = |name: &str| {
        let rule = explained.iter().find(|rule| rule.rule == name).expect("a rule");
        rule.origin.clone().map(|origin| (origin.kind(), origin.source))
    };
    let of_login = (Kind::File, dir.path("shop.yaml").display().to_string());
    assert_eq!(origin("login"), Some(of_login.clone()));
    assert_eq!(origin("other"), Some((Kind::RunTime, "shop".to_owned())));
    let mut request = Request::new(rules::GetConfigRequest::default());
    request.metadata_mut().insert("x-api-key", key.parse().expect("a header"));
    let config = server.client().await.get_config(request).await.expect("rules").into_inner();
    let in_force = config.rules.into_iter().map(|rule| {
        let origin = rule.origin.expect("an origin");
        (rule.name, (origin.kind(), origin.source))
    });
    let built_in = ("default".to_owned(), (Kind::BuiltIn, String::new()));
    let of_run_time = ("other".to_owned(), (Kind::RunTime, "shop".to_owned()));
    let expected = [built_in, ("login".to_owned(), of_login), of_run_time];
    assert_eq!(in_force.collect::<Vec<_>>(), expected);

    let taken = client
        .create_project(proto::CreateProjectRequest {
            project: Some(proto::Project { id: "shop".to_owned(), ..Default::default() }),
            ..Default::default()
        })
        .await;
    assert_eq!(taken.expect_err("it is there").code(), Code::AlreadyExists);
    let delete = |etag: &str| proto::DeleteProjectRequest {
        project_id: "shop".to_owned(),
        etag: etag.to_owned(),
        ..Default::default()
    };
    let refused = client.delete_project(delete("")).await.expect_err("a file names it");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("a file names the project"), "{refused}");
    // What was never written has this etag, and no other.
    let never = client.delete_project(delete("0000000000000000")).await.expect_err("of a file");
    assert_eq!(never.code(), Code::FailedPrecondition);
    let stale = client.delete_project(delete("0000000000000001")).await.expect_err("an etag");
    assert_eq!(stale.code(), Code::Aborted);
    for refused in [
        client.create_rule(create("login")).await.err(),
        client
            .delete_rule(proto::DeleteRuleRequest {
                project_id: "shop".to_owned(),
                rule_name: login(),
                ..Default::default()
            })
            .await
            .err(),
        client
            .apply_rules(proto::ApplyRulesRequest {
                project_id: "shop".to_owned(),
                rules: vec![rule("login", "/x")],
                ..Default::default()
            })
            .await
            .err(),
    ] {
        let refused = refused.expect("a rule of a file");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    }
}

#[tokio::test]
async fn reload_puts_rules_of_projects_in_force() {
    let dir = TempDir::new();
    let server = start(&dir, &[], SHOP);
    let mut client = client(&server, "").await;
    let key = key(&mut client).await;
    let create = proto::CreateRuleRequest {
        project_id: "shop".to_owned(),
        rule: Some(rule("pay", "/pay")),
        reason: String::new(),
    };
    client.create_rule(create).await.expect("a rule");
    // The file has a rule of the same name now, another policy, and no login.
    let pay = "project: shop\nunmatched: allow\nrules: [{name: pay, limit: 7, window: 1h}]\n";
    dir.write("shop.yaml", pay);
    server.signal("HUP");
    eventually("the file is in force", TIMEOUT, async || {
        check(&server, &key, "/login").await == Ok((true, "pay".to_owned()))
    })
    .await;
    let hidden = ("pay".to_owned(), Kind::RunTime, true);
    assert_eq!(rules_of(&mut client).await, [named("pay"), hidden]);
    let update = |unmatched: rules::UnmatchedPolicy| proto::UpdateProjectRequest {
        project: Some(proto::Project {
            id: "shop".to_owned(),
            display_name: "The shop".to_owned(),
            unmatched: unmatched.into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let refused = client.update_project(update(rules::UnmatchedPolicy::Deny)).await;
    assert_eq!(refused.expect_err("the file has it").code(), Code::FailedPrecondition);
    let renamed = client.update_project(update(rules::UnmatchedPolicy::Allow)).await;
    let renamed = renamed.expect("a name").into_inner().project.expect("a project");
    assert_eq!((&*renamed.display_name, renamed.etag.is_empty()), ("The shop", false));

    // A wrong file changes nothing.
    dir.write("shop.yaml", "project: shop\nrules: [{name: pay, limit: many, window: 1h}]\n");
    server.signal("HUP");
    let failed = "rlaas_config_last_reload_successful";
    eventually("the reload fails", TIMEOUT, async || server.metric(failed).await == Some(0.0))
        .await;
    assert!(server.log().contains("rules[0].limit"), "{}", server.log());
    assert_eq!(check(&server, &key, "/x").await, Ok((true, "pay".to_owned())));

    // Without rules in a file those made at run time are in force, and the stored policy.
    dir.write("shop.yaml", "rules: []\n");
    server.signal("HUP");
    eventually("the rule is no longer hidden", TIMEOUT, async || {
        rules_of(&mut client).await == [("pay".to_owned(), Kind::RunTime, false)]
    })
    .await;
    assert_eq!(check(&server, &key, "/x").await, Err(Code::PermissionDenied));
    let delete =
        proto::DeleteProjectRequest { project_id: "shop".to_owned(), ..Default::default() };
    client.delete_project(delete).await.expect("no file names it");
}

#[test]
fn files_of_projects_are_checked_and_printed() {
    let dir = TempDir::new();
    let service = dir.write("rlaas.yaml", "rules: [{name: a, limit: 1, window: 1s}]\n");
    let shop = dir.write("shop.yaml", SHOP);
    let (service, shop) = (service.display().to_string(), shop.display().to_string());
    let (code, out, error) = run(&["check-config", &service, &shop]);
    assert_eq!((code, &*out), (0, "valid\n"), "{error}");
    let (code, out, _) = run(&["config", "--config", &service, "--config", &shop]);
    let (of_service, of_shop) = out.split_once("---\n").expect("two documents");
    assert!(code == 0 && of_service.contains("- name: a  # "), "{out}");
    assert!(!of_service.contains("login"), "{out}");
    assert!(
        of_shop.starts_with("project: shop  # ") && of_shop.contains("- name: login  # "),
        "{out}"
    );
    for (text, expected) in [
        ("project: No\n", "project: must be 1 to 63 lower case letters"),
        ("project: 5\n", "project: must be 1 to 63 lower case letters"),
        ("project: shop\nserver: { listen: 127.0.0.1:1 }\n", "server: unknown key (line 2)"),
        ("project: shop\nrules:\n  - {name: a, limit: 1}\n", "rules[0].window: missing (line 3"),
    ] {
        let wrong = dir.write("wrong.yaml", text).display().to_string();
        let (code, _, error) = run(&["check-config", &service, &wrong]);
        assert_eq!(code, 64, "{text}");
        assert!(error.contains(&wrong) && error.contains(expected), "{error}");
    }
    let (code, _, error) = run(&["config", "--set", "project=shop"]);
    assert!(code == 64 && error.contains("must be at the top of a rules file"), "{error}");
}
