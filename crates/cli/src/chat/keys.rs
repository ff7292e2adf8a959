//! Keyboard input of the chat: dispatches keys to the question, the completion menu or the editor.

use std::collections::BTreeSet;
use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::app::{Chat, terminal_size};
use super::approval_prompt::ApprovalKeyResult;
use super::commands;
use super::completion::{self, CompletionMenu, CompletionTarget, InputCompletion};
use super::editor::EditResult;
use super::form_prompt::FormKeyResult;
use super::pending_question::ChatQuestion;
use super::turn_view::ReasoningDisplay;
use super::updates::ChatUpdate;
use crate::problem::Problem;

/// Files offered as completions.
const MAX_FILE_COMPLETIONS: usize = 50;

impl Chat {
    pub(super) fn handle_key(&mut self, key: KeyEvent) {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return self.interrupt(Instant::now());
        }
        (self.notice, self.ctrl_c_pressed_at) = (None, None);
        match self.questions.front_mut() {
            Some(ChatQuestion::Approval(prompt)) => {
                match prompt.handle_key(key, &mut self.answer_editor, Instant::now()) {
                    ApprovalKeyResult::Consumed => return,
                    ApprovalKeyResult::Decided(decision) => return self.answer_approval(decision),
                    ApprovalKeyResult::Ignored => {}
                }
            }
            Some(ChatQuestion::Form(prompt)) => {
                match prompt.handle_key(key, &mut self.answer_editor, Instant::now()) {
                    FormKeyResult::Consumed => return,
                    FormKeyResult::Filled(row) => return self.print_rows([row]),
                    FormKeyResult::Decided(outcome) => return self.answer_form(outcome),
                    FormKeyResult::Ignored => {}
                }
            }
            None => {}
        }
        self.keep_typed_digit();
        match key.code {
            KeyCode::Char('d') if control && self.editor.is_empty() => self.quitting = true,
            KeyCode::Char('t') if control => {
                let (display, notice) = match self.reasoning_display {
                    ReasoningDisplay::Collapsed => (
                        ReasoningDisplay::Expanded,
                        "new reasoning is shown; /reasoning shows the last one",
                    ),
                    ReasoningDisplay::Expanded => {
                        (ReasoningDisplay::Collapsed, "new reasoning is hidden")
                    }
                };
                self.reasoning_display = display;
                self.notice = Some(notice.to_owned());
            }
            KeyCode::Char('r') if control => self.search_history(),
            KeyCode::Char('v') if control => self.paste_clipboard_image(),
            KeyCode::Char('z') if control => self.stop_process(),
            KeyCode::Char('g') if control => self.edit_in_editor(),
            KeyCode::Char('o') if control => self.expand_last_turn(),
            KeyCode::Char('l') if control => {
                let (width, height) = terminal_size();
                self.redraw(width, height);
            }
            _ => self.handle_editing_key(key),
        }
    }

    fn handle_editing_key(&mut self, key: KeyEvent) {
        if self.handle_search_key(key) {
            return;
        }
        if let Some(menu) = &mut self.completions {
            match key.code {
                KeyCode::Up | KeyCode::Down if menu.handle_key(key) => return,
                KeyCode::Tab => return self.accept_completion(),
                KeyCode::Esc => {
                    self.completions = None;
                    return;
                }
                KeyCode::Enter if key.modifiers.is_empty() => {
                    let is_file = matches!(menu.target, CompletionTarget::File(_));
                    self.accept_completion();
                    if is_file {
                        return;
                    }
                }
                _ => {}
            }
        }
        if key.code == KeyCode::Esc {
            return self.stop_work();
        }
        let new_line = KeyModifiers::ALT | KeyModifiers::SHIFT;
        if key.code == KeyCode::Enter && !key.modifiers.intersects(new_line) {
            let (text, cursor) = self.editor.text_and_cursor();
            // Enter after a backslash replaces the backslash by a line break.
            return match text[..cursor].ends_with('\\') {
                true => self.editor.replace_from(cursor - 1, "\n"),
                false => self.submit_input(),
            };
        }
        match self.editor.handle_key(key) {
            EditResult::Changed => {
                self.history.reset_position();
                self.update_completions();
            }
            EditResult::Moved => self.update_completions(),
            EditResult::AtEdge => {
                let is_older = matches!(key.code, KeyCode::Up | KeyCode::Char('p'));
                if is_older {
                    let entry = self.history.previous_entry(self.editor.draft());
                    let Some(entry) = entry else { return };
                    self.editor.set(entry);
                } else {
                    let Some(entry) = self.history.next_entry() else {
                        return;
                    };
                    self.editor.restore(&entry);
                }
                self.completions = None;
            }
            EditResult::Ignored => {}
        }
    }

    pub(super) fn handle_paste(&mut self, text: &str) {
        self.notice = None;
        match self.questions.front_mut() {
            Some(question) if question.input_label().is_some() => {
                return self.answer_editor.paste(text);
            }
            Some(question) => question.handle_paste(Instant::now()),
            None => {}
        }
        self.keep_typed_digit();
        if !self.paste_image_file(text) {
            self.paste_text(text);
        }
    }

    /// Inserts a digit that a question took for a choice, until the text after it showed that it
    /// was none.
    fn keep_typed_digit(&mut self) {
        let question = self.questions.front_mut();
        if let Some(digit) = question.and_then(ChatQuestion::take_typed_digit) {
            self.editor.insert(digit.encode_utf8(&mut [0; 4]));
        }
    }

    /// Inserts a pasted text into the message.
    pub(super) fn paste_text(&mut self, text: &str) {
        self.editor.paste(text);
        self.history.reset_position();
        self.completions = None;
    }

    fn submit_input(&mut self) {
        self.completions = None;
        let text = self.editor.text();
        if text.trim().is_empty() {
            return;
        }
        if text.starts_with('!') && (text.trim_end().contains('\n') || self.editor.has_paste()) {
            let problem = Problem::new("only one typed line runs as a command; nothing was run");
            let hint = "type the command, or a space before ! to send the text to the model";
            return self.print_problem(&problem.hint(hint));
        }
        self.editor.clear();
        if let Some(line) = text.strip_prefix('!') {
            self.history.add(text.trim());
            return self.run_shell_command(line);
        }
        if commands::is_command(&text) {
            let command = text.trim();
            // A history that offers `/quit` first ends chats by mistake.
            match commands::is_quit(command) {
                true => self.history.reset_position(),
                false => self.history.add(command),
            }
            return self.run_command(command);
        }
        self.submit_message(text);
    }

    /// Updates the completion menu for the text before the cursor.
    pub(super) fn update_completions(&mut self) {
        let (text, cursor) = self.editor.text_and_cursor();
        let Some((target, start)) = completion::completion_target(text, cursor) else {
            self.completions = None;
            return;
        };
        let list = match &target {
            CompletionTarget::Command(typed) => completion::command_completions(typed),
            CompletionTarget::Policy(typed) => completion::policy_completions(typed),
            CompletionTarget::ScriptMode(typed) => completion::script_mode_completions(typed),
            CompletionTarget::Model(typed) => self.model_completions(typed),
            CompletionTarget::Session(typed) => {
                self.load_session_completions(typed);
                Vec::new()
            }
            CompletionTarget::File(typed) => {
                self.search_files(typed.clone());
                // Keep the files of the last search until this one ends.
                match self.completions.take() {
                    Some(CompletionMenu {
                        target: CompletionTarget::File(_),
                        items: list,
                        ..
                    }) => list,
                    _ => Vec::new(),
                }
            }
        };
        self.completions = CompletionMenu::new(target, start, list);
    }

    fn accept_completion(&mut self) {
        let Some(menu) = self.completions.take() else {
            return;
        };
        let Some(selected) = menu.selected() else {
            return;
        };
        // The usage of a command without arguments is its name alone.
        let takes_argument = |name: &str| {
            !commands::SLASH_COMMANDS
                .iter()
                .any(|(usage, _)| *usage == name)
        };
        let text = match &menu.target {
            CompletionTarget::File(_) => format!("@{} ", selected.text),
            CompletionTarget::Command(_) if takes_argument(&selected.text) => {
                format!("{} ", selected.text)
            }
            _ => selected.text.clone(),
        };
        self.editor.replace_from(menu.start, &text);
        // Offer the command's arguments next.
        if matches!(menu.target, CompletionTarget::Command(_)) {
            self.update_completions();
        }
    }

    /// Searches files in the background. Only one search runs at a time.
    fn search_files(&mut self, query: String) {
        if std::mem::replace(&mut self.file_search_running, true) {
            return;
        }
        let (workspace, sender) = (self.setup.toolbox.workspace.clone(), self.sender.clone());
        tokio::task::spawn_blocking(move || {
            let paths = workspace.find_files(&query, MAX_FILE_COMPLETIONS);
            // Sending fails only if the chat has ended.
            let _ = sender.send(ChatUpdate::FilesFound { query, paths });
        });
    }

    /// Offers the files that a search for `query` found, or searches again if the text before the
    /// cursor has changed since.
    pub(super) fn handle_found_files(&mut self, query: &str, paths: Vec<String>) {
        self.file_search_running = false;
        let items = paths.into_iter();
        let items = items.map(|path| InputCompletion::new(path, "")).collect();
        let found_for = CompletionTarget::File(query.to_owned());
        if let Some(CompletionTarget::File(typed)) = self.show_completions(&found_for, items) {
            self.search_files(typed);
        }
    }

    /// Shows the completions of a target, if the text before the cursor still has this target.
    /// Otherwise returns the present target.
    fn show_completions(
        &mut self,
        target: &CompletionTarget,
        items: Vec<InputCompletion>,
    ) -> Option<CompletionTarget> {
        let (text, cursor) = self.editor.text_and_cursor();
        match completion::completion_target(text, cursor)? {
            (present, start) if present == *target => {
                self.completions = CompletionMenu::new(present, start, items);
                None
            }
            (present, _) => Some(present),
        }
    }

    fn model_completions(&self, typed: &str) -> Vec<InputCompletion> {
        let config = &self.setup.config;
        // A name with a final `*` stands for a family of models.
        let configured = config.models.keys().filter(|name| !name.ends_with('*'));
        let names = configured
            .chain(&config.model)
            .chain([&self.agent.model().name]);
        let matching: BTreeSet<&String> = names.filter(|name| name.starts_with(typed)).collect();
        matching
            .into_iter()
            .map(|name| InputCompletion::new(name, ""))
            .collect()
    }

    /// Offers the sessions whose ids begin with `typed`, once they are read from the journal.
    fn load_session_completions(&mut self, typed: &str) {
        if self.setup.journal.is_none() {
            return;
        }
        let target = CompletionTarget::Session(typed.to_owned());
        self.load_sessions(typed.to_owned(), move |chat, sessions| {
            let sessions = match sessions {
                Ok(sessions) => sessions,
                Err(error) => return chat.notice = Some(error.to_string()),
            };
            let items = sessions.into_iter();
            let items = items.map(|(session, title)| InputCompletion::new(session.id, title));
            chat.show_completions(&target, items.collect());
        });
    }
}
