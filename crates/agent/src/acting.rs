//! Doing what an answer asks for: scripts and calls, in the order they were written.

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

/// What came of an answer.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) items: Vec<TurnItem>,
    /// Results of calls, for the model.
    calls: Vec<Item>,
    /// Results of blocks, for the model.
    blocks: Vec<Vec<OutputPart>>,
    /// A script was put away until a person answers.
    pub(crate) suspended: bool,
}

impl Results {
    /// How it goes back: results directly behind the answer, those of blocks last, as one message of the user.
    pub(crate) fn wire(&self) -> Vec<Item> {
        let mut wire = self.calls.clone();
        let mut content = Vec::new();
        for (at, block) in self.blocks.iter().enumerate() {
            let head = match self.blocks.len() {
                1 => "Result of the script:".to_owned(),
                _ => format!("Result of script {}:", at + 1),
            };
            let first = content.len();
            content.extend(block.iter().cloned());
            if let Some(OutputPart::Text { text }) = content.get_mut(first) {
                *text = format!("{head}\n{text}");
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

    pub(crate) fn call(&mut self, output: FunctionCallOutput) {
        self.calls.push(Item::FunctionCallOutput(output.clone()));
        self.items.push(Item::FunctionCallOutput(output).into());
    }
}

impl Turn<'_> {
    /// Does what the pieces ask for. Each result is told where its script or call stood.
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
                Piece::Script(written) => {
                    self.make_calls(std::mem::take(&mut batch), &mut results)
                        .await;
                    self.tell(id, TurnItem::ScriptToolCall(written.item.clone()));
                    let form = written.form;
                    let most = self.most_tokens(&written.item.source_code);
                    let output = self.run_script(written).await;
                    results.script(form, output, most);
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

    fn most_tokens(&self, source: &str) -> usize {
        let asked = Pragma::read(source)
            .ok()
            .flatten()
            .and_then(|pragma| pragma.max_output_tokens);
        let most = self.agent.settings.max_output_tokens;
        asked.map_or(most, |asked| most.min(asked as usize))
    }

    /// Tells an item that was not told while it came.
    fn tell(&mut self, told: Option<String>, item: TurnItem) {
        if told.is_none() && shows(&item) {
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
                // A turn that is only being closed runs nothing: report how far the script came.
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

    /// The circumstances of a script of this turn.
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

    /// What the run that a script wants to resume has recorded.
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

    /// Goes on with a script that was put away.
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
            return failed("what was put away is not there".to_owned());
        };
        let (run_id, resumed) = (id.clone(), run.summary.resumes.clone());
        let taken = journal.spawn_blocking(move |journal| {
            // Of several processes one goes on.
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
            Ok((None, _)) => return failed("what was put away is not there".to_owned()),
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
        output.unwrap_or_else(|error| failed(format!("the script cannot be resumed: {error}")))
    }

    /// Makes structured calls, side by side where the tools allow.
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
        let mut made = Vec::new();
        if !structured.is_empty() {
            let scope = self.scope().await;
            let span = tracing::info_span!("calls", run = scope.id, count = structured.len());
            let calls = self.agent.router.route(&scope, structured);
            made = calls.instrument(span).await;
        }
        let mut made = made.into_iter();
        for (call, known) in calls.iter().zip(outputs) {
            let output = known.or_else(|| {
                let output = made.next()?;
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

    /// The result of a call that is not made: of `script` without a readable script, or in a last answer.
    fn refused(&self, call: &FunctionCall) -> Option<FunctionCallOutput> {
        let text = match self.mode {
            _ if call.name != crate::prompt::SCRIPT => {
                self.last.then(|| format!("error: {LAST_ANSWER}"))?
            }
            Mode::Disabled => {
                "error: scripts are disabled here\nhint: make structured calls".to_owned()
            }
            _ => "error: the arguments cannot be read\nhint: pass {\"code\": \"…\"}".to_owned(),
        };
        Some(text_output(&call.call_id, text, true))
    }

    /// Some servers give every call the same id: in the ledger each has its own.
    pub(crate) fn unique(&self, id: &str) -> String {
        let numbered = (2..).map(|number| format!("{id}.{number}"));
        let mut ids = std::iter::once(id.to_owned()).chain(numbered);
        ids.find(|id| !self.used.contains(id))
            .unwrap_or_else(|| id.to_owned())
    }

    /// What the structured calls of this turn belong to. It ends with the turn.
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
            let begun = ledger.begin(RunStart {
                id: &scope.id,
                source: &source,
                directory: &agent.settings.directory,
                session: self.session.id(),
                seed: "0",
                resumes: self.known.run.as_deref(),
                setting: &self.options.setting,
            });
            if let Err(error) = scope.written(begun).await {
                // The calls themselves say so, too: nothing is done that was not written down.
                self.events.emit(Event::Error {
                    message: format!("the calls cannot be written down: {error}"),
                });
            }
        }
        scope
    }

    /// The run the structured calls of this turn belong to.
    pub(crate) fn run_of_calls(&mut self) -> String {
        self.run.get_or_insert_with(|| new_id("trn")).clone()
    }

    /// The turn's structured calls are over, and what they left behind is gone.
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
                    message: format!("the end of the calls cannot be written down: {error}"),
                });
            }
        }
    }
}

/// Why nothing is done of a last answer.
const LAST_ANSWER: &str =
    "it was not run: this was the last answer of the turn, in which nothing is called any more";

/// Whether there is something to see: not in what only its maker understands, nor in a thought that was kept secret.
fn shows(item: &TurnItem) -> bool {
    match item {
        TurnItem::Item(Item::Native(_)) => false,
        TurnItem::Item(Item::Reasoning(thought)) => {
            !(thought.summary.is_empty() && thought.content.is_empty())
        }
        _ => true,
    }
}

/// The output of a script that never ran.
fn rejected(id: &str, call_id: &str, error: ScriptError) -> ScriptToolCallOutput {
    ScriptToolCallOutput {
        error: Some(error),
        ..ScriptToolCallOutput::new(id, call_id)
    }
}

/// The result of a structured call, as one text.
pub(crate) fn text_output(call_id: &str, text: String, failed: bool) -> FunctionCallOutput {
    FunctionCallOutput {
        call_id: call_id.to_owned(),
        output: vec![OutputPart::Text { text }],
        failed,
    }
}
