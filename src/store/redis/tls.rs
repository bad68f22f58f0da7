//! Encryption of connections to Redis: PEM to what rustls wants.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::settings::{Identity, SettingError, Tls};

/// How to encrypt a connection, and whom to trust.
///
/// # Errors
///
/// [`SettingError::Tls`] if the certificates can't be used.
pub(super) fn client_config(tls: &Tls) -> Result<Arc<ClientConfig>, SettingError> {
    let roots = authorities(tls.ca.as_deref()).ok_or(SettingError::Tls)?;
    let builder = ClientConfig::builder().with_root_certificates(roots);
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

/// These authorities, or those of the system.
fn authorities(pem: Option<&[u8]>) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    if let Some(pem) = pem {
        certificates(pem)?.into_iter().try_for_each(|one| roots.add(one)).ok()?;
    } else {
        // Some that a system trusts may be of old kinds: they are left out.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    // Without any nobody would be trusted.
    (!roots.is_empty()).then_some(roots)
}

/// All certificates, of which there is at least one.
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    Some(all).filter(|all| !all.is_empty())
}
