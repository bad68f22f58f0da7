//! Lanes: few long-lived connections that all requests share.
//!
//! A connection comes from the pool and never goes back: checking one out for each request would
//! cost a round trip each. Every lane has a keeper that connects, probes, and drops a connection
//! that no longer answers. Requests wait for the first attempt to connect; while Redis is known to
//! be away they fail at once.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::io::tcp::TcpSettings;
use deadpool_redis::redis::{AsyncConnectionConfig, ConnectionInfo, RedisResult, cmd};
use deadpool_redis::{Manager, Pool, PoolError, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::pulse::Pulse;
use super::server_clock::ServerClock;
use super::settings::{RedisSettings, SettingError};
use crate::clock::{Span, SystemClock, Timestamp};
use crate::store::{Health, StoreError};

/// Connections: Redis runs scripts on one core, a second connection keeps it busy.
const LANES: usize = 2;
/// Calls that one connection may have in its queue.
const QUEUE: usize = 1024;
/// The longest that an attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two probes of a connection, and the longest that one may take.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Pause after the first failed attempt to connect; doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// A connection that did not last this long counts as a failed attempt.
const STEADY: Span = Span::from_secs(1);
const TIMED_OUT: &str = "timed out while connecting";

/// The lanes to one Redis server.
#[derive(Debug)]
pub(super) struct Lanes {
    keepers: Vec<Arc<Keeper>>,
    next: AtomicUsize,
    /// Told whenever a lane changes.
    changes: watch::Sender<()>,
    pulse: Arc<Pulse>,
}

impl Lanes {
    pub(super) fn new(
        settings: &RedisSettings,
        clock: &Arc<ServerClock>,
        local: SystemClock,
    ) -> Result<Self, SettingError> {
        let pool = pool(settings)?;
        let changes = watch::Sender::new(());
        let pulse = Arc::new(Pulse::new(local));
        let keeper = |_| {
            Arc::new(Keeper {
                pool: pool.clone(),
                line: watch::Sender::new(Line::Connecting),
                changes: changes.clone(),
                clock: Arc::clone(clock),
                local,
                pulse: Arc::clone(&pulse),
            })
        };
        let keepers = (0..LANES).map(keeper).collect();
        Ok(Self { keepers, next: AtomicUsize::new(0), changes, pulse })
    }

    /// A lane that is up; waits while the first attempt to connect one is under way.
    pub(super) async fn pick(&self) -> Result<Lane, StoreError> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut changes = self.changes.subscribe();
        loop {
            let mut keepers =
                (0..LANES).map(|step| &self.keepers[first.wrapping_add(step) % LANES]);
            if let Some(lane) = keepers.find_map(Keeper::lane) {
                return Ok(lane);
            }
            if self.keepers.iter().all(|keeper| keeper.is_down()) {
                return Err(StoreError::Unreachable);
            }
            changes.changed().await.map_err(|_| StoreError::Unreachable)?;
        }
    }

    /// Keeps every lane, for ever.
    pub(super) async fn tend(&self) {
        let mut keeping = JoinSet::new();
        for keeper in &self.keepers {
            let keeper = Arc::clone(keeper);
            keeping.spawn(async move { keeper.keep().await });
        }
        while keeping.join_next().await.is_some() {}
    }

    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.pulse.health()
    }
}

/// A connection that is up, for one request.
#[derive(Debug)]
pub(super) struct Lane {
    keeper: Arc<Keeper>,
    connection: Connection,
}

impl Lane {
    /// The shared connection: calls on its clones are pipelined.
    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.connection.shared.clone()
    }

    /// Has the connection dropped: what arrives on it can no longer be trusted to arrive in time.
    pub(super) fn give_up(&self) {
        self.keeper.line.send_if_modified(|line| match line {
            Line::Up(current) if current.number == self.connection.number => {
                *line = Line::Connecting;
                true
            }
            _ => false,
        });
    }
}

#[derive(Clone)]
struct Connection {
    shared: MultiplexedConnection,
    /// Tells a connection from its successor.
    number: usize,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({})", self.number)
    }
}

#[derive(Debug)]
enum Line {
    /// The first attempt to connect is under way.
    Connecting,
    Up(Connection),
    /// An attempt has failed; others follow.
    Down,
}

/// Keeps one lane.
#[derive(Debug)]
struct Keeper {
    pool: Pool,
    line: watch::Sender<Line>,
    changes: watch::Sender<()>,
    clock: Arc<ServerClock>,
    local: SystemClock,
    pulse: Arc<Pulse>,
}

