//! `selvedge run`: runs a script from a file, the command line or standard input. Also what other
//! commands share: signals, the async runtime, and the printed result of a run.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use selvedge_mcp::ServerRequestHandlers;
use selvedge_protocol::{
    ApprovalPolicy, CallRecord, CallStatus, ErrorCode, LimitKind, LimitSurface, Limits, OutputPart,
    ResumeAs, RunStatus, ScriptError, ScriptMode, ScriptToolCallOutput,
};
use selvedge_script::{Pragma, ResumeHintStyle, RunOptions, named_run_to_resume};
use selvedge_toolbox::Workspace;
use selvedge_tools::{DENIED_CALL_HINT, DeferringApprover, ScopeLimits};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::CliStatus;
use crate::args::RunArgs;
use crate::ask::TerminalApprover;
use crate::journal::JournalNeed;
use crate::output::{eprint_text, print_json_text, print_line, print_text};
use crate::problem::Problem;
use crate::progress::ProgressDisplay;
use crate::saved_config::SavedRunConfig;
use crate::servers::{wait_for_servers, warn_of_start_failures};
use crate::session_runner::finish_running_sessions;
use crate::setup::CliSetup;
use crate::stop_signals::{StopSignal, StopSignals};

pub(crate) fn run(mut args: RunArgs) -> Result<CliStatus> {
    if args.dry_run {
        args.limits.mode = Some(ScriptMode::DryRun);
    }
    let setup =
        CliSetup::new(&args.workspace)?.with_session(args.session.as_deref().unwrap_or_default());
    let need = match args.resume {
        Some(_) => JournalNeed::Required,
        None => JournalNeed::Optional,
    };
    let setup = setup.with_journal(&args.workspace, need)?;
    let (name, source) = read_source(args.file.as_deref(), args.code.as_deref(), ", or -e CODE")?;
    let text = std::str::from_utf8(&source).unwrap_or_default();
    let resume = named_run_to_resume(args.resume.clone(), text);
    let resume = resume.map(|run| setup.resume_input_by_prefix(&run));
    let resume = resume.transpose()?;
    let saved_config = SavedRunConfig::from_setup(&setup, &args.limits, args.args.clone());
    let runtime = runtime()?;
    let progress = ProgressDisplay::on_stderr(args.json || args.quiet);
    let person = (!args.suspend)
        .then(|| terminal_approver(&runtime, &progress, &setup.limits(&args.limits)))
        .flatten();
    let can_ask = person.is_some();
    let approver = match &person {
        Some(person) => Some(person.clone() as _),
        None => args.suspend.then(|| Arc::new(DeferringApprover) as _),
    };
    let harness = setup
        .harness(&args.limits, approver)
        .with_surface(LimitSurface::Run)
        .for_one_script();
    // Sampling needs the model of an agent.
    let servers = setup.servers(ServerRequestHandlers {
        elicitation: person.map(|person| person as _),
        sampling: None,
    })?;
    let tools = setup.built_in_tools()?;
    let options = RunOptions {
        seed: args.seed,
        resume_hint: ResumeHintStyle::CommandLine {
            file: args.file.as_deref().and_then(shell_word_of),
        },
        resume,
        events: progress.sink(),
        context: saved_config.script_context(&setup),
        store: setup.script_store(),
        saved_config: serde_json::to_string(&saved_config)?,
        ..RunOptions::default()
    };
    let on_terminate = if args.suspend {
        &options.suspend
    } else {
        &options.caller_gone
    };
    let signals = SignalTokens {
        cancel: options.cancel.clone(),
        terminate: on_terminate.clone(),
    };
    if args.diff {
        // Records the folder before the run, because some tools cannot name the files they change.
        setup.toolbox.turn_diff.begin_turn();
        setup.toolbox.turn_diff.before_command();
    }
    let (cancel, terminate) = (options.cancel.clone(), on_terminate.clone());
    let script = async {
        let starting = servers.ensure_catalogues_for_script(&harness, &source);
        let failures = wait_for_servers(&servers, starting).await;
        let output = harness
            .with_tools(servers.script_registry(&tools))
            .run_with(&source, options)
            .await;
        servers.stop().await;
        tokio::select! {
            () = finish_running_sessions(&cancel) => {}
            () = terminate.cancelled() => {}
        }
        (output, failures)
    };
    let (mut output, mut failures) = run_with_signals(&runtime, signals, script);
    shut_down(runtime, &setup, &progress);
    let hint = flag_hint(&output, &setup, &args, &source, can_ask);
    if let (Some(hint), Some(error)) = (hint, &mut output.error) {
        error.suggestions = vec![hint];
    } else if can_ask {
        drop_hint_of_denial(&mut output);
    }
    let storage = match setup.journal {
        Some(_) => RunStorage::Journaled,
        None => RunStorage::Ephemeral,
    };
    // The line of a failed call names the reason, too.
    let is_reported = |message: &str| {
        let mut errors = output.calls.iter().filter_map(|call| call.error.as_ref());
        errors.any(|error| error.message == message)
    };
    failures.retain(|failure| !is_reported(&failure.to_string()));
    let exit = print_run_result(&output, args.json, storage, &name, &source)?;
    warn_of_start_failures(&failures);
    if args.diff {
        let diff = setup.toolbox.turn_diff.diff();
        eprint_text(&diff.text);
        diff.notes
            .iter()
            .for_each(|note| eprint_line!("note: {note}"));
    }
    setup.flush_journal_and_apply_retention()?;
    Ok(exit)
}

