//! Requests to the model: assembles the prompt, reads and records the answer, and adapts the next
//! request after an error.

use std::time::Instant;

use selvedge_models::{Ability, Calls, ModelError, Prompt};
use selvedge_protocol::{
    Event, Item, Mode, ModelErrorKind, OutputPart, Role, TurnError, TurnItem, Usage,
};
use tracing::Instrument;

use crate::answer::{Answer, Listen, Listener, Piece, Told};
use crate::compaction::Need;
use crate::history::Past;
use crate::record::StepKind;
use crate::turn::{Turn, since_compaction};
use crate::{compaction, counters};

impl Turn<'_> {
    /// Builds the request: the system prompt, the history, then the newest message with the answers
    /// and results that followed it.
    pub(crate) async fn assemble(&mut self) -> Result<Prompt, TurnError> {
        match compaction::if_needed(self.session, self.agent).await {
            Need::Not => {}
            Need::Shorter(compacted) => self.compacted(compacted).await?,
            Need::NoRoom { fixed } => self.say_that_there_is_no_room(fixed),
        }
        self.last = self.budget.is_last_round() && self.budget.spent().rounds > 0;
        let history = self.history();
        let mut tools = self.agent.tools.clone();
        if self.mode == Mode::Disabled {
            tools.retain(|tool| tool.name != crate::prompt::SCRIPT);
        }
        // In the last round the model can only answer. Everything else stays the same, so that
        // prompt caches remain valid.
        let calls = match self.calls {
            Calls::Off => Calls::Off,
            _ if self.last => Calls::Forbidden,
            calls => calls,
        };
        Ok(Prompt {
            system: self.agent.system(self.mode),
            history,
            tools,
            calls,
            max_output_tokens: None,
            effort: self.agent.settings.effort,
            cache_key: Some(self.session.id().to_owned()),
        })
    }

    /// Warns once per turn that the context has no room for a conversation. Compacting would not
    /// help.
    fn say_that_there_is_no_room(&mut self, fixed: u64) {
        if std::mem::replace(&mut self.no_room_said, true) {
            return;
        }
        let window = self.agent.model.context_window;
        let message = format!(
            "the system prompt and the tools take about {fixed} of {window} context tokens, so \
             compacting the conversation does not help; use a model with a larger context or fewer \
             tools"
        );
        self.events.emit(Event::Error { message });
    }

    async fn compacted(&mut self, compacted: compaction::Compacted) -> Result<(), TurnError> {
        self.session
            .add(StepKind::Compacted, Vec::new(), compacted.wire)
            .await?;
        self.events.emit(Event::ThreadCompacted {
            tokens_before: compacted.tokens_before,
            tokens_after: compacted.tokens_after,
        });
        Ok(())
    }

    /// Returns the conversation of the next request: earlier turns, then the current turn with the
    /// recalled text in its user message.
    fn history(&self) -> Vec<Item> {
        let turn = self.session.turn();
        let steps = since_compaction(self.session.steps());
        let first = steps.iter().position(|step| step.turn == turn);
        let (past, current) = steps.split_at(first.unwrap_or(steps.len()));
        let mut history = self.agent.strategy.before(&Past {
            session: self.session.id(),
            turn,
            steps: past,
            room: self.agent.model.context_window,
        });
        let newest = history.len();
        history.extend(current.iter().flat_map(|step| step.wire.iter().cloned()));
        if let (Some(text), Some(Item::Message(message))) = (&self.rides, history.get_mut(newest)) {
            message
                .content
                .push(OutputPart::Text { text: text.clone() });
        }
        if self.last {
            let note = "This is the last answer of this turn: nothing can be called. \
                        Say what was done and what is left to do.";
            history.push(Item::message(Role::User, note));
        }
        history
    }

    /// Asks the model and reads its answer. Reading stops early if the turn is cancelled or the
    /// answer ends with a script block.
    pub(crate) async fn ask(&mut self, prompt: &Prompt) -> Result<Answer, ModelError> {
        let agent = self.agent;
        let span = tracing::info_span!(
            "model_call",
            model = agent.model.name,
            provider = agent.client.provider().name,
            input_tokens = tracing::field::Empty,
            output_tokens = tracing::field::Empty
        );
        let started = Instant::now();
        let session = &mut *self.session;
        let mut name = || session.item_id();
        let mut reader = Listener {
            harness: &agent.harness,
            script: prompt
                .tools
                .iter()
                .find(|tool| tool.name == crate::prompt::SCRIPT),
            after_block: agent.settings.after_block,
            events: &self.events,
            name: &mut name,
            parts: Default::default(),
            live: true,
            told: Vec::new(),
            answer: Answer::default(),
        };
        let stop = &self.stop;
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
                if reader.hear(event) == Listen::NoMore {
                    return Ok(());
                }
            }
        };
        let read = read.instrument(span.clone()).await;
        if let Err(error) = read {
            reader.forget();
            counters::model_error(&error);
            return Err(error);
        }
        let mut answer = reader.conclude();
        // The provider does not report the usage of an answer that was not read to its end, so it
        // is estimated.
        let usage = *answer.usage.get_or_insert_with(|| match answer.finish {
            Some(_) => Usage::default(),
            None => Usage {
                output_tokens: compaction::estimate(&answer.wire),
                ..estimated(prompt)
            },
        });
        span.record("input_tokens", usage.input_tokens);
        span.record("output_tokens", usage.output_tokens);
        counters::model_call(&usage, started.elapsed());
        Ok(answer)
    }

    /// Records the answer before any of its scripts and calls run.
    pub(crate) async fn record_answer(&mut self, answer: Answer) -> Result<Vec<Told>, TurnError> {
        let Answer {
            pieces,
            wire,
            usage,
            finish,
            ..
        } = answer;
        let usage = usage.unwrap_or_default();
        let cost = self.agent.model.prices.map(|prices| prices.cost(&usage));
        self.budget.spend(usage, cost);
        let any = |is: fn(&Piece) -> bool| pieces.iter().any(|emitted| is(&emitted.piece));
        let scripts = any(|piece| matches!(piece, Piece::Script(_)));
        let items = match scripts || pieces.len() != wire.len() {
            // The answer has no scripts, so its items are the wire items.
            false => wire.iter().cloned().map(TurnItem::from).collect(),
            true => pieces
                .iter()
                .map(|emitted| item_of(&emitted.piece))
                .collect(),
        };
        let calls = any(|piece| matches!(piece, Piece::Call(_)));
        let answered = StepKind::Answered {
            run: calls.then(|| self.run_of_calls()),
            usage,
            cost,
            finish,
        };
        self.session.add(answered, items, wire).await?;
        let spent = self.budget.spent();
        self.events.emit(Event::UsageUpdated {
            turn: self.session.turn(),
            usage: spent.usage,
            cost: spent.cost,
            context_tokens: usage.input_tokens + usage.output_tokens,
            context_window: self.agent.model.context_window,
        });
        Ok(pieces)
    }

    /// Changes the turn so that a failed request can be sent again. Fails if that is not possible.
    pub(crate) async fn find_another_way(&mut self, error: ModelError) -> Result<(), TurnError> {
        if error.lacks == Some(Ability::Tools) && self.calls != Calls::Off {
            // Script blocks in text do not need the tools of the API.
            self.calls = Calls::Off;
            self.events.emit(Event::Error {
                message: format!("{error}; continuing without structured calls"),
            });
            return Ok(());
        }
        if error.kind == ModelErrorKind::ContextTooLong
            && !std::mem::replace(&mut self.shortened, true)
            && let Some(compacted) = compaction::harder(self.session, self.agent).await
        {
            // The failed request counts as a round.
            self.budget.spend(Usage::default(), None);
            return self.compacted(compacted).await;
        }
        Err(error.into())
    }
}

fn item_of(piece: &Piece) -> TurnItem {
    match piece {
        Piece::Kept(item) => item.clone().into(),
        Piece::Said(text) => Item::message(Role::Assistant, text.clone()).into(),
        Piece::Script(script) => TurnItem::ScriptToolCall(script.item.clone()),
        Piece::Call(call) => Item::FunctionCall(call.clone()).into(),
    }
}

/// Returns the estimated usage of a request, for when the provider does not report it.
pub(crate) fn estimated(prompt: &Prompt) -> Usage {
    let system = crate::size::estimate(&prompt.system) as u64;
    Usage {
        input_tokens: compaction::estimate(&prompt.history) + system,
        ..Usage::default()
    }
}
