//! The report of a run, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use rlaas_client::load::{Counts, Measured, RateReport};
use serde::Serialize;

use super::options::BenchArgs;

/// The report of a run. Its JSON form is for scripts.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    method: &'static str,
    connections: u16,
    streams: u16,
    threads: u16,
    ids: u32,
    distribution: String,
    seed: u64,
    batch: Option<u16>,
    warm_up_seconds: f64,
    elapsed_seconds: f64,
    interrupted: bool,
    calls: u64,
    calls_per_second: f64,
    decisions: u64,
    decisions_per_second: f64,
    #[serde(flatten)]
    outcomes: Outcomes,
    /// More than half of the decisions are denials.
    mostly_denied: bool,
    failed_calls: u64,
    unanswered_calls: u64,
    first_error: Option<String>,
    /// Calls before measuring began.
    warm_up: WarmUp,
    latency_us: Option<Latency>,
    failed_latency_us: Option<Latency>,
    start_delay_us: Option<Latency>,
    target: Option<TargetReport>,
}

/// Numbers of requests by their result.
#[derive(Debug, Serialize)]
struct Outcomes {
    allowed: u64,
    denied: u64,
    errors: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Serialize)]
struct WarmUp {
    calls: u64,
    decisions: u64,
    #[serde(flatten)]
    outcomes: Outcomes,
}

/// Latencies in microseconds.
#[derive(Debug, Serialize)]
struct Latency {
    min: f64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TargetReport {
    calls_per_second: u32,
    reached: bool,
    unsent: u64,
    behind_seconds: f64,
}

impl Report {
    pub(super) fn new(args: &BenchArgs, measured: &Measured) -> Self {
        let Measured { stats, elapsed, .. } = measured;
        let counts = &stats.measured;
        let start_delay = measured.rate.and_then(|_| Latency::from_histogram(&stats.start_delay));
        Self {
            method: if args.batch.is_some() { "CheckBatch" } else { "Check" },
            connections: args.connections,
            streams: args.streams,
            threads: args.threads,
            ids: args.ids,
            distribution: args.distribution.to_string(),
            seed: args.seed,
            batch: args.batch,
            warm_up_seconds: args.warm_up.as_secs_f64(),
            elapsed_seconds: elapsed.as_secs_f64(),
            interrupted: measured.is_interrupted,
            calls: counts.calls,
            calls_per_second: per_second(counts.calls, *elapsed),
            decisions: counts.decisions(),
            decisions_per_second: per_second(counts.decisions(), *elapsed),
            outcomes: Outcomes::new(counts),
            mostly_denied: counts.denied > counts.allowed,
            failed_calls: counts.failed_calls,
            unanswered_calls: measured.unanswered,
            first_error: counts.first_error.clone(),
            warm_up: WarmUp::new(&stats.warm_up),
            latency_us: Latency::from_histogram(&stats.answered),
            failed_latency_us: Latency::from_histogram(&stats.failed),
            start_delay_us: start_delay,
            target: measured.rate.map(TargetReport::new),
        }
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts, numbers and booleans are JSON")
    }

