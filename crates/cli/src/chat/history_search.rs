//! The search in the input history: Ctrl-R finds the newest message with a text, again the next
//! older one.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::app::Chat;
use super::editor::Draft;

/// A search in progress. The editor shows the message that was found.
#[derive(Debug, Default)]
pub(crate) struct HistorySearch {
    query: String,
    /// Index of the message in the editor; `None` if none was found.
    found: Option<usize>,
    /// Whether the last step found no message.
    has_failed: bool,
    /// The input from before the search.
    draft: Draft,
}

impl Chat {
    /// Starts a search, or finds the next older message.
    pub(super) fn search_history(&mut self) {
        match &mut self.history_search {
            Some(search) => {
                let before = search.found.unwrap_or(usize::MAX);
                let query = search.query.clone();
                self.show_found(&query, before);
            }
            None => {
                self.history_search = Some(HistorySearch {
                    draft: self.editor.draft(),
                    ..HistorySearch::default()
                });
                self.completions = None;
                self.show_search_notice();
            }
        }
    }

    /// Handles a key of the search. Returns whether the key is used up.
    pub(super) fn handle_search_key(&mut self, key: KeyEvent) -> bool {
        let Some(search) = &mut self.history_search else {
            return false;
        };
        let plain = key.modifiers.difference(KeyModifiers::SHIFT).is_empty();
        match key.code {
            KeyCode::Char(letter) if plain => {
                search.query.push(letter);
                let query = search.query.clone();
                self.show_found(&query, usize::MAX);
            }
            KeyCode::Backspace => {
                search.query.pop();
                let query = search.query.clone();
                self.show_found(&query, usize::MAX);
            }
            KeyCode::Esc => {
                let draft = std::mem::take(&mut search.draft);
                self.editor.restore(&draft);
                self.history_search = None;
            }
            // Enter takes the message into the input, and does not send it.
            KeyCode::Enter => self.history_search = None,
            _ => {
                self.history_search = None;
                return false;
            }
        }
        true
    }

    /// Shows the newest message before index `before` that contains the query. Keeps the one in the
    /// editor if there is no other.
    fn show_found(&mut self, query: &str, before: usize) {
        let found = self.history.find_before(query, before);
        let found = found.map(|(index, entry)| (index, entry.to_owned()));
        let Some(search) = &mut self.history_search else {
            return;
        };
        search.has_failed = found.is_none();
        if let Some((index, entry)) = found {
            search.found = Some(index);
            self.editor.set(&entry);
        }
        self.show_search_notice();
    }

    fn show_search_notice(&mut self) {
        if let Some(search) = &self.history_search {
            let state = match search.has_failed {
                true => "no other message",
                false => "Ctrl-R older",
            };
            self.notice = Some(format!(
                "history: {}▏ {state} · Enter takes it · Esc cancels",
                search.query
            ));
        }
    }
}
