//! Connection options of the commands that call a running server.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use rlaas_client::{Client, ClientBuilder, ConnectError};
use tokio::runtime::{Builder, Runtime};
use tonic::Status;

use crate::transport_error::Peer;

/// Minimum and maximum of `--timeout`.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_TIMEOUT: Duration = Duration::from_hours(1);
/// Environment variable with the token. Other users can read a command line, but not this variable.
const TOKEN_VARIABLE: &str = "RLAAS_TOKEN";
/// The same for the API key.
const API_KEY_VARIABLE: &str = "RLAAS_API_KEY";

const ADDR_HELP: &str = "Address of gRPC: host:port, https://host:port or unix:/path
[default: that of RLAAS_SERVER__LISTEN, else 127.0.0.1:50051]";

/// The address of the server, and the caller's credentials.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServerArgs {
    /// Address of gRPC
    #[arg(long, value_name = "URL", help = ADDR_HELP)]
    addr: Option<String>,
    /// Bearer token; safer in the environment variable `RLAAS_TOKEN`
    #[arg(long)]
    token: Option<Secret>,
    /// Certificate authorities to trust instead of the system's, in PEM
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Client certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Private key of the client certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Maximum time for the connection, and for the response
    #[arg(long, value_name = "D", default_value = "5s", value_parser = time_limit)]
    timeout: Duration,
}

/// The API key of commands that ask for decisions.
#[derive(Args, Clone, Debug)]
pub(crate) struct ProjectKeyArgs {
    /// API key of a project; safer in the variable `RLAAS_API_KEY`
    #[arg(long, value_name = "KEY")]
    api_key: Option<Secret>,
}

/// A bearer token or an API key. `Debug` hides it.
#[derive(Clone)]
struct Secret(String);

/// A server to connect to.
#[derive(Clone, Debug)]
pub(crate) struct ServerEndpoint {
    pub(crate) client: ClientBuilder,
    peer: Peer,
}

impl ServerArgs {
    /// Returns the address of the server that the options name.
    pub(crate) fn address(&self) -> String {
        self.addr.clone().unwrap_or_else(default_address)
    }

    /// Returns the longest time of a call.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Reads the files and returns the server that the options name.
    pub(crate) fn endpoint(&self) -> anyhow::Result<ServerEndpoint> {
        let addr = self.address();
        let mut client = Client::builder(&addr).timeout(self.timeout);
        if let Some(token) = given(self.token.as_ref(), TOKEN_VARIABLE) {
            client = client.token(&token);
        }
        if let Some(ca) = &self.ca {
            client = client.ca(read("--ca", ca)?);
        }
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            client = client.identity(read("--cert", cert)?, read("--key", key)?);
        }
        let peer = Peer { addr, timeout: self.timeout, is_certified: self.cert.is_some() };
        Ok(ServerEndpoint { client, peer })
    }
}

impl ServerEndpoint {
    /// Sends the API key of the options, if there is one.
    pub(crate) fn with_api_key(mut self, args: &ProjectKeyArgs) -> Self {
        if let Some(key) = given(args.api_key.as_ref(), API_KEY_VARIABLE) {
            self.client = self.client.api_key(&key);
        }
        self
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        self.client.clone().connect().await.map_err(|error| self.explain_connect(error))
    }

    /// Explains why there is no connection.
    pub(crate) fn explain_connect(&self, error: ConnectError) -> anyhow::Error {
        match error {
            ConnectError::Address => {
                anyhow!("--addr must be http://host:port, https://host:port or unix:/path")
            }
            ConnectError::Token => anyhow!("--token must be one line of ASCII"),
            ConnectError::ApiKey => anyhow!("--api-key must be one line of ASCII"),
            ConnectError::TlsUnused => anyhow!("--ca, --cert and --key require https://"),
            ConnectError::Tls(error) => anyhow::Error::new(error).context("--ca, --cert, --key"),
            ConnectError::Unreachable(error) => anyhow!(self.peer.explain_connect_error(&error)),
            ConnectError::TimedOut(_) => anyhow!(self.peer.explain_timeout()),
            other => other.into(),
        }
    }

    /// Explains why a call has failed.
    pub(crate) fn explain(&self, status: &Status) -> anyhow::Error {
        anyhow!(self.peer.explain_call_error(status))
    }
}

/// Returns the secret of an option, or else of an environment variable.
fn given(option: Option<&Secret>, variable: &str) -> Option<String> {
    let option = option.map(|Secret(secret)| secret.clone());
    option.or_else(|| std::env::var(variable).ok()).filter(|secret| !secret.is_empty())
}

fn read(option: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("{option}: can't read {}", path.display()))
}

fn time_limit(text: &str) -> Result<Duration, &'static str> {
    let limit = humantime::parse_duration(text).ok();
    let limit = limit.filter(|limit| (MIN_TIMEOUT..=MAX_TIMEOUT).contains(limit));
    limit.ok_or("must be a duration from 1ms to 1h, such as 5s")
}

impl From<String> for Secret {
    fn from(secret: String) -> Self {
        Self(secret)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Returns the address of a server with the same environment, as in a container's health check.
fn default_address() -> String {
    let listen = std::env::var("RLAAS_SERVER__LISTEN");
    let listen = listen.unwrap_or_else(|_| "127.0.0.1:50051".to_owned());
    // The first of several.
    loopback(listen.split([',', ' ']).next().unwrap_or_default())
}

/// Returns an address at which this machine reaches a server that listens on `address`.
pub fn loopback(address: &str) -> String {
    address.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")
}

/// Returns a runtime for the calls of one command.
///
/// # Errors
///
/// If the system has no resources for it.
pub fn runtime() -> anyhow::Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}
