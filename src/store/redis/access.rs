//! Addresses, and how to get into the server there: credentials, database, encryption.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::io::tcp::TcpSettings;
use deadpool_redis::redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo,
    RedisConnectionInfo, RedisResult, TlsCertificates,
};

use super::settings::{Credentials, RedisSettings, RedisUrl, Servers, SettingError, Tls};

/// Calls that one connection may have in its queue.
const QUEUE: usize = 1024;
/// Bytes that nobody acknowledges for this long end a connection: its socket leaves.
const USER_TIMEOUT: Duration = Duration::from_secs(2);

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// How to get into servers.
#[derive(Clone)]
pub(super) struct Access {
    login: RedisConnectionInfo,
    /// `Some` for TLS.
    certificates: Option<TlsCertificates>,
}

/// The access that all connections to the servers use; it may be renewed between two of them.
#[derive(Clone, Debug)]
pub(super) struct SharedAccess(Arc<RwLock<Access>>);

impl SharedAccess {
    pub(super) fn new(access: Access) -> Self {
        Self(Arc::new(RwLock::new(access)))
    }

    /// As it is now.
    pub(super) fn now(&self) -> Access {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// See [`Access::renewed`].
    ///
    /// # Errors
    ///
    /// As [`Access::to_servers`].
    pub(super) fn renew(&self, settings: &RedisSettings) -> Result<(), SettingError> {
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
    pub(super) fn to_servers(settings: &RedisSettings) -> Result<Self, SettingError> {
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
        let certificates = self.certificates.as_ref().map(|_| certificates(&settings.tls));
        Ok(Self { login, certificates })
    }

    /// Access to one sentinel.
    ///
    /// # Errors
    ///
    /// As [`Access::to_servers`].
    pub(super) fn to_sentinel(url: &RedisUrl, tls: &Tls) -> Result<Self, SettingError> {
        Self::new(url.connection().redis_settings().clone(), url, tls)
    }

    fn new(login: RedisConnectionInfo, url: &RedisUrl, tls: &Tls) -> Result<Self, SettingError> {
        if tls.ca.as_ref().is_some_and(|ca| !has_certificate(ca)) {
            return Err(SettingError::Tls);
        }
        let certificates = url.is_tls().then(|| certificates(tls));
        let access =
            Self { login: login.set_lib_name("rlaas", env!("CARGO_PKG_VERSION")), certificates };
        access.client(&Address::of(url)).map_err(|_| SettingError::Tls)?;
        Ok(access)
    }

    /// Connects, for as long as the caller waits.
    pub(super) async fn connect(&self, address: &Address) -> RedisResult<MultiplexedConnection> {
        // Whoever asks bounds the wait for each answer.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE);
        self.client(address)?.get_multiplexed_async_connection_with_config(&config).await
    }

    fn client(&self, address: &Address) -> RedisResult<Client> {
        let tcp = TcpSettings::default().set_nodelay(true).set_user_timeout(USER_TIMEOUT);
        let encrypted = self.certificates.is_some();
        let info = address.driver_address(encrypted).into_connection_info()?;
        let info = info.set_tcp_settings(tcp).set_redis_settings(self.login.clone());
        match &self.certificates {
            Some(certificates) => Client::build_with_tls(info, certificates.clone()),
            None => Client::open(info),
        }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access")
    }
}

impl Address {
    /// The address of a URL.
    pub(super) fn of(url: &RedisUrl) -> Self {
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
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok()?;
        Some(Self::Tcp { host: host.to_owned(), port })
    }

    /// The same, with the host of the server that was asked where it has none.
    pub(super) fn seen_from(self, asked: &Self) -> Self {
        match self {
            Self::Tcp { host, port } if host.is_empty() => {
                Self::Tcp { host: asked.host().to_owned(), port }
            }
            address => address,
        }
    }

    /// The host of a server that is known by this address.
    pub(super) fn host(&self) -> &str {
        match self {
            Self::Tcp { host, .. } => host,
            Self::Unix(_) => "localhost",
        }
    }

    fn driver_address(&self, encrypted: bool) -> ConnectionAddr {
        match self {
            Self::Unix(path) => ConnectionAddr::Unix(path.clone()),
            Self::Tcp { host, port } if encrypted => ConnectionAddr::TcpTls {
                host: host.clone(),
                port: *port,
                insecure: false,
                tls_params: None,
            },
            Self::Tcp { host, port } => ConnectionAddr::Tcp(host.clone(), *port),
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

/// The driver takes a file without any for authorities, and trusts nobody.
fn has_certificate(pem: &[u8]) -> bool {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    pem.windows(BEGIN.len()).any(|window| window == BEGIN)
}

fn certificates(tls: &Tls) -> TlsCertificates {
    let client_tls = tls.identity.as_ref().map(|identity| ClientTlsConfig {
        client_cert: identity.cert.clone(),
        client_key: identity.key.clone(),
    });
    TlsCertificates { client_tls, root_cert: tls.ca.clone() }
}
