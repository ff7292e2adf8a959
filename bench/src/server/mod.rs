//! Measures `selvedge serve` under load, with scripted models on loopback, and `opencode serve`
//! with the same load. The clients, the models and the server share the cores of this machine.

mod api_client;
mod load;
mod scripted_model;
mod target;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::json;

use crate::measure::{ResidentMemory, Samples, elapsed_ms};
use crate::table::BenchTable;
use api_client::ApiConnection;
use load::{FollowedSessions, LoadResult};
use scripted_model::ScriptedModel;
use target::{MeasuredServer, ServerKind, opencode_program};

/// What the column of the peer says without one.
const NO_PEER: &str = "opencode-ai is not installed";

/// Sessions that stream at once.
const STREAMING_SESSIONS: usize = 500;
/// Numbers of streaming sessions that are tried with the peer, until it takes one.
const PEER_SESSIONS: [usize; 5] = [500, 200, 100, 50, 20];
/// How long a load on the peer may take with one of these numbers.
const PEER_TIMEOUT: Duration = Duration::from_secs(120);
/// Sessions that are followed and do nothing.
const IDLE_SESSIONS: usize = 5000;
/// Sessions whose turns call a tool at [`TURNS_PER_SECOND`].
const CALLING_SESSIONS: usize = 200;
/// Turns per second that are started.
const TURNS_PER_SECOND: f64 = 100.0;
/// Sessions of the peer that call a tool as often as they can.
const PEER_CALLING_SESSIONS: usize = 16;

/// Maximum memory of an idle server, in megabytes.
const MAX_IDLE_MB: f64 = 40.0;
/// Maximum memory under each load, in megabytes.
const MAX_LOADED_MB: f64 = 1024.0;
/// Maximum time from a delta of the provider to that of the client, 99th percentile, in
/// milliseconds.
const MAX_DELTA_MS: f64 = 20.0;

pub(crate) fn measure(table: &mut BenchTable) -> Result<()> {
    raise_file_limit();
    block_on(async {
        measure_idle_memory(table).await?;
        measure_streaming(table).await?;
        measure_beside_peer(table).await?;
        measure_idle_sessions(table).await?;
        measure_turns(table).await
    })
}

/// `selvedge-bench server LOAD [SESSIONS]`: measures one load on `selvedge serve`, or on the peer
/// (`opencode-LOAD`).
pub(crate) fn main(load: &str, sessions: Option<&str>) -> Result<()> {
    raise_file_limit();
    let (kind, load) = match load.strip_prefix("opencode-") {
        Some(load) => (ServerKind::Opencode, load),
        None => (ServerKind::Selvedge, load),
    };
    let count = |default: usize| sessions.map_or(Ok(default), str::parse);
    let result = block_on(async {
        match load {
            "stream" => run_load(kind, count(STREAMING_SESSIONS)?, Load::Stream).await,
            "idle" => run_load(kind, count(IDLE_SESSIONS)?, Load::Idle).await,
            "turns" => {
                run_load(
                    kind,
                    count(CALLING_SESSIONS)?,
                    Load::Turns(TURNS_PER_SECOND),
                )
                .await
            }
            "calls" => run_load(kind, count(PEER_CALLING_SESSIONS)?, Load::BackToBack).await,
            _ => anyhow::bail!("loads: stream, idle, turns, calls"),
        }
    })?;
    println!(
        "{:.1} per second, {}, {}; idle {}",
        result.load.per_second,
        times(&result.load),
        cost(&result.load),
        memory(result.idle)
    );
    Ok(())
}

/// What the sessions of a load do.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Load {
    /// The answers of the model are streamed.
    Stream,
    /// The sessions have an open event stream only.
    Idle,
    /// Turns with one call each, at this rate.
    Turns(f64),
    /// Turns with one call each, as fast as possible.
    BackToBack,
}

/// A load, and the memory of the server before it.
struct MeasuredLoad {
    idle: ResidentMemory,
    load: LoadResult,
}

