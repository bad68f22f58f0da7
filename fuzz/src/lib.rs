//! What the fuzz targets share: a limiter in memory with the example rules, and a runtime.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use rlaas::clock::{Clock, ManualClock, Timestamp};
use rlaas::config::{Config, Sources};
use rlaas::store::{MemorySettings, MemoryStore, Store};
use rlaas::telemetry::metrics::Metrics;
use rlaas_limiter::Limiter;
use tokio::runtime::{Builder, Runtime};

/// Runs the futures of the service.
pub static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));

/// Metrics of the limiter.
pub static METRICS: LazyLock<Arc<Metrics>> = LazyLock::new(|| Arc::new(Metrics::new()));

/// A limiter in memory with the rules of `config/rules.yaml` and `config/envoy/rules.yaml`. Its clock
/// stands still, so that an input has the same effect in every run.
pub static LIMITER: LazyLock<Limiter> = LazyLock::new(|| {
    let project = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../config");
    let sources = Sources {
        files: vec![project.join("rules.yaml")],
        arguments: vec![(
            "envoy.files".to_owned(),
            format!("[{}]", project.join("envoy/rules.yaml").display()),
        )],
        ..Sources::default()
    };
    let config = Config::load(&sources).expect("the example configuration is valid");
    let clock = Clock::Manual(ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000)));
    let metrics = Arc::clone(&METRICS);
    let store = MemoryStore::new(MemorySettings::default(), clock, metrics.clone());
    Limiter::new(config.rules, Store::Memory(store), metrics)
});
