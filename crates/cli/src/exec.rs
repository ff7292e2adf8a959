//! `selvedge exec`: one task for an agent, without questions.

use std::io::IsTerminal;
use std::path::Path;

use anyhow::Result;
use selvedge_agent::{Agent, Session, TurnOptions, TurnOutcome};
use selvedge_protocol::{Event, EventSink, Mode, ModelErrorKind, TurnEnd, TurnErrorKind};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::Exit;
use crate::args::ExecArgs;
use crate::assembly::{self, Assembled, Conversation, Wanted};
use crate::out::{harmless, line};
use crate::problem::Problem;
use crate::run::{Signals, drive, end, person, runtime};
use crate::show::Show;

/// How often a model may correct an answer that does not fit the schema.
const CORRECTIONS: u32 = 2;

enum Task {
    New(String),
    /// Without a prompt it finishes a turn that was interrupted.
    Continue {
        id: Option<String>,
        prompt: Option<String>,
    },
}

pub(crate) fn exec(mut args: ExecArgs) -> Result<Exit> {
    if args.dry_run {
        args.limits.mode = Some(Mode::DryRun);
    }
    let task = task(&args)?;
    let schema = args.output_schema.as_deref();
    let schema = schema.map(Schema::read).transpose()?;
    if let Some(file) = &args.output_last_message {
        // Before anything is spent.
        let opened = std::fs::File::options()
            .append(true)
            .create(true)
            .open(file);
        opened.map_err(|error| cannot_write(file, &error))?;
    }
    let mut setup = assembly::setup(&args.place)?;
    let runtime = runtime()?;
    let (cancel, leave) = (CancellationToken::new(), CancellationToken::new());
    let show = Show::on_stderr_unless(args.json || args.quiet);
    let events = if args.json {
        as_lines()
    } else {
        with_errors(show.sink())
    };
    let options = TurnOptions {
        cancel: cancel.clone(),
        leave: leave.clone(),
        events: events.clone(),
        ..TurnOptions::default()
    };
    // Nobody is asked whether calls may run. A server's form is shown, for only a person can fill it in; and only where
    // one sits before the terminal for sure.
    let is_terminal = std::io::stdin().is_terminal();
    let person = is_terminal.then(|| person(&runtime, &show)).flatten();
    // Whoever wants the process to end ends the turn.
    let signals = Signals {
        cancel: cancel.clone(),
        end: cancel,
    };
    let work = async {
        let wanted = Wanted {
            model: &args.model,
            limits: &args.limits,
            turn: &args.turn,
            approver: None,
            person: person.map(|person| person as _),
            instructions: schema.as_ref().map(Schema::instructions),
            conversation: match &task {
                Task::New(_) => Conversation::New,
                Task::Continue { id, .. } => Conversation::Old(id.clone()),
            },
        };
        let Assembled {
            agent,
            mut session,
            servers,
        } = tokio::select! {
            biased;
            // Servers may take their time to start.
            () = options.cancel.cancelled() => return Err(Problem::new("interrupted before it began").into()),
            assembled = assembly::agent(&mut setup, &args.place, wanted) => assembled?,
        };
        options.events.emit(Event::ThreadStarted {
            thread_id: session.id().to_owned(),
        });
        let outcome = match task {
            Task::New(prompt)
            | Task::Continue {
                prompt: Some(prompt),
                ..
            } => agent.turn(&mut session, prompt, &options).await,
            Task::Continue { .. } if session.is_open() => agent.go_on(&mut session, &options).await,
            Task::Continue { .. } => {
                return Err(Problem::new("no prompt was given")
                    .hint("selvedge exec --continue ID \"prompt\"")
                    .into());
            }
        };
        let outcome = match &schema {
            Some(schema) => {
                schema
                    .corrected(&agent, &mut session, &options, outcome)
                    .await
            }
            None => outcome,
        };
        servers.stop().await;
        anyhow::Ok((outcome, session.id().to_owned()))
    };
    let done = drive(&runtime, signals, work);
    end(runtime, &setup, &show);
    let (outcome, session) = done?;
    let value = schema.map(|schema| schema.value_of(&outcome));
    let fits = !matches!(value, Some(Err(_)));
    if !args.json {
        conclude(&outcome, &session, value, setup.journal.is_some())?;
    } else if let Some(Err(why)) = &value
        && outcome.end == Ok(TurnEnd::Stop)
    {
        events.emit(Event::Error {
            message: does_not_fit(why),
        });
    }
    let mut written = true;
    if let Some(file) = &args.output_last_message
        && let Err(error) = std::fs::write(file, outcome.message.as_deref().unwrap_or_default())
    {
        cannot_write(file, &error).print();
        written = false;
    }
    setup.close_journal()?;
    Ok(match outcome.end {
        Ok(TurnEnd::Stop | TurnEnd::Length) if fits && written => Exit::Done,
        _ => Exit::Failed,
    })
}

