//! What an agent adds to its model: from the last byte of an answer with a one-call script to the follow-up request on
//! the wire, and from the start of the process to the first request.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use selvedge_agent::{Session, Settings, TurnOptions};
use selvedge_journal::Journal;
use selvedge_protocol::TurnEnd;
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
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let follow_up = runtime.block_on(follow_ups())?;
    table.row(
        "a model's answer received → results sent back, one-call script, journal on",
        format!("{:.2} ms (p99 {:.2})", follow_up.p50(), follow_up.p99()),
        "Codex code mode 25 ms, as others measured it",
        "≤ 5 ms",
        follow_up.p50() <= 5.0,
    );
    let cold = runtime.block_on(cold_starts())?;
    table.row(
        "`selvedge exec`, start of the process → first request",
        format!("{:.1} ms (p99 {:.1})", cold.p50(), cold.p99()),
        "",
        "≤ 30 ms",
        cold.p50() <= 30.0,
    );
    Ok(())
}

async fn follow_ups() -> Result<Samples> {
    let (url, times) = server().await?;
    let (work, home) = (tempfile::tempdir()?, tempfile::tempdir()?);
    std::fs::write(work.path().join("a.txt"), "one\n")?;
    let journal = Arc::new(Journal::open(home.path())?);
    let server = crate::loopback::server::Server::start(|_| Vec::new().into()).await;
    let agent = crate::loopback::agent(&server, work.path(), &journal, Settings::default())?;
    let provider = selvedge_models::Provider::new("mock", url, selvedge_protocol::WireApi::Chat);
    let model = agent.model().clone();
    let agent = agent.with_model(selvedge_models::Client::new(provider)?, model);
    let mut samples = Samples::default();
    for turn in 0..TURNS + 5 {
        let mut session = Session::begin(&journal, "")?;
        lock(&times).clear();
        let outcome = agent.turn(&mut session, "go", &TurnOptions::default()).await;
        ensure!(outcome.end == Ok(TurnEnd::Stop), "{:?}", outcome.end);
        let seen = lock(&times).clone();
        let answered = seen.iter().find(|(moment, _)| *moment == Moment::Answered).context("an answer")?.1;
        let again = seen.iter().filter(|(moment, _)| *moment == Moment::Asked).nth(1).context("a second request")?.1;
        // The first ones load the engine.
        if turn >= 5 {
            samples.extend([again.duration_since(answered).as_secs_f64() * 1e3]);
        }
    }
    Ok(samples)
}

async fn cold_starts() -> Result<Samples> {
    let (url, times) = server().await?;
    let (work, home) = (tempfile::tempdir()?, tempfile::tempdir()?);
    std::fs::write(work.path().join("a.txt"), "one\n")?;
    let config = format!(
        "model = \"m\"\nmodel_provider = \"mock\"\n[model_providers.mock]\nbase_url = \"{url}\"\nwire_api = \"chat\"\n"
    );
    std::fs::write(home.path().join("config.toml"), config)?;
    let program = std::env::current_exe()?.with_file_name("selvedge");
    ensure!(program.exists(), "build the command first: cargo build --release -p selvedge");
    let mut samples = Samples::default();
    for _ in 0..20 {
        lock(&times).clear();
        let began = Instant::now();
        let mut command = tokio::process::Command::new(&program);
        command.args(["exec", "-q", "go"]).current_dir(work.path()).env("SELVEDGE_HOME", home.path());
        let output = command.output().await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let first = lock(&times).first().context("a request")?.1;
        samples.extend([first.duration_since(began).as_secs_f64() * 1e3]);
    }
    Ok(samples)
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
        let read = stream.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
        if fresh {
            lock(&times).push((Moment::Asked, Instant::now()));
        }
        bytes.extend_from_slice(&buffer[..read]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        if bytes.len() < end + 4 + length.unwrap_or(0) {
            continue;
        }
        let again = String::from_utf8_lossy(&bytes).contains("Result of the script");
        bytes.clear();
        let said = match again {
            true => vec![text("Done.")],
            false => vec![text(&block("return (await tools.readFile({ path: 'a.txt' })).totalLines"))],
        };
        let body = encode("/v1/chat/completions", &said);
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).await.ok()?;
        lock(&times).push((Moment::Answered, Instant::now()));
    }
}

fn lock(times: &Times) -> std::sync::MutexGuard<'_, Vec<(Moment, Instant)>> {
    times.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
