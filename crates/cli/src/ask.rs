//! Asking the person at the terminal.

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

/// Shows questions on standard error and reads answers from the terminal, whatever standard input is.
pub(crate) struct AtTheTerminal {
    pub(crate) typed: Mutex<Typed>,
    pub(crate) show: Show,
}

/// Lines of a view that are shown; of a longer one, half from each end.
pub(crate) const VIEW_LINES: usize = 60;

impl AtTheTerminal {
    /// Where there is a person to ask.
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
        // One question at a time.
        let mut typed = self.typed.lock().await;
        let _quiet = self.show.pause();
        // Whoever gives up the question leaves the cursor behind it.
        let mut unanswered = EndOfLine::behind_a_question();
        // What was typed before the question is no answer to it.
        typed.forget();
        let several = request.calls.len() > 1;
        say(&question(request));
        let choices = choices(&request.calls, several);
        loop {
            say(&format!("{choices}\n> "));
            let line = match typed.line().await {
                Ok(line) => line,
                Err(none) => return without_a_line(none),
            };
            unanswered.answered();
            match answer(&line, &request.calls) {
                Reply::All(answer) => {
                    return ApprovalDecision::Answered(vec![answer; request.calls.len()]);
                }
                Reply::Each if several => return self.ask_each(&request.calls, &mut typed).await,
                Reply::Cancel => return ApprovalDecision::Cancelled,
                Reply::Each | Reply::Unclear => {}
            }
        }
    }

    async fn ask_each(&self, calls: &[GatedCall], typed: &mut Typed) -> ApprovalDecision {
        let mut answers = Vec::new();
        for call in calls {
            say(&describe(call));
            let choices = choices(std::slice::from_ref(call), false);
            let answer = loop {
                say(&format!("{choices}\n> "));
                let line = match typed.line().await {
                    Ok(line) => line,
                    Err(none) => {
                        say("\n");
                        return without_a_line(none);
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

/// Ends the line of a question that nobody answered.
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

#[derive(Debug, PartialEq)]
enum Reply {
    All(Answer),
    Each,
    Cancel,
    Unclear,
}

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
        ("n" | "no", words) => Reply::All(Answer::No(Some(words.to_owned()))),
        ("e" | "each", "") => Reply::Each,
        ("c" | "cancel", "") => Reply::Cancel,
        _ => Reply::Unclear,
    }
}

fn without_a_line(none: NoLine) -> ApprovalDecision {
    match none {
        NoLine::End => ApprovalDecision::Cancelled,
        NoLine::Gone => ApprovalDecision::Later,
    }
}

pub(crate) fn question(request: &ApprovalRequest) -> String {
    let mut text = match request.calls.as_slice() {
        [_] => "? the script asks for this:\n".to_owned(),
        calls => format!("? the script asks for these {} calls:\n", calls.len()),
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
        // What the reason says already is not said twice.
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
        text.push_str(&format!("    it says: {}\n", one_line(context)));
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
    let each = if several { " | e: each by itself" } else { "" };
    format!(
        "  [y: once | s: for this script{always} | n: no | n WORDS: no, and tell it why | c: cancel{each}]"
    )
}

/// What a script or a server says stays on its line: it could look like a question of ours.
pub(crate) fn one_line(text: &str) -> String {
    text.replace('\n', "⏎")
}

pub(crate) fn say(text: &str) {
    let mut stderr = std::io::stderr().lock();
    // A terminal that is gone is noticed when it is read.
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
    fn answers_are_understood_and_nothing_else_is() {
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
