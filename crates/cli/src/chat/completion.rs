//! Completions while the user types: slash commands, their arguments, and files after an `@`.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui_core::text::Span;
use unicode_width::UnicodeWidthStr;

use super::commands::{APPROVAL_POLICIES, SCRIPT_MODES, SLASH_COMMANDS, command_name};
use super::rows::{StyledRow, sanitize_line, truncate};
use super::theme::Theme;

/// Completions that are visible at once.
const MAX_VISIBLE_COMPLETIONS: usize = 6;

/// One completion: the text to insert, and a description that may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InputCompletion {
    pub(crate) text: String,
    pub(crate) description: String,
}

impl InputCompletion {
    pub(crate) fn new(text: impl Into<String>, description: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            description: description.into(),
        }
    }
}

/// What is being completed, with the text typed so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CompletionTarget {
    Command(String),
    Model(String),
    Policy(String),
    ScriptMode(String),
    Session(String),
    File(String),
}

/// The menu of completions and its selected entry. The list is never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CompletionMenu {
    pub(crate) target: CompletionTarget,
    /// Byte offset from which the text up to the cursor is replaced.
    pub(crate) start: usize,
    pub(crate) items: Vec<InputCompletion>,
    selected: usize,
}

/// Returns what the text before the cursor can be completed to, and the byte offset from which it
/// is replaced. `cursor` is a byte offset.
pub(crate) fn completion_target(text: &str, cursor: usize) -> Option<(CompletionTarget, usize)> {
    let before = text.get(..cursor)?;
    if before.starts_with('/') && !before.contains('\n') {
        let Some((command, argument)) = before.split_once(' ') else {
            return (!before[1..].contains('/'))
                .then(|| (CompletionTarget::Command(before.to_owned()), 0));
        };
        let from = before.len() - argument.len();
        let argument = argument.to_owned();
        return match command {
            _ if argument.contains(' ') => None,
            "/model" => Some((CompletionTarget::Model(argument), from)),
            "/approvals" => Some((CompletionTarget::Policy(argument), from)),
            "/mode" => Some((CompletionTarget::ScriptMode(argument), from)),
            "/continue" | "/resume" => Some((CompletionTarget::Session(argument), from)),
            _ => None,
        };
    }
    let word = before.rfind(char::is_whitespace).map_or(0, |space| {
        space + before[space..].chars().next().map_or(0, char::len_utf8)
    });
    let name = before[word..].strip_prefix('@')?;
    Some((CompletionTarget::File(name.to_owned()), word))
}

pub(crate) fn command_completions(typed: &str) -> Vec<InputCompletion> {
    let all = SLASH_COMMANDS
        .iter()
        .map(|(usage, help)| InputCompletion::new(command_name(usage), *help));
    all.filter(|completion| completion.text.starts_with(typed))
        .collect()
}

pub(crate) fn policy_completions(typed: &str) -> Vec<InputCompletion> {
    let all = APPROVAL_POLICIES
        .iter()
        .map(|choice| InputCompletion::new(choice.name.clone(), choice.help.clone()));
    all.filter(|completion| completion.text.starts_with(typed))
        .collect()
}

pub(crate) fn script_mode_completions(typed: &str) -> Vec<InputCompletion> {
    let all = SCRIPT_MODES
        .iter()
        .map(|choice| InputCompletion::new(choice.name.clone(), choice.help.clone()));
    all.filter(|completion| completion.text.starts_with(typed))
        .collect()
}

impl CompletionMenu {
    /// Returns `None` if the list is empty, or if its only entry is already typed.
    pub(crate) fn new(
        target: CompletionTarget,
        start: usize,
        items: Vec<InputCompletion>,
    ) -> Option<Self> {
        let typed = target.typed_text();
        let already_typed = items.len() == 1 && items[0].text == typed;
        (!items.is_empty() && !already_typed).then_some(Self {
            target,
            start,
            items,
            selected: 0,
        })
    }

    pub(crate) fn selected(&self) -> Option<&InputCompletion> {
        self.items.get(self.selected)
    }

    /// Moves the selection. Returns whether the key was used.
    pub(crate) fn handle_key(&mut self, key: KeyEvent) -> bool {
        let step = match key.code {
            KeyCode::Up => self.items.len() - 1,
            KeyCode::Down => 1,
            _ => return false,
        };
        self.selected = (self.selected + step) % self.items.len();
        true
    }