/// Returns the approver at the terminal; `None` if there is no terminal. Its questions name the
/// time limit of approval requests.
pub(crate) fn terminal_approver(
    runtime: &Runtime,
    progress: &ProgressDisplay,
    limits: &Limits,
) -> Option<Arc<TerminalApprover>> {
    let _inside = runtime.enter();
    let limit = ScopeLimits::from(limits).approval_timeout;
    TerminalApprover::new(progress.clone(), limit).map(Arc::new)
}

/// Stops background tasks, and removes the progress lines from the terminal.
pub(crate) fn shut_down(runtime: Runtime, setup: &CliSetup, progress: &ProgressDisplay) {
    let tasks = setup.tasks.as_ref();
    match tasks.map_or(0, |tasks| runtime.block_on(tasks.end())) {
        0 => {}
        1 => eprint_line!("note: stopped 1 task that was still running in the background"),
        running => {
            eprint_line!("note: stopped {running} tasks that were still running in the background");
        }
    }
    // Does not wait for a tool that blocks in a system call.
    runtime.shutdown_background();
    progress.finish();
}

/// The tokens that signals of the operating system cancel.
pub(crate) struct SignalTokens {
    /// Cancelled by an interrupt (Ctrl-C).
    pub(crate) cancel: CancellationToken,
    /// Cancelled if the terminal is closed or the process is asked to terminate.
    pub(crate) terminate: CancellationToken,
}

/// Runs a future to its end. The first signal cancels a token, the second exits the process.
pub(crate) fn run_with_signals<T>(
    runtime: &Runtime,
    signals: SignalTokens,
    work: impl Future<Output = T>,
) -> T {
    runtime.block_on(async {
        let received = StopSignals::listen();
        tokio::spawn(async move {
            // Without a handler, a signal ends the process.
            let Ok(mut received) = received else { return };
            match received.next().await {
                StopSignal::Interrupt => signals.cancel.cancel(),
                StopSignal::Terminate => {
                    signals.terminate.cancel();
                    eprint_line!("note: stopping; a second signal exits at once");
                }
            }
            received.next().await;
            crate::terminal_input::restore_line_editing();
            std::process::exit(130);
        });
        work.await
    })
}

/// Whether a run is in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunStorage {
    Journaled,
    Ephemeral,
}

/// Prints the result of a run: its value on standard output, the rest on standard error. `name` and
/// `source` are those of the script.
pub(crate) fn print_run_result(
    output: &ScriptToolCallOutput,
    json: bool,
    storage: RunStorage,
    name: &str,
    source: &[u8],
) -> Result<CliStatus> {
    let printed = if json {
        print_item(output)
    } else {
        print_value(output)
    };
    if !json {
        print_notes(output, storage, name, source);
    }
    Ok(match printed {
        Ok(()) => command_status(output),
        // The script has run, so this is not `NotStarted`.
        Err(error) => {
            Problem::from_error(&error).print();
            CliStatus::Failed
        }
    })
}

/// Creates an async runtime with one thread: scripts mostly wait, and threads cost start-up time.
pub(crate) fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

/// Returns the `// @exec:` line of a script, if it has a valid one.
fn pragma_of(source: &[u8]) -> Option<Pragma> {
    Pragma::parse(std::str::from_utf8(source).ok()?).ok()?
}

