//! A question of the gate: what is asked, exactly, and which key is which answer.
//!
//! The keys are shown, and count, once nothing was typed for a moment: what somebody was writing when the question came
//! is no answer to it.

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

/// Lines of a view that are shown before the rest is only counted.
const VIEW_LINES: usize = 400;

/// A question, and who waits for the answer.
pub(crate) struct Question {
    pub(crate) request: ApprovalRequest,
    pub(crate) reply: oneshot::Sender<ApprovalDecision>,
}

pub(crate) struct Asking {
    question: Question,
    pub(super) quiet: QuietWait,
    state: State,
    answers: Vec<Answer>,
    mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The words of a "no".
    Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    All,
    Each,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Pressed {
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

    /// Nobody waits for an answer any more.
    pub(crate) fn is_void(&self) -> bool {
        self.question.reply.is_closed()
    }

    /// Waits until nobody waits any more.
    pub(crate) async fn void(&mut self) {
        self.question.reply.closed().await;
    }

    /// Whether a script asks, which can be put away until there is an answer.
    pub(crate) fn is_of_script(&self) -> bool {
        let id = self.question.request.script_id.as_deref();
        id.is_some_and(|id| id.starts_with("scr_"))
    }

    /// Whether it came up on the way of a call that runs: what is asked there has no arguments.
    pub(crate) fn is_of_running_call(&self) -> bool {
        self.calls().iter().any(|call| call.args.is_null())
    }

    pub(crate) fn decide(self, decision: ApprovalDecision) {
        // Where nobody waits any more, nobody needs it.
        let _ = self.question.reply.send(decision);
    }

    /// Whether the words of a "no" are being typed.
    pub(crate) fn wants_words(&self) -> bool {
        self.state == State::Why
    }

    pub(crate) fn press(&mut self, key: KeyEvent, words: &mut Editor, now: Instant) -> Pressed {
        if !self.quiet.is_over {
            self.quiet.disturbed(now);
            return Pressed::NotMine;
        }
        match self.state {
            State::Open => self.answer(key, words),
            State::Why => match key.code {
                KeyCode::Enter => {
                    let text = words.take();
                    let text = text.trim();
                    self.state = State::Open;
                    self.give(Answer::No((!text.is_empty()).then(|| text.to_owned())))
                }
                KeyCode::Esc => {
                    words.clear();
                    self.state = State::Open;
                    Pressed::Taken
                }
                _ => {
                    words.press(key);
                    Pressed::Taken
                }
            },
        }
    }

    fn answer(&mut self, key: KeyEvent, words: &mut Editor) -> Pressed {
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
                words.clear();
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

    /// The calls the next key is about.
    fn asked_now(&self) -> &[GatedCall] {
        match self.mode {
            Mode::All => self.calls(),
            Mode::Each => {
                let at = self.answers.len();
                self.calls().get(at..=at).unwrap_or_default()
            }
        }
    }

    /// What "always" would allow; `None` where that would be too much.
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

    /// Everything that is asked, for the page above.
    pub(crate) fn told(&self, look: Look) -> Vec<Row> {
        let calls = self.calls();
        let head = match calls {
            [_] => "this needs an answer:".to_owned(),
            calls => format!("these {} calls need an answer:", calls.len()),
        };
        let mut rows = vec![
            Row::blank(),
            Row::of(head, look.asks()).behind(Span::styled("? ", look.asks())),
        ];
        rows.extend(calls.iter().flat_map(|call| describe(call, look)));
        rows.push(Row::blank());
        rows
    }

    /// Which call the keys are about, where it is one of several, and the keys.
    pub(crate) fn rows(&self, look: Look) -> Vec<Row> {
        let mut rows = Vec::new();
        if self.mode == Mode::Each {
            let mark = Span::styled("? ", look.asks());
            let calls = self.asked_now().iter();
            rows.extend(calls.map(|call| head_of(call, look).behind(mark.clone())));
        }
        rows.push(match self.state {
            _ if !self.quiet.is_over => Row::quiet("  …"),
            State::Why => Row::quiet("  no; why? Enter sends, Esc goes back"),
            State::Open => self.keys(look),
        });
        rows
    }

    fn keys(&self, look: Look) -> Row {
        let mut keys = vec![
            ("y", "once".to_owned()),
            ("s", "for this script".to_owned()),
        ];
        let always = self
            .rule()
            .map(|rule| format!("always, for {}", one_line(&rule)));
        keys.extend(always.map(|always| ("a", always)));
        keys.push(("n", "no".to_owned()));
        if self.mode == Mode::All && self.calls().len() > 1 {
            keys.push(("e", "each by itself".to_owned()));
        }
        keys.push(("Esc", "none of it".to_owned()));
        keys_row(keys, look)
    }
}

/// Keys and what they mean, in a row.
pub(super) fn keys_row(keys: Vec<(&'static str, String)>, look: Look) -> Row {
    let mut body = Vec::new();
    for (key, meaning) in keys {
        if !body.is_empty() {
            body.push(Span::styled(" · ", look.quiet()));
        }
        body.push(Span::styled(key, look.asks()));
        body.push(Span::raw(format!(" {meaning}")));
    }
    Row::spans(body).indent(2)
}

pub(crate) fn decided(decision: &ApprovalDecision, look: Look) -> Row {
    let words = match decision {
        ApprovalDecision::Answered(answers) => {
            let mut words: Vec<String> = answers.iter().map(answered).collect();
            words.dedup();
            words.join(", then ")
        }
        ApprovalDecision::Cancelled => "none of it".to_owned(),
        ApprovalDecision::Unavailable(why) => why.clone(),
        ApprovalDecision::Later => "later".to_owned(),
    };
    Row::of(one_line(&words), look.strong()).behind(Span::styled("» ", look.asks()))
}

fn answered(answer: &Answer) -> String {
    match answer {
        Answer::Once => "yes, once".to_owned(),
        Answer::ThisScript => "yes, for this script".to_owned(),
        Answer::Always => "yes, always".to_owned(),
        Answer::No(None) => "no".to_owned(),
        Answer::No(Some(why)) => format!("no: {why}"),
    }
}

/// The tool and the reason. What a script says stays on its line: it could look like a question of ours.
fn head_of(call: &GatedCall, look: Look) -> Row {
    let reason = format!(": {}", one_line(&call.reason));
    Row::spans(vec![
        Span::styled(one_line(&call.tool), look.strong()),
        Span::raw(reason),
    ])
}

fn describe(call: &GatedCall, look: Look) -> Vec<Row> {
    let indent = |row: Row| row.indent(6);
    let mut rows = vec![head_of(call, look).indent(2)];
    match &call.preview.view {
        Some(View::Diff(text)) => {
            rows.extend(diff::rows(text, VIEW_LINES, look).into_iter().map(indent))
        }
        // What the reason says already is not said twice.
        Some(View::Commands(commands)) if !call.reason.contains(commands.as_str()) => {
            rows.extend(block(commands, Row::text).into_iter().map(indent));
        }
        _ => {}
    }
    if let Some(snippet) = &call.snippet {
        rows.extend(block(snippet, Row::quiet).into_iter().map(indent));
    }
    if let Some(context) = &call.context {
        rows.push(Row::quiet(format!("it says: {}", one_line(context))).indent(4));
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

    fn asking(
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
    fn what_was_typed_before_it_was_quiet_is_no_answer() {
        let now = Instant::now();
        let (mut asking, _answer) = asking(vec![call("exec", None)], now);
        let mut words = Editor::default();
        assert_eq!(
            asking.press(key('y'), &mut words, now + QUIET / 2),
            Pressed::NotMine
        );
        // Each key begins the wait anew.
        asking.quiet.open_if_quiet(now + QUIET);
        assert_eq!(
            asking.press(key('y'), &mut words, now + QUIET),
            Pressed::NotMine
        );
        asking.quiet.open_if_quiet(now + QUIET * 2);
        let once = Pressed::Decided(ApprovalDecision::Answered(vec![Answer::Once]));
        assert_eq!(asking.press(key('y'), &mut words, now + QUIET * 2), once);
    }

    #[test]
    fn no_takes_words_and_always_only_what_it_may() {
        let now = Instant::now();
        let (mut asking, _answer) = asking(vec![call("exec", None)], now);
        asking.quiet.open_if_quiet(now + QUIET);
        let mut words = Editor::default();
        assert_eq!(
            asking.press(key('a'), &mut words, now),
            Pressed::Taken,
            "there is no rule"
        );
        assert!(
            !asking
                .rows(Look::Plain)
                .last()
                .unwrap()
                .plain()
                .contains("always")
        );
        assert_eq!(asking.press(key('n'), &mut words, now), Pressed::Taken);
        for letter in "use y".chars() {
            assert_eq!(asking.press(key(letter), &mut words, now), Pressed::Taken);
        }
        let no = ApprovalDecision::Answered(vec![Answer::No(Some("use y".into()))]);
        assert_eq!(
            asking.press(KeyEvent::from(KeyCode::Enter), &mut words, now),
            Pressed::Decided(no)
        );
    }

    #[test]
    fn several_calls_are_answered_at_once_or_each_by_itself() {
        let now = Instant::now();
        let (mut asking, _answer) = asking(
            vec![call("exec", Some("`rm …`")), call("write_file", None)],
            now,
        );
        asking.quiet.open_if_quiet(now + QUIET);
        let mut words = Editor::default();
        assert!(
            asking
                .rows(Look::Plain)
                .last()
                .unwrap()
                .plain()
                .contains("e each by itself")
        );
        assert_eq!(asking.press(key('e'), &mut words, now), Pressed::Taken);
        assert!(
            asking
                .rows(Look::Plain)
                .last()
                .unwrap()
                .plain()
                .contains("a always, for `rm …`")
        );
        assert_eq!(asking.press(key('a'), &mut words, now), Pressed::Taken);
        assert_eq!(asking.press(key('n'), &mut words, now), Pressed::Taken);
        let decision = ApprovalDecision::Answered(vec![Answer::Always, Answer::No(None)]);
        assert_eq!(
            asking.press(KeyEvent::from(KeyCode::Enter), &mut words, now),
            Pressed::Decided(decision)
        );
    }

    #[test]
    fn what_a_script_says_stays_on_its_line() {
        let (asking, _answer) = asking(vec![call("exec", None)], Instant::now());
        let told: Vec<String> = asking.told(Look::Plain).iter().map(Row::plain).collect();
        assert_eq!(
            told,
            [
                "",
                "? this needs an answer:",
                "  exec: runs `rm -rf x`",
                "      > 1 | await tools.exec()",
                "    it says: old⏎build",
                ""
            ]
        );
    }
}
