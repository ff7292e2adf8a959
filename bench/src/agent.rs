//! What an agent adds to its model: from the last byte of an answer with a one-call script to the follow-up request on
//! the wire, and from the start of the process to the first request.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use selvedge_agent::{Session, Settings, TurnOptions};
use selvedge_journal::Journal;
use selvedge_protocol::TurnEnd;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::loopback::speech::{block, encode, text};
use crate::measure::Samples;
use crate::table::Table;

/// Turns that are measured.
const TURNS: usize = 100;

/// When an answer's last byte was written, and when the next request's first byte came.
type Times = Arc<Mutex<Vec<(Moment, Instant)>>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Asked,
    Answered,
}

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let follow_up = runtime.block_on(follow_ups())?;
    table.row(
        "a model's answer received → results sent back, one-call script, journal on",
        format!("{:.2} ms (p99 {:.2})", follow_up.p50(), follow_up.p99()),
        "",
        "≤ 5 ms",
        follow_up.p50() <= 5.0,
    );
    let Processes { ours, codex } = runtime.block_on(processes())?;
    let beside = |theirs: fn(&Took) -> &Samples| match &codex {
        Some(codex) => format!("codex exec, code mode {:.0} ms", theirs(codex).p50()),
        None => "@openai/codex is not installed".to_owned(),
    };
    table.row(
        "`selvedge exec`, start of the process → first request",
        format!("{:.1} ms (p99 {:.1})", ours.start.p50(), ours.start.p99()),
        &beside(|took| &took.start),
        "≤ 30 ms",
        ours.start.p50() <= 30.0,
    );
    table.row(
        "the same process, first answer → follow-up request: a script that runs `true`, confined",
        format!(
            "{:.1} ms (p99 {:.1})",
            ours.follow_up.p50(),
            ours.follow_up.p99()
        ),
        &beside(|took| &took.follow_up),
        "",
        codex
            .as_ref()
            .is_none_or(|codex| ours.follow_up.p50() < codex.follow_up.p50()),
    );
    Ok(())
}

/// What whole processes took, from their start to the first request and from its answer to the next.
#[derive(Default)]
struct Took {
    start: Samples,
    follow_up: Samples,
}

struct Processes {
    ours: Took,
    /// Where it is installed.
    codex: Option<Took>,
}

async fn follow_ups() -> Result<Samples> {
    let (url, times) = server().await?;
    let (work, home) = (tempfile::tempdir()?, tempfile::tempdir()?);
    std::fs::write(work.path().join("a.txt"), "one\n")?;
    let journal = Journal::open(home.path())?;
    let server = crate::loopback::server::Server::start(|_| Vec::new().into()).await;
    let agent = crate::loopback::agent(&server, work.path(), &journal, Settings::default())?;
    let provider = selvedge_models::Provider::new("mock", url, selvedge_protocol::WireApi::Chat);
    let model = agent.model().clone();
    let agent = agent.with_model(selvedge_models::Client::new(provider)?, model);
    let mut samples = Samples::default();
    for turn in 0..TURNS + 5 {
        let mut session = Session::begin(&journal, "").await?;
        lock(&times).clear();
        let outcome = agent
            .turn(&mut session, "go", &TurnOptions::default())
            .await;
        ensure!(outcome.end == Ok(TurnEnd::Stop), "{:?}", outcome.end);
        let seen = lock(&times).clone();
        let answered = seen
            .iter()
            .find(|(moment, _)| *moment == Moment::Answered)
            .context("an answer")?
            .1;
        let again = seen
            .iter()
            .filter(|(moment, _)| *moment == Moment::Asked)
            .nth(1)
            .context("a second request")?
            .1;
        // The first ones load the engine.
        if turn >= 5 {
            samples.extend([again.duration_since(answered).as_secs_f64() * 1e3]);
        }
    }
    Ok(samples)
}

/// Whole processes, ours and Codex in turn, on the same server.
async fn processes() -> Result<Processes> {
    const ROUNDS: usize = 15;
    let (url, times) = server().await?;
    let (work, home, codex_home) = (
        tempfile::tempdir()?,
        tempfile::tempdir()?,
        tempfile::tempdir()?,
    );
    std::fs::write(work.path().join("a.txt"), "one\n")?;
    let config = format!(
        "model = \"mock\"\nmodel_provider = \"mock\"\n[model_providers.mock]\nbase_url = \"{url}\"\nwire_api = \"chat\"\n"
    );
    std::fs::write(home.path().join("config.toml"), config)?;
    let program = crate::ours()?;
    let mut ours = tokio::process::Command::new(&program);
    ours.args(["exec", "-q", "go"])
        .current_dir(work.path())
        .env("SELVEDGE_HOME", home.path());
    let codex = crate::peers::folder().join("node_modules/.bin/codex");
    let mut codex = codex
        .exists()
        .then(|| codex_command(&codex, &url.replace("/v1", "/codex/v1")));
    if let Some(codex) = &mut codex {
        codex
            .current_dir(work.path())
            .env("CODEX_HOME", codex_home.path());
    }
    let mut processes = Processes {
        ours: Took::default(),
        codex: codex.as_ref().map(|_| Took::default()),
    };
    for round in 0..ROUNDS {
        for (command, took) in [
            Some((&mut ours, &mut processes.ours)),
            codex.as_mut().zip(processes.codex.as_mut()),
        ]
        .into_iter()
        .flatten()
        {
            let (start, follow_up) = one_process(command, &times).await?;
            // The first ones make their folders.
            if round > 0 {
                took.start.extend([start]);
                took.follow_up.extend([follow_up]);
            }
        }
    }
    Ok(processes)
}

