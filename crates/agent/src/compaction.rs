//! Making a conversation shorter when it nearly fills the model's context: no model is asked, nothing is lost.
//!
//! What stays: the task, what was asked since, the plan, the last steps word for word, every run that is not over, and
//! one line with a handle for each run before them. The originals stay in the journal.

use crate::size::estimate as tokens_of;
use selvedge_journal::RunState;
use selvedge_protocol::{CallStatus, Item, OutputPart, Role, RunStatus, TurnItem, Usage};
use selvedge_text::shortened;
use serde_json::Value;

use crate::record::{Step, StepKind};
use crate::turn::since_compaction;
use crate::{Agent, Session};

/// A shorter conversation.
pub(crate) struct Compacted {
    pub(crate) wire: Vec<Item>,
    pub(crate) tokens_before: u64,
    pub(crate) tokens_after: u64,
}

/// An image counts as this many tokens, about.
const IMAGE_TOKENS: u64 = 1_500;

/// A conversation has room where at least so many tokens are left beside the fixed part of a request, about.
const LEAST_ROOM: u64 = 1_000;

/// Whether a conversation is to be made shorter.
pub(crate) enum Need {
    /// It fits, or would not become much shorter.
    Not,
    /// It nearly fills the context.
    Shorter(Compacted),
    /// The system text and the tools alone nearly fill the context: no conversation can be short enough.
    NoRoom {
        /// Tokens of the fixed part, about.
        fixed: u64,
    },
}

/// Whether the conversation nearly fills the context, and the same conversation made shorter.
pub(crate) async fn if_needed(session: &Session, agent: &Agent) -> Need {
    let model = &agent.model;
    let answer = model.max_output_tokens.min(model.context_window / 4);
    let most =
        (model.context_window * agent.settings.compact_at_percent / 100).saturating_sub(answer);
    if in_use(session, agent) <= most {
        return Need::Not;
    }
    let fixed = fixed(session, agent);
    let room = most.saturating_sub(fixed);
    if room < LEAST_ROOM {
        return Need::NoRoom { fixed };
    }
    let shorter = shorter(session, fixed, room / 2).await;
    shorter.map_or(Need::Not, Need::Shorter)
}

/// The same for a provider that says it is too long, whatever was estimated.
pub(crate) async fn harder(session: &Session, agent: &Agent) -> Option<Compacted> {
    let fixed = fixed(session, agent);
    let conversation = conversation(session);
    let room = match agent.model.context_window.saturating_sub(fixed) {
        0 => conversation,
        left => conversation.min(left),
    };
    shorter(session, fixed, room / 3).await
}

async fn shorter(session: &Session, fixed: u64, room: u64) -> Option<Compacted> {
    // What was just asked is told as it was asked.
    if since_compaction(session.steps()).len() < 2 {
        return None;
    }
    let wire = compact(session, room).await;
    let (before, after) = (conversation(session), estimate(&wire));
    // What does not get much shorter will not fit by being told again.
    (after < before * 9 / 10).then_some(Compacted {
        wire,
        tokens_before: fixed + before,
        tokens_after: fixed + after,
    })
}

/// About how many tokens the next request has: what the provider counted last, and what has come since.
pub(crate) fn in_use(session: &Session, agent: &Agent) -> u64 {
    let steps = since_compaction(session.steps());
    let mut newest_first = steps.iter().enumerate().rev();
    let counted = newest_first.find_map(|(at, step)| {
        let usage = counted(step)?;
        Some((at + 1, usage.input_tokens + usage.output_tokens))
    });
    let (from, counted) = counted.unwrap_or_else(|| (0, fixed(session, agent)));
    counted + estimate_steps(&steps[from..])
}

/// About how many tokens every request has besides the conversation: the system text and what the model may call.
fn fixed(session: &Session, agent: &Agent) -> u64 {
    let estimated = tokens_of(&agent.system(agent.settings.mode)) as u64 + agent.tool_tokens;
    // What a provider counted had all of it, and more.
    let counted = session.steps().iter().filter_map(counted);
    let least = counted.map(|usage| usage.input_tokens).min();
    least.map_or(estimated, |least| estimated.min(least))
}

