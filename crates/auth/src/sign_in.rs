//! Visitors of the console: a browser shows its credential once, at its sign-in, and a session
//! remembers it. The roles that it gives are looked up at each request.

use std::fmt;
use std::sync::Arc;

use http::{Request, header};

use super::oidc::{CodeFlow, has_form};
use super::origin::is_own_origin;
use super::{
    Auth, AuthError, Caller, PeerLocality, Permission, Policy, RequestKind, TokenHash, WebError,
    certificate_names,
};

/// What every visitor must be permitted: one of the roles that the pages are for, in any project.
const REQUIRED: Permission = Permission::PROJECT_OPERATE_OR_ADMIN;

/// A credential that a visitor has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// A token.
    Token(ShownToken),
    /// An ID token, by which the visitor signed in at the issuer.
    IdToken(ShownToken),
    /// The names in the client's certificate. Each request must come with the same.
    Certificate(Arc<[String]>),
}

/// A token that a visitor has shown: of a listed one its hash, of the issuer's the token itself,
/// which is verified at each request. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ShownToken {
    hash: TokenHash,
    issued: Option<Arc<[u8]>>,
}

impl ShownToken {
    /// Keeps a token of the issuer.
    pub fn of_issuer(token: &[u8]) -> Self {
        Self { hash: TokenHash::from_token(token), issued: Some(Arc::from(token)) }
    }
}

impl fmt::Debug for ShownToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Auth {
    /// Returns `true` if visitors must sign in: if any caller is listed. Else local ones are admitted
    /// by [`Self::local_visitor`].
    pub fn requires_sign_in(&self) -> bool {
        matches!(self.policy, Policy::Listed(_))
    }

    /// Returns the visitor who shows a token, and what their session remembers. Waits for the
    /// issuer's keys if the token may be by one that is not known yet.
    ///
    /// # Errors
    ///
    /// [`AuthError`], counted in metrics: the token is not known, or gives no role in the console.
    pub async fn sign_in_with_token<B>(
        &self,
        request: &Request<B>,
        token: &[u8],
    ) -> Result<(Caller, Credential), AuthError> {
        let issued = has_form(token).then(|| Arc::from(token));
        let credential =
            Credential::Token(ShownToken { hash: TokenHash::from_token(token), issued });
        let caller = self.find_visitor_or_wait(request, &credential).await;
        self.recorded(caller).map(|caller| (caller, credential))
    }

    /// Returns the visitor who signed in at the issuer, and what their session remembers. The ID
    /// token must be of the sign-in with this nonce.
    ///
    /// # Errors
    ///
    /// [`AuthError`], counted in metrics: the token is not valid, or gives no role in the console.
    pub async fn sign_in_with_id_token<B>(
        &self,
        request: &Request<B>,
        token: &[u8],
        nonce: &str,
    ) -> Result<(Caller, Credential), AuthError> {
        let credential = Credential::IdToken(ShownToken::of_issuer(token));
        let caller = self.find_visitor_or_wait(request, &credential).await;
        let caller = caller.and_then(|caller| {
            let oidc = self.oidc().ok_or(AuthError::Unauthenticated)?;
            oidc.check_sign_in(token, nonce)?;
            Ok(caller)
        });
        self.recorded(caller).map(|caller| (caller, credential))
    }

    /// Returns the flow by which visitors sign in at the issuer, if the console is its client.
    pub fn code_flow(&self) -> Option<CodeFlow> {
        self.oidc().and_then(CodeFlow::new)
    }

    /// Returns the visitor whom the certificate of their connection names, and what their session
    /// remembers.
    ///
    /// # Errors
    ///
    /// [`AuthError`], counted in metrics: there is no certificate, it is not known, or gives no role in
    /// the console.
    pub fn sign_in_with_certificate<B>(
        &self,
        request: &Request<B>,
    ) -> Result<(Caller, Credential), AuthError> {
        let names = certificate_names(request).map(Arc::from);
        let found = names.and_then(|names| {
            let credential = Credential::Certificate(names);
            self.find_visitor(request, &credential).map(|caller| (caller, credential))
        });
        self.recorded(found)
    }

