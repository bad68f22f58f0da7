//! Authorization: bearer tokens and client certificates grant roles; without them, the place that a
//! call comes from.
//!
//! A call is admitted if its token or its certificate has a role that the call requires. Only the
//! SHA-256 of a token is stored, and it is never shown. While no caller is listed, everybody may
//! request decisions and read the configuration, but only local callers may administer (`local`).
//! This module reads headers and certificate names; each protocol turns an [`AuthError`] into its
//! own response.
//!
//! **Source:** RFC 6750 section 2.1 (the header of a bearer token).

mod caller;
mod local;
mod origin;
mod refusal_log;
mod roles;
mod token;

pub use caller::{Caller, PeerLocality};
pub use local::{HostName, HostNameError, HostNames, NotLocal};
pub use origin::{RequestKind, WebError};
pub use roles::{Permission, Role, Roles};
pub use token::{HashError, TokenHash};

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::http::{Request, header};
use thiserror::Error;
use tracing::debug;

use self::refusal_log::RefusalLog;
use crate::telemetry::metrics::{Metrics, ReasonLabels};

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenEntry {
    /// The name of the token, for the audit.
    pub name: Arc<str>,
    /// The hash of the token.
    pub sha256: TokenHash,
    /// The roles that the token grants.
    pub roles: Roles,
}

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
    /// The caller is known and has none of these roles.
    #[error("role {0} is required")]
    Forbidden(Roles),
    /// No caller is listed, and this one is not local.
    #[error("role {0} is required: auth lists no caller, so only local calls have it, and {1}")]
    NotLocal(Roles, NotLocal),
    /// The request may come from a web page.
    #[error(transparent)]
    Web(#[from] WebError),
}

/// Decides which calls are admitted.
#[derive(Debug)]
pub struct Auth {
    policy: Policy,
    metrics: Arc<Metrics>,
    refusals: RefusalLog,
}

#[derive(Debug)]
enum Policy {
    /// Admit the callers in the settings.
    Listed(ArcSwap<AuthSettings>),
    /// Admit all callers, those with administrative calls if they are local. On a connection that
    /// asked for a certificate and got none, no caller is admitted.
    Unlisted(HostNames),
}

impl AuthSettings {
    /// Returns `true` if any caller is listed.
    pub fn is_enabled(&self) -> bool {
        !self.tokens.is_empty() || !self.clients.is_empty()
    }

    /// Returns `true` if a token or a client has the role.
    pub fn lists(&self, role: Role) -> bool {
        let of_tokens = self.tokens.iter().map(|token| token.roles);
        of_tokens.chain(self.clients.values().copied()).any(|roles| roles.contains(role))
    }

    /// Returns the caller with a token. Compares the token with every hash.
    fn caller_with_token(&self, token: &[u8]) -> Option<Caller> {
        let hash = TokenHash::from_token(token);
        let known = self.tokens.iter().filter(|known| known.sha256.matches(&hash));
        let named = known.map(|known| (format!("token:{}", known.name), known.roles));
        merged(named)
    }

    fn caller_with_names(&self, names: &[String]) -> Option<Caller> {
        let known = names.iter().filter_map(|name| {
            Some((format!("certificate:{name}"), self.clients.get(name).copied()?))
        });
        merged(known)
    }
}

/// Returns a caller with the first name and the roles of all.
fn merged(mut known: impl Iterator<Item = (String, Roles)>) -> Option<Caller> {
    let (actor, roles) = known.next()?;
    Some(Caller::new(actor, known.fold(roles, |all, (_, roles)| all.with(roles))))
}

impl Auth {
    /// Admits the callers that `settings` list.
    pub fn new(settings: AuthSettings, metrics: Arc<Metrics>) -> Self {
        Self::with(Policy::Listed(ArcSwap::from_pointee(settings)), metrics)
    }

    /// Admits all callers, those with administrative calls only if they are local: `hosts` are the
    /// local names of this server. If the connection asked for a certificate and got none, no
    /// caller is admitted, local or not.
    pub fn unlisted(hosts: HostNames, metrics: Arc<Metrics>) -> Self {
        Self::with(Policy::Unlisted(hosts), metrics)
    }

