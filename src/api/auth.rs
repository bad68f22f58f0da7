//! Authorization: bearer tokens and client certificates grant roles.
//!
//! A call is admitted if its token or its certificate has the required role. Only the SHA-256 of a
//! token is stored, and it is never shown. This module reads headers and certificate names; each
//! protocol turns an [`AuthError`] into its own response.
//!
//! **Source:** RFC 6750 section 2.1 (the header of a bearer token).

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::http::{Request, header};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use subtle::ConstantTimeEq;
use thiserror::Error;
use tracing::debug;

use crate::telemetry::metrics::{Metrics, ReasonLabels};

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Request decisions.
    Check,
    /// Read the configuration.
    Admin,
}

/// A set of roles. None implies another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles(u8);

/// All known callers with their roles.
#[derive(Clone, Debug, Default)]
pub struct AuthSettings {
    /// Bearer tokens.
    pub tokens: Vec<TokenEntry>,
    /// Roles by the name in a client certificate: a DNS name or a URI among its subject alternative
    /// names, compared literally.
    pub clients: HashMap<String, Roles>,
}

/// A bearer token, identified by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenEntry {
    /// The hash of the token.
    pub sha256: TokenHash,
    /// The roles that the token grants.
    pub roles: Roles,
}

/// The SHA-256 of a token. Never shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenHash([u8; SHA256_OUTPUT_LEN]);

/// The client's certificate on a connection that asks for one. Extension of its requests.
#[derive(Clone, Debug)]
pub enum ClientCertificate {
    /// A certificate that was verified, with its names.
    Verified(Arc<[String]>),
    /// No certificate: only requests that need no role are answered.
    Missing,
}

/// The reason why a call is refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AuthError {
    /// The caller is unknown: no known token, no known certificate.
    #[error("missing or unknown bearer token or client certificate")]
    Unauthenticated,
    /// The caller is known and lacks this role.
    #[error("role {} is required", .0.name())]
    Forbidden(Role),
}

/// Decides which calls are admitted.
#[derive(Debug)]
pub struct Auth {
    policy: Policy,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
enum Policy {
    /// Admit the callers in the settings.
    Listed(ArcSwap<AuthSettings>),
    /// Admit all callers except those whose connection asked for a certificate and got none.
    CertificateRequired,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 2] = [Self::Check, Self::Admin];

    /// Returns the name of the role in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Admin => "admin",
        }
    }
}

impl Roles {
    /// Returns `true` if the set contains `role`.
    pub const fn contains(self, role: Role) -> bool {
        self.0 & 1 << role as u8 != 0
    }

    const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Self {
        Self(roles.into_iter().fold(0, |set, role| set | 1 << role as u8))
    }
}

impl AuthSettings {
    /// Returns `true` if any caller is listed. Otherwise every caller may call everything.
    pub fn is_enabled(&self) -> bool {
        !self.tokens.is_empty() || !self.clients.is_empty()
    }

    /// Returns the roles of a token. Compares it with every hash in constant time, so the duration
    /// reveals nothing about the hashes.
    fn roles_of_token(&self, token: &[u8]) -> Option<Roles> {
        let hash = TokenHash::from_token(token);
        let matches = |known: &&TokenEntry| bool::from(known.sha256.0.ct_eq(&hash.0));
        self.tokens.iter().filter(matches).map(|known| known.roles).reduce(Roles::with)
    }

    fn roles_of_names(&self, names: &[String]) -> Option<Roles> {
        names.iter().filter_map(|name| self.clients.get(name).copied()).reduce(Roles::with)
    }
}

impl Auth {
    /// Admits the callers that `settings` list.
    pub fn new(settings: AuthSettings, metrics: Arc<Metrics>) -> Self {
        Self::with(Policy::Listed(ArcSwap::from_pointee(settings)), metrics)
    }

