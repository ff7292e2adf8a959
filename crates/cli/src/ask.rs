//! Asks for approvals in plain lines at the terminal. Used by commands other than the chat.

use std::io::{IsTerminal, Write};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::{
    ApprovalRequest, ApprovalResponse, CallDecision, GatedCall, PreviewContent,
};
use selvedge_tools::Approver;
use tokio::sync::Mutex;

use crate::output::replace_control_chars;
use crate::progress::ProgressDisplay;
use crate::terminal_input::{TtyLineReader, TtyReadError};
use crate::text_excerpt::excerpt;

/// Shows questions on standard error and reads answers from `/dev/tty`, even if standard input is
/// redirected.
pub(crate) struct TerminalApprover {
    pub(crate) input: Mutex<TtyLineReader>,
    pub(crate) progress: ProgressDisplay,
}

/// Lines of a command, diff or message that are shown; of a longer one, half from each end.
pub(crate) const MAX_VIEW_LINES: usize = 60;

impl TerminalApprover {
    /// Returns `None` if standard error or `/dev/tty` is not a terminal.
    pub(crate) fn new(show: ProgressDisplay) -> Option<Self> {
        if !std::io::stderr().is_terminal() {
            return None;
        }
        Some(Self {
            input: Mutex::new(TtyLineReader::open().ok()?),
            progress: show,
        })
    }

    async fn ask_person(&self, request: &ApprovalRequest) -> ApprovalResponse {
        // The lock allows one question at a time.
        let mut input = self.input.lock().await;
        let _paused = self.progress.pause();
        // If this future is dropped, the cursor is still after the prompt.
        let mut newline = NewlineGuard::new();
        // Input typed before the question does not answer it.
        input.discard_input();
        let several = request.calls.len() > 1;
        print_stderr(&format_question(request));
        let choices = format_choices(&request.calls, several);
        loop {
            print_stderr(&format!("{choices}\n> "));
            let line = match input.read_line().await {
                Ok(line) => line,
                Err(cause) => return decision_without_input(cause),
            };
            newline.disarm();
            match parse_answer(&line, &request.calls) {
                TypedAnswer::All(answer) => {
                    return ApprovalResponse::Decided(vec![answer; request.calls.len()]);
                }
                TypedAnswer::Each if several => {
                    return self.ask_each(&request.calls, &mut input).await;
                }
                TypedAnswer::Cancel => return ApprovalResponse::Cancelled,
                TypedAnswer::Each | TypedAnswer::Unrecognized => {}
            }
        }
    }

    async fn ask_each(&self, calls: &[GatedCall], input: &mut TtyLineReader) -> ApprovalResponse {
        let mut answers = Vec::new();
        for call in calls {
            print_stderr(&format_call(call));
            let choices = format_choices(std::slice::from_ref(call), false);
            let answer = loop {
                print_stderr(&format!("{choices}\n> "));
                let line = match input.read_line().await {
                    Ok(line) => line,
                    Err(cause) => {
                        print_stderr("\n");
                        return decision_without_input(cause);
                    }
                };
                match parse_answer(&line, std::slice::from_ref(call)) {
                    TypedAnswer::All(answer) => break answer,
                    TypedAnswer::Cancel => return ApprovalResponse::Cancelled,
                    TypedAnswer::Each | TypedAnswer::Unrecognized => {}
                }
            };
            answers.push(answer);
        }
        ApprovalResponse::Decided(answers)
    }
}

impl Approver for TerminalApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalResponse> {
        self.ask_person(request).boxed()
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
            print_stderr("\n");
        }
    }
}

/// A line typed as an answer.
#[derive(Debug, PartialEq)]
enum TypedAnswer {
    /// One answer for all calls.
    All(CallDecision),
    /// Ask about each call separately.
    Each,
    Cancel,
    Unrecognized,
}

/// Parses an answer. "always" is accepted only if every call has a rule that could be saved.
fn parse_answer(line: &str, calls: &[GatedCall]) -> TypedAnswer {
    let line = line.trim();
    let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    match (first.to_lowercase().as_str(), rest) {
        ("y" | "yes", "") => TypedAnswer::All(CallDecision::Once),
        ("s" | "script", "") => TypedAnswer::All(CallDecision::ThisScript),
        ("a" | "always", "") if calls.iter().all(|call| call.preview.rule.is_some()) => {
            TypedAnswer::All(CallDecision::Always)
        }
        ("n" | "no", "") => TypedAnswer::All(CallDecision::Deny(None)),
        ("n" | "no", reason) => TypedAnswer::All(CallDecision::Deny(Some(reason.to_owned()))),
        ("e" | "each", "") => TypedAnswer::Each,
        ("c" | "cancel", "") => TypedAnswer::Cancel,
        _ => TypedAnswer::Unrecognized,
    }
}

