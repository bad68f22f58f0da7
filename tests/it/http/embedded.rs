//! The tower layer in a crate outside of the workspace, as embedders use it: one program has a
//! limiter, the other a client of a running server.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use rlaas_testkit::process::Rlaas;

use super::client::{HttpResponse, exchange};

const MANIFEST: &str = r#"
[package]
name = "embedder"
edition = "2024"

[workspace]

[dependencies]
axum = { version = "0.8", default-features = false, features = ["http1", "tokio"] }
rlaas-client = { path = "ROOT/crates/client", features = ["tower"] }
rlaas-limiter = { path = "ROOT/crates/limiter", features = ["tower"] }
tokio = { version = "1", features = ["macros", "net", "rt"] }

[profile.dev]
debug = false
"#;

const LOCAL: &str = r#"
use rlaas_limiter::tower::{KeyExtractor, RateLimitLayer, local};
use rlaas_limiter::{Limiter, Rule};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rule = Rule::gcra("hello").limit(3).per(std::time::Duration::from_secs(60));
    let limiter = Limiter::builder().rule(rule).build()?;
    let layer = RateLimitLayer::builder(local(limiter), KeyExtractor::header("x-api-key")).build()?;
    let app = axum::Router::new().route("/", axum::routing::get(async || "hello")).layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
"#;

const REMOTE: &str = r#"
use rlaas_client::{Client, tower::remote};
use rlaas_limiter::tower::{KeyExtractor, RateLimitLayer};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::builder(std::env::args().nth(1).ok_or("no address")?).connect().await?;
    let layer = RateLimitLayer::builder(remote(client), KeyExtractor::header("x-api-key")).build()?;
    let app = axum::Router::new().route("/", axum::routing::get(async || "hello")).layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
"#;

/// The folder of the programs, which are built from the dependencies of the workspace.
static PROGRAMS: LazyLock<PathBuf> = LazyLock::new(|| {
    let (root, dir) = (env!("CARGO_MANIFEST_DIR"), Path::new(env!("CARGO_TARGET_TMPDIR")));
    let package = dir.join("embedder");
    let write = |name: &str, text: &str| {
        let path = package.join(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        std::fs::write(path, text).expect("a file below target");
    };
    let lock = std::fs::read_to_string(Path::new(root).join("Cargo.lock")).expect("a lock file");
    write("Cargo.toml", &MANIFEST.replace("ROOT", root));
    write("Cargo.lock", &lock);
    write("src/bin/local.rs", LOCAL);
    write("src/bin/remote.rs", REMOTE);
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--offline", "--quiet", "--target-dir"]).arg(package.join("target"));
    let built = cargo.current_dir(&package).output().expect("cargo");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    package.join("target/debug")
});

/// A running program; killed when it is dropped.
struct Embedder {
    process: Child,
    address: String,
}

impl Embedder {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(PROGRAMS.join(program));
        let process = command.args(arguments).stdout(Stdio::piped()).spawn();
        let mut process = process.expect("the program");
        let mut address = String::new();
        let stdout = process.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut address).expect("an address");
        Self { process, address: address.trim().to_owned() }
    }

    async fn get(&self, key: &str) -> HttpResponse {
        let request = "GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\nx-api-key: ";
        exchange(&self.address, format!("{request}{key}\r\n\r\n").as_bytes()).await
    }

    /// Asserts that three requests of a user pass and the fourth does not, and that other users
    /// pass.
    async fn assert_limits_to_three(&self, policy: &str, name: &str) {
        for remaining in (0..3).rev() {
            let answer = self.get("alice").await;
            assert_eq!((answer.status, &*answer.body), (200, "hello"));
            assert_eq!(answer.header("ratelimit-policy"), Some(policy));
            let limit = answer.header("ratelimit").expect("a header");
            assert!(limit.starts_with(&format!("\"{name}\";r={remaining};t=")), "{limit}");
            assert_eq!(answer.header("retry-after"), None);
        }
        let refused = self.get("alice").await;
        assert_eq!(refused.status, 429);
        let wait: u64 = refused.header("retry-after").expect("a header").parse().expect("seconds");
        assert!((1..=60).contains(&wait), "{wait}");
        assert_eq!(refused.header("ratelimit-policy"), Some(policy));
        let limit = format!("\"{name}\";r=0;t={wait}");
        assert_eq!(refused.header("ratelimit"), Some(&*limit));
        assert!(refused.detail().starts_with("try again after "), "{refused:?}");
        assert_eq!(refused.json()["violated-policies"], serde_json::json!([name]));
        assert_eq!(self.get("bob").await.status, 200);
    }
}

impl Drop for Embedder {
    fn drop(&mut self) {
        let _has_ended = self.process.kill();
        let _is_reaped = self.process.wait();
    }
}

#[tokio::test]
async fn embedded_limiter_limits_a_route() {
    Embedder::start("local", &[]).assert_limits_to_three("\"hello\";q=3;w=60", "hello").await;
}

#[tokio::test]
async fn embedded_client_limits_a_route_through_a_server() {
    let server = Rlaas::start(&["rate-limiter.max-requests=3", "rate-limiter.use-algo=gcra"]);
    let embedder = Embedder::start("remote", &[server.grpc()]);
    embedder.assert_limits_to_three("\"default\";q=3;w=60", "default").await;
    drop(server);
    let refused = embedder.get("carol").await;
    assert_eq!((refused.status, &*refused.detail()), (503, "rate limiter unavailable"));
    assert_eq!(refused.header("retry-after"), Some("1"));
}
