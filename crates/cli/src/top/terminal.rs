//! The terminal of the live view: taken over, and given back whatever happens.

use std::io::{self, IsTerminal, Stdout, stdin, stdout};

use crossterm::cursor::{Hide, Show};
use crossterm::execute;
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;

/// A terminal that shows the live view until this is dropped.
pub(super) struct LiveTerminal(pub(super) Terminal<CrosstermBackend<Stdout>>);

impl LiveTerminal {
    /// Takes the terminal over.
    pub(super) fn take_over() -> io::Result<Self> {
        // A panic must not leave the terminal without its prompt; its message comes after that.
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
        enable_raw_mode()?;
        let terminal = execute!(stdout(), EnterAlternateScreen, Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(stdout())));
        terminal.map(Self).inspect_err(|_| restore())
    }
}

impl Drop for LiveTerminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Returns `true` if there is a terminal to show the live view on, and to read keys from.
pub(super) fn is_there() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stdout().is_terminal() && stdin().is_terminal() && !is_dumb
}

/// Returns `true` unless `NO_COLOR` is set.
pub(super) fn has_colors() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Restores the terminal, unless it is gone.
fn restore() {
    let _left = disable_raw_mode();
    let _left = execute!(stdout(), LeaveAlternateScreen, Show);
}
