//! A subscription: a connection that only receives, opened anew when it is lost.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::aio::PubSub;
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::SUBSCRIBE;
use crate::clock::{Deadline, jittered};
use crate::fleet::FleetEvent;
use crate::store::StoreError;
use crate::store::redis::connection::connector::ConnectError;
use crate::store::redis::node::Node;
use crate::store::redis::topology::Topology;

/// Backoff after the first failed attempt to subscribe. It doubles up to the maximum.
const INITIAL_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// Backoff while the user lacks a permission, which only an operator can give.
const DENIED_BACKOFF: Duration = Duration::from_secs(60);

/// A subscription to a channel.
#[derive(Debug)]
pub(crate) struct RedisSubscription {
    channel: String,
    slot: u16,
    topology: Arc<Topology>,
    changes: watch::Receiver<()>,
    open: Option<OpenConnection>,
    backoff: Duration,
}

/// An open connection.
#[derive(Debug)]
struct OpenConnection {
    subscriber: Subscriber,
    node: Arc<Node>,
    generation: u64,
}

/// A connection whose `Debug` shows nothing.
struct Subscriber(PubSub);

impl std::fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Subscriber")
    }
}

impl RedisSubscription {
    pub(super) fn new(channel: String, slot: u16, topology: Arc<Topology>) -> Self {
        let changes = topology.changes();
        Self { channel, slot, topology, changes, open: None, backoff: INITIAL_BACKOFF }
    }

    /// Waits for the next event. Returns [`FleetEvent::Gap`] whenever a connection was opened.
    pub(crate) async fn next(&mut self) -> FleetEvent {
        loop {
            let Some(open) = &mut self.open else {
                match self.connect().await {
                    Ok(open) => {
                        self.open = Some(open);
                        self.backoff = INITIAL_BACKOFF;
                        return FleetEvent::Gap;
                    }
                    Err(error) => self.wait(&error).await,
                }
                continue;
            };
            let mut messages = open.subscriber.0.on_message();
            let message = tokio::select! {
                message = messages.next() => message,
                changed = self.changes.changed() => {
                    drop(messages);
                    if changed.is_err() || !open.is_current(&self.topology, self.slot) {
                        self.open = None;
                    }
                    continue;
                }
            };
            drop(messages);
            match message {
                // Empty messages are those of checks of permissions.
                Some(message) if message.get_payload_bytes().is_empty() => {}
                Some(message) => return FleetEvent::Message(message.get_payload_bytes().into()),
                None => self.open = None,
            }
        }
    }

    /// Subscribes once, and returns the permission that the user lacks.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if the server does not answer before the deadline.
    pub(super) async fn denied(&self, deadline: Deadline) -> Result<Option<String>, StoreError> {
        match timeout(deadline.remaining(), self.connect()).await {
            Ok(Ok(_)) => Ok(None),
            Ok(Err(error)) if error.is_denied() && error.to_string().contains("channel") => {
                Ok(Some(format!("&{}", self.channel)))
            }
            Ok(Err(error)) if error.is_denied() => Ok(Some(SUBSCRIBE.to_owned())),
            Ok(Err(_)) | Err(_) => Err(StoreError::Unreachable),
        }
    }

    async fn connect(&self) -> Result<OpenConnection, ConnectError> {
        let node = self.topology.node_for_slot(self.slot).ok_or(ConnectError::Unreachable)?;
        let (subscriber, generation) = node.connector().subscribe(&self.channel).await?;
        Ok(OpenConnection { subscriber: Subscriber(subscriber), node, generation })
    }

    /// Waits for about the backoff, and doubles it.
    #[expect(clippy::disallowed_methods, reason = "backoff between attempts to connect")]
    async fn wait(&mut self, error: &ConnectError) {
        debug!(channel = self.channel, %error, "subscription failed");
        let is_denied = error.is_denied();
        let backoff = if is_denied { DENIED_BACKOFF } else { self.backoff };
        sleep(jittered(backoff)).await;
        self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
    }
}

impl OpenConnection {
    /// Returns `true` if the connection is to the server that serves the slot, and that server has
    /// not been lost since.
    fn is_current(&self, topology: &Topology, slot: u16) -> bool {
        let owner = topology.node_for_slot(slot);
        owner.is_some_and(|owner| Arc::ptr_eq(&owner, &self.node))
            && self.node.connector().is_current(self.generation)
    }
}
