//! Stands before a gRPC service and admits only whom [`Auth`] does; everybody where nobody is
//! listed.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::{Request, Response};
use futures_util::future::Either;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

use super::auth::{Auth, Role};

/// A service with a guard before it.
#[derive(Clone, Debug)]
pub(super) struct Guarded<S> {
    service: S,
    auth: Option<Arc<Auth>>,
    role_of: fn(&str) -> Role,
}

impl<S> Guarded<S> {
    /// `role_of` says which role a method needs, by its name.
    pub(super) fn new(service: S, auth: Option<Arc<Auth>>, role_of: fn(&str) -> Role) -> Self {
        Self { service, auth, role_of }
    }
}

impl<S: NamedService> NamedService for Guarded<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B> Service<Request<B>> for Guarded<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<S::Response, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Some(auth) = &self.auth else { return Either::Left(self.service.call(request)) };
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        match auth.admit(&request, (self.role_of)(method)) {
            Ok(()) => Either::Left(self.service.call(request)),
            Err(refusal) => Either::Right(ready(Ok(Status::from(refusal).into_http()))),
        }
    }
}
