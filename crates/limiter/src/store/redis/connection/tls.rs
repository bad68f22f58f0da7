//! Encryption of connections to Redis: PEM to what rustls wants.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::store::redis::connection::own_authority::OwnAuthorityVerifier;
use crate::store::redis::settings::{Identity, SettingError, Tls};

/// How to encrypt a connection, and whom to trust.
///
/// # Errors
///
/// [`SettingError::Tls`] if the certificates can't be used.
pub(crate) fn client_config(tls: &Tls) -> Result<Arc<ClientConfig>, SettingError> {
    let builder = match &tls.ca {
        None => ClientConfig::builder().with_root_certificates(system().ok_or(SettingError::Tls)?),
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
    Ok(Arc::new(config))
}

/// The authorities that the system trusts.
fn system() -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    // Some that a system trusts may be of old kinds: they are left out.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    // Without any nobody would be trusted.
    (!roots.is_empty()).then_some(roots)
}

fn verifier(authorities: Vec<CertificateDer<'static>>) -> Option<OwnAuthorityVerifier> {
    let mut roots = RootCertStore::empty();
    authorities.iter().cloned().try_for_each(|one| roots.add(one)).ok()?;
    OwnAuthorityVerifier::new(authorities, roots)
}

/// All certificates, of which there is at least one.
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    Some(all).filter(|all| !all.is_empty())
}
