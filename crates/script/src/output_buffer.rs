//! The output of a running script: logs, progress, shown parts, warnings and stored values.

use std::collections::BTreeMap;

use selvedge_protocol::{Limits, LogEntry, OutputPart};
use serde::{Deserialize, Serialize};

use crate::errors::truncate_bytes;
use crate::rate_limit::{LogLimiter, ProgressLimiter};
use crate::script_store::{ScriptStore, ScriptStoreView};

/// Maximum number of bytes that a script may show with `text()`, `image()` and `audio()`.
const MAX_OUTPUT_BYTES: usize = 16 << 20;
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
    pub(crate) logs: LogLimiter,
    pub(crate) progress: ProgressLimiter,
    pub(crate) output: Vec<OutputPart>,
    warnings: Vec<String>,
    /// Number of warnings beyond the limit.
    #[serde(default)]
    omitted_warnings: usize,
    pub(crate) session: ScriptStoreView,
    pub(crate) last_approval: Option<String>,
    /// Descriptions of rejected promises without a handler, by the guest's number.
    pub(crate) rejections: BTreeMap<u32, String>,
    output_bytes: usize,
    notified: u32,
}

impl OutputBuffer {
    pub(crate) fn new(limits: &Limits, session: &ScriptStore) -> Self {
        Self {
            logs: LogLimiter::new(limits),
            progress: ProgressLimiter::new(limits),
            output: Vec::new(),
            warnings: Vec::new(),
            omitted_warnings: 0,
            session: session.view(),
            last_approval: None,
            rejections: BTreeMap::new(),
            output_bytes: 0,
            notified: 0,
        }
    }

    /// Counts a notification. Returns whether it is within the limit.
    pub(crate) fn count_notification(&mut self) -> bool {
        self.notified += 1;
        self.notified <= MAX_NOTIFICATIONS
    }

    pub(crate) fn warn(&mut self, warning: impl Into<String>) {
        match self.warnings.len() < MAX_WARNINGS {
            true => self.warnings.push(truncate_bytes(&warning.into(), 2048)),
            false => self.omitted_warnings += 1,
        }
    }

    /// Adds a part. Fails with a message if the output would exceed its limits.
    pub(crate) fn add_part(&mut self, part: OutputPart) -> Result<(), String> {
        let bytes = match &part {
            OutputPart::Text { text } => text.len(),
            OutputPart::Image { data, .. } | OutputPart::Audio { data, .. } => data.len(),
        };
        if self.output_bytes + bytes > MAX_OUTPUT_BYTES || self.output.len() >= MAX_OUTPUT_PARTS {
            let megabytes = MAX_OUTPUT_BYTES >> 20;
            return Err(format!(
                "a script may show at most {megabytes} MB in {MAX_OUTPUT_PARTS} parts"
            ));
        }
        self.output_bytes += bytes;
        self.output.push(part);
        Ok(())
    }

    /// Takes the logs and warnings.
    pub(crate) fn take_logs_and_warnings(&mut self) -> (Vec<LogEntry>, Vec<String>) {
        for description in std::mem::take(&mut self.rejections).into_values() {
            self.warn(format!("a promise failed and {description}"));
        }
        let (logs, dropped) = self.logs.take_entries();
        self.warnings.extend(dropped);
        match std::mem::take(&mut self.omitted_warnings) {
            0 => {}
            1 => self.warnings.push("1 more warning was left out".to_owned()),
            omitted => self
                .warnings
                .push(format!("{omitted} more warnings were left out")),
        }
        (logs, std::mem::take(&mut self.warnings))
    }
}
