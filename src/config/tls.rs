//! The section `server.tls`.

use super::section::Section;
use super::setting::Setting;
use super::values::{self, Invalid, pem_path};
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

const HTTP: Setting = Setting::new(
    "http",
    "false: server.http and server.metrics are not encrypted, for probes and scrapes; default true. \
     With client-ca, server.http then refuses all that a caller needs a certificate for.",
)
.example("false");

/// Reads the section. Returns `None` without it, or after it reported a problem; and whether HTTP is
/// encrypted, too.
pub(super) fn read(server: &mut Section<'_>) -> (Option<Tls>, bool) {
    let mut section = server.section(TLS);
    let given = ["cert", "key", "client-ca", "http"].iter().any(|key| section.has(key));
    for key in ["cert", "key"].into_iter().filter(|key| given && !section.has(key)) {
        section.refuse(key, Invalid::new("missing: a certificate and its key belong together"));
    }
    let files = section.optional(CERT, pem_path).zip(section.optional(KEY, pem_path));
    let client_ca = section.optional(CLIENT_CA, pem_path);
    let for_http = section.optional(HTTP, values::boolean).unwrap_or(true);
    let files = files.map(|(cert, key)| TlsFiles { cert, key, client_ca });
    let refuse = |error: TlsError| section.refuse(error.setting, error);
    let tls = files.and_then(|files| {
        files.problems().into_iter().for_each(refuse);
        if section.is_valid() { Tls::load(files).map_err(refuse).ok() } else { None }
    });
    section.close();
    (tls, for_http)
}
