//! Local callers: those that may administer while `auth` lists nobody.
//!
//! A call is local if its connection comes from loopback or over a Unix domain socket, no proxy has
//! marked it, and the name under which it asked for the server is local.
//!
//! - A proxy on the same machine would make all its clients local, so its headers end that. A proxy
//!   that adds none, or that forwards bytes, can't be recognised by them.
//! - A web page may make a name of its own resolve to 127.0.0.1, and its requests are then of the
//!   same origin (DNS rebinding). The name in `Host` is still that of the page. gRPC is checked
//!   alike: browsers don't speak it, but a tunnel or a proxy for TCP connects from loopback, and
//!   `:authority` is then the only trace of the address that its client meant.
//! - No name leads to a Unix domain socket, and clients send any there: it is not checked.

use std::net::IpAddr;
use std::str::FromStr;

use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Request, header};
use thiserror::Error;

use super::AuthError;
use super::caller::{Caller, PeerLocality};
use super::roles::Roles;

/// Headers that proxies add, and the beginnings of their names.
const PROXY_HEADERS: [&str; 10] = [
    "forwarded",
    "via",
    "x-real-ip",
    "cf-connecting-ip",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "client-ip",
    "fastly-client-ip",
    "cdn-loop",
];
const PROXY_PREFIXES: [&str; 2] = ["x-forwarded-", "x-envoy-"];

/// The names of hosts under which local callers reach the server, beside `localhost` and loopback
/// addresses. In lower case, without a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNames(Vec<String>);

/// The reason why a call is not local.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NotLocal {
    /// The connection comes from another machine.
    #[error("this one is not on loopback or a Unix domain socket")]
    Remote,
    /// A proxy has added a header.
    #[error("this one has a header of a proxy (such as forwarded, via or x-forwarded-for)")]
    Proxied,
    /// The name of the server is missing or not local.
    #[error("its Host (or :authority) must be localhost, a loopback address or one of http.hosts")]
    Host,
}

impl HostNames {
    /// Maximum number of names.
    pub const MAX: usize = 100;

    /// Creates the set of these names.
    pub fn new(names: impl IntoIterator<Item = HostName>) -> Self {
        Self(names.into_iter().map(|name| name.0).collect())
    }

    /// Returns the caller of a local call, who has every role: named by the certificate with these
    /// names if there is one.
    ///
    /// # Errors
    ///
    /// [`AuthError::NotLocal`].
    pub(super) fn local_caller<B>(
        &self,
        request: &Request<B>,
        peer: PeerLocality,
        names: &[String],
        required: Roles,
    ) -> Result<Caller, AuthError> {
        self.check(request, peer).map_err(|why| AuthError::NotLocal(required, why))?;
        Ok(names.first().map_or_else(Caller::local, |name| {
            Caller::new(format!("certificate:{name}"), Roles::ALL)
        }))
    }

    /// Checks that a call is local.
    ///
    /// # Errors
    ///
    /// [`NotLocal`]: the first condition that is not met.
    fn check<B>(&self, request: &Request<B>, peer: PeerLocality) -> Result<(), NotLocal> {
        if peer == PeerLocality::Remote {
            return Err(NotLocal::Remote);
        }
        if is_proxied(request.headers()) {
            return Err(NotLocal::Proxied);
        }
        if peer == PeerLocality::Loopback && !self.are_local(request) {
            return Err(NotLocal::Host);
        }
        Ok(())
    }

    /// Returns `true` if the request names the server, and only by local names.
    fn are_local<B>(&self, request: &Request<B>) -> bool {
        let of_uri = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        let headers = request.headers().get_all(header::HOST);
        let mut names = of_uri.into_iter().chain(headers.iter().map(HeaderValue::as_bytes));
        let mut is_named = false;
        names.all(|name| {
            is_named = true;
            self.is_local(name)
        }) && is_named
    }

    fn is_local(&self, authority: &[u8]) -> bool {
        let Ok(authority) = Authority::try_from(authority) else { return false };
        if authority.as_str().contains('@') {
            return false;
        }
        let name = normal(authority.host());
        let is_loopback =
            name.parse().is_ok_and(|address: IpAddr| address.to_canonical().is_loopback());
        name == "localhost" || is_loopback || self.0.contains(&name)
    }
}

/// A name in [`HostNames`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

/// The error for a text that is not the name of a host.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("must be names of hosts or addresses, without scheme and port")]
pub struct HostNameError;

