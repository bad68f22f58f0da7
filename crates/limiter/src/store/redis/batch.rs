//! Batches requests that wait at the same moment: one script call for each slot.
//!
//! A call costs both sides about as much as a decision, so with many callers tens of decisions
//! share a call. No request waits for others to arrive. The first request spawns a task, which runs
//! after the tasks of this thread that are ready (of the calls of HTTP/2, one turn), and takes the
//! requests that wait by then. It checks a connection out of the worker's pool, sends the requests,
//! and returns the connection before the reply arrives. Its timer ends the wait of all of them, at
//! the timeout of the oldest one.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{Cmd, RedisResult, Value, pipe};
use quanta::Instant;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::codec::call::{ScriptCall, ScriptResult};
use super::codec::call_error::CallError;
use super::codec::request::ScriptRequest;
use super::codec::scripts::{ScriptId, ScriptSet};
use super::connection::connector::{Connector, ManagedConnection};
use super::connection::{Pool, PoolUse, new_pool};
use super::health::ServerHealth;
use super::in_flight::{InFlight, InFlightWork, MAX_BATCH_WORK};
use super::loaded_scripts::LoadedScripts;
use crate::clock::Deadline;
use crate::store::StoreError;

/// Nonces, timeout and scripts, which all calls share.
#[derive(Debug)]
pub(crate) struct CallContext {
    /// Number of this instance. With the number of the call it makes a nonce that is unique among
    /// all instances.
    instance: u64,
    calls: AtomicU64,
    /// Store timeout: of a batch, from the time that its first request has waited since.
    pub(super) timeout: Duration,
    /// The scripts that rules need.
    pub(super) scripts: watch::Sender<ScriptSet>,
}

/// Slot of a request, within a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotTarget {
    pub(crate) slot: u16,
    /// Set if the slot is being moved to the server, which then requires ASKING.
    pub(crate) asking: bool,
}

/// The requests of one worker to one server.
#[derive(Debug)]
pub(crate) struct Batcher {
    pool: Pool,
    connector: Arc<Connector>,
    health: Arc<ServerHealth>,
    in_flight: Arc<InFlight>,
    context: Arc<CallContext>,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiters: Vec<Waiter>,
    /// Number of waiters so far. Each waiter has its number.
    joined: u64,
    /// Number of waiters whose requests were taken for a batch.
    taken: u64,
}

/// A request, and the channel for its result.
#[derive(Debug)]
struct Waiter {
    target: SlotTarget,
    request: ScriptRequest,
    reply: oneshot::Sender<ScriptResult>,
    work: InFlightWork,
    joined: Instant,
}

/// The task that sends waiting requests. If it is dropped before that, because its runtime shuts
/// down, it fails the waiters.
struct FlushTask {
    batcher: Arc<Batcher>,
    has_taken: bool,
}

/// The requests of one call, and the channels for their results.
struct Group {
    target: SlotTarget,
    call: ScriptCall,
    waiting: Vec<(oneshot::Sender<ScriptResult>, InFlightWork)>,
}

impl Waiter {
    fn call_key(&self) -> CallKey {
        call_key(self.target, &self.request)
    }
}

impl Group {
    fn call_key(&self) -> CallKey {
        call_key(self.target, &self.call.requests[0])
    }
}

/// What the requests of one call have in common. Requests with a request id, with overridable hits, and by
/// rules that hold, are apart: a user without permission for their records must not fail the others.
type CallKey = (SlotTarget, usize, bool, [bool; 3]);

fn call_key(target: SlotTarget, request: &ScriptRequest) -> CallKey {
    let needs = [request.purpose.is_some(), !request.overridable.is_empty(), request.holds()];
    (target, request.form.script.index(), request.form.by_text, needs)
}

impl CallContext {
    pub(crate) fn new(instance: u64, timeout: Duration) -> Self {
        Self { instance, calls: AtomicU64::new(0), timeout, scripts: watch::Sender::default() }
    }

    fn nonce(&self) -> String {
        format!("{:x}.{:x}", self.instance, self.calls.fetch_add(1, Ordering::Relaxed))
    }
}

impl Batcher {
    /// Creates a batcher with its own pool.
    pub(crate) fn new(
        connector: Arc<Connector>,
        health: Arc<ServerHealth>,
        in_flight: Arc<InFlight>,
        context: Arc<CallContext>,
    ) -> Self {
        let pool = new_pool(&connector, PoolUse::Decisions);
        Self { pool, connector, health, in_flight, context, queue: Mutex::default() }
    }

    /// Opens the connection ahead of the first call.
    pub(crate) async fn connect(&self) {
        let _unreachable = self.pool.get().await;
    }