    pub(crate) fn rows(&self, theme: Theme) -> Vec<StyledRow> {
        let last = self.items.len().saturating_sub(MAX_VISIBLE_COMPLETIONS);
        let first = self
            .selected
            .saturating_sub(MAX_VISIBLE_COMPLETIONS - 1)
            .min(last);
        let widths = self.items.iter();
        let widths = widths.map(|entry| sanitize_line(&entry.text).width());
        let width = widths.max().unwrap_or(0).min(40);
        let shown = self
            .items
            .iter()
            .enumerate()
            .skip(first)
            .take(MAX_VISIBLE_COMPLETIONS);
        let mut rows: Vec<StyledRow> = shown
            .map(|(index, entry)| {
                let (mark, style) = match index == self.selected {
                    true => ("▸ ", theme.selected()),
                    false => ("  ", Default::default()),
                };
                let text = sanitize_line(&entry.text);
                let padding = " ".repeat(width.saturating_sub(text.width()) + 2);
                let mut body = vec![Span::styled(text, style)];
                if !entry.description.is_empty() {
                    let description = truncate(&sanitize_line(&entry.description), 80);
                    body.push(Span::styled(format!("{padding}{description}"), theme.dim()));
                }
                StyledRow::spans(body)
                    .truncated()
                    .with_prefix(Span::raw(mark))
            })
            .collect();
        if self.items.len() > MAX_VISIBLE_COMPLETIONS {
            let (position, total) = (self.selected + 1, self.items.len());
            rows.push(StyledRow::dim(format!("  {position} of {total}")));
        }
        rows
    }
}

impl CompletionTarget {
    fn typed_text(&self) -> &str {
        match self {
            Self::Command(text)
            | Self::Model(text)
            | Self::Policy(text)
            | Self::ScriptMode(text)
            | Self::Session(text)
            | Self::File(text) => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_before_the_cursor_decides_what_is_completed() {
        let target = |text: &str| completion_target(text, text.len());
        assert_eq!(
            target("/mo"),
            Some((CompletionTarget::Command("/mo".into()), 0))
        );
        assert_eq!(
            target("/approvals on"),
            Some((CompletionTarget::Policy("on".into()), 11))
        );
        assert_eq!(
            target("look at @src/ma"),
            Some((CompletionTarget::File("src/ma".into()), 8))
        );
        assert_eq!(
            target("@"),
            Some((CompletionTarget::File(String::new()), 0))
        );
        for text in ["", "me@example.com", "/usr/bin", "/diff x", "plain"] {
            assert_eq!(target(text), None, "{text}");
        }
    }

    #[test]
    fn descriptions_of_wide_names_are_aligned() {
        let items = vec![
            InputCompletion::new("模型", "wide"),
            InputCompletion::new("mock", "narrow"),
        ];
        let menu = CompletionMenu::new(CompletionTarget::Model(String::new()), 0, items).unwrap();
        let rows = menu.rows(Theme::Plain);
        let rows: Vec<String> = rows.iter().map(StyledRow::plain).collect();
        assert_eq!(rows, ["▸ 模型  wide", "  mock  narrow"]);
    }

    #[test]
    fn the_selection_wraps_around_and_stays_visible() {
        let list = (0..9)
            .map(|n| InputCompletion {
                text: format!("file{n}"),
                description: String::new(),
            })
            .collect();
        let mut menu = CompletionMenu::new(CompletionTarget::File(String::new()), 0, list).unwrap();
        assert!(menu.handle_key(KeyEvent::from(KeyCode::Up)));
        let rows: Vec<String> = menu
            .rows(Theme::Plain)
            .iter()
            .map(StyledRow::plain)
            .collect();
        assert_eq!(rows.last().unwrap(), "  9 of 9");
        assert!(rows.contains(&"▸ file8".to_owned()), "{rows:?}");
        assert!(menu.handle_key(KeyEvent::from(KeyCode::Down)));
        assert_eq!(menu.selected().unwrap().text, "file0");
        assert!(
            CompletionMenu::new(
                CompletionTarget::Command("/diff".into()),
                0,
                command_completions("/diff")
            )
            .is_none()
        );
    }
}