fn task(args: &ExecArgs) -> Result<Task> {
    let mut words = args.words.iter().peekable();
    let mut id = args.session.clone();
    // `exec resume ID PROMPT`, the older spelling.
    let is_old_form = id.is_none() && words.next_if(|word| *word == "resume").is_some();
    if is_old_form && !args.last {
        id = words.next().cloned();
        if id.is_none() {
            return Err(Problem::new("no session was named")
                .hint("selvedge exec --continue ID \"prompt\", or --last")
                .into());
        }
    }
    let prompt = words.next();
    if words.next().is_some() {
        let problem = Problem::new("the prompt is one argument");
        return Err(problem
            .hint("put it in quotes: selvedge exec \"do this\"")
            .into());
    }
    match id.is_some() || args.last {
        true => {
            let prompt = prompt.map(|word| given(word)).transpose()?;
            Ok(Task::Continue { id, prompt })
        }
        false => Ok(Task::New(given(prompt.map_or("-", String::as_str))?)),
    }
}

/// The prompt: the words themselves, or standard input.
fn given(word: &str) -> Result<String> {
    let prompt = match word {
        "-" if std::io::stdin().is_terminal() => String::new(),
        "-" => std::io::read_to_string(std::io::stdin().lock()).map_err(|error| {
            Problem::new(format!(
                "cannot read the prompt from standard input: {error}"
            ))
            .hint("it must be UTF-8")
        })?,
        word => word.to_owned(),
    };
    if prompt.trim().is_empty() {
        return Err(Problem::new("no prompt was given")
            .hint("selvedge exec \"do this\", or on standard input")
            .into());
    }
    Ok(prompt)
}

/// Every event as one line of JSON on standard output.
fn as_lines() -> EventSink {
    EventSink::new(|event| {
        if let Ok(text) = serde_json::to_string(&event) {
            // Nobody is left to tell if standard output is gone.
            let _ = line(&text);
        }
    })
}

/// What went wrong on the way, besides what is shown anyway.
fn with_errors(shown: EventSink) -> EventSink {
    EventSink::new(move |event| match event {
        Event::Error { message } => tell!("note: {}", harmless(&message)),
        Event::ThreadCompacted {
            tokens_before,
            tokens_after,
        } => {
            tell!(
                "note: the conversation was made shorter, from about {tokens_before} to {tokens_after} tokens"
            );
        }
        other => shown.emit(other),
    })
}

