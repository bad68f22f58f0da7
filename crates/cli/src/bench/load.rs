//! Runs the load, shows its progress, and stops it on a signal.

use std::time::Duration;

use anyhow::bail;
use rlaas_client::load::{Load, LoadError, LoadStats, Measured};
use tokio::time::{MissedTickBehavior, interval};

use super::options::BenchArgs;
use super::progress::Progress;
use crate::signals::Signals;

const SECOND: Duration = Duration::from_secs(1);

/// Loads the server until the plan is complete or the first signal arrives. After a second signal,
/// calls in flight are not waited for.
pub(super) async fn run(args: &BenchArgs) -> anyhow::Result<Measured> {
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
    let mut progress = Progress::new(args.progress, settings.plan.warm_up);
    let mut stats = LoadStats::default();
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
                let last_second = load.take_stats();
                progress.show(&load, &last_second);
                stats.add(&last_second);
            }
            () = signals.nth(1), if !load.is_stopped() => load.stop(),
            () = signals.nth(2) => break,
        }
    }
    progress.clear();
    Ok(load.measured(stats)?)
}
