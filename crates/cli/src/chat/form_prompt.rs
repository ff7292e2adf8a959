//! The form prompt of the chat: a form or an address that an MCP server sends in an elicitation.
//! A form is filled in field by field, reviewed, and sent or declined.
//!
//! As with approvals, keys are accepted after a pause without input.

use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui_core::text::Span;
use selvedge_mcp::{ElicitationResponse, FormContent, FormField, FormUrl, ServerForm};
use serde_json::Value;
use tokio::sync::oneshot;

use super::approval_prompt::key_help_row;
use super::editor::Editor;
use super::pending_question::TypingPause;
use super::rows::{StyledRow, WrapMode, sanitize, sanitize_line};
use super::theme::Theme;
use crate::form_state::{self, FormState};
use crate::text_excerpt::excerpt;

/// Lines of a server's message that are shown.
const MAX_MESSAGE_LINES: usize = 60;

/// A server's form and the channel for its outcome.
pub(crate) struct FormQuestion {
    pub(crate) server: String,
    pub(crate) form: ServerForm,
    pub(crate) reply: oneshot::Sender<ElicitationResponse>,
}

/// The state of a form prompt.
pub(crate) struct FormPrompt {
    server: String,
    message: String,
    request: FormRequest,
    reply: oneshot::Sender<ElicitationResponse>,
    pub(super) typing_pause: TypingPause,
    state: FormPromptState,
    /// Why the last input was rejected.
    input_error: Option<String>,
}

/// What the server requests.
enum FormRequest {
    Fields(FormState),
    /// The user should open this address.
    OpenAddress(FormUrl),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FormPromptState {
    /// Asks whether to fill in the form.
    Choosing,
    /// Takes the value of the next field.
    FillingField,
    /// All fields are filled in; asks whether to send them.
    Reviewing,
}

/// What the prompt did with a key.
#[derive(Debug, PartialEq)]
pub(crate) enum FormKeyResult {
    /// Nothing: the key is for the editor.
    Ignored,
    Consumed,
    /// A field was filled in. The row shows its value.
    Filled(StyledRow),
    Decided(ElicitationResponse),
}

impl FormPrompt {
    /// Returns `None` if the chat cannot show the request. The reply channel closes then, and the
    /// server gets an error.
    pub(crate) fn new(question: FormQuestion, now: Instant) -> Option<Self> {
        let wants = match question.form.content {
            FormContent::Fields(fields) => FormRequest::Fields(FormState::new(fields)),
            FormContent::Url(address) => FormRequest::OpenAddress(address),
            _ => return None,
        };
        Some(Self {
            server: question.server,
            message: question.form.message,
            request: wants,
            reply: question.reply,
            typing_pause: TypingPause::new(now),
            state: FormPromptState::Choosing,
            input_error: None,
        })
    }

    /// Whether the server no longer waits for an answer.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    /// Completes when the server no longer waits for an answer.
    pub(crate) async fn until_abandoned(&mut self) {
        self.reply.closed().await;
    }

    pub(crate) fn reply(self, outcome: ElicitationResponse) {
        // Sending fails only if the server no longer waits.
        let _ = self.reply.send(outcome);
    }

    /// Returns the label before the input of the current field, or `None` if no field is open.
    pub(crate) fn input_label(&self) -> Option<String> {
        match (&self.request, self.state) {
            (FormRequest::Fields(filling), FormPromptState::FillingField) => {
                let name: String = sanitize_line(&filling.next_field()?.name)
                    .chars()
                    .take(24)
                    .collect();
                Some(format!("{name} › "))
            }
            _ => None,
        }
    }

    /// Handles a key. `input` is the editor for field values.
    pub(crate) fn handle_key(
        &mut self,
        key: KeyEvent,
        input: &mut Editor,
        now: Instant,
    ) -> FormKeyResult {
        if !self.typing_pause.is_over {
            self.typing_pause.restart(now);
            return FormKeyResult::Ignored;
        }
        match self.state {
            FormPromptState::FillingField => self.handle_field_key(key, input),
            FormPromptState::Choosing | FormPromptState::Reviewing => {
                self.handle_choice_key(key, input)
            }
        }
    }

    fn handle_field_key(&mut self, key: KeyEvent, input: &mut Editor) -> FormKeyResult {
        let FormRequest::Fields(filling) = &mut self.request else {
            return FormKeyResult::Consumed;
        };
        match key.code {
            KeyCode::Enter => match filling.fill(&input.text()) {
                Ok(()) => {
                    input.clear();
                    self.input_error = None;
                    if filling.next_field().is_none() {
                        self.state = FormPromptState::Reviewing;
                    }
                    let line = sanitize_line(&filling.last_line().unwrap_or_default());
                    FormKeyResult::Filled(StyledRow::text(line).indented(4))
                }
                Err(error) => {
                    self.input_error = Some(error.to_string());
                    FormKeyResult::Consumed
                }
            },
            KeyCode::Esc => {
                input.clear();
                self.input_error = None;
                if filling.previous_field().is_none() {
                    self.state = FormPromptState::Choosing;
                }
                FormKeyResult::Consumed
            }
            _ => {
                input.handle_key(key);
                FormKeyResult::Consumed
            }
        }
    }

