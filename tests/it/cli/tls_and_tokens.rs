//! The commands with a server that requires TLS and tokens.

use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, finish, rlaas, run};
use rlaas_testkit::tls::{Certificate, Certificates};

const TOKEN: &str = "s3cret";
/// `printf %s s3cret | sha256sum`
const SHA256: &str = "1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0";

fn start(dir: &TempDir, settings: &[String]) -> Rlaas {
    let token = format!("{{name: shop, sha256: {SHA256}, roles: [check]}}");
    let file = dir.write("rlaas.yaml", &format!("auth: {{tokens: [{token}]}}"));
    Rlaas::start_from(&file, &settings.iter().map(String::as_str).collect::<Vec<_>>())
}

fn with_tls(certificates: &Certificates) -> Vec<String> {
    vec![
        format!("server.tls.cert={}", certificates.certificate(Certificate::Server).display()),
        format!("server.tls.key={}", certificates.key(Certificate::Server).display()),
        format!("server.tls.client-ca={}", certificates.authority().display()),
    ]
}

#[test]
fn token_comes_from_option_or_environment() {
    let dir = TempDir::new();
    let server = start(&dir, &[]);
    let check = ["check", "alice", "--addr", server.grpc()];
    let (code, _, error) = run(&check);
    assert_eq!(code, 2);
    assert!(error.contains("unknown bearer token or client certificate"), "{error}");
    assert_eq!(run(&[&check[..], &["--token", TOKEN]].concat()).0, 0);
    let by_environment = rlaas(&check).env("RLAAS_TOKEN", TOKEN).output();
    assert_eq!(finish(by_environment.expect("the program")).0, 0);
    let option_wins = rlaas(&check).args(["--token", "other"]).env("RLAAS_TOKEN", TOKEN).output();
    assert_eq!(finish(option_wins.expect("the program")).0, 2);
    assert_eq!(run(&["health", "--addr", server.grpc()]).0, 0, "health needs no token");

    for wrong in ["s3cret\n", "s3cret \u{1}"] {
        let (code, _, error) = run(&[&check[..], &["--token", wrong]].concat());
        assert_eq!(code, 2);
        assert!(error.contains("--token must be") && !error.contains("s3cret"), "{error}");
    }
    // Only client commands read the variable; the configuration ignores it.
    let config = rlaas(&["config"]).env("RLAAS_TOKEN", TOKEN).output();
    let (code, out, error) = finish(config.expect("the program"));
    assert_eq!((code, out.contains(TOKEN), error.as_str()), (0, false, ""));
}

#[test]
fn commands_speak_tls_and_present_certificates() {
    let certificates = Certificates::make();
    let dir = TempDir::new();
    let server = start(&dir, &with_tls(&certificates));
    let path = |path: std::path::PathBuf| path.display().to_string();
    let ca = path(certificates.authority());
    let cert = path(certificates.certificate(Certificate::Client));
    let key = path(certificates.key(Certificate::Client));
    let https = format!("https://{}", server.grpc());
    let identity = ["--cert", &cert, "--key", &key];
    let check = |more: &[&str]| run(&[&["check", "alice", "--token", TOKEN], more].concat());

    let (code, out, error) = check(&[&["--addr", &https, "--ca", &ca], &identity[..]].concat());
    assert_eq!(code, 0, "{out} {error}");
    let (code, _, error) =
        check(&[&["--addr", server.grpc(), "--ca", &ca], &identity[..]].concat());
    assert_eq!(code, 0, "--ca implies https: {error}");
    let health = ["health", "--addr", &https, "--ca", &ca];
    assert_eq!(run(&[&health, &identity[..]].concat()).0, 0);

    for (more, expected) in [
        (vec!["--addr", &https, "--ca", &ca], ""),
        (vec!["--addr", &https], "unknown issuer"),
        (vec!["--addr", server.grpc()], ""),
        (vec!["--addr", &https, "--ca", "/nowhere"], "--ca: can't read /nowhere"),
        (vec!["--addr", &https, "--ca", &ca, "--cert", &cert], "--key <FILE>"),
        (vec!["--addr", "http://127.0.0.1:1", "--ca", &ca], "require https://"),
        (vec!["--addr", "unix:/nowhere", "--ca", &ca], "require https://"),
    ] {
        let (code, out, error) = check(&more);
        assert_eq!((code, out.as_str()), (2, ""), "{more:?}: {error}");
        assert!(error.contains(expected), "{more:?}: {error}");
        assert!(!error.contains(TOKEN) && !error.is_empty(), "{more:?}: {error}");
    }
}
