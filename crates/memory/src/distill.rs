//! Distilling: learns topics, lessons, preferences, conventions and recurring problems from turns,
//! with a model or by rules. Each turn is read once.
//!
//! What is learned from a group of turns and the mark that the turns were distilled are written in
//! one transaction, so that a process that dies loses nothing and repeats nothing. Requests to a
//! model are recorded before they are sent (see `distill_requests`). One process at a time distills
//! a project (see `distill_lock`). If two do so, because the lease of the first one ended, the one
//! that is later finds the turns distilled, and discards what it has read. Forgetting does not wait
//! for it: what was read before a turn was forgotten is discarded.

use std::collections::BTreeSet;
use std::sync::Arc;

use selvedge_database::{Connection, params};

use crate::distill_answer::{DistillAnswer, parse_answer};
use crate::distill_lock::DistillLock;
use crate::distill_passes::{begin_pass, count_pass};
use crate::distill_requests::{
    DistillRequest, RequestState, UNRECORDED, delete_request, is_recorded, keep_unanswered,
};
use crate::distill_steps::NextStep;
use crate::distill_unit::{DistillUnit, TurnSpan, UnitFolder};
use crate::layers::LAYER_TOKENS;
use crate::lesson_bounds::is_lesson_of;
use crate::lesson_learning::{
    LessonDraft, SourceTurn, contradict_lesson, learn_lesson, merge_lesson, prune_lessons,
};
use crate::lesson_rules::{
    ObservedTurn, extract_keywords, find_decisions, find_fixes, find_preferences, find_programs,
};
use crate::level_writer::read_level_text;
use crate::model::SmallModel;
use crate::store::execute;
use crate::topic_clusters::{FoundTopic, find_topics};
use crate::topics::{
    read_folder_topics, store_areas, update_topics, weigh_answered_topics, weigh_found_topics,
};
use crate::turn_pieces::{TurnPiece, parse_pieces};
use crate::{LessonKind, LessonStatus, Level, Memory, MemoryError, StoredTurn, tokens};

/// Turns that must mention a topic before a layer about it is proposed.
const MIN_LAYER_TURNS: usize = 12;
/// Layers that rules propose about one group of turns: a person has to read them.
const MAX_LAYERS_BY_RULES: usize = 2;
/// The part of a topic's turns, in percent, that another proposed layer may have, too.
const MAX_SHARED_TURNS_PERCENT: usize = 50;

/// The result of one call of [`Memory::distill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DistillReport {
    /// Turns that were distilled.
    pub distilled_turns: u32,
    /// Lessons that were new or learned again.
    pub learned: u32,
    /// Lessons that were deleted because their weight had decayed.
    pub dropped: u32,
    /// Turns that remain to be distilled.
    pub remaining_turns: u32,
    /// Turns in a provider batch that is not finished. They are distilled when its answers are
    /// fetched.
    pub submitted_turns: u32,
}

impl Memory {
    /// Distills the next turns of a session and of all other sessions of its project, one folder
    /// after the other: with the model's answers, or by rules if there is no model or it fails.
    /// Call it again while turns remain ([`DistillReport::remaining_turns`]).
    ///
    /// If the model has a batch API, all turns are submitted at once, and a later call learns from
    /// the answers. Fails with [`MemoryError::DistillLocked`] while another process distills the
    /// project.
    pub async fn distill(
        self: &Arc<Self>,
        session: &str,
        model: Option<&dyn SmallModel>,
    ) -> Result<DistillReport, MemoryError> {
        let (_lock, unit) = self.begin_distilling(session).await?;
        let requests = match self.next_step(&unit, model).await? {
            NextStep::Learn(requests) if !requests.is_empty() => requests,
            NextStep::Done => return Ok(DistillReport::default()),
            NextStep::Wait(submitted_turns) => {
                return Ok(DistillReport {
                    submitted_turns,
                    ..DistillReport::default()
                });
            }
            // A turn was forgotten meanwhile.
            NextStep::BeginAgain | NextStep::Learn(_) => {
                return Ok(DistillReport {
                    remaining_turns: unit.remaining_turns(),
                    ..DistillReport::default()
                });
            }
        };
        self.learn_from_requests(session, requests).await
    }

