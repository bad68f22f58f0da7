//! The builder of clients: settings, and connecting.

use std::fmt;
use std::time::Duration;

use rlaas_core::clock::{Clock, SystemClock};
use rlaas_core::decide::OnNoAnswer;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tonic::codegen::http::{HeaderName, HeaderValue, header};
use tonic::transport::{self, Certificate, ClientTlsConfig, Endpoint, Identity};

use super::Client;
use crate::channel::{ApiChannel, Credentials};

/// Interval of pings on a connection with calls in flight. They detect a server that disappeared
/// without closing the connection.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Builds a [`Client`].
///
/// ```
/// use std::time::Duration;
///
/// use rlaas_client::{Client, OnNoAnswer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), rlaas_client::ConnectError> {
/// let client = Client::builder("https://rlaas.internal:50051")
///     .token("s3cret")
///     .timeout(Duration::from_millis(100))
///     .on_no_answer(OnNoAnswer::Deny)
///     .max_age(Duration::from_millis(500))
///     .connect_lazy()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ClientBuilder {
    address: String,
    token: Option<String>,
    api_key: Option<String>,
    ca: Option<Certificate>,
    identity: Option<Identity>,
    connect_timeout: Duration,
    pub(crate) timeout: Duration,
    pub(crate) on_no_answer: Option<OnNoAnswer>,
    pub(crate) on_overload: OnNoAnswer,
    pub(crate) max_age: Duration,
    pub(crate) max_retries: u32,
    pub(crate) clock: Clock,
    #[cfg(feature = "testing")]
    pub(crate) service: Option<crate::testing::TestService>,
}

