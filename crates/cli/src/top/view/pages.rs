//! The pages of the live view: rules, keys of a rule, refusals.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table, TableState, Wrap};
use rlaas_proto::ratelimit::admin::v1::{
    DecisionEvent, RuleStats, TopKeysResponse, TopKind, WatchStatsResponse,
};

use super::decisions;
use super::theme::{FAINT, SELECTED, TITLE, Theme};
use crate::printable::printable;
use crate::response::detail;
use crate::text;
use crate::top::numbers::{per_second, rate, seconds, share};
use crate::top::state::{Order, RuleName, SAME_REQUESTS, TopState};

/// Width from which every column is shown.
const WIDE: u16 = 96;
/// Space between two columns.
const GAP: u16 = 2;
/// Most characters of a name that are looked at: no column is wider.
const MAX_NAME: usize = 400;
/// Most characters of a rule beside other texts.
const MAX_RULE: usize = 24;

pub(super) fn render_rules(frame: &mut Frame<'_>, area: Rect, state: &TopState, theme: Theme) {
    let Some(point) = state.points.back() else { return };
    let named = state.rules().into_iter().map(|rule| (name(&RuleName::from(rule)), rule));
    let others = point.others.iter().map(|others| ("all others".to_owned(), others));
    let is_wide = area.width >= WIDE;
    let row = |(name, stats)| {
        let mut cells = vec![Line::from(name)];
        cells.extend(numbers(stats, point, is_wide, theme));
        cells
    };
    let rows: Vec<_> = named.chain(others).map(row).collect();
    if rows.is_empty() {
        return render_text(
            frame,
            area,
            format!("nothing was decided in the last {} s", seconds(point)),
        );
    }
    let by_denials = state.order == Order::MostDenied;
    let name = if by_denials { "RULE (most denied first)" } else { "RULE (busiest first)" };
    let numbers = ["PER S", "DENIED", "SHADOW", "SHARE", "NEAR", "UNITS", "DEGRADED"];
    let shown = if is_wide { &numbers[..] } else { &numbers[..4] };
    let mut titles = vec![Line::from(name)];
    titles.extend(shown.iter().map(|title| number(format!("{title:>8}"))));
    let table = table(area, titles, rows, 0).row_highlight_style(SELECTED);
    let mut selected = TableState::new().with_selected(state.position());
    frame.render_stateful_widget(table, area, &mut selected);
}

/// Returns the numbers of a rule in a point.
fn numbers(
    stats: &RuleStats,
    point: &WatchStatsResponse,
    is_wide: bool,
    theme: Theme,
) -> Vec<Line<'static>> {
    let each = |count| number(rate(per_second(count, point)));
    let bad = |count| each(count).style(if count > 0 { theme.bad() } else { Style::new() });
    let denied = stats.denied.saturating_add(stats.shadow_denied);
    let share = number(share(denied, decisions(stats)));
    let mut cells =
        vec![each(decisions(stats)), bad(stats.denied), each(stats.shadow_denied), share];
    if is_wide {
        cells.extend([each(stats.near_limit), each(stats.units), bad(stats.degraded)]);
    }
    cells
}

pub(super) fn render_keys(frame: &mut Frame<'_>, area: Rect, state: &TopState) {
    let kind = match state.kind {
        TopKind::Denied | TopKind::Unspecified => "denied most",
        TopKind::NearLimit => "near their limit",
        TopKind::Used => "that take most units",
    };
    let Some(rule) = &state.selected else {
        return render_text(frame, area, "no rule has decided anything".to_owned());
    };
    // Candidates count no keys of their own.
    let effective = RuleName { candidate: 0, ..rule.clone() };
    let title = format!("keys of {}, {kind}, in the last 15 minutes", name(&effective));
    let list = below(frame, area, Line::styled(title, TITLE));
    let is_of = state.keys.of.as_ref() == Some(&(rule.clone(), state.kind));
    match state.keys.answer.as_ref().filter(|_| is_of) {
        None => render_text(frame, list, "…".to_owned()),
        Some(Err(why)) => render_text(frame, list, why.clone()),
        Some(Ok(answer)) if answer.keys.is_empty() => {
            render_text(frame, list, "no key was counted".to_owned());
        }
        Some(Ok(answer)) => render_key_list(frame, list, answer),
    }
}

fn render_key_list(frame: &mut Frame<'_>, area: Rect, answer: &TopKeysResponse) {
    let rows = answer.keys.iter().map(|top| {
        vec![
            number(top.count.to_string()),
            number(top.count.saturating_sub(top.error).to_string()),
            number(share(top.count, answer.total)),
            Line::from(cut(&text::key(top.key.as_ref()), MAX_NAME)),
        ]
    });
    let mut titles =
        ["COUNT", "AT LEAST", "SHARE"].map(|title| number(format!("{title:>8}"))).to_vec();
    titles.push(Line::from("KEY"));
    frame.render_widget(table(area, titles, rows.collect(), 3), area);
}