    /// Loads a script on the connection of this batcher.
    pub(crate) async fn load(&self, id: ScriptId, loaded: &LoadedScripts) {
        if let Ok(managed) = self.pool.get().await {
            // The connection returns to the pool at once.
            let managed = ManagedConnection::clone(&managed);
            loaded.load(id, managed).await;
        }
    }

    /// Sends a request in a batch with others, and waits for its result until the deadline, or the
    /// timeout of the batch. Fails at once if the server has too much to do already.
    pub(crate) async fn send(
        self: &Arc<Self>,
        request: ScriptRequest,
        target: SlotTarget,
        until: Deadline,
    ) -> ScriptResult {
        let work = if request.only_refunds {
            self.in_flight.add(request.work)
        } else {
            let admitted = self.in_flight.admit(request.work);
            admitted.ok_or(CallError::Other(StoreError::Overloaded))?
        };
        let (reply, result) = oneshot::channel();
        let number = self.join(Waiter { target, request, reply, work, joined: Instant::now() });
        let left = until.remaining();
        let received = if left < self.context.timeout * 9 / 10 {
            timeout(left, result).await
        } else {
            Ok(result.await)
        };
        let error = match received {
            Ok(Ok(result)) => return result,
            _ if self.queue().taken <= number => StoreError::Unreachable,
            Ok(Err(_dropped)) => StoreError::Lost,
            Err(_elapsed) => StoreError::Timeout(self.context.timeout),
        };
        Err(CallError::Other(error))
    }

    /// Adds a waiter to the queue, and returns its number.
    fn join(self: &Arc<Self>, waiter: Waiter) -> u64 {
        let mut queue = self.queue();
        queue.waiters.push(waiter);
        queue.joined += 1;
        if queue.waiters.len() == 1 {
            self.spawn_flush();
        }
        queue.joined - 1
    }

    /// Spawns the task that sends waiting requests, after the tasks of this thread that are ready.
    fn spawn_flush(self: &Arc<Self>) {
        let task = FlushTask { batcher: Arc::clone(self), has_taken: false };
        tokio::spawn(task.run());
    }

    fn group(&self, mut waiters: Vec<Waiter>) -> Vec<Group> {
        waiters.sort_by_key(Waiter::call_key);
        let mut groups: Vec<Group> = Vec::new();
        for waiter in waiters {
            let key = waiter.call_key();
            let Waiter { target, request, reply, work, .. } = waiter;
            match groups.last_mut() {
                Some(group) if group.call_key() == key => {
                    group.call.requests.push(request);
                    group.waiting.push((reply, work));
                }
                _ => {
                    let call = ScriptCall { nonce: self.context.nonce(), requests: vec![request] };
                    groups.push(Group { target, call, waiting: vec![(reply, work)] });
                }
            }
        }
        groups
    }

    /// Calls the scripts. Returns one reply for each group.
    async fn call(
        &self,
        managed: &mut ManagedConnection,
        groups: &[Group],
    ) -> Vec<Result<Value, CallError>> {
        let ManagedConnection { connection, address, .. } = managed;
        let commands = groups.iter().map(|group| (group.target.asking, group.call.command()));
        let replies = query(connection, commands.collect()).await.into_iter();
        let parsed = |error| CallError::from_redis(&error, address);
        replies.map(|reply| reply.map_err(parsed)).collect()
    }

    /// Delivers the results of a call to its waiters.
    fn deliver(&self, group: Group, reply: Result<Value, CallError>, generation: u64) {
        let Group { call, waiting, .. } = group;
        let results = reply.and_then(|reply| call.parse(&reply).map_err(CallError::Other));
        let results = results.unwrap_or_else(|failure| vec![Err(failure); waiting.len()]);
        for ((waiting, work), result) in waiting.into_iter().zip(results) {
            // Before the caller goes on, who may be on another thread.
            drop(work);
            if let Err(failure) = &result {
                self.record_failure(failure, generation);
            }
            let _has_left = waiting.send(result);
        }
    }

