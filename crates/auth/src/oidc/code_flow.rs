//! The authorization code flow, by which visitors of the console sign in at the issuer.
//!
//! The browser carries the code, this server exchanges it for an ID token. A code is of use to the one
//! who has its verifier (PKCE), and its token names the nonce of the sign-in that it is for.
//!
//! Exchanges are logged on change of state: anybody can begin a sign-in and bring a code that is none.
//!
//! **Source:** OpenID Connect Core 1.0 section 3.1, RFC 6749 sections 2.3.1 and 4.1, RFC 7636.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::{HeaderValue, Request, StatusCode, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ring::digest::{SHA256, digest};
use serde::Deserialize;
use thiserror::Error;
use tokio::time::timeout;
use tracing::{info, warn};

use super::OidcVerifier;
use super::client::ConsoleClient;
use super::fetch::{FetchError, SignInEndpoints, exchange};
use super::url::FetchUrl;

/// Maximum number of codes that are exchanged at the same time; others wait.
pub(super) const MAX_EXCHANGES: usize = 32;
/// Longest wait for one of these places.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Longest text of the issuer that is shown, in characters.
const MAX_SHOWN: usize = 300;
/// Bytes that stay as they are in a query or a form.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The flow of one issuer.
#[derive(Clone, Debug)]
pub struct CodeFlow(Arc<OidcVerifier>);

/// The random texts of one sign-in: each of at least 256 bits, in base64url.
#[derive(Clone, Copy, Debug)]
pub struct CodeRequest<'a> {
    /// Binds the response to the browser.
    pub state: &'a str,
    /// Binds the ID token to the sign-in.
    pub nonce: &'a str,
    /// Binds the code to this server.
    pub verifier: &'a str,
}

/// The reason why a sign-in at the issuer fails.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CodeFlowError {
    /// The discovery document was not fetched, or lacks the endpoints.
    #[error("the endpoints of the issuer are not known")]
    NoEndpoints,
    /// Too many sign-ins end at the same time.
    #[error("too many sign-ins at the same time")]
    Busy,
    /// The issuer does not respond, or not as it should.
    #[error("the issuer does not respond as it should")]
    Unavailable,
    /// The issuer refuses the code; its own words.
    #[error("the issuer refuses it: {0}")]
    Refused(String),
}

#[derive(Deserialize)]
struct TokenResponse {
    id_token: String,
}

#[derive(Deserialize)]
struct ErrorResponse {
    error: String,
    #[serde(default)]
    error_description: String,
}

impl CodeFlow {
    /// Creates the flow. `None` if the console is no client of the issuer.
    pub(crate) fn new(verifier: Arc<OidcVerifier>) -> Option<Self> {
        verifier.settings().console.is_some().then_some(Self(verifier))
    }

    /// Returns the name of the issuer.
    pub fn issuer(&self) -> &str {
        self.0.settings().issuer.name()
    }