fn codex_command(program: &std::path::Path, url: &str) -> tokio::process::Command {
    let provider = format!(
        "model_providers.mock={{name=\"mock\",base_url=\"{url}\",env_key=\"MOCK_KEY\",wire_api=\"responses\"}}"
    );
    let mut command = tokio::process::Command::new(program);
    command
        .args([
            "exec",
            "--skip-git-repo-check",
            "--enable",
            "code_mode",
            "-s",
            "workspace-write",
            "-m",
            "gpt-5.5",
        ])
        .args(["-c", "model_provider=\"mock\"", "-c", &provider, "go"])
        .env("MOCK_KEY", "none")
        .stdin(std::process::Stdio::null());
    command
}

/// Milliseconds to its first request, and from the answer to the next.
async fn one_process(command: &mut tokio::process::Command, times: &Times) -> Result<(f64, f64)> {
    lock(times).clear();
    let began = Instant::now();
    let output = command.output().await?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let seen = lock(times).clone();
    let of = |wanted: Moment| {
        seen.iter()
            .filter(move |(moment, _)| *moment == wanted)
            .map(|(_, at)| *at)
    };
    let (first, answered) = (of(Moment::Asked).next(), of(Moment::Answered).next());
    let again = of(Moment::Asked).nth(1).context("a second request")?;
    let (first, answered) = (first.context("a request")?, answered.context("an answer")?);
    let ms = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1e3;
    Ok((ms(began, first), ms(answered, again)))
}

/// A server that answers a question with a one-call script and its result with a word, and notes when.
async fn server() -> Result<(String, Times)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/v1", listener.local_addr()?);
    let times = Times::default();
    let seen = times.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, seen.clone()));
        }
    });
    Ok((url, times))
}

async fn serve(mut stream: TcpStream, times: Times) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 * 1024];
    loop {
        let fresh = bytes.is_empty();
        let read = stream
            .read(&mut buffer)
            .await
            .ok()
            .filter(|read| *read > 0)?;
        if fresh {
            lock(&times).push((Moment::Asked, Instant::now()));
        }
        bytes.extend_from_slice(&buffer[..read]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = head.lines().find_map(|line| {
            line.strip_prefix("content-length:")?
                .trim()
                .parse::<usize>()
                .ok()
        });
        if bytes.len() < end + 4 + length.unwrap_or(0) {
            continue;
        }
        if !head.starts_with("post") {
            // Codex asks which models there are.
            let none = "{\"object\":\"list\",\"data\":[],\"models\":[]}";
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                none.len()
            );
            lock(&times).retain(|(moment, _)| *moment == Moment::Answered);
            bytes.clear();
            stream
                .write_all(format!("{head}{none}").as_bytes())
                .await
                .ok()?;
            continue;
        }
        let asked = String::from_utf8_lossy(&bytes);
        let again = asked.contains("Result of the script")
            || asked.contains("\"type\":\"custom_tool_call_output\"");
        let said = match (again, asked.contains("\"mock\"")) {
            (true, _) => vec![text("Done.")],
            (false, true) => vec![text(&block(
                "return (await tools.exec({ command: ['true'] })).exitCode",
            ))],
            (false, false) => vec![text(&block(
                "return (await tools.readFile({ path: 'a.txt' })).totalLines",
            ))],
        };
        bytes.clear();
        let body = match head.contains("/codex/") {
            true => codex_answer(again),
            false => encode("/v1/chat/completions", &said),
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream
            .write_all(format!("{head}{body}").as_bytes())
            .await
            .ok()?;
        lock(&times).push((Moment::Answered, Instant::now()));
    }
}

fn lock(times: &Times) -> std::sync::MutexGuard<'_, Vec<(Moment, Instant)>> {
    times
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The same as Codex's models write it: the script, then the word.
fn codex_answer(again: bool) -> String {
    let input = "const r = await tools.exec_command({ cmd: 'true' });\ntext(r.exit_code);\n";
    let said = json!([{"type": "output_text", "text": "Done."}]);
    let item = match again {
        true => json!({"type": "message", "role": "assistant", "id": "msg_1", "content": said}),
        false => {
            json!({"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "exec", "input": input})
        }
    };
    let usage = json!({"input_tokens": 1, "output_tokens": 1, "total_tokens": 2});
    let events = [
        json!({"type": "response.created", "response": {"id": "resp_1"}}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
        json!({"type": "response.completed", "response": {"id": "resp_1", "usage": usage}}),
    ];
    let line = |event: &serde_json::Value| {
        format!(
            "event: {}\ndata: {event}\n\n",
            event["type"].as_str().unwrap_or_default()
        )
    };
    events.iter().map(line).collect()
}
