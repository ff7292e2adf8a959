//! What somebody else asks the model of a turn: their text alone, paid from the turn's budget.

use selvedge_models::{Calls, Client, Model, ModelEvent, Prompt};
use selvedge_protocol::{FinishReason, Item, Role, Usage};

use crate::AgentError;
use crate::agents::{Agents, check_price, spent};
use crate::asking::estimated;
use crate::budget::Budget;

/// A question to the model of a turn. Nothing of the turn goes with it: no tools, no memory, no conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignPrompt {
    /// What the model is told before.
    pub system: String,
    /// What is said, oldest first.
    pub messages: Vec<(Role, String)>,
    /// Tokens the answer may have.
    pub max_tokens: u64,
}

/// What the model said to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignAnswer {
    /// Its words.
    pub text: String,
    /// Its name.
    pub model: String,
    /// Why it ended, where it says so.
    pub finish: Option<FinishReason>,
}

impl Agents {
    /// Asks the model of the turn that this run belongs to; what it takes counts there. The error says why not.
    pub async fn answer_foreign(
        &self,
        run: &str,
        prompt: ForeignPrompt,
    ) -> Result<ForeignAnswer, AgentError> {
        let refused = |why: &str| AgentError::NotAnswered(why.to_owned());
        let (template, circumstances) = self
            .under_way(run)
            .ok_or_else(|| refused("no turn of an agent is under way there"))?;
        if let Some(end) = circumstances.budget.reached() {
            return Err(refused(&spent(end).message));
        }
        let (client, model) = (&template.agent.client, &template.agent.model);
        check_price(&circumstances.budget, model).map_err(|error| refused(&error.message))?;
        let messages = prompt.messages.into_iter();
        let prompt = Prompt {
            system: prompt.system,
            history: messages
                .map(|(role, text)| Item::message(role, text))
                .collect(),
            calls: Calls::Off,
            max_output_tokens: Some(prompt.max_tokens),
            ..Prompt::default()
        };
        let mut bill = Bill {
            budget: circumstances.budget.clone(),
            model,
            usage: estimated(&prompt),
        };
        let answered = tokio::select! {
            biased;
            () = circumstances.stop.cancelled() => Err(refused("the turn was stopped")),
            answered = answer(client, &prompt, model, &mut bill) => answered,
        };
        drop(bill);
        answered
    }
}

/// Paid when it is dropped, so that an answer nobody waits for any more is paid for as well.
struct Bill<'a> {
    budget: Budget,
    model: &'a Model,
    /// About what was asked, until the provider says what it took.
    usage: Usage,
}

impl Drop for Bill<'_> {
    fn drop(&mut self) {
        let cost = self.model.prices.map(|prices| prices.cost(&self.usage));
        self.budget.spend(self.usage, cost);
    }
}

async fn answer(
    client: &Client,
    prompt: &Prompt,
    model: &Model,
    bill: &mut Bill<'_>,
) -> Result<ForeignAnswer, AgentError> {
    let mut stream = client.stream(prompt, model);
    let mut answer = ForeignAnswer {
        text: String::new(),
        model: model.name.clone(),
        finish: None,
    };
    while let Some(event) = stream.next().await {
        let event = event.map_err(|error| {
            if answer.text.is_empty() {
                // What was never begun costs nothing.
                bill.usage = Usage::default();
            }
            AgentError::NotAnswered(format!("the model failed ({}): {error}", error.kind))
        })?;
        match event {
            ModelEvent::Text { text, .. } => answer.text.push_str(&text),
            ModelEvent::Usage(counted) => bill.usage = counted,
            ModelEvent::Restarted | ModelEvent::Retrying { .. } => answer.text.clear(),
            ModelEvent::Finished { reason, .. } => answer.finish = Some(reason),
            _ => {}
        }
    }
    match answer.finish {
        Some(FinishReason::Refused) => {
            let why = "the model would not answer".to_owned();
            Err(AgentError::NotAnswered(why))
        }
        _ => Ok(answer),
    }
}
