//! `selvedge memory brief` and `explain`: what memory adds to the prompts of this folder.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use selvedge_config::Config;
use selvedge_memory::{
    Level, MAX_BRIEF_TOKENS, Memory, MemoryAccess, MemoryError, RecallDeadlines, RecallRequest,
    RecalledMemory, StageOutcome,
};
use serde_json::{Value, json};

use super::args::{MemoryBriefArgs, MemoryExplainArgs};
use super::usage::MeteredModel;
use crate::CliStatus;
use crate::memory_setup::small_model_for_command;
use crate::output::{print_json_text, print_line, print_text};

/// Characters of a candidate's text in the list.
const MAX_EXCERPT_CHARS: usize = 80;

pub(super) fn brief(memory: &Memory, args: &MemoryBriefArgs, config: &Config) -> Result<CliStatus> {
    let brief = match &args.session {
        Some(session) => match memory.brief(session)? {
            Some(brief) => brief,
            None if memory.turn_count(session)? == 0 => {
                return Err(MemoryError::SessionNotFound(session.clone()).into());
            }
            None => String::new(),
        },
        None => memory.compose_brief(&folder_access(memory, config, None)?, MAX_BRIEF_TOKENS)?,
    };
    let brief = memory.redact(&brief);
    if args.json {
        print_json_text(&json!({ "text": brief }).to_string())?;
        return Ok(CliStatus::Success);
    }
    match brief.is_empty() {
        true => eprint_line!("note: there is nothing to tell a new session of this project yet"),
        false => print_text(brief.trim_end())?,
    }
    Ok(CliStatus::Success)
}

pub(super) fn explain(
    memory: &Arc<Memory>,
    args: &MemoryExplainArgs,
    config: &Config,
) -> Result<CliStatus> {
    let access = folder_access(memory, config, args.session.as_deref())?;
    let runtime = crate::run::runtime()?;
    let message = args.message.join(" ");
    let (recalled, used) = runtime.block_on(async {
        let model = small_model_for_command(config).await;
        let model = model.map(|model| Arc::new(MeteredModel::new(model)));
        let counted = model.clone();
        let total = Duration::from_millis(config.memory.recall_timeout_ms);
        let request = RecallRequest {
            access,
            deadlines: RecallDeadlines::within(total),
            max_tokens: config.memory.recall_tokens,
            model: model.map(|model| model as _),
            ..RecallRequest::new("", &message)
        };
        let recalled = memory.recall(&request).await;
        (recalled, counted.map(|model| model.used()))
    });
    // A search that missed its deadline is not waited for.
    runtime.shutdown_background();
    if args.json {
        let mut report = recalled_json(memory, &recalled);
        if let Some(used) = used {
            report["requests"] = used.requests.into();
            report["input_tokens"] = used.tokens.input_tokens.into();
            report["output_tokens"] = used.tokens.output_tokens.into();
            report["cost"] = used.cost.into();
        }
        print_json_text(&report.to_string())?;
        return Ok(CliStatus::Success);
    }
    for stage in &recalled.stages {
        let (took, limit) = (stage.elapsed.as_millis(), stage.limit.as_millis());
        let outcome = match &stage.outcome {
            StageOutcome::Skipped(reason) => format!("skipped: {reason}"),
            outcome => format!(
                "{took:>5} of {limit} ms  {:>3} kept  {}",
                stage.kept,
                outcome_text(outcome)
            ),
        };
        print_line(&format!("{:<13} {outcome}", stage.name.as_str()))?;
    }
    for candidate in &recalled.candidates {
        let score = candidate.score.map(|score| format!("{score:.3}"));
        print_line(&format!(
            "  {:<7} {:>6}  {}  [{}] {}",
            candidate.kind,
            score.unwrap_or_default(),
            candidate.name,
            candidate.fate.as_str(),
            excerpt(memory, candidate.kind, &candidate.name)
        ))?;
    }
    let (took, tokens) = (recalled.elapsed.as_millis(), recalled.tokens);
    print_line(&format!("total         {took:>5} ms, {tokens} tokens"))?;
    if let Some(used) = used {
        print_line(&format!("used          {}", used.line()))?;
    }
    print_text(memory.redact(recalled.text.trim_end()).as_ref())?;
    Ok(CliStatus::Success)
}

/// Returns the access of a session, or of a new session of this folder.
fn folder_access(memory: &Memory, config: &Config, session: Option<&str>) -> Result<MemoryAccess> {
    let access = MemoryAccess {
        scope: config.memory.scope,
        ..MemoryAccess::new(session.unwrap_or_default())
    };
    if session.is_some() {
        return Ok(access);
    }
    let project = super::project_of_this_folder(memory)?;
    Ok(MemoryAccess { project, ..access })
}

/// Returns how a stage ended, for people.
fn outcome_text(outcome: &StageOutcome) -> String {
    match outcome {
        StageOutcome::Done => "done".to_owned(),
        StageOutcome::Late => "late, but the only result".to_owned(),
        StageOutcome::Partial(error) => format!("partial: {error}"),
        StageOutcome::Failed(error) => format!("failed: {error}"),
        StageOutcome::Skipped(reason) => format!("skipped: {reason}"),
    }
}

/// Returns the beginning of a candidate's text, in one line.
fn excerpt(memory: &Memory, kind: &str, name: &str) -> String {
    let text = match kind {
        "turn" => name.rsplit_once("/T-").and_then(|(session, number)| {
            let text = memory.turn_at_level(session, number.parse().ok()?, Level::Compressed);
            Some(String::from_utf8_lossy(&text.ok()?).into_owned())
        }),
        _ => {
            let lessons = memory.lessons(None).unwrap_or_default().into_iter();
            let mut lessons = lessons.filter(|lesson| lesson.lesson_id == name);
            lessons.next().map(|lesson| lesson.title)
        }
    };
    let text = text.unwrap_or_default();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.chars().take(MAX_EXCERPT_CHARS).collect()
}

fn recalled_json(memory: &Memory, recalled: &RecalledMemory) -> Value {
    let milliseconds = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    let stages = recalled.stages.iter().map(|stage| {
        json!({
            "stage": stage.name.as_str(), "limit_ms": milliseconds(stage.limit),
            "elapsed_ms": milliseconds(stage.elapsed), "kept": stage.kept,
            "outcome": outcome_text(&stage.outcome),
        })
    });
    let candidates = recalled.candidates.iter().map(|candidate| {
        json!({
            "kind": candidate.kind, "name": candidate.name, "score": candidate.score,
            "decision": candidate.fate.as_str(),
        })
    });
    json!({
        "stages": stages.collect::<Vec<_>>(), "candidates": candidates.collect::<Vec<_>>(),
        "missing": recalled.missing, "elapsed_ms": milliseconds(recalled.elapsed),
        "tokens": recalled.tokens, "text": memory.redact(&recalled.text),
    })
}
