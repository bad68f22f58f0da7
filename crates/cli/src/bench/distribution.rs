//! The latency distribution as text for `HdrHistogram`'s plotter.

use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Rows per halving of the distance to 100 %.
const STEPS_PER_HALVING: u32 = 5;
/// Sub-buckets of a histogram with three significant digits.
const SUB_BUCKETS: u32 = 2048;

/// Returns the percentile distribution as text, in milliseconds.
///
/// **Source:** `AbstractHistogram.outputPercentileDistribution` of `HdrHistogram`.
pub(super) fn distribution(latencies: &Histogram<u64>) -> String {
    let mut text = String::from("       Value     Percentile TotalCount 1/(1-Percentile)\n\n");
    let mut calls = 0;
    for step in latencies.iter_quantiles(STEPS_PER_HALVING) {
        calls += step.count_since_last_iteration();
        // The upper bound of a bucket can be above the maximum that was recorded.
        let latency = Duration::from_nanos(step.value_iterated_to().min(latencies.max()));
        let (millis, quantile) = (latency.as_secs_f64() * 1e3, step.quantile_iterated_to());
        let _infallible = write!(text, "{millis:12.6} {quantile:2.12} {calls:10}");
        if quantile < 1.0 {
            let _infallible = write!(text, " {:14.2}", 1.0 / (1.0 - quantile));
        }
        text.push('\n');
    }
    let (mean, deviation) = (latencies.mean() / 1e6, latencies.stdev() / 1e6);
    let max = Duration::from_nanos(latencies.max()).as_secs_f64() * 1e3;
    let (calls, buckets) = (latencies.len(), latencies.buckets());
    let _infallible = writeln!(
        text,
        "#[Mean    = {mean:12.6}, StdDeviation   = {deviation:12.6}]\n\
         #[Max     = {max:12.6}, Total count    = {calls:12}]\n\
         #[Buckets = {buckets:12}, SubBuckets     = {SUB_BUCKETS:12}]"
    );
    text
}
