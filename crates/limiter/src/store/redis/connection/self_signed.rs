//! A verifier that accepts a self-signed certificate of a server, as `openssl req -x509` creates
//! it, if this certificate is in `store.redis.tls.ca`.
//!
//! Such a certificate is its own authority (`CA:TRUE`), and rustls rejects the certificate of an
//! authority as that of a server. Accepting it adds no trust, because the operator trusts this
//! authority already. Its validity period and its names are verified all the same. Go accepts such
//! certificates, too.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

/// Verifies as rustls does, but accepts such certificates.
#[derive(Debug)]
pub(crate) struct SelfSignedVerifier {
    webpki: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl SelfSignedVerifier {
    /// Creates a verifier that trusts these certificates; `None` if they are invalid.
    pub(crate) fn new(trusted: Vec<CertificateDer<'static>>, roots: RootCertStore) -> Option<Self> {
        let webpki = WebPkiServerVerifier::builder(Arc::new(roots)).build().ok()?;
        Some(Self { webpki, trusted })
    }
}

impl ServerCertVerifier for SelfSignedVerifier {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let webpki =
            self.webpki.verify_server_cert(cert, intermediates, server, ocsp_response, now);
        // webpki checks the validity period before it reports `CaUsedAsEndEntity`.
        if !webpki.as_ref().is_err_and(is_authority) || !self.trusted.contains(cert) {
            return webpki;
        }
        verify_server_name(&ParsedCertificate::try_from(cert)?, server)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

/// Returns `true` if the only objection to the certificate is that it is an authority.
fn is_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(OtherError(cause))) = error else {
        return false;
    };
    matches!(cause.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}
