//! Recovery: finishes an answer that an earlier process recorded but did not finish running.
//!
//! Scripts and structured calls whose end is recorded keep their recorded results; those that never
//! started run now. An interrupted script is resumed like any other run. An interrupted structured
//! call runs again if it only reads; otherwise its result says that the outcome is unknown.

use std::collections::HashMap;

use selvedge_journal::{
    Journal, JournalError, StoredCall, StoredCallState, StoredRun, StoredRunState,
};
use selvedge_protocol::{
    CallRecord, CallStatus, ConversationItem, ErrorCode, FunctionCallOutput, Phase, ResumeAs,
    RunStatus, ScriptError, ScriptToolCall, ScriptToolCallOutput, TurnError, TurnItem,
    command_exit_code, first_attempt_id,
};
use selvedge_script::detect::{Segment, detect};
use selvedge_script::{ResumeInput, named_run_to_resume};
use selvedge_tools::{ToolOutput, image_parts, truncate_result};
use serde_json::Value;

use crate::AgentError;
use crate::answer::{AnswerPiece, AnswerScript, AnswerScriptForm, PieceWithItemId};
use crate::execution::{AnswerResults, text_output};
use crate::resume::{resume_input_of_run, runs_after};
use crate::script_call::{copied_block_error, malformed_block_error, parse_script_call};
use crate::script_result::recall_hint;
use crate::session_record::{SessionStep, SessionStepKind};
use crate::turn::{AgentTurn, run_in_use_error};

/// What the journal recorded of the scripts and calls of an unfinished answer.
#[derive(Debug, Default)]
pub(crate) struct RecordedResults {
    /// Scripts, by the id of their item. The first run of a script has the same id.
    pub(crate) scripts: HashMap<String, RecordedScript>,
    /// Outputs of structured calls, by their id in the ledger.
    pub(crate) calls: HashMap<String, FunctionCallOutput>,
    /// The last run of the structured calls.
    pub(crate) run: Option<String>,
}

/// The recorded state of a script.
#[derive(Debug)]
pub(crate) enum RecordedScript {
    Ended(Box<ScriptToolCallOutput>),
    Died { resume: ResumeInput },
    Suspended(Box<StoredRun>),
}

