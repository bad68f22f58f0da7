//! Explains in one line why a call got no response.
//!
//! Errors of the libraries are redundant or too vague: plain HTTP/2 to a TLS port ends in a frame of
//! a wrong size, a missing client certificate in a closed connection. The cause is taken from the
//! error where possible, otherwise from a second connection that probes the server.

use std::error::Error;
use std::io;
use std::path::Path;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, InvalidMessage};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::codegen::http::Uri;
use tonic::{Code, Status, TimeoutExpired};

use super::client::ServerArgs;
use super::printable::printable;
use crate::api::code_name;

/// The connection preface of HTTP/2 with an empty SETTINGS frame.
///
/// **Source:** RFC 9113, section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Size of a frame header. The first frame of an HTTP/2 server is SETTINGS.
const FRAME_HEADER: usize = 9;
const SETTINGS: u8 = 0x4;
/// The start of a TLS alert record, of any version.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];

/// The server of a command.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    /// The address as the user wrote it.
    pub(super) addr: String,
    /// The address with its scheme.
    pub(super) url: String,
    pub(super) args: ServerArgs,
}

/// The reason why there is no response.
#[derive(Debug)]
enum ConnectionFailure {
    Unreachable(String),
    TimedOut,
    Closed,
    NotGrpc,
    NoTls,
    TlsRequired,
    Tls(String),
    CertificateRequired,
    CertificateRefused(AlertDescription),
    NotTrusted(String),
}

impl Peer {
    /// Explains a failed connection.
    pub(super) fn explain_connect_error(&self, error: &(dyn Error + 'static)) -> String {
        let causes = causes(error);
        let failure = self.tls_failure(&causes).unwrap_or_else(|| {
            if causes.iter().any(|cause| cause.to_string() == "HTTP/2 was not negotiated.") {
                return ConnectionFailure::NotGrpc;
            }
            if causes.iter().any(|cause| is_timeout(*cause)) {
                return ConnectionFailure::TimedOut;
            }
            if causes.iter().any(|cause| is_closed(*cause)) {
                return ConnectionFailure::Closed;
            }
            let reason = causes.last().map(ToString::to_string).unwrap_or_default();
            ConnectionFailure::Unreachable(without_os_error_number(&reason))
        });
        self.text(&failure)
    }

    /// Explains a timeout.
    pub(super) fn explain_timeout(&self) -> String {
        self.text(&ConnectionFailure::TimedOut)
    }

    /// Explains a failed call over an established connection.
    pub(super) async fn explain_call_error(&self, status: &Status) -> String {
        let Some(source) = status.source() else {
            let is_of_http = |text: &str| {
                text.contains("response with status: ") || text.contains("grpc-status header")
            };
            return match (status.code(), status.message()) {
                (_, message) if is_of_http(message) => self.text(&ConnectionFailure::NotGrpc),
                (code, "") => code_name(code).to_owned(),
                (Code::Cancelled, "Timeout expired") => self.text(&ConnectionFailure::TimedOut),
                (code, message) => format!("{}: {}", code_name(code), printable(message)),
            };
        };
        let causes = causes(source);
        let failure = match self.tls_failure(&causes) {
            Some(failure) => failure,
            None if causes.iter().any(|cause| is_timeout(*cause)) => ConnectionFailure::TimedOut,
            None => timeout(self.args.timeout, self.probe())
                .await
                .unwrap_or(ConnectionFailure::TimedOut),
        };
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
            ConnectionFailure::Closed => format!(
                "{addr} closed the connection without a response: --addr must be an address of \
                 server.listen"
            ),
            ConnectionFailure::NotGrpc => {
                format!("{addr} does not speak gRPC: --addr must be an address of server.listen")
            }
            ConnectionFailure::NoTls => format!("{addr} does not speak TLS: try http://{bare}"),
            ConnectionFailure::TlsRequired => {
                format!("{addr} requires TLS: try https://{bare}, with --ca for its authority")
            }
            ConnectionFailure::Tls(reason) => format!("TLS handshake with {addr} failed: {reason}"),
            ConnectionFailure::CertificateRequired => {
                format!("{addr} requires a client certificate: use --cert and --key")
            }
            ConnectionFailure::CertificateRefused(alert) => {
                format!("{addr} rejected the client certificate of --cert: {alert:?}")
            }
            ConnectionFailure::NotTrusted(reason) => {
                format!("the certificate of {addr} is not trusted: {reason}")
            }
        }
    }

