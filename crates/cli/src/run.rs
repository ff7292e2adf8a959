//! `selvedge run`: a script from a file, the command line or standard input.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use selvedge_mcp::Asked;
use selvedge_protocol::{
    CallRecord, CallStatus, Mode, OutputPart, RunStatus, ScriptError, ScriptToolCallOutput,
};
use selvedge_script::{Author, Pragma, RunOptions};
use selvedge_tools::AskLater;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::Exit;
use crate::args::RunArgs;
use crate::ask::AtTheTerminal;
use crate::out::{harmless, line, talk};
use crate::problem::Problem;
use crate::setting::Setting;
use crate::setup::Setup;
use crate::show::Show;

pub(crate) fn run(mut args: RunArgs) -> Result<Exit> {
    if args.dry_run {
        args.limits.mode = Some(Mode::DryRun);
    }
    let setup = Setup::new(&args.place)?.with_session(args.session.as_deref().unwrap_or_default());
    let setup = setup.with_journal(&args.place)?;
    let (name, source) = read_source(args.file.as_deref(), args.code.as_deref())?;
    let resume = args.resume.clone().or_else(|| named_in(&source));
    let resume = resume.map(|run| setup.resume(&run)).transpose()?;
    let setting = Setting::new(&setup, &args.limits, args.args.clone());
    let runtime = runtime()?;
    let show = Show::on_stderr_unless(args.json || args.quiet);
    let person = (!args.suspend).then(|| person(&runtime, &show)).flatten();
    let approver = match &person {
        Some(person) => Some(person.clone() as _),
        None => args.suspend.then(|| Arc::new(AskLater) as _),
    };
    let harness = setup.harness(&args.limits, approver).for_one_script();
    // Without an agent there is no model that servers could ask.
    let servers = setup.servers(Asked {
        person: person.map(|person| person as _),
        model: None,
    })?;
    let tools = setup.all_tools()?;
    let options = RunOptions {
        seed: args.seed,
        author: Author::Person,
        resume,
        events: show.sink(),
        facts: setting.facts(&setup),
        session: setup.kept_in_session(),
        setting: serde_json::to_string(&setting)?,
        ..RunOptions::default()
    };
    let at_end = if args.suspend {
        &options.suspend
    } else {
        &options.leave
    };
    let signals = Signals {
        cancel: options.cancel.clone(),
        end: at_end.clone(),
    };
    if args.diff {
        // Whatever tool a script calls, even one that cannot tell what it will change.
        setup.toolbox.turn_diff.begin();
        setup.toolbox.turn_diff.before_command();
    }
    let script = async {
        servers.prepare_for(&harness, &source).await;
        let output = harness
            .with_tools(servers.onto(&tools))
            .run_with(&source, options)
            .await;
        servers.stop().await;
        output
    };
    let output = drive(&runtime, signals, script);
    end(runtime, &setup, &show);
    let kept = match setup.journal {
        Some(_) => Kept::InTheJournal,
        None => Kept::Nowhere,
    };
    let exit = conclude(&output, args.json, kept, &name, &source)?;
    if args.diff {
        let diff = setup.toolbox.turn_diff.diff();
        talk(&diff.text);
        diff.notes.iter().for_each(|note| tell!("note: {note}"));
    }
    setup.close_journal()?;
    Ok(exit)
}

/// The person at the terminal, where there is one.
pub(crate) fn person(runtime: &Runtime, show: &Show) -> Option<Arc<AtTheTerminal>> {
    let _inside = runtime.enter();
    AtTheTerminal::new(show.clone()).map(Arc::new)
}

/// Ends what still runs in the background, and takes down what is shown.
pub(crate) fn end(runtime: Runtime, setup: &Setup, show: &Show) {
    let tasks = setup.tasks.as_ref();
    match tasks.map_or(0, |tasks| runtime.block_on(tasks.end())) {
        0 => {}
        1 => tell!("note: a task was still running in the background, and was stopped"),
        running => {
            tell!("note: {running} tasks were still running in the background, and were stopped");
        }
    }
    // A tool that hangs in the system is not waited for.
    runtime.shutdown_background();
    show.finish();
}

pub(crate) struct Signals {
    /// A person interrupts.
    pub(crate) cancel: CancellationToken,
    /// The terminal is gone, or the system wants the process to end.
    pub(crate) end: CancellationToken,
}

/// Lets a script run; the first signal reaches it, the second ends everything.
pub(crate) fn drive<T>(runtime: &Runtime, signals: Signals, script: impl Future<Output = T>) -> T {
    runtime.block_on(async {
        tokio::spawn(async move {
            match told_to_stop().await {
                Told::Interrupt => signals.cancel.cancel(),
                Told::End => signals.end.cancel(),
            }
            told_to_stop().await;
            std::process::exit(130);
        });
        script.await
    })
}

pub(crate) enum Told {
    /// A person interrupts.
    Interrupt,
    /// The system or a supervisor wants the process to end.
    End,
}

