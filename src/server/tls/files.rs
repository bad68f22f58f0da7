//! The files of `server.tls`, read from PEM, and the errors that name the file and its setting.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{InconsistentKeys, RootCertStore};
use thiserror::Error;

/// Where the certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the server, and the chain from it to an authority.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The authorities of clients, which must present certificates if it is set.
    pub client_ca: Option<PathBuf>,
}

/// A file that can't be used. Shows no part of it.
#[derive(Debug, Error)]
#[error("{}: {kind}", path.display())]
pub struct TlsError {
    /// Which of the settings names it.
    pub setting: &'static str,
    path: PathBuf,
    #[source]
    kind: TlsErrorKind,
}

/// What can be wrong with a file.
#[derive(Debug, Error)]
enum TlsErrorKind {
    #[error("can't be read: {0}")]
    Unreadable(#[source] io::Error),
    #[error("valid is PEM with a certificate: there is none in it")]
    NoCertificate,
    #[error("valid is PEM with a private key: there is none in it")]
    NoKey,
    #[error("the private key is encrypted: valid is one without a passphrase")]
    EncryptedKey,
    #[error("the private key does not belong to the certificate of server.tls.cert")]
    OtherKey,
    #[error("the private key is of a kind that is not supported")]
    UnsupportedKey,
    #[error("certificate number {0} in it can't be read")]
    Malformed(usize),
    #[error("can't be used: {0}")]
    Unusable(#[source] rustls::Error),
}

/// What the files hold.
pub(super) struct Contents {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) authorities: Option<Authorities>,
}

/// The authorities that are trusted with certificates of clients.
pub(super) struct Authorities {
    pub(super) certificates: Vec<CertificateDer<'static>>,
    pub(super) roots: Arc<RootCertStore>,
}

impl TlsFiles {
    pub(super) fn read(&self) -> Result<Contents, TlsError> {
        let chain = certificates(&self.cert).map_err(|kind| self.cert_error(kind))?;
        let key = private_key(&self.key).map_err(|kind| self.key_error(kind))?;
        let authorities = self.client_ca.as_deref().map(authorities).transpose();
        let authorities = authorities.map_err(|kind| self.client_ca_error(kind))?;
        Ok(Contents { chain, key, authorities })
    }

    /// Returns the error for what rustls says of a certificate and its key.
    pub(super) fn refused(&self, error: rustls::Error) -> TlsError {
        match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                self.key_error(TlsErrorKind::OtherKey)
            }
            rustls::Error::InvalidCertificate(_) => self.cert_error(TlsErrorKind::Malformed(1)),
            rustls::Error::General(_) => self.key_error(TlsErrorKind::UnsupportedKey),
            error => self.cert_error(TlsErrorKind::Unusable(error)),
        }
    }

    fn cert_error(&self, kind: TlsErrorKind) -> TlsError {
        TlsError { setting: "cert", path: self.cert.clone(), kind }
    }

    fn key_error(&self, kind: TlsErrorKind) -> TlsError {
        TlsError { setting: "key", path: self.key.clone(), kind }
    }

    fn client_ca_error(&self, kind: TlsErrorKind) -> TlsError {
        let path = self.client_ca.clone().unwrap_or_default();
        TlsError { setting: "client-ca", path, kind }
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsErrorKind> {
    let pem = fs::read(path).map_err(TlsErrorKind::Unreadable)?;
    let mut certificates = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let number = certificates.len() + 1;
        certificates.push(certificate.map_err(|_| TlsErrorKind::Malformed(number))?);
    }
    if certificates.is_empty() { Err(TlsErrorKind::NoCertificate) } else { Ok(certificates) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsErrorKind> {
    const ENCRYPTED: &[u8] = b"ENCRYPTED";
    let pem = fs::read(path).map_err(TlsErrorKind::Unreadable)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|_| {
        let is_encrypted = pem.windows(ENCRYPTED.len()).any(|window| window == ENCRYPTED);
        if is_encrypted { TlsErrorKind::EncryptedKey } else { TlsErrorKind::NoKey }
    })
}

fn authorities(path: &Path) -> Result<Authorities, TlsErrorKind> {
    let certificates = certificates(path)?;
    let mut roots = RootCertStore::empty();
    for (index, certificate) in certificates.iter().enumerate() {
        roots.add(certificate.clone()).map_err(|_| TlsErrorKind::Malformed(index + 1))?;
    }
    Ok(Authorities { certificates, roots: Arc::new(roots) })
}
