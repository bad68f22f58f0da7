//! The section `envoy.xds`.

use std::path::PathBuf;

use figment::value::Value;
use rlaas_telemetry::otlp::{Endpoint, OtlpHeaders};

use crate::config::section::Section;
use crate::config::setting::Setting;
use crate::config::telemetry::headers;
use crate::config::values::{self, Invalid, Read, pem_path};
use crate::config::yaml;

/// A management server, and what it is shown.
#[derive(Clone, Debug)]
pub struct XdsSettings {
    /// Address of the server.
    pub address: Endpoint,
    /// Id of this client.
    pub node: String,
    /// What else the server may know of it.
    pub node_metadata: Vec<(String, String)>,
    /// Headers of the call.
    pub headers: OtlpHeaders,
    /// Whether this server is not ready before the first rules.
    pub wait: bool,
    /// Most descriptors of all resources together.
    pub max_descriptors: usize,
    /// Certificates.
    pub tls: XdsTls,
}

/// Files of certificates, read anew for each connection.
#[derive(Clone, Debug, Default)]
pub struct XdsTls {
    /// Authorities of the server's certificate; `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// The certificate of this client and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Name in the server's certificate, if it is not the host of the address.
    pub server_name: Option<String>,
}

const XDS: Setting = Setting::new(
    "xds",
    "Management server of the rules, such as Envoy Gateway: resources \
     ratelimit.config.ratelimit.v3.RateLimitConfig over gRPC, beside those of files. The last ones \
     that were valid stay in force; with state-dir over a restart, too.",
);
const ADDRESS: Setting = Setting::new("address", "Address of the server; https:// is TLS.")
    .example("https://envoy-gateway.envoy-gateway-system.svc:18001");
const NODE: Setting =
    Setting::new("node", "Id of this client, by which the server chooses the rules.");
const NODE_METADATA: Setting =
    Setting::new("node-metadata", "What else the server may know of this client: names and texts.")
        .example("{zone: a}");
const HEADERS: Setting =
    Setting::new("headers", "Headers of the call, as in telemetry.otlp.headers.")
        .example("{x-key: secret}");
const WAIT: Setting = Setting::new(
    "wait",
    "true: not ready until the server has sent rules that are valid, or state-dir has some. false: \
     ready at once. Calls of Envoy are UNAVAILABLE until then in any case.",
);
const MAX_DESCRIPTORS: Setting = Setting::new(
    "max-descriptors",
    "Most descriptors of all resources together, those below others counted; and most resources. A \
     response that has more is refused before it is read. 20,000 take about 70 MB.",
);
const TLS: Setting = Setting::new("tls", "Certificates; files are read for each connection.");
const CA: Setting = Setting::new(
    "ca",
    "PEM file of authorities for the server's certificate, in place of those of the system.",
)
.example("/etc/rlaas/xds-ca.crt");
const CERT: Setting = Setting::new("cert", "PEM file of this client's certificate.")
    .example("/etc/rlaas/xds-tls.crt");
const KEY: Setting = Setting::new("key", "PEM file of the certificate's private key.")
    .example("/etc/rlaas/xds-tls.key");
const SERVER_NAME: Setting = Setting::new(
    "server-name",
    "Name in the server's certificate, if it is not the host of the address.",
)
.example("envoy-gateway");

/// Reads the section. Returns `None` without an address, or after it reported a problem.
pub(super) fn read(envoy: &mut Section<'_>) -> Option<XdsSettings> {
    let mut section = envoy.section(XDS);
    let address = section.optional(ADDRESS, |value| {
        values::parsed::<Endpoint>(value)
            .map_err(|_| Invalid::new("must be http://host:port or https://host:port"))
    });
    let node = section.read(NODE, "rlaas", values::text);
    let node_metadata = section.optional(NODE_METADATA, texts).unwrap_or_default();
    let headers = section.optional(HEADERS, headers).unwrap_or_default();
    let wait = section.read(WAIT, "true", values::boolean);
    let max_descriptors = section.read(MAX_DESCRIPTORS, "20000", values::count(100_000)) as usize;
    let mut tls = section.section(TLS);
    let ca = tls.optional(CA, pem_path);
    for (key, other) in [("cert", "key"), ("key", "cert")] {
        if tls.has(key) && !tls.has(other) {
            tls.refuse(other, Invalid::new("missing: a certificate and its key belong together"));
        }
    }
    let identity = tls.optional(CERT, pem_path).zip(tls.optional(KEY, pem_path));
    let server_name = tls.optional(SERVER_NAME, values::text);
    if tls.is_given() && address.as_ref().is_some_and(|address| !address.is_https()) {
        section.refuse(TLS.key, Invalid::new("requires an https address"));
    }
    tls.close();
    section.close();
    let tls = XdsTls { ca, identity, server_name };
    let address = address?;
    Some(XdsSettings { address, node, node_metadata, headers, wait, max_descriptors, tls })
}

/// Reads names and texts.
fn texts(value: &Value) -> Read<Vec<(String, String)>> {
    const VALID: Invalid = Invalid::new("must be a section of names and texts");
    let given = value.as_dict().ok_or(VALID)?;
    let texts: Option<Vec<_>> =
        given.iter().map(|(name, value)| Some((name.clone(), values::scalar(value)?))).collect();
    let texts = texts.ok_or(VALID)?;
    let shown =
        texts.iter().map(|(name, text)| format!("{}: {}", yaml::key(name), yaml::key(text)));
    let shown = format!("{{{}}}", shown.collect::<Vec<_>>().join(", "));
    Ok((texts, shown))
}
