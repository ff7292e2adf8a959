//! Finding turns: the index and the ranking together.

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

/// What is looked for, and how much of it is wanted.
#[derive(Debug, Clone)]
pub struct Query<'a> {
    /// In words.
    pub text: &'a str,
    /// In which session; in all where none is named.
    pub session: Option<&'a str>,
    /// At most so many turns.
    pub k: usize,
    /// At most so many tokens, tags counted: what does not fit in full is told in fewer words.
    pub budget: Option<u32>,
    /// How much each feature counts.
    pub weights: Weights,
}

impl<'a> Query<'a> {
    /// The ten best turns of all.
    pub fn new(text: &'a str) -> Self {
        Self {
            text,
            session: None,
            k: 10,
            budget: None,
            weights: Weights::default(),
        }
    }

    /// Only of this session.
    pub fn in_session(self, session: &'a str) -> Self {
        Self {
            session: Some(session),
            ..self
        }
    }
}

/// A turn that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    /// Its session.
    pub session: String,
    /// Its number there: 50 for T-50.
    pub number: u32,
    /// The name it came with, as JSON.
    pub key: Option<String>,
    /// How well it fits; only to be compared within one search.
    pub score: f64,
    /// How it is told within the budget.
    pub level: Level,
    /// Tokens of it at that level, tags included.
    pub tokens: u32,
}

