//! Topics of sessions over time: how many turns mention each topic in equal parts of the time.

use std::collections::{BTreeMap, BTreeSet};

use selvedge_database::{Connection, params};
use serde::Serialize;

use crate::postings::for_each_posting;
use crate::store::{MemorySessionRow, find_session, query_rows};
use crate::words::for_each_term;
use crate::{Memory, MemoryError};

/// Topics of some sessions, and when they were mentioned.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct TopicHistory {
    /// When the oldest turn was stored, in milliseconds since 1970.
    pub first_ms: i64,
    /// When the newest turn was stored, in milliseconds since 1970.
    pub last_ms: i64,
    /// The topics, the most prominent first.
    pub topics: Vec<TopicOverTime>,
}

/// A topic, and how many turns mention it over time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TopicOverTime {
    /// Name of the topic, one word.
    pub name: String,
    /// The area it belongs to.
    pub category: String,
    /// How prominent it is in recent turns: the sum of its weights in the sessions.
    pub weight: f64,
    /// How many turns mention it in each part of the time, the oldest first.
    pub turns: Vec<u32>,
}

/// The turns of a session by number, with their times.
struct TurnTimes {
    session: i64,
    times: BTreeMap<u32, i64>,
}

impl Memory {
    /// Returns the most prominent topics of these sessions, with the number of turns that mention
    /// them in each of `parts` equal parts of the time. Sessions that the memory does not have are
    /// skipped.
    pub fn topic_history(
        &self,
        sessions: &[String],
        max_topics: usize,
        parts: usize,
    ) -> Result<TopicHistory, MemoryError> {
        let parts = parts.max(1);
        self.read(|reader| {
            let connection = &reader.connection;
            let mut prominent: BTreeMap<String, (String, f64)> = BTreeMap::new();
            let mut turns = Vec::new();
            for name in sessions {
                let Some(session) = find_session(connection, name)? else {
                    continue;
                };
                let topics = topics_of(connection, &session)?;
                if topics.is_empty() {
                    continue;
                }
                for (name, category, weight) in topics {
                    prominent.entry(name).or_insert((category, 0.0)).1 += weight;
                }
                turns.push(turn_times(connection, &session)?);
            }
            let times = || turns.iter().flat_map(|turns| turns.times.values().copied());
            let (Some(first_ms), Some(last_ms)) = (times().min(), times().max()) else {
                return Ok(TopicHistory::default());
            };
            let mut prominent: Vec<_> = prominent.into_iter().collect();
            prominent.sort_by(|a, b| b.1.1.total_cmp(&a.1.1).then_with(|| a.0.cmp(&b.0)));
            prominent.truncate(max_topics);
            let span = (last_ms - first_ms + 1) as f64 / parts as f64;
            let part_of = |time: i64| (((time - first_ms) as f64 / span) as usize).min(parts - 1);
            let over_time = |(name, (category, weight)): (String, (String, f64))| {
                let mut counts = vec![0; parts];
                for time in mentions(connection, &name, &turns)? {
                    counts[part_of(time)] += 1;
                }
                Ok(TopicOverTime {
                    name,
                    category,
                    weight,
                    turns: counts,
                })
            };
            let topics = prominent.into_iter().map(over_time);
            Ok(TopicHistory {
                first_ms,
                last_ms,
                topics: topics.collect::<Result<_, MemoryError>>()?,
            })
        })
    }
}

/// Returns name, category and weight of the topics of a session.
fn topics_of(
    connection: &Connection,
    session: &MemorySessionRow,
) -> Result<Vec<(String, String, f64)>, MemoryError> {
    let sql =
        "SELECT decrypt(name), decrypt(category), weight FROM memory_topics WHERE session = ?1";
    query_rows(connection, sql, params![session.id], |row| row.try_into())
}

fn turn_times(
    connection: &Connection,
    session: &MemorySessionRow,
) -> Result<TurnTimes, MemoryError> {
    let sql = "SELECT id, at_ms FROM memory_turns WHERE id >= ?1 AND id < ?2";
    let (first, end) = (session.id << 32, (session.id + 1) << 32);
    let times = query_rows(connection, sql, params![first, end], |row| {
        let id: i64 = row.get(0)?;
        // The lower half of an id is the number of the turn.
        Ok((id as u32, row.get(1)?))
    })?;
    Ok(TurnTimes {
        session: session.id,
        times,
    })
}

/// Returns the times of the turns that mention a topic.
fn mentions(
    connection: &Connection,
    topic: &str,
    sessions: &[TurnTimes],
) -> Result<Vec<i64>, MemoryError> {
    let mut terms = Vec::new();
    for_each_term(topic, |term| terms.push(term.to_owned()));
    let mut found = Vec::new();
    for TurnTimes { session, times } in sessions {
        let mut turns = BTreeSet::new();
        for term in &terms {
            for_each_posting(connection, term, Some(*session), |_, turn, _| {
                turns.insert(turn);
            })?;
        }
        found.extend(turns.iter().filter_map(|turn| times.get(turn)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use selvedge_journal::Redactor;

    use super::*;
    use crate::NewTurn;

    #[tokio::test]
    async fn turns_that_mention_a_topic_are_counted_by_time() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Arc::new(Memory::open(dir.path(), Redactor::new([])).unwrap());
        for day in 1..=10 {
            let text = match day {
                1 | 2 | 9 => "The migration of the database failed.",
                _ => "Something else happened.",
            };
            let ts = format!("2024-05-{day:02}T00:00:00Z");
            let turn = NewTurn {
                ts: Some(&ts),
                ..NewTurn::text("user", text)
            };
            memory.append("a", &turn).unwrap();
        }
        memory.distill("a", None).await.unwrap();
        let sessions = ["a".to_owned(), "none".to_owned()];
        let history = memory.topic_history(&sessions, 20, 2).unwrap();
        assert_eq!(history.last_ms - history.first_ms, 9 * 24 * 3600 * 1000);
        let topic = |topic: &&TopicOverTime| topic.name == "migration";
        let migration = history.topics.iter().find(topic).unwrap();
        assert_eq!(migration.turns, [2, 1], "{history:?}");
        assert_eq!(migration.category, "migration");
        let one = memory.topic_history(&sessions, 1, 0).unwrap();
        assert_eq!(one.topics.len(), 1);
        let none = memory.topic_history(&["none".to_owned()], 20, 2).unwrap();
        assert_eq!(none, TopicHistory::default());
    }
}
