//! Horizontal bars with names: who has the most.

use std::fmt::Write;

use super::figure::{ChartTable, Figure, LegendEntry, Tone, WIDTH, area_mark};
use super::numbers::{count_text, ratio};
use super::text::{escaped, escaped_label, shortened};

/// Height of a row without bars, and of a bar.
const NAME_HEIGHT: f64 = 17.0;
const BAR_HEIGHT: f64 = 9.0;
const GAP: f64 = 7.0;
/// Most characters of a name. The whole name is shown on hovering, and is in the table.
const NAME_LENGTH: usize = 44;
const LONG_NAME_LENGTH: usize = 300;

/// Bars with names.
#[derive(Clone, Debug)]
pub struct BarChart<'a> {
    /// Title.
    pub title: &'a str,
    /// What is counted, in the plural.
    pub unit: &'a str,
    /// Names of the bars of a row: filled, and outlined if rows have a second one.
    pub names: (&'a str, Option<&'a str>),
    /// The rows, from the top down.
    pub rows: Vec<BarRow>,
    /// What is shown if there are no rows.
    pub empty: &'a str,
}

/// One row of bars.
#[derive(Clone, Debug)]
pub struct BarRow {
    /// Name.
    pub name: String,
    /// Length of the filled bar.
    pub count: u64,
    /// Length of the outlined bar.
    pub other: Option<u64>,
    /// What else is said of it, such as the number of which this is a part.
    pub remark: String,
}

impl BarChart<'_> {
    /// Returns the chart as an HTML figure.
    pub fn figure(&self) -> String {
        let mut drawing = String::new();
        let mut y = 0.0;
        let counts = self.rows.iter().flat_map(|row| [row.count, row.other.unwrap_or_default()]);
        let largest = counts.max().unwrap_or_default();
        for row in &self.rows {
            drawing.push_str(&Self::row(row, y, largest));
            y += NAME_HEIGHT + BAR_HEIGHT + GAP;
            if self.names.1.is_some() {
                y += BAR_HEIGHT;
            }
        }
        if self.rows.is_empty() {
            y = 40.0;
            let (x, text) = (WIDTH / 2.0, escaped(self.empty));
            drawing = format!(
                "<text class=\"empty\" x=\"{x}\" y=\"24\" text-anchor=\"middle\">{text}</text>\n"
            );
        }
        let legend = match self.names.1 {
            _ if self.rows.is_empty() => Vec::new(),
            None => Vec::new(),
            Some(other) => vec![
                LegendEntry { mark: area_mark("bar", Tone::First), name: self.names.0.to_owned() },
                LegendEntry { mark: area_mark("outline", Tone::Second), name: other.to_owned() },
            ],
        };
        let first = self.rows.first().map_or_else(
            || self.empty.to_owned(),
            |row| {
                let name = shortened(&row.name, LONG_NAME_LENGTH);
                format!("most has {name} with {} {}", count_text(row.count), self.unit)
            },
        );
        let table = self.table();
        Figure { title: self.title, description: first, height: y, legend, drawing, table: &table }
            .html()
    }

    fn row(row: &BarRow, y: f64, largest: u64) -> String {
        let whole = shortened(&row.name, LONG_NAME_LENGTH);
        let (name, whole) = (escaped_label(&row.name, NAME_LENGTH), escaped(&whole));
        let (base, bar) = (y + 12.0, y + NAME_HEIGHT);
        // At least a pixel, so that few are told from none.
        let width = |count: u64| {
            if count == 0 { 0.0 } else { ((WIDTH - 2.0) * ratio(count, largest)).max(1.0) }
        };
        let mut value = count_text(row.count);
        if let Some(other) = row.other {
            let _infallible = write!(value, " / {}", count_text(other));
        }
        let remark = escaped(&row.remark);
        // Wide letters are cut before they reach the value.
        let length = f64::from(u32::try_from(value.len()).unwrap_or(u32::MAX));
        let name_width = (WIDTH - 12.0 - 7.6 * length).max(0.0);
        let mut drawing = format!(
            "<g><title>{whole}: {value} {remark}</title>\
             <svg y=\"{y:.1}\" width=\"{name_width}\" height=\"{NAME_HEIGHT}\">\
             <text class=\"name\" x=\"1\" y=\"12\">{name}</text></svg>\
             <text class=\"tick\" x=\"{}\" y=\"{base:.1}\" text-anchor=\"end\">{value}</text>\
             <rect class=\"bar t1\" x=\"1\" y=\"{bar:.1}\" width=\"{:.1}\" height=\"{BAR_HEIGHT}\"/>",
            WIDTH - 1.0,
            width(row.count)
        );
        if let Some(other) = row.other {
            let _infallible = write!(
                drawing,
                "<rect class=\"outline t2\" x=\"1\" y=\"{:.1}\" width=\"{:.1}\" height=\"{}\"/>",
                bar + BAR_HEIGHT + 1.0,
                width(other),
                BAR_HEIGHT - 2.0
            );
        }
        drawing.push_str("</g>\n");
        drawing
    }

    fn table(&self) -> ChartTable {
        let mut head = vec![String::new(), self.names.0.to_owned()];
        head.extend(self.names.1.map(str::to_owned));
        head.push("of".to_owned());
        let row = |row: &BarRow| {
            let mut cells = vec![shortened(&row.name, LONG_NAME_LENGTH), count_text(row.count)];
            if self.names.1.is_some() {
                cells.push(count_text(row.other.unwrap_or_default()));
            }
            cells.push(row.remark.clone());
            cells
        };
        ChartTable { head, rows: self.rows.iter().map(row).collect() }
    }
}
