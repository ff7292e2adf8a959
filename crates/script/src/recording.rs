//! Records everything that a script receives from its host, and replays it.
//!
//! A script is a deterministic function of its inputs: the clock, its host's replies, and the order
//! in which calls and timers are settled. [`Recorder`] writes these inputs to a [`Recording`] while
//! a script runs and returns them on replay. The ledger stores the values that calls returned; the
//! recording contains only the id of the call.

use std::collections::HashSet;
use std::time::Duration;

use selvedge_protocol::{Limits, now_ms};
use serde::{Deserialize, Serialize};

use crate::call_log::call_number;
use crate::errors::truncate_bytes;

/// Approximate size limit of a recording. A run with more inputs cannot be replayed.
const MAX_RECORDING_BYTES: usize = 8 << 20;

/// All inputs of a run, in order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// Limits the script ran under.
    pub(crate) limits: Limits,
    pub(crate) timeout: Duration,
    pub(crate) entries: Vec<RecordingEntry>,
    /// Set when the run had more inputs than a recording holds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) truncated: bool,
    #[serde(skip)]
    bytes: usize,
}

/// One entry of a recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecordingEntry {
    /// Milliseconds since 1970, and how many consecutive reads of the clock returned them.
    Now(i64, u32),
    /// The host's reply to a message.
    Reply {
        channel: String,
        text: String,
        reply: Option<String>,
    },
    /// A call the script made.
    Call { path: String, args: String },
    /// A call was settled, with the value in the ledger or with this error. `id` is the guest's id.
    Settled {
        id: u32,
        call: String,
        error: Option<String>,
    },
    /// A timer fired.
    #[serde(rename = "timer")]
    TimerFired { id: u32 },
}

impl Recording {
    pub(crate) fn new(limits: &Limits, timeout: Duration) -> Self {
        Self {
            limits: limits.clone(),
            timeout,
            ..Self::default()
        }
    }
}

impl RecordingEntry {
    fn size_bytes(&self) -> usize {
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        32 + match self {
            Self::Now(..) | Self::TimerFired { .. } => 0,
            Self::Reply {
                channel,
                text,
                reply,
            } => channel.len() + text.len() + length(reply),
            Self::Call { path, args } => path.len() + args.len(),
            Self::Settled { call, error, .. } => call.len() + length(error),
        }
    }
}

/// Writes a recording, or replays one.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) recording: Recording,
    mode: RecorderMode,
}

#[derive(Debug, Default)]
enum RecorderMode {
    #[default]
    Off,
    Recording,
    Replaying(ReplayCursor),
}

/// Position of a replay.
#[derive(Debug, Default)]
struct ReplayCursor {
    /// Index of the next input.
    next: usize,
    /// Clock reads already served from that input.
    clock_reads: u32,
    /// Description of the first difference between the script and the recording.
    divergence: Option<String>,
    /// The recorded calls whose answers are already used. `Some` once a call was forced to fail:
    /// from then on the script may differ from the recording.
    used_calls: Option<HashSet<String>>,
    /// The time last returned.
    now: i64,
}

impl ReplayCursor {
    fn set_divergence(&mut self, description: impl FnOnce() -> String) {
        self.divergence.get_or_insert_with(description);
    }
}

impl Recorder {
    /// Appends to a recording.
    pub(crate) fn append_to(recording: Recording) -> Self {
        let bytes = recording
            .entries
            .iter()
            .map(RecordingEntry::size_bytes)
            .sum();
        Self {
            recording: Recording { bytes, ..recording },
            mode: RecorderMode::Recording,
        }
    }

    /// Replays a recording from its beginning.
    pub(crate) fn replay_of(recording: Recording) -> Self {
        Self {
            mode: RecorderMode::Replaying(ReplayCursor::default()),
            ..Self::append_to(recording)
        }
    }

    pub(crate) fn is_replaying(&self) -> bool {
        matches!(self.mode, RecorderMode::Replaying(_))
    }

