//! Sampling: answers requests of MCP servers with the model of a turn. The tokens count against the
//! budget of the turn.

use selvedge_models::{Model, ModelClient, ModelEvent, Prompt, ToolCallMode};
use selvedge_protocol::{ConversationItem, FinishReason, MessageRole, Usage};

use crate::AgentError;
use crate::budget::Budget;
use crate::model_request::estimate_usage;
use crate::sub_agents::{SubAgents, budget_error, check_prices_known};

/// A sampling request. The model gets only this text: no tools, no memory and no conversation of
/// the turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnSamplingRequest {
    /// The system prompt.
    pub system: String,
    /// The messages, oldest first.
    pub messages: Vec<(MessageRole, String)>,
    /// The maximum number of tokens of the answer.
    pub max_tokens: u64,
}

/// The answer to a sampling request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnSamplingResponse {
    /// The text of the answer.
    pub text: String,
    /// The name of the model.
    pub model: String,
    /// Why the model stopped, if the provider reported it.
    pub finish_reason: Option<FinishReason>,
}

impl SubAgents {
    /// Asks the model of the turn that `run` belongs to. The tokens count against the budget of
    /// that turn. Fails with [`AgentError::SamplingFailed`].
    pub async fn sample(
        &self,
        run: &str,
        prompt: TurnSamplingRequest,
    ) -> Result<TurnSamplingResponse, AgentError> {
        let refused = |reason: &str| AgentError::SamplingFailed(reason.to_owned());
        let (template, context) = self
            .active_turn(run)
            .ok_or_else(|| refused("the run belongs to no running turn of an agent"))?;
        if let Some(end) = context.budget.before_request().await {
            return Err(refused(&budget_error(end).message));
        }
        let (client, model) = (&template.agent.client, &template.agent.model);
        check_prices_known(&context.budget, model).map_err(|error| refused(&error.message))?;
        let messages = prompt.messages.into_iter();
        let prompt = Prompt {
            system: prompt.system,
            history: messages
                .map(|(role, text)| ConversationItem::message(role, text))
                .collect(),
            call_mode: ToolCallMode::Off,
            max_output_tokens: Some(prompt.max_tokens),
            ..Prompt::default()
        };
        let mut charge = RequestCharge {
            budget: context.budget.clone(),
            model,
            usage: estimate_usage(&prompt),
        };
        let answered = tokio::select! {
            biased;
            () = context.turn_cancel.cancelled() => Err(refused("the turn was cancelled")),
            answered = read_answer(client, &prompt, model, &mut charge) => answered,
        };
        drop(charge);
        context.budget.settle().await;
        answered
    }
}

/// The usage of a request. It is charged to the budget on drop, so that a request whose future is
/// dropped is charged as well.
pub(crate) struct RequestCharge<'a> {
    pub(crate) budget: Budget,
    pub(crate) model: &'a Model,
    /// An estimate of the request, until the provider reports the usage.
    pub(crate) usage: Usage,
}

impl Drop for RequestCharge<'_> {
    fn drop(&mut self) {
        let cost = self.model.prices.map(|prices| prices.cost(&self.usage));
        self.budget.add_request(self.usage, cost);
    }
}

async fn read_answer(
    client: &ModelClient,
    prompt: &Prompt,
    model: &Model,
    charge: &mut RequestCharge<'_>,
) -> Result<TurnSamplingResponse, AgentError> {
    let mut stream = client.stream(prompt, model);
    let mut answer = TurnSamplingResponse {
        text: String::new(),
        model: model.name.clone(),
        finish_reason: None,
    };
    while let Some(event) = stream.next().await {
        let event = event.map_err(|error| {
            if answer.text.is_empty() {
                // A request that failed before the answer began costs nothing.
                charge.usage = Usage::default();
            }
            AgentError::SamplingFailed(format!("the model failed ({}): {error}", error.kind))
        })?;
        match event {
            ModelEvent::Text { text, .. } => answer.text.push_str(&text),
            ModelEvent::Usage(counted) => charge.usage = counted,
            ModelEvent::Restarted | ModelEvent::Retrying { .. } => answer.text.clear(),
            ModelEvent::Finished { reason, .. } => answer.finish_reason = Some(reason),
            _ => {}
        }
    }
    match answer.finish_reason {
        Some(FinishReason::Refused) => {
            let reason = "the model refused to answer".to_owned();
            Err(AgentError::SamplingFailed(reason))
        }
        _ => Ok(answer),
    }
}
