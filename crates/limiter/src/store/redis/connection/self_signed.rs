//! Trusts a server whose certificate is its own authority and stands in `store.redis.tls.ca` itself,
//! as `openssl req -x509` makes them.
//!
//! rustls takes no authority's certificate (`CA:TRUE`) for that of a server. Where the server shows
//! the very certificate that the operator trusts, nothing is left to vouch for: the authority could
//! sign any other. Its time and its names must be right all the same. Go does so too.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

/// Verifies as rustls does, and lets such certificates pass.
#[derive(Debug)]
pub(crate) struct SelfSignedVerifier {
    webpki: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl SelfSignedVerifier {
    /// Trusts these certificates; none if they can't be used.
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
        // This is told of a certificate in its time only: that is looked at first.
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

/// Returns true if nothing but that it is an authority's speaks against the certificate.
fn is_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(OtherError(cause))) = error else {
        return false;
    };
    matches!(cause.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}
