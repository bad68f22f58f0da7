//! A proxy in front of a redis-server that injects faults into connections.
//!
//! The bytes of one read count as one request or one reply; only faults of script calls wait for whole
//! commands. This holds for clients that wait for a reply before the next request; with several requests in
//! flight, a fault may affect a different request than intended. The proxy runs on its own thread,
//! so a blocking test does not block it.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener as StdListener;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::WriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::sync::watch::{self, Receiver};
use tokio::time::Sleep;

/// Size of a read: larger than any request or reply of a test.
const CHUNK: usize = 16 * 1024;

/// Behaviour of the proxy, also for open connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Forwards everything, beginning with bytes that were held back.
    Pass,
    /// Forwards each reply after this delay.
    Delay(Duration),
    /// Forwards requests and holds back replies.
    Swallow,
    /// Closes the connection instead of forwarding each reply of this number, counted over all
    /// connections: 3 loses every third.
    CutEvery(u64),
    /// Closes the connection of the next script call instead of forwarding its reply; then passes.
    CutReply,
    /// Sends these bytes instead of the reply to the next script call; then passes.
    Garbage(Vec<u8>),
    /// Sends these bytes before the next reply; then passes.
    Extra(Vec<u8>),
    /// Announces a string of 512 MiB instead of the reply to a script call, and sends bytes of it,
    /// slowly and without end. Closes the connection when the behaviour changes.
    Endless,
    /// Accepts connections and closes them at once; open ones pass.
    Refuse,
    /// Holds back everything, in both directions.
    Blackhole,
}

/// A running proxy. It is closed on drop, with its connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    faults: Faults,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Debug)]
struct Faults {
    behaviour: watch::Sender<Behaviour>,
    accepted: Arc<AtomicU64>,
    open: Arc<AtomicUsize>,
    replies: Arc<AtomicU64>,
}