    pub(crate) fn is_enabled(&self) -> bool {
        !matches!(self.mode, RecorderMode::Off)
    }

    /// Ends the replay: further inputs are appended to the recording.
    pub(crate) fn record_from_here(&mut self) {
        self.mode = RecorderMode::Recording;
    }

    /// Lets the script deviate from the recording from here on. The answers of these calls are
    /// used.
    pub(crate) fn allow_divergence(&mut self, used: HashSet<String>) {
        if let RecorderMode::Replaying(cursor) = &mut self.mode {
            cursor.used_calls = Some(used);
        }
    }

    /// Whether the script may deviate from the recording.
    pub(crate) fn may_diverge(&self) -> bool {
        matches!(&self.mode, RecorderMode::Replaying(cursor) if cursor.used_calls.is_some())
    }

    /// Takes the description of the first difference between the script and the recording.
    pub(crate) fn take_divergence(&mut self) -> Option<String> {
        match &mut self.mode {
            RecorderMode::Replaying(cursor) => cursor.divergence.take(),
            _ => None,
        }
    }

    pub(crate) fn record(&mut self, input: RecordingEntry) {
        if !matches!(self.mode, RecorderMode::Recording) || self.recording.truncated {
            return;
        }
        self.recording.bytes += input.size_bytes();
        if self.recording.bytes > MAX_RECORDING_BYTES {
            self.recording.truncated = true;
            return;
        }
        self.recording.entries.push(input);
    }

    /// Returns the script's time, in milliseconds since 1970; on replay, the recorded one.
    pub(crate) fn now(&mut self) -> i64 {
        let RecorderMode::Replaying(cursor) = &mut self.mode else {
            let now = now_ms();
            match self.recording.entries.last_mut() {
                Some(RecordingEntry::Now(last, reads)) if *last == now => {
                    *reads = reads.saturating_add(1);
                }
                _ => self.record(RecordingEntry::Now(now, 1)),
            }
            return now;
        };
        match self.recording.entries.get(cursor.next) {
            Some(RecordingEntry::Now(now, reads)) => {
                cursor.clock_reads += 1;
                cursor.now = *now;
                if cursor.clock_reads >= *reads {
                    cursor.next += 1;
                    cursor.clock_reads = 0;
                }
                return *now;
            }
            Some(_) if cursor.used_calls.is_none() => {
                cursor.set_divergence(|| {
                    "the script reads the clock, the recorded run did not".to_owned()
                });
            }
            _ => {}
        }
        // Without a recorded value the clock still advances, so that a script that polls it ends.
        cursor.now = cursor.now.saturating_add(1);
        cursor.now
    }

    /// Returns the recorded reply to a message on replay. The outer `None` means that the host must
    /// reply itself.
    pub(crate) fn recorded_reply(&mut self, channel: &str, text: &str) -> Option<Option<String>> {
        let RecorderMode::Replaying(cursor) = &mut self.mode else {
            return None;
        };
        let same = |input: &RecordingEntry| match input {
            RecordingEntry::Reply {
                channel: recorded_channel,
                text: recorded_text,
                reply,
            } if recorded_channel == channel && recorded_text == text => Some(reply.clone()),
            _ => None,
        };
        let inputs = &self.recording.entries;
        let may_diverge = cursor.used_calls.is_some();
        let recorded = match may_diverge {
            true => inputs.iter().find_map(same),
            false => inputs.get(cursor.next).and_then(same),
        };
        match recorded {
            _ if may_diverge => {}
            Some(_) => cursor.next += 1,
            None if cursor.next < inputs.len() => {
                cursor.set_divergence(|| {
                    format!("the script asks for `{channel}` {text}, the recorded run did not")
                });
            }
            None => {}
        }
        Some(recorded.unwrap_or_else(|| default_reply(channel)))
    }

