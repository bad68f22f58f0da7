//! The live view: the rules of the newest point, and below refusals of the instance that answers or, by
//! the key `k`, the keys that are denied most; drawn anew with each update.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use futures_util::future::OptionFuture;
use rlaas_proto::ratelimit::admin::v1::{
    Outcome, WatchDecisionsRequest, WatchDecisionsResponse, WatchStatsResponse,
};
use tokio::time::sleep;
use tonic::{Code, Status, Streaming};

use super::keyboard::Keyboard;
use super::{NEWEST, TopArgs, lists};
use crate::call::{Admin, CommandError};
use crate::signals::Signals;
use crate::text::printable;
use crate::{tail, text};

/// Pause before a stream that was lost is opened again.
const PAUSE: Duration = Duration::from_secs(2);
/// Most refusals that are kept.
const MAX_REFUSALS: usize = 100;
/// Lines besides rules and refusals.
const OTHER_LINES: usize = 6;
/// Shows another screen, without a cursor, on which long lines are cut; and gives it back.
const TAKE_OVER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const GIVE_BACK: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The screen of the live view until this is dropped.
struct Screen;

/// What is shown.
struct View {
    address: String,
    /// State of the stream.
    state: String,
    point: WatchStatsResponse,
    /// The only rule that is shown.
    rule: Option<String>,
    /// Newest first.
    refusals: VecDeque<String>,
    /// Number of refusals that came too fast to be shown, or why there are none.
    note: String,
    dropped: u64,
    keyboard: Option<Keyboard>,
    /// The keys that are denied most, if they are shown in place of refusals.
    keys: Option<String>,
}

/// Returns `true` if there is a terminal to show the live view on.
pub(super) fn has_terminal() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !is_dumb
}

/// Shows the live view until a signal, or until the server refuses it.
pub(super) async fn run(admin: &mut Admin, args: &TopArgs) -> Result<(), CommandError> {
    let signals = Signals::listen().map_err(anyhow::Error::from)?;
    let _screen = Screen::take_over().map_err(anyhow::Error::from)?;
    let mut view = View {
        address: args.call.server.address(),
        state: "connecting".to_owned(),
        point: WatchStatsResponse::default(),
        rule: args.rule.clone(),
        refusals: VecDeque::new(),
        note: String::new(),
        dropped: 0,
        keyboard: Keyboard::take_over(),
        keys: None,
    };
    tokio::select! {
        refused = view.follow(admin, args) => Err(refused.into()),
        () = signals.nth(1) => Ok(()),
    }
}

impl View {
    /// Shows points and refusals. A stream that is lost is opened again; returns why another one is
    /// refused.
    async fn follow(&mut self, admin: &mut Admin, args: &TopArgs) -> Status {
        loop {
            let Err(lost) = self.show(admin, args).await else { continue };
            if !may_return(lost.code()) {
                return lost;
            }
            self.state = format!("lost, trying again: {}", printable(lost.message()));
            self.render();
            wait(PAUSE).await;
        }
    }

    /// Shows what the streams send until one of points ends.
    async fn show(&mut self, admin: &mut Admin, args: &TopArgs) -> Result<(), Status> {
        let asked = args.request(Some(NEWEST));
        let mut points = admin.watch_stats(asked.clone()).await?.into_inner();
        let request = WatchDecisionsRequest {
            project_id: asked.project_id,
            rule: asked.rule,
            outcomes: vec![Outcome::Denied.into()],
            ..WatchDecisionsRequest::default()
        };
        let mut refusals = match admin.watch_decisions(request).await {
            Ok(refusals) => {
                self.note.clear();
                Some(refusals.into_inner())
            }
            Err(status) => {
                self.note = printable(status.message());
                None
            }
        };
        "live".clone_into(&mut self.state);
        loop {
            self.render();
            let next_key = OptionFuture::from(self.keyboard.as_mut().map(Keyboard::next));
            let next_refusals = OptionFuture::from(refusals.as_mut().map(Streaming::message));
            tokio::select! {
                point = points.message() => match point? {
                    Some(point) => {
                        self.point = point;
                        self.read_keys(admin, args).await;
                    }
                    None => return Err(Status::unavailable("the stream has ended")),
                },
                Some(key) = next_key => {
                    if key == b'k' {
                        self.keys = self.keys.is_none().then(String::new);
                        self.read_keys(admin, args).await;
                    }
                }
                Some(next) = next_refusals => match next {
                    Ok(Some(response)) => self.add_refusals(&response),
                    Ok(None) => refusals = None,
                    Err(status) => {
                        self.note = printable(status.message());
                        refusals = None;
                    }
                },
            }
        }
    }

