//! Explains in one line why a call got no response.
//!
//! Errors of the libraries are redundant or too vague: plain HTTP/2 to a TLS port ends in a frame of
//! a wrong size, a missing client certificate in a closed connection. Where the error does not name the
//! cause, the likely ones are named with their remedies.

use std::error::Error;
use std::io;

use rustls::{AlertDescription, CertificateError, InvalidMessage};
use tonic::{Code, Status, TimeoutExpired};

use crate::client::ServerArgs;
use crate::code_name;
use crate::printable::printable;

/// The server of a command.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// The address as the user wrote it.
    pub(crate) addr: String,
    pub(crate) args: ServerArgs,
}

/// The reason why there is no response.
#[derive(Debug)]
enum ConnectionFailure {
    Unreachable(String),
    TimedOut,
    NoGrpc,
    NoTls,
    Tls(String),
    NotTrusted(String),
}

impl Peer {
    /// Explains a failed connection.
    pub(crate) fn explain_connect_error(&self, error: &(dyn Error + 'static)) -> String {
        let causes = causes(error);
        let failure = tls_failure(&causes).unwrap_or_else(|| {
            if causes.iter().any(|cause| is_timeout(*cause)) {
                return ConnectionFailure::TimedOut;
            }
            let is_other = |text: String| text == "HTTP/2 was not negotiated.";
            if causes.iter().any(|cause| is_other(cause.to_string()) || is_closed(*cause)) {
                return ConnectionFailure::NoGrpc;
            }
            let reason = causes.last().map(ToString::to_string).unwrap_or_default();
            ConnectionFailure::Unreachable(without_os_error_number(&reason))
        });
        self.text(&failure)
    }

    /// Explains a timeout.
    pub(crate) fn explain_timeout(&self) -> String {
        self.text(&ConnectionFailure::TimedOut)
    }

    /// Explains a failed call over an established connection.
    pub(crate) fn explain_call_error(&self, status: &Status) -> String {
        let Some(source) = status.source() else {
            let is_of_http = |text: &str| {
                text.contains("response with status: ") || text.contains("grpc-status header")
            };
            return match (status.code(), status.message()) {
                (_, message) if is_of_http(message) => self.text(&ConnectionFailure::NoGrpc),
                (code, "") => code_name(code),
                (Code::Cancelled, "Timeout expired") => self.text(&ConnectionFailure::TimedOut),
                (code, message) => format!("{}: {}", code_name(code), printable(message)),
            };
        };
        let causes = causes(source);
        let failure = tls_failure(&causes).unwrap_or_else(|| {
            let has_timed_out = causes.iter().any(|cause| is_timeout(*cause));
            if has_timed_out { ConnectionFailure::TimedOut } else { ConnectionFailure::NoGrpc }
        });
        self.text(&failure)
    }

    fn text(&self, failure: &ConnectionFailure) -> String {
        let Self { addr, args: ServerArgs { timeout, .. }, .. } = self;
        let bare = addr.split_once("://").map_or(addr.as_str(), |(_, bare)| bare);
        match failure {
            ConnectionFailure::Unreachable(reason) => {
                format!("no server at {addr}: {reason} (is `rlaas serve` running?)")
            }
            ConnectionFailure::TimedOut => {
                let timeout = humantime::format_duration(*timeout);
                format!("no response from {addr} within {timeout} (--timeout)")
            }
            ConnectionFailure::NoGrpc => {
                let remedy = match (addr.starts_with("https://"), &self.args.cert) {
                    (false, _) => format!("https://{bare} with --ca if it requires TLS"),
                    (true, None) => {
                        "with --cert and --key if it requires a client certificate".to_owned()
                    }
                    (true, Some(_)) => "and --cert a certificate that it accepts".to_owned(),
                };
                format!(
                    "{addr} does not answer gRPC: --addr must be an address of server.listen, {remedy}"
                )
            }
            ConnectionFailure::NoTls => format!("{addr} does not speak TLS: try http://{bare}"),
            ConnectionFailure::Tls(reason) => format!("TLS handshake with {addr} failed: {reason}"),
            ConnectionFailure::NotTrusted(reason) => {
                format!("the certificate of {addr} is not trusted: {reason}")
            }
        }
    }
}

/// Returns the failure for the TLS error among the causes, if there is one.
fn tls_failure(causes: &[&(dyn Error + 'static)]) -> Option<ConnectionFailure> {
    let error = causes.iter().find_map(|cause| cause.downcast_ref::<rustls::Error>())?;
    Some(match error {
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            ConnectionFailure::NoTls
        }
        rustls::Error::InvalidCertificate(error) => ConnectionFailure::NotTrusted(match error {
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
        }),
        // Whether a connection that is closed for lack of a certificate ends with its alert or with
        // a broken pipe is a race.
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError
            | AlertDescription::NoApplicationProtocol,
        ) => ConnectionFailure::NoGrpc,
        rustls::Error::AlertReceived(other) => ConnectionFailure::Tls(format!("{other:?}")),
        other => ConnectionFailure::Tls(other.to_string()),
    })
}

fn is_closed(cause: &(dyn Error + 'static)) -> bool {
    let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(
        kind,
        Some(
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::NotConnected
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof
        )
    )
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
