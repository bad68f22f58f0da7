//! OTLP over gRPC: how a collector is reached. Traces and pushed metrics share these settings.
//!
//! **Source:** `OpenTelemetry` Protocol 1.x; the headers that gRPC and HTTP/2 reserve.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use thiserror::Error;
use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::{self, Certificate, Channel, ClientTlsConfig};

/// Maximum duration of an export.
pub(super) const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Headers that the protocol sets itself.
const RESERVED: [&str; 5] = ["content-type", "host", "te", "user-agent", "content-length"];

/// Settings of traces and pushed metrics.
#[derive(Clone, Debug)]
pub struct OtlpSettings {
    /// The collector.
    pub collector: CollectorSettings,
    /// Ratio of calls that are sampled if the caller has not decided; `None`: no traces.
    pub traces: Option<SampleRatio>,
    /// Time between two pushes of metrics; `None`: they are not pushed.
    pub metrics: Option<Duration>,
}

/// A ratio of calls, from 0 for none to 1 for all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRatio(pub(super) f64);

/// The error for a number that is not a ratio.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("must be a number from 0 to 1, such as 0.01")]
pub struct RatioError;

/// A collector, and what it must be shown.
#[derive(Clone, Debug)]
pub struct CollectorSettings {
    /// Its address.
    pub endpoint: Endpoint,
    /// Headers of each export.
    pub headers: OtlpHeaders,
    /// Authorities of its certificate; `None`: those of the system.
    pub authorities: Option<CollectorAuthorities>,
}

/// `http://host:port` or `https://host:port` of an OTLP collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(String);

/// Headers, whose values may be secrets.
#[derive(Clone, Debug, Default)]
pub struct OtlpHeaders(MetadataMap);

/// Certificates of authorities, in PEM.
#[derive(Clone)]
pub struct CollectorAuthorities(Vec<u8>);

/// The error for a text that is not an endpoint.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("must be http://host:port or https://host:port of a collector for OTLP over gRPC")]
pub struct EndpointError;

/// The error for a header that can't be sent.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("must be names and values of HTTP headers, without those of gRPC and HTTP/2")]
pub struct HeadersError;

/// The error for a text without certificates.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("must be a PEM file with at least one certificate, and nothing broken")]
pub struct AuthoritiesError;

impl SampleRatio {
    /// Creates a ratio.
    ///
    /// # Errors
    ///
    /// [`RatioError`] if it is not between 0 and 1.
    pub fn new(ratio: f64) -> Result<Self, RatioError> {
        if (0.0..=1.0).contains(&ratio) { Ok(Self(ratio)) } else { Err(RatioError) }
    }
}

impl CollectorSettings {
    /// Returns a connection that is made with the first export. It runs on the calling runtime.
    pub(super) fn channel(&self) -> Result<Channel, transport::Error> {
        let endpoint = Channel::from_shared(self.endpoint.0.clone().into_bytes());
        let endpoint = endpoint.expect("an endpoint is a URI");
        let endpoint = endpoint.connect_timeout(EXPORT_TIMEOUT).timeout(EXPORT_TIMEOUT);
        if !self.endpoint.is_https() {
            return Ok(endpoint.connect_lazy());
        }
        let tls = match &self.authorities {
            Some(CollectorAuthorities(pem)) => {
                ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem))
            }
            None => ClientTlsConfig::new().with_native_roots(),
        };
        Ok(endpoint.tls_config(tls)?.connect_lazy())
    }
}

/// Returns what the process is, for all that it exports.
pub(super) fn resource(instance: &str) -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let instance = KeyValue::new("service.instance.id", instance.to_owned());
    Resource::builder().with_service_name("rlaas").with_attributes([version, instance]).build()
}

impl Endpoint {
    /// Returns `true` if the connection is encrypted.
    pub fn is_https(&self) -> bool {
        self.0.starts_with("https://")
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (scheme, authority) = text.split_once("://").ok_or(EndpointError)?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) = authority.rsplit_once(':').ok_or(EndpointError)?;
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
        let is_valid = matches!(scheme, "http" | "https")
            && !host.is_empty()
            && host.bytes().all(is_part)
            && port.parse::<u16>().is_ok();
        let endpoint = format!("{scheme}://{authority}");
        let is_valid = is_valid && Channel::from_shared(endpoint.clone().into_bytes()).is_ok();
        if is_valid { Ok(Self(endpoint)) } else { Err(EndpointError) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl OtlpHeaders {
    /// Creates headers from their names and values.
    ///
    /// # Errors
    ///
    /// [`HeadersError`] if one can't be sent, or is of gRPC itself.
    pub fn new<'a>(
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, HeadersError> {
        let mut map = MetadataMap::new();
        for (name, value) in headers {
            let name: MetadataKey<Ascii> =
                name.to_ascii_lowercase().parse().map_err(|_| HeadersError)?;
            let mut value: MetadataValue<Ascii> = value.parse().map_err(|_| HeadersError)?;
            if RESERVED.contains(&name.as_str()) || name.as_str().starts_with("grpc-") {
                return Err(HeadersError);
            }
            // Debug output leaves it out.
            value.set_sensitive(true);
            map.insert(name, value);
        }
        Ok(Self(map))
    }

    /// Returns the headers as metadata of a call.
    pub fn metadata(&self) -> MetadataMap {
        self.0.clone()
    }
}

impl CollectorAuthorities {
    /// Reads certificates.
    ///
    /// # Errors
    ///
    /// [`AuthoritiesError`] if there is none, or one is broken.
    pub fn from_pem(pem: Vec<u8>) -> Result<Self, AuthoritiesError> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let is_valid = certificates.is_ok_and(|certificates| !certificates.is_empty());
        if is_valid { Ok(Self(pem)) } else { Err(AuthoritiesError) }
    }
}

impl fmt::Debug for CollectorAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectorAuthorities").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_has_a_host_and_a_port() {
        for text in [
            "http://127.0.0.1:4317",
            "http://otel-collector.svc:4317",
            "http://[::1]:1",
            "https://collector.example:443",
        ] {
            assert_eq!(text.parse(), Ok(Endpoint(text.to_owned())));
        }
        for text in
            ["", "127.0.0.1:4317", "ftp://h:1", "https://h", "http://u:p@h:1", "http://h:1/v1"]
        {
            assert_eq!(text.parse::<Endpoint>(), Err(EndpointError), "{text}");
        }
    }

    #[test]
    fn headers_of_the_protocol_and_what_cannot_be_sent_are_refused() {
        for (name, value) in [
            ("grpc-timeout", "1S"),
            ("Content-Type", "text/plain"),
            ("te", "trailers"),
            ("key-bin", "AAAA"),
            ("a b", "c"),
            ("a", "b\r\nc: d"),
            ("", ""),
        ] {
            assert_eq!(OtlpHeaders::new([(name, value)]).err(), Some(HeadersError), "{name}");
        }
    }

    #[test]
    fn debug_output_does_not_have_the_values_of_headers() {
        let headers = OtlpHeaders::new([("Authorization", "Bearer s3cret")]).expect("headers");
        let shown = format!("{headers:?}");
        assert!(shown.contains("authorization") && !shown.contains("s3cret"), "{shown}");
    }
}
