//! Real servers for tests: redis-server, Sentinel and Redis Cluster on free ports, each with a
//! clock that tests move; a proxy that breaks connections; certificates; Prometheus. The feature
//! `process` adds the program `rlaas`, the feature `service` a limiter on either store.
//!
//! Any crate of the workspace may use it as a dev-dependency. Only the feature `service` depends on
//! the package `rlaas`. In unit tests of a crate that `rlaas` depends on, this feature brings in a
//! second copy of the crate, whose types differ from those under test; in its integration tests
//! there is one copy.

#![allow(
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "helpers of tests panic with the reason"
)]

pub mod cluster;
pub mod http2;
#[cfg(feature = "process")]
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod redis;
pub mod sentinel;
#[cfg(feature = "service")]
pub mod service;
pub mod tls;
pub mod tools;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::id;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rlaas_core::algorithm::{Algorithm, Limit};
use rlaas_core::clock::Micros;
use rlaas_core::rules::{Rule, RuleSet};

/// Returns a default rule and no other.
pub fn rules(algorithm: Algorithm, units: u64, window: Micros) -> RuleSet {
    rules_with_burst(algorithm, units, window, units)
}

/// Returns a default rule with a burst.
pub fn rules_with_burst(algorithm: Algorithm, units: u64, window: Micros, burst: u64) -> RuleSet {
    let limit = Limit::new(units, window).and_then(|limit| limit.with_burst(burst));
    let limit = limit.expect("a valid limit");
    RuleSet::new(Rule::new_default(algorithm, limit), Vec::new())
}

/// A new temporary directory, removed on drop.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl Default for TempDir {
    fn default() -> Self {
        Self::new()
    }
}

impl TempDir {
    /// Creates the directory.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let name = format!("rlaas-test-{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            match std::fs::create_dir(&path) {
                Ok(()) => return Self(path),
                // Left by a process that was killed and had this id.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }

    /// Returns the path of a file in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file atomically and returns its path.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let (path, draft) = (self.path(name), self.path(&format!("{name}.draft")));
        std::fs::write(&draft, text).expect("a file in a temporary directory");
        // Renamed into place, because readers may poll the file.
        std::fs::rename(&draft, &path).expect("a file in a temporary directory");
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _best_effort = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until `condition` holds, and returns the time that it took.
///
/// # Panics
///
/// If the condition does not hold within `timeout`.
#[expect(clippy::disallowed_methods, reason = "polls for a condition of another process")]
pub async fn eventually(
    what: &str,
    timeout: Duration,
    mut condition: impl AsyncFnMut() -> bool,
) -> Duration {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < timeout, "timed out after {timeout:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    started.elapsed()
}

/// Returns the directory of the programs that cargo builds with this test: `target/debug`.
fn build_dir() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let dir = test.parent().filter(|dir| dir.ends_with("deps")).and_then(Path::parent);
    dir.expect("tests are in target/PROFILE/deps").to_owned()
}

/// Returns a directory below `target` that is kept between runs.
fn target_tmp() -> PathBuf {
    let dir = build_dir().join("../tmp");
    std::fs::create_dir_all(&dir).expect("a directory below target");
    dir
}
