//! `rlaas bench`: a load generator over gRPC.
//!
//! [`rlaas_client::load`] makes the calls and counts them. This module has the options, the progress
//! line and the report.

mod options;
mod report;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use rlaas_client::load::{Load, LoadError, LoadStats, Measured};
use tokio::time::{MissedTickBehavior, interval};

pub use self::options::BenchArgs;
use self::report::{Report, format_nanos, per_second};
use crate::client::runtime;
use crate::signals::Signals;
use crate::{EXIT_NO_RESPONSE, exit_code};

const SECOND: Duration = Duration::from_secs(1);
/// Moves to the beginning of the line, and clears it.
const CLEAR_LINE: &str = "\r\x1b[2K";

/// Loads a server, and prints the report. Returns the exit code.
pub fn run(args: &BenchArgs) -> ExitCode {
    exit_code(bench(args), EXIT_NO_RESPONSE)
}

/// Returns `true` if something was decided.
fn bench(args: &BenchArgs) -> anyhow::Result<bool> {
    let measured = runtime()?.block_on(load(args))?;
    let report = Report { args, measured: &measured };
    println!("{}", if args.json { report.to_json() } else { report.to_text() });
    Ok(measured.stats.measured.decisions() > 0)
}

/// Loads the server until the plan is complete or the first signal arrives. After a second signal,
/// calls in flight are not waited for.
async fn load(args: &BenchArgs) -> anyhow::Result<Measured> {
    let signals = Signals::listen()?;
    let (server, settings) = (args.server.endpoint()?.with_api_key(&args.api_key), args.settings());
    let begun = tokio::select! {
        begun = Load::start(&server.client, &settings) => begun,
        () = signals.nth(1) => bail!("interrupted before the load began"),
    };
    let mut load = begun.map_err(|error| match error {
        LoadError::Connect(error) => server.explain_connect(error),
        other => other.into(),
    })?;
    let is_terminal = io::stderr().is_terminal();
    let (mut stats, mut last) = (LoadStats::default(), Duration::ZERO);
    let mut second = interval(SECOND);
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    second.tick().await;
    loop {
        tokio::select! {
            finished = load.finished() => {
                finished?;
                break;
            }
            _ = second.tick() => {
                let (last_second, now) = (load.take_stats(), load.elapsed());
                let line = progress(&load, &last_second, now.saturating_sub(last));
                // A closed standard error must not stop the run.
                let _unread = if is_terminal {
                    write!(io::stderr(), "{CLEAR_LINE}{line}")
                } else if args.progress {
                    writeln!(io::stderr(), "{line}")
                } else {
                    Ok(())
                };
                last = now;
                stats.add(&last_second);
            }
            () = signals.nth(1), if !load.is_stopped() => load.stop(),
            () = signals.nth(2) => break,
        }
    }
    if is_terminal {
        let _unread = write!(io::stderr(), "{CLEAR_LINE}");
    }
    Ok(load.measured(stats)?)
}

/// Returns a line about the calls of this last time.
fn progress(load: &Load, stats: &LoadStats, time: Duration) -> String {
    let rate = per_second(stats.warm_up.calls + stats.measured.calls, time);
    if stats.measured.calls == 0 && stats.warm_up.calls > 0 {
        return format!("warm-up: {rate:.0} calls/s");
    }
    let at = |quantile| format_nanos(stats.answered.value_at_quantile(quantile));
    let (p50, p99) = (at(0.5), at(0.99));
    let errors: u64 = stats.measured.errors().map(|(_, requests)| requests).sum();
    let left = load.measured_until().map(|until| until.saturating_sub(load.elapsed()));
    let left = left.map(|left| format!("; {:.0}s left", left.as_secs_f64())).unwrap_or_default();
    format!("{rate:.0} calls/s, p50 {p50}, p99 {p99}, {errors} errors{left}")
}