/// The reason why there is no client or no connection.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address has none of the accepted forms.
    #[error("address must be host:port, http://host:port, https://host:port or unix:/path")]
    Address,
    /// The token has characters that are not allowed in headers.
    #[error("token must be one line of visible ASCII characters")]
    Token,
    /// The API key has characters that are not allowed in headers.
    #[error("API key must be one line of visible ASCII characters")]
    ApiKey,
    /// Certificates are set, but the address does not begin with `https://`.
    #[error("address must begin with https:// if certificates are set")]
    TlsUnused,
    /// A certificate or key is not valid.
    #[error("certificates and key must be PEM")]
    Tls(#[source] transport::Error),
    /// [`ClientBuilder::connect_lazy`] was called outside of a tokio runtime, which has to drive
    /// the connection.
    #[error("a client must be built inside a tokio runtime")]
    NoRuntime,
    /// The server could not be reached.
    #[error("connection failed")]
    Unreachable(#[source] transport::Error),
    /// The connection was not established in time.
    #[error("connection not established within {0:?}")]
    TimedOut(Duration),
}

impl ClientBuilder {
    pub(crate) fn new(address: String) -> Self {
        Self {
            address,
            token: None,
            api_key: None,
            ca: None,
            identity: None,
            connect_timeout: Duration::from_secs(1),
            timeout: Duration::from_millis(250),
            on_no_answer: None,
            on_overload: OnNoAnswer::Deny,
            max_age: Duration::from_secs(1),
            max_retries: 0,
            clock: Clock::System(SystemClock::new()),
            #[cfg(feature = "testing")]
            service: None,
        }
    }

    #[cfg(feature = "testing")]
    pub(crate) fn service(self, service: crate::testing::TestService) -> Self {
        Self { service: Some(service), ..self }
    }

    /// Sends this bearer token with each call.
    #[must_use]
    pub fn token(self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self }
    }

    /// Sends this API key with each call. It names the project whose rules decide.
    #[must_use]
    pub fn api_key(self, key: &str) -> Self {
        Self { api_key: Some(key.to_owned()), ..self }
    }

    /// Trusts these certificate authorities, in PEM, instead of those of the system.
    #[must_use]
    pub fn ca(self, pem: impl AsRef<[u8]>) -> Self {
        Self { ca: Some(Certificate::from_pem(pem)), ..self }
    }

    /// Presents this client certificate with its private key, both in PEM.
    #[must_use]
    pub fn identity(self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Self {
        Self { identity: Some(Identity::from_pem(certificate, key)), ..self }
    }

    /// Sets the timeout of connecting, by default one second, and of each call, by default 250 ms. The time of a check
    /// begins when it is sent: 128 are in flight at a time, the others wait for up to a second.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { connect_timeout: timeout, timeout, ..self }
    }

    /// Sets the policy for requests that an overloaded server or program does not decide: the server says so; or it
    /// answers, but too many calls wait, or one has waited for a second, or this program is late. By default
    /// they are refused.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use rlaas_client::{Client, OnNoAnswer};
    ///
    /// let client = Client::builder("rlaas.internal:50051").on_overload(OnNoAnswer::Allow).connect_lazy()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn on_overload(self, policy: OnNoAnswer) -> Self {
        Self { on_overload: policy, ..self }
    }

    /// Sets the policy for requests that the server does not answer. By default they are errors.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let attributes = std::collections::HashMap::new();
    /// # let request = rlaas_core::rules::Request::new(rlaas_core::rules::RequestFields {
    /// #     user_id: "alice", resource: "", attributes: &attributes, cost: None, dry_run: false })?;
    /// use rlaas_client::{AnsweredBy, CheckError, Client, OnNoAnswer};
    ///
    /// let builder = Client::builder("unix:/nowhere");
    /// let client = builder.clone().on_no_answer(OnNoAnswer::Allow).connect_lazy()?;
    /// let verdict = client.check(&request).await?;
    /// assert_eq!((verdict.is_allowed(), verdict.answered_by()), (true, AnsweredBy::Policy));
    ///
    /// let error = builder.connect_lazy()?.check(&request).await.unwrap_err();
    /// assert!(matches!(error, CheckError::NoAnswer(_)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn on_no_answer(self, policy: OnNoAnswer) -> Self {
        Self { on_no_answer: Some(policy), ..self }
    }

    /// Sets the longest time for which a refusal is cached. A reset or a lifted ban can take as
    /// long to have an effect. By default one second; zero caches none.
    #[must_use]
    pub fn max_age(self, max_age: Duration) -> Self {
        Self { max_age, ..self }
    }

    /// Sends a request again, up to this many times (at most 5), if there is no answer, within its
    /// deadline. By default no request is sent again.
    ///
    /// Each request that takes units gets a request id, so that the server takes them once,
    /// however often it receives the request. Every instance of the server must know request ids:
    /// version 0.1.0 ignores them. All attempts share the time until the deadline equally. If many
    /// calls fail, none is sent again.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/server.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use rlaas_client::{Client, rlaas_core::rules::Request};
    ///
    /// let client = Client::builder(serve().await).retries(1).connect_lazy()?;
    /// let request = Request::user("alice").build()?;
    /// assert!(client.check(&request).await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn retries(self, max: u32) -> Self {
        Self { max_retries: max, ..self }
    }

    /// Sets the clock of the cache of refusals, for tests.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Returns the address with its scheme. Without one it is `https://` if certificates are set,
    /// else `http://`.
    pub fn url(&self) -> String {
        let address = &self.address;
        if address.contains("://") || address.starts_with("unix:") {
            address.clone()
        } else if self.ca.is_some() || self.identity.is_some() {
            format!("https://{address}")
        } else {
            format!("http://{address}")
        }
    }

    /// Connects to the server.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if a setting is not valid, or if the server cannot be reached in time.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        let (credentials, endpoint) = (self.credentials()?, self.endpoint()?);
        // The TLS handshake has no timeout of its own.
        let channel = timeout(self.connect_timeout, endpoint.connect()).await;
        let channel = channel.map_err(|_elapsed| ConnectError::TimedOut(self.connect_timeout))?;
        let channel = channel.map_err(ConnectError::Unreachable)?;
        Ok(Client::new(ApiChannel::new(channel, credentials), &self))
    }

    /// Returns a client that connects with its first call. Succeeds even if the server is
    /// unavailable.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if a setting is not valid, or outside of a tokio runtime.
    pub fn connect_lazy(self) -> Result<Client, ConnectError> {
        let (credentials, endpoint) = (self.credentials()?, self.endpoint()?);
        Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        Ok(Client::new(ApiChannel::new(endpoint.connect_lazy(), credentials), &self))
    }

    fn endpoint(&self) -> Result<Endpoint, ConnectError> {
        let url = self.url();
        let has_tls = url.starts_with("https://");
        if !has_tls && !url.starts_with("http://") && !url.starts_with("unix:") {
            return Err(ConnectError::Address);
        }
        let mut endpoint = Endpoint::from_shared(url).map_err(|_| ConnectError::Address)?;
        if has_tls {
            endpoint = endpoint.tls_config(self.tls()).map_err(ConnectError::Tls)?;
        } else if self.ca.is_some() || self.identity.is_some() {
            return Err(ConnectError::TlsUnused);
        }
        let endpoint = endpoint.connect_timeout(self.connect_timeout).timeout(self.timeout);
        Ok(endpoint.http2_keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT))
    }

    fn tls(&self) -> ClientTlsConfig {
        let tls = match &self.ca {
            Some(ca) => ClientTlsConfig::new().ca_certificate(ca.clone()),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        match &self.identity {
            Some(identity) => tls.identity(identity.clone()),
            None => tls,
        }
    }

    fn credentials(&self) -> Result<Credentials, ConnectError> {
        let secret = |text: String| {
            let mut value = HeaderValue::try_from(text).ok()?;
            value.set_sensitive(true);
            Some(value)
        };
        let mut headers = Vec::new();
        if let Some(token) = &self.token {
            let value = secret(format!("Bearer {token}")).ok_or(ConnectError::Token)?;
            headers.push((header::AUTHORIZATION, value));
        }
        if let Some(key) = &self.api_key {
            let value = secret(key.clone()).ok_or(ConnectError::ApiKey)?;
            headers.push((HeaderName::from_static("x-api-key"), value));
        }
        Ok(headers.into())
    }
}

impl fmt::Debug for ClientBuilder {
    /// Omits token and keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { timeout, on_no_answer, on_overload, max_age, max_retries, .. } = self;
        f.debug_struct("ClientBuilder")
            .field("url", &self.url())
            .field("timeout", timeout)
            .field("on_no_answer", on_no_answer)
            .field("on_overload", on_overload)
            .field("max_age", max_age)
            .field("retries", max_retries)
            .finish_non_exhaustive()
    }
}
