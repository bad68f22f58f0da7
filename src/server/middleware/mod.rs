//! What every call passes on its way to the services, the same for gRPC and HTTP.
//!
//! | layer | does |
//! | --- | --- |
//! | [`catch_panic`] | answers a call that panics, and counts it |
//! | [`request_timeout`] | gives up requests whose body does not arrive in time |
//! | [`auth`] | lets calls pass whose caller has the role that they need |
//!
//! The size of a body is limited where it is read: by tonic, and by `api/http/body.rs`, which still
//! receives what is too large, so that the client sees why it is refused.

mod auth;
mod catch_panic;
mod request_timeout;

pub(super) use catch_panic::{CatchPanic, CatchPanicBody};

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tower::ServiceBuilder;

use self::auth::{AuthLayer, Authorized};
use self::catch_panic::CatchPanicLayer;
use self::request_timeout::{RequestTimeout, RequestTimeoutLayer};
use super::protocol::Protocol;
use crate::api::auth::Auth;
use crate::telemetry::metrics::Metrics;

/// Services behind all layers.
pub(super) type Stack = CatchPanic<RequestTimeout<Authorized<Router>>>;

/// Puts the layers before services.
pub(super) fn stack(
    services: Router,
    protocol: Protocol,
    auth: Option<Arc<Auth>>,
    request_timeout: Duration,
    metrics: Arc<Metrics>,
) -> Stack {
    ServiceBuilder::new()
        .layer(CatchPanicLayer { protocol, metrics })
        .layer(RequestTimeoutLayer(request_timeout))
        .layer(AuthLayer { protocol, auth })
        .service(services)
}