    fn handle_choice_key(&mut self, key: KeyEvent, input: &mut Editor) -> FormKeyResult {
        if key
            .modifiers
            .intersects(KeyModifiers::CONTROL | KeyModifiers::ALT)
        {
            return FormKeyResult::Ignored;
        }
        match (key.code, &mut self.request) {
            (KeyCode::Char('y' | 'Y'), FormRequest::OpenAddress(_)) => {
                FormKeyResult::Decided(ElicitationResponse::Accepted(Value::Null))
            }
            (KeyCode::Char('y' | 'Y'), FormRequest::Fields(filling))
                if self.state == FormPromptState::Reviewing =>
            {
                FormKeyResult::Decided(ElicitationResponse::Accepted(filling.content()))
            }
            (KeyCode::Char(key), FormRequest::Fields(filling))
                if matches!(
                    (key, self.state),
                    ('y' | 'Y', _) | ('e' | 'E', FormPromptState::Reviewing)
                ) =>
            {
                if self.state == FormPromptState::Reviewing {
                    filling.clear();
                }
                input.clear();
                // A form without fields is only confirmed.
                self.state = match filling.next_field() {
                    Some(_) => FormPromptState::FillingField,
                    None => FormPromptState::Reviewing,
                };
                FormKeyResult::Consumed
            }
            (KeyCode::Char('n' | 'N'), _) => FormKeyResult::Decided(ElicitationResponse::Declined),
            (KeyCode::Esc, _) => FormKeyResult::Decided(ElicitationResponse::Cancelled),
            _ => FormKeyResult::Consumed,
        }
    }

    /// Returns the server's name and its request, which are printed once.
    pub(crate) fn intro_rows(&self, theme: Theme) -> Vec<StyledRow> {
        let head = format!("the server {} asks:", sanitize_line(&self.server));
        let mut rows = vec![
            StyledRow::blank(),
            StyledRow::styled(head, theme.question())
                .with_prefix(Span::styled("? ", theme.question())),
        ];
        // The server's text is indented so that it cannot imitate a prompt.
        let quoted = |text: String| StyledRow::text(text).indented(6);
        let message = sanitize(&self.message);
        let lines = excerpt(&message, MAX_MESSAGE_LINES);
        rows.extend(lines.iter().map(|line| quoted(line.text())));
        match &self.request {
            FormRequest::Fields(filling) => {
                for field in filling.fields() {
                    let about = StyledRow::styled(
                        sanitize_line(&form_state::describe_field(field)),
                        theme.bold(),
                    );
                    rows.push(about.with_prefix(Span::raw("  · ")));
                    rows.extend(
                        field
                            .description
                            .iter()
                            .map(|text| quoted(sanitize_line(text))),
                    );
                    rows.extend(choices_line(field).map(quoted));
                }
            }
            FormRequest::OpenAddress(address) => {
                let text = format!(
                    "open this address on {} yourself; Selvedge does not open it:",
                    sanitize_line(&address.host)
                );
                rows.push(StyledRow::styled(text, theme.bold()).indented(2));
                rows.push(quoted(sanitize_line(&address.url)).with_wrap(WrapMode::Anywhere));
            }
        }
        rows.push(StyledRow::blank());
        rows
    }

