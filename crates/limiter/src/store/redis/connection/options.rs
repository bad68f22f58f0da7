//! Connection options: credentials, database, TLS.

use std::fmt;
#[cfg(not(unix))]
use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use deadpool::managed::Manager;
use deadpool_redis::redis::aio::{MultiplexedConnection, PubSub};
use deadpool_redis::redis::io::tcp::TcpSettings;
use deadpool_redis::redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use deadpool_redis::redis::{
    AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisResult,
};

#[cfg(unix)]
use tokio::net::UnixStream;

use super::Address;
#[cfg(target_os = "linux")]
use super::tls::USER_TIMEOUT;
use super::tls::{TlsOptions, connect_tcp};
use crate::store::redis::settings::{
    Credentials, RedisSettings, RedisUrl, Servers, SettingError, Tls,
};

/// Maximum number of calls in the queue of one connection.
const MAX_QUEUED_CALLS: usize = 1024;

/// Probes of a connection on which the service sends nothing: the first after 5 s of silence.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(1));

/// Options of connections.
#[derive(Clone)]
pub(crate) struct ConnectOptions {
    login: RedisConnectionInfo,
    tls: Option<TlsOptions>,
}

/// Options that all connections to the servers share. Replacing them affects new connections.
pub(crate) type SharedOptions = Arc<ArcSwap<ConnectOptions>>;

impl ConnectOptions {
    /// Returns the options for the servers that hold state.
    ///
    /// # Errors
    ///
    /// [`SettingError::Tls`] if the certificates are invalid, [`SettingError::Url`] if there is no
    /// URL.
    pub(crate) fn for_servers(settings: &RedisSettings) -> Result<Self, SettingError> {
        let url = settings.servers.urls().first().ok_or(SettingError::Url)?;
        let mut login = match settings.servers {
            // The URLs are those of the sentinels, and so are their credentials.
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

    /// Returns these options with the credentials and certificates of other settings. The database
    /// stays the same, because connections to another one would use other states. Whether TLS is
    /// used stays the same too, because the addresses do.
    ///
    /// # Errors
    ///
    /// As [`ConnectOptions::for_servers`].
    pub(crate) fn renewed(&self, settings: &RedisSettings) -> Result<Self, SettingError> {
        let new = Self::for_servers(settings)?;
        let mut login = self.login.clone();
        if let Some(username) = new.login.username() {
            login = login.set_username(username);
        }
        if let Some(password) = new.login.password() {
            login = login.set_password(password);
        }
        let tls = self.tls.as_ref().map(|_| TlsOptions::new(&settings.tls));
        Ok(Self { login, tls: tls.transpose()? })
    }

    /// Returns the options for a sentinel.
    ///
    /// # Errors
    ///
    /// As [`ConnectOptions::for_servers`].
    pub(crate) fn for_sentinel(url: &RedisUrl, tls: &Tls) -> Result<Self, SettingError> {
        Self::new(url.connection().redis_settings().clone(), url, tls)
    }

    fn new(login: RedisConnectionInfo, url: &RedisUrl, tls: &Tls) -> Result<Self, SettingError> {
        let tls = url.is_tls().then(|| TlsOptions::new(tls)).transpose()?;
        let login = login.set_lib_name("rlaas", env!("CARGO_PKG_VERSION"));
        Ok(Self { login, tls })
    }

    /// Connects, on the current runtime. The caller limits the time.
    pub(crate) async fn connect(&self, address: &Address) -> RedisResult<MultiplexedConnection> {
        // Callers have their own timeouts.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(MAX_QUEUED_CALLS);
        let address = match address {
            Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
            Address::Tcp { host, port } => match &self.tls {
                Some(tls) => return tls.connect(host, *port, &self.login, config).await,
                None => ConnectionAddr::Tcp(host.clone(), *port),
            },
        };
        let info = address.into_connection_info()?.set_redis_settings(self.login.clone());
        let info = info.set_tcp_settings(tcp_settings());
        deadpool_redis::Manager::new_with_config(info, config)?.create().await
    }
}

impl ConnectOptions {
    /// Connects for a subscription, on the current runtime. The caller limits the time.
    ///
    /// A subscriber sends nothing, so only keepalive probes notice that the server has vanished.
    pub(crate) async fn subscriber(&self, address: &Address) -> RedisResult<PubSub> {
        match address {
            #[cfg(unix)]
            Address::Unix(path) => PubSub::new(&self.login, UnixStream::connect(path).await?).await,
            #[cfg(not(unix))]
            Address::Unix(_) => Err(io::Error::from(io::ErrorKind::Unsupported).into()),
            Address::Tcp { host, port } => {
                let tcp = connect_tcp(host, *port).await?;
                SockRef::from(&tcp).set_tcp_keepalive(&KEEPALIVE)?;
                match &self.tls {
                    Some(tls) => {
                        let stream = tls.handshake(host, tcp).await?;
                        PubSub::new(&self.login, stream).await
                    }
                    None => PubSub::new(&self.login, tcp).await,
                }
            }
        }
    }
}

impl RedisSettings {
    /// Validates the certificates, and that there is a URL.
    ///
    /// # Errors
    ///
    /// [`SettingError::Tls`] or [`SettingError::Url`].
    pub fn check(&self) -> Result<(), SettingError> {
        ConnectOptions::for_servers(self).map(drop)
    }
}

fn tcp_settings() -> TcpSettings {
    let settings = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(USER_TIMEOUT);
    settings
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectOptions")
    }
}
