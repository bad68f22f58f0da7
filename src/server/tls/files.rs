//! The PEM files of `server.tls`. Errors name the file and its setting.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{InconsistentKeys, RootCertStore};
use thiserror::Error;

/// Paths of the PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain of the server, its own certificate first.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The certificate authorities of clients. If it is set, clients must present a certificate.
    pub client_ca: Option<PathBuf>,
}

/// The error for a file that can't be used. It shows no part of the contents.
#[derive(Debug, Error)]
#[error("{}: {kind}", path.display())]
pub struct TlsError {
    /// The setting that names the file: `cert`, `key` or `client-ca`.
    pub setting: &'static str,
    path: PathBuf,
    #[source]
    kind: TlsErrorKind,
}

/// The defect of a file.
#[derive(Debug, Error)]
enum TlsErrorKind {
    #[error("can't be read: {0}")]
    Unreadable(#[source] io::Error),
    #[error("must be PEM with a certificate: found none")]
    NoCertificate,
    #[error("must be PEM with a private key: found none")]
    NoKey,
    #[error("the private key must not be encrypted with a passphrase")]
    EncryptedKey,
    #[error("the private key does not belong to the certificate of server.tls.cert")]
    OtherKey,
    #[error("the type of the private key is not supported")]
    UnsupportedKey,
    #[error("certificate number {0} can't be parsed")]
    Malformed(usize),
    #[error("can't be used: {0}")]
    Unusable(#[source] rustls::Error),
}

/// The parsed files.
pub(super) struct Contents {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) authorities: Option<Authorities>,
}

/// The certificate authorities that are trusted to sign certificates of clients.
pub(super) struct Authorities {
    pub(super) certificates: Vec<CertificateDer<'static>>,
    pub(super) roots: Arc<RootCertStore>,
}

impl TlsFiles {
    pub(super) fn read(&self) -> Result<Contents, TlsError> {
        let client_ca = self.client_ca.as_deref();
        let authorities = client_ca.map(|path| load("client-ca", path, authorities));
        Ok(Contents {
            chain: load("cert", &self.cert, certificates)?,
            key: load("key", &self.key, private_key)?,
            authorities: authorities.transpose()?,
        })
    }

    /// Returns the error of each file that can't be read or parsed.
    pub fn problems(&self) -> Vec<TlsError> {
        let client_ca = self.client_ca.as_deref();
        let cert = load("cert", &self.cert, certificates).err();
        let key = load("key", &self.key, private_key).err();
        let client_ca = client_ca.and_then(|path| load("client-ca", path, authorities).err());
        [cert, key, client_ca].into_iter().flatten().collect()
    }

    /// Returns the error for a certificate and a key that rustls does not accept.
    pub(super) fn rustls_error(&self, error: rustls::Error) -> TlsError {
        let (setting, path, kind) = match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                ("key", &self.key, TlsErrorKind::OtherKey)
            }
            rustls::Error::InvalidCertificate(_) => {
                ("cert", &self.cert, TlsErrorKind::Malformed(1))
            }
            rustls::Error::General(_) => ("key", &self.key, TlsErrorKind::UnsupportedKey),
            error => ("cert", &self.cert, TlsErrorKind::Unusable(error)),
        };
        TlsError { setting, path: path.clone(), kind }
    }
}

/// Reads and parses the file of a setting.
fn load<T>(
    setting: &'static str,
    path: &Path,
    parse: impl FnOnce(&[u8]) -> Result<T, TlsErrorKind>,
) -> Result<T, TlsError> {
    let pem = fs::read(path).map_err(TlsErrorKind::Unreadable);
    let parsed = pem.and_then(|pem| parse(&pem));
    parsed.map_err(|kind| TlsError { setting, path: path.to_owned(), kind })
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsErrorKind> {
    let mut certificates = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let number = certificates.len() + 1;
        certificates.push(certificate.map_err(|_| TlsErrorKind::Malformed(number))?);
    }
    if certificates.is_empty() { Err(TlsErrorKind::NoCertificate) } else { Ok(certificates) }
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsErrorKind> {
    const ENCRYPTED: &[u8] = b"ENCRYPTED";
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| {
        let is_encrypted = pem.windows(ENCRYPTED.len()).any(|window| window == ENCRYPTED);
        if is_encrypted { TlsErrorKind::EncryptedKey } else { TlsErrorKind::NoKey }
    })
}

fn authorities(pem: &[u8]) -> Result<Authorities, TlsErrorKind> {
    let certificates = certificates(pem)?;
    let mut roots = RootCertStore::empty();
    for (index, certificate) in certificates.iter().enumerate() {
        roots.add(certificate.clone()).map_err(|_| TlsErrorKind::Malformed(index + 1))?;
    }
    Ok(Authorities { certificates, roots: Arc::new(roots) })
}
