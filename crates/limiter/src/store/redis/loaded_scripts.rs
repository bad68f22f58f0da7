//! The scripts that a server has, so that each is loaded once for a start of the server, not by every call
//! that finds it missing. A server takes milliseconds for a script, in which it decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use deadpool_redis::redis::{RedisResult, Value, cmd};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::codec::scripts::ScriptId;
use super::connection::connector::ManagedConnection;

/// Longest time that a script is waited for.
pub(super) const LOAD_TIMEOUT: Duration = Duration::from_secs(1);

/// The scripts of one server.
#[derive(Debug, Default)]
pub(super) struct LoadedScripts {
    latest: ArcSwap<OfStart>,
    /// Held while a script is loaded, so that there is one command at a time and decisions come between.
    loading: Mutex<()>,
}

/// The scripts that one start of a server has.
#[derive(Debug, Default)]
struct OfStart {
    /// [`ManagedConnection::start`].
    start: u64,
    /// Bits of the scripts.
    loaded: AtomicU32,
}

impl LoadedScripts {
    /// Returns `true` if the script was loaded.
    pub(super) fn has(&self, id: ScriptId) -> bool {
        self.latest.load().loaded.load(Ordering::Relaxed) & id.bit() != 0
    }

    /// Records that the server has the script, because a call had its text.
    pub(super) fn add(&self, id: ScriptId) {
        self.latest.load().loaded.fetch_or(id.bit(), Ordering::Relaxed);
    }

    /// Records that a call found the script missing, after a restart of the server or SCRIPT FLUSH.
    pub(super) fn forget(&self, id: ScriptId) {
        self.latest.load().loaded.fetch_and(!id.bit(), Ordering::Relaxed);
    }

    /// Loads a script, unless the server of the connection has it.
    pub(super) async fn load(&self, id: ScriptId, mut managed: ManagedConnection) {
        let _turn = self.loading.lock().await;
        let is_latest = self.latest.load().start == managed.start;
        if is_latest && self.has(id) {
            return;
        }
        if let Ok(Ok(_)) = timeout(LOAD_TIMEOUT, load(id, &mut managed)).await {
            if !is_latest {
                let loaded = AtomicU32::default();
                self.latest.store(Arc::new(OfStart { start: managed.start, loaded }));
            }
            self.add(id);
        }
    }
}

/// Loads a script by SCRIPT LOAD, or where that is refused by a call without requests.
async fn load(id: ScriptId, managed: &mut ManagedConnection) -> RedisResult<Value> {
    let (text, connection) = (&id.script().text, &mut managed.connection);
    match cmd("SCRIPT").arg("LOAD").arg(text).query_async(connection).await {
        Err(error) if !error.is_io_error() => {
            cmd("EVAL").arg(text).arg(0).arg("load").arg("").query_async(connection).await
        }
        loaded => loaded,
    }
}
