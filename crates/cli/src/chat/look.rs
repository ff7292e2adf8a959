//! How things look: what each kind of text is drawn in, and nothing in colour where nobody wants it.

use ratatui_core::style::{Color, Modifier, Style};

/// Which escapes are used. Only the terminal's own sixteen colours, so that its theme holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Colour,
    /// Bold, dim and underlined, but no colour.
    Plain,
}

impl Look {
    pub(crate) fn of_environment() -> Self {
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

    /// What is said beside the point.
    pub(crate) fn quiet(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(crate) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) fn heading(self) -> Style {
        self.coloured(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// Code among words, and the names of functions in code.
    pub(crate) fn code(self) -> Style {
        self.coloured(Color::Cyan)
    }

    pub(crate) fn link(self) -> Style {
        Style::new().add_modifier(Modifier::UNDERLINED)
    }

    pub(crate) fn good(self) -> Style {
        self.coloured(Color::Green)
    }

    pub(crate) fn bad(self) -> Style {
        self.coloured(Color::Red)
    }

    /// What waits for somebody.
    pub(crate) fn asks(self) -> Style {
        self.coloured(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn busy(self) -> Style {
        self.coloured(Color::Cyan)
    }

    pub(crate) fn person(self) -> Style {
        self.coloured(Color::Blue).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(crate) fn keyword(self) -> Style {
        self.coloured(Color::Blue)
    }

    pub(crate) fn constant(self) -> Style {
        self.coloured(Color::Magenta)
    }
}
