//! Tables on a terminal.

use std::io::{self, IsTerminal};

/// Widest line on a terminal. Elsewhere lines are as wide as their texts.
const MAX_WIDTH: usize = 100;
/// Columns are not cut below this width.
const MIN_WIDTH: usize = 12;
/// Between columns.
const GAP: &str = "  ";

/// A table: a header, and rows of texts that are safe to show.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    title: &'static str,
    kind: ColumnKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnKind {
    /// Aligned to the right.
    Number,
    /// Aligned to the left.
    Word,
    /// Aligned to the left; cut where a line would be too wide.
    Text,
}

impl Column {
    /// Returns a column of numbers.
    pub const fn number(title: &'static str) -> Self {
        Self { title, kind: ColumnKind::Number }
    }

    /// Returns a column that is never cut.
    pub const fn word(title: &'static str) -> Self {
        Self { title, kind: ColumnKind::Word }
    }

    /// Returns a column that is cut where a line would be too wide.
    pub const fn text(title: &'static str) -> Self {
        Self { title, kind: ColumnKind::Text }
    }
}

impl Table {
    /// Creates a table without rows.
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with a text for each column.
    pub fn push(&mut self, row: impl Into<Vec<String>>) {
        let row = row.into();
        debug_assert_eq!(row.len(), self.columns.len(), "a text for each column");
        self.rows.push(row);
    }

    /// Returns the lines, for standard output.
    pub fn lines(&self) -> String {
        self.render(io::stdout().is_terminal().then_some(MAX_WIDTH))
    }

    fn render(&self, max_width: Option<usize>) -> String {
        let titles = self.columns.iter().map(|column| column.title.to_owned()).collect();
        let all: Vec<&Vec<String>> = [&titles].into_iter().chain(&self.rows).collect();
        let widths = self.widths(&all, max_width.unwrap_or(usize::MAX));
        let mut lines = String::new();
        for row in all {
            let cells = row.iter().zip(&widths).zip(&self.columns);
            let cells: Vec<String> = cells
                .map(|((text, width), column)| {
                    let text = cut(text, *width);
                    let space = " ".repeat(width - text.chars().count());
                    if column.kind == ColumnKind::Number { space + &text } else { text + &space }
                })
                .collect();
            lines.push_str(cells.join(GAP).trim_end());
            lines.push('\n');
        }
        lines
    }

    /// Returns the width of each column. The widest columns of texts are cut until a line fits.
    fn widths(&self, rows: &[&Vec<String>], max: usize) -> Vec<usize> {
        let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
        let mut widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let gaps = GAP.len() * self.columns.len().saturating_sub(1);
        loop {
            let too_wide = (widths.iter().sum::<usize>() + gaps).saturating_sub(max);
            let texts = widths.iter_mut().zip(&self.columns);
            let widest = texts
                .filter(|(_, column)| column.kind == ColumnKind::Text)
                .max_by_key(|(width, _)| **width);
            match widest {
                Some((width, _)) if too_wide > 0 && *width > MIN_WIDTH => *width -= 1,
                _ => return widths,
            }
        }
    }
}

/// Cuts a text to `width` characters; the last one is then `…`.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let start = text.chars().take(width.saturating_sub(1));
    start.chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(texts: &[&str]) -> Table {
        let columns = [
            Column::word("RULE"),
            Column::number("LEFT"),
            Column::text("KEY"),
            Column::text("WHY"),
        ];
        let mut table = Table::new(&columns);
        for text in texts {
            table.push(["pay".to_owned(), "5".to_owned(), (*text).to_owned(), "a".to_owned()]);
        }
        table
    }

    #[test]
    fn columns_are_aligned() {
        let lines = table(&["k", "longer"]).render(None);
        assert_eq!(
            lines,
            "RULE  LEFT  KEY     WHY\npay      5  k       a\npay      5  longer  a\n"
        );
    }

    #[test]
    fn texts_are_cut_only_where_lines_would_be_too_wide() {
        let long = "é".repeat(300);
        let table = table(&[&long]);
        assert!(table.render(None).contains(&long));
        let lines = table.render(Some(100));
        let widths: Vec<usize> = lines.lines().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width <= 100), "{lines}");
        assert!(lines.contains("é…"), "{lines}");
    }
}
