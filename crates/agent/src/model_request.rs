//! Requests to the model: assembles the prompt, reads and records the answer, and adapts the next
//! request after an error.

use std::time::{Duration, Instant};

use selvedge_models::{ModelCapability, ModelError, Prompt, ToolCallMode};
use selvedge_protocol::{
    ConversationItem, MessageRole, ModelErrorKind, OutputPart, RuntimeEvent, TurnError, TurnItem,
    Usage, WireApi,
};
use serde_json::Value;
use tracing::Instrument;

use crate::answer::{AnswerPiece, AnswerReader, PieceWithItemId, TurnAnswer};
use crate::compaction::CompactionOutcome;
use crate::copied_block::reject_copied_blocks;
use crate::history::PastTurns;
use crate::session_record::SessionStepKind;
use crate::turn::{AgentTurn, steps_since_compaction};
use crate::turn_hook::TurnAdditions;
use crate::{compaction, metrics};

impl AgentTurn<'_> {
    /// Builds the request: the system prompt, the history, then the newest message with the answers
    /// and results that followed it.
    pub(crate) async fn assemble_prompt(&mut self) -> Result<Prompt, TurnError> {
        match compaction::compact_if_needed(self.session, self.agent).await {
            CompactionOutcome::Unchanged => {}
            CompactionOutcome::Compacted(compacted) => self.record_compaction(compacted).await?,
            CompactionOutcome::NoRoom { fixed } => self.warn_no_room(fixed),
        }
        self.is_last_round = self.budget.next_round_is_last() && self.budget.spent().requests > 0;
        let history = self.build_history();
        let tools = self.agent.request_tools(self.script_mode).to_vec();
        // In the last round the model can only answer. Everything else stays the same, so that
        // prompt caches remain valid.
        let calls = match self.call_mode {
            ToolCallMode::Off => ToolCallMode::Off,
            _ if self.is_last_round => ToolCallMode::Forbidden,
            calls => calls,
        };
        Ok(Prompt {
            system: self.system_prompt(),
            history,
            tools,
            call_mode: calls,
            max_output_tokens: self.max_output_tokens(),
            effort: self.agent.options.effort,
            web_search: self.agent.options.provider_web_search,
            cache_key: Some(self.session.id().to_owned()),
        })
    }

    /// Returns the system prompt, which ends with what the session stated when it began and what
    /// the turn hook adds.
    fn system_prompt(&self) -> String {
        let mut system = self.agent.system_prompt(self.script_mode);
        if let Some(note) = self.session.start_note() {
            system.push_str(&format!("\n{note}\n"));
        }
        if let Some(text) = &self.additions.system_text {
            system.push_str(&format!("\n{text}"));
        }
        system
    }

    /// Returns the limit of an answer that has less room in the context than the model's own limit.
    /// Servers of this API reject a request whose input and answer together do not fit.
    fn max_output_tokens(&self) -> Option<u64> {
        const MIN_ANSWER_TOKENS: u64 = 1_024;
        let agent = self.agent;
        let used = compaction::estimate_next_request(self.session, agent);
        let left = agent.context_window().saturating_sub(used);
        let is_needed = agent.client.provider().wire_api == WireApi::Messages
            && left < agent.model.max_output_tokens;
        is_needed.then(|| left.max(MIN_ANSWER_TOKENS))
    }

    /// Warns once per turn that the context has no room for a conversation. Compacting would not
    /// help.
    fn warn_no_room(&mut self, fixed: u64) {
        if std::mem::replace(&mut self.no_room_warned, true) {
            return;
        }
        let window = self.agent.context_window();
        let message = format!(
            "the system prompt and the tools take about {fixed} of {window} context tokens, so \
             compacting the conversation does not help; use a model with a larger context or fewer \
             tools"
        );
        self.events.emit(RuntimeEvent::Error { message });
    }

    async fn record_compaction(
        &mut self,
        compacted: compaction::CompactedConversation,
    ) -> Result<(), TurnError> {
        self.session
            .add_step(
                SessionStepKind::Compaction,
                Vec::new(),
                compacted.request_items,
            )
            .await?;
        self.events.emit(RuntimeEvent::ThreadCompacted {
            tokens_before: compacted.tokens_before,
            tokens_after: compacted.tokens_after,
        });
        Ok(())
    }

    /// Returns the conversation of the next request: earlier turns, then the current turn with the
    /// text of the turn hook in its user message.
    fn build_history(&self) -> Vec<ConversationItem> {
        let turn = self.session.turn_number();
        let steps = steps_since_compaction(self.session.steps());
        let first = steps.iter().position(|step| step.turn == turn);
        let (past, current) = steps.split_at(first.unwrap_or(steps.len()));
        let mut history = self.agent.strategy.earlier_items(&PastTurns {
            session: self.session.id(),
            turn,
            steps: past,
            context_window: self.agent.context_window(),
        });
        let newest = history.len();
        history.extend(
            current
                .iter()
                .flat_map(|step| step.request_items.iter().cloned()),
        );
        if let (Some(text), Some(ConversationItem::Message(message))) =
            (&self.additions.message_text, history.get_mut(newest))
        {
            message
                .content
                .push(OutputPart::Text { text: text.clone() });
        }
        merge_first_messages(&mut history);
        if self.is_last_round {
            let note = "This is the last answer of this turn: nothing can be called. \
                        Say what was done and what is left to do.";
            history.push(ConversationItem::message(MessageRole::User, note));
        }
        history
    }

    /// Asks the model and reads its answer. Reading stops early if the turn is cancelled.
    pub(crate) async fn ask_model(&mut self, prompt: &Prompt) -> Result<TurnAnswer, ModelError> {
        let agent = self.agent;
        let span = tracing::info_span!(
            "model_request",
            model = agent.model.name,
            provider = agent.client.provider().name,
            input_tokens = tracing::field::Empty,
            output_tokens = tracing::field::Empty
        );
        let started = Instant::now();
        let session = &mut *self.session;
        let mut next_item_id = || session.next_item_id();
        let mut reader = AnswerReader {
            harness: &agent.harness,
            script_tool: prompt
                .tools
                .iter()
                .find(|tool| tool.name == crate::prompt::SCRIPT_TOOL_NAME),
            after_block: agent.options.after_block,
            events: &self.events,
            next_item_id: &mut next_item_id,
            items: Default::default(),
            emit_live: true,
            emitted_ids: Vec::new(),
            retries: 0,
            cut: None,
            answer: TurnAnswer::default(),
        };
        let stop = &self.turn_cancel;
        let read = async {
            let mut stream = agent.client.stream(prompt, &agent.model);
            loop {
                let event = tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(()),
                    event = stream.next() => event,
                };
                let Some(event) = event.transpose()? else {
                    return Ok(());
                };
                reader.handle_event(event);
            }
        };
        let read = read.instrument(span.clone()).await;
        if let Err(error) = read {
            reader.discard();
            metrics::record_model_error(&error);
            return Err(error);
        }
        let mut answer = reader.finish();
        reject_copied_blocks(&mut answer, || self.texts_of_others(), self.session.steps());
        // The provider does not report the usage of an answer that was not read to its end, so it
        // is estimated.
        let usage = *answer
            .usage
            .get_or_insert_with(|| match answer.finish_reason {
                Some(_) => Usage::default(),
                None => Usage {
                    output_tokens: compaction::estimate_items(&answer.request_items),
                    ..estimate_usage(prompt)
                },
            });
        span.record("input_tokens", usage.input_tokens);
        span.record("output_tokens", usage.output_tokens);
        metrics::record_model_request(&usage, started.elapsed());
        Ok(answer)
    }

    /// Returns the texts of the request that neither the user nor this program wrote: the project's
    /// instructions, its branch, the descriptions of MCP tools, and what the turn hook quotes of
    /// other sessions.
    fn texts_of_others(&self) -> Vec<String> {
        let registry = self.agent.harness.orchestrator().registry();
        let of_servers = registry.iter().map(|tool| &tool.spec);
        let of_servers = of_servers.filter(|spec| spec.js_name.starts_with("mcp."));
        let described = of_servers.map(|spec| {
            let output = spec.output_schema.as_ref().unwrap_or(&Value::Null);
            format!("{}\n{}\n{output}", spec.description, spec.input_schema)
        });
        let project = self.agent.options.project_instructions.clone();
        let opening = self.session.start_note().map(str::to_owned);
        let TurnAdditions {
            system_text,
            message_text,
            ..
        } = &self.additions;
        let added = system_text.iter().chain(message_text).cloned();
        let all = described.chain(project).chain(opening).chain(added);
        all.collect()
    }

    /// Records the answer before any of its scripts and calls run.
    pub(crate) async fn record_answer(
        &mut self,
        answer: TurnAnswer,
    ) -> Result<Vec<PieceWithItemId>, TurnError> {
        let TurnAnswer {
            pieces,
            request_items,
            usage,
            finish_reason,
            ..
        } = answer;
        let usage = usage.unwrap_or_default();
        let cost = self.agent.model.prices.map(|prices| prices.cost(&usage));
        self.budget.add_request(usage, cost);
        self.budget.settle().await;
        let any = |is: fn(&AnswerPiece) -> bool| pieces.iter().any(|emitted| is(&emitted.piece));
        let scripts = any(|piece| matches!(piece, AnswerPiece::Script(_)));
        // Tagged reasoning is a piece of its own, while requests contain the whole message.
        let mut pairs = pieces.iter().zip(&request_items);
        let reasoned = pairs.any(|(emitted, item)| {
            matches!(emitted.piece, AnswerPiece::Other(_))
                && matches!(item, ConversationItem::Message(_))
        });
        let items = match scripts || reasoned || pieces.len() != request_items.len() {
            // Without scripts, people see the same items that requests contain.
            false => request_items.iter().cloned().map(TurnItem::from).collect(),
            true => pieces
                .iter()
                .map(|emitted| piece_item(&emitted.piece))
                .collect(),
        };
        let calls = any(|piece| matches!(piece, AnswerPiece::Call(_)));
        let kind = SessionStepKind::Answer {
            run: calls.then(|| self.structured_run_id()),
            usage,
            cost,
            finish_reason,
        };
        self.session.add_step(kind, items, request_items).await?;
        let spent = self.budget.spent();
        self.events.emit(RuntimeEvent::UsageUpdated {
            turn: self.session.turn_number(),
            usage: spent.usage,
            cost: spent.cost,
            context_tokens: usage.input_tokens.saturating_add(usage.output_tokens),
            context_window: self.agent.context_window(),
        });
        Ok(pieces)
    }

    /// Changes the turn so that a failed request can be sent again. Fails if that is not possible.
    pub(crate) async fn prepare_resend(&mut self, error: ModelError) -> Result<(), TurnError> {
        if error.missing_capability == Some(ModelCapability::Tools)
            && self.call_mode != ToolCallMode::Off
        {
            // Script blocks in text do not need the tools of the API.
            self.call_mode = ToolCallMode::Off;
            self.events.emit(RuntimeEvent::Error {
                message: format!("{error}; continuing without structured calls"),
            });
            return Ok(());
        }
        if error.kind == ModelErrorKind::ContextTooLong
            && !std::mem::replace(&mut self.compacted_after_error, true)
            && let Some(compacted) = compaction::force_compact(self.session, self.agent).await
        {
            // The failed request counts as a round.
            self.budget.add_request(Usage::default(), None);
            return self.record_compaction(compacted).await;
        }
        Err(error.into())
    }
}

