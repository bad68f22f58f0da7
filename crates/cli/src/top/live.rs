//! The live view: a loop over keys of the keyboard, updates from the server, and signals.

use std::io;

use crossterm::event::{Event, EventStream, KeyEventKind};
use futures_util::StreamExt;
use rlaas_proto::ratelimit::admin::v1::WatchStatsRequest;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::{AbortHandle, JoinSet};
use tonic::Status;

use super::feeds::{self, TopUpdate};
use super::state::{Effect, Page, Stream, TopState};
use super::terminal::{self, LiveTerminal};
use super::view;
use crate::call::{Admin, CommandError};
use crate::printable::printable;

/// Updates that wait to be shown.
const MAX_UPDATES: usize = 64;

/// The live view and its tasks, which end with it.
struct Live {
    state: TopState,
    admin: Admin,
    request: WatchStatsRequest,
    updates: Sender<TopUpdate>,
    tasks: JoinSet<()>,
    refusals: Option<AbortHandle>,
    keys: Option<AbortHandle>,
}

/// Shows the live view until the user quits, or the server refuses it.
pub(super) async fn run(
    admin: &Admin,
    request: WatchStatsRequest,
    address: String,
) -> Result<(), CommandError> {
    let (updates, received) = channel(MAX_UPDATES);
    let mut tasks = JoinSet::new();
    tasks.spawn(feeds::points(admin.clone(), request.clone(), updates.clone()));
    let state = TopState::new(address, terminal::has_colors());
    let (admin, refusals, keys) = (admin.clone(), None, None);
    let mut live = Live { state, admin, request, updates, tasks, refusals, keys };
    let mut terminal = LiveTerminal::take_over().map_err(anyhow::Error::from)?;
    live.show(&mut terminal, received).await
}

impl Live {
    async fn show(
        &mut self,
        terminal: &mut LiveTerminal,
        mut updates: Receiver<TopUpdate>,
    ) -> Result<(), CommandError> {
        let mut input = EventStream::new();
        let listen = |kind| signal(kind).map_err(anyhow::Error::from);
        let mut ends = [
            listen(SignalKind::terminate())?,
            listen(SignalKind::interrupt())?,
            listen(SignalKind::hangup())?,
        ];
        let [terminate, interrupt, hangup] = &mut ends;
        loop {
            let drawn = terminal.0.draw(|frame| view::render(frame, &self.state));
            drawn.map_err(anyhow::Error::from)?;
            tokio::select! {
                event = input.next() => match event {
                    Some(Ok(event)) if self.handle(&event) => {}
                    Some(Ok(_)) | None => return Ok(()),
                    Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                    Some(Err(error)) => return Err(anyhow::Error::from(error).into()),
                },
                Some(first) = updates.recv() => {
                    self.apply(first)?;
                    // All that wait are shown at once.
                    while let Ok(next) = updates.try_recv() {
                        self.apply(next)?;
                    }
                }
                _ = terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
                _ = hangup.recv() => return Ok(()),
            }
        }
    }

    /// Handles a key of the keyboard. Returns `false` to quit.
    fn handle(&mut self, event: &Event) -> bool {
        let Event::Key(key) = event else { return true };
        if key.kind == KeyEventKind::Release {
            return true;
        }
        match self.state.press(*key) {
            Effect::Quit => return false,
            Effect::Refresh => self.follow_page(),
            Effect::None => {}
        }
        true
    }

    fn apply(&mut self, update: TopUpdate) -> Result<(), CommandError> {
        match update {
            TopUpdate::Begun => self.state.begin(),
            TopUpdate::Point(point) => {
                self.state.add_point(*point);
                self.follow_page();
            }
            TopUpdate::Lost(status) => self.state.stream = Stream::Lost(text(&status)),
            TopUpdate::Refused(status) => return Err(status.into()),
            TopUpdate::Refusals { events, dropped } => {
                self.state.refusals_problem = None;
                self.state.add_refusals(events, dropped);
            }
            TopUpdate::NoRefusals(status) => {
                self.refusals = None;
                self.state.refusals_problem = Some(text(&status));
            }
            TopUpdate::Keys { of, answer } => {
                let answer = answer.map_err(|status| text(&status));
                self.state.keys = super::state::KeyList { of: Some(of), answer: Some(answer) };
            }
        }
        Ok(())
    }

    /// Asks for what the page shows, and for nothing else.
    fn follow_page(&mut self) {
        if self.state.page != Page::Refusals {
            self.refusals.take().inspect(AbortHandle::abort);
        } else if self.refusals.is_none() {
            let (admin, updates) = (self.admin.clone(), self.updates.clone());
            let task = feeds::refusals(admin, self.request.clone(), updates);
            self.refusals = Some(self.tasks.spawn(task));
        }
        if let (Page::Keys, Some(rule)) = (self.state.page, self.state.selected.clone()) {
            self.keys.take().inspect(AbortHandle::abort);
            let task =
                feeds::keys(self.admin.clone(), (rule, self.state.kind), self.updates.clone());
            self.keys = Some(self.tasks.spawn(task));
        }
        while self.tasks.try_join_next().is_some() {}
    }
}

fn text(status: &Status) -> String {
    printable(status.message())
}
