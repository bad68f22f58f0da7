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
pub(crate) struct OwnAuthorityVerifier {
    usual: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl OwnAuthorityVerifier {
    /// Trusts these certificates; none if they can't be used.
    pub(crate) fn new(trusted: Vec<CertificateDer<'static>>, roots: RootCertStore) -> Option<Self> {
        let usual = WebPkiServerVerifier::builder(Arc::new(roots)).build().ok()?;
        Some(Self { usual, trusted })
    }
}

impl ServerCertVerifier for OwnAuthorityVerifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let usual = self.usual.verify_server_cert(shown, intermediates, server, ocsp_response, now);
        // This is told of a certificate in its time only: that is looked at first.
        if !usual.as_ref().is_err_and(is_authority) || !self.trusted.contains(shown) {
            return usual;
        }
        verify_server_name(&ParsedCertificate::try_from(shown)?, server)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls12_signature(message, shown, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls13_signature(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

/// Returns true if nothing but that it is an authority's speaks against the certificate.
fn is_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(OtherError(cause))) = error else {
        return false;
    };
    matches!(cause.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}
