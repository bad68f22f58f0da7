//! Opens connections to one server, for its pools and its monitor, one attempt at a time.
//!
//! Connections have a generation. When a connection is lost, times out or receives an invalid
//! reply, all connections of its generation are discarded, and pools replace them at the next
//! checkout: a failover or a restart counts as one loss, however many connections it breaks.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use deadpool_redis::redis::aio::{MultiplexedConnection, PubSub};
use deadpool_redis::redis::{ErrorKind, RedisError};
use thiserror::Error;
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

use super::Address;
use super::options::SharedOptions;
use super::sentinel::Sentinels;
use super::server_info::{REPLICA, ServerInfo, is_not_persistent};
use crate::store::redis::node::ServerClock;

/// Timeout of an attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Section of INFO that describes a server.
pub(crate) const ALL_SECTIONS: &str = "default";
/// Section of INFO that has its role, for frequent probes.
pub(crate) const ROLE_SECTION: &str = "replication";

/// Opens connections to one server, or to the current master.
#[derive(Debug)]
pub(crate) struct Connector {
    target: ConnectTarget,
    options: SharedOptions,
    clock: Arc<ServerClock>,
    /// Address of the last connection. Locked during an attempt.
    reached: Mutex<Option<Address>>,
    /// Copy of `reached`, to read during an attempt.
    master: ArcSwapOption<Address>,
    unreachable: AtomicBool,
    /// Generation of the connections that are in use.
    generation: AtomicU64,
    call_failed: Notify,
}

/// The server to connect to.
#[derive(Debug)]
pub(crate) enum ConnectTarget {
    /// The server at this address.
    Server(Address),
    /// The master that the sentinels report.
    Master(Sentinels),
}

/// A connection to a master.
#[derive(Clone, Debug)]
pub(crate) struct ManagedConnection {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) generation: u64,
    pub(crate) address: Address,
    /// Hash of the address and of the random id of this start of the server.
    pub(crate) start: u64,
}

/// Reason why there is no connection.
#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    #[error("{0}")]
    Redis(#[from] RedisError),
    #[error("the server is a replica and takes no writes")]
    Replica,
    #[error("LOADING: the server is loading its data")]
    Loading,
    #[error("no sentinel reports a master")]
    NoMaster,
    #[error("the sentinels report another master")]
    OtherMaster,
    #[error("timed out while connecting")]
    TimedOut,
    #[error("the last attempt to connect failed")]
    Unreachable,
}

impl Connector {
    /// Creates a connector. It does not connect yet.
    pub(crate) fn new(
        target: ConnectTarget,
        options: SharedOptions,
        clock: Arc<ServerClock>,
    ) -> Self {
        Self {
            target,
            options,
            clock,
            reached: Mutex::default(),
            master: ArcSwapOption::empty(),
            unreachable: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            call_failed: Notify::new(),
        }
    }

    /// Opens a connection, for the monitor.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the server then counts as unreachable.
    pub(crate) async fn connect(&self) -> Result<(ManagedConnection, ServerInfo), ConnectError> {
        let mut reached = self.reached.lock().await;
        let (mut managed, mut info) = self.attempt(&mut reached).await?;
        drop(reached);
        let asked = timeout(CONNECT_TIMEOUT, is_not_persistent(&mut managed.connection)).await;
        info.is_not_persistent = matches!(asked, Ok(Ok(true)));
        Ok((managed, info))
    }

    /// Opens a connection for a call, after an attempt that is in progress.
    ///
    /// # Errors
    ///
    /// As [`Connector::connect`], and at once while the server is unreachable.
    pub(crate) async fn connect_unless_unreachable(
        &self,
    ) -> Result<ManagedConnection, ConnectError> {
        if !self.is_unreachable() {
            let mut reached = self.reached.lock().await;
            if !self.is_unreachable() {
                return self.attempt(&mut reached).await.map(|(managed, _)| managed);
            }
        }
        Err(ConnectError::Unreachable)
    }

    /// Opens a connection that is not for decisions, after an attempt that is in progress. A failure
    /// does not make the server count as unreachable.
    ///
    /// # Errors
    ///
    /// As [`Connector::connect_unless_unreachable`].
    pub(crate) async fn connect_apart(&self) -> Result<ManagedConnection, ConnectError> {
        let mut reached = self.reached.lock().await;
        if self.is_unreachable() {
            return Err(ConnectError::Unreachable);
        }
        let opened = timeout(CONNECT_TIMEOUT, self.open(&mut reached)).await;
        opened.unwrap_or(Err(ConnectError::TimedOut)).map(|(managed, _)| managed)
    }

