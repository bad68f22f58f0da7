//! Visits: the visitor of each request, with the roles that they have at that moment, and clients that
//! carry their name. A page has no other way to the services.

use std::fmt;
use std::sync::Arc;

use axum::extract::Request;
use rlaas_auth::{AuthError, Caller, Role, Roles, TokenError};
use rlaas_console::{
    EndOfVisit, FormSecret, RoleScope, Services, StoreInfo, VisitHost, Visitor, is_watching,
};

use super::refusal::VisitError;
use super::seal::SealPurpose;
use super::sessions::OpenSession;
use super::{ConsoleContext, Context, cookies, origin_of};
use crate::api::InProcess;
use crate::clock::Micros;
use crate::store::Health;

/// Time after which a text that a page has sealed opens no more.
const MAX_SEALED_AGE: Micros = Micros::from_secs(5 * 60);

/// Somebody who was admitted.
struct Admitted {
    caller: Caller,
    form_secret: FormSecret,
    has_session: bool,
}

/// A visit that goes on: its page asks what is new, while its visitor may be away.
struct Visit {
    context: Context,
    request: Request<()>,
    opened_by: Caller,
    form_secret: FormSecret,
}

impl ConsoleContext {
    /// Returns the visitor who makes a request.
    pub(super) fn visitor(self: &Arc<Self>, request: &Request<()>) -> Result<Visitor, VisitError> {
        let is_watching = is_watching(request.uri().path(), request.headers());
        let Admitted { caller, form_secret, has_session } = self.admitted(request, is_watching)?;
        let actor = caller.actor().to_owned();
        let (admin, operate) = (scope(&caller, Role::Admin), scope(&caller, Role::Operate));
        let services = InProcess::new(self.services.clone(), caller.clone());
        let visit = Visit {
            context: Arc::clone(self),
            request: request.clone(),
            opened_by: caller,
            form_secret: form_secret.clone(),
        };
        Ok(Visitor {
            actor,
            admin,
            operate,
            services: Services::new(services),
            form_secret,
            has_session,
            store: StoreInfo {
                cluster: self.cluster.clone(),
                instance: self.administrator.instances().id().to_owned(),
                kind: self.administrator.limiter().store().name(),
                is_away: self.is_store_away(),
                has_conflict: self.administrator.has_catalogue_conflict(),
            },
            host: Arc::new(visit),
        })
    }

    /// Admits the caller of a request. The session of one who watches does not count as used.
    fn admitted(&self, request: &Request<()>, is_watching: bool) -> Result<Admitted, VisitError> {
        if !self.auth.requires_sign_in() {
            let caller = self.auth.local_visitor(request, origin_of(request).peer)?;
            let form_secret = self.sessions.local_secret();
            return Ok(Admitted { caller, form_secret, has_session: false });
        }
        let mut had_session = false;
        for id in cookies::session_ids(request.headers()) {
            had_session = true;
            let session =
                if is_watching { self.sessions.look_up(id) } else { self.sessions.find(id) };
            let Some(OpenSession { credential, form_secret }) = session else { continue };
            return match self.auth.visitor(request, &credential) {
                Ok(caller) => Ok(Admitted { caller, form_secret, has_session: true }),
                // Nothing is known of the credential until the issuer responds: the session stays.
                Err(error @ AuthError::Token(TokenError::KeysUnavailable)) => Err(error.into()),
                // The credential is no longer valid: the next sign-in needs another one.
                Err(AuthError::Unauthenticated | AuthError::Token(_)) => {
                    self.sessions.end(id);
                    Err(VisitError::SignIn { had_session })
                }
                Err(error) => Err(error.into()),
            };
        }
        Err(VisitError::SignIn { had_session })
    }

    fn is_store_away(&self) -> bool {
        *self.administrator.limiter().store().health().borrow() == Health::Down
    }
}

fn scope(caller: &Caller, role: Role) -> RoleScope {
    let projects = caller.projects_with(Roles::only(role)).map(ToString::to_string);
    RoleScope { everywhere: caller.has(role), projects: projects.collect() }
}

impl VisitHost for Visit {
    fn check(&self) -> Result<bool, EndOfVisit> {
        match self.context.admitted(&self.request, true) {
            Ok(admitted) if admitted.caller == self.opened_by => {}
            Err(VisitError::Auth(AuthError::Token(TokenError::KeysUnavailable))) => {}
            Ok(_) | Err(VisitError::Auth(AuthError::Forbidden(_))) => {
                return Err(EndOfVisit::Roles);
            }
            Err(_) => return Err(EndOfVisit::Session),
        }
        Ok(self.context.is_store_away())
    }

    fn seal(&self, text: &str) -> Option<String> {
        self.context.sessions.seal().seal(self.purpose(), text)
    }

    fn open(&self, sealed: &str) -> Option<String> {
        self.context.sessions.seal().open(self.purpose(), sealed)
    }
}

impl Visit {
    fn purpose(&self) -> SealPurpose<'_> {
        SealPurpose { name: "outcome", owner: self.form_secret.as_str(), max_age: MAX_SEALED_AGE }
    }
}

impl fmt::Debug for Visit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visit").field("opened_by", &self.opened_by).finish_non_exhaustive()
    }
}
