//! Statistics of the memory: sessions, turns, and tokens by level.

use selvedge_database::params;
use serde::Serialize;

use crate::turn_metrics::TurnMetrics;
use crate::{LessonStatus, Memory, MemoryError, time, turn_metrics};

/// Statistics of the whole memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryStats {
    /// The statistics of each session, the oldest first.
    pub sessions: Vec<SessionStats>,
    /// The number of lessons in use.
    pub lessons: u32,
    /// The number of proposed lessons that wait for a person's decision.
    pub proposals: u32,
    /// The size of the memory's tables in the file, in bytes.
    pub bytes: u64,
}

/// Statistics of a session.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SessionStats {
    /// The name of the session.
    pub session: String,
    /// The number of turns, forgotten ones included.
    pub turns: u32,
    /// The number of turns whose levels are not written yet.
    pub waiting: u32,
    /// The number of turns in the last seven days.
    pub this_week: u32,
    /// The days (UTC) of the first and the last turn.
    pub days: [String; 2],
    /// The tokens of all turns at each level: raw, smoothed, compressed, tiny.
    pub tokens: [u64; 4],
}

impl SessionStats {
    /// Returns the tokens of a level in per cent of the raw tokens.
    pub fn percent_of_raw(&self, level: crate::Level) -> f64 {
        100.0 * self.tokens[level as usize] as f64 / self.tokens[0].max(1) as f64
    }
}

const WEEK_MS: i64 = 7 * 24 * 3600 * 1000;

impl Memory {
    /// Computes the statistics. Reads the metrics of every turn.
    pub fn stats(&self) -> Result<MemoryStats, MemoryError> {
        self.read(|reader| {
            let connection = &reader.connection;
            let mut read = connection.prepare_cached(
                "SELECT id, name, turns, turns - written FROM memory_sessions ORDER BY id",
            )?;
            let rows = read.query_map(params![], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })?;
            let mut sessions = Vec::new();
            for row in rows {
                let (id, session, turns, waiting): (i64, String, u32, u32) = row?;
                let (first, last, week): (i64, i64, u32) = connection.query_row(
                    "SELECT coalesce(min(at_ms), 0), coalesce(max(at_ms), 0),
                         count(*) FILTER (WHERE at_ms > ?3)
                     FROM memory_turns WHERE id >= ?1 AND id < ?2",
                    params![id << 32, (id + 1) << 32, crate::store::now_ms() - WEEK_MS],
                    |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
                )?;
                let mut metrics: Vec<TurnMetrics> = Vec::new();
                turn_metrics::read_metrics(connection, id, 1, turns, &mut metrics)?;
                let mut tokens = [0; 4];
                for turn in &metrics {
                    for (sum, tokens) in tokens.iter_mut().zip(turn.tokens) {
                        *sum += u64::from(tokens);
                    }
                }
                let days = [time::format_day(first), time::format_day(last)];
                sessions.push(SessionStats {
                    session,
                    turns,
                    waiting,
                    this_week: week,
                    days,
                    tokens,
                });
            }
            let count_lessons = |status: LessonStatus| {
                let sql = "SELECT count(*) FROM memory_lessons WHERE status = ?1";
                connection.query_row(sql, params![status], |row| row.get(0))
            };
            let bytes = connection.table_bytes(&["memory_%"])?;
            Ok(MemoryStats {
                sessions,
                lessons: count_lessons(LessonStatus::Used)?,
                proposals: count_lessons(LessonStatus::Proposed)?,
                bytes,
            })
        })
    }
}
