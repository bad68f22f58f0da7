//! What commands print for people: a table of the rows of a response, or lines of their own.

use prost_reflect::DynamicMessage;
use rlaas_proto::csv;
use rlaas_proto::ratelimit::admin::v1::ListUsageResponse;
use serde::Deserialize;

use crate::command::{self, CommandSpec};
use crate::lines::RuleFields;
use crate::table::{Column, Table};
use crate::{fields, lines, show};

/// A column: its title, its alignment, the path of its field, and the function that shows it.
#[derive(Debug, Deserialize)]
pub(crate) struct ColumnSpec(String, Alignment, String, String);

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Alignment {
    Number,
    Word,
    Text,
}

/// The text of a response and a warning.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    pub(crate) text: String,
    pub(crate) warning: Option<String>,
    /// Nothing was found that could be changed.
    pub(crate) found_nothing: bool,
}

/// A request and its response.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) request: DynamicMessage,
    /// Of a list all pages in one.
    pub(crate) response: DynamicMessage,
    /// Shows rules in the words of rules files.
    pub(crate) rule_fields: RuleFields,
}

impl From<String> for Lines {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

impl ColumnSpec {
    fn column(&'static self) -> Column {
        match self.1 {
            Alignment::Number => Column::number(&self.0),
            Alignment::Word => Column::word(&self.0),
            Alignment::Text => Column::text(&self.0),
        }
    }

    pub(crate) fn show(&self) -> show::Show {
        show::by_name(&self.3)
    }
}

/// Returns the text of a response.
pub(crate) fn lines(spec: &CommandSpec, exchange: &Exchange) -> Lines {
    let Some(path) = &spec.rows else { return lines::by_name(&spec.lines)(exchange) };
    let rows = fields::messages(&exchange.response, path);
    if let (Some(none), []) = (&spec.none, &*rows) {
        return format!("{none}\n").into();
    }
    let next = exchange.response.get_field_by_name("next_page_token");
    let is_cut = next.is_some_and(|token| token.as_str() != Some(""));
    let rest = if is_cut { "there are more: --max\n" } else { "" };
    (table(&spec.table, &rows) + rest).into()
}

/// Returns a table of messages.
pub(crate) fn table(name: &str, rows: &[DynamicMessage]) -> String {
    let columns = command::columns(name);
    let titles: Vec<Column> = columns.iter().map(ColumnSpec::column).collect();
    let mut table = Table::new(&titles);
    for row in rows {
        let cell = |column: &ColumnSpec| {
            let value = fields::get(row, &column.2);
            value.map_or_else(|| "-".to_owned(), |value| column.show()(&value))
        };
        table.push(columns.iter().map(cell).collect::<Vec<_>>());
    }
    table.lines()
}

/// Returns usage as comma-separated values.
pub(crate) fn csv_of(response: &DynamicMessage) -> String {
    let usage = response.transcode_to::<ListUsageResponse>().unwrap_or_default().usage;
    csv::header().to_owned() + &csv::lines(&usage)
}
