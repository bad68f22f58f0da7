//! Web pages: administrative requests are not for pages of other origins.
//!
//! A browser sends some requests of any page to any server, with the client certificates that it
//! has. It asks first (by a preflight, which no administrative route grants) unless the content
//! type is one that a form can send, and names the page's origin in `Origin`. Over TLS a browser
//! reaches gRPC too, since it speaks HTTP/2, and a script can build the bytes of a message.
//!
//! **Source:** Fetch Standard, "CORS-safelisted request-header" and "Origin header".

use std::net::IpAddr;

use http::uri::Uri;
use http::{HeaderValue, Method, Request, header};
use thiserror::Error;

use super::{PeerLocality, Permission};

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// gRPC.
    Grpc,
    /// HTTP without TLS.
    Http,
    /// HTTP over TLS.
    Https,
}

/// Where a request comes from. Extension of every request to the console.
#[derive(Clone, Copy, Debug)]
pub struct RequestOrigin {
    /// Whether it arrived over TLS.
    pub kind: RequestKind,
    /// Place that its connection comes from.
    pub peer: PeerLocality,
}

/// The address by which a client is counted; `None` over a Unix domain socket, or if the system does not know
/// it. Extension of every request to the console.
#[derive(Clone, Copy, Debug)]
pub struct ClientNetwork(pub Option<IpAddr>);

/// What a request requires of its caller, and where it comes from.
#[derive(Clone, Copy, Debug)]
pub struct Requirement {
    /// The permission that the caller must have.
    pub permission: Permission,
    /// Where the request comes from.
    pub origin: RequestOrigin,
}

/// The reason why an administrative request is refused, whoever sends it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum WebError {
    /// A request has another content type than this one.
    #[error("Content-Type must be {0}")]
    ContentType(&'static str),
    /// A page of another origin makes the request.
    #[error("Origin must be absent or that of this server (its Host)")]
    Origin,
    /// A request has more than one `Host`: two readers might take different ones.
    #[error("Host must be given once")]
    Hosts,
}

const JSON: &str = "application/json";
const GRPC: &str = "application/grpc";

/// Checks an administrative request. Over HTTP requests with a body must have JSON. A browser asks
/// before it sends DELETE, whatever its content type.
pub(super) fn check<B>(request: &Request<B>, kind: RequestKind) -> Result<(), WebError> {
    if !is_own_origin(request, kind) {
        return Err(WebError::Origin);
    }
    let required = match kind {
        RequestKind::Grpc => GRPC,
        _ if [Method::GET, Method::HEAD, Method::DELETE].contains(request.method()) => {
            return Ok(());
        }
        RequestKind::Http | RequestKind::Https => JSON,
    };
    if has_content_type(request, required) { Ok(()) } else { Err(WebError::ContentType(required)) }
}

/// Returns `true` if the content type is the required one, with any parameters; for gRPC with any
/// format of messages (`application/grpc+proto`).
fn has_content_type<B>(request: &Request<B>, required: &str) -> bool {
    let mut types = request.headers().get_all(header::CONTENT_TYPE).iter();
    let (Some(only), None) = (types.next(), types.next()) else { return false };
    let only = only.to_str().unwrap_or_default();
    let essence = only.split(';').next().unwrap_or_default().trim();
    let (essence, format) = essence.split_once('+').unwrap_or((essence, ""));
    essence.eq_ignore_ascii_case(required) && (required == GRPC || format.is_empty())
}

