//! What the commands that ask a running server share: the way to it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use clap::Args;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderValue, Request, Response, header};
use tonic::transport::{self, Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::transport_error::Peer;

/// Bounds of `--timeout`.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_TIMEOUT: Duration = Duration::from_hours(1);
/// Tells the token where nobody else sees it, other than on a command line.
const TOKEN_VARIABLE: &str = "RLAAS_TOKEN";

const ADDR_HELP: &str = "Where gRPC is answered: host:port, https://host:port or unix:/path
[default: that of RLAAS_SERVER__LISTEN, else 127.0.0.1:50051]";

/// Where the server is, and what it wants to see.
#[derive(Args, Clone, Debug)]
pub(super) struct ServerArgs {
    /// Where gRPC is answered
    #[arg(long, value_name = "URL", help = ADDR_HELP)]
    addr: Option<String>,
    /// Bearer token; better in the environment as `RLAAS_TOKEN`
    #[arg(long)]
    token: Option<Token>,
    /// Authorities to trust instead of the system's, in PEM
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Certificate to show to the server, in PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Its private key, in PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Longest wait for a connection, and for a response
    #[arg(long, value_name = "D", default_value = "5s", value_parser = time_limit)]
    timeout: Duration,
}

/// A bearer token. Never shown.
#[derive(Clone)]
struct Token(String);

impl ServerArgs {
    pub(super) async fn connect(&self) -> anyhow::Result<Connection> {
        let authorization = self.authorization()?;
        let addr = self.addr.clone().unwrap_or_else(own_address);
        let url = self.with_scheme(&addr);
        let valid = "--addr: must be http://host:port, https://host:port or unix:/path";
        let schemes = ["http://", "https://", "unix:"];
        ensure!(schemes.iter().any(|scheme| url.starts_with(scheme)), valid);
        let mut endpoint = Endpoint::from_shared(url.clone()).map_err(|_| anyhow!(valid))?;
        if url.starts_with("https://") {
            endpoint = endpoint.tls_config(self.tls()?).context("--ca, --cert, --key")?;
        } else if self.is_for_tls() {
            bail!("--ca, --cert and --key: valid only with https://");
        }
        let peer = Peer {
            tls: url.starts_with("https://").then(|| self.probe_tls()).transpose()?,
            has_certificate: self.cert.is_some(),
            timeout: self.timeout,
            addr,
            url,
        };
        let endpoint = endpoint.connect_timeout(self.timeout).timeout(self.timeout);
        // A handshake has no time limit of its own.
        match timeout(self.timeout, endpoint.connect()).await {
            Ok(Ok(channel)) => Ok(Connection { channel, authorization, peer }),
            Ok(Err(error)) => bail!(peer.no_connection(&error)),
            Err(_elapsed) => bail!(peer.no_connection_in_time()),
        }
    }

    fn with_scheme(&self, addr: &str) -> String {
        if addr.contains("://") || addr.starts_with("unix:") {
            addr.to_owned()
        } else if self.is_for_tls() {
            format!("https://{addr}")
        } else {
            format!("http://{addr}")
        }
    }

    fn is_for_tls(&self) -> bool {
        self.ca.is_some() || self.cert.is_some()
    }

    fn tls(&self) -> anyhow::Result<ClientTlsConfig> {
        let mut tls = match &self.ca {
            Some(ca) => {
                ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read("--ca", ca)?))
            }
            None => ClientTlsConfig::new().with_native_roots(),
        };
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            tls = tls.identity(Identity::from_pem(read("--cert", cert)?, read("--key", key)?));
        }
        Ok(tls)
    }

    /// The same for the probe of [`Peer`], which is made after tonic has accepted the files.
    fn probe_tls(&self) -> anyhow::Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(ca) => roots.add_parsable_certificates(certificates("--ca", ca)?),
            None => roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
        };
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let mut config = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let key = PrivateKeyDer::from_pem_slice(&read("--key", key)?).context("--key")?;
                builder.with_client_auth_cert(certificates("--cert", cert)?, key)?
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }

    /// The header that shows the token.
    fn authorization(&self) -> anyhow::Result<Option<HeaderValue>> {
        let from_environment = || std::env::var(TOKEN_VARIABLE).ok().map(Token);
        let token = self.token.clone().or_else(from_environment);
        let Some(Token(token)) = token.filter(|Token(token)| !token.is_empty()) else {
            return Ok(None);
        };
        let header = HeaderValue::try_from(format!("Bearer {token}"));
        let mut header = header.map_err(|_| anyhow!("--token: valid is a line of ASCII"))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

fn read(option: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("{option}: can't read {}", path.display()))
}

fn certificates(option: &str, path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let pem = read(option, path)?;
    let all: Result<_, _> = CertificateDer::pem_slice_iter(&pem).collect();
    all.with_context(|| option.to_owned())
}

fn time_limit(text: &str) -> Result<Duration, &'static str> {
    let limit = humantime::parse_duration(text).ok();
    let limit = limit.filter(|limit| (MIN_TIMEOUT..=MAX_TIMEOUT).contains(limit));
    limit.ok_or("must be a duration from 1ms to 1h, such as 5s")
}

impl From<String> for Token {
    fn from(token: String) -> Self {
        Self(token)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A connection that shows the token with each call, if there is one.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    channel: Channel,
    authorization: Option<HeaderValue>,
    peer: Peer,
}

impl Connection {
    /// Explains why a call over this connection has failed.
    pub(super) async fn explain(&self, status: &Status) -> anyhow::Error {
        anyhow!(self.peer.no_response(status).await)
    }
}

impl Service<Request<Body>> for Connection {
    type Response = Response<Body>;
    type Error = transport::Error;
    type Future = <Channel as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::poll_ready(&mut self.channel, cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
        }
        Service::call(&mut self.channel, request)
    }
}

/// Where a server with this environment listens: that is how a container asks its own.
fn own_address() -> String {
    let listen = std::env::var("RLAAS_SERVER__LISTEN");
    let listen = listen.unwrap_or_else(|_| "127.0.0.1:50051".to_owned());
    // Of several the first.
    loopback(listen.split([',', ' ']).next().unwrap_or_default())
}

/// Returns an address at which this machine reaches a server that listens on `address`.
pub(super) fn loopback(address: &str) -> String {
    address.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")
}

pub(super) fn runtime() -> anyhow::Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}
