//! TLS: certificates and handshakes.
//!
//! The worker that serves a connection also performs its handshake, so that a slow handshake delays
//! no other connection and the work is spread over the cores. Certificates can be reloaded at any
//! time: a handshake uses those that are loaded when it starts, and open connections are not
//! affected.

mod files;

pub use files::{TlsError, TlsFiles, Validity};

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rlaas_auth::ClientCertificate;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use self::files::{Authorities, Contents};
use super::listener::ClientStream;
use super::protocol::Protocol;

/// Maximum duration of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The TLS configuration with the certificates that are loaded. Clones share them.
#[derive(Clone)]
pub struct Tls {
    files: TlsFiles,
    loaded: Arc<ArcSwap<LoadedTls>>,
}

struct LoadedTls {
    grpc: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
    validities: Vec<(&'static str, Validity)>,
    /// The certificate of the server.
    certificate: CertificateDer<'static>,
}

impl Tls {
    /// Loads the files.
    ///
    /// # Errors
    ///
    /// [`TlsError`] names the file and its defect.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let loaded = Arc::new(ArcSwap::from_pointee(LoadedTls::read(&files)?));
        Ok(Self { files, loaded })
    }

    /// Loads the files again.
    ///
    /// # Errors
    ///
    /// As [`Tls::load`]. The certificates that were loaded before stay in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.loaded.store(Arc::new(LoadedTls::read(&self.files)?));
        Ok(())
    }

    /// Returns the paths of the files.
    pub fn paths(&self) -> Vec<PathBuf> {
        let TlsFiles { cert, key, client_ca } = self.files.clone();
        [cert, key].into_iter().chain(client_ca).collect()
    }

    /// Returns `true` if clients must present a certificate.
    pub fn requires_client_certificates(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Returns a name for which the server's certificate is valid: `host` or `localhost`, or else
    /// its first DNS name that is not a wildcard.
    pub fn server_name(&self, host: &str) -> Option<String> {
        let loaded = self.loaded.load();
        let certificate = webpki::EndEntityCert::try_from(&loaded.certificate).ok()?;
        let is_for = |name: &str| {
            let bare = name.trim_start_matches('[').trim_end_matches(']');
            let name = ServerName::try_from(bare);
            name.is_ok_and(|name| certificate.verify_is_valid_for_subject_name(&name).is_ok())
        };
        let known = [host, "localhost"].into_iter().find(|name| is_for(name));
        let first = || certificate.valid_dns_names().find(|name| !name.starts_with('*'));
        known.or_else(first).map(str::to_owned)
    }

    /// Returns the validity of the loaded certificates: `server`, and `client-ca` if it is set. For
    /// a file with several certificates it is the period in which all of them are valid.
    pub fn validities(&self) -> Vec<(&'static str, Validity)> {
        self.loaded.load().validities.clone()
    }

    /// Performs the TLS handshake, or fails after [`HANDSHAKE_TIMEOUT`]. Returns the certificate of
    /// the client too, if clients must present one.
    ///
    /// # Errors
    ///
    /// If the handshake fails or times out, also because the client's certificate is missing or
    /// invalid.
    pub(super) async fn accept(
        &self,
        stream: ClientStream,
        protocol: Protocol,
    ) -> io::Result<(TlsStream<ClientStream>, Option<ClientCertificate>)> {
        let loaded = self.loaded.load_full();
        let config = match protocol {
            Protocol::Grpc => &loaded.grpc,
            Protocol::Http | Protocol::Console | Protocol::Metrics => &loaded.http,
        };
        let handshake = TlsAcceptor::from(Arc::clone(config)).accept(stream);
        let stream = timeout(HANDSHAKE_TIMEOUT, handshake).await??;
        let presented = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let certificate = self.requires_client_certificates().then(|| match presented {
            Some(certificate) => {
                ClientCertificate::Verified(subject_alternative_names(certificate))
            }
            None => ClientCertificate::Missing,
        });
        Ok((stream, certificate))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({:?})", self.files)
    }
}

impl LoadedTls {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let contents = files.read()?;
        let mut validities = vec![("server", &contents.chain)];
        if let Some(authorities) = &contents.authorities {
            validities.push(("client-ca", &authorities.certificates));
        }
        let validities = validities
            .into_iter()
            .filter_map(|(name, certificates)| Some((name, common_validity(certificates)?)))
            .collect();
        let config = |protocol| server_config(files, &contents, protocol).map(Arc::new);
        let (grpc, http) = (config(Protocol::Grpc)?, config(Protocol::Http)?);
        let certificate = contents.chain[0].clone();
        Ok(Self { grpc, http, validities, certificate })
    }
}

/// Returns the configuration of rustls for one protocol. HTTP accepts clients without a
/// certificate, since probes have none; the middleware rejects their requests for decisions.
fn server_config(
    files: &TlsFiles,
    contents: &Contents,
    protocol: Protocol,
) -> Result<ServerConfig, TlsError> {
    let builder = match &contents.authorities {
        None => ServerConfig::builder().with_no_client_auth(),
        Some(Authorities { roots, .. }) => {
            let verifier = WebPkiClientVerifier::builder(Arc::clone(roots));
            let verifier = match protocol {
                Protocol::Grpc => verifier,
                Protocol::Http | Protocol::Console | Protocol::Metrics => {
                    verifier.allow_unauthenticated()
                }
            };
            let verifier =
                verifier.build().expect("there is an authority, and there are no revocation lists");
            ServerConfig::builder().with_client_cert_verifier(verifier)
        }
    };
    let config = builder.with_single_cert(contents.chain.clone(), contents.key.clone_key());
    let mut config = config.map_err(|error| files.rustls_error(error))?;
    if contents.authorities.is_some() {
        // In a resumed session the client would not present its certificate again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    config.alpn_protocols = match protocol {
        Protocol::Grpc => vec![b"h2".to_vec()],
        Protocol::Http | Protocol::Console | Protocol::Metrics => {
            vec![b"h2".to_vec(), b"http/1.1".to_vec()]
        }
    };
    Ok(config)
}

/// Returns the DNS names and URIs of the subject alternative names. The common name is not used:
/// authorities do not verify it as strictly.
fn subject_alternative_names(certificate: &CertificateDer<'_>) -> Arc<[String]> {
    match webpki::EndEntityCert::try_from(certificate) {
        Ok(certificate) => {
            let names = certificate.valid_dns_names().chain(certificate.valid_uri_names());
            names.map(str::to_owned).collect()
        }
        Err(_malformed) => Arc::default(),
    }
}

/// Returns the period in which all certificates are valid.
fn common_validity(certificates: &[CertificateDer<'_>]) -> Option<Validity> {
    let all = certificates.iter().filter_map(|certificate| Validity::from_der(certificate));
    all.reduce(|left, right| Validity {
        not_before: left.not_before.max(right.not_before),
        not_after: left.not_after.min(right.not_after),
    })
}