/// What the provider counted for an answer, if it did.
fn counted(step: &Step) -> Option<&Usage> {
    match &step.kind {
        StepKind::Answered { usage, .. } if usage.input_tokens > 0 => Some(usage),
        _ => None,
    }
}

/// About how many tokens the conversation has by itself.
fn conversation(session: &Session) -> u64 {
    estimate_steps(since_compaction(session.steps()))
}

fn estimate_steps(steps: &[Step]) -> u64 {
    steps.iter().map(|step| estimate(&step.wire)).sum()
}

/// About how many tokens these items have.
pub(crate) fn estimate(items: &[Item]) -> u64 {
    let parts = |parts: &[OutputPart]| -> u64 {
        let one = |part: &OutputPart| match part {
            OutputPart::Text { text } => tokens_of(text) as u64,
            OutputPart::Image { .. } | OutputPart::Audio { .. } => IMAGE_TOKENS,
        };
        parts.iter().map(one).sum()
    };
    let one = |item: &Item| match item {
        Item::Message(message) => parts(&message.content),
        Item::Reasoning(thought) => thought
            .summary
            .iter()
            .chain(&thought.content)
            .map(|text| tokens_of(text) as u64)
            .sum(),
        Item::FunctionCall(call) => (tokens_of(&call.arguments) + tokens_of(&call.name)) as u64,
        Item::FunctionCallOutput(output) => parts(&output.output),
        Item::Native(native) => tokens_of(&native.json.to_string()) as u64,
    };
    items.iter().map(|item| one(item) + 4).sum()
}

async fn compact(session: &Session, room: u64) -> Vec<Item> {
    let steps = session.steps();
    let tail = tail(since_compaction(steps), room / 2);
    let before = &steps[..steps.len() - tail.len()];
    let summary = summary(session, before, (room / 2) as usize * 3).await;
    let mut wire = vec![Item::message(Role::User, summary)];
    wire.extend(tail.iter().flat_map(|step| step.wire.iter().cloned()));
    wire
}

/// The last steps that fit, beginning where a turn or an answer begins: an answer and its results stay together.
fn tail(steps: &[Step], room: u64) -> &[Step] {
    let mut left = room;
    let mut from = steps.len();
    for (at, step) in steps.iter().enumerate().rev() {
        let tokens = estimate(&step.wire);
        if tokens > left || step.kind == StepKind::Compacted {
            break;
        }
        left -= tokens;
        if matches!(step.kind, StepKind::Asked | StepKind::Answered { .. }) {
            from = at;
        }
    }
    &steps[from..]
}

/// What stands for everything before, in at most about so many bytes.
async fn summary(session: &Session, before: &[Step], bytes: usize) -> String {
    let mut text = String::from(
        "[The conversation so far was made shorter to fit. This is what it held; what is cut can be read again.]\n",
    );
    let asked: Vec<(u32, String)> = before
        .iter()
        .filter(|step| step.kind == StepKind::Asked)
        .map(|step| (step.turn, step.wire.iter().filter_map(said).collect()))
        .collect();
    let share = bytes / 4;
    let mut section = |title: &str, body: &str| {
        text.push_str(&format!("\n## {title}\n{}\n", shortened(body, share)));
    };
    if let Some((_, first)) = asked.first() {
        section("The task, as it was first asked", first);
    }
    if let [_, .., (turn, last)] = &asked[..] {
        section(&format!("Asked last (T-{turn})"), last);
    }
    if let Some(plan) = plan(session, before).await {
        section("The plan", &plan);
    }
    let open = open_runs(session, before).await;
    if !open.is_empty() {
        section("Not over, or not known how it ended", &open.join("\n"));
    }
    let items = before
        .iter()
        .flat_map(|step| step.items.iter().map(|item| (step.turn, item)));
    let lines: Vec<String> = items.filter_map(|(turn, item)| line(turn, item)).collect();
    let left = bytes.saturating_sub(text.len() + 200);
    let mut kept = Vec::new();
    let mut used = 0;
    for line in lines.iter().rev() {
        used += line.len() + 1;
        if used > left {
            break;
        }
        kept.push(line.as_str());
    }
    let cut = lines.len() - kept.len();
    kept.reverse();
    let mut done = kept.join("\n");
    if cut > 0 {
        done.insert_str(0, &format!("({cut} earlier lines left out)\n"));
    }
    text + "\n## What happened, oldest first (`await tools.recall({ handle: \"scr_…\" })` reads a result whole)\n"
        + &done
        + "\n"
}

