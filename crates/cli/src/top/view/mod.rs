//! Draws the live view, on any size of terminal.

mod pages;
mod theme;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline, Tabs};
use rlaas_proto::ratelimit::admin::v1::{Coverage, RuleStats, WatchStatsResponse};

use self::theme::{FAINT, SELECTED, TITLE, Theme};
use super::numbers::{per_second, rate, seconds};
use super::state::{Page, Stream, TopState};
use crate::printable::printable;
use crate::text;

/// Smallest terminal that anything fits on.
const MIN_WIDTH: u16 = 40;
const MIN_HEIGHT: u16 = 8;
/// Height from which the last 15 minutes are drawn.
const TREND_HEIGHT: u16 = 22;

/// What is counted of a rule.
type Count = fn(&RuleStats) -> u64;

/// Draws everything.
pub(super) fn render(frame: &mut Frame<'_>, state: &TopState) {
    let area = frame.area();
    if area.width < MIN_WIDTH || area.height < MIN_HEIGHT {
        let text = format!("rlaas top needs {MIN_WIDTH}×{MIN_HEIGHT}; q quits");
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let trend = if area.height >= TREND_HEIGHT { 4 } else { 0 };
    let heights = [
        Constraint::Length(3),
        Constraint::Length(trend),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(1),
    ];
    let [head, trends, tabs, page, foot] = Layout::vertical(heights).areas(area);
    let theme = Theme { has_colors: state.has_colors };
    render_head(frame, head, state, theme);
    if trend > 0 {
        render_trends(frame, trends, state, theme);
    }
    let selected = Page::ALL.iter().position(|page| *page == state.page);
    let titles = Tabs::new(["1 Rules", "2 Keys", "3 Refusals"]).select(selected);
    frame.render_widget(titles.highlight_style(SELECTED), tabs);
    let keys = match state.page {
        Page::Rules => {
            pages::render_rules(frame, page, state, theme);
            "q quit  Tab page  ↑↓ rule  Enter its keys  s order"
        }
        Page::Keys => {
            pages::render_keys(frame, page, state);
            "q quit  Tab page  ↑↓ rule  k kind"
        }
        Page::Refusals => {
            pages::render_refusals(frame, page, state, theme);
            "q quit  Tab page  ↑↓ scroll  Home newest"
        }
    };
    frame.render_widget(Paragraph::new(keys).style(FAINT), foot);
}

/// The server, the state of the stream, which instances are counted, and the sums of the newest
/// point.
fn render_head(frame: &mut Frame<'_>, area: Rect, state: &TopState, theme: Theme) {
    let newest = state.points.back();
    let (stream, style) = match &state.stream {
        Stream::Connecting => ("connecting".to_owned(), theme.warn()),
        Stream::Live if newest.is_none() => ("waiting for a point".to_owned(), theme.warn()),
        Stream::Live => ("live".to_owned(), theme.good()),
        Stream::Lost(why) => (format!("lost, trying again: {why}"), theme.bad()),
    };
    let first = Line::from(vec![
        Span::styled("rlaas top ", TITLE),
        Span::raw(printable(&state.address) + "  "),
        Span::styled(stream, style),
    ]);
    let mut lines = vec![first];
    lines.extend(newest.map(|point| covered(point, theme)));
    lines.extend(newest.map(|point| sums(point, area.width, theme)));
    frame.render_widget(Paragraph::new(lines), area);
}

/// Returns a line that says until when, and which instances were counted.
fn covered(point: &WatchStatsResponse, theme: Theme) -> Line<'static> {
    let Coverage { instances, missing } = point.coverage.clone().unwrap_or_default();
    let counted = text::count(instances.len() as u64, "instance");
    let until = text::time(point.until.as_ref());
    let mut line = Line::from(format!("{until}  {counted} in {} s", seconds(point)));
    if !missing.is_empty() {
        let ids: Vec<_> = missing.iter().map(|id| text::value(id)).collect();
        line.push_span(Span::styled(format!("  missing: {}", ids.join(", ")), theme.bad()));
    }
    line
}

/// Returns a line with the sums over all rules; what does not fit the width is left out, from the
/// end.
fn sums(point: &WatchStatsResponse, width: u16, theme: Theme) -> Line<'static> {
    let part = |of: Count, name: &str, style: Style| {
        let sum = sum(point, of);
        let style = if sum > 0 { style } else { Style::new() };
        Span::styled(format!("  {} {name}", rate(per_second(sum, point))), style)
    };
    let mut line = Line::from("per second:");
    for part in [
        part(|one| one.allowed, "allowed", theme.good()),
        part(|one| one.denied, "denied", theme.bad()),
        part(|one| one.degraded, "degraded", theme.bad()),
        part(|one| one.near_limit, "near", Style::new()),
        part(|one| one.shadow_denied, "shadow", Style::new()),
    ] {
        if line.width() + part.width() > usize::from(width) {
            break;
        }
        line.push_span(part);
    }
    line
}

