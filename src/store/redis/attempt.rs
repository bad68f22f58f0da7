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

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{
    Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value, cmd, pipe,
};
use tokio::time::{sleep, timeout};

use super::RedisStore;
use super::access::Address;
use super::call::{Answer, Call, Purpose, ServerTime};
use super::cluster::{Redirect, RedirectKind};
use super::node::Node;
use crate::algorithm::Cost;
use crate::clock::{Deadline, Timestamp};
use crate::store::{Decisions, Hit, Intent, StoreError};

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
    pub(super) hits: &'a [Hit<'a>],
    pub(super) purpose: Purpose<'a>,
    /// The slot of all hits.
    pub(super) slot: u16,
    /// When the caller stops to wait.
    pub(super) deadline: Deadline,
}

/// Where a call goes.
struct Route {
    node: Arc<Node>,
    /// Is the slot only on its way there?
    asking: bool,
}

/// How a call ended without an answer.
enum Failure {
    /// Another server has the slot.
    Elsewhere(Redirect),
    /// The slot is half moved.
    HalfMoved,
    /// The server became a replica.
    ReadOnly,
    /// The rest.
    Other(StoreError),
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
    pub(super) async fn run(&self) -> Result<Decisions, StoreError> {
        let until = self.deadline.or_within(self.store.timeout);
        let costs = || self.hits.iter().any(|hit| hit.cost != Cost::NONE);
        let takes = match self.purpose {
            Purpose::Check(Intent::Look) => false,
            Purpose::Check(Intent::Take) | Purpose::GiveBack(_) => costs(),
        };
        let mut left = Allowance {
            windows: WINDOW_ATTEMPTS,
            hops: HOPS,
            masters: 1,
            losses: u32::from(!takes),
        };
        let node = self.store.topology.node(self.slot, until).await?;
        let mut route = Route { node, asking: false };
        let mut told = None;
        loop {
            let ended = self.call(&route, told.take(), until).await;
            let failure = match ended {
                Ok(Answer::Decisions(decisions)) => return Ok(decisions),
                Ok(Answer::OtherWindow(time)) if spend(&mut left.windows) => {
                    told = Some(time);
                    continue;
                }
                Ok(Answer::OtherWindow(_)) => return Err(StoreError::WindowMissed),
                Err(failure) => failure,
            };
            match failure {
                Failure::Elsewhere(redirect) if spend(&mut left.hops) => {
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
    async fn call(
        &self,
        route: &Route,
        told: Option<Timestamp>,
        until: Deadline,
    ) -> Result<Answer, Failure> {
        let node = &*route.node;
        let (lane, ticket) = node.lane(until).await.map_err(|error| {
            if !self.is_hurried(&error) {
                node.breaker().failed(&error);
            }
            Failure::Other(error)
        })?;
        let local = &self.store.local;
        let estimate = told.unwrap_or_else(|| node.clock().estimate(local.now()));
        let time = ServerTime { estimate, clock: node.clock() };
        let call = Call::new(self.store.nonce(), &self.store.naming, self.hits, self.purpose, time);
        let script = self.store.scripts.script_for(self.hits);

        let mut connection = lane.connection();
        let asking = route.asking;
        let sent = async {
            match query(&mut connection, call.by_hash(script), asking).await {
                Err(error) if is_unknown_script(&error) => {
                    query(&mut connection, call.by_text(script), asking).await
                }
                reply => reply,
            }
        };
        let ended = match timeout(until.left(), sent).await {
            Ok(Ok(reply)) => call.read(self.hits, &reply).map_err(Failure::Other),
            Ok(Err(error)) => Err(Failure::of(&error)),
            Err(_elapsed) => Err(Failure::Other(StoreError::Timeout(self.store.timeout))),
        };
        match &ended {
            Ok((time, answer)) => {
                node.clock().tell(*time, local.now());
                if let Answer::Decisions(_) = answer {
                    for hit in self.hits {
                        node.clock().see(*time, hit.limit.window());
                    }
                }
                node.breaker().succeeded(ticket);
            }
            Err(Failure::ReadOnly) => node.give_up(),
            Err(Failure::Other(error)) if !self.is_hurried(error) => {
                if error.is_ambiguous() {
                    lane.give_up();
                }
                node.breaker().failed(error);
            }
            Err(_) => {}
        }
        ended.map(|(_, answer)| answer)
    }

    /// Has it failed because the caller was in a hurry? That says nothing about the server.
    fn is_hurried(&self, error: &StoreError) -> bool {
        matches!(error, StoreError::Timeout(_) | StoreError::Unreachable) && self.deadline.is_over()
    }
}

impl Failure {
    /// What an error of the driver means for the call that met it.
    fn of(error: &RedisError) -> Self {
        let refused = || {
            let text = error.detail().unwrap_or_default().to_owned();
            let code =
                if lacks_permission(&text) { "NOPERM" } else { error.code().unwrap_or("ERR") };
            Self::Other(StoreError::Refused { code: code.to_owned(), text })
        };
        let elsewhere = |kind| {
            let redirect = error.redirect_node().and_then(|(address, slot)| {
                Some(Redirect { slot, address: Address::parse(address)?, kind })
            });
            redirect.map_or_else(refused, Self::Elsewhere)
        };
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => elsewhere(RedirectKind::Moved),
            ErrorKind::Server(ServerErrorKind::Ask) => elsewhere(RedirectKind::Ask),
            ErrorKind::Server(ServerErrorKind::TryAgain) => Self::HalfMoved,
            ErrorKind::Server(ServerErrorKind::ReadOnly) => Self::ReadOnly,
            ErrorKind::Server(_) | ErrorKind::Extension => refused(),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Self::Other(StoreError::Garbled),
            _ => Self::Other(StoreError::Lost),
        }
    }

    fn into_error(self) -> StoreError {
        let refused = |code: &str, text: &str| StoreError::Refused {
            code: code.to_owned(),
            text: text.to_owned(),
        };
        match self {
            Self::Elsewhere(redirect) => match redirect.kind {
                RedirectKind::Moved => refused("MOVED", "the slot is elsewhere, again"),
                RedirectKind::Ask => refused("ASK", "the key is elsewhere, again"),
            },
            Self::HalfMoved => refused("TRYAGAIN", "the slot is half moved"),
            Self::ReadOnly => refused("READONLY", "it is a replica"),
            Self::Other(error) => error,
        }
    }
}

async fn query(
    connection: &mut MultiplexedConnection,
    command: Cmd,
    asking: bool,
) -> RedisResult<Value> {
    if !asking {
        return command.query_async(connection).await;
    }
    let mut both = pipe();
    both.add_command(cmd("ASKING")).add_command(command);
    let mut replies = connection.send_packed_commands(&both, 0, 2).await?;
    replies.pop().unwrap_or(Value::Nil).extract_error()
}

/// Is it a script that met a command or key that the user may not use? Redis has no code of its own
/// for that.
fn lacks_permission(text: &str) -> bool {
    // As Redis 7.0 and its successors put it.
    text.starts_with("The user executing the script can't")
        || text.starts_with("ACL failure in script")
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
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
