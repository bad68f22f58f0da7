//! The frame that all charts share: title, legend, axes, table.

use std::fmt::Write;

use super::axis::AxisTick;
use super::text::escaped;

/// Size of a chart in its own units. Screens scale it; the style sheet keeps the scale near 1.
pub(super) const WIDTH: f64 = 440.0;
pub(super) const LEFT: f64 = 58.0;
pub(super) const RIGHT: f64 = 428.0;
pub(super) const TOP: f64 = 22.0;
pub(super) const BOTTOM: f64 = 196.0;
pub(super) const HEIGHT: f64 = 236.0;

/// Colour and dashes of a series. Each tone has its own dashes, so that colours are not needed to
/// tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Grey: the background of the others.
    Neutral,
    /// Solid.
    First,
    /// Dashed.
    Second,
    /// Dotted.
    Third,
    /// Dashed and dotted.
    Fourth,
}

impl Tone {
    /// Returns the class of the tone in the style sheet.
    pub(super) const fn class(self) -> &'static str {
        match self {
            Self::Neutral => "t0",
            Self::First => "t1",
            Self::Second => "t2",
            Self::Third => "t3",
            Self::Fourth => "t4",
        }
    }
}

/// The numbers of a chart.
#[derive(Clone, Debug, Default)]
pub struct ChartTable {
    /// Names of the columns.
    pub head: Vec<String>,
    /// Cells of each row. The first one is its name.
    pub rows: Vec<Vec<String>>,
}

impl ChartTable {
    /// Returns the table as HTML.
    pub fn html(&self) -> String {
        let mut html = String::from("<div class=\"scroll\"><table><thead><tr>");
        for name in &self.head {
            let _infallible = write!(html, "<th scope=\"col\">{}</th>", escaped(name));
        }
        html.push_str("</tr></thead><tbody>\n");
        for row in &self.rows {
            html.push_str("<tr>");
            for (at, cell) in row.iter().enumerate() {
                let cell = escaped(cell);
                let _infallible = match at {
                    0 => write!(html, "<th scope=\"row\">{cell}</th>"),
                    _ => write!(html, "<td>{cell}</td>"),
                };
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</tbody></table></div>");
        html
    }
}

/// An entry of a legend: the mark as SVG, and the name.
pub(super) struct LegendEntry {
    pub(super) mark: String,
    pub(super) name: String,
}

/// Everything around a drawing.
pub(super) struct Figure<'a> {
    pub(super) title: &'a str,
    /// What the chart says, for those who do not see it.
    pub(super) description: String,
    pub(super) height: f64,
    pub(super) legend: Vec<LegendEntry>,
    /// SVG elements.
    pub(super) drawing: String,
    pub(super) table: &'a ChartTable,
}

impl Figure<'_> {
    pub(super) fn html(&self) -> String {
        let (title, description) = (escaped(self.title), escaped(&self.description));
        let mut legend = String::new();
        for LegendEntry { mark, name } in &self.legend {
            let _infallible = write!(
                legend,
                "<li><svg class=\"mark\" viewBox=\"0 0 26 12\" aria-hidden=\"true\">{mark}</svg>{}</li>",
                escaped(name)
            );
        }
        let legend = if legend.is_empty() {
            legend
        } else {
            format!("<ul class=\"legend\">{legend}</ul>\n")
        };
        let (height, drawing) = (self.height, &self.drawing);
        let table = match self.table.rows.len() {
            0 => String::new(),
            rows => format!(
                "<details><summary>Numbers ({rows} {})</summary>{}</details>\n",
                if rows == 1 { "row" } else { "rows" },
                self.table.html()
            ),
        };
        format!(
            "<figure class=\"chart\">\n<figcaption>{title}</figcaption>\n{legend}\
             <svg class=\"plot\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}: {description}\">\
             <title>{title}: {description}</title>\n{drawing}</svg>\n{table}</figure>\n"
        )
    }
}

/// Returns the mark of a line in a legend.
pub(super) fn line_mark(tone: Tone) -> String {
    format!("<path class=\"line {}\" d=\"M0 6H26\"/>", tone.class())
}

/// Returns the mark of an area or a bar in a legend.
pub(super) fn area_mark(class: &str, tone: Tone) -> String {
    format!("<rect class=\"{class} {}\" x=\"1\" y=\"1\" width=\"24\" height=\"10\"/>", tone.class())
}

/// Returns a text in the middle of an empty chart.
pub(super) fn empty_drawing(text: &str) -> String {
    let (x, y) = (f64::midpoint(LEFT, RIGHT), f64::midpoint(TOP, BOTTOM));
    format!(
        "<text class=\"empty\" x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{}</text>\n",
        escaped(text)
    )
}

/// Returns the horizontal position of a place from 0 to 1.
pub(super) fn x_at(place: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * place
}

/// Returns the vertical position of a place from 0 (bottom) to 1.
pub(super) fn y_at(place: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * place
}

/// Returns horizontal lines with labels at the left, and the name of the axis above.
pub(super) fn vertical_axis(ticks: &[AxisTick], name: &str) -> String {
    let mut drawing = format!("<text class=\"axis\" x=\"2\" y=\"11\">{}</text>\n", escaped(name));
    for tick in ticks {
        let y = y_at(tick.place);
        let class = if tick.place <= 0.0 { "base" } else { "grid" };
        let _infallible = writeln!(
            drawing,
            "<path class=\"{class}\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>\
             <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            escaped(&tick.label)
        );
    }
    drawing
}

/// Returns marks with labels below, and the name of the axis. Labels that would overlap are left
/// out.
pub(super) fn horizontal_axis(ticks: &[AxisTick], name: &str) -> String {
    let mut drawing = String::new();
    let mut free_from = 0.0;
    for tick in ticks {
        let x = x_at(tick.place);
        let half = 3.8 * f64::from(u32::try_from(tick.label.chars().count()).unwrap_or(u32::MAX));
        if x - half < free_from || x + half > WIDTH + 4.0 {
            continue;
        }
        free_from = x + half + 6.0;
        let _infallible = writeln!(
            drawing,
            "<path class=\"base\" d=\"M{x:.1} {BOTTOM}v4\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            BOTTOM + 17.0,
            escaped(&tick.label)
        );
    }
    let (x, y) = (f64::midpoint(LEFT, RIGHT), BOTTOM + 35.0);
    let _infallible = writeln!(
        drawing,
        "<text class=\"axis\" x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{}</text>",
        escaped(name)
    );
    drawing
}
