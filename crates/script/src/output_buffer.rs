//! The output of a running script: logs, progress, shown parts, warnings and stored values.

use std::collections::BTreeMap;

use selvedge_protocol::{Limits, LogEntry, LogLevel, OutputPart};
use serde::{Deserialize, Serialize};

use crate::errors::truncate_bytes;
use crate::rate_limit::{LogLimiter, ProgressLimiter};
use crate::script_store::{ScriptStore, ScriptStoreView};

/// Maximum number of parts that a script may show.
const MAX_OUTPUT_PARTS: usize = 10_000;
/// Maximum number of calls of `notify()` and `yield_control()` that a script may make.
pub(crate) const MAX_NOTIFICATIONS: u32 = 50;
/// Maximum number of warnings in an output.
const MAX_WARNINGS: usize = 20;

/// Output of a script, within its limits. Shared by the script host, which the sandbox owns, and
/// the run. Part of a suspended run's state.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OutputBuffer {
    logs: LogLimiter,
    pub(crate) progress: ProgressLimiter,
    pub(crate) output: Vec<OutputPart>,
    warnings: Vec<String>,
    /// Number of warnings beyond the limit.
    #[serde(default)]
    omitted_warnings: usize,
    pub(crate) stored_values: ScriptStoreView,
    pub(crate) last_approval_id: Option<String>,
    /// Descriptions of rejected promises without a handler, by the guest's number.
    pub(crate) unhandled_rejections: BTreeMap<u32, String>,
    /// Bytes of the parts and notifications. Log lines count themselves.
    output_bytes: usize,
    /// Limit of the parts, notifications and log lines together.
    #[serde(default = "default_max_output_bytes")]
    max_output_bytes: usize,
    notification_count: u32,
}

/// What a script shows does not fit into its limit.
#[derive(Debug)]
pub(crate) struct OutputFull;

fn default_max_output_bytes() -> usize {
    Limits::default().max_output_bytes
}

impl OutputBuffer {
    pub(crate) fn new(limits: &Limits, store: &ScriptStore) -> Self {
        Self {
            logs: LogLimiter::new(limits),
            progress: ProgressLimiter::new(limits),
            output: Vec::new(),
            warnings: Vec::new(),
            omitted_warnings: 0,
            stored_values: store.view(),
            last_approval_id: None,
            unhandled_rejections: BTreeMap::new(),
            output_bytes: 0,
            max_output_bytes: limits.max_output_bytes,
            notification_count: 0,
        }
    }

    /// Counts a notification. Returns whether it is within the limit.
    pub(crate) fn count_notification(&mut self) -> bool {
        self.notification_count += 1;
        self.notification_count <= MAX_NOTIFICATIONS
    }

    /// Counts bytes that the script shows. Fails if they do not fit into the limit.
    pub(crate) fn count_bytes(&mut self, bytes: usize) -> Result<(), OutputFull> {
        if !self.has_room(bytes) {
            return Err(OutputFull);
        }
        self.output_bytes += bytes;
        Ok(())
    }

    fn has_room(&self, bytes: usize) -> bool {
        let shown = self.output_bytes + self.logs.bytes();
        shown.saturating_add(bytes) <= self.max_output_bytes
    }

    /// Logs a line. Returns true if it is emitted as its own event, false if it was joined to the
    /// last one or dropped.
    pub(crate) fn log(&mut self, level: LogLevel, message: &str, now_ms: i64) -> bool {
        match self.has_room(message.len() + 1) {
            true => self.logs.log(level, message, now_ms),
            false => {
                self.logs.count_dropped();
                false
            }
        }
    }

    pub(crate) fn warn(&mut self, warning: impl Into<String>) {
        match self.warnings.len() < MAX_WARNINGS {
            true => self.warnings.push(truncate_bytes(&warning.into(), 2048)),
            false => self.omitted_warnings += 1,
        }
    }

    /// Adds a part. Fails if it does not fit into the limits.
    pub(crate) fn add_part(&mut self, part: OutputPart) -> Result<(), OutputFull> {
        let bytes = match &part {
            OutputPart::Text { text } => text.len(),
            OutputPart::Image { data, .. } | OutputPart::Audio { data, .. } => data.len(),
        };
        if self.output.len() >= MAX_OUTPUT_PARTS {
            return Err(OutputFull);
        }
        self.count_bytes(bytes)?;
        self.output.push(part);
        Ok(())
    }

    /// Takes the logs and warnings.
    pub(crate) fn take_logs_and_warnings(&mut self) -> (Vec<LogEntry>, Vec<String>) {
        for description in std::mem::take(&mut self.unhandled_rejections).into_values() {
            self.warn(description);
        }
        let (logs, dropped) = self.logs.take_entries();
        self.warnings.extend(dropped);
        match std::mem::take(&mut self.omitted_warnings) {
            0 => {}
            1 => self.warnings.push("1 more warning was omitted".to_owned()),
            omitted => self
                .warnings
                .push(format!("{omitted} more warnings were omitted")),
        }
        (logs, std::mem::take(&mut self.warnings))
    }
}
