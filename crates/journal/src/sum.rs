//! What is written down of a run's calls when it is over, so that nobody has to read them to make a list.

/// How many it made, and of which tools: what is set in `runs` together with its end.
pub(crate) const SUM: &str = "(calls, tools) = (SELECT count(*), json_group_array(DISTINCT tool) FROM calls WHERE run = runs.id)";

/// Whether a run has called a tool. The calls of one that is not over are looked at.
pub(crate) fn called(tool: &str) -> String {
    format!(
        "CASE WHEN tools IS NULL THEN EXISTS (SELECT 1 FROM calls WHERE calls.run = runs.id AND calls.tool = {tool})
              ELSE EXISTS (SELECT 1 FROM json_each(tools) WHERE value = {tool}) END"
    )
}
