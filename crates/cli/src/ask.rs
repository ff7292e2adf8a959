//! Asks for approvals in plain lines at the terminal. Used by commands other than the chat.
//!
//! An answer is the number of an option, typed as a line of its own after the prompt was shown.
//! Text that was typed before, pasted text, words and empty lines are no answer.

use std::io::IsTerminal;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::{ApprovalRequest, ApprovalResponse, CallDecision, GatedCall};
use selvedge_text::visible_line;
use selvedge_tools::Approver;
use tokio::sync::Mutex;
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use crate::approval_question::{
    ApprovalAnswerMode, ApprovalOption, CallBlock, QuestionSurface, approval_options, call_block,
    heading, stated_reason, tool_and_reason,
};
use crate::output::{begin_question_notice, end_question_notice, eprint_text};
use crate::progress::ProgressDisplay;
use crate::run::runtime;
use crate::terminal_input::{PasteMarks, TtyLineReader, TtyReadError};

/// Shows questions on standard error and reads answers from `/dev/tty`, even if standard input is
/// redirected.
pub(crate) struct TerminalApprover {
    pub(crate) input: Mutex<TtyLineReader>,
    pub(crate) progress: ProgressDisplay,
    /// Time limit of an approval request; `None` waits without limit.
    time_limit: Option<Duration>,
}

/// Lines of a server's message that are shown; of a longer one, half from each end.
pub(crate) const MAX_VIEW_LINES: usize = 60;

/// Prefix of each line of a preview.
const PREVIEW_LINE_PREFIX: &str = "    │ ";

impl TerminalApprover {
    /// Returns `None` if standard error or `/dev/tty` is not a terminal.
    pub(crate) fn new(show: ProgressDisplay, time_limit: Option<Duration>) -> Option<Self> {
        if !std::io::stderr().is_terminal() {
            return None;
        }
        Some(Self {
            input: Mutex::new(TtyLineReader::open().ok()?),
            progress: show,
            time_limit,
        })
    }

    async fn ask_person(&self, request: &ApprovalRequest) -> ApprovalResponse {
        // The lock allows one question at a time.
        let mut input = self.input.lock().await;
        let _paused = self.progress.pause();
        let _notice = QuestionNotice::new();
        // If this future is dropped, the cursor is still after the prompt.
        let mut newline = NewlineGuard::new();
        let _marks = PasteMarks::new();
        let calls = &request.calls;
        eprint_text(&format_question(request));
        let answers = match self
            .ask_about(request, calls, ApprovalAnswerMode::Together, &mut input)
            .await
        {
            Ok(Some(answer)) => Ok(vec![answer; calls.len()]),
            Ok(None) => self.ask_each(request, &mut input).await,
            Err(cause) => Err(cause),
        };
        match answers {
            Ok(answers) => {
                newline.disarm();
                ApprovalResponse::Decided(answers)
            }
            Err(TtyReadError::EndOfInput) => ApprovalResponse::Cancelled,
            Err(TtyReadError::TerminalClosed) => ApprovalResponse::Deferred,
        }
    }

    async fn ask_each(
        &self,
        request: &ApprovalRequest,
        input: &mut TtyLineReader,
    ) -> Result<Vec<CallDecision>, TtyReadError> {
        let mut answers = Vec::new();
        for call in &request.calls {
            eprint_text(&format_call(call, Some(terminal_width())));
            let calls = std::slice::from_ref(call);
            let mode = ApprovalAnswerMode::OneByOne;
            let answer = self.ask_about(request, calls, mode, input).await?;
            answers.push(answer.unwrap_or(CallDecision::Deny(None)));
        }
        Ok(answers)
    }

    /// Asks for one answer about these calls. `None` means that each call gets its own.
    async fn ask_about(
        &self,
        request: &ApprovalRequest,
        calls: &[GatedCall],
        mode: ApprovalAnswerMode,
        input: &mut TtyLineReader,
    ) -> Result<Option<CallDecision>, TtyReadError> {
        let options = approval_options(request, calls, mode, QuestionSurface::Lines);
        let labels: Vec<String> = options.iter().map(|(label, _)| label.clone()).collect();
        let limit = self.time_limit.map(|limit| {
            format!(
                "  without an answer, the request times out after {} s\n",
                limit.as_secs_f64()
            )
        });
        eprint_text(&limit.unwrap_or_default());
        let (_, option) = options[read_option(&labels, input).await?];
        if option == ApprovalOption::DenyWithReason {
            eprint_text("  reason for the model:\n> ");
            let reason = input.read_line().await?.text;
            let reason = reason.trim();
            return Ok(Some(CallDecision::Deny(
                (!reason.is_empty()).then(|| reason.to_owned()),
            )));
        }
        Ok(option.decision())
    }
}

/// Lists options, and reads the number of one of them. Returns its index.
pub(crate) async fn read_option(
    labels: &[String],
    input: &mut TtyLineReader,
) -> Result<usize, TtyReadError> {
    for (index, label) in labels.iter().enumerate() {
        eprint_text(&format!("  {}. {}\n", index + 1, visible_line(label)));
    }
    let _unedited = input.disable_editing()?;
    loop {
        // Input before the prompt does not answer it. After a line that is no answer, the rest of
        // what is being typed or pasted does not answer it either.
        input.discard_until_quiet().await?;
        eprint_text(&format!(
            "  type a number from 1 to {}, then Enter\n> ",
            labels.len()
        ));
        let line = input.read_line().await?;
        if let Some(index) = line.chosen_option(labels.len()) {
            return Ok(index);
        }
    }
}

