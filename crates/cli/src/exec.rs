//! `selvedge exec`: runs an agent on one task. It never asks for approval.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use selvedge_agent::{Agent, Session, TurnOptions, TurnOutcome};
use selvedge_models::Provider;
use selvedge_protocol::{
    ApprovalPolicy, ErrorCode, EventSink, LimitKind, LimitSurface, Limits, RuntimeEvent,
    ScriptMode, TurnEnd, TurnErrorKind, Usage,
};
use selvedge_tools::NoApprover;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::CliStatus;
use crate::agent_setup::{self, AgentBuildOptions, AssembledAgent, SessionChoice};
use crate::args::{ExecArgs, TurnLimitArgs};
use crate::distill_schedule::{EndedSession, process_after_command};
use crate::exec_display::{streaming_sink, turn_summary};
use crate::journal::JournalNeed;
use crate::output::{print_json_text, print_text};
use crate::problem::Problem;
use crate::progress::ProgressDisplay;
use crate::prompt_images::{PromptImage, UserPrompt};
use crate::prompt_input::read_prompt;
use crate::recall_summary::recall_summary;
use crate::run::{SignalTokens, run_with_signals, runtime, shut_down, terminal_approver};
use crate::session_runner::finish_running_sessions;
use crate::units;

/// The error of a turn that ended without an answer.
pub(crate) const NO_ANSWER: &str = "the model gave no answer";

/// How often a model may correct an answer that does not match the schema.
const MAX_SCHEMA_CORRECTIONS: u32 = 2;

/// How the answer of a turn is printed.
enum ExecAnswer {
    /// As text, after the turn.
    Text,
    /// It was printed while it streamed in.
    Printed,
    /// As the JSON value that was parsed from it, or the reason why it does not match the schema.
    Checked(Result<Value, String>),
}

enum ExecTask {
    New(UserPrompt),
    /// Without a prompt, finishes the interrupted turn of the session.
    Continue {
        id: Option<String>,
        prompt: Option<UserPrompt>,
    },
}

impl ExecTask {
    fn prompt(&self) -> Option<&UserPrompt> {
        match self {
            Self::New(prompt) => Some(prompt),
            Self::Continue { prompt, .. } => prompt.as_ref(),
        }
    }
}

