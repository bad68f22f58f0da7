//! What the live view shows, and what keys of the keyboard do. Pure: no terminal and no server.

use std::cmp::Reverse;
use std::collections::VecDeque;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rlaas_proto::ratelimit::admin::v1::{
    DecisionEvent, RuleStats, TopKeysResponse, TopKind, WatchStatsResponse,
};

/// Most points that are kept: 15 min of 10 s each.
const MAX_POINTS: usize = 90;
/// Most refusals that are kept.
const MAX_REFUSALS: usize = 500;
/// Rows that a page key moves by.
const PAGE_ROWS: isize = 10;

/// Pages of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Rules,
    Keys,
    Refusals,
}

impl Page {
    pub(super) const ALL: [Self; 3] = [Self::Rules, Self::Keys, Self::Refusals];
}

/// Order of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Busiest,
    MostDenied,
}

/// State of the stream of points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Connecting,
    Live,
    /// It ended, for this reason; another one is opened.
    Lost(String),
}

/// The candidate that is the rule once more, on the requests that its candidates have decided.
pub(super) const SAME_REQUESTS: u32 = 9;

/// A rule, or one of its candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuleName {
    pub(super) project: String,
    pub(super) rule: String,
    pub(super) candidate: u32,
}

/// Keys of the selected rule with the highest counts.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyList {
    /// The rule and the kind that `answer` is of.
    pub(super) of: Option<(RuleName, TopKind)>,
    pub(super) answer: Option<Result<TopKeysResponse, String>>,
}

/// All that is shown.
#[derive(Debug)]
pub(super) struct TopState {
    /// Address of the server.
    pub(super) address: String,
    pub(super) has_colors: bool,
    pub(super) page: Page,
    pub(super) order: Order,
    pub(super) stream: Stream,
    /// Oldest first.
    pub(super) points: VecDeque<WatchStatsResponse>,
    pub(super) selected: Option<RuleName>,
    pub(super) kind: TopKind,
    pub(super) keys: KeyList,
    /// Newest first.
    pub(super) refusals: VecDeque<DecisionEvent>,
    /// Number of refusals that came too fast to be shown.
    pub(super) dropped: u64,
    /// Why there are no refusals, if so.
    pub(super) refusals_problem: Option<String>,
    /// First refusal that is shown.
    pub(super) scroll: usize,
}

/// What a key of the keyboard asks for beyond the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Quit,
    /// Another page, rule or kind: the keys may be other ones.
    Refresh,
    None,
}

impl From<&RuleStats> for RuleName {
    fn from(stats: &RuleStats) -> Self {
        let RuleStats { project_id, rule, candidate, .. } = stats;
        Self { project: project_id.clone(), rule: rule.clone(), candidate: *candidate }
    }
}

impl TopState {
    pub(super) fn new(address: String, has_colors: bool) -> Self {
        Self {
            address,
            has_colors,
            page: Page::Rules,
            order: Order::Busiest,
            stream: Stream::Connecting,
            points: VecDeque::new(),
            selected: None,
            kind: TopKind::Denied,
            keys: KeyList::default(),
            refusals: VecDeque::new(),
            dropped: 0,
            refusals_problem: None,
            scroll: 0,
        }
    }

    /// A stream has begun: it sends the past first.
    pub(super) fn begin(&mut self) {
        self.points.clear();
        self.stream = Stream::Live;
    }

    pub(super) fn add_point(&mut self, point: WatchStatsResponse) {
        if self.points.len() >= MAX_POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
        if self.selected.is_none() {
            self.selected = self.rules().first().map(|rule| RuleName::from(*rule));
        }
    }

    /// Adds refusals, oldest first. What is looked at stays in its place.
    pub(super) fn add_refusals(&mut self, events: Vec<DecisionEvent>, dropped: u64) {
        if self.scroll > 0 {
            self.scroll += events.len();
        }
        for event in events {
            self.refusals.push_front(event);
        }
        self.refusals.truncate(MAX_REFUSALS);
        self.scroll = self.scroll.min(self.refusals.len().saturating_sub(1));
        self.dropped = self.dropped.saturating_add(dropped);
    }

    /// Returns the rules of the newest point, in order.
    pub(super) fn rules(&self) -> Vec<&RuleStats> {
        let newest = self.points.back();
        let mut rules: Vec<_> =
            newest.map(|point| point.rules.iter().collect()).unwrap_or_default();
        if self.order == Order::MostDenied {
            // Equal ones stay in their order: busiest first.
            rules.sort_by_key(|rule| Reverse(rule.denied.saturating_add(rule.shadow_denied)));
        }
        rules
    }

