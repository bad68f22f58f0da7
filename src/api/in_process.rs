//! Calls of the services in this process, on behalf of a caller that was admitted before.

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::admin::{OPERATE_OR_ADMIN, admitted, forbidden};
use super::auth::Caller;
use super::permission_of;

/// Path of the method whose project is no field of its request.
const GET_CONFIG: &str = "/ratelimit.v1.RateLimitService/GetConfig";

/// The services, as one caller may call them. A transport of generated clients.
#[derive(Clone, Debug)]
pub struct InProcess {
    services: Router,
    caller: Caller,
    /// Id of the project whose rules `GetConfig` returns.
    project: String,
}

/// Id of the project of a call in this process. Extension of its request.
#[derive(Clone, Debug)]
pub(super) struct CallProject(pub(super) String);

impl InProcess {
    /// Creates the transport of a caller.
    pub const fn new(services: Router, caller: Caller) -> Self {
        Self { services, caller, project: String::new() }
    }

    /// Returns the transport whose `GetConfig` is that of a project.
    #[must_use]
    pub fn in_project(self, project: &str) -> Self {
        Self { project: project.to_owned(), ..self }
    }

    /// Checks the roles of the caller, but for those in the project of a field: the methods do.
    fn check(&self, path: &str) -> Result<(), Status> {
        if path == GET_CONFIG {
            return admitted(&self.caller, &self.project, OPERATE_OR_ADMIN).map(drop);
        }
        match permission_of(path) {
            Some(permission) if !self.caller.meets(permission) => {
                Err(forbidden(permission.roles()))
            }
            _ => Ok(()),
        }
    }
}

impl Service<Request<Body>> for InProcess {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Err(status) = self.check(request.uri().path()) {
            return Box::pin(ready(Ok(status.into_http())));
        }
        request.extensions_mut().insert(self.caller.clone());
        request.extensions_mut().insert(CallProject(self.project.clone()));
        let mut services = self.services.clone();
        Box::pin(async move { Ok(services.call(request).await?.map(Body::new)) })
    }
}
