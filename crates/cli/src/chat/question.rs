//! The approval prompt of the chat: shows the calls to approve and handles the answering keys.
//!
//! Keys are shown and accepted after a pause without input, so that text typed while the prompt
//! appeared does not answer it.

use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui_core::text::Span;
use selvedge_protocol::{Answer, ApprovalDecision, ApprovalRequest, GatedCall, View};
use tokio::sync::oneshot;

use super::diff;
use super::editor::Editor;
use super::look::Look;
use super::pending::QuietWait;
use super::rows::{Row, clean, one_line};
use crate::ends::ends;

/// Lines of a command, diff or snippet that are shown; of a longer one, half from each end.
const VIEW_LINES: usize = 400;

/// A request for approval and the channel for its decision.
pub(crate) struct Question {
    pub(crate) request: ApprovalRequest,
    pub(crate) reply: oneshot::Sender<ApprovalDecision>,
}

/// The state of an approval prompt.
pub(crate) struct Asking {
    question: Question,
    pub(super) quiet: QuietWait,
    state: State,
    /// Answers so far, in the order of the calls.
    answers: Vec<Answer>,
    mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Waits for a key.
    Open,
    /// Takes the reason of a denial.
    Why,
}

/// Whether one answer covers all calls, or each call gets its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    All,
    Each,
}

/// What the prompt did with a key.
#[derive(Debug, PartialEq)]
pub(crate) enum Pressed {
    /// Nothing: the key is for the editor.
    NotMine,
    Taken,
    Decided(ApprovalDecision),
}

impl Asking {
    pub(crate) fn new(question: Question, now: Instant) -> Self {
        Self {
            question,
            quiet: QuietWait::new(now),
            state: State::Open,
            answers: Vec::new(),
            mode: Mode::All,
        }
    }

    /// Whether the asker no longer waits for a decision.
    pub(crate) fn is_void(&self) -> bool {
        self.question.reply.is_closed()
    }

    /// Completes when the asker no longer waits for a decision.
    pub(crate) async fn void(&mut self) {
        self.question.reply.closed().await;
    }

    /// Whether a script asks. A script can be suspended until the question is answered.
    pub(crate) fn is_of_script(&self) -> bool {
        let id = self.question.request.script_id.as_deref();
        id.is_some_and(|id| id.starts_with("scr_"))
    }

    /// Whether a call that is already running asks. Such questions have no arguments.
    pub(crate) fn is_of_running_call(&self) -> bool {
        self.calls().iter().any(|call| call.args.is_null())
    }

    pub(crate) fn decide(self, decision: ApprovalDecision) {
        // Sending fails only if the asker no longer waits.
        let _ = self.question.reply.send(decision);
    }

    /// Whether the prompt takes the reason of a denial now.
    pub(crate) fn wants_words(&self) -> bool {
        self.state == State::Why
    }

    /// Handles a key. `reason` is the editor for the reason of a denial.
    pub(crate) fn press(&mut self, key: KeyEvent, reason: &mut Editor, now: Instant) -> Pressed {
        if !self.quiet.is_over {
            self.quiet.disturbed(now);
            return Pressed::NotMine;
        }
        match self.state {
            State::Open => self.answer(key, reason),
            State::Why => match key.code {
                KeyCode::Enter => {
                    let text = reason.take();
                    let text = text.trim();
                    self.state = State::Open;
                    self.give(Answer::No((!text.is_empty()).then(|| text.to_owned())))
                }
                KeyCode::Esc => {
                    reason.clear();
                    self.state = State::Open;
                    Pressed::Taken
                }
                _ => {
                    reason.press(key);
                    Pressed::Taken
                }
            },
        }
    }

    fn answer(&mut self, key: KeyEvent, reason: &mut Editor) -> Pressed {
        if key
            .modifiers
            .intersects(KeyModifiers::CONTROL | KeyModifiers::ALT)
        {
            return Pressed::NotMine;
        }
        match key.code {
            KeyCode::Char('y' | 'Y') => self.give(Answer::Once),
            KeyCode::Char('s' | 'S') => self.give(Answer::ThisScript),
            KeyCode::Char('a' | 'A') if self.rule().is_some() => self.give(Answer::Always),
            KeyCode::Char('n' | 'N') => {
                reason.clear();
                self.state = State::Why;
                Pressed::Taken
            }
            KeyCode::Char('e' | 'E') if self.mode == Mode::All && self.calls().len() > 1 => {
                self.mode = Mode::Each;
                Pressed::Taken
            }
            KeyCode::Esc => Pressed::Decided(ApprovalDecision::Cancelled),
            _ => Pressed::Taken,
        }
    }

    /// Records an answer for all calls or for the current one, and decides after the last.
    fn give(&mut self, answer: Answer) -> Pressed {
        let calls = self.calls().len();
        match self.mode {
            Mode::All => self.answers = vec![answer; calls],
            Mode::Each => self.answers.push(answer),
        }
        if self.answers.len() < calls {
            return Pressed::Taken;
        }
        Pressed::Decided(ApprovalDecision::Answered(std::mem::take(
            &mut self.answers,
        )))
    }

