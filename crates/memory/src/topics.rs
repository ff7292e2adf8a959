//! Stores topics with weights that decay, the areas they belong to, and how often they occurred in
//! each week.

use std::collections::BTreeMap;

use selvedge_database::{Connection, params};
use serde::Serialize;

use crate::distill_answer::{AnsweredArea, AnsweredTopic};
use crate::distill_unit::{DistillUnit, UnitFolder};
use crate::lesson_learning::SourceTurn;
use crate::lesson_rules::ObservedTurn;
use crate::projects::readable_sessions;
use crate::store::{execute, find_session, now_ms, query_rows, require_session};
use crate::topic_clusters::{FoundTopic, OTHER_AREA, find_areas};
use crate::{Memory, MemoryAccess, MemoryError, time};

/// The factor by which a topic's weight shrinks with each [`DECAY_TURNS`].
const TOPIC_DECAY: f64 = 0.8;
/// The number of turns in which weights decay, however many requests they need.
const DECAY_TURNS: f64 = 200.0;
/// The part of a topic's weight in a group of turns with which the topic starts.
const INITIAL_SHARE: f64 = 0.2;
/// Topics with a lower weight are deleted.
const MIN_TOPIC_WEIGHT: f64 = 0.02;
/// The length of a week, in milliseconds.
const WEEK_MS: i64 = 7 * 24 * 3600 * 1000;
/// 1970 began with a Thursday: weeks begin on Monday, four days later.
const FIRST_MONDAY_MS: i64 = 4 * 24 * 3600 * 1000;

/// A topic of a session.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Topic {
    /// Name of the topic.
    pub name: String,
    /// The area of the project it belongs to, named after a topic, or `other`.
    pub category: String,
    /// How prominent it is in recent turns, from 0 to 1.
    pub weight: f64,
    /// How many turns mention it.
    pub turns: u32,
}

/// A topic of several sessions, and how often it occurred over time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TopicTrend {
    /// The topic, with the highest weight in any of the sessions.
    #[serde(flatten)]
    pub topic: Topic,
    /// The weeks in which it occurred: the day of their Monday, and how many turns mention it.
    pub weeks: Vec<(String, u32)>,
}

impl TopicTrend {
    /// Returns the weeks up to the latest in which any of the topics occurred, at most `max_weeks`,
    /// in order and without gaps.
    pub fn latest_weeks(trends: &[Self], max_weeks: usize) -> Vec<String> {
        let weeks = || trends.iter().flat_map(|trend| &trend.weeks);
        let (first, last) = (weeks().min(), weeks().max());
        let day = |week: Option<&(String, u32)>| week.and_then(|(day, _)| time::parse_ms(day));
        let (Some(first), Some(last)) = (day(first), day(last)) else {
            return Vec::new();
        };
        let between = (last - first) / WEEK_MS;
        let from = (between + 1 - max_weeks as i64).max(0);
        let weeks = (from..=between).map(|week| time::format_day(first + week * WEEK_MS));
        weeks.collect()
    }

    /// Returns how many turns mention the topic in each of these weeks.
    pub fn turns_in(&self, weeks: &[String]) -> Vec<u32> {
        let turns_in_week = |week: &String| {
            let mut found = self.weeks.iter().filter(|(it, _)| it == week);
            found.next().map_or(0, |(_, turns)| *turns)
        };
        weeks.iter().map(turns_in_week).collect()
    }
}

/// An area of a project, as a model described it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TopicArea {
    /// The name of the area.
    pub name: String,
    /// How the work in it went on.
    pub note: String,
}

/// A topic to be stored, with its part in a group of turns.
pub(crate) struct WeighedTopic {
    pub(crate) name: String,
    area: String,
    /// From 0 to 1.
    weight: f64,
    turns: Vec<SourceTurn>,
}

impl Memory {
    /// Returns the topics of a session, the highest weight first.
    pub fn topics(&self, session: &str) -> Result<Vec<Topic>, MemoryError> {
        self.read(|reader| {
            let found = require_session(&reader.connection, session)?;
            read_topics(&reader.connection, &[found.id])
        })
    }

    /// Returns the topics of the sessions that an access reaches, the highest weight first, with
    /// the weeks in which they occurred.
    pub fn topic_trends(&self, access: &MemoryAccess) -> Result<Vec<TopicTrend>, MemoryError> {
        self.read(|reader| {
            let connection = &reader.connection;
            let readable = readable_sessions(connection, access)?;
            let sql = "SELECT id, name FROM memory_sessions
                 WHERE (project = ?1 OR ?1 IS NULL) AND (name = ?2 OR ?2 IS NULL)";
            let key = params![readable.project, readable.session];
            let mut sessions: Vec<(i64, String)> =
                query_rows(connection, sql, key, |row| row.try_into())?;
            if let Some(names) = &readable.names {
                sessions.retain(|(_, name)| names.contains(name));
            }
            let sessions: Vec<i64> = sessions.into_iter().map(|(id, _)| id).collect();
            read_trends(connection, &sessions)
        })
    }

