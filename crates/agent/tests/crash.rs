//! A long session whose process is killed repeatedly ends like one whose process was never killed.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../../journal/tests/support/store.rs"]
mod store;
mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use selvedge_agent::{Agent, AgentOptions, Session, TurnOptions};
use selvedge_journal::{Journal, StoredCallState};
use selvedge_models::{Model, ModelClient, Provider};
use selvedge_protocol::{
    ApprovalPolicy, CallStatus, ConversationItem, ErrorCode, ToolSpec, TurnItem, WireApi,
};
use selvedge_script::Harness;
use selvedge_tools::{
    CallContext, CallFuture, Orchestrator, Registry, Tool, ToolOutput, UnconfinedRetry, spec_of,
    tool,
};
use serde::Deserialize;
use serde_json::{Value, json};
use store::store;
use support::answer_encoding::{block, call, text};
use support::server::{Asked, Reply, Server};
use tempfile::TempDir;

const TURNS: u32 = 200;
const KILLS: usize = 10;

#[derive(Deserialize, JsonSchema)]
struct Look {
    n: u32,
}

#[derive(Deserialize, JsonSchema)]
struct Note {
    key: String,
}

/// The model's answers: ten calls per turn, seven in a script and three structured. Three of them
/// change something.
fn model(asked: &Asked) -> Reply {
    let messages = asked.body["messages"].as_array().unwrap();
    let words = |message: &Value| match &message["content"] {
        Value::String(text) => text.clone(),
        other => support::text_of(other).trim().to_owned(),
    };
    let newest = messages
        .iter()
        .rposition(|message| message["role"] == "user" && words(message).starts_with("turn "))
        .unwrap();
    let n = words(&messages[newest])[5..].to_owned();
    if newest + 1 < messages.len() {
        return vec![text(&format!("Turn {n} is done."))].into();
    }
    let script = format!(
        "const seen = await Promise.all([1, 2, 3, 4, 5].map((n) => tools.look({{ n }})));\n\
         await tools.note({{ key: '{n}-a' }});\nawait tools.note({{ key: '{n}-b' }});\nreturn seen.length;"
    );
    vec![
        text(&format!(
            "I look first.\n{}\nThen the rest.",
            block(&script)
        )),
        call("c1", "look", json!({"n": 1})),
        call("c2", "look", json!({"n": 2})),
        call("c3", "note", json!({"key": format!("{n}-c")})),
    ]
    .into()
}

/// Writes a line to the file `held`, and waits until the file `go` exists.
async fn hold(place: &Path, line: &str) {
    use std::io::Write;
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(place.join("held"))
        .unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
    while !place.join("go").exists() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[derive(Deserialize, JsonSchema)]
struct BlockedArgs {
    #[allow(dead_code)]
    unconfined: Option<bool>,
}

/// A tool whose first attempt is blocked by its confinement. The retry holds.
struct Blocked(PathBuf);

impl Tool for Blocked {
    fn spec(&self) -> ToolSpec {
        spec_of::<BlockedArgs, String>("blocked", "Holds, if it is not confined.")
    }

    fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
        Box::pin(async move {
            if args["unconfined"] == true {
                hold(&self.0, "retry").await;
                return Ok(ToolOutput::from(json!("held")));
            }
            let mut output = ToolOutput::from(json!("permission denied"));
            output.unconfined_retry = Some(UnconfinedRetry {
                args: json!({"unconfined": true}),
                reason: "it was blocked".to_owned(),
            });
            Ok(output)
        })
    }
}

/// The process that is killed: continues its session until all turns are done.
#[test]
#[ignore = "child process of the tests below"]
fn child() {
    let Ok(place) = std::env::var("SELVEDGE_CRASH_PLACE") else {
        return;
    };
    let (place, url) = (
        PathBuf::from(place),
        std::env::var("SELVEDGE_CRASH_URL").unwrap(),
    );
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(async {
            let journal = Journal::open(store(&place)).unwrap();
            let mut registry = Registry::new();
            registry
                .register(
                    tool("look", "Looks.", |args: Look| async move { Ok(args.n * 2) }).read_only(),
                )
                .unwrap();
            let log = place.join("notes");
            registry
                .register(tool("note", "Writes a line.", move |args: Note| {
                    let log = log.clone();
                    async move {
                        use std::io::Write;
                        let mut file = std::fs::OpenOptions::new()
                            .create(true)
                            .append(true)
                            .open(log)
                            .unwrap();
                        file.write_all(format!("{}\n", args.key).as_bytes())
                            .unwrap();
                        // The call has taken effect, but its end is not recorded yet.
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        Ok(args.key)
                    }
                }))
                .unwrap();
            let held = place.clone();
            registry
                .register(tool(
                    "hold",
                    "Writes a line and waits until the file `go` exists.",
                    move |args: Note| {
                        let held = held.clone();
                        async move {
                            hold(&held, &args.key).await;
                            Ok(args.key)
                        }
                    },
                ))
                .unwrap();
            registry.register(Blocked(place.clone())).unwrap();
            let orchestrator = Orchestrator::new(registry)
                .with_policy(ApprovalPolicy::OnFailure)
                .with_ledger(journal.clone());
            let client = ModelClient::new(Provider::new("mock", url, WireApi::Chat)).unwrap();
            let model = Model {
                context_window: 100_000_000,
                ..Model::from_table("gpt-4o")
            };
            let agent = Agent::new(
                client,
                model,
                Harness::new(orchestrator).unwrap(),
                AgentOptions::default(),
            );
            let id = std::fs::read_to_string(place.join("session")).unwrap();
            let mut session = Session::open(&journal, &id).await.unwrap();
            let options = TurnOptions::default();
            if session.has_open_turn() {
                agent
                    .run_open_turn(&mut session, &options)
                    .await
                    .end
                    .unwrap();
            }
            let turns =
                std::env::var("SELVEDGE_CRASH_TURNS").map_or(TURNS, |turns| turns.parse().unwrap());
            while session.turn_number() < turns {
                let prompt = format!("turn {}", session.turn_number() + 1);
                agent
                    .run_turn(&mut session, prompt, &options)
                    .await
                    .end
                    .unwrap();
            }
        });
}

