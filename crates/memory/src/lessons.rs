//! What was learned: lessons, preferences, recurring problems, and reference layers that a person has to accept.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql, params};
use serde::Serialize;

use crate::store::{execute, now_ms, rows};
use crate::words::{each_term, query_terms};
use crate::{Memory, MemoryError, tokens};

/// Something learned.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lesson {
    /// Its name.
    pub lesson_id: String,
    /// What it is.
    pub kind: LessonKind,
    /// Whether it is used.
    pub status: LessonStatus,
    /// What it is called in a list.
    pub title: String,
    /// What it is about.
    pub topic: Vec<String>,
    /// Words it is found by.
    pub keywords: Vec<String>,
    /// What it says.
    pub content: String,
    /// Where it comes from: session and turn.
    pub source_turns: Vec<String>,
    /// How much it counts, up to one.
    pub weight: f64,
    /// When it was last learned, in milliseconds since 1970.
    pub last_updated: i64,
}

/// An enumeration that SQLite and JSON have as its name.
macro_rules! named {
    ($(#[$about:meta])+ $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $text:literal,)+ }) => {
        $(#[$about])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "lowercase")]
        #[non_exhaustive]
        pub enum $name {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl $name {
            /// The name.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                Ok(self.as_str().into())
            }
        }

        impl FromSql for $name {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                match value.as_str()? {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(FromSqlError::InvalidType),
                }
            }
        }
    };
}

named! {
    /// What a lesson is.
    LessonKind {
        /// What worked or did not.
        Lesson = "lesson",
        /// What the user wants from now on.
        Preference = "preference",
        /// What keeps going wrong.
        Problem = "problem",
        /// A longer reference text.
        Layer = "layer",
    }
}

named! {
    /// Whether a lesson is used.
    LessonStatus {
        /// Recall finds it.
        Used = "used",
        /// A person has to accept it first.
        Proposed = "proposed",
        /// A person did not accept it.
        Declined = "declined",
        /// A problem that was solved only once so far.
        Seen = "seen",
    }
}

/// Something to be learned.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Draft {
    pub(crate) kind: LessonKind,
    pub(crate) status: LessonStatus,
    pub(crate) title: String,
    pub(crate) topics: Vec<String>,
    pub(crate) keywords: Vec<String>,
    pub(crate) content: String,
    pub(crate) turns: Vec<u32>,
    /// What two drafts of the same thing have in common.
    pub(crate) same_as: String,
}

/// What a lesson weighs when it is new, and what it gains each time it is learned again.
const NEW: f64 = 0.5;
const AGAIN: f64 = 0.15;
/// A lesson that is not learned again weighs half after so long, and is forgotten when it weighs less than this.
const HALF_LIFE_MS: f64 = 180.0 * 24.0 * 3600.0 * 1000.0;
const FORGOTTEN_BELOW: f64 = 0.05;
/// Keywords two lessons must share, of all they have, to be the same.
const ALIKE: f64 = 0.8;
/// Lessons looked through before a turn.
const LOOKED_THROUGH: u32 = 2000;

impl Memory {
    /// Lessons of a status, or all, the weightiest first.
    pub fn lessons(&self, status: Option<LessonStatus>) -> Result<Vec<Lesson>, MemoryError> {
        self.read(|reader| read(&reader.connection, status, u32::MAX))
    }

    /// Accepts or declines a proposal.
    pub fn review(&self, lesson: &str, verdict: Verdict) -> Result<(), MemoryError> {
        let status = match verdict {
            Verdict::Accept => LessonStatus::Used,
            Verdict::Decline => LessonStatus::Declined,
        };
        let changed = self.write(|connection| {
            let sql = "UPDATE memory_lessons SET status = ?2, updated_ms = ?3 WHERE id = ?1";
            Ok(connection.execute(sql, params![lesson, status, now_ms()])?)
        })?;
        match changed {
            0 => Err(MemoryError::NoLesson(lesson.to_owned())),
            _ => Ok(()),
        }
    }

    /// Forgets a lesson.
    pub fn forget_lesson(&self, lesson: &str) -> Result<(), MemoryError> {
        match self.write(|connection| remove(connection, lesson))? {
            0 => Err(MemoryError::NoLesson(lesson.to_owned())),
            _ => self.empty_log(),
        }
    }

