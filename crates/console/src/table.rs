//! Tables: one frame for all pages, which scrolls on narrow screens and by keyboard.

use maud::{Markup, html};

/// A table without its rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageTable<'a> {
    /// The name of the rows, in the plural and in lower case. Each table of a page has another.
    pub(super) of: &'a str,
    /// A sentence that a reader of the table must know.
    pub(super) caption: &'a str,
    pub(super) columns: &'a [PageColumn],
}

/// The head of a column.
#[derive(Clone, Copy, Debug)]
pub(super) enum PageColumn {
    Text(&'static str),
    /// Numbers and spans, whose cells have the class `right`.
    Number(&'static str),
}

impl PageTable<'_> {
    /// Returns the table with its rows: a `tr` each, whose first cell is a `th` with `scope="row"`.
    pub(super) fn with_rows(&self, rows: &Markup) -> Markup {
        html! {
            div.scroll tabindex="0" role="region" aria-label={ "Table of " (self.of) } {
                table {
                    caption { (self.caption) }
                    thead { tr { @for column in self.columns { (column.head()) } } }
                    tbody { (rows) }
                }
            }
        }
    }
}

impl PageColumn {
    fn head(self) -> Markup {
        html! {
            @match self {
                Self::Text(name) => th scope="col" { (name) },
                Self::Number(name) => th.right scope="col" { (name) },
            }
        }
    }
}
