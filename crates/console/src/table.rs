//! Tables: one frame for all pages, which scrolls on narrow screens and by keyboard.

use maud::{Markup, html};

/// A table of items: a row each.
pub(super) struct Table<'a, T> {
    /// The name of the rows, in the plural and in lower case. Each table of a page has another.
    subject: &'a str,
    /// A sentence that a reader of the table must know.
    caption: &'a str,
    columns: Vec<Column<'a, T>>,
    /// Whether its rows are cards on narrow screens, as without numbers.
    is_cards: bool,
}

/// A column: its title, the class of its cells, and what they show of an item.
struct Column<'a, T> {
    title: &'a str,
    class: Option<&'static str>,
    cell: Box<dyn Fn(&T) -> Markup + 'a>,
}

impl<'a, T> Table<'a, T> {
    /// Creates a table without columns. The first one names the row.
    pub(super) const fn new(subject: &'a str, caption: &'a str) -> Self {
        Self { subject, caption, columns: Vec::new(), is_cards: false }
    }

    /// Makes cards of the rows on narrow screens.
    pub(super) fn cards(self) -> Self {
        Self { is_cards: true, ..self }
    }

    /// Adds a column of texts.
    pub(super) fn text(self, title: &'a str, cell: impl Fn(&T) -> Markup + 'a) -> Self {
        self.column(title, None, cell)
    }

    /// Adds a column of long texts.
    pub(super) fn wide(self, title: &'a str, cell: impl Fn(&T) -> Markup + 'a) -> Self {
        self.column(title, Some("wide"), cell)
    }

    /// Adds a column of numbers or spans.
    pub(super) fn right(self, title: &'a str, cell: impl Fn(&T) -> Markup + 'a) -> Self {
        self.column(title, Some("right"), cell)
    }

    fn column(
        mut self,
        title: &'a str,
        class: Option<&'static str>,
        cell: impl Fn(&T) -> Markup + 'a,
    ) -> Self {
        self.columns.push(Column { title, class, cell: Box::new(cell) });
        self
    }

    /// Returns the table with a row for each item.
    pub(super) fn rows<'i>(&self, items: impl IntoIterator<Item = &'i T>) -> Markup
    where
        T: 'i,
    {
        let is_right = |column: &Column<'_, T>| column.class == Some("right");
        let is_cards = self.is_cards || !self.columns.iter().any(is_right);
        let titles = self.columns.iter().map(|column| (column.title, is_right(column)));
        let rows = html! {
            @for item in items {
                tr {
                    @for (position, Column { title, class, cell }) in self.columns.iter().enumerate() {
                        @if position == 0 { th class=[class] scope="row" { (cell(item)) } }
                        @else { td class=[class] data-title=[is_cards.then_some(title)] { (cell(item)) } }
                    }
                }
            }
        };
        table_with_rows(self.subject, self.caption, &titles.collect::<Vec<_>>(), &rows)
    }
}

/// Returns a table, given by the name of its rows and its caption, with rows of its own: a `tr` each, whose
/// first cell is a `th` with `scope="row"`. A column has a title, and whether it has numbers, whose cells
/// have the class `right`.
pub(super) fn table_with_rows(
    subject: &str,
    caption: &str,
    columns: &[(&str, bool)],
    rows: &Markup,
) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Table of " (subject) } {
            table {
                caption { (caption) }
                thead { tr {
                    @for (title, is_number) in columns {
                        th class=[is_number.then_some("right")] scope="col" { (title) }
                    }
                } }
                tbody { (rows) }
            }
        }
    }
}
