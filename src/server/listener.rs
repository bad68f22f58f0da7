//! Listeners for TCP and for Unix domain sockets.
//!
//! A Unix domain socket is a file with mode 0660: its owner and group may connect. At the start, a
//! file that a crashed process left behind is replaced; one that is in use is not. At the end the
//! file is removed.

use std::fs::{self, Permissions};
use std::io;
use std::net;
use std::net::IpAddr;
use std::os;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rlaas_auth::PeerLocality;
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;
use tracing::warn;

use super::address::ListenAddress;

/// Mode of socket files: owner and group may connect.
const SOCKET_MODE: u32 = 0o660;
/// Maximum number of connections that wait to be accepted. The system may lower it
/// (`net.core.somaxconn`). A client beyond it retries after one second.
const BACKLOG: i32 = 4096;

/// A bound address.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Listener {
    pub(super) async fn bind(address: &ListenAddress) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => {
                let listener = TcpListener::bind(&**address).await?;
                // A second call raises the backlog: tokio sets 1,024.
                rustix::net::listen(&listener, BACKLOG)?;
                Ok(Self::Tcp(listener))
            }
            ListenAddress::Unix(path) => {
                remove_stale(path).await?;
                let listener = UnixListener::bind(path)?;
                let file = SocketFile::new(path)?;
                fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
                Ok(Self::Unix(listener, file))
            }
        }
    }

    /// Returns the bound address, with the port that the system chose.
    pub(super) fn address(&self) -> io::Result<ListenAddress> {
        Ok(match self {
            Self::Tcp(listener) => ListenAddress::Tcp(listener.local_addr()?.to_string()),
            Self::Unix(_, file) => ListenAddress::Unix(file.path.clone()),
        })
    }

    /// Accepts the next connection, and returns it with the address of the client. Clients of Unix
    /// domain sockets have none.
    pub(super) async fn accept(&self) -> io::Result<(ClientStream, Option<IpAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok((Either::Left(stream), Some(address.ip())))
            }
            Self::Unix(listener, _) => {
                let (stream, _nameless) = listener.accept().await?;
                Ok((Either::Right(stream), None))
            }
        }
    }
}

/// Removes a socket file on which no process listens.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            warn!(path = %path.display(), "replacing stale socket file");
            fs::remove_file(path)
        }
        // A process listens, or may do so: bind fails with "address in use".
        Ok(_) | Err(_) => Ok(()),
    }
}

/// A socket file, removed on drop.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), inode: fs::symlink_metadata(path)?.ino() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A file that replaced it has another inode and stays.
        if fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            let _gone = fs::remove_file(&self.path);
        }
    }
}

/// A socket that is registered with a runtime.
pub(super) type ClientStream = Either<TcpStream, UnixStream>;

/// A socket between two runtimes, registered with neither.
pub(super) type DetachedSocket = Either<net::TcpStream, os::unix::net::UnixStream>;

/// Waits for the first byte, without consuming it. Returns 0 if the client has closed the
/// connection.
pub(super) async fn peek(stream: &ClientStream) -> io::Result<usize> {
    let mut first_byte = [0];
    match stream {
        Either::Left(stream) => stream.peek(&mut first_byte).await,
        Either::Right(stream) => {
            let mut peek = || Ok(recv(stream, &mut first_byte, RecvFlags::PEEK)?.0);
            stream.async_io(Interest::READABLE, &mut peek).await
        }
    }
}

/// Returns the place that a connection comes from. An address that the system does not know is
/// remote. Nothing that the client sends has a say in it.
pub(super) fn peer(stream: &ClientStream) -> PeerLocality {
    match stream {
        Either::Left(stream) => {
            stream.peer_addr().map_or(PeerLocality::Remote, PeerLocality::from_address)
        }
        Either::Right(_) => PeerLocality::UnixSocket,
    }
}

/// Returns the address of a client over TCP, if the system knows it.
pub(super) fn address(stream: &ClientStream) -> Option<IpAddr> {
    let Either::Left(stream) = stream else { return None };
    stream.peer_addr().ok().map(|address| address.ip())
}

/// Deregisters a socket from this runtime.
pub(super) fn detach(stream: ClientStream) -> io::Result<DetachedSocket> {
    Ok(match stream {
        Either::Left(stream) => {
            stream.set_nodelay(true)?;
            Either::Left(stream.into_std()?)
        }
        Either::Right(stream) => Either::Right(stream.into_std()?),
    })
}

/// Registers a socket with this runtime.
pub(super) fn attach(socket: DetachedSocket) -> io::Result<ClientStream> {
    Ok(match socket {
        Either::Left(socket) => Either::Left(TcpStream::from_std(socket)?),
        Either::Right(socket) => Either::Right(UnixStream::from_std(socket)?),
    })
}