    /// Reads the keys that are denied most, if they are shown.
    async fn read_keys(&mut self, admin: &mut Admin, args: &TopArgs) {
        if self.keys.is_none() {
            return;
        }
        let rule = args.rule.as_deref().unwrap_or_default();
        self.keys = Some(match lists::keys(admin, rule, args).await {
            Ok(found) => found.text,
            Err(CommandError::Status(status)) => printable(status.message()),
            Err(_) => "not known".to_owned(),
        });
    }

    fn add_refusals(&mut self, response: &WatchDecisionsResponse) {
        for event in &response.events {
            self.refusals.push_front(tail::line(event));
        }
        self.refusals.truncate(MAX_REFUSALS);
        self.dropped = self.dropped.saturating_add(response.dropped);
        if self.dropped > 0 {
            self.note = format!("{} not shown: they came too fast", self.dropped);
        }
    }

    /// Draws everything. A terminal that is gone ends the program by its signal.
    fn render(&self) {
        let size = rustix::termios::tcgetwinsize(io::stdout());
        let height = size.map_or(0, |size| usize::from(size.ws_row)).max(OTHER_LINES + 2);
        let lines = self.lines(height).join("\x1b[K\n");
        let mut out = io::stdout().lock();
        let _gone = write!(out, "\x1b[H{lines}\x1b[K\x1b[J").and_then(|()| out.flush());
    }

    /// Returns at most `height` lines: the rules have half of them, refusals the rest.
    fn lines(&self, height: usize) -> Vec<String> {
        let address = printable(&self.address);
        let keys = if self.keyboard.is_some() { "k keys  " } else { "" };
        let mut lines = vec![format!("rlaas top {address}  {}  {keys}Ctrl-C quits", self.state)];
        let covered = text::coverage(self.point.coverage.clone().unwrap_or_default());
        lines.push(format!("{}  {}", text::time(self.point.until.as_ref()), covered.trim_end()));
        lines.push(lists::rates(&self.point, self.rule.as_deref()));
        let rules = lists::rules(&self.point);
        let rules: Vec<&str> = rules.lines().collect();
        let shown = rules.len().min((height - OTHER_LINES).div_ceil(2));
        lines.extend(rules[..shown].iter().map(ToString::to_string));
        let left_out = rules.len() - shown;
        let more = if left_out > 0 { format!("… and {left_out} more") } else { String::new() };
        lines.push(more);
        if let Some(keys) = &self.keys {
            lines.push("keys denied most".to_owned());
            lines.extend(keys.lines().map(str::to_owned));
        } else {
            lines.push(format!("refusals of this instance, newest first  {}", self.note));
            lines.extend(self.refusals.iter().cloned());
        }
        lines.truncate(height);
        lines
    }
}

impl Screen {
    fn take_over() -> io::Result<Self> {
        let mut out = io::stdout().lock();
        out.write_all(TAKE_OVER.as_bytes()).and_then(|()| out.flush())?;
        Ok(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut out = io::stdout().lock();
        let _gone = out.write_all(GIVE_BACK.as_bytes()).and_then(|()| out.flush());
    }
}

/// Returns `true` if the same call may succeed later.
fn may_return(code: Code) -> bool {
    use Code::{Aborted, Cancelled, DeadlineExceeded, Internal, ResourceExhausted, Unavailable};
    let passing = [Aborted, Cancelled, DeadlineExceeded, Internal, ResourceExhausted, Unavailable];
    passing.contains(&code) || code == Code::Unknown
}

#[expect(clippy::disallowed_methods, reason = "paces the attempts to connect again")]
async fn wait(pause: Duration) {
    sleep(pause).await;
}

#[cfg(test)]
mod tests {
    use rlaas_proto::ratelimit::admin::v1::{
        DecisionEvent, KeyPart, KeyRef, RequestStats, RuleStats,
    };
    use rlaas_proto::ratelimit::v1::CheckResponse;

