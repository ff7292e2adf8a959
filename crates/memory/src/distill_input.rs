//! The prompts of distilling: what is known of the project, the latest turns in more detail, and as
//! many new turns as the model's context allows.

use std::collections::BTreeSet;

use selvedge_database::Connection;

use crate::board::truncate_to_tokens;
use crate::cleaning::collapse_whitespace;
use crate::distill_answer::DISTILL_INSTRUCTIONS;
use crate::distill_unit::{TurnSpan, UnitFolder, UnitSession, is_asked_by_agent};
use crate::lesson_learning::SourceTurn;
use crate::lessons::read_lessons;
use crate::level_writer::read_level_text;
use crate::sectioned_text::SectionedText;
use crate::store::load_turn;
use crate::topics::{read_areas, read_folder_topics};
use crate::turn_pieces::parse_pieces;
use crate::{LessonKind, LessonStatus, Level, Memory, MemoryError, time, tokens};

/// The part of a model's context that a prompt may use, in percent. The rest is for the answer, and
/// for models that count more tokens.
const PROMPT_PERCENT: u32 = 75;
/// The part of a prompt for what is known, in percent. What it does not use is for turns.
const KNOWN_PERCENT: u32 = 30;
/// The part of a prompt for turns that were read before, in percent.
const RECENT_PERCENT: u32 = 15;
/// The latest turns of the project, which are smoothed instead of compressed.
const SMOOTHED_TURNS: usize = 20;
/// Tokens of one lesson among what is known.
const MAX_KNOWN_LESSON_TOKENS: u32 = 120;
/// Tokens of one turn. A longer one is truncated.
const MAX_TURN_TOKENS: u32 = 2_000;
/// Lessons that are considered as known, the highest weight first.
const MAX_KNOWN_LESSONS: u32 = 2_000;
/// The heading of the turns from which something is to be learned.
const NEW_TURNS_HEADING: &str = "# New turns";

/// The prompts about new turns of a unit, and the spans of each.
pub(crate) type DistillPrompts = Vec<(String, Vec<TurnSpan>)>;

/// The new turns of a prompt while it is composed.
#[derive(Default)]
struct NewTurns {
    text: String,
    tokens: u32,
    spans: Vec<TurnSpan>,
    /// Whether something may be learned from any of the turns.
    any: bool,
}

impl Memory {
    /// Composes the prompts about spans of new turns of a folder: up to `max_prompts`, each within
    /// the context of a model with `context_tokens`. A prompt without text is about turns from
    /// which nothing is learned.
    pub(crate) fn compose_prompts(
        &self,
        folder: UnitFolder<'_>,
        spans: &[TurnSpan],
        context_tokens: u32,
        max_prompts: usize,
    ) -> Result<DistillPrompts, MemoryError> {
        for session in folder.sessions() {
            if spans.iter().any(|span| span.session == session.id) {
                self.write_missing_levels(&session.name)?;
            }
        }
        let room = context_tokens / 100 * PROMPT_PERCENT;
        let room = room.saturating_sub(tokens::count(DISTILL_INSTRUCTIONS));
        self.read(|reader| {
            let connection = &reader.connection;
            let latest = latest_turns(connection, folder)?;
            let known = known_text(connection, folder, room / 100 * KNOWN_PERCENT)?;
            let recent = self.recent_text(connection, folder, spans, &latest, room)?;
            let used = tokens::count(&known) + tokens::count(&recent);
            let room = room.saturating_sub(used).max(MAX_TURN_TOKENS);
            let chunks =
                self.split_turns(connection, folder, (spans, &latest), room, max_prompts)?;
            let prompts = chunks.into_iter().map(|chunk| {
                let text = match chunk.any {
                    true => format!(
                        "{DISTILL_INSTRUCTIONS}\n\n{known}{recent}{NEW_TURNS_HEADING}\n{}",
                        chunk.text
                    ),
                    false => String::new(),
                };
                (text, chunk.spans)
            });
            Ok(prompts.collect())
        })
    }