    /// Opens a connection that receives the messages of a channel, and returns its generation.
    ///
    /// # Errors
    ///
    /// As [`Connector::connect_unless_unreachable`].
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<(PubSub, u64), ConnectError> {
        let reached = self.reached.lock().await;
        let address = match (&self.target, &*reached) {
            _ if self.is_unreachable() => return Err(ConnectError::Unreachable),
            (ConnectTarget::Server(address), _) => address.clone(),
            (ConnectTarget::Master(_), Some(reached)) => reached.clone(),
            // The monitor has not found the master yet.
            (ConnectTarget::Master(_), None) => return Err(ConnectError::NoMaster),
        };
        let generation = self.generation.load(Ordering::SeqCst);
        let opened = timeout(CONNECT_TIMEOUT, async {
            let mut subscriber = self.options.load_full().subscriber(&address).await?;
            subscriber.subscribe(channel).await?;
            Ok(subscriber)
        });
        Ok((opened.await.unwrap_or(Err(ConnectError::TimedOut))?, generation))
    }

    /// Returns the address of the server, or of the last master.
    pub(crate) fn address(&self) -> Option<Address> {
        match &self.target {
            ConnectTarget::Server(address) => Some(address.clone()),
            ConnectTarget::Master(_) => self.master.load().as_deref().cloned(),
        }
    }

    /// Returns `true` if the last attempt to connect failed.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.unreachable.load(Ordering::SeqCst)
    }

    /// Queries time and role, and what else a section of INFO has.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the server does not respond, or is no longer a master.
    pub(crate) async fn probe(
        &self,
        managed: &mut ManagedConnection,
        section: &str,
    ) -> Result<ServerInfo, ConnectError> {
        let (info, time) = ServerInfo::query(&mut managed.connection, section).await?;
        self.clock.observe(time);
        self.require_master(&info)?;
        Ok(info)
    }

    /// Discards all connections if the server is a replica: calls may have some from before it became one.
    fn require_master(&self, info: &ServerInfo) -> Result<(), ConnectError> {
        if info.role == Some(REPLICA) {
            self.discard_current();
            return Err(ConnectError::Replica);
        }
        Ok(())
    }

    /// Compares the connection with the master that the sentinels report: a replaced master may not
    /// know that it was replaced.
    ///
    /// # Errors
    ///
    /// [`ConnectError::OtherMaster`] if the sentinels report another server.
    pub(crate) async fn check_sentinels(
        &self,
        managed: &ManagedConnection,
    ) -> Result<(), ConnectError> {
        let ConnectTarget::Master(sentinels) = &self.target else { return Ok(()) };
        match sentinels.master().await {
            Some(named) if named != managed.address => Err(ConnectError::OtherMaster),
            _ => Ok(()),
        }
    }

    /// Returns `true` if connections of this generation may be used.
    pub(crate) fn is_current(&self, generation: u64) -> bool {
        self.generation.load(Ordering::SeqCst) == generation
    }

    /// Discards all connections of this generation, and requests a probe of the server. Returns
    /// `false` if they had been discarded before.
    pub(crate) fn discard(&self, generation: u64) -> bool {
        self.call_failed.notify_one();
        let next = generation + 1;
        let order = Ordering::SeqCst;
        self.generation.compare_exchange(generation, next, order, order).is_ok()
    }

    /// Discards all connections.
    fn discard_current(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until a call, or an attempt to connect for one, has failed.
    pub(crate) async fn call_failed(&self) {
        self.call_failed.notified().await;
    }

    async fn attempt(
        &self,
        reached: &mut Option<Address>,
    ) -> Result<(ManagedConnection, ServerInfo), ConnectError> {
        let opened = timeout(CONNECT_TIMEOUT, self.open(reached)).await;
        let opened = opened.unwrap_or(Err(ConnectError::TimedOut));
        self.unreachable.store(opened.is_err(), Ordering::SeqCst);
        if opened.is_err() {
            self.call_failed.notify_one();
        }
        opened
    }

    async fn open(
        &self,
        reached: &mut Option<Address>,
    ) -> Result<(ManagedConnection, ServerInfo), ConnectError> {
        let address = match &self.target {
            ConnectTarget::Server(address) => address.clone(),
            // The known master is kept while no sentinel responds.
            ConnectTarget::Master(sentinels) => {
                let named = sentinels.master().await;
                named.or_else(|| reached.clone()).ok_or(ConnectError::NoMaster)?
            }
        };
        if reached.as_ref().is_some_and(|reached| *reached != address) {
            self.generation.fetch_add(1, Ordering::SeqCst);
        }
        let generation = self.generation.load(Ordering::SeqCst);
        let mut connection = self.options.load_full().connect(&address).await?;
        let (info, time) = ServerInfo::query(&mut connection, ALL_SECTIONS).await?;
        self.require_master(&info)?;
        if info.is_loading {
            return Err(ConnectError::Loading);
        }
        self.clock.observe(time);
        *reached = Some(address.clone());
        self.master.store(Some(Arc::new(address.clone())));
        let start = hash(&(address.to_string(), &info.run_id));
        Ok((ManagedConnection { connection, generation, address, start }, info))
    }
}

/// Returns a hash, the same for all instances.
fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl ConnectError {
    /// Returns `true` if the server denies access, which only an operator can repair.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self, Self::Redis(error) if error.kind() == ErrorKind::AuthenticationFailed
            || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM")))
    }
}
