//! Runs the scripts and structured calls of an answer, in the order in which the model wrote them.

use selvedge_journal::{JournalError, Run};
use selvedge_protocol::{
    CallRecord, CallStatus, ErrorCode, Event, FunctionCall, FunctionCallOutput, Item, Message,
    Mode, OutputPart, Phase, Role, RunStart, RunStatus, ScriptError, ScriptToolCallOutput,
    TurnItem, new_id,
};
use selvedge_script::{Facts, Pragma, Resume, RunOptions, Suspended};
use selvedge_tools::{Scope, ScopeLimits, StructuredCall};
use tracing::Instrument;

use crate::answer::{Form, Piece, Told, Written};
use crate::recovery::{self, KnownScript};
use crate::resume::{ResumeTarget, resume_from, resume_target};
use crate::shown::script_result;
use crate::turn::Turn;

/// The results of the scripts and calls of an answer.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) items: Vec<TurnItem>,
    /// Results of structured calls, as the model gets them.
    calls: Vec<Item>,
    /// Results of script blocks, as the model gets them.
    blocks: Vec<Vec<OutputPart>>,
    /// Whether a script was suspended until an approval is answered.
    pub(crate) suspended: bool,
}

impl Results {
    /// Returns the items that follow the answer in the next request: the results of structured
    /// calls, then one user message with the results of all blocks.
    pub(crate) fn wire(&self) -> Vec<Item> {
        let mut wire = self.calls.clone();
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
            wire.push(Item::Message(Message {
                role: Role::User,
                content,
                native: None,
            }));
        }
        wire
    }

    /// Adds the output of a script. The model gets at most `max_tokens` tokens of it.
    pub(crate) fn script(&mut self, form: Form, output: ScriptToolCallOutput, max_tokens: usize) {
        let shown = script_result(&output, max_tokens);
        match form {
            Form::Call => {
                self.calls
                    .push(Item::FunctionCallOutput(FunctionCallOutput {
                        call_id: output.call_id.clone(),
                        output: shown,
                        failed: output.error.is_some(),
                    }));
            }
            Form::Block | Form::OpenBlock => self.blocks.push(shown),
        }
        self.suspended |= output.status == RunStatus::Suspended;
        self.items
            .push(TurnItem::ScriptToolCallOutput(Box::new(output)));
    }

    /// Adds the result of a structured call.
    pub(crate) fn call(&mut self, output: FunctionCallOutput) {
        self.calls.push(Item::FunctionCallOutput(output.clone()));
        self.items.push(Item::FunctionCallOutput(output).into());
    }
}

