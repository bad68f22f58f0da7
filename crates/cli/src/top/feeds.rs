//! Tasks that ask the server, and send the answers to the live view.

use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1::{
    DecisionEvent, Outcome, TopKeysRequest, TopKeysResponse, TopKind, WatchDecisionsRequest,
    WatchStatsRequest, WatchStatsResponse,
};
use tokio::sync::mpsc::Sender;
use tokio::time::sleep;
use tonic::{Code, Status};

use super::state::RuleName;
use crate::call::Admin;

/// Pause before a stream is opened again. It doubles up to the longest.
const INITIAL_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// Keys that are asked for.
const MAX_KEYS: i32 = 128;

/// An update for the live view.
#[derive(Debug)]
pub(super) enum TopUpdate {
    /// A stream of points has begun.
    Begun,
    Point(Box<WatchStatsResponse>),
    /// The stream of points has ended; another one is opened.
    Lost(Status),
    /// The server refuses the stream of points.
    Refused(Status),
    Refusals {
        events: Vec<DecisionEvent>,
        dropped: u64,
    },
    /// There is no stream of refusals.
    NoRefusals(Status),
    Keys {
        of: (RuleName, TopKind),
        answer: Result<TopKeysResponse, Status>,
    },
}

/// Sends points until the server refuses them, or the view is gone. A stream that is lost is
/// opened again.
pub(super) async fn points(
    mut admin: Admin,
    request: WatchStatsRequest,
    updates: Sender<TopUpdate>,
) {
    let mut pause = INITIAL_PAUSE;
    loop {
        let lost = match admin.watch_stats(request.clone()).await {
            Err(status) if !may_return(status.code()) => {
                let _closed = updates.send(TopUpdate::Refused(status)).await;
                return;
            }
            Err(status) => status,
            Ok(stream) => {
                let mut stream = stream.into_inner();
                let mut next = TopUpdate::Begun;
                loop {
                    if updates.send(next).await.is_err() {
                        return;
                    }
                    match stream.message().await {
                        Ok(Some(point)) => {
                            pause = INITIAL_PAUSE;
                            next = TopUpdate::Point(Box::new(point));
                        }
                        Ok(None) => break Status::unavailable("the stream has ended"),
                        Err(status) => break status,
                    }
                }
            }
        };
        if updates.send(TopUpdate::Lost(lost)).await.is_err() {
            return;
        }
        wait(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Sends refusals of the projects and rules of a request until the stream ends, or the view is gone.
pub(super) async fn refusals(mut admin: Admin, of: WatchStatsRequest, updates: Sender<TopUpdate>) {
    let request = WatchDecisionsRequest {
        project_id: of.project_id,
        rule: of.rule,
        outcomes: vec![Outcome::Denied.into()],
        ..WatchDecisionsRequest::default()
    };
    let ended = match admin.watch_decisions(request).await {
        Err(status) => status,
        Ok(stream) => {
            let mut stream = stream.into_inner();
            loop {
                match stream.message().await {
                    Ok(Some(response)) => {
                        let (events, dropped) = (response.events, response.dropped);
                        if updates.send(TopUpdate::Refusals { events, dropped }).await.is_err() {
                            return;
                        }
                    }
                    Ok(None) => break Status::unavailable("the stream has ended"),
                    Err(status) => break status,
                }
            }
        }
    };
    let _closed = updates.send(TopUpdate::NoRefusals(ended)).await;
}

/// Sends the keys of a rule with the highest counts.
pub(super) async fn keys(mut admin: Admin, of: (RuleName, TopKind), updates: Sender<TopUpdate>) {
    let request = TopKeysRequest {
        project_id: of.0.project.clone(),
        rule: of.0.rule.clone(),
        kind: of.1.into(),
        max_keys: MAX_KEYS,
        ..TopKeysRequest::default()
    };
    let answer = admin.top_keys(request).await.map(tonic::Response::into_inner);
    let _closed = updates.send(TopUpdate::Keys { of, answer }).await;
}

/// Returns `true` if the same call may succeed later.
fn may_return(code: Code) -> bool {
    use Code::{Aborted, Cancelled, DeadlineExceeded, Internal, ResourceExhausted, Unavailable};
    let passing = [Aborted, Cancelled, DeadlineExceeded, Internal, ResourceExhausted, Unavailable];
    passing.contains(&code) || code == Code::Unknown
}

#[expect(clippy::disallowed_methods, reason = "paces the attempts to connect again")]
async fn wait(pause: Duration) {
    sleep(pause).await;
}
