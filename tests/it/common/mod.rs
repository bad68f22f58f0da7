//! What the suites share: real redis-servers, moved time, rules.
#![allow(dead_code, reason = "each suite uses its part")]
#![allow(unreachable_pub, reason = "a module of several crates")]

pub mod cluster;
pub mod http2;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod redis;
pub mod sentinel;
pub mod service;
pub mod tls;
pub mod tools;

use std::path::PathBuf;
use std::process::id;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::Span;
use rlaas::rules::{Rule, RuleSet};

/// A default rule and no other.
pub fn rules(algorithm: Algorithm, units: u64, window: Span) -> RuleSet {
    rules_with_burst(algorithm, units, window, units)
}

/// A default rule with a burst of its own.
pub fn rules_with_burst(algorithm: Algorithm, units: u64, window: Span, burst: u64) -> RuleSet {
    let limit = Limit::new(units, window).and_then(|limit| limit.with_burst(burst));
    let limit = limit.expect("a valid limit");
    RuleSet::new(Rule::default_of(algorithm, limit), Vec::new())
}

/// A directory of its own, removed when it is dropped.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("rlaas-test-{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let (path, draft) = (self.path(name), self.path(&format!("{name}.draft")));
        std::fs::write(&draft, text).expect("a file in a temporary directory");
        // At once, as who reads it again and again expects it.
        std::fs::rename(&draft, &path).expect("a file in a temporary directory");
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _best_effort = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until `condition` holds.
///
/// # Panics
///
/// If it does not within `patience`.
#[expect(clippy::disallowed_methods, reason = "polls for a condition of another process")]
pub async fn eventually(
    what: &str,
    patience: Duration,
    mut condition: impl AsyncFnMut() -> bool,
) -> Duration {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < patience, "not within {patience:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    started.elapsed()
}
