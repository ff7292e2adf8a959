//! The approval prompt of the chat: shows the calls to approve and handles the answering keys.
//!
//! Keys are shown and accepted after a pause without input, so that text typed while the prompt
//! appeared does not answer it.

use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui_core::text::Span;
use selvedge_protocol::{
    ApprovalRequest, ApprovalResponse, CallDecision, GatedCall, PreviewContent,
};
use tokio::sync::oneshot;

use super::diff;
use super::editor::Editor;
use super::pending_question::TypingPause;
use super::rows::{StyledRow, sanitize, sanitize_line};
use super::theme::Theme;
use crate::text_excerpt::excerpt;

/// Lines of a command, diff or snippet that are shown; of a longer one, half from each end.
const MAX_VIEW_LINES: usize = 400;

/// A request for approval and the channel for its decision.
pub(crate) struct ChatApprovalRequest {
    pub(crate) request: ApprovalRequest,
    pub(crate) reply: oneshot::Sender<ApprovalResponse>,
}

/// The state of an approval prompt.
pub(crate) struct ApprovalPrompt {
    request: ChatApprovalRequest,
    pub(super) typing_pause: TypingPause,
    state: ApprovalPromptState,
    /// Answers so far, in the order of the calls.
    answers: Vec<CallDecision>,
    mode: ApprovalAnswerMode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ApprovalPromptState {
    /// Waits for a key.
    Choosing,
    /// Takes the reason of a denial.
    TypingReason,
}

/// Whether one answer covers all calls, or each call gets its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ApprovalAnswerMode {
    Together,
    OneByOne,
}

/// What the prompt did with a key.
#[derive(Debug, PartialEq)]
pub(crate) enum ApprovalKeyResult {
    /// Nothing: the key is for the editor.
    Ignored,
    Consumed,
    Decided(ApprovalResponse),
}

impl ApprovalPrompt {
    pub(crate) fn new(question: ChatApprovalRequest, now: Instant) -> Self {
        Self {
            request: question,
            typing_pause: TypingPause::new(now),
            state: ApprovalPromptState::Choosing,
            answers: Vec::new(),
            mode: ApprovalAnswerMode::Together,
        }
    }

