//! Shares against a number, both on logarithmic axes: what a limit refuses.

use std::fmt::Write;

use super::axis::{AxisTick, LogAxis};
use super::figure::{
    ChartTable, Figure, HEIGHT, LEFT, LegendEntry, RIGHT, Tone, empty_drawing, horizontal_axis,
    line_mark, vertical_axis, x_at, y_at,
};
use super::numbers::{as_f64, count_text};
use super::text::escaped;

/// Part of the vertical axis below the lowest share above 0. A share of 0 is at its bottom.
const ZERO_BAND: f64 = 0.08;

/// Shares against a number.
#[derive(Clone, Debug)]
pub struct CurveChart<'a> {
    /// Title.
    pub title: &'a str,
    /// Name of the number.
    pub number: &'a str,
    /// Name of the share.
    pub share: &'a str,
    /// What is drawn.
    pub lines: Vec<CurveLine<'a>>,
    /// Points that are marked.
    pub marks: Vec<CurveMark>,
    /// The numbers behind the chart.
    pub table: ChartTable,
}

/// One curve.
#[derive(Clone, Debug)]
pub struct CurveLine<'a> {
    /// Name.
    pub name: &'a str,
    /// Colour and dashes.
    pub tone: Tone,
    /// Numbers above 0 in ascending order, with shares from 0 to 1.
    pub points: Vec<(u64, f64)>,
}

/// A point that is marked.
#[derive(Clone, Debug)]
pub struct CurveMark {
    /// Number.
    pub number: u64,
    /// Share, from 0 to 1.
    pub share: f64,
    /// Colour of the curve to which it belongs.
    pub tone: Tone,
    /// What is shown on hovering.
    pub label: String,
}

impl CurveChart<'_> {
    /// Returns the chart as an HTML figure.
    pub fn figure(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let numbers = || points().map(|(number, _)| (*number).max(1));
        let (drawing, description) = match (numbers().min(), numbers().max()) {
            (Some(low), Some(high)) => {
                let marks = self.marks.iter().map(|mark| mark.label.as_str());
                let marks: Vec<&str> = marks.collect();
                let range = format!("for {} from {low} to {}", self.number, count_text(high));
                (self.drawing(low, high), format!("{range}; {}", marks.join("; ")))
            }
            _ => (empty_drawing("no data"), "no data".to_owned()),
        };
        let legend = self
            .lines
            .iter()
            .map(|line| LegendEntry { mark: line_mark(line.tone), name: line.name.to_owned() });
        let (title, legend, table) = (self.title, legend.collect(), &self.table);
        Figure { title, description, height: HEIGHT, legend, drawing, table }.html()
    }

    fn drawing(&self, low: u64, high: u64) -> String {
        let numbers = LogAxis::new(as_f64(low), as_f64(high));
        let shares = self.shares();
        let mut drawing = vertical_axis(&shares.ticks(), self.share);
        for line in &self.lines {
            let mut path = String::new();
            for (number, share) in &line.points {
                let x = x_at(numbers.place(as_f64((*number).max(1))));
                let letter = if path.is_empty() { 'M' } else { 'L' };
                let _infallible = write!(path, "{letter}{x:.1} {:.1}", y_at(shares.place(*share)));
            }
            if line.points.len() == 1 {
                // A single point is drawn as a level.
                let y = line.points.first().map_or(0.0, |(_, share)| y_at(shares.place(*share)));
                path = format!("M{LEFT} {y:.1}H{RIGHT}");
            }
            let _infallible =
                writeln!(drawing, "<path class=\"line {}\" d=\"{path}\"/>", line.tone.class());
        }
        for mark in &self.marks {
            let x = x_at(numbers.place(as_f64(mark.number.max(1))));
            let y = y_at(shares.place(mark.share));
            let (tone, label) = (mark.tone.class(), escaped(&mark.label));
            let _infallible = writeln!(
                drawing,
                "<circle class=\"point {tone}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"><title>{label}</title></circle>"
            );
        }
        drawing.push_str(&horizontal_axis(&numbers.ticks(), self.number));
        drawing
    }

    fn shares(&self) -> ShareAxis {
        let points = self.lines.iter().flat_map(|line| &line.points).map(|(_, share)| *share);
        let marks = self.marks.iter().map(|mark| mark.share);
        let lowest = points.chain(marks).filter(|share| *share > 0.0).fold(0.1, f64::min);
        // Smaller shares are drawn just above 0.
        ShareAxis { above_zero: LogAxis::whole_decades(lowest.max(1e-5), 1.0) }
    }
}

/// An axis of shares: logarithmic, with 0 at the bottom.
struct ShareAxis {
    above_zero: LogAxis,
}

impl ShareAxis {
    fn place(&self, share: f64) -> f64 {
        let place = ZERO_BAND + (1.0 - ZERO_BAND) * self.above_zero.place(share);
        if share > 0.0 { place.clamp(ZERO_BAND / 2.0, 1.0) } else { 0.0 }
    }

    fn ticks(&self) -> Vec<AxisTick> {
        let powers = (-5..=0).map(|power| 10_f64.powi(power));
        let tick = |share: f64| {
            let text = format!("{:.4}", share * 100.0);
            let text = text.trim_end_matches('0').trim_end_matches('.');
            AxisTick { place: self.place(share), label: format!("{text} %") }
        };
        let on_axis = powers.filter(|share| self.above_zero.place(*share) > -0.001);
        let zero = AxisTick { place: 0.0, label: "0 %".to_owned() };
        std::iter::once(zero).chain(on_axis.map(tick)).collect()
    }
}
