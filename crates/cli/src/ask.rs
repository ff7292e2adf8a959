//! Asks for approvals in plain lines at the terminal. Used by commands other than the chat.

use std::io::{IsTerminal, Write};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::{Answer, ApprovalDecision, ApprovalRequest, GatedCall, View};
use selvedge_tools::Approver;
use tokio::sync::Mutex;

use crate::ends::ends;
use crate::out::harmless;
use crate::show::Show;
use crate::typed::{NoLine, Typed};

/// Shows questions on standard error and reads answers from `/dev/tty`, even if standard input is
/// redirected.
pub(crate) struct AtTheTerminal {
    pub(crate) typed: Mutex<Typed>,
    pub(crate) show: Show,
}

/// Lines of a command, diff or message that are shown; of a longer one, half from each end.
pub(crate) const VIEW_LINES: usize = 60;

impl AtTheTerminal {
    /// Returns `None` if standard error or `/dev/tty` is not a terminal.
    pub(crate) fn new(show: Show) -> Option<Self> {
        if !std::io::stderr().is_terminal() {
            return None;
        }
        Some(Self {
            typed: Mutex::new(Typed::open().ok()?),
            show,
        })
    }

    async fn ask_now(&self, request: &ApprovalRequest) -> ApprovalDecision {
        // The lock allows one question at a time.
        let mut input = self.typed.lock().await;
        let _paused = self.show.pause();
        // If this future is dropped, the cursor is still after the prompt.
        let mut newline = EndOfLine::behind_a_question();
        // Input typed before the question does not answer it.
        input.forget();
        let several = request.calls.len() > 1;
        say(&question(request));
        let choices = choices(&request.calls, several);
        loop {
            say(&format!("{choices}\n> "));
            let line = match input.line().await {
                Ok(line) => line,
                Err(cause) => return without_a_line(cause),
            };
            newline.answered();
            match answer(&line, &request.calls) {
                Reply::All(answer) => {
                    return ApprovalDecision::Answered(vec![answer; request.calls.len()]);
                }
                Reply::Each if several => return self.ask_each(&request.calls, &mut input).await,
                Reply::Cancel => return ApprovalDecision::Cancelled,
                Reply::Each | Reply::Unclear => {}
            }
        }
    }

    async fn ask_each(&self, calls: &[GatedCall], input: &mut Typed) -> ApprovalDecision {
        let mut answers = Vec::new();
        for call in calls {
            say(&describe(call));
            let choices = choices(std::slice::from_ref(call), false);
            let answer = loop {
                say(&format!("{choices}\n> "));
                let line = match input.line().await {
                    Ok(line) => line,
                    Err(cause) => {
                        say("\n");
                        return without_a_line(cause);
                    }
                };
                match answer(&line, std::slice::from_ref(call)) {
                    Reply::All(answer) => break answer,
                    Reply::Cancel => return ApprovalDecision::Cancelled,
                    Reply::Each | Reply::Unclear => {}
                }
            };
            answers.push(answer);
        }
        ApprovalDecision::Answered(answers)
    }
}

impl Approver for AtTheTerminal {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision> {
        self.ask_now(request).boxed()
    }
}

/// Prints a line break when dropped, unless the question was answered: the person's Enter has
/// ended the line then.
pub(crate) struct EndOfLine(bool);

impl EndOfLine {
    pub(crate) fn behind_a_question() -> Self {
        Self(true)
    }

    pub(crate) fn answered(&mut self) {
        self.0 = false;
    }
}

impl Drop for EndOfLine {
    fn drop(&mut self) {
        if self.0 {
            say("\n");
        }
    }
}

/// A line typed as an answer.
#[derive(Debug, PartialEq)]
enum Reply {
    /// One answer for all calls.
    All(Answer),
    /// Ask about each call separately.
    Each,
    Cancel,
    Unclear,
}

/// Parses an answer. "always" is accepted only if every call has a rule that could be saved.
fn answer(line: &str, calls: &[GatedCall]) -> Reply {
    let line = line.trim();
    let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    match (first.to_lowercase().as_str(), rest) {
        ("y" | "yes", "") => Reply::All(Answer::Once),
        ("s" | "script", "") => Reply::All(Answer::ThisScript),
        ("a" | "always", "") if calls.iter().all(|call| call.preview.rule.is_some()) => {
            Reply::All(Answer::Always)
        }
        ("n" | "no", "") => Reply::All(Answer::No(None)),
        ("n" | "no", reason) => Reply::All(Answer::No(Some(reason.to_owned()))),
        ("e" | "each", "") => Reply::Each,
        ("c" | "cancel", "") => Reply::Cancel,
        _ => Reply::Unclear,
    }
}

fn without_a_line(cause: NoLine) -> ApprovalDecision {
    match cause {
        NoLine::End => ApprovalDecision::Cancelled,
        NoLine::Gone => ApprovalDecision::Later,
    }
}

pub(crate) fn question(request: &ApprovalRequest) -> String {
    let mut text = match request.calls.as_slice() {
        [_] => "? approval needed:\n".to_owned(),
        calls => format!("? approval needed for {} calls:\n", calls.len()),
    };
    text.extend(request.calls.iter().map(describe));
    text
}

fn describe(call: &GatedCall) -> String {
    let mut text = format!("  {}: {}\n", one_line(&call.tool), one_line(&call.reason));
    let mut block = |lines: &str| {
        for line in ends(lines, VIEW_LINES) {
            text.push_str(&format!("      {}\n", line.text()));
        }
    };
    match &call.preview.view {
        Some(View::Diff(diff)) => block(diff),
        // Skip the text if the reason already quotes it.
        Some(View::Commands(text) | View::Addresses(text))
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
        text.push_str(&format!("    stated reason: {}\n", one_line(context)));
    }
    text
}

fn choices(calls: &[GatedCall], several: bool) -> String {
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
pub(crate) fn one_line(text: &str) -> String {
    text.replace('\n', "⏎")
}

/// Prints text on standard error, with control characters replaced.
pub(crate) fn say(text: &str) {
    let mut stderr = std::io::stderr().lock();
    // Errors are ignored: if the terminal is closed, reading the answer fails.
    let _ = stderr
        .write_all(harmless(text).as_bytes())
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
            view: Some(View::Commands(script)),
            rule: None,
        };
        let shown = describe(&GatedCall {
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
        assert_eq!(answer("y\n", &calls), Reply::All(Answer::Once));
        assert_eq!(answer("S", &calls), Reply::All(Answer::ThisScript));
        assert_eq!(answer(" always ", &calls), Reply::All(Answer::Always));
        assert_eq!(answer("n", &calls), Reply::All(Answer::No(None)));
        assert_eq!(
            answer("no use the other script", &calls),
            Reply::All(Answer::No(Some("use the other script".into())))
        );
        for unclear in ["", "maybe", "y please", "yy"] {
            assert_eq!(answer(unclear, &calls), Reply::Unclear, "{unclear}");
        }
        assert_eq!(answer("a", &[call(None)]), Reply::Unclear);
    }
}
