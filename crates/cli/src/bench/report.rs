//! The report of a run, as text and as JSON for scripts.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use rlaas_client::load::{Counts, Measured, RateReport};
use serde_json::{Value, json};

use super::options::BenchArgs;

/// The report of a run.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) args: &'a BenchArgs,
    pub(super) measured: &'a Measured,
}

impl Report<'_> {
    pub(super) fn to_json(&self) -> String {
        let Self { args, measured } = self;
        let Measured { stats, elapsed, rate, .. } = measured;
        let (counts, warm_up) = (&stats.measured, &stats.warm_up);
        let report = json!({
            "connections": args.connections,
            "streams": args.streams,
            "ids": args.ids,
            "distribution": args.distribution.to_string(),
            "seed": args.seed,
            "warmUpSeconds": args.warm_up.as_secs_f64(),
            "elapsedSeconds": elapsed.as_secs_f64(),
            "interrupted": measured.is_interrupted,
            "calls": counts.calls,
            "callsPerSecond": per_second(counts.calls, *elapsed),
            "decisions": counts.decisions(),
            "decisionsPerSecond": per_second(counts.decisions(), *elapsed),
            "allowed": counts.allowed,
            "denied": counts.denied,
            "errors": errors(counts),
            // More than half of the decisions are denials.
            "mostlyDenied": counts.denied > counts.allowed,
            "unansweredCalls": measured.unanswered,
            "firstError": counts.first_error,
            // Before measuring began.
            "warmUp": {
                "calls": warm_up.calls,
                "decisions": warm_up.decisions(),
                "allowed": warm_up.allowed,
                "denied": warm_up.denied,
                "errors": errors(warm_up),
            },
            "latencyUs": latency(&stats.answered),
            "failedLatencyUs": latency(&stats.failed),
            "startDelayUs": rate.and_then(|_| latency(&stats.start_delay)),
            "target": rate.map(|target| json!({
                "callsPerSecond": target.rate,
                "reached": target.is_reached,
                "unsent": target.unsent,
                "behindSeconds": target.behind.as_secs_f64(),
            })),
        });
        report.to_string()
    }

    /// Returns one line with the settings of the run.
    fn title(&self) -> String {
        let BenchArgs { connections, streams, ids, distribution, .. } = self.args;
        let pace = match self.measured.rate {
            Some(target) => format!("{} calls/s", target.rate),
            None => "as fast as possible".to_owned(),
        };
        format!("{pace}: connections {connections}, streams {streams}, ids {ids} ({distribution})")
    }

    pub(super) fn to_text(&self) -> String {
        let Measured { stats, elapsed, rate, unanswered, is_interrupted } = self.measured;
        let (counts, errors) = (&stats.measured, errors(&stats.measured));
        let (calls, decisions) = (counts.calls, counts.decisions());
        let mut text = self.title();
        let interrupted = if *is_interrupted { ", interrupted" } else { "" };
        let _infallible = write!(text, "\nmeasured {elapsed:.2?}{interrupted}\n\n");
        let rows = [
            ("calls", calls, Some(per_second(calls, *elapsed))),
            ("decisions", decisions, Some(per_second(decisions, *elapsed))),
            ("  allowed", counts.allowed, None),
            ("  denied", counts.denied, None),
            ("errors", errors.values().sum(), None),
        ];
        for (name, count, rate) in rows {
            let rate = rate.map(|rate| format!(" {rate:>12.1}/s")).unwrap_or_default();
            let _infallible = writeln!(text, "{name:<12}{count:>12}{rate}");
        }
        for (code, count) in errors {
            let _infallible = writeln!(text, "  {code:<18}{count:>4}");
        }
        if let Some(error) = &counts.first_error {
            let _infallible = writeln!(text, "  first error: {error}");
        }
        if *unanswered > 0 {
            let _infallible = writeln!(text, "{:<12}{unanswered:>12}", "unanswered");
        }
        text.push_str("\n                   p50       p90       p99     p99.9       max\n");
        let start_delay = rate.map(|_| &stats.start_delay);
        let rows = [
            ("latency", Some(&stats.answered)),
            ("failed", Some(&stats.failed)),
            ("start delay", start_delay),
        ];
        for (name, latencies) in rows {
            let Some(latencies) = latencies.filter(|latencies| !latencies.is_empty()) else {
                continue;
            };
            let _infallible = write!(text, "{name:<12}");
            for quantile in [0.5, 0.9, 0.99, 0.999, 1.0] {
                let time = latencies.value_at_quantile(quantile).min(latencies.max());
                let time = format_nanos(time);
                let _infallible = write!(text, "{time:>10}");
            }
            text.push('\n');
        }
        if counts.denied > counts.allowed {
            let _infallible = write!(
                text,
                "\nmostly denied: {} of {decisions} decisions. A denial takes no units and may \
                 cost less than\nan allowed request: raise the limit or --ids to measure those.\n",
                counts.denied
            );
        }
        if let Some(target) = rate {
            let target = target_text(*target, per_second(calls, *elapsed));
            let _infallible = write!(text, "\n{target}\n");
        }
        text.truncate(text.trim_end().len());
        text
    }
}

fn errors(counts: &Counts) -> BTreeMap<&'static str, u64> {
    counts.errors().collect()
}

/// Returns latencies in microseconds; `None` for an empty histogram.
fn latency(latencies: &Histogram<u64>) -> Option<Value> {
    let at = |quantile| micros(latencies.value_at_quantile(quantile));
    (!latencies.is_empty()).then(|| {
        json!({
            "min": at(0.0),
            "mean": (latencies.mean() / 10.0).round() / 100.0,
            "p50": at(0.5),
            "p90": at(0.9),
            "p99": at(0.99),
            "p999": at(0.999),
            "max": micros(latencies.max()),
        })
    })
}

fn target_text(target: RateReport, calls_per_second: f64) -> String {
    let RateReport { rate, is_reached, unsent, behind } = target;
    if is_reached {
        return format!("target: {rate} calls/s reached");
    }
    format!(
        "target: NOT reached: {calls_per_second:.1} of {rate} calls/s; the last call started \
         {behind:.2?} late,\n{unsent} calls were due and never sent. Latencies of such a run \
         grow with its length: choose a lower --rate."
    )
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