    /// Returns the topics of these sessions, as [`Memory::topic_trends`] does. Sessions that the
    /// memory does not have are skipped.
    pub fn topic_trends_of(&self, sessions: &[String]) -> Result<Vec<TopicTrend>, MemoryError> {
        self.read(|reader| {
            let connection = &reader.connection;
            let mut found = Vec::new();
            for session in sessions {
                found.extend(find_session(connection, session)?.map(|session| session.id));
            }
            read_trends(connection, &found)
        })
    }

    /// Returns the areas of a project that a model described.
    pub fn topic_areas(&self, project: &str) -> Result<Vec<TopicArea>, MemoryError> {
        self.read(|reader| read_areas(&reader.connection, project, None))
    }
}

/// Reads the topics of sessions, the highest weight first, with the weeks in which they occurred.
fn read_trends(connection: &Connection, sessions: &[i64]) -> Result<Vec<TopicTrend>, MemoryError> {
    let mut weeks: BTreeMap<String, BTreeMap<i64, u32>> = BTreeMap::new();
    let sql = "SELECT decrypt(name), week, turns FROM memory_topic_weeks WHERE session = ?1";
    for session in sessions {
        let rows: Vec<(String, i64, u32)> =
            query_rows(connection, sql, params![session], |row| row.try_into())?;
        for (name, week, turns) in rows {
            *weeks.entry(name).or_default().entry(week).or_default() += turns;
        }
    }
    let trends = read_topics(connection, sessions)?.into_iter().map(|topic| {
        let weeks = weeks.remove(&topic.name).unwrap_or_default().into_iter();
        let day = |week: i64| time::format_day(week * WEEK_MS + FIRST_MONDAY_MS);
        let weeks = weeks.map(|(week, turns)| (day(week), turns)).collect();
        TopicTrend { topic, weeks }
    });
    Ok(trends.collect())
}

/// Reads the topics of sessions, each name once, the highest weight first.
fn read_topics(connection: &Connection, sessions: &[i64]) -> Result<Vec<Topic>, MemoryError> {
    let mut topics: BTreeMap<String, Topic> = BTreeMap::new();
    let sql = "SELECT decrypt(name), decrypt(category), weight, turns FROM memory_topics
         WHERE session = ?1";
    for session in sessions {
        let rows: Vec<Topic> = query_rows(connection, sql, params![session], |row| {
            Ok(Topic {
                name: row.get(0)?,
                category: row.get(1)?,
                weight: row.get(2)?,
                turns: row.get(3)?,
            })
        })?;
        for row in rows {
            match topics.get_mut(&row.name) {
                Some(topic) => {
                    topic.turns += row.turns;
                    // The latest session knows the area best.
                    topic.category = row.category;
                    topic.weight = topic.weight.max(row.weight);
                }
                None => _ = topics.insert(row.name.clone(), row),
            }
        }
    }
    let mut topics: Vec<Topic> = topics.into_values().collect();
    topics.sort_by(|a, b| {
        b.weight
            .total_cmp(&a.weight)
            .then_with(|| a.name.cmp(&b.name))
    });
    Ok(topics)
}

/// Reads the topics of a folder, the highest weight first.
pub(crate) fn read_folder_topics(
    connection: &Connection,
    folder: UnitFolder<'_>,
) -> Result<Vec<Topic>, MemoryError> {
    let sessions: Vec<i64> = folder.sessions().map(|session| session.id).collect();
    read_topics(connection, &sessions)
}

/// Reads the areas of a unit that a model described, of one folder or (for `None`) of all.
pub(crate) fn read_areas(
    connection: &Connection,
    unit: &str,
    directory: Option<&str>,
) -> Result<Vec<TopicArea>, MemoryError> {
    let sql = "SELECT decrypt(name), decrypt(note) FROM memory_areas
         WHERE unit = ?1 AND (directory = ?2 OR ?2 IS NULL) ORDER BY updated_ms DESC, name";
    query_rows(connection, sql, params![unit, directory], |row| {
        Ok(TopicArea {
            name: row.get(0)?,
            note: row.get(1)?,
        })
    })
}

