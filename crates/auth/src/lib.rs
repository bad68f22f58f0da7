//! Authorization: bearer tokens and client certificates grant roles; without them, the place that a
//! call comes from.
//!
//! A call is admitted if its token or its certificate has a role that the call requires. A token is
//! listed, or signed by an issuer (`oidc`). Only the SHA-256 of a token is stored, and it is never
//! shown. While no caller is listed, everybody may
//! request decisions and read the configuration, but only local callers may administer (`local`).
//! This crate reads headers and certificate names; each protocol turns an [`AuthError`] into its
//! own response. It knows of projects that they have ids, and asks for their API keys by
//! [`KnownApiKeys`]; who shows the configuration asks for them by [`ConfiguredProjects`].
//!
//! **Source:** RFC 6750 section 2.1 (the header of a bearer token).

pub mod api_key_text;
mod api_keys;
mod call;
mod caller;
mod file_rules;
mod grants;
mod known_keys;
mod listed;
mod local;
mod oidc;
mod origin;
mod project_id;
mod refusal_log;
mod roles;
mod routes;
mod sign_in;
mod token;

pub use api_key_text::{ApiKeyText, MalformedApiKey};
pub use api_keys::{API_KEY_HEADER, ApiKeyMode, ApiKeyRefusal, ApiKeySettings, ApiKeys, Tenant};
pub use call::{StreamAccess, deadline, run_blocking};
pub use caller::{CallProject, Caller, CallerScope, EVERY_PROJECT, PeerLocality};
pub use file_rules::{
    ConfiguredProjects, FileProject, FileProjects, FileRules, api_key_problems,
    key_attribute_problems,
};
pub use grants::Grants;
pub use known_keys::{KeyHolder, KeyRefusal, KnownApiKeys};
pub use local::{HostName, HostNameError, HostNames, NotLocal};
pub use oidc::{
    ClaimPath, ClientSecret, CodeFlow, CodeFlowError, CodeRequest, ConsoleClient, Issuer,
    IssuerError, IssuerTrust, IssuerTrustError, KeysAwaited, OidcSettings, RedirectUri,
    RedirectUriError, TokenAlgorithm, TokenError, refusal,
};
pub use origin::{ClientNetwork, RequestKind, RequestOrigin, Requirement, WebError};
pub use project_id::{InvalidProjectId, ProjectId};
pub use roles::{Permission, Role, Roles};
pub use routes::{AdminApi, AdminRoute, Verb};
pub use sign_in::{Credential, ShownToken};
pub use token::{HashError, TokenHash};

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::Request;
use rlaas_telemetry::metrics::{Metrics, ReasonLabels};
use thiserror::Error;
use tokio::sync::Notify;
use tracing::debug;

use self::listed::ListedCallers;
use self::oidc::OidcVerifier;
use self::refusal_log::RefusalLog;

/// All known callers with their roles.
#[derive(Clone, Debug, Default)]
pub struct AuthSettings {
    /// Bearer tokens.
    pub tokens: Vec<TokenEntry>,
    /// Roles by the name in a client certificate: a DNS name or a URI among its subject alternative
    /// names, compared literally.
    pub clients: HashMap<String, Grants>,
    /// The issuer whose tokens grant roles.
    pub oidc: Option<OidcSettings>,
}