pub(crate) fn exec(mut args: ExecArgs) -> Result<CliStatus> {
    if args.dry_run {
        args.limits.mode = Some(ScriptMode::DryRun);
    }
    let task = parse_task(&args)?;
    let schema = args.output_schema.as_deref();
    let schema = schema.map(AnswerSchema::read).transpose()?;
    if let Some(file) = &args.output_last_message {
        // Fails here rather than after the tokens are spent.
        let opened = std::fs::File::options()
            .append(true)
            .create(true)
            .open(file);
        opened.map_err(|error| cannot_write_file(file, &error))?;
    }
    let journal = match task {
        ExecTask::New(_) => JournalNeed::Optional,
        ExecTask::Continue { .. } => JournalNeed::Required,
    };
    let mut setup = agent_setup::setup_with_sub_agents(&args.workspace, journal)?;
    let runtime = runtime()?;
    let cancel = CancellationToken::new();
    let progress = ProgressDisplay::on_stderr(args.json || args.quiet);
    // At a terminal, messages are printed while they stream in. JSON is printed as a whole.
    let streams_answer = !args.json && schema.is_none() && std::io::stdout().is_terminal();
    // The provider, for the hint in `turn.failed`; set when the agent is assembled.
    let provider = Arc::new(OnceLock::new());
    let events = if args.json {
        json_event_sink(provider.clone())
    } else {
        let hints = ExecHints {
            policy: setup.config.approval_policy,
            limits: setup.limits(&args.limits),
            chat: match setup.journal {
                Some(_) => "selvedge continue",
                None => "selvedge",
            },
        };
        let events = terminal_event_sink(&progress, hints);
        match streams_answer {
            true => streaming_sink(&progress, events),
            false => events,
        }
    };
    let options = TurnOptions {
        cancel: cancel.clone(),
        events: events.clone(),
        ..TurnOptions::default()
    };
    // Approvals are never requested. The elicitation requests of a server are shown, because only a
    // person can answer them, and only if standard input is a terminal.
    let is_terminal = std::io::stdin().is_terminal();
    let person = is_terminal
        .then(|| terminal_approver(&runtime, &progress, &setup.limits(&args.limits)))
        .flatten();
    // A request to end the process cancels the turn, like an interrupt.
    let signals = SignalTokens {
        cancel: cancel.clone(),
        terminate: cancel,
    };
    let work = async {
        let agent_options = AgentBuildOptions {
            model: &args.model,
            script_limits: &args.limits,
            surface: LimitSurface::Exec,
            turn_limits: &args.turn,
            approver: Some(Arc::new(NoApprover {
                reason: "`selvedge exec` never asks for approval".to_owned(),
            })),
            elicitation_handler: person.map(|person| person as _),
            instructions: schema.as_ref().map(AnswerSchema::instructions),
            session: match &task {
                ExecTask::New(_) => SessionChoice::New,
                ExecTask::Continue { id, .. } => SessionChoice::Existing(id.clone()),
            },
        };
        let AssembledAgent {
            agent,
            mut session,
            servers,
        } = tokio::select! {
            biased;
            // Servers may be slow to start.
            () = options.cancel.cancelled() => {
                return Err(Problem::new("interrupted before the turn started").into());
            }
            assembled = agent_setup::assemble_agent(&mut setup, &args.workspace, agent_options) => assembled?,
        };
        if let Some(prompt) = task.prompt() {
            prompt.check_images(agent.model())?;
        }
        let provider = provider.get_or_init(|| agent.client().provider().clone());
        options.events.emit(RuntimeEvent::ThreadStarted {
            thread_id: session.id().to_owned(),
        });
        progress.start_turn();
        let outcome = match task {
            ExecTask::New(prompt)
            | ExecTask::Continue {
                prompt: Some(prompt),
                ..
            } => agent.run_turn(&mut session, prompt, &options).await,
            ExecTask::Continue { .. } if session.has_open_turn() => {
                agent.run_open_turn(&mut session, &options).await
            }
            ExecTask::Continue { .. } => {
                let hint = format!(
                    "pass a prompt: selvedge exec --continue {} \"PROMPT\"",
                    session.id()
                );
                return Err(
                    Problem::new("the session has no interrupted turn to finish")
                        .hint(hint)
                        .into(),
                );
            }
        };
        let outcome = match &schema {
            Some(schema) => {
                schema
                    .request_corrections(&agent, &mut session, &options, outcome)
                    .await
            }
            None => outcome,
        };
        servers.stop().await;
        finish_running_sessions(&options.cancel).await;
        let prices = agent.model().prices;
        anyhow::Ok((outcome, session.id().to_owned(), provider.clone(), prices))
    };
    let result = run_with_signals(&runtime, signals, work);
    shut_down(runtime, &setup, &progress);
    let (outcome, session, provider, prices) = result?;
    let value = schema.map(|schema| schema.parse_answer(&outcome));
    let matches_schema = !matches!(value, Some(Err(_)));
    let has_answer = has_answer(&outcome);
    if !args.json {
        let session = setup.journal.is_some().then_some(session.as_str());
        let answer = match (value, streams_answer) {
            (Some(value), _) => ExecAnswer::Checked(value),
            (None, true) => ExecAnswer::Printed,
            (None, false) => ExecAnswer::Text,
        };
        print_turn_result(&outcome, session, answer, &args.turn, &provider)?;
        if !args.quiet && std::io::stderr().is_terminal() {
            eprint_line!("{}", turn_summary(session, &outcome, prices));
        }
    } else if !has_answer {
        events.emit(RuntimeEvent::Error {
            message: NO_ANSWER.to_owned(),
        });
    } else if let Some(Err(why)) = &value
        && outcome.end == Ok(TurnEnd::Stop)
    {
        events.emit(RuntimeEvent::Error {
            message: schema_mismatch(why),
        });
    }
    let mut written = true;
    if let Some(file) = &args.output_last_message
        && let Err(error) = std::fs::write(file, outcome.message.as_deref().unwrap_or_default())
    {
        cannot_write_file(file, &error).print();
        written = false;
    }
    setup.flush_journal_and_apply_retention()?;
    let (id, provider) = (session.as_str(), provider.name.as_str());
    process_after_command(&setup, Some(EndedSession { id, provider }));
    Ok(match outcome.end {
        Ok(TurnEnd::Stop | TurnEnd::Length) if matches_schema && written && has_answer => {
            CliStatus::Success
        }
        _ => CliStatus::Failed,
    })
}

