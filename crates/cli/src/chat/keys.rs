//! What keys do.

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

const FILES: usize = 50;
const SESSIONS: u32 = 20;

impl Chat {
    pub(super) fn key(&mut self, key: KeyEvent) {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return self.interrupt(Instant::now());
        }
        (self.notice, self.pressed) = (None, None);
        match self.asking.front_mut() {
            Some(Pending::Gate(asking)) => match asking.press(key, &mut self.why, Instant::now()) {
                Pressed::Taken => return,
                Pressed::Decided(decision) => return self.decide(decision),
                Pressed::NotMine => {}
            },
            Some(Pending::Form(asking)) => match asking.press(key, &mut self.why, Instant::now()) {
                FormPressed::Taken => return,
                FormPressed::Filled(row) => return self.say([row]),
                FormPressed::Decided(elicited) => return self.fill(elicited),
                FormPressed::NotMine => {}
            },
            None => {}
        }
        match key.code {
            KeyCode::Char('d') if control && self.editor.is_empty() => self.leaving = true,
            KeyCode::Char('t') if control => {
                let (thoughts, words) = match self.thoughts {
                    Thoughts::Folded => (
                        Thoughts::Unfolded,
                        "thoughts are shown from now on; /thinking shows the last one",
                    ),
                    Thoughts::Unfolded => (Thoughts::Folded, "thoughts are folded from now on"),
                };
                self.thoughts = thoughts;
                self.notice = Some(words.to_owned());
            }
            KeyCode::Char('l') if control => {
                let (width, height) = size();
                self.redraw(width, height);
            }
            _ => self.edit(key),
        }
    }

    fn edit(&mut self, key: KeyEvent) {
        if let Some(offers) = &mut self.offers {
            match key.code {
                KeyCode::Up | KeyCode::Down if offers.press(key) => return,
                KeyCode::Tab => return self.accept(),
                KeyCode::Esc => {
                    self.offers = None;
                    return;
                }
                KeyCode::Enter if key.modifiers.is_empty() => {
                    let is_file = matches!(offers.wish, Wish::File(_));
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
            let (text, at) = self.editor.typed();
            // A backslash at the end of a line is a new line.
            return match text[..at].ends_with('\\') {
                true => self.editor.replace_from(at - 1, "\n"),
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
            Some(asking) if asking.mark().is_some() => return self.why.paste(text),
            Some(asking) => asking.quiet().disturbed(Instant::now()),
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

    /// Offers what fits the letters before the cursor.
    pub(super) fn offer(&mut self) {
        let (text, at) = self.editor.typed();
        let Some((wish, from)) = complete::wish(text, at) else {
            self.offers = None;
            return;
        };
        let list = match &wish {
            Wish::Command(word) => complete::commands(word),
            Wish::Policy(word) => complete::policies(word),
            Wish::Model(word) => self.models(word),
            Wish::Session(word) => self.sessions(word),
            Wish::File(letters) => {
                self.look_for_files(letters.clone());
                // What was found for the letters before stands until something better comes.
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
        self.offers = Offers::new(wish, from, list);
    }

    fn accept(&mut self) {
        let Some(offers) = self.offers.take() else {
            return;
        };
        let Some(offer) = offers.chosen() else { return };
        // A command that takes nothing is used by its name alone.
        let takes_a_word = |name: &str| !commands::ALL.iter().any(|(usage, _)| *usage == name);
        let text = match &offers.wish {
            Wish::File(_) => format!("@{} ", offer.text),
            Wish::Command(_) if takes_a_word(&offer.text) => format!("{} ", offer.text),
            _ => offer.text.clone(),
        };
        self.editor.replace_from(offers.from, &text);
        // A command may want a word.
        if matches!(offers.wish, Wish::Command(_)) {
            self.offer();
        }
    }

    /// Looks for files beside everything else, one search at a time.
    fn look_for_files(&mut self, letters: String) {
        if std::mem::replace(&mut self.searching, true) {
            return;
        }
        let (workspace, sender) = (self.setup.toolbox.workspace.clone(), self.sender.clone());
        tokio::task::spawn_blocking(move || {
            let paths = workspace.find_files(&letters, FILES);
            // The chat may be over.
            let _ = sender.send(News::Files { letters, paths });
        });
    }

    /// Files were found; they are offered if they are still wished for.
    pub(super) fn found(&mut self, letters: &str, paths: Vec<String>) {
        self.searching = false;
        let (text, at) = self.editor.typed();
        match complete::wish(text, at) {
            Some((Wish::File(wished), from)) if wished == letters => {
                let list = paths.into_iter().map(|path| Offer::new(path, "")).collect();
                self.offers = Offers::new(Wish::File(wished), from, list);
            }
            // More was typed meanwhile.
            Some((Wish::File(wished), _)) => self.look_for_files(wished),
            _ => {}
        }
    }

    fn models(&self, word: &str) -> Vec<Offer> {
        let config = &self.setup.config;
        let names = config
            .models
            .keys()
            .chain(&config.model)
            .chain([&self.agent.model().name]);
        let fits: BTreeSet<&String> = names.filter(|name| name.starts_with(word)).collect();
        fits.into_iter().map(|name| Offer::new(name, "")).collect()
    }

    fn sessions(&self, word: &str) -> Vec<Offer> {
        let Some(journal) = &self.setup.journal else {
            return Vec::new();
        };
        let here = self.setup.directory.display().to_string();
        let redactor = self.setup.redactor();
        let all = journal.sessions(SESSIONS * 5).unwrap_or_default();
        all.into_iter()
            .filter(|session| session.directory == here && session.id.starts_with(word))
            .take(SESSIONS as usize)
            .map(|session| {
                let about = crate::sessions::title(journal, &session, &redactor);
                Offer::new(session.id, about)
            })
            .collect()
    }
}
