//! Styles of the live view.

use ratatui::style::{Color, Modifier, Style};

/// Style of titles.
pub(super) const TITLE: Style = Style::new().add_modifier(Modifier::BOLD);
/// Style of what is selected.
pub(super) const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);
/// Style of what stands back.
pub(super) const FAINT: Style = Style::new().add_modifier(Modifier::DIM);

/// Styles that have a color; without colors where they are not wanted.
#[derive(Clone, Copy)]
pub(super) struct Theme {
    pub(super) has_colors: bool,
}

impl Theme {
    pub(super) fn good(self) -> Style {
        self.color(Color::Green)
    }

    pub(super) fn warn(self) -> Style {
        self.color(Color::Yellow)
    }

    pub(super) fn bad(self) -> Style {
        self.color(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn color(self, color: Color) -> Style {
        if self.has_colors { Style::new().fg(color) } else { Style::new() }
    }
}