/// Removes the hint for models from the error of a call that a person denied.
pub(crate) fn drop_hint_of_denial(output: &mut ScriptToolCallOutput) {
    if let Some(error) = &mut output.error {
        error.suggestions.retain(|hint| hint != DENIED_CALL_HINT);
    }
}

/// Returns the hint for an error that a flag of `selvedge run` avoids. `can_ask` says whether a
/// person could be asked for approval.
fn flag_hint(
    output: &ScriptToolCallOutput,
    setup: &CliSetup,
    args: &RunArgs,
    source: &[u8],
    can_ask: bool,
) -> Option<String> {
    let limits = setup.limits(&args.limits);
    let never_asks = setup.config.approval_policy == ApprovalPolicy::Never;
    let own_timeout = || pragma_of(source)?.timeout_ms;
    let id = &output.id;
    let recorded = setup.journal.as_ref().map(|journal| journal.run(id));
    let recorded = recorded.and_then(Result::ok);
    let resume_as = recorded.map_or(ResumeAs::Rerun, |run| run.resume_as());
    let must_decide = match resume_as {
        ResumeAs::Undecided => format!(
            "; the script must first decide the calls whose outcome is unknown, which `selvedge \
             runs show {id}` lists"
        ),
        ResumeAs::Rerun | ResumeAs::Reuse => String::new(),
    };
    let error = output.error.as_ref()?;
    let limit = error.metadata.get(LimitKind::METADATA_KEY);
    let limit = limit.and_then(|key| LimitKind::from_key(key.as_str()?));
    let (flag, then) = match error.code {
        ErrorCode::ScriptTimeoutError
            if limit == Some(LimitKind::Timeout) && own_timeout().is_some() =>
        {
            let resume = match resume_as {
                ResumeAs::Rerun => String::new(),
                ResumeAs::Reuse | ResumeAs::Undecided => format!(" and pass --resume {id}"),
            };
            return Some(format!(
                "raise \"timeout_ms\" in the `// @exec:` line of the script{resume}{must_decide}"
            ));
        }
        ErrorCode::SandboxViolationError
            if error
                .metadata
                .contains_key(Workspace::READ_ONLY_METADATA_KEY) =>
        {
            ("--sandbox workspace-write".to_owned(), "")
        }
        ErrorCode::ScriptTimeoutError
        | ErrorCode::ScriptMemoryError
        | ErrorCode::ToolBudgetExceededError => {
            let limit = limit?;
            let (_, doubled) = limit.doubled(&limits)?;
            (format!("{} {doubled}", limit.flag()?), "")
        }
        ErrorCode::ApprovalDeniedError if can_ask && never_asks => {
            ("--approval on-request".to_owned(), "")
        }
        ErrorCode::ApprovalDeniedError if !can_ask && setup.journal.is_some() => {
            let policy = if never_asks {
                "--approval on-request "
            } else {
                ""
            };
            (format!("{policy}--suspend"), " to approve it later")
        }
        _ => return None,
    };
    Some(match resume_as {
        ResumeAs::Rerun => format!("pass {flag}{then}"),
        ResumeAs::Reuse | ResumeAs::Undecided => {
            format!("pass {flag} --resume {id}{then}{must_decide}")
        }
    })
}

/// Returns the path of a script as a word of a shell command; `None` for standard input.
pub(crate) fn shell_word_of(file: &Path) -> Option<String> {
    let word = file.to_str().filter(|word| *word != "-")?;
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:@%".contains(c);
    Some(match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    })
}

/// Reads the script. Returns the name for error messages, and the source. `or_code` is the end of
/// the hints that names the flag for code, if the command has one.
pub(crate) fn read_source(
    file: Option<&Path>,
    code: Option<&str>,
    or_code: &str,
) -> Result<(String, Vec<u8>)> {
    if let Some(code) = code {
        return Ok(("<eval>".to_owned(), code.as_bytes().to_vec()));
    }
    let Some(file) = file else {
        return Err(Problem::new("missing a script")
            .hint(format!("pass a file{or_code}"))
            .into());
    };
    if file == Path::new("-") {
        let mut source = Vec::new();
        std::io::stdin().lock().read_to_end(&mut source)?;
        return Ok(("<stdin>".to_owned(), source));
    }
    let name = file.display().to_string();
    let source = std::fs::read(file).map_err(|error| {
        Problem::new(format!("cannot read {name}: {error}")).hint(format!("pass a file{or_code}"))
    })?;
    // Text in UTF-16 has zero bytes, too; its error says how to save it.
    let is_utf16 = source.starts_with(&[0xff, 0xfe]) || source.starts_with(&[0xfe, 0xff]);
    if source.contains(&0) && !is_utf16 {
        return Err(
            Problem::new(format!("{name} is a binary file, not a script"))
                .hint(format!("pass a TypeScript file{or_code}"))
                .into(),
        );
    }
    Ok((name, source))
}