    /// Returns the address at which a browser begins to sign in.
    ///
    /// # Errors
    ///
    /// [`CodeFlowError::NoEndpoints`].
    pub fn authorization_url(&self, request: CodeRequest<'_>) -> Result<String, CodeFlowError> {
        let (client, endpoints) = self.parts()?;
        let challenge =
            URL_SAFE_NO_PAD.encode(digest(&SHA256, request.verifier.as_bytes()).as_ref());
        let query = encoded(&[
            ("response_type", "code"),
            ("client_id", &client.client_id),
            ("redirect_uri", client.redirect_uri.as_str()),
            ("scope", &client.scopes.join(" ")),
            ("state", request.state),
            ("nonce", request.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let url = endpoints.authorization.to_string();
        let separator = if url.contains('?') { '&' } else { '?' };
        Ok(format!("{url}{separator}{query}"))
    }

    /// Exchanges a code for the ID token, which is not verified yet.
    ///
    /// # Errors
    ///
    /// [`CodeFlowError`].
    pub async fn redeem(
        &self,
        code: &str,
        request: CodeRequest<'_>,
    ) -> Result<Vec<u8>, CodeFlowError> {
        let (client, endpoints) = self.parts()?;
        let place = timeout(MAX_WAIT, self.0.exchanges.acquire()).await;
        let Ok(Ok(_place)) = place else { return Err(CodeFlowError::Busy) };
        let request = token_request(client, &endpoints.token, code, request.verifier);
        let tls = self.0.settings().trust.config();
        let (status, body) = match exchange(&endpoints.token, tls, request).await {
            Ok(response) => response,
            Err(error) => return Err(self.unavailable(&error)),
        };
        if status == StatusCode::OK {
            let token: Result<TokenResponse, _> = serde_json::from_slice(&body);
            let token = token.map_err(|error| self.unavailable(&FetchError::Token(error)))?;
            self.0.exchange_log.succeeded(self.issuer());
            return Ok(token.id_token.into_bytes());
        }
        match serde_json::from_slice::<ErrorResponse>(&body) {
            Ok(refused) if status.is_client_error() => {
                let text = refusal(&refused.error, &refused.error_description);
                self.0.exchange_log.refused(self.issuer(), &text);
                Err(CodeFlowError::Refused(text))
            }
            _ => Err(self.unavailable(&FetchError::Status(status))),
        }
    }

    fn parts(&self) -> Result<(&ConsoleClient, Arc<SignInEndpoints>), CodeFlowError> {
        let endpoints = self.0.keys.endpoints();
        self.0.settings().console.as_ref().zip(endpoints).ok_or(CodeFlowError::NoEndpoints)
    }

    fn unavailable(&self, error: &FetchError) -> CodeFlowError {
        self.0.exchange_log.failed(self.issuer(), error);
        CodeFlowError::Unavailable
    }
}

/// Returns the words by which an issuer refuses, shortened.
pub fn refusal(error: &str, description: &str) -> String {
    let separator = if description.is_empty() { "" } else { ": " };
    error.chars().chain(separator.chars()).chain(description.chars()).take(MAX_SHOWN).collect()
}

/// Returns the request for a token. A client with a secret shows it by `client_secret_basic`, the
/// default of OpenID Connect Core 1.0 section 9.
fn token_request(
    client: &ConsoleClient,
    endpoint: &FetchUrl,
    code: &str,
    verifier: &str,
) -> Request<String> {
    let mut fields = vec![
        ("grant_type", "authorization_code"),
        ("code", code),
        ("redirect_uri", client.redirect_uri.as_str()),
        ("code_verifier", verifier),
    ];
    let mut request = Request::post(endpoint.target())
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    match &client.client_secret {
        Some(secret) => {
            let encoded = |text| utf8_percent_encode(text, PLAIN);
            let pair = format!("{}:{}", encoded(&client.client_id), encoded(secret.as_str()));
            let basic = format!("Basic {}", STANDARD.encode(pair));
            let mut basic = HeaderValue::try_from(basic).expect("base64 is ASCII");
            basic.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, basic);
        }
        None => fields.push(("client_id", &client.client_id)),
    }
    request.body(encoded(&fields)).expect("a URL has a valid path")
}

fn encoded(fields: &[(&str, &str)]) -> String {
    let pairs =
        fields.iter().map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, PLAIN)));
    pairs.collect::<Vec<_>>().join("&")
}

/// The outcome of the last exchange.
#[derive(Debug, Default)]
pub(super) struct ExchangeLog(Mutex<ExchangeState>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ExchangeState {
    #[default]
    Succeeds,
    Refused,
    Fails,
}

impl ExchangeLog {
    /// Records a code that was exchanged.
    pub(super) fn succeeded(&self, issuer: &str) {
        if self.changes_to(ExchangeState::Succeeds) {
            info!(issuer, "exchanging codes at the OIDC issuer succeeds again");
        }
    }

    /// Records a code that the issuer refused.
    pub(super) fn refused(&self, issuer: &str, error: &str) {
        if self.changes_to(ExchangeState::Refused) {
            warn!(issuer, ?error, "the OIDC issuer refused a code");
        }
    }

    /// Records a request that failed.
    pub(super) fn failed(&self, issuer: &str, error: &dyn std::error::Error) {
        if self.changes_to(ExchangeState::Fails) {
            let cause = error.source().map(tracing::field::display);
            warn!(issuer, %error, cause, "exchanging a code at the OIDC issuer failed");
        }
    }

    /// Returns `true` if the state was another.
    fn changes_to(&self, state: ExchangeState) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *last, state) != state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_one_kind_are_a_change_once() {
        let log = ExchangeLog::default();
        assert!(!log.changes_to(ExchangeState::Succeeds));
        for state in [ExchangeState::Refused, ExchangeState::Fails, ExchangeState::Succeeds] {
            assert!(log.changes_to(state));
            assert!(!log.changes_to(state), "{state:?} again");
        }
    }
}