    /// The lessons a question is about, the best first.
    pub fn lessons_about(&self, question: &str, k: usize) -> Result<Vec<Lesson>, MemoryError> {
        self.read(|reader| {
            let lessons = read(&reader.connection, Some(LessonStatus::Used), LOOKED_THROUGH)?;
            let topics = topic_weights(&reader.connection)?;
            Ok(ranked(lessons, &topics, question, k))
        })
    }
}

/// What a person says of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is used from now on.
    Accept,
    /// It is kept, so that it is not proposed again, and not used.
    Decline,
}

/// By the words they share with the question, rare ones first, times their weight and that of their topics.
fn ranked(
    lessons: Vec<Lesson>,
    topics: &BTreeMap<String, f64>,
    question: &str,
    k: usize,
) -> Vec<Lesson> {
    let asked = query_terms(question);
    let terms: Vec<BTreeSet<String>> = lessons.iter().map(terms_of).collect();
    let idf = |term: &String| {
        let with = terms.iter().filter(|terms| terms.contains(term)).count();
        (1.0 + lessons.len() as f64 / (1.0 + with as f64)).ln()
    };
    let idfs: Vec<f64> = asked.iter().map(idf).collect();
    let all: f64 = idfs.iter().sum();
    let now = now_ms();
    let mut scored: Vec<(f64, Lesson)> = Vec::new();
    for (lesson, terms) in lessons.into_iter().zip(&terms) {
        let shared = asked
            .iter()
            .zip(&idfs)
            .filter(|(term, _)| terms.contains(*term));
        let matched: f64 = shared.map(|(_, idf)| idf).sum();
        // One common word in many is a coincidence.
        if matched > 0.0 && matched >= 0.3 * all {
            let weights = lesson.topic.iter().filter_map(|topic| topics.get(topic));
            let topic = weights.copied().fold(0.0, f64::max);
            let weight = faded(lesson.weight, lesson.last_updated, now);
            scored.push((matched * weight * (1.0 + topic), lesson));
        }
    }
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    let best = scored.into_iter().take(k);
    best.map(|(_, lesson)| lesson).collect()
}

fn terms_of(lesson: &Lesson) -> BTreeSet<String> {
    let mut terms = BTreeSet::new();
    let words = lesson.keywords.iter().chain(&lesson.topic);
    for text in words.chain([&lesson.title, &lesson.content]) {
        each_term(text, |term| _ = terms.insert(term.to_owned()));
    }
    terms
}

fn faded(weight: f64, updated_ms: i64, now_ms: i64) -> f64 {
    weight * 0.5_f64.powf((now_ms - updated_ms).max(0) as f64 / HALF_LIFE_MS)
}

fn topic_weights(connection: &Connection) -> Result<BTreeMap<String, f64>, MemoryError> {
    let sql = "SELECT opened(name), max(weight) FROM memory_topics GROUP BY name";
    rows(connection, sql, [], |row| row.try_into())
}

pub(crate) fn read(
    connection: &Connection,
    status: Option<LessonStatus>,
    most: u32,
) -> Result<Vec<Lesson>, MemoryError> {
    let sql = "SELECT id, kind, status, opened(title), opened(topics), opened(keywords),
         opened(content), weight, updated_ms FROM memory_lessons
         WHERE ?1 IS NULL OR status = ?1 ORDER BY weight DESC, updated_ms DESC, id LIMIT ?2";
    let list = |text: String| {
        let words = text.split('\n').filter(|word| !word.is_empty());
        words.map(str::to_owned).collect()
    };
    let mut lessons: Vec<Lesson> = rows(connection, sql, params![status, most], |row| {
        Ok(Lesson {
            lesson_id: row.get(0)?,
            kind: row.get(1)?,
            status: row.get(2)?,
            title: row.get(3)?,
            topic: list(row.get(4)?),
            keywords: list(row.get(5)?),
            content: row.get(6)?,
            source_turns: Vec::new(),
            weight: row.get(7)?,
            last_updated: row.get(8)?,
        })
    })?;
    let sql = "SELECT name || '/T-' || turn FROM memory_sources
         JOIN memory_sessions ON id = session WHERE lesson = ?1 ORDER BY session, turn";
    for lesson in &mut lessons {
        let id = params![lesson.lesson_id];
        lesson.source_turns = rows(connection, sql, id, |row| row.get(0))?;
    }
    Ok(lessons)
}

