//! A distribution of lengths of time, on a logarithmic axis.

use std::fmt::Write;

use rlaas_core::clock::Micros;

use super::axis::{AxisTick, CountAxis, LogAxis};
use super::figure::{
    BOTTOM, ChartTable, Figure, HEIGHT, empty_drawing, horizontal_axis, vertical_axis, x_at, y_at,
};
use super::numbers::{as_f64, count_text, length_text, share_text};

/// Lengths of time that are marked on the axis, in milliseconds.
const MARKED_MS: [u64; 14] = [
    1,
    10,
    100,
    1_000,
    10_000,
    60_000,
    600_000,
    3_600_000,
    21_600_000,
    86_400_000,
    604_800_000,
    2_592_000_000,
    31_536_000_000,
    315_360_000_000,
];

/// A distribution of lengths of time.
#[derive(Clone, Debug)]
pub struct HistogramChart<'a> {
    /// Title.
    pub title: &'a str,
    /// What is counted, in the plural.
    pub unit: &'a str,
    /// Name of the lengths of time.
    pub length: &'a str,
    /// The bars, from the shortest length up, none of which overlap.
    pub bars: Vec<DurationBar>,
    /// What is shown if there are no bars.
    pub empty: &'a str,
}

/// Counts of lengths of time within bounds.
#[derive(Clone, Copy, Debug)]
pub struct DurationBar {
    /// Lower bound, which is not included. Zero is drawn as a tenth of the upper bound.
    pub above: Micros,
    /// Upper bound.
    pub up_to: Micros,
    /// Count.
    pub count: u64,
}

impl DurationBar {
    fn bounds(self) -> (f64, f64) {
        let up_to = as_f64(self.up_to.as_micros().max(1));
        let above = as_f64(self.above.as_micros());
        (if above > 0.0 { above.min(up_to / 1.01) } else { up_to / 10.0 }, up_to)
    }
}

impl HistogramChart<'_> {
    /// Returns the chart as an HTML figure.
    pub fn figure(&self) -> String {
        let total: u64 = self.bars.iter().map(|bar| bar.count).sum();
        let drawing = match (self.bars.first(), self.bars.last()) {
            (Some(first), Some(last)) if total > 0 => {
                self.drawing(LogAxis::new(first.bounds().0, last.bounds().1))
            }
            _ => empty_drawing(self.empty),
        };
        let most = self.bars.iter().max_by_key(|bar| bar.count).filter(|_| total > 0);
        let description = most.map_or_else(
            || self.empty.to_owned(),
            |bar| {
                let (above, up_to) = (length_text(bar.above), length_text(bar.up_to));
                let (count, total) = (count_text(bar.count), count_text(total));
                format!("{count} of {total} {} above {above} and up to {up_to}", self.unit)
            },
        );
        let (title, table) = (self.title, self.table(total));
        let table = if total == 0 { ChartTable::default() } else { table };
        let legend = Vec::new();
        Figure { title, description, height: HEIGHT, legend, drawing, table: &table }.html()
    }

    fn drawing(&self, axis: LogAxis) -> String {
        let largest = self.bars.iter().map(|bar| bar.count).max().unwrap_or_default();
        let counts = CountAxis::new(largest);
        let mut drawing = vertical_axis(&counts.ticks(), self.unit);
        for bar in self.bars.iter().filter(|bar| bar.count > 0) {
            let (above, up_to) = bar.bounds();
            let (from, to) = (x_at(axis.place(above)), x_at(axis.place(up_to)));
            // At least a pixel, so that few are told from none.
            let height = (BOTTOM - y_at(counts.place(bar.count))).max(1.0);
            let _infallible = writeln!(
                drawing,
                "<rect class=\"bar t1\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\">\
                 <title>above {} and up to {}: {}</title></rect>",
                from + 0.5,
                BOTTOM - height,
                (to - from - 1.0).max(1.0),
                length_text(bar.above),
                length_text(bar.up_to),
                count_text(bar.count)
            );
        }
        let marks = MARKED_MS.iter().map(|millis| {
            let length = Micros::from_millis(*millis);
            let place = axis.place(as_f64(length.as_micros()));
            AxisTick { place, label: length_text(length) }
        });
        let marks: Vec<AxisTick> =
            marks.filter(|mark| (-0.001..=1.001).contains(&mark.place)).collect();
        let marks = if marks.is_empty() { self.bounds_as_marks(axis) } else { marks };
        drawing.push_str(&horizontal_axis(&marks, self.length));
        drawing
    }

    /// Returns marks at the bounds of the bars, for an axis without round lengths.
    fn bounds_as_marks(&self, axis: LogAxis) -> Vec<AxisTick> {
        let mark = |bar: &DurationBar| AxisTick {
            place: axis.place(bar.bounds().1),
            label: length_text(bar.up_to),
        };
        self.bars.iter().map(mark).collect()
    }

    fn table(&self, total: u64) -> ChartTable {
        let head = [self.length, self.unit, "share"].map(str::to_owned).to_vec();
        let row = |bar: &DurationBar| {
            let bounds = format!("> {} to {}", length_text(bar.above), length_text(bar.up_to));
            vec![bounds, count_text(bar.count), share_text(bar.count, total)]
        };
        ChartTable { head, rows: self.bars.iter().map(row).collect() }
    }
}
