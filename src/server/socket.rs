//! Sockets of clients, TCP or Unix domain, which are accepted on one runtime and served on another.

use std::{io, net, os};

use rlaas_auth::PeerLocality;
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either;

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