fn parse_task(args: &ExecArgs) -> Result<ExecTask> {
    let mut words = args.prompt.iter().peekable();
    let mut id = args.session.clone();
    // `exec resume ID PROMPT` is the older form.
    let is_old_form = id.is_none() && words.next_if(|word| *word == "resume").is_some();
    if is_old_form && !args.last {
        id = words.next().cloned();
        if id.is_none() {
            return Err(Problem::new("missing the id of the session")
                .hint("pass one: selvedge exec --continue ID \"PROMPT\"")
                .into());
        }
    }
    let prompt = words.next();
    if words.next().is_some() {
        let problem = Problem::new("the prompt must be a single argument");
        return Err(problem
            .hint("quote the prompt: selvedge exec \"PROMPT\"")
            .into());
    }
    let continues = id.is_some() || args.last;
    let needs_prompt = !continues || prompt.is_some() || !args.image.is_empty();
    let prompt = needs_prompt.then(|| {
        let mut read = HashSet::new();
        let files = args.image.iter().filter(|file| read.insert(*file));
        let images: Vec<_> = files
            .map(|file| PromptImage::read(file))
            .collect::<Result<_, _>>()?;
        let mut prompt = read_prompt(prompt.map(String::as_str))?;
        prompt.images.splice(0..0, images);
        anyhow::Ok(prompt)
    });
    Ok(match (prompt.transpose()?, continues) {
        (prompt, true) => ExecTask::Continue { id, prompt },
        (prompt, false) => ExecTask::New(prompt.unwrap_or_default()),
    })
}

/// Returns a sink that prints every event as a line of JSON on standard output. Adds the hint to
/// the event of a failed turn.
fn json_event_sink(provider: Arc<OnceLock<Provider>>) -> EventSink {
    EventSink::new(move |mut event| {
        if let RuntimeEvent::TurnFailed { error, hint, .. } = &mut event
            && let (TurnErrorKind::Model(kind), Some(provider)) = (error.kind, provider.get())
        {
            let problem = crate::models::request_problem(provider, kind, &error.message, None);
            *hint = problem.hints().first().cloned();
        }
        if let Ok(text) = serde_json::to_string(&event) {
            // A failed write has no other place to be reported.
            let _ = print_json_text(&text);
        }
    })
}

/// What the hints depend on that are printed during a turn.
struct ExecHints {
    policy: ApprovalPolicy,
    limits: Limits,
    /// The command that opens the session in a chat.
    chat: &'static str,
}

/// Returns a sink that prints errors and compactions, and passes other events to the display.
/// Prints a hint after the first call that was denied, and after a script that reached a limit.
fn terminal_event_sink(progress: &ProgressDisplay, hints: ExecHints) -> EventSink {
    let (progress, inner) = (progress.clone(), progress.sink());
    let was_denied = AtomicBool::new(false);
    EventSink::new(move |event| match event {
        RuntimeEvent::ScriptFinished {
            error: Some(error),
            limit,
            ..
        } => {
            progress.print(&format!("✗ script  {}: {}", error.code, error.message));
            // No flag raises a limit that the script set.
            let limit = limit.filter(|limit| !limit.set_by_script);
            let limit = limit.and_then(|limit| LimitKind::from_key(&limit.key));
            // The model reads another hint, because it cannot pass a flag.
            let flag = limit.and_then(|limit| LimitSurface::Run.raise_hint(limit, &hints.limits));
            if let Some(flag) = flag {
                progress.print(&format!("hint: {flag}"));
            }
        }
        RuntimeEvent::CallFinished { ref call, .. }
            if call.error.as_ref().map(|error| error.code)
                == Some(ErrorCode::ApprovalDeniedError) =>
        {
            inner.emit(event);
            if !was_denied.swap(true, Ordering::Relaxed) {
                progress.print(&format!("hint: {}", approval_hint(&hints)));
            }
        }
        RuntimeEvent::Error { message } => {
            eprint_line!("note: {message}")
        }
        RuntimeEvent::MemoryRecalled { .. } => {
            if let Some(summary) = recall_summary(&event) {
                progress.print(&format!("· {summary}"));
            }
        }
        RuntimeEvent::ThreadCompacted {
            tokens_before,
            tokens_after,
        } => {
            eprint_line!(
                "note: compacted the conversation \
                 from about {tokens_before} to {tokens_after} tokens"
            );
        }
        other => inner.emit(other),
    })
}

