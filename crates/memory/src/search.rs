//! Searches turns: reads the index, ranks, and fits the best turns into a budget.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};

use selvedge_database::{Connection, params};
use selvedge_text::stem;

use crate::date_hints::DateHint;
use crate::postings::for_each_posting;
use crate::rank::{self, RankQuery, RankWeights, SearchableTurns, SessionSpeakerHints};
use crate::search_budget::{BudgetCandidate, choose_levels};
use crate::store::{PooledReader, now_ms, query_first, query_rows, require_session, turn_id};
use crate::turn_metrics::{self, MetricsRowCache, SpeakerRole};
use crate::vectors::{QuestionVector, SessionVectors};
use crate::words::{for_each_word, is_stop_word, query_terms};
use crate::{Level, Memory, MemoryError};

/// A search, with its limits.
#[derive(Debug, Clone)]
pub struct MemoryQuery<'a> {
    /// The question or keywords.
    pub text: &'a str,
    /// The session to search; `None` for all.
    pub session: Option<&'a str>,
    /// The project to search; `None` for all.
    pub project: Option<&'a str>,
    /// Names of the sessions to search; `None` for all. Other sessions have no effect on scores,
    /// which would tell about their words.
    pub sessions: Option<&'a [String]>,
    /// The maximum number of turns.
    pub max_turns: usize,
    /// The maximum tokens of all turns, tags included. Turns that do not fit in full get a lower
    /// level. `None` for no limit.
    pub budget: Option<u32>,
    /// The weights of the ranking features.
    pub weights: RankWeights,
}