    /// Returns the failure for the TLS error among the causes, if there is one.
    fn tls_failure(&self, causes: &[&(dyn Error + 'static)]) -> Option<ConnectionFailure> {
        let error = causes.iter().find_map(|cause| cause.downcast_ref::<rustls::Error>())?;
        Some(match error {
            rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
                ConnectionFailure::NoTls
            }
            rustls::Error::InvalidCertificate(error) => {
                ConnectionFailure::NotTrusted(match error {
                    CertificateError::UnknownIssuer => {
                        "unknown issuer, --ca must name the file of its authority".to_owned()
                    }
                    CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                        "it has expired".to_owned()
                    }
                    CertificateError::NotValidForName
                    | CertificateError::NotValidForNameContext { .. } => {
                        "it is for another host name".to_owned()
                    }
                    other => other.to_string(),
                })
            }
            rustls::Error::AlertReceived(alert) => match alert {
                AlertDescription::CertificateRequired => ConnectionFailure::CertificateRequired,
                AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied
                | AlertDescription::DecryptError => {
                    if self.args.cert.is_some() {
                        ConnectionFailure::CertificateRefused(*alert)
                    } else {
                        ConnectionFailure::CertificateRequired
                    }
                }
                AlertDescription::NoApplicationProtocol => ConnectionFailure::NotGrpc,
                other => ConnectionFailure::Tls(format!("{other:?}")),
            },
            other => ConnectionFailure::Tls(other.to_string()),
        })
    }

    /// Finds out with a new connection which protocol the server speaks.
    async fn probe(&self) -> ConnectionFailure {
        match self.exchange_preface().await {
            Ok(reply) => match &*reply {
                [] | [_, _, _, SETTINGS, ..] => ConnectionFailure::Closed,
                reply if !self.has_tls() && reply.starts_with(&TLS_ALERT) => {
                    ConnectionFailure::TlsRequired
                }
                _ => ConnectionFailure::NotGrpc,
            },
            Err(error) => {
                let causes = causes(&error);
                self.tls_failure(&causes).unwrap_or_else(|| {
                    if is_closed(&error) {
                        ConnectionFailure::Closed
                    } else {
                        ConnectionFailure::Unreachable(without_os_error_number(&error.to_string()))
                    }
                })
            }
        }
    }

    /// Connects, sends the HTTP/2 preface and returns the first bytes of the reply.
    async fn exchange_preface(&self) -> io::Result<Vec<u8>> {
        if let Some(path) = self.url.strip_prefix("unix:") {
            return exchange_preface(
                UnixStream::connect(Path::new(path.trim_start_matches("//"))).await?,
            )
            .await;
        }
        let unclear = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let url: Uri = self.url.parse().map_err(|_| unclear("not an address"))?;
        let host = url.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = url.port_u16().unwrap_or(if self.has_tls() { 443 } else { 80 });
        let stream = TcpStream::connect((host.as_str(), port)).await?;
        if !self.has_tls() {
            return exchange_preface(stream).await;
        }
        let name = ServerName::try_from(host).map_err(|_| unclear("not a host name"))?;
        let tls = self.args.probe_tls().map_err(io::Error::other)?;
        exchange_preface(TlsConnector::from(tls).connect(name, stream).await?).await
    }

    fn has_tls(&self) -> bool {
        self.url.starts_with("https://")
    }
}

async fn exchange_preface(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<Vec<u8>> {
    // A server may close at once and still have sent a reason, so the reply is read after a failed write.
    let sent = stream.write_all(PREFACE).await.and(stream.flush().await);
    let mut reply = Vec::new();
    let mut limited = stream.take(FRAME_HEADER as u64);
    limited.read_to_end(&mut reply).await?;
    if reply.is_empty() { sent.map(|()| reply) } else { Ok(reply) }
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