    /// Locks the unit of a session, loads it and writes that a pass begins, if it has new turns.
    pub(crate) async fn begin_distilling(
        self: &Arc<Self>,
        session: &str,
    ) -> Result<(DistillLock, Arc<DistillUnit>), MemoryError> {
        let name = session.to_owned();
        let prepare = move |memory: &Arc<Self>| {
            let lock = memory.lock_for_distilling(&name)?;
            let unit = memory.read(|reader| DistillUnit::load(&reader.connection, &name))?;
            for session in &unit.sessions {
                memory.write_missing_levels(&session.name)?;
            }
            if unit.remaining_turns() > 0 {
                memory.write(|connection| begin_pass(connection, &unit.key))?;
            }
            Ok((lock, Arc::new(unit)))
        };
        self.run_blocking(prepare).await
    }

    /// Learns from the turns of requests, in their order.
    pub(crate) async fn learn_from_requests(
        self: &Arc<Self>,
        session: &str,
        requests: Vec<DistillRequest>,
    ) -> Result<DistillReport, MemoryError> {
        let name = session.to_owned();
        let learn = move |memory: &Arc<Self>| {
            let mut report = DistillReport::default();
            let mut key = None;
            for request in &requests {
                let unit = memory.read(|reader| DistillUnit::load(&reader.connection, &name))?;
                memory.learn_from_request(&unit, request, &mut report)?;
                key = Some(unit.key);
            }
            if let (0, Some(key)) = (report.remaining_turns, key) {
                memory.encode_new_lessons(&key);
            }
            Ok(report)
        };
        self.run_blocking(learn).await
    }

    /// Learns from the turns of a request, and writes that they were distilled. If rules read the
    /// turns before, because the request was sent again, only its answer is learned from.
    fn learn_from_request(
        &self,
        unit: &DistillUnit,
        request: &DistillRequest,
        report: &mut DistillReport,
    ) -> Result<(), MemoryError> {
        let Some(folder) = unit.folder_of(&request.spans) else {
            return Ok(());
        };
        let (turns, known) = self.read(|reader| {
            let turns = self.observe_turns(&reader.connection, &request.spans)?;
            Ok((turns, read_folder_topics(&reader.connection, folder)?))
        })?;
        let mut answer = match &request.state {
            RequestState::Answered(answer) => {
                parse_answer(answer, |name| find_source(folder, &turns, name))
            }
            RequestState::Sent | RequestState::Failed | RequestState::Unanswered => None,
        }
        .unwrap_or_default();
        let is_read = unit.has_distilled(&request.spans);
        for draft in &mut answer.drafts {
            if draft.turns.is_empty() {
                // The model named no source: any of the turns may be it, so that the lesson is
                // forgotten together with any of them.
                draft.turns = turns.iter().map(ObservedTurn::source).collect();
            }
        }
        let mut topics = weigh_answered_topics(std::mem::take(&mut answer.topics), &turns);
        if is_read {
            // Turns that mention a known topic were counted.
            topics.retain(|topic| !known.iter().any(|known| known.name == topic.name));
        }
        if !answer.is_complete && !is_read {
            answer.drafts.extend(draft_by_rules(&turns));
        }
        if (!answer.is_complete || topics.is_empty()) && !is_read {
            let found = find_topics(&turns);
            if !answer.is_complete {
                answer
                    .drafts
                    .extend(self.draft_layers(unit, &turns, &found)?);
            }
            topics.extend(weigh_found_topics(&found, &turns, &known));
        }
        let learned = self.write(|connection| {
            let is_known = request.id == UNRECORDED || is_recorded(connection, request.id)?;
            if !is_known || !unit.is_current(connection, &request.spans)? {
                // A turn was forgotten meanwhile. The others stay new.
                return Ok(DistillReport {
                    remaining_turns: unit.remaining_turns(),
                    ..DistillReport::default()
                });
            }
            if !is_read {
                mark_distilled(connection, unit, &request.spans)?;
            }
            match &request.state {
                RequestState::Answered(_) => delete_request(connection, request.id)?,
                _ => keep_unanswered(connection, request.id)?,
            }
            let learned = learn(connection, folder, &answer)?;
            if !is_read || !topics.is_empty() {
                update_topics(connection, unit, &topics, &turns)?;
            }
            store_areas(connection, folder, &answer.areas)?;
            let unit = DistillUnit {
                sessions: after(unit, &request.spans),
                ..unit.clone()
            };
            let learned = DistillReport {
                distilled_turns: match is_read {
                    true => 0,
                    false => request.spans.iter().map(TurnSpan::turns).sum(),
                },
                learned,
                dropped: prune_lessons(connection)?,
                remaining_turns: unit.remaining_turns(),
                submitted_turns: 0,
            };
            count_pass(connection, &unit.key, &learned)?;
            Ok(learned)
        })?;
        report.distilled_turns += learned.distilled_turns;
        report.learned += learned.learned;
        report.dropped += learned.dropped;
        report.remaining_turns = learned.remaining_turns;
        Ok(())
    }

