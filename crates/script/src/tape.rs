//! What a script was told from outside, in order: enough to make it do the same again.
//!
//! A script is a function of what it is told: the clock, the answers of its host, and which call or timer was settled
//! when. [`Head`] writes that down while a script runs, and tells it again when it is played. What calls returned is
//! kept by the ledger; the tape only says which one it was.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use selvedge_protocol::Limits;
use serde::{Deserialize, Serialize};

/// A tape holds about this many bytes; a script that is told more cannot be replayed.
const MAX_BYTES: usize = 8 << 20;

/// Everything a script was told, and what it asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tape {
    /// How far it might go.
    pub(crate) limits: Limits,
    pub(crate) timeout: Duration,
    pub(crate) told: Vec<Told>,
    /// It was told more than a tape holds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) cut: bool,
    #[serde(skip)]
    bytes: usize,
}

/// One thing on a tape. The names are short because there are many.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Told {
    /// It looked at the clock so many times, and it was so many milliseconds after 1970.
    #[serde(rename = "now")]
    Now(i64, u32),
    /// It asked its host a question on a channel.
    #[serde(rename = "ask")]
    Reply {
        on: String,
        text: String,
        reply: Option<String>,
    },
    /// It made a call.
    #[serde(rename = "call")]
    Made { path: String, args: String },
    /// A call was settled: with what the ledger has, or with this error.
    #[serde(rename = "done")]
    Settled {
        id: u32,
        call: String,
        error: Option<String>,
    },
    /// A timer rang.
    #[serde(rename = "ring")]
    Rang { id: u32 },
}

impl Tape {
    /// A tape of a script that may go so far.
    pub(crate) fn blank(limits: &Limits, timeout: Duration) -> Self {
        Self {
            limits: limits.clone(),
            timeout,
            ..Self::default()
        }
    }
}

impl Told {
    fn bytes(&self) -> usize {
        32 + match self {
            Self::Now(..) | Self::Rang { .. } => 0,
            Self::Reply { on, text, reply } => {
                on.len() + text.len() + reply.as_ref().map_or(0, String::len)
            }
            Self::Made { path, args } => path.len() + args.len(),
            Self::Settled { call, error, .. } => call.len() + error.as_ref().map_or(0, String::len),
        }
    }
}

/// Where a tape is written or played.
#[derive(Debug, Default)]
pub(crate) struct Head {
    pub(crate) tape: Tape,
    doing: Doing,
}

#[derive(Debug, Default)]
enum Doing {
    /// Nobody wants a tape.
    #[default]
    Nothing,
    Recording,
    Playing(Playing),
}

#[derive(Debug)]
struct Playing {
    /// What comes next.
    at: usize,
    /// How often the clock was looked at there.
    looked: u32,
    /// What the script did that it had not done then.
    lost: Option<String>,
    /// The script is on a road of its own: what it is told need not come in order.
    loose: bool,
    /// The last time it was told.
    now: i64,
}

impl Head {
    pub(crate) fn recording(tape: Tape) -> Self {
        let bytes = tape.told.iter().map(Told::bytes).sum();
        Self {
            tape: Tape { bytes, ..tape },
            doing: Doing::Recording,
        }
    }

    pub(crate) fn playing(tape: Tape) -> Self {
        let playing = Playing {
            at: 0,
            looked: 0,
            lost: None,
            loose: false,
            now: 0,
        };
        Self {
            doing: Doing::Playing(playing),
            ..Self::recording(tape)
        }
    }

    pub(crate) fn is_playing(&self) -> bool {
        matches!(self.doing, Doing::Playing(_))
    }

    pub(crate) fn is_on(&self) -> bool {
        !matches!(self.doing, Doing::Nothing)
    }

    /// From here on, what happens is written behind what was played.
    pub(crate) fn record_from_here(&mut self) {
        self.doing = Doing::Recording;
    }

    /// From here on, the script may do other things than it did.
    pub(crate) fn loosen(&mut self) {
        if let Doing::Playing(playing) = &mut self.doing {
            playing.loose = true;
        }
    }

    /// What the script did that is not on the tape.
    pub(crate) fn lost(&mut self) -> Option<String> {
        match &mut self.doing {
            Doing::Playing(playing) => playing.lost.take(),
            _ => None,
        }
    }

    pub(crate) fn write(&mut self, told: Told) {
        if !matches!(self.doing, Doing::Recording) || self.tape.cut {
            return;
        }
        self.tape.bytes += told.bytes();
        if self.tape.bytes > MAX_BYTES {
            self.tape.cut = true;
            return;
        }
        self.tape.told.push(told);
    }

