//! Explains in one line why a call got no response.
//!
//! Errors of the libraries are redundant or too vague: plain HTTP/2 to a TLS port ends in a frame of
//! a wrong size, a missing client certificate in a closed connection. Where the error does not name the
//! cause, the likely ones are named with their remedies.

use std::error::Error;
use std::io;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError, InvalidMessage};
use tonic::{Code, Status, TimeoutExpired};

use crate::code_name;
use crate::text::printable;

/// The server of a command.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// The address as the user wrote it.
    pub(crate) addr: String,
    pub(crate) timeout: Duration,
    /// The caller has a certificate.
    pub(crate) is_certified: bool,
}

impl Peer {
    /// Explains a failed connection.
    pub(crate) fn explain_connect_error(&self, error: &(dyn Error + 'static)) -> String {
        let causes = causes(error);
        if let Some(text) = self.explain_tls_error(&causes) {
            return text;
        }
        if causes.iter().any(|cause| is_timeout(*cause)) {
            return self.explain_timeout();
        }
        let is_other = |text: String| text == "HTTP/2 was not negotiated.";
        if causes.iter().any(|cause| is_other(cause.to_string()) || is_closed(*cause)) {
            return self.explain_other_protocol();
        }
        let reason = causes.last().map(ToString::to_string).unwrap_or_default();
        let reason = without_os_error_number(&reason);
        format!("no server at {}: {reason} (is `rlaas serve` running?)", self.addr)
    }

    /// Explains a timeout.
    pub(crate) fn explain_timeout(&self) -> String {
        let timeout = humantime::format_duration(self.timeout);
        format!("no response from {} within {timeout} (--timeout)", self.addr)
    }

    /// Explains a failed call over an established connection.
    pub(crate) fn explain_call_error(&self, status: &Status) -> String {
        let Some(source) = status.source() else {
            let is_of_http = |text: &str| {
                text.contains("response with status: ") || text.contains("grpc-status header")
            };
            return match (status.code(), status.message()) {
                (_, message) if is_of_http(message) => self.explain_other_protocol(),
                (code, "") => code_name(code),
                (Code::Cancelled, "Timeout expired") => self.explain_timeout(),
                (code, message) => format!("{}: {}", code_name(code), printable(message)),
            };
        };
        let causes = causes(source);
        self.explain_tls_error(&causes).unwrap_or_else(|| {
            let has_timed_out = causes.iter().any(|cause| is_timeout(*cause));
            if has_timed_out { self.explain_timeout() } else { self.explain_other_protocol() }
        })
    }

    /// Returns the address without its scheme.
    fn bare_address(&self) -> &str {
        self.addr.split_once("://").map_or(&self.addr, |(_, bare)| bare)
    }

    /// Explains that there is something, but no gRPC that takes this caller.
    fn explain_other_protocol(&self) -> String {
        let (addr, bare) = (&self.addr, self.bare_address());
        let remedy = match (addr.starts_with("https://"), self.is_certified) {
            (false, _) => format!("https://{bare} with --ca if it requires TLS"),
            (true, false) => "with --cert and --key if it requires a client certificate".to_owned(),
            (true, true) => "and --cert a certificate that it accepts".to_owned(),
        };
        format!("{addr} does not answer gRPC: --addr must be an address of server.listen, {remedy}")
    }

    /// Explains the TLS error among the causes, if there is one.
    fn explain_tls_error(&self, causes: &[&(dyn Error + 'static)]) -> Option<String> {
        let addr = &self.addr;
        let error = causes.iter().find_map(|cause| cause.downcast_ref::<rustls::Error>())?;
        let reason = match error {
            rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
                return Some(format!(
                    "{addr} does not speak TLS: try http://{}",
                    self.bare_address()
                ));
            }
            rustls::Error::InvalidCertificate(error) => {
                let reason = distrust(error);
                return Some(format!("the certificate of {addr} is not trusted: {reason}"));
            }
            rustls::Error::AlertReceived(alert) if is_for_lack_of_a_certificate(*alert) => {
                return Some(self.explain_other_protocol());
            }
            rustls::Error::AlertReceived(alert) => format!("{alert:?}"),
            other => other.to_string(),
        };
        Some(format!("TLS handshake with {addr} failed: {reason}"))
    }
}

/// Returns why a certificate is not trusted.
fn distrust(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => {
            "unknown issuer, --ca must name the file of its authority".to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is for another host name".to_owned()
        }
        other => other.to_string(),
    }
}

/// Returns `true` for alerts about the client's certificate. Whether a connection that is closed for
/// lack of one ends with its alert or with a broken pipe is a race.
fn is_for_lack_of_a_certificate(alert: AlertDescription) -> bool {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
        CertificateUnknown, DecryptError, NoApplicationProtocol, UnknownCA, UnsupportedCertificate,
    };
    let expired = [CertificateExpired, CertificateRevoked, CertificateUnknown, UnknownCA];
    let refused = [CertificateRequired, BadCertificate, UnsupportedCertificate, AccessDenied];
    expired.contains(&alert)
        || refused.contains(&alert)
        || [DecryptError, NoApplicationProtocol].contains(&alert)
}

fn is_closed(cause: &(dyn Error + 'static)) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof,
    };
    let closed = [ConnectionReset, ConnectionAborted, NotConnected, BrokenPipe, UnexpectedEof];
    cause.downcast_ref::<io::Error>().is_some_and(|error| closed.contains(&error.kind()))
}

fn is_timeout(cause: &(dyn Error + 'static)) -> bool {
    let error = cause.downcast_ref::<io::Error>();
    cause.is::<TimeoutExpired>()
        || error.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
}

/// Returns the error and all its sources, including errors wrapped in an [`io::Error`].
fn causes<'a>(error: &'a (dyn Error + 'static)) -> Vec<&'a (dyn Error + 'static)> {
    let mut causes = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        causes.push(error);
        let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match held {
            Some(held) => Some(held as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    causes
}

/// Removes the operating system's error number from a reason.
fn without_os_error_number(reason: &str) -> String {
    let text = reason.split(" (os error").next().unwrap_or_default();
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_lowercase().to_string());
    printable(&format!("{}{}", first.unwrap_or_default(), characters.as_str()))
}
