//! Pages that keep themselves up to date: a stream of events says that there is something new, and the
//! script of the page loads it again.
//!
//! An event has no data of decisions, so that one stream serves all tabs of a browser, whatever they
//! show. A stream that shows refusals is another one: the newest of this instance, each second. The streams of one visitor are bounded, so that nobody takes all streams of the instance.
//!
//! **Source:** WHATWG HTML, "Server-sent events".

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::OptionFuture;
use futures_util::stream;
use rlaas_proto::ratelimit::admin::v1::{
    DecisionEvent, Outcome, WatchDecisionsRequest, WatchDecisionsResponse, WatchStatsRequest,
    WatchStatsResponse,
};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::{Status, Streaming};

use super::calls::{EVERY_PROJECT, id_of};
use super::pages::now::refusal;
use super::visit::{EndOfVisit, Visit, Visitor};

/// The path of the stream.
const EVENTS: &str = "/console/now-events";
/// The header of requests that the script makes.
const BY_SCRIPT: HeaderName = HeaderName::from_static("x-console-live");
/// Time between two checks of who watches, and of the store.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which a browser connects again, and the end of the first event.
const OPENED: &str = "retry: 2000\nevent: new\ndata: 1\n\n";
const NEW: &str = "event: new\ndata: 1\n\n";

/// Most streams of one visitor.
const MAX_OF_ACTOR: usize = 16;
/// Most refusals of one event: a page shows no more of a flood.
const MAX_REFUSALS: usize = 20;

/// Returns `true` if a script asks for what is new. Its visitor may be away: the session does not count
/// as used.
pub fn is_watching(path: &str, headers: &HeaderMap) -> bool {
    path == EVENTS || headers.contains_key(BY_SCRIPT)
}

