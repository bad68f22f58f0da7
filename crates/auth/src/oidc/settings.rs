//! Settings of the issuer whose tokens grant roles.

use std::str::FromStr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;

use super::claim_path::ClaimPath;
use super::client::ConsoleClient;
use super::url::FetchUrl;

/// Maximum length of the name of an issuer, in bytes: it is part of the name of its callers.
const MAX_ISSUER: usize = 200;

/// An OpenID Connect issuer, and how its tokens grant roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcSettings {
    /// The issuer.
    pub issuer: Issuer,
    /// Audiences, one of which a token must have.
    pub audiences: Vec<String>,
    /// Algorithms by which tokens may be signed.
    pub algorithms: Vec<TokenAlgorithm>,
    /// Authorities for the certificate of the issuer.
    pub trust: IssuerTrust,
    /// Claim with the names of roles.
    pub roles_claim: ClaimPath,
    /// Claim with the projects for which the roles are. `None`: they are for all.
    pub projects_claim: Option<ClaimPath>,
    /// The console as a client of the issuer; `None`: visitors can't sign in there.
    pub console: Option<ConsoleClient>,
}

/// The name of an issuer: an https URL, or http on loopback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    name: Arc<str>,
    discovery: FetchUrl,
}

/// The error for a text that does not name an issuer.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "must be the https URL of an issuer, at most 200 bytes without user, query and fragment (http \
     on loopback)"
)]
pub struct IssuerError;

impl Issuer {
    /// Returns the name, as the issuer writes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns `true` if the issuer is reached by https.
    pub fn is_https(&self) -> bool {
        self.discovery.is_https()
    }

    /// Returns the URL of the discovery document.
    ///
    /// **Source:** OpenID Connect Discovery 1.0, section 4.1.
    pub(super) fn discovery(&self) -> &FetchUrl {
        &self.discovery
    }
}

impl FromStr for Issuer {
    type Err = IssuerError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > MAX_ISSUER || text.contains('?') {
            return Err(IssuerError);
        }
        let discovery = format!("{}/.well-known/openid-configuration", text.trim_end_matches('/'));
        let discovery = discovery.parse().map_err(|_| IssuerError)?;
        Ok(Self { name: text.into(), discovery })
    }
}

/// A signature algorithm of tokens. Others are not implemented, so no token selects `none` or an
/// algorithm with a shared secret.
///
/// **Source:** RFC 7518 section 3.1, RFC 8037 section 3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenAlgorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

impl TokenAlgorithm {
    /// Every algorithm.
    pub const ALL: [Self; 3] = [Self::Rs256, Self::Es256, Self::EdDsa];

    /// Returns the name of the algorithm in tokens and settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }

    /// Returns the algorithm with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// The authorities that may have signed the certificate of the issuer.
#[derive(Clone, Debug)]
pub struct IssuerTrust {
    /// PEM of a private authority; `None` for those of the system.
    pem: Option<Vec<u8>>,
    config: Arc<ClientConfig>,
}

/// The error for authorities that can't be used.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum IssuerTrustError {
    /// The file has no certificate, or an invalid one.
    #[error("must be a PEM file of certificates")]
    Pem,
    /// The system trusts no authority.
    #[error("missing: the system has no certificate authorities")]
    NoneInSystem,
}

impl IssuerTrust {
    /// Trusts the authorities in a PEM text.
    ///
    /// # Errors
    ///
    /// [`IssuerTrustError::Pem`].
    pub fn from_pem(pem: &[u8]) -> Result<Self, IssuerTrustError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|_| IssuerTrustError::Pem)?;
            roots.add(certificate).map_err(|_| IssuerTrustError::Pem)?;
        }
        if roots.is_empty() {
            return Err(IssuerTrustError::Pem);
        }
        Ok(Self { pem: Some(pem.to_vec()), config: client_config(roots) })
    }

    /// Trusts the authorities of the system.
    ///
    /// # Errors
    ///
    /// [`IssuerTrustError::NoneInSystem`].
    pub fn of_system() -> Result<Self, IssuerTrustError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(IssuerTrustError::NoneInSystem);
        }
        Ok(Self { pem: None, config: client_config(roots) })
    }

    /// Trusts nobody: for an issuer on loopback without TLS.
    pub fn none() -> Self {
        Self { pem: None, config: client_config(RootCertStore::empty()) }
    }

    /// Returns the TLS configuration of a client.
    pub(super) fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }
}

impl PartialEq for IssuerTrust {
    fn eq(&self, other: &Self) -> bool {
        self.pem == other.pem
    }
}

impl Eq for IssuerTrust {}

fn client_config(roots: RootCertStore) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder().with_root_certificates(roots);
    Arc::new(builder.with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuer_is_https_or_on_loopback() {
        for (issuer, discovery) in [
            ("https://a.example", "https://a.example/.well-known/openid-configuration"),
            ("https://a.example/", "https://a.example/.well-known/openid-configuration"),
            ("https://a:8443/b/c", "https://a:8443/b/c/.well-known/openid-configuration"),
            ("http://127.0.0.1:9", "http://127.0.0.1:9/.well-known/openid-configuration"),
            ("http://localhost/b", "http://localhost/b/.well-known/openid-configuration"),
            ("http://[::1]:9", "http://[::1]:9/.well-known/openid-configuration"),
        ] {
            let parsed: Issuer = issuer.parse().expect(issuer);
            assert_eq!(parsed.name(), issuer);
            assert_eq!(parsed.discovery().to_string(), discovery);
        }
        for issuer in [
            "",
            "a.example",
            "http://a.example",
            "http://127.0.0.1.a.example",
            "http://0.0.0.0",
            "ftp://a.example",
            "https://",
            "https://user@a.example",
            "https://a.example?b",
            "https://a.example#b",
            "https://a b",
            &format!("https://{}", "a".repeat(200)),
        ] {
            assert_eq!(issuer.parse::<Issuer>(), Err(IssuerError), "{issuer}");
        }
    }

    #[test]
    fn algorithms_have_no_shared_secret() {
        for name in ["none", "None", "HS256", "HS512", "RS512", "PS256", "ES384", "rs256", ""] {
            assert_eq!(TokenAlgorithm::from_name(name), None, "{name}");
        }
    }
}
