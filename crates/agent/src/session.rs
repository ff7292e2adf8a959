//! [`Session`]: the prompts, answers and results of a conversation, in memory and, if there is a
//! journal, stored there before the answers are run.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt;
use selvedge_journal::{Journal, JournalError, StoredRow, StoredRun};
use selvedge_protocol::{
    ConversationItem, Message, MessageRole, OutputPart, TurnEnd, TurnError, TurnItem, Usage, new_id,
};
use selvedge_script as script;
use serde_json::Value;

use crate::AgentError;
use crate::kept_session::{KeptSession, MeasuredSteps};
use crate::session_record::{
    DelegatedUsage, SessionMark, SessionReader, SessionRow, SessionStep, SessionStepKind,
};

/// A conversation. If it is in a journal, no other process can continue it until this value is
/// dropped.
#[derive(Debug)]
pub struct Session {
    id: String,
    journal: Option<Arc<Journal>>,
    steps: Vec<SessionStep>,
    turn_number: u32,
    /// How the last turn ended; `None` if it is open, or there is no turn.
    turn_end: Option<Result<TurnEnd, TurnError>>,
    /// Tokens and cost of launched agents and sampling requests, of all turns.
    delegated: DelegatedUsage,
    /// The values that scripts of the session store.
    pub(crate) script_store: script::ScriptStore,
    /// What the system prompt states about the beginning of the session.
    start_note: Option<String>,
    /// The turns whose messages agents wrote.
    turns_of_agents: BTreeSet<u32>,
    /// The number of item ids used in events so far.
    emitted_items: u64,
    /// The number of the last item in the journal.
    last_row_number: u32,
    /// How many of the steps were measured when the session was closed before, and their size.
    measured: MeasuredSteps,
}

/// The prompt of a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnInput {
    /// Text and images, in order.
    pub parts: Vec<OutputPart>,
    /// Who wrote it.
    pub author: TurnAuthor,
}

/// Who wrote the prompt of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnAuthor {
    /// A person, or a program of a person.
    Person,
    /// An agent. Memory learns no preferences and decisions from what it asks for.
    Agent,
}

impl TurnInput {
    /// Sets who wrote the prompt.
    pub fn by(self, author: TurnAuthor) -> Self {
        Self { author, ..self }
    }
}

impl From<&str> for TurnInput {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl From<String> for TurnInput {
    fn from(text: String) -> Self {
        Self {
            parts: vec![OutputPart::Text { text }],
            author: TurnAuthor::Person,
        }
    }
}

impl Session {
    /// Creates a session without a journal, which is lost when the process ends.
    pub fn in_memory() -> Self {
        Self::new(new_id("ses"), None, SessionReader::default(), 0)
    }

    /// Creates a session in the journal.
    pub async fn begin(journal: &Arc<Journal>, directory: &str) -> Result<Self, AgentError> {
        Self::begin_child(journal, directory, None).await
    }

    /// Creates a session. `parent` is the session of the agent that launched this one.
    pub(crate) async fn begin_child(
        journal: &Arc<Journal>,
        directory: &str,
        parent: Option<&str>,
    ) -> Result<Self, AgentError> {
        let (directory, parent) = (directory.to_owned(), parent.map(str::to_owned));
        let id = journal
            .spawn_blocking(move |journal| journal.begin_session(&directory, parent.as_deref()))
            .await?;
        Ok(Self::new(
            id,
            Some(journal.clone()),
            SessionReader::default(),
            0,
        ))
    }

    /// Opens a session to continue it, by its id, a prefix of its id, or its name. This process
    /// owns the session until it is dropped. Fails if another running process owns it.
    pub async fn open(journal: &Arc<Journal>, id: &str) -> Result<Self, AgentError> {
        let id = id.to_owned();
        let claim = move |journal: &Journal| {
            let id = journal.session(&id)?.id;
            journal.claim_session(&id)?;
            let (reader, written) = read_steps(journal, &id)?;
            Ok::<_, AgentError>((id, reader, written))
        };
        let (id, reader, written) = journal.spawn_blocking(claim).await?;
        Ok(Self::new(id, Some(journal.clone()), reader, written))
    }

    /// Like [`Session::open`], with the full id and what [`Session::close`] returned before. The
    /// session is read from the journal only if another process has claimed it since, or a part of
    /// it was deleted.
    pub async fn reopen(
        journal: &Arc<Journal>,
        id: &str,
        kept: Option<KeptSession>,
    ) -> Result<Self, AgentError> {
        let Some(kept) = kept else {
            return Self::open(journal, id).await;
        };
        let claimed = id.to_owned();
        let claim = move |journal: &Journal| {
            journal.claim_session(&claimed)?;
            match kept.is_current(journal, &claimed)? {
                true => Ok::<_, AgentError>((kept.content, kept.last_row_number, kept.measured)),
                false => {
                    let (content, written) = read_steps(journal, &claimed)?;
                    Ok((content, written, MeasuredSteps::default()))
                }
            }
        };
        let (content, written, measured) = journal.spawn_blocking(claim).await?;
        let session = Self::new(id.to_owned(), Some(journal.clone()), content, written);
        Ok(session.with_measured(measured))
    }

