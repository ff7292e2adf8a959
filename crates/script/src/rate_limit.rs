//! Rate and size limits for log lines and progress messages.

use std::time::{Duration, Instant};

use selvedge_protocol::{Limits, LogEntry, LogLevel};
use serde::{Deserialize, Serialize};

/// Maximum number of bytes that a script may log.
const MAX_LOG_BYTES: usize = 256 << 10;

/// Limits what a script logs. Lines that come faster than the rate are joined into one event; lines
/// beyond the number or size limit are dropped and counted.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LogLimiter {
    entries: Vec<LogEntry>,
    max_events: usize,
    rate: f64,
    allowance: f64,
    /// Time of the last line by the script's clock, so that a replay joins the same lines.
    last_ms: Option<i64>,
    bytes: usize,
    dropped: usize,
}

impl LogLimiter {
    pub(crate) fn new(limits: &Limits) -> Self {
        let rate = f64::from(limits.log_rate_per_sec.max(1));
        Self {
            entries: Vec::new(),
            max_events: limits.max_log_events,
            rate,
            allowance: rate,
            last_ms: None,
            bytes: 0,
            dropped: 0,
        }
    }

    /// Logs a line. Returns true if it is emitted as its own event, false if it was joined to the
    /// last one or dropped.
    pub(crate) fn log(&mut self, level: LogLevel, message: &str, now_ms: i64) -> bool {
        let elapsed_ms = self
            .last_ms
            .map_or(0, |last| now_ms.saturating_sub(last).max(0));
        self.allowance = (self.allowance + elapsed_ms as f64 / 1000.0 * self.rate).min(self.rate);
        self.last_ms = Some(now_ms);
        if self.bytes + message.len() > MAX_LOG_BYTES {
            self.dropped += 1;
            return false;
        }
        let room = self.entries.len() < self.max_events;
        if self.allowance >= 1.0 && room {
            self.allowance -= 1.0;
            self.bytes += message.len();
            self.entries.push(LogEntry {
                level,
                message: message.to_owned(),
            });
            return true;
        }
        match self.entries.last_mut() {
            Some(last) if room => {
                self.bytes += message.len() + 1;
                last.message.push('\n');
                last.message.push_str(message);
                last.level = more_severe(last.level, level);
            }
            _ => self.dropped += 1,
        }
        false
    }

    /// Returns the size of the lines.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts a line that was dropped.
    pub(crate) fn count_dropped(&mut self) {
        self.dropped += 1;
    }

    /// Takes the log entries, and a warning if lines were dropped.
    pub(crate) fn take_entries(&mut self) -> (Vec<LogEntry>, Option<String>) {
        let warning = (self.dropped > 0).then(|| {
            format!(
                "{} log lines were dropped: a script may log {} events and {} KB, within the \
                 limit of what it shows",
                self.dropped,
                self.max_events,
                MAX_LOG_BYTES >> 10
            )
        });
        (std::mem::take(&mut self.entries), warning)
    }
}

fn more_severe(a: LogLevel, b: LogLevel) -> LogLevel {
    let rank = |level| match level {
        LogLevel::Log => 0,
        LogLevel::Warn => 1,
        LogLevel::Error => 2,
    };
    if rank(b) > rank(a) { b } else { a }
}

/// Limits the rate and number of progress messages.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProgressLimiter {
    left: usize,
    interval: Duration,
    #[serde(skip)]
    last: Option<Instant>,
}

impl ProgressLimiter {
    pub(crate) fn new(limits: &Limits) -> Self {
        let interval = Duration::from_millis(limits.progress_interval_ms);
        Self {
            left: limits.max_progress_events,
            interval,
            last: None,
        }
    }

    /// Returns whether a progress message may be sent now, and counts it.
    pub(crate) fn try_acquire(&mut self) -> bool {
        let now = Instant::now();
        let too_soon = self
            .last
            .is_some_and(|last| now.duration_since(last) < self.interval);
        if too_soon || self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.last = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_lines_is_joined_and_not_dropped() {
        let mut meter = LogLimiter::new(&Limits::default());
        for i in 0..100 {
            meter.log(LogLevel::Log, &i.to_string(), 1);
        }
        meter.log(LogLevel::Error, "bad", 2);
        let (entries, warning) = meter.take_entries();
        assert!(entries.len() <= 21, "{}", entries.len());
        let lines: Vec<&str> = entries
            .iter()
            .flat_map(|entry| entry.message.lines())
            .collect();
        assert_eq!(lines.len(), 101);
        assert_eq!(
            entries.last().map(|entry| entry.level),
            Some(LogLevel::Error)
        );
        assert_eq!(warning, None);
    }

    #[test]
    fn the_number_and_size_of_lines_are_limited() {
        let limits = Limits {
            max_log_events: 3,
            log_rate_per_sec: 1000,
            ..Limits::default()
        };
        let mut meter = LogLimiter::new(&limits);
        (0..10).for_each(|_| _ = meter.log(LogLevel::Log, "x", 0));
        let (entries, warning) = meter.take_entries();
        assert_eq!(entries.len(), 3);
        assert!(warning.is_some_and(|warning| warning.starts_with("7 log lines were dropped")));
        let mut meter = LogLimiter::new(&Limits::default());
        (0..1000).for_each(|_| _ = meter.log(LogLevel::Log, &"x".repeat(1000), 0));
        let (entries, warning) = meter.take_entries();
        assert!(
            entries
                .iter()
                .map(|entry| entry.message.len())
                .sum::<usize>()
                <= MAX_LOG_BYTES + 1000
        );
        assert!(warning.is_some());
    }
}
