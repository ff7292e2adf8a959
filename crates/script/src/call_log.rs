//! The calls of a run: their records, and their results, which are reported if the script fails.

use selvedge_protocol::CallRecord;
use serde::{Deserialize, Serialize};

/// Bytes of results that are stored for the case that the script fails.
const MAX_PARTIAL_RESULTS_BYTES: usize = 1 << 20;

/// Size of a result that is stored in any case, in bytes. The number of calls is limited.
const MAX_SMALL_RESULT_BYTES: usize = 1 << 10;

/// Records and results of a run's calls. Part of a suspended run's state.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct CallLog {
    /// Records of each call, in the order of calls. A call that was retried has several.
    #[serde(rename = "calls")]
    pub(crate) records: Vec<Vec<CallRecord>>,
    /// Results of completed calls.
    results: Vec<PartialResult>,
    result_bytes: usize,
    /// Warnings of the calls, with the names of their tools.
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
    /// Number of calls that were handed to a tool.
    pub(crate) invoked_count: u32,
    /// Calls that did not stop when they were cancelled, described as `id (tool)`.
    #[serde(skip)]
    pub(crate) unstoppable: Vec<String>,
}

/// The result of a completed call, for the case that the script fails.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PartialResult {
    pub(crate) call_id: String,
    pub(crate) tool: String,
    /// The result as JSON, or a text that says its size.
    pub(crate) json: String,
    /// Size of the result as JSON, in bytes.
    pub(crate) bytes: usize,
}

impl CallLog {
    /// Adds a call without records and returns its id.
    pub(crate) fn add_call(&mut self) -> String {
        self.records.push(Vec::new());
        format!("tool_{}", self.records.len())
    }

    /// Adds a record to its call.
    pub(crate) fn add_record(&mut self, record: CallRecord) {
        let number = call_number(&record.id);
        if let Some(records) = self.records.get_mut(number.saturating_sub(1)) {
            records.push(record);
        }
    }

    pub(crate) fn add_unstoppable(&mut self, call_id: &str, tool: &str) {
        self.unstoppable.push(format!("{call_id} ({tool})"));
    }

    /// Stores a result for the case that the script fails. Beyond the limit, only small ones, and
    /// the sizes of others.
    pub(crate) fn add_result(&mut self, call_id: &str, tool: &str, json: &str) {
        self.result_bytes += json.len();
        let fits = self.result_bytes <= MAX_PARTIAL_RESULTS_BYTES;
        let stored = match fits || json.len() <= MAX_SMALL_RESULT_BYTES {
            true => json.to_owned(),
            false => format!("\"… {} bytes\"", json.len()),
        };
        self.results.push(PartialResult {
            call_id: call_id.to_owned(),
            tool: tool.to_owned(),
            json: stored,
            bytes: json.len(),
        });
    }

    /// Returns the last record of a call.
    pub(crate) fn last_record(&self, call_id: &str) -> Option<&CallRecord> {
        self.records
            .get(call_number(call_id).checked_sub(1)?)?
            .last()
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = &CallRecord> {
        self.records.iter().flatten()
    }

    /// Returns all records, and the results in the order of the calls.
    pub(crate) fn into_records_and_results(mut self) -> (Vec<CallRecord>, Vec<PartialResult>) {
        self.results
            .sort_by_key(|result| call_number(&result.call_id));
        (self.records.into_iter().flatten().collect(), self.results)
    }
}

/// Returns the number in a call id: 12 for `tool_12` and `tool_12.again`.
pub(crate) fn call_number(call_id: &str) -> usize {
    let number = call_id
        .rsplit('_')
        .next()
        .and_then(|number| number.split('.').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
