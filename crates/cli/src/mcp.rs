//! `selvedge mcp serve`, `list` and `login`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures_util::FutureExt;
use selvedge_mcp::{
    AskError, AskPerson, Asked, Elicitation, Elicited, Entrance, HttpServer, Login, LoginError,
    Offer, ServeError, ServerState, ServerStatus, serve_stdio,
};
use selvedge_script::{LiveLimits, LiveRuns, QuestionKind, Reply};

use crate::Exit;
use crate::mcp_args::{ListArgs, LoginArgs, McpCommand, ServeArgs};
use crate::out::{harmless, line};
use crate::problem::Problem;
use crate::run::{runtime, told_to_stop};
use crate::setting::Setting;
use crate::setup::Setup;

/// Number of recent runs whose tools are listed first in the description of `script`.
const RECENT_RUNS: u32 = 500;

pub(crate) fn mcp(command: McpCommand) -> Result<Exit> {
    match command {
        McpCommand::Serve(args) => serve(args),
        McpCommand::List(args) => list(args),
        McpCommand::Login(args) => login(args),
        McpCommand::Install(args) => crate::mcp_install::install(args),
    }
}

fn serve(args: ServeArgs) -> Result<Exit> {
    let setup = Setup::new(&args.place)?.without_variable(&args.token_env)?;
    let setup = Arc::new(setup.with_journal(&args.place)?);
    // The client waits for each answer, so runs without calls are recorded after their answer.
    if let Some(journal) = &setup.journal {
        journal.write_behind();
    }
    let live = LiveRuns::new(LiveLimits::default());
    let forms = Arc::new(ThroughTheClient(live.clone()));
    let servers = setup.servers(Asked {
        person: Some(forms),
        model: None,
    })?;
    let use_counts: HashMap<String, u64> = setup
        .journal
        .as_ref()
        .and_then(|journal| journal.uses(RECENT_RUNS).ok())
        .unwrap_or_default();
    let setup_to_resume = setup.clone();
    let offer = Arc::new(Offer {
        harness: setup.harness(&args.limits, None),
        tools: setup.all_tools()?,
        servers: servers.clone(),
        live: live.clone(),
        facts: setup.facts(),
        setting: serde_json::to_string(&Setting::new(&setup, &args.limits, Vec::new()))?,
        earlier: Box::new(move |run| {
            let setup = setup_to_resume.clone();
            async move {
                let resume = tokio::task::spawn_blocking(move || setup.resume_whole(&run)).await;
                resume
                    .unwrap_or_else(|error| Err(error.into()))
                    .map_err(|error| ServeError::NotResumable(error.to_string()))
            }
            .boxed()
        }),
        uses: Box::new(move |tool| use_counts.get(tool).copied().unwrap_or(0)),
        patience: args.patience,
        budget: args.description_tokens,
    });
    // Two threads: while a script blocks one, the other can interrupt it.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let served = runtime.block_on(async {
        let served = match &args.http {
            None => serve_stdio(offer, stopped())
                .await
                .map_err(|error| Problem::new(format!("cannot serve: {error}"))),
            Some(address) => serve_http(address, &args, offer).await,
        };
        live.stop_all().await;
        servers.stop().await;
        if let Some(tasks) = &setup.tasks {
            tasks.end().await;
        }
        served
    });
    runtime.shutdown_background();
    setup.close_journal()?;
    served?;
    Ok(Exit::Done)
}

async fn serve_http(address: &str, args: &ServeArgs, offer: Arc<Offer>) -> Result<(), Problem> {
    let token = std::env::var(&args.token_env)
        .ok()
        .filter(|token| !token.is_empty());
    let entrance = Entrance {
        token,
        hosts: args.allow_host.clone(),
    };
    let server = HttpServer::at(address, entrance, offer)
        .await
        .map_err(|error| {
            let hint = match &error {
                ServeError::Open(_) => format!(
                    "set {} to a long random token, or pass --http 127.0.0.1:8765",
                    args.token_env
                ),
                _ => "pass an address such as --http 127.0.0.1:8765".to_owned(),
            };
            Problem::new(error.to_string()).hint(hint)
        })?;
    tell!("serving at http://{}/mcp", server.address());
    server
        .run(stopped())
        .await
        .map_err(|error| Problem::new(error.to_string()))
}

async fn stopped() {
    told_to_stop().await;
}

