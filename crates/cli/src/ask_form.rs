//! Shows the forms and addresses of MCP servers in plain lines at the terminal.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_mcp::{
    Address, AskError, AskPerson, Elicitation, Elicited, Field, Form, Shows, Wants,
};
use serde_json::Value;

use crate::ask::{AtTheTerminal, EndOfLine, VIEW_LINES, one_line, say};
use crate::ends::ends;
use crate::filling::{self, Filling};
use crate::typed::{NoLine, Typed};

impl AskPerson for AtTheTerminal {
    fn elicit<'a>(
        &'a self,
        elicitation: &'a Elicitation,
    ) -> BoxFuture<'a, Result<Elicited, AskError>> {
        async move {
            let form = Form::read(&elicitation.request)?;
            let mut input = self.typed.lock().await;
            let _paused = self.show.pause();
            // If this future is dropped, the cursor is still after the prompt.
            let mut newline = EndOfLine::behind_a_question();
            // Input typed before the question does not answer it.
            input.forget();
            say(&format!(
                "? the server {} asks:\n{}",
                one_line(&elicitation.server),
                block(&form.message)
            ));
            let outcome = match form.wants {
                Wants::Fields(fields) => fill(&elicitation.server, fields, &mut input).await,
                Wants::Visit(address) => visit(&address, &mut input).await,
                _ => {
                    let reason = "this request cannot be shown in a terminal".to_owned();
                    return Err(AskError::Unavailable(reason));
                }
            };
            if outcome.is_ok() {
                newline.answered();
            }
            // Without a line, the person typed Ctrl-D or the terminal is closed.
            Ok(outcome.unwrap_or(Elicited::Cancelled))
        }
        .boxed()
    }

    fn shows(&self) -> Shows {
        Shows::Addresses
    }
}

/// A choice typed at a form or an address.
enum Said {
    Yes,
    Again,
    No,
    Cancel,
}

async fn fill(server: &str, fields: Vec<Field>, input: &mut Typed) -> Result<Elicited, NoLine> {
    let total = fields.len();
    let count = match total {
        1 => "one field".to_owned(),
        total => format!("{total} fields"),
    };
    say(&format!(
        "  {count} to fill in for the server {}; Ctrl-D cancels\n",
        one_line(server)
    ));
    match choice("y: fill in | n: decline | c: cancel", input).await? {
        Said::No => return Ok(Elicited::Declined),
        Said::Cancel => return Ok(Elicited::Cancelled),
        Said::Yes | Said::Again => {}
    }
    let mut filling = Filling::new(fields);
    loop {
        while let Some(field) = filling.next() {
            let (position, field) = (filling.place(), described(field));
            say(&format!("  {position} of {total}: {field}\n"));
            loop {
                say("> ");
                let line = input.line().await?;
                match filling.fill(&line) {
                    Ok(()) => break,
                    Err(error) => say(&format!("  {}\n", one_line(&error.to_string()))),
                }
            }
        }
        // Show all values before they are sent.
        let lines = filling.lines();
        let lines: String = lines.iter().map(|line| format!("      {line}\n")).collect();
        let server = one_line(server);
        say(&format!(
            "  this will be sent to the server {server}:\n{lines}"
        ));
        let choices = "y: send | e: start over | n: decline | c: cancel";
        match choice(choices, input).await? {
            Said::Yes => return Ok(Elicited::Accepted(filling.content())),
            Said::Again => filling.again(),
            Said::No => return Ok(Elicited::Declined),
            Said::Cancel => return Ok(Elicited::Cancelled),
        }
    }
}

async fn visit(address: &Address, input: &mut Typed) -> Result<Elicited, NoLine> {
    say(&format!(
        "  open this address on {} yourself; Selvedge does not open it:\n{}",
        one_line(&address.host),
        block(&address.url)
    ));
    let choices = "y: I will open it | n: decline | c: cancel";
    Ok(match choice(choices, input).await? {
        Said::Yes | Said::Again => Elicited::Accepted(Value::Null),
        Said::No => Elicited::Declined,
        Said::Cancel => Elicited::Cancelled,
    })
}

/// Asks until one of the offered choices is typed.
async fn choice(choices: &str, input: &mut Typed) -> Result<Said, NoLine> {
    loop {
        say(&format!("  [{choices}]\n> "));
        match input.line().await?.trim().to_lowercase().as_str() {
            "y" | "yes" => return Ok(Said::Yes),
            "e" if choices.contains("| e: ") => return Ok(Said::Again),
            "n" | "no" => return Ok(Said::No),
            "c" | "cancel" => return Ok(Said::Cancel),
            _ => {}
        }
    }
}

/// Describes a field and lists its choices, one per line.
fn described(field: &Field) -> String {
    let mut text = one_line(&filling::about(field));
    for line in field.about.iter().cloned().chain(filling::choices(field)) {
        text.push_str(&format!("\n      {}", one_line(&line)));
    }
    text
}

/// Indents text from the server, so that it cannot imitate a question.
fn block(text: &str) -> String {
    ends(text, VIEW_LINES)
        .iter()
        .map(|line| format!("      {}\n", line.text()))
        .collect()
}
