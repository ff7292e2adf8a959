//! SQL for the number and tools of a run's calls, which are stored when the run ends so that a
//! list of runs does not read the calls.

/// The assignment that sets the number of calls of an ended run and the tools it called.
pub(crate) const SET_CALL_COUNTS: &str = "(calls, tools) =
    (SELECT count(*), json_group_array(DISTINCT tool) FROM calls WHERE run = runs.id)";

/// Returns the condition that a run has called a tool. For a run that has not ended, it reads the
/// calls.
pub(crate) fn called_tool_condition(tool: &str) -> String {
    format!(
        "CASE WHEN tools IS NULL
              THEN EXISTS (SELECT 1 FROM calls WHERE calls.run = runs.id AND calls.tool = {tool})
              ELSE EXISTS (SELECT 1 FROM json_each(tools) WHERE value = {tool}) END"
    )
}