    use super::*;

    const HOSTILE: &str = "a\n\u{1b}[2J\u{202e}\0<script>\u{7f}\u{9b}31m";

    fn rule(name: &str, allowed: u64, denied: u64) -> RuleStats {
        RuleStats { rule: name.to_owned(), allowed, denied, units: allowed, ..<_>::default() }
    }

    fn view(rules: Vec<RuleStats>) -> View {
        let time = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let (since, until) = (time(1_700_000_000), time(1_700_000_010));
        let point = WatchStatsResponse { since, until, rules, ..<_>::default() };
        let (address, state) = ("127.0.0.1:50051".to_owned(), "live".to_owned());
        let (refusals, note) = (VecDeque::new(), String::new());
        let (dropped, rule, keyboard, keys) = (0, None, None, None);
        View { address, state, point, rule, refusals, note, dropped, keyboard, keys }
    }

    #[test]
    fn rules_are_drawn_with_rates() {
        let mut view = view(vec![rule("pay", 20_000, 5_000)]);
        let requests = |project: &str, allowed, denied, failed| RequestStats {
            project_id: project.to_owned(),
            allowed,
            denied,
            failed,
            ..<_>::default()
        };
        view.point.requests = vec![requests("", 15_000, 4_000, 0), requests("shop", 0, 0, 1_000)];
        view.point.other_requests = Some(RequestStats { rejected: 20, ..<_>::default() });
        let lines = view.lines(24);
        assert_eq!(lines[0], "rlaas top 127.0.0.1:50051  live  Ctrl-C quits");
        assert!(lines[1].starts_with("2023-11-14T22:13:30Z"), "{}", lines[1]);
        assert_eq!(
            lines[2],
            "requests per second: 1500.0 allowed, 400.0 denied (20.0 % of the three), 100.0 failed; 2.0 not valid"
        );
        let columns: Vec<_> = lines[4].split_whitespace().collect();
        assert_eq!(columns, ["-", "pay", "20000", "0", "5000", "0", "20000", "0", "0"]);
        view.rule = Some("pay".to_owned());
        let of_rule = &view.lines(24)[2];
        assert_eq!(of_rule, "decisions of the rule per second: 2000.0 allow, 500.0 deny");
    }

    #[test]
    fn every_height_is_kept_and_nothing_is_shown_that_a_terminal_obeys() {
        let long = format!("{HOSTILE}{}", "ü".repeat(600));
        let mut view = view((0..300).map(|at| rule(&format!("{long}{at}"), at, at)).collect());
        let part = KeyPart { name: HOSTILE.to_owned(), value: Some(long.clone()) };
        let key = Some(KeyRef { parts: vec![part], ..KeyRef::default() });
        let verdict = Some(CheckResponse { rule: long, ..CheckResponse::default() });
        let event = DecisionEvent { key, verdict, ..DecisionEvent::default() };
        let events = vec![event; 2 * MAX_REFUSALS];
        view.add_refusals(&WatchDecisionsResponse { events, dropped: 3 });
        assert_eq!(view.refusals.len(), MAX_REFUSALS);
        for height in [8, 15, 24, 70] {
            let lines = view.lines(height);
            assert_eq!(lines.len(), height);
            let is_harmless = |char: char| !char.is_control() && char != '\u{202e}';
            assert!(lines.iter().all(|line| line.chars().all(is_harmless)), "{lines:?}");
            let note = "newest first  3 not shown: they came too fast";
            assert!(lines.iter().any(|line| line.ends_with(note)), "{lines:?}");
        }
    }
}
