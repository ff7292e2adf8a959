//! The form prompt of the chat: a form or an address that an MCP server sends in an elicitation.
//! A form is filled in field by field, reviewed, and sent or declined.
//!
//! As with approvals, keys are accepted after a pause without input.

use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui_core::text::Span;
use selvedge_mcp::{Address, Elicited, Field, Form, Wants};
use serde_json::Value;
use tokio::sync::oneshot;

use super::editor::Editor;
use super::look::Look;
use super::pending::QuietWait;
use super::question::keys_row;
use super::rows::{Fit, Row, clean, one_line};
use crate::ends::ends;
use crate::filling::{self, Filling};

/// Lines of a server's message that are shown.
const MESSAGE_LINES: usize = 60;

/// A server's form and the channel for its outcome.
pub(crate) struct FormQuestion {
    pub(crate) server: String,
    pub(crate) form: Form,
    pub(crate) reply: oneshot::Sender<Elicited>,
}

/// The state of a form prompt.
pub(crate) struct FormAsking {
    server: String,
    message: String,
    wants: Wanted,
    reply: oneshot::Sender<Elicited>,
    pub(super) quiet: QuietWait,
    state: State,
    /// Why the last input was rejected.
    wrong: Option<String>,
}

/// What the server requests.
enum Wanted {
    Fields(Filling),
    /// The user should open this address.
    Visit(Address),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Asks whether to fill in the form.
    Open,
    /// Takes the value of the next field.
    Field,
    /// All fields are filled in; asks whether to send them.
    Review,
}

/// What the prompt did with a key.
#[derive(Debug, PartialEq)]
pub(crate) enum FormPressed {
    /// Nothing: the key is for the editor.
    NotMine,
    Taken,
    /// A field was filled in. The row shows its value.
    Filled(Row),
    Decided(Elicited),
}

impl FormAsking {
    /// Returns `None` if the chat cannot show the request. The reply channel closes then, and the
    /// server gets an error.
    pub(crate) fn new(question: FormQuestion, now: Instant) -> Option<Self> {
        let wants = match question.form.wants {
            Wants::Fields(fields) => Wanted::Fields(Filling::new(fields)),
            Wants::Visit(address) => Wanted::Visit(address),
            _ => return None,
        };
        Some(Self {
            server: question.server,
            message: question.form.message,
            wants,
            reply: question.reply,
            quiet: QuietWait::new(now),
            state: State::Open,
            wrong: None,
        })
    }

    /// Whether the server no longer waits for an answer.
    pub(crate) fn is_void(&self) -> bool {
        self.reply.is_closed()
    }

    /// Completes when the server no longer waits for an answer.
    pub(crate) async fn void(&mut self) {
        self.reply.closed().await;
    }

    pub(crate) fn decide(self, outcome: Elicited) {
        // Sending fails only if the server no longer waits.
        let _ = self.reply.send(outcome);
    }

    /// Returns the label before the input of the current field, or `None` if no field is open.
    pub(crate) fn mark(&self) -> Option<String> {
        match (&self.wants, self.state) {
            (Wanted::Fields(filling), State::Field) => {
                let name: String = one_line(&filling.next()?.name).chars().take(24).collect();
                Some(format!("{name} › "))
            }
            _ => None,
        }
    }

    /// Handles a key. `input` is the editor for field values.
    pub(crate) fn press(&mut self, key: KeyEvent, input: &mut Editor, now: Instant) -> FormPressed {
        if !self.quiet.is_over {
            self.quiet.disturbed(now);
            return FormPressed::NotMine;
        }
        match self.state {
            State::Field => self.typed(key, input),
            State::Open | State::Review => self.chosen(key, input),
        }
    }

    fn typed(&mut self, key: KeyEvent, input: &mut Editor) -> FormPressed {
        let Wanted::Fields(filling) = &mut self.wants else {
            return FormPressed::Taken;
        };
        match key.code {
            KeyCode::Enter => match filling.fill(&input.text()) {
                Ok(()) => {
                    input.clear();
                    self.wrong = None;
                    if filling.next().is_none() {
                        self.state = State::Review;
                    }
                    let line = one_line(&filling.last().unwrap_or_default());
                    FormPressed::Filled(Row::text(line).indent(4))
                }
                Err(error) => {
                    self.wrong = Some(error.to_string());
                    FormPressed::Taken
                }
            },
            KeyCode::Esc => {
                input.clear();
                self.wrong = None;
                if filling.back().is_none() {
                    self.state = State::Open;
                }
                FormPressed::Taken
            }
            _ => {
                input.press(key);
                FormPressed::Taken
            }
        }
    }

