//! An early GOAWAY, one second before hyper starts its own graceful shutdown.
//!
//! A GOAWAY with the highest stream id tells the client to open no more streams; those that it has
//! already sent are still accepted. h2's graceful shutdown sends this frame together with a ping,
//! and ignores streams that arrive after the reply to the ping. h2's client replies to the ping
//! before it sends calls that it has already started, so these calls fail. With a GOAWAY one second
//! earlier they arrive in time (docs/decisions/0003-goaway-and-drain.md).
//!
//! **Source:** RFC 9113, section 6.8.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::read_budget::ReadBudget;

/// The frame: length 8, type GOAWAY, no flags, stream 0; last stream 2^31 - 1, `NO_ERROR`.
const GOAWAY: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// A byte stream that is read within its read budget, and on which a GOAWAY can be sent between two
/// frames of hyper.
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
    /// Set with the first write of an HTTP/2 connection, which starts with SETTINGS.
    is_http2: AtomicBool,
}

/// Requests that GOAWAY is sent.
#[derive(Debug)]
pub(super) struct GoAwayHandle(Arc<GoAwayState>);

impl GoAwayHandle {
    /// Requests that GOAWAY is sent when the connection is polled next. Returns `false` if the
    /// connection does not use HTTP/2, and nothing will be sent.
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

    /// Completes the GOAWAY frame if a part of it is written; nothing may be written in between.
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

    /// Sends GOAWAY before the flush. h2 flushes when it has written whole frames, so GOAWAY is
    /// between two of them.
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