    pub(crate) fn record_reply(&mut self, channel: &str, text: &str, reply: &Option<String>) {
        if matches!(self.mode, RecorderMode::Recording) {
            self.record(RecordingEntry::Reply {
                channel: channel.to_owned(),
                text: text.to_owned(),
                reply: reply.clone(),
            });
        }
    }

    /// Records a call, or checks on replay that it is the recorded one.
    pub(crate) fn record_or_check_call(&mut self, path: &str, args: &str) {
        let RecorderMode::Replaying(cursor) = &mut self.mode else {
            if matches!(self.mode, RecorderMode::Recording) {
                self.record(RecordingEntry::Call {
                    path: path.to_owned(),
                    args: args.to_owned(),
                });
            }
            return;
        };
        if cursor.used_calls.is_some() {
            return;
        }
        match self.recording.entries.get(cursor.next) {
            // The recorded run was stopped here: the call stays unanswered.
            None => {}
            Some(RecordingEntry::Call {
                path: recorded,
                args: recorded_args,
            }) if recorded == path => {
                if recorded_args == args || recorded_args.contains(REDACTED_PLACEHOLDER) {
                    cursor.next += 1;
                    return;
                }
                cursor.set_divergence(|| {
                    let (args, recorded_args) = (
                        truncate_bytes(args, 120),
                        truncate_bytes(recorded_args, 120),
                    );
                    format!(
                        "the script calls {path} with {args}, the recorded run with {recorded_args}"
                    )
                });
            }
            Some(RecordingEntry::Call { path: recorded, .. }) => {
                cursor.set_divergence(|| {
                    format!("the script calls {path}, the recorded run {recorded}")
                });
            }
            Some(_) => {
                cursor.set_divergence(|| {
                    format!("the script calls {path}, the recorded run did not")
                });
            }
        }
    }

    /// Returns the next settled call or fired timer of a replay. `None` at the end of the
    /// recording.
    pub(crate) fn next_settlement(&mut self) -> Option<RecordingEntry> {
        let RecorderMode::Replaying(cursor) = &mut self.mode else {
            return None;
        };
        let input = self.recording.entries.get(cursor.next)?.clone();
        match input {
            RecordingEntry::Settled { .. } | RecordingEntry::TimerFired { .. } => cursor.next += 1,
            _ => cursor.set_divergence(|| "the script waits, the recorded run did not".to_owned()),
        }
        Some(input)
    }

    /// After a call was forced to fail: takes the first unused recorded answer that fits a pending
    /// call. `pending` returns the guest id of the pending call with this tool and these arguments.
    /// Returns that id, the id of the recorded call and its error.
    pub(crate) fn take_answer(
        &mut self,
        pending: impl Fn(&str, &str) -> Option<u32>,
    ) -> Option<(u32, String, Option<String>)> {
        let RecorderMode::Replaying(cursor) = &mut self.mode else {
            return None;
        };
        let used = cursor.used_calls.as_mut()?;
        let inputs = &self.recording.entries;
        let calls: Vec<(&str, &str)> = inputs
            .iter()
            .filter_map(|input| match input {
                RecordingEntry::Call { path, args } => Some((path.as_str(), args.as_str())),
                _ => None,
            })
            .collect();
        let found = inputs.iter().find_map(|input| match input {
            RecordingEntry::Settled { call, error, .. } if !used.contains(call) => {
                let (path, args) = calls.get(call_number(call).checked_sub(1)?)?;
                Some((pending(path, args)?, call.clone(), error.clone()))
            }
            _ => None,
        });
        used.extend(found.iter().map(|(_, call, _)| call.clone()));
        found
    }
}

/// Returns the reply to a message that is not in the recording.
fn default_reply(channel: &str) -> Option<String> {
    (channel == "resolve").then(|| "tool".to_owned())
}

/// Placeholder for secrets in an exported recording.
const REDACTED_PLACEHOLDER: &str = "[redacted]";
