//! Compacts a conversation that nearly fills the model's context, without asking a model.
//!
//! The compacted conversation contains the first and the latest request, the plan, every run that
//! has not ended, one line with a handle for each earlier run, and the last steps unchanged, at
//! least the newest answer with its results. The originals stay in the journal.

use crate::script_result::{shown_text, text_handle};
use crate::token_estimate::{bytes_of_tokens, estimate_tokens};
use selvedge_journal::StoredRunState;
use selvedge_protocol::{
    CallStatus, ConversationItem, MessageRole, OutputPart, RunStatus, TurnItem, Usage,
};
use selvedge_text::{count_noun, truncate_bytes, truncate_middle};
use selvedge_tools::Registry;

use crate::session_record::{SessionStep, SessionStepKind};
use crate::turn::steps_since_compaction;
use crate::{Agent, Session};

/// A compacted conversation.
pub(crate) struct CompactedConversation {
    pub(crate) request_items: Vec<ConversationItem>,
    pub(crate) tokens_before: u64,
    pub(crate) tokens_after: u64,
}

/// The number of tokens that an answer usually does not exceed, whatever the model allows.
const USUAL_ANSWER_TOKENS: u64 = 8_192;

/// The estimated number of tokens of an image or an audio clip.
const MEDIA_PART_TOKENS: u64 = 1_500;

/// The minimum number of tokens that the fixed part of a request must leave for the conversation.
/// If there is less room, compacting does not help.
const MIN_CONVERSATION_TOKENS: u64 = 1_000;

/// The result of [`compact_if_needed`].
pub(crate) enum CompactionOutcome {
    /// The conversation fits, or would not become much shorter.
    Unchanged,
    /// The compacted conversation. The original nearly fills the context.
    Compacted(CompactedConversation),
    /// The system prompt and the tools alone nearly fill the context.
    NoRoom {
        /// The estimated number of tokens of the system prompt and the tools.
        fixed: u64,
    },
}

/// Compacts the session if it nearly fills the context.
pub(crate) async fn compact_if_needed(session: &Session, agent: &Agent) -> CompactionOutcome {
    let window = agent.context_window();
    // The answer needs room as well, but no more than an answer usually has.
    let answer = agent.model.max_output_tokens.min(USUAL_ANSWER_TOKENS);
    let reserve = window * (100 - agent.options.compact_at_percent.min(100)) / 100;
    let limit = window.saturating_sub(reserve.max(answer.min(window / 4)));
    if estimate_next_request(session, agent) <= limit {
        return CompactionOutcome::Unchanged;
    }
    let fixed = fixed_tokens(session, agent);
    let room = limit.saturating_sub(fixed);
    if room < MIN_CONVERSATION_TOKENS {
        return CompactionOutcome::NoRoom { fixed };
    }
    let shorter = compact_to(
        session,
        agent,
        fixed,
        CompactionRoom {
            limit: room,
            target: room / 2,
        },
    )
    .await;
    shorter.map_or(CompactionOutcome::Unchanged, CompactionOutcome::Compacted)
}

/// Compacts the session whatever the estimate is: the provider rejected it as too long, or the user
/// asked for it.
pub(crate) async fn force_compact(
    session: &Session,
    agent: &Agent,
) -> Option<CompactedConversation> {
    let fixed = fixed_tokens(session, agent);
    let conversation = conversation_tokens(session);
    let room = match agent.context_window().saturating_sub(fixed) {
        0 => conversation,
        left => conversation.min(left),
    };
    compact_to(
        session,
        agent,
        fixed,
        CompactionRoom {
            limit: room / 2,
            target: room / 3,
        },
    )
    .await
}

/// How large a compacted conversation may be, in tokens.
#[derive(Debug, Clone, Copy)]
struct CompactionRoom {
    /// The most tokens, reached only if the newest results need them.
    limit: u64,
    /// The size to aim at.
    target: u64,
}

async fn compact_to(
    session: &Session,
    agent: &Agent,
    fixed: u64,
    room: CompactionRoom,
) -> Option<CompactedConversation> {
    // The newest message is never compacted.
    if steps_since_compaction(session.steps()).len() < 2 {
        return None;
    }
    let request_items = build_compacted(session, agent, room).await;
    let (before, after) = (conversation_tokens(session), estimate_items(&request_items));
    // A conversation that does not become much shorter would not fit either.
    (after < before * 9 / 10).then_some(CompactedConversation {
        request_items,
        tokens_before: fixed + before,
        tokens_after: fixed + after,
    })
}