impl Proxy {
    /// Starts a proxy in front of the server on this port of 127.0.0.1.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    pub fn to(server: u16) -> Self {
        let listener = StdListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("a bound port").port();
        let faults = Faults {
            behaviour: watch::Sender::new(Behaviour::Pass),
            accepted: Arc::default(),
            open: Arc::default(),
            replies: Arc::default(),
        };
        let (stop, stopped) = oneshot::channel();
        let thread_faults = faults.clone();
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                tokio::select! {
                    () = thread_faults.serve(listener, server) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { port, faults, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns the port that the proxy listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL of the proxy.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sets the behaviour.
    pub fn set(&self, behaviour: Behaviour) {
        self.faults.behaviour.send_replace(behaviour);
    }

    /// Returns the current behaviour: [`Behaviour::Pass`] after a one-time fault has happened.
    pub fn behaviour(&self) -> Behaviour {
        self.faults.now()
    }

    /// Returns the number of accepted connections so far.
    pub fn accepted(&self) -> u64 {
        self.faults.accepted.load(Ordering::Relaxed)
    }

    /// Returns the number of open connections.
    pub fn open(&self) -> usize {
        self.faults.open.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

impl Faults {
    async fn serve(&self, listener: StdListener, server: u16) {
        listener.set_nonblocking(true).expect("a listener that does not block");
        let listener = TcpListener::from_std(listener).expect("a listener");
        while let Ok((client, _)) = listener.accept().await {
            self.accepted.fetch_add(1, Ordering::Relaxed);
            if self.now() == Behaviour::Refuse {
                continue;
            }
            let open = OpenGuard::new(self);
            let faults = self.clone();
            tokio::spawn(async move {
                let _open = open;
                if let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await {
                    let _closed = forward(&faults, client, server).await;
                }
            });
        }
    }

    /// Counts a reply. Returns `true` if its number is a multiple of `number`.
    fn is_multiple_of(&self, number: u64) -> bool {
        (self.replies.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(number)
    }

    fn now(&self) -> Behaviour {
        self.behaviour.borrow().clone()
    }

    /// Switches to [`Behaviour::Pass`]. Returns `false` if another connection has used the fault
    /// already.
    fn use_once(&self, fault: &Behaviour) -> bool {
        self.behaviour.send_if_modified(|now| {
            let ours = now == fault;
            if ours {
                *now = Behaviour::Pass;
            }
            ours
        })
    }
}

/// Counts an open connection until it is dropped.
struct OpenGuard(Arc<AtomicUsize>);

impl OpenGuard {
    fn new(faults: &Faults) -> Self {
        faults.open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&faults.open))
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Forwards requests and replies until one side, or a fault, closes the connection.
async fn forward(faults: &Faults, mut client: TcpStream, mut server: TcpStream) -> io::Result<()> {
    let _best_effort = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let mut changes = faults.behaviour.subscribe();
    let (mut request, mut reply) = (vec![0; CHUNK], vec![0; CHUNK]);
    let (mut requests, mut replies) = (Vec::new(), Replies::default());
    // `true` if a script was called since the behaviour became one that applies to script calls.
    let mut script = false;
    loop {
        let now = changes.borrow_and_update().clone();
        script &= now.awaits_script();
        let has_whole = !now.awaits_script() || is_whole(&requests);
        if now != Behaviour::Blackhole && !requests.is_empty() && has_whole {
            script |= now.awaits_script() && has_script(&requests);
            to_server.write_all(&requests).await?;
            requests.clear();
        }
        // While replies are held back, the server's socket is not read, so the end of its stream
        // goes unnoticed. The client's is always read: `requests` keeps what is held back.
        let forwards = !matches!(now, Behaviour::Swallow | Behaviour::Blackhole);
        tokio::select! {
            read = from_client.read(&mut request) => match read? {
                0 => return Ok(()),
                length => requests.extend_from_slice(&request[..length]),
            },
            read = from_server.read(&mut reply), if forwards => {
                let reply = match read? {
                    0 => return Ok(()),
                    length => &reply[..length],
                };
                // After NOSCRIPT the client sends the text of the script: the fault applies to that
                // call.
                let script = script && !reply.starts_with(b"-NOSCRIPT");
                match &now {
                    Behaviour::CutEvery(number) if faults.is_multiple_of(*number) => return Ok(()),
                    Behaviour::CutReply if script && faults.use_once(&now) => return Ok(()),
                    Behaviour::Garbage(bytes) if script && faults.use_once(&now) => {
                        replies.push(bytes.clone());
                    }
                    Behaviour::Extra(bytes) if faults.use_once(&now) => {
                        replies.push([bytes, reply].concat());
                    }
                    Behaviour::Endless if script => return send_endless(to_client, changes).await,
                    Behaviour::Delay(delay) => replies.push_late(reply.to_vec(), *delay),
                    _ => replies.push(reply.to_vec()),
                }
            }
            () = replies.due(), if forwards => to_client.write_all(&replies.pop()).await?,
            _ = changes.changed() => {}
        }
    }
}

impl Behaviour {
    fn awaits_script(&self) -> bool {
        matches!(self, Self::CutReply | Self::Garbage(_) | Self::Endless)
    }
}

/// Returns `false` if the last command is cut off: a script's text may come in several reads, and the keys
/// that identify it come last.
fn is_whole(requests: &[u8]) -> bool {
    let mut rest = requests;
    while let Some(command) = rest.strip_prefix(b"*") {
        let Some((count, mut texts)) = number_line(command) else { return false };
        for _ in 0..count {
            let length = texts.strip_prefix(b"$").and_then(number_line);
            let Some((length, text)) = length else { return false };
            let Some(next) = text.get(length + 2..) else { return false };
            texts = next;
        }
        rest = texts;
    }
    true
}

/// Reads a number and the end of its line.
fn number_line(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    let number = std::str::from_utf8(&bytes[..end]).ok()?.parse().ok()?;
    Some((number, &bytes[end + 2..]))
}

fn has_script(requests: &[u8]) -> bool {
    let has = |name: &[u8]| requests.windows(name.len()).any(|window| window == name);
    // Every instance checks its permissions, reports itself, its counts and usage, and looks at the
    // catalogue, at its risks and at the modes of rules at times of its own.
    let periodic: [&[u8]; 7] = [
        b":instances\r\n",
        b":fleet\r\n",
        b":usage:",
        b":permissions\r\n",
        b":catalog",
        b"redis.acl_check_cmd",
        b":modes\r\n",
    ];
    !periodic.into_iter().any(has) && (has(b"$7\r\nEVALSHA\r\n") || has(b"$4\r\nEVAL\r\n"))
}

/// Sends an endless reply until the client disconnects or the fault is lifted.
#[expect(clippy::disallowed_methods, reason = "limits the rate of the endless reply")]
async fn send_endless(
    mut client: WriteHalf<'_>,
    mut changes: Receiver<Behaviour>,
) -> io::Result<()> {
    let endless = async {
        client.write_all(b"$536870912\r\n").await?;
        loop {
            client.write_all(&[b'x'; CHUNK]).await?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        sent = endless => sent,
        _ = changes.changed() => Ok(()),
    }
}

/// Replies to the client, in order.
#[derive(Default)]
struct Replies(VecDeque<Reply>);

struct Reply {
    bytes: Vec<u8>,
    delay: Option<Pin<Box<Sleep>>>,
}

impl Replies {
    fn push(&mut self, bytes: Vec<u8>) {
        self.0.push_back(Reply { bytes, delay: None });
    }

    #[expect(clippy::disallowed_methods, reason = "the delay is the fault")]
    fn push_late(&mut self, bytes: Vec<u8>, delay: Duration) {
        self.0.push_back(Reply { bytes, delay: Some(Box::pin(tokio::time::sleep(delay))) });
    }

    /// Waits until the first reply is due.
    async fn due(&mut self) {
        match self.0.front_mut() {
            Some(Reply { delay: Some(delay), .. }) => delay.await,
            Some(Reply { delay: None, .. }) => {}
            None => std::future::pending().await,
        }
    }

    fn pop(&mut self) -> Vec<u8> {
        self.0.pop_front().map(|reply| reply.bytes).unwrap_or_default()
    }
}
