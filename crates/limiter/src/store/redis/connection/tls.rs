//! TLS to Redis.
//!
//! redis-rs 1.8 reads the system's authorities from disk for each connection, even if
//! `store.redis.tls.ca` replaces them, fails on the first unreadable one, and supports no custom
//! verifier, which a self-signed certificate needs. So this module sets up TLS; redis-rs logs in
//! and drives the connection.

use std::io;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
#[cfg(target_os = "linux")]
use deadpool_redis::redis::io::tcp::socket2::SockRef;
use deadpool_redis::redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisResult};
use futures_util::future::select_ok;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::self_signed::SelfSignedVerifier;
use crate::store::redis::settings::{Identity, SettingError, Tls};

/// Time after which unacknowledged bytes close a connection (`TCP_USER_TIMEOUT`, on Linux only).
/// Elsewhere the socket stays open for longer, but unused: a probe that times out replaces the
/// connection.
#[cfg(target_os = "linux")]
pub(super) const USER_TIMEOUT: Duration = Duration::from_secs(2);

/// TLS configuration of a client.
#[derive(Clone)]
pub(crate) struct TlsOptions(Arc<ClientConfig>);

impl TlsOptions {
    /// Parses the certificates.
    ///
    /// # Errors
    ///
    /// [`SettingError::Tls`] if they are invalid.
    pub(crate) fn new(tls: &Tls) -> Result<Self, SettingError> {
        let builder = match &tls.ca {
            None => ClientConfig::builder()
                .with_root_certificates(system_roots().ok_or(SettingError::Tls)?),
            Some(pem) => {
                let verifier = certificates(pem).and_then(verifier).ok_or(SettingError::Tls)?;
                let builder = ClientConfig::builder().dangerous();
                builder.with_custom_certificate_verifier(Arc::new(verifier))
            }
        };
        let config = match &tls.identity {
            None => builder.with_no_client_auth(),
            Some(Identity { cert, key }) => {
                let chain = certificates(cert).ok_or(SettingError::Tls)?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| SettingError::Tls)?;
                builder.with_client_auth_cert(chain, key).map_err(|_| SettingError::Tls)?
            }
        };
        Ok(Self(Arc::new(config)))
    }

    /// Connects, performs the TLS handshake, and logs in.
    pub(crate) async fn connect(
        &self,
        host: &str,
        port: u16,
        login: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let tcp = connect_tcp(host, port).await?;
        tcp.set_nodelay(true)?;
        #[cfg(target_os = "linux")]
        SockRef::from(&tcp).set_tcp_user_timeout(Some(USER_TIMEOUT))?;
        let stream = self.handshake(host, tcp).await?;
        let logged_in = MultiplexedConnection::new_with_config(login, stream, config);
        let (connection, driver) = logged_in.await?;
        // The driver ends when the last clone of the connection is dropped.
        tokio::spawn(driver);
        Ok(connection)
    }

    /// Performs the TLS handshake with a host.
    pub(super) async fn handshake(
        &self,
        host: &str,
        tcp: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(Arc::clone(&self.0)).connect(name, tcp).await
    }
}

/// Connects to all addresses of a host at once, and returns the first connection, so that a dead
/// address causes no delay.
pub(super) async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let attempts: Vec<_> = lookup_host((host, port))
        .await?
        .map(|address| Box::pin(TcpStream::connect(address)))
        .collect();
    if attempts.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    }
    let (stream, _others) = select_ok(attempts).await?;
    Ok(stream)
}

/// Returns the authorities that the system trusts; `None` if there are none.
fn system_roots() -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    // Authorities that can't be parsed are skipped.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    // Without authorities no server would be trusted.
    (!roots.is_empty()).then_some(roots)
}

fn verifier(authorities: Vec<CertificateDer<'static>>) -> Option<SelfSignedVerifier> {
    let mut roots = RootCertStore::empty();
    authorities.iter().cloned().try_for_each(|authority| roots.add(authority)).ok()?;
    SelfSignedVerifier::new(authorities, roots)
}

/// Parses certificates; `None` if there are none, or one is invalid.
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    Some(all).filter(|all| !all.is_empty())
}