    fn chosen(&mut self, key: KeyEvent, input: &mut Editor) -> FormPressed {
        if key
            .modifiers
            .intersects(KeyModifiers::CONTROL | KeyModifiers::ALT)
        {
            return FormPressed::NotMine;
        }
        match (key.code, &mut self.wants) {
            (KeyCode::Char('y' | 'Y'), Wanted::Visit(_)) => {
                FormPressed::Decided(Elicited::Accepted(Value::Null))
            }
            (KeyCode::Char('y' | 'Y'), Wanted::Fields(filling)) if self.state == State::Review => {
                FormPressed::Decided(Elicited::Accepted(filling.content()))
            }
            (KeyCode::Char(key), Wanted::Fields(filling))
                if matches!(
                    (key, self.state),
                    ('y' | 'Y', _) | ('e' | 'E', State::Review)
                ) =>
            {
                if self.state == State::Review {
                    filling.again();
                }
                input.clear();
                // A form without fields is only confirmed.
                self.state = match filling.next() {
                    Some(_) => State::Field,
                    None => State::Review,
                };
                FormPressed::Taken
            }
            (KeyCode::Char('n' | 'N'), _) => FormPressed::Decided(Elicited::Declined),
            (KeyCode::Esc, _) => FormPressed::Decided(Elicited::Cancelled),
            _ => FormPressed::Taken,
        }
    }

    /// Returns the server's name and its request, which are printed once.
    pub(crate) fn told(&self, theme: Look) -> Vec<Row> {
        let head = format!("the server {} asks:", one_line(&self.server));
        let mut rows = vec![
            Row::blank(),
            Row::of(head, theme.asks()).behind(Span::styled("? ", theme.asks())),
        ];
        // The server's text is indented so that it cannot imitate a prompt.
        let quoted = |text: String| Row::text(text).indent(6);
        let message = clean(&self.message);
        let lines = ends(&message, MESSAGE_LINES);
        rows.extend(lines.iter().map(|line| quoted(line.text())));
        match &self.wants {
            Wanted::Fields(filling) => {
                for field in filling.fields() {
                    let about = Row::of(one_line(&filling::about(field)), theme.strong());
                    rows.push(about.behind(Span::raw("  · ")));
                    rows.extend(field.about.iter().map(|text| quoted(one_line(text))));
                    rows.extend(choices(field).map(quoted));
                }
            }
            Wanted::Visit(address) => {
                let text = format!(
                    "open this address on {} yourself; Selvedge does not open it:",
                    one_line(&address.host)
                );
                rows.push(Row::of(text, theme.strong()).indent(2));
                rows.push(quoted(one_line(&address.url)).fit(Fit::Letters));
            }
        }
        rows.push(Row::blank());
        rows
    }

    /// Returns the live rows: the current field, if any, and the keys.
    pub(crate) fn rows(&self, theme: Look) -> Vec<Row> {
        let server = one_line(&self.server);
        let keys = |keys: Vec<(&'static str, String)>| vec![keys_row(keys, theme)];
        let decline = ("n", "decline".to_owned());
        let cancel = ("Esc", "cancel".to_owned());
        match (&self.wants, self.state) {
            _ if !self.quiet.is_over => vec![Row::quiet("  …")],
            (Wanted::Visit(_), _) => {
                let open = ("y", "I will open it".to_owned());
                keys(vec![open, decline, cancel])
            }
            (Wanted::Fields(_), State::Open) => {
                let fill = ("y", format!("fill in for {server}"));
                keys(vec![fill, decline, cancel])
            }
            (Wanted::Fields(_), State::Review) => {
                let send = ("y", format!("send to {server}"));
                let restart = ("e", "start over".to_owned());
                keys(vec![send, restart, decline, cancel])
            }
            (Wanted::Fields(filling), State::Field) => {
                let Some(field) = filling.next() else {
                    return Vec::new();
                };
                let position = format!("{} of {}: ", filling.place(), filling.fields().len());
                let body = vec![
                    Span::raw(position),
                    Span::styled(one_line(&filling::about(field)), theme.strong()),
                ];
                let mut rows = vec![Row::spans(body).behind(Span::styled("? ", theme.asks()))];
                rows.extend(choices(field).map(|line| Row::text(line).indent(6).cut()));
                let error = self.wrong.iter();
                rows.extend(error.map(|text| Row::of(one_line(text), theme.bad()).indent(2)));
                rows.push(Row::quiet(format!(
                    "  for {server}; Enter accepts, Esc goes back"
                )));
                rows
            }
        }
    }
}

/// Returns the choices of a field in one line, or `None` if it has none.
fn choices(field: &Field) -> Option<String> {
    let choices = filling::choices(field);
    (!choices.is_empty()).then(|| one_line(&choices.join("  ")))
}

/// Returns a row that reports the outcome of a form.
pub(crate) fn elicited(outcome: &Elicited, theme: Look) -> Row {
    let text = match outcome {
        Elicited::Accepted(Value::Null) => "accepted",
        Elicited::Accepted(_) => "sent",
        Elicited::Declined => "declined",
        Elicited::Cancelled => "cancelled",
    };
    Row::of(text, theme.strong()).behind(Span::styled("» ", theme.asks()))
}

#[cfg(test)]
mod tests {
    use super::super::pending::QUIET;
    use super::*;
    use serde_json::json;