/// Returns the sum over the rules of a point and the others, without candidates.
fn sum(point: &WatchStatsResponse, of: Count) -> u64 {
    let rules = point.rules.iter().filter(|rule| rule.candidate == 0).chain(&point.others);
    rules.map(of).fold(0, u64::saturating_add)
}

/// The last 15 minutes: decided and denied, each to its own scale.
fn render_trends(frame: &mut Frame<'_>, area: Rect, state: &TopState, theme: Theme) {
    let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(2).areas(area);
    let trends: [(&str, Count, Style, Rect); 2] = [
        ("decided", decisions, theme.good(), left),
        ("denied", |one| one.denied, theme.bad(), right),
    ];
    for (title, of, style, area) in trends {
        let [above, graph] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
        let skipped = state.points.len().saturating_sub(usize::from(graph.width));
        let shown = state.points.iter().skip(skipped);
        let values: Vec<f64> = shown.map(|point| per_second(sum(point, of), point)).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        let title = format!("{title} per second, up to {}", rate(most));
        frame.render_widget(Paragraph::new(title).style(FAINT), above);
        // In parts of a thousand, so that fractions of a decision show.
        let heights: Vec<u64> = values.into_iter().map(|value| thousandths(value, most)).collect();
        frame.render_widget(Sparkline::default().data(heights).max(1_000).style(style), graph);
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1,000")]
fn thousandths(value: f64, most: f64) -> u64 {
    if most > 0.0 { (value / most * 1_000.0).clamp(0.0, 1_000.0) as u64 } else { 0 }
}

fn decisions(stats: &RuleStats) -> u64 {
    let RuleStats { allowed, near_limit, denied, shadow_denied, .. } = *stats;
    [near_limit, denied, shadow_denied].into_iter().fold(allowed, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::{Buffer, Cell};
    use ratatui::style::Color;
    use rlaas_proto::ratelimit::admin::v1::{
        DecisionEvent, KeyPart, KeyRef, TopKey, TopKeysResponse, TopKind,
    };
    use rlaas_proto::ratelimit::v1::CheckResponse;

    use super::super::state::tests::{point, rule};
    use super::super::state::{KeyList, RuleName};
    use super::*;

    const HOSTILE: &str = "a\n\u{1b}[2J\u{202e}\0<script>\u{7f}\u{9b}31m";

    fn drawn(state: &TopState, width: u16, height: u16) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| render(frame, state)).expect("drawn");
        terminal.backend().buffer().clone()
    }

    fn lines(buffer: &Buffer) -> Vec<String> {
        let width = usize::from(buffer.area.width).max(1);
        let line = |cells: &[Cell]| {
            let line: String = cells.iter().map(Cell::symbol).collect();
            line.trim_end().to_owned()
        };
        buffer.content.chunks(width).map(line).collect()
    }

    fn state() -> TopState {
        let mut state = TopState::new("127.0.0.1:50051".to_owned(), true);
        state.begin();
        let mut candidate = rule("pay", 10, 0);
        candidate.candidate = 1;
        candidate.shadow_denied = 10;
        let mut of_project = rule("search", 5, 0);
        of_project.project_id = "shop".to_owned();
        state.add_point(point(1_700_000_000, vec![rule("pay", 15, 5), candidate, of_project]));
        state
            .add_point(point(1_700_000_010, vec![rule("pay", 20_000, 5_000), rule(HOSTILE, 1, 0)]));
        state
    }

    #[test]
    fn rules_are_drawn_with_rates() {
        let buffer = drawn(&state(), 100, 24);
        let lines = lines(&buffer);
        assert_eq!(lines[0], "rlaas top 127.0.0.1:50051  live");
        assert_eq!(lines[1], "2023-11-14T22:13:40Z  1 instance in 10 s");
        assert!(lines[2].starts_with("per second:  2000 allowed  500 denied"), "{}", lines[2]);
        assert!(lines[3].contains("decided per second, up to 2500"), "{}", lines[3]);
        assert!(lines[7].contains("1 Rules"), "{lines:#?}");
        assert!(lines[8].starts_with("RULE") && lines[8].ends_with("DEGRADED"), "{}", lines[8]);
        let columns: Vec<_> = lines[9].split_whitespace().collect();
        assert_eq!(columns, ["pay", "2500", "500", "0", "20%", "0", "2000", "0"]);
        assert!(lines[10].starts_with(r"a\n\u{1b}[2J\u{202e}\0<"), "{}", lines[10]);
        assert!(lines[23].starts_with("q quit"), "{}", lines[23]);
    }

    #[test]
    fn every_page_fits_every_size_and_shows_nothing_that_a_terminal_obeys() {
        let mut state = state();
        let long = format!("{HOSTILE}{}", "ü".repeat(600));
        state
            .add_point(point(0, (0..300).map(|at| rule(&format!("{long}{at}"), at, at)).collect()));
        let part = KeyPart { name: HOSTILE.to_owned(), value: Some(long.clone()) };
        let key = Some(KeyRef { parts: vec![part], ..KeyRef::default() });
        let verdict = Some(CheckResponse { rule: long.clone(), ..CheckResponse::default() });
        let event = DecisionEvent { key: key.clone(), verdict, ..DecisionEvent::default() };
        state.add_refusals(vec![event; 100], 3);
        state.selected = Some(RuleName { project: String::new(), rule: long, candidate: 0 });
        let top = TopKey { key, count: 9, error: 1 };
        let answer = TopKeysResponse { keys: vec![top; 128], total: 99, coverage: None };
        let of = state.selected.clone().map(|rule| (rule, TopKind::Denied));
        state.keys = KeyList { of, answer: Some(Ok(answer)) };
        state.stream = Stream::Lost(printable(HOSTILE));
        for page in Page::ALL {
            state.page = page;
            for (width, height) in [(0, 0), (1, 1), (39, 8), (40, 8), (60, 15), (80, 24), (250, 70)]
            {
                let buffer = drawn(&state, width, height);
                for line in lines(&buffer) {
                    let is_harmless = |char: char| !char.is_control() && char != '\u{202e}';
                    assert!(line.chars().all(is_harmless), "{page:?} {width}×{height}: {line:?}");
                }
            }
        }
    }

    #[test]
    fn small_terminal_shows_what_matters() {
        let lines = lines(&drawn(&state(), 60, 15));
        assert!(lines[2].contains("500 denied"), "{}", lines[2]);
        assert!(lines[3].contains("1 Rules"), "{lines:#?}");
        let columns: Vec<_> = lines[5].split_whitespace().collect();
        assert_eq!(columns, ["pay", "2500", "500", "0", "20%"]);
        assert!(lines[14].starts_with("q quit"), "{lines:#?}");
    }

    #[test]
    fn cut_keys_end_with_an_ellipsis() {
        let mut state = state();
        state.page = Page::Keys;
        let of = state.selected.clone().map(|rule| (rule, TopKind::Denied));
        let part = |value: &str| KeyPart { name: "id".to_owned(), value: Some(value.to_owned()) };
        let top = |value| TopKey {
            key: Some(KeyRef { parts: vec![part(value)], ..KeyRef::default() }),
            ..TopKey::default()
        };
        let keys = vec![top(&"x".repeat(27)), top(&"x".repeat(28)), top(&"日".repeat(28))];
        state.keys = KeyList { of, answer: Some(Ok(TopKeysResponse { keys, ..<_>::default() })) };
        let lines = lines(&drawn(&state, 60, 15));
        assert!(lines[6].ends_with(&"x".repeat(27)), "{lines:#?}");
        assert!(lines[7].ends_with("xx…"), "{lines:#?}");
        assert!(lines[8].ends_with('…') && lines[8].contains("日"), "{lines:#?}");
    }

    #[test]
    fn without_colors_nothing_is_colored() {
        let mut state = state();
        state.stream = Stream::Lost("the server drains".to_owned());
        let colored = |buffer: &Buffer| {
            buffer.content.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
        };
        assert!(colored(&drawn(&state, 100, 30)));
        state.has_colors = false;
        for page in Page::ALL {
            state.page = page;
            assert!(!colored(&drawn(&state, 100, 30)), "{page:?}");
        }
    }

    #[test]
    fn keys_say_why_there_are_none() {
        let mut state = state();
        state.page = Page::Keys;
        let said = |state: &TopState| lines(&drawn(state, 80, 15))[5].clone();
        assert_eq!(said(&state), "…");
        let of = state.selected.clone().map(|rule| (rule, TopKind::Denied));
        let why = "telemetry.top-keys must be true".to_owned();
        state.keys = KeyList { of, answer: Some(Err(why.clone())) };
        assert_eq!(said(&state), why);
    }
}
