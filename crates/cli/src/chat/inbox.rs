//! Stored messages to the session of the chat, from people and other sessions. The chat answers
//! them when it opens the session, after each turn, and while it is idle.

use std::sync::Arc;

use selvedge_agent::{Session, TurnOutcome};
use selvedge_journal::Journal;
use selvedge_protocol::{
    ApiTokenStore, ClaimedMessage, InboxMessage, RequestGate, SessionQueueStore, SessionStore,
    TokenScope,
};

use super::app::Chat;
use super::conversation::{TurnStart, wait_here};
use super::recent_turns::user_message_rows;
use crate::problem::Problem;
use crate::session_runner::{TurnPlace, describe_end, input_of_message};
use crate::turn_gate::TurnGate;

/// Whether messages to the session start turns by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InboxUse {
    Automatic,
    /// The last turn failed or was stopped: messages wait until the person sends one.
    Paused,
}

/// What a look for messages found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InboxPoll {
    /// Nothing that changes the screen.
    Unchanged,
    /// A turn was started, or a notice is shown.
    Changed,
}

impl Chat {
    /// Whether messages to the session can start a turn now, except for what the person types.
    pub(super) fn is_idle(&self) -> bool {
        self.running_turn.is_none()
            && self.session.as_ref().is_some_and(|it| !it.has_open_turn())
            && self.setup.journal.is_some()
            && self.inbox_use == InboxUse::Automatic
            && self.questions.is_empty()
            && !self.quitting
    }

    /// Looks for a message to the session, and starts its turn. While the person types, shows a
    /// notice instead.
    pub(super) fn poll_inbox(&mut self) -> InboxPoll {
        if !self.is_idle() || !self.servers_ready || !self.has_waiting_message() {
            return InboxPoll::Unchanged;
        }
        if self.editor.is_empty() {
            self.notice = None;
            self.start_inbox_turn();
            return InboxPoll::Changed;
        }
        let notice = "a message waits; it is answered when the input is sent or empty";
        match self.notice.as_deref() {
            Some(_) => InboxPoll::Unchanged,
            None => {
                self.notice = Some(notice.to_owned());
                InboxPoll::Changed
            }
        }
    }

    /// Whether a message waits that this chat may answer.
    fn has_waiting_message(&self) -> bool {
        let journal = self.setup.journal.clone();
        let Some((journal, id)) = journal.zip(self.session_id.as_deref()) else {
            return false;
        };
        self.may_answer_next(&journal, id)
    }

    /// Starts the turn of the oldest message that waits for the session, if there is one.
    pub(super) fn start_inbox_turn(&mut self) {
        if !self.servers_ready {
            return;
        }
        let Some(claimed) = self.claim_inbox_message() else {
            return;
        };
        let (input, begun) = (input_of_message(&claimed.message), claimed.begun);
        let text = claimed.message.text.clone();
        self.inbox_message = Some(claimed);
        if let Err(error) = self.prepare_turn() {
            self.inbox_message = None;
            return self.print_problem(&Problem::from_error(&error));
        }
        if begun {
            return self.spawn_turn(TurnStart::Recover);
        }
        self.print_block(user_message_rows(&text, self.theme));
        self.spawn_turn(TurnStart::Message(input));
    }

    /// Claims the oldest message whose sender may do as much as this chat. A message whose turn has
    /// ended already is finished.
    fn claim_inbox_message(&mut self) -> Option<ClaimedMessage> {
        let (journal, session) = (self.setup.journal.clone()?, self.session.take()?);
        let id = session.id().to_owned();
        let mut found = None;
        while self.may_answer_next(&journal, &id) {
            let Ok(Some(claimed)) = wait_here(journal.claim_next(&id)) else {
                break;
            };
            if claimed.begun && !session.has_open_turn() {
                self.inbox_message = Some(claimed);
                self.finish_inbox_message(&session, None);
                continue;
            }
            found = Some(claimed);
            break;
        }
        self.session = Some(session);
        found
    }

    /// Whether this chat may answer the oldest message of its session.
    fn may_answer_next(&self, journal: &Journal, session: &str) -> bool {
        let queue = wait_here(journal.queue(session)).unwrap_or_default();
        let first = queue.first();
        first.is_some_and(|message| self.may_answer(message))
            && wait_here(next_may_use_channels(journal, session))
    }

    /// Whether a turn of this chat may do no more than the sender of a message allows.
    fn may_answer(&self, message: &InboxMessage) -> bool {
        let own = self.setup.turn_permissions();
        let permissions = message.permissions.as_ref();
        permissions.is_none_or(|allowed| own.clone().restricted_by(allowed) == own)
    }

    /// Returns what decides about the requests of the turn that answers a message, if a token pays
    /// for it.
    pub(super) fn inbox_gate(&self) -> Option<Arc<dyn RequestGate>> {
        let payer = self.inbox_message.as_ref()?.payer.as_ref()?;
        let journal = self.setup.journal.as_ref()?;
        Some(Arc::new(TurnGate::new(
            journal,
            Some(payer),
            &TurnPlace::Thread,
        )))
    }

    /// Stores the answer of the message that the current turn answers, if it is one.
    pub(super) fn finish_inbox_message(
        &mut self,
        session: &Session,
        outcome: Option<&TurnOutcome>,
    ) {
        let message = self.inbox_message.take();
        let Some((claimed, journal)) = message.zip(self.setup.journal.clone()) else {
            return;
        };
        let (state, answer) = describe_end(session, outcome);
        if let Err(error) = wait_here(journal.finish(&claimed.message, state, answer)) {
            self.print_problem(&Problem::new(error.to_string()));
        }
    }
}

/// Whether the oldest message of a session may lead to posts: no token pays for it, or one with the
/// scope of channels. Scripts of a chat can use channels, so a server answers the others.
async fn next_may_use_channels(journal: &Journal, session: &str) -> bool {
    let Ok(Some(next)) = journal.next_message(session).await else {
        return false;
    };
    let Some(payer) = next.payer else {
        return true;
    };
    let tokens = journal.tokens().await.unwrap_or_default();
    let mut payers = tokens.iter().filter(|token| token.name == payer);
    payers.any(|token| token.scopes.contains(&TokenScope::Channels))
}
