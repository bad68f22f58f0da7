//! Lanes: long-lived connections to one server, one for each worker, that all requests share.
//!
//! A connection comes from the pool and never goes back: checking one out for each request would
//! cost a round trip each. Every lane has a keeper that connects, probes, and drops a connection
//! that no longer answers. A worker keeps its home lane on its own thread, so that nothing is handed
//! from thread to thread. Requests wait for the first attempt to connect; while the
//! server is known to be away they fail at once.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use deadpool::managed::{Object, Pool, PoolError};
use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{RedisResult, cmd};
use futures_util::future::join_all;
use tokio::sync::{Mutex, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::clock::{Span, SystemClock, Timestamp, jittered};
use crate::store::StoreError;
use crate::store::redis::batch::{Gatherer, Scribe};
use crate::store::redis::connection::driver::Wire;
use crate::store::redis::connection::manager::{DialError, Dialer, Greeting, Target};
use crate::store::redis::health::clock::ServerClock;
use crate::store::redis::health::monitor::{Pulse, Silence};
use crate::store::redis::node::Surroundings;

/// The fewest lanes: where one is lost another is there.
const FEWEST: usize = 2;
/// The longest that an attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two probes of a connection, and the longest that one may take.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Pause after the first failed attempt to connect; doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(150);
/// A connection that did not last this long counts as a failed attempt.
const STEADY: Span = Span::from_secs(1);

/// The lanes to one server.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// Of the homes that are kept, by their numbers.
    homes: ArcSwap<Vec<Arc<Keeper>>>,
    /// Of those that are nobody's home.
    shared: [Arc<Keeper>; FEWEST],
    /// How many homes were promised.
    promised: Arc<AtomicUsize>,
    road: Arc<Road>,
}

/// What the lanes have in common.
#[derive(Debug)]
struct Road {
    pool: Pool<Dialer>,
    /// The pause after the next attempt to connect that fails. Whoever holds it may attempt: one
    /// at a time.
    attempts: Mutex<Duration>,
    /// Has the last attempt failed?
    is_away: AtomicBool,
    /// Connections so far: each has its number.
    connections: AtomicU64,
    /// The newest when one was lost last.
    lost: AtomicU64,
    /// Told whenever a lane comes up or an attempt fails.
    changes: watch::Sender<()>,
    clock: Arc<ServerClock>,
    local: SystemClock,
    scribe: Arc<Scribe>,
    pulse: Arc<Pulse>,
}

impl Lanes {
    pub(crate) fn new(
        dialer: Dialer,
        around: &Surroundings,
        clock: Arc<ServerClock>,
        pulse: Arc<Pulse>,
    ) -> Self {
        let pool = Pool::builder(dialer).build();
        let road = Arc::new(Road {
            pool: pool.expect("without time-outs a pool needs no runtime"),
            attempts: Mutex::new(FIRST_PAUSE),
            is_away: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            changes: watch::Sender::new(()),
            clock,
            local: around.local.clone(),
            scribe: Arc::clone(&around.scribe),
            pulse,
        });
        let shared = std::array::from_fn(|_| Arc::new(Keeper::new(&road)));
        Self { homes: ArcSwap::default(), shared, promised: Arc::clone(&around.homes), road }
    }

    /// The next lane to be up, while the first attempt to connect one is under way.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if that fails.
    pub(crate) async fn next(&self, home: Option<usize>) -> Result<Lane, StoreError> {
        let mut changes = self.road.changes.subscribe();
        loop {
            if let Some(lane) = self.up(home) {
                return Ok(lane);
            }
            if self.road.is_away.load(Ordering::SeqCst) {
                return Err(StoreError::Unreachable);
            }
            changes.changed().await.map_err(|_| StoreError::Unreachable)?;
        }
    }

    /// The home lane of this number if it is up, or else another: what one worker asks is gathered.
    pub(crate) fn up(&self, home: Option<usize>) -> Option<Lane> {
        let (homes, first) = (self.homes.load(), home.unwrap_or_default());
        let mut in_turn = (0..homes.len()).map(|step| &homes[(first + step) % homes.len()]);
        in_turn.find_map(Keeper::lane).or_else(|| self.shared.iter().find_map(Keeper::lane))
    }