    /// Returns the live rows: the current field, if any, and the keys.
    pub(crate) fn live_rows(&self, theme: Theme) -> Vec<StyledRow> {
        let server = sanitize_line(&self.server);
        let keys = |keys: Vec<(&'static str, String)>| vec![key_help_row(keys, theme)];
        let decline = ("n", "decline".to_owned());
        let cancel = ("Esc", "cancel".to_owned());
        match (&self.request, self.state) {
            _ if !self.typing_pause.is_over => vec![StyledRow::dim("  …")],
            (FormRequest::OpenAddress(_), _) => {
                let open = ("y", "I will open it".to_owned());
                keys(vec![open, decline, cancel])
            }
            (FormRequest::Fields(_), FormPromptState::Choosing) => {
                let fill = ("y", format!("fill in for {server}"));
                keys(vec![fill, decline, cancel])
            }
            (FormRequest::Fields(_), FormPromptState::Reviewing) => {
                let send = ("y", format!("send to {server}"));
                let restart = ("e", "start over".to_owned());
                keys(vec![send, restart, decline, cancel])
            }
            (FormRequest::Fields(filling), FormPromptState::FillingField) => {
                let Some(field) = filling.next_field() else {
                    return Vec::new();
                };
                let position = format!("{} of {}: ", filling.next_number(), filling.fields().len());
                let body = vec![
                    Span::raw(position),
                    Span::styled(
                        sanitize_line(&form_state::describe_field(field)),
                        theme.bold(),
                    ),
                ];
                let mut rows =
                    vec![StyledRow::spans(body).with_prefix(Span::styled("? ", theme.question()))];
                rows.extend(
                    choices_line(field).map(|line| StyledRow::text(line).indented(6).truncated()),
                );
                let error = self.input_error.iter();
                rows.extend(
                    error.map(|text| {
                        StyledRow::styled(sanitize_line(text), theme.error()).indented(2)
                    }),
                );
                rows.push(StyledRow::dim(format!(
                    "  for {server}; Enter accepts, Esc goes back"
                )));
                rows
            }
        }
    }
}

/// Returns the choices of a field in one line, or `None` if it has none.
fn choices_line(field: &FormField) -> Option<String> {
    let choices = form_state::choice_lines(field);
    (!choices.is_empty()).then(|| sanitize_line(&choices.join("  ")))
}

/// Returns a row that reports the outcome of a form.
pub(crate) fn outcome_row(outcome: &ElicitationResponse, theme: Theme) -> StyledRow {
    let text = match outcome {
        ElicitationResponse::Accepted(Value::Null) => "accepted",
        ElicitationResponse::Accepted(_) => "sent",
        ElicitationResponse::Declined => "declined",
        ElicitationResponse::Cancelled => "cancelled",
    };
    StyledRow::styled(text, theme.bold()).with_prefix(Span::styled("» ", theme.question()))
}

#[cfg(test)]
mod tests {
    use super::super::pending_question::TYPING_PAUSE_DURATION;
    use super::*;
    use serde_json::json;

    fn prompt(request: Value) -> (FormPrompt, oneshot::Receiver<ElicitationResponse>) {
        let (reply, answer) = oneshot::channel();
        let form = ServerForm::parse(&request).unwrap();
        let now = Instant::now();
        let mut prompt = FormPrompt::new(
            FormQuestion {
                server: "shop".into(),
                form,
                reply,
            },
            now,
        )
        .unwrap();
        assert_eq!(
            prompt.handle_key(KeyCode::Char('y').into(), &mut Editor::default(), now),
            FormKeyResult::Ignored
        );
        prompt
            .typing_pause
            .end_if_elapsed(now + TYPING_PAUSE_DURATION);
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

    fn plain(rows: &[StyledRow]) -> Vec<String> {
        rows.iter().map(StyledRow::plain).collect()
    }

    #[test]
    fn text_from_the_server_is_sanitized_and_indented() {
        let (prompt, _answer) = prompt(two_fields());
        assert_eq!(
            plain(&prompt.intro_rows(Theme::Plain)),
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
        let mut press = |prompt: &mut FormPrompt, code: KeyCode| {
            prompt.handle_key(code.into(), &mut input, now)
        };
        let filled = |result: FormKeyResult| match result {
            FormKeyResult::Filled(row) => row.plain(),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            press(&mut prompt, KeyCode::Char('y')),
            FormKeyResult::Consumed
        );
        // A required field must not be empty.
        assert_eq!(press(&mut prompt, KeyCode::Enter), FormKeyResult::Consumed);
        assert!(
            plain(&prompt.live_rows(Theme::Plain)).contains(&"  a value is required".to_owned())
        );
        for letter in "Ada".chars() {
            press(&mut prompt, KeyCode::Char(letter));
        }
        assert_eq!(filled(press(&mut prompt, KeyCode::Enter)), "    name: Ada");
        press(&mut prompt, KeyCode::Char('9'));
        press(&mut prompt, KeyCode::Enter);
        assert!(
            plain(&prompt.live_rows(Theme::Plain)).contains(&"  not one of the choices".to_owned())
        );
        press(&mut prompt, KeyCode::Backspace);
        assert_eq!(filled(press(&mut prompt, KeyCode::Enter)), "    size: M");
        assert!(
            prompt.live_rows(Theme::Plain)[0]
                .plain()
                .contains("y send to shop")
        );
        let sent = ElicitationResponse::Accepted(json!({"name": "Ada", "size": "M"}));
        assert_eq!(
            press(&mut prompt, KeyCode::Char('y')),
            FormKeyResult::Decided(sent)
        );
    }

    #[test]
    fn an_address_is_shown_with_its_host_and_can_be_declined() {
        let request =
            json!({"mode": "url", "message": "Log in", "url": "https://example.com/login?x=1"});
        let (mut prompt, _answer) = prompt(request);
        let shown = plain(&prompt.intro_rows(Theme::Plain)).join("\n");
        assert!(
            shown.contains("open this address on example.com yourself")
                && shown.contains("      https://example.com/login?x=1"),
            "{shown}"
        );
        let pressed = prompt.handle_key(
            KeyCode::Char('n').into(),
            &mut Editor::default(),
            Instant::now(),
        );
        assert_eq!(
            pressed,
            FormKeyResult::Decided(ElicitationResponse::Declined)
        );
    }
}
