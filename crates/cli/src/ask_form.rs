//! Shows the forms and addresses of MCP servers in plain lines at the terminal.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_mcp::{
    ElicitationHandler, ElicitationModes, ElicitationRequest, ElicitationResponse, FormContent,
    FormField, FormUrl, ServerForm, ServerRequestError,
};
use selvedge_text::visible_line;
use serde_json::Value;

use crate::ask::{MAX_VIEW_LINES, NewlineGuard, QuestionNotice, TerminalApprover, read_option};
use crate::form_state::{self, FormState};
use crate::output::eprint_text;
use crate::terminal_input::{PasteMarks, TtyLineReader, TtyReadError};
use crate::text_excerpt::excerpt;

impl ElicitationHandler for TerminalApprover {
    fn elicit<'a>(
        &'a self,
        elicitation: &'a ElicitationRequest,
    ) -> BoxFuture<'a, Result<ElicitationResponse, ServerRequestError>> {
        async move {
            let form = ServerForm::parse(&elicitation.request)?;
            let mut input = self.input.lock().await;
            let _paused = self.progress.pause();
            let _notice = QuestionNotice::new();
            // If this future is dropped, the cursor is still after the prompt.
            let mut newline = NewlineGuard::new();
            let _marks = PasteMarks::new();
            eprint_text(&format!(
                "? the server {} asks:\n{}",
                visible_line(&elicitation.server),
                indent_text(&form.message)
            ));
            let outcome = match form.content {
                FormContent::Fields(fields) => {
                    fill_form(&elicitation.server, fields, &mut input).await
                }
                FormContent::Url(address) => confirm_address(&address, &mut input).await,
                _ => {
                    let reason = "this request cannot be shown in a terminal".to_owned();
                    return Err(ServerRequestError::Unavailable(reason));
                }
            };
            if outcome.is_ok() {
                newline.disarm();
            }
            // Without a line, the person typed Ctrl-D or the terminal is closed.
            Ok(outcome.unwrap_or(ElicitationResponse::Cancelled))
        }
        .boxed()
    }

    fn supported_modes(&self) -> ElicitationModes {
        ElicitationModes::FormAndUrl
    }
}

/// A choice at a form or an address.
#[derive(Debug, Clone, Copy)]
enum FormReviewChoice {
    Accept,
    StartOver,
    Decline,
    Cancel,
}

const DECLINE: (&str, FormReviewChoice) = ("Decline", FormReviewChoice::Decline);
const CANCEL: (&str, FormReviewChoice) = ("Cancel", FormReviewChoice::Cancel);

async fn fill_form(
    server: &str,
    fields: Vec<FormField>,
    input: &mut TtyLineReader,
) -> Result<ElicitationResponse, TtyReadError> {
    let total = fields.len();
    let count = match total {
        1 => "one field".to_owned(),
        total => format!("{total} fields"),
    };
    eprint_text(&format!(
        "  {count} to fill in for the server {}; Ctrl-D cancels\n",
        visible_line(server)
    ));
    let fill_in = ("Fill in", FormReviewChoice::Accept);
    match read_choice(&[fill_in, DECLINE, CANCEL], input).await? {
        FormReviewChoice::Decline => return Ok(ElicitationResponse::Declined),
        FormReviewChoice::Cancel => return Ok(ElicitationResponse::Cancelled),
        FormReviewChoice::Accept | FormReviewChoice::StartOver => {}
    }
    let mut filling = FormState::new(fields);
    loop {
        while let Some(field) = filling.next_field() {
            let (position, field) = (filling.next_number(), describe_field(field));
            eprint_text(&format!("  {position} of {total}: {field}\n"));
            loop {
                eprint_text("> ");
                let line = input.read_line().await?;
                match filling.fill(line.text.trim_end_matches(['\r', '\n'])) {
                    Ok(()) => break,
                    Err(error) => eprint_text(&format!("  {}\n", visible_line(&error.to_string()))),
                }
            }
        }
        // Show all values before they are sent.
        let lines = filling.lines();
        let lines: String = lines.iter().map(|line| format!("      {line}\n")).collect();
        let server = visible_line(server);
        eprint_text(&format!(
            "  this will be sent to the server {server}:\n{lines}"
        ));
        let send = ("Send", FormReviewChoice::Accept);
        let start_over = ("Start over", FormReviewChoice::StartOver);
        match read_choice(&[send, start_over, DECLINE, CANCEL], input).await? {
            FormReviewChoice::Accept => {
                return Ok(ElicitationResponse::Accepted(filling.content()));
            }
            FormReviewChoice::StartOver => filling.clear(),
            FormReviewChoice::Decline => return Ok(ElicitationResponse::Declined),
            FormReviewChoice::Cancel => return Ok(ElicitationResponse::Cancelled),
        }
    }
}

async fn confirm_address(
    address: &FormUrl,
    input: &mut TtyLineReader,
) -> Result<ElicitationResponse, TtyReadError> {
    eprint_text(&format!(
        "  open this address on {} yourself; Selvedge does not open it:\n{}",
        visible_line(&address.host),
        indent_text(&address.url)
    ));
    let open = ("I will open it", FormReviewChoice::Accept);
    Ok(match read_choice(&[open, DECLINE, CANCEL], input).await? {
        FormReviewChoice::Accept | FormReviewChoice::StartOver => {
            ElicitationResponse::Accepted(Value::Null)
        }
        FormReviewChoice::Decline => ElicitationResponse::Declined,
        FormReviewChoice::Cancel => ElicitationResponse::Cancelled,
    })
}

/// Asks until one of the offered choices is made.
async fn read_choice(
    choices: &[(&str, FormReviewChoice)],
    input: &mut TtyLineReader,
) -> Result<FormReviewChoice, TtyReadError> {
    let labels: Vec<String> = choices
        .iter()
        .map(|(label, _)| (*label).to_owned())
        .collect();
    let index = read_option(&labels, input).await?;
    Ok(choices[index].1)
}

/// Describes a field and lists its choices, one per line.
fn describe_field(field: &FormField) -> String {
    let mut text = visible_line(&form_state::describe_field(field)).into_owned();
    for line in field
        .description
        .iter()
        .cloned()
        .chain(form_state::choice_lines(field))
    {
        text.push_str(&format!("\n      {}", visible_line(&line)));
    }
    text
}

/// Indents text from the server, so that it cannot imitate a question.
fn indent_text(text: &str) -> String {
    excerpt(text, MAX_VIEW_LINES)
        .iter()
        .map(|line| format!("      {}\n", line.text()))
        .collect()
}