    fn calls(&self) -> &[GatedCall] {
        &self.question.request.calls
    }

    /// Returns the calls that the next key answers.
    fn asked_now(&self) -> &[GatedCall] {
        match self.mode {
            Mode::All => self.calls(),
            Mode::Each => {
                let current = self.answers.len();
                self.calls().get(current..=current).unwrap_or_default()
            }
        }
    }

    /// Returns the rules that "always" would save, or `None` if not every call has one.
    fn rule(&self) -> Option<String> {
        let calls = self.asked_now();
        let mut rules: Vec<&str> = calls
            .iter()
            .filter_map(|call| call.preview.rule.as_deref())
            .collect();
        let all = rules.len() == calls.len() && !rules.is_empty();
        rules.dedup();
        all.then(|| rules.join(", "))
    }

    /// Returns the description of all calls, which is printed once.
    pub(crate) fn told(&self, theme: Look) -> Vec<Row> {
        let calls = self.calls();
        let head = match calls {
            [_] => "approval needed:".to_owned(),
            calls => format!("approval needed for {} calls:", calls.len()),
        };
        let mut rows = vec![
            Row::blank(),
            Row::of(head, theme.asks()).behind(Span::styled("? ", theme.asks())),
        ];
        rows.extend(calls.iter().flat_map(|call| describe(call, theme)));
        rows.push(Row::blank());
        rows
    }

    /// Returns the live rows: the keys, preceded by the current call if calls are answered one by
    /// one.
    pub(crate) fn rows(&self, theme: Look) -> Vec<Row> {
        let mut rows = Vec::new();
        if self.mode == Mode::Each {
            let mark = Span::styled("? ", theme.asks());
            let calls = self.asked_now().iter();
            rows.extend(calls.map(|call| head_of(call, theme).behind(mark.clone())));
        }
        rows.push(match self.state {
            _ if !self.quiet.is_over => Row::quiet("  …"),
            State::Why => Row::quiet("  reason (optional); Enter denies, Esc goes back"),
            State::Open => self.keys(theme),
        });
        rows
    }

    fn keys(&self, theme: Look) -> Row {
        let mut keys = vec![
            ("y", "approve once".to_owned()),
            ("s", "for this script".to_owned()),
        ];
        let always = self
            .rule()
            .map(|rule| format!("always, for {}", one_line(&rule)));
        keys.extend(always.map(|always| ("a", always)));
        keys.push(("n", "deny".to_owned()));
        if self.mode == Mode::All && self.calls().len() > 1 {
            keys.push(("e", "one by one".to_owned()));
        }
        keys.push(("Esc", "cancel".to_owned()));
        keys_row(keys, theme)
    }
}

