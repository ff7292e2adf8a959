//! What a server wants of a person, asked at the terminal line by line.

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
    fn elicit<'a>(&'a self, wanted: &'a Elicitation) -> BoxFuture<'a, Result<Elicited, AskError>> {
        async move {
            let form = Form::read(&wanted.request)?;
            let mut typed = self.typed.lock().await;
            let _quiet = self.show.pause();
            // Whoever gives up the question leaves the cursor behind it.
            let mut unanswered = EndOfLine::behind_a_question();
            // What was typed before the question is no answer to it.
            typed.forget();
            say(&format!(
                "? the server {} asks:\n{}",
                one_line(&wanted.server),
                block(&form.message)
            ));
            let answer = match form.wants {
                Wants::Fields(fields) => fill(&wanted.server, fields, &mut typed).await,
                Wants::Visit(address) => visit(&address, &mut typed).await,
                _ => {
                    let why = "it wants something that cannot be shown here".to_owned();
                    return Err(AskError::Unavailable(why));
                }
            };
            if answer.is_ok() {
                unanswered.answered();
            }
            // The end was typed, or nobody is there any more.
            Ok(answer.unwrap_or(Elicited::Cancelled))
        }
        .boxed()
    }

    fn shows(&self) -> Shows {
        Shows::Addresses
    }
}

/// What a person says to what was asked.
enum Said {
    Yes,
    Again,
    No,
    Cancel,
}

async fn fill(server: &str, fields: Vec<Field>, typed: &mut Typed) -> Result<Elicited, NoLine> {
    let all = fields.len();
    let fields_of = match all {
        1 => "one field".to_owned(),
        all => format!("{all} fields"),
    };
    say(&format!(
        "  {fields_of} to fill in, for the server {}; Ctrl-D leaves it\n",
        one_line(server)
    ));
    match choice("y: fill it in | n: no | c: cancel", typed).await? {
        Said::No => return Ok(Elicited::Declined),
        Said::Cancel => return Ok(Elicited::Cancelled),
        Said::Yes | Said::Again => {}
    }
    let mut filling = Filling::new(fields);
    loop {
        while let Some(field) = filling.next() {
            let (at, field) = (filling.place(), described(field));
            say(&format!("  {at} of {all}: {field}\n"));
            loop {
                say("> ");
                let line = typed.line().await?;
                match filling.fill(&line) {
                    Ok(()) => break,
                    Err(why) => say(&format!("  {}\n", one_line(&why.to_string()))),
                }
            }
        }
        // All of it: nothing is sent that was not seen.
        let lines = filling.lines();
        let lines: String = lines.iter().map(|line| format!("      {line}\n")).collect();
        let server = one_line(server);
        say(&format!("  this is told to the server {server}:\n{lines}"));
        match choice(
            "y: send it | e: fill it in again | n: no | c: cancel",
            typed,
        )
        .await?
        {
            Said::Yes => return Ok(Elicited::Accepted(filling.content())),
            Said::Again => filling.again(),
            Said::No => return Ok(Elicited::Declined),
            Said::Cancel => return Ok(Elicited::Cancelled),
        }
    }
}

async fn visit(address: &Address, typed: &mut Typed) -> Result<Elicited, NoLine> {
    say(&format!(
        "  it wants you to open this address, which leads to {}; it is not opened for you:\n{}",
        one_line(&address.host),
        block(&address.url)
    ));
    Ok(
        match choice("y: I open it | n: no | c: cancel", typed).await? {
            Said::Yes | Said::Again => Elicited::Accepted(Value::Null),
            Said::No => Elicited::Declined,
            Said::Cancel => Elicited::Cancelled,
        },
    )
}

async fn choice(words: &str, typed: &mut Typed) -> Result<Said, NoLine> {
    loop {
        say(&format!("  [{words}]\n> "));
        match typed.line().await?.trim().to_lowercase().as_str() {
            "y" | "yes" => return Ok(Said::Yes),
            "e" if words.contains("e: ") => return Ok(Said::Again),
            "n" | "no" => return Ok(Said::No),
            "c" | "cancel" => return Ok(Said::Cancel),
            _ => {}
        }
    }
}

fn described(field: &Field) -> String {
    let mut text = one_line(&filling::about(field));
    for line in field.about.iter().cloned().chain(filling::choices(field)) {
        text.push_str(&format!("\n      {}", one_line(&line)));
    }
    text
}

/// Foreign words, indented: they cannot look like a question of ours.
fn block(text: &str) -> String {
    ends(text, VIEW_LINES)
        .iter()
        .map(|line| format!("      {}\n", line.text()))
        .collect()
}
