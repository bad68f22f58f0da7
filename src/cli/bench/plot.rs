//! Latency by percentile: as text for HdrHistogram's plotter, and as an SVG plot.

use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Points on the curve per halving of the distance to 100 %.
const STEPS_PER_HALVING: u32 = 5;
/// Sub-buckets of a histogram with three significant digits.
const SUB_BUCKETS: u32 = 2048;

/// Maximum number of horizontal grid lines above zero.
const MAX_LINES: u32 = 6;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;

const X_AXIS: &str = "percentile of calls (logarithmic towards 100 %)";
const Y_AXIS: &str = "latency";

/// A point of the distribution: `calls` calls, the share `quantile` of all, took at most `latency`.
struct Point {
    latency: Duration,
    quantile: f64,
    calls: u64,
}

/// Returns the percentile distribution as text, in milliseconds.
///
/// **Source:** `AbstractHistogram.outputPercentileDistribution` of `HdrHistogram`.
pub(super) fn distribution(latencies: &Histogram<u64>) -> String {
    let mut text = String::from("       Value     Percentile TotalCount 1/(1-Percentile)\n\n");
    for Point { latency, quantile, calls } in points(latencies) {
        let millis = latency.as_secs_f64() * 1e3;
        let _infallible = write!(text, "{millis:12.6} {quantile:2.12} {calls:10}");
        if quantile < 1.0 {
            let _infallible = write!(text, " {:14.2}", 1.0 / (1.0 - quantile));
        }
        text.push('\n');
    }
    let millis = |nanos: f64| nanos / 1e6;
    let (mean, deviation) = (millis(latencies.mean()), millis(latencies.stdev()));
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

/// Returns the plot. Its colours are readable on light and dark backgrounds; the x axis is logarithmic
/// in the number of nines of the percentile.
pub(super) fn svg(latencies: &Histogram<u64>, title: &str) -> String {
    let axes = Axes::new(latencies);
    let mut curve = String::new();
    for Point { latency, quantile, .. } in points(latencies) {
        let _infallible = write!(curve, "{:.1},{:.1} ", axes.x(quantile), axes.y(latency));
    }
    let grid = axes.grid();
    let centre = f64::midpoint(LEFT, WIDTH - RIGHT);
    let middle = f64::midpoint(TOP, HEIGHT - BOTTOM);
    let bottom = HEIGHT - 12.0;
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" fill="#808080">
<text x="{centre}" y="20" text-anchor="middle">{title}</text>
<text x="{centre}" y="{bottom}" text-anchor="middle">{X_AXIS}</text>
<text x="20" y="{middle}" text-anchor="middle" transform="rotate(-90 20 {middle})">{Y_AXIS}</text>
{grid}<polyline points="{}" fill="none" stroke="#2f81f7" stroke-width="2" stroke-linejoin="round"/>
</svg>
"##,
        curve.trim_end()
    )
}

fn points(latencies: &Histogram<u64>) -> impl Iterator<Item = Point> {
    let mut calls = 0;
    latencies.iter_quantiles(STEPS_PER_HALVING).map(move |step| {
        calls += step.count_since_last_iteration();
        Point {
            // The upper bound of a bucket can be above the maximum that was recorded.
            latency: Duration::from_nanos(step.value_iterated_to().min(latencies.max())),
            quantile: step.quantile_iterated_to(),
            calls,
        }
    })
}

/// Maps percentiles and latencies to coordinates.
struct Axes {
    /// Nines at the right end of the x axis: 3 is 99.9 %.
    nines: u32,
    /// Position at which 100 % is drawn, in nines. On this axis 100 % is at infinity, so the position is
    /// that of a single call among all.
    end: f64,
    /// Latency between two horizontal grid lines.
    step: Duration,
    lines: u32,
}

impl Axes {
    fn new(latencies: &Histogram<u64>) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "only its logarithm is used")]
        let end = (latencies.len().max(1) as f64).log10();
        let nines = (1..20).find(|nines| f64::from(*nines) >= end).unwrap_or(20);
        let max = Duration::from_nanos(latencies.max().max(1));
        let step = step(max);
        let lines = (1..=MAX_LINES).find(|lines| step * *lines >= max).unwrap_or(MAX_LINES);
        Self { nines, end, step, lines }
    }

    fn x(&self, quantile: f64) -> f64 {
        let nines = if quantile < 1.0 { -(1.0 - quantile).log10() } else { self.end };
        self.x_of(nines.min(self.end))
    }

    fn x_of(&self, nines: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * nines / f64::from(self.nines)
    }

    fn y(&self, latency: Duration) -> f64 {
        let top = self.step * self.lines;
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * latency.div_duration_f64(top)
    }

    fn grid(&self) -> String {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let mut grid = String::new();
        for nines in 0..=self.nines {
            let (x, label) = (self.x_of(f64::from(nines)), percentile(nines));
            let _infallible = writeln!(
                grid,
                r##"<path d="M{x:.1} {TOP}V{bottom}" stroke="#808080" stroke-opacity="0.3"/><text x="{x:.1}" y="{}" text-anchor="middle">{label}</text>"##,
                bottom + 20.0
            );
        }
        for line in 0..=self.lines {
            let latency = self.step * line;
            let y = self.y(latency);
            let label = if line == 0 { "0".to_owned() } else { format!("{latency:?}") };
            let _infallible = writeln!(
                grid,
                r##"<path d="M{LEFT} {y:.1}H{right}" stroke="#808080" stroke-opacity="0.3"/><text x="{}" y="{:.1}" text-anchor="end">{label}</text>"##,
                LEFT - 8.0,
                y + 4.0
            );
        }
        grid
    }
}

/// Returns the distance of the grid lines: 1, 2 or 5 times a power of ten, with at most `MAX_LINES`
/// lines.
fn step(max: Duration) -> Duration {
    let units = (0..).map(|exponent| Duration::from_nanos(10_u64.pow(exponent)));
    let mut steps = units.flat_map(|unit| [unit, unit * 2, unit * 5]);
    steps.find(|step| *step * MAX_LINES >= max).expect("the sequence has no end")
}

/// Returns the name of the percentile with this many nines.
fn percentile(nines: u32) -> String {
    match nines {
        0 => "0 %".to_owned(),
        1 => "90 %".to_owned(),
        2 => "99 %".to_owned(),
        more => format!("99.{} %", "9".repeat(more as usize - 2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_lines_are_at_round_latencies() {
        for (max, expected) in [(6, 1), (7, 2), (12, 2), (13, 5), (31, 10), (54_000, 10_000)] {
            let step = step(Duration::from_micros(max));
            assert_eq!(step, Duration::from_micros(expected), "{max}");
        }
        assert_eq!(step(Duration::from_hours(2)), Duration::from_secs(2_000));
    }

    #[test]
    fn percentiles_are_named_by_their_nines() {
        let names = [0, 1, 2, 3, 5].map(percentile);
        assert_eq!(names, ["0 %", "90 %", "99 %", "99.9 %", "99.999 %"]);
    }
}
