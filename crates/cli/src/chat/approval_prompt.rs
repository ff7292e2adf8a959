//! The approval prompt of the chat: shows the calls to approve and a list of answers.
//!
//! Keys are shown and accepted after a pause without input, so that text typed while the prompt
//! appeared does not answer it. Text that is typed at the prompt goes to the editor and answers
//! nothing.

use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent};
use ratatui_core::text::Span;
use selvedge_protocol::{ApprovalRequest, ApprovalResponse, CallDecision, GatedCall};
use tokio::sync::oneshot;

use super::choice_list::{ChoiceKeyResult, ChoiceList};
use super::diff;
use super::editor::Editor;
use super::pending_question::{LiveQuestion, TypingPause};
use super::rows::{StyledRow, WrapMode, sanitize, sanitize_line, wrap_rows};
use super::scroll_view::ScrollView;
use super::theme::Theme;
use crate::approval_question::{
    ApprovalAnswerMode, ApprovalOption, CallBlock, QuestionSurface, approval_options, call_block,
    heading, is_from_script, scope_name, stated_reason, tool_and_reason,
};

/// Minimum height of the window that scrolls a question, in lines.
const MIN_WINDOW_LINES: usize = 2;

/// A request for approval and the channel for its decision.
pub(crate) struct ChatApprovalRequest {
    pub(crate) request: ApprovalRequest,
    pub(crate) reply: oneshot::Sender<ApprovalResponse>,
}

/// The state of an approval prompt.
pub(crate) struct ApprovalPrompt {
    pending: ChatApprovalRequest,
    pub(super) typing_pause: TypingPause,
    state: ApprovalPromptState,
    /// Answers so far, in the order of the calls.
    answers: Vec<CallDecision>,
    mode: ApprovalAnswerMode,
    scroll: ScrollView,
}