    /// Returns one line with the settings of the run.
    pub(super) fn title(&self) -> String {
        let Self { method, connections, streams, threads, ids, distribution, .. } = self;
        let batch = self.batch.map(|size| format!(" of {size}")).unwrap_or_default();
        let pace = match &self.target {
            Some(target) => format!("{} calls/s", target.calls_per_second),
            None => "as fast as possible".to_owned(),
        };
        format!(
            "{method}{batch}, {pace}: connections {connections}, streams {streams}, \
             threads {threads}, ids {ids} ({distribution})"
        )
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = self.title();
        let interrupted = if self.interrupted { ", interrupted" } else { "" };
        let _infallible = write!(
            text,
            "\nmeasured {:.2?}{interrupted}\n\n",
            Duration::from_secs_f64(self.elapsed_seconds)
        );
        let rows = [
            ("calls", self.calls, Some(self.calls_per_second)),
            ("decisions", self.decisions, Some(self.decisions_per_second)),
            ("  allowed", self.outcomes.allowed, None),
            ("  denied", self.outcomes.denied, None),
            ("errors", self.outcomes.errors.values().sum(), None),
        ];
        for (name, count, rate) in rows {
            let rate = rate.map(|rate| format!(" {rate:>12.1}/s")).unwrap_or_default();
            let _infallible = writeln!(text, "{name:<12}{count:>12}{rate}");
        }
        for (code, count) in &self.outcomes.errors {
            let _infallible = writeln!(text, "  {code:<18}{count:>4}");
        }
        if let Some(error) = &self.first_error {
            let _infallible = writeln!(text, "  first error: {error}");
        }
        if self.unanswered_calls > 0 {
            let _infallible = writeln!(text, "{:<12}{:>12}", "unanswered", self.unanswered_calls);
        }
        text.push_str("\n                   p50       p90       p99     p99.9       max\n");
        let rows = [
            ("latency", &self.latency_us),
            ("failed", &self.failed_latency_us),
            ("start delay", &self.start_delay_us),
        ];
        for (name, latency) in rows {
            let Some(latency) = latency else { continue };
            let _infallible = writeln!(text, "{name:<12}{}", latency.to_row());
        }
        if self.mostly_denied {
            let Self { outcomes: Outcomes { denied, .. }, decisions, .. } = self;
            let _infallible = write!(
                text,
                "\nmostly denied: {denied} of {decisions} decisions. A denial takes no units and may \
                 cost less than\nan allowed request: raise the limit or --ids to measure those.\n"
            );
        }
        if let Some(target) = &self.target {
            let _infallible = write!(text, "\n{}\n", target.to_text(self.calls_per_second));
        }
        text.truncate(text.trim_end().len());
        text
    }
}

impl Outcomes {
    fn new(counts: &Counts) -> Self {
        let Counts { allowed, denied, .. } = *counts;
        Self { allowed, denied, errors: counts.errors().collect() }
    }
}

impl WarmUp {
    fn new(counts: &Counts) -> Self {
        Self { calls: counts.calls, decisions: counts.decisions(), outcomes: Outcomes::new(counts) }
    }
}

impl Latency {
    /// Returns `None` for an empty histogram.
    fn from_histogram(histogram: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| micros(histogram.value_at_quantile(quantile));
        (!histogram.is_empty()).then(|| Self {
            min: at(0.0),
            mean: (histogram.mean() / 10.0).round() / 100.0,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: micros(histogram.max()),
        })
    }

    fn to_row(&self) -> String {
        let Self { p50, p90, p99, p999, max, .. } = *self;
        let mut row = String::new();
        for micros in [p50, p90, p99, p999, max] {
            let time = format!("{:.2?}", Duration::from_secs_f64(micros / 1e6));
            let _infallible = write!(row, "{time:>10}");
        }
        row
    }
}

impl TargetReport {
    fn new(target: RateReport) -> Self {
        Self {
            calls_per_second: target.rate,
            reached: target.is_reached,
            unsent: target.unsent,
            behind_seconds: target.behind.as_secs_f64(),
        }
    }

    fn to_text(&self, calls_per_second: f64) -> String {
        let Self { calls_per_second: target, reached, unsent, behind_seconds } = self;
        if *reached {
            return format!("target: {target} calls/s reached");
        }
        let behind = Duration::from_secs_f64(*behind_seconds);
        format!(
            "target: NOT reached: {calls_per_second:.1} of {target} calls/s; the last call started \
             {behind:.2?} late,\n{unsent} calls were due and never sent. Latencies of such a run \
             grow with its length: choose a lower --rate."
        )
    }
}

/// Returns a rate; zero if no time has passed.
#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
pub(super) fn per_second(count: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { count as f64 / elapsed.as_secs_f64() }
}

/// Formats a duration with its unit, such as `1.5ms`.
pub(super) fn format_nanos(nanos: u64) -> String {
    format!("{:.2?}", Duration::from_nanos(nanos))
}

/// Converts to microseconds with two decimals, more than the precision of the histogram.
#[expect(clippy::cast_precision_loss, reason = "a histogram has three digits")]
fn micros(nanos: u64) -> f64 {
    (nanos as f64 / 10.0).round() / 100.0
}