impl Keeper {
    fn lane(self: &Arc<Self>) -> Option<Lane> {
        match &*self.line.borrow() {
            Line::Up(connection) => {
                Some(Lane { keeper: Arc::clone(self), connection: connection.clone() })
            }
            Line::Connecting | Line::Down => None,
        }
    }

    fn is_down(&self) -> bool {
        matches!(*self.line.borrow(), Line::Down)
    }

    fn set(&self, line: Line) {
        self.line.send_replace(line);
        self.changes.send_replace(());
    }

    async fn keep(&self) {
        let (mut pause, mut number) = (FIRST_PAUSE, 0);
        loop {
            let mut lasted = Span::ZERO;
            let end = match self.connect().await {
                Ok(pooled) => {
                    let since = self.local.now();
                    number += 1;
                    let shared = (*pooled).clone();
                    self.set(Line::Up(Connection { shared: shared.clone(), number }));
                    self.pulse.lane_up();
                    let end = self.probe(shared).await;
                    // Taken out of the pool for good: it is not fit to be recycled.
                    drop(deadpool_redis::Connection::take(pooled));
                    self.pulse.lane_down();
                    lasted = self.local.now().since(since);
                    end
                }
                Err(reason) => End::Silent(reason),
            };
            if let End::Silent(reason) = end {
                self.pulse.no_answer(reason);
            }
            if lasted >= STEADY {
                pause = FIRST_PAUSE;
                self.set(Line::Connecting);
            } else {
                self.set(Line::Down);
                self.back_off(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Connects, and asks for the time so that the first call names the right window.
    async fn connect(&self) -> Result<deadpool_redis::Connection, String> {
        let connecting = async {
            let mut connection = self.pool.get().await.map_err(|error| match error {
                PoolError::Backend(error) => error.to_string(),
                _ => TIMED_OUT.to_owned(),
            })?;
            match self.ask_time(&mut connection).await {
                Ok(()) => Ok(connection),
                Err(error) => {
                    drop(deadpool_redis::Connection::take(connection));
                    Err(error.to_string())
                }
            }
        };
        // Dropped half-way the connection would go back into the pool, which would try it again
        // without a bound: so the pool forgets what it holds.
        timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or_else(|_elapsed| {
            self.pool.retain(|_, _| false);
            Err(TIMED_OUT.to_owned())
        })
    }

    /// Returns when the connection is given up or no longer answers.
    async fn probe(&self, mut connection: MultiplexedConnection) -> End {
        let mut line = self.line.subscribe();
        let mut probes = interval(PROBE_INTERVAL);
        probes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        probes.reset();
        loop {
            tokio::select! {
                _ = line.wait_for(|line| !matches!(line, Line::Up(_))) => return End::GivenUp,
                _ = probes.tick() => {}
            }
            match timeout(PROBE_INTERVAL, self.ask_time(&mut connection)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return End::Silent(error.to_string()),
                Err(_elapsed) => return End::Silent("a probe timed out".to_owned()),
            }
        }
    }

    async fn ask_time(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let (seconds, micros): (u64, u64) = cmd("TIME").query_async(connection).await?;
        let time = Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros));
        self.clock.tell(time, self.local.now());
        Ok(())
    }

    /// Waits for half to all of `pause`, so that instances do not come back in step.
    #[expect(clippy::disallowed_methods, reason = "the pause between two attempts to connect")]
    async fn back_off(&self, pause: Duration) {
        let noise = u32::try_from(self.local.now().as_micros() % 1024).unwrap_or_default();
        sleep(pause / 2 + pause / 2 * noise / 1024).await;
    }
}

/// Why a connection ended.
#[derive(Debug)]
enum End {
    /// A call had it dropped.
    GivenUp,
    /// It does not answer, for this reason.
    Silent(String),
}

fn pool(settings: &RedisSettings) -> Result<Pool, SettingError> {
    let tcp = TcpSettings::default().set_nodelay(true);
    let address: ConnectionInfo = settings.url.connection().clone().set_tcp_settings(tcp);
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUE);
    let manager = Manager::new_with_config(address, config).map_err(|_| SettingError::Url)?;
    Pool::builder(manager)
        .max_size(LANES)
        .wait_timeout(Some(CONNECT_TIMEOUT))
        .create_timeout(Some(CONNECT_TIMEOUT))
        .recycle_timeout(Some(CONNECT_TIMEOUT))
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|_| SettingError::Pool)
}
