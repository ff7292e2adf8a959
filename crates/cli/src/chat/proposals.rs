//! What memory proposes, in the chat: a line at the start, and the command `/memory`.

use selvedge_memory::{Lesson, LessonKind, MemoryError, ProposalDecision};
use selvedge_text::count_noun;

use super::app::Chat;
use super::rows::{StyledRow, sanitize, sanitize_line};
use crate::memory::memory_problem;
use crate::memory_setup::project_place;

/// Lines of a proposal that `/memory` shows.
const MAX_PROPOSAL_LINES: usize = 6;

impl Chat {
    /// Prints how many proposals wait for a decision, if any do.
    pub(super) fn announce_proposals(&mut self) {
        let count = match self.proposals() {
            Ok(proposals) => proposals.len(),
            Err(error) => {
                tracing::warn!(target: "selvedge::memory", %error, "proposals cannot be read");
                0
            }
        };
        if count > 0 {
            let proposals = count_noun(count, "proposal");
            self.print_text(format!("{proposals} to review: /memory"));
        }
    }

    /// Prints the proposals with their sources, and how to decide about them.
    pub(super) fn show_proposals(&mut self) {
        let proposals = match self.proposals() {
            Ok(proposals) => proposals,
            Err(error) => return self.print_problem(&memory_problem(&error)),
        };
        if proposals.is_empty() {
            return self.print_text("no proposals to review");
        }
        let mut rows = Vec::new();
        for proposal in &proposals {
            let (kind, title) = (proposal.kind.as_str(), sanitize_line(&proposal.title));
            let from = match proposal.source_turns.as_slice() {
                [] => String::new(),
                [first, rest @ ..] => match rest.len() {
                    0 => format!(" (from {first})"),
                    more => format!(" (from {first} and {more} more)"),
                },
            };
            let line = format!("{}  {kind}: {title}{from}", proposal.lesson_id);
            rows.push(StyledRow::text(line).indented(2));
            let content = sanitize(&proposal.content).into_owned();
            let lines = content.lines().take(MAX_PROPOSAL_LINES);
            rows.extend(lines.map(|line| StyledRow::dim(line.to_owned()).indented(4).truncated()));
            if content.lines().nth(MAX_PROPOSAL_LINES).is_some() {
                rows.push(StyledRow::dim("…").indented(4));
            }
            if proposal.kind == LessonKind::Gap {
                let hint = "write about it with `selvedge memory layer add FILE`, then decline it";
                rows.push(StyledRow::text(hint).indented(4));
            }
        }
        rows.push(StyledRow::text("type /memory accept ID, or /memory decline ID").indented(2));
        self.print_block(rows);
    }

    /// Accepts or declines a proposal of the project of this chat.
    pub(super) fn review_proposal(&mut self, id: &str, decision: ProposalDecision) {
        let Some(memory) = &self.setup.memory else {
            return self.print_text("this chat has no memory");
        };
        let reviewed = self.proposals().and_then(|proposals| {
            match proposals.iter().any(|proposal| proposal.lesson_id == id) {
                true => memory.review_lesson(id, decision),
                false => Err(MemoryError::LessonNotFound(id.to_owned())),
            }
        });
        match reviewed {
            Ok(()) => self.print_text(match decision {
                ProposalDecision::Accept => format!("accepted {id}; it is used from now on"),
                ProposalDecision::Decline => format!("declined {id}; it is not proposed again"),
            }),
            Err(error) => self.print_problem(&memory_problem(&error)),
        }
    }

    /// Returns the proposals for the project of this chat.
    fn proposals(&self) -> Result<Vec<Lesson>, MemoryError> {
        let Some(memory) = &self.setup.memory else {
            return Ok(Vec::new());
        };
        let project = memory.find_project(&project_place(&self.setup.directory).root)?;
        memory.proposals(project.as_deref())
    }
}
