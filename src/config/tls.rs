//! The section `server.tls`.

use std::path::PathBuf;

use figment::value::Value;

use super::section::Section;
use super::setting::Setting;
use super::values::{Invalid, Read};
use crate::server::{Tls, TlsError, TlsFiles};

const TLS: Setting = Setting::new(
    "tls",
    "TLS for TCP connections; Unix domain sockets are not encrypted. The files are reloaded \
     when they change.",
);
const CERT: Setting = Setting::new("cert", "PEM file of the server's certificate chain.")
    .example("/etc/rlaas/tls.crt");
const KEY: Setting =
    Setting::new("key", "PEM file of the certificate's private key.").example("/etc/rlaas/tls.key");
const CLIENT_CA: Setting = Setting::new(
    "client-ca",
    "PEM file of authorities. Clients need a certificate of one of them, except for metrics \
     and probes.",
)
.example("/etc/rlaas/ca.crt");

/// Reads the section. Returns `None` without it, or after it reported a problem.
pub(super) fn read(server: &mut Section<'_>) -> Option<Tls> {
    let mut section = server.section(TLS);
    let given = ["cert", "key", "client-ca"].iter().any(|key| section.has(key));
    for key in ["cert", "key"].into_iter().filter(|key| given && !section.has(key)) {
        section.refuse(key, Invalid::new("missing: a certificate and its key belong together"));
    }
    let files = section.optional(CERT, path).zip(section.optional(KEY, path));
    let client_ca = section.optional(CLIENT_CA, path);
    let files = files.map(|(cert, key)| TlsFiles { cert, key, client_ca });
    let refuse = |error: TlsError| section.refuse(error.setting, error);
    let tls = files.and_then(|files| Tls::load(files).map_err(refuse).ok());
    section.close();
    tls
}

/// Reads a path. Rejects the contents of a PEM file in its place.
fn path(value: &Value) -> Read<PathBuf> {
    let path = value.as_str().filter(|path| !path.is_empty() && !path.contains(['\n', '\0']));
    let path = path.ok_or(Invalid::new("must be the path of a PEM file"))?;
    Ok((path.into(), path.to_owned()))
}
