//! Calls of the services in this process, on behalf of a caller that was admitted before.

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::http::{Request, Response};
use rlaas_auth::{CallProject, Caller};
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::permission_of;
use rlaas_admin::{OPERATE_OR_ADMIN, admitted, forbidden};

/// Path of the method whose project is no field of its request.
const GET_CONFIG: &str = "/ratelimit.v1.RateLimitService/GetConfig";

/// The services, as one caller may call them. A transport of generated clients.
#[derive(Clone, Debug)]
pub struct InProcess {
    services: Router,
    caller: Caller,
}

impl InProcess {
    /// Creates the transport of a caller.
    pub const fn new(services: Router, caller: Caller) -> Self {
        Self { services, caller }
    }

    /// Checks the roles of the caller, but for those in the project of a field: the methods do.
    fn check(&self, path: &str, CallProject(project): &CallProject) -> Result<(), Status> {
        if path == GET_CONFIG {
            return admitted(&self.caller, project, OPERATE_OR_ADMIN).map(drop);
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
        let project: rlaas_console::CallProject =
            request.extensions_mut().remove().unwrap_or_default();
        let project = CallProject(project.0);
        if let Err(status) = self.check(request.uri().path(), &project) {
            return Box::pin(ready(Ok(status.into_http())));
        }
        request.extensions_mut().insert(self.caller.clone());
        request.extensions_mut().insert(project);
        let mut services = self.services.clone();
        Box::pin(async move { Ok(services.call(request).await?.map(Body::new)) })
    }
}
