//! Gathers the questions that wait at the same moment into one script call.
//!
//! A call costs both sides about as much as what it decides: with many callers, tens of decisions
//! share one. Nobody waits for others to come: whoever asks while nothing is about to be sent has
//! it sent as soon as this thread has heard all who are ready to ask. Once there are [`ENOUGH`] they
//! are sent at once: Redis decides on these while this thread hears the others.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use deadpool_redis::redis::{cmd, pipe};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::clock::Deadline;
use crate::store::StoreError;
use crate::store::redis::codec::call::{Call, Told};
use crate::store::redis::codec::failure::Failure;
use crate::store::redis::codec::request::Question;
use crate::store::redis::codec::scripts::Scripts;
use crate::store::redis::connection::driver::Wire;

/// Work of several questions that is enough for one call: it keeps Redis busy for a fifth of a
/// millisecond.
const ENOUGH: u64 = 32;

/// What every call needs beside its questions.
#[derive(Debug)]
pub(super) struct Scribe {
    scripts: Scripts,
    /// Together they make each call's nonce unique among all instances.
    instance: u64,
    calls: AtomicU64,
    /// What a call may take, as those are told whom it takes longer.
    timeout: Duration,
}

/// The questions that wait for one connection.
pub(super) struct Gatherer {
    wire: Wire,
    scribe: Arc<Scribe>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    asked: Vec<(Question, Asker)>,
    work: u64,
}

/// Who waits for an answer.
struct Asker {
    until: Deadline,
    line: oneshot::Sender<Told>,
}

/// What waits is to be sent. If that never begins, because the thread ends, those who wait hear of
/// it.
struct Due(Option<Arc<Gatherer>>);

/// What is to be done when one more has asked.
enum Turn {
    /// To send what waits, a little later.
    First,
    Later,
    /// To send these.
    Last(Vec<(Question, Asker)>),
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
    pub(super) fn new(wire: Wire, scribe: Arc<Scribe>) -> Self {
        Self { wire, scribe, waiting: Mutex::default() }
    }

    /// Asks beside others, now; the answer is still to come, by then.
    pub(super) fn ask(
        self: &Arc<Self>,
        question: Question,
        until: Deadline,
    ) -> impl Future<Output = Told> + Send + use<> {
        let (line, answer) = oneshot::channel();
        match self.join(question, Asker { until, line }) {
            Turn::First => {
                let due = Due(Some(Arc::clone(self)));
                // Runs after all who are ready to run on this thread.
                tokio::spawn(due.send());
            }
            Turn::Later => {}
            Turn::Last(all) => self.send_now(all),
        }
        async { answer.await.unwrap_or(Err(Failure::Other(StoreError::Lost))) }
    }

    fn join(&self, question: Question, asker: Asker) -> Turn {
        let mut waiting = self.waiting();
        waiting.work += question.work();
        waiting.asked.push((question, asker));
        if waiting.work >= ENOUGH {
            Turn::Last(std::mem::take(&mut *waiting).asked)
        } else if waiting.asked.len() == 1 {
            Turn::First
        } else {
            Turn::Later
        }
    }

    /// Asks alone; `asking` where the slot is only on its way to the server.
    pub(super) async fn ask_alone(
        &self,
        question: Question,
        until: Deadline,
        asking: bool,
    ) -> Told {
        let told = timeout(until.left(), self.call(&[question], asking)).await;
        let told = told.unwrap_or_else(|_elapsed| Err(self.too_late()))?.pop();
        told.unwrap_or(Err(Failure::Other(StoreError::Garbled)))
    }

    /// Has them sent before anybody else is heard.
    fn send_now(self: &Arc<Self>, all: Vec<(Question, Asker)>) {
        let gatherer = Arc::clone(self);
        let mut sending = Box::pin(async move { gatherer.send(all).await });
        let begin = || sending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        // In a task of its own, which would begin later: an asker who leaves does not take the
        // others' answers along.
        if self.wire.driver.at_once(begin).is_pending() {
            tokio::spawn(sending);
        }
    }

    /// Asks for all of them, and watches the time for each: a timer of its own would cost a caller
    /// more than the place in this call.
    async fn send(&self, asked: Vec<(Question, Asker)>) {
        let still_there = asked.into_iter().filter(|(_, asker)| !asker.line.is_closed());
        let (questions, mut askers): (Vec<Question>, Vec<Option<Asker>>) =
            still_there.map(|(question, asker)| (question, Some(asker))).unzip();
        let mut call = pin!(self.call(&questions, false));
        let told = loop {
            let deadlines = askers.iter().flatten().map(|asker| asker.until);
            // Nobody may wait any more: a call without end would keep its connection for ever.
            let Some(soonest) = deadlines.reduce(Deadline::sooner) else { return };
            match timeout(soonest.left(), &mut call).await {
                Ok(told) => break told,
                Err(_elapsed) => {
                    let late = askers
                        .iter_mut()
                        .filter_map(|asker| asker.take_if(|asker| asker.until.is_over()));
                    late.for_each(|asker| asker.tell(Err(self.too_late())));
                }
            }
        };
        let told = told.unwrap_or_else(|failure| vec![Err(failure); questions.len()]);
        for (asker, told) in askers.into_iter().zip(told) {
            if let Some(asker) = asker {
                asker.tell(told);
            }
        }
    }

    /// One call by its script's hash, and once more with the text if Redis does not know it.
    async fn call(&self, questions: &[Question], asking: bool) -> Result<Vec<Told>, Failure> {
        let script = self.scribe.scripts.script_for(questions);
        let call = Call { nonce: self.scribe.nonce(), questions };
        let mut connection = self.wire.connection.clone();
        let reply = match query(&mut connection, call.by_hash(script), asking).await {
            Err(error) if is_unknown_script(&error) => {
                query(&mut connection, call.by_text(script), asking).await
            }
            reply => reply,
        };
        let reply = reply.map_err(|error| Failure::of(&error))?;
        call.read(&reply).map_err(Failure::Other)
    }

    fn too_late(&self) -> Failure {
        Failure::Other(StoreError::Timeout(self.scribe.timeout))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Due {
    async fn send(mut self) {
        let Some(gatherer) = self.0.take() else { return };
        let rest = std::mem::take(&mut *gatherer.waiting());
        gatherer.send(rest.asked).await;
    }
}

impl Drop for Due {
    fn drop(&mut self) {
        if let Some(gatherer) = &self.0 {
            drop(std::mem::take(&mut *gatherer.waiting()));
        }
    }
}

impl Asker {
    fn tell(self, told: Told) {
        let _has_left = self.line.send(told);
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
