//! Draws the same traffic through all six algorithms, as SVG:
//!
//! ```sh
//! cargo run --example picture > docs/algorithms.svg
//! ```
//!
//! Each row is an algorithm, each bar a request: tall and dark if it is allowed, short and red if it
//! is denied. The library makes the decisions, on a manual clock.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write;
use std::sync::Arc;

use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::{Clock, Deadline, ManualClock, Micros, Timestamp};
use rlaas::rules::{Request, RequestFields, Rule, RuleSet};
use rlaas::store::{MemorySettings, MemoryStore, Store};
use rlaas_limiter::Limiter;
use rlaas_telemetry::metrics::Metrics;

const SIX: [Algorithm; 6] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingWindowLog,
    Algorithm::SlidingWindowCounter,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::Gcra,
];

/// Five requests in ten seconds.
const UNITS: u64 = 5;
const WINDOW: Micros = Micros::from_secs(10);
/// A time at which a fixed window starts.
const START: Timestamp = Timestamp::from_millis(1_700_000_100_000);
const SECONDS: u32 = 40;

const LEFT: f64 = 190.0;
const SECOND: f64 = 18.0;
const ROW: f64 = 46.0;
const TOP: f64 = 40.0;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    print!("{}", render().await?);
    Ok(())
}

/// Draws the whole picture.
pub(crate) async fn render() -> Result<String, Box<dyn Error>> {
    let mut rows = String::new();
    for (row, algorithm) in (0_u32..).zip(&SIX) {
        draw_row(&mut rows, TOP + ROW * f64::from(row), *algorithm).await?;
    }
    let count = u32::try_from(SIX.len())?;
    let width = LEFT + SECOND * f64::from(SECONDS) + 30.0;
    let height = TOP + ROW * f64::from(count) + 20.0;
    let grid = grid(height);
    Ok(format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">
<rect width="{width}" height="{height}" fill="white"/>
<text x="10" y="20" fill="dimgray">limit 5 per 10 s, the same requests through each: dark passes, red is denied</text>
{grid}{rows}</svg>
"#
    ))
}

/// Returns the times of the requests in milliseconds: a burst at the end of a window and one at the start
/// of the next, a steady stream at twice the limit, a pause, a burst.
fn traffic() -> Vec<u64> {
    let mut times: Vec<u64> = (0..6).map(|step| 8_000 + 250 * step).collect();
    times.extend((0..6).map(|step| 10_500 + 250 * step));
    times.extend((0..12).map(|step| 15_000 + 1_000 * step));
    times.extend((0..8).map(|step| 36_000 + 250 * step));
    times
}

async fn draw_row(out: &mut String, top: f64, algorithm: Algorithm) -> Result<(), Box<dyn Error>> {
    let clock = ManualClock::new(START);
    let limiter = limiter(algorithm, &clock)?;
    let attributes = HashMap::new();
    let fields = RequestFields {
        user_id: "alice",
        resource: "",
        attributes: &attributes,
        cost: None,
        dry_run: false,
    };
    let request = Request::new(fields)?;
    let base = top + 32.0;
    let mut passed = 0;
    for millis in traffic() {
        clock.set(START + Micros::from_millis(millis));
        let x = LEFT + SECOND * f64::from(u32::try_from(millis)?) / 1_000.0;
        let (color, height) = if limiter.check(&request, Deadline::NEVER).await?.is_allowed() {
            passed += 1;
            ("#1f3a5f", 26.0)
        } else {
            ("#d1495b", 10.0)
        };
        let y = base - height;
        writeln!(
            out,
            r#"<rect x="{x:.1}" y="{y:.1}" width="3" height="{height}" fill="{color}"/>"#
        )?;
    }
    let name = algorithm.name();
    let of = traffic().len();
    let middle = base - 14.0;
    writeln!(out, r#"<text x="10" y="{middle}">{name}</text>"#)?;
    writeln!(
        out,
        r#"<text x="10" y="{base}" fill="dimgray" font-size="10">{passed} of {of} pass</text>"#
    )?;
    Ok(())
}

fn limiter(algorithm: Algorithm, clock: &ManualClock) -> Result<Limiter, Box<dyn Error>> {
    let rules = RuleSet::new(Rule::new_default(algorithm, Limit::new(UNITS, WINDOW)?), Vec::new());
    let metrics = Arc::new(Metrics::new());
    let clock = Clock::Manual(clock.clone());
    let store = MemoryStore::new(MemorySettings::default(), clock, metrics.clone());
    Ok(Limiter::new(rules, Store::Memory(store), metrics))
}

/// Draws a line for each second, a darker one for each start of a fixed window.
fn grid(height: f64) -> String {
    let mut lines = String::new();
    for second in 0..=SECONDS {
        let x = LEFT + SECOND * f64::from(second);
        let color = if second % 10 == 0 { "#999" } else { "#eee" };
        let _infallible = writeln!(
            lines,
            r#"<line x1="{x}" x2="{x}" y1="{TOP}" y2="{}" stroke="{color}"/>"#,
            height - 20.0
        );
        if second % 10 == 0 {
            let _infallible = writeln!(
                lines,
                r#"<text x="{x}" y="{}" text-anchor="middle" fill="dimgray" font-size="11">{second} s</text>"#,
                height - 6.0
            );
        }
    }
    lines
}
