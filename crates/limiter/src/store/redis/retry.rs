//! One decision: which server is called, how often, and until when.
//!
//! | reply | repeated? |
//! | --- | --- |
//! | NOSCRIPT | once the script is loaded: see `loaded_scripts.rs`; if it can't be, with its text |
//! | other window than that of the keys | with the keys of the right window |
//! | MOVED, ASK | at the named server, up to [`MAX_HOPS`] times |
//! | TRYAGAIN | after [`SLOT_MOVE_DELAY`], up to [`MAX_HOPS`] times |
//! | READONLY | once, on a new connection to the master |
//! | no reply, or a broken connection | never; once if the call changes nothing, or has a request id |
//! | anything else | never |

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::batch::SlotTarget;
use super::codec::call::{ScriptReply, ScriptResult};
use super::codec::call_error::{CallError, RedirectKind};
use super::codec::keys::KeyFormat;
use super::codec::request::{ScriptForm, ScriptRequest, ServerTime};
use super::codec::scripts::ScriptId;
use super::node::Node;
use super::topology::Topology;
use crate::clock::{Deadline, Timestamp};
use crate::idempotency::RequestIdError;
use crate::operation::{Reply, StoreRequest};
use crate::store::{Health, StoreError};

/// Repeats of a call in another window than that of its keys. The first reply contains the time, so
/// a second miss requires a round trip as long as the window.
const MAX_WINDOW_MISSES: u32 = 3;
/// Maximum number of redirects to follow.
const MAX_HOPS: u32 = 2;
/// Delay before a call is repeated while its slot is being moved.
const SLOT_MOVE_DELAY: Duration = Duration::from_millis(5);

/// One decision, with its retries.
pub(super) struct RetryingCall<'a> {
    pub(super) topology: &'a Topology,
    pub(super) format: &'a KeyFormat,
    pub(super) worker: usize,
    pub(super) request: StoreRequest<'a>,
    /// The slot of all hits.
    pub(super) slot: u16,
    /// The caller's own deadline, for which a call waits until its script is loaded.
    pub(super) deadline: Deadline,
    /// Store timeout.
    pub(super) timeout: Duration,
    /// Deadline: the earlier of the caller's and the store's.
    pub(super) until: Deadline,
    /// Set if the caller's deadline is shorter than the store timeout.
    pub(super) caller_deadline_is_shorter: bool,
}

/// Target of a call.
struct Route {
    node: Arc<Node>,
    /// Set if the slot is being moved to the node, which then requires ASKING.
    asking: bool,
}

