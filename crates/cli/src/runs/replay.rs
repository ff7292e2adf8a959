//! `selvedge runs replay` and `export`: replays a recorded run, or writes it to a file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use selvedge_journal::{Journal, Redactor, StoredRun};
use selvedge_protocol::ScriptToolCallOutput;
use selvedge_script::{RecordedRun, ReplayObserver, ReplayOptions, ReplayedCall};
use selvedge_server::HostedReplay;

use crate::CliStatus;
use crate::output::{eprint_text, print_json_text};
use crate::private_file;
use crate::problem::Problem;
use crate::run::{RunStorage, print_run_result, runtime};
use crate::runs::args::{RunsExportArgs, RunsReplayArgs};
use crate::runs::user_redactor;

pub(crate) fn replay(args: RunsReplayArgs) -> Result<CliStatus> {
    let cassette = match Path::new(&args.run) {
        file if file.is_file() => read_cassette(file)?,
        _ => cassette_of_run(super::open_user_journal_read_only()?.run(&args.run)?)?,
    };
    check_has_call(&cassette, args.fail.as_deref())?;
    let is_forced_to_fail = args.fail.is_some();
    let replay = ReplayOptions {
        fail_call: args.fail,
        observer: if args.step {
            Some(print_steps()?)
        } else {
            None
        },
    };
    let output = runtime()?
        .block_on(cassette.replay(replay))
        .map_err(|fault| Problem::new(fault.to_string()))?;
    let shown = user_redactor()?.redact_value(&serde_json::to_value(&output)?);
    // The replay is not in the journal, and the recording may be from another journal.
    let (shown, source) = (serde_json::from_value(shown)?, cassette.source.as_bytes());
    let status = print_run_result(&shown, args.json, RunStorage::Ephemeral, &output.id, source)?;
    let code = |output: &ScriptToolCallOutput| output.error.as_ref().map(|error| error.code);
    if !args.json && !is_forced_to_fail && code(&output) == code(&cassette.output) {
        eprint_line!("note: the replay matches the recording");
    }
    Ok(status)
}

pub(crate) fn export(journal: &Journal, args: &RunsExportArgs) -> Result<CliStatus> {
    let cassette = cassette_of_run(journal.run(&args.run)?)?;
    let text =
        serde_json::to_string(&user_redactor()?.redact_value(&serde_json::to_value(&cassette)?))?;
    match &args.file {
        None => print_json_text(&text)?,
        Some(file) => private_file::write_private(file, &(text + "\n")).map_err(|error| {
            Problem::new(format!("cannot write {}: {error}", file.display()))
                .hint("pass a path that is writable")
        })?,
    }
    Ok(CliStatus::Success)
}

/// Fails unless a recorded run has the call that is to fail.
fn check_has_call(cassette: &RecordedRun, fail: Option<&str>) -> Result<()> {
    let calls = cassette.output.calls.iter().map(|call| call.id.as_str());
    let calls: Vec<&str> = calls.collect();
    match fail {
        Some(call) if !calls.contains(&call) => {
            let hint = match calls.is_empty() {
                true => "remove --fail; the run made no calls".to_owned(),
                false => format!("use one of {}", calls.join(", ")),
            };
            let problem = Problem::new(format!("the run has no call `{call}`"));
            Err(problem.hint(hint).into())
        }
        _ => Ok(()),
    }
}

/// Replays a run for the agent server, on a thread that may block.
pub(crate) fn replay_for_server(
    run: StoredRun,
    fail: Option<String>,
    redactor: &Redactor,
) -> Result<HostedReplay> {
    let cassette = cassette_of_run(run)?;
    check_has_call(&cassette, fail.as_deref())?;
    let is_forced_to_fail = fail.is_some();
    let options = ReplayOptions {
        fail_call: fail,
        observer: None,
    };
    let output = runtime()?
        .block_on(cassette.replay(options))
        .map_err(|fault| Problem::new(fault.to_string()))?;
    let code = |output: &ScriptToolCallOutput| output.error.as_ref().map(|error| error.code);
    let matches = code(&output) == code(&cassette.output);
    Ok(HostedReplay {
        matches: (!is_forced_to_fail).then_some(matches),
        output: redactor.redact_value(&serde_json::to_value(&output)?),
    })
}

/// Returns the recording of a run in the form that can be replayed and exported.
fn cassette_of_run(run: StoredRun) -> Result<RecordedRun> {
    let id = run.summary.id.clone();
    let (Some(recording), Some(output)) = (&run.recording, run.output) else {
        return Err(Problem::new(format!(
            "{id} has no recording: it has not ended, or its inputs were too large"
        ))
        .hint(format!("run `selvedge runs show {id}` to see its calls"))
        .into());
    };
    let values: BTreeMap<_, _> = run
        .calls
        .into_iter()
        .filter_map(|call| Some((call.id, call.value?)))
        .collect();
    let cassette = RecordedRun::new(run.source, recording, values, output);
    Ok(cassette.map_err(|error| {
        Problem::new(format!("cannot read the recording of {id}: {error}"))
            .hint(format!("run `selvedge runs show {id}` to see its calls"))
    })?)
}

fn read_cassette(file: &Path) -> Result<RecordedRun> {
    let unreadable = |error: String| {
        Problem::new(format!("{} is not a recorded run: {error}", file.display()))
            .hint("run `selvedge runs export RUN FILE` to write one")
    };
    let text = std::fs::read(file).map_err(|error| unreadable(error.to_string()))?;
    Ok(serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))?)
}

/// Returns a callback that prints each replayed call with its result.
fn print_steps() -> Result<ReplayObserver> {
    let redactor = user_redactor()?;
    Ok(Box::new(move |step: &ReplayedCall<'_>| {
        let (mark, answer) = match step.answer {
            Ok(value) => ("→", value),
            Err(error) => ("✗", error),
        };
        let inner = step
            .args
            .strip_prefix('[')
            .and_then(|args| args.strip_suffix(']'));
        let (id, tool, args) = (step.call_id, step.tool, inner.unwrap_or(step.args));
        let text = format!("{id}  {tool}({args})\n    {mark} {answer}");
        eprint_text(&(redactor.redact_text(&text) + "\n"));
    }))
}
