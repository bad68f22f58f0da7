//! Extracts the key by which a request is limited.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderName};
use rlaas_core::rules::spec::Problem;

use super::protocol::Rejection;

/// Extracts the key of a request: the client, and other parts that rules match.
#[derive(Clone)]
pub struct KeyExtractor {
    source: KeySource,
    resource: Option<Arc<ResourceOf>>,
    proxies: Option<(usize, String)>,
}

#[derive(Clone)]
enum KeySource {
    Peer(Arc<PeerOf>),
    Header(String),
    Custom(Arc<PartsOf>),
}

type PeerOf = dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync;
type PartsOf = dyn Fn(&Parts) -> Option<KeyParts> + Send + Sync;
type ResourceOf = dyn Fn(&Parts) -> Option<String> + Send + Sync;

/// The parts of a request that rules match.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct KeyParts {
    pub(super) user: String,
    pub(super) resource: String,
    pub(super) attributes: Vec<(String, String)>,
    pub(super) cost: u32,
}

impl KeyParts {
    /// Creates the key of a user, with a cost of 1 unit.
    pub fn user(user: impl Into<String>) -> Self {
        let (resource, attributes) = (String::new(), Vec::new());
        Self { user: user.into(), resource, attributes, cost: 1 }
    }

    /// Sets the resource that the request is for.
    pub fn resource(self, resource: impl Into<String>) -> Self {
        Self { resource: resource.into(), ..self }
    }

    /// Adds an attribute.
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.push((name.into(), value.into()));
        self
    }

    /// Sets the cost in units.
    pub fn cost(self, units: u32) -> Self {
        Self { cost: units, ..self }
    }
}

impl KeyExtractor {
    /// Limits by the IP address of the peer, an IPv6 address by its /64, since one site has that many. `address`
    /// finds it in the extensions of a request:
    ///
    /// - axum: `|e| e.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip())`
    /// - tonic: `|e| e.get::<TcpConnectInfo>()?.remote_addr().map(|address| address.ip())`
    pub fn peer(address: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        Self::new(KeySource::Peer(Arc::new(address)))
    }

    /// Limits by the value of a header. A request without this header is rejected as invalid.
    pub fn header(name: impl Into<String>) -> Self {
        Self::new(KeySource::Header(name.into()))
    }

    /// Limits by a key that a function computes. A request for which it returns `None` is exempt.
    ///
    /// ```
    /// use rlaas_limiter::tower::{KeyExtractor, KeyParts};
    ///
    /// let by_tenant = KeyExtractor::custom(|parts| {
    ///     if parts.uri.path() == "/healthz" {
    ///         return None;
    ///     }
    ///     let tenant = parts.headers.get("x-tenant").and_then(|value| value.to_str().ok());
    ///     let cost = if parts.method == "POST" { 5 } else { 1 };
    ///     Some(KeyParts::user(tenant.unwrap_or("unknown")).attribute("plan", "free").cost(cost))
    /// });
    /// ```
    pub fn custom(key: impl Fn(&Parts) -> Option<KeyParts> + Send + Sync + 'static) -> Self {
        Self::new(KeySource::Custom(Arc::new(key)))
    }

    /// Takes the address of the client from a header such as `x-forwarded-for`, to which each of
    /// `count` trusted proxies appends the address of its own peer. Addresses that the client wrote
    /// into the header are ignored. Only for keys by peer address.
    #[must_use]
    pub fn trusted_proxies(self, count: usize, forwarded_header: impl Into<String>) -> Self {
        Self { proxies: Some((count, forwarded_header.into())), ..self }
    }

    /// Sets the function that returns the resource, for example the matched path of axum:
    /// `|parts| Some(parts.extensions.get::<MatchedPath>()?.as_str().to_owned())`.
    #[must_use]
    pub fn resource(
        self,
        resource: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { resource: Some(Arc::new(resource)), ..self }
    }

    /// Uses the path of the URI as the resource. The path of a gRPC request is its method.
    #[must_use]
    pub fn path(self) -> Self {
        self.resource(|parts| Some(parts.uri.path().to_owned()))
    }

    fn new(source: KeySource) -> Self {
        Self { source, resource: None, proxies: None }
    }

