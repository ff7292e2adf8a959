//! The brief of a project, with which a new session starts: preferences, conventions, decisions,
//! open ends and the last sessions, in at most [`MAX_BRIEF_TOKENS`].
//!
//! It is composed once and stored with the session, so that the beginning of its prompts never
//! changes. Decisions and open ends are found by phrases in the latest turns, because lessons are
//! learned later. Forgetting anything deletes all briefs.

use std::collections::BTreeSet;

use selvedge_database::{Connection, params};
use selvedge_text::count_noun;

use crate::board::truncate_to_tokens;
use crate::cleaning::{collapse_whitespace, split_sentences};
use crate::contradictions::StatementTerms;
use crate::distill_unit::is_asked_by_agent;
use crate::lesson_rules::{ObservedTurn, find_preferences, has_phrase, without_list_mark};
use crate::lessons::{Lesson, LessonKind, LessonStatus, lessons_in_use, read_lessons};
use crate::projects::{own_project, own_unit, readable_sessions};
use crate::sectioned_text::SectionedText;
use crate::store::{create_session, execute, load_turn, query_first, query_rows};
use crate::turn_metrics::SpeakerRole;
use crate::turn_pieces::TurnPiece;
use crate::{Memory, MemoryAccess, MemoryError, time, tokens};

/// The size of a brief, in tokens.
pub const MAX_BRIEF_TOKENS: u32 = 1_500;
/// Sessions whose turns are read, the newest first.
const MAX_SESSIONS: usize = 12;
/// Turns that are read of each session, the newest.
const MAX_TURNS_PER_SESSION: u32 = 15;
/// The last turns of a session, in which unfinished work is looked for.
const OPEN_END_TURNS: u32 = 3;
/// Sessions that are listed with their first request.
const MAX_LISTED_SESSIONS: usize = 5;
/// Lessons that are not used, whose statements are left out.
const MAX_UNUSED: u32 = 500;
/// Tokens of one line.
const MAX_LINE_TOKENS: u32 = 60;
/// Longer sentences, in bytes, are rarely decisions.
const MAX_SENTENCE_BYTES: usize = 400;
/// Shares of the sections, in percent: preferences, conventions, decisions, open ends. The rest is
/// for references and the last sessions.
const SECTION_SHARES: [u32; 4] = [20, 20, 27, 16];

/// Phrases of a sentence that states a decision.
const DECISION_PHRASES: &str = "we decided|i decided|decided to|decided on|decided against|\
    decision:|we agreed|agreed to|agreed on|let's use|let us use|let's go with|we will use|\
    we'll use|we use |we now use|from now on|going with|we go with|settled on|we chose|i chose|\
    we picked|we switched to|we moved to|we no longer|no longer use|must not use|do not use|\
    don't use";
/// Phrases of a sentence about unfinished work.
const OPEN_END_PHRASES: &str = "todo|to do:|open question|open:|still need|still needs|still to |\
    still missing|remaining:|remains to|next step|next:|follow-up|follow up|left to do|unfinished|\
    not implemented yet|not done yet|not finished|blocked by|blocked on|continue with|\
    to be decided";

/// What rules find in the latest turns of a project, the newest first.
#[derive(Default)]
struct BriefEntries {
    preferences: Vec<String>,
    decisions: Vec<String>,
    open_ends: Vec<String>,
    sessions: Vec<String>,
    /// What was added, so that nothing is there twice.
    seen: BTreeSet<String>,
    /// Decisions and preferences with the time of their turns, the newest first: they may take back
    /// older ones.
    statements: Vec<(i64, StatementTerms)>,
}

/// A session whose turns are read.
struct BriefSession {
    id: i64,
    name: String,
    turn_count: u32,
}

impl Memory {
    /// Returns the brief with which a session began; `None` if it has none.
    pub fn brief(&self, session: &str) -> Result<Option<String>, MemoryError> {
        self.read(|reader| read_brief(&reader.connection, session))
    }

    /// Stores the brief of a session, unless it has one. Returns the stored one.
    pub fn store_brief(&self, session: &str, brief: &str) -> Result<String, MemoryError> {
        self.write(|connection| {
            create_session(connection, session)?;
            let sql = "INSERT INTO memory_briefs (session, text)
                 SELECT id, encrypt(?2) FROM memory_sessions WHERE name = ?1
                 ON CONFLICT DO NOTHING";
            execute(connection, sql, params![session, brief])?;
            Ok(read_brief(connection, session)?.unwrap_or_default())
        })
    }

