//! Gathers the questions that wait at the same moment into one script call.
//!
//! A call costs both sides about as much as what it decides: with many callers, tens of decisions
//! share one. Nobody waits for others to come: whoever asks while nothing is about to be sent has
//! it sent as soon as this thread has heard all who are ready to ask.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// Most work of several questions in one call: it keeps Redis busy for about half a millisecond.
const MOST: u64 = 64;

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
    waiting: Mutex<Vec<Asked>>,
}

/// Of several who ask at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    First,
    Later,
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
        if self.join(Asked { question, asker }) == Turn::First {
            // Runs after all who are ready to run on this thread: they may have questions too. An
            // asker who leaves does not take the others' answers along.
            let gatherer = Arc::clone(self);
            tokio::spawn(async move { gatherer.send_all().await });
        }
        async { answer.await.unwrap_or(Err(Failure::Other(StoreError::Lost))) }
    }

    fn join(&self, asked: Asked) -> Turn {
        let mut waiting = self.waiting();
        waiting.push(asked);
        if waiting.len() == 1 { Turn::First } else { Turn::Later }
    }

    /// Asks alone; `asking` where the slot is only on its way to the server.
    pub(super) async fn ask_alone(&self, question: &Question, asking: bool) -> Told {
        self.call(&[question], asking)
            .await?
            .pop()
            .unwrap_or(Err(Failure::Other(StoreError::Garbled)))
    }

    async fn send_all(&self) {
        let asked = std::mem::take(&mut *self.waiting());
        let mut asked: Vec<Asked> =
            asked.into_iter().filter(|asked| !asked.asker.is_closed()).collect();
        // Alike ones need the shorter script.
        asked.sort_by_key(|asked| asked.question.algorithm().map(|algorithm| algorithm as usize));
        let mut calls = Vec::new();
        while !asked.is_empty() {
            let rest = asked.split_off(together(&asked));
            calls.push(self.send(std::mem::replace(&mut asked, rest)));
        }
        futures_util::future::join_all(calls).await;
    }

    async fn send(&self, asked: Vec<Asked>) {
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

    fn waiting(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many of the first fit into one call: at least one.
fn together(asked: &[Asked]) -> usize {
    let sums = asked.iter().scan(0_u64, |sum, asked| {
        *sum = sum.saturating_add(asked.question.work());
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= MOST).count().max(1)
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
