//! Gathers the questions that wait at the same moment into one script call.
//!
//! A call costs both sides about as much as what it decides: with many callers, tens of decisions
//! share one. Nobody waits for others to come: whoever asks while nothing is about to be sent has
//! it sent as soon as this thread has heard all who are ready to ask. Once there are [`ENOUGH`] they
//! are sent at once: Redis decides on these while this thread hears the others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use deadpool_redis::redis::{cmd, pipe};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::call::{Call, Told};
use super::failure::Failure;
use super::question::Question;
use super::scripts::Scripts;
use crate::store::StoreError;

/// Work of several questions that is enough for one call: it keeps Redis busy for about a quarter
/// of a millisecond.
const ENOUGH: u64 = 32;

/// What every call needs beside its questions.
#[derive(Debug)]
pub(super) struct Scribe {
    scripts: Scripts,
    /// Together they make each call's nonce unique among all instances.
    instance: u64,
    calls: AtomicU64,
    /// The longest that a call may take: by then all who ask have left.
    timeout: Duration,
}

/// The questions that wait for one connection.
pub(super) struct Gatherer {
    connection: MultiplexedConnection,
    scribe: Arc<Scribe>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    asked: Vec<Asked>,
    work: u64,
}

/// What is to be done when one more has asked.
enum Turn {
    /// To send what waits, a little later.
    First,
    Later,
    /// To send these.
    Last(Vec<Asked>),
}

struct Asked {
    question: Question,
    asker: oneshot::Sender<Told>,
}

impl Scribe {
    pub(super) fn new(instance: u64, timeout: Duration) -> Self {
        Self { scripts: Scripts::new(), instance, calls: AtomicU64::new(0), timeout }
    }

    fn nonce(&self) -> String {
        format!("{:x}.{:x}", self.instance, self.calls.fetch_add(1, Ordering::Relaxed))
    }
}

impl Gatherer {
    pub(super) fn new(connection: MultiplexedConnection, scribe: Arc<Scribe>) -> Self {
        Self { connection, scribe, waiting: Mutex::default() }
    }

    /// Asks beside others, now; the answer is still to come.
    pub(super) fn ask(
        self: &Arc<Self>,
        question: Question,
    ) -> impl Future<Output = Told> + Send + use<> {
        let (asker, answer) = oneshot::channel();
        match self.join(Asked { question, asker }) {
            Turn::First => {
                // Runs after all who are ready to run on this thread.
                let gatherer = Arc::clone(self);
                tokio::spawn(async move {
                    let rest = std::mem::take(&mut *gatherer.waiting());
                    gatherer.send(rest.asked).await;
                });
            }
            Turn::Later => {}
            Turn::Last(all) => self.send_now(all),
        }
        async { answer.await.unwrap_or(Err(Failure::Other(StoreError::Lost))) }
    }

    fn join(&self, asked: Asked) -> Turn {
        let mut waiting = self.waiting();
        waiting.work += asked.question.work();
        waiting.asked.push(asked);
        if waiting.work >= ENOUGH {
            Turn::Last(std::mem::take(&mut *waiting).asked)
        } else if waiting.asked.len() == 1 {
            Turn::First
        } else {
            Turn::Later
        }
    }

    /// Asks alone; `asking` where the slot is only on its way to the server.
    pub(super) async fn ask_alone(&self, question: &Question, asking: bool) -> Told {
        self.call(&[question], asking)
            .await?
            .pop()
            .unwrap_or(Err(Failure::Other(StoreError::Garbled)))
    }

    /// Has them sent before anybody else is heard.
    fn send_now(self: &Arc<Self>, all: Vec<Asked>) {
        let gatherer = Arc::clone(self);
        let mut sending = Box::pin(async move { gatherer.send(all).await });
        // In a task of its own, which would begin later: an asker who leaves does not take the
        // others' answers along.
        if sending.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            tokio::spawn(sending);
        }
    }

    async fn send(&self, mut asked: Vec<Asked>) {
        asked.retain(|asked| !asked.asker.is_closed());
        if asked.is_empty() {
            return;
        }
        let questions: Vec<&Question> = asked.iter().map(|asked| &asked.question).collect();
        // A call without end would keep its connection for ever.
        let patience = self.scribe.timeout;
        let told = timeout(patience, self.call(&questions, false)).await;
        let told = told.unwrap_or(Err(Failure::Other(StoreError::Timeout(patience))));
        drop(questions);
        match told {
            Ok(told) => {
                for (asked, told) in asked.into_iter().zip(told) {
                    let _has_left = asked.asker.send(told);
                }
            }
            Err(failure) => {
                for asked in asked {
                    let _has_left = asked.asker.send(Err(failure.clone()));
                }
            }
        }
    }

    /// One call by its script's hash, and once more with the text if Redis does not know it.
    async fn call(&self, questions: &[&Question], asking: bool) -> Result<Vec<Told>, Failure> {
        let script = self.scribe.scripts.script_for(questions);
        let call = Call { nonce: self.scribe.nonce(), questions };
        let mut connection = self.connection.clone();
        let reply = match query(&mut connection, call.by_hash(script), asking).await {
            Err(error) if is_unknown_script(&error) => {
                query(&mut connection, call.by_text(script), asking).await
            }
            reply => reply,
        };
        let reply = reply.map_err(|error| Failure::of(&error))?;
        call.read(&reply).map_err(Failure::Other)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn query(
    connection: &mut MultiplexedConnection,
    command: Cmd,
    asking: bool,
) -> RedisResult<Value> {
    if !asking {
        return command.query_async(connection).await;
    }
    let mut both = pipe();
    both.add_command(cmd("ASKING")).add_command(command);
    let mut replies = connection.send_packed_commands(&both, 0, 2).await?;
    replies.pop().unwrap_or(Value::Nil).extract_error()
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
