//! Listed callers: those with a token, a certificate, or a token of the issuer.

use std::sync::Arc;

use http::{Request, header};
use rlaas_core::clock::Clock;

use super::caller::Caller;
use super::grants::Grants;
use super::oidc::{OidcVerifier, TokenError, has_form};
use super::project_id::ProjectId;
use super::roles::{Permission, Roles};
use super::token::TokenHash;
use super::{AuthError, AuthSettings};

/// The callers in the settings, and the verifier of their issuer's tokens.
#[derive(Debug)]
pub(super) struct ListedCallers {
    settings: AuthSettings,
    oidc: Option<Arc<OidcVerifier>>,
}

impl ListedCallers {
    /// Lists the callers of `settings`.
    pub(super) fn new(settings: AuthSettings) -> Self {
        let verifier = |settings| Arc::new(OidcVerifier::new(settings, Clock::default()));
        Self { oidc: settings.oidc.clone().map(verifier), settings }
    }

    /// Lists the callers of other settings. If those of the issuer are the same, its keys stay.
    pub(super) fn replaced_by(&self, settings: AuthSettings) -> Self {
        let kept =
            self.oidc.as_ref().filter(|oidc| Some(oidc.settings()) == settings.oidc.as_ref());
        if kept.is_some() {
            return Self { oidc: kept.cloned(), settings };
        }
        Self::new(settings)
    }

    /// Returns the verifier of the issuer's tokens.
    pub(super) fn oidc(&self) -> Option<&Arc<OidcVerifier>> {
        self.oidc.as_ref()
    }

    /// Returns the caller of a request: named by its token if that is known, with the roles of the
    /// token and of the certificate with these names. If the certificate is enough, an invalid
    /// token does no harm.
    pub(super) fn caller<B>(
        &self,
        request: &Request<B>,
        names: &[String],
        permission: Permission,
    ) -> Result<Caller, AuthError> {
        let of_names = self.caller_with_names(names);
        let is_met_by = |caller: &Caller| caller.grants().meet(permission);
        let is_enough = of_names.as_ref().is_some_and(is_met_by);
        let of_token =
            bearer_token(request).map_or(Ok(None), |token| self.caller_with_token(token));
        let of_token = match of_token {
            Ok(of_token) => of_token,
            Err(error) if !is_enough => return Err(error.into()),
            Err(_) => None,
        };
        let known = of_token.into_iter().chain(of_names);
        let caller = known.reduce(|caller, other| caller.with_roles_of(&other));
        let caller = caller.ok_or(AuthError::Unauthenticated)?;
        if !is_met_by(&caller) {
            return Err(AuthError::Forbidden(permission.roles()));
        }
        Ok(caller)
    }

    /// Checks what a call shows beside its API key, which is of `project`: its token must be known,
    /// and each known caller must by itself have the role in the project; for other calls than those
    /// for decisions any role.
    pub(super) fn confirm<B>(
        &self,
        request: &Request<B>,
        names: &[String],
        permission: Permission,
        project: &ProjectId,
    ) -> Result<(), AuthError> {
        let of_token = match bearer_token(request) {
            Some(token) => Some(self.caller_with_token(token)?.ok_or(AuthError::Unauthenticated)?),
            None => None,
        };
        let required = match permission {
            Permission::Decisions => permission.roles(),
            _ => Roles::ALL,
        };
        let mut known = of_token.into_iter().chain(self.caller_with_names(names));
        let agree = known.all(|caller| caller.roles_in(project).intersects(required));
        if agree { Ok(()) } else { Err(AuthError::Forbidden(permission.roles())) }
    }

    /// Returns the caller with a token. Compares the token with every hash.
    fn caller_with_token(&self, token: &[u8]) -> Result<Option<Caller>, TokenError> {
        self.caller_with_hash(TokenHash::from_token(token), has_form(token).then_some(token))
    }

    /// Returns the caller with a token that has this hash. `issued` is the token if it may be one of
    /// the issuer.
    pub(super) fn caller_with_hash(
        &self,
        hash: TokenHash,
        issued: Option<&[u8]>,
    ) -> Result<Option<Caller>, TokenError> {
        let known = self.settings.tokens.iter().filter(|known| known.sha256.matches(&hash));
        let named = known.map(|known| (format!("token:{}", known.name), known.roles.clone()));
        if let Some(caller) = merged(named) {
            return Ok(Some(caller));
        }
        let (Some(oidc), Some(token)) = (self.oidc.as_ref(), issued) else { return Ok(None) };
        oidc.verify(token, hash).map(Some)
    }

    /// Returns the visitor with an ID token of the issuer.
    pub(super) fn caller_with_id_token(
        &self,
        hash: TokenHash,
        token: &[u8],
    ) -> Result<Option<Caller>, TokenError> {
        self.oidc.as_ref().map_or(Ok(None), |oidc| oidc.verify_id_token(token, hash))
    }

    /// Returns the caller with a certificate that has these names.
    pub(super) fn caller_with_names(&self, names: &[String]) -> Option<Caller> {
        let known = names.iter().filter_map(|name| {
            Some((format!("certificate:{name}"), self.settings.clients.get(name).cloned()?))
        });
        merged(known)
    }
}

/// Returns a caller with the first name and the roles of all.
fn merged(mut known: impl Iterator<Item = (String, Grants)>) -> Option<Caller> {
    let (actor, grants) = known.next()?;
    Some(Caller::new(actor, known.fold(grants, |all, (_, grants)| all.with(&grants))))
}

/// Returns the token of the `Authorization` header.
fn bearer_token<B>(request: &Request<B>) -> Option<&[u8]> {
    let header = request.headers().get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = header.split_at_checked(b"Bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !token.is_empty()).then_some(token)
}
