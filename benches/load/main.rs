//! Loads a running server over gRPC, and prints rate and latency as JSON.
//!
//! ```sh
//! cargo bench --bench load -- --addr http://127.0.0.1:50051 --duration 10s --ids 100000
//! cargo bench --bench load -- --rate 2000    # an open loop
//! ```
//!
//! A worker is a task with one call in flight. In a closed loop a worker starts the next call when the
//! previous one is answered. In an open loop (`--rate`) each call has an intended start, and its latency
//! counts from then. So it includes the time that calls wait while the server stalls.

mod ids;
mod open_loop;
mod schedule;
mod stats;
mod workers;

use std::error::Error;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use hdrhistogram::Histogram;
use rlaas_client::Client;
use serde_json::{Value, json};

use ids::Distribution;
use open_loop::minimize_timer_slack;
use schedule::{LoadPlan, Schedule};
use stats::LoadStats;
use workers::Workers;

/// Which load, on which server. The API key is that of `RLAAS_API_KEY`.
#[derive(Clone, Debug, Parser)]
struct Options {
    #[arg(long, default_value = "http://127.0.0.1:50051")]
    addr: String,
    /// Connections to the server
    #[arg(long, default_value_t = 4)]
    connections: u16,
    /// Calls in flight on each connection
    #[arg(long, default_value_t = 32)]
    streams: u16,
    /// Calls per second: an open loop
    #[arg(long)]
    rate: Option<NonZeroU32>,
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    duration: Duration,
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
    warm_up: Duration,
    /// Different user ids
    #[arg(long, default_value_t = 1000)]
    ids: u32,
    /// uniform, zipf or zipf:EXPONENT
    #[arg(long, default_value = "uniform")]
    distribution: Distribution,
    #[arg(long, default_value = "")]
    resource: String,
    /// The only form of the result
    #[arg(long)]
    json: bool,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let mut client = Client::builder(&options.addr);
    if let Some(key) = std::env::var("RLAAS_API_KEY").ok().filter(|key| !key.is_empty()) {
        client = client.api_key(&key);
    }
    let clients = workers::connect(&client, options.connections).await?;
    let Options { rate, warm_up, duration, .. } = options;
    let schedule = Arc::new(Schedule::start(LoadPlan { rate, warm_up, duration }));
    let mut workers = Workers::start(&clients, &options, &schedule);
    minimize_timer_slack();
    let pacing = Arc::clone(&schedule);
    thread::Builder::new().name("pace".to_owned()).spawn(move || pacing.pace())?;
    workers.finished().await?;
    let stats = workers.stats();
    println!("{}", report(&stats, &schedule));
    Ok(())
}

/// Returns the counts and latencies of the measured calls.
#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn report(stats: &LoadStats, schedule: &Schedule) -> Value {
    let until = schedule.measured_until().max(stats.last_start);
    let elapsed = until.saturating_sub(schedule.plan().warm_up);
    let decisions = stats.allowed + stats.denied;
    json!({
        "elapsedSeconds": elapsed.as_secs_f64(),
        "decisionsPerSecond": decisions as f64 / elapsed.as_secs_f64(),
        "allowed": stats.allowed,
        "denied": stats.denied,
        "errors": stats.errors,
        "latencyUs": latency(&stats.answered),
        // Calls of an open loop that were due and never sent.
        "unsent": schedule.due().saturating_sub(schedule.taken()),
    })
}

/// Returns latencies in microseconds.
#[expect(clippy::cast_precision_loss, reason = "a histogram has three digits")]
fn latency(latencies: &Histogram<u64>) -> Value {
    let at = |quantile| (latencies.value_at_quantile(quantile) as f64 / 10.0).round() / 100.0;
    json!({ "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": at(1.0) })
}
