//! Shows the forms and addresses of MCP servers in plain lines at the terminal.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_mcp::{
    ElicitationHandler, ElicitationModes, ElicitationRequest, ElicitationResponse, FormContent,
    FormField, FormUrl, ServerForm, ServerRequestError,
};
use serde_json::Value;

use crate::ask::{MAX_VIEW_LINES, NewlineGuard, TerminalApprover, escape_newlines, print_stderr};
use crate::form_state::{self, FormState};
use crate::terminal_input::{TtyLineReader, TtyReadError};
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
            // If this future is dropped, the cursor is still after the prompt.
            let mut newline = NewlineGuard::new();
            // Input typed before the question does not answer it.
            input.discard_input();
            print_stderr(&format!(
                "? the server {} asks:\n{}",
                escape_newlines(&elicitation.server),
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

/// A choice typed at a form or an address.
enum FormReviewChoice {
    Accept,
    StartOver,
    Decline,
    Cancel,
}

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
    print_stderr(&format!(
        "  {count} to fill in for the server {}; Ctrl-D cancels\n",
        escape_newlines(server)
    ));
    match read_choice("y: fill in | n: decline | c: cancel", input).await? {
        FormReviewChoice::Decline => return Ok(ElicitationResponse::Declined),
        FormReviewChoice::Cancel => return Ok(ElicitationResponse::Cancelled),
        FormReviewChoice::Accept | FormReviewChoice::StartOver => {}
    }
    let mut filling = FormState::new(fields);
    loop {
        while let Some(field) = filling.next_field() {
            let (position, field) = (filling.next_number(), describe_field(field));
            print_stderr(&format!("  {position} of {total}: {field}\n"));
            loop {
                print_stderr("> ");
                let line = input.read_line().await?;
                match filling.fill(&line) {
                    Ok(()) => break,
                    Err(error) => {
                        print_stderr(&format!("  {}\n", escape_newlines(&error.to_string())))
                    }
                }
            }
        }
        // Show all values before they are sent.
        let lines = filling.lines();
        let lines: String = lines.iter().map(|line| format!("      {line}\n")).collect();
        let server = escape_newlines(server);
        print_stderr(&format!(
            "  this will be sent to the server {server}:\n{lines}"
        ));
        let choices = "y: send | e: start over | n: decline | c: cancel";
        match read_choice(choices, input).await? {
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
    print_stderr(&format!(
        "  open this address on {} yourself; Selvedge does not open it:\n{}",
        escape_newlines(&address.host),
        indent_text(&address.url)
    ));
    let choices = "y: I will open it | n: decline | c: cancel";
    Ok(match read_choice(choices, input).await? {
        FormReviewChoice::Accept | FormReviewChoice::StartOver => {
            ElicitationResponse::Accepted(Value::Null)
        }
        FormReviewChoice::Decline => ElicitationResponse::Declined,
        FormReviewChoice::Cancel => ElicitationResponse::Cancelled,
    })
}

/// Asks until one of the offered choices is typed.
async fn read_choice(
    choices: &str,
    input: &mut TtyLineReader,
) -> Result<FormReviewChoice, TtyReadError> {
    loop {
        print_stderr(&format!("  [{choices}]\n> "));
        match input.read_line().await?.trim().to_lowercase().as_str() {
            "y" | "yes" => return Ok(FormReviewChoice::Accept),
            "e" if choices.contains("| e: ") => return Ok(FormReviewChoice::StartOver),
            "n" | "no" => return Ok(FormReviewChoice::Decline),
            "c" | "cancel" => return Ok(FormReviewChoice::Cancel),
            _ => {}
        }
    }
}

/// Describes a field and lists its choices, one per line.
fn describe_field(field: &FormField) -> String {
    let mut text = escape_newlines(&form_state::describe_field(field));
    for line in field
        .description
        .iter()
        .cloned()
        .chain(form_state::choice_lines(field))
    {
        text.push_str(&format!("\n      {}", escape_newlines(&line)));
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