    /// Whether the asker no longer waits for a decision.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.request.reply.is_closed()
    }

    /// Completes when the asker no longer waits for a decision.
    pub(crate) async fn until_abandoned(&mut self) {
        self.request.reply.closed().await;
    }

    /// Whether a script asks. A script can be suspended until the question is answered.
    pub(crate) fn is_from_script(&self) -> bool {
        let id = self.request.request.script_id.as_deref();
        id.is_some_and(|id| id.starts_with("scr_"))
    }

    /// Whether a call that is already running asks. Such questions have no arguments.
    pub(crate) fn is_from_running_call(&self) -> bool {
        self.calls().iter().any(|call| call.args.is_null())
    }

    pub(crate) fn reply(self, decision: ApprovalResponse) {
        // Sending fails only if the asker no longer waits.
        let _ = self.request.reply.send(decision);
    }

    /// Whether the prompt takes the reason of a denial now.
    pub(crate) fn takes_reason(&self) -> bool {
        self.state == ApprovalPromptState::TypingReason
    }

    /// Handles a key. `reason` is the editor for the reason of a denial.
    pub(crate) fn handle_key(
        &mut self,
        key: KeyEvent,
        reason: &mut Editor,
        now: Instant,
    ) -> ApprovalKeyResult {
        if !self.typing_pause.is_over {
            self.typing_pause.restart(now);
            return ApprovalKeyResult::Ignored;
        }
        match self.state {
            ApprovalPromptState::Choosing => self.handle_choice_key(key, reason),
            ApprovalPromptState::TypingReason => match key.code {
                KeyCode::Enter => {
                    let text = reason.take();
                    let text = text.trim();
                    self.state = ApprovalPromptState::Choosing;
                    self.record_answer(CallDecision::Deny(
                        (!text.is_empty()).then(|| text.to_owned()),
                    ))
                }
                KeyCode::Esc => {
                    reason.clear();
                    self.state = ApprovalPromptState::Choosing;
                    ApprovalKeyResult::Consumed
                }
                _ => {
                    reason.handle_key(key);
                    ApprovalKeyResult::Consumed
                }
            },
        }
    }

    fn handle_choice_key(&mut self, key: KeyEvent, reason: &mut Editor) -> ApprovalKeyResult {
        if key
            .modifiers
            .intersects(KeyModifiers::CONTROL | KeyModifiers::ALT)
        {
            return ApprovalKeyResult::Ignored;
        }
        match key.code {
            KeyCode::Char('y' | 'Y') => self.record_answer(CallDecision::Once),
            KeyCode::Char('s' | 'S') => self.record_answer(CallDecision::ThisScript),
            KeyCode::Char('a' | 'A') if self.always_rules().is_some() => {
                self.record_answer(CallDecision::Always)
            }
            KeyCode::Char('n' | 'N') => {
                reason.clear();
                self.state = ApprovalPromptState::TypingReason;
                ApprovalKeyResult::Consumed
            }
            KeyCode::Char('e' | 'E')
                if self.mode == ApprovalAnswerMode::Together && self.calls().len() > 1 =>
            {
                self.mode = ApprovalAnswerMode::OneByOne;
                ApprovalKeyResult::Consumed
            }
            KeyCode::Esc => ApprovalKeyResult::Decided(ApprovalResponse::Cancelled),
            _ => ApprovalKeyResult::Consumed,
        }
    }

    /// Records an answer for all calls or for the current one, and decides after the last.
    fn record_answer(&mut self, answer: CallDecision) -> ApprovalKeyResult {
        let calls = self.calls().len();
        match self.mode {
            ApprovalAnswerMode::Together => self.answers = vec![answer; calls],
            ApprovalAnswerMode::OneByOne => self.answers.push(answer),
        }
        if self.answers.len() < calls {
            return ApprovalKeyResult::Consumed;
        }
        ApprovalKeyResult::Decided(ApprovalResponse::Decided(std::mem::take(&mut self.answers)))
    }

    fn calls(&self) -> &[GatedCall] {
        &self.request.request.calls
    }

    /// Returns the calls that the next key answers.
    fn current_calls(&self) -> &[GatedCall] {
        match self.mode {
            ApprovalAnswerMode::Together => self.calls(),
            ApprovalAnswerMode::OneByOne => {
                let current = self.answers.len();
                self.calls().get(current..=current).unwrap_or_default()
            }
        }
    }

    /// Returns the rules that "always" would save, or `None` if not every call has one.
    fn always_rules(&self) -> Option<String> {
        let calls = self.current_calls();
        let mut rules: Vec<&str> = calls
            .iter()
            .filter_map(|call| call.preview.rule.as_deref())
            .collect();
        let all = rules.len() == calls.len() && !rules.is_empty();
        rules.dedup();
        all.then(|| rules.join(", "))
    }

    /// Returns the description of all calls, which is printed once.
    pub(crate) fn intro_rows(&self, theme: Theme) -> Vec<StyledRow> {
        let calls = self.calls();
        let head = match calls {
            [_] => "approval needed:".to_owned(),
            calls => format!("approval needed for {} calls:", calls.len()),
        };
        let mut rows = vec![
            StyledRow::blank(),
            StyledRow::styled(head, theme.question())
                .with_prefix(Span::styled("? ", theme.question())),
        ];
        rows.extend(calls.iter().flat_map(|call| describe_call(call, theme)));
        rows.push(StyledRow::blank());
        rows
    }

    /// Returns the live rows: the keys, preceded by the current call if calls are answered one by
    /// one.
    pub(crate) fn live_rows(&self, theme: Theme) -> Vec<StyledRow> {
        let mut rows = Vec::new();
        if self.mode == ApprovalAnswerMode::OneByOne {
            let mark = Span::styled("? ", theme.question());
            let calls = self.current_calls().iter();
            rows.extend(calls.map(|call| call_heading(call, theme).with_prefix(mark.clone())));
        }
        rows.push(match self.state {
            _ if !self.typing_pause.is_over => StyledRow::dim("  …"),
            ApprovalPromptState::TypingReason => {
                StyledRow::dim("  reason (optional); Enter denies, Esc goes back")
            }
            ApprovalPromptState::Choosing => self.key_help(theme),
        });
        rows
    }

    fn key_help(&self, theme: Theme) -> StyledRow {
        let mut keys = vec![
            ("y", "approve once".to_owned()),
            ("s", "for this script".to_owned()),
        ];
        let always = self
            .always_rules()
            .map(|rule| format!("always, for {}", sanitize_line(&rule)));
        keys.extend(always.map(|always| ("a", always)));
        keys.push(("n", "deny".to_owned()));
        if self.mode == ApprovalAnswerMode::Together && self.calls().len() > 1 {
            keys.push(("e", "one by one".to_owned()));
        }
        keys.push(("Esc", "cancel".to_owned()));
        key_help_row(keys, theme)
    }
}

