//! The theme: a style for each kind of text, with or without colour.

use ratatui_core::style::{Color, Modifier, Style};

/// Whether colours are used. Only the sixteen ANSI colours are, which follow the terminal's theme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Theme {
    Colour,
    /// Bold, dim and underlined text only.
    Plain,
}

impl Theme {
    /// Returns `Plain` if `NO_COLOR` is set and not empty.
    pub(crate) fn from_env() -> Self {
        match std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
            true => Self::Plain,
            false => Self::Colour,
        }
    }

    fn coloured(self, colour: Color) -> Style {
        match self {
            Self::Colour => Style::new().fg(colour),
            Self::Plain => Style::new(),
        }
    }

    /// Style of secondary text.
    pub(crate) fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(crate) fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) fn heading(self) -> Style {
        self.coloured(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// Inline code, and names of functions in code.
    pub(crate) fn code(self) -> Style {
        self.coloured(Color::Cyan)
    }

    pub(crate) fn link(self) -> Style {
        Style::new().add_modifier(Modifier::UNDERLINED)
    }

    pub(crate) fn success(self) -> Style {
        self.coloured(Color::Green)
    }

    pub(crate) fn error(self) -> Style {
        self.coloured(Color::Red)
    }

    /// Questions to the user.
    pub(crate) fn question(self) -> Style {
        self.coloured(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    /// Work in progress.
    pub(crate) fn progress(self) -> Style {
        self.coloured(Color::Cyan)
    }

    /// The user's messages and input.
    pub(crate) fn user_input(self) -> Style {
        self.coloured(Color::Blue).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(crate) fn keyword(self) -> Style {
        self.coloured(Color::Blue)
    }

    pub(crate) fn constant(self) -> Style {
        self.coloured(Color::Magenta)
    }
}
