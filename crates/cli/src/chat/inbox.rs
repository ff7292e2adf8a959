//! Stored messages to the session of the chat, from people and other sessions. The chat answers
//! them when it opens the session and after each turn.

use selvedge_agent::{Session, TurnOutcome};
use selvedge_protocol::{InboxMessage, SessionStore};

use super::app::Chat;
use super::conversation::{TurnStart, wait_here};
use super::recent_turns::user_message_rows;
use crate::problem::Problem;
use crate::session_runner::describe_end;

impl Chat {
    /// Starts the turn of the oldest message that waits for the session, if there is one.
    pub(super) fn start_inbox_turn(&mut self) {
        if !self.servers_ready {
            return;
        }
        let Some((message, begun)) = self.claim_inbox_message() else {
            return;
        };
        let text = message.text.clone();
        self.inbox_message = Some(message);
        if let Err(error) = self.prepare_turn() {
            self.inbox_message = None;
            return self.print_problem(&Problem::from_error(&error));
        }
        if begun {
            return self.spawn_turn(TurnStart::Recover);
        }
        self.print_block(user_message_rows(&text, self.theme));
        self.spawn_turn(TurnStart::Message(text));
    }

    /// Claims the oldest message whose sender may do as much as this chat, and returns whether its
    /// turn has begun. A message whose turn has ended already is finished.
    fn claim_inbox_message(&mut self) -> Option<(InboxMessage, bool)> {
        let (journal, session) = (self.setup.journal.clone()?, self.session.take()?);
        let id = session.id().to_owned();
        let mut found = None;
        while let Ok(queue) = wait_here(journal.queue(&id)) {
            if !queue
                .first()
                .is_some_and(|message| self.may_answer(message))
            {
                break;
            }
            let Ok(Some(claimed)) = wait_here(journal.claim_next(&id)) else {
                break;
            };
            if claimed.begun && !session.has_open_turn() {
                self.inbox_message = Some(claimed.message);
                self.finish_inbox_message(&session, None);
                continue;
            }
            found = Some((claimed.message, claimed.begun));
            break;
        }
        self.session = Some(session);
        found
    }

    /// Whether a turn of this chat may do no more than the sender of a message allows.
    fn may_answer(&self, message: &InboxMessage) -> bool {
        let own = self.setup.turn_permissions();
        let permissions = message.permissions.as_ref();
        permissions.is_none_or(|allowed| own.clone().restricted_by(allowed) == own)
    }

    /// Stores the answer of the message that the current turn answers, if it is one.
    pub(super) fn finish_inbox_message(
        &mut self,
        session: &Session,
        outcome: Option<&TurnOutcome>,
    ) {
        let message = self.inbox_message.take();
        let Some((message, journal)) = message.zip(self.setup.journal.clone()) else {
            return;
        };
        let (state, answer) = describe_end(session, outcome);
        if let Err(error) = wait_here(journal.finish(&message, state, answer)) {
            self.print_problem(&Problem::new(error.to_string()));
        }
    }
}