    /// Drafts reference layers about the topics that most turns mention, if these are enough.
    fn draft_layers(
        &self,
        unit: &DistillUnit,
        turns: &[ObservedTurn],
        topics: &[FoundTopic],
    ) -> Result<Vec<LessonDraft>, MemoryError> {
        let mut drafts = Vec::new();
        let mut covered: BTreeSet<usize> = BTreeSet::new();
        for topic in topics
            .iter()
            .filter(|topic| topic.turns.len() >= MIN_LAYER_TURNS)
        {
            let shared = topic.turns.iter().filter(|at| covered.contains(at)).count();
            if shared * 100 > topic.turns.len() * MAX_SHARED_TURNS_PERCENT {
                continue;
            }
            if drafts.len() == MAX_LAYERS_BY_RULES {
                break;
            }
            let (mut lines, mut used, mut sources) = (Vec::new(), 0, Vec::new());
            // The newest turns know best.
            for turn in topic.turns.iter().rev().map(|at| &turns[*at]) {
                let text = self.read(|reader| {
                    let level = Level::Compressed;
                    read_level_text(&reader.connection, turn.session, turn.number, level)
                })?;
                let text = text.unwrap_or_default().replace('\n', " ");
                let session = unit.session(turn.session);
                let session = session.map_or("", |session| session.name.as_str());
                let line = format!("- {text} ({session}/T-{})\n", turn.number);
                let cost = tokens::count(&line);
                if used + cost > *LAYER_TOKENS.end() / 2 {
                    break;
                }
                used += cost;
                lines.push(line);
                sources.push(turn.source());
            }
            let content: String = lines.into_iter().rev().collect();
            if LAYER_TOKENS.contains(&tokens::count(&content)) {
                covered.extend(&topic.turns);
                let mut keywords = extract_keywords(&content);
                keywords.insert(0, topic.name.clone());
                drafts.push(LessonDraft {
                    kind: LessonKind::Layer,
                    status: LessonStatus::Proposed,
                    title: format!("Notes about {}", topic.name),
                    topics: vec![topic.name.clone()],
                    keywords,
                    content,
                    turns: sources,
                    identity: format!("{} {}", unit.key, topic.name),
                });
            }
        }
        Ok(drafts)
    }
}

/// Returns the sessions of a unit after these turns were distilled.
fn after(unit: &DistillUnit, spans: &[TurnSpan]) -> Vec<crate::distill_unit::UnitSession> {
    let mut sessions = unit.sessions.clone();
    for session in &mut sessions {
        let of_session = spans.iter().filter(|span| span.session == session.id);
        let last = of_session.map(|span| span.last).max();
        session.distilled_to = last.unwrap_or(0).max(session.distilled_to);
    }
    sessions
}

