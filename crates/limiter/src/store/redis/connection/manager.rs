//! Connections for the pool: a manager of our own for deadpool.
//!
//! deadpool-redis' manager asks each connection for a sign of life before it is used again, knows
//! no authority of one's own, and takes a replica for a master. This one opens connections to
//! servers that may decide, and never hands one out twice: the lanes keep them.

use std::sync::{Arc, Mutex, PoisonError};

use deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};
use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{Cmd, ErrorKind, RedisError, cmd};
use thiserror::Error;

use crate::store::redis::connection::driver::Wire;
use crate::store::redis::connection::options::{Address, SharedAccess};
use crate::store::redis::connection::sentinel::Sentinels;

/// Opens connections to one server, or to whichever is the master.
#[derive(Debug)]
pub(crate) struct Dialer {
    pub(crate) target: Target,
    pub(crate) access: SharedAccess,
    /// Where the last connection went.
    pub(crate) reached: Mutex<Option<Address>>,
}

/// Where to connect to.
#[derive(Debug)]
pub(crate) enum Target {
    /// This server.
    Server(Address),
    /// The server that the sentinels name.
    Master(Arc<Sentinels>),
}

/// A connection to a server that may decide.
#[derive(Debug)]
pub(crate) struct Dialed {
    pub(crate) wire: Wire,
    pub(crate) greeting: Greeting,
}

/// What a server says of itself; `None` for what it does not tell us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// Another one after each start.
    pub(crate) run_id: Option<String>,
    /// Does it hold any key?
    pub(crate) has_keys: Option<bool>,
    /// The policy by which it drops keys when its memory is full, if it may.
    pub(crate) evicts_by: Option<String>,
    pub(crate) is_replica: bool,
    is_loading: bool,
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub(crate) enum DialError {
    #[error("{0}")]
    Redis(#[from] RedisError),
    #[error("it is a replica: it takes no writes")]
    Replica,
    #[error("LOADING: it is reading its data from disk")]
    Loading,
    #[error("no sentinel names a master")]
    NoMaster,
}

impl Dialer {
    /// Where the last connection went.
    pub(crate) fn reached(&self) -> Option<Address> {
        self.reached.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn address(&self) -> Result<Address, DialError> {
        match &self.target {
            Target::Server(address) => Ok(address.clone()),
            // A master that is known is kept to while no sentinel answers.
            Target::Master(sentinels) => {
                sentinels.master().await.or_else(|| self.reached()).ok_or(DialError::NoMaster)
            }
        }
    }
}

impl Manager for Dialer {
    type Type = Dialed;
    type Error = DialError;

    async fn create(&self) -> Result<Dialed, DialError> {
        let address = self.address().await?;
        let mut wire = self.access.now().connect(&address).await?;
        let greeting = Greeting::ask(&mut wire.connection).await?;
        if greeting.is_replica {
            return Err(DialError::Replica);
        }
        if greeting.is_loading {
            return Err(DialError::Loading);
        }
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
        Ok(Dialed { wire, greeting })
    }

    async fn recycle(&self, _: &mut Dialed, _: &Metrics) -> RecycleResult<DialError> {
        Err(RecycleError::message("a connection is never handed out twice"))
    }
}

impl Greeting {
    /// Asks for everything.
    async fn ask(connection: &mut MultiplexedConnection) -> Result<Self, RedisError> {
        Self::ask_by(&cmd("INFO"), connection).await
    }

    /// Asks whether it is a replica, and for nothing else.
    pub(crate) async fn ask_of_role(
        connection: &mut MultiplexedConnection,
    ) -> Result<Self, RedisError> {
        Self::ask_by(cmd("INFO").arg("replication"), connection).await
    }

    /// Who may not use INFO is told nothing, and takes the server for a master.
    async fn ask_by(
        info: &Cmd,
        connection: &mut MultiplexedConnection,
    ) -> Result<Self, RedisError> {
        match info.query_async::<String>(connection).await {
            Ok(info) => Ok(Self::read(&info)),
            Err(error) if error.code() == Some("NOPERM") => Ok(Self::default()),
            Err(error) if error.kind() == ErrorKind::UnexpectedReturnType => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    fn read(info: &str) -> Self {
        let field = |name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
        };
        let evicts_by = field("maxmemory_policy").filter(|policy| *policy != "noeviction");
        let is_bounded = field("maxmemory").is_some_and(|bytes| bytes != "0");
        Self {
            run_id: field("run_id").map(str::to_owned),
            has_keys: info.contains("# Keyspace").then(|| info.contains(":keys=")),
            evicts_by: evicts_by.filter(|_| is_bounded).map(str::to_owned),
            is_replica: field("role") == Some("slave"),
            is_loading: field("loading") == Some("1"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_read_from_info() {
        let info = "# Server\r\nrun_id:abc\r\n# Persistence\r\nloading:0\r\n# Memory\r\n\
                    maxmemory:1048576\r\nmaxmemory_policy:allkeys-lru\r\n# Replication\r\n\
                    role:slave\r\n# Keyspace\r\ndb0:keys=3,expires=3,avg_ttl=1\r\n";
        let expected = Greeting {
            run_id: Some("abc".to_owned()),
            has_keys: Some(true),
            evicts_by: Some("allkeys-lru".to_owned()),
            is_replica: true,
            is_loading: false,
        };
        assert_eq!(Greeting::read(info), expected);
        let unbounded = "maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\nrole:master\r\nloading:1\r\n# Keyspace\r\n";
        let expected = Greeting { has_keys: Some(false), is_loading: true, ..Greeting::default() };
        assert_eq!(Greeting::read(unbounded), expected);
    }
}
