//! Runs the scripts and structured calls of an answer, in the order in which the model wrote them.

use futures_util::future::join_all;
use selvedge_journal::{JournalError, StoredRun};
use selvedge_protocol::{
    CallRecord, CallStatus, ConversationItem, ErrorCode, FunctionCall, FunctionCallOutput, Message,
    MessageRole, OutputPart, Phase, RunStart, RunStatus, RuntimeEvent, ScriptError, ScriptMode,
    ScriptToolCallOutput, TurnItem, new_id,
};
use selvedge_script::{
    Pragma, RestoreInput, ResumeInput, RunOptions, ScriptContext, record_call_metrics,
};
use selvedge_tools::{Scope, ScopeLimits, StructuredCall};
use tracing::Instrument;

use crate::BlockOrder;
use crate::answer::{AnswerPiece, AnswerScript, AnswerScriptForm, PieceWithItemId};
use crate::recovery::{self, RecordedScript};
use crate::resume::{ResumeError, resume_input, resume_input_of_run};
use crate::script_result::script_result_parts;
use crate::turn::AgentTurn;

/// The results of the scripts and calls of an answer.
#[derive(Debug, Default)]
pub(crate) struct AnswerResults {
    pub(crate) items: Vec<TurnItem>,
    /// Results of structured calls, as the model gets them.
    calls: Vec<ConversationItem>,
    /// Results of script blocks, as the model gets them.
    blocks: Vec<Vec<OutputPart>>,
    /// Whether a script was suspended until an approval is answered.
    pub(crate) suspended: bool,
}

impl AnswerResults {
    /// Returns the items that follow the answer in the next request: the results of structured
    /// calls, then one user message with the results of all blocks.
    pub(crate) fn to_request_items(&self) -> Vec<ConversationItem> {
        let mut request_items = self.calls.clone();
        let mut content = Vec::new();
        for (index, block) in self.blocks.iter().enumerate() {
            let heading = match self.blocks.len() {
                1 => "Result of the script:".to_owned(),
                _ => format!("Result of script {}:", index + 1),
            };
            let first = content.len();
            content.extend(block.iter().cloned());
            if let Some(OutputPart::Text { text }) = content.get_mut(first) {
                *text = format!("{heading}\n{text}");
            }
        }
        if !content.is_empty() {
            request_items.push(ConversationItem::Message(Message {
                role: MessageRole::User,
                content,
                native: None,
            }));
        }
        request_items
    }

    /// Adds the output of a script. The model gets at most `max_tokens` tokens of it.
    pub(crate) fn add_script(
        &mut self,
        form: AnswerScriptForm,
        output: ScriptToolCallOutput,
        max_tokens: usize,
    ) {
        let shown = script_result_parts(&output, max_tokens);
        match form {
            AnswerScriptForm::Call => {
                self.calls
                    .push(ConversationItem::FunctionCallOutput(FunctionCallOutput {
                        call_id: output.call_id.clone(),
                        output: shown,
                        failed: output.error.is_some(),
                    }));
            }
            AnswerScriptForm::Block | AnswerScriptForm::UnclosedBlock => self.blocks.push(shown),
        }
        self.suspended |= output.status == RunStatus::Suspended;
        self.items
            .push(TurnItem::ScriptToolCallOutput(Box::new(output)));
    }

    /// Adds the result of a structured call.
    pub(crate) fn add_call(&mut self, output: FunctionCallOutput) {
        self.calls
            .push(ConversationItem::FunctionCallOutput(output.clone()));
        self.items
            .push(ConversationItem::FunctionCallOutput(output).into());
    }
}

