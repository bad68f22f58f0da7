//! Receiving the messages of a topic.

use std::sync::Arc;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

#[cfg(feature = "redis")]
use crate::store::RedisSubscription;

/// Event of a [`Subscription`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetEvent {
    /// A message arrived.
    Message(Arc<[u8]>),
    /// Messages may have been missed until now: the first event of every subscription, and after
    /// each connection that was lost.
    Gap,
}

/// A subscription to a topic of a fleet.
#[derive(Debug)]
pub struct Subscription(pub(super) Source);

#[derive(Debug)]
pub(super) enum Source {
    Memory {
        messages: broadcast::Receiver<Arc<[u8]>>,
        has_begun: bool,
    },
    #[cfg(feature = "redis")]
    Redis(Box<RedisSubscription>),
}

impl Subscription {
    /// Waits for the next event, for ever. It may be cancelled: no message is lost by that.
    pub async fn next(&mut self) -> FleetEvent {
        match &mut self.0 {
            Source::Memory { has_begun: has_begun @ false, .. } => {
                *has_begun = true;
                FleetEvent::Gap
            }
            Source::Memory { messages, .. } => match messages.recv().await {
                Ok(message) => FleetEvent::Message(message),
                Err(RecvError::Lagged(_)) => FleetEvent::Gap,
                Err(RecvError::Closed) => std::future::pending().await,
            },
            #[cfg(feature = "redis")]
            Source::Redis(subscription) => subscription.next().await,
        }
    }
}