    fn with_measured(mut self, measured: MeasuredSteps) -> Self {
        self.measured = measured;
        self
    }

    /// Gives the session up, and returns what it contains, for [`Session::reopen`]. Returns `None`
    /// if it is only in memory, or a turn is open.
    pub fn close(mut self) -> Option<KeptSession> {
        let claim = self.journal.as_ref()?.claim_number(&self.id)?;
        if self.has_open_turn() {
            return None;
        }
        let content = SessionReader {
            steps: std::mem::take(&mut self.steps),
            turn: self.turn_number,
            turn_end: self.turn_end.take(),
            delegated: self.delegated,
            start_note: self.start_note.take(),
            turns_of_agents: std::mem::take(&mut self.turns_of_agents),
            ..SessionReader::default()
        };
        Some(KeptSession {
            measured: self.measured.with(&content.steps),
            content,
            last_row_number: self.last_row_number,
            claim,
        })
    }

    /// Opens a session to read it, also if another process owns it. Blocks while it reads.
    pub fn open_read_only(journal: &Arc<Journal>, id: &str) -> Result<Self, AgentError> {
        let id = journal.session(id)?.id;
        let (reader, written) = read_steps(journal, &id)?;
        Ok(Self::new(id, Some(journal.clone()), reader, written))
    }

    /// Creates a session with the turns of another up to `up_to_turn`, or all. A turn that is open
    /// in the other session is ended as interrupted here.
    pub async fn fork(
        journal: &Arc<Journal>,
        id: &str,
        up_to_turn: Option<u32>,
    ) -> Result<Self, AgentError> {
        let id = id.to_owned();
        let fork =
            move |journal: &Journal| journal.fork_session(&journal.session(&id)?.id, up_to_turn);
        let fork = journal.spawn_blocking(fork).await?;
        Self::open(journal, &fork).await?.close_open_turn().await
    }

    /// Imports an exported session. A turn that was open when it was exported is ended as
    /// interrupted.
    pub async fn import(journal: &Arc<Journal>, lines: Vec<Value>) -> Result<Self, AgentError> {
        let id = journal
            .spawn_blocking(move |journal| journal.import_session(&lines, check_import))
            .await?;
        Self::open(journal, &id).await?.close_open_turn().await
    }

    /// Ends an open turn as interrupted. The outcomes of its last calls are recorded as unknown.
    async fn close_open_turn(mut self) -> Result<Self, AgentError> {
        if !self.has_open_turn() {
            return Ok(self);
        }
        self.settle_open_calls().await?;
        self.end_turn(Ok(TurnEnd::Interrupted), DelegatedUsage::default())
            .await?;
        Ok(self)
    }

    /// Records that a turn failed before its agent was set up: the open turn, or a new one with
    /// this message.
    pub async fn fail_turn(
        &mut self,
        message: TurnInput,
        error: TurnError,
    ) -> Result<(), AgentError> {
        match self.has_open_turn() {
            true => self.settle_open_calls().await?,
            false => self.begin_turn(message, None).await?,
        }
        self.end_turn(Err(error), DelegatedUsage::default()).await
    }

    /// Records the outcomes of the last answer's calls as unknown.
    async fn settle_open_calls(&mut self) -> Result<(), AgentError> {
        if let Some(step) = self.steps.last()
            && matches!(step.kind, SessionStepKind::Answer { .. })
        {
            let results = crate::recovery::unknown_results(step);
            let request_items = results.to_request_items();
            self.add_step(SessionStepKind::Results, results.items, request_items)
                .await?;
        }
        Ok(())
    }

    /// Creates a session from its parsed steps.
    fn new(id: String, journal: Option<Arc<Journal>>, reader: SessionReader, written: u32) -> Self {
        let script_store = match &journal {
            Some(journal) => script::ScriptStore::new(Arc::new(journal.script_values(&id))),
            None => script::ScriptStore::default(),
        };
        Self {
            id,
            journal,
            steps: reader.steps,
            turn_number: reader.turn,
            turn_end: reader.turn_end,
            delegated: reader.delegated,
            script_store,
            start_note: reader.start_note,
            turns_of_agents: reader.turns_of_agents,
            emitted_items: 0,
            last_row_number: written,
            measured: MeasuredSteps::default(),
        }
    }