fn command_status(output: &ScriptToolCallOutput) -> CliStatus {
    match output.status {
        RunStatus::Completed => CliStatus::Success,
        RunStatus::DryRun if output.error.is_none() => CliStatus::Success,
        RunStatus::DryRun | RunStatus::Rejected => CliStatus::NotStarted,
        RunStatus::Suspended => CliStatus::Suspended,
        _ => CliStatus::Failed,
    }
}

fn print_item(output: &ScriptToolCallOutput) -> Result<()> {
    Ok(print_json_text(&serde_json::to_string(output)?)?)
}

/// Prints the output and the return value of the script on standard output.
fn print_value(output: &ScriptToolCallOutput) -> Result<()> {
    for part in &output.output {
        match part {
            OutputPart::Text { text } => print_text(text)?,
            OutputPart::Image { data, mime_type } | OutputPart::Audio { data, mime_type } => {
                print_line(&format!("[{mime_type}, {} KB]", data.len() * 3 / 4 / 1024))?;
            }
        }
    }
    if output.error.is_none() || output.status == RunStatus::DryRun {
        match output.value() {
            Some(Value::String(text)) => print_text(&text)?,
            Some(value) => print_json_text(&serde_json::to_string_pretty(&value)?)?,
            None => {}
        }
    }
    Ok(())
}

/// Prints warnings, the error and notes on standard error.
fn print_notes(output: &ScriptToolCallOutput, storage: RunStorage, name: &str, source: &[u8]) {
    for warning in &output.warnings {
        eprint_line!("warning: {warning}");
    }
    if output.status == RunStatus::Suspended {
        let id = &output.id;
        eprint_line!("note: {id} is suspended until its calls are approved or denied");
        eprint_line!(
            "hint: run `selvedge runs show {id}`, then `selvedge runs answer {id} --approve`"
        );
    }
    if let Some(error) = &output.error {
        script_problem(error, name, source).print();
        let is_done = |call: &&CallRecord| call.status == CallStatus::Done;
        let done = output.calls.iter().filter(is_done).count();
        let all = output.calls.len();
        let more = match storage {
            RunStorage::Journaled => {
                format!("; run `selvedge runs show {}` for details", output.id)
            }
            RunStorage::Ephemeral => String::new(),
        };
        if done > 0 {
            let all = selvedge_text::count_noun(all, "call");
            eprint_line!("note: {done} of {all} completed{more}");
        }
    }
}

/// Describes the error of a script, with an excerpt of the source and its suggestions as hints.
pub(crate) fn script_problem(error: &ScriptError, name: &str, source: &[u8]) -> Problem {
    let mut problem = Problem::new(format!("{}: {}", error.code, error.message));
    if let (Some(line), Some(column)) = (error.line, error.column) {
        let text = String::from_utf8_lossy(source);
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        problem = problem.with_excerpt(name, text, line, column);
    }
    if error.code == ErrorCode::OutcomeUnknownError && !error.suggestions.is_empty() {
        return problem.hint(join_suggestions(&error.suggestions));
    }
    for suggestion in &error.suggestions {
        if !error.message.contains(suggestion.as_str()) {
            problem = problem.hint(suggestion);
        }
    }
    problem
}

/// Joins an instruction and the lines of code that it introduces. The comment of a line follows it
/// in parentheses.
fn join_suggestions(suggestions: &[String]) -> String {
    let Some((instruction, lines)) = suggestions.split_first() else {
        return String::new();
    };
    let lines = lines.iter().map(|line| match line.split_once(" // ") {
        Some((code, comment)) => format!("`{code}` ({comment})"),
        None => line.clone(),
    });
    format!("{instruction} {}", lines.collect::<Vec<_>>().join(", "))
        .trim_end()
        .to_owned()
}
