//! A proxy before a redis-server that breaks what passes through it, as told while it runs.
//!
//! It does not parse the protocol: a chunk that was read at once counts as one request or one
//! reply. That holds for callers that wait for a reply before they ask again; where several are
//! on their way, a fault may meet a neighbour. It runs on a thread of its own, so that a test
//! that blocks does not block it.

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

/// Bytes that are read at once: more than the requests and replies of a test have.
const CHUNK: usize = 16 * 1024;

/// What the proxy does from now on, also to connections that are open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Forwards everything; what was kept back comes first.
    Pass,
    /// Forwards each reply this much later.
    Delay(Duration),
    /// Forwards requests and keeps the replies back.
    Swallow,
    /// Closes the connection of the next script instead of forwarding its reply; then passes.
    CutReply,
    /// Sends this instead of the reply to the next script; then passes.
    Garbage(Vec<u8>),
    /// Sends this before the next reply; then passes.
    Extra(Vec<u8>),
    /// Sends a string of 512 MB, slowly, instead of the reply to a script.
    Endless,
    /// Accepts connections and closes them at once; those that are open pass.
    Refuse,
    /// Keeps everything back, in both directions.
    Blackhole,
}

/// A running proxy; it and its connections are closed when it is dropped.
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
}

impl Proxy {
    /// Starts a proxy before the server on this port of 127.0.0.1.
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
        };
        let (stop, stopped) = oneshot::channel();
        let served = faults.clone();
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                tokio::select! {
                    () = served.serve(listener, server) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { port, faults, stop: Some(stop), thread: Some(thread) }
    }

    /// The port that the proxy listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where a store finds the server behind the proxy.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Changes the behaviour.
    pub fn set(&self, behaviour: Behaviour) {
        self.faults.behaviour.send_replace(behaviour);
    }

    /// What it does now: [`Behaviour::Pass`] once a fault that happens once has happened.
    pub fn behaviour(&self) -> Behaviour {
        self.faults.now()
    }

    /// How many connections were accepted so far.
    pub fn accepted(&self) -> u64 {
        self.faults.accepted.load(Ordering::Relaxed)
    }

    /// How many connections are open now.
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

    fn now(&self) -> Behaviour {
        self.behaviour.borrow().clone()
    }

    /// Passes from now on; `false` if another connection has had the fault.
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

/// Counts a connection while it is open.
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

/// Carries requests and replies until one side closes, or a fault does.
async fn forward(faults: &Faults, mut client: TcpStream, mut server: TcpStream) -> io::Result<()> {
    let _best_effort = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let mut changes = faults.behaviour.subscribe();
    let (mut request, mut reply) = (vec![0; CHUNK], vec![0; CHUNK]);
    let (mut requests, mut replies) = (Vec::new(), Replies::default());
    // Was a script asked for under the fault that waits for one?
    let mut script = false;
    loop {
        let now = changes.borrow_and_update().clone();
        script &= now.awaits_script();
        if now != Behaviour::Blackhole && !requests.is_empty() {
            script |= now.awaits_script() && has_script(&requests);
            to_server.write_all(&requests).await?;
            requests.clear();
        }
        // What is kept back stays in the socket, and the end of the server with it.
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
                // The caller sends the text of the script now: that is the request to meet.
                let script = script && !reply.starts_with(b"-NOSCRIPT");
                match &now {
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

fn has_script(requests: &[u8]) -> bool {
    let has = |name: &[u8]| requests.windows(name.len()).any(|window| window == name);
    has(b"$7\r\nEVALSHA\r\n") || has(b"$4\r\nEVAL\r\n")
}

/// Sends a reply without end until the caller or the fault goes away.
#[expect(clippy::disallowed_methods, reason = "as fast as it could, it would burn the machine")]
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

/// Replies on their way to the caller, in order.
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

    #[expect(clippy::disallowed_methods, reason = "being late is the fault")]
    fn push_late(&mut self, bytes: Vec<u8>, delay: Duration) {
        self.0.push_back(Reply { bytes, delay: Some(Box::pin(tokio::time::sleep(delay))) });
    }

    /// Waits until the first reply may go.
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
