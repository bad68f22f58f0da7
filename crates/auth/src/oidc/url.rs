//! URLs that keys are fetched from.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::Uri;
use thiserror::Error;

/// Maximum length of a URL, in bytes.
const MAX_URL: usize = 2048;

/// An https URL, or an http URL on loopback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FetchUrl {
    is_https: bool,
    /// Host without brackets.
    host: String,
    port: u16,
    /// Host and port as they are written, for the header `Host`.
    authority: String,
    /// Path and query.
    target: String,
}

/// The error for a text that is no such URL.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("must be an https URL, or an http URL on loopback")]
pub(super) struct FetchUrlError;

impl FetchUrl {
    pub(super) fn is_https(&self) -> bool {
        self.is_https
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    pub(super) fn target(&self) -> &str {
        &self.target
    }
}

impl FromStr for FetchUrl {
    type Err = FetchUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > MAX_URL || text.contains('#') {
            return Err(FetchUrlError);
        }
        let url: Uri = text.parse().map_err(|_| FetchUrlError)?;
        let authority = url.authority().filter(|authority| !authority.as_str().contains('@'));
        let (scheme, authority) = url.scheme_str().zip(authority).ok_or(FetchUrlError)?;
        let host = authority.host();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_https = match scheme {
            "https" => true,
            "http" if is_loopback(host) => false,
            _ => return Err(FetchUrlError),
        };
        let default_port = if is_https { 443 } else { 80 };
        if host.is_empty() || authority.port().is_some() != authority.port_u16().is_some() {
            return Err(FetchUrlError);
        }
        Ok(Self {
            is_https,
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(default_port),
            authority: authority.to_string(),
            target: url.path_and_query().map_or("/", |target| target.as_str()).to_owned(),
        })
    }
}

impl fmt::Display for FetchUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.target)
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback())
}