/// Learns something: anew, or once more. A problem that is solved a second time is a lesson from then on.
pub(crate) fn learn(
    connection: &Connection,
    session: i64,
    draft: &Draft,
) -> Result<(), MemoryError> {
    let id = match alike(connection, draft)? {
        Some(id) => {
            let sql = "UPDATE memory_lessons SET weight = min(1.0, weight + ?2), updated_ms = ?3,
                 status = CASE status WHEN 'seen' THEN 'used' ELSE status END WHERE id = ?1";
            execute(connection, sql, params![id, AGAIN, now_ms()])?;
            id
        }
        None => {
            let id = name(connection, draft)?;
            let Draft {
                kind,
                status,
                title,
                content,
                ..
            } = draft;
            let (topics, keywords) = (draft.topics.join("\n"), draft.keywords.join("\n"));
            let (size, now) = (tokens::count(content), now_ms());
            execute(
                connection,
                "INSERT OR REPLACE INTO memory_lessons
                 VALUES (?1, ?2, ?3, sealed(?4), sealed(?5), sealed(?6), sealed(?7), ?8, ?9, ?10)",
                params![
                    id, kind, status, title, topics, keywords, content, size, NEW, now
                ],
            )?;
            id
        }
    };
    for turn in &draft.turns {
        let sql = "INSERT OR IGNORE INTO memory_sources VALUES (?1, ?2, ?3)";
        execute(connection, sql, params![id, session, turn])?;
    }
    Ok(())
}

/// The lesson that says the same already.
fn alike(connection: &Connection, draft: &Draft) -> Result<Option<String>, MemoryError> {
    let id = name(connection, draft)?;
    let mut there = connection.prepare_cached("SELECT 1 FROM memory_lessons WHERE id = ?1")?;
    if there.exists(params![id])? {
        return Ok(Some(id));
    }
    let words: BTreeSet<&str> = draft.keywords.iter().map(String::as_str).collect();
    if words.len() < 3 {
        return Ok(None);
    }
    let mut read = connection
        .prepare_cached("SELECT id, opened(keywords) FROM memory_lessons WHERE kind = ?1")?;
    let mut rows = read.query(params![draft.kind])?;
    while let Some(row) = rows.next()? {
        let theirs: String = row.get(1)?;
        let theirs: BTreeSet<&str> = theirs.split('\n').collect();
        let shared = words.intersection(&theirs).count() as f64;
        if shared / words.union(&theirs).count().max(1) as f64 >= ALIKE {
            return Ok(Some(row.get(0)?));
        }
    }
    Ok(None)
}

/// Removes what weighs nothing any more. What a person decided stays.
pub(crate) fn prune(connection: &Connection) -> Result<u32, MemoryError> {
    let now = now_ms();
    let sql = "SELECT id, weight, updated_ms FROM memory_lessons WHERE status IN ('used', 'seen')";
    let mut old: Vec<(String, f64, i64)> = rows(connection, sql, [], |row| row.try_into())?;
    old.retain(|(_, weight, updated)| faded(*weight, *updated, now) < FORGOTTEN_BELOW);
    let mut removed = 0;
    for (id, ..) in old {
        removed += remove(connection, &id)?;
    }
    Ok(removed as u32)
}

fn remove(connection: &Connection, lesson: &str) -> Result<usize, MemoryError> {
    let sql = "DELETE FROM memory_sources WHERE lesson = ?1";
    execute(connection, sql, params![lesson])?;
    let sql = "DELETE FROM memory_lessons WHERE id = ?1";
    execute(connection, sql, params![lesson])
}

/// A name that the same thing gets each time, and that does not tell what it is where the memory is sealed.
fn name(connection: &Connection, draft: &Draft) -> Result<String, MemoryError> {
    let mut mark = connection.prepare_cached("SELECT CAST(marked(?1) AS BLOB)")?;
    let same = format!("{}{}", draft.kind.as_str(), draft.same_as);
    let same: Vec<u8> = mark.query_row(params![same], |row| row.get(0))?;
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in same {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    Ok(format!("les_{hash:016x}"))
}
