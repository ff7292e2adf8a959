//! Searches turns: reads the index, ranks, and fits the best turns into a budget.

use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, params};

use crate::columns::{self, ColumnWriter, Role};
use crate::pack::{Candidate, pack};
use crate::postings::each_posting;
use crate::rank::{self, Asked, Named, Turns, Weights};
use crate::store::{Reader, find, row, rows, turn_id};
use crate::vectors::{likeness, quantised};
use crate::words::{each_word, is_stop_word, query_terms};
use crate::{Level, Memory, MemoryError};

/// A search, with its limits.
#[derive(Debug, Clone)]
pub struct Query<'a> {
    /// The question or keywords.
    pub text: &'a str,
    /// The session to search; `None` for all.
    pub session: Option<&'a str>,
    /// The maximum number of turns.
    pub k: usize,
    /// The maximum tokens of all turns, tags included. Turns that do not fit in full get a lower
    /// level. `None` for no limit.
    pub budget: Option<u32>,
    /// The weights of the ranking features.
    pub weights: Weights,
}

impl<'a> Query<'a> {
    /// A search for the ten best turns in all sessions.
    pub fn new(text: &'a str) -> Self {
        Self {
            text,
            session: None,
            k: 10,
            budget: None,
            weights: Weights::default(),
        }
    }

    /// Restricts the search to a session.
    pub fn in_session(self, session: &'a str) -> Self {
        Self {
            session: Some(session),
            ..self
        }
    }
}

/// A turn that a search found.
#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    /// The name of the session.
    pub session: String,
    /// The number of the turn in its session: 50 for T-50.
    pub number: u32,
    /// The turn's key in the source it was imported from, as JSON.
    pub key: Option<String>,
    /// The relevance. Scores are comparable within one search only.
    pub score: f64,
    /// The level at which the turn fits into the budget.
    pub level: Level,
    /// The tokens of the turn at that level, tags included.
    pub tokens: u32,
}

impl Memory {
    /// Returns the turns that match a question, the best first.
    pub fn search(&self, query: &Query<'_>) -> Result<Vec<Hit>, MemoryError> {
        let encoder = self.encoder.as_ref();
        let encoder = encoder.filter(|_| query.weights.vectors != 0.0);
        let question = encoder.and_then(|encoder| {
            // If the encoder fails, the search uses keywords alone.
            let vectors = encoder.encode(&[&self.redacted(query.text)]).ok()?;
            Some((encoder.name(), quantised(vectors.last()?)))
        });
        let mut hits = self.read(|reader| look_up(reader, query, question.as_ref()))?;
        for hit in hits.iter_mut().filter(|hit| hit.tokens == 0) {
            // Its levels are not written yet.
            hit.tokens = self.count_now(&hit.session, hit.number)?;
        }
        if let Some(budget) = query.budget {
            let mut left = budget;
            hits.retain(|hit| {
                let fits = hit.tokens <= left;
                left -= if fits { hit.tokens } else { 0 };
                fits
            });
        }
        Ok(hits)
    }
}

/// The ranking data of all turns that a search considers. A pooled reader keeps it for the next
/// search, which only reads the turns appended since.
#[derive(Debug)]
pub(crate) struct Scope {
    /// SQLite's `data_version` when the scope was last refreshed.
    version: i64,
    /// The session that is searched; `None` for all.
    only: Option<i64>,
    sessions: Vec<InScope>,
    turns: Turns,
}

/// A session in a search scope.
#[derive(Debug, Default)]
struct InScope {
    id: i64,
    name: String,
    /// If this or `forgotten` changes, the loaded data is not valid any more.
    created_ms: i64,
    /// How many turns of the session were forgotten.
    forgotten: i64,
    /// The index of the session's first turn among all turns.
    offset: usize,
    turns: u32,
    speakers: Vec<String>,
    sittings: Sittings,
    /// Whether the session has a turn of a user.
    asked: bool,
    /// Whether the session has a turn of an assistant without a name.
    answered: bool,
}

