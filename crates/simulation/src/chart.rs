//! The script that draws charts, and their styles: for the page of a simulation and for the console.
//!
//! A chart is a table that is marked as `assets/chart.js` says. uPlot draws it.

/// uPlot, and the script that draws a chart above each table that is marked as one.
pub const SCRIPT: &str =
    concat!(include_str!("../assets/uplot/uPlot.iife.min.js"), include_str!("../assets/chart.js"));

/// The style sheet of charts. It takes `--surface`, `--line`, `--text` and `--muted` from the page.
pub const STYLES: &str = concat!(
    include_str!("../assets/uplot/uPlot.min.css"),
    "\n",
    include_str!("../assets/chart.css")
);