/// Returns the run and all runs that resumed it, oldest first. Empty if the run never started.
fn chain_from(journal: &Journal, id: &str) -> Result<Vec<StoredRun>, JournalError> {
    let mut chain = match journal.run(id) {
        Ok(run) => vec![run],
        Err(JournalError::RunNotFound(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    for next in runs_after(journal, id)? {
        chain.push(journal.run(&next)?);
    }
    Ok(chain)
}

/// Returns the output of a script whose process died, with its recorded calls.
pub(crate) fn interrupted_output(run: &StoredRun, item: &ScriptToolCall) -> ScriptToolCallOutput {
    ScriptToolCallOutput {
        id: item.id.clone(),
        call_id: item.call_id.clone(),
        ..unfinished_output(run, "the script was interrupted when its process died")
    }
}

/// Returns the output of a suspended script that was cancelled with `selvedge runs cancel`, with
/// its recorded calls.
pub fn cancelled_output(run: &StoredRun) -> ScriptToolCallOutput {
    unfinished_output(run, "the script was cancelled with `selvedge runs cancel`")
}

fn unfinished_output(run: &StoredRun, message: &str) -> ScriptToolCallOutput {
    let mut output = ScriptToolCallOutput::new(&run.summary.id, "");
    output.status = RunStatus::Error;
    let error = ScriptError::new(ErrorCode::ScriptCancelledError, Phase::Executing, message);
    let suggestion = format!(
        "send it with `resume: \"{}\"`: completed changes are reused, reads run again",
        run.summary.id
    );
    output.error = Some(match run.resume_as() {
        ResumeAs::Rerun => error,
        ResumeAs::Reuse | ResumeAs::Undecided => error.suggest(suggestion),
    });
    output.calls = run.calls.iter().map(call_record).collect();
    output.metadata.tool_calls_made = run.calls.len() as u32;
    output
}

fn call_record(call: &StoredCall) -> CallRecord {
    CallRecord {
        id: call.id.clone(),
        tool: call.tool.clone(),
        status: match call.state {
            StoredCallState::Ended(status) => status,
            // The process of the call has ended.
            _ => CallStatus::OutcomeUnknown,
        },
        reused: call.reused,
        duration_ms: call.duration_ms.unwrap_or_default(),
        args_digest: call.digest.clone(),
        line: call.line,
        error: call.error.clone(),
        exit_code: call.value.as_ref().and_then(command_exit_code),
    }
}

impl AgentTurn<'_> {
    /// Returns the pieces of the last answer if its results are missing, and reads their recorded
    /// outcomes.
    pub(crate) async fn load_unfinished_answer(
        &mut self,
    ) -> Result<Option<Vec<PieceWithItemId>>, TurnError> {
        let Some(SessionStep {
            kind: SessionStepKind::Answer { run, .. },
            items,
            request_items,
            ..
        }) = self.session.steps().last().cloned()
        else {
            return Ok(None);
        };
        let Some(journal) = self.session.journal().cloned() else {
            return Ok(None);
        };
        let (structured_run, answer_items) = (run.clone(), items.clone());
        let read = journal.spawn_blocking(move |journal| {
            let calls = structured_run
                .map(|run| chain_from(journal, &run))
                .transpose()?;
            Ok((calls, load_recorded_scripts(journal, &answer_items)))
        });
        let (calls, scripts) = read.await.map_err(journal_error)?;
        let mut pieces = Vec::new();
        let mut known = RecordedResults {
            scripts: scripts?,
            ..RecordedResults::default()
        };
        if calls.as_ref().is_some_and(Vec::is_empty) {
            // The run never started. It starts now under the recorded id, by which a later recovery
            // finds it.
            self.structured_run_id = run.clone();
        }
        self.ledger_call_ids = self.earlier_call_ids(run.as_deref());
        for item in items {
            match item {
                TurnItem::Conversation(ConversationItem::FunctionCall(call)) => {
                    pieces.push(AnswerPiece::Call(call))
                }
                TurnItem::ScriptToolCall(item) => {
                    pieces.push(AnswerPiece::Script(rebuild_script(item, &request_items)));
                }
                _ => {}
            }
        }
        for run in calls.into_iter().flatten() {
            if run.summary.state == StoredRunState::Running {
                return Err(run_in_use_error(&run.summary.id));
            }
            known.run = Some(run.summary.id.clone());
            for call in run.calls {
                if let Some(output) = recorded_output(&run.summary.id, &call) {
                    // The result of a retry, which follows the first attempt, replaces its result.
                    let id = first_attempt_id(&call.id).to_owned();
                    known.calls.insert(id, output);
                }
            }
        }
        self.recorded_results = known;
        // The items were emitted before the crash. An empty id prevents that they are emitted
        // again.
        let id = Some(String::new());
        let emitted = |piece| PieceWithItemId {
            piece,
            item_id: id.clone(),
        };
        Ok((!pieces.is_empty()).then(|| pieces.into_iter().map(emitted).collect()))
    }

    /// Returns the ledger ids of the calls of this run in earlier answers of the turn.
    fn earlier_call_ids(&mut self, run: Option<&str>) -> Vec<String> {
        let turn = self.session.turn_number();
        let steps = self.session.steps();
        let before = &steps[..steps.len().saturating_sub(1)];
        let same = before.iter().filter(|step| {
            step.turn == turn
                && matches!(
                    &step.kind,
                    SessionStepKind::Answer { run: Some(own), .. } if Some(own.as_str()) == run
                )
        });
        let calls = same.flat_map(|step| &step.items);
        let calls = calls.filter_map(|item| match item {
            TurnItem::Conversation(ConversationItem::FunctionCall(call)) => {
                Some(call.call_id.clone())
            }
            _ => None,
        });
        self.ledger_call_ids.clear();
        for id in calls.collect::<Vec<_>>() {
            self.ledger_call_ids.push(self.unique_call_id(&id));
        }
        std::mem::take(&mut self.ledger_call_ids)
    }
}

/// Converts an error of reading the journal.
fn journal_error(error: JournalError) -> TurnError {
    AgentError::from(error).into()
}

/// Returns the recorded states of the scripts among these items, by item id.
fn load_recorded_scripts(
    journal: &Journal,
    items: &[TurnItem],
) -> Result<HashMap<String, RecordedScript>, TurnError> {
    let mut known = HashMap::new();
    for item in items {
        if let TurnItem::ScriptToolCall(item) = item
            && let Some(script) = load_recorded_script(journal, &item.id, &item.call_id)?
        {
            known.insert(item.id.clone(), script);
        }
    }
    Ok(known)
}

/// Returns the recorded state of a script; `None` if it never started.
fn load_recorded_script(
    journal: &Journal,
    id: &str,
    call_id: &str,
) -> Result<Option<RecordedScript>, TurnError> {
    let Some(last) = chain_from(journal, id).map_err(journal_error)?.pop() else {
        return Ok(None);
    };
    Ok(Some(match (last.summary.state, &last.output) {
        (StoredRunState::Running, _) => return Err(run_in_use_error(&last.summary.id)),
        (StoredRunState::Suspended, _) => RecordedScript::Suspended(Box::new(last)),
        (_, Some(output)) => {
            let output = ScriptToolCallOutput {
                call_id: call_id.to_owned(),
                ..output.clone()
            };
            RecordedScript::Ended(Box::new(output))
        }
        (_, None) => RecordedScript::Died {
            resume: resume_input_of_run(journal, last).map_err(journal_error)?,
        },
    }))
}

/// Rebuilds a script from its stored item. The error of a malformed block is derived again from the
/// text of the answer.
fn rebuild_script(item: ScriptToolCall, request_items: &[ConversationItem]) -> AnswerScript {
    let call = request_items.iter().find_map(|sent| match sent {
        ConversationItem::FunctionCall(call) if call.call_id == item.call_id => Some(call),
        _ => None,
    });
    let form = call.map_or(AnswerScriptForm::Block, |_| AnswerScriptForm::Call);
    let mut error = None;
    if item.status == RunStatus::Rejected {
        let texts = request_items.iter().filter_map(|sent| match sent {
            ConversationItem::Message(message) => Some(message.text()),
            _ => None,
        });
        let segments = texts.flat_map(|text| detect(&text));
        let problem = segments.into_iter().find_map(|segment| match segment {
            Segment::Malformed { raw, problem } if raw == item.source_code => Some(problem),
            _ => None,
        });
        error = Some(problem.map_or_else(copied_block_error, malformed_block_error));
    }
    let args = call.and_then(parse_script_call);
    let (timeout, resume) = args.map_or((None, None), |args| (args.timeout, args.resume));
    AnswerScript {
        resumes_run: named_run_to_resume(resume, &item.source_code),
        item,
        form,
        error: error.map(Box::new),
        timeout,
    }
}

/// Returns the recorded output of a structured call. `None` if the call has to run: it never
/// started, or it was interrupted and is read-only.
fn recorded_output(run: &str, call: &StoredCall) -> Option<FunctionCallOutput> {
    let StoredCallState::Ended(status) = call.state else {
        return None;
    };
    let (text, failed) = match status {
        CallStatus::Done => {
            let output = call.value.clone().map(ToolOutput::from);
            (output.map(|output| output.text_for_model()), false)
        }
        CallStatus::Failed => {
            let error = call.error.as_ref();
            (error.map(|error| format!("error: {}", error.message)), true)
        }
        CallStatus::OutcomeUnknown | CallStatus::Aborted | CallStatus::NotStarted => {
            let unknown = text_output(&call.id, outcome_unknown_text(&call.tool), true);
            return (call.resume_as == ResumeAs::Undecided).then_some(unknown);
        }
    };
    let shown = call.shown.clone().or(text).unwrap_or_default();
    let handle = format!("{run}/{}", call.id);
    let shown = truncate_result(shown, Some(&recall_hint(&handle)));
    let mut output = text_output(&call.id, shown, failed);
    output.output.extend(match &call.value {
        Some(Value::Array(blocks)) => image_parts(blocks),
        Some(block) => image_parts(std::slice::from_ref(block)),
        None => Vec::new(),
    });
    Some(output)
}

/// Returns the text for the model about a call of unknown outcome.
fn outcome_unknown_text(tool: &str) -> String {
    format!(
        "outcome unknown: {tool} was started, but Selvedge ended before it returned\n\
         hint: check whether it took effect before calling it again"
    )
}

/// Returns results that say of every script and call of an answer that its outcome is unknown. For
/// a forked or imported session.
pub(crate) fn unknown_results(step: &SessionStep) -> AnswerResults {
    let mut results = AnswerResults::default();
    for item in &step.items {
        match item {
            TurnItem::Conversation(ConversationItem::FunctionCall(call)) => {
                let text = outcome_unknown_text(&call.name);
                results.add_call(text_output(&call.call_id, text, true));
            }
            TurnItem::ScriptToolCall(script) => {
                let form = rebuild_script(script.clone(), &step.request_items).form;
                let message = "it is unknown whether this script ran, and how far";
                let error =
                    ScriptError::new(ErrorCode::OutcomeUnknownError, Phase::Executing, message)
                        .suggest("check whether it took effect before running it again");
                let output = ScriptToolCallOutput {
                    error: Some(error),
                    ..ScriptToolCallOutput::new(&script.id, &script.call_id)
                };
                results.add_script(form, output, MAX_NOTE_TOKENS);
            }
            _ => {}
        }
    }
    results
}

/// Token limit of the result of a script of unknown outcome; its fixed text is shorter.
const MAX_NOTE_TOKENS: usize = 1_000;

#[cfg(test)]
mod tests {
    use selvedge_protocol::{CallEnd, CallStart, Ledger, RunStart};

    use super::*;

    #[tokio::test]
    async fn all_calls_of_an_interrupted_script_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let start = RunStart {
            id: "scr_1",
            source: "",
            directory: "/",
            session: "",
            seed: "0",
            resumes: None,
            saved_config: "",
        };
        journal.record_run_start(start).await.unwrap();
        let args = serde_json::json!({});
        for id in ["tool_1", "tool_2", "tool_3"] {
            let start = CallStart {
                run: "scr_1",
                id,
                tool: "exec",
                args: &args,
                digest: id,
                read_only: false,
                line: None,
                prior_call: None,
                queued_ms: None,
            };
            journal.record_call_start(start).await.unwrap();
            let record = CallRecord {
                id: id.to_owned(),
                tool: "exec".to_owned(),
                status: CallStatus::Done,
                reused: false,
                duration_ms: 1.0,
                args_digest: id.to_owned(),
                line: None,
                error: None,
                exit_code: None,
            };
            if id != "tool_3" {
                let end = CallEnd {
                    run: "scr_1",
                    record: &record,
                    value: Some(&args),
                    shown: None,
                    resume_as: ResumeAs::Reuse,
                    start_details: None,
                };
                journal.record_call_end(end).await.unwrap();
            }
        }
        drop(journal);
        let run = Journal::open(dir.path()).unwrap().run("scr_1").unwrap();
        let item = ScriptToolCall {
            id: "scr_1".to_owned(),
            call_id: "call_1".to_owned(),
            language: "ts".to_owned(),
            source_code: String::new(),
            source_sha256: String::new(),
            status: RunStatus::Running,
        };
        let output = interrupted_output(&run, &item);
        let states: Vec<CallStatus> = output.calls.iter().map(|call| call.status).collect();
        assert_eq!(
            states,
            [
                CallStatus::Done,
                CallStatus::Done,
                CallStatus::OutcomeUnknown
            ]
        );
        assert!(output.error.unwrap().suggestions[0].contains("resume: \"scr_1\""));
    }

    #[tokio::test]
    async fn a_cancelled_script_is_reported_and_not_run_again() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let start = RunStart {
            id: "scr_1",
            source: "",
            directory: "/",
            session: "",
            seed: "0",
            resumes: None,
            saved_config: "",
        };
        journal.record_run_start(start).await.unwrap();
        let run = journal.run("scr_1").unwrap();
        journal
            .cancel_suspended_run(&cancelled_output(&run))
            .unwrap();
        let known = load_recorded_script(&journal, "scr_1", "call_1").unwrap();
        let Some(RecordedScript::Ended(output)) = known else {
            panic!("{known:?}");
        };
        assert_eq!(output.call_id, "call_1");
        let error = output.error.unwrap();
        assert_eq!(error.code, ErrorCode::ScriptCancelledError);
        assert!(error.message.contains("runs cancel"), "{}", error.message);
    }

    #[test]
    fn an_aborted_call_that_may_have_taken_effect_is_not_repeated() {
        let call = |resume_as| StoredCall {
            id: "c1".to_owned(),
            tool: "exec".to_owned(),
            args: Some(serde_json::json!({"command": ["true"]})),
            digest: String::new(),
            read_only: false,
            line: None,
            state: StoredCallState::Ended(CallStatus::Aborted),
            value: None,
            shown: None,
            error: None,
            reused: false,
            started_ms: 0,
            duration_ms: None,
            started_ns: None,
            prior_call: None,
            resume_as,
            queued_ms: None,
        };
        let output = |resume_as| recorded_output("trn_1", &call(resume_as));
        assert!(output(ResumeAs::Undecided).is_some_and(|output| output.failed));
        assert_eq!(output(ResumeAs::Rerun), None, "it only reads");
    }
}
