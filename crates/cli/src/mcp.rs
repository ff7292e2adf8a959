//! `selvedge mcp serve` and `list`.

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

/// Runs that are looked at to see which tools are used.
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
    // A client waits for each answer, so runs that made no call are recorded after it.
    if let Some(journal) = &setup.journal {
        journal.write_behind();
    }
    let live = LiveRuns::new(LiveLimits::default());
    let forms = Arc::new(ThroughTheClient(live.clone()));
    let servers = setup.servers(Asked {
        person: Some(forms),
        model: None,
    })?;
    let used: HashMap<String, u64> = setup
        .journal
        .as_ref()
        .and_then(|journal| journal.uses(RECENT_RUNS).ok())
        .unwrap_or_default();
    let earlier = setup.clone();
    let offer = Arc::new(Offer {
        harness: setup.harness(&args.limits, None),
        tools: setup.all_tools()?,
        servers: servers.clone(),
        live: live.clone(),
        facts: setup.facts(),
        setting: serde_json::to_string(&Setting::new(&setup, &args.limits, Vec::new()))?,
        earlier: Box::new(move |run| {
            let setup = earlier.clone();
            async move {
                let found = tokio::task::spawn_blocking(move || setup.resume_whole(&run)).await;
                found
                    .unwrap_or_else(|error| Err(error.into()))
                    .map_err(|error| ServeError::NotResumable(error.to_string()))
            }
            .boxed()
        }),
        uses: Box::new(move |tool| used.get(tool).copied().unwrap_or(0)),
        patience: args.patience,
        budget: args.description_tokens,
    });
    // Two threads: one that a script holds leaves the other to take control back.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let served = runtime.block_on(async {
        let served = match &args.http {
            None => serve_stdio(offer, stopped())
                .await
                .map_err(|why| Problem::new(format!("cannot serve: {why}"))),
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
                    "put a long random token into {}, or serve at 127.0.0.1",
                    args.token_env
                ),
                _ => "give an address such as 127.0.0.1:8765".to_owned(),
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

/// Servers' forms go to whoever waits for the script that called them.
struct ThroughTheClient(LiveRuns);

impl AskPerson for ThroughTheClient {
    fn elicit<'a>(
        &'a self,
        wanted: &'a Elicitation,
    ) -> futures_util::future::BoxFuture<'a, Result<Elicited, AskError>> {
        let unavailable = |why: &str| AskError::Unavailable(why.to_owned());
        Box::pin(async move {
            let run = wanted
                .run
                .as_ref()
                .ok_or_else(|| unavailable("it cannot be told on whose behalf"))?;
            let form = QuestionKind::Form {
                from: wanted.server.clone(),
                form: wanted.request.clone(),
            };
            Ok(match self.0.ask(run, form).await {
                Some(Reply::Form(answer)) => match answer["action"].as_str() {
                    Some("accept") => Elicited::Accepted(answer["content"].clone()),
                    Some("cancel") => Elicited::Cancelled,
                    _ => Elicited::Declined,
                },
                _ => return Err(unavailable("nobody waits for this script")),
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
        return Err(problem
            .hint(format!("there are: {}", names.join(", ")))
            .into());
    };
    let Some(home) = &setup.home else {
        return Err(Problem::new("there is no place to remember a login")
            .hint("set SELVEDGE_HOME")
            .into());
    };
    let problem = |error: LoginError| {
        Problem::new(error.to_string()).hint("a bearer token does, too: bearer_token_env_var")
    };
    runtime()?.block_on(async {
        let login = Login::begin(server, &home.join("mcp"))
            .await
            .map_err(problem)?;
        tell!("open this to log in to {}:", args.server);
        line(login.address())?;
        login.finish(PATIENCE).await.map_err(problem)?;
        tell!("logged in");
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
        tell!("hint: docs/mcp.md says how to add one");
    } else {
        for server in &status {
            show(server, args.tools)?;
        }
    }
    let well = status
        .iter()
        .all(|server| matches!(server.state, ServerState::Ready | ServerState::Disabled));
    Ok(if well { Exit::Done } else { Exit::Failed })
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
        ms(server.latency_ms).map(|time| format!("answers in {time}")),
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
    for words in server.why.iter().chain(&server.notes) {
        line(&format!("    {}", harmless(words)))?;
    }
    if every_tool {
        for tool in &server.tools {
            line(&format!("    {}", harmless(tool)))?;
        }
    }
    Ok(())
}
