//! The form prompt of the chat: a form or an address that an MCP server sends in an elicitation.
//! A form is filled in field by field, reviewed, and sent or declined.
//!
//! As with approvals, keys are accepted after a pause without input, and an answer is chosen from a
//! list.

use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent};
use ratatui_core::text::{Line, Span};
use selvedge_mcp::{ElicitationResponse, FormContent, FormField, FormUrl, ServerForm};
use serde_json::Value;
use tokio::sync::oneshot;

use super::choice_list::{ChoiceKeyResult, ChoiceList};
use super::editor::Editor;
use super::pending_question::TypingPause;
use super::rows::{StyledRow, WrapMode, sanitize, sanitize_line, truncate, wrap_rows};
use super::theme::Theme;
use crate::form_state::{self, FormState};
use crate::text_excerpt::excerpt;

/// Lines of a server's message that are shown.
const MAX_MESSAGE_LINES: usize = 60;

/// A server's form and the channel for its outcome.
pub(crate) struct ChatFormRequest {
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

#[derive(Debug)]
enum FormPromptState {
    /// Asks whether to fill in the form or open the address, or whether to send the values.
    Choosing(ChoiceList<FormOption>),
    /// Takes the value of the next field.
    FillingField,
}

/// An option of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FormOption {
    /// The user will open the address.
    OpenAddress,
    FillIn,
    Send,
    StartOver,
    Decline,
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
    pub(crate) fn new(question: ChatFormRequest, now: Instant) -> Option<Self> {
        let request = match question.form.content {
            FormContent::Fields(fields) => FormRequest::Fields(FormState::new(fields)),
            FormContent::Url(address) => FormRequest::OpenAddress(address),
            _ => return None,
        };
        let state = FormPromptState::Choosing(first_options(&question.server, &request));
        Some(Self {
            server: question.server,
            message: question.form.message,
            request,
            reply: question.reply,
            typing_pause: TypingPause::new(now),
            state,
            input_error: None,
        })
    }

    /// Handles a paste that is not for a field: nothing is selected any more.
    pub(crate) fn handle_paste(&mut self) {
        if let FormPromptState::Choosing(options) = &mut self.state {
            options.clear_selection();
        }
    }