/// Returns `true` if there is no origin, or it is this server: the name and the port by which the
/// request asks for the server. Over HTTPS the scheme must be https; otherwise it may be, because a
/// proxy may end TLS.
pub(super) fn is_own_origin<B>(request: &Request<B>, kind: RequestKind) -> bool {
    let mut origins = request.headers().get_all(header::ORIGIN).iter();
    let Some(origin) = origins.next() else { return true };
    let origin = Uri::try_from(origin.as_bytes());
    let Ok(origin) = origin.map(Uri::into_parts) else { return false };
    let (Some(scheme), Some(authority), None) = (origin.scheme, origin.authority, origins.next())
    else {
        return false;
    };
    let schemes: &[&str] = if kind == RequestKind::Https { &["https"] } else { &["http", "https"] };
    let of_uri = request.uri().authority().map(|own| own.as_str().as_bytes());
    let own = of_uri.or_else(|| request.headers().get(header::HOST).map(HeaderValue::as_bytes));
    schemes.contains(&scheme.as_str())
        && own.is_some_and(|own| own.eq_ignore_ascii_case(authority.as_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().method(method).uri("/v1/admin/keys:reset");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request")
    }

    #[test]
    fn changes_have_json() {
        for json in ["application/json", "Application/JSON; charset=utf-8", "application/json ;a"] {
            assert_eq!(
                check(&request("POST", &[("content-type", json)]), RequestKind::Http),
                Ok(()),
                "{json}"
            );
        }
        for other in ["", "text/plain", "application/x-www-form-urlencoded", "text/json", "json"] {
            let refused = check(&request("POST", &[("content-type", other)]), RequestKind::Http);
            assert_eq!(refused, Err(WebError::ContentType(JSON)), "{other}");
        }
        let twice = [("content-type", "application/json"), ("content-type", "text/plain")];
        assert_eq!(
            check(&request("POST", &twice), RequestKind::Http),
            Err(WebError::ContentType(JSON))
        );
        assert_eq!(
            check(&request("PUT", &[]), RequestKind::Http),
            Err(WebError::ContentType(JSON))
        );
        for without_body in ["GET", "DELETE"] {
            assert_eq!(check(&request(without_body, &[]), RequestKind::Http), Ok(()));
        }
        for (content_type, is_grpc) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc; a=b", true),
            ("text/plain", false),
            ("application/grpcx", false),
            (JSON, false),
        ] {
            let request = request("POST", &[("content-type", content_type)]);
            let admitted = check(&request, RequestKind::Grpc).is_ok();
            assert_eq!(admitted, is_grpc, "{content_type}");
        }
    }

    #[test]
    fn origin_is_absent_or_that_of_the_server() {
        let with_origin = |host: &str, origin: &str, kind| {
            check(&request("GET", &[("host", host), ("origin", origin)]), kind)
        };
        assert_eq!(
            with_origin("localhost:8080", "http://localhost:8080", RequestKind::Http),
            Ok(())
        );
        assert_eq!(
            with_origin("Localhost:8080", "http://localhost:8080", RequestKind::Http),
            Ok(())
        );
        assert_eq!(with_origin("ops.example", "https://ops.example", RequestKind::Https), Ok(()));
        assert_eq!(with_origin("ops.example", "https://ops.example", RequestKind::Http), Ok(()));
        for (host, origin, kind) in [
            ("localhost:8080", "null", RequestKind::Http),
            ("localhost:8080", "", RequestKind::Http),
            ("localhost:8080", "localhost:8080", RequestKind::Http),
            ("localhost:8080", "http://localhost:8081", RequestKind::Http),
            ("localhost:8080", "http://localhost", RequestKind::Http),
            ("localhost:8080", "http://evil.example", RequestKind::Http),
            ("localhost:8080", "file://localhost:8080", RequestKind::Http),
            ("localhost:8080", "http://evil@localhost:8080", RequestKind::Http),
            ("ops.example", "http://ops.example", RequestKind::Https),
        ] {
            let refused = with_origin(host, origin, kind);
            assert_eq!(refused, Err(WebError::Origin), "{host} {origin}");
        }
        let twice = [("host", "a"), ("origin", "http://a"), ("origin", "http://b")];
        assert_eq!(check(&request("GET", &twice), RequestKind::Http), Err(WebError::Origin));
        assert_eq!(
            check(&request("GET", &[("origin", "http://a")]), RequestKind::Http),
            Err(WebError::Origin)
        );
    }
}
