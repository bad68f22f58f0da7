//! The credentials that have opened a stream, checked again while it lasts.

use std::sync::Arc;

use http::Request;

use super::grants::Grants;
use super::{Admission, Auth, AuthError, Caller, Requirement};

/// Whether the call that opened a stream would still be admitted: its API key, its token, its
/// certificate and their roles. Extension of its request.
#[derive(Clone, Debug)]
pub struct StreamAccess(Arc<OpenedStream>);

#[derive(Debug)]
struct OpenedStream {
    auth: Arc<Auth>,
    /// The request without its body.
    request: Request<()>,
    requirement: Requirement,
    /// What its caller was granted, if the call is an administrative one.
    grants: Option<Grants>,
}

impl StreamAccess {
    /// Remembers a call that was admitted.
    pub fn new<B>(
        auth: &Arc<Auth>,
        request: &Request<B>,
        requirement: Requirement,
        admission: &Admission,
    ) -> Self {
        let mut opening = Request::new(());
        *opening.method_mut() = request.method().clone();
        *opening.uri_mut() = request.uri().clone();
        *opening.headers_mut() = request.headers().clone();
        *opening.extensions_mut() = request.extensions().clone();
        let auth = Arc::clone(auth);
        let grants = admission.caller.as_ref().map(Caller::grants).cloned();
        Self(Arc::new(OpenedStream { auth, request: opening, requirement, grants }))
    }

    /// Returns `true` if the call would be admitted now, to all that its caller was granted: a stream
    /// that sends what is of a project ends with the role there.
    pub fn is_admitted(&self) -> bool {
        let Ok(admission) = self.decide() else { return false };
        let Some(before) = &self.0.grants else { return true };
        admission.caller.is_some_and(|caller| caller.grants().cover(before))
    }

    /// Returns the caller as it would be admitted now.
    pub fn caller(&self) -> Option<Caller> {
        self.decide().ok()?.caller
    }

    fn decide(&self) -> Result<Admission, AuthError> {
        self.0.auth.decide(&self.0.request, self.0.requirement)
    }
}