fn decision_without_input(cause: TtyReadError) -> ApprovalResponse {
    match cause {
        TtyReadError::EndOfInput => ApprovalResponse::Cancelled,
        TtyReadError::TerminalClosed => ApprovalResponse::Deferred,
    }
}

pub(crate) fn format_question(request: &ApprovalRequest) -> String {
    let mut text = match request.calls.as_slice() {
        [_] => "? approval needed:\n".to_owned(),
        calls => format!("? approval needed for {} calls:\n", calls.len()),
    };
    text.extend(request.calls.iter().map(format_call));
    text
}

fn format_call(call: &GatedCall) -> String {
    let mut text = format!(
        "  {}: {}\n",
        escape_newlines(&call.tool),
        escape_newlines(&call.reason)
    );
    let mut block = |lines: &str| {
        for line in excerpt(lines, MAX_VIEW_LINES) {
            text.push_str(&format!("      {}\n", line.text()));
        }
    };
    match &call.preview.view {
        Some(PreviewContent::Diff(diff)) => block(diff),
        // Skip the text if the reason already quotes it.
        Some(PreviewContent::Commands(text) | PreviewContent::Addresses(text))
            if !call.reason.contains(text.as_str()) =>
        {
            block(text)
        }
        _ => {}
    }
    if let Some(snippet) = &call.snippet {
        block(snippet);
    }
    if let Some(context) = &call.context {
        text.push_str(&format!(
            "    stated reason: {}\n",
            escape_newlines(context)
        ));
    }
    text
}

fn format_choices(calls: &[GatedCall], several: bool) -> String {
    let mut rules: Vec<&str> = calls
        .iter()
        .filter_map(|call| call.preview.rule.as_deref())
        .collect();
    let always = rules.len() == calls.len();
    rules.dedup();
    let always = always.then(|| format!(" | a: always, for {}", rules.join(", ")));
    let always = always.unwrap_or_default();
    let each = if several { " | e: one by one" } else { "" };
    let deny = "n: deny | n REASON: deny with a reason";
    format!("  [y: approve once | s: for this script{always} | {deny} | c: cancel{each}]")
}

/// Replaces line breaks, so that text from a script or a server cannot imitate a question.
pub(crate) fn escape_newlines(text: &str) -> String {
    text.replace('\n', "⏎")
}

/// Prints text on standard error, with control characters replaced.
pub(crate) fn print_stderr(text: &str) {
    let mut stderr = std::io::stderr().lock();
    // Errors are ignored: if the terminal is closed, reading the answer fails.
    let _ = stderr
        .write_all(replace_control_chars(text).as_bytes())
        .and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::Preview;

    fn call(rule: Option<&str>) -> GatedCall {
        GatedCall {
            call_id: "tool_1".into(),
            tool: "exec".into(),
            args: serde_json::json!({}),
            reason: "runs `npm test`".into(),
            context: None,
            line: Some(1),
            snippet: None,
            preview: Preview {
                view: None,
                rule: rule.map(str::to_owned),
            },
        }
    }

    #[test]
    fn the_end_of_a_long_script_is_shown() {
        let script = "echo 1\n".repeat(100) + "rm -rf a";
        let preview = Preview {
            view: Some(PreviewContent::Commands(script)),
            rule: None,
        };
        let shown = format_call(&GatedCall {
            preview,
            ..call(None)
        });
        assert!(
            shown.contains("      … 41 lines omitted\n") && shown.ends_with("      rm -rf a\n"),
            "{shown}"
        );
    }

    #[test]
    fn only_known_answers_are_accepted() {
        let calls = [call(Some("`npm test …`"))];
        assert_eq!(
            parse_answer("y\n", &calls),
            TypedAnswer::All(CallDecision::Once)
        );
        assert_eq!(
            parse_answer("S", &calls),
            TypedAnswer::All(CallDecision::ThisScript)
        );
        assert_eq!(
            parse_answer(" always ", &calls),
            TypedAnswer::All(CallDecision::Always)
        );
        assert_eq!(
            parse_answer("n", &calls),
            TypedAnswer::All(CallDecision::Deny(None))
        );
        assert_eq!(
            parse_answer("no use the other script", &calls),
            TypedAnswer::All(CallDecision::Deny(Some("use the other script".into())))
        );
        for unclear in ["", "maybe", "y please", "yy"] {
            assert_eq!(
                parse_answer(unclear, &calls),
                TypedAnswer::Unrecognized,
                "{unclear}"
            );
        }
        assert_eq!(parse_answer("a", &[call(None)]), TypedAnswer::Unrecognized);
    }
}
