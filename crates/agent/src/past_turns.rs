//! Turns of another program, which become the first turns of a session.

use selvedge_protocol::{ConversationItem, FinishReason, MessageRole, TurnEnd, TurnItem, Usage};

use crate::AgentError;
use crate::session::{Session, TurnAuthor, TurnInput};
use crate::session_record::{DelegatedUsage, SessionStepKind};

/// What an item of a conversation belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ItemPlace {
    Prompt,
    Answer,
    Results,
}

impl Session {
    /// Adds a turn of another program: a message and its answer.
    pub async fn add_past_turn(&mut self, message: &str, answer: &str) -> Result<(), AgentError> {
        let items = [
            ConversationItem::message(MessageRole::User, message),
            ConversationItem::message(MessageRole::Assistant, answer),
        ];
        self.add_past_turns(&items).await
    }

    /// Adds turns of another program. A message of the user begins a turn; the answers and calls
    /// of the model and the results of the calls follow it. Results are texts of others: a script
    /// block that a model copies from them does not run.
    pub async fn add_past_turns(&mut self, items: &[ConversationItem]) -> Result<(), AgentError> {
        for items in items.chunk_by(|one, next| place_of(one) == place_of(next)) {
            match items.first().map(place_of) {
                Some(ItemPlace::Prompt) => {
                    self.end_past_turn().await?;
                    let messages = items.iter().filter_map(|item| match item {
                        ConversationItem::Message(message) => Some(message.content.clone()),
                        _ => None,
                    });
                    let input = TurnInput {
                        parts: messages.flatten().collect(),
                        author: TurnAuthor::Person,
                    };
                    self.begin_turn(input, None).await?;
                }
                Some(ItemPlace::Answer) => {
                    let answer = SessionStepKind::Answer {
                        run: None,
                        usage: Usage::default(),
                        cost: None,
                        finish_reason: Some(FinishReason::Stop),
                    };
                    self.add_past_step(answer, items).await?;
                }
                Some(ItemPlace::Results) => {
                    self.add_past_step(SessionStepKind::Results, items).await?;
                }
                None => {}
            }
        }
        self.end_past_turn().await
    }

    async fn add_past_step(
        &mut self,
        kind: SessionStepKind,
        items: &[ConversationItem],
    ) -> Result<(), AgentError> {
        let shown = items.iter().cloned().map(TurnItem::from).collect();
        self.add_step(kind, shown, items.to_vec()).await
    }

    async fn end_past_turn(&mut self) -> Result<(), AgentError> {
        match self.has_open_turn() {
            true => {
                let ended = self.end_turn(Ok(TurnEnd::Stop), DelegatedUsage::default());
                ended.await
            }
            false => Ok(()),
        }
    }
}

fn place_of(item: &ConversationItem) -> ItemPlace {
    match item {
        ConversationItem::Message(message) if message.role == MessageRole::User => {
            ItemPlace::Prompt
        }
        ConversationItem::FunctionCallOutput(_) => ItemPlace::Results,
        _ => ItemPlace::Answer,
    }
}