/// Returns a row that lists keys and what they do.
pub(super) fn keys_row(keys: Vec<(&'static str, String)>, theme: Look) -> Row {
    let mut body = Vec::new();
    for (key, meaning) in keys {
        if !body.is_empty() {
            body.push(Span::styled(" · ", theme.quiet()));
        }
        body.push(Span::styled(key, theme.asks()));
        body.push(Span::raw(format!(" {meaning}")));
    }
    Row::spans(body).indent(2)
}

/// Returns a row that reports the decision.
pub(crate) fn decided(decision: &ApprovalDecision, theme: Look) -> Row {
    let text = match decision {
        ApprovalDecision::Answered(answers) => {
            let mut texts: Vec<String> = answers.iter().map(answered).collect();
            texts.dedup();
            texts.join(", then ")
        }
        ApprovalDecision::Cancelled => "cancelled".to_owned(),
        ApprovalDecision::Unavailable(reason) => reason.clone(),
        ApprovalDecision::Later => "not answered yet".to_owned(),
    };
    Row::of(one_line(&text), theme.strong()).behind(Span::styled("» ", theme.asks()))
}

fn answered(answer: &Answer) -> String {
    match answer {
        Answer::Once => "approved once".to_owned(),
        Answer::ThisScript => "approved for this script".to_owned(),
        Answer::Always => "approved always".to_owned(),
        Answer::No(None) => "denied".to_owned(),
        Answer::No(Some(reason)) => format!("denied: {reason}"),
    }
}

/// Returns the tool and the reason for asking. Text from the script is kept on one line so that it
/// cannot imitate a prompt.
fn head_of(call: &GatedCall, theme: Look) -> Row {
    let reason = format!(": {}", one_line(&call.reason));
    Row::spans(vec![
        Span::styled(one_line(&call.tool), theme.strong()),
        Span::raw(reason),
    ])
}

fn describe(call: &GatedCall, theme: Look) -> Vec<Row> {
    let indent = |row: Row| row.indent(6);
    let mut rows = vec![head_of(call, theme).indent(2)];
    match &call.preview.view {
        Some(View::Diff(text)) => {
            rows.extend(diff::rows(text, VIEW_LINES, theme).into_iter().map(indent))
        }
        // Skip the commands if the reason already quotes them.
        Some(View::Commands(commands)) if !call.reason.contains(commands.as_str()) => {
            rows.extend(block(commands, Row::text).into_iter().map(indent));
        }
        _ => {}
    }
    if let Some(snippet) = &call.snippet {
        rows.extend(block(snippet, Row::quiet).into_iter().map(indent));
    }
    if let Some(context) = &call.context {
        rows.push(Row::quiet(format!("stated reason: {}", one_line(context))).indent(4));
    }
    rows
}

fn block(text: &str, row: impl Fn(String) -> Row) -> Vec<Row> {
    let text = clean(text);
    let lines = ends(&text, VIEW_LINES);
    lines.iter().map(|line| row(line.text())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::pending::QUIET;
    use super::*;
    use selvedge_protocol::Preview;

    fn call(tool: &str, rule: Option<&str>) -> GatedCall {
        GatedCall {
            call_id: "tool_1".into(),
            tool: tool.into(),
            args: serde_json::json!({}),
            reason: "runs `rm -rf x`".into(),
            context: Some("old\nbuild".into()),
            line: Some(1),
            snippet: Some("> 1 | await tools.exec()".into()),
            preview: Preview {
                view: None,
                rule: rule.map(str::to_owned),
            },
        }
    }

    fn prompt(
        calls: Vec<GatedCall>,
        now: Instant,
    ) -> (Asking, oneshot::Receiver<ApprovalDecision>) {
        let (reply, answer) = oneshot::channel();
        let request = ApprovalRequest {
            id: "apr_1".into(),
            script_id: None,
            calls,
        };
        (Asking::new(Question { request, reply }, now), answer)
    }

    fn key(letter: char) -> KeyEvent {
        KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE)
    }

    #[test]
    fn keys_pressed_during_the_pause_do_not_answer() {
        let now = Instant::now();
        let (mut prompt, _answer) = prompt(vec![call("exec", None)], now);
        let mut reason = Editor::default();
        assert_eq!(
            prompt.press(key('y'), &mut reason, now + QUIET / 2),
            Pressed::NotMine
        );
        // Each key restarts the pause.
        prompt.quiet.open_if_quiet(now + QUIET);
        assert_eq!(
            prompt.press(key('y'), &mut reason, now + QUIET),
            Pressed::NotMine
        );
        prompt.quiet.open_if_quiet(now + QUIET * 2);
        let once = Pressed::Decided(ApprovalDecision::Answered(vec![Answer::Once]));
        assert_eq!(prompt.press(key('y'), &mut reason, now + QUIET * 2), once);
    }

    #[test]
    fn deny_takes_a_reason_and_always_needs_a_rule() {
        let now = Instant::now();
        let (mut prompt, _answer) = prompt(vec![call("exec", None)], now);
        prompt.quiet.open_if_quiet(now + QUIET);
        let mut reason = Editor::default();
        assert_eq!(
            prompt.press(key('a'), &mut reason, now),
            Pressed::Taken,
            "there is no rule"
        );
        assert!(
            !prompt
                .rows(Look::Plain)
                .last()
                .unwrap()
                .plain()
                .contains("always")
        );
        assert_eq!(prompt.press(key('n'), &mut reason, now), Pressed::Taken);
        for letter in "use y".chars() {
            assert_eq!(prompt.press(key(letter), &mut reason, now), Pressed::Taken);
        }
        let denied = ApprovalDecision::Answered(vec![Answer::No(Some("use y".into()))]);
        assert_eq!(
            prompt.press(KeyEvent::from(KeyCode::Enter), &mut reason, now),
            Pressed::Decided(denied)
        );
    }

    #[test]
    fn several_calls_are_answered_together_or_one_by_one() {
        let now = Instant::now();
        let (mut prompt, _answer) = prompt(
            vec![call("exec", Some("`rm …`")), call("write_file", None)],
            now,
        );
        prompt.quiet.open_if_quiet(now + QUIET);
        let mut reason = Editor::default();
        assert!(
            prompt
                .rows(Look::Plain)
                .last()
                .unwrap()
                .plain()
                .contains("e one by one")
        );
        assert_eq!(prompt.press(key('e'), &mut reason, now), Pressed::Taken);
        assert!(
            prompt
                .rows(Look::Plain)
                .last()
                .unwrap()
                .plain()
                .contains("a always, for `rm …`")
        );
        assert_eq!(prompt.press(key('a'), &mut reason, now), Pressed::Taken);
        assert_eq!(prompt.press(key('n'), &mut reason, now), Pressed::Taken);
        let decision = ApprovalDecision::Answered(vec![Answer::Always, Answer::No(None)]);
        assert_eq!(
            prompt.press(KeyEvent::from(KeyCode::Enter), &mut reason, now),
            Pressed::Decided(decision)
        );
    }

    #[test]
    fn text_from_a_script_stays_on_one_line() {
        let (prompt, _answer) = prompt(vec![call("exec", None)], Instant::now());
        let rows: Vec<String> = prompt.told(Look::Plain).iter().map(Row::plain).collect();
        assert_eq!(
            rows,
            [
                "",
                "? approval needed:",
                "  exec: runs `rm -rf x`",
                "      > 1 | await tools.exec()",
                "    stated reason: old⏎build",
                ""
            ]
        );
    }
}