    /// Composes the brief of a project for a session that begins now, in at most `max_tokens` and
    /// [`MAX_BRIEF_TOKENS`]. Empty if nothing is known.
    pub fn compose_brief(
        &self,
        access: &MemoryAccess,
        max_tokens: u32,
    ) -> Result<String, MemoryError> {
        let (mut lessons, entries) = self.read(|reader| {
            let connection = &reader.connection;
            let lessons = lessons_in_use(connection, access)?;
            let mut entries = BriefEntries::default();
            // What a person declined, or a later turn took back, is still in its turn.
            let unit = own_unit(connection, access)?;
            for status in [LessonStatus::Declined, LessonStatus::Contradicted] {
                let unused = read_lessons(connection, Some(status), Some(&unit), MAX_UNUSED)?;
                let contents = unused
                    .into_iter()
                    .map(|lesson| lesson.content.to_lowercase());
                entries.seen.extend(contents);
            }
            for session in brief_sessions(connection, access)? {
                self.collect_entries(connection, &session, &mut entries)?;
            }
            Ok((lessons, entries))
        })?;
        lessons.retain(|lesson| {
            let is_statement =
                matches!(lesson.kind, LessonKind::Preference | LessonKind::Convention);
            let is_newer = |at_ms: i64| at_ms > lesson.last_updated;
            let mut newer = entries.statements.iter().filter(|(at, _)| is_newer(*at));
            let terms = StatementTerms::new(&lesson.content);
            !is_statement || !newer.any(|(_, newer)| newer.contradicts(&terms))
        });
        Ok(render_brief(
            &lessons,
            entries,
            max_tokens.min(MAX_BRIEF_TOKENS),
        ))
    }

    /// Adds what the latest turns of a session tell.
    fn collect_entries(
        &self,
        connection: &Connection,
        session: &BriefSession,
        entries: &mut BriefEntries,
    ) -> Result<(), MemoryError> {
        let first = session.turn_count.saturating_sub(MAX_TURNS_PER_SESSION) + 1;
        let mut first_request = None;
        for number in (first..=session.turn_count).rev() {
            let Some(turn) = load_turn(connection, session.id, number)? else {
                continue;
            };
            let pieces = self.redacted_pieces(&turn);
            if is_asked_by_agent(&pieces) {
                continue;
            }
            let source = format!(
                "{}, {}/T-{number}",
                time::format_day(turn.at_ms),
                session.name
            );
            let is_last = number + OPEN_END_TURNS > session.turn_count;
            if let Some(request) =
                spoken_texts(&pieces).find(|(role, _)| *role == SpeakerRole::User)
            {
                first_request = Some((time::format_day(turn.at_ms), request.1.to_owned()));
            }
            for (_, text) in spoken_texts(&pieces) {
                for sentence in split_sentences(text) {
                    let sentence = without_list_mark(sentence);
                    let is_short = sentence.len() <= MAX_SENTENCE_BYTES;
                    if !is_short || sentence.ends_with('?') {
                        continue;
                    }
                    if has_phrase(sentence, DECISION_PHRASES) {
                        let said = (turn.at_ms, sentence);
                        entries.add_statement(|entries| &mut entries.decisions, said, &source);
                    } else if is_last && has_phrase(sentence, OPEN_END_PHRASES) {
                        entries.add(|entries| &mut entries.open_ends, sentence, &source);
                    }
                }
            }
            let observed = ObservedTurn {
                session: session.id,
                number,
                at_ms: turn.at_ms,
                names: Vec::new(),
                pieces,
            };
            for draft in find_preferences(std::slice::from_ref(&observed)) {
                let said = (turn.at_ms, draft.content.as_str());
                entries.add_statement(|entries| &mut entries.preferences, said, &source);
            }
        }
        if let Some((day, request)) = first_request
            && entries.sessions.len() < MAX_LISTED_SESSIONS
        {
            let BriefSession {
                name, turn_count, ..
            } = session;
            let request = truncate_to_tokens(&collapse_whitespace(&request), MAX_LINE_TOKENS / 2);
            let turns = count_noun(*turn_count, "turn");
            let line = format!("{day}, {name}, {turns}: {request}");
            entries.sessions.push(line);
        }
        Ok(())
    }
}

impl BriefEntries {
    /// Adds a decision or a preference, unless a newer one takes it back.
    fn add_statement(
        &mut self,
        list: impl FnOnce(&mut Self) -> &mut Vec<String>,
        (at_ms, sentence): (i64, &str),
        source: &str,
    ) {
        let terms = StatementTerms::new(sentence);
        let mut newer = self.statements.iter();
        if !newer.any(|(_, newer)| newer.contradicts(&terms)) {
            self.add(list, sentence, source);
            self.statements.push((at_ms, terms));
        }
    }

    /// Adds a sentence to a list, with its source, unless it is there already.
    fn add(
        &mut self,
        list: impl FnOnce(&mut Self) -> &mut Vec<String>,
        sentence: &str,
        source: &str,
    ) {
        let sentence = collapse_whitespace(sentence);
        if self.seen.insert(sentence.to_lowercase()) {
            let sentence = truncate_to_tokens(&sentence, MAX_LINE_TOKENS);
            list(self).push(format!("{sentence} ({source})"));
        }
    }
}

