//! A first GOAWAY a while before the one that hyper sends.
//!
//! GOAWAY with the highest stream tells a client to make no more calls here; those that are on
//! their way still count. h2 sends it too, together with a ping, and takes the answer to the ping
//! for the end of what was on its way. But its own client answers the ping before it sends calls
//! that it has begun, and those fail. Sent here and a moment earlier, all of them arrive in time.
//!
//! **Source:** RFC 9113, section 6.8.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::read_budget::ReadBudget;

/// 8 bytes, GOAWAY, no flags, stream 0; last stream 2^31 - 1, `NO_ERROR`.
const GOAWAY: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// A connection on which GOAWAY can be sent between any two frames.
#[derive(Debug)]
pub(super) struct GoAwayIo<IO> {
    io: ReadBudget<IO>,
    state: Arc<GoAwayState>,
    unsent: &'static [u8],
    first_write_seen: bool,
}

#[derive(Debug, Default)]
struct GoAwayState {
    is_requested: AtomicBool,
    /// The settings are sent, or are being sent.
    is_http2: AtomicBool,
}

/// Sends GOAWAY once.
#[derive(Debug)]
pub(super) struct GoAwayHandle(Arc<GoAwayState>);

impl GoAwayHandle {
    /// Sends it when the connection is polled next, and returns `true`; or `false` if the connection
    /// does not speak HTTP/2.
    pub(super) fn send(&self) -> bool {
        self.0.is_requested.store(true, Ordering::Relaxed);
        self.0.is_http2.load(Ordering::Relaxed)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> GoAwayIo<IO> {
    pub(super) fn new(io: ReadBudget<IO>) -> (Self, GoAwayHandle) {
        let state = Arc::<GoAwayState>::default();
        let handle = GoAwayHandle(Arc::clone(&state));
        (Self { io, state, unsent: GOAWAY, first_write_seen: false }, handle)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let sent = ready!(Pin::new(self.io.get_mut()).poll_write(cx, self.unsent))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unsent = &self.unsent[sent..];
        }
        Poll::Ready(Ok(()))
    }

    /// Completes when no part of the frame is written without the rest.
    fn poll_before_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<()>> {
        if !self.first_write_seen {
            self.first_write_seen = true;
            self.state.is_http2.store(!buf.starts_with(b"HTTP/"), Ordering::Relaxed);
        }
        if (1..GOAWAY.len()).contains(&self.unsent.len()) {
            return self.poll_send(cx);
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for GoAwayIo<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for GoAwayIo<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_before_write(cx, buf))?;
        Pin::new(self.io.get_mut()).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
        ready!(self.poll_before_write(cx, first))?;
        Pin::new(self.io.get_mut()).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.get_ref().is_write_vectored()
    }

    /// h2 flushes when all its frames are written: what is sent here is between two of them.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let GoAwayState { is_requested, is_http2 } = &*self.state;
        if is_http2.load(Ordering::Relaxed) && is_requested.load(Ordering::Relaxed) {
            ready!(self.poll_send(cx))?;
        }
        Pin::new(self.io.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.io.get_mut()).poll_shutdown(cx)
    }
}