    /// Validates the settings. Adds every problem to `problems`.
    pub(super) fn build(self, problems: &mut Vec<Problem>) -> Option<KeyReader> {
        let mut header = |field: &str, name: &str| {
            let parsed = HeaderName::from_bytes(name.as_bytes());
            let problem = |_| problem(field, "must be a header name");
            parsed.map_err(|error| problems.push(problem(error))).ok()
        };
        let header_name = match &self.source {
            KeySource::Header(name) => Some(header("key.header", name)?),
            KeySource::Peer(_) | KeySource::Custom(_) => None,
        };
        let forwarded = match &self.proxies {
            Some((count, name)) => Some((*count, header("key.forwarded_header", name)?)),
            None => None,
        };
        let is_peer = matches!(self.source, KeySource::Peer(_));
        match forwarded {
            Some((0, _)) => problems.push(problem("key.trusted_proxies", "must be at least 1")),
            Some(_) if !is_peer => {
                problems.push(problem("key.trusted_proxies", "requires a key by peer address"));
            }
            _ => {}
        }
        let Self { source, resource, .. } = self;
        Some(KeyReader { source, header_name, forwarded, resource })
    }
}

fn problem(field: &str, text: &str) -> Problem {
    Problem { field: field.to_owned(), text: text.to_owned() }
}

/// Extracts keys with valid settings.
pub(super) struct KeyReader {
    source: KeySource,
    header_name: Option<HeaderName>,
    forwarded: Option<(usize, HeaderName)>,
    resource: Option<Arc<ResourceOf>>,
}

impl KeyReader {
    /// Returns the key of a request, or `None` if the request is exempt.
    pub(super) fn read(&self, parts: &Parts) -> Result<Option<KeyParts>, Rejection> {
        let key = match (&self.source, &self.header_name) {
            (KeySource::Custom(key), _) => key(parts),
            (KeySource::Peer(address), _) => {
                let peer = address(&parts.extensions).ok_or_else(Rejection::no_peer)?;
                Some(KeyParts::user(site(self.client(peer, &parts.headers))))
            }
            (KeySource::Header(_), name) => {
                let value = name.as_ref().and_then(|name| parts.headers.get(name));
                let value = value.and_then(|value| value.to_str().ok());
                let missing = || Rejection::no_header(name.as_ref().map_or("", HeaderName::as_str));
                Some(KeyParts::user(value.ok_or_else(missing)?))
            }
        };
        let resource = self.resource.as_ref().and_then(|resource| resource(parts));
        Ok(key.map(|key| match resource {
            Some(resource) => key.resource(resource),
            None => key,
        }))
    }

    /// Returns the address that the outermost trusted proxy is connected to. Falls back to the peer
    /// if the request has not passed all proxies, or the header has no valid address there.
    fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let Some((count, name)) = &self.forwarded else { return peer.to_canonical() };
        let lines = headers.get_all(name).iter().map(|line| line.to_str().unwrap_or_default());
        let addresses: Vec<&str> = lines.flat_map(|line| line.split(',')).collect();
        let client = addresses.len().checked_sub(*count).and_then(|at| address(addresses[at]));
        client.unwrap_or(peer).to_canonical()
    }
}

/// Returns the text of an address; of IPv6 that of its network of 64 bits, which one site has.
fn site(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            format!("{}/64", Ipv6Addr::from(network))
        }
    }
}

/// Parses an IP address, with or without a port.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let alone = text.parse().ok();
    alone.or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()))
}

impl fmt::Debug for KeyExtractor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.source {
            KeySource::Peer(_) => "peer",
            KeySource::Header(name) => name,
            KeySource::Custom(_) => "custom",
        };
        f.debug_struct("KeyExtractor")
            .field("source", &source)
            .field("proxies", &self.proxies)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "192.0.2.1";

    fn user(key: KeyExtractor, forwarded: &[&str]) -> String {
        let reader = key.build(&mut Vec::new()).expect("a valid key");
        let mut request = http::Request::builder().uri("/a");
        for line in forwarded {
            request = request.header("x-forwarded-for", *line);
        }
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        reader.read(&parts).ok().flatten().expect("a key").user
    }

    #[test]
    fn only_addresses_that_trusted_proxies_append_are_used() {
        let peer = || KeyExtractor::peer(|_| PEER.parse().ok());
        let behind = |count| peer().trusted_proxies(count, "X-Forwarded-For");
        let forged: &[&str] = &["203.0.113.9, 198.51.100.7", "10.0.0.2:8080"];
        assert_eq!(user(peer(), forged), PEER);
        assert_eq!(user(behind(1), forged), "10.0.0.2");
        assert_eq!(user(behind(2), forged), "198.51.100.7");
        for (count, header) in [(4, forged), (1, &[]), (1, &["unknown"]), (1, &["10.0.0.2,"])] {
            assert_eq!(user(behind(count), header), PEER, "{count} of {header:?}");
        }
        assert_eq!(user(behind(1), &["[2001:db8::1]:443"]), "2001:db8::/64");
        assert_eq!(user(behind(1), &["2001:db8:0:1:2::3"]), "2001:db8:0:1::/64");
        assert_eq!(user(behind(1), &["::ffff:192.0.2.1"]), "192.0.2.1");
        assert_eq!(user(behind(1), &["::ffff:198.51.100.7"]), "198.51.100.7");
    }
}