/// Joins the messages of the user at the beginning of a history: the text of earlier turns, and the
/// message after it. Some servers require that the roles alternate.
fn merge_first_messages(history: &mut Vec<ConversationItem>) {
    while let [
        ConversationItem::Message(first),
        ConversationItem::Message(second),
        ..,
    ] = history.as_mut_slice()
        && first.role == MessageRole::User
        && second.role == MessageRole::User
    {
        first.content.append(&mut second.content);
        history.remove(1);
    }
}

/// Describes a retry of a request, counted from 1. Only the first one repeats the error.
pub(crate) fn retry_note(error: &ModelError, retry: u32, delay: Duration) -> String {
    let seconds = delay.as_secs_f64();
    match retry {
        1 => format!("{error}; retry 1 in {seconds:.1} s"),
        _ => format!("retry {retry} in {seconds:.1} s"),
    }
}

fn piece_item(piece: &AnswerPiece) -> TurnItem {
    match piece {
        AnswerPiece::Other(item) => item.clone().into(),
        AnswerPiece::Text(text) => {
            ConversationItem::message(MessageRole::Assistant, text.clone()).into()
        }
        AnswerPiece::Script(script) => TurnItem::ScriptToolCall(script.item.clone()),
        AnswerPiece::Call(call) => ConversationItem::FunctionCall(call.clone()).into(),
    }
}

/// Returns the estimated usage of a request, for when the provider does not report it.
pub(crate) fn estimate_usage(prompt: &Prompt) -> Usage {
    let system = crate::token_estimate::estimate_tokens(&prompt.system) as u64;
    Usage {
        input_tokens: compaction::estimate_items(&prompt.history) + system,
        ..Usage::default()
    }
}