impl Memory {
    /// The turns a question is about, the best first.
    pub fn search(&self, query: &Query<'_>) -> Result<Vec<Hit>, MemoryError> {
        let encoder = self.encoder.as_ref();
        let encoder = encoder.filter(|_| query.weights.vectors != 0.0);
        let question = encoder.and_then(|encoder| {
            // Without vectors the keywords still find what they find.
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

/// Every turn that may be found, as far as ranking needs to know it. Kept by a reader, and added to as turns come.
#[derive(Debug)]
pub(crate) struct Scope {
    version: i64,
    only: Option<i64>,
    sessions: Vec<InScope>,
    turns: Turns,
}

#[derive(Debug, Default)]
struct InScope {
    id: i64,
    name: String,
    /// Another of both, and what was read does not hold any more.
    created_ms: i64,
    forgotten: i64,
    /// Where its turns begin among all.
    offset: usize,
    turns: u32,
    speakers: Vec<String>,
    sittings: Sittings,
    /// Whether a user speaks in it, and an assistant without a name.
    asked: bool,
    answered: bool,
}

/// A question as a vector, and the name of the encoder that made it.
type Likeness<'a> = Option<&'a (&'a str, Vec<i8>)>;

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
    let mut kept = reader.scope.take().filter(|scope| scope.only == only);
    if let Some(scope) = &mut kept
        && !scope.is_current(connection)?
    {
        kept = None;
    }
    let scope = match kept {
        Some(scope) => scope,
        None => Scope::load(connection, only)?,
    };
    reader.scope.insert(scope).rank(connection, query, question)
}

/// Changes whenever another connection has written.
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

    /// Whether it holds, with the turns that came since: those of one session are added.
    fn is_current(&mut self, connection: &Connection) -> Result<bool, MemoryError> {
        let version = version(connection)?;
        if version == self.version {
            return Ok(true);
        }
        let (Some(_), [session]) = (self.only, &mut self.sessions[..]) else {
            return Ok(false);
        };
        let sql = "SELECT created_ms, forgotten FROM memory_sessions WHERE id = ?1";
        let same = row(connection, sql, params![session.id], |row| row.try_into())?;
        if same != Some((session.created_ms, session.forgotten)) {
            return Ok(false);
        }
        session.grow(connection, &mut self.turns)?;
        self.version = version;
        Ok(true)
    }

    fn rank(
        &self,
        connection: &Connection,
        query: &Query<'_>,
        question: Likeness<'_>,
    ) -> Result<Vec<Hit>, MemoryError> {
        let mut asked = Asked {
            named: self.named(query.text),
            ..Asked::default()
        };
        for term in query_terms(query.text) {
            let mut list = Vec::new();
            let mut at = 0;
            each_posting(connection, &term, self.only, |session, turn, count| {
                // Postings come in the order of sessions.
                while let Some(known) = self.sessions.get(at)
                    && known.id < session
                {
                    at += 1;
                }
                if let Some(known) = self.sessions.get(at)
                    && known.id == session
                    && turn <= known.turns
                {
                    list.push(((known.offset + turn as usize - 1) as u32, count));
                }
            })?;
            asked.postings.push(list);
        }
        drop_common(&mut asked.postings, self.turns.numbers.len());
        if let Some((encoder, question)) = question {
            let (mut alike, mut any) = (Vec::with_capacity(self.turns.numbers.len()), false);
            for session in &self.sessions {
                let InScope { id, turns, .. } = *session;
                any |= likeness(connection, id, turns, question, encoder, &mut alike)?;
            }
            asked.likeness = any.then_some(alike);
        }
        if asked.likeness.is_none() && asked.postings.iter().all(Vec::is_empty) {
            return Ok(Vec::new());
        }
        let scores = rank::scores(&self.turns, &asked, &query.weights);
        let related = |at: usize| scores[at] > 0.0 && self.turns.numbers[at].words > 0;
        // The cheapest turn has its tags.
        let most = query
            .budget
            .map_or(usize::MAX, |budget| budget as usize / 12 + 1);
        let best = rank::best(&scores, related, query.k.min(most));
        self.told(connection, query, &scores, &best)
    }

    /// The turns with their names, told within the budget.
    fn told(
        &self,
        connection: &Connection,
        query: &Query<'_>,
        scores: &[f64],
        best: &[usize],
    ) -> Result<Vec<Hit>, MemoryError> {
        let mut key =
            connection.prepare_cached("SELECT opened(key) FROM memory_turns WHERE id = ?1")?;
        let mut columns = ColumnWriter::default();
        let mut hits = Vec::with_capacity(best.len());
        let mut candidates = Vec::with_capacity(best.len());
        for at in best {
            let after = self
                .sessions
                .partition_point(|session| session.offset <= *at);
            let session = &self.sessions[after - 1];
            let number = (at - session.offset + 1) as u32;
            let tokens = columns.get(connection, session.id, number)?.tokens;
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
        let mut told = pack(&candidates, query.budget).into_iter();
        hits.retain_mut(|hit| match told.next().flatten() {
            Some(told) => {
                (hit.level, hit.tokens) = told;
                true
            }
            None => false,
        });
        Ok(hits)
    }

    /// Who is named in a question, session by session.
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

/// What most turns have tells none of them apart: it only counts where there is nothing else.
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
    /// Reads the turns that are not read yet.
    fn grow(&mut self, connection: &Connection, all: &mut Turns) -> Result<(), MemoryError> {
        let sql = "SELECT turns FROM memory_sessions WHERE id = ?1";
        let turns = row(connection, sql, params![self.id], |row| row.get(0))?.unwrap_or(0);
        columns::read(connection, self.id, self.turns + 1, turns, &mut all.numbers)?;
        let fresh = &all.numbers[self.offset + self.turns as usize..];
        self.asked |= fresh.iter().any(|turn| turn.role == Role::User);
        self.answered |= fresh
            .iter()
            .any(|turn| turn.role == Role::Assistant && turn.speaker == 0);
        self.turns = turns;
        self.speakers = speakers(connection, self.id)?;
        self.sittings
            .grow(connection, self.id, turns, self.offset, all)
    }
}

/// The sittings of a session that were read so far.
#[derive(Debug, Default)]
struct Sittings {
    /// A label that comes again is the same sitting.
    labels: HashMap<String, u32>,
    /// The last part: its first turn, its sitting and its words. It may have grown since.
    last: Option<(u32, u32, i64)>,
}

impl Sittings {
    /// Assigns each turn up to the last its sitting.
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
            let fresh = turns.sitting_words.len() as u32;
            let mut labelled = |label| *self.labels.entry(label).or_insert(fresh);
            let (sitting, counted) = match self.last {
                Some((known, sitting, words)) if known == first => (sitting, words),
                _ => (label.map_or(fresh, &mut labelled), 0),
            };
            if sitting == fresh {
                turns.sitting_words.push(0);
            }
            let sum = &mut turns.sitting_words[sitting as usize];
            *sum = sum.saturating_add_signed(words.max(0) - counted.max(0));
            self.last = Some((first, sitting, words));
            let covered = (turns.sitting.len() - offset) as u32 + 1;
            let more = end.saturating_sub(first.max(covered)) as usize;
            turns.sitting.extend(std::iter::repeat_n(sitting, more));
        }
        if turns.sitting.len() != turns.numbers.len() {
            return Err(MemoryError::Damaged(format!(
                "the sittings of session {session} do not cover its turns"
            )));
        }
        Ok(())
    }
}

/// The speakers of a session, in the order of their numbers, which begin at one.
pub(crate) fn speakers(connection: &Connection, session: i64) -> Result<Vec<String>, MemoryError> {
    let sql = "SELECT opened(name) FROM memory_speakers WHERE session = ?1 ORDER BY id";
    rows(connection, sql, params![session], |row| row.get(0))
}