fn read_brief(connection: &Connection, session: &str) -> Result<Option<String>, MemoryError> {
    let sql = "SELECT decrypt(text) FROM memory_briefs
         JOIN memory_sessions ON id = session WHERE name = ?1";
    query_first(connection, sql, params![session], |row| row.get(0))
}

/// Returns the other sessions of the project that the access reaches, the newest first.
fn brief_sessions(
    connection: &Connection,
    access: &MemoryAccess,
) -> Result<Vec<BriefSession>, MemoryError> {
    let readable = readable_sessions(connection, access)?;
    let project = own_project(connection, access)?;
    let (Some(project), None) = (project, &readable.session) else {
        return Ok(Vec::new());
    };
    let sql = "SELECT id, name, turns FROM memory_sessions
         WHERE project = ?1 AND turns > 0 AND name <> ?2 ORDER BY id DESC";
    let mut sessions: Vec<BriefSession> =
        query_rows(connection, sql, params![project, access.session], |row| {
            Ok(BriefSession {
                id: row.get(0)?,
                name: row.get(1)?,
                turn_count: row.get(2)?,
            })
        })?;
    if let Some(names) = &readable.names {
        sessions.retain(|session| names.contains(&session.name));
    }
    sessions.truncate(MAX_SESSIONS);
    Ok(sessions)
}

/// Returns what a person said in a turn, and the last thing that the model said, with their roles.
fn spoken_texts(pieces: &[TurnPiece]) -> impl Iterator<Item = (SpeakerRole, &str)> {
    let role_of = |piece: &TurnPiece| match piece {
        TurnPiece::Message { role, .. } => Some(SpeakerRole::from_name(role)),
        _ => None,
    };
    let last_answer = pieces
        .iter()
        .rposition(|piece| role_of(piece) == Some(SpeakerRole::Assistant));
    pieces.iter().enumerate().filter_map(move |(at, piece)| {
        let TurnPiece::Message { role, text } = piece else {
            return None;
        };
        let role = SpeakerRole::from_name(role);
        (role == SpeakerRole::User || Some(at) == last_answer).then_some((role, text.as_str()))
    })
}

/// Renders a brief within its limit. Empty if there is nothing to say.
fn render_brief(lessons: &[Lesson], entries: BriefEntries, max_tokens: u32) -> String {
    const OPENING: &str = "<project_brief>\nFrom earlier sessions of this project, as of the \
        beginning of this session. What the user says now has priority.\n";
    const END: &str = "</project_brief>\n";
    let contents = |wanted: fn(LessonKind) -> bool| {
        let wanted = lessons.iter().filter(move |lesson| wanted(lesson.kind));
        wanted.map(|lesson| {
            truncate_to_tokens(&collapse_whitespace(&lesson.content), MAX_LINE_TOKENS)
        })
    };
    let learned: Vec<String> = contents(|kind| kind == LessonKind::Preference).collect();
    // A preference of the latest turns may have become a lesson since.
    let is_learned = |line: &String| {
        learned
            .iter()
            .any(|lesson| line.starts_with(lesson.as_str()))
    };
    let new = entries.preferences.iter().filter(|line| !is_learned(line));
    let preferences: Vec<String> = learned.iter().chain(new).cloned().collect();
    let is_rule = |kind| {
        use LessonKind::{Convention, Lesson, Problem, Stack};
        matches!(kind, Convention | Lesson | Problem | Stack)
    };
    let conventions: Vec<String> = contents(is_rule).collect();
    // A decision of the latest turns may have become a lesson since.
    let mut decisions = entries.decisions;
    decisions.retain(|line| {
        let mut known = conventions.iter().chain(&learned);
        !known.any(|known| line.starts_with(known.as_str()))
    });
    let layers = lessons
        .iter()
        .filter(|lesson| lesson.kind == LessonKind::Layer);
    let layers: Vec<String> = layers.map(|layer| layer.title.clone()).collect();
    let is_empty = preferences.is_empty()
        && decisions.is_empty()
        && entries.open_ends.is_empty()
        && entries.sessions.is_empty()
        && lessons.is_empty();
    if is_empty {
        return String::new();
    }
    let frame = tokens::count(OPENING) + tokens::count(END) + 2;
    let mut brief = SectionedText::new(max_tokens.saturating_sub(frame));
    let [
        for_preferences,
        for_conventions,
        for_decisions,
        for_open_ends,
    ] = SECTION_SHARES.map(|share| max_tokens * share / 100);
    brief.add("Decisions:", decisions, for_decisions);
    brief.add("Preferences:", preferences, for_preferences);
    brief.add(
        "Conventions and solved problems:",
        conventions,
        for_conventions,
    );
    brief.add("Open ends:", entries.open_ends, for_open_ends);
    let rest = brief.tokens_left;
    brief.add("References:", layers, rest / 3);
    let rest = brief.tokens_left;
    brief.add("Last sessions:", entries.sessions, rest);
    if brief.text.is_empty() {
        return String::new();
    }
    format!("{OPENING}{}{END}", brief.text)
}
