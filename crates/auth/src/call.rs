//! A call: its deadline, its long work, and the credentials that have opened a stream, checked again
//! while it lasts.

use std::future::pending;
use std::panic::resume_unwind;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, Request};
use rlaas_core::clock::Deadline;
use rlaas_limiter::grpc_timeout;
use tokio::task::spawn_blocking;

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

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Returns the time by which the caller needs the response.
pub fn deadline(metadata: &impl AsRef<HeaderMap>) -> Deadline {
    let header = metadata.as_ref().get(GRPC_TIMEOUT).and_then(|value| value.to_str().ok());
    header.map_or(Deadline::NEVER, grpc_timeout::deadline)
}

/// Runs long work on a thread of its own.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        // The runtime ends.
        Err(_) => pending().await,
    }
}