pub(super) fn render_refusals(frame: &mut Frame<'_>, area: Rect, state: &TopState, theme: Theme) {
    let mut title = Line::styled("refusals of this instance, newest first", TITLE);
    if state.dropped > 0 {
        let dropped = format!("  {} not shown: they came too fast", state.dropped);
        title.push_span(Span::styled(dropped, theme.warn()));
    }
    let list = below(frame, area, title);
    if state.refusals.is_empty() {
        let why = state.refusals_problem.clone();
        return render_text(frame, list, why.unwrap_or_else(|| "none so far".to_owned()));
    }
    let shown = state.refusals.iter().skip(state.scroll).take(usize::from(list.height));
    let is_wide = area.width >= WIDE;
    let rows = shown.map(|event| refusal(event, is_wide)).collect();
    let titles =
        if is_wide { &["TIME", "RULE", "WHY", "KEY"][..] } else { &["TIME", "RULE", "KEY"] };
    let flexible = titles.len() - 1;
    let titles = titles.iter().copied().map(Line::from).collect();
    frame.render_widget(table(list, titles, rows, flexible), list);
}

fn refusal(event: &DecisionEvent, is_wide: bool) -> Vec<Line<'static>> {
    let time = text::time(event.decided_at.as_ref());
    // The day is that of the head line.
    let time = time.split_once('T').map_or(time.clone(), |(_, time)| time.to_owned());
    let verdict = event.verdict.clone().unwrap_or_default();
    let (project, rule, candidate) = (event.project_id.clone(), verdict.rule.clone(), 0);
    let rule = cut(&name(&RuleName { project, rule, candidate }), MAX_RULE);
    let key = cut(&text::key(event.key.as_ref()), MAX_NAME);
    let mut cells = vec![Line::styled(time, FAINT), Line::from(rule)];
    if is_wide {
        cells.push(Line::styled(detail(&verdict, event.cost), FAINT));
    }
    cells.push(Line::from(key));
    cells
}

/// Draws a title. Returns the area below it.
fn below(frame: &mut Frame<'_>, area: Rect, title: Line<'_>) -> Rect {
    let [above, rest] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    frame.render_widget(Paragraph::new(title), above);
    rest
}

fn render_text(frame: &mut Frame<'_>, area: Rect, text: String) {
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
}

fn number(text: String) -> Line<'static> {
    Line::from(text).right_aligned()
}

/// Returns a table whose columns are as wide as what they show; `flexible` is the column whose texts
/// are cut if they do not fit.
fn table<'a>(
    area: Rect,
    titles: Vec<Line<'a>>,
    mut rows: Vec<Vec<Line<'a>>>,
    flexible: usize,
) -> Table<'a> {
    let widest = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).chain(titles.get(column));
        u16::try_from(cells.map(Line::width).max().unwrap_or_default()).unwrap_or(u16::MAX)
    };
    let mut widths: Vec<u16> = (0..titles.len()).map(widest).collect();
    let width = |taken: u16, width: &u16| taken.saturating_add(*width).saturating_add(GAP);
    let others = widths.iter().fold(0, width) - widths[flexible] - GAP;
    widths[flexible] = widths[flexible].min(area.width.saturating_sub(others));
    for cell in rows.iter_mut().filter_map(|row| row.get_mut(flexible)) {
        fit(cell, widths[flexible]);
    }
    let header = Row::new(titles).style(FAINT);
    Table::new(rows.into_iter().map(Row::new), widths).header(header).column_spacing(GAP)
}

/// Cuts a text to a width.
fn fit(line: &mut Line<'_>, width: u16) {
    let width = usize::from(width);
    if line.width() <= width {
        return;
    }
    let mut left = width.saturating_sub(1);
    let mut shown = String::new();
    for grapheme in line.styled_graphemes(Style::new()) {
        let Some(rest) = left.checked_sub(Span::raw(grapheme.symbol).width()) else { break };
        left = rest;
        shown += grapheme.symbol;
    }
    *line = Line::styled(shown + "…", line.style);
}

/// Returns the name of a rule, as it is safe on a terminal.
fn name(RuleName { project, rule, candidate }: &RuleName) -> String {
    let project = if project.is_empty() { String::new() } else { printable(project) + "/" };
    let candidate = match *candidate {
        0 => String::new(),
        SAME_REQUESTS => " beside its candidates".to_owned(),
        number => format!(" candidate {number}"),
    };
    cut(&format!("{project}{}{candidate}", printable(rule)), MAX_NAME)
}

/// Cuts a text after this many characters.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