    fn with(policy: Policy, metrics: Arc<Metrics>) -> Self {
        Self { policy, metrics, refusals: RefusalLog::default() }
    }

    /// Replaces the settings, from the next call on. Has no effect after [`Self::unlisted`].
    pub fn replace(&self, settings: AuthSettings) {
        if let Policy::Listed(in_force) = &self.policy {
            in_force.store(Arc::new(settings));
        }
    }

    /// Checks that the caller may make a call. Returns the caller of an administrative call.
    ///
    /// # Errors
    ///
    /// [`AuthError`], counted in metrics.
    pub fn admit<B>(
        &self,
        request: &Request<B>,
        permission: Permission,
        (kind, peer): (RequestKind, PeerLocality),
    ) -> Result<Option<Caller>, AuthError> {
        let admitted = match permission {
            Permission::Decisions | Permission::Configuration => {
                self.check_roles(request, permission).map(|()| None)
            }
            Permission::Administration(roles) => self.administrator(request, roles, (kind, peer)),
        };
        admitted.inspect_err(|refusal| {
            let reason = refusal.reason();
            debug!(reason, "request refused");
            if let Permission::Administration(roles) = permission {
                self.refusals.record(*refusal, roles);
            }
            self.metrics.refused.get_or_create(&ReasonLabels { reason }).inc();
        })
    }

    fn check_roles<B>(
        &self,
        request: &Request<B>,
        permission: Permission,
    ) -> Result<(), AuthError> {
        let names = certificate_names(request)?;
        match &self.policy {
            Policy::Unlisted(_) => Ok(()),
            Policy::Listed(in_force) => {
                let in_force = in_force.load();
                with_role(listed_caller(&in_force, request, names), permission.roles()).map(|_| ())
            }
        }
    }

    fn administrator<B>(
        &self,
        request: &Request<B>,
        required: Roles,
        (kind, peer): (RequestKind, PeerLocality),
    ) -> Result<Option<Caller>, AuthError> {
        let names = certificate_names(request)?;
        let caller = match &self.policy {
            Policy::Listed(in_force) => {
                with_role(listed_caller(&in_force.load(), request, names), required)?
            }
            Policy::Unlisted(hosts) => {
                let is_local = hosts.check(request, peer);
                is_local.map_err(|why| AuthError::NotLocal(required, why))?;
                let of_certificate = names.first().map(|name| format!("certificate:{name}"));
                Caller::new(of_certificate.unwrap_or_else(|| "local".to_owned()), Roles::ALL)
            }
        };
        origin::check(request, kind)?;
        Ok(Some(caller))
    }
}

/// Returns the names of the client's certificate, or none if the connection asks for no
/// certificate.
fn certificate_names<B>(request: &Request<B>) -> Result<&[String], AuthError> {
    match request.extensions().get() {
        Some(ClientCertificate::Missing) => Err(AuthError::Unauthenticated),
        Some(ClientCertificate::Verified(names)) => Ok(names),
        None => Ok(&[]),
    }
}

/// Returns the caller of a request: named by its token if that is known, with the roles of the
/// token and of the certificate.
fn listed_caller<B>(
    listed: &AuthSettings,
    request: &Request<B>,
    names: &[String],
) -> Option<Caller> {
    let of_token = bearer_token(request).and_then(|token| listed.caller_with_token(token));
    let of_names = listed.caller_with_names(names);
    let known = of_token.into_iter().chain(of_names);
    known.reduce(|caller, other| caller.with_roles_of(&other))
}

fn with_role(caller: Option<Caller>, required: Roles) -> Result<Caller, AuthError> {
    let caller = caller.ok_or(AuthError::Unauthenticated)?;
    if caller.roles().intersects(required) {
        Ok(caller)
    } else {
        Err(AuthError::Forbidden(required))
    }
}

impl AuthError {
    const fn reason(self) -> &'static str {
        match self {
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden(_) | Self::NotLocal(..) | Self::Web(_) => "forbidden",
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

#[cfg(test)]
mod tests;