fn start(place: &Path, url: &str) -> Child {
    command(place, url).spawn().unwrap()
}

fn command(place: &Path, url: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--ignored", "--quiet"])
        .stdout(Stdio::null());
    command
        .env("SELVEDGE_CRASH_PLACE", place)
        .env("SELVEDGE_CRASH_URL", url);
    command
}

/// Kills the process of a turn each time it holds, `deaths` times, then lets the turn end. Returns
/// what the session tells the model, and the lines of the file `held`.
async fn killed_while_holding(server: &Server, place: &Path, deaths: usize) -> [String; 2] {
    let id = begin(place).await;
    let (path, url) = (place.to_owned(), server.url.clone());
    let lines = |place: &Path| std::fs::read_to_string(place.join("held")).unwrap_or_default();
    tokio::task::spawn_blocking(move || {
        for deaths in 1..=deaths {
            let mut child = one_turn(&path, &url);
            let deadline = Instant::now() + Duration::from_secs(120);
            while lines(&path).lines().count() < deaths {
                assert!(
                    Instant::now() < deadline && child.try_wait().unwrap().is_none(),
                    "the child makes no progress"
                );
                std::thread::yield_now();
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
        std::fs::write(path.join("go"), "").unwrap();
        assert!(one_turn(&path, &url).wait().unwrap().success());
    })
    .await
    .unwrap();
    let journal = Journal::open(store(place)).unwrap();
    let session = Session::open(&journal, &id).await.unwrap();
    [support::history(&session).join("\n"), lines(place)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_crashes_in_one_answer_repeat_no_call() {
    let server = Server::start(|asked| match asked.number {
        0 => vec![
            text(&block(
                "await tools.note({ key: 'a' }); await tools.hold({ key: 'script' })",
            )),
            call("c1", "hold", json!({"key": "call"})),
        ]
        .into(),
        _ => vec![text("Done.")].into(),
    })
    .await;
    let place = TempDir::new().unwrap();
    // Once in the script, once in the structured call after it.
    let [history, held] = killed_while_holding(&server, place.path(), 2).await;
    assert_eq!(held, "script\ncall\n");
    assert_eq!(recorded_lines(place.path()), ["a"]);
    assert!(
        history.contains("OutcomeUnknownError") && history.contains("result c1: outcome unknown"),
        "{history}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_during_the_retry_of_a_structured_call_leaves_its_outcome_unknown() {
    let server = Server::start(|asked| match asked.number {
        0 => vec![call("c1", "blocked", json!({}))].into(),
        _ => vec![text("Done.")].into(),
    })
    .await;
    let place = TempDir::new().unwrap();
    let [history, held] = killed_while_holding(&server, place.path(), 1).await;
    assert_eq!(held, "retry\n");
    assert!(history.contains("result c1: outcome unknown"), "{history}");
}

fn one_turn(place: &Path, url: &str) -> Child {
    command(place, url)
        .env("SELVEDGE_CRASH_TURNS", "1")
        .spawn()
        .unwrap()
}

async fn begin(place: &Path) -> String {
    let journal = Journal::open(store(place)).unwrap();
    let id = Session::begin(&journal, "").await.unwrap().id().to_owned();
    std::fs::write(place.join("session"), &id).unwrap();
    id
}

fn recorded_lines(place: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(place.join("notes")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Returns an item as JSON without the fields that differ between two runs (ids, times and
/// metadata) and without those that name reused calls.
fn without_ids(item: &TurnItem) -> Value {
    let mut value = serde_json::to_value(item).unwrap();
    let mut paths = vec!["id", "metadata"];
    if matches!(
        item,
        TurnItem::ScriptToolCall(_) | TurnItem::ScriptToolCallOutput(_)
    ) {
        paths.push("call_id");
    }
    for path in paths {
        value[path] = Value::Null;
    }
    for call in value["calls"].as_array_mut().into_iter().flatten() {
        for field in ["duration_ms", "args_digest", "reused"] {
            call[field] = Value::Null;
        }
    }
    if let Some(warnings) = value["warnings"].as_array_mut() {
        warnings.retain(|text| {
            !text
                .as_str()
                .unwrap()
                .starts_with("reused recorded results")
        });
    }
    value
}

/// Returns the number of calls in an item that were in flight at a kill: a structured call of
/// unknown outcome, or the call of a resumed script that failed because of it.
fn count_unknown_outcomes(item: &TurnItem) -> usize {
    match item {
        TurnItem::ScriptToolCallOutput(output) => output
            .calls
            .iter()
            .filter(|call| {
                let error = call.error.as_ref();
                error.is_some_and(|error| error.code == ErrorCode::OutcomeUnknownError)
            })
            .count(),
        TurnItem::Conversation(ConversationItem::FunctionCallOutput(output)) => {
            usize::from(output.text().starts_with("outcome unknown"))
        }
        _ => 0,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_killed_ten_times_ends_like_one_that_was_never_killed() {
    let server = Server::start(model).await;
    let (calm, wild) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let ids = [begin(calm.path()).await, begin(wild.path()).await];
    let url = server.url.clone();
    let (calm_place, wild_place) = (calm.path().to_owned(), wild.path().to_owned());
    let killed = tokio::task::spawn_blocking(move || {
        assert!(start(&calm_place, &url).wait().unwrap().success());
        let mut killed = 0;
        let mut child = start(&wild_place, &url);
        // Each kill waits for a random number of notes, not for a time.
        let mut targets: Vec<usize> = (0..KILLS)
            .map(|_| random_below(3 * TURNS as usize - 20))
            .collect();
        targets.sort_unstable();
        for target in targets {
            let deadline = Instant::now() + Duration::from_secs(300);
            while recorded_lines(&wild_place).len() < target && child.try_wait().unwrap().is_none()
            {
                assert!(Instant::now() < deadline, "the child makes no progress");
                std::thread::yield_now();
            }
            // The kill happens at a random time between this note and the next one.
            let spin = Instant::now() + Duration::from_micros(random_below(4000) as u64);
            while Instant::now() < spin {}
            if child.try_wait().unwrap().is_none() {
                child.kill().unwrap();
                killed += 1;
            }
            child.wait().unwrap();
            child = start(&wild_place, &url);
        }
        assert!(child.wait().unwrap().success());
        killed
    })
    .await
    .unwrap();
    assert_eq!(killed, KILLS, "every kill hit a running process");

    let journals = [
        Journal::open(store(calm.path())).unwrap(),
        Journal::open(store(wild.path())).unwrap(),
    ];
    let [calm_session, wild_session] = [
        Session::open(&journals[0], &ids[0]).await.unwrap(),
        Session::open(&journals[1], &ids[1]).await.unwrap(),
    ];
    let (calm_items, wild_items) = (calm_session.history(), wild_session.history());
    assert_eq!(calm_items.len(), wild_items.len());
    let mut unknown = 0;
    for ((turn, calm), (_, wild)) in calm_items.iter().zip(&wild_items) {
        unknown += count_unknown_outcomes(wild);
        if count_unknown_outcomes(wild) == 0 {
            assert_eq!(without_ids(calm), without_ids(wild), "turn {turn}");
        }
    }
    // Two thousand calls. Each call in flight at a kill is reported once as of unknown outcome.
    let calls = |items: &[(u32, TurnItem)]| -> usize {
        let of = |item: &TurnItem| match item {
            TurnItem::ScriptToolCallOutput(output) => output.calls.len(),
            TurnItem::Conversation(ConversationItem::FunctionCallOutput(_)) => 1,
            _ => 0,
        };
        items.iter().map(|(_, item)| of(item)).sum()
    };
    assert_eq!(calls(&calm_items), 10 * TURNS as usize);
    let runs = journals[1].runs(&Default::default()).unwrap();
    let in_flight = runs
        .iter()
        .flat_map(|run| journals[1].run(&run.id).unwrap().calls)
        .filter(|call| {
            call.state == StoredCallState::Ended(CallStatus::OutcomeUnknown)
                && !call.read_only
                && call.args.is_some()
        });
    let in_flight = in_flight.count();
    assert_eq!(unknown, in_flight, "each is reported once");
    println!("{killed} kills, {in_flight} calls of unknown outcome");
    // No note was written twice. Only notes that follow a call of unknown outcome may be missing.
    let mut noted = recorded_lines(wild.path());
    let all = noted.len();
    noted.sort();
    noted.dedup();
    assert_eq!(noted.len(), all, "a note was written twice");
    assert!(
        all >= 3 * TURNS as usize - 2 * in_flight,
        "{all} notes, {in_flight} unknown"
    );
}

/// Returns a random number below `limit`.
fn random_below(limit: usize) -> usize {
    use std::hash::{BuildHasher, Hasher, RandomState};
    (RandomState::new().build_hasher().finish() % limit as u64) as usize
}