    /// Returns the visitor with a credential, with the roles that it gives now.
    ///
    /// # Errors
    ///
    /// [`AuthError`], counted in metrics: the credential is no longer valid, or gives no role in the
    /// console.
    pub fn visitor<B>(
        &self,
        request: &Request<B>,
        credential: &Credential,
    ) -> Result<Caller, AuthError> {
        self.recorded(self.find_visitor(request, credential))
    }

    /// Returns the visitor of this machine, while `auth` lists nobody.
    ///
    /// # Errors
    ///
    /// [`AuthError`], counted in metrics: the request is not local, or `auth` lists callers.
    pub fn local_visitor<B>(
        &self,
        request: &Request<B>,
        peer: PeerLocality,
    ) -> Result<Caller, AuthError> {
        let Policy::Unlisted(hosts) = &self.policy else { return Err(AuthError::Unauthenticated) };
        let names = certificate_names(request);
        let caller =
            names.and_then(|names| hosts.local_caller(request, peer, names, REQUIRED.roles()));
        self.recorded(caller)
    }

    /// Checks that a page of this server sends a request.
    ///
    /// # Errors
    ///
    /// [`WebError::Origin`], counted in metrics: the request has no origin, or another one.
    pub fn check_own_page<B>(
        &self,
        request: &Request<B>,
        kind: RequestKind,
    ) -> Result<(), AuthError> {
        let has_origin = request.headers().contains_key(header::ORIGIN);
        let is_own = has_origin && is_own_origin(request, kind);
        self.recorded(if is_own { Ok(()) } else { Err(WebError::Origin.into()) })
    }

    /// Waits for the issuer's keys if the token may be by one that is not known yet.
    async fn find_visitor_or_wait<B>(
        &self,
        request: &Request<B>,
        credential: &Credential,
    ) -> Result<Caller, AuthError> {
        let caller = self.find_visitor(request, credential);
        if let Err(AuthError::Token(error)) = caller
            && let Some(keys) = self.oidc().and_then(|oidc| oidc.keys_awaited(error))
        {
            keys.wait().await;
            return self.find_visitor(request, credential);
        }
        caller
    }

    fn find_visitor<B>(
        &self,
        request: &Request<B>,
        credential: &Credential,
    ) -> Result<Caller, AuthError> {
        let Policy::Listed(in_force) = &self.policy else { return Err(AuthError::Unauthenticated) };
        let names = certificate_names(request)?;
        let listed = in_force.load();
        let of_names = listed.caller_with_names(names);
        let caller = match credential {
            Credential::Certificate(shown) if **shown == *names => of_names,
            Credential::Certificate(_) => None,
            Credential::Token(ShownToken { hash, issued }) => {
                let of_token = listed.caller_with_hash(*hash, issued.as_deref())?;
                of_token.map(|caller| with_roles_of(caller, of_names))
            }
            Credential::IdToken(ShownToken { hash, issued }) => {
                let token = issued.as_deref().unwrap_or_default();
                let of_token = listed.caller_with_id_token(*hash, token)?;
                of_token.map(|caller| with_roles_of(caller, of_names))
            }
        };
        let caller = caller.ok_or(AuthError::Unauthenticated)?;
        if caller.grants().meet(REQUIRED) {
            Ok(caller)
        } else {
            Err(AuthError::Forbidden(REQUIRED.roles()))
        }
    }

    fn recorded<T>(&self, result: Result<T, AuthError>) -> Result<T, AuthError> {
        result.inspect_err(|refusal| self.record(*refusal, REQUIRED))
    }
}

fn with_roles_of(caller: Caller, other: Option<Caller>) -> Caller {
    match other {
        Some(other) => caller.with_roles_of(&other),
        None => caller,
    }
}

impl Caller {
    /// Returns `true` if the caller may make a call, as far as is known before its project is.
    pub fn meets(&self, permission: Permission) -> bool {
        self.grants().meet(permission)
    }
}
