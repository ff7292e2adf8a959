//! Stores and ranks lessons, which are rules, preferences, recurring problems and reference layers.
//! Layers are used only after a person has accepted them.

use std::collections::{BTreeMap, BTreeSet};

use selvedge_database::{Connection, FromColumn, Params, ToParameter, ValueRef, params};
use selvedge_protocol::MemoryScope;
use serde::Serialize;

use crate::distill_unit::unit_key;
use crate::lesson_learning::{remove_lesson, remove_note};
use crate::projects::{ReadableSessions, own_project, own_unit, readable_sessions};
use crate::store::{execute, now_ms, query_rows};
use crate::words::{for_each_term, query_terms};
use crate::{Memory, MemoryAccess, MemoryError};

/// A lesson learned from past turns.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lesson {
    /// The id: `les_` and 16 hexadecimal digits.
    pub lesson_id: String,
    /// The kind of lesson.
    pub kind: LessonKind,
    /// Whether recall uses the lesson.
    pub status: LessonStatus,
    /// The project in which it is used, or the session without one; `None` if in all.
    pub project: Option<String>,
    /// A short title for lists.
    pub title: String,
    /// The topics the lesson belongs to.
    pub topic: Vec<String>,
    /// The words that searches match, besides title and content.
    pub keywords: Vec<String>,
    /// The text for the model.
    pub content: String,
    /// The size of `content`, in tokens.
    pub tokens: u32,
    /// The turns it was learned from: `session/T-50`.
    pub source_turns: Vec<String>,
    /// What contradicts it: the later statement, and its turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// How much it counts in ranking, from 0 to 1, when it was last learned. It decays with time.
    pub weight: f64,
    /// When it was last learned or reviewed, in milliseconds since 1970.
    pub last_updated: i64,
}

