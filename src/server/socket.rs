//! A connection that a client has made, whatever it came by.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::{net, os};

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A connection on the runtime that reads and writes it.
#[derive(Debug)]
pub(super) enum Connection {
    /// By TCP.
    Tcp(TcpStream),
    /// By a Unix domain socket.
    Unix(UnixStream),
}

/// A connection on its way from one runtime to another.
#[derive(Debug)]
pub(super) enum Parked {
    Tcp(net::TcpStream),
    Unix(os::unix::net::UnixStream),
}

impl Connection {
    /// Waits for the first byte, which stays to be read; 0 is the end.
    pub(super) async fn peek(&self) -> io::Result<usize> {
        let mut first_byte = [0];
        match self {
            Self::Tcp(stream) => stream.peek(&mut first_byte).await,
            Self::Unix(stream) => {
                let mut peek = || Ok(recv(stream, &mut first_byte, RecvFlags::PEEK)?.0);
                stream.async_io(Interest::READABLE, &mut peek).await
            }
        }
    }

    /// Leaves this runtime.
    pub(super) fn park(self) -> io::Result<Parked> {
        Ok(match self {
            Self::Tcp(stream) => {
                stream.set_nodelay(true)?;
                Parked::Tcp(stream.into_std()?)
            }
            Self::Unix(stream) => Parked::Unix(stream.into_std()?),
        })
    }
}

impl Parked {
    /// Enters this runtime.
    pub(super) fn resume(self) -> io::Result<Connection> {
        Ok(match self {
            Self::Tcp(stream) => Connection::Tcp(TcpStream::from_std(stream)?),
            Self::Unix(stream) => Connection::Unix(UnixStream::from_std(stream)?),
        })
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
