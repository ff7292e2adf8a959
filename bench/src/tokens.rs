//! `make bench-tokens`: counts requests and tokens of the five tasks of the README, done by a mock
//! model in two ways. With a script, it writes the example unchanged. With structured calls, it
//! makes the same calls that the script made, and puts calls that the script made at once into one
//! answer, as an ideal model would.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use selvedge_agent::{AgentOptions, AgentToolOffer, Session, TurnOptions};
use selvedge_journal::Journal;
use selvedge_protocol::{ConversationItem, EventSink, OutputPart, RuntimeEvent, TurnEnd, TurnItem};
use serde_json::{Value, json};

use crate::mock_agent::answer_encoding::{AnswerPart, call, text};
use crate::mock_agent::server::{Asked, Reply, Server};
use crate::mock_agent::{self};

/// The tasks: name of the example, prompt, and arguments of the script.
const TASKS: [(&str, &str, &[&str]); 5] = [
    ("survey", "What does this project consist of?", &[]),
    ("test-all", "Which tests fail?", &[]),
    (
        "rename",
        "Rename show_price to format_price everywhere, all or nothing.",
        &["show_price", "format_price"],
    ),
    ("dead-links", "Which links lead nowhere?", &[]),
    ("git-range", "What happened lately?", &["HEAD~3..HEAD"]),
];

/// Requests and tokens of a task.
#[derive(Debug, Default, Clone, Copy)]
struct TaskTokens {
    /// Requests to the model.
    requests: usize,
    /// Tokens of all requests: conversation and tools.
    tokens_in: usize,
    /// Tokens that the model wrote.
    tokens_out: usize,
    /// Tokens of tool results, counted once.
    result_tokens: usize,
}

/// A tool call that a script made.
#[derive(Debug, Clone)]
struct ScriptedCall {
    tool: String,
    args: Value,
}

pub(crate) fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        println!(
            "| task | way | requests | tokens in | tokens out | tokens of tool results |\n\
             |---|---|---|---|---|---|"
        );
        let mut sums = [TaskTokens::default(); 2];
        for (name, prompt, args) in TASKS {
            let script = example_script(name, args)?;
            let scripted = run_with_script(prompt, &script).await;
            let (scripted, batches) = scripted.with_context(|| format!("{name} with a script"))?;
            let structured = run_with_calls(prompt, batches).await;
            let structured = structured.with_context(|| format!("{name} with structured calls"))?;
            let counts = [("structured", structured), ("script", scripted)];
            for (sum, (way, count)) in sums.iter_mut().zip(counts) {
                let TaskTokens {
                    requests: rounds,
                    tokens_in,
                    tokens_out,
                    result_tokens: results,
                } = count;
                println!("| {name} | {way} | {rounds} | {tokens_in} | {tokens_out} | {results} |");
                sum.requests += rounds;
                sum.tokens_in += tokens_in;
                sum.tokens_out += tokens_out;
                sum.result_tokens += results;
            }
        }
        for (way, sum) in ["structured", "script"].into_iter().zip(sums) {
            let TaskTokens {
                requests: rounds,
                tokens_in,
                tokens_out,
                result_tokens: results,
            } = sum;
            println!("| **all** | **{way}** | {rounds} | {tokens_in} | {tokens_out} | {results} |");
        }
        Ok(())
    })
}

