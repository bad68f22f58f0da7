//! What every call passes on its way to the services, the same for gRPC and HTTP.
//!
//! | layer | does |
//! | --- | --- |
//! | [`catch_panic`] | ends a call that panics, or still waits when its connection closes |
//! | [`request_timeout`] | gives up requests whose body does not arrive in time, or not before their connection closes |
//! | [`traces`] | begins the span of a call, and ends it with its response |
//! | [`auth`] | lets calls pass whose caller has the role that they need |
//!
//! The size of a body is limited where it is read: by tonic, and by `api/http/body.rs`, which still
//! receives what is too large, so that the client sees why it is refused.

mod auth;
mod catch_panic;
mod request_timeout;
mod traces;

pub(super) use catch_panic::ResponseBody;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tower::ServiceBuilder;

use self::auth::{AuthLayer, Authorized};
use self::catch_panic::{CatchPanic, CatchPanicLayer};
use self::request_timeout::{RequestTimeout, RequestTimeoutLayer};
use self::traces::{Traced, TracesLayer};
use super::lifecycle::Phases;
use super::protocol::Protocol;
use crate::api::auth::Auth;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;

/// Services behind all layers.
pub(super) type Stack = CatchPanic<RequestTimeout<Traced<Authorized<Router>>>>;

/// What the layers need for the calls of one protocol. Each worker has one of its own: they count its
/// owners with each call, which threads should not do together.
#[derive(Debug)]
pub(super) struct Middleware {
    pub(super) protocol: Protocol,
    /// Everybody is admitted without.
    pub(super) auth: Option<Arc<Auth>>,
    /// No call has a span without.
    pub(super) traces: Option<Traces>,
    /// The longest that the body of a request may take.
    pub(super) request_timeout: Duration,
    pub(super) metrics: Arc<Metrics>,
}

impl Middleware {
    /// Puts the layers before the services of a connection.
    pub(super) fn stack(self: &Arc<Self>, services: Router, phases: &Arc<Phases>) -> Stack {
        let [of_request, of_response] = [phases, phases].map(Arc::clone);
        ServiceBuilder::new()
            .layer(CatchPanicLayer { middleware: Arc::clone(self), phases: of_response })
            .layer(RequestTimeoutLayer { timeout: self.request_timeout, phases: of_request })
            .layer(TracesLayer(Arc::clone(self)))
            .layer(AuthLayer(Arc::clone(self)))
            .service(services)
    }
}
