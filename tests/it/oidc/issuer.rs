//! A real issuer: oidc-provider, in Node, from `tests/issuer`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rlaas_testkit::tls::{Certificate, Certificates};
use rlaas_testkit::tools::{npm_packages, skipped};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A running issuer, killed on drop.
#[derive(Debug)]
pub(crate) struct IssuerProcess {
    process: Child,
    name: String,
    /// Kept open: the issuer writes notices after its name.
    _output: BufReader<ChildStdout>,
}

impl IssuerProcess {
    /// Starts an issuer on a port, 0 for any, with these keys. Returns `None` and reports the
    /// skipped test if Node or its packages are missing.
    pub(super) fn start(port: u16, keys: &Value) -> Option<Self> {
        Self::start_with(&json!({ "port": port, "keys": keys, "clients": clients() }))
    }

    /// Starts an issuer that is reached by https, with a certificate for localhost.
    pub(super) fn start_https(
        certificates: &Certificates,
        certificate: Certificate,
        keys: &Value,
    ) -> Option<Self> {
        let cert = certificates.certificate(certificate).display().to_string();
        let key = certificates.key(certificate).display().to_string();
        let options = json!({ "port": 0, "keys": keys, "clients": {}, "cert": cert, "key": key });
        Self::start_with(&options)
    }

    /// Starts an issuer with these options, which `issuer.js` describes.
    pub(crate) fn start_with(options: &Value) -> Option<Self> {
        let mut command = Command::new("node");
        command.arg("issuer.js").arg(options.to_string()).current_dir(folder()?);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().expect("node");
        let mut name = String::new();
        let mut output = BufReader::new(process.stdout.take().expect("a pipe"));
        output.read_line(&mut name).expect("UTF-8");
        assert!(!name.is_empty(), "the issuer did not start: {options}");
        Some(Self { process, name: name.trim_end().to_owned(), _output: output })
    }

    /// Returns the name of the issuer, its URL.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Stops the issuer. Returns its port.
    pub(super) fn stop(self) -> u16 {
        let port = self.name.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        port.expect("a port")
    }

    /// Returns an access token of a client in [`clients`], signed by this algorithm.
    pub(super) async fn token(&self, client: &str, algorithm: &str) -> String {
        let address = self.name.strip_prefix("http://").expect("an issuer on loopback");
        let body = format!("grant_type=client_credentials&resource=urn:rlaas:{algorithm}");
        let credentials = STANDARD.encode(format!("{client}:secret-of-{client}"));
        let request = format!(
            "POST /token HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: \
             application/x-www-form-urlencoded\r\nAuthorization: Basic {credentials}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut connection = TcpStream::connect(address).await.expect("a running issuer");
        connection.write_all(request.as_bytes()).await.expect("an issuer that reads");
        let mut response = String::new();
        connection.read_to_string(&mut response).await.expect("a response");
        let token = response.split("\"access_token\":\"").nth(1);
        let token = token.and_then(|rest| rest.split('"').next());
        token.unwrap_or_else(|| panic!("{response}")).to_owned()
    }
}

impl Drop for IssuerProcess {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _already_gone = self.process.wait();
    }
}

/// Returns the clients, and the claims of their tokens.
fn clients() -> Value {
    json!({
        "shop": { "roles": ["check"] },
        "desk": { "roles": ["operate", "auditor"] },
        "ops": { "roles": ["admin"], "realm_access": { "roles": ["check"] } },
        "guest": { "roles": ["auditor"] },
        "nobody": {},
        "of-all": { "roles": ["check", "admin"], "projects": ["*"] },
        "of-shop": { "roles": ["check", "admin"], "projects": ["shop"] },
        "of-bank": { "roles": ["check", "admin"], "projects": ["bank"] },
        "of-text": { "roles": ["check", "admin"], "projects": "shop" },
        "of-mixture": { "roles": ["check", "admin"], "projects": ["shop", 7] },
    })
}

/// Returns the folder with the issuer and its packages, which later runs reuse.
fn folder() -> Option<&'static PathBuf> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match FOLDER.get_or_init(install) {
        Ok(folder) => Some(folder),
        Err(why) => {
            skipped("tests/issuer", why);
            None
        }
    }
}

fn install() -> Result<PathBuf, String> {
    npm_packages("issuer", &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/issuer"))
}