/// Returns the estimated number of tokens of the next request: the provider's last count, plus an
/// estimate of the steps since then.
pub(crate) fn estimate_next_request(session: &Session, agent: &Agent) -> u64 {
    let steps = steps_since_compaction(session.steps());
    let mut newest_first = steps.iter().enumerate().rev();
    let counted = newest_first.find_map(|(at, step)| {
        let usage = reported_usage(step)?;
        Some((
            at + 1,
            usage.input_tokens.saturating_add(usage.output_tokens),
        ))
    });
    let (from, counted) = counted.unwrap_or_else(|| (0, fixed_tokens(session, agent)));
    counted + estimate_steps(&steps[from..])
}

/// Returns the estimated number of tokens of the fixed part of every request: the system prompt and
/// the tools.
fn fixed_tokens(session: &Session, agent: &Agent) -> u64 {
    let estimated =
        estimate_tokens(&agent.system_prompt(agent.options.mode)) as u64 + agent.tool_tokens();
    // A provider's count includes the fixed part, so the fixed part is not larger.
    let counted = session.steps().iter().filter_map(reported_usage);
    let smallest = counted.map(|usage| usage.input_tokens).min();
    smallest.map_or(estimated, |smallest| estimated.min(smallest))
}

/// Returns the usage that the provider reported for an answer.
fn reported_usage(step: &SessionStep) -> Option<&Usage> {
    match &step.kind {
        SessionStepKind::Answer { usage, .. } if usage.input_tokens > 0 => Some(usage),
        _ => None,
    }
}

/// Returns the estimated number of tokens of the conversation.
fn conversation_tokens(session: &Session) -> u64 {
    estimate_steps(steps_since_compaction(session.steps()))
}

fn estimate_steps(steps: &[SessionStep]) -> u64 {
    steps
        .iter()
        .map(|step| estimate_items(&step.request_items))
        .sum()
}

/// Returns the estimated number of tokens of some items.
pub(crate) fn estimate_items(items: &[ConversationItem]) -> u64 {
    let parts = estimate_parts;
    let one = |item: &ConversationItem| match item {
        ConversationItem::Message(message) => parts(&message.content),
        ConversationItem::Reasoning(reasoning) => reasoning
            .summary
            .iter()
            .chain(&reasoning.content)
            .map(|text| estimate_tokens(text) as u64)
            .sum(),
        ConversationItem::FunctionCall(call) => {
            (estimate_tokens(&call.arguments) + estimate_tokens(&call.name)) as u64
        }
        ConversationItem::FunctionCallOutput(output) => parts(&output.output),
        ConversationItem::Native(native) => estimate_tokens(&native.json.to_string()) as u64,
    };
    items.iter().map(|item| one(item) + 4).sum()
}

fn estimate_parts(parts: &[OutputPart]) -> u64 {
    let one = |part: &OutputPart| match part {
        OutputPart::Text { text } => estimate_tokens(text) as u64,
        OutputPart::Image { .. } | OutputPart::Audio { .. } => MEDIA_PART_TOKENS,
    };
    parts.iter().map(one).sum()
}

async fn build_compacted(
    session: &Session,
    agent: &Agent,
    room: CompactionRoom,
) -> Vec<ConversationItem> {
    let steps = session.steps();
    let since = steps_since_compaction(steps);
    let recent = recent_steps(since, room.target / 2);
    let newest = newest_exchange(since);
    let tail = if recent.len() < newest.len() {
        newest
    } else {
        recent
    };
    let before = &steps[..steps.len() - tail.len()];
    let mut kept: Vec<ConversationItem> = tail
        .iter()
        .flat_map(|step| step.request_items.iter().cloned())
        .collect();
    shorten_results(&mut kept, room.limit * 3 / 4);
    let left = room.limit.saturating_sub(estimate_items(&kept));
    let summary_tokens = (room.target / 2).min(left);
    let registry = agent.harness.orchestrator().registry();
    let summary = summarise_steps(
        session,
        before,
        registry,
        bytes_of_tokens(summary_tokens as usize),
    )
    .await;
    let mut request_items = vec![ConversationItem::message(MessageRole::User, summary)];
    request_items.append(&mut kept);
    request_items
}

