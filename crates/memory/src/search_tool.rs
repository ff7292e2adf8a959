//! The tool `memory.search` (`tools.memory.search({ query })` in scripts): finds turns and lessons
//! of earlier sessions.

use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_protocol::{CallReach, MemoryScope, ToolSpec};
use selvedge_tools::{CallContext, CallFuture, Risk, Tool, ToolError, spec_of, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::board::truncate_to_tokens;
use crate::recall_text::turn_name;
use crate::store::now_ms;
use crate::tool::WIDER_SCOPE_REASON;
use crate::{Level, Memory, MemoryAccess, MemoryError, time};

/// Turns that a search returns without `limit`.
const DEFAULT_RESULTS: u32 = 10;
/// Most turns that a search returns.
const MAX_RESULTS: u32 = 50;
/// Most lessons that a search returns.
const MAX_LESSONS: usize = 5;
/// Tokens of each turn in the result.
const MAX_TURN_TOKENS: u32 = 120;

/// The arguments of `memory.search`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SearchMemoryArgs {
    /// Words or a question.
    query: String,
    /// Which sessions are searched: session, project (the default) or all. More than the
    /// configuration allows needs approval.
    scope: Option<MemoryScope>,
    /// Maximum number of turns, 10 by default, at most 50.
    #[schemars(range(min = 1, max = 50))]
    limit: Option<u32>,
}

/// The result of `memory.search`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SearchMemoryOutput {
    /// The turns that match, the best first.
    turns: Vec<FoundTurn>,
    /// What was learned about it.
    lessons: Vec<String>,
}

/// A turn that a search found.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FoundTurn {
    /// The name for tools.history.getTurn, such as T-50 or ses_x/T-50.
    turn: String,
    /// How long ago it was.
    age: String,
    /// Its compressed text.
    text: String,
}

/// Creates the tool `memory.search` for a session.
pub fn search_memory_tool(memory: Arc<Memory>, access: MemoryAccess) -> impl Tool + use<> {
    SearchMemoryTool(memory, access)
}

/// The tool `memory.search` of a session.
struct SearchMemoryTool(Arc<Memory>, MemoryAccess);

/// Returns the description of the tool `memory.search`.
pub fn search_memory_spec() -> ToolSpec {
    let description = "Finds earlier turns and lessons of this project.";
    let spec = spec_of::<SearchMemoryArgs, SearchMemoryOutput>("memory.search", description);
    ToolSpec {
        aliases: vec![("text", "query"), ("q", "query"), ("k", "limit")],
        ..spec.as_read_only().with_reach(CallReach::Local)
    }
}

impl Tool for SearchMemoryTool {
    fn spec(&self) -> ToolSpec {
        search_memory_spec()
    }

    fn risk(&self, args: &Value) -> Risk {
        let scope = serde_json::from_value::<Option<MemoryScope>>(args["scope"].clone());
        match scope {
            Ok(Some(scope)) if scope > self.1.scope => Risk::NeedsApproval {
                reason: WIDER_SCOPE_REASON.to_owned(),
            },
            _ => Risk::Harmless,
        }
    }

    fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
        let run = async |args: SearchMemoryArgs| {
            let access = &self.1;
            let access = access.with_scope(args.scope.unwrap_or(access.scope));
            let search = move |memory: &Arc<Memory>| memory.search_for_tool(&access, &args);
            let found = self.0.run_blocking(search).await;
            found.map_err(|error| ToolError::new(error.to_string()))
        };
        typed_call(args, run, |output: &SearchMemoryOutput| {
            Some(describe(output))
        })
    }
}

impl Memory {
    fn search_for_tool(
        &self,
        access: &MemoryAccess,
        args: &SearchMemoryArgs,
    ) -> Result<SearchMemoryOutput, MemoryError> {
        let limit = args.limit.unwrap_or(DEFAULT_RESULTS).min(MAX_RESULTS);
        let question = self.try_encode_question(&args.query);
        let question = question.as_ref();
        let hits = self.search_in(access, &args.query, limit as usize, question)?;
        let now = now_ms();
        let turns = hits.iter().map(|hit| {
            let text = self.turn_text_at_level(&hit.session, hit.number, Level::Compressed)?;
            let turn = self.turn(&hit.session, hit.number)?;
            Ok(FoundTurn {
                turn: turn_name(&access.session, hit),
                age: time::format_ago(now, turn.at_ms),
                text: truncate_to_tokens(&text, MAX_TURN_TOKENS),
            })
        });
        let turns = turns.collect::<Result<Vec<_>, MemoryError>>()?;
        let mut lessons = self.find_lessons(Some(access), &args.query, MAX_LESSONS)?;
        for lesson in self.lessons_near(access, question)? {
            let is_known = lessons.iter().any(|it| it.lesson_id == lesson.lesson_id);
            if !is_known && lessons.len() < MAX_LESSONS {
                lessons.push(lesson);
            }
        }
        Ok(SearchMemoryOutput {
            turns,
            lessons: lessons.into_iter().map(|lesson| lesson.content).collect(),
        })
    }
}

/// Returns the result as a model reads it.
fn describe(output: &SearchMemoryOutput) -> String {
    let turns = output.turns.iter();
    let turns = turns.map(|found| format!("{} ({}): {}", found.turn, found.age, found.text));
    let lessons = output.lessons.iter();
    let lessons = lessons.map(|lesson| format!("lesson: {lesson}"));
    let lines: Vec<String> = turns.chain(lessons).collect();
    match lines.is_empty() {
        true => "nothing found".to_owned(),
        false => lines.join("\n"),
    }
}
