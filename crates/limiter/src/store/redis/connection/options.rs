//! Addresses, and how to get into the server there: credentials, database, encryption.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};

use deadpool_redis::redis::aio::{AsyncStream, MultiplexedConnection};
use deadpool_redis::redis::{
    AsyncConnectionConfig, ConnectionAddr, RedisConnectionInfo, RedisResult,
};
use futures_util::future::select_ok;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_rustls::TlsConnector;

use crate::store::redis::connection::driver::{Driver, Wire};
use crate::store::redis::connection::tls::client_config;
use crate::store::redis::settings::{
    Credentials, RedisSettings, RedisUrl, Servers, SettingError, Tls,
};

/// Calls that one connection may have in its queue.
const QUEUE: usize = 1024;
/// Bytes that nobody acknowledges for this long end a connection: its socket leaves.
#[cfg(target_os = "linux")]
const USER_TIMEOUT_MILLIS: u32 = 2_000;

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// How to get into servers.
#[derive(Clone)]
pub(crate) struct Access {
    login: RedisConnectionInfo,
    /// `Some` for TLS.
    encryption: Option<Arc<ClientConfig>>,
}

type Stream = Pin<Box<dyn AsyncStream + Send + Sync>>;

/// The access that all connections to the servers use; it may be renewed between two of them.
#[derive(Clone, Debug)]
pub(crate) struct SharedAccess(Arc<RwLock<Access>>);

impl SharedAccess {
    pub(crate) fn new(access: Access) -> Self {
        Self(Arc::new(RwLock::new(access)))
    }

    /// As it is now.
    pub(crate) fn now(&self) -> Access {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// See [`Access::renewed`].
    ///
    /// # Errors
    ///
    /// As [`Access::to_servers`].
    pub(crate) fn renew(&self, settings: &RedisSettings) -> Result<(), SettingError> {
        let mut access = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *access = access.renewed(settings)?;
        Ok(())
    }
}

impl Access {
    /// Access to the servers that keep state.
    ///
    /// # Errors
    ///
    /// [`SettingError::Tls`] if the certificates can't be used.
    pub(crate) fn to_servers(settings: &RedisSettings) -> Result<Self, SettingError> {
        let url = settings.servers.urls().first().ok_or(SettingError::Url)?;
        let mut login = match settings.servers {
            // What their addresses say is for the sentinels themselves.
            Servers::Sentinel { .. } => RedisConnectionInfo::default(),
            Servers::Standalone(_) | Servers::Cluster { .. } => {
                url.connection().redis_settings().clone()
            }
        };
        if let Some(database) = settings.database {
            login = login.set_db(database.into());
        }
        let Credentials { username, password } = &settings.credentials;
        if let Some(username) = username {
            login = login.set_username(username);
        }
        if let Some(password) = password {
            login = login.set_password(&password.0);
        }
        Self::new(login, url, &settings.tls)
    }

    /// The same with the credentials and certificates of other settings. Database and encryption
    /// stay: connections that differ in them would count apart.
    ///
    /// # Errors
    ///
    /// As [`Access::to_servers`].
    fn renewed(&self, settings: &RedisSettings) -> Result<Self, SettingError> {
        let new = Self::to_servers(settings)?;
        let mut login = self.login.clone();
        if let Some(username) = new.login.username() {
            login = login.set_username(username);
        }
        if let Some(password) = new.login.password() {
            login = login.set_password(password);
        }
        let encryption = self.encryption.as_ref().map(|_| client_config(&settings.tls));
        Ok(Self { login, encryption: encryption.transpose()? })
    }

    /// Access to one sentinel.
    ///
    /// # Errors
    ///
    /// As [`Access::to_servers`].
    pub(crate) fn to_sentinel(url: &RedisUrl, tls: &Tls) -> Result<Self, SettingError> {
        Self::new(url.connection().redis_settings().clone(), url, tls)
    }

    fn new(login: RedisConnectionInfo, url: &RedisUrl, tls: &Tls) -> Result<Self, SettingError> {
        let encryption = url.is_tls().then(|| client_config(tls)).transpose()?;
        let login = login.set_lib_name("rlaas", env!("CARGO_PKG_VERSION"));
        Ok(Self { login, encryption })
    }

    /// Connects on this thread, for as long as the caller waits.
    pub(crate) async fn connect(&self, address: &Address) -> RedisResult<Wire> {
        // Whoever asks bounds the wait for each answer.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE);
        let stream = self.stream(address).await?;
        let greeted = MultiplexedConnection::new_with_config(&self.login, stream, config);
        let (connection, moving) = greeted.await?;
        Ok(Wire { connection, driver: Driver::start(moving) })
    }

    async fn stream(&self, address: &Address) -> io::Result<Stream> {
        let (host, port) = match address {
            Address::Unix(path) => return Ok(Box::pin(UnixStream::connect(path).await?)),
            Address::Tcp { host, port } => (host, *port),
        };
        let tcp = dial(host, port).await?;
        tcp.set_nodelay(true)?;
        // Elsewhere such a socket stays longer. Nobody uses it: a probe that times out replaces it.
        #[cfg(target_os = "linux")]
        rustix::net::sockopt::set_tcp_user_timeout(&tcp, USER_TIMEOUT_MILLIS)?;
        let Some(encryption) = &self.encryption else { return Ok(Box::pin(tcp)) };
        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
        Ok(Box::pin(TlsConnector::from(Arc::clone(encryption)).connect(name, tcp).await?))
    }
}

/// Connects to the address of a host that is the first to answer: one that is dead holds up nobody.
async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let dials: Vec<_> = lookup_host((host, port))
        .await?
        .map(|address| Box::pin(TcpStream::connect(address)))
        .collect();
    if dials.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    }
    let (stream, _others) = select_ok(dials).await?;
    Ok(stream)
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access")
    }
}

impl Address {
    /// The address of a URL.
    pub(crate) fn of(url: &RedisUrl) -> Self {
        match url.connection().addr() {
            ConnectionAddr::Unix(path) => Self::Unix(path.clone()),
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Self::Tcp { host: host.clone(), port: *port }
            }
            // The driver may learn of other kinds; settings know no others.
            other => Self::Unix(other.to_string().into()),
        }
    }

    /// `host:port`, as Redis writes it: the port is what follows the last colon. A server that does
    /// not know its host leaves it out.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok()?;
        Some(Self::Tcp { host: host.to_owned(), port })
    }

    /// The same, with the host of the server that was asked where it has none.
    pub(crate) fn seen_from(self, asked: &Self) -> Self {
        match self {
            Self::Tcp { host, port } if host.is_empty() => {
                Self::Tcp { host: asked.host().to_owned(), port }
            }
            address => address,
        }
    }

    /// The host of a server that is known by this address.
    pub(crate) fn host(&self) -> &str {
        match self {
            Self::Tcp { host, .. } => host,
            Self::Unix(_) => "localhost",
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}