    /// Admits all callers except those whose connection asked for a certificate and got none.
    pub fn certificate_required(metrics: Arc<Metrics>) -> Self {
        Self::with(Policy::CertificateRequired, metrics)
    }

    fn with(policy: Policy, metrics: Arc<Metrics>) -> Self {
        Self { policy, metrics }
    }

    /// Replaces the settings, from the next call on. Has no effect after
    /// [`Self::certificate_required`].
    pub fn replace(&self, settings: AuthSettings) {
        if let Policy::Listed(in_force) = &self.policy {
            in_force.store(Arc::new(settings));
        }
    }

    /// Checks that the caller has a role.
    ///
    /// # Errors
    ///
    /// [`AuthError`], counted in metrics.
    pub fn admit<B>(&self, request: &Request<B>, role: Role) -> Result<(), AuthError> {
        let refusal = match self.roles_of(request) {
            Some(roles) if roles.contains(role) => return Ok(()),
            Some(_) => AuthError::Forbidden(role),
            None => AuthError::Unauthenticated,
        };
        let reason = refusal.reason();
        debug!(reason, "request refused");
        self.metrics.refused.get_or_create(&ReasonLabels { reason }).inc();
        Err(refusal)
    }

    /// Returns the roles of the caller, or `None` if the caller is unknown.
    fn roles_of<B>(&self, request: &Request<B>) -> Option<Roles> {
        let names = match request.extensions().get() {
            Some(ClientCertificate::Missing) => return None,
            Some(ClientCertificate::Verified(names)) => &**names,
            None => &[],
        };
        match &self.policy {
            Policy::CertificateRequired => Some(Role::ALL.into_iter().collect()),
            Policy::Listed(in_force) => {
                let in_force = in_force.load();
                let of_token =
                    bearer_token(request).and_then(|token| in_force.roles_of_token(token));
                of_token.into_iter().chain(in_force.roles_of_names(names)).reduce(Roles::with)
            }
        }
    }
}

impl AuthError {
    const fn reason(self) -> &'static str {
        match self {
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden(_) => "forbidden",
        }
    }
}

/// Returns the token of the `Authorization` header.
fn bearer_token<B>(request: &Request<B>) -> Option<&[u8]> {
    let header = request.headers().get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = header.split_at_checked(b"Bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !token.is_empty()).then_some(token)
}

impl TokenHash {
    /// Hashes a token.
    pub fn from_token(token: &[u8]) -> Self {
        let mut hash = [0; SHA256_OUTPUT_LEN];
        hash.copy_from_slice(digest(&SHA256, token).as_ref());
        Self(hash)
    }
}

/// The reason why a text is not the hash of a token. Never shows the text.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum HashError {
    /// Not 64 hexadecimal digits.
    #[error("must be the SHA-256 of a token: 64 hexadecimal digits")]
    Digits,
    /// The hash of an empty string: the usual result of hashing an unset variable.
    #[error("must be the SHA-256 of a token, not of an empty string")]
    Empty,
}