    /// Returns the digit that begins the text typed or pasted last, if it was taken for a choice.
    pub(crate) fn take_typed_digit(&mut self) -> Option<char> {
        match &mut self.state {
            FormPromptState::Choosing(options) => options.take_typed_digit(),
            FormPromptState::FillingField => None,
        }
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
        match (&self.request, &self.state) {
            (FormRequest::Fields(form), FormPromptState::FillingField) => {
                let name = sanitize_line(&form.next_field()?.name);
                Some(format!("{} › ", truncate(&name, 24)))
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
        let FormPromptState::Choosing(options) = &mut self.state else {
            return self.handle_field_key(key, input);
        };
        match options.handle_key(key) {
            ChoiceKeyResult::Consumed => FormKeyResult::Consumed,
            ChoiceKeyResult::NotForList => FormKeyResult::Ignored,
            ChoiceKeyResult::Escaped => FormKeyResult::Decided(ElicitationResponse::Cancelled),
            ChoiceKeyResult::Chosen(option) => self.choose(option, input),
        }
    }

    fn handle_field_key(&mut self, key: KeyEvent, input: &mut Editor) -> FormKeyResult {
        let FormRequest::Fields(form) = &mut self.request else {
            return FormKeyResult::Consumed;
        };
        match key.code {
            KeyCode::Enter => match form.fill(&input.text()) {
                Ok(()) => {
                    input.clear();
                    self.input_error = None;
                    if form.next_field().is_none() {
                        self.state = FormPromptState::Choosing(review_options(&self.server));
                    }
                    let line = sanitize_line(&form.last_line().unwrap_or_default());
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
                if form.previous_field().is_none() {
                    let options = first_options(&self.server, &self.request);
                    self.state = FormPromptState::Choosing(options);
                }
                FormKeyResult::Consumed
            }
            _ => {
                input.handle_key(key);
                FormKeyResult::Consumed
            }
        }
    }

    fn choose(&mut self, option: FormOption, input: &mut Editor) -> FormKeyResult {
        let decided = match (option, &mut self.request) {
            (FormOption::Decline, _) => ElicitationResponse::Declined,
            (_, FormRequest::OpenAddress(_)) => ElicitationResponse::Accepted(Value::Null),
            (FormOption::Send, FormRequest::Fields(form)) => {
                ElicitationResponse::Accepted(form.content())
            }
            (_, FormRequest::Fields(form)) => {
                form.clear();
                input.clear();
                // A form without fields is only confirmed.
                self.state = match form.next_field() {
                    Some(_) => FormPromptState::FillingField,
                    None => FormPromptState::Choosing(review_options(&self.server)),
                };
                return FormKeyResult::Consumed;
            }
        };
        FormKeyResult::Decided(decided)
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
            FormRequest::Fields(form) => {
                for field in form.fields() {
                    let heading = StyledRow::styled(
                        sanitize_line(&form_state::describe_field(field)),
                        theme.bold(),
                    );
                    rows.push(heading.with_prefix(Span::raw("  · ")));
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

    /// Returns the live part in at most `height` lines: the list of answers, or the current field
    /// and the keys.
    pub(crate) fn live_lines(
        &self,
        theme: Theme,
        width: usize,
        height: usize,
    ) -> Vec<Line<'static>> {
        match &self.state {
            _ if !self.typing_pause.is_over => StyledRow::dim("  …").wrapped(width),
            FormPromptState::Choosing(options) => options.lines(theme, width, height),
            FormPromptState::FillingField => wrap_rows(&self.field_rows(theme), width),
        }
    }

    /// Returns the rows of the field that is filled in.
    fn field_rows(&self, theme: Theme) -> Vec<StyledRow> {
        match &self.request {
            FormRequest::OpenAddress(_) => Vec::new(),
            FormRequest::Fields(form) => {
                let Some(field) = form.next_field() else {
                    return Vec::new();
                };
                let position = format!("{} of {}: ", form.next_number(), form.fields().len());
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
                    "  for {}; Enter accepts, Esc goes back",
                    sanitize_line(&self.server)
                )));
                rows
            }
        }
    }
}

/// Returns the options of a request that was not answered yet.
fn first_options(server: &str, request: &FormRequest) -> ChoiceList<FormOption> {
    let accept = match request {
        FormRequest::OpenAddress(_) => ("I will open it".to_owned(), FormOption::OpenAddress),
        FormRequest::Fields(_) => (format!("Fill in for {server}"), FormOption::FillIn),
    };
    let decline = ("Decline".to_owned(), FormOption::Decline);
    ChoiceList::new(vec![accept, decline], "cancels")
}

/// Returns the options of a form that is filled in.
fn review_options(server: &str) -> ChoiceList<FormOption> {
    let options = vec![
        (format!("Send to {server}"), FormOption::Send),
        ("Start over".to_owned(), FormOption::StartOver),
        ("Decline".to_owned(), FormOption::Decline),
    ];
    ChoiceList::after_text(options, "cancels")
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
            ChatFormRequest {
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

    fn shown(prompt: &FormPrompt) -> Vec<String> {
        let lines = prompt.live_lines(Theme::Plain, 80, 20);
        lines.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn text_from_the_server_is_sanitized_and_indented() {
        let (prompt, _answer) = prompt(two_fields());
        assert_eq!(
            plain(&prompt.intro_rows(Theme::Plain)),
            [
                "",
                "? the server shop asks:",
                "      Hello\\u{1b}[2J",
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
            shown(prompt);
            prompt.handle_key(code.into(), &mut input, now)
        };
        let filled = |result: FormKeyResult| match result {
            FormKeyResult::Filled(row) => row.plain(),
            other => panic!("{other:?}"),
        };
        press(&mut prompt, KeyCode::Char('1'));
        assert_eq!(press(&mut prompt, KeyCode::Enter), FormKeyResult::Consumed);
        // A required field must not be empty.
        assert_eq!(press(&mut prompt, KeyCode::Enter), FormKeyResult::Consumed);
        assert!(shown(&prompt).contains(&"  a value is required".to_owned()));
        for letter in "Ada".chars() {
            press(&mut prompt, KeyCode::Char(letter));
        }
        assert_eq!(filled(press(&mut prompt, KeyCode::Enter)), "    name: Ada");
        press(&mut prompt, KeyCode::Char('9'));
        press(&mut prompt, KeyCode::Enter);
        assert!(shown(&prompt).contains(&"  not one of the choices".to_owned()));
        press(&mut prompt, KeyCode::Backspace);
        assert_eq!(filled(press(&mut prompt, KeyCode::Enter)), "    size: M");
        assert_eq!(
            shown(&prompt),
            [
                "  1. Send to shop",
                "  2. Start over",
                "  3. Decline",
                "  ↑ ↓ chooses · Enter confirms · Esc cancels"
            ]
        );
        // A digit that follows the values may belong to them.
        press(&mut prompt, KeyCode::Char('1'));
        assert_eq!(press(&mut prompt, KeyCode::Enter), FormKeyResult::Consumed);
        let sent = ElicitationResponse::Accepted(json!({"name": "Ada", "size": "M"}));
        press(&mut prompt, KeyCode::Down);
        assert_eq!(
            press(&mut prompt, KeyCode::Enter),
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
        let mut press = |code: KeyCode| {
            super::tests::shown(&prompt);
            prompt.handle_key(code.into(), &mut Editor::default(), Instant::now())
        };
        press(KeyCode::Char('2'));
        assert_eq!(
            press(KeyCode::Enter),
            FormKeyResult::Decided(ElicitationResponse::Declined)
        );
    }
}