    /// Discards the connections of a generation if the failure requires it. Connections that are
    /// lost together count as one failure.
    fn record_failure(&self, failure: &CallError, generation: u64) {
        let error = match failure {
            CallError::ReadOnly => None,
            CallError::Other(
                error @ (StoreError::Timeout(_) | StoreError::Lost | StoreError::Garbled),
            ) => Some(error),
            _ => return,
        };
        if self.connector.discard(generation)
            && let Some(error) = error
        {
            self.health.record_failure(error);
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FlushTask {
    async fn run(mut self) {
        let batcher = Arc::clone(&self.batcher);
        let limit = batcher.context.timeout;
        // The connection returns to the pool at the end of this block; the reply arrives on a clone.
        let managed = {
            let mut connecting = pin!(batcher.pool.get());
            loop {
                let left = batcher.queue().time_left(limit);
                match timeout(left, &mut connecting).await {
                    Ok(managed) => break managed.map(|managed| ManagedConnection::clone(&managed)),
                    Err(_elapsed) => batcher.queue().drop_expired(limit),
                }
            }
        };
        let Ok(mut managed) = managed else { return };
        let NextBatch { waiters, has_more, oldest } = batcher.queue().take(limit);
        let in_flight = batcher.in_flight.work();
        self.has_taken = true;
        if has_more {
            batcher.spawn_flush();
        }
        let groups = batcher.group(waiters);
        if groups.is_empty() {
            return;
        }
        let waited = oldest.elapsed();
        let left = limit.saturating_sub(waited);
        let answered = timeout(left, batcher.call(&mut managed, &groups)).await;
        // A connection that breaks says nothing about the rate of the server.
        if answered.as_ref().map_or(true, |replies| replies.iter().any(Result::is_ok)) {
            let took = oldest.elapsed();
            batcher.in_flight.observe(in_flight, took);
            batcher.health.round_trips.record(took.saturating_sub(waited));
        }
        let timed_out =
            |_elapsed| vec![Err(CallError::Other(StoreError::Timeout(limit))); groups.len()];
        let replies = answered.unwrap_or_else(timed_out);
        for (group, reply) in groups.into_iter().zip(replies) {
            batcher.deliver(group, reply, managed.generation);
        }
    }
}

impl Drop for FlushTask {
    fn drop(&mut self) {
        if self.has_taken {
            return;
        }
        for waiter in std::mem::take(&mut self.batcher.queue().waiters) {
            let _has_left = waiter.reply.send(Err(CallError::Other(StoreError::Unreachable)));
        }
    }
}

/// Waiters that fit into one batch.
struct NextBatch {
    waiters: Vec<Waiter>,
    /// `true` if some are left.
    has_more: bool,
    /// When the first one joined.
    oldest: Instant,
}

impl Queue {
    /// Returns the time until the timeout of the oldest waiter.
    fn time_left(&self, limit: Duration) -> Duration {
        let oldest = self.waiters.first();
        oldest.map_or(limit, |waiter| limit.saturating_sub(waiter.joined.elapsed()))
    }

    /// Drops waiters whose time is over, which were not sent.
    fn drop_expired(&mut self, limit: Duration) {
        let expired = self.waiters.iter().take_while(|waiter| waiter.joined.elapsed() >= limit);
        let count = expired.count();
        for waiter in self.waiters.drain(..count) {
            let _has_left = waiter.reply.send(Err(CallError::Other(StoreError::Unreachable)));
        }
    }

    /// Takes the waiters that fit into one batch.
    fn take(&mut self, limit: Duration) -> NextBatch {
        self.drop_expired(limit);
        let oldest = self.waiters.first().map_or_else(Instant::now, |waiter| waiter.joined);
        let mut work = 0;
        let fits = |waiter: &&Waiter| {
            let fits = work < MAX_BATCH_WORK;
            work += waiter.request.work;
            fits
        };
        let count = self.waiters.iter().take_while(fits).count();
        let left = self.waiters.split_off(count);
        let mut taken = std::mem::replace(&mut self.waiters, left);
        self.taken = self.joined - self.waiters.len() as u64;
        taken.retain(|waiter| !waiter.reply.is_closed());
        NextBatch { waiters: taken, has_more: !self.waiters.is_empty(), oldest }
    }
}

/// Sends all commands in one pipeline, with ASKING before those that require it. Returns one reply
/// for each command.
pub(super) async fn query(
    connection: &mut MultiplexedConnection,
    commands: Vec<(bool, Cmd)>,
) -> Vec<RedisResult<Value>> {
    let mut pipeline = pipe();
    let asking: Vec<bool> = commands.iter().map(|(asking, _)| *asking).collect();
    for (asking, command) in commands {
        if asking {
            pipeline.cmd("ASKING");
        }
        pipeline.add_command(command);
    }
    let mut replies = match connection.send_packed_commands(&pipeline, 0, pipeline.len()).await {
        Ok(replies) => replies.into_iter(),
        Err(error) => return vec![Err(error); asking.len()],
    };
    let mut reply = |asking| replies.nth(usize::from(asking)).unwrap_or(Value::Nil).extract_error();
    asking.into_iter().map(&mut reply).collect()
}
