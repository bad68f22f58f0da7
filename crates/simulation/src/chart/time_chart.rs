//! Counts over time: lines, areas, or areas on top of each other.

use std::fmt::Write;

use rlaas_core::clock::{Micros, Timestamp};

use super::axis::{CountAxis, TimeAxis};
use super::figure::{
    BOTTOM, ChartTable, Figure, HEIGHT, LegendEntry, Tone, area_mark, empty_drawing,
    horizontal_axis, line_mark, vertical_axis, x_at, y_at,
};
use super::numbers::{count_text, length_text};

/// Most buckets that are drawn. More are added up, several to one.
const MAX_BUCKETS: usize = 80;

/// Counts over time.
#[derive(Clone, Debug)]
pub struct TimeChart<'a> {
    /// Title.
    pub title: &'a str,
    /// What is counted, in the plural.
    pub unit: &'a str,
    /// Begin of the first bucket.
    pub from: Timestamp,
    /// Length of each bucket.
    pub bucket: Micros,
    /// What is drawn, from the back to the front.
    pub series: Vec<ChartSeries<'a>>,
    /// Whether areas stand on top of each other.
    pub stacking: Stacking,
}

/// Counts of one kind.
#[derive(Clone, Debug)]
pub struct ChartSeries<'a> {
    /// Name.
    pub name: &'a str,
    /// Colour and dashes.
    pub tone: Tone,
    /// Form.
    pub form: SeriesForm,
    /// Count of each bucket. Buckets that are missing at the end count nothing.
    pub counts: &'a [u64],
}

/// The form of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesForm {
    /// A line.
    Line,
    /// An area down to the axis.
    Area,
}

/// Where the areas of a chart stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stacking {
    /// Each on the axis.
    None,
    /// Each on the one before it.
    Stacked,
}

impl TimeChart<'_> {
    /// Returns the chart as an HTML figure.
    pub fn figure(&self) -> String {
        let merged = self.merged();
        let buckets = merged.counts.iter().map(Vec::len).max().unwrap_or_default();
        let table = self.table(&merged, buckets);
        let until = merged.time_of(buckets);
        let (name, drawing) = if buckets == 0 {
            (String::new(), empty_drawing("no data"))
        } else {
            self.drawing(&merged, buckets)
        };
        let totals = self.series.iter().map(|one| {
            let total: u64 = one.counts.iter().sum();
            format!("{} {}", count_text(total), one.name)
        });
        let totals: Vec<String> = totals.collect();
        let description = format!(
            "{}; {}, from {} until {}",
            totals.join(", "),
            name,
            utc_text(self.from),
            utc_text(until)
        );
        let legend = self.series.iter().map(|one| LegendEntry {
            mark: match one.form {
                SeriesForm::Line => line_mark(one.tone),
                SeriesForm::Area => area_mark("area", one.tone),
            },
            name: one.name.to_owned(),
        });
        let legend = legend.collect();
        Figure { title: self.title, description, height: HEIGHT, legend, drawing, table: &table }
            .html()
    }

    /// Adds up buckets until there are few enough.
    fn merged(&self) -> MergedBuckets {
        let buckets = self.series.iter().map(|one| one.counts.len()).max().unwrap_or_default();
        let each = buckets.div_ceil(MAX_BUCKETS).max(1);
        let counts = self.series.iter().map(|one| {
            let sums = one.counts.chunks(each).map(|chunk| chunk.iter().sum());
            let mut sums: Vec<u64> = sums.collect();
            sums.resize(buckets.div_ceil(each), 0);
            sums
        });
        let length = Micros::from_micros(self.bucket.as_micros().saturating_mul(each as u64));
        MergedBuckets { from: self.from, length, counts: counts.collect() }
    }

    /// Returns the name of the vertical axis, and the drawing.
    fn drawing(&self, merged: &MergedBuckets, buckets: usize) -> (String, String) {
        let time = TimeAxis::new(self.from, merged.time_of(buckets));
        let tops = merged.tops(self.stacking);
        let largest = tops.iter().flatten().copied().max().unwrap_or_default();
        let axis = CountAxis::new(largest);
        let name = format!("{} per {}", self.unit, length_text(merged.length));
        let mut drawing = vertical_axis(&axis.ticks(), &name);
        // The highest areas are at the back.
        for (series, tops) in self.series.iter().zip(&tops).rev() {
            if self.stacking == Stacking::Stacked || series.form == SeriesForm::Area {
                drawing.push_str(&shape(series, tops, axis));
            }
        }
        for (series, tops) in self.series.iter().zip(&tops) {
            if self.stacking == Stacking::None && series.form == SeriesForm::Line {
                drawing.push_str(&shape(series, tops, axis));
            }
        }
        let name_of_time = name_of_time(self.from, merged.time_of(buckets));
        drawing.push_str(&horizontal_axis(&time.ticks(), &name_of_time));
        (name, drawing)
    }

    fn table(&self, merged: &MergedBuckets, buckets: usize) -> ChartTable {
        let names = self.series.iter().map(|one| one.name.to_owned());
        let head = std::iter::once("from (UTC)".to_owned()).chain(names).collect();
        let row = |at: usize| {
            let counts = merged.counts.iter().map(|counts| count_text(counts[at]));
            std::iter::once(utc_text(merged.time_of(at))).chain(counts).collect()
        };
        ChartTable { head, rows: (0..buckets).map(row).collect() }
    }
}