/// Responds with a stream of events: `new` if the page shows something else by now, `end` if its visitor
/// may not see it any more, with the reason `session` or `roles`. With the field `refusals`, which is a
/// project, also `refused`, with the newest refusals.
pub(super) async fn events(headers: HeaderMap, visit: Visit) -> Response {
    let Visit { console, visitor, fields } = visit;
    // Pages of others could take all streams.
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if matches!(site, Some(b"cross-site" | b"same-site")) {
        return (StatusCode::FORBIDDEN, "only pages of the console have this stream")
            .into_response();
    }
    let Some(permit) = console.streams.open(&visitor.actor) else {
        let text = format!("you have {MAX_OF_ACTOR} streams already: close other tabs");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let watched = match watch(&visitor, fields.get("refusals")).await {
        Ok(watched) => watched,
        Err(status) => {
            let text = status.message().to_owned();
            return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
        }
    };
    let events = LiveEvents::new(visitor, watched, permit);
    let body = stream::unfold((events, Step::Open), |(mut events, step)| async move {
        let (event, next) = match step {
            Step::Open => (OPENED.to_owned(), Step::Wait),
            Step::Wait => match events.next().await? {
                LiveEvent::New => (NEW.to_owned(), Step::Wait),
                LiveEvent::Refused(what) => {
                    (format!("event: refused\ndata: {what}\n\n"), Step::Wait)
                }
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

/// A point each 10 s, and refusals if they are shown.
type Watched = (Streaming<WatchStatsResponse>, Option<Streaming<WatchDecisionsResponse>>);

/// Watches points of as few counters as there may be, and the refusals of a project, unless it is empty.
async fn watch(visitor: &Visitor, refusals: &str) -> Result<Watched, Status> {
    let project_id = visitor.first_project().filter(|_| !visitor.sees_instances());
    let project_id = project_id.unwrap_or_else(|| EVERY_PROJECT.to_owned());
    let request = WatchStatsRequest { project_id, max_rules: 1, ..WatchStatsRequest::default() };
    let points = visitor.admin().watch_stats(request).await?.into_inner();
    if refusals.is_empty() {
        return Ok((points, None));
    }
    let request = WatchDecisionsRequest {
        project_id: id_of(refusals).to_owned(),
        outcomes: vec![Outcome::Denied.into()],
        ..WatchDecisionsRequest::default()
    };
    let decisions = visitor.admin().watch_decisions(request).await?.into_inner();
    Ok((points, Some(decisions)))
}

enum Step {
    Open,
    Wait,
    End,
}

enum LiveEvent {
    New,
    /// Refusals as JSON.
    Refused(String),
    End(&'static str),
}

/// The events of one browser.
struct LiveEvents {
    visitor: Visitor,
    watched: Watched,
    /// Refusals since the last event, oldest first.
    refusals: VecDeque<DecisionEvent>,
    _permit: StreamPermit,
    is_store_away: bool,
    checks: Interval,
}

impl LiveEvents {
    fn new(visitor: Visitor, watched: Watched, permit: StreamPermit) -> Self {
        let is_store_away = visitor.store.is_away;
        let mut checks = interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let refusals = VecDeque::new();
        Self { visitor, watched, refusals, _permit: permit, is_store_away, checks }
    }

    /// Waits for the next event. `None` if the server drains: the browser connects to another.
    async fn next(&mut self) -> Option<LiveEvent> {
        loop {
            let (points, decisions) = &mut self.watched;
            let refused = OptionFuture::from(decisions.as_mut().map(Streaming::message));
            tokio::select! {
                point = points.message() => {
                    return point.ok().flatten().map(|_| LiveEvent::New);
                }
                Some(refused) = refused => {
                    self.refusals.extend(refused.ok().flatten()?.events);
                    self.refusals.drain(..self.refusals.len().saturating_sub(MAX_REFUSALS));
                }
                _ = self.checks.tick() => match self.visitor.host.check() {
                    Err(EndOfVisit::Session) => return Some(LiveEvent::End("session")),
                    Err(EndOfVisit::Roles) => return Some(LiveEvent::End("roles")),
                    Ok(is_away) if is_away != self.is_store_away => {
                        self.is_store_away = is_away;
                        return Some(LiveEvent::New);
                    }
                    Ok(_) if !self.refusals.is_empty() => {
                        let shown = self.refusals.drain(..).map(|event| refusal(&self.visitor, event));
                        return Some(LiveEvent::Refused(shown.collect::<serde_json::Value>().to_string()));
                    }
                    Ok(_) => {}
                }
            }
        }
    }
}

/// The number of open streams by visitor. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenStreams(Arc<Mutex<HashMap<Arc<str>, usize>>>);

/// The right to one stream, until it is dropped.
#[derive(Debug)]
struct StreamPermit {
    streams: OpenStreams,
    actor: Arc<str>,
}

impl OpenStreams {
    /// Permits one more stream of a visitor. `None` if they have [`MAX_OF_ACTOR`] already.
    fn open(&self, actor: &str) -> Option<StreamPermit> {
        let actor = Arc::<str>::from(actor);
        let mut open = self.lock();
        let of_actor = open.entry(Arc::clone(&actor)).or_default();
        if *of_actor >= MAX_OF_ACTOR {
            return None;
        }
        *of_actor += 1;
        Some(StreamPermit { streams: self.clone(), actor })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut open = self.streams.lock();
        if let Some(of_actor) = open.get_mut(&self.actor) {
            *of_actor -= 1;
            if *of_actor == 0 {
                open.remove(&self.actor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visitor_has_sixteen_streams_at_a_time() {
        let streams = OpenStreams::default();
        let mut permits: Vec<_> = (0..MAX_OF_ACTOR).map_while(|_| streams.open("alice")).collect();
        assert_eq!(permits.len(), MAX_OF_ACTOR);
        assert!(streams.open("alice").is_none() && streams.open("bob").is_some());
        permits.pop();
        assert!(streams.open("alice").is_some());
        permits.clear();
        assert!(streams.lock().is_empty());
    }
}
