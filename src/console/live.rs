//! Pages that keep themselves up to date: a stream of events says that there is something new, and the
//! script of the page loads it again.
//!
//! An event has no data of decisions, so that one stream serves all tabs of a browser, whatever they
//! show. A view is made once for all who see the same ([`LiveViews`]), and none is made while no page
//! asks.
//!
//! **Source:** WHATWG HTML, "Server-sent events".

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinError;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::pages::now::{Traffic, View};
use super::streams::{MAX_OF_ACTOR, OpenStreams, StreamPermit};
use super::visit_error::VisitError;
use super::visitor::ConsoleVisitor;
use super::{Console, ConsoleContext};
use crate::admin::{AdminError, InstanceList, StatsWatch};
use crate::api::auth::{AuthError, Caller, TokenError, WebError};
use crate::clock::Deadline;
use crate::store::Health;

/// The header of requests that the script makes.
const BY_SCRIPT: HeaderName = HeaderName::from_static("x-console-live");
/// Time between two checks of who watches, and of the store.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for the list of instances.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Most views that are kept.
const MAX_VIEWS: usize = 64;
/// Time after which a browser connects again, and the end of the first event.
const OPENED: &str = "retry: 2000\nevent: new\ndata: 1\n\n";
const NEW: &str = "event: new\ndata: 1\n\n";

/// The views that visitors watch, made once for all who see the same; and their streams.
#[derive(Debug, Default)]
pub struct LiveViews {
    shown: Mutex<ShownViews>,
    streams: OpenStreams,
}

/// The views of one state. Each cell is filled by the first who asks, and the others wait for it.
#[derive(Debug, Default)]
struct ShownViews {
    of: Option<ViewVersion>,
    instances: Arc<OnceCell<Arc<ListedInstances>>>,
    views: Vec<(View, ViewCell)>,
}

/// The HTML of a view, once it is made.
type ViewCell = Arc<OnceCell<Arc<str>>>;

/// The state that views show, until there is something new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ViewVersion {
    /// Number of the newest point.
    newest: u64,
    health: Health,
}

/// The instances, or why they are not known.
pub(super) type ListedInstances = Result<InstanceList, String>;

/// Returns `true` if a script asks for what is new. Its visitor may be away.
pub(super) fn is_by_script(headers: &HeaderMap) -> bool {
    headers.contains_key(BY_SCRIPT)
}

impl LiveViews {
    /// Returns the cell of a view in this state, and that of the instances.
    fn cells(
        &self,
        version: ViewVersion,
        view: &View,
    ) -> (ViewCell, Arc<OnceCell<Arc<ListedInstances>>>) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.of != Some(version) {
            *shown = ShownViews { of: Some(version), ..ShownViews::default() };
        }
        let instances = Arc::clone(&shown.instances);
        if let Some((_, cell)) = shown.views.iter().find(|(of, _)| of == view) {
            return (Arc::clone(cell), instances);
        }
        if shown.views.len() == MAX_VIEWS {
            shown.views.remove(0);
        }
        let cell = ViewCell::default();
        shown.views.push((view.clone(), Arc::clone(&cell)));
        (cell, instances)
    }
}

impl ConsoleContext {
    /// Returns the HTML of a view.
    pub(super) async fn live_view(self: &Arc<Self>, view: &View) -> Option<Arc<str>> {
        let health = *self.administrator.limiter().store().health().borrow();
        let newest = *self.administrator.stats().subscribe().borrow();
        let (cell, instances) = self.live.cells(ViewVersion { newest, health }, view);
        if let Some(html) = cell.get() {
            return Some(Arc::clone(html));
        }
        let (console, view) = (Arc::clone(self), view.clone());
        // A task, so that the work is not lost if the client leaves.
        let made = self.outbound.spawn(async move {
            let make = || console.make_view(&view, &instances, health);
            cell.get_or_try_init(make).await.cloned()
        });
        made.await.ok()?.ok()
    }

    async fn make_view(
        &self,
        view: &View,
        instances: &OnceCell<Arc<ListedInstances>>,
        health: Health,
    ) -> Result<Arc<str>, JoinError> {
        let instances = if view.has_instances {
            Some(Arc::clone(instances.get_or_init(|| self.list_instances()).await))
        } else {
            None
        };
        let points = self.administrator.stats().recent(view.scope, 0);
        let (of, name) = (view.clone(), self.administrator.limiter().store().name());
        let render = move || {
            let traffic = Traffic::new(&points, &of.filter);
            of.render(&traffic, instances.as_deref(), health, name).into_string()
        };
        self.background.spawn_blocking(render).await.map(Arc::from)
    }

    async fn list_instances(&self) -> Arc<ListedInstances> {
        let listed = self.administrator.instances().list(Deadline::within(MAX_TIME)).await;
        Arc::new(listed.map_err(|error| AdminError::Store(error).to_string()))
    }
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
    let Some(permit) = console.live.streams.open(visitor.caller.actor()) else {
        let text = format!("you have {MAX_OF_ACTOR} streams already: close other tabs");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let watch = match console.administrator.stats().watch() {
        Ok(watch) => watch,
        Err(error) => return (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    };
    let events = LiveEvents::new(console, request, visitor.caller, (permit, watch));
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
    watch: StatsWatch,
    _permit: StreamPermit,
    newest: watch::Receiver<u64>,
    health: HealthChanges,
    checks: Interval,
}

/// Finds changes of a store's health, which the store reports again and again while it is away.
struct HealthChanges {
    reported: watch::Receiver<Health>,
    last: Health,
}

impl LiveEvents {
    fn new(
        console: Console,
        request: Request<()>,
        opened_by: Caller,
        (permit, watch): (StreamPermit, StatsWatch),
    ) -> Self {
        let newest = watch.stats().subscribe();
        let health = HealthChanges::new(console.administrator.limiter().store().health());
        let mut checks = interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { console, request, opened_by, watch, _permit: permit, newest, health, checks }
    }

    /// Waits for the next event. `None` if the server drains: the browser connects to another.
    async fn next(&mut self) -> Option<LiveEvent> {
        let drained = self.watch.drained();
        tokio::pin!(drained);
        loop {
            tokio::select! {
                () = &mut drained => return None,
                Ok(()) = self.newest.changed() => return Some(LiveEvent::New),
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
    fn new(reported: watch::Receiver<Health>) -> Self {
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
        let (store, reported) = watch::channel(Health::Up);
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
