//! Opens connections to one server, for its pools and its monitor: one attempt at a time.
//!
//! Connections have a generation. When one is lost, times out or carries nonsense, the others of its
//! generation are not trusted either, and pools replace them at the next checkout: a failover or a
//! restart is one loss, however many connections it takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{ErrorKind, RedisError};
use thiserror::Error;
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

use super::address::Address;
use super::options::ReloadableOptions;
use super::sentinel::Sentinels;
use super::server_info::ServerInfo;
use crate::store::redis::clock::ServerClock;

/// The longest that an attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens connections to one server, or to whichever is the master.
#[derive(Debug)]
pub(crate) struct Connector {
    target: ConnectTarget,
    options: ReloadableOptions,
    clock: Arc<ServerClock>,
    /// Held for an attempt: where the last connection leads.
    reached: Mutex<Option<Address>>,
    unreachable: AtomicBool,
    /// Of the connections that are trusted.
    generation: AtomicU64,
    call_failed: Notify,
}

/// Where to connect to.
#[derive(Debug)]
pub(crate) enum ConnectTarget {
    /// This server.
    Server(Address),
    /// The server that the sentinels name.
    Master(Sentinels),
}

/// A connection to a server that may decide.
#[derive(Clone, Debug)]
pub(crate) struct ManagedConnection {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) generation: u64,
    address: Address,
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    #[error("{0}")]
    Redis(#[from] RedisError),
    #[error("it is a replica: it takes no writes")]
    Replica,
    #[error("LOADING: it is reading its data from disk")]
    Loading,
    #[error("no sentinel names a master")]
    NoMaster,
    #[error("the sentinels name another master")]
    OtherMaster,
    #[error("timed out while connecting")]
    TimedOut,
    #[error("the last attempt to connect has failed")]
    Unreachable,
}

impl Connector {
    /// Connects to nothing yet.
    pub(crate) fn new(
        target: ConnectTarget,
        options: ReloadableOptions,
        clock: Arc<ServerClock>,
    ) -> Self {
        Self {
            target,
            options,
            clock,
            reached: Mutex::default(),
            unreachable: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            call_failed: Notify::new(),
        }
    }

    /// Opens a connection, for the monitor.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; then the server counts as unreachable.
    pub(crate) async fn connect(&self) -> Result<(ManagedConnection, ServerInfo), ConnectError> {
        let mut reached = self.reached.lock().await;
        self.attempt(&mut reached).await
    }

    /// Opens a connection for a call, after an attempt that is under way.
    ///
    /// # Errors
    ///
    /// As [`Connector::connect`]; at once while the server is unreachable.
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

    /// Returns `true` if the last attempt to connect has failed.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.unreachable.load(Ordering::SeqCst)
    }

    /// Asks for time and role.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if it does not answer, or may not decide any more.
    pub(crate) async fn probe(&self, managed: &mut ManagedConnection) -> Result<(), ConnectError> {
        let (info, time) = ServerInfo::query(&mut managed.connection, "replication").await?;
        self.clock.observe(time);
        if info.is_replica { Err(ConnectError::Replica) } else { Ok(()) }
    }

    /// Asks the sentinels, if there are any: a master that was replaced may not know yet.
    ///
    /// # Errors
    ///
    /// [`ConnectError::OtherMaster`] if the connection leads to another server than they name.
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

    /// Returns `true` if a connection of this generation may be used.
    pub(crate) fn is_trusted(&self, generation: u64) -> bool {
        self.generation.load(Ordering::SeqCst) == generation
    }

    /// Distrusts all connections of this generation, and has the server probed. Returns `true` if
    /// they were trusted before.
    pub(crate) fn discard(&self, generation: u64) -> bool {
        self.call_failed.notify_one();
        let next = generation + 1;
        let order = Ordering::SeqCst;
        self.generation.compare_exchange(generation, next, order, order).is_ok()
    }

    /// Completes when a call, or an attempt to connect for one, has failed.
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
            // A master that is known is kept to while no sentinel answers.
            ConnectTarget::Master(sentinels) => {
                let named = sentinels.master().await;
                named.or_else(|| reached.clone()).ok_or(ConnectError::NoMaster)?
            }
        };
        if reached.as_ref().is_some_and(|reached| *reached != address) {
            self.generation.fetch_add(1, Ordering::SeqCst);
        }
        let generation = self.generation.load(Ordering::SeqCst);
        let mut connection = self.options.now().connect(&address).await?;
        let (info, time) = ServerInfo::query(&mut connection, "default").await?;
        if info.is_replica {
            return Err(ConnectError::Replica);
        }
        if info.is_loading {
            return Err(ConnectError::Loading);
        }
        self.clock.observe(time);
        *reached = Some(address.clone());
        Ok((ManagedConnection { connection, generation, address }, info))
    }
}

impl ConnectError {
    /// Returns `true` if the server refuses us until somebody does something.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Redis(error) if error.kind() == ErrorKind::AuthenticationFailed
            || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM")))
    }
}