/// Starts a server, and puts a load on it.
async fn run_load(kind: ServerKind, sessions: usize, load: Load) -> Result<MeasuredLoad> {
    let model = ScriptedModel::start(kind.call_style()).await?;
    let server = MeasuredServer::start(kind, &model.url)?;
    // One turn, so that everything is loaded that every turn needs.
    FollowedSessions::create(&server, 1)
        .await?
        .run_turn()
        .await?;
    let idle = server.memory();
    let mut followed = FollowedSessions::create(&server, sessions).await?;
    let load = match load {
        Load::Stream => followed.stream(&model).await,
        Load::Idle => followed.stay_idle().await,
        Load::Turns(rate) => followed.run_turns(Some(rate)).await,
        Load::BackToBack => followed.run_turns(None).await,
    };
    Ok(MeasuredLoad { idle, load: load? })
}

/// Measures requests for documents with the default limit, in a folder with documents.
pub(crate) fn time_document_queries(work: &Path, rounds: usize) -> Result<Samples> {
    block_on(async {
        let server = MeasuredServer::start_in(work)?;
        let mut connection = ApiConnection::open(&server.api).await?;
        let body = json!({"query": {"kind": "issue", "status": "open"}}).to_string();
        let mut times = Samples::default();
        // The first query reads all documents.
        for round in 0..=rounds {
            let start = Instant::now();
            let request = connection.request("POST", "/api/v1/documents/query", &body);
            let found = request.await?;
            let time = elapsed_ms(start);
            let documents = found["documents"].as_array().map_or(0, Vec::len);
            anyhow::ensure!(documents > 0, "no documents were found");
            if round > 0 {
                times.extend([time]);
            }
        }
        Ok(times)
    })
}

async fn measure_idle_memory(table: &mut BenchTable) -> Result<()> {
    let memory_of = async |kind: ServerKind| {
        let model = ScriptedModel::start(kind.call_style()).await?;
        let server = MeasuredServer::start(kind, &model.url)?;
        let mut session = FollowedSessions::create(&server, 1).await?;
        let before = server.memory();
        session.run_turn().await?;
        anyhow::Ok((before, server.memory()))
    };
    let describe = |(before, after): (ResidentMemory, ResidentMemory)| {
        format!("{}; {} after a turn", memory(before), memory(after))
    };
    let ours = memory_of(ServerKind::Selvedge).await?;
    let peer = match opencode_program() {
        Some(_) => {
            let peer = memory_of(ServerKind::Opencode).await?;
            format!("opencode serve {}", describe(peer))
        }
        None => NO_PEER.to_owned(),
    };
    table.add_row(
        "idle memory of `selvedge serve`, with one session",
        describe(ours),
        &peer,
        &format!("≤ {MAX_IDLE_MB:.0} MB"),
        ours.0.proportional <= MAX_IDLE_MB,
    );
    Ok(())
}

async fn measure_streaming(table: &mut BenchTable) -> Result<()> {
    let MeasuredLoad { load, .. } =
        run_load(ServerKind::Selvedge, STREAMING_SESSIONS, Load::Stream).await?;
    table.add_row(
        "500 sessions stream 10 deltas per second each: provider's delta → client's delta",
        times(&load),
        "",
        &format!("p99 ≤ {MAX_DELTA_MS:.0} ms"),
        load.times.p99() <= MAX_DELTA_MS,
    );
    table.add_row(
        "memory and processor of the server meanwhile",
        cost(&load),
        "",
        "≤ 1 GB",
        load.cost.memory.proportional <= MAX_LOADED_MB,
    );
    Ok(())
}

