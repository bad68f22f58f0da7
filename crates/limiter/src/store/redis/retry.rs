//! One decision from the first call to its result: which server, how often, until when.
//!
//! | seen | again? |
//! | --- | --- |
//! | NOSCRIPT | at once, with the text: see `batch.rs` |
//! | another window than the keys name | with the right keys |
//! | MOVED, ASK | at the server that it names, up to [`MAX_HOPS`] times |
//! | TRYAGAIN | after a moment, up to [`MAX_HOPS`] times |
//! | READONLY | once, on a new connection to the master |
//! | no answer, or a broken connection | never, unless nothing can have been taken: once |
//! | anything else | never |

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::batch::SlotTarget;
use super::codec::call::{ScriptReply, ScriptResult};
use super::codec::call_error::{CallError, RedirectKind};
use super::codec::keys::KeyFormat;
use super::codec::request::{ScriptRequest, ServerTime};
use super::node::Node;
use super::topology::Topology;
use crate::clock::{Deadline, Timestamp};
use crate::operation::{Reply, StoreRequest};
use crate::store::StoreError;

/// How often a call may find itself in another window than its keys: the first reply tells the
/// time, so a second miss needs a round trip as long as the window.
const MAX_WINDOW_MISSES: u32 = 3;
/// Redirects that are followed.
const MAX_HOPS: u32 = 2;
/// Time for a slot to get on with its move.
const SLOT_MOVE_DELAY: Duration = Duration::from_millis(5);

/// One decision that is under way.
pub(super) struct RetryingCall<'a> {
    pub(super) topology: &'a Topology,
    pub(super) format: &'a KeyFormat,
    pub(super) worker: usize,
    pub(super) request: StoreRequest<'a>,
    /// The slot of all hits.
    pub(super) slot: u16,
    /// When the caller, or the store, stops to wait.
    pub(super) until: Deadline,
    /// Set if the caller waits for less long than the store would.
    pub(super) caller_deadline_is_shorter: bool,
}

/// Where a call goes.
struct Route {
    node: Arc<Node>,
    /// Set where the slot is only on its way there.
    asking: bool,
}

/// What may still be repeated.
struct AttemptsLeft {
    window_misses: u32,
    hops: u32,
    reconnects: u32,
    ambiguous: u32,
}

impl RetryingCall<'_> {
    /// Calls until there is a decision, or none to be had.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub(super) async fn run(&self) -> Result<Reply, StoreError> {
        let changes = self.request.hits.iter().any(|hit| hit.action.changes());
        let mut left = AttemptsLeft {
            window_misses: MAX_WINDOW_MISSES,
            hops: MAX_HOPS,
            reconnects: 1,
            ambiguous: u32::from(!changes),
        };
        let node = self.topology.node(self.slot, self.until).await?;
        let mut route = Route { node, asking: false };
        let mut known_time = None;
        loop {
            let failure = match self.call(&route, known_time.take()).await {
                Ok((_, ScriptReply::Decided(reply))) => return Ok(reply),
                Ok((time, ScriptReply::OtherWindow)) if use_attempt(&mut left.window_misses) => {
                    known_time = Some(time);
                    continue;
                }
                Ok((_, ScriptReply::OtherWindow)) => return Err(StoreError::WindowMissed),
                Err(failure) => failure,
            };
            match failure {
                CallError::Redirected(redirect)
                    if redirect.slot == self.slot && use_attempt(&mut left.hops) =>
                {
                    let redirect = redirect.resolved_by(route.node.name());
                    route.node = self.topology.follow(&redirect, self.until).await?;
                    route.asking = redirect.kind == RedirectKind::Ask;
                }
                CallError::TryAgain if use_attempt(&mut left.hops) => {
                    self.wait_for_slot_move().await
                }
                CallError::ReadOnly if use_attempt(&mut left.reconnects) => {}
                CallError::Other(error)
                    if error.is_ambiguous() && use_attempt(&mut left.ambiguous) => {}
                failure => return Err(failure.into_error()),
            }
            if self.until.has_passed() {
                return Err(StoreError::Unreachable);
            }
        }
    }

    /// One call to one server, by the time that it has just shown or an estimate.
    async fn call(&self, route: &Route, known_time: Option<Timestamp>) -> ScriptResult {
        let Node { clock, health, .. } = &*route.node;
        let permit = health.admit().map_err(CallError::Other)?;
        let estimate = known_time.unwrap_or_else(|| clock.estimate());
        let time = ServerTime { estimate, clock };
        let request = ScriptRequest::new(self.format, self.request, time);
        let target = SlotTarget { slot: self.slot, asking: route.asking };
        let batcher = route.node.batcher(self.worker);
        let result = batcher.send(request, target, self.until).await;
        match &result {
            Ok((time, reply)) => {
                clock.observe(*time);
                if let ScriptReply::Decided(_) = reply {
                    for hit in self.request.hits {
                        clock.record_decision(*time, hit.limit.window());
                    }
                }
                health.record_success(permit);
            }
            // That a caller leaves early says nothing about the server.
            Err(CallError::Other(StoreError::Unreachable))
                if self.caller_deadline_is_shorter && self.until.has_passed() => {}
            // The batch counts a lost connection, once for all its callers.
            Err(CallError::Other(
                StoreError::Timeout(_) | StoreError::Lost | StoreError::Garbled,
            )) => {}
            Err(CallError::Other(error)) => health.record_failure(error),
            Err(_) => {}
        }
        result
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a slot that moves gives no sign when it is there"
    )]
    async fn wait_for_slot_move(&self) {
        sleep(SLOT_MOVE_DELAY.min(self.until.remaining())).await;
    }
}

fn use_attempt(attempts: &mut u32) -> bool {
    let any = *attempts > 0;
    *attempts = attempts.saturating_sub(1);
    any
}
