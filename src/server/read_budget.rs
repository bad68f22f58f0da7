//! The read budget: a client that floods its connection does not delay other connections of the
//! worker.
//!
//! hyper handles everything that has arrived on a connection before it yields. The read budget
//! limits the bytes that a connection may read in one turn. When they are used up, reads are
//! pending until the runtime has run all other ready tasks and has polled the sockets. The size of
//! a turn adapts, so that one turn has about 16 requests, which take a tenth of a millisecond.
//! While one client attacks with rapid resets, the p99 of other clients is 0.7 ms with the budget,
//! and 49 to 230 ms without it (docs/decisions/0001-read-budget.md).

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};

use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf, Take};
use tokio::task::yield_now;

/// Bytes in one turn: in the first turn, the minimum and the maximum.
const INITIAL_BYTES: usize = 8 * 1024;
const MIN_BYTES: usize = 512;
const MAX_BYTES: usize = 32 * 1024;
/// Number of requests in one turn from which on the next turn is shorter.
const REQUESTS: usize = 16;
/// Length of the preface of an HTTP/2 connection. An HTTP/1 request that is shorter gets its
/// response without waiting for more bytes.
///
/// **Source:** RFC 9113, section 3.4.
const PREFACE_BYTES: usize = 24;

/// Counts of what a connection has received.
#[derive(Debug, Default)]
pub(super) struct ReceiveCounters {
    bytes: AtomicUsize,
    requests: AtomicUsize,
}