/// Counts of fewer and longer buckets.
struct MergedBuckets {
    from: Timestamp,
    length: Micros,
    /// Of each series.
    counts: Vec<Vec<u64>>,
}

impl MergedBuckets {
    /// Returns the time at which a bucket begins.
    fn time_of(&self, bucket: usize) -> Timestamp {
        self.from + Micros::from_micros(self.length.as_micros().saturating_mul(bucket as u64))
    }

    /// Returns the upper ends of each series.
    fn tops(&self, stacking: Stacking) -> Vec<Vec<u64>> {
        let mut tops = self.counts.clone();
        if stacking == Stacking::Stacked {
            for at in 1..tops.len() {
                let (below, above) = tops.split_at_mut(at);
                for (top, below) in above[0].iter_mut().zip(&below[at - 1]) {
                    *top = top.saturating_add(*below);
                }
            }
        }
        tops
    }
}

/// Returns a series as steps: one for each bucket, so that a single one is seen too.
fn shape(series: &ChartSeries<'_>, tops: &[u64], axis: CountAxis) -> String {
    #[expect(clippy::cast_precision_loss, reason = "few buckets")]
    let x = |bucket: usize| x_at(bucket as f64 / tops.len() as f64);
    let mut path = String::new();
    let mut last = None;
    for (bucket, top) in tops.iter().enumerate() {
        let y = y_at(axis.place(*top));
        let _infallible = match last {
            None => write!(path, "M{:.1} {y:.1}", x(bucket)),
            Some(last) if last == *top => Ok(()),
            Some(_) => write!(path, "H{:.1}V{y:.1}", x(bucket)),
        };
        last = Some(*top);
    }
    let _infallible = write!(path, "H{:.1}", x(tops.len()));
    let tone = series.tone.class();
    let line = format!("<path class=\"line {tone}\" d=\"{path}\"/>\n");
    match series.form {
        SeriesForm::Line => line,
        SeriesForm::Area => {
            format!("<path class=\"area {tone}\" d=\"{path}V{BOTTOM}H{:.1}Z\"/>\n", x(0))
        }
    }
}

/// Returns the name of a time axis: the zone and the dates.
fn name_of_time(from: Timestamp, until: Timestamp) -> String {
    let date = |at| time_in_utc(at, "%Y-%m-%d").unwrap_or_default();
    let (from, until) = (date(from), date(until));
    if from == until {
        format!("time in UTC, {from}")
    } else {
        format!("time in UTC, {from} to {until}")
    }
}

/// Returns a time in UTC to the second, or with the fraction that it has.
pub fn utc_text(at: Timestamp) -> String {
    let has_fraction = !at.as_micros().is_multiple_of(1_000_000);
    let format = if has_fraction { "%Y-%m-%d %H:%M:%S%.f" } else { "%Y-%m-%d %H:%M:%S" };
    time_in_utc(at, format).unwrap_or_else(|| format!("{} µs", at.as_micros()))
}

/// Returns a time in UTC; `None` after the year 9999.
pub(super) fn time_in_utc(at: Timestamp, format: &str) -> Option<String> {
    let at = jiff::Timestamp::from_microsecond(i64::try_from(at.as_micros()).ok()?).ok()?;
    Some(at.to_zoned(jiff::tz::TimeZone::UTC).strftime(format).to_string())
}
