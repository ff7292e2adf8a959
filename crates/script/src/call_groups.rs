//! Groups consecutive calls that ended in the same way, so that the result of a script with a
//! thousand calls stays short.

use selvedge_protocol::{CallRecord, CallStatus};

/// Maximum number of tools that the label of a group names.
const MAX_LABEL_TOOLS: usize = 3;

/// Splits calls into groups of neighbours with the same status and the same note, and returns each
/// group with its note. A call of unknown outcome is alone in its group, because a script that
/// resumes the run names each of them.
pub fn group_calls<N: PartialEq>(
    calls: &[CallRecord],
    note: impl Fn(&CallRecord) -> N,
) -> Vec<(&[CallRecord], N)> {
    let mut groups: Vec<(&[CallRecord], N)> = Vec::new();
    let mut start = 0;
    for (at, call) in calls.iter().enumerate() {
        let note = note(call);
        let status = call.status;
        let joins = |known: &N| {
            status == calls[start].status && status != CallStatus::OutcomeUnknown && *known == note
        };
        match groups.last_mut() {
            Some((group, known)) if joins(known) => *group = &calls[start..=at],
            _ => {
                start = at;
                groups.push((&calls[at..=at], note));
            }
        }
    }
    groups
}

/// Returns the ids and the tools of a group: `tool_3 exec`, or `tool_6 to tool_9 exec, read_file`.
pub fn group_label(group: &[CallRecord]) -> String {
    let ids = match group {
        [] => return String::new(),
        [call] => call.id.clone(),
        [first, last] => format!("{} and {}", first.id, last.id),
        [first, .., last] => format!("{} to {}", first.id, last.id),
    };
    let mut tools: Vec<&str> = Vec::new();
    for call in group {
        if tools.len() <= MAX_LABEL_TOOLS && !tools.contains(&call.tool.as_str()) {
            tools.push(&call.tool);
        }
    }
    if tools.len() > MAX_LABEL_TOOLS {
        tools[MAX_LABEL_TOOLS] = "…";
    }
    format!("{ids} {}", tools.join(", "))
}