/// Passes elicitation requests of servers to the client that waits for the calling script.
struct ThroughTheClient(LiveRuns);

impl AskPerson for ThroughTheClient {
    fn elicit<'a>(
        &'a self,
        elicitation: &'a Elicitation,
    ) -> futures_util::future::BoxFuture<'a, Result<Elicited, AskError>> {
        let unavailable = |why: &str| AskError::Unavailable(why.to_owned());
        Box::pin(async move {
            let run = elicitation
                .run
                .as_ref()
                .ok_or_else(|| unavailable("calls of several runs are in flight"))?;
            let form = QuestionKind::Form {
                from: elicitation.server.clone(),
                form: elicitation.request.clone(),
            };
            Ok(match self.0.ask(run, form).await {
                Some(Reply::Form(answer)) => match answer["action"].as_str() {
                    Some("accept") => Elicited::Accepted(answer["content"].clone()),
                    Some("cancel") => Elicited::Cancelled,
                    _ => Elicited::Declined,
                },
                _ => return Err(unavailable("no client waits for this script")),
            })
        })
    }
}

fn login(args: LoginArgs) -> Result<Exit> {
    const PATIENCE: Duration = Duration::from_secs(600);
    let setup = Setup::new(&args.place)?;
    let settings = setup.server_settings()?;
    let Some(server) = settings.iter().find(|server| server.name == args.server) else {
        let names: Vec<&str> = settings.iter().map(|server| server.name.as_str()).collect();
        let problem = Problem::new(format!("there is no MCP server `{}`", args.server));
        let hint = match names.is_empty() {
            true => "add one to config.toml; see docs/mcp.md".to_owned(),
            false => format!("use one of {}", names.join(", ")),
        };
        return Err(problem.hint(hint).into());
    };
    let Some(home) = &setup.home else {
        return Err(
            Problem::new("cannot find the home folder to store the login")
                .hint("set SELVEDGE_HOME")
                .into(),
        );
    };
    let problem = |error: LoginError| {
        let problem = Problem::new(error.to_string());
        match error {
            LoginError::Failed { .. } => {
                problem.hint("set `bearer_token_env_var` of the server in config.toml")
            }
            _ => problem,
        }
    };
    runtime()?.block_on(async {
        let login = Login::begin(server, &home.join("mcp"))
            .await
            .map_err(problem)?;
        tell!("open this URL to log in to {}:", args.server);
        line(login.address())?;
        login.finish(PATIENCE).await.map_err(problem)?;
        tell!("logged in to {}", args.server);
        Ok(Exit::Done)
    })
}

fn list(args: ListArgs) -> Result<Exit> {
    let setup = Setup::new(&args.place)?;
    let servers = setup.servers(Asked::default())?;
    let status = runtime()?.block_on(async {
        let status = servers.try_out().await;
        servers.stop().await;
        status
    });
    if args.json {
        line(&serde_json::to_string_pretty(&status)?)?;
    } else if status.is_empty() {
        tell!("note: no MCP servers are configured");
        tell!("hint: add one to config.toml; see docs/mcp.md");
    } else {
        for server in &status {
            show(server, args.tools)?;
        }
    }
    let all_ok = status
        .iter()
        .all(|server| matches!(server.state, ServerState::Ready | ServerState::Disabled));
    Ok(if all_ok { Exit::Done } else { Exit::Failed })
}

fn show(server: &ServerStatus, every_tool: bool) -> Result<()> {
    let mark = match server.state {
        ServerState::Ready => "✓",
        ServerState::Disabled => "–",
        _ => "✗",
    };
    let ms = |time: Option<f64>| time.map(|time| format!("{time:.0} ms"));
    let facts: Vec<String> = [
        Some(server.state.as_str().to_owned()),
        (server.state == ServerState::Ready).then(|| format!("{} tools", server.tools.len())),
        ms(server.start_ms).map(|time| format!("started in {time}")),
        ms(server.latency_ms).map(|time| format!("responds in {time}")),
        server.identity.clone(),
    ]
    .into_iter()
    .flatten()
    .collect();
    line(&format!(
        "{mark} {:<16} {}",
        harmless(&server.name),
        harmless(&facts.join(", "))
    ))?;
    for note in server.why.iter().chain(&server.notes) {
        line(&format!("    {}", harmless(note)))?;
    }
    if every_tool {
        for tool in &server.tools {
            line(&format!("    {}", harmless(tool)))?;
        }
    }
    Ok(())
}
