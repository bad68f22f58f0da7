//! Started in the place of envoyproxy/ratelimit: its environment and its command line.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rlaas_testkit::process::{Rlaas, finish, program, run};
use rlaas_testkit::tls::{Certificate, Certificates};

/// Returns the program under another name.
fn started_as(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.arg0(name).args(arguments).env_clear();
    command
}

/// The environment in which rules are those of a management server, which is not there.
fn with_xds(command: &mut Command) -> &mut Command {
    let server = ("CONFIG_GRPC_XDS_SERVER_URL", "127.0.0.1:1");
    command.env("CONFIG_TYPE", "GRPC_XDS_SOTW").envs([server, ("LOG_LEVEL", "info")])
}

#[test]
fn foreign_arguments_of_ratelimit_are_ignored_with_a_warning() {
    let foreign = ["--quotaRateLimitServiceAddr=secret:1", "--level", "debug", "-v", "--x=--y=z"];
    let mut command = started_as("/bin/ratelimit", &foreign);
    with_xds(&mut command);
    // The test adds --set, which is an option of ours and stays.
    let server = Rlaas::start_with(command, &["server.name=kept"]);
    let log = server.log();
    let warned: Vec<_> = log.lines().filter(|line| line.contains("are ignored")).collect();
    assert_eq!(warned.len(), 1, "{log}");
    let names = "--quotaRateLimitServiceAddr --level -v --x";
    assert!(warned[0].contains("WARN") && warned[0].contains(names), "{}", warned[0]);
    assert!(!log.contains("secret"), "{log}");
}

#[test]
fn arguments_are_not_ignored_otherwise() {
    let run = |name, arguments: &[&str], is_configured: bool| {
        let mut command = started_as(name, arguments);
        if is_configured {
            with_xds(&mut command);
        }
        finish(command.output().expect("the program"))
    };
    for (name, argument, is_configured) in [
        ("ratelimit", "--unknown", false),
        ("rlaas", "--unknown", true),
        ("/ratelimit/rlaas", "--unknown", true),
        ("ratelimit", "unknown", true),
        ("ratelimit", "-u", true),
    ] {
        let (code, _, error) = run(name, &[argument], is_configured);
        assert_eq!(code, 2, "{name} {argument} {is_configured}: {error}");
    }
    for argument in ["--help", "--version"] {
        let (code, out, _) = run("ratelimit", &[argument], true);
        assert!(code == 0 && !out.is_empty(), "{argument}");
    }
    // With an option of ours first, nothing is left out.
    for option in [&["--config", "x"][..], &["--config=x"], &["--set", "a=b"], &["--set=a=b"]] {
        let (code, _, error) = run("ratelimit", &[option, &["health"]].concat(), true);
        assert!(code == 64 && error.contains("before a command"), "{option:?} {code}: {error}");
        let (code, _, error) = run("ratelimit", &[option, &["--foreign"]].concat(), true);
        assert!(code == 2 && error.contains("--foreign"), "{option:?} {code}: {error}");
    }
    // An option of ours has to be right.
    let (code, _, error) = run("ratelimit", &["--foreign", "--set", "server.listen=1"], true);
    assert!(code == 64 && error.contains("server.listen"), "{code}: {error}");
}

/// Starts a server that asks for certificates of clients over gRPC, by the environment.
fn with_client_certificates(certificates: &Certificates, more: &[(&str, &str)]) -> Rlaas {
    let mut command = started_as("ratelimit", &["serve"]);
    with_xds(&mut command).env("GRPC_SERVER_USE_TLS", "true");
    command.env("GRPC_SERVER_TLS_CERT", certificates.certificate(Certificate::Server));
    command.env("GRPC_SERVER_TLS_KEY", certificates.key(Certificate::Server));
    command.env("GRPC_CLIENT_TLS_CACERT", certificates.authority());
    command.envs(more.iter().copied());
    Rlaas::start_with(command, &[])
}

/// Asks for a decision over gRPC, with a certificate or without one.
fn check(server: &Rlaas, certificates: &Certificates, of: Option<Certificate>) -> (i32, String) {
    let address = format!("https://{}", server.grpc());
    let text = |path: std::path::PathBuf| path.display().to_string();
    let ca = text(certificates.authority());
    let mut arguments = vec!["check", "alice", "--addr", &address, "--ca", &ca];
    let identity = of.map(|of| (text(certificates.certificate(of)), text(certificates.key(of))));
    if let Some((cert, key)) = &identity {
        arguments.extend(["--cert", cert, "--key", key]);
    }
    let (code, _, error) = run(&arguments);
    (code, error)
}

#[tokio::test]
async fn probes_are_plain_beside_client_certificates_and_nothing_else_is() {
    let certificates = Certificates::make();
    let server = with_client_certificates(&certificates, &[]);
    for path in ["/livez", "/healthcheck", "/metrics"] {
        let (status, body) = server.get(path).await;
        assert!(matches!(status, 200 | 503 | 500), "{path}: {status} {body}");
    }
    assert_eq!(server.get("/livez").await.0, 200);
    for (path, body) in [
        ("/v1/check", r#"{"user_id":"alice"}"#),
        ("/json", r#"{"domain":"a","descriptors":[{"entries":[{"key":"a"}]}]}"#),
    ] {
        let (status, body) = server.post(path, body).await;
        assert_eq!(status, 401, "{path}: {body}");
    }
    assert_eq!(server.get("/check?user_id=alice").await.0, 401);
    assert_eq!(server.get("/v1/projects").await.0, 401);
    assert_eq!(check(&server, &certificates, Some(Certificate::Client)).0, 0);
    for of in [None, Some(Certificate::ForeignClient)] {
        assert_eq!(check(&server, &certificates, of).0, 2, "{of:?}");
    }
}

#[tokio::test]
async fn certificate_of_a_client_must_have_the_name() {
    let certificates = Certificates::make();
    let right = with_client_certificates(&certificates, &[("GRPC_CLIENT_TLS_SAN", "shop.example")]);
    let (code, error) = check(&right, &certificates, Some(Certificate::Client));
    assert_eq!(code, 0, "{error}");
    assert_eq!(right.get("/livez").await.0, 200);
    assert!(!right.log().contains("are not encrypted"), "{}", right.log());
    let other = with_client_certificates(&certificates, &[("GRPC_CLIENT_TLS_SAN", "example")]);
    let (code, error) = check(&other, &certificates, Some(Certificate::Client));
    assert!(code == 2 && error.contains("client certificate"), "{error}");
}
