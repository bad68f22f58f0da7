//! A proxy in front of a redis-server that fails at one chosen call, and from then on at all calls
//! like it, until it is healed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What happens at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepFault {
    /// Every connection is closed, and no new one is accepted.
    Away,
    /// No request is forwarded any more, on any connection.
    Hung,
    /// The call is forwarded. From then on nothing is, in either direction.
    Unanswered,
    /// The call is forwarded, and its connection closed at its reply. All else passes, before and after.
    ReplyLost,
    /// The call, and others like it, are not forwarded, and answered with these bytes.
    Reply(&'static [u8]),
}

/// A running proxy.
#[derive(Debug)]
pub(crate) struct StepProxy {
    port: u16,
    state: Arc<Mutex<ProxyState>>,
}

#[derive(Debug, Default)]
struct ProxyState {
    plan: Option<Plan>,
    has_failed: bool,
    /// Sockets of clients that are open, or were.
    clients: Vec<TcpStream>,
}

#[derive(Debug)]
struct Plan {
    words: &'static [&'static str],
    /// Calls with the words that still pass.
    passing: usize,
    fault: StepFault,
    /// Set from the chosen call on.
    is_failing: bool,
}

/// What becomes of a request.
enum Verdict {
    Forward,
    ForwardLast,
    Reply(&'static [u8]),
    Swallow,
    Close,
}

impl StepProxy {
    /// Starts a proxy in front of the server on this port of 127.0.0.1. It runs until the process
    /// ends.
    pub(crate) fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("a bound port").port();
        let state = Arc::new(Mutex::new(ProxyState::default()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if refuses_connections(&shared) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                forward(&shared, client, server);
            }
        });
        Self { port, state }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Fails at the call with these words that comes after `passing` others.
    pub(crate) fn fail_at(&self, words: &'static [&'static str], passing: usize, fault: StepFault) {
        let plan = Plan { words, passing, fault, is_failing: false };
        lock(&self.state).plan = Some(plan);
    }

    /// Returns `true` if the chosen call has come.
    pub(crate) fn has_failed(&self) -> bool {
        lock(&self.state).has_failed
    }

    /// Lets everything pass. Connections that were hung are closed: what they held back is lost.
    pub(crate) fn heal(&self) {
        let mut state = lock(&self.state);
        if state.plan.take().is_some_and(|plan| plan.fault == StepFault::Hung) {
            close_all(&mut state);
        }
    }
}

fn refuses_connections(state: &Mutex<ProxyState>) -> bool {
    let state = lock(state);
    state.plan.as_ref().is_some_and(|plan| plan.is_failing && plan.fault == StepFault::Away)
}

fn holds_replies(state: &Mutex<ProxyState>) -> bool {
    let state = lock(state);
    state.plan.as_ref().is_some_and(|plan| plan.is_failing && plan.fault == StepFault::Unanswered)
}

/// Forwards both directions, each on its own thread.
fn forward(state: &Arc<Mutex<ProxyState>>, client: TcpStream, server: TcpStream) {
    let clone = |stream: &TcpStream| stream.try_clone().expect("a socket");
    lock(state).clients.push(clone(&client));
    let (mut from_server, mut to_client) = (clone(&server), clone(&client));
    let replies = Arc::clone(state);
    let is_last = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_last);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 256 * 1024];
        while let Ok(length @ 1..) = from_server.read(&mut buffer) {
            if ends.load(Ordering::SeqCst) {
                break;
            }
            if !holds_replies(&replies) && to_client.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _closed = to_client.shutdown(Shutdown::Both);
    });
    let state = Arc::clone(state);
    let (mut from_client, mut to_server) = (client, server);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 256 * 1024];
        while let Ok(length @ 1..) = from_client.read(&mut buffer) {
            let request = &buffer[..length];
            let verdict = judge(&mut lock(&state), request);
            let result = match verdict {
                Verdict::Forward => to_server.write_all(request),
                Verdict::ForwardLast => {
                    is_last.store(true, Ordering::SeqCst);
                    to_server.write_all(request)
                }
                Verdict::Reply(reply) => from_client.write_all(reply),
                Verdict::Swallow => Ok(()),
                Verdict::Close => break,
            };
            if result.is_err() {
                break;
            }
        }
        let _closed = to_server.shutdown(Shutdown::Both);
        let _closed = from_client.shutdown(Shutdown::Both);
    });
}

fn judge(state: &mut ProxyState, request: &[u8]) -> Verdict {
    let Some(plan) = &mut state.plan else { return Verdict::Forward };
    let has = |word: &&str| request.windows(word.len()).any(|window| window == word.as_bytes());
    let is_like = plan.words.iter().all(has);
    let was_failing = plan.is_failing;
    if is_like && !plan.is_failing {
        match plan.passing.checked_sub(1) {
            Some(passing) => plan.passing = passing,
            None => plan.is_failing = true,
        }
    }
    if !plan.is_failing {
        return Verdict::Forward;
    }
    let fault = plan.fault;
    state.has_failed = true;
    match fault {
        StepFault::Away => {
            close_all(state);
            Verdict::Close
        }
        StepFault::ReplyLost => {
            state.plan = None;
            Verdict::ForwardLast
        }
        StepFault::Unanswered if !was_failing => Verdict::Forward,
        StepFault::Hung | StepFault::Unanswered => Verdict::Swallow,
        StepFault::Reply(reply) if is_like => Verdict::Reply(reply),
        StepFault::Reply(_) => Verdict::Forward,
    }
}

fn close_all(state: &mut ProxyState) {
    for client in state.clients.drain(..) {
        let _closed = client.shutdown(Shutdown::Both);
    }
}

fn lock(state: &Mutex<ProxyState>) -> MutexGuard<'_, ProxyState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