impl Turn<'_> {
    /// Runs the scripts and calls among the pieces. Consecutive calls form one batch. Emits each
    /// piece that was not emitted before, and each result after its script or call. Stops after a
    /// script that was suspended.
    pub(crate) async fn act(&mut self, pieces: Vec<Told>) -> Results {
        let mut results = Results::default();
        let mut batch = Vec::new();
        for Told { piece, id } in pieces {
            match piece {
                Piece::Kept(item) => self.tell(id, item.into()),
                Piece::Said(text) => self.tell(id, Item::message(Role::Assistant, text).into()),
                Piece::Call(call) => {
                    self.tell(id, Item::FunctionCall(call.clone()).into());
                    batch.push(call);
                }
                Piece::Script(script) => {
                    self.make_calls(std::mem::take(&mut batch), &mut results)
                        .await;
                    self.tell(id, TurnItem::ScriptToolCall(script.item.clone()));
                    let form = script.form;
                    let max_tokens = self.most_tokens(&script.item.source_code);
                    let output = self.run_script(script).await;
                    results.script(form, output, max_tokens);
                    self.tell_result(&results);
                }
            }
            if results.suspended {
                return results;
            }
        }
        self.make_calls(batch, &mut results).await;
        results
    }

    /// Returns how many tokens of a script's result the model gets. A script can lower the limit.
    fn most_tokens(&self, source: &str) -> usize {
        let requested = Pragma::read(source)
            .ok()
            .flatten()
            .and_then(|pragma| pragma.max_output_tokens);
        let limit = self.agent.settings.max_output_tokens;
        requested.map_or(limit, |requested| limit.min(requested as usize))
    }

    /// Emits an item, unless it was emitted while the answer was streamed (`emitted` is its id).
    fn tell(&mut self, emitted: Option<String>, item: TurnItem) {
        if emitted.is_none() && shows(&item) {
            self.tell_item(item.shown());
        }
    }

    fn tell_result(&mut self, results: &Results) {
        if let Some(item) = results.items.last() {
            self.tell_item(item.shown());
        }
    }

    fn tell_item(&mut self, item: TurnItem) {
        let item_id = self.session.item_id();
        self.events.emit(Event::ItemStarted {
            item_id: item_id.clone(),
            item: item.clone(),
        });
        self.events.emit(Event::ItemCompleted { item_id, item });
    }

    /// Runs a script of an answer. If an earlier process already ran it, its recorded output is
    /// used, or the run is resumed.
    async fn run_script(&mut self, written: Written) -> ScriptToolCallOutput {
        let item = written.item;
        let source = &item.source_code;
        if let Some(error) = written.trouble {
            return rejected(&item.id, &item.call_id, error);
        }
        let mut options = self.run_options(&item.id, &item.call_id);
        options.timeout = written.timeout;
        match self.known.scripts.remove(&item.id) {
            Some(KnownScript::Ended(output)) => return *output,
            Some(KnownScript::Died { resume }) => {
                // A turn that is being closed runs nothing, so the recorded calls are reported.
                if self.options.cancel.is_cancelled()
                    && let Some(run) = self.session.stored_run(&resume.run).await
                {
                    return recovery::as_it_was_left(&run, &item);
                }
                options.id = Some(new_id("scr"));
                options.resume = Some(resume);
                return recovery::as_if_once(self.run_with(source, options).await);
            }
            Some(KnownScript::Suspended(run)) => {
                options.id = Some(run.summary.id.clone());
                return self.thaw(*run, &item.call_id, options).await;
            }
            None => {}
        }
        if self.last {
            let error =
                ScriptError::new(ErrorCode::ScriptRejectedError, Phase::Parsing, LAST_ANSWER);
            return rejected(&item.id, &item.call_id, error);
        }
        if let Some(run) = written.resume {
            match self.resume_target(run).await {
                Ok(resume) => options.resume = Some(resume),
                Err(error) => return rejected(&item.id, &item.call_id, error),
            }
        }
        self.run_with(source, options).await
    }

    /// Runs a script with a tracing span and metrics.
    pub(crate) async fn run_with(&self, source: &str, options: RunOptions) -> ScriptToolCallOutput {
        let span = tracing::info_span!(
            "script",
            run = options.id.as_deref(),
            mode = self.mode.as_str(),
            status = tracing::field::Empty,
            calls = tracing::field::Empty
        );
        let id = options.id.clone().unwrap_or_default();
        self.agent.agents.enter(&id, self.circumstances());
        let output = self
            .agent
            .harness
            .run_with(source.as_bytes(), options)
            .instrument(span.clone())
            .await;
        self.agent.agents.leave(&id);
        span.record("status", tracing::field::debug(output.status));
        span.record("calls", output.metadata.tool_calls_made);
        crate::counters::script(self.mode, &output);
        output
    }

    /// Returns the options of a script run of this turn.
    pub(crate) fn run_options(&self, id: &str, call_id: &str) -> RunOptions {
        RunOptions {
            id: Some(id.to_owned()),
            call_id: Some(call_id.to_owned()),
            mode: Some(self.mode),
            cancel: self.stop.clone(),
            leave: self.options.leave.clone(),
            setting: self.options.setting.clone(),
            events: self.events.clone(),
            session: self.session.shelf.clone(),
            facts: self.facts(),
            ..RunOptions::default()
        }
    }

    fn facts(&self) -> Facts {
        let agent = self.agent;
        Facts {
            conversation_id: self.session.id().to_owned(),
            session_id: self.session.id().to_owned(),
            turn_id: format!("T-{}", self.session.turn()),
            working_directory: agent.settings.directory.clone(),
            args: Vec::new(),
            provider: agent.client.provider().name.clone(),
            model: agent.model.name.clone(),
        }
    }

    /// Reads the recorded calls of the run that a script resumes.
    async fn resume_target(&self, run: String) -> Result<Resume, ScriptError> {
        let refuse = |message: String| {
            ScriptError::new(ErrorCode::ScriptRejectedError, Phase::Parsing, message)
        };
        let Some(journal) = self.session.journal() else {
            let message = "`resume` needs the journal, which is turned off here";
            return Err(refuse(message.to_owned()));
        };
        let directory = self.agent.settings.directory.clone();
        let target = journal
            .spawn_blocking(move |journal| resume_target(journal, &run, &directory))
            .await;
        match target {
            Ok(ResumeTarget::Ready(resume)) => Ok(resume),
            Ok(ResumeTarget::Running(run)) => Err(refuse(format!("{run} is still running"))),
            Ok(ResumeTarget::Suspended(run)) => Err(refuse(format!("{run} waits for an answer"))),
            Err(error) => Err(refuse(error.to_string())),
        }
    }

    /// Resumes a suspended script.
    async fn thaw(&self, run: Run, call_id: &str, mut options: RunOptions) -> ScriptToolCallOutput {
        let id = run.summary.id.clone();
        let failed = |message: String| {
            let code = ErrorCode::HarnessInternalError;
            rejected(
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
            journal.take_over(&run_id)?;
            let state = journal.take_suspension(&run_id)?;
            let resume = resumed.map(|resumed| resume_from(journal, &journal.run(&resumed)?));
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
        let suspended = Suspended {
            state,
            values: values.collect(),
        };
        self.agent.agents.enter(&id, self.circumstances());
        let output = self
            .agent
            .harness
            .resume(&run.source, &suspended, options)
            .await;
        self.agent.agents.leave(&id);
        output.unwrap_or_else(|error| failed(format!("cannot resume the script: {error}")))
    }

    /// Runs structured calls, in parallel where the tools allow it.
    async fn make_calls(&mut self, calls: Vec<FunctionCall>, results: &mut Results) {
        if calls.is_empty() {
            return;
        }
        let mut structured = Vec::new();
        let mut outputs: Vec<Option<FunctionCallOutput>> = Vec::new();
        for call in &calls {
            let call_id = self.unique(&call.call_id);
            self.used.push(call_id.clone());
            let known = self.known.calls.remove(&call_id);
            let known = known.or_else(|| self.refused(call));
            if known.is_none() {
                structured.push(StructuredCall {
                    call_id,
                    name: crate::prompt::tool_name(&call.name, self.agent.router.offered()),
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
            let scope = self.scope().await;
            let span = tracing::info_span!("calls", run = scope.id, count = structured.len());
            let calls = self.agent.router.route(&scope, structured);
            new_outputs = calls.instrument(span).await;
        }
        let mut new_outputs = new_outputs.into_iter();
        for (call, known) in calls.iter().zip(outputs) {
            let output = known.or_else(|| {
                let output = new_outputs.next()?;
                output.records.iter().for_each(crate::counters::call);
                let failed = !output.success();
                self.records.extend(output.records);
                Some(text_output(&call.call_id, output.content, failed))
            });
            if let Some(output) = output {
                results.call(output);
                self.tell_result(results);
            }
        }
    }

    /// Returns the error output of a call that must not run: any call in a last answer, or a call
    /// of `script` when scripts are disabled or its arguments cannot be parsed.
    fn refused(&self, call: &FunctionCall) -> Option<FunctionCallOutput> {
        let text = match self.mode {
            _ if call.name != crate::prompt::SCRIPT => {
                self.last.then(|| format!("error: {LAST_ANSWER}"))?
            }
            Mode::Disabled => "error: scripts are disabled\nhint: use structured calls".to_owned(),
            _ => "error: cannot parse the arguments\nhint: pass {\"code\": \"…\"}".to_owned(),
        };
        Some(text_output(&call.call_id, text, true))
    }

    /// Returns an id for the ledger that no other call of the turn has. Some servers give every
    /// call the same id.
    pub(crate) fn unique(&self, id: &str) -> String {
        let numbered = (2..).map(|number| format!("{id}.{number}"));
        let mut ids = std::iter::once(id.to_owned()).chain(numbered);
        ids.find(|id| !self.used.contains(id))
            .unwrap_or_else(|| id.to_owned())
    }

    /// Returns the scope of the structured calls of this turn. It ends with the turn.
    async fn scope(&mut self) -> Scope {
        if let Some(scope) = &self.scope {
            return scope.clone();
        }
        let agent = self.agent;
        let id = self.run_of_calls();
        let limits = ScopeLimits {
            max_calls: u32::MAX,
            ..ScopeLimits::from(agent.harness.limits())
        };
        let scope = Scope::new(id, limits, &self.stop, self.events.clone());
        agent.agents.enter(&scope.id, self.circumstances());
        self.scope = Some(scope.clone());
        if let Some(ledger) = agent.harness.orchestrator().ledger() {
            let source = format!("// structured calls of turn {}", self.session.turn());
            let begin = ledger.begin(RunStart {
                id: &scope.id,
                source: &source,
                directory: &agent.settings.directory,
                session: self.session.id(),
                seed: "0",
                resumes: self.known.run.as_deref(),
                setting: &self.options.setting,
            });
            if let Err(error) = scope.written(begin).await {
                // The calls fail as well: a call that is not recorded must not run.
                self.events.emit(Event::Error {
                    message: format!("cannot record the structured calls: {error}"),
                });
            }
        }
        scope
    }

    /// Returns the id of the run (`trn_…`) that the structured calls of this turn belong to.
    pub(crate) fn run_of_calls(&mut self) -> String {
        self.run.get_or_insert_with(|| new_id("trn")).clone()
    }

    /// Ends the scope of the turn's structured calls, and records their end.
    pub(crate) async fn end_scope(&mut self) {
        let Some(scope) = self.scope.take() else {
            return;
        };
        scope.end();
        self.agent.agents.leave(&scope.id);
        if let Some(ledger) = self.agent.harness.orchestrator().ledger() {
            let mut output = ScriptToolCallOutput::new(&scope.id, "");
            let stopped = [CallStatus::Aborted, CallStatus::OutcomeUnknown];
            let ended = |call: &CallRecord| !stopped.contains(&call.status);
            output.status = match self.records.iter().all(ended) {
                true => RunStatus::Completed,
                false => RunStatus::Error,
            };
            output.calls = std::mem::take(&mut self.records);
            if let Err(error) = scope.written(ledger.end(&output, None)).await {
                self.events.emit(Event::Error {
                    message: format!("cannot record the end of the structured calls: {error}"),
                });
            }
        }
    }
}

/// The error of scripts and calls in the last answer of a turn.
const LAST_ANSWER: &str =
    "not run: this was the last answer of the turn, in which nothing can be called";

/// Returns whether an item has visible content. Provider-specific items and empty reasoning have
/// none.
fn shows(item: &TurnItem) -> bool {
    match item {
        TurnItem::Item(Item::Native(_)) => false,
        TurnItem::Item(Item::Reasoning(thought)) => {
            !(thought.summary.is_empty() && thought.content.is_empty())
        }
        _ => true,
    }
}

/// Returns the output of a script that did not run.
fn rejected(id: &str, call_id: &str, error: ScriptError) -> ScriptToolCallOutput {
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