/// Weighs the topics that rules found in a group of turns by how often they occur.
pub(crate) fn weigh_found_topics(
    found: &[FoundTopic],
    turns: &[ObservedTurn],
    known: &[Topic],
) -> Vec<WeighedTopic> {
    let known = known
        .iter()
        .map(|topic| (topic.name.clone(), topic.category.clone()));
    let areas = find_areas(found, &known.collect());
    let highest = found
        .iter()
        .map(|topic| topic.turns.len())
        .max()
        .unwrap_or(1);
    let weighed = found.iter().zip(areas).map(|(topic, area)| WeighedTopic {
        name: topic.name.clone(),
        area,
        weight: topic.turns.len() as f64 / highest.max(1) as f64,
        turns: topic.turns.iter().map(|at| turns[*at].source()).collect(),
    });
    weighed.collect()
}

/// Weighs the topics of a model's answer as it says. A topic without a turn is one of the last
/// turn.
pub(crate) fn weigh_answered_topics(
    answered: Vec<AnsweredTopic>,
    turns: &[ObservedTurn],
) -> Vec<WeighedTopic> {
    let last = turns.last().map(ObservedTurn::source);
    let weighed = answered.into_iter().map(|topic| WeighedTopic {
        area: match topic.area.is_empty() {
            true => OTHER_AREA.to_owned(),
            false => topic.area,
        },
        turns: match topic.turns.is_empty() {
            true => last.into_iter().collect(),
            false => topic.turns,
        },
        name: topic.name,
        weight: topic.weight,
    });
    weighed.collect()
}

/// Updates the weights of a unit's topics: those of the latest turns gain, the others decay.
pub(crate) fn update_topics(
    connection: &Connection,
    unit: &DistillUnit,
    topics: &[WeighedTopic],
    turns: &[ObservedTurn],
) -> Result<(), MemoryError> {
    let at_ms: BTreeMap<SourceTurn, i64> = turns
        .iter()
        .map(|turn| (turn.source(), turn.at_ms))
        .collect();
    let decay = TOPIC_DECAY.powf(turns.len() as f64 / DECAY_TURNS);
    for session in &unit.sessions {
        let sql = "UPDATE memory_topics SET weight = weight * ?2 WHERE session = ?1";
        execute(connection, sql, params![session.id, decay])?;
    }
    for topic in topics {
        let mut by_session: BTreeMap<i64, u32> = BTreeMap::new();
        for turn in &topic.turns {
            *by_session.entry(turn.session).or_default() += 1;
            let at_ms = at_ms.get(turn).copied().unwrap_or_default();
            let week = (at_ms - FIRST_MONDAY_MS).div_euclid(WEEK_MS);
            let sql = "INSERT INTO memory_topic_weeks (session, name, week, turns)
                 VALUES (?1, encrypt(?2), ?3, 1) ON CONFLICT (session, name, week)
                 DO UPDATE SET turns = memory_topic_weeks.turns + 1";
            execute(connection, sql, params![turn.session, topic.name, week])?;
        }
        let initial = INITIAL_SHARE * topic.weight;
        let gain = (1.0 - decay) * topic.weight;
        for (session, turns) in by_session {
            let sql = "INSERT INTO memory_topics (session, name, category, weight, turns)
                 VALUES (?1, encrypt(?2), encrypt(?3), ?4, ?5)
                 ON CONFLICT (session, name)
                 DO UPDATE SET turns = memory_topics.turns + excluded.turns,
                    category = excluded.category,
                    weight = CASE WHEN memory_topics.weight + ?6 > 1.0 THEN 1.0
                        WHEN memory_topics.weight + ?6 < excluded.weight THEN excluded.weight
                        ELSE memory_topics.weight + ?6 END";
            let row = params![session, topic.name, topic.area, initial, turns, gain];
            execute(connection, sql, row)?;
        }
    }
    for session in &unit.sessions {
        let sql = "DELETE FROM memory_topics WHERE session = ?1 AND weight < ?2";
        execute(connection, sql, params![session.id, MIN_TOPIC_WEIGHT])?;
        let sql = "DELETE FROM memory_topic_weeks WHERE session = ?1 AND name NOT IN
             (SELECT name FROM memory_topics WHERE session = ?1)";
        execute(connection, sql, params![session.id])?;
    }
    Ok(())
}

/// Stores how the work in the areas of a folder went on.
pub(crate) fn store_areas(
    connection: &Connection,
    folder: UnitFolder<'_>,
    areas: &[AnsweredArea],
) -> Result<(), MemoryError> {
    let (unit, directory) = (&folder.unit.key, folder.directory);
    for area in areas {
        let sql = "INSERT INTO memory_areas (unit, directory, name, note, updated_ms)
             VALUES (?1, ?2, encrypt(?3), encrypt(?4), ?5) ON CONFLICT (unit, directory, name)
             DO UPDATE SET note = excluded.note, updated_ms = excluded.updated_ms";
        let row = params![unit, directory, area.name, area.evolution, now_ms()];
        execute(connection, sql, row)?;
    }
    Ok(())
}
