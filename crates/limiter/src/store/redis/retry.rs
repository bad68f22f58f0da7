//! One decision from the first try to its answer: which server, how often, until when.
//!
//! | seen | again? |
//! | --- | --- |
//! | NOSCRIPT | at once, with the text |
//! | another window than the keys name | with the right keys |
//! | MOVED, ASK | at the server that it names, up to [`HOPS`] times |
//! | TRYAGAIN | after a moment, up to [`HOPS`] times |
//! | READONLY | once, on a new connection to the master |
//! | no answer, or a broken connection | never, unless nothing can have been taken: once |
//! | anything else | never |

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::clock::{Deadline, Timestamp};
use crate::operation::{Reply, StoreRequest};
use crate::store::StoreError;
use crate::store::redis::RedisStore;
use crate::store::redis::cluster::RedirectKind;
use crate::store::redis::codec::call::{Answer, Told};
use crate::store::redis::codec::failure::Failure;
use crate::store::redis::codec::keys::Style;
use crate::store::redis::codec::request::{Question, ServerTime};
use crate::store::redis::connection::lanes::GivenUp;
use crate::store::redis::node::Node;

/// How often a call may find itself in another window than its keys: the first answer tells the
/// time, so a second miss needs a round trip as long as the window.
const WINDOW_ATTEMPTS: u32 = 3;
/// Redirects that are followed.
const HOPS: u32 = 2;
/// Time for a slot to get on with its move.
const MOMENT: Duration = Duration::from_millis(5);

/// One decision that is under way.
pub(super) struct Attempt<'a> {
    pub(super) store: &'a RedisStore,
    pub(super) request: StoreRequest<'a>,
    /// The slot of all hits.
    pub(super) slot: u16,
    /// When the caller stops to wait.
    pub(super) deadline: Deadline,
    /// Waits the caller less than the store would?
    pub(super) hurries: bool,
}

/// Where a call goes.
struct Route {
    node: Arc<Node>,
    /// Is the slot only on its way there?
    asking: bool,
}

/// What may still be repeated.
struct Allowance {
    windows: u32,
    hops: u32,
    masters: u32,
    losses: u32,
}

impl Attempt<'_> {
    /// Calls until there is a decision, or none to be had.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub(super) async fn run(&self) -> Result<Reply, StoreError> {
        let until = self.deadline.or_within(self.store.timeout);
        let changes = self.request.hits.iter().any(|hit| hit.action.changes());
        let mut left = Allowance {
            windows: WINDOW_ATTEMPTS,
            hops: HOPS,
            masters: 1,
            losses: u32::from(!changes),
        };
        let node = self.store.topology.node(self.slot, until).await?;
        let mut route = Route { node, asking: false };
        let mut told_time = None;
        loop {
            let ended = self.call(&route, told_time.take(), until).await;
            let failure = match ended {
                Ok((_, Answer::Decided(reply))) => return Ok(reply),
                Ok((time, Answer::OtherWindow)) if spend(&mut left.windows) => {
                    told_time = Some(time);
                    continue;
                }
                Ok((_, Answer::OtherWindow)) => return Err(StoreError::WindowMissed),
                Err(failure) => failure,
            };
            match failure {
                Failure::Elsewhere(redirect)
                    if redirect.slot == self.slot && spend(&mut left.hops) =>
                {
                    let redirect = redirect.seen_from(route.node.name());
                    route.node = self.store.topology.follow(&redirect, until).await?;
                    route.asking = redirect.kind == RedirectKind::Ask;
                }
                Failure::HalfMoved if spend(&mut left.hops) => wait_a_moment(until).await,
                Failure::ReadOnly if spend(&mut left.masters) => {}
                Failure::Other(error) if error.is_ambiguous() && spend(&mut left.losses) => {}
                failure => return Err(failure.into_error()),
            }
            if until.is_over() {
                return Err(StoreError::Unreachable);
            }
        }
    }

    /// One call to one server, by the time that it has just told or an estimate; notes there how
    /// it ended.
    async fn call(&self, route: &Route, told_time: Option<Timestamp>, until: Deadline) -> Told {
        let node = &*route.node;
        let (lane, ticket) = node.lane(self.store.home, until).await.map_err(|error| {
            if !self.is_hurried(&error) {
                node.breaker().failed(&error);
            }
            Failure::Other(error)
        })?;
        let local = &self.store.local;
        let estimate = told_time.unwrap_or_else(|| node.clock().estimate(local.now()));
        let time = ServerTime { estimate, clock: node.clock() };
        let question = Question::new(&self.store.naming, self.request, time);
        let gatherer = lane.gatherer();
        // Keys of different slots can't share a call.
        let ended = match self.store.naming.style() {
            Style::Plain => gatherer.ask(question, until).await,
            Style::Tagged => Box::pin(gatherer.ask_alone(question, until, route.asking)).await,
        };
        match &ended {
            Ok((time, answer)) => {
                node.clock().tell(*time, local.now());
                if let Answer::Decided(_) = answer {
                    for hit in self.request.hits {
                        node.clock().see(*time, hit.limit.window());
                    }
                }
                node.breaker().succeeded(ticket);
            }
            Err(Failure::ReadOnly) => node.give_up(),
            Err(Failure::Other(error)) if !self.is_hurried(error) => {
                // Of all who lose their connections at the same time one counts.
                let is_answer = matches!(error, StoreError::Partial { .. });
                if !error.is_ambiguous() || is_answer || lane.give_up() == GivenUp::Now {
                    node.breaker().failed(error);
                }
            }
            Err(_) => {}
        }
        ended
    }

    /// Has it failed because the caller was in a hurry? That says nothing about the server.
    fn is_hurried(&self, error: &StoreError) -> bool {
        let is_late = matches!(error, StoreError::Timeout(_) | StoreError::Unreachable);
        is_late && self.hurries && self.deadline.is_over()
    }
}

fn spend(allowance: &mut u32) -> bool {
    let any = *allowance > 0;
    *allowance = allowance.saturating_sub(1);
    any
}

#[expect(clippy::disallowed_methods, reason = "a slot that moves gives no sign when it is there")]
async fn wait_a_moment(until: Deadline) {
    sleep(MOMENT.min(until.left())).await;
}