/// Finds the turn of a prompt that a name in an answer means: `SESSION/T-5`, or `T-5` if the prompt
/// has turns of one session only.
fn find_source(folder: UnitFolder<'_>, turns: &[ObservedTurn], name: &str) -> Option<SourceTurn> {
    let (session, turn) = match name.rsplit_once('/') {
        Some((session, turn)) => {
            let mut sessions = folder.sessions();
            (sessions.find(|it| it.name == session)?.id, turn)
        }
        None => {
            let first = turns.first()?.session;
            let is_only = turns.iter().all(|turn| turn.session == first);
            (is_only.then_some(first)?, name)
        }
    };
    let number = crate::parse_turn_number(turn)?;
    let mut found = turns.iter().map(ObservedTurn::source);
    found.find(|turn| *turn == SourceTurn { session, number })
}

/// Drafts lessons by rules.
fn draft_by_rules(turns: &[ObservedTurn]) -> Vec<LessonDraft> {
    let mut drafts = find_preferences(turns);
    drafts.extend(find_decisions(turns));
    for of_session in turns.chunk_by(|a, b| a.session == b.session) {
        drafts.extend(find_fixes(of_session));
    }
    drafts.extend(find_programs(turns));
    drafts
}

/// Writes that turns were distilled. Fails if another process distilled them.
fn mark_distilled(
    connection: &Connection,
    unit: &DistillUnit,
    spans: &[TurnSpan],
) -> Result<(), MemoryError> {
    for span in spans {
        let sql = "UPDATE memory_sessions SET distilled = ?3 WHERE id = ?1 AND distilled = ?2";
        let row = params![span.session, span.first - 1, span.last];
        if execute(connection, sql, row)? == 0 {
            let name = unit
                .session(span.session)
                .map(|session| session.name.clone());
            return Err(MemoryError::DistillLocked(name.unwrap_or_default()));
        }
    }
    Ok(())
}

/// Stores what an answer about turns of a folder says about lessons. It can contradict and merge
/// lessons of this folder only: the model knew no others. Returns how many lessons were learned.
fn learn(
    connection: &Connection,
    folder: UnitFolder<'_>,
    answer: &DistillAnswer,
) -> Result<u32, MemoryError> {
    let is_known = |lesson: &str| is_lesson_of(connection, folder, lesson);
    for found in &answer.contradictions {
        if is_known(&found.lesson)? {
            contradict_lesson(connection, &found.lesson, &found.statement, &found.turns)?;
        }
    }
    for (keep, drop) in &answer.duplicates {
        if is_known(keep)? && is_known(drop)? {
            merge_lesson(connection, drop, keep)?;
        }
    }
    for draft in &answer.drafts {
        learn_lesson(connection, folder, draft)?;
    }
    Ok(answer.drafts.len() as u32)
}

impl Memory {
    /// Returns the pieces of a turn with secrets redacted.
    pub(crate) fn redacted_pieces(&self, turn: &StoredTurn) -> Vec<TurnPiece> {
        let mut pieces = parse_pieces(turn.format, &turn.role, &turn.raw);
        for piece in &mut pieces {
            let (TurnPiece::Message { text, .. }
            | TurnPiece::Reasoning(text)
            | TurnPiece::Call { args: text, .. }
            | TurnPiece::Output { text, .. }) = piece;
            *text = self.redact(text).into_owned();
            if let TurnPiece::Output { calls, .. } = piece {
                for call in calls {
                    call.args = self.redactor.redact_value(&call.args);
                    call.result = self.redactor.redact_value(&call.result);
                    call.error = call
                        .error
                        .as_deref()
                        .map(|text| self.redact(text).into_owned());
                }
            }
        }
        pieces
    }
}
