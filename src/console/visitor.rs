//! Visitors: admitted anew for each request, with the roles that they have at that moment.

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::response::Response;

use super::calls::id_of;
use super::fields::FormFields;
use super::layout::Frame;
use super::page_error::PageError;
use super::sessions::{FormSecret, OpenSession, Sessions};
use super::visit_error::VisitError;
use super::{Console, ConsoleContext, cookies, live, origin_of};
use crate::api::InProcess;
use crate::api::auth::{AuthError, Caller, Permission, Role, TokenError};
use crate::projects::ProjectId;
use crate::store::Health;

/// A visitor who may see the console.
#[derive(Clone, Debug)]
pub(super) struct ConsoleVisitor {
    /// The services, as the visitor may call them.
    pub(super) services: InProcess,
    /// Their name and their roles.
    pub(super) caller: Caller,
    /// The secret that forms of their pages must have.
    pub(super) form_secret: FormSecret,
    /// Whether they have signed in.
    pub(super) has_session: bool,
}

impl ConsoleVisitor {
    /// Returns `true` for visitors with a role for all projects. Others see neither the instances nor the
    /// store.
    pub(super) fn sees_instances(&self) -> bool {
        self.caller.has(Role::Operate) || self.caller.has(Role::Admin)
    }

    /// Returns `true` for visitors who may change all projects.
    pub(super) fn is_admin_of_all(&self) -> bool {
        self.caller.has(Role::Admin)
    }

    /// Returns `true` for visitors who may change a project, given by its id.
    pub(super) fn is_admin(&self, project: &str) -> bool {
        self.has_role_in(project, Role::Admin)
    }

    /// Returns `true` for visitors who may see and repair keys of a project, given by its id.
    pub(super) fn is_operator(&self, project: &str) -> bool {
        self.has_role_in(project, Role::Operate)
    }

    /// Returns the id of the project of a form, which the visitor may change.
    ///
    /// # Errors
    ///
    /// [`PageError`] as the service would refuse the change.
    pub(super) fn admin_in<'a>(&self, fields: &'a FormFields) -> Result<&'a str, PageError> {
        let id = id_of(fields.one("project")?);
        match (self.is_admin(id), self.is_operator(id)) {
            (true, _) => Ok(id),
            (false, true) => Err(PageError::forbidden("admin")),
            (false, false) => Err(PageError::no_project()),
        }
    }

    /// Returns the id of a project of a visitor who has roles for some projects alone.
    pub(super) fn first_project(&self) -> Option<String> {
        self.caller
            .projects_with(Permission::PROJECT_OPERATE_OR_ADMIN.roles())
            .next()
            .map(ToString::to_string)
    }

    fn has_role_in(&self, project: &str, role: Role) -> bool {
        let id = ProjectId::try_from(project.to_owned());
        id.is_ok_and(|id| self.caller.roles_in(&id).contains(role))
    }
}

impl FromRequestParts<Console> for ConsoleVisitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, console: &Console) -> Result<Self, Response> {
        let request = Request::from_parts(parts.clone(), ());
        let visitor = if live::is_by_script(&parts.headers) {
            console.watcher(&request)
        } else {
            console.visitor(&request)
        };
        match visitor {
            Ok(visitor) => Ok(visitor),
            Err(refusal) => Err(refusal.respond(console, &request).await),
        }
    }
}

impl ConsoleContext {
    /// Returns the visitor who makes a request.
    pub(super) fn visitor(&self, request: &Request<()>) -> Result<ConsoleVisitor, VisitError> {
        self.visitor_of(request, Sessions::find)
    }

    /// Returns the visitor whose page asks what is new. Their session does not count as used.
    pub(super) fn watcher(&self, request: &Request<()>) -> Result<ConsoleVisitor, VisitError> {
        self.visitor_of(request, Sessions::look_up)
    }

    fn visitor_of(
        &self,
        request: &Request<()>,
        session: impl Fn(&Sessions, &str) -> Option<OpenSession>,
    ) -> Result<ConsoleVisitor, VisitError> {
        if !self.auth.requires_sign_in() {
            let caller = self.auth.local_visitor(request, origin_of(request).peer)?;
            let form_secret = self.sessions.local_secret();
            return Ok(self.admit(caller, form_secret, false));
        }
        let mut had_session = false;
        for id in cookies::session_ids(request.headers()) {
            had_session = true;
            let Some(session) = session(&self.sessions, id) else { continue };
            return match self.auth.visitor(request, &session.credential) {
                Ok(caller) => Ok(self.admit(caller, session.form_secret, true)),
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

    fn admit(&self, caller: Caller, form_secret: FormSecret, has_session: bool) -> ConsoleVisitor {
        let services = InProcess::new(self.services.clone(), caller.clone());
        ConsoleVisitor { services, caller, form_secret, has_session }
    }

    /// Returns the frame of a page for a visitor.
    pub(super) fn frame(&self, visitor: &ConsoleVisitor, page: &'static str) -> Frame {
        let store = self.administrator.limiter().store();
        Frame {
            page,
            actor: visitor.caller.actor().to_owned(),
            form_secret: visitor.form_secret.clone(),
            has_session: visitor.has_session,
            has_audit: visitor.caller.has_anywhere(Role::Admin),
            has_instances: visitor.sees_instances(),
            instance: self.administrator.instances().id().to_owned(),
            store: store.name(),
            is_store_away: *store.health().borrow() == Health::Down,
            outcome: None,
        }
    }
}
