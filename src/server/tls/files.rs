//! The PEM files of `server.tls`, and how long their certificates are valid. Errors name the file and its
//! setting.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{InconsistentKeys, RootCertStore};
use thiserror::Error;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::time::ASN1Time;

use crate::clock::Timestamp;

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

/// The validity period of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Start of the period.
    pub not_before: Timestamp,
    /// End of the period.
    pub not_after: Timestamp,
}

impl Validity {
    /// Returns the validity of a certificate in DER, or `None` if it is malformed.
    pub(super) fn from_der(certificate: &[u8]) -> Option<Self> {
        let (_rest, certificate) = X509Certificate::from_der(certificate).ok()?;
        let validity = certificate.validity();
        Some(Self {
            not_before: timestamp(validity.not_before),
            not_after: timestamp(validity.not_after),
        })
    }
}

/// Converts a time. One before the Unix epoch becomes the epoch.
fn timestamp(time: ASN1Time) -> Timestamp {
    let seconds = u64::try_from(time.timestamp()).unwrap_or_default();
    Timestamp::from_millis(seconds.saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTEGER: u8 = 0x02;
    const BIT_STRING: u8 = 0x03;
    const UTF8_STRING: u8 = 0x0c;
    const UTC_TIME: u8 = 0x17;
    const GENERALIZED_TIME: u8 = 0x18;
    const SEQUENCE: u8 = 0x30;
    const SET: u8 = 0x31;
    const VERSION: u8 = 0xa0;
    /// A made-up algorithm, and the OID of a common name.
    const ALGORITHM: &[u8] = &[SEQUENCE, 4, 6, 2, 0x2a, 3];
    const COMMON_NAME: &[u8] = &[6, 3, 0x55, 4, 3];

    fn element(tag: u8, contents: &[u8]) -> Vec<u8> {
        let length = u16::try_from(contents.len()).expect("a short element");
        // Lengths here are always in the long form, those of the times in the short form.
        [&[tag, 0x82], &length.to_be_bytes()[..], contents].concat()
    }

    fn text(tag: u8, text: &str) -> Vec<u8> {
        let length = u8::try_from(text.len()).expect("a short text");
        [&[tag, length], text.as_bytes()].concat()
    }

    fn certificate(version: &[u8], times: &[Vec<u8>; 2]) -> Vec<u8> {
        let name = [COMMON_NAME, &element(UTF8_STRING, &[b'n'; 300])].concat();
        let name = element(SEQUENCE, &element(SET, &element(SEQUENCE, &name)));
        let bits = element(BIT_STRING, &[0, 1]);
        let key = element(SEQUENCE, &[ALGORITHM, &bits].concat());
        let before = [version, &[INTEGER, 1, 7], ALGORITHM, &name].concat();
        let signed = [before, element(SEQUENCE, &times.concat()), name, key].concat();
        element(SEQUENCE, &[&element(SEQUENCE, &signed), ALGORITHM, &bits].concat())
    }

    fn seconds(at: Timestamp) -> u64 {
        at.as_millis() / 1000
    }

    #[test]
    fn utc_time_and_generalized_time_are_parsed() {
        let times = [text(UTC_TIME, "700101000000Z"), text(GENERALIZED_TIME, "20500301123456Z")];
        for version in [&[VERSION, 3, INTEGER, 1, 2][..], &[]] {
            let validity =
                Validity::from_der(&certificate(version, &times)).expect("a certificate");
            // date -u -d '2050-03-01 12:34:56' +%s
            let period = (seconds(validity.not_before), seconds(validity.not_after));
            assert_eq!(period, (0, 2_529_750_896));
        }
        for (date, expected) in [
            ("000229235959Z", 951_868_799),
            ("491231235959Z", 2_524_607_999),
            ("500101000000Z", 0),
            ("261121164000Z", 1_795_279_200),
            // Without seconds, which no authority writes.
            ("2611211640Z", 1_795_279_200),
        ] {
            let times = [text(UTC_TIME, date), text(UTC_TIME, date)];
            let validity = Validity::from_der(&certificate(&[], &times)).expect("a certificate");
            assert_eq!(seconds(validity.not_after), expected, "{date}");
        }
    }

    #[test]
    fn malformed_certificate_has_no_validity() {
        let times = [text(UTC_TIME, "261121164000Z"), text(UTC_TIME, "261121164000Z")];
        let whole = certificate(&[], &times);
        for length in 0..whole.len() {
            assert_eq!(Validity::from_der(&whole[..length]), None, "{length}");
        }
        for wrong in ["", "Z", "261121164000", "26112116Z", "261321164000Z", "26112116400xZ"] {
            let times = [text(UTC_TIME, "261121164000Z"), text(UTC_TIME, wrong)];
            assert_eq!(Validity::from_der(&certificate(&[], &times)), None, "{wrong}");
        }
    }
}
