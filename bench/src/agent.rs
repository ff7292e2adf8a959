//! Measures the overhead of an agent: from the last byte of an answer with a one-call script to the
//! follow-up request, and from the start of the process to the first request.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use selvedge_agent::{AgentOptions, Session, TurnOptions};
use selvedge_journal::Journal;
use selvedge_protocol::TurnEnd;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::measure::Samples;
use crate::mock_agent::answer_encoding::{block, encode, text};
use crate::table::BenchTable;

/// Number of turns that are measured.
const MEASURED_TURNS: usize = 100;

/// The requests and answers of the mock server, with their times, in order.
type WireTimes = Arc<Mutex<Vec<(WireEvent, Instant)>>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WireEvent {
    /// The first byte of a request was received.
    RequestReceived,
    /// The last byte of an answer was written.
    AnswerSent,
}

pub(crate) fn measure(table: &mut BenchTable) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let follow_up = runtime.block_on(measure_follow_ups())?;
    table.add_row(
        "answer received → results sent, one-call script, journal on",
        format!("{:.2} ms (p99 {:.2})", follow_up.p50(), follow_up.p99()),
        "",
        "≤ 2 ms",
        follow_up.p50() <= 2.0,
    );
    let ProcessComparison {
        selvedge: ours,
        codex,
    } = runtime.block_on(measure_processes())?;
    let peer = |samples: fn(&ProcessTimes) -> &Samples| match &codex {
        Some(codex) => format!("codex exec, code mode {:.0} ms", samples(codex).p50()),
        None => "@openai/codex is not installed".to_owned(),
    };
    table.add_row(
        "`selvedge exec`, start of the process → first request",
        format!(
            "{:.1} ms (p99 {:.1})",
            ours.startup.p50(),
            ours.startup.p99()
        ),
        &peer(|times| &times.startup),
        "≤ 30 ms",
        ours.startup.p50() <= 30.0,
    );
    table.add_row(
        "`selvedge exec`, first answer → next request: a script that runs `true`, confined",
        format!(
            "{:.1} ms (p99 {:.1})",
            ours.follow_up.p50(),
            ours.follow_up.p99()
        ),
        &peer(|times| &times.follow_up),
        "",
        codex
            .as_ref()
            .is_none_or(|codex| ours.follow_up.p50() < codex.follow_up.p50()),
    );
    Ok(())
}

/// Times of whole processes.
#[derive(Default)]
struct ProcessTimes {
    /// From the start of the process to the first request.
    startup: Samples,
    /// From the first answer to the next request.
    follow_up: Samples,
}

struct ProcessComparison {
    selvedge: ProcessTimes,
    /// `None` if Codex is not installed.
    codex: Option<ProcessTimes>,
}

/// Measures the time from an answer to the follow-up request, in this process.
async fn measure_follow_ups() -> Result<Samples> {
    let (url, times) = start_server().await?;
    let (work, home) = (tempfile::tempdir()?, tempfile::tempdir()?);
    std::fs::write(work.path().join("a.txt"), "one\n")?;
    let journal = Journal::open(home.path())?;
    let server = crate::mock_agent::server::Server::start(|_| Vec::new().into()).await;
    let agent =
        crate::mock_agent::mock_agent(&server, work.path(), &journal, AgentOptions::default())?;
    let provider = selvedge_models::Provider::new("mock", url, selvedge_protocol::WireApi::Chat);
    let model = agent.model().clone();
    let agent = agent.with_model(selvedge_models::ModelClient::new(provider)?, model);
    let mut samples = Samples::default();
    for turn in 0..MEASURED_TURNS + 5 {
        let mut session = Session::begin(&journal, "").await?;
        lock(&times).clear();
        let outcome = agent
            .run_turn(&mut session, "go", &TurnOptions::default())
            .await;
        ensure!(outcome.end == Ok(TurnEnd::Stop), "{:?}", outcome.end);
        let recorded = lock(&times).clone();
        let answered = recorded
            .iter()
            .find(|(moment, _)| *moment == WireEvent::AnswerSent)
            .context("no answer was recorded")?
            .1;
        let follow_up = recorded
            .iter()
            .filter(|(moment, _)| *moment == WireEvent::RequestReceived)
            .nth(1)
            .context("no second request was recorded")?
            .1;
        // The first turns load the engine and are not measured.
        if turn >= 5 {
            samples.extend([follow_up.duration_since(answered).as_secs_f64() * 1e3]);
        }
    }
    Ok(samples)
}

