//! Pages that keep themselves up to date: a stream of events says that there is something new, and the
//! script of the page loads it again.
//!
//! An event has no data of decisions, so that one stream serves all tabs of a browser, whatever they
//! show.
//!
//! **Source:** WHATWG HTML, "Server-sent events".

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use rlaas_proto::ratelimit::admin::v1::{WatchStatsRequest, WatchStatsResponse};
use tokio::sync::watch as value_watch;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::{Status, Streaming};

use super::Console;
use super::streams::{MAX_OF_ACTOR, StreamPermit};
use super::visit_error::VisitError;
use super::visitor::ConsoleVisitor;
use crate::api::auth::{AuthError, Caller, TokenError, WebError};
use crate::store::Health;

/// The header of requests that the script makes.
const BY_SCRIPT: HeaderName = HeaderName::from_static("x-console-live");
/// Time between two checks of who watches, and of the store.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which a browser connects again, and the end of the first event.
const OPENED: &str = "retry: 2000\nevent: new\ndata: 1\n\n";
const NEW: &str = "event: new\ndata: 1\n\n";

/// Returns `true` if a script asks for what is new. Its visitor may be away.
pub(super) fn is_by_script(headers: &HeaderMap) -> bool {
    headers.contains_key(BY_SCRIPT)
}

/// Responds with a stream of events: `new` if the page shows something else by now, `end` if its visitor
/// may not see it any more, with the reason `session` or `roles`.
pub(super) async fn events(State(console): State<Console>, request: Request) -> Response {
    let (parts, _body) = request.into_parts();
    let request = Request::from_parts(parts, ());
    let visitor = match admitted(&console, &request) {
        Ok(visitor) => visitor,
        Err(refusal) => return refusal.respond(&console, &request).await,
    };
    let Some(permit) = console.streams.open(visitor.caller.actor()) else {
        let text = format!("you have {MAX_OF_ACTOR} streams already: close other tabs");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let points = match watch(&visitor).await {
        Ok(points) => points,
        Err(status) => {
            let text = status.message().to_owned();
            return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
        }
    };
    let events = LiveEvents::new(console, request, visitor.caller, (permit, points));
    let body = stream::unfold((events, Step::Open), |(mut events, step)| async move {
        let (event, next) = match step {
            Step::Open => (OPENED.to_owned(), Step::Wait),
            Step::Wait => match events.next().await? {
                LiveEvent::New => (NEW.to_owned(), Step::Wait),
                LiveEvent::End(why) => (format!("event: end\ndata: {why}\n\n"), Step::End),
            },
            Step::End => return None,
        };
        Some((Ok::<_, Infallible>(event), (events, next)))
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        // A proxy must pass on each event at once.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, Body::from_stream(body)).into_response()
}

/// Returns a stream with a point each 10 s, of as few counters as there may be.
async fn watch(visitor: &ConsoleVisitor) -> Result<Streaming<WatchStatsResponse>, Status> {
    let project_id = visitor.first_project().filter(|_| !visitor.sees_instances());
    let project_id = project_id.unwrap_or_else(|| "-".to_owned());
    let request = WatchStatsRequest { project_id, max_rules: 1, ..WatchStatsRequest::default() };
    Ok(visitor.admin().watch_stats(request).await?.into_inner())
}

/// Returns the visitor of a page of this console. Pages of others could take all streams.
fn admitted(console: &Console, request: &Request<()>) -> Result<ConsoleVisitor, VisitError> {
    let site = request.headers().get("sec-fetch-site").map(HeaderValue::as_bytes);
    if matches!(site, Some(b"cross-site" | b"same-site")) {
        return Err(AuthError::from(WebError::Origin).into());
    }
    console.watcher(request)
}

enum Step {
    Open,
    Wait,
    End,
}

enum LiveEvent {
    New,
    End(&'static str),
}

/// The events of one browser.
struct LiveEvents {
    console: Console,
    request: Request<()>,
    opened_by: Caller,
    /// A point each 10 s.
    points: Streaming<WatchStatsResponse>,
    _permit: StreamPermit,
    health: HealthChanges,
    checks: Interval,
}

/// Finds changes of a store's health, which the store reports again and again while it is away.
struct HealthChanges {
    reported: value_watch::Receiver<Health>,
    last: Health,
}

impl LiveEvents {
    fn new(
        console: Console,
        request: Request<()>,
        opened_by: Caller,
        (permit, points): (StreamPermit, Streaming<WatchStatsResponse>),
    ) -> Self {
        let health = HealthChanges::new(console.administrator.limiter().store().health());
        let mut checks = interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { console, request, opened_by, points, _permit: permit, health, checks }
    }

    /// Waits for the next event. `None` if the server drains: the browser connects to another.
    async fn next(&mut self) -> Option<LiveEvent> {
        loop {
            tokio::select! {
                point = self.points.message() => {
                    return point.ok().flatten().map(|_| LiveEvent::New);
                }
                _ = self.checks.tick() => {
                    if let Some(why) = self.ended() {
                        return Some(LiveEvent::End(why));
                    }
                    if self.health.has_changed() {
                        return Some(LiveEvent::New);
                    }
                }
            }
        }
    }

    /// Returns why the visitor may not see the page any more.
    fn ended(&self) -> Option<&'static str> {
        match self.console.watcher(&self.request) {
            Ok(visitor) if visitor.caller == self.opened_by => None,
            Err(VisitError::Auth(AuthError::Token(TokenError::KeysUnavailable))) => None,
            Ok(_) | Err(VisitError::Auth(AuthError::Forbidden(_))) => Some("roles"),
            Err(_) => Some("session"),
        }
    }
}

impl HealthChanges {
    fn new(reported: value_watch::Receiver<Health>) -> Self {
        let last = *reported.borrow();
        Self { reported, last }
    }

    /// Returns `true` if the health is another than at the last call.
    fn has_changed(&mut self) -> bool {
        let health = *self.reported.borrow();
        std::mem::replace(&mut self.last, health) != health
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_reported_once() {
        let (store, reported) = value_watch::channel(Health::Up);
        let mut changes = HealthChanges::new(reported);
        assert!(!changes.has_changed());
        for health in [Health::Down, Health::Up] {
            store.send_replace(health);
            assert!(changes.has_changed());
            store.send_replace(health);
            assert!(!changes.has_changed(), "{health:?} again");
        }
    }
}
