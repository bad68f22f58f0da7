//! The options of `rlaas bench` and their validation.

use std::num::NonZeroU32;
use std::time::Duration;

use clap::{Args, value_parser};
use rlaas_client::load::{Distribution, Length, LoadPlan, LoadSettings};

use crate::client::{ProjectKeyArgs, ServerArgs};

/// Load a running server and measure it
///
/// Without --rate, each call starts as soon as an earlier one completes (closed loop): this finds
/// the maximum throughput. With --rate, each call has a scheduled start time, and its latency is
/// measured from that time (open loop): if the server stalls, it includes the time that a call
/// waits to be sent.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(flatten)]
    pub(super) server: ServerArgs,
    #[command(flatten)]
    pub(super) api_key: ProjectKeyArgs,
    /// Connections to the server
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u16).range(1..=1000))]
    pub(super) connections: u16,
    /// Calls in flight on each connection
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = value_parser!(u16).range(1..=1000))]
    pub(super) streams: u16,
    /// Total calls per second, evenly spaced: open loop [default: closed loop]
    #[arg(long, value_name = "R", value_parser = rate)]
    pub(super) rate: Option<NonZeroU32>,
    /// How long to measure, such as 500ms, 10s or 5m [default: 10s]
    #[arg(long, value_name = "D", value_parser = duration, conflicts_with = "calls")]
    duration: Option<Duration>,
    /// Number of calls to measure, instead of a duration
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000_000_000))]
    calls: Option<u64>,
    /// How long to load the server before measuring
    #[arg(long, value_name = "D", default_value = "2s", value_parser = pause)]
    pub(super) warm_up: Duration,
    /// Number of different user ids
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = value_parser!(u32).range(1..=10_000_000))]
    pub(super) ids: u32,
    /// Distribution of ids: uniform, zipf or zipf:EXPONENT
    #[arg(long, value_name = "NAME", default_value = "uniform")]
    pub(super) distribution: Distribution,
    /// Seed of the random ids: the same seed gives the same ids
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Cost of each request, in units [default: unset, which means 1]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(0..=u64::from(u32::MAX)))]
    pub(super) cost: Option<u64>,
    /// Resource of each request, such as a path
    #[arg(long, visible_alias = "endpoint", default_value = "", hide_default_value = true)]
    pub(super) resource: String,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Show progress even if standard error is not a terminal
    #[arg(long)]
    pub(super) progress: bool,
}

impl BenchArgs {
    pub(super) fn settings(&self) -> LoadSettings {
        let length = match self.calls {
            Some(calls) => Length::Calls(calls),
            None => Length::Duration(self.duration.unwrap_or(Duration::from_secs(10))),
        };
        LoadSettings {
            plan: LoadPlan { rate: self.rate, warm_up: self.warm_up, length },
            connections: self.connections,
            streams: self.streams,
            ids: self.ids,
            distribution: self.distribution,
            seed: self.seed,
            resource: self.resource.clone(),
            cost: self.cost,
        }
    }
}

fn rate(text: &str) -> Result<NonZeroU32, &'static str> {
    const MAX_RATE: u32 = 10_000_000;
    let rate = text.parse().ok().filter(|rate: &NonZeroU32| rate.get() <= MAX_RATE);
    rate.ok_or("must be a whole number of calls per second from 1 to 10000000")
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    let duration = pause(text).ok().filter(|duration| *duration >= Duration::from_millis(1));
    duration.ok_or("must be a duration from 1ms to 1d, such as 10s; a number is seconds")
}

fn pause(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.parse().ok().map(Duration::from_secs);
    let pause = seconds.or_else(|| humantime::parse_duration(text).ok());
    let pause = pause.filter(|pause| *pause <= Duration::from_hours(24));
    pause.ok_or("must be a duration from 0s to 1d, such as 2s; a number is seconds")
}