    /// Has every connection dropped: the server behind them is not what it was.
    pub(crate) fn give_up(&self) {
        for keeper in self.homes.load().iter().chain(&self.shared) {
            keeper.line.send_replace(None);
        }
    }

    /// Keeps the lanes that are nobody's home, for ever: as many as homes are missing from the
    /// fewest.
    pub(crate) async fn run(&self) {
        let homes = self.make_room();
        let shared = &self.shared[homes.min(FEWEST)..];
        tokio::join!(join_all(shared.iter().map(|keeper| keeper.keep())), self.follow_master());
    }

    /// Keeps the home lane of this number, for ever.
    pub(crate) async fn keep_home(&self, home: usize) {
        self.make_room();
        self.homes.rcu(|homes| {
            let mut homes = Vec::clone(homes);
            while homes.len() <= home {
                homes.push(Arc::new(Keeper::new(&self.road)));
            }
            homes
        });
        let keeper = Arc::clone(&self.homes.load()[home]);
        keeper.keep().await;
    }

    /// Lets the pool have as many connections as there are lanes; how many homes were promised.
    fn make_room(&self) -> usize {
        let homes = self.promised.load(Ordering::Relaxed);
        let lanes = homes.max(FEWEST);
        if self.road.pool.status().max_size < lanes {
            self.road.pool.resize(lanes);
        }
        homes
    }

    /// Leaves a master that the sentinels no longer name: it may not know yet.
    async fn follow_master(&self) {
        let dialer = self.road.pool.manager();
        let Target::Master(sentinels) = &dialer.target else { return };
        let mut looks = interval(PROBE_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let named = sentinels.master().await;
            if named.is_some() && dialer.reached().is_some_and(|reached| Some(reached) != named) {
                self.give_up();
            }
        }
    }
}

/// A lane that is up, for one request.
#[derive(Debug)]
pub(crate) struct Lane {
    keeper: Arc<Keeper>,
    connection: Connection,
}

impl Lane {
    /// Carries questions over the connection.
    pub(crate) fn gatherer(&self) -> &Arc<Gatherer> {
        &self.connection.gatherer
    }

    /// Has the connection dropped: what arrives on it can no longer be trusted to arrive in time.
    /// Those that were there beside it when it was lost may be lost with it: that is one loss.
    pub(crate) fn give_up(&self) -> GivenUp {
        let (road, number) = (&self.keeper.road, self.connection.number);
        let is_ours = self.keeper.line.send_if_modified(|line| {
            let is_ours = line.as_ref().is_some_and(|current| current.number == number);
            if is_ours {
                *line = None;
            }
            is_ours
        });
        let is_new = || {
            let newest = road.connections.load(Ordering::SeqCst);
            road.lost.fetch_max(newest, Ordering::SeqCst) < number
        };
        if is_ours && is_new() { GivenUp::Now } else { GivenUp::Before }
    }
}

/// Whether a connection was still there to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenUp {
    Now,
    Before,
}

#[derive(Clone)]
struct Connection {
    gatherer: Arc<Gatherer>,
    /// Tells a connection from its successors.
    number: u64,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({})", self.number)
    }
}

/// Keeps one lane.
#[derive(Debug)]
struct Keeper {
    road: Arc<Road>,
    line: watch::Sender<Option<Connection>>,
}

/// A lane that is up. It no longer is when its connection ends, or nobody keeps it.
struct Open<'a> {
    keeper: &'a Keeper,
    dialed: Option<Object<Dialer>>,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.keeper.line.send_replace(None);
        self.keeper.road.pulse.lane_down();
        // Taken out of the pool for good: it is not fit to be recycled.
        drop(self.dialed.take().map(Object::take));
    }
}

impl Keeper {
    fn new(road: &Arc<Road>) -> Self {
        Self { road: Arc::clone(road), line: watch::Sender::new(None) }
    }