/// Asks a question with two options before anything else runs, and waits for the answer. Returns
/// whether `accept` was chosen; `None` if there is no terminal or it was left with Ctrl-D.
pub(crate) fn confirm(question: &str, accept: &str, decline: &str) -> Option<bool> {
    let labels = [accept.to_owned(), decline.to_owned()];
    let ask = async {
        let mut input = TtyLineReader::open().ok()?;
        let mut newline = NewlineGuard::new();
        let _marks = PasteMarks::new();
        eprint_text(question);
        // A signal ends the process; the shell then restores the settings of the terminal.
        let index = read_option(&labels, &mut input).await.ok()?;
        newline.disarm();
        Some(index == 0)
    };
    // On its own thread, because the caller may already run on an async runtime.
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| runtime().ok()?.block_on(ask));
        asking.join().unwrap_or_default()
    })
}

impl Approver for TerminalApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalResponse> {
        self.ask_person(request).boxed()
    }
}

/// Rings the bell, notifies and sets the title of the terminal, until it is dropped.
pub(crate) struct QuestionNotice(());

impl QuestionNotice {
    pub(crate) fn new() -> Self {
        begin_question_notice();
        Self(())
    }
}

impl Drop for QuestionNotice {
    fn drop(&mut self) {
        end_question_notice();
    }
}

/// Prints a line break when dropped, unless the question was answered: the person's Enter has
/// ended the line then.
pub(crate) struct NewlineGuard(bool);

impl NewlineGuard {
    pub(crate) fn new() -> Self {
        Self(true)
    }

    pub(crate) fn disarm(&mut self) {
        self.0 = false;
    }
}

impl Drop for NewlineGuard {
    fn drop(&mut self) {
        if self.0 {
            eprint_text("\n");
        }
    }
}

/// Describes all calls of a request, as lines that end with a line break.
pub(crate) fn format_question(request: &ApprovalRequest) -> String {
    let width = std::io::stderr().is_terminal().then(terminal_width);
    let mut text = format!("? {}\n", heading(&request.calls));
    text.extend(request.calls.iter().map(|call| format_call(call, width)));
    text
}

/// Describes a call. Long lines of its block are wrapped to `width` columns, so that each has the
/// edge of the block before it.
fn format_call(call: &GatedCall, width: Option<usize>) -> String {
    let (tool, reason) = tool_and_reason(call);
    let mut text = format!("  {tool}: {reason}\n");
    let block = match call_block(call) {
        Some(CallBlock::Diff(block) | CallBlock::Text(block)) => block.replace('\t', "    "),
        None => String::new(),
    };
    for line in block.lines() {
        for part in wrap(
            line,
            width.map(|width| width.saturating_sub(PREVIEW_LINE_PREFIX.width())),
        ) {
            text.push_str(&format!("{PREVIEW_LINE_PREFIX}{part}\n"));
        }
    }
    for line in call.snippet.iter().flat_map(|snippet| snippet.lines()) {
        let line = visible_line(line);
        let line = wrap(&line, width.map(|width| width.saturating_sub(7)));
        let more = if line.len() > 1 { "…" } else { "" };
        text.push_str(&format!("      {}{more}\n", line[0]));
    }
    if let Some(words) = stated_reason(call) {
        text.push_str(&format!("    {words}\n"));
    }
    text
}

/// Splits a line into parts of at most this many columns. Without a width there is one part.
fn wrap(line: &str, width: Option<usize>) -> Vec<String> {
    let width = width.unwrap_or(usize::MAX).max(1);
    let mut parts = vec![String::new()];
    let mut used = 0;
    for grapheme in line.graphemes(true) {
        if used + grapheme.width() > width && used > 0 {
            parts.push(String::new());
            used = 0;
        }
        used += grapheme.width();
        if let Some(part) = parts.last_mut() {
            part.push_str(grapheme);
        }
    }
    parts
}

/// Returns the width of the terminal, or 80 if it does not report it.
pub(crate) fn terminal_width() -> usize {
    match crossterm::terminal::size() {
        Ok((width @ 1.., _)) => width.into(),
        _ => 80,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::{Preview, PreviewContent};

    #[test]
    fn a_call_is_shown_completely_and_every_line_of_it_has_an_edge() {
        let script = "echo 1\n".repeat(100) + &"x".repeat(30) + "\trm -rf a";
        let call = GatedCall {
            call_id: "tool_1".into(),
            tool: "exec".into(),
            args: serde_json::json!({}),
            reason: format!("runs `{script}`"),
            context: Some("harmless\n> 1".into()),
            line: Some(1),
            snippet: Some(format!("> 1 | {}", "y".repeat(50))),
            folder: None,
            preview: Preview {
                view: Some(PreviewContent::Text(script)),
                rule: None,
            },
        };
        let shown = format_call(&call, Some(26));
        assert_eq!(shown.matches("    │ echo 1\n").count(), 100);
        let end = "    │ xxxxxxxxxxxxxxxxxxxx\n    │ xxxxxxxxxx    rm -rf\n    │  a\n      \
                   > 1 | yyyyyyyyyyyyy…\n    reason given by the model: harmless⏎> 1\n";
        assert!(shown.ends_with(end), "{shown}");
    }
}
