//! TLS to Redis.
//!
//! redis-rs 1.8 reads the system's authorities from disk for each connection, even where
//! `store.redis.tls.ca` replaces them, fails for the first that it can't read, and takes no verifier,
//! which a certificate that is its own authority needs. So TLS is set up here; redis-rs logs in and
//! drives the connection.

use std::io;
use std::sync::Arc;

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

#[cfg(target_os = "linux")]
use super::options::USER_TIMEOUT;
use super::self_signed::SelfSignedVerifier;
use crate::store::redis::settings::{Identity, SettingError, Tls};

/// Whom to trust, and what to show.
#[derive(Clone)]
pub(crate) struct TlsOptions(Arc<ClientConfig>);

impl TlsOptions {
    /// Reads the certificates.
    ///
    /// # Errors
    ///
    /// [`SettingError::Tls`] if they can't be used.
    pub(crate) fn new(tls: &Tls) -> Result<Self, SettingError> {
        let builder = match &tls.ca {
            None => {
                ClientConfig::builder().with_root_certificates(system().ok_or(SettingError::Tls)?)
            }
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

    /// Connects, shakes hands, and logs in.
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
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::clone(&self.0)).connect(name, tcp).await?;
        let logged_in = MultiplexedConnection::new_with_config(login, stream, config);
        let (connection, driver) = logged_in.await?;
        // Ends with the last clone of the connection.
        tokio::spawn(driver);
        Ok(connection)
    }
}

/// Connects to the address of a host that is the first to answer, so that a dead one holds up nobody.
async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
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

/// The authorities that the system trusts.
fn system() -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    // Some that a system trusts may be of old kinds: they are left out.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    // Without any nobody would be trusted.
    (!roots.is_empty()).then_some(roots)
}

fn verifier(authorities: Vec<CertificateDer<'static>>) -> Option<SelfSignedVerifier> {
    let mut roots = RootCertStore::empty();
    authorities.iter().cloned().try_for_each(|one| roots.add(one)).ok()?;
    SelfSignedVerifier::new(authorities, roots)
}

/// All certificates, of which there is at least one.
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    Some(all).filter(|all| !all.is_empty())
}