/// Reads an example without its leading comment, and with its arguments inserted.
fn example_script(name: &str, args: &[&str]) -> Result<String> {
    let path = format!("{}/../examples/{name}.ts", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let body = text
        .lines()
        .skip_while(|line| line.starts_with("//") || line.is_empty())
        .collect::<Vec<_>>()
        .join("\n");
    Ok(body.replace("context.args", &json!(args).to_string()))
}

/// Does a task with a script, and returns the calls it made, grouped into batches.
async fn run_with_script(
    prompt: &str,
    script: &str,
) -> Result<(TaskTokens, Vec<Vec<ScriptedCall>>)> {
    let arguments = json!({"code": script});
    let server = Server::start(move |request: &Asked| -> Reply {
        match count_answers(request) {
            0 => vec![call("c0", "script", arguments.clone())].into(),
            _ => vec![text("Done.")].into(),
        }
    })
    .await;
    let calls: Arc<Mutex<Vec<RuntimeEvent>>> = Arc::default();
    let seen = calls.clone();
    let events = EventSink::new(move |event| {
        if matches!(
            event,
            RuntimeEvent::CallStarted { .. } | RuntimeEvent::CallFinished { .. }
        ) {
            seen.lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .push(event);
        }
    });
    let settings = AgentOptions {
        tool_offer: AgentToolOffer::ScriptsOnly,
        ..AgentOptions::default()
    };
    let (counts, journal, session) = run_task(&server, prompt, settings, events).await?;
    let run = session
        .history()
        .into_iter()
        .find_map(|(_, item)| match item {
            TurnItem::ScriptToolCallOutput(output) => Some(output),
            _ => None,
        });
    let run = run.context("no script ran")?;
    ensure!(run.error.is_none(), "{:?}", run.error);
    let recorded = journal.run(&run.id)?.calls;
    // A call that starts after another one has ended belongs to the next batch.
    let mut batches: Vec<Vec<ScriptedCall>> = Vec::new();
    let mut ended = true;
    for event in calls
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .iter()
    {
        match event {
            RuntimeEvent::CallStarted { call_id, tool, .. } => {
                if std::mem::take(&mut ended) {
                    batches.push(Vec::new());
                }
                let args = recorded
                    .iter()
                    .find(|call| call.id == *call_id)
                    .and_then(|call| call.args.clone());
                let made = ScriptedCall {
                    tool: tool.clone(),
                    args: args.unwrap_or_default(),
                };
                batches.last_mut().context("no batch")?.push(made);
            }
            _ => ended = true,
        }
    }
    Ok((counts, batches))
}

/// Does a task with structured calls.
async fn run_with_calls(prompt: &str, batches: Vec<Vec<ScriptedCall>>) -> Result<TaskTokens> {
    let server = Server::start(move |request: &Asked| -> Reply {
        let at = count_answers(request);
        let Some(batch) = batches.get(at) else {
            return vec![text("Done.")].into();
        };
        let answer_call = |(number, made): (usize, &ScriptedCall)| {
            let name = if made.tool == "exec" {
                "shell"
            } else {
                &made.tool
            };
            call(&format!("c{at}_{number}"), name, made.args.clone())
        };
        batch
            .iter()
            .enumerate()
            .map(answer_call)
            .collect::<Vec<AnswerPart>>()
            .into()
    })
    .await;
    // The model gets the tools as functions, not as TypeScript declarations.
    let settings = AgentOptions {
        mode: selvedge_protocol::ScriptMode::Disabled,
        ..AgentOptions::default()
    };
    Ok(run_task(&server, prompt, settings, EventSink::silent())
        .await?
        .0)
}

/// Counts the assistant's messages in a request.
fn count_answers(request: &Asked) -> usize {
    let messages = request.body["messages"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    messages
        .iter()
        .filter(|message| message["role"] == "assistant")
        .count()
}

/// Takes one turn with the mock model and counts its tokens. Fails if a call fails.
async fn run_task(
    server: &Server,
    prompt: &str,
    settings: AgentOptions,
    events: EventSink,
) -> Result<(TaskTokens, Arc<Journal>, Session)> {
    let (work, home) = (create_sample()?, tempfile::tempdir()?);
    let journal = Journal::open(home.path())?;
    let agent = mock_agent::mock_agent(server, work.path(), &journal, settings)?;
    let mut session = Session::begin(&journal, "").await?;
    let options = TurnOptions {
        events,
        ..TurnOptions::default()
    };
    let outcome = agent.run_turn(&mut session, prompt, &options).await;
    ensure!(outcome.end == Ok(TurnEnd::Stop), "{:?}", outcome.end);
    let mut counts = TaskTokens {
        requests: server.asked().len(),
        ..TaskTokens::default()
    };
    counts.tokens_in = server
        .asked()
        .iter()
        .map(|request| selvedge_tokens::count(&request_text(&request.body)))
        .sum();
    for step in session.steps() {
        for item in &step.request_items {
            match item {
                ConversationItem::FunctionCall(call) => {
                    counts.tokens_out += selvedge_tokens::count(&call.name)
                        + selvedge_tokens::count(&call.arguments);
                }
                ConversationItem::FunctionCallOutput(output) => {
                    let failed = output.failed;
                    ensure!(!failed, "a call failed: {}", output.text());
                    counts.result_tokens += selvedge_tokens::count(&output.text());
                }
                ConversationItem::Message(message)
                    if message.role == selvedge_protocol::MessageRole::Assistant =>
                {
                    let texts = message.content.iter().filter_map(|part| match part {
                        OutputPart::Text { text } => Some(selvedge_tokens::count(text)),
                        _ => None,
                    });
                    counts.tokens_out += texts.sum::<usize>();
                }
                _ => {}
            }
        }
    }
    Ok((counts, journal, session))
}

/// Returns the text of a request that the model reads: the conversation and the tools.
fn request_text(body: &Value) -> String {
    format!("{}{}", body["messages"], body["tools"])
}

/// Creates a copy of the sample project with a git history.
fn create_sample() -> Result<tempfile::TempDir> {
    let dir = tempfile::tempdir()?;
    let from = format!("{}/../examples/sample", env!("CARGO_MANIFEST_DIR"));
    let run = |program: &str, args: &[&str], at: &Path| -> Result<()> {
        let mut command = Command::new(program);
        command
            .args(args)
            .current_dir(at)
            .env("GIT_CONFIG_GLOBAL", "/dev/null");
        for who in ["AUTHOR", "COMMITTER"] {
            command
                .env(format!("GIT_{who}_NAME"), "Ada")
                .env(format!("GIT_{who}_EMAIL"), "shop@example.org");
        }
        let output = command.output().with_context(|| program.to_owned())?;
        ensure!(
            output.status.success(),
            "{program} {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    };
    run("cp", &["-r", &format!("{from}/."), "."], dir.path())?;
    run("git", &["init", "-q", "-b", "main"], dir.path())?;
    for (paths, subject) in [
        ("README.md", "A shop"),
        ("shop", "Prices"),
        ("tests", "Tests"),
        ("docs", "Documentation"),
    ] {
        run("git", &["add", paths], dir.path())?;
        run("git", &["commit", "-q", "-m", subject], dir.path())?;
    }
    Ok(dir)
}