/// Puts the load on both servers with the number of sessions that the peer takes.
async fn measure_beside_peer(table: &mut BenchTable) -> Result<()> {
    if opencode_program().is_none() {
        return Ok(());
    }
    let mut taken = None;
    for sessions in PEER_SESSIONS {
        let load = run_load(ServerKind::Opencode, sessions, Load::Stream);
        match tokio::time::timeout(PEER_TIMEOUT, load).await {
            Ok(Ok(peer)) => {
                taken = Some((sessions, peer));
                break;
            }
            Ok(Err(error)) => eprintln!("  opencode serve with {sessions} sessions: {error:#}"),
            Err(_) => eprintln!("  opencode serve with {sessions} sessions takes too long"),
        }
    }
    let Some((sessions, peer)) = taken else {
        let fewest = PEER_SESSIONS.into_iter().min().unwrap_or_default();
        eprintln!("  opencode serve does not take {fewest} sessions");
        return Ok(());
    };
    let ours = run_load(ServerKind::Selvedge, sessions, Load::Stream).await?;
    table.add_row(
        &format!("{sessions} streaming sessions, as many as the peer takes: added latency"),
        times(&ours.load),
        &format!(
            "opencode serve, one stream for all sessions: {}",
            times(&peer.load)
        ),
        "",
        true,
    );
    let per_session = |measured: &MeasuredLoad| {
        let added = measured.load.cost.memory.proportional - measured.idle.proportional;
        added / sessions as f64
    };
    let ratio = per_session(&ours) / per_session(&peer);
    let describe = |measured: &MeasuredLoad| {
        format!(
            "{:.2} MB more per session; {} in all",
            per_session(measured),
            cost(&measured.load)
        )
    };
    table.add_row(
        &format!("memory and processor with {sessions} streaming sessions"),
        describe(&ours),
        &format!("opencode serve {}: ratio {ratio:.2}", describe(&peer)),
        "≤ 1/3 of the memory per session",
        ratio <= 1.0 / 3.0,
    );
    Ok(())
}

async fn measure_idle_sessions(table: &mut BenchTable) -> Result<()> {
    let measured = run_load(ServerKind::Selvedge, IDLE_SESSIONS, Load::Idle).await?;
    let added = measured.load.cost.memory.proportional - measured.idle.proportional;
    table.add_row(
        "5,000 idle sessions, each with an open event stream; `/healthz`",
        format!(
            "{}, {:.0} KB per session; {}",
            cost(&measured.load),
            added * 1024.0 / IDLE_SESSIONS as f64,
            times(&measured.load)
        ),
        "",
        "≤ 1 GB",
        measured.load.cost.memory.proportional <= MAX_LOADED_MB,
    );
    Ok(())
}

async fn measure_turns(table: &mut BenchTable) -> Result<()> {
    let load = Load::Turns(TURNS_PER_SECOND);
    let ours = run_load(ServerKind::Selvedge, CALLING_SESSIONS, load).await?;
    let ours_at_once = run_load(
        ServerKind::Selvedge,
        PEER_CALLING_SESSIONS,
        Load::BackToBack,
    )
    .await?;
    let describe =
        |load: &LoadResult| format!("{:.0} per second, {}", load.per_second, times(load));
    table.add_row(
        "100 turns per second, each with a script that calls one tool",
        format!("{}; {}", describe(&ours.load), cost(&ours.load)),
        "",
        "≥ 99 per second",
        ours.load.per_second >= 0.99 * TURNS_PER_SECOND,
    );
    let peer = match opencode_program() {
        Some(_) => {
            let peer = run_load(
                ServerKind::Opencode,
                PEER_CALLING_SESSIONS,
                Load::BackToBack,
            )
            .await?;
            format!("opencode serve, structured call: {}", describe(&peer.load))
        }
        None => NO_PEER.to_owned(),
    };
    table.add_row(
        "such turns in 16 sessions, as fast as possible",
        describe(&ours_at_once.load),
        &peer,
        "",
        true,
    );
    Ok(())
}

fn times(load: &LoadResult) -> String {
    format!("{:.1} ms (p99 {:.1})", load.times.p50(), load.times.p99())
}

fn cost(load: &LoadResult) -> String {
    format!("{}, {:.2} cores", memory(load.cost.memory), load.cost.cores)
}

fn memory(memory: ResidentMemory) -> String {
    format!("{:.0} MB PSS", memory.proportional)
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

/// Lets this process and the servers open as many files as the system allows.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With fewer files, the loads fail with a message.
    let _ = setrlimit(Resource::Nofile, limit);
}