/// Measures whole processes, Selvedge and Codex in turn, with the same server.
async fn measure_processes() -> Result<ProcessComparison> {
    const ROUNDS: usize = 15;
    let (url, times) = start_server().await?;
    let (work, home, codex_home) = (
        tempfile::tempdir()?,
        tempfile::tempdir()?,
        tempfile::tempdir()?,
    );
    std::fs::write(work.path().join("a.txt"), "one\n")?;
    let config = format!(
        "model = \"mock\"\nmodel_context_window = 128000\nmodel_provider = \"mock\"\n\
         [model_providers.mock]\nbase_url = \"{url}\"\nwire_api = \"chat\"\n"
    );
    std::fs::write(home.path().join("config.toml"), config)?;
    let program = crate::selvedge_binary()?;
    let mut ours = tokio::process::Command::new(&program);
    ours.args(["exec", "-q", "go"])
        .current_dir(work.path())
        .env("SELVEDGE_HOME", home.path())
        .stdin(std::process::Stdio::null());
    let codex = crate::peers::bench_folder().join("node_modules/.bin/codex");
    let mut codex = codex
        .exists()
        .then(|| codex_command(&codex, &url.replace("/v1", "/codex/v1")));
    if let Some(codex) = &mut codex {
        codex
            .current_dir(work.path())
            .env("CODEX_HOME", codex_home.path());
    }
    let mut processes = ProcessComparison {
        selvedge: ProcessTimes::default(),
        codex: codex.as_ref().map(|_| ProcessTimes::default()),
    };
    for round in 0..ROUNDS {
        for (command, samples) in [
            Some((&mut ours, &mut processes.selvedge)),
            codex.as_mut().zip(processes.codex.as_mut()),
        ]
        .into_iter()
        .flatten()
        {
            let (start, follow_up) = measure_process(command, &times).await?;
            // The first round creates folders and is not measured.
            if round > 0 {
                samples.startup.extend([start]);
                samples.follow_up.extend([follow_up]);
            }
        }
    }
    Ok(processes)
}

fn codex_command(program: &std::path::Path, url: &str) -> tokio::process::Command {
    let provider = format!(
        "model_providers.mock={{name=\"mock\",base_url=\"{url}\",env_key=\"MOCK_KEY\",\
         wire_api=\"responses\"}}"
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

/// Runs a process, and returns the milliseconds to its first request and from the answer to the
/// next request.
async fn measure_process(
    command: &mut tokio::process::Command,
    times: &WireTimes,
) -> Result<(f64, f64)> {
    lock(times).clear();
    let start = Instant::now();
    let output = command.output().await?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let recorded = lock(times).clone();
    let times_of = |kind: WireEvent| {
        recorded
            .iter()
            .filter(move |(moment, _)| *moment == kind)
            .map(|(_, at)| *at)
    };
    let (first, answered) = (
        times_of(WireEvent::RequestReceived).next(),
        times_of(WireEvent::AnswerSent).next(),
    );
    let follow_up = times_of(WireEvent::RequestReceived)
        .nth(1)
        .context("no second request was recorded")?;
    let (first, answered) = (
        first.context("no request was recorded")?,
        answered.context("no answer was recorded")?,
    );
    let ms = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1e3;
    Ok((ms(start, first), ms(answered, follow_up)))
}

/// Starts a server that answers a first request with a one-call script and the next one with a
/// word, and records the times.
async fn start_server() -> Result<(String, WireTimes)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/v1", listener.local_addr()?);
    let times = WireTimes::default();
    let recorded = times.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, recorded.clone()));
        }
    });
    Ok((url, times))
}

async fn serve(mut stream: TcpStream, times: WireTimes) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 * 1024];
    loop {
        let is_new_request = bytes.is_empty();
        let read = stream
            .read(&mut buffer)
            .await
            .ok()
            .filter(|read| *read > 0)?;
        if is_new_request {
            lock(&times).push((WireEvent::RequestReceived, Instant::now()));
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
            // Codex requests the list of models.
            let models = "{\"object\":\"list\",\"data\":[],\"models\":[]}";
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                models.len()
            );
            lock(&times).retain(|(moment, _)| *moment == WireEvent::AnswerSent);
            bytes.clear();
            stream
                .write_all(format!("{head}{models}").as_bytes())
                .await
                .ok()?;
            continue;
        }
        let request = String::from_utf8_lossy(&bytes);
        let is_follow_up = request.contains("Result of the script")
            || request.contains("\"type\":\"custom_tool_call_output\"");
        let answer = match (is_follow_up, request.contains("\"mock\"")) {
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
            true => codex_answer(is_follow_up),
            false => encode("/v1/chat/completions", &answer),
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream
            .write_all(format!("{head}{body}").as_bytes())
            .await
            .ok()?;
        lock(&times).push((WireEvent::AnswerSent, Instant::now()));
    }
}

fn lock(times: &WireTimes) -> std::sync::MutexGuard<'_, Vec<(WireEvent, Instant)>> {
    times
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Returns the answers in the form of Codex's models: first the script, then the word.
fn codex_answer(is_follow_up: bool) -> String {
    let input = "const r = await tools.exec_command({ cmd: 'true' });\ntext(r.exit_code);\n";
    let content = json!([{"type": "output_text", "text": "Done."}]);
    let item = match is_follow_up {
        true => json!({"type": "message", "role": "assistant", "id": "msg_1", "content": content}),
        false => {
            json!({
                "type": "custom_tool_call",
                "id": "ctc_1",
                "call_id": "call_1",
                "name": "exec",
                "input": input,
            })
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
