//! The span of a request over HTTP: which route, what was decided, and the status.
//!
//! **Source:** `OpenTelemetry`, semantic conventions for HTTP spans.

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;

use super::OverTls;
use crate::api::traces::Call;
use crate::limiter::{RuleDecision, Verdict};
use crate::telemetry::traces::Traces;

/// What was decided, as an answer carries it to its span.
#[derive(Clone, Debug)]
pub(super) struct Told {
    is_allowed: bool,
    decided: RuleDecision,
}

impl Told {
    pub(super) fn of(verdict: &Verdict) -> Self {
        Self { is_allowed: verdict.is_allowed(), decided: verdict.deciding().clone() }
    }
}

/// Tells of a request for a decision.
pub(super) async fn tell(
    State(traces): State<Traces>,
    route: MatchedPath,
    request: Request,
    next: Next,
) -> Response {
    let scheme = request.extensions().get::<OverTls>().map_or("http", |_| "https");
    let mut call = Call::over_http(&traces, scheme, route.as_str(), &request);
    let mut response = next.run(request).await;
    let told = response.extensions_mut().remove::<Told>();
    let told = told.as_ref().map(|Told { is_allowed, decided }| (*is_allowed, decided));
    call.responded(response.status(), told);
    response
}
