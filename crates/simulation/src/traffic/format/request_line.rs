//! The parts of a request line, `GET /path?query HTTP/1.1`.

use memchr::{memchr, memrchr};

/// A part of a request line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestPart {
    /// `GET`.
    Method,
    /// `/path?query`.
    Target,
    /// `/path`.
    Path,
    /// `query`.
    Query,
    /// `HTTP/1.1`.
    Protocol,
}

impl RequestPart {
    /// Returns this part of a request line; empty if there is none, as in what is no HTTP.
    ///
    /// The target is all between the first space and the protocol, so that it may have spaces.
    pub(super) fn slice(self, line: &[u8]) -> &[u8] {
        let Some(space) = memchr(b' ', line) else { return b"" };
        let (method, rest) = (&line[..space], &line[space + 1..]);
        let (target, protocol) = match memrchr(b' ', rest) {
            Some(last) if rest[last + 1..].starts_with(b"HTTP/") => {
                (&rest[..last], &rest[last + 1..])
            }
            _ => (rest, &b""[..]),
        };
        let path = memchr(b'?', target).unwrap_or(target.len());
        match self {
            Self::Method => method,
            Self::Target => target,
            Self::Path => &target[..path],
            Self::Query => target.get(path + 1..).unwrap_or_default(),
            Self::Protocol => protocol,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_lines_are_split() {
        use RequestPart::{Method, Path, Protocol, Query, Target};
        let all = [Method, Target, Path, Query, Protocol];
        for (line, expected) in [
            ("GET /a?b=1 HTTP/1.1", ["GET", "/a?b=1", "/a", "b=1", "HTTP/1.1"]),
            ("GET /a b HTTP/2.0", ["GET", "/a b", "/a b", "", "HTTP/2.0"]),
            ("GET /a", ["GET", "/a", "/a", "", ""]),
            ("GET /a?", ["GET", "/a?", "/a", "", ""]),
            ("CONNECT a:443 HTTP/1.1", ["CONNECT", "a:443", "a:443", "", "HTTP/1.1"]),
            ("\\x16\\x03\\x01", [""; 5]),
            ("", [""; 5]),
            ("-", [""; 5]),
        ] {
            assert_eq!(all.map(|part| part.slice(line.as_bytes())), expected.map(str::as_bytes));
        }
    }
}