impl RetryingCall<'_> {
    /// Calls until there is a decision, or an error after which the call must not be repeated.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of the last call.
    pub(super) async fn run(mut self) -> Result<Reply, StoreError> {
        let changes = self.request.hits.iter().any(|hit| hit.action.changes());
        let (mut window_misses, mut hops, mut reconnects) = (MAX_WINDOW_MISSES, MAX_HOPS, 1);
        // A call of unknown fate is repeated only if it changes nothing twice.
        let mut ambiguous = u32::from(!changes || self.request.once.is_some());
        let node = self.topology.node(self.slot, self.until).await?;
        let mut route = Route { node, asking: false };
        let mut known_time = None;
        let script = ScriptId::needed(self.request);
        let mut form = ScriptForm { script, by_text: false };
        let mut loads = 1;
        if !route.node.scripts.has(script) && use_attempt(&mut loads) {
            self.load(&route.node, script).await?;
            form.by_text = !route.node.scripts.has(script);
        }
        loop {
            let failure = match self.call(&route, form, known_time.take()).await {
                Ok((_, ScriptReply::Decided(reply))) => {
                    if form.by_text {
                        route.node.scripts.add(script);
                    }
                    return Ok(reply);
                }
                Ok((time, ScriptReply::OtherWindow)) if use_attempt(&mut window_misses) => {
                    known_time = Some(time);
                    continue;
                }
                Ok((_, ScriptReply::RequestId(error))) => return Err(StoreError::RequestId(error)),
                Ok((_, ScriptReply::OtherWindow)) => return Err(StoreError::WindowMissed),
                Err(failure) => failure,
            };
            match failure {
                CallError::Redirected(redirect)
                    if redirect.slot == self.slot && use_attempt(&mut hops) =>
                {
                    route.node = self.topology.follow(&redirect, self.until).await?;
                    route.asking = redirect.kind == RedirectKind::Ask;
                }
                CallError::TryAgain if use_attempt(&mut hops) => self.wait_for_slot_move().await,
                CallError::ReadOnly if use_attempt(&mut reconnects) => {}
                CallError::UnknownScript if !form.by_text => {
                    route.node.scripts.forget(script);
                    if use_attempt(&mut loads) {
                        self.load(&route.node, script).await?;
                    }
                    form.by_text = !route.node.scripts.has(script);
                }
                // Of a partial write, the record of a request id is not known to be there.
                CallError::Other(StoreError::Partial { .. }) => return Err(failure.into_error()),
                CallError::Other(error) if error.is_ambiguous() && use_attempt(&mut ambiguous) => {}
                failure => return Err(failure.into_error()),
            }
            if self.until.has_passed() {
                return Err(StoreError::Unreachable);
            }
        }
    }

    /// Waits until a server that answers has a script, or can't load it: its text is then sent. The store
    /// timeout begins afterwards, so that a server that is slow to load counts as no failure.
    ///
    /// # Errors
    ///
    /// [`StoreError::Expired`] if the caller's own deadline is earlier.
    async fn load(&mut self, node: &Arc<Node>, script: ScriptId) -> Result<(), StoreError> {
        let mut health = node.health.subscribe();
        if *health.borrow_and_update() == Health::Up && !node.health.breaker_is_open() {
            let load = timeout(self.deadline.remaining(), node.load(self.worker, script));
            tokio::select! {
                _ = load => {}
                _ = health.wait_for(|health| *health != Health::Up) => {}
            }
            self.until = self.deadline.or_within(self.timeout);
            self.caller_deadline_is_shorter = self.deadline.remaining() < self.timeout * 9 / 10;
        }
        if self.deadline.has_passed() { Err(StoreError::Expired) } else { Ok(()) }
    }

    /// Makes one call to one server. Keys are named by `known_time`, the time in its last reply, or
    /// by an estimate.
    async fn call(
        &self,
        route: &Route,
        form: ScriptForm,
        known_time: Option<Timestamp>,
    ) -> ScriptResult {
        let Node { clock, health, .. } = &*route.node;
        let permit = health.admit().map_err(CallError::Other)?;
        let estimate = known_time.unwrap_or_else(|| clock.estimate());
        let time = ServerTime { estimate, clock };
        let request = ScriptRequest::new(self.format, self.request, form, time);
        let target = SlotTarget { slot: self.slot, asking: route.asking };
        let batcher = route.node.batcher(self.worker);
        let result = batcher.send(request, target, self.until).await;
        match &result {
            Ok((time, reply)) => {
                clock.observe(*time);
                if let ScriptReply::Decided(_) = reply {
                    for hit in self.request.hits {
                        clock.record_decision(*time, hit.window.length());
                    }
                }
                health.record_success(permit);
            }
            // If the caller's own deadline was shorter, its expiry says nothing about the server.
            Err(CallError::Other(StoreError::Unreachable))
                if self.caller_deadline_is_shorter && self.until.has_passed() => {}
            // The batcher records these failures, once for all callers of a connection.
            Err(CallError::Other(
                error @ (StoreError::Timeout(_) | StoreError::Lost | StoreError::Garbled),
            )) => health.count_error(error),
            // The record may be forbidden while the states are not: that is for this call alone.
            Err(CallError::Other(error)) if self.lacks_permission_for_id(error) => {
                health.log_failure(error);
                return Err(CallError::Other(StoreError::RequestId(RequestIdError::NotPermitted)));
            }
            Err(CallError::Other(error)) if self.lacks_permission_for_overrides(error) => {
                health.log_failure(&StoreError::OverridesNotPermitted);
                return Err(CallError::Other(StoreError::OverridesNotPermitted));
            }
            Err(CallError::Other(error)) => {
                health.count_error(error);
                health.record_failure(error);
            }
            Err(_) => {}
        }
        result
    }

    fn lacks_permission_for_id(&self, error: &StoreError) -> bool {
        self.request.once.is_some()
            && matches!(error, StoreError::Refused { code, .. } if code == "NOPERM")
    }

    fn lacks_permission_for_overrides(&self, error: &StoreError) -> bool {
        self.request.hits.iter().any(|hit| hit.overridable)
            && matches!(error, StoreError::Refused { code, .. } if code == "NOPERM")
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "there is no notification of the end of a slot move"
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
