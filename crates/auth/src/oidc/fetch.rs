//! Documents of the issuer, over HTTPS.
//!
//! One request on one connection: no proxy, no redirect, no compression, and a bound on the size and
//! on the time of all of it. A client with more features would have to be held back.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, StatusCode, header};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::keys::{KeySet, KeySetError};
use super::settings::{Issuer, OidcSettings};
use super::url::{FetchUrl, FetchUrlError};

/// Maximum size of a document, in bytes.
const MAX_DOCUMENT: usize = 1024 * 1024;
/// Maximum size of the head of a response, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// Timeout for a document, from the look-up of the name to the last byte.
pub(super) const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason why keys can't be fetched.
#[derive(Debug, Error)]
pub(super) enum FetchError {
    #[error("no response within {} s", FETCH_TIMEOUT.as_secs())]
    TimedOut,
    #[error("can't connect")]
    Connect(#[source] io::Error),
    #[error("{0} is not on loopback, so it must be reached by https")]
    NotLoopback(String),
    #[error("TLS handshake failed")]
    Tls(#[source] io::Error),
    #[error("not HTTP")]
    Http(#[source] hyper::Error),
    #[error("status {0}; redirects are not followed")]
    Status(StatusCode),
    #[error("document is larger than {MAX_DOCUMENT} bytes")]
    TooLarge,
    #[error("discovery document must have issuer and jwks_uri")]
    Discovery(#[source] serde_json::Error),
    #[error("discovery document is of issuer {0:?}")]
    OtherIssuer(String),
    #[error("jwks_uri {0}")]
    KeysUrl(#[from] FetchUrlError),
    #[error("jwks_uri must be an https URL, as the issuer is")]
    Downgrade,
    #[error("key set: {0}")]
    Keys(#[from] KeySetError),
    #[error("response has no id_token")]
    Token(#[source] serde_json::Error),
}

#[derive(Deserialize)]
struct DiscoveryDocument {
    issuer: String,
    jwks_uri: String,
    authorization_endpoint: Option<Value>,
    token_endpoint: Option<Value>,
}

/// The endpoints by which visitors of the console sign in.
#[derive(Debug)]
pub(super) struct SignInEndpoints {
    pub(super) authorization: FetchUrl,
    pub(super) token: FetchUrl,
}

/// What the issuer publishes.
#[derive(Debug)]
pub(super) struct IssuerDocuments {
    pub(super) keys: KeySet,
    /// `None` unless both are https URLs, as the issuer is.
    pub(super) endpoints: Option<SignInEndpoints>,
}

/// Fetches the discovery document of the issuer, and the keys that it names. Keys that are in `before`
/// too are shared with it.
///
/// **Source:** OpenID Connect Discovery 1.0, sections 4.2 and 4.3.
pub(super) async fn fetch_documents(
    settings: &OidcSettings,
    before: &KeySet,
) -> Result<IssuerDocuments, FetchError> {
    let (issuer, tls) = (&settings.issuer, settings.trust.config());
    let discovery = fetch(issuer.discovery(), tls).await?;
    let discovery: DiscoveryDocument =
        serde_json::from_slice(&discovery).map_err(FetchError::Discovery)?;
    if discovery.issuer != issuer.name() {
        let shown = discovery.issuer.chars().take(MAX_SHOWN).collect();
        return Err(FetchError::OtherIssuer(shown));
    }
    let keys: FetchUrl = discovery.jwks_uri.parse()?;
    if issuer.is_https() && !keys.is_https() {
        return Err(FetchError::Downgrade);
    }
    let endpoints = discovery.endpoints(issuer);
    let keys = KeySet::from_json(&fetch(&keys, tls).await?, before)?;
    Ok(IssuerDocuments { keys, endpoints })
}

impl DiscoveryDocument {
    /// Returns the endpoints for signing in. API calls need none, so an invalid one is no error.
    fn endpoints(&self, issuer: &Issuer) -> Option<SignInEndpoints> {
        let url = |value: &Option<Value>| {
            let url: FetchUrl = value.as_ref()?.as_str()?.parse().ok()?;
            (url.is_https() || !issuer.is_https()).then_some(url)
        };
        let authorization = url(&self.authorization_endpoint)?;
        Some(SignInEndpoints { authorization, token: url(&self.token_endpoint)? })
    }
}

/// Maximum number of characters of another issuer in the log.
const MAX_SHOWN: usize = 200;

async fn fetch(url: &FetchUrl, tls: &Arc<ClientConfig>) -> Result<Vec<u8>, FetchError> {
    let request = Request::get(url.target()).body(String::new());
    let request = request.expect("a URL has a valid path");
    match exchange(url, tls, request).await? {
        (StatusCode::OK, document) => Ok(document),
        (status, _) => Err(FetchError::Status(status)),
    }
}

/// Sends a request, and returns the status and the body of the response.
pub(super) async fn exchange(
    url: &FetchUrl,
    tls: &Arc<ClientConfig>,
    request: Request<String>,
) -> Result<(StatusCode, Vec<u8>), FetchError> {
    let fetched = async {
        let tcp = connect(url).await?;
        if !url.is_https() {
            return send(url, tcp, request).await;
        }
        let name = ServerName::try_from(url.host().to_owned());
        let name = name.map_err(|error| FetchError::Tls(io::Error::other(error)))?;
        let connected = TlsConnector::from(Arc::clone(tls)).connect(name, tcp).await;
        send(url, connected.map_err(FetchError::Tls)?, request).await
    };
    timeout(FETCH_TIMEOUT, fetched).await.map_err(|_elapsed| FetchError::TimedOut)?
}

/// Connects to the first address of the host that accepts. Without TLS the address itself must be on
/// loopback, whatever the name is.
async fn connect(url: &FetchUrl) -> Result<TcpStream, FetchError> {
    let addresses = lookup_host((url.host(), url.port())).await.map_err(FetchError::Connect)?;
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        if !url.is_https() && !address.ip().to_canonical().is_loopback() {
            return Err(FetchError::NotLoopback(url.host().to_owned()));
        }
        match TcpStream::connect(address).await {
            Ok(connection) => return Ok(connection),
            Err(error) => failed = error,
        }
    }
    Err(FetchError::Connect(failed))
}

async fn send<S>(
    url: &FetchUrl,
    stream: S,
    mut request: Request<String>,
) -> Result<(StatusCode, Vec<u8>), FetchError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let handshake = http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(FetchError::Http)?;
    let host = HeaderValue::try_from(url.authority()).expect("a URL has a valid host");
    for (name, value) in [
        (header::HOST, host),
        (header::ACCEPT, HeaderValue::from_static("application/json")),
        (header::USER_AGENT, HeaderValue::from_static("rlaas")),
        (header::CONNECTION, HeaderValue::from_static("close")),
    ] {
        request.headers_mut().insert(name, value);
    }
    let exchange = async {
        let response = sender.send_request(request).await.map_err(FetchError::Http)?;
        let status = response.status();
        if !status.is_success() && !status.is_client_error() {
            return Err(FetchError::Status(status));
        }
        Ok((status, read(response.into_body()).await?))
    };
    tokio::pin!(exchange, connection);
    tokio::select! {
        biased;
        document = &mut exchange => document,
        // The response may be complete when the connection ends.
        ended = &mut connection => match ended {
            Ok(()) => exchange.await,
            Err(error) => Err(FetchError::Http(error)),
        },
    }
}

async fn read(mut body: Incoming) -> Result<Vec<u8>, FetchError> {
    let mut document = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(data) = frame.map_err(FetchError::Http)?.into_data() else { continue };
        if document.len() + data.len() > MAX_DOCUMENT {
            return Err(FetchError::TooLarge);
        }
        document.extend_from_slice(&data);
    }
    Ok(document)
}
