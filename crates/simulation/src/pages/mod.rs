//! Reports as pages: one HTML file each, which needs no network and no script.
//!
//! A page stays small whatever the report has: of many rules the first are shown in detail, and the
//! others are added up, which the page says.

mod simulation_page;

pub use simulation_page::SimulationPage;

use crate::chart::{ChartTable, Page, count_text};
use crate::simulation::ReportNote;

/// Most rows of a table of rules.
const MAX_ROWS: usize = 200;

/// Returns the table with its first rows, and a row that adds up the others, which are `unit` in
/// the plural. `summed` returns the cells of that row after its name.
fn first_rows(
    head: &[&str],
    rows: Vec<Vec<String>>,
    unit: &str,
    summed: impl FnOnce(usize) -> Vec<String>,
) -> ChartTable {
    let head = head.iter().map(|name| (*name).to_owned()).collect();
    let others = rows.len().saturating_sub(MAX_ROWS);
    let mut rows: Vec<Vec<String>> = rows.into_iter().take(MAX_ROWS).collect();
    if others > 0 {
        let mut row = vec![format!("{} other {unit}", count_text(others as u64))];
        row.extend(summed(MAX_ROWS));
        rows.push(row);
    }
    ChartTable { head, rows }
}

/// Returns the remarks of a report as a list.
fn note_list(notes: &[ReportNote]) -> String {
    Page::notes(&notes.iter().map(|note| note.text.clone()).collect::<Vec<_>>())
}