/// Returns the newest answer with its results, or the newest user message. Empty if there is
/// neither.
fn newest_exchange(steps: &[SessionStep]) -> &[SessionStep] {
    let from = steps.iter().rposition(|step| {
        matches!(
            step.kind,
            SessionStepKind::UserMessage | SessionStepKind::Answer { .. }
        )
    });
    &steps[from.unwrap_or(steps.len())..]
}

/// Shortens the results among the items, each to the same share of its text, if all items need more
/// than `tokens`.
fn shorten_results(items: &mut [ConversationItem], tokens: u64) {
    let all = estimate_items(items);
    if all <= tokens {
        return;
    }
    let parts_of = |item: &ConversationItem| match item {
        ConversationItem::FunctionCallOutput(output) => estimate_parts(&output.output),
        ConversationItem::Message(message) if message.role == MessageRole::User => {
            estimate_parts(&message.content)
        }
        _ => 0,
    };
    let results: u64 = items.iter().map(parts_of).sum();
    let room = tokens.saturating_sub(all - results);
    for item in items {
        let parts = match item {
            ConversationItem::FunctionCallOutput(output) => &mut output.output,
            ConversationItem::Message(message) if message.role == MessageRole::User => {
                &mut message.content
            }
            _ => continue,
        };
        for part in parts {
            if let OutputPart::Text { text } = part {
                let bytes = (text.len() as u64 * room / results.max(1)) as usize;
                *text = truncate_middle(text, bytes);
            }
        }
    }
}

/// Returns the last steps that fit into `room` tokens. The first of them is a user message or an
/// answer, so that an answer and its results stay together.
fn recent_steps(steps: &[SessionStep], room: u64) -> &[SessionStep] {
    let mut left = room;
    let mut from = steps.len();
    for (at, step) in steps.iter().enumerate().rev() {
        let tokens = estimate_items(&step.request_items);
        if tokens > left || step.kind == SessionStepKind::Compaction {
            break;
        }
        left -= tokens;
        if matches!(
            step.kind,
            SessionStepKind::UserMessage | SessionStepKind::Answer { .. }
        ) {
            from = at;
        }
    }
    &steps[from..]
}

/// Returns the summary that replaces these steps, at most about `bytes` bytes long.
async fn summarise_steps(
    session: &Session,
    replaced_steps: &[SessionStep],
    registry: &Registry,
    bytes: usize,
) -> String {
    let mut text = String::from(
        "[The conversation so far was compacted to fit the context. This is a summary; truncated \
         results can be read in full.]\n",
    );
    let user_messages: Vec<(u32, String)> = replaced_steps
        .iter()
        .filter(|step| step.kind == SessionStepKind::UserMessage)
        .map(|step| {
            (
                step.turn,
                step.request_items.iter().filter_map(message_text).collect(),
            )
        })
        .collect();
    let share = bytes / 4;
    let mut section = |title: &str, body: &str| {
        text.push_str(&format!("\n## {title}\n{}\n", truncate_bytes(body, share)));
    };
    if let Some((_, first)) = user_messages.first() {
        section("Task (first request)", first);
    }
    if let [_, .., (turn, last)] = &user_messages[..] {
        section(&format!("Latest request (T-{turn})"), last);
    }
    if let Some(plan) = last_plan(session, replaced_steps, registry).await {
        section("The plan", &plan);
    }
    let open = open_runs(session, replaced_steps).await;
    if !open.is_empty() {
        section(
            "Unfinished runs, and calls whose outcome is unknown",
            &open.join("\n"),
        );
    }
    let items = replaced_steps
        .iter()
        .flat_map(|step| step.items.iter().map(|item| (step.turn, item)));
    let lines: Vec<String> = items
        .filter_map(|(turn, item)| summary_line(turn, item))
        .collect();
    let room = bytes.saturating_sub(text.len() + 200);
    let mut kept = Vec::new();
    let mut used = 0;
    for line in lines.iter().rev() {
        used += line.len() + 1;
        if used > room {
            break;
        }
        kept.push(line.as_str());
    }
    let omitted = lines.len() - kept.len();
    kept.reverse();
    let mut events = kept.join("\n");
    if omitted > 0 {
        events.insert_str(0, &format!("({omitted} earlier lines omitted)\n"));
    }
    text + "\n## Events, oldest first (`await tools.recall({ handle: \"scr_…\" })` reads a full \
            result, `scr_…/output` what `text()` showed)\n"
        + &events
        + "\n"
}

