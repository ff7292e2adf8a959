//! A script that waits for people, as it is kept until they answer.

use std::time::Duration;

use selvedge_protocol::CallRecord;
use selvedge_sandbox::{Image, Position};
use selvedge_tools::Standing;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Everything another process needs to go on with a script.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Suspension {
    /// The build of the engine its memory belongs to.
    pub(crate) build: String,
    /// The model's own name for the call.
    pub(crate) call_id: String,
    pub(crate) seed: u64,
    /// What it was told so far: where its memory is of no use, it is told again. A [`crate::tape::Tape`].
    pub(crate) tape: Box<RawValue>,
    /// Time it had, and has left.
    pub(crate) timeout: Duration,
    pub(crate) left: Duration,
    pub(crate) heap_peak: u64,
    pub(crate) traffic: Paused,
    /// What it said so far. A [`crate::bridge::Said`].
    pub(crate) said: Box<RawValue>,
    pub(crate) standing: Standing,
    /// Its memory, which follows the rest as it is.
    #[serde(skip)]
    pub(crate) image: Vec<u8>,
}

/// Calls and timers of a script that is kept.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Paused {
    /// Timers, and when they ring.
    pub(crate) timers: Vec<(u32, Duration)>,
    /// Calls that wait for a person.
    pub(crate) waiting: Vec<Waiting>,
    /// Calls that are over, of which the script was not told yet.
    pub(crate) untold: Vec<(u32, String, Result<String, String>)>,
    /// The ledger, and what it has of results.
    pub(crate) calls: Vec<Vec<CallRecord>>,
    pub(crate) results: Vec<(String, String, String)>,
    pub(crate) kept: usize,
    pub(crate) dispatched: u32,
}

/// A call that waits for a person.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Waiting {
    pub(crate) id: u32,
    pub(crate) call_id: String,
    pub(crate) tool: String,
    /// As the script wrote it.
    pub(crate) path: String,
    /// A JSON array.
    pub(crate) args: String,
    pub(crate) at: Option<(u32, u32)>,
    /// The script itself gave it up: it lost a race.
    #[serde(default)]
    pub(crate) given_up: bool,
}

impl Waiting {
    pub(crate) fn position(&self) -> Option<Position> {
        self.at.map(|(line, column)| Position { line, column })
    }
}

impl Suspension {
    /// The length of the description, the description, the memory.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        let words = serde_json::to_vec(self)?;
        let length = (words.len() as u64).to_le_bytes();
        Ok([&length[..], &words, &self.image].concat())
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let (length, rest) = bytes.split_first_chunk().ok_or("it is too short")?;
        let length =
            usize::try_from(u64::from_le_bytes(*length)).map_err(|error| error.to_string())?;
        let (words, image) = rest.split_at_checked(length).ok_or("it is too short")?;
        let mut suspension: Self =
            serde_json::from_slice(words).map_err(|error| error.to_string())?;
        suspension.image = image.to_vec();
        Ok(suspension)
    }

    /// What one of the parts holds.
    pub(crate) fn part<T: DeserializeOwned>(part: &RawValue) -> Result<T, String> {
        serde_json::from_str(part.get()).map_err(|error| error.to_string())
    }

    pub(crate) fn image(&self) -> Image {
        Image {
            build: self.build.clone(),
            bytes: self.image.clone(),
        }
    }
}