    /// Returns the position of the selected rule, if it is in the newest point.
    pub(super) fn position(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.rules().iter().position(|rule| RuleName::from(*rule) == *selected)
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Effect {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if is_control => return Effect::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Effect::Quit,
            KeyCode::Char('1') => self.page = Page::Rules,
            KeyCode::Char('2') | KeyCode::Enter => self.page = Page::Keys,
            KeyCode::Char('3') => self.page = Page::Refusals,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(Page::ALL.len() - 1),
            KeyCode::Char('s') => {
                self.order = match self.order {
                    Order::Busiest => Order::MostDenied,
                    Order::MostDenied => Order::Busiest,
                };
            }
            KeyCode::Char('k') if self.page == Page::Keys => {
                self.kind = match self.kind {
                    TopKind::Denied | TopKind::Unspecified => TopKind::NearLimit,
                    TopKind::NearLimit => TopKind::Used,
                    TopKind::Used => TopKind::Denied,
                };
            }
            KeyCode::Up => self.step(-1),
            KeyCode::Down => self.step(1),
            KeyCode::PageUp => self.step(-PAGE_ROWS),
            KeyCode::PageDown => self.step(PAGE_ROWS),
            KeyCode::Home => self.step(isize::MIN),
            KeyCode::End => self.step(isize::MAX),
            _ => return Effect::None,
        }
        Effect::Refresh
    }

    fn turn(&mut self, by: usize) {
        let at = Page::ALL.iter().position(|page| *page == self.page).unwrap_or_default();
        self.page = Page::ALL[(at + by) % Page::ALL.len()];
    }

    /// Moves the selection, or the refusals.
    fn step(&mut self, rows: isize) {
        if self.page == Page::Refusals {
            let last = self.refusals.len().saturating_sub(1);
            self.scroll = self.scroll.saturating_add_signed(rows).min(last);
            return;
        }
        let rules = self.rules();
        let last = rules.len().saturating_sub(1);
        let next = match self.position() {
            Some(at) => at.saturating_add_signed(rows).min(last),
            None => 0,
        };
        let next = rules.get(next).map(|rule| RuleName::from(*rule));
        self.selected = next.or(self.selected.take());
    }
}

#[cfg(test)]
pub(super) mod tests {
    use rlaas_proto::ratelimit::admin::v1::Coverage;

    use super::*;

    pub(crate) fn rule(name: &str, allowed: u64, denied: u64) -> RuleStats {
        RuleStats { rule: name.to_owned(), allowed, denied, units: allowed, ..<_>::default() }
    }

    pub(crate) fn point(at: i64, rules: Vec<RuleStats>) -> WatchStatsResponse {
        let time = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        WatchStatsResponse {
            since: time(at),
            until: time(at + 10),
            rules,
            others: None,
            coverage: Some(Coverage { instances: vec!["one".to_owned()], missing: vec![] }),
        }
    }

    fn press(state: &mut TopState, code: KeyCode) -> Effect {
        state.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn selected(state: &TopState) -> &str {
        &state.selected.as_ref().expect("a rule").rule
    }

    #[test]
    fn selection_follows_its_rule() {
        let mut state = TopState::new("server".to_owned(), true);
        assert_eq!(press(&mut state, KeyCode::Down), Effect::Refresh);
        assert_eq!(state.position(), None);
        state.begin();
        state.add_point(point(0, vec![rule("a", 9, 0), rule("b", 5, 1), rule("c", 1, 3)]));
        assert_eq!((selected(&state), state.position()), ("a", Some(0)));
        press(&mut state, KeyCode::Down);
        press(&mut state, KeyCode::Char('s'));
        assert_eq!((selected(&state), state.position()), ("b", Some(1)));
        state.add_point(point(10, vec![rule("b", 9, 9), rule("a", 5, 1)]));
        assert_eq!((selected(&state), state.position()), ("b", Some(0)));
        press(&mut state, KeyCode::PageDown);
        assert_eq!(selected(&state), "a");
        press(&mut state, KeyCode::Home);
        assert_eq!(selected(&state), "b");
        // It is gone, and not forgotten.
        state.add_point(point(20, vec![]));
        assert_eq!((selected(&state), state.position()), ("b", None));
        press(&mut state, KeyCode::Up);
        assert_eq!(selected(&state), "b");
    }

    #[test]
    fn lists_are_bounded_and_keys_turn_pages_or_quit() {
        let mut state = TopState::new("server".to_owned(), true);
        (0..200).for_each(|at| state.add_point(point(at * 10, vec![])));
        state.add_refusals(vec![DecisionEvent::default(); 2 * MAX_REFUSALS], 7);
        assert_eq!((state.points.len(), state.refusals.len()), (MAX_POINTS, MAX_REFUSALS));
        for (code, page) in [
            (KeyCode::Tab, Page::Keys),
            (KeyCode::Tab, Page::Refusals),
            (KeyCode::Tab, Page::Rules),
            (KeyCode::BackTab, Page::Refusals),
            (KeyCode::Char('1'), Page::Rules),
            (KeyCode::Enter, Page::Keys),
        ] {
            press(&mut state, code);
            assert_eq!(state.page, page);
        }
        press(&mut state, KeyCode::Char('k'));
        assert_eq!(state.kind, TopKind::NearLimit);
        press(&mut state, KeyCode::Char('3'));
        press(&mut state, KeyCode::End);
        assert_eq!(state.scroll, MAX_REFUSALS - 1);
        press(&mut state, KeyCode::PageUp);
        state.add_refusals(vec![DecisionEvent::default()], 0);
        assert_eq!(state.scroll, MAX_REFUSALS - 10);
        assert_eq!(press(&mut state, KeyCode::Char('x')), Effect::None);
        assert_eq!(press(&mut state, KeyCode::Char('q')), Effect::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.press(interrupt), Effect::Quit);
    }
}
