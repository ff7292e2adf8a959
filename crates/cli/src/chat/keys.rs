//! Keyboard input of the chat: dispatches keys to the question, the completion menu or the editor.

use std::collections::BTreeSet;
use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::app::{Chat, size};
use super::commands;
use super::complete::{self, Offer, Offers, Wish};
use super::editor::Edit;
use super::form::FormPressed;
use super::news::News;
use super::pending::Pending;
use super::question::Pressed;
use super::turn::Thoughts;

/// Files offered as completions.
const FILES: usize = 50;
/// Sessions offered as completions.
const SESSIONS: u32 = 20;

impl Chat {
    pub(super) fn key(&mut self, key: KeyEvent) {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return self.interrupt(Instant::now());
        }
        (self.notice, self.pressed) = (None, None);
        match self.asking.front_mut() {
            Some(Pending::Gate(prompt)) => match prompt.press(key, &mut self.why, Instant::now()) {
                Pressed::Taken => return,
                Pressed::Decided(decision) => return self.decide(decision),
                Pressed::NotMine => {}
            },
            Some(Pending::Form(prompt)) => match prompt.press(key, &mut self.why, Instant::now()) {
                FormPressed::Taken => return,
                FormPressed::Filled(row) => return self.say([row]),
                FormPressed::Decided(outcome) => return self.fill(outcome),
                FormPressed::NotMine => {}
            },
            None => {}
        }
        match key.code {
            KeyCode::Char('d') if control && self.editor.is_empty() => self.leaving = true,
            KeyCode::Char('t') if control => {
                let (display, notice) = match self.thoughts {
                    Thoughts::Folded => (
                        Thoughts::Unfolded,
                        "new thinking is shown; /thinking shows the last one",
                    ),
                    Thoughts::Unfolded => (Thoughts::Folded, "new thinking is hidden"),
                };
                self.thoughts = display;
                self.notice = Some(notice.to_owned());
            }
            KeyCode::Char('l') if control => {
                let (width, height) = size();
                self.redraw(width, height);
            }
            _ => self.edit(key),
        }
    }

    fn edit(&mut self, key: KeyEvent) {
        if let Some(menu) = &mut self.offers {
            match key.code {
                KeyCode::Up | KeyCode::Down if menu.press(key) => return,
                KeyCode::Tab => return self.accept(),
                KeyCode::Esc => {
                    self.offers = None;
                    return;
                }
                KeyCode::Enter if key.modifiers.is_empty() => {
                    let is_file = matches!(menu.wish, Wish::File(_));
                    self.accept();
                    if is_file {
                        return;
                    }
                }
                _ => {}
            }
        }
        let new_line = KeyModifiers::ALT | KeyModifiers::SHIFT;
        if key.code == KeyCode::Enter && !key.modifiers.intersects(new_line) {
            let (text, cursor) = self.editor.typed();
            // Enter after a backslash replaces the backslash by a line break.
            return match text[..cursor].ends_with('\\') {
                true => self.editor.replace_from(cursor - 1, "\n"),
                false => self.send(),
            };
        }
        match self.editor.press(key) {
            Edit::Changed => {
                self.history.leave();
                self.offer();
            }
            Edit::Moved => self.offer(),
            Edit::Beyond => {
                let typed = self.editor.text();
                let entry = match key.code {
                    KeyCode::Up | KeyCode::Char('p') => self.history.back(&typed),
                    _ => self.history.forth(),
                };
                if let Some(entry) = entry.map(str::to_owned) {
                    self.editor.set(&entry);
                    self.offers = None;
                }
            }
            Edit::Ignored => {}
        }
    }

    pub(super) fn pasted(&mut self, text: &str) {
        self.notice = None;
        match self.asking.front_mut() {
            Some(question) if question.mark().is_some() => return self.why.paste(text),
            Some(question) => question.quiet().disturbed(Instant::now()),
            None => {}
        }
        self.editor.paste(text);
        self.history.leave();
        self.offers = None;
    }

    fn send(&mut self) {
        self.offers = None;
        let text = self.editor.text();
        if text.trim().is_empty() {
            return;
        }
        self.editor.clear();
        if commands::is_command(&text) {
            self.history.add(text.trim());
            return self.command(text.trim());
        }
        self.ask(text);
    }

    /// Updates the completion menu for the text before the cursor.
    pub(super) fn offer(&mut self) {
        let (text, cursor) = self.editor.typed();
        let Some((target, start)) = complete::wish(text, cursor) else {
            self.offers = None;
            return;
        };
        let list = match &target {
            Wish::Command(typed) => complete::commands(typed),
            Wish::Policy(typed) => complete::policies(typed),
            Wish::Model(typed) => self.models(typed),
            Wish::Session(typed) => self.sessions(typed),
            Wish::File(typed) => {
                self.look_for_files(typed.clone());
                // Keep the files of the last search until this one ends.
                match self.offers.take() {
                    Some(Offers {
                        wish: Wish::File(_),
                        list,
                        ..
                    }) => list,
                    _ => Vec::new(),
                }
            }
        };
        self.offers = Offers::new(target, start, list);
    }

    fn accept(&mut self) {
        let Some(menu) = self.offers.take() else {
            return;
        };
        let Some(selected) = menu.chosen() else {
            return;
        };
        // The usage of a command without arguments is its name alone.
        let takes_argument = |name: &str| !commands::ALL.iter().any(|(usage, _)| *usage == name);
        let text = match &menu.wish {
            Wish::File(_) => format!("@{} ", selected.text),
            Wish::Command(_) if takes_argument(&selected.text) => format!("{} ", selected.text),
            _ => selected.text.clone(),
        };
        self.editor.replace_from(menu.from, &text);
        // Offer the command's arguments next.
        if matches!(menu.wish, Wish::Command(_)) {
            self.offer();
        }
    }

    /// Searches files in the background. Only one search runs at a time.
    fn look_for_files(&mut self, letters: String) {
        if std::mem::replace(&mut self.searching, true) {
            return;
        }
        let (workspace, sender) = (self.setup.toolbox.workspace.clone(), self.sender.clone());
        tokio::task::spawn_blocking(move || {
            let paths = workspace.find_files(&letters, FILES);
            // Sending fails only if the chat has ended.
            let _ = sender.send(News::Files { letters, paths });
        });
    }

    /// Offers the files that a search for `query` found, or searches again if the text before the
    /// cursor has changed since.
    pub(super) fn found(&mut self, query: &str, paths: Vec<String>) {
        self.searching = false;
        let (text, cursor) = self.editor.typed();
        match complete::wish(text, cursor) {
            Some((Wish::File(typed), start)) if typed == query => {
                let list = paths.into_iter().map(|path| Offer::new(path, "")).collect();
                self.offers = Offers::new(Wish::File(typed), start, list);
            }
            Some((Wish::File(typed), _)) => self.look_for_files(typed),
            _ => {}
        }
    }

    fn models(&self, typed: &str) -> Vec<Offer> {
        let config = &self.setup.config;
        let names = config
            .models
            .keys()
            .chain(&config.model)
            .chain([&self.agent.model().name]);
        let matching: BTreeSet<&String> = names.filter(|name| name.starts_with(typed)).collect();
        matching
            .into_iter()
            .map(|name| Offer::new(name, ""))
            .collect()
    }

    fn sessions(&self, typed: &str) -> Vec<Offer> {
        let Some(journal) = &self.setup.journal else {
            return Vec::new();
        };
        let here = self.setup.directory.display().to_string();
        let redactor = self.setup.redactor();
        let all = journal.sessions(SESSIONS * 5).unwrap_or_default();
        all.into_iter()
            .filter(|session| session.directory == here && session.id.starts_with(typed))
            .take(SESSIONS as usize)
            .map(|session| {
                let about = crate::sessions::title(journal, &session, &redactor);
                Offer::new(session.id, about)
            })
            .collect()
    }
}
