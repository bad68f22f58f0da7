//! Lets calls pass that [`Auth`](crate::api::auth::Auth) admits, and answers the others.

use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::{Request, Response};
use futures_util::future::{BoxFuture, Either};
use hyper::body::Bytes;
use tonic::codegen::StdError;
use tower::{Layer, Service};

use super::Middleware;

/// Admits calls to a service.
#[derive(Clone, Debug)]
pub(super) struct AuthLayer(pub(super) Arc<Middleware>);

/// A service for callers that are admitted.
#[derive(Clone, Debug)]
pub(in crate::server) struct Authorized<S> {
    inner: S,
    middleware: Arc<Middleware>,
}

impl<S> Layer<S> for AuthLayer {
    type Service = Authorized<S>;

    fn layer(&self, inner: S) -> Authorized<S> {
        Authorized { inner, middleware: Arc::clone(&self.0) }
    }
}

impl<S, B> Service<Request<B>> for Authorized<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    B: HttpBody<Data = Bytes, Error: Into<StdError>> + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<S::Future, BoxFuture<'static, Result<S::Response, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Middleware { protocol, auth, .. } = &*self.middleware;
        let refused = auth.as_ref().and_then(|auth| {
            let role = protocol.role_of(request.method(), request.uri().path())?;
            auth.admit(&request, role).err()
        });
        let Some(error) = refused else { return Either::Left(self.inner.call(request)) };
        let protocol = *protocol;
        let request = request.map(Body::new);
        Either::Right(Box::pin(async move { Ok(protocol.refuse(error, request).await) }))
    }
}