impl ReceiveCounters {
    pub(super) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns `true` if at least as many bytes were received as the preface of HTTP/2 has.
    pub(super) fn preface_received(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= PREFACE_BYTES
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

/// A byte stream that is read in turns.
#[derive(Debug)]
pub(super) struct ReadBudget<IO> {
    /// The limit is the rest of this turn.
    io: Take<IO>,
    bytes_per_turn: usize,
    counters: Arc<ReceiveCounters>,
    /// Number of requests received before this turn.
    requests_before: usize,
    /// Set between two turns.
    pending_yield: Option<Arc<Yield>>,
}

/// Completes when the runtime has run all other ready tasks. Other wake-ups of the connection, such
/// as for responses to write, do not complete it.
#[derive(Debug)]
struct Yield {
    is_done: AtomicBool,
    reader: Waker,
}

impl Yield {
    fn begin(reader: &Waker) -> Arc<Self> {
        let pending = Arc::new(Self { is_done: AtomicBool::new(false), reader: reader.clone() });
        let waker = Waker::from(Arc::clone(&pending));
        // The first poll of `yield_now` gives the waker to the runtime, which keeps it after the
        // future is dropped.
        let _pending = pin!(yield_now()).poll(&mut Context::from_waker(&waker));
        pending
    }
}

impl Wake for Yield {
    fn wake(self: Arc<Self>) {
        self.is_done.store(true, Ordering::Relaxed);
        self.reader.wake_by_ref();
    }
}

impl<IO: AsyncRead> ReadBudget<IO> {
    /// Wraps a byte stream. Received bytes are counted in `counters` here, requests by the caller.
    pub(super) fn new(io: IO, counters: Arc<ReceiveCounters>) -> Self {
        let (io, bytes_per_turn) = (io.take(INITIAL_BYTES as u64), INITIAL_BYTES);
        Self { io, bytes_per_turn, counters, requests_before: 0, pending_yield: None }
    }

    /// Returns the byte stream, for writes.
    pub(super) fn get_mut(&mut self) -> &mut IO {
        self.io.get_mut()
    }

    pub(super) fn get_ref(&self) -> &IO {
        self.io.get_ref()
    }

    fn begin_turn(&mut self) {
        self.requests_before = self.counters.requests();
        self.io.set_limit(self.bytes_per_turn as u64);
    }

    /// Adapts the budget to the number of requests in the last turn, which used up its budget.
    fn adapt(&mut self) {
        match self.counters.requests() - self.requests_before {
            ..REQUESTS if self.bytes_per_turn < MAX_BYTES => self.bytes_per_turn *= 2,
            REQUESTS.. if self.bytes_per_turn > MIN_BYTES => self.bytes_per_turn /= 2,
            _ => {}
        }
    }

    /// Completes when this connection may read.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.io.limit() > 0 {
            return Poll::Ready(());
        }
        let pending =
            self.pending_yield.take().filter(|pending| pending.reader.will_wake(cx.waker()));
        let pending = pending.unwrap_or_else(|| Yield::begin(cx.waker()));
        if pending.is_done.load(Ordering::Relaxed) {
            self.adapt();
            self.begin_turn();
            return Poll::Ready(());
        }
        self.pending_yield = Some(pending);
        Poll::Pending
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for ReadBudget<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_turn(cx));
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        self.counters.bytes.fetch_add(buf.filled().len() - before, Ordering::Relaxed);
        if read.is_pending() {
            // Everything that has arrived was read, so the next read starts a full turn.
            self.begin_turn();
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn endless_reads_yield_to_other_tasks() {
        const TURNS: usize = 10;
        static OTHERS: AtomicUsize = AtomicUsize::new(0);
        let mut endless = ReadBudget::new(tokio::io::repeat(1), Arc::default());
        tokio::spawn(async {
            loop {
                OTHERS.fetch_add(1, Ordering::Relaxed);
                yield_now().await;
            }
        });
        let mut bytes = vec![0; MAX_BYTES];
        for turn in 0..TURNS {
            let others = OTHERS.load(Ordering::Relaxed);
            assert!(others + 1 >= turn, "the other task ran {others} times in {turn} turns");
            endless.read_exact(&mut bytes).await.expect("more bytes");
        }
    }

    #[tokio::test]
    async fn repeated_polls_do_not_extend_a_turn() {
        let mut endless = ReadBudget::new(tokio::io::repeat(1), Arc::default());
        let mut bytes = vec![0; INITIAL_BYTES];
        endless.read_exact(&mut bytes).await.expect("more bytes");
        for _ in 0..3 {
            assert!(try_to_read(&mut endless, &mut bytes).await.is_pending());
        }
        endless.read_exact(&mut bytes).await.expect("another turn");
    }

    #[tokio::test]
    async fn budget_shrinks_with_many_requests_and_grows_with_few() {
        let (counters, mut bytes) = (Arc::<ReceiveCounters>::default(), vec![0; MAX_BYTES]);
        let mut endless = ReadBudget::new(tokio::io::repeat(1), counters.clone());
        for (requests, turn) in [(2 * REQUESTS, MIN_BYTES), (1, MAX_BYTES)] {
            for _ in 0..10 {
                let read = endless.bytes_per_turn;
                endless.read_exact(&mut bytes[..read]).await.expect("more bytes");
                (0..requests).for_each(|_| counters.count_request());
            }
            assert_eq!(endless.bytes_per_turn, turn);
        }
    }

    #[tokio::test]
    async fn preface_is_received_with_its_last_byte() {
        let counters = Arc::<ReceiveCounters>::default();
        let mut endless = ReadBudget::new(tokio::io::repeat(1), counters.clone());
        for _ in 0..PREFACE_BYTES {
            assert!(!counters.preface_received());
            endless.read_u8().await.expect("a byte");
        }
        assert!(counters.preface_received());
    }

    #[tokio::test]
    async fn small_reads_do_not_wait_for_a_turn() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = ReadBudget::new(server, Arc::default());
        let mut bytes = [0; 64];
        for _ in 0..3 * MAX_BYTES / 64 {
            client.write_all(&bytes).await.expect("space in the buffer");
            assert!(try_to_read(&mut server, &mut bytes).await.is_ready());
            assert!(try_to_read(&mut server, &mut bytes).await.is_pending());
        }
    }

    /// Polls a read once.
    async fn try_to_read(
        io: &mut (impl AsyncRead + Unpin),
        bytes: &mut [u8],
    ) -> Poll<io::Result<()>> {
        std::future::poll_fn(|cx| {
            let mut buf = ReadBuf::new(bytes);
            Poll::Ready(Pin::new(&mut *io).poll_read(cx, &mut buf))
        })
        .await
    }
}