    /// Splits new turns into chunks that fit into a prompt each.
    fn split_turns(
        &self,
        connection: &Connection,
        folder: UnitFolder<'_>,
        (spans, latest): (&[TurnSpan], &BTreeSet<SourceTurn>),
        room: u32,
        max_chunks: usize,
    ) -> Result<Vec<NewTurns>, MemoryError> {
        let mut chunks = vec![NewTurns::default()];
        for span in spans {
            let Some(session) = folder.session(span.session) else {
                continue;
            };
            for number in span.first..=span.last {
                let line = self.turn_line(connection, session, number, latest)?;
                let cost = line.as_deref().map_or(0, tokens::count);
                let count = chunks.len();
                let Some(mut chunk) = chunks.last_mut() else {
                    continue;
                };
                if chunk.tokens + cost > room && chunk.any {
                    if count == max_chunks {
                        return Ok(chunks);
                    }
                    chunks.push(NewTurns::default());
                    let Some(next) = chunks.last_mut() else {
                        continue;
                    };
                    chunk = next;
                }
                match chunk.spans.last_mut() {
                    Some(last) if last.session == session.id => last.last = number,
                    _ => {
                        chunk.text.push_str(&session_heading(session));
                        chunk.spans.push(TurnSpan {
                            session: session.id,
                            first: number,
                            last: number,
                        });
                    }
                }
                if let Some(line) = line {
                    chunk.tokens += cost;
                    chunk.text.push_str(&line);
                    chunk.any = true;
                }
            }
        }
        chunks.retain(|chunk| !chunk.spans.is_empty());
        Ok(chunks)
    }

    /// Renders the latest turns that were read before, so that new ones are understood.
    fn recent_text(
        &self,
        connection: &Connection,
        folder: UnitFolder<'_>,
        new: &[TurnSpan],
        latest: &BTreeSet<SourceTurn>,
        room: u32,
    ) -> Result<String, MemoryError> {
        let is_new = |turn: &SourceTurn| {
            new.iter().any(|span| {
                span.session == turn.session && (span.first..=span.last).contains(&turn.number)
            })
        };
        let mut left = room / 100 * RECENT_PERCENT;
        let mut lines: Vec<(&UnitSession, String)> = Vec::new();
        // The newest are the most useful.
        for turn in latest.iter().rev().filter(|turn| !is_new(turn)) {
            let Some(session) = folder.session(turn.session) else {
                continue;
            };
            if turn.number > session.distilled_to {
                continue;
            }
            let Some(line) = self.turn_line(connection, session, turn.number, latest)? else {
                continue;
            };
            match left.checked_sub(tokens::count(&line)) {
                Some(rest) => left = rest,
                None => break,
            }
            lines.push((session, line));
        }
        if lines.is_empty() {
            return Ok(String::new());
        }
        let mut text = "# Turns that were read before\n".to_owned();
        let mut before = None;
        for (session, line) in lines.into_iter().rev() {
            if before != Some(session.id) {
                text.push_str(&session_heading(session));
                before = Some(session.id);
            }
            text.push_str(&line);
        }
        Ok(text + "\n")
    }

    /// Renders one turn; `None` if it was forgotten, or if an agent asked for it.
    fn turn_line(
        &self,
        connection: &Connection,
        session: &UnitSession,
        number: u32,
        latest: &BTreeSet<SourceTurn>,
    ) -> Result<Option<String>, MemoryError> {
        let Some(stored) = load_turn(connection, session.id, number)? else {
            return Ok(None);
        };
        if is_asked_by_agent(&parse_pieces(stored.format, &stored.role, &stored.raw)) {
            return Ok(None);
        }
        let turn = SourceTurn {
            session: session.id,
            number,
        };
        let level = match latest.contains(&turn) {
            true => Level::Smoothed,
            false => Level::Compressed,
        };
        let text = read_level_text(connection, session.id, number, level)?;
        Ok(text.map(|text| {
            let text = truncate_to_tokens(&collapse_whitespace(&text), MAX_TURN_TOKENS);
            format!("T-{number}: {text}\n")
        }))
    }
}

