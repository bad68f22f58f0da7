//! The client that the console is at the issuer: its settings for signing in.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

use super::url::FetchUrl;

/// The end of every redirect URI: the page that takes a code.
const CALLBACK: &str = "/console/oidc-callback";

/// The registration of the console at the issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleClient {
    /// Id of the client: ID tokens must be issued for it.
    pub client_id: String,
    /// Secret of the client; `None` for a public one.
    pub client_secret: Option<ClientSecret>,
    /// Address that the issuer sends browsers back to.
    pub redirect_uri: RedirectUri,
    /// Scopes that are requested, `openid` among them.
    pub scopes: Vec<String>,
}

/// A secret that the issuer shares with its client. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientSecret(Arc<str>);

impl ClientSecret {
    /// Maximum length in bytes.
    pub const MAX: usize = 1024;

    /// Creates the secret. `None` unless it has 1 to [`Self::MAX`] visible ASCII characters.
    pub fn new(text: &str) -> Option<Self> {
        let is_valid = (1..=Self::MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        is_valid.then(|| Self(text.into()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ClientSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The address of the page that takes a code, as browsers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectUri(Arc<str>);

/// The error for a text that is no such address.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("must be an https URL (http on loopback) that ends with {CALLBACK}")]
pub struct RedirectUriError;

impl RedirectUri {
    /// Returns the address as it is registered at the issuer.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RedirectUri {
    type Err = RedirectUriError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let _url: FetchUrl = text.parse().map_err(|_| RedirectUriError)?;
        if !text.ends_with(CALLBACK) || text.contains('?') {
            return Err(RedirectUriError);
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for RedirectUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_uri_is_https_or_on_loopback_and_of_the_console() {
        for uri in [
            "https://ops.example/console/oidc-callback",
            "https://ops.example:8443/limits/console/oidc-callback",
            "http://127.0.0.1:8081/console/oidc-callback",
        ] {
            assert_eq!(uri.parse::<RedirectUri>().expect(uri).as_str(), uri);
        }
        for uri in [
            "",
            "/console/oidc-callback",
            "http://ops.example/console/oidc-callback",
            "https://ops.example/console/",
            "https://ops.example/?a=/console/oidc-callback",
            "https://ops.example/#/console/oidc-callback",
            "https://me@ops.example/console/oidc-callback",
        ] {
            assert_eq!(uri.parse::<RedirectUri>(), Err(RedirectUriError), "{uri}");
        }
    }

    #[test]
    fn secret_is_visible_text_and_never_shown() {
        let secret = ClientSecret::new("a b+c").expect("a secret");
        assert_eq!((secret.as_str(), &*format!("{secret:?}")), ("a b+c", "***"));
        for text in ["", "a\nb", "\u{e9}", &"a".repeat(ClientSecret::MAX + 1)] {
            assert_eq!(ClientSecret::new(text), None, "{text}");
        }
    }
}
