//! How to get into a server: credentials, database, TLS.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use deadpool::managed::Manager;
use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::io::tcp::TcpSettings;
use deadpool_redis::redis::{
    AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisResult,
};

use super::address::Address;
use super::tls::TlsOptions;
use crate::store::redis::settings::{
    Credentials, RedisSettings, RedisUrl, Servers, SettingError, Tls,
};

/// Calls that one connection may have in its queue.
const MAX_QUEUED_CALLS: usize = 1024;
/// Bytes that nobody acknowledges for this long end a connection. Elsewhere than on Linux its socket
/// stays longer; nobody uses it, since a probe that times out replaces it.
#[cfg(target_os = "linux")]
pub(super) const USER_TIMEOUT: Duration = Duration::from_secs(2);

/// How to get into servers.
#[derive(Clone)]
pub(crate) struct ConnectOptions {
    login: RedisConnectionInfo,
    tls: Option<TlsOptions>,
}

/// The access that all connections to the servers use; it may be renewed between two of them.
#[derive(Clone, Debug)]
pub(crate) struct ReloadableOptions(Arc<RwLock<ConnectOptions>>);

impl ReloadableOptions {
    pub(crate) fn new(options: ConnectOptions) -> Self {
        Self(Arc::new(RwLock::new(options)))
    }

    /// As it is now.
    pub(crate) fn now(&self) -> ConnectOptions {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// See [`ConnectOptions::renewed`].
    ///
    /// # Errors
    ///
    /// As [`ConnectOptions::for_servers`].
    pub(crate) fn update(&self, settings: &RedisSettings) -> Result<(), SettingError> {
        let mut options = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *options = options.renewed(settings)?;
        Ok(())
    }
}

impl ConnectOptions {
    /// Access to the servers that keep state.
    ///
    /// # Errors
    ///
    /// [`SettingError::Tls`] if the certificates can't be used.
    pub(crate) fn for_servers(settings: &RedisSettings) -> Result<Self, SettingError> {
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

    /// The same with the credentials and certificates of other settings. Database and tls
    /// stay: connections that differ in them would count apart.
    ///
    /// # Errors
    ///
    /// As [`ConnectOptions::for_servers`].
    fn renewed(&self, settings: &RedisSettings) -> Result<Self, SettingError> {
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

    /// Access to one sentinel.
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

    /// Connects on this runtime, for as long as the caller waits.
    pub(crate) async fn connect(&self, address: &Address) -> RedisResult<MultiplexedConnection> {
        // Whoever asks bounds the wait for each answer.
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

impl RedisSettings {
    /// Checks what only a connection can tell: the certificates.
    ///
    /// # Errors
    ///
    /// [`SettingError::Tls`] if they can't be used.
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