    fn lane(this: &Arc<Self>) -> Option<Lane> {
        let connection = this.line.borrow().clone()?;
        Some(Lane { keeper: Arc::clone(this), connection })
    }

    async fn keep(&self) {
        loop {
            self.connect_and_probe().await;
        }
    }

    /// Keeps one connection from its first try to its end. Short-lived ones are followed by a
    /// pause that grows.
    async fn connect_and_probe(&self) {
        let road = &self.road;
        let mut pause = road.attempts.lock().await;
        let dialed = match timeout(CONNECT_TIMEOUT, road.connect()).await {
            Ok(Ok(dialed)) => dialed,
            failed => {
                road.pulse.no_answer(match failed {
                    Ok(Err(silence)) => silence,
                    _elapsed => Silence::because("timed out while connecting"),
                });
                road.tell_away();
                road.back_off(&mut pause).await;
                return;
            }
        };
        drop(pause);

        let since = road.local.now();
        let gatherer = Gatherer::new(dialed.wire.clone(), Arc::clone(&road.scribe));
        let gatherer = Arc::new(gatherer);
        let number = road.connections.fetch_add(1, Ordering::SeqCst) + 1;
        self.line.send_replace(Some(Connection { gatherer, number }));
        road.pulse.lane_up(&dialed.greeting);
        road.is_away.store(false, Ordering::SeqCst);
        road.changes.send_replace(());
        let wire = dialed.wire.clone();
        let open = Open { keeper: self, dialed: Some(dialed) };
        let end = self.probe(wire).await;
        drop(open);
        if let Err(silence) = end {
            road.pulse.no_answer(silence);
            road.tell_away();
        }
        let mut pause = road.attempts.lock().await;
        if road.local.now().since(since) < STEADY {
            road.back_off(&mut pause).await;
        } else {
            *pause = FIRST_PAUSE;
        }
    }

    /// Returns when the connection is closed, given up, or no longer answers.
    async fn probe(&self, wire: Wire) -> Result<(), Silence> {
        let Wire { mut connection, driver } = wire;
        let mut line = self.line.subscribe();
        let mut probes = interval(PROBE_INTERVAL);
        probes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        probes.reset();
        loop {
            tokio::select! {
                _ = line.wait_for(Option::is_none) => return Ok(()),
                () = driver.closed() => return Ok(()),
                _ = probes.tick() => {}
            }
            let asking = async {
                self.road.ask_time(&mut connection).await?;
                Greeting::ask_of_role(&mut connection).await
            };
            match timeout(PROBE_INTERVAL, asking).await {
                Ok(Ok(greeting)) if greeting.is_replica => {
                    return Err(Silence::because(DialError::Replica.to_string()));
                }
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(Silence::from(&error)),
                Err(_elapsed) => return Err(Silence::because("a probe timed out")),
            }
        }
    }
}

impl Road {
    /// Connects, and asks for the time so that the first call names the right window.
    async fn connect(&self) -> Result<Object<Dialer>, Silence> {
        let mut dialed = self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(DialError::Redis(error)) => Silence::from(&error),
            PoolError::Backend(error) => Silence::because(error.to_string()),
            error => Silence::because(error.to_string()),
        })?;
        match self.ask_time(&mut dialed.wire.connection).await {
            Ok(()) => Ok(dialed),
            Err(error) => {
                drop(Object::take(dialed));
                Err(Silence::from(&error))
            }
        }
    }

    async fn ask_time(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let (seconds, micros): (u64, u64) = cmd("TIME").query_async(connection).await?;
        let time = Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros));
        self.clock.tell(time, self.local.now());
        Ok(())
    }

    /// Tells those who wait for a connection that there will be none for now.
    fn tell_away(&self) {
        self.is_away.store(true, Ordering::SeqCst);
        self.changes.send_replace(());
    }

    /// Waits for about `pause`, and makes the next one longer.
    #[expect(clippy::disallowed_methods, reason = "the pause between two attempts to connect")]
    async fn back_off(&self, pause: &mut Duration) {
        sleep(jittered(*pause)).await;
        *pause = (*pause * 2).min(LONGEST_PAUSE);
    }
}