impl FromStr for TokenHash {
    type Err = HashError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.as_bytes();
        if digits.len() != 2 * SHA256_OUTPUT_LEN || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(HashError::Digits);
        }
        let mut hash = [0; SHA256_OUTPUT_LEN];
        for (index, byte) in hash.iter_mut().enumerate() {
            let pair = &text[2 * index..2 * index + 2];
            *byte = u8::from_str_radix(pair, 16).map_err(|_| HashError::Digits)?;
        }
        if Self(hash) == Self::from_token(b"") { Err(HashError::Empty) } else { Ok(Self(hash)) }
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::labels::AUTH_REFUSALS;

    /// RFC 6234 test vector.
    const ABC: &str = "BA7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn auth() -> Auth {
        let token = |text: &str, role| TokenEntry {
            sha256: TokenHash::from_token(text.as_bytes()),
            roles: Roles::from_iter([role]),
        };
        let settings = AuthSettings {
            tokens: vec![token("one", Role::Check), token("two", Role::Admin)],
            clients: HashMap::from([("spiffe://a/b".to_owned(), Roles::from_iter(Role::ALL))]),
        };
        Auth::new(settings, Arc::default())
    }

    fn with_token(header: &str) -> Request<()> {
        let request = Request::builder().header("authorization", header);
        request.body(()).expect("a request")
    }

    #[test]
    fn token_has_its_roles_and_no_others() {
        let auth = auth();
        for header in ["Bearer one", "bearer one", "BEARER  one "] {
            assert_eq!(auth.admit(&with_token(header), Role::Check), Ok(()), "{header}");
        }
        let one = with_token("Bearer one");
        assert_eq!(auth.admit(&one, Role::Admin), Err(AuthError::Forbidden(Role::Admin)));
        let two = with_token("Bearer two");
        assert_eq!(auth.admit(&two, Role::Admin), Ok(()));
        assert_eq!(auth.admit(&two, Role::Check), Err(AuthError::Forbidden(Role::Check)));
        for header in ["Bearer", "Bearer ", "Bearer on", "Bearer onee", "Basic one", "one", ""] {
            let refused = auth.admit(&with_token(header), Role::Check);
            assert_eq!(refused, Err(AuthError::Unauthenticated), "{header}");
        }
        assert_eq!(auth.admit(&Request::new(()), Role::Check), Err(AuthError::Unauthenticated));
    }

    #[test]
    fn certificate_is_known_by_any_of_its_names() {
        let auth = auth();
        let named = |names: &[&str]| {
            let mut request = with_token("Bearer wrong");
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            request.extensions_mut().insert(ClientCertificate::Verified(names));
            request
        };
        assert_eq!(auth.admit(&named(&["h", "spiffe://a/b"]), Role::Admin), Ok(()));
        for names in [&[][..], &["h"], &["spiffe://a/B"], &["spiffe://a/b/c"]] {
            let refused = auth.admit(&named(names), Role::Check);
            assert_eq!(refused, Err(AuthError::Unauthenticated), "{names:?}");
        }
    }

    #[test]
    fn missing_certificate_is_refused_even_with_a_token() {
        let certified = Auth::certificate_required(Arc::default());
        for (auth, header) in [(auth(), "Bearer one"), (certified, "")] {
            let mut request = with_token(header);
            assert_eq!(auth.admit(&request, Role::Check), Ok(()));
            request.extensions_mut().insert(ClientCertificate::Missing);
            assert_eq!(auth.admit(&request, Role::Check), Err(AuthError::Unauthenticated));
        }
    }

    #[test]
    fn replaced_settings_are_in_force() {
        let auth = auth();
        auth.replace(AuthSettings::default());
        let one = with_token("Bearer one");
        assert_eq!(auth.admit(&one, Role::Check), Err(AuthError::Unauthenticated));
    }

    #[test]
    fn metrics_have_every_reason() {
        let refusals = [AuthError::Unauthenticated, AuthError::Forbidden(Role::Admin)];
        assert_eq!(refusals.map(AuthError::reason), AUTH_REFUSALS);
    }

    #[test]
    fn hash_is_64_digits_and_not_that_of_an_empty_string() {
        assert_eq!(ABC.parse(), Ok(TokenHash::from_token(b"abc")));
        assert_eq!(ABC.to_lowercase().parse(), Ok(TokenHash::from_token(b"abc")));
        for text in ["", "abc", &ABC[1..], &format!("{ABC}0"), &ABC.replace('f', "g")] {
            assert_eq!(text.parse::<TokenHash>(), Err(HashError::Digits), "{text}");
        }
        assert_eq!("é".repeat(32).parse::<TokenHash>(), Err(HashError::Digits));
        let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(nothing.parse::<TokenHash>(), Err(HashError::Empty));
        assert_eq!(format!("{:?}", TokenHash::from_token(b"abc")), "***");
    }
}