    fn prompt(request: Value) -> (FormAsking, oneshot::Receiver<Elicited>) {
        let (reply, answer) = oneshot::channel();
        let form = Form::read(&request).unwrap();
        let now = Instant::now();
        let mut prompt = FormAsking::new(
            FormQuestion {
                server: "shop".into(),
                form,
                reply,
            },
            now,
        )
        .unwrap();
        assert_eq!(
            prompt.press(KeyCode::Char('y').into(), &mut Editor::default(), now),
            FormPressed::NotMine
        );
        prompt.quiet.open_if_quiet(now + QUIET);
        (prompt, answer)
    }

    fn two_fields() -> Value {
        let fields = json!({
            "name": {"type": "string", "title": "Name"},
            "size": {"type": "string", "enum": ["S", "M"], "default": "M"},
        });
        json!({
            "message": "Hello\u{1b}[2J\n? the gate asks",
            "requestedSchema": {"type": "object", "properties": fields, "required": ["name"]},
        })
    }

    fn plain(rows: &[Row]) -> Vec<String> {
        rows.iter().map(Row::plain).collect()
    }

    #[test]
    fn text_from_the_server_is_sanitized_and_indented() {
        let (prompt, _answer) = prompt(two_fields());
        assert_eq!(
            plain(&prompt.told(Look::Plain)),
            [
                "",
                "? the server shop asks:",
                "      Hello\u{fffd}[2J",
                "      ? the gate asks",
                "  · Name (name): text; required",
                "  · size: one of these; default: M",
                "      1. S  2. M",
                ""
            ]
        );
    }

    #[test]
    fn a_form_is_filled_in_corrected_reviewed_and_sent() {
        let (mut prompt, _answer) = prompt(two_fields());
        let (mut input, now) = (Editor::default(), Instant::now());
        let mut press =
            |prompt: &mut FormAsking, code: KeyCode| prompt.press(code.into(), &mut input, now);
        let filled = |result: FormPressed| match result {
            FormPressed::Filled(row) => row.plain(),
            other => panic!("{other:?}"),
        };
        assert_eq!(press(&mut prompt, KeyCode::Char('y')), FormPressed::Taken);
        // A required field must not be empty.
        assert_eq!(press(&mut prompt, KeyCode::Enter), FormPressed::Taken);
        assert!(plain(&prompt.rows(Look::Plain)).contains(&"  a value is required".to_owned()));
        for letter in "Ada".chars() {
            press(&mut prompt, KeyCode::Char(letter));
        }
        assert_eq!(filled(press(&mut prompt, KeyCode::Enter)), "    name: Ada");
        press(&mut prompt, KeyCode::Char('9'));
        press(&mut prompt, KeyCode::Enter);
        assert!(plain(&prompt.rows(Look::Plain)).contains(&"  not one of the choices".to_owned()));
        press(&mut prompt, KeyCode::Backspace);
        assert_eq!(filled(press(&mut prompt, KeyCode::Enter)), "    size: M");
        assert!(
            prompt.rows(Look::Plain)[0]
                .plain()
                .contains("y send to shop")
        );
        let sent = Elicited::Accepted(json!({"name": "Ada", "size": "M"}));
        assert_eq!(
            press(&mut prompt, KeyCode::Char('y')),
            FormPressed::Decided(sent)
        );
    }

    #[test]
    fn an_address_is_shown_with_its_host_and_can_be_declined() {
        let request =
            json!({"mode": "url", "message": "Log in", "url": "https://example.com/login?x=1"});
        let (mut prompt, _answer) = prompt(request);
        let shown = plain(&prompt.told(Look::Plain)).join("\n");
        assert!(
            shown.contains("open this address on example.com yourself")
                && shown.contains("      https://example.com/login?x=1"),
            "{shown}"
        );
        let pressed = prompt.press(
            KeyCode::Char('n').into(),
            &mut Editor::default(),
            Instant::now(),
        );
        assert_eq!(pressed, FormPressed::Decided(Elicited::Declined));
    }
}