impl FromStr for HostName {
    type Err = HostNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_address = text.parse::<IpAddr>().is_ok();
        let is_name =
            |text: &str| Authority::try_from(text).is_ok_and(|authority| authority.host() == text);
        let is_valid = is_address || text.len() <= 255 && !text.contains('*') && is_name(text);
        if is_valid { Ok(Self(normal(text))) } else { Err(HostNameError) }
    }
}

/// Returns a name in lower case, without the brackets of an address and without a final dot.
fn normal(host: &str) -> String {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.strip_suffix('.').unwrap_or(bare).to_ascii_lowercase()
}

fn is_proxied(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| {
        let name = name.as_str();
        PROXY_HEADERS.contains(&name)
            || PROXY_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> HostNames {
        let names = ["Ops.Example", "2001:db8::1"].map(|name| name.parse().expect("a name"));
        HostNames::new(names)
    }

    fn request(headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().uri("/v1/admin/keys:inspect");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request")
    }

    #[test]
    fn host_is_local_or_listed() {
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.:1",
            "127.0.0.1",
            "127.1.2.3:65535",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
            "ops.example:8080",
            "OPS.EXAMPLE.",
            "[2001:db8::1]:1",
        ] {
            assert_eq!(
                hosts().check(&request(&[("host", host)]), PeerLocality::Loopback),
                Ok(()),
                "{host}"
            );
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "evil.localhost",
            "127.0.0.1.evil.example",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0.0.0.0:8080",
            "[::]:8080",
            "10.0.0.1",
            "evil@localhost",
            "localhost@evil",
            "localhost/evil",
            "localhost evil",
            "[2001:db8::2]",
            "xops.example",
        ] {
            let refused = hosts().check(&request(&[("host", host)]), PeerLocality::Loopback);
            assert_eq!(refused, Err(NotLocal::Host), "{host}");
        }
    }

    #[test]
    fn every_name_of_the_server_must_be_local() {
        let refused = |request: &Request<()>| hosts().check(request, PeerLocality::Loopback);
        assert_eq!(refused(&request(&[])), Err(NotLocal::Host));
        let twice = request(&[("host", "localhost"), ("host", "evil.example")]);
        assert_eq!(refused(&twice), Err(NotLocal::Host));
        for (uri, host) in [
            ("http://evil.example/v1/admin", "localhost"),
            ("http://localhost/v1/admin", "evil.example"),
        ] {
            let request = Request::builder().uri(uri).header("host", host).body(());
            assert_eq!(refused(&request.expect("a request")), Err(NotLocal::Host), "{uri} {host}");
        }
        let both = Request::builder().uri("http://[::1]:1/").header("host", "localhost").body(());
        assert_eq!(refused(&both.expect("a request")), Ok(()));
    }

    #[test]
    fn header_of_a_proxy_and_another_machine_are_never_local() {
        for name in [
            "Forwarded",
            "Via",
            "X-Forwarded-For",
            "x-forwarded-client-cert",
            "X-Real-IP",
            "x-envoy-external-address",
            "CF-Connecting-IP",
            "True-Client-IP",
            "X-Client-IP",
            "X-Cluster-Client-IP",
            "Client-IP",
            "Fastly-Client-IP",
            "CDN-Loop",
        ] {
            let request = request(&[("host", "localhost"), (name, "")]);
            for peer in [PeerLocality::Loopback, PeerLocality::UnixSocket] {
                assert_eq!(hosts().check(&request, peer), Err(NotLocal::Proxied), "{name}");
            }
        }
        let plain = request(&[("host", "localhost"), ("x-request-id", "1")]);
        assert_eq!(hosts().check(&plain, PeerLocality::Loopback), Ok(()));
        assert_eq!(hosts().check(&plain, PeerLocality::Remote), Err(NotLocal::Remote));
        // Any name may be sent to a Unix domain socket.
        let any = request(&[("host", "a")]);
        assert_eq!(hosts().check(&any, PeerLocality::UnixSocket), Ok(()));
        assert_eq!(hosts().check(&request(&[]), PeerLocality::UnixSocket), Ok(()));
    }

    #[test]
    fn setting_has_names_and_addresses_without_port() {
        for name in ["ops.example", "[::1]", "::1", "10.0.0.1", "a"] {
            assert!(name.parse::<HostName>().is_ok(), "{name}");
        }
        for name in ["", "http://a", "a:1", "a/b", "a@b", "*", "*.example", "a b", "[::1]:1"] {
            assert_eq!(name.parse::<HostName>(), Err(HostNameError), "{name}");
        }
    }
}