/// One line of what happened.
fn line(turn: u32, item: &TurnItem) -> Option<String> {
    let words = match item {
        TurnItem::Item(Item::Message(message)) => {
            let asked = message.role == Role::User;
            let how = if asked { "asked" } else { "said" };
            format!("{how}: {}", first_line(&message.text(), 200))
        }
        TurnItem::Item(Item::FunctionCall(call)) => {
            let arguments = first_line(&call.arguments, 100);
            format!("called {} {arguments} ({})", call.name, call.call_id)
        }
        TurnItem::Item(Item::FunctionCallOutput(output)) => {
            let how = if output.failed { "failed" } else { "returned" };
            let text = first_line(&output.text(), 100);
            format!("{} {how}: {text}", output.call_id)
        }
        TurnItem::ScriptToolCallOutput(output) => {
            let value = match &output.error {
                Some(error) => format!("{}: {}", error.code, error.message),
                None => output.output_json.clone().unwrap_or_default(),
            };
            let (id, status, calls) = (&output.id, word(output.status), output.calls.len());
            let value = first_line(&value, 160);
            format!("{id} {status} after {calls} calls: {value}")
        }
        _ => return None,
    };
    Some(format!("T-{turn} {words}"))
}

fn word(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Completed => "completed",
        RunStatus::Error => "failed",
        RunStatus::Rejected => "rejected",
        RunStatus::Suspended => "suspended",
        RunStatus::DryRun => "checked",
        RunStatus::Running | RunStatus::Pending => "running",
    }
}

/// The last plan somebody made, in a call or inside a script.
async fn plan(session: &Session, steps: &[Step]) -> Option<String> {
    for item in steps.iter().rev().flat_map(|step| step.items.iter().rev()) {
        let args = match item {
            TurnItem::Item(Item::FunctionCall(call)) if call.name == "update_plan" => {
                serde_json::from_str(&call.arguments).ok()
            }
            TurnItem::ScriptToolCallOutput(output)
                if output.calls.iter().any(|call| call.tool == "update_plan") =>
            {
                plan_of_run(session, &output.id).await
            }
            _ => None,
        };
        let args: Value = args.unwrap_or_default();
        if let Some(steps) = args["plan"].as_array() {
            let one = |step: &Value| {
                let status = step["status"].as_str().unwrap_or("pending");
                format!("[{status}] {}", step["step"].as_str().unwrap_or_default())
            };
            return Some(steps.iter().map(one).collect::<Vec<_>>().join("\n"));
        }
    }
    None
}

async fn plan_of_run(session: &Session, run: &str) -> Option<Value> {
    let mut calls = session.stored_run(run).await?.calls.into_iter().rev();
    calls.find(|call| call.tool == "update_plan")?.args
}

/// Runs that wait or go on, and calls nobody knows the end of.
async fn open_runs(session: &Session, steps: &[Step]) -> Vec<String> {
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
                RunState::Running | RunState::Suspended
            )
        {
            open.push(format!("{run} {}", word(output.status)));
        }
    }
    open
}

fn said(item: &Item) -> Option<String> {
    match item {
        Item::Message(message) => Some(message.text()),
        _ => None,
    }
}

fn first_line(text: &str, bytes: usize) -> String {
    shortened(text.trim().lines().next().unwrap_or_default(), bytes)
}