/// Says how to be asked for the approval that `exec` does not request.
fn approval_hint(hints: &ExecHints) -> String {
    let chat = hints.chat;
    match hints.policy {
        ApprovalPolicy::Never => {
            format!("run `{chat} --approval on-request` to approve calls in a chat")
        }
        ApprovalPolicy::Untrusted => format!(
            "run `{chat}` to approve calls in a chat, or pass --approval on-request to run \
             commands confined"
        ),
        _ => format!("run `{chat}` to approve calls in a chat"),
    }
}

/// Prints the final answer on standard output, and errors on standard error. `session` is the id of
/// the session, `None` if it is not in the journal.
fn print_turn_result(
    outcome: &TurnOutcome,
    session: Option<&str>,
    answer: ExecAnswer,
    turn: &TurnLimitArgs,
    provider: &Provider,
) -> Result<()> {
    let with_hint = |problem: Problem, hint: Option<String>| match hint {
        Some(hint) => problem.hint(hint),
        None => problem,
    };
    match answer {
        ExecAnswer::Checked(Ok(value)) => print_json_text(&serde_json::to_string(&value)?)?,
        ExecAnswer::Checked(Err(why)) if outcome.end == Ok(TurnEnd::Stop) => {
            let hint = session.map(|id| format!("run `selvedge sessions show {id}`"));
            with_hint(Problem::new(schema_mismatch(&why)), hint).print();
        }
        ExecAnswer::Printed => {}
        ExecAnswer::Text | ExecAnswer::Checked(Err(_)) => {
            if let Some(message) = outcome.message.as_ref().filter(|_| has_answer(outcome)) {
                print_text(message.trim_end())?;
            }
        }
    }
    let continue_hint = |flag: &str| {
        session.map(|id| format!("run `selvedge exec --continue {id}{flag} \"continue\"`"))
    };
    match &outcome.end {
        Ok(TurnEnd::Stop | TurnEnd::Length) if !has_answer(outcome) => {
            with_hint(Problem::new(NO_ANSWER), continue_hint("")).print();
        }
        Ok(TurnEnd::Stop) => {}
        Ok(TurnEnd::Length) => eprint_line!("warning: the answer was truncated at the token limit"),
        Ok(end) => {
            let (message, hint) = describe_early_end(*end, turn, continue_hint);
            with_hint(Problem::new(message), hint).print();
        }
        Err(error) => match error.kind {
            TurnErrorKind::Model(kind) => {
                let problem = crate::models::request_problem(provider, kind, &error.message, None);
                // If the model has answered before, its work is in the session.
                let has_work = outcome.message.is_some() || outcome.usage != Usage::default();
                match continue_hint("").filter(|_| has_work) {
                    Some(hint) => problem.then_hint(&hint).print(),
                    None => problem.print(),
                }
            }
            TurnErrorKind::DiskFull => {
                let problem = Problem::new(&error.message).hint("free disk space");
                match continue_hint("") {
                    Some(hint) => problem.then_hint(&hint).print(),
                    None => problem.print(),
                }
            }
            _ => with_hint(Problem::new(&error.message), continue_hint("")).print(),
        },
    }
    Ok(())
}

/// Describes a turn that ended before the final answer: the error and its hint. `continue_hint`
/// returns the hint to continue the session with a further flag.
fn describe_early_end(
    end: TurnEnd,
    turn: &TurnLimitArgs,
    continue_hint: impl Fn(&str) -> Option<String>,
) -> (String, Option<String>) {
    let limit = |name: &str, flag: Option<String>, key: &str| match flag {
        Some(flag) => {
            let message = format!("the turn reached its limit of {name}");
            (message, continue_hint(&format!(" {flag}")))
        }
        None => {
            let message = format!("the session reached its limit of {name}");
            (message, Some(format!("raise `{key}` in config.toml")))
        }
    };
    match end {
        TurnEnd::MaxRounds => {
            let rounds = turn.max_rounds.unwrap_or(agent_setup::DEFAULT_MAX_ROUNDS);
            let flag = format!("--max-rounds {}", rounds.saturating_mul(2));
            limit("requests to the model", Some(flag), "")
        }
        TurnEnd::MaxTokens => {
            let flag = turn.max_tokens;
            let flag = flag.map(|tokens| format!("--max-tokens {}", tokens.saturating_mul(2)));
            limit("tokens", flag, "agent.session_max_tokens")
        }
        TurnEnd::MaxCost => {
            let flag = turn
                .max_cost
                .map(|cost| format!("--max-cost {}", cost * 2.0));
            limit("cost", flag, "agent.session_max_cost")
        }
        TurnEnd::MaxTime => {
            let time = turn.max_time.unwrap_or_default();
            let flag = format!(" --max-time {}", units::format_duration(time * 2));
            let limit = units::format_duration(time);
            (
                format!("the turn reached its time limit of {limit}"),
                continue_hint(&flag),
            )
        }
        TurnEnd::Interrupted => ("the turn was interrupted".to_owned(), continue_hint("")),
        other => (
            format!("the turn ended early: {}", other.as_str()),
            continue_hint(""),
        ),
    }
}