    /// Returns the id of the session.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the journal that stores the session; `None` if it is only in memory.
    pub fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.as_ref()
    }

    /// Reads a run from the journal.
    pub(crate) async fn stored_run(&self, id: &str) -> Option<StoredRun> {
        let (journal, id) = (self.journal()?, id.to_owned());
        let read = journal.spawn_blocking(move |journal| journal.run(&id));
        read.await.ok()
    }

    /// Returns the number of the last turn; zero if there is none.
    pub fn turn_number(&self) -> u32 {
        self.turn_number
    }

    /// Returns whether the last turn has not ended. [`crate::Agent::run_open_turn`] continues it.
    pub fn has_open_turn(&self) -> bool {
        self.turn_number > 0 && self.turn_end.is_none()
    }

    /// Returns how the last turn ended. `None` if it is open, or there is no turn.
    pub fn turn_end(&self) -> Option<&Result<TurnEnd, TurnError>> {
        self.turn_end.as_ref()
    }

    /// Returns all steps of the session, oldest first.
    pub fn steps(&self) -> &[SessionStep] {
        &self.steps
    }

    /// Returns all items with the numbers of their turns, in the order in which the model produced
    /// them. The output of a script follows the script.
    pub fn history(&self) -> Vec<(u32, TurnItem)> {
        history_of(&self.steps)
    }

    /// Returns the items of one turn, in the same order as [`Session::history`].
    pub fn turn_items(&self, turn: u32) -> Vec<TurnItem> {
        let from = self.steps.partition_point(|step| step.turn < turn);
        let to = self.steps.partition_point(|step| step.turn <= turn);
        order_items(&self.steps[from..to])
    }

    /// Returns who wrote the message of a turn.
    pub fn turn_author(&self, turn: u32) -> TurnAuthor {
        match self.turns_of_agents.contains(&turn) {
            true => TurnAuthor::Agent,
            false => TurnAuthor::Person,
        }
    }

    /// Returns the tokens and the cost of all turns so far, including the agents they launched.
    pub fn total_spent(&self) -> (Usage, f64) {
        let mut spent = (self.delegated.usage, self.delegated.cost);
        for step in &self.steps {
            if let SessionStepKind::Answer { usage, cost, .. } = &step.kind {
                spent.0 += *usage;
                spent.1 += cost.unwrap_or(0.0);
            }
        }
        spent
    }

    /// Returns the text of the model's last answer.
    pub fn last_message(&self) -> Option<String> {
        let mut steps = self.steps.iter().rev();
        let answer = steps.find(|step| matches!(step.kind, SessionStepKind::Answer { .. }))?;
        answer.items.iter().rev().find_map(TurnItem::assistant_text)
    }

    /// Returns what the system prompt states about the beginning of the session.
    pub(crate) fn start_note(&self) -> Option<&str> {
        self.start_note.as_deref()
    }

    /// Starts a turn with a user message. `note` is stored if the session has none yet.
    pub(crate) async fn begin_turn(
        &mut self,
        input: TurnInput,
        note: Option<String>,
    ) -> Result<(), AgentError> {
        self.turn_number += 1;
        self.turn_end = None;
        let item = ConversationItem::Message(Message {
            role: MessageRole::User,
            content: input.parts,
            native: None,
        });
        let note = note.filter(|_| self.start_note.is_none());
        let opening = note.clone().map(|note| SessionMark::Opening { note });
        let author = match input.author {
            TurnAuthor::Person => None,
            TurnAuthor::Agent => Some(SessionMark::AskedByAgent),
        };
        let step = SessionStep {
            turn: self.turn_number,
            kind: SessionStepKind::UserMessage,
            items: vec![item.clone().into()],
            request_items: vec![item],
        };
        let marks = author.into_iter().chain(opening).collect();
        self.store_step(step, marks).await?;
        if input.author == TurnAuthor::Agent {
            self.turns_of_agents.insert(self.turn_number);
        }
        self.start_note = self.start_note.take().or(note);
        Ok(())
    }

    /// Adds a step to the session and the journal. If this future is dropped, the step remains in
    /// the session, because the journal writes it in any case.
    pub(crate) async fn add_step(
        &mut self,
        kind: SessionStepKind,
        items: Vec<TurnItem>,
        request_items: Vec<ConversationItem>,
    ) -> Result<(), AgentError> {
        let step = SessionStep {
            turn: self.turn_number,
            kind,
            items,
            request_items,
        };
        self.store_step(step, Vec::new()).await
    }

