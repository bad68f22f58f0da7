//! The section `envoy.xds`, and rules as a management server sends them.

use std::path::PathBuf;

use figment::value::{Dict, Value};
use prost_reflect::{DynamicMessage, SerializeOptions};
use rlaas_proto::json::POOL;

use crate::config::section::Section;
use crate::config::setting::Setting;
use crate::config::telemetry::headers;
use crate::config::values::{self, Invalid, Read, pem_path};
use crate::config::yaml;
use crate::telemetry::otlp::{Endpoint, OtlpHeaders};

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

/// A domain and its rules, as a management server has sent them.
#[derive(Clone, Debug)]
pub struct EnvoyResource {
    /// What problems of it are problems of.
    pub(super) origin: String,
    /// The content of a file with the same rules.
    pub(super) dict: Dict,
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

/// The full name of the message of a resource.
const MESSAGE: &str = "ratelimit.config.ratelimit.v3.RateLimitConfig";

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
    Some(XdsSettings { address: address?, node, node_metadata, headers, wait, tls })
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

impl EnvoyResource {
    /// Beginning of the origin of each.
    pub const ORIGIN: &str = "resource ";
    /// Type of the resources.
    pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

    /// Reads a resource.
    ///
    /// # Errors
    ///
    /// The type is another one, or the bytes are not of it.
    ///
    /// # Panics
    ///
    /// Never: the descriptors are made at build time.
    pub fn from_any(resource: &prost_types::Any) -> Result<Self, String> {
        if resource.type_url != Self::TYPE_URL {
            return Err(format!("type_url of a resource must be {}", Self::TYPE_URL));
        }
        let descriptor = POOL.get_message_by_name(MESSAGE).expect("the name of a message");
        let message = DynamicMessage::decode(descriptor, &*resource.value)
            .map_err(|error| format!("a resource can't be read: {error}"))?;
        // A limit of 0 is one, so what is not set is written, too.
        let options = SerializeOptions::new().use_proto_field_name(true).skip_default_fields(false);
        let json = message.serialize_with_options(serde_json::value::Serializer, &options);
        let value = json.ok().and_then(|json| Value::serialize(json).ok());
        let mut dict = value.and_then(Value::into_dict).ok_or("a resource can't be read")?;
        let name = dict.remove("name").and_then(Value::into_string).unwrap_or_default();
        Ok(Self { origin: format!("{}{name:?}", Self::ORIGIN), dict })
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_types::Any;
    use rlaas_proto::ratelimit::config::ratelimit::v3::{
        RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
    };

    use super::*;
    use crate::config::{Config, Sources};

    fn resource(rate_limit: RateLimitPolicy) -> EnvoyResource {
        let descriptor = RateLimitDescriptor {
            key: "user".to_owned(),
            value: "007".to_owned(),
            rate_limit: Some(rate_limit),
            ..RateLimitDescriptor::default()
        };
        let config = RateLimitConfig {
            name: "first".to_owned(),
            domain: "shop".to_owned(),
            descriptors: vec![descriptor],
        };
        let any = Any { type_url: EnvoyResource::TYPE_URL.into(), value: config.encode_to_vec() };
        EnvoyResource::from_any(&any).expect("a resource")
    }

    fn load(rate_limit: RateLimitPolicy) -> Result<Config, String> {
        let resources = [resource(rate_limit)].into();
        let sources = Sources { resources, ..Sources::default() };
        Config::load(&sources).map_err(|problems| problems.to_string())
    }

    #[test]
    fn resources_are_read_as_files_are() {
        let minute = RateLimitUnit::Minute.into();
        for (limit, is_unlimited) in [
            (
                RateLimitPolicy {
                    unit: minute,
                    requests_per_unit: 5,
                    ..RateLimitPolicy::default()
                },
                false,
            ),
            (RateLimitPolicy { unit: minute, ..RateLimitPolicy::default() }, false),
            (RateLimitPolicy { unlimited: true, ..RateLimitPolicy::default() }, true),
        ] {
            let config = load(limit.clone()).expect("a configuration");
            let rules: Vec<_> = config.rules.descriptors().iter().collect();
            assert_eq!(rules.len(), 1, "{limit:?}");
            assert_eq!(&*rules[0].name, "shop.user_007");
            let units = rules[0].grant.limit().map(crate::algorithm::Limit::units);
            assert_eq!(units.is_none(), is_unlimited || limit.requests_per_unit == 0, "{limit:?}");
        }
        let problems = load(RateLimitPolicy::default()).expect_err("no unit");
        let expected = "resource \"first\": descriptors[0].rate_limit.unit: must be second, minute";
        assert!(problems.starts_with(expected), "{problems}");
    }

    #[test]
    fn foreign_resources_are_refused() {
        let foreign = Any { type_url: "type.googleapis.com/a.B".to_owned(), value: Vec::new() };
        assert!(EnvoyResource::from_any(&foreign).is_err());
        let broken = Any { type_url: EnvoyResource::TYPE_URL.into(), value: vec![0xff] };
        assert!(EnvoyResource::from_any(&broken).is_err());
    }
}