/// Defines an enum that is stored in SQLite and JSON as text.
macro_rules! text_enum {
    ($(#[$about:meta])+ $name:ident {
        $($(#[doc = $doc:literal])+ $variant:ident = $text:literal,)+
    }) => {
        $(#[$about])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "lowercase")]
        #[non_exhaustive]
        pub enum $name {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl $name {
            /// Returns the name of the variant in SQLite and JSON.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl ToParameter for $name {
            fn to_parameter(&self) -> ValueRef<'_> {
                ValueRef::Text(self.as_str().as_bytes())
            }
        }

        impl FromColumn for $name {
            fn from_column(value: ValueRef<'_>) -> Option<Self> {
                match value.as_str()? {
                    $($text => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

text_enum! {
    /// The kind of a lesson.
    LessonKind {
        /// Something that worked or did not.
        Lesson = "lesson",
        /// Something the user wants in future sessions.
        Preference = "preference",
        /// A recurring error and its fix.
        Problem = "problem",
        /// How things are done in the project, such as a decision.
        Convention = "convention",
        /// A technology that the project uses.
        Stack = "stack",
        /// Something that is missing in memory. It is a proposal to write about it.
        Gap = "gap",
        /// A longer reference text about a topic.
        Layer = "layer",
    }
}

/// Where a lesson is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LessonScope {
    /// In all projects of the user.
    User,
    /// In the project in which it was learned.
    Project,
}

text_enum! {
    /// Whether recall uses a lesson.
    LessonStatus {
        /// In use: recall finds it.
        Used = "used",
        /// Waits for a person to accept it.
        Proposed = "proposed",
        /// Declined by a person; it is kept so that it is not proposed again.
        Declined = "declined",
        /// A problem that was solved once. It becomes `Used` when it is solved again.
        Seen = "seen",
        /// A later turn says otherwise. It is kept, and used again if it is learned again.
        Contradicted = "contradicted",
    }
}

/// The time after which the weight of a lesson has halved, unless it is learned again.
const WEIGHT_HALF_LIFE_MS: f64 = 180.0 * 24.0 * 3600.0 * 1000.0;
/// How many lessons a search considers, the highest weight first.
const MAX_LESSONS_SEARCHED: u32 = 2000;

impl Memory {
    /// Returns the lessons with a status (all for `None`), the highest weight first.
    pub fn lessons(&self, status: Option<LessonStatus>) -> Result<Vec<Lesson>, MemoryError> {
        self.read(|reader| read_lessons(&reader.connection, status, None, u32::MAX))
    }

    /// Accepts or declines a lesson, mostly a proposed one. What contradicts an accepted lesson is
    /// removed. Fails if a gap is accepted: it tells a person what to write, and a model nothing.
    pub fn review_lesson(
        &self,
        lesson: &str,
        decision: ProposalDecision,
    ) -> Result<(), MemoryError> {
        self.write(|connection| {
            let kind = find_lesson(connection, lesson)?.kind;
            let status = match decision {
                ProposalDecision::Accept if kind == LessonKind::Gap => {
                    return Err(MemoryError::GapAccepted(lesson.to_owned()));
                }
                ProposalDecision::Accept => {
                    remove_note(connection, lesson)?;
                    LessonStatus::Used
                }
                ProposalDecision::Decline => LessonStatus::Declined,
            };
            let sql = "UPDATE memory_lessons SET status = ?2, updated_ms = ?3 WHERE id = ?1";
            execute(connection, sql, params![lesson, status, now_ms()])?;
            Ok(())
        })
    }

    /// Uses a lesson in all projects, or only in the one in which it was learned (or in the
    /// session, if it has none). Fails if it was learned in none or in several.
    pub fn set_lesson_scope(&self, lesson: &str, scope: LessonScope) -> Result<(), MemoryError> {
        self.write(|connection| {
            let project = match scope {
                LessonScope::User => String::new(),
                LessonScope::Project => {
                    let sql = "SELECT DISTINCT coalesce(project, ''),
                             CASE coalesce(project, '') WHEN '' THEN id ELSE 0 END
                         FROM memory_sources JOIN memory_sessions ON id = session
                         WHERE lesson = ?1";
                    let units: Vec<(String, i64)> =
                        query_rows(connection, sql, params![lesson], |row| row.try_into())?;
                    match units.as_slice() {
                        [(project, session)] => unit_key(project, *session),
                        _ => return Err(MemoryError::LessonWithoutProject(lesson.to_owned())),
                    }
                }
            };
            let sql = "UPDATE memory_lessons SET project = ?2 WHERE id = ?1";
            match execute(connection, sql, params![lesson, project])? {
                0 => Err(MemoryError::LessonNotFound(lesson.to_owned())),
                _ => Ok(()),
            }
        })
    }

    /// Deletes a lesson, and the briefs, which may quote it.
    pub fn forget_lesson(&self, lesson: &str) -> Result<(), MemoryError> {
        let removed = self.write(|connection| {
            execute(connection, "DELETE FROM memory_briefs", params![])?;
            remove_lesson(connection, lesson)
        });
        match removed? {
            0 => Err(MemoryError::LessonNotFound(lesson.to_owned())),
            _ => self.truncate_log(),
        }
    }

    /// Returns up to `k` lessons in use that match a question, the best first. Without an access,
    /// lessons of all projects count.
    pub fn find_lessons(
        &self,
        access: Option<&MemoryAccess>,
        question: &str,
        k: usize,
    ) -> Result<Vec<Lesson>, MemoryError> {
        self.read(|reader| {
            let connection = &reader.connection;
            let lessons = match access {
                Some(access) => lessons_in_use(connection, access)?,
                None => {
                    let used = Some(LessonStatus::Used);
                    read_lessons(connection, used, None, MAX_LESSONS_SEARCHED)?
                }
            };
            let project = match access {
                Some(access) => own_project(connection, access)?,
                None => None,
            };
            let topics = topic_weights(connection, project.as_deref())?;
            Ok(rank_lessons(lessons, &topics, question, k))
        })
    }
}

/// Returns the lessons in use that an access reaches: those of the user, of the project, and of the
/// sessions that it may read.
pub(crate) fn lessons_in_use(
    connection: &Connection,
    access: &MemoryAccess,
) -> Result<Vec<Lesson>, MemoryError> {
    let ReadableSessions { session, names, .. } = readable_sessions(connection, access)?;
    let project = own_project(connection, access)?;
    // Lessons of other projects must not take the places of these.
    let only = match access.scope {
        MemoryScope::All if access.folders.is_none() => None,
        _ => Some(own_unit(connection, access)?),
    };
    let used = Some(LessonStatus::Used);
    let mut lessons = read_lessons(connection, used, only.as_deref(), MAX_LESSONS_SEARCHED)?;
    let is_source = |names: &[String], source: &String| {
        let name = source.rsplit_once('/').map(|(name, _)| name);
        name.is_some_and(|name| names.iter().any(|known| known == name))
    };
    lessons.retain(|lesson| {
        if lesson.kind == LessonKind::Gap {
            // A gap tells a person what to write, and a model nothing.
            return false;
        }
        let sources = &lesson.source_turns;
        let in_scope = match (&lesson.project, &session) {
            (None, _) => true,
            // Without a project, or within one session, only what was learned in it.
            (Some(_), Some(own)) => {
                let own = std::slice::from_ref(own);
                !sources.is_empty() && sources.iter().all(|source| is_source(own, source))
            }
            (Some(_), None) if access.scope == MemoryScope::All => true,
            (of_lesson, None) => *of_lesson == project,
        };
        // A lesson without sources was written by a person, for the project.
        let in_folders = names.as_ref().is_none_or(|names| match sources.as_slice() {
            [] => lesson.project.is_some() && lesson.project == project,
            sources => sources.iter().all(|source| is_source(names, source)),
        });
        in_scope && in_folders
    });
    // Several folders of a project may have learned the same.
    let mut seen = BTreeSet::new();
    lessons.retain(|lesson| seen.insert((lesson.kind.as_str(), lesson.content.clone())));
    Ok(lessons)
}

/// A person's decision about a proposed lesson.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProposalDecision {
    /// Use the lesson from now on.
    Accept,
    /// Do not use the lesson, but keep it so that it is not proposed again.
    Decline,
}

/// Ranks lessons by the words they share with the question (rare words count more), multiplied by
/// their weight and that of their topics.
fn rank_lessons(
    lessons: Vec<Lesson>,
    topics: &BTreeMap<String, f64>,
    question: &str,
    k: usize,
) -> Vec<Lesson> {
    let query = query_terms(question);
    let terms: Vec<BTreeSet<String>> = lessons.iter().map(lesson_terms).collect();
    let idf = |term: &String| {
        let matching = terms.iter().filter(|terms| terms.contains(term)).count();
        (1.0 + lessons.len() as f64 / (1.0 + matching as f64)).ln()
    };
    let idfs: Vec<f64> = query.iter().map(idf).collect();
    let idf_sum: f64 = idfs.iter().sum();
    let now = now_ms();
    let mut scored: Vec<(f64, Lesson)> = Vec::new();
    for (lesson, terms) in lessons.into_iter().zip(&terms) {
        let shared = query
            .iter()
            .zip(&idfs)
            .filter(|(term, _)| terms.contains(*term));
        let matched: f64 = shared.map(|(_, idf)| idf).sum();
        // A small overlap is a coincidence.
        if matched > 0.0 && matched >= 0.3 * idf_sum {
            let weights = lesson.topic.iter().filter_map(|topic| topics.get(topic));
            let topic = weights.copied().fold(0.0, f64::max);
            let weight = decayed_weight(lesson.weight, lesson.last_updated, now);
            scored.push((matched * weight * (1.0 + topic), lesson));
        }
    }
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    let best = scored.into_iter().take(k);
    best.map(|(_, lesson)| lesson).collect()
}

/// Returns the terms of a lesson's keywords, topics, title and content.
fn lesson_terms(lesson: &Lesson) -> BTreeSet<String> {
    let mut terms = BTreeSet::new();
    let words = lesson.keywords.iter().chain(&lesson.topic);
    for text in words.chain([&lesson.title, &lesson.content]) {
        for_each_term(text, |term| _ = terms.insert(term.to_owned()));
    }
    terms
}

/// Returns a weight after its decay since `updated_ms`.
pub(crate) fn decayed_weight(weight: f64, updated_ms: i64, now_ms: i64) -> f64 {
    weight * 0.5_f64.powf((now_ms - updated_ms).max(0) as f64 / WEIGHT_HALF_LIFE_MS)
}

/// Returns the highest weight of each topic in any session of a project, or of all.
fn topic_weights(
    connection: &Connection,
    project: Option<&str>,
) -> Result<BTreeMap<String, f64>, MemoryError> {
    let sql = "SELECT decrypt(memory_topics.name), max(weight) FROM memory_topics
         JOIN memory_sessions ON id = session WHERE project = ?1 OR ?1 IS NULL
         GROUP BY memory_topics.name";
    query_rows(connection, sql, params![project], |row| row.try_into())
}

/// Reads up to `limit` lessons with a status (all for `None`), of a project and of the user (all
/// for `None`), the highest weight first.
pub(crate) fn read_lessons(
    connection: &Connection,
    status: Option<LessonStatus>,
    project: Option<&str>,
    limit: u32,
) -> Result<Vec<Lesson>, MemoryError> {
    let condition = "(status = ?1 OR ?1 IS NULL)
             AND (coalesce(project, '') IN ('', ?2) OR ?2 IS NULL)
         ORDER BY weight DESC, updated_ms DESC, id LIMIT ?3";
    select_lessons(connection, condition, params![status, project, limit])
}

/// Reads a lesson.
pub(crate) fn find_lesson(connection: &Connection, id: &str) -> Result<Lesson, MemoryError> {
    let found = select_lessons(connection, "id = ?1", params![id])?;
    let found = found.into_iter().next();
    found.ok_or_else(|| MemoryError::LessonNotFound(id.to_owned()))
}

/// Reads the ids and titles of the layers of a project, or of the user for `None`, that are used or
/// proposed.
pub(crate) fn read_layer_titles(
    connection: &Connection,
    project: Option<&str>,
) -> Result<Vec<(String, String)>, MemoryError> {
    let sql = "SELECT id, decrypt(title) FROM memory_lessons
         WHERE kind = ?1 AND status <> ?2 AND coalesce(project, '') = ?3";
    let (kind, declined) = (LessonKind::Layer, LessonStatus::Declined);
    let key = params![kind, declined, project.unwrap_or_default()];
    query_rows(connection, sql, key, |row| row.try_into())
}

/// Reads the lessons for which a condition of SQL holds.
fn select_lessons(
    connection: &Connection,
    condition: &str,
    parameters: Params<'_>,
) -> Result<Vec<Lesson>, MemoryError> {
    let sql = format!(
        "SELECT id, kind, status, decrypt(title), decrypt(topics), decrypt(keywords),
         decrypt(content), weight, updated_ms, coalesce(project, ''), tokens, decrypt(note)
         FROM memory_lessons WHERE {condition}"
    );
    let list = |text: String| {
        let words = text.split('\n').filter(|word| !word.is_empty());
        words.map(str::to_owned).collect()
    };
    let mut lessons: Vec<Lesson> = query_rows(connection, &sql, parameters, |row| {
        Ok(Lesson {
            lesson_id: row.get(0)?,
            kind: row.get(1)?,
            status: row.get(2)?,
            project: Some(row.get(9)?).filter(|project: &String| !project.is_empty()),
            title: row.get(3)?,
            topic: list(row.get(4)?),
            keywords: list(row.get(5)?),
            content: row.get(6)?,
            tokens: row.get(10)?,
            note: row.get(11)?,
            source_turns: Vec::new(),
            weight: row.get(7)?,
            last_updated: row.get(8)?,
        })
    })?;
    for lesson in &mut lessons {
        lesson.source_turns = turns_of(connection, "memory_sources", &lesson.lesson_id)?;
        if let Some(note) = &mut lesson.note {
            let turns = turns_of(connection, "memory_contradictions", &lesson.lesson_id)?;
            *note = format!("{note} ({})", turns.join(", "));
        }
    }
    Ok(lessons)
}

/// Reads the turns that a table names for a lesson: `session/T-50`.
fn turns_of(
    connection: &Connection,
    table: &str,
    lesson: &str,
) -> Result<Vec<String>, MemoryError> {
    let sql = format!(
        "SELECT name || '/T-' || CAST(turn AS TEXT) FROM {table}
         JOIN memory_sessions ON id = session WHERE lesson = ?1 ORDER BY session, turn"
    );
    query_rows(connection, &sql, params![lesson], |row| row.get(0))
}