/// The model's last word on standard output, the rest on standard error.
fn conclude(
    outcome: &TurnOutcome,
    session: &str,
    value: Option<Result<Value, String>>,
    kept: bool,
) -> Result<()> {
    match value {
        Some(Ok(value)) => line(&serde_json::to_string(&value)?)?,
        Some(Err(why)) if outcome.end == Ok(TurnEnd::Stop) => {
            Problem::new(does_not_fit(&why))
                .hint(format!("selvedge sessions show {session}"))
                .print();
        }
        _ => {
            if let Some(message) = &outcome.message {
                line(message.trim_end())?;
            }
        }
    }
    let go_on = format!("selvedge exec --continue {session} \"continue\"");
    match &outcome.end {
        Ok(TurnEnd::Stop) => {}
        Ok(TurnEnd::Length) => tell!("warning: the answer was cut by the limit of tokens"),
        Ok(end) => {
            let problem = Problem::new(format!("the turn ended early: {}", end.as_str()));
            if kept { problem.hint(go_on) } else { problem }.print();
        }
        Err(error) => {
            let problem = Problem::new(format!("{}: {}", error.kind, error.message));
            let problem = match error.kind {
                TurnErrorKind::Model(ModelErrorKind::Auth) => {
                    problem.hint("`selvedge models test` tries the key")
                }
                TurnErrorKind::Model(ModelErrorKind::ContextTooLong) => {
                    problem.hint("begin anew, or name a model with a larger context")
                }
                _ if kept => problem.hint(go_on),
                _ => problem,
            };
            problem.print();
        }
    }
    Ok(())
}

fn does_not_fit(why: &str) -> String {
    format!("the answer does not fit the schema: {why}")
}

fn cannot_write(file: &Path, error: &std::io::Error) -> Problem {
    Problem::new(format!("cannot write {}: {error}", file.display()))
        .hint("-o takes a file that can be written")
}

struct Schema {
    text: String,
    validator: jsonschema::Validator,
}

impl Schema {
    fn read(file: &Path) -> Result<Self> {
        let bad = |why: String| {
            Problem::new(format!("{}: {why}", file.display()))
                .hint("--output-schema takes a JSON Schema")
        };
        let text = std::fs::read_to_string(file).map_err(|error| bad(error.to_string()))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| bad(format!("not JSON: {error}")))?;
        let validator = jsonschema::validator_for(&value)
            .map_err(|error| bad(format!("not a schema: {error}")))?;
        Ok(Self {
            text: value.to_string(),
            validator,
        })
    }

    fn instructions(&self) -> String {
        format!(
            "# The last answer\n\nWhen the work is done, your last answer must be one JSON value and nothing else, and fit this schema:\n\n{}",
            self.text
        )
    }

    /// The value of the last answer, or why it does not fit.
    fn value_of(&self, outcome: &TurnOutcome) -> Result<Value, String> {
        let text = outcome.message.as_deref().unwrap_or_default().trim();
        let bare = text
            .strip_prefix("```json")
            .or_else(|| text.strip_prefix("```"))
            .and_then(|rest| rest.strip_suffix("```"));
        let value: Value = serde_json::from_str(bare.unwrap_or(text))
            .map_err(|error| format!("it is not JSON: {error}"))?;
        let problems = self.validator.iter_errors(&value).take(4);
        let problems: Vec<String> = problems
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        match problems.is_empty() {
            true => Ok(value),
            false => Err(problems.join("; ")),
        }
    }

    /// An answer that does not fit is asked for again.
    async fn corrected(
        &self,
        agent: &Agent,
        session: &mut Session,
        options: &TurnOptions,
        mut outcome: TurnOutcome,
    ) -> TurnOutcome {
        for _ in 0..CORRECTIONS {
            let Err(why) = self.value_of(&outcome) else {
                break;
            };
            if outcome.end != Ok(TurnEnd::Stop) {
                break;
            }
            let prompt = format!(
                "Your answer does not fit the schema: {why}. Answer again with the JSON value alone."
            );
            let (usage, cost) = (outcome.usage, outcome.cost);
            outcome = agent.turn(session, prompt, options).await;
            outcome.usage += usage;
            outcome.cost = cost
                .into_iter()
                .chain(outcome.cost)
                .reduce(|sum, one| sum + one);
        }
        outcome
    }
}