    /// Adds a step, and marks that follow it.
    async fn store_step(
        &mut self,
        step: SessionStep,
        marks: Vec<SessionMark>,
    ) -> Result<(), AgentError> {
        let mut rows = step.rows();
        rows.extend(marks.into_iter().map(SessionRow::Mark));
        self.steps.push(step);
        let written = self.append_rows(&rows).await;
        if written.is_err() {
            self.steps.pop();
        }
        written
    }

    /// Ends the turn. `delegated` is what launched agents and sampling requests have spent.
    pub(crate) async fn end_turn(
        &mut self,
        end: Result<TurnEnd, TurnError>,
        delegated: DelegatedUsage,
    ) -> Result<(), AgentError> {
        let (finish_reason, error) = match end.clone() {
            Ok(end) => (Some(end), None),
            Err(error) => (None, Some(error)),
        };
        self.turn_end = Some(end);
        let end = SessionRow::Mark(SessionMark::TurnEnd {
            finish_reason,
            error,
            delegated,
        });
        let written = self.append_rows(&[end]).await;
        match written {
            Ok(()) => self.delegated.add(delegated),
            Err(_) => self.turn_end = None,
        }
        written
    }

    async fn append_rows(&mut self, rows: &[SessionRow]) -> Result<(), AgentError> {
        let Some(journal) = &self.journal else {
            return Ok(());
        };
        let values: Result<Vec<_>, _> = rows.iter().map(serde_json::to_value).collect();
        let values = values.map_err(|error| damaged_item(0, &error))?;
        let after = self.last_row_number;
        self.last_row_number += values.len() as u32;
        let appended = journal
            .append_rows(&self.id, after, self.turn_number, values)
            .await;
        if appended.is_err() {
            self.last_row_number = after;
        }
        Ok(appended?)
    }

    /// Sets the number of item ids that earlier events may have used, so that no id is used again.
    pub fn continue_item_ids(&mut self, used: u64) {
        self.emitted_items = self.emitted_items.max(used);
    }

    /// Returns a new item id for events.
    pub(crate) fn next_item_id(&mut self) -> String {
        self.emitted_items += 1;
        format!("item_{}", self.emitted_items - 1)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(journal) = &self.journal {
            // If this fails, the session becomes free when this process ends.
            let _ = journal.release_session(&self.id).now_or_never();
        }
    }
}

/// Reads the items of a session from the journal. Returns also the number of the last item.
fn read_steps(journal: &Journal, id: &str) -> Result<(SessionReader, u32), AgentError> {
    let items = journal.items(id)?;
    let written = items.last().map_or(0, |item| item.number);
    Ok((parse_rows(items)?, written))
}

/// Parses stored rows, of whole turns.
pub(crate) fn parse_rows(rows: Vec<StoredRow>) -> Result<SessionReader, AgentError> {
    let mut reader = SessionReader::default();
    for stored in rows {
        let row = serde_json::from_value(stored.item)
            .map_err(|error| damaged_item(stored.number, &error))?;
        reader.push_row(stored.turn, row);
    }
    Ok(reader)
}

/// Returns the items of steps with the numbers of their turns, as [`Session::history`] does.
pub(crate) fn history_of(steps: &[SessionStep]) -> Vec<(u32, TurnItem)> {
    let turns = steps.chunk_by(|one, next| one.turn == next.turn);
    turns
        .flat_map(|steps| {
            order_items(steps)
                .into_iter()
                .map(|item| (steps[0].turn, item))
        })
        .collect()
}

fn damaged_item(number: u32, error: &serde_json::Error) -> AgentError {
    AgentError::Damaged {
        number,
        why: error.to_string(),
    }
}

/// Validates the items of an imported session.
fn check_import(items: &[StoredRow]) -> Result<(), JournalError> {
    let mut turn = 1;
    for (number, stored) in (1u32..).zip(items) {
        let invalid =
            |reason: &str| JournalError::InvalidSessionExport(format!("item {number}: {reason}"));
        serde_json::from_value::<SessionRow>(stored.item.clone())
            .map_err(|error| invalid(&error.to_string()))?;
        if stored.turn != turn && stored.turn != turn + 1 {
            return Err(invalid("the turn does not follow the previous one"));
        }
        turn = stored.turn;
    }
    Ok(())
}

/// Returns the items of some steps, with the output of each script directly after the script.
fn order_items(steps: &[SessionStep]) -> Vec<TurnItem> {
    let mut items: Vec<TurnItem> = Vec::new();
    for item in steps.iter().flat_map(|step| &step.items) {
        let call = match item {
            TurnItem::ScriptToolCallOutput(output) => items.iter().rposition(|earlier| {
                matches!(
                    earlier,
                    TurnItem::ScriptToolCall(call) if call.call_id == output.call_id
                )
            }),
            _ => None,
        };
        items.insert(call.map_or(items.len(), |call| call + 1), item.clone());
    }
    items
}
