//! The program without the feature `admin`: it is built, started and asked.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use rlaas_testkit::process::{self, Rlaas, check, finish};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

/// The program, built once, in a folder of its own.
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/target/sidecar");
    // Little memory and disk: it is built beside other tests.
    let built = Command::new(env!("CARGO"))
        .args(["build", "--package", "rlaas", "--bin", "rlaas", "--no-default-features"])
        .args(["--locked", "--offline", "--quiet", "--jobs", "1", "--target-dir", folder])
        .env("CARGO_INCREMENTAL", "0")
        .output();
    let (code, _, problems) = finish(built.expect("cargo"));
    assert_eq!(code, 0, "{problems}");
    PathBuf::from(folder).join("debug/rlaas")
});

fn sidecar(arguments: &[&str]) -> Command {
    let mut command = Command::new(&*PROGRAM);
    command.args(arguments).env_remove("REDIS_URL").env_remove("RUST_LOG");
    command
}

fn run(arguments: &[&str]) -> (i32, String, String) {
    finish(sidecar(arguments).output().expect("the program"))
}

#[tokio::test]
async fn it_decides_and_has_no_administration() {
    let server = Rlaas::start_with(sidecar(&["serve"]), &[]);
    let response = check(&mut server.client().await, "alice").await.expect("a decision");
    assert!(response.allowed);
    let (status, body) = server.post("/v1/check", r#"{"user_id": "alice"}"#).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(server.get("/v1/projects").await.0, 404);
    let (_, api) = server.get("/openapi.json").await;
    assert!(api.contains("/v1/reserve") && !api.contains("/v1/admin/"), "{api}");

    let mut client = ServerReflectionClient::new(server.channel().await);
    let question = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let asked = client.server_reflection_info(tokio_stream::iter([question])).await;
    let answer = asked.expect("reflection").into_inner().message().await.expect("an answer");
    let Some(MessageResponse::ListServicesResponse(listed)) =
        answer.and_then(|answer| answer.message_response)
    else {
        panic!("no list");
    };
    let names: Vec<String> = listed.service.into_iter().map(|one| one.name).collect();
    assert!(names.iter().any(|name| name == "ratelimit.v1.RateLimitService"), "{names:?}");
    assert!(!names.iter().any(|name| name.starts_with("ratelimit.admin.")), "{names:?}");
    assert!(server.log().contains("this build has no projects"), "{}", server.log());
}

#[test]
fn what_it_lacks_is_refused_by_name() {
    for (setting, what) in [
        ("auth.api-keys=required", "projects"),
        ("auth.oidc.issuer=https://id.example", "OpenID Connect"),
        ("envoy.projects.edge=shop", "projects"),
        ("server.console=127.0.0.1:0", "console"),
        ("audit.keys=clear", "audit"),
    ] {
        let (code, _, error) = run(&["serve", "--set", setting]);
        let key = setting.split('=').next().expect("a key");
        assert!(error.contains(&format!("this build has no {what}: feature admin")), "{error}");
        assert!(error.contains(key.split('.').next().expect("a word")), "{key}: {error}");
        assert_eq!(code, 64, "{setting}: {error}");
    }
    let environment = sidecar(&["config"]).env("RLAAS_AUTH__API_KEYS", "accepted").output();
    let (code, _, error) = finish(environment.expect("the program"));
    assert!(code == 64 && error.contains("RLAAS_AUTH__API_KEYS"), "{error}");
    let (code, shown, error) = run(&["config", "--set", "auth.api-keys=off"]);
    assert!(code == 0 && shown.contains("api-keys: off"), "{shown}{error}");

    let folder = rlaas_testkit::TempDir::new();
    let file = folder.write("shop.yaml", "project: shop\nrules: [{name: a, max-requests: 1}]\n");
    let (code, _, error) = run(&["check-config", file.to_str().expect("UTF-8")]);
    assert!(error.contains("project: this build has no projects: feature admin"), "{error}");
    assert_eq!(code, 64);
}

#[test]
fn every_command_is_there_or_refused_by_name() {
    let commands = |(_, help, _): (i32, String, String)| -> Vec<String> {
        let (commands, _) = help.split_once("Options:\n").expect("commands");
        let lines = commands.lines().filter(|line| line.starts_with("  "));
        lines.filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect()
    };
    let own = commands(run(&["--help"]));
    for name in commands(process::run(&["--help"])) {
        if own.contains(&name) {
            continue;
        }
        let (code, _, error) = run(&[&name]);
        assert!(
            error.contains("this build has no administration: feature admin"),
            "{name}: {error}"
        );
        assert_eq!(code, 64, "{name}");
    }
    assert!(own.contains(&"health".to_owned()) && !own.contains(&"rule".to_owned()), "{own:?}");
    let (_, version, _) = run(&["--version"]);
    assert_eq!(version, concat!("rlaas ", env!("CARGO_PKG_VERSION"), "\nfeatures: none\n"));
    let (_, version, _) = process::run(&["--version"]);
    assert_eq!(version, concat!("rlaas ", env!("CARGO_PKG_VERSION"), "\nfeatures: admin\n"));
}