fn session_heading(session: &UnitSession) -> String {
    format!("## session {}\n", session.name.replace('\n', " "))
}

/// Returns the latest turns of a folder.
fn latest_turns(
    connection: &Connection,
    folder: UnitFolder<'_>,
) -> Result<BTreeSet<SourceTurn>, MemoryError> {
    let mut turns = Vec::new();
    for session in folder.sessions().rev() {
        let first = session.turn_count.saturating_sub(SMOOTHED_TURNS as u32) + 1;
        let sql = "SELECT id, at_ms FROM memory_turns WHERE id >= ?1 AND id <= ?2";
        let from = crate::store::turn_id(session.id, first);
        let to = crate::store::turn_id(session.id, session.turn_count);
        let found: Vec<(i64, i64)> = crate::store::query_rows(
            connection,
            sql,
            selvedge_database::params![from, to],
            |row| row.try_into(),
        )?;
        turns.extend(found.into_iter().map(|(id, at_ms)| {
            let number = id as u32;
            (
                at_ms,
                SourceTurn {
                    session: session.id,
                    number,
                },
            )
        }));
    }
    turns.sort_unstable_by_key(|(at_ms, turn)| std::cmp::Reverse((*at_ms, *turn)));
    let latest = turns.into_iter().take(SMOOTHED_TURNS);
    Ok(latest.map(|(_, turn)| turn).collect())
}

/// Renders what is known of a folder within a limit: topics, areas, and the lessons and layers that
/// were learned only in it, or that a person wrote for the project.
fn known_text(
    connection: &Connection,
    folder: UnitFolder<'_>,
    max_tokens: u32,
) -> Result<String, MemoryError> {
    let key = &folder.unit.key;
    let mut lessons = read_lessons(connection, None, Some(key), MAX_KNOWN_LESSONS)?;
    let names: BTreeSet<&str> = folder.sessions().map(|it| it.name.as_str()).collect();
    let is_of_folder = |source: &String| {
        let session = source.rsplit_once('/').map(|(session, _)| session);
        session.is_some_and(|session| names.contains(session))
    };
    // Lessons of the user may come from other projects.
    lessons.retain(|lesson| {
        lesson.status != LessonStatus::Declined
            && lesson.project.as_ref() == Some(key)
            && lesson.source_turns.iter().all(is_of_folder)
    });
    let (layers, lessons): (Vec<_>, Vec<_>) = lessons
        .into_iter()
        .partition(|lesson| lesson.kind == LessonKind::Layer);
    let topics = read_folder_topics(connection, folder)?
        .into_iter()
        .map(|topic| {
            format!(
                "{} ({}, weight {:.2})",
                topic.name, topic.category, topic.weight
            )
        });
    let areas = read_areas(connection, key, Some(folder.directory))?.into_iter();
    let areas = areas.map(|area| format!("{}: {}", area.name, area.note));
    let lessons = lessons.into_iter().map(|lesson| {
        let content = collapse_whitespace(&lesson.content);
        let content = truncate_to_tokens(&content, MAX_KNOWN_LESSON_TOKENS);
        let status = match lesson.status {
            LessonStatus::Contradicted => ", contradicted",
            _ => "",
        };
        let day = time::format_day(lesson.last_updated);
        let (id, kind) = (&lesson.lesson_id, lesson.kind.as_str());
        format!("{id} ({kind}{status}, {day}): {content}")
    });
    let layers = layers.into_iter().map(|layer| {
        let status = layer.status.as_str();
        format!("{} ({status}, {} tokens)", layer.title, layer.tokens)
    });
    let mut known = SectionedText::new(max_tokens);
    known.add("Lessons:", lessons, max_tokens / 100 * 70);
    known.add("Topics:", topics, max_tokens / 10);
    known.add("Areas:", areas, max_tokens / 10);
    let rest = known.tokens_left;
    known.add("Layers:", layers, rest);
    match known.text.is_empty() {
        true => Ok(String::new()),
        false => Ok(format!("# Known\n{}\n", known.text)),
    }
}
