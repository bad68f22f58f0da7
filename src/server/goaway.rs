//! Hello and farewell of an HTTP/2 connection: whether the client has said the one, and a first
//! GOAWAY a while before the last.
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

/// The preface of a client, and the head of the settings that follow it.
///
/// **Source:** RFC 9113, section 3.4.
const HELLO: usize = 24 + 9;

/// A connection on which GOAWAY can be said between any two frames.
#[derive(Debug)]
pub(super) struct Spoken<IO> {
    io: IO,
    state: Arc<State>,
    /// Bytes of the client's hello that are still to come.
    to_hear: usize,
    unsaid: &'static [u8],
    /// Settings come first.
    has_begun: bool,
}

#[derive(Debug, Default)]
struct State {
    is_wanted: AtomicBool,
    has_met: AtomicBool,
}

/// Says GOAWAY once.
#[derive(Debug)]
pub(super) struct Farewell(Arc<State>);

impl Farewell {
    /// Says it when the connection is polled next.
    pub(super) fn say(&self) {
        self.0.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Has the client said hello?
    pub(super) fn has_met(&self) -> bool {
        self.0.has_met.load(Ordering::Relaxed)
    }
}

impl<IO: AsyncWrite + Unpin> Spoken<IO> {
    pub(super) fn new(io: IO) -> (Self, Farewell) {
        let state = Arc::new(State::default());
        let farewell = Farewell(Arc::clone(&state));
        (Self { io, state, to_hear: HELLO, unsaid: GOAWAY, has_begun: false }, farewell)
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
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if self.to_hear > 0 {
            self.to_hear = self.to_hear.saturating_sub(buf.filled().len() - before);
            self.state.has_met.store(self.to_hear == 0, Ordering::Relaxed);
        }
        read
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
        if self.has_begun && self.state.is_wanted.load(Ordering::Relaxed) {
            ready!(self.poll_say(cx))?;
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
