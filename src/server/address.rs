//! Addresses to listen on.

use std::fmt;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// Maximum length of the path of a socket, in bytes.
///
/// **Source:** `sun_path` in unix(7): 108 with the NUL at its end.
const MAX_SOCKET_PATH: usize = 107;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// `host:port`. The system resolves the host, and chooses a free port for port 0.
    Tcp(String),
    /// The absolute path of a Unix domain socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Returns `true` if only this machine can reach the address.
    pub fn is_local(&self) -> bool {
        let Self::Tcp(address) = self else { return true };
        let host = address.rsplit_once(':').map_or("", |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("unix:") {
            // gRPC clients also accept `unix:///path`.
            Some(path) => socket(path.strip_prefix("//").unwrap_or(path)),
            None => host_and_port(text),
        }
    }
}

fn socket(path: &str) -> Result<ListenAddress, AddressError> {
    let path = PathBuf::from(path);
    let length = path.as_os_str().as_bytes().len();
    let is_valid = path.is_absolute() && path.file_name().is_some() && length <= MAX_SOCKET_PATH;
    if is_valid { Ok(ListenAddress::Unix(path)) } else { Err(AddressError) }
}

fn host_and_port(text: &str) -> Result<ListenAddress, AddressError> {
    let (host, port) = text.rsplit_once(':').ok_or(AddressError)?;
    let bracketed = host.starts_with('[') && host.ends_with(']');
    if host.is_empty() || (host.contains(':') && !bracketed) {
        return Err(AddressError);
    }
    port.parse::<u16>().map_err(|_| AddressError)?;
    Ok(ListenAddress::Tcp(text.to_owned()))
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The error for a text that is not an address to listen on.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("must be host:port, such as 127.0.0.1:50051 or [::1]:0, or unix:/path of up to 107 bytes")]
pub struct AddressError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for text in ["127.0.0.1:50051", "localhost:0", "[::1]:8080", "0.0.0.0:65535"] {
            assert_eq!(text.parse(), Ok(ListenAddress::Tcp(text.to_owned())));
        }
        for text in ["", "50051", ":50051", "::1:80", "h:", "h:65536", "h:http"] {
            assert_eq!(text.parse::<ListenAddress>(), Err(AddressError), "{text}");
        }
    }

    #[test]
    fn an_address_is_local_if_no_other_machine_can_reach_it() {
        for (text, is_local) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("localhost:1", true),
            ("unix:/run/rlaas.sock", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
            ("rlaas.example:1", false),
        ] {
            let address: ListenAddress = text.parse().expect("an address");
            assert_eq!(address.is_local(), is_local, "{text}");
        }
    }

    #[test]
    fn an_address_may_be_the_path_of_a_socket() {
        let socket = ListenAddress::Unix("/run/rlaas.sock".into());
        for text in ["unix:/run/rlaas.sock", "unix:///run/rlaas.sock"] {
            assert_eq!(text.parse(), Ok(socket.clone()));
        }
        assert_eq!(socket.to_string(), "unix:/run/rlaas.sock");
        let long = |length: usize| format!("unix:/{}", "s".repeat(length - 1));
        assert!(long(MAX_SOCKET_PATH).parse::<ListenAddress>().is_ok());
        for text in ["unix:", "unix:/", "unix:rlaas.sock", "unix://h/path/..", &long(108)] {
            assert_eq!(text.parse::<ListenAddress>(), Err(AddressError), "{text}");
        }
    }
}