/// Waits for an interrupt, or for the word to end.
#[cfg(unix)]
pub(crate) async fn told_to_stop() -> Told {
    use tokio::signal::unix::{SignalKind, signal};
    let heard = |kind: SignalKind| async move {
        match signal(kind) {
            Ok(mut signal) => _ = signal.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = heard(SignalKind::interrupt()) => Told::Interrupt,
        () = heard(SignalKind::terminate()) => Told::End,
        () = heard(SignalKind::hangup()) => Told::End,
    }
}

/// Waits for an interrupt.
#[cfg(not(unix))]
pub(crate) async fn told_to_stop() -> Told {
    let _ = tokio::signal::ctrl_c().await;
    Told::Interrupt
}

/// Where more of a run can be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    InTheJournal,
    Nowhere,
}

pub(crate) fn conclude(
    output: &ScriptToolCallOutput,
    json: bool,
    kept: Kept,
    name: &str,
    source: &[u8],
) -> Result<Exit> {
    let printed = if json {
        print_json(output)
    } else {
        print_value(output)
    };
    if !json {
        tell_the_rest(output, kept, name, source);
    }
    Ok(match printed {
        Ok(()) => exit_of(output),
        // It did start.
        Err(error) => {
            Problem::from_error(&error).print();
            Exit::Failed
        }
    })
}

/// One thread: scripts wait far more than they compute, and threads cost start-up time.
pub(crate) fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

/// The run that the first line of a script (`// @exec: {"resume": …}`) resumes.
fn named_in(source: &[u8]) -> Option<String> {
    let pragma = Pragma::read(std::str::from_utf8(source).ok()?).ok()??;
    pragma.resume
}

/// The script and the name errors call it by.
pub(crate) fn read_source(file: Option<&Path>, code: Option<&str>) -> Result<(String, Vec<u8>)> {
    if let Some(code) = code {
        return Ok(("<eval>".to_owned(), code.as_bytes().to_vec()));
    }
    let Some(file) = file else {
        return Err(Problem::new("no script was given")
            .hint("name a file, or write -e CODE")
            .into());
    };
    if file == Path::new("-") {
        let mut source = Vec::new();
        std::io::stdin().lock().read_to_end(&mut source)?;
        return Ok(("<stdin>".to_owned(), source));
    }
    let name = file.display().to_string();
    let source = std::fs::read(file).map_err(|error| {
        Problem::new(format!("cannot read {name}: {error}")).hint("name a file, or write -e CODE")
    })?;
    Ok((name, source))
}

fn exit_of(output: &ScriptToolCallOutput) -> Exit {
    match output.status {
        RunStatus::Completed => Exit::Done,
        RunStatus::DryRun if output.error.is_none() => Exit::Done,
        RunStatus::DryRun | RunStatus::Rejected => Exit::NotStarted,
        _ => Exit::Failed,
    }
}

fn print_json(output: &ScriptToolCallOutput) -> Result<()> {
    Ok(line(&serde_json::to_string(output)?)?)
}

/// What the script shows and returns, on standard output.
fn print_value(output: &ScriptToolCallOutput) -> Result<()> {
    for part in &output.output {
        match part {
            OutputPart::Text { text } => line(text)?,
            OutputPart::Image { data, mime_type } | OutputPart::Audio { data, mime_type } => {
                line(&format!("[{mime_type}, {} KB]", data.len() * 3 / 4 / 1024))?;
            }
        }
    }
    if output.error.is_none() || output.status == RunStatus::DryRun {
        match output.value() {
            Some(Value::String(text)) => line(&text)?,
            Some(value) => line(&serde_json::to_string_pretty(&value)?)?,
            None => {}
        }
    }
    Ok(())
}

/// Everything that is to be said about it, on standard error.
fn tell_the_rest(output: &ScriptToolCallOutput, kept: Kept, name: &str, source: &[u8]) {
    for warning in &output.warnings {
        tell!("warning: {}", harmless(warning));
    }
    if output.status == RunStatus::Suspended {
        let id = &output.id;
        tell!("note: {id} waits for an answer; `selvedge runs show {id}` shows the question");
        tell!("hint: `selvedge runs answer {id} --approve`, or `--deny`");
    }
    if let Some(error) = &output.error {
        script_problem(error, name, source).print();
        let is_done = |call: &&CallRecord| call.status == CallStatus::Done;
        let done = output.calls.iter().filter(is_done).count();
        let all = output.calls.len();
        let more = match kept {
            Kept::InTheJournal => format!("; `selvedge runs show {}` shows them", output.id),
            Kept::Nowhere => String::new(),
        };
        if done > 0 {
            tell!("note: {done} of {all} calls had finished{more}");
        }
    }
}

/// A script's error, pointing at its line.
pub(crate) fn script_problem(error: &ScriptError, name: &str, source: &[u8]) -> Problem {
    let mut problem = Problem::new(format!("{}: {}", error.code, error.message));
    if let (Some(line), Some(column)) = (error.line, error.column) {
        let text = String::from_utf8_lossy(source);
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        problem = problem.at(name, text, line, column);
    }
    for suggestion in &error.suggestions {
        if !error.message.contains(suggestion.as_str()) {
            problem = problem.hint(suggestion);
        }
    }
    problem
}