/// The name of an encoder and the question's vector, if there is an encoder.
type Likeness<'a> = Option<&'a (&'a str, Vec<i8>)>;

/// Runs a search in the scope that the reader kept, or in a new one.
fn look_up(
    reader: &mut Reader,
    query: &Query<'_>,
    question: Likeness<'_>,
) -> Result<Vec<Hit>, MemoryError> {
    let connection = &reader.connection;
    let only = match query.session {
        Some(name) => Some(find(connection, name)?.id),
        None => None,
    };
    let mut cached = reader.scope.take().filter(|scope| scope.only == only);
    if let Some(scope) = &mut cached
        && !scope.is_current(connection)?
    {
        cached = None;
    }
    let scope = match cached {
        Some(scope) => scope,
        None => Scope::load(connection, only)?,
    };
    reader.scope.insert(scope).rank(connection, query, question)
}

/// Returns SQLite's `data_version`, which changes when another connection has written.
fn version(connection: &Connection) -> Result<i64, MemoryError> {
    Ok(connection.pragma_query_value(None, "data_version", |row| row.get(0))?)
}

impl Scope {
    fn load(connection: &Connection, only: Option<i64>) -> Result<Self, MemoryError> {
        let version = version(connection)?;
        let sql = "SELECT id, name, created_ms, forgotten FROM memory_sessions
             WHERE ?1 IS NULL OR id = ?1 ORDER BY id";
        let mut sessions: Vec<InScope> = rows(connection, sql, params![only], |row| {
            Ok(InScope {
                id: row.get(0)?,
                name: row.get(1)?,
                created_ms: row.get(2)?,
                forgotten: row.get(3)?,
                ..InScope::default()
            })
        })?;
        let mut turns = Turns::default();
        for session in &mut sessions {
            session.offset = turns.numbers.len();
            session.grow(connection, &mut turns)?;
        }
        Ok(Self {
            version,
            only,
            sessions,
            turns,
        })
    }

    /// Adds the turns appended since the scope was loaded. Returns false if the scope must be
    /// loaded again: if a turn was forgotten, or if it covers all sessions and anything changed.
    fn is_current(&mut self, connection: &Connection) -> Result<bool, MemoryError> {
        let version = version(connection)?;
        if version == self.version {
            return Ok(true);
        }
        let (Some(_), [session]) = (self.only, &mut self.sessions[..]) else {
            return Ok(false);
        };
        let sql = "SELECT created_ms, forgotten FROM memory_sessions WHERE id = ?1";
        let current = row(connection, sql, params![session.id], |row| row.try_into())?;
        if current != Some((session.created_ms, session.forgotten)) {
            return Ok(false);
        }
        session.grow(connection, &mut self.turns)?;
        self.version = version;
        Ok(true)
    }

    /// Ranks the turns of the scope and returns the best.
    fn rank(
        &self,
        connection: &Connection,
        query: &Query<'_>,
        question: Likeness<'_>,
    ) -> Result<Vec<Hit>, MemoryError> {
        let mut rank_query = Asked {
            named: self.named(query.text),
            ..Asked::default()
        };
        for term in query_terms(query.text) {
            let mut list = Vec::new();
            let mut at = 0;
            each_posting(connection, &term, self.only, |session, turn, count| {
                // Postings come in the order of sessions.
                while let Some(searched) = self.sessions.get(at)
                    && searched.id < session
                {
                    at += 1;
                }
                if let Some(searched) = self.sessions.get(at)
                    && searched.id == session
                    && turn <= searched.turns
                {
                    list.push(((searched.offset + turn as usize - 1) as u32, count));
                }
            })?;
            rank_query.postings.push(list);
        }
        drop_common(&mut rank_query.postings, self.turns.numbers.len());
        if let Some((encoder, question)) = question {
            let (mut similarities, mut any) = (Vec::with_capacity(self.turns.numbers.len()), false);
            for session in &self.sessions {
                let InScope { id, turns, .. } = *session;
                any |= likeness(connection, id, turns, question, encoder, &mut similarities)?;
            }
            rank_query.likeness = any.then_some(similarities);
        }
        if rank_query.likeness.is_none() && rank_query.postings.iter().all(Vec::is_empty) {
            return Ok(Vec::new());
        }
        let scores = rank::scores(&self.turns, &rank_query, &query.weights);
        let related = |at: usize| scores[at] > 0.0 && self.turns.numbers[at].words > 0;
        // A turn takes at least the tokens of its tags, which limits how many can fit.
        let max_turns = query
            .budget
            .map_or(usize::MAX, |budget| budget as usize / 12 + 1);
        let best = rank::best(&scores, related, query.k.min(max_turns));
        self.told(connection, query, &scores, &best)
    }

    /// Builds the hits for the best turns, and drops those that do not fit into the budget.
    fn told(
        &self,
        connection: &Connection,
        query: &Query<'_>,
        scores: &[f64],
        best: &[usize],
    ) -> Result<Vec<Hit>, MemoryError> {
        let mut key =
            connection.prepare_cached("SELECT opened(key) FROM memory_turns WHERE id = ?1")?;
        let mut metrics_writer = ColumnWriter::default();
        let mut hits = Vec::with_capacity(best.len());
        let mut candidates = Vec::with_capacity(best.len());
        for at in best {
            let after = self
                .sessions
                .partition_point(|session| session.offset <= *at);
            let session = &self.sessions[after - 1];
            let number = (at - session.offset + 1) as u32;
            let tokens = metrics_writer.get(connection, session.id, number)?.tokens;
            candidates.push(Candidate { number, tokens });
            hits.push(Hit {
                session: session.name.clone(),
                number,
                key: key.query_row(params![turn_id(session.id, number)], |row| row.get(0))?,
                score: scores[*at],
                level: Level::Raw,
                tokens: 0,
            });
        }
        let mut levels = pack(&candidates, query.budget).into_iter();
        hits.retain_mut(|hit| match levels.next().flatten() {
            Some(level_and_tokens) => {
                (hit.level, hit.tokens) = level_and_tokens;
                true
            }
            None => false,
        });
        Ok(hits)
    }

    /// Returns the speakers and roles that a question names, for each session.
    fn named(&self, question: &str) -> Vec<Named> {
        let mut words = HashSet::new();
        each_word(question, |word| _ = words.insert(word.to_owned()));
        let has = |word: &str| words.contains(word);
        let role = match (has("user"), has("assistant")) {
            (true, false) => Some(Role::User),
            (false, true) => Some(Role::Assistant),
            _ => None,
        };
        let named = self.sessions.iter().map(|session| {
            let mut speakers = Vec::new();
            for (at, name) in session.speakers.iter().enumerate() {
                let mut is_named = false;
                each_word(name, |word| {
                    is_named |= word.len() > 1 && !is_stop_word(word) && has(word)
                });
                if is_named {
                    speakers.push((at + 1) as u8);
                }
            }
            Named {
                from: session.offset,
                speakers,
                role,
                assisted: session.asked && session.answered,
            }
        });
        named.collect()
    }
}

/// Removes terms that more than half of the turns contain, unless there are no others: they do not
/// distinguish turns.
fn drop_common(postings: &mut Vec<Vec<(u32, u32)>>, turns: usize) {
    let is_rare = |list: &Vec<_>| list.len() <= turns / 2;
    if postings
        .iter()
        .any(|list| !list.is_empty() && is_rare(list))
    {
        postings.retain(is_rare);
    }
}

impl InScope {
    /// Reads the turns that were appended since the last call.
    fn grow(&mut self, connection: &Connection, all: &mut Turns) -> Result<(), MemoryError> {
        let sql = "SELECT turns FROM memory_sessions WHERE id = ?1";
        let turns = row(connection, sql, params![self.id], |row| row.get(0))?.unwrap_or(0);
        columns::read(connection, self.id, self.turns + 1, turns, &mut all.numbers)?;
        let new_turns = &all.numbers[self.offset + self.turns as usize..];
        self.asked |= new_turns.iter().any(|turn| turn.role == Role::User);
        self.answered |= new_turns
            .iter()
            .any(|turn| turn.role == Role::Assistant && turn.speaker == 0);
        self.turns = turns;
        self.speakers = speakers(connection, self.id)?;
        self.sittings
            .grow(connection, self.id, turns, self.offset, all)
    }
}

/// The parts of a session that were read so far.
#[derive(Debug, Default)]
struct Sittings {
    /// The index of the part with each label: rows with the same label are one part.
    labels: HashMap<String, u32>,
    /// The last row: its first turn, the index of its part and its words. It may have grown since.
    last: Option<(u32, u32, i64)>,
}

impl Sittings {
    /// Reads new parts and assigns each turn up to `count` to its part.
    fn grow(
        &mut self,
        connection: &Connection,
        session: i64,
        count: u32,
        offset: usize,
        turns: &mut Turns,
    ) -> Result<(), MemoryError> {
        let from = self.last.map_or(0, |(first, ..)| first);
        let sql = "SELECT first, opened(label), words FROM memory_parts
             WHERE session = ?1 AND first >= ?2 ORDER BY first";
        let parts: Vec<(u32, Option<String>, i64)> =
            rows(connection, sql, params![session, from], |row| {
                row.try_into()
            })?;
        let ends = parts.iter().skip(1).map(|(next, ..)| *next);
        let ends: Vec<u32> = ends.chain([count + 1]).collect();
        for ((first, label, words), end) in parts.into_iter().zip(ends) {
            let new_part = turns.sitting_words.len() as u32;
            let mut labelled = |label| *self.labels.entry(label).or_insert(new_part);
            let (part, counted) = match self.last {
                Some((known, part, words)) if known == first => (part, words),
                _ => (label.map_or(new_part, &mut labelled), 0),
            };
            if part == new_part {
                turns.sitting_words.push(0);
            }
            let sum = &mut turns.sitting_words[part as usize];
            *sum = sum.saturating_add_signed(words.max(0) - counted.max(0));
            self.last = Some((first, part, words));
            let next_turn = (turns.sitting.len() - offset) as u32 + 1;
            let missing = end.saturating_sub(first.max(next_turn)) as usize;
            turns.sitting.extend(std::iter::repeat_n(part, missing));
        }
        if turns.sitting.len() != turns.numbers.len() {
            return Err(MemoryError::Damaged(format!(
                "the parts of session {session} do not cover its turns"
            )));
        }
        Ok(())
    }
}

/// Returns the names of a session's speakers, in the order of their numbers, which start at 1.
pub(crate) fn speakers(connection: &Connection, session: i64) -> Result<Vec<String>, MemoryError> {
    let sql = "SELECT opened(name) FROM memory_speakers WHERE session = ?1 ORDER BY id";
    rows(connection, sql, params![session], |row| row.get(0))
}