/// A bearer token, identified by its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenEntry {
    /// The name of the token, for the audit.
    pub name: Arc<str>,
    /// The hash of the token.
    pub sha256: TokenHash,
    /// The roles that the token grants.
    pub roles: Grants,
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
    /// An API key is missing or not valid.
    #[error(transparent)]
    ApiKey(#[from] ApiKeyRefusal),
    /// The token is not a valid one of the issuer.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The request may come from a web page.
    #[error(transparent)]
    Web(#[from] WebError),
}

/// A call that was admitted.
#[derive(Debug, Default)]
pub struct Admission {
    /// The caller of an administrative call.
    pub caller: Option<Caller>,
    /// The project of the call; `None` if it takes no API keys.
    pub tenant: Option<Tenant>,
}

/// A call that is not admitted so far.
#[derive(Debug)]
pub enum NotAdmitted {
    /// The call is refused.
    Refused(AuthError),
    /// The keys of the issuer are being fetched. After that, [`Auth::admit`] decides.
    AwaitsKeys(KeysAwaited),
}

/// Decides which calls are admitted.
#[derive(Debug)]
pub struct Auth {
    policy: Policy,
    api_keys: ApiKeys,
    metrics: Arc<Metrics>,
    refusals: RefusalLog,
    /// Wakes [`Self::run`] after the settings of the issuer were replaced.
    replaced: Notify,
}

#[derive(Debug)]
enum Policy {
    /// Admit the callers in the settings.
    Listed(ArcSwap<ListedCallers>),
    /// Admit all callers, those with administrative calls if they are local. On a connection that
    /// asked for a certificate and got none, no caller is admitted.
    Unlisted(HostNames),
}

impl AuthSettings {
    /// Returns `true` if any caller is listed.
    pub fn is_enabled(&self) -> bool {
        !self.tokens.is_empty() || !self.clients.is_empty() || self.oidc.is_some()
    }

    /// Returns `true` if a token or a client has the role.
    pub fn lists(&self, role: Role) -> bool {
        let of_tokens = self.tokens.iter().map(|token| &token.roles);
        let mut all = of_tokens.chain(self.clients.values());
        all.any(|grants| grants.anywhere().contains(role))
    }
}

impl Auth {
    /// Admits the callers that `settings` list.
    pub fn new(settings: AuthSettings, metrics: Arc<Metrics>) -> Self {
        Self::with(Policy::Listed(ArcSwap::from_pointee(ListedCallers::new(settings))), metrics)
    }

    /// Admits all callers, those with administrative calls only if they are local: `hosts` are the
    /// local names of this server. If the connection asked for a certificate and got none, no
    /// caller is admitted, local or not.
    pub fn unlisted(hosts: HostNames, metrics: Arc<Metrics>) -> Self {
        Self::with(Policy::Unlisted(hosts), metrics)
    }

    fn with(policy: Policy, metrics: Arc<Metrics>) -> Self {
        let (api_keys, refusals) = (ApiKeys::default(), RefusalLog::default());
        Self { policy, api_keys, metrics, refusals, replaced: Notify::new() }
    }

    /// Sets the API keys that are accepted.
    #[must_use]
    pub fn with_api_keys(self, api_keys: ApiKeys) -> Self {
        Self { api_keys, ..self }
    }

    /// Returns the API keys that are accepted.
    pub fn api_keys(&self) -> &ApiKeys {
        &self.api_keys
    }

    /// Replaces the settings, from the next call on. Has no effect after [`Self::unlisted`].
    pub fn replace(&self, settings: AuthSettings) {
        if let Policy::Listed(in_force) = &self.policy {
            let (before, next) = (in_force.load(), in_force.load().replaced_by(settings));
            let is_same = before.oidc().map(Arc::as_ptr) == next.oidc().map(Arc::as_ptr);
            in_force.store(Arc::new(next));
            if !is_same {
                self.replaced.notify_one();
            }
        }
    }

    /// Keeps the keys of the issuer up to date. Never returns.
    pub async fn run(&self) {
        loop {
            let fetching = async {
                match self.oidc() {
                    Some(oidc) => oidc.run().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = fetching => {}
                () = self.replaced.notified() => {}
            }
        }
    }

    /// Checks that the caller may make a call.
    ///
    /// # Errors
    ///
    /// [`AuthError`], counted in metrics.
    pub fn admit<B>(
        &self,
        request: &Request<B>,
        requirement: Requirement,
    ) -> Result<Admission, AuthError> {
        let admitted = self.decide(request, requirement);
        admitted.inspect_err(|refusal| self.record(*refusal, requirement.permission))
    }

    /// Like [`Self::admit`], but does not refuse a token whose key may be among those that are being
    /// fetched.
    ///
    /// # Errors
    ///
    /// [`NotAdmitted`].
    pub fn admit_or_wait<B>(
        &self,
        request: &Request<B>,
        requirement: Requirement,
    ) -> Result<Admission, NotAdmitted> {
        self.decide(request, requirement).map_err(|refusal| {
            if let AuthError::Token(error) = refusal
                && let Some(keys) = self.oidc().and_then(|oidc| oidc.keys_awaited(error))
            {
                return NotAdmitted::AwaitsKeys(keys);
            }
            self.record(refusal, requirement.permission);
            NotAdmitted::Refused(refusal)
        })
    }

    /// Returns `true` if the caller is listed with the role `metrics`, for all projects. A token whose
    /// key is not known yet does not count.
    pub fn has_role_metrics<B>(&self, request: &Request<B>) -> bool {
        let Policy::Listed(in_force) = &self.policy else { return false };
        let names = certificate_names(request).unwrap_or_default();
        in_force.load().caller(request, names, Permission::Metrics).is_ok()
    }

    /// Returns `true` if a call may show its API key in its body and shows none in its headers: it is
    /// admitted when the body was read, by [`Self::admit_with_body`].
    pub fn awaits_body<B>(&self, request: &Request<B>) -> bool {
        self.api_keys.are_on() && !self.api_keys.are_in_headers(request)
    }

    /// Checks that the caller may request decisions, when a body was read that may have an API key.
    ///
    /// # Errors
    ///
    /// [`AuthError`], counted in metrics.
    pub async fn admit_with_body<B>(
        &self,
        request: &mut Request<B>,
        key: Option<&str>,
    ) -> Result<Tenant, AuthError> {
        const ORIGIN: RequestOrigin =
            RequestOrigin { kind: RequestKind::Http, peer: PeerLocality::Remote };
        let permission = Permission::Decisions;
        let requirement = Requirement { permission, origin: ORIGIN };
        let counted = |refusal: ApiKeyRefusal| {
            self.record(refusal.into(), permission);
            AuthError::from(refusal)
        };
        if let Some(tenant) = Tenant::from_extensions(request.extensions()) {
            let joined =
                key.map_or_else(|| Ok(tenant.clone()), |key| self.api_keys.joined(tenant, key));
            return joined.map_err(counted);
        }
        if let Some(key) = key {
            // In the headers some texts would be ignored.
            self.api_keys.joined(&Tenant::default(), key).map_err(counted)?;
            api_keys::put_in_headers(request, key).map_err(counted)?;
        }
        let admitted = match self.admit_or_wait(request, requirement) {
            Ok(admission) => admission,
            Err(NotAdmitted::Refused(error)) => return Err(error),
            Err(NotAdmitted::AwaitsKeys(keys)) => {
                keys.wait().await;
                self.admit(request, requirement)?
            }
        };
        Ok(admitted.tenant.unwrap_or_default())
    }

    fn decide<B>(
        &self,
        request: &Request<B>,
        requirement: Requirement,
    ) -> Result<Admission, AuthError> {
        let Requirement { permission, origin: RequestOrigin { kind, peer } } = requirement;
        let names = certificate_names(request)?;
        let tenant = self.api_keys.tenant(request, permission)?;
        let key_project = tenant.as_ref().and_then(Tenant::key_project);
        let is_administrative = permission.is_administrative();
        let required = permission.roles();
        let caller = match &self.policy {
            Policy::Listed(in_force) => {
                let listed = in_force.load();
                if let Some(project) = key_project {
                    listed.confirm(request, names, permission, project)?;
                    // The key is enough.
                    if permission == Permission::Decisions {
                        return Ok(Admission { caller: None, tenant });
                    }
                }
                let caller = listed.caller(request, names, permission)?;
                let project = key_project.cloned().unwrap_or(ProjectId::UNNAMED);
                let has_role = caller.roles_in(&project).intersects(required);
                if permission == Permission::ProjectConfiguration && !has_role {
                    return Err(AuthError::Forbidden(required));
                }
                caller
            }
            Policy::Unlisted(_) if !is_administrative => {
                return Ok(Admission { caller: None, tenant });
            }
            // A key gives its own role and no other.
            Policy::Unlisted(_) if key_project.is_some() => {
                return Err(AuthError::Forbidden(required));
            }
            Policy::Unlisted(hosts) => hosts.local_caller(request, peer, names, required)?,
        };
        if is_administrative {
            origin::check(request, kind)?;
        }
        Ok(Admission { caller: is_administrative.then_some(caller), tenant })
    }

    /// Counts a refusal, and logs it if the call is an administrative one.
    fn record(&self, refusal: AuthError, permission: Permission) {
        let reason = refusal.reason();
        debug!(reason, "request refused");
        if permission.is_administrative() {
            self.refusals.record(refusal, permission.roles());
        }
        self.metrics.refused.get_or_create(&ReasonLabels { reason }).inc();
    }

    fn oidc(&self) -> Option<Arc<OidcVerifier>> {
        match &self.policy {
            Policy::Listed(in_force) => in_force.load().oidc().cloned(),
            Policy::Unlisted(_) => None,
        }
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

impl AuthError {
    const fn reason(self) -> &'static str {
        match self {
            Self::Unauthenticated => "unauthenticated",
            Self::ApiKey(refusal) => refusal.reason(),
            Self::Token(error) => error.reason(),
            Self::Forbidden(_) | Self::NotLocal(..) | Self::Web(_) => "forbidden",
        }
    }
}

#[cfg(test)]
mod tests;
