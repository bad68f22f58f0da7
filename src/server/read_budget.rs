//! Turns: nobody's flood holds up the others on the same thread.
//!
//! What has been read of a connection is worked on at once, frame after frame; a client that always
//! has more to say would not let the thread see to anybody else. After some bytes its connection
//! waits until all others that are ready have had their turn, and what has just arrived of them was
//! noticed. The smaller its calls are, the fewer bytes that is.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};
use tokio::task::yield_now;

use super::inline_executor::Arrived;

/// Bytes that are read in one turn: at first, at least and at most.
const FIRST: usize = 8 * 1024;
const SHORT: usize = 512;
const LONG: usize = 32 * 1024;
/// Calls that one turn should not have many more of: about a tenth of a millisecond of work.
const CALLS: usize = 16;

/// A connection that takes turns.
pub(super) struct InTurns<IO> {
    io: Take<IO>,
    /// Bytes that one turn has.
    turn: usize,
    arrived: Arrived,
    /// Calls that had come when this turn began.
    come: usize,
    /// Between two turns.
    pause: Option<Arc<Pause>>,
}

/// Ends when everybody else has had a turn. Whatever else wakes the connection meanwhile, such as an
/// answer that is to be written, does not end it.
struct Pause {
    is_over: AtomicBool,
    reader: Waker,
}

impl Pause {
    fn begin(reader: &Waker) -> Arc<Self> {
        let pause = Arc::new(Self { is_over: AtomicBool::new(false), reader: reader.clone() });
        let waker = Waker::from(Arc::clone(&pause));
        // Has the runtime wake it, which goes on when this is dropped.
        let _pending = pin!(yield_now()).poll(&mut Context::from_waker(&waker));
        pause
    }
}

impl Wake for Pause {
    fn wake(self: Arc<Self>) {
        self.is_over.store(true, Ordering::Relaxed);
        self.reader.wake_by_ref();
    }
}

impl<IO: AsyncRead> InTurns<IO> {
    /// A connection by which calls arrive there.
    pub(super) fn new(io: IO, arrived: Arrived) -> Self {
        Self { io: io.take(FIRST as u64), turn: FIRST, arrived, come: 0, pause: None }
    }

    fn begin_turn(&mut self) {
        self.come = self.arrived.count();
        self.io.set_limit(self.turn as u64);
    }

    /// By the calls of a turn that was too short for all that has come.
    fn adapt(&mut self) {
        match self.arrived.count() - self.come {
            ..CALLS if self.turn < LONG => self.turn *= 2,
            CALLS.. if self.turn > SHORT => self.turn /= 2,
            _ => {}
        }
    }

    /// Completes when it is this connection's turn.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.io.limit() > 0 {
            return Poll::Ready(());
        }
        let pause = self.pause.take().filter(|pause| pause.reader.will_wake(cx.waker()));
        let pause = pause.unwrap_or_else(|| Pause::begin(cx.waker()));
        if pause.is_over.load(Ordering::Relaxed) {
            self.adapt();
            self.begin_turn();
            return Poll::Ready(());
        }
        self.pause = Some(pause);
        Poll::Pending
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for InTurns<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_turn(cx));
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if read.is_pending() {
            // There is no more: the next turn is a whole one.
            self.begin_turn();
        }
        read
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for InTurns<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.io.get_mut()).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.io.get_mut()).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.io.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.io.get_mut()).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use hyper::rt::Executor;
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::server::inline_executor::CallsWait;

    #[tokio::test]
    async fn who_has_much_to_say_lets_others_in_between() {
        const TURNS: usize = 10;
        static OTHERS: AtomicUsize = AtomicUsize::new(0);
        let mut endless = InTurns::new(tokio::io::repeat(1), nobody());
        tokio::spawn(async {
            loop {
                OTHERS.fetch_add(1, Ordering::Relaxed);
                yield_now().await;
            }
        });
        let mut bytes = vec![0; LONG];
        for turn in 0..TURNS {
            let others = OTHERS.load(Ordering::Relaxed);
            assert!(others + 1 >= turn, "{others} turns of others, {turn} of this one");
            endless.read_exact(&mut bytes).await.expect("more bytes");
        }
    }

    #[tokio::test]
    async fn a_turn_is_over_however_often_more_is_asked_for() {
        let (mut endless, mut bytes) =
            (InTurns::new(tokio::io::repeat(1), nobody()), vec![0; FIRST]);
        endless.read_exact(&mut bytes).await.expect("more bytes");
        for _ in 0..3 {
            assert!(try_to_read(&mut endless, &mut bytes).await.is_pending());
        }
        endless.read_exact(&mut bytes).await.expect("another turn");
    }

    #[tokio::test]
    async fn turns_of_many_calls_are_short() {
        let (arrived, mut bytes) = (nobody(), vec![0; LONG]);
        let mut endless = InTurns::new(tokio::io::repeat(1), arrived.clone());
        for (calls, turn) in [(2 * CALLS, SHORT), (1, LONG)] {
            for _ in 0..10 {
                let read = endless.turn;
                endless.read_exact(&mut bytes[..read]).await.expect("more bytes");
                (0..calls).for_each(|_| arrived.execute(async {}));
                arrived.begin();
            }
            assert_eq!(endless.turn, turn);
        }
    }

    #[tokio::test]
    async fn who_says_little_at_a_time_does_not_wait() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = InTurns::new(server, nobody());
        let mut bytes = [0; 64];
        for _ in 0..3 * LONG / 64 {
            client.write_all(&bytes).await.expect("room");
            assert!(try_to_read(&mut server, &mut bytes).await.is_ready());
            assert!(try_to_read(&mut server, &mut bytes).await.is_pending());
        }
    }

    /// No calls yet.
    fn nobody() -> Arrived {
        Arrived::new(CallsWait::Seldom)
    }

    /// What one try to read comes to.
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
