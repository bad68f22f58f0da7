//! The credentials that have opened a stream, checked again while it lasts.

use std::sync::Arc;

use axum::http::Request;

use super::{Auth, PeerLocality, Permission, RequestKind};

/// Whether the call that opened a stream would still be admitted: its API key, its token, its
/// certificate and their roles. Extension of its request.
#[derive(Clone, Debug)]
pub struct StreamAccess(Arc<OpenedStream>);

#[derive(Debug)]
struct OpenedStream {
    auth: Arc<Auth>,
    /// The request without its body.
    request: Request<()>,
    permission: Permission,
    origin: (RequestKind, PeerLocality),
}

impl StreamAccess {
    /// Remembers a call that was admitted.
    pub fn new<B>(
        auth: &Arc<Auth>,
        request: &Request<B>,
        permission: Permission,
        origin: (RequestKind, PeerLocality),
    ) -> Self {
        let mut opening = Request::new(());
        *opening.method_mut() = request.method().clone();
        *opening.uri_mut() = request.uri().clone();
        *opening.headers_mut() = request.headers().clone();
        *opening.extensions_mut() = request.extensions().clone();
        let auth = Arc::clone(auth);
        Self(Arc::new(OpenedStream { auth, request: opening, permission, origin }))
    }

    /// Returns `true` if the call would be admitted now.
    pub fn is_admitted(&self) -> bool {
        let OpenedStream { auth, request, permission, origin } = &*self.0;
        auth.decide(request, *permission, *origin).is_ok()
    }
}