/// Returns a row that lists keys and what they do.
pub(super) fn key_help_row(keys: Vec<(&'static str, String)>, theme: Theme) -> StyledRow {
    let mut body = Vec::new();
    for (key, meaning) in keys {
        if !body.is_empty() {
            body.push(Span::styled(" · ", theme.dim()));
        }
        body.push(Span::styled(key, theme.question()));
        body.push(Span::raw(format!(" {meaning}")));
    }
    StyledRow::spans(body).indented(2)
}

/// Returns a row that reports the decision.
pub(crate) fn decision_row(decision: &ApprovalResponse, theme: Theme) -> StyledRow {
    let text = match decision {
        ApprovalResponse::Decided(answers) => {
            let mut texts: Vec<String> = answers.iter().map(describe_answer).collect();
            texts.dedup();
            texts.join(", then ")
        }
        ApprovalResponse::Cancelled => "cancelled".to_owned(),
        ApprovalResponse::Unavailable(reason) => reason.clone(),
        ApprovalResponse::Deferred => "not answered yet".to_owned(),
    };
    StyledRow::styled(sanitize_line(&text), theme.bold())
        .with_prefix(Span::styled("» ", theme.question()))
}

fn describe_answer(answer: &CallDecision) -> String {
    match answer {
        CallDecision::Once => "approved once".to_owned(),
        CallDecision::ThisScript => "approved for this script".to_owned(),
        CallDecision::Always => "approved always".to_owned(),
        CallDecision::Deny(None) => "denied".to_owned(),
        CallDecision::Deny(Some(reason)) => format!("denied: {reason}"),
    }
}

/// Returns the tool and the reason for asking. Text from the script is kept on one line so that it
/// cannot imitate a prompt.
fn call_heading(call: &GatedCall, theme: Theme) -> StyledRow {
    let reason = format!(": {}", sanitize_line(&call.reason));
    StyledRow::spans(vec![
        Span::styled(sanitize_line(&call.tool), theme.bold()),
        Span::raw(reason),
    ])
}

fn describe_call(call: &GatedCall, theme: Theme) -> Vec<StyledRow> {
    let indent = |row: StyledRow| row.indented(6);
    let mut rows = vec![call_heading(call, theme).indented(2)];
    match &call.preview.view {
        Some(PreviewContent::Diff(text)) => rows.extend(
            diff::diff_rows(text, MAX_VIEW_LINES, theme)
                .into_iter()
                .map(indent),
        ),
        // Skip the commands if the reason already quotes them.
        Some(PreviewContent::Commands(commands)) if !call.reason.contains(commands.as_str()) => {
            rows.extend(
                block_rows(commands, StyledRow::text)
                    .into_iter()
                    .map(indent),
            );
        }
        _ => {}
    }
    if let Some(snippet) = &call.snippet {
        rows.extend(block_rows(snippet, StyledRow::dim).into_iter().map(indent));
    }
    if let Some(context) = &call.context {
        rows.push(StyledRow::dim(format!("stated reason: {}", sanitize_line(context))).indented(4));
    }
    rows
}

fn block_rows(text: &str, row: impl Fn(String) -> StyledRow) -> Vec<StyledRow> {
    let text = sanitize(text);
    let lines = excerpt(&text, MAX_VIEW_LINES);
    lines.iter().map(|line| row(line.text())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::pending_question::TYPING_PAUSE_DURATION;
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
    ) -> (ApprovalPrompt, oneshot::Receiver<ApprovalResponse>) {
        let (reply, answer) = oneshot::channel();
        let request = ApprovalRequest {
            id: "apr_1".into(),
            script_id: None,
            calls,
        };
        (
            ApprovalPrompt::new(ChatApprovalRequest { request, reply }, now),
            answer,
        )
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
            prompt.handle_key(key('y'), &mut reason, now + TYPING_PAUSE_DURATION / 2),
            ApprovalKeyResult::Ignored
        );
        // Each key restarts the pause.
        prompt
            .typing_pause
            .end_if_elapsed(now + TYPING_PAUSE_DURATION);
        assert_eq!(
            prompt.handle_key(key('y'), &mut reason, now + TYPING_PAUSE_DURATION),
            ApprovalKeyResult::Ignored
        );
        prompt
            .typing_pause
            .end_if_elapsed(now + TYPING_PAUSE_DURATION * 2);
        let once = ApprovalKeyResult::Decided(ApprovalResponse::Decided(vec![CallDecision::Once]));
        assert_eq!(
            prompt.handle_key(key('y'), &mut reason, now + TYPING_PAUSE_DURATION * 2),
            once
        );
    }

    #[test]
    fn deny_takes_a_reason_and_always_needs_a_rule() {
        let now = Instant::now();
        let (mut prompt, _answer) = prompt(vec![call("exec", None)], now);
        prompt
            .typing_pause
            .end_if_elapsed(now + TYPING_PAUSE_DURATION);
        let mut reason = Editor::default();
        assert_eq!(
            prompt.handle_key(key('a'), &mut reason, now),
            ApprovalKeyResult::Consumed,
            "there is no rule"
        );
        assert!(
            !prompt
                .live_rows(Theme::Plain)
                .last()
                .unwrap()
                .plain()
                .contains("always")
        );
        assert_eq!(
            prompt.handle_key(key('n'), &mut reason, now),
            ApprovalKeyResult::Consumed
        );
        for letter in "use y".chars() {
            assert_eq!(
                prompt.handle_key(key(letter), &mut reason, now),
                ApprovalKeyResult::Consumed
            );
        }
        let denied = ApprovalResponse::Decided(vec![CallDecision::Deny(Some("use y".into()))]);
        assert_eq!(
            prompt.handle_key(KeyEvent::from(KeyCode::Enter), &mut reason, now),
            ApprovalKeyResult::Decided(denied)
        );
    }

    #[test]
    fn several_calls_are_answered_together_or_one_by_one() {
        let now = Instant::now();
        let (mut prompt, _answer) = prompt(
            vec![call("exec", Some("`rm …`")), call("write_file", None)],
            now,
        );
        prompt
            .typing_pause
            .end_if_elapsed(now + TYPING_PAUSE_DURATION);
        let mut reason = Editor::default();
        assert!(
            prompt
                .live_rows(Theme::Plain)
                .last()
                .unwrap()
                .plain()
                .contains("e one by one")
        );
        assert_eq!(
            prompt.handle_key(key('e'), &mut reason, now),
            ApprovalKeyResult::Consumed
        );
        assert!(
            prompt
                .live_rows(Theme::Plain)
                .last()
                .unwrap()
                .plain()
                .contains("a always, for `rm …`")
        );
        assert_eq!(
            prompt.handle_key(key('a'), &mut reason, now),
            ApprovalKeyResult::Consumed
        );
        assert_eq!(
            prompt.handle_key(key('n'), &mut reason, now),
            ApprovalKeyResult::Consumed
        );
        let decision =
            ApprovalResponse::Decided(vec![CallDecision::Always, CallDecision::Deny(None)]);
        assert_eq!(
            prompt.handle_key(KeyEvent::from(KeyCode::Enter), &mut reason, now),
            ApprovalKeyResult::Decided(decision)
        );
    }

    #[test]
    fn text_from_a_script_stays_on_one_line() {
        let (prompt, _answer) = prompt(vec![call("exec", None)], Instant::now());
        let rows: Vec<String> = prompt
            .intro_rows(Theme::Plain)
            .iter()
            .map(StyledRow::plain)
            .collect();
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
