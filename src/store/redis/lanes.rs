//! Lanes: few long-lived connections that all requests share.
//!
//! A connection comes from the pool and never goes back: checking one out for each request would
//! cost a round trip each. Every lane has a keeper that connects, probes, and drops a connection
//! that no longer answers. Requests wait for the first attempt to connect; while Redis is known to
//! be away they fail at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::io::tcp::TcpSettings;
use deadpool_redis::redis::{AsyncConnectionConfig, ConnectionInfo, cmd};
use deadpool_redis::{Manager, Pool, PoolError, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

use super::pulse::Pulse;
use super::server_clock::ServerClock;
use super::settings::{RedisSettings, SettingError};
use crate::clock::{SystemClock, Timestamp};
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

/// The lanes to one Redis server.
#[derive(Debug)]
pub(super) struct Lanes {
    keepers: Vec<Arc<Keeper>>,
    next: AtomicUsize,
    pulse: Arc<Pulse>,
}

impl Lanes {
    pub(super) fn new(
        settings: &RedisSettings,
        clock: &Arc<ServerClock>,
    ) -> Result<Self, SettingError> {
        let pool = pool(settings)?;
        let pulse = Arc::new(Pulse::default());
        let keeper = |_| {
            Arc::new(Keeper {
                pool: pool.clone(),
                line: watch::Sender::new(Line::Connecting),
                clock: Arc::clone(clock),
                local: SystemClock::new(),
                pulse: Arc::clone(&pulse),
            })
        };
        Ok(Self { keepers: (0..LANES).map(keeper).collect(), next: AtomicUsize::new(0), pulse })
    }

    /// A lane that is up; waits for the first attempt to connect.
    pub(super) async fn pick(&self) -> Result<Lane, StoreError> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let keepers = (0..LANES).map(|step| &self.keepers[first.wrapping_add(step) % LANES]);
        for keeper in keepers.clone() {
            if let Some(lane) = keeper.lane() {
                return Ok(lane);
            }
        }
        for keeper in keepers {
            let mut line = keeper.line.subscribe();
            let settled = line.wait_for(|line| !matches!(line, Line::Connecting)).await;
            drop(settled);
            if let Some(lane) = keeper.lane() {
                return Ok(lane);
            }
        }
        Err(StoreError::Unreachable)
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

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

    async fn keep(&self) {
        let (mut pause, mut number) = (FIRST_PAUSE, 0);
        loop {
            match self.connect().await {
                Ok(pooled) => {
                    number += 1;
                    self.line
                        .send_replace(Line::Up(Connection { shared: (*pooled).clone(), number }));
                    self.pulse.lane_up();
                    let reason = self.probe((*pooled).clone()).await;
                    // Taken out of the pool for good: it is not fit to be recycled.
                    drop(deadpool_redis::Connection::take(pooled));
                    self.line.send_replace(Line::Connecting);
                    self.pulse.lane_down(reason);
                    pause = FIRST_PAUSE;
                }
                Err(reason) => {
                    self.line.send_replace(Line::Down);
                    self.pulse.cannot_connect(reason);
                    self.back_off(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Connects, and asks for the time so that the first call names the right window.
    async fn connect(&self) -> Result<deadpool_redis::Connection, String> {
        let mut connection = self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => error.to_string(),
            _ => "timed out while connecting".to_owned(),
        })?;
        match timeout(CONNECT_TIMEOUT, self.ask_time(&mut connection)).await {
            Ok(Ok(())) => Ok(connection),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_elapsed) => Err("timed out while connecting".to_owned()),
        }
    }

    /// Returns when the connection is given up or no longer answers, with the reason.
    async fn probe(&self, mut connection: MultiplexedConnection) -> String {
        let mut line = self.line.subscribe();
        let mut probes = interval(PROBE_INTERVAL);
        loop {
            tokio::select! {
                _ = line.wait_for(|line| !matches!(line, Line::Up(_))) => {
                    return "a call was not answered".to_owned();
                }
                _ = probes.tick() => {}
            }
            match timeout(PROBE_INTERVAL, self.ask_time(&mut connection)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error.to_string(),
                Err(_elapsed) => return "a probe timed out".to_owned(),
            }
        }
    }

    async fn ask_time(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), deadpool_redis::redis::RedisError> {
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
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|_| SettingError::Pool)
}
