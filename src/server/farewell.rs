//! The first GOAWAY of an HTTP/2 connection, said a while before the last.
//!
//! GOAWAY with the highest stream tells a client to make no more calls here; those that are on
//! their way still count. h2 says it too, together with a ping, and takes the answer to the ping
//! for the end of what was on its way. But its own client answers the ping before it sends calls
//! that it has begun, and those fail. Said here and a moment earlier, all of them arrive in time.
//!
//! **Source:** RFC 9113, section 6.8.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// 8 bytes, GOAWAY, no flags, stream 0; last stream 2^31 - 1, `NO_ERROR`.
const GOAWAY: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// A connection on which GOAWAY can be said between any two frames.
#[derive(Debug)]
pub(super) struct Spoken<IO> {
    io: IO,
    is_wanted: Arc<AtomicBool>,
    unsaid: &'static [u8],
    /// Settings come first.
    has_begun: bool,
}

/// Says GOAWAY once; to be heard when the connection is polled next.
#[derive(Debug)]
pub(super) struct Farewell(Arc<AtomicBool>);

impl Farewell {
    pub(super) fn say(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<IO: AsyncWrite + Unpin> Spoken<IO> {
    pub(super) fn new(io: IO) -> (Self, Farewell) {
        let is_wanted = Arc::new(AtomicBool::new(false));
        let farewell = Farewell(Arc::clone(&is_wanted));
        (Self { io, is_wanted, unsaid: GOAWAY, has_begun: false }, farewell)
    }

    /// Is a part of it written and the rest not?
    fn is_interrupted(&self) -> bool {
        !self.unsaid.is_empty() && self.unsaid.len() < GOAWAY.len()
    }

    fn poll_say(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsaid.is_empty() {
            let said = ready!(Pin::new(&mut self.io).poll_write(cx, self.unsaid))?;
            if said == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unsaid = &self.unsaid[said..];
        }
        Poll::Ready(Ok(()))
    }

    fn poll_before_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.has_begun = true;
        if self.is_interrupted() { self.poll_say(cx) } else { Poll::Ready(Ok(())) }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Spoken<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Spoken<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_before_write(cx))?;
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_before_write(cx))?;
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    /// h2 flushes when all its frames are written: what is said here is between two of them.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.has_begun && self.is_wanted.load(Ordering::Relaxed) {
            ready!(self.poll_say(cx))?;
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