/// Returns one line about an item for the summary; `None` for items that it omits.
fn summary_line(turn: u32, item: &TurnItem) -> Option<String> {
    let text = match item {
        TurnItem::Conversation(ConversationItem::Message(message)) => {
            let is_user = message.role == MessageRole::User;
            let author = if is_user { "user" } else { "assistant" };
            format!("{author}: {}", first_line(&message.text(), 200))
        }
        TurnItem::Conversation(ConversationItem::FunctionCall(call)) => {
            let arguments = first_line(&call.arguments, 100);
            format!("called {} {arguments} ({})", call.name, call.call_id)
        }
        TurnItem::Conversation(ConversationItem::FunctionCallOutput(output)) => {
            let outcome = if output.failed { "failed" } else { "returned" };
            let result = first_line(&output.text(), 100);
            format!("{} {outcome}: {result}", output.call_id)
        }
        TurnItem::ScriptToolCallOutput(output) => {
            let value = match &output.error {
                Some(error) => format!("{}: {}", error.code, error.message),
                None => output.output_json.clone().unwrap_or_default(),
            };
            let (id, status, calls) = (&output.id, status_text(output.status), output.calls.len());
            let value = first_line(&value, 160);
            let shown = shown_text(output);
            let shown = match shown.len() {
                0 => String::new(),
                bytes => {
                    let (line, handle) = (first_line(&shown, 100), text_handle(id));
                    format!("; text of {bytes} bytes ({handle}): {line}")
                }
            };
            let calls = count_noun(calls, "call");
            format!("{id} {status} after {calls}: {value}{shown}")
        }
        _ => return None,
    };
    Some(format!("T-{turn} {text}"))
}

fn status_text(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Completed => "completed",
        RunStatus::Error => "failed",
        RunStatus::Rejected => "rejected",
        RunStatus::Suspended => "suspended",
        RunStatus::DryRun => "checked",
        RunStatus::Running | RunStatus::Pending => "running",
    }
}

/// Returns the last plan, from a structured call or from a call of a script.
async fn last_plan(
    session: &Session,
    steps: &[SessionStep],
    registry: &Registry,
) -> Option<String> {
    let reader = |tool: &str| registry.get(tool)?.tool.plan_reader();
    for item in steps.iter().rev().flat_map(|step| step.items.iter().rev()) {
        let plan = match item {
            TurnItem::Conversation(ConversationItem::FunctionCall(call)) => reader(&call.name)
                .and_then(|read| read(&serde_json::from_str(&call.arguments).ok()?)),
            TurnItem::ScriptToolCallOutput(output)
                if output.calls.iter().any(|call| reader(&call.tool).is_some()) =>
            {
                let run = session.stored_run(&output.id).await;
                let mut calls = run.into_iter().flat_map(|run| run.calls.into_iter().rev());
                calls.find_map(|call| reader(&call.tool)?(&call.args?))
            }
            _ => None,
        };
        if plan.is_some() {
            return plan;
        }
    }
    None
}

/// Returns the runs that are running or suspended, and the calls whose outcome is unknown.
async fn open_runs(session: &Session, steps: &[SessionStep]) -> Vec<String> {
    let mut open = Vec::new();
    for item in steps.iter().flat_map(|step| step.items.iter()) {
        let TurnItem::ScriptToolCallOutput(output) = item else {
            continue;
        };
        let run = &output.id;
        let calls = output.calls.iter();
        let unknown = calls.filter(|call| call.status == CallStatus::OutcomeUnknown);
        open.extend(
            unknown.map(|call| format!("{} of {run} ({}): outcome unknown", call.id, call.tool)),
        );
        if matches!(output.status, RunStatus::Suspended | RunStatus::Running)
            && let Some(stored) = session.stored_run(run).await
            && matches!(
                stored.summary.state,
                StoredRunState::Running | StoredRunState::Suspended
            )
        {
            open.push(format!("{run} {}", status_text(output.status)));
        }
    }
    open
}

fn message_text(item: &ConversationItem) -> Option<String> {
    match item {
        ConversationItem::Message(message) => Some(message.text()),
        _ => None,
    }
}

fn first_line(text: &str, bytes: usize) -> String {
    truncate_bytes(text.trim().lines().next().unwrap_or_default(), bytes)
}