    /// The clock, in whole milliseconds: a script has no finer one.
    pub(crate) fn now(&mut self) -> i64 {
        let Doing::Playing(playing) = &mut self.doing else {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_millis() as i64);
            match self.tape.told.last_mut() {
                Some(Told::Now(then, times)) if *then == now => *times = times.saturating_add(1),
                _ => self.write(Told::Now(now, 1)),
            }
            return now;
        };
        match self.tape.told.get(playing.at) {
            Some(Told::Now(now, times)) => {
                playing.looked += 1;
                playing.now = *now;
                if playing.looked >= *times {
                    playing.at += 1;
                    playing.looked = 0;
                }
            }
            // Off the tape time goes on, so that whoever waits for it does not wait for ever.
            None => playing.now = playing.now.saturating_add(1),
            Some(_) if playing.loose => playing.now = playing.now.saturating_add(1),
            Some(_) => {
                playing.now = playing.now.saturating_add(1);
                playing.lost.get_or_insert_with(|| {
                    "it looked at the clock, which it had not done".to_owned()
                });
            }
        }
        playing.now
    }

    /// What the host said, where it is played: the outer `None` means that somebody must answer now.
    pub(crate) fn reply(&mut self, on: &str, text: &str) -> Option<Option<String>> {
        let Doing::Playing(playing) = &mut self.doing else {
            return None;
        };
        let same = |told: &Told| match told {
            Told::Reply {
                on: channel,
                text: question,
                reply,
            } if channel == on && question == text => Some(reply.clone()),
            _ => None,
        };
        if playing.loose {
            return Some(
                self.tape
                    .told
                    .iter()
                    .find_map(same)
                    .unwrap_or_else(|| unrecorded(on)),
            );
        }
        match self.tape.told.get(playing.at) {
            Some(told) if let Some(reply) = same(told) => {
                playing.at += 1;
                Some(reply)
            }
            None => Some(unrecorded(on)),
            Some(_) => {
                playing.lost.get_or_insert_with(|| {
                    format!("it asked for `{on}` {text}, which it had not done")
                });
                Some(unrecorded(on))
            }
        }
    }

    pub(crate) fn write_reply(&mut self, on: &str, text: &str, reply: &Option<String>) {
        if matches!(self.doing, Doing::Recording) {
            self.write(Told::Reply {
                on: on.to_owned(),
                text: text.to_owned(),
                reply: reply.clone(),
            });
        }
    }

    /// A call the script makes; played, it must be the one it made then.
    pub(crate) fn made(&mut self, path: &str, args: &str) {
        let Doing::Playing(playing) = &mut self.doing else {
            return self.write(Told::Made {
                path: path.to_owned(),
                args: args.to_owned(),
            });
        };
        match self.tape.told.get(playing.at) {
            _ if playing.loose => {}
            Some(Told::Made {
                path: then,
                args: given,
            }) if then == path && alike(given, args) => playing.at += 1,
            // Behind the end it was stopped; nobody answers this call.
            None => {}
            Some(Told::Made {
                path: then,
                args: given,
            }) if then == path => {
                let words = format!(
                    "it calls {path} with {}, and had called it with {}",
                    brief(args),
                    brief(given)
                );
                playing.lost.get_or_insert(words);
            }
            Some(Told::Made { path: then, .. }) => {
                playing
                    .lost
                    .get_or_insert_with(|| format!("it calls {path}, and had called {then}"));
            }
            Some(_) => {
                playing
                    .lost
                    .get_or_insert_with(|| format!("it calls {path}, which it had not done"));
            }
        }
    }

    /// What the script is told next.
    pub(crate) fn next(&mut self) -> Option<Told> {
        let Doing::Playing(playing) = &mut self.doing else {
            return None;
        };
        let told = self.tape.told.get(playing.at)?.clone();
        match told {
            Told::Settled { .. } | Told::Rang { .. } => playing.at += 1,
            _ => {
                playing
                    .lost
                    .get_or_insert_with(|| "it waits, and had gone on".to_owned());
            }
        }
        Some(told)
    }
}

/// Something that was never asked before: as if nothing special were there.
fn unrecorded(on: &str) -> Option<String> {
    (on == "resolve").then(|| "tool".to_owned())
}

/// What stands in an exported recording where something secret stood.
const REDACTED: &str = "[redacted]";

fn alike(recorded: &str, now: &str) -> bool {
    recorded == now || recorded.contains(REDACTED)
}

fn brief(args: &str) -> String {
    crate::outcome::shortened(args, 120)
}