#[derive(Debug)]
enum ApprovalPromptState {
    /// Waits for a choice.
    Choosing(ChoiceList<ApprovalOption>),
    /// Takes the reason of a denial.
    TypingReason,
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
        let mode = ApprovalAnswerMode::Together;
        let calls = &question.request.calls;
        let options = option_list(&question.request, calls, mode);
        Self {
            pending: question,
            typing_pause: TypingPause::new(now),
            state: ApprovalPromptState::Choosing(options),
            answers: Vec::new(),
            mode,
            scroll: ScrollView::default(),
        }
    }

    /// Whether the asker no longer waits for a decision.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.pending.reply.is_closed()
    }

    /// Completes when the asker no longer waits for a decision.
    pub(crate) async fn until_abandoned(&mut self) {
        self.pending.reply.closed().await;
    }

    /// Whether a script asks. A script can be suspended until the question is answered.
    pub(crate) fn is_from_script(&self) -> bool {
        is_from_script(&self.pending.request)
    }

    /// Whether a call that is already running asks. Such questions have no arguments.
    pub(crate) fn is_from_running_call(&self) -> bool {
        self.calls().iter().any(|call| call.args.is_null())
    }

    /// Returns a row that reports the decision.
    pub(crate) fn decision_row(&self, decision: &ApprovalResponse, theme: Theme) -> StyledRow {
        let scope = scope_name(&self.pending.request);
        let text = match decision {
            ApprovalResponse::Decided(answers) => {
                let texts = answers.iter().map(|answer| describe_answer(answer, scope));
                let mut texts: Vec<String> = texts.collect();
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

    pub(crate) fn reply(self, decision: ApprovalResponse) {
        // Sending fails only if the asker no longer waits.
        let _ = self.pending.reply.send(decision);
    }

    /// Whether the prompt takes the reason of a denial now.
    pub(crate) fn takes_reason(&self) -> bool {
        matches!(self.state, ApprovalPromptState::TypingReason)
    }

    /// Handles a paste that is not for the reason: nothing is selected any more.
    pub(crate) fn handle_paste(&mut self) {
        if let ApprovalPromptState::Choosing(options) = &mut self.state {
            options.clear_selection();
        }
    }

    /// Returns the digit that begins the text typed or pasted last, if it was taken for a choice.
    pub(crate) fn take_typed_digit(&mut self) -> Option<char> {
        match &mut self.state {
            ApprovalPromptState::Choosing(options) => options.take_typed_digit(),
            ApprovalPromptState::TypingReason => None,
        }
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
        let ApprovalPromptState::Choosing(options) = &mut self.state else {
            return self.handle_reason_key(key, reason);
        };
        if self.scroll.handle_key(key.code) {
            options.clear_selection();
            options.take_typed_digit();
            return ApprovalKeyResult::Consumed;
        }
        let option = match options.handle_key(key) {
            ChoiceKeyResult::Consumed => return ApprovalKeyResult::Consumed,
            ChoiceKeyResult::NotForList => return ApprovalKeyResult::Ignored,
            ChoiceKeyResult::Escaped => return self.deny_all(),
            ChoiceKeyResult::Chosen(option) => option,
        };
        match (option, option.decision()) {
            (_, Some(answer)) => self.record_answer(answer),
            (ApprovalOption::EachCall, _) => {
                self.mode = ApprovalAnswerMode::OneByOne;
                self.show_options();
                ApprovalKeyResult::Consumed
            }
            _ => {
                reason.clear();
                self.state = ApprovalPromptState::TypingReason;
                ApprovalKeyResult::Consumed
            }
        }
    }

    fn handle_reason_key(&mut self, key: KeyEvent, reason: &mut Editor) -> ApprovalKeyResult {
        match key.code {
            KeyCode::Enter => {
                let text = reason.take();
                let text = text.trim();
                self.record_answer(CallDecision::Deny(
                    (!text.is_empty()).then(|| text.to_owned()),
                ))
            }
            KeyCode::Esc => {
                reason.clear();
                self.deny_all()
            }
            _ => {
                reason.handle_key(key);
                ApprovalKeyResult::Consumed
            }
        }
    }

    /// Denies every call of the request, also those that were approved one by one.
    fn deny_all(&self) -> ApprovalKeyResult {
        let denied = vec![CallDecision::Deny(None); self.calls().len()];
        ApprovalKeyResult::Decided(ApprovalResponse::Decided(denied))
    }

    /// Records an answer for all calls or for the current one, and decides after the last.
    fn record_answer(&mut self, answer: CallDecision) -> ApprovalKeyResult {
        let calls = self.calls().len();
        match self.mode {
            ApprovalAnswerMode::Together => self.answers = vec![answer; calls],
            ApprovalAnswerMode::OneByOne => self.answers.push(answer),
        }
        if self.answers.len() < calls {
            self.show_options();
            return ApprovalKeyResult::Consumed;
        }
        ApprovalKeyResult::Decided(ApprovalResponse::Decided(std::mem::take(&mut self.answers)))
    }

    /// Shows the options for the current calls, with nothing selected.
    fn show_options(&mut self) {
        let options = option_list(&self.pending.request, self.current_calls(), self.mode);
        self.state = ApprovalPromptState::Choosing(options);
        self.scroll = ScrollView::default();
    }

    fn calls(&self) -> &[GatedCall] {
        &self.pending.request.calls
    }

    /// Returns the calls that the next answer is for.
    fn current_calls(&self) -> &[GatedCall] {
        match self.mode {
            ApprovalAnswerMode::Together => self.calls(),
            ApprovalAnswerMode::OneByOne => {
                let current = self.answers.len();
                self.calls().get(current..=current).unwrap_or_default()
            }
        }
    }

    /// Returns the description of all calls, which is printed once.
    pub(crate) fn intro_rows(&self, theme: Theme) -> Vec<StyledRow> {
        question_rows(self.calls(), theme)
    }

    /// Returns the live part: the list of answers. Before it stand the current calls, in a window
    /// that is scrolled, if they are answered one by one or do not fit into `height` lines. The
    /// window becomes shorter before the list does.
    pub(crate) fn live_part(&self, theme: Theme, width: usize, height: usize) -> LiveQuestion {
        let below = |height: usize| {
            let row = match &self.state {
                _ if !self.typing_pause.is_over => "  …",
                ApprovalPromptState::TypingReason => {
                    "  reason for the model; Enter denies, Esc denies without a reason"
                }
                ApprovalPromptState::Choosing(options) => {
                    return options.lines(theme, width, height);
                }
            };
            StyledRow::dim(row).wrapped(width)
        };
        let question = wrap_rows(&question_rows(self.current_calls(), theme), width);
        let mut list = below(height);
        let mut lines = match (question.len() + list.len() <= height, self.mode) {
            (true, ApprovalAnswerMode::Together) => {
                return LiveQuestion {
                    lines: list,
                    lines_above: question.len(),
                };
            }
            (true, ApprovalAnswerMode::OneByOne) => question,
            (false, _) => {
                list = below(height.saturating_sub(MIN_WINDOW_LINES));
                let available = height.saturating_sub(list.len()).max(MIN_WINDOW_LINES);
                self.scroll.window(&question, width, available)
            }
        };
        lines.extend(list);
        LiveQuestion {
            lines,
            lines_above: 0,
        }
    }
}

fn option_list(
    request: &ApprovalRequest,
    calls: &[GatedCall],
    mode: ApprovalAnswerMode,
) -> ChoiceList<ApprovalOption> {
    let options = approval_options(request, calls, mode, QuestionSurface::Chat);
    ChoiceList::new(options, "denies")
}

fn describe_answer(answer: &CallDecision, scope: &str) -> String {
    match answer {
        CallDecision::Once => "approved once".to_owned(),
        CallDecision::SimilarCalls => format!("approved, with similar calls of this {scope}"),
        CallDecision::AllLaterCalls => format!("approved, with all later calls of this {scope}"),
        CallDecision::UntilExit => "approved until this chat ends".to_owned(),
        CallDecision::AlwaysInFolder => "approved always in this folder".to_owned(),
        CallDecision::Always => "approved always, in every folder".to_owned(),
        CallDecision::Deny(None) => "denied".to_owned(),
        CallDecision::Deny(Some(reason)) => format!("denied: {reason}"),
    }
}

fn question_rows(calls: &[GatedCall], theme: Theme) -> Vec<StyledRow> {
    let mut rows = vec![
        StyledRow::blank(),
        StyledRow::styled(heading(calls), theme.question())
            .with_prefix(Span::styled("? ", theme.question())),
    ];
    rows.extend(calls.iter().flat_map(|call| describe_call(call, theme)));
    rows.push(StyledRow::blank());
    rows
}

fn describe_call(call: &GatedCall, theme: Theme) -> Vec<StyledRow> {
    let (tool, reason) = tool_and_reason(call);
    let head = StyledRow::spans(vec![
        Span::styled(tool, theme.bold()),
        Span::raw(format!(": {reason}")),
    ]);
    let mut rows = vec![head.indented(2)];
    let block = match call_block(call) {
        Some(CallBlock::Diff(diff)) => diff::diff_rows(&diff, theme),
        Some(CallBlock::Text(text)) => sanitize(&text)
            .lines()
            .map(|line| StyledRow::text(line).with_wrap(WrapMode::Anywhere))
            .collect(),
        None => Vec::new(),
    };
    rows.extend(block.into_iter().map(|row| in_block(row, theme)));
    if let Some(snippet) = &call.snippet {
        let lines = snippet.lines();
        rows.extend(lines.map(|line| StyledRow::dim(sanitize_line(line)).truncated().indented(6)));
    }
    rows.extend(stated_reason(call).map(|words| StyledRow::dim(words).indented(4)));
    rows
}

/// Puts a line before the row and its continuations, which marks all that belongs to the block.
fn in_block(mut row: StyledRow, theme: Theme) -> StyledRow {
    let edge = Span::styled("    │ ", theme.question());
    row.first_prefix.insert(0, edge.clone());
    row.rest_prefix.insert(0, edge);
    row
}

#[cfg(test)]
mod tests {
    use super::super::pending_question::TYPING_PAUSE_DURATION;
    use super::*;
    use crossterm::event::KeyModifiers;
    use selvedge_protocol::{Preview, PreviewContent};

    fn call(tool: &str, rule: Option<&str>) -> GatedCall {
        GatedCall {
            call_id: "tool_1".into(),
            tool: tool.into(),
            args: serde_json::json!({}),
            reason: "runs `rm -rf x`".into(),
            context: Some("old\nbuild".into()),
            line: Some(1),
            snippet: Some("> 1 | await tools.exec()".into()),
            folder: None,
            preview: Preview {
                view: Some(PreviewContent::Text("rm -rf x".into())),
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
            scope_id: Some("scr_1".into()),
            calls,
            expires_ms: None,
        };
        (
            ApprovalPrompt::new(ChatApprovalRequest { request, reply }, now),
            answer,
        )
    }

    fn key(letter: char) -> KeyEvent {
        KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE)
    }

    fn shown(prompt: &ApprovalPrompt) -> String {
        let lines = prompt.live_part(Theme::Plain, 80, 40).lines;
        let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
        lines.join("\n")
    }

    #[test]
    fn keys_pressed_during_the_pause_do_not_answer() {
        let now = Instant::now();
        let (mut prompt, _answer) = prompt(vec![call("exec", None)], now);
        let mut reason = Editor::default();
        assert_eq!(
            prompt.handle_key(key('1'), &mut reason, now + TYPING_PAUSE_DURATION / 2),
            ApprovalKeyResult::Ignored
        );
        // Each key restarts the pause.
        prompt
            .typing_pause
            .end_if_elapsed(now + TYPING_PAUSE_DURATION);
        assert_eq!(
            prompt.handle_key(key('1'), &mut reason, now + TYPING_PAUSE_DURATION),
            ApprovalKeyResult::Ignored
        );
        let later = now + TYPING_PAUSE_DURATION * 2;
        prompt.typing_pause.end_if_elapsed(later);
        let enter = KeyEvent::from(KeyCode::Enter);
        assert_eq!(
            prompt.handle_key(enter, &mut reason, later),
            ApprovalKeyResult::Consumed
        );
        prompt.handle_key(key('1'), &mut reason, later);
        assert!(shown(&prompt).contains("❯ 1. Approve this call, once"));
        let once = ApprovalKeyResult::Decided(ApprovalResponse::Decided(vec![CallDecision::Once]));
        assert_eq!(prompt.handle_key(enter, &mut reason, later), once);
    }

    #[test]
    fn words_and_pastes_answer_nothing_and_go_to_the_editor() {
        let now = Instant::now();
        let (mut prompt, _answer) = prompt(vec![call("exec", Some("`rm …`"))], now);
        prompt
            .typing_pause
            .end_if_elapsed(now + TYPING_PAUSE_DURATION);
        let mut reason = Editor::default();
        for letter in "stop it 1".chars() {
            assert_eq!(
                prompt.handle_key(key(letter), &mut reason, now),
                ApprovalKeyResult::Ignored
            );
        }
        let enter = KeyEvent::from(KeyCode::Enter);
        assert_eq!(
            prompt.handle_key(enter, &mut reason, now),
            ApprovalKeyResult::Consumed
        );
        prompt.handle_key(KeyEvent::from(KeyCode::Down), &mut reason, now);
        prompt.handle_paste();
        prompt.handle_key(key('1'), &mut reason, now);
        assert_eq!(
            prompt.handle_key(enter, &mut reason, now),
            ApprovalKeyResult::Consumed
        );
    }

    #[test]
    fn several_calls_are_answered_one_by_one_and_escape_denies_all() {
        let now = Instant::now();
        let calls = || vec![call("exec", Some("`rm …`")), call("write_file", None)];
        let (mut prompt, _answer) = prompt(calls(), now);
        prompt
            .typing_pause
            .end_if_elapsed(now + TYPING_PAUSE_DURATION);
        let mut reason = Editor::default();
        let mut press = |prompt: &mut ApprovalPrompt, keys: &str| {
            let mut result = ApprovalKeyResult::Consumed;
            for c in keys.chars() {
                shown(prompt);
                let key = match c {
                    '\n' => KeyEvent::from(KeyCode::Enter),
                    '\x1b' => KeyEvent::from(KeyCode::Esc),
                    c => key(c),
                };
                result = prompt.handle_key(key, &mut reason, now);
            }
            result
        };
        assert!(shown(&prompt).contains("5. Decide about each call separately"));
        press(&mut prompt, "5\n");
        assert!(shown(&prompt).contains("5. Approve `rm …` always, in every folder"));
        press(&mut prompt, "4\n");
        assert!(!shown(&prompt).contains("lways"), "there is no rule");
        press(&mut prompt, "4\n");
        assert!(prompt.takes_reason());
        let decision = ApprovalResponse::Decided(vec![
            CallDecision::AlwaysInFolder,
            CallDecision::Deny(Some("use y".into())),
        ]);
        assert_eq!(
            press(&mut prompt, "use y\n"),
            ApprovalKeyResult::Decided(decision)
        );
        let (mut prompt, _answer) = super::tests::prompt(calls(), now);
        prompt
            .typing_pause
            .end_if_elapsed(now + TYPING_PAUSE_DURATION);
        press(&mut prompt, "5\n1\n");
        let denied = ApprovalResponse::Decided(vec![CallDecision::Deny(None); 2]);
        assert_eq!(
            press(&mut prompt, "\x1b"),
            ApprovalKeyResult::Decided(denied)
        );
    }

    #[test]
    fn the_call_is_a_block_and_text_from_a_script_stays_on_one_line() {
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
                "    │ rm -rf x",
                "      > 1 | await tools.exec()",
                "    reason given by the model: old⏎build",
                ""
            ]
        );
    }

    #[test]
    fn the_decision_names_what_it_covers() {
        let row = |scope: &str| {
            let (mut prompt, _answer) = prompt(vec![call("exec", None)], Instant::now());
            prompt.pending.request.scope_id = Some(scope.to_owned());
            let decision = ApprovalResponse::Decided(vec![CallDecision::AllLaterCalls]);
            prompt.decision_row(&decision, Theme::Plain).plain()
        };
        assert_eq!(
            row("scr_1"),
            "» approved, with all later calls of this script"
        );
        assert_eq!(
            row("trn_1"),
            "» approved, with all later calls of this turn"
        );
    }

    #[test]
    fn a_question_that_does_not_fit_is_scrolled() {
        let now = Instant::now();
        let mut long = call("exec", None);
        let commands: String = (0..100).map(|n| format!("command {n}\n")).collect();
        long.preview.view = Some(PreviewContent::Text(commands));
        let (mut prompt, _answer) = prompt(vec![long], now);
        prompt
            .typing_pause
            .end_if_elapsed(now + TYPING_PAUSE_DURATION);
        let mut seen = String::new();
        for _ in 0..10 {
            seen += &shown(&prompt);
            prompt.handle_key(
                KeyEvent::from(KeyCode::PageDown),
                &mut Editor::default(),
                now,
            );
        }
        for n in 0..100 {
            assert!(seen.contains(&format!("command {n}\n")), "{n}");
        }
        assert!(seen.contains("Page Up and Page Down scroll"));
    }
}