/// Whether the last message of a turn has text. A turn that did not end by itself needs none.
fn has_answer(outcome: &TurnOutcome) -> bool {
    let text = outcome.message.as_deref().unwrap_or_default();
    !matches!(outcome.end, Ok(TurnEnd::Stop | TurnEnd::Length)) || !text.trim().is_empty()
}

fn schema_mismatch(why: &str) -> String {
    format!("the answer does not match the schema: {why}")
}

fn cannot_write_file(file: &Path, error: &std::io::Error) -> Problem {
    Problem::new(format!("cannot write {}: {error}", file.display()))
        .hint("pass -o a path that is writable")
}

struct AnswerSchema {
    text: String,
    validator: jsonschema::Validator,
}

impl AnswerSchema {
    fn read(file: &Path) -> Result<Self> {
        let invalid = |why: String| {
            Problem::new(format!("{}: {why}", file.display()))
                .hint("pass --output-schema a file with a JSON Schema")
        };
        let text = std::fs::read_to_string(file).map_err(|error| invalid(error.to_string()))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| invalid(format!("not JSON: {error}")))?;
        let not_a_schema =
            |error: &dyn std::fmt::Display| invalid(format!("not a JSON Schema: {error}"));
        selvedge_tools::check_schema_depth(&value).map_err(|error| not_a_schema(&error))?;
        let validator = jsonschema::validator_for(&value).map_err(|error| not_a_schema(&error))?;
        Ok(Self {
            text: value.to_string(),
            validator,
        })
    }

    fn instructions(&self) -> String {
        format!(
            "# The final answer\n\nWhen the work is done, answer with one JSON value and nothing \
             else. It must match this schema:\n\n{}",
            self.text
        )
    }

    /// Parses the final answer. The error says how it does not match the schema.
    fn parse_answer(&self, outcome: &TurnOutcome) -> Result<Value, String> {
        let text = outcome.message.as_deref().unwrap_or_default().trim();
        let bare = text
            .strip_prefix("```json")
            .or_else(|| text.strip_prefix("```"))
            .and_then(|rest| rest.strip_suffix("```"));
        let value: Value = serde_json::from_str(bare.unwrap_or(text))
            .map_err(|error| format!("not JSON: {error}"))?;
        let problems = self.validator.iter_errors(&value).take(4);
        let problems: Vec<String> = problems
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        match problems.is_empty() {
            true => Ok(value),
            false => Err(problems.join("; ")),
        }
    }

    /// Asks the model again, up to [`MAX_SCHEMA_CORRECTIONS`] times, until its answer matches the
    /// schema.
    async fn request_corrections(
        &self,
        agent: &Agent,
        session: &mut Session,
        options: &TurnOptions,
        mut outcome: TurnOutcome,
    ) -> TurnOutcome {
        for _ in 0..MAX_SCHEMA_CORRECTIONS {
            let Err(why) = self.parse_answer(&outcome) else {
                break;
            };
            if outcome.end != Ok(TurnEnd::Stop) {
                break;
            }
            let prompt = format!(
                "Your answer does not match the schema: {why}. \
                 Answer again with only the JSON value."
            );
            let (usage, cost) = (outcome.usage, outcome.cost);
            outcome = agent.run_turn(session, prompt, options).await;
            outcome.usage += usage;
            outcome.cost = cost
                .into_iter()
                .chain(outcome.cost)
                .reduce(|sum, one| sum + one);
        }
        outcome
    }
}