impl AgentTurn<'_> {
    /// Runs the scripts and calls among the pieces. Consecutive calls form one batch, and so do
    /// scripts between calls if the options say so. Emits each piece that was not emitted before,
    /// and each result after its script or call. Stops after a script that was suspended.
    pub(crate) async fn run_pieces(&mut self, pieces: Vec<PieceWithItemId>) -> AnswerResults {
        let mut results = AnswerResults::default();
        let mut batch = Vec::new();
        let mut scripts = Vec::new();
        let mut pieces = pieces.into_iter().peekable();
        while let Some(PieceWithItemId { piece, item_id: id }) = pieces.next() {
            match piece {
                AnswerPiece::Other(item) => self.emit_unless_emitted(id, item.into()),
                AnswerPiece::Text(text) => self.emit_unless_emitted(
                    id,
                    ConversationItem::message(MessageRole::Assistant, text).into(),
                ),
                AnswerPiece::Call(call) => {
                    self.emit_unless_emitted(
                        id,
                        ConversationItem::FunctionCall(call.clone()).into(),
                    );
                    batch.push(call);
                }
                AnswerPiece::Script(script) => {
                    self.run_structured_calls(std::mem::take(&mut batch), &mut results)
                        .await;
                    self.emit_unless_emitted(id, TurnItem::ScriptToolCall(script.item.clone()));
                    scripts.push(script);
                }
            }
            let next_is_call =
                matches!(pieces.peek(), Some(next) if matches!(next.piece, AnswerPiece::Call(_)));
            let parallel = self.agent.options.block_order == BlockOrder::Parallel;
            if !parallel || next_is_call || pieces.peek().is_none() {
                self.run_scripts(std::mem::take(&mut scripts), &mut results)
                    .await;
            }
            if results.suspended {
                return results;
            }
        }
        self.run_structured_calls(batch, &mut results).await;
        results
    }

    /// Runs scripts of an answer at the same time, and adds and emits their results in order.
    async fn run_scripts(&mut self, scripts: Vec<AnswerScript>, results: &mut AnswerResults) {
        let mut runs = Vec::new();
        for script in scripts {
            let recorded = self.recorded_results.scripts.remove(&script.item.id);
            let max_tokens = self.max_result_tokens(&script.item.source_code);
            runs.push((script, recorded, max_tokens));
        }
        let turn = &*self;
        let outputs = join_all(
            runs.into_iter()
                .map(async |(script, recorded, max_tokens)| {
                    let form = script.form;
                    (form, turn.run_script(script, recorded).await, max_tokens)
                }),
        );
        for (form, output, max_tokens) in outputs.await {
            results.add_script(form, output, max_tokens);
            self.emit_last_result(results);
        }
    }

    /// Returns how many tokens of a script's result the model gets. A script can lower the limit.
    fn max_result_tokens(&self, source: &str) -> usize {
        let requested = Pragma::parse(source)
            .ok()
            .flatten()
            .and_then(|pragma| pragma.max_output_tokens);
        let limit = self.agent.options.max_result_tokens;
        requested.map_or(limit, |requested| limit.min(requested as usize))
    }

    /// Emits an item, unless it was emitted while the answer was streamed (`emitted` is its id).
    fn emit_unless_emitted(&mut self, emitted: Option<String>, item: TurnItem) {
        if emitted.is_none() && is_visible(&item) {
            self.emit_item(item.without_native());
        }
    }

    fn emit_last_result(&mut self, results: &AnswerResults) {
        if let Some(item) = results.items.last() {
            self.emit_item(item.without_native());
        }
    }

    fn emit_item(&mut self, item: TurnItem) {
        let item_id = self.session.next_item_id();
        self.events.emit(RuntimeEvent::ItemStarted {
            item_id: item_id.clone(),
            item: item.clone(),
        });
        self.events
            .emit(RuntimeEvent::ItemCompleted { item_id, item });
    }

    /// Runs a script of an answer. If an earlier process already ran it, its recorded output is
    /// used, or the run is resumed.
    async fn run_script(
        &self,
        written: AnswerScript,
        recorded: Option<RecordedScript>,
    ) -> ScriptToolCallOutput {
        let item = written.item;
        let source = &item.source_code;
        if let Some(error) = written.error {
            return rejected_output(&item.id, &item.call_id, *error);
        }
        let mut options = self.run_options(&item.id, &item.call_id);
        options.timeout = written.timeout;
        match recorded {
            Some(RecordedScript::Ended(output)) => return *output,
            Some(RecordedScript::Died { resume }) => {
                // A turn that is being closed runs nothing, so the recorded calls are reported.
                if self.options.cancel.is_cancelled()
                    && let Some(run) = self.session.stored_run(&resume.run_id).await
                {
                    return recovery::interrupted_output(&run, &item);
                }
                options.id = Some(new_id("scr"));
                options.resume = Some(resume);
                return self.run_with_sub_agents(source, options).await;
            }
            Some(RecordedScript::Suspended(run)) => {
                options.id = Some(run.summary.id.clone());
                return self.restore_suspended(*run, &item.call_id, options).await;
            }
            None => {}
        }
        if self.is_last_round {
            let error = ScriptError::new(
                ErrorCode::ScriptRejectedError,
                Phase::Parsing,
                LAST_ROUND_ERROR,
            );
            return rejected_output(&item.id, &item.call_id, error);
        }
        if let Some(run) = written.resumes_run {
            match self.resume_input(run).await {
                Ok(resume) => options.resume = Some(resume),
                Err(error) => return rejected_output(&item.id, &item.call_id, error),
            }
        }
        self.run_with_sub_agents(source, options).await
    }

    /// Runs a script whose calls may launch sub-agents.
    async fn run_with_sub_agents(&self, source: &str, options: RunOptions) -> ScriptToolCallOutput {
        let id = options.id.clone().unwrap_or_default();
        self.agent.sub_agents.register_run(&id, self.turn_context());
        let output = self
            .agent
            .harness
            .run_with(source.as_bytes(), options)
            .await;
        self.agent.sub_agents.unregister_run(&id);
        output
    }

    /// Returns the options of a script run of this turn.
    pub(crate) fn run_options(&self, id: &str, call_id: &str) -> RunOptions {
        RunOptions {
            id: Some(id.to_owned()),
            call_id: Some(call_id.to_owned()),
            mode: Some(self.script_mode),
            cancel: self.turn_cancel.clone(),
            caller_gone: self.options.caller_gone.clone(),
            saved_config: self.options.saved_config.clone(),
            events: self.events.clone(),
            store: self.session.script_store.clone(),
            context: self.script_context(),
            ..RunOptions::default()
        }
    }

    fn script_context(&self) -> ScriptContext {
        let agent = self.agent;
        ScriptContext {
            conversation_id: self.session.id().to_owned(),
            session_id: self.session.id().to_owned(),
            turn_id: format!("T-{}", self.session.turn_number()),
            working_directory: agent.options.directory.clone(),
            args: Vec::new(),
            provider: agent.client.provider().name.clone(),
            model: agent.model.name.clone(),
        }
    }

    /// Finds the run that a script resumes, and reads its recorded calls.
    async fn resume_input(&self, run: String) -> Result<ResumeInput, ScriptError> {
        let refuse = |message: String| {
            ScriptError::new(ErrorCode::ScriptRejectedError, Phase::Parsing, message)
        };
        let Some(journal) = self.session.journal() else {
            let message = "`resume` needs the journal, which is turned off here";
            return Err(refuse(message.to_owned()));
        };
        let directory = self.agent.options.directory.clone();
        let found = journal
            .spawn_blocking(move |journal| resume_input(journal, &run, &directory))
            .await;
        found.map_err(|error: ResumeError| match error {
            ResumeError::NotScript(_) => refuse(error.to_string())
                .suggest("pass the run of a script: the result of each script names it"),
            error => refuse(error.to_string()),
        })
    }

    /// Restores a suspended script from its snapshot.
    async fn restore_suspended(
        &self,
        run: StoredRun,
        call_id: &str,
        mut options: RunOptions,
    ) -> ScriptToolCallOutput {
        let id = run.summary.id.clone();
        let failed = |message: String| {
            let code = ErrorCode::HarnessInternalError;
            rejected_output(
                &id,
                call_id,
                ScriptError::new(code, Phase::Executing, message),
            )
        };
        let Some(journal) = self.session.journal() else {
            return failed("the state of the suspended run is missing".to_owned());
        };
        let (run_id, resumed) = (id.clone(), run.summary.resumes.clone());
        let taken = journal.spawn_blocking(move |journal| {
            // If several processes try this, one succeeds.
            journal.claim_suspended_run(&run_id)?;
            let state = journal.read_suspension(&run_id)?;
            let resume =
                resumed.map(|resumed| resume_input_of_run(journal, journal.run(&resumed)?));
            Ok::<_, JournalError>((state, resume.transpose()?))
        });
        let state = match taken.await {
            Ok((Some(state), resume)) => {
                options.resume = resume;
                state
            }
            Ok((None, _)) => return failed("the state of the suspended run is missing".to_owned()),
            Err(error) => return failed(error.to_string()),
        };
        let values = run.calls.into_iter();
        let values = values.filter_map(|call| Some((call.id, call.value?)));
        let suspended = RestoreInput {
            state,
            values: values.collect(),
        };
        self.agent.sub_agents.register_run(&id, self.turn_context());
        let output = self
            .agent
            .harness
            .restore_suspended(&run.source, &suspended, options)
            .await;
        self.agent.sub_agents.unregister_run(&id);
        output.unwrap_or_else(|error| failed(format!("cannot restore the script: {error}")))
    }

    /// Runs structured calls, in parallel where the tools allow it.
    async fn run_structured_calls(
        &mut self,
        calls: Vec<FunctionCall>,
        results: &mut AnswerResults,
    ) {
        if calls.is_empty() {
            return;
        }
        let mut structured = Vec::new();
        let mut outputs: Vec<Option<FunctionCallOutput>> = Vec::new();
        for call in &calls {
            let call_id = self.unique_call_id(&call.call_id);
            self.ledger_call_ids.push(call_id.clone());
            let known = self.recorded_results.calls.remove(&call_id);
            let known = known.or_else(|| self.refused_output(call));
            if known.is_none() {
                structured.push(StructuredCall {
                    call_id,
                    name: crate::prompt::resolve_tool_name(
                        &call.name,
                        self.agent.router().offered(),
                    ),
                    arguments: call.arguments.clone(),
                });
            }
            outputs.push(known.map(|known| FunctionCallOutput {
                call_id: call.call_id.clone(),
                ..known
            }));
        }
        let mut new_outputs = Vec::new();
        if !structured.is_empty() {
            let scope = self.structured_scope().await;
            let span = tracing::info_span!("calls", run = scope.id, count = structured.len());
            let calls = self.agent.router().route(&scope, structured);
            new_outputs = calls.instrument(span).await;
        }
        let mut new_outputs = new_outputs.into_iter();
        for (call, known) in calls.iter().zip(outputs) {
            let output = known.or_else(|| {
                let output = new_outputs.next()?;
                output.records.iter().for_each(record_call_metrics);
                let failed = !output.is_success();
                self.call_records.extend(output.records);
                let mut result = text_output(&call.call_id, output.content, failed);
                // A model without images gets the text, which names them.
                if self.agent.model.images {
                    result.output.extend(output.images);
                }
                Some(result)
            });
            if let Some(output) = output {
                results.add_call(output);
                self.emit_last_result(results);
            }
        }
    }

    /// Returns the error output of a call that must not run: any call in a last answer, or a call
    /// of `script` when scripts are disabled or its arguments cannot be parsed.
    fn refused_output(&self, call: &FunctionCall) -> Option<FunctionCallOutput> {
        let text = match self.script_mode {
            _ if call.name != crate::prompt::SCRIPT_TOOL_NAME => self
                .is_last_round
                .then(|| format!("error: {LAST_ROUND_ERROR}"))?,
            ScriptMode::Disabled => {
                "error: scripts are disabled\nhint: use structured calls".to_owned()
            }
            _ => "error: cannot parse the arguments\nhint: pass {\"code\": \"…\"}".to_owned(),
        };
        Some(text_output(&call.call_id, text, true))
    }

    /// Returns an id for the ledger that no other call of the turn has. Some servers give every
    /// call the same id.
    pub(crate) fn unique_call_id(&self, id: &str) -> String {
        let numbered = (2..).map(|number| format!("{id}.{number}"));
        let mut ids = std::iter::once(id.to_owned()).chain(numbered);
        ids.find(|id| !self.ledger_call_ids.contains(id))
            .unwrap_or_else(|| id.to_owned())
    }

    /// Returns the scope of the structured calls of this turn. It ends with the turn.
    async fn structured_scope(&mut self) -> Scope {
        if let Some(scope) = &self.structured_scope {
            return scope.clone();
        }
        let agent = self.agent;
        let id = self.structured_run_id();
        let limits = ScopeLimits {
            max_calls: u32::MAX,
            max_file_calls: u32::MAX,
            ..agent.harness.scope_limits()
        };
        let scope = Scope::new(id, limits, &self.turn_cancel, self.events.clone());
        agent
            .sub_agents
            .register_run(&scope.id, self.turn_context());
        self.structured_scope = Some(scope.clone());
        if let Some(ledger) = agent.harness.orchestrator().ledger() {
            let source = format!("// structured calls of turn {}", self.session.turn_number());
            let begin = ledger.record_run_start(RunStart {
                id: &scope.id,
                source: &source,
                directory: &agent.options.directory,
                session: self.session.id(),
                seed: "0",
                resumes: self.recorded_results.run.as_deref(),
                saved_config: &self.options.saved_config,
            });
            if let Err(error) = scope.wait_for_write(begin).await {
                // A call that is not recorded must not run.
                scope.end();
                self.events.emit(RuntimeEvent::Error {
                    message: format!("cannot record the structured calls: {error}"),
                });
            }
        }
        scope
    }

    /// Returns the id of the run (`trn_…`) that the structured calls of this turn belong to.
    pub(crate) fn structured_run_id(&mut self) -> String {
        self.structured_run_id
            .get_or_insert_with(|| new_id("trn"))
            .clone()
    }

    /// Ends the scope of the turn's structured calls, and records their end.
    pub(crate) async fn end_structured_scope(&mut self) {
        let Some(scope) = self.structured_scope.take() else {
            return;
        };
        scope.end();
        self.agent.sub_agents.unregister_run(&scope.id);
        if let Some(ledger) = self.agent.harness.orchestrator().ledger() {
            let mut output = ScriptToolCallOutput::new(&scope.id, "");
            let stopped = [CallStatus::Aborted, CallStatus::OutcomeUnknown];
            let ended = |call: &CallRecord| !stopped.contains(&call.status);
            output.status = match self.call_records.iter().all(ended) {
                true => RunStatus::Completed,
                false => RunStatus::Error,
            };
            output.calls = std::mem::take(&mut self.call_records);
            if let Err(error) = scope
                .wait_for_write(ledger.record_run_end(&output, None))
                .await
            {
                self.events.emit(RuntimeEvent::Error {
                    message: format!("cannot record the end of the structured calls: {error}"),
                });
            }
        }
    }
}

/// The error of scripts and calls in the last answer of a turn.
const LAST_ROUND_ERROR: &str =
    "not run: this was the last answer of the turn, in which nothing can be called";

/// Returns whether an item has visible content. Provider-specific items and empty reasoning have
/// none.
fn is_visible(item: &TurnItem) -> bool {
    match item {
        TurnItem::Conversation(ConversationItem::Native(_)) => false,
        TurnItem::Conversation(ConversationItem::Reasoning(thought)) => {
            !(thought.summary.is_empty() && thought.content.is_empty())
        }
        _ => true,
    }
}

/// Returns the output of a script that did not run.
fn rejected_output(id: &str, call_id: &str, error: ScriptError) -> ScriptToolCallOutput {
    ScriptToolCallOutput {
        error: Some(error),
        ..ScriptToolCallOutput::new(id, call_id)
    }
}

/// Returns the output of a structured call as a single text.
pub(crate) fn text_output(call_id: &str, text: String, failed: bool) -> FunctionCallOutput {
    FunctionCallOutput {
        call_id: call_id.to_owned(),
        output: vec![OutputPart::Text { text }],
        failed,
    }
}
