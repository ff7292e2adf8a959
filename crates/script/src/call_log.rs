//! The calls a run has made: their records, and their results in case the script fails.

use selvedge_protocol::CallRecord;
use serde::{Deserialize, Serialize};

/// Bytes of results kept in case the script fails.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// Records and results of a run's calls. Part of a suspended run's state.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct CallLog {
    /// Records of each call, in the order of calls. A call that was attempted again has several.
    #[serde(rename = "calls")]
    pub(crate) records: Vec<Vec<CallRecord>>,
    /// Results of finished calls: call, tool, JSON.
    results: Vec<(String, String, String)>,
    #[serde(rename = "kept")]
    kept_bytes: usize,
    /// Calls that were handed to a tool.
    pub(crate) dispatched: u32,
    /// Calls that did not stop when they were cancelled.
    #[serde(skip)]
    pub(crate) unstoppable: Vec<String>,
}

impl CallLog {
    /// Adds a call and returns its id.
    pub(crate) fn next_id(&mut self) -> String {
        self.records.push(Vec::new());
        format!("tool_{}", self.records.len())
    }

    /// Adds a record to those of its call.
    pub(crate) fn record(&mut self, record: CallRecord) {
        let number = call_number(&record.id);
        if let Some(records) = self.records.get_mut(number.saturating_sub(1)) {
            records.push(record);
        }
    }

    pub(crate) fn did_not_stop(&mut self, call_id: &str, tool: &str) {
        self.unstoppable.push(format!("{call_id} ({tool})"));
    }

    /// Keeps a result in case the script fails.
    pub(crate) fn keep_result(&mut self, call_id: &str, tool: &str, json: &str) {
        self.kept_bytes += json.len();
        let kept = if self.kept_bytes <= MAX_KEPT_BYTES {
            json.to_owned()
        } else {
            format!("\"… {} bytes\"", json.len())
        };
        self.results
            .push((call_id.to_owned(), tool.to_owned(), kept));
    }

    /// The last record of a call.
    pub(crate) fn last(&self, call_id: &str) -> Option<&CallRecord> {
        self.records
            .get(call_number(call_id).checked_sub(1)?)?
            .last()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &CallRecord> {
        self.records.iter().flatten()
    }

    /// All records, and the results in the order the calls were made.
    pub(crate) fn finish(mut self) -> (Vec<CallRecord>, Vec<(String, String, String)>) {
        self.results
            .sort_by_key(|(call_id, ..)| call_number(call_id));
        (self.records.into_iter().flatten().collect(), self.results)
    }
}

/// `tool_12` and `tool_12.again` → 12.
pub(crate) fn call_number(call_id: &str) -> usize {
    let number = call_id
        .rsplit('_')
        .next()
        .and_then(|number| number.split('.').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