impl<'a> MemoryQuery<'a> {
    /// A search for the ten best turns in all sessions.
    pub fn new(text: &'a str) -> Self {
        Self {
            text,
            session: None,
            project: None,
            sessions: None,
            max_turns: 10,
            budget: None,
            weights: RankWeights::default(),
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
pub struct MemoryHit {
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
    /// Returns the vector of a question with the name of its encoder; `None` without an encoder.
    /// Fails with [`MemoryError::Encoder`].
    pub(crate) fn encode_question(
        &self,
        text: &str,
    ) -> Result<Option<(&str, QuestionVector)>, MemoryError> {
        let Some(encoder) = &self.encoder else {
            return Ok(None);
        };
        let vector = encoder.encode_question(&self.redact(text))?;
        Ok(Some((encoder.name(), QuestionVector::new(&vector))))
    }

    /// Returns what [`Memory::encode_question`] returns; `None` if the encoder fails, so that the
    /// search uses keywords alone.
    pub(crate) fn try_encode_question(&self, text: &str) -> Option<(&str, QuestionVector)> {
        self.encode_question(text).ok().flatten()
    }

    /// Returns the turns that match a question, the best first, without counting the tokens of
    /// turns whose levels are not written yet. `question` is the vector, if vectors are compared.
    pub(crate) fn search_uncounted(
        &self,
        query: &MemoryQuery<'_>,
        question: QueryVector<'_>,
    ) -> Result<Vec<MemoryHit>, MemoryError> {
        self.read(|reader| run_search(reader, query, question))
    }

    /// Returns the turns that match a question, the best first.
    pub fn search(&self, query: &MemoryQuery<'_>) -> Result<Vec<MemoryHit>, MemoryError> {
        let question = match query.weights.vectors != 0.0 {
            true => self.try_encode_question(query.text),
            false => None,
        };
        let mut hits = self.search_uncounted(query, question.as_ref())?;
        for hit in hits.iter_mut().filter(|hit| hit.tokens == 0) {
            // Its levels are not written yet.
            hit.tokens = self.count_raw_tokens(&hit.session, hit.number)?;
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
pub(crate) struct SearchScope {
    /// The version of the data when the scope was last refreshed ([`Connection::data_version`]).
    data_version: Option<i64>,
    /// The session that is searched; `None` for all.
    session_id: Option<i64>,
    /// The project that is searched; `None` for all.
    project: Option<String>,
    /// The names of the sessions that are searched; `None` for all.
    names: Option<BTreeSet<String>>,
    sessions: Vec<SearchedSession>,
    turns: SearchableTurns,
}

/// A session in a search scope.
#[derive(Debug, Default)]
struct SearchedSession {
    id: i64,
    name: String,
    /// If this or `forgotten` changes, the loaded data is not valid any more.
    created_ms: i64,
    /// How many turns of the session were forgotten.
    forgotten: i64,
    /// The index of the session's first turn among all turns.
    offset: usize,
    turn_count: u32,
    speakers: Vec<String>,
    /// The terms of the speakers' names.
    speaker_terms: Vec<String>,
    parts: SessionParts,
    /// The vectors that earlier searches read.
    vectors: RefCell<SessionVectors>,
    /// Whether the session has a turn of a user.
    has_user: bool,
    /// Whether the session has a turn of an assistant without a name.
    has_unnamed_assistant: bool,
}

/// Whether the names of speakers are searched in the sessions in which they speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpeakerNames {
    Search,
    Skip,
}

/// The name of an encoder and the question's vector, if there is an encoder.
pub(crate) type QueryVector<'a> = Option<&'a (&'a str, QuestionVector)>;

/// Runs a search in the scope that the reader kept, or in a new one.
fn run_search(
    reader: &mut PooledReader,
    query: &MemoryQuery<'_>,
    question: QueryVector<'_>,
) -> Result<Vec<MemoryHit>, MemoryError> {
    let connection = &reader.connection;
    let only = match query.session {
        Some(name) => Some(require_session(connection, name)?.id),
        None => None,
    };
    let names: Option<BTreeSet<String>> =
        query.sessions.map(|names| names.iter().cloned().collect());
    let is_same = |scope: &SearchScope| {
        scope.session_id == only
            && scope.project.as_deref() == query.project
            && scope.names == names
    };
    let mut cached = reader.scope.take().filter(is_same);
    if let Some(scope) = &mut cached
        && !scope.refresh(connection)?
    {
        cached = None;
    }
    let scope = match cached {
        Some(scope) => scope,
        None => SearchScope::load(connection, only, query.project, names)?,
    };
    reader.scope.insert(scope).rank(connection, query, question)
}

impl SearchScope {
    fn load(
        connection: &Connection,
        only: Option<i64>,
        project: Option<&str>,
        names: Option<BTreeSet<String>>,
    ) -> Result<Self, MemoryError> {
        let version = connection.data_version()?;
        let sql = "SELECT id, name, created_ms, forgotten FROM memory_sessions
             WHERE (id = ?1 OR ?1 IS NULL) AND (project = ?2 OR ?2 IS NULL) ORDER BY id";
        let mut sessions: Vec<SearchedSession> =
            query_rows(connection, sql, params![only, project], |row| {
                Ok(SearchedSession {
                    id: row.get(0)?,
                    name: row.get(1)?,
                    created_ms: row.get(2)?,
                    forgotten: row.get(3)?,
                    ..SearchedSession::default()
                })
            })?;
        sessions.retain(|session| {
            let names = names.as_ref();
            names.is_none_or(|names| names.contains(&session.name))
        });
        let mut turns = SearchableTurns::default();
        for session in &mut sessions {
            session.offset = turns.metrics.len();
            session.read_new_turns(connection, &mut turns)?;
        }
        Ok(Self {
            data_version: version,
            session_id: only,
            project: project.map(str::to_owned),
            names,
            sessions,
            turns,
        })
    }

    /// Adds the turns appended since the scope was loaded. Returns false if the scope must be
    /// loaded again: if a turn was forgotten, or if one of several sessions grew that is not the
    /// newest.
    fn refresh(&mut self, connection: &Connection) -> Result<bool, MemoryError> {
        let version = connection.data_version()?;
        if version.is_some() && version == self.data_version {
            return Ok(true);
        }
        let sql = "SELECT id, created_ms, forgotten, turns, name FROM memory_sessions
             WHERE (id = ?1 OR ?1 IS NULL) AND (project = ?2 OR ?2 IS NULL) ORDER BY id";
        let parameters = params![self.session_id, self.project];
        let mut current: Vec<(i64, i64, i64, u32, String)> =
            query_rows(connection, sql, parameters, |row| {
                Ok((
                    row.get(0)?,
                    row.get(1)?,
                    row.get(2)?,
                    row.get(3)?,
                    row.get(4)?,
                ))
            })?;
        if let Some(names) = &self.names {
            current.retain(|(.., name)| names.contains(name));
        }
        let Some(newest) = self.sessions.len().checked_sub(1) else {
            return Ok(false);
        };
        let is_same = |(at, known): (usize, &SearchedSession)| {
            let (id, created_ms, forgotten, turns, _) = current[at];
            (id, created_ms, forgotten) == (known.id, known.created_ms, known.forgotten)
                && (at == newest || turns == known.turn_count)
        };
        if current.len() != self.sessions.len() || !self.sessions.iter().enumerate().all(is_same) {
            return Ok(false);
        }
        self.sessions[newest].read_new_turns(connection, &mut self.turns)?;
        self.data_version = version;
        Ok(true)
    }

    /// Ranks the turns of the scope and returns the best.
    fn rank(
        &self,
        connection: &Connection,
        query: &MemoryQuery<'_>,
        question: QueryVector<'_>,
    ) -> Result<Vec<MemoryHit>, MemoryError> {
        let mut rank_query = RankQuery {
            named_speakers: self.named_speakers(query.text),
            ..RankQuery::default()
        };
        let terms = query_terms(query.text);
        let names = match query.weights.named_speaker > 0.0 {
            true => SpeakerNames::Skip,
            false => SpeakerNames::Search,
        };
        rank_query.postings = self.postings_of(connection, &terms, names)?;
        if rank_query.postings.iter().all(Vec::is_empty) {
            // The question has nothing but the name of a speaker.
            rank_query.postings = self.postings_of(connection, &terms, SpeakerNames::Search)?;
        }
        drop_common_terms(&mut rank_query.postings, self.turns.metrics.len());
        if let Some(hint) = DateHint::find(query.text, now_ms()) {
            let shares = self.turns.part_times_ms.iter();
            rank_query.part_date_shares = Some(shares.map(|at| hint.match_share(*at)).collect());
        }
        if let Some((encoder, question)) = question {
            let (mut similarities, mut any) = (Vec::with_capacity(self.turns.metrics.len()), false);
            for session in &self.sessions {
                any |= session.vectors.borrow_mut().append_similarities(
                    connection,
                    session.id,
                    session.turn_count,
                    (encoder, question),
                    &mut similarities,
                )?;
            }
            rank_query.similarities = any.then_some(similarities);
        }
        if rank_query.similarities.is_none() && rank_query.postings.iter().all(Vec::is_empty) {
            return Ok(Vec::new());
        }
        let scores = rank::score_turns(&self.turns, &rank_query, &query.weights);
        let related = |at: usize| scores[at] > 0.0 && self.turns.metrics[at].words > 0;
        // A turn takes at least the tokens of its tags, which limits how many can fit.
        let max_turns = query
            .budget
            .map_or(usize::MAX, |budget| budget as usize / 12 + 1);
        let best = rank::top_k(&scores, related, query.max_turns.min(max_turns));
        self.hits_within_budget(connection, query, &scores, &best)
    }

    /// Returns the turns that contain each term, with the number of its occurrences.
    fn postings_of(
        &self,
        connection: &Connection,
        terms: &[String],
        names: SpeakerNames,
    ) -> Result<Vec<Vec<(u32, u32)>>, MemoryError> {
        let mut postings = Vec::with_capacity(terms.len());
        for term in terms {
            let mut list = Vec::new();
            let mut at = 0;
            for_each_posting(connection, term, self.session_id, |session, turn, count| {
                // Postings come in the order of sessions.
                while let Some(searched) = self.sessions.get(at)
                    && searched.id < session
                {
                    at += 1;
                }
                if let Some(searched) = self.sessions.get(at)
                    && searched.id == session
                    && turn <= searched.turn_count
                    && (names == SpeakerNames::Search || !searched.has_speaker_term(term))
                {
                    list.push(((searched.offset + turn as usize - 1) as u32, count));
                }
            })?;
            postings.push(list);
        }
        Ok(postings)
    }

    /// Returns the index of the session with the turn at this index.
    fn session_at(&self, turn: usize) -> usize {
        let is_before = |session: &SearchedSession| session.offset <= turn;
        self.sessions.partition_point(is_before) - 1
    }

    /// Builds the hits for the best turns, and drops those that do not fit into the budget.
    fn hits_within_budget(
        &self,
        connection: &Connection,
        query: &MemoryQuery<'_>,
        scores: &[f64],
        best: &[usize],
    ) -> Result<Vec<MemoryHit>, MemoryError> {
        let mut key =
            connection.prepare_cached("SELECT decrypt(key) FROM memory_turns WHERE id = ?1")?;
        let mut metrics_rows = MetricsRowCache::default();
        let mut hits = Vec::with_capacity(best.len());
        let mut candidates = Vec::with_capacity(best.len());
        for at in best {
            let session = &self.sessions[self.session_at(*at)];
            let number = (at - session.offset + 1) as u32;
            let tokens = metrics_rows.get(connection, session.id, number)?.tokens;
            candidates.push(BudgetCandidate { number, tokens });
            hits.push(MemoryHit {
                session: session.name.clone(),
                number,
                key: key.query_row(params![turn_id(session.id, number)], |row| row.get(0))?,
                score: scores[*at],
                level: Level::Raw,
                tokens: 0,
            });
        }
        let mut levels = choose_levels(&candidates, query.budget).into_iter();
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
    fn named_speakers(&self, question: &str) -> Vec<SessionSpeakerHints> {
        let mut words = HashSet::new();
        for_each_word(question, |word| _ = words.insert(word.to_owned()));
        let has = |word: &str| words.contains(word);
        let role = match (has("user"), has("assistant")) {
            (true, false) => Some(SpeakerRole::User),
            (false, true) => Some(SpeakerRole::Assistant),
            _ => None,
        };
        let named = self.sessions.iter().map(|session| {
            let mut speakers = Vec::new();
            for (at, name) in session.speakers.iter().enumerate() {
                let mut is_named = false;
                for_each_word(name, |word| {
                    is_named |= word.len() > 1 && !is_stop_word(word) && has(word)
                });
                if is_named {
                    speakers.push((at + 1) as u8);
                }
            }
            SessionSpeakerHints {
                start: session.offset,
                speakers,
                role,
                is_user_assistant_session: session.has_user && session.has_unnamed_assistant,
            }
        });
        named.collect()
    }
}

/// Fewest turns among which a term is common: of a few turns, half may be about one thing.
const MIN_TURNS_FOR_COMMON_TERMS: usize = 20;

/// Removes terms that more than half of the turns contain, unless there are no others: they do not
/// distinguish turns.
fn drop_common_terms(postings: &mut Vec<Vec<(u32, u32)>>, turns: usize) {
    if turns < MIN_TURNS_FOR_COMMON_TERMS {
        return;
    }
    let is_rare = |list: &Vec<_>| list.len() <= turns / 2;
    if postings
        .iter()
        .any(|list| !list.is_empty() && is_rare(list))
    {
        postings.retain(is_rare);
    }
}

impl SearchedSession {
    fn has_speaker_term(&self, term: &str) -> bool {
        self.speaker_terms.iter().any(|name| name == term)
    }

    /// Reads the turns that were appended since the last call.
    fn read_new_turns(
        &mut self,
        connection: &Connection,
        all: &mut SearchableTurns,
    ) -> Result<(), MemoryError> {
        let sql = "SELECT turns FROM memory_sessions WHERE id = ?1";
        let turns = query_first(connection, sql, params![self.id], |row| row.get(0))?.unwrap_or(0);
        turn_metrics::read_metrics(
            connection,
            self.id,
            self.turn_count + 1,
            turns,
            &mut all.metrics,
        )?;
        let new_turns = &all.metrics[self.offset + self.turn_count as usize..];
        self.has_user |= new_turns.iter().any(|turn| turn.role == SpeakerRole::User);
        self.has_unnamed_assistant |= new_turns
            .iter()
            .any(|turn| turn.role == SpeakerRole::Assistant && turn.speaker == 0);
        self.turn_count = turns;
        self.speakers = read_speakers(connection, self.id)?;
        self.speaker_terms.clear();
        for name in &self.speakers {
            for_each_word(name, |word| {
                if word.len() > 1 && !is_stop_word(word) {
                    let mut term = word.to_owned();
                    stem(&mut term);
                    self.speaker_terms.push(term);
                }
            });
        }
        self.parts
            .read_new_parts(connection, self.id, turns, self.offset, all)
    }
}

/// The parts of a session that were read so far.
#[derive(Debug, Default)]
struct SessionParts {
    /// The index of the part with each label: rows with the same label are one part.
    labels: HashMap<String, u32>,
    /// The last row: its first turn, the index of its part and its words. It may have grown since.
    last_row: Option<(u32, u32, i64)>,
}

impl SessionParts {
    /// Reads new parts and assigns each turn up to `count` to its part.
    fn read_new_parts(
        &mut self,
        connection: &Connection,
        session: i64,
        count: u32,
        offset: usize,
        turns: &mut SearchableTurns,
    ) -> Result<(), MemoryError> {
        let from = self.last_row.map_or(0, |(first, ..)| first);
        let sql = "SELECT first, decrypt(label), words,
                coalesce((SELECT at_ms FROM memory_turns WHERE id = ?3 + first), 0)
             FROM memory_parts WHERE session = ?1 AND first >= ?2 ORDER BY first";
        let parts: Vec<(u32, Option<String>, i64, i64)> = query_rows(
            connection,
            sql,
            params![session, from, session << 32],
            |row| row.try_into(),
        )?;
        let ends = parts.iter().skip(1).map(|(next, ..)| *next);
        let ends: Vec<u32> = ends.chain([count + 1]).collect();
        for ((first, label, words, at_ms), end) in parts.into_iter().zip(ends) {
            let new_part = turns.part_words.len() as u32;
            let mut labelled = |label| *self.labels.entry(label).or_insert(new_part);
            let (part, counted) = match self.last_row {
                Some((known, part, words)) if known == first => (part, words),
                _ => (label.map_or(new_part, &mut labelled), 0),
            };
            if part == new_part {
                turns.part_words.push(0);
                turns.part_times_ms.push(at_ms);
            }
            let sum = &mut turns.part_words[part as usize];
            *sum = sum.saturating_add_signed(words.max(0) - counted.max(0));
            self.last_row = Some((first, part, words));
            let next_turn = (turns.parts.len() - offset) as u32 + 1;
            let missing = end.saturating_sub(first.max(next_turn)) as usize;
            turns.parts.extend(std::iter::repeat_n(part, missing));
        }
        if turns.parts.len() != turns.metrics.len() {
            return Err(MemoryError::Damaged(format!(
                "the parts of session {session} do not cover its turns"
            )));
        }
        Ok(())
    }
}

/// Returns the names of a session's speakers, in the order of their numbers, which start at 1.
pub(crate) fn read_speakers(
    connection: &Connection,
    session: i64,
) -> Result<Vec<String>, MemoryError> {
    let sql = "SELECT decrypt(name) FROM memory_speakers WHERE session = ?1 ORDER BY id";
    query_rows(connection, sql, params![session], |row| row.get(0))
}
