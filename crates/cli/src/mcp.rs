//! `selvedge mcp serve`, `list` and `login`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures_util::FutureExt;
use selvedge_mcp::{
    ClientApprovals, ElicitationHandler, ElicitationRequest, ElicitationResponse, HttpAccess,
    HttpAuthentication, Login, LoginError, OpenSessions, ResumeRequestError, ScriptHttpServer,
    ScriptServerConfig, ScriptServerError, ServerRequestError, ServerRequestHandlers, ServerState,
    ServerStatus, serve_stdio,
};
use selvedge_protocol::LimitSurface;
use selvedge_script::{LiveRunLimits, LiveRuns, QuestionAnswer, RunQuestionKind, StoreBudget};
use selvedge_text::count_noun;

use crate::CliStatus;
use crate::journal::JournalNeed;
use crate::mcp_args::{McpCommand, McpLoginArgs, McpServeArgs, McpServerListArgs};
use crate::mcp_token::{TokenChoice, TokenSource, choose_token, token_variable};
use crate::output::{print_json_text, print_line};
use crate::problem::Problem;
use crate::run::runtime;
use crate::run_access::McpRunAccess;
use crate::saved_config::SavedRunConfig;
use crate::servers::wait_for_servers;
use crate::setup::CliSetup;
use crate::stop_signals::StopSignals;

/// Number of recent runs whose calls are counted, so that the description of `script` lists the
/// most used tools first.
const MAX_COUNTED_RUNS: u32 = 500;

pub(crate) fn mcp(command: McpCommand) -> Result<CliStatus> {
    match command {
        McpCommand::Serve(args) => serve(args),
        McpCommand::List(args) => list(args),
        McpCommand::Add(args) => crate::mcp_servers::add(&args),
        McpCommand::Remove(args) => crate::mcp_servers::remove(&args),
        McpCommand::Get(args) => crate::mcp_servers::get(&args),
        McpCommand::Login(args) => login(args),
        McpCommand::Install(args) => crate::mcp_install::install(args),
    }
}

fn serve(args: McpServeArgs) -> Result<CliStatus> {
    let http = match &args.http {
        Some(address) => Some((address.clone(), choose_token(&args)?)),
        None => None,
    };
    let live = LiveRuns::new(LiveRunLimits::default());
    let open_sessions = OpenSessions::default();
    let setup =
        CliSetup::new(&args.workspace)?.exclude_variable_from_commands(token_variable(&args))?;
    let mut setup = setup.with_journal(&args.workspace, JournalNeed::Optional)?;
    let client = http
        .as_ref()
        .map(|(_, token)| token.authentication.client_name());
    // Clients over HTTP have documents of their own.
    if let (Some(client), Some(journal)) = (&client, &setup.journal) {
        setup.toolbox.cabinet = journal.documents_of(client);
    }
    setup.mcp_run_access = Some(McpRunAccess {
        live_runs: live.clone(),
        open_sessions: open_sessions.clone(),
        http_client_name: client,
    });
    let setup = Arc::new(setup);
    // The client waits for each answer, so runs without calls are recorded after their answer.
    if let Some(journal) = &setup.journal {
        journal.enable_write_behind();
    }
    let forms = Arc::new(ClientElicitation(live.clone()));
    let servers = setup.servers(ServerRequestHandlers {
        elicitation: Some(forms),
        sampling: None,
    })?;
    let use_counts: HashMap<String, u64> = setup
        .journal
        .as_ref()
        .and_then(|journal| journal.tool_call_counts(MAX_COUNTED_RUNS).ok())
        .unwrap_or_default();
    let setup_to_resume = setup.clone();
    let config = Arc::new(ScriptServerConfig {
        harness: setup
            .harness(&args.limits, None)
            .with_surface(LimitSurface::Mcp),
        tools: setup.built_in_tools()?,
        servers: servers.clone(),
        live_runs: live.clone(),
        open_sessions,
        store_budget: StoreBudget::default(),
        approvals: client_approvals(&args),
        context: setup.script_context(),
        saved_config: serde_json::to_string(&SavedRunConfig::from_setup(
            &setup,
            &args.limits,
            Vec::new(),
        ))?,
        resume_input: Box::new(move |request| {
            let setup = setup_to_resume.clone();
            async move {
                let read = move || setup.resume_input_for_client(&request);
                let resume = tokio::task::spawn_blocking(read).await;
                resume
                    .unwrap_or_else(|error| Err(error.into()))
                    .map_err(|error| ResumeRequestError(error.to_string()))
            }
            .boxed()
        }),
        use_count: Box::new(move |tool| use_counts.get(tool).copied().unwrap_or(0)),
        default_yield_after: args.yield_after,
        description_tokens: args.description_tokens,
    });
    // Two threads: while a script blocks one, the other can interrupt it.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let served = runtime.block_on(async {
        let mut signals = StopSignals::listen()
            .map_err(|error| Problem::new(format!("cannot receive signals: {error}")))?;
        let stop = async move {
            signals.next().await;
        };
        let served = match http {
            None => serve_stdio(config, stop)
                .await
                .map_err(|error| Problem::new(format!("cannot serve: {error}"))),
            Some((address, token)) => {
                serve_http(&address, token, args.allow_host.clone(), config, stop).await
            }
        };
        live.cancel_all().await;
        servers.stop().await;
        if let Some(tasks) = &setup.tasks {
            tasks.end().await;
        }
        served
    });
    runtime.shutdown_background();
    setup.flush_journal_and_apply_retention()?;
    served?;
    Ok(CliStatus::Success)
}

/// Over standard input and output the client is the user's own agent. Over HTTP it approves only if
/// the user lets it.
fn client_approvals(args: &McpServeArgs) -> ClientApprovals {
    match args.http.is_none() || args.client_approves {
        true => ClientApprovals::Asked,
        false => ClientApprovals::Denied {
            reason: "clients of this server cannot approve calls; its owner can start it with \
                --client-approves"
                .to_owned(),
        },
    }
}

async fn serve_http(
    address: &str,
    token: TokenChoice,
    allowed_hosts: Vec<String>,
    config: Arc<ScriptServerConfig>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Problem> {
    let access = HttpAccess {
        authentication: token.authentication.clone(),
        allowed_hosts,
    };
    let server = ScriptHttpServer::bind(address, access, config)
        .await
        .map_err(|error| {
            let hint = match &error {
                ScriptServerError::TokenRequired(_) => {
                    "remove --no-token, or pass --http 127.0.0.1:8765"
                }
                _ => "pass an address such as --http 127.0.0.1:8765",
            };
            Problem::new(error.to_string()).hint(hint)
        })?;
    if let (TokenSource::Generated, HttpAuthentication::Token(random)) =
        (token.source, &token.authentication)
    {
        eprint_line!("note: clients must send this token, which is new for each start:");
        eprint_line!("Authorization: Bearer {random}");
    }
    eprint_line!("serving at http://{}/mcp", server.local_addr());
    server.run(stop).await;
    Ok(())
}

/// Passes elicitation requests of servers to the client that waits for the calling script.
struct ClientElicitation(LiveRuns);

impl ElicitationHandler for ClientElicitation {
    fn elicit<'a>(
        &'a self,
        elicitation: &'a ElicitationRequest,
    ) -> futures_util::future::BoxFuture<'a, Result<ElicitationResponse, ServerRequestError>> {
        let unavailable = |why: &str| ServerRequestError::Unavailable(why.to_owned());
        Box::pin(async move {
            let run = elicitation
                .scope_id
                .as_ref()
                .ok_or_else(|| unavailable("calls of several runs are in flight"))?;
            let form = RunQuestionKind::Form {
                server: elicitation.server.clone(),
                form: elicitation.request.clone(),
            };
            Ok(match self.0.ask(run, form).await {
                Some(QuestionAnswer::Form(answer)) => match answer["action"].as_str() {
                    Some("accept") => ElicitationResponse::Accepted(answer["content"].clone()),
                    Some("cancel") => ElicitationResponse::Cancelled,
                    _ => ElicitationResponse::Declined,
                },
                _ => return Err(unavailable("no client waits for this script")),
            })
        })
    }
}

/// The hint where no MCP server is configured.
pub(crate) const ADD_SERVER_HINT: &str = "run `selvedge mcp add NAME -- PROGRAM` to add one";

fn login(args: McpLoginArgs) -> Result<CliStatus> {
    const LOGIN_TIMEOUT: Duration = Duration::from_secs(600);
    let setup = CliSetup::new(&args.workspace)?;
    let settings = setup.server_settings()?;
    let Some(server) = settings.iter().find(|server| server.name == args.server) else {
        let names: Vec<&str> = settings.iter().map(|server| server.name.as_str()).collect();
        let problem = Problem::new(format!("there is no MCP server `{}`", args.server));
        let hint = match names.is_empty() {
            true => ADD_SERVER_HINT.to_owned(),
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
        let login = Login::start(server, &home.join("mcp"))
            .await
            .map_err(problem)?;
        eprint_line!("open this URL to log in to {}:", args.server);
        print_line(login.authorization_url())?;
        login.finish(LOGIN_TIMEOUT).await.map_err(problem)?;
        eprint_line!("logged in to {}", args.server);
        Ok(CliStatus::Success)
    })
}

fn list(args: McpServerListArgs) -> Result<CliStatus> {
    let setup = CliSetup::new(&args.workspace)?;
    let servers = setup.servers(ServerRequestHandlers::default())?;
    let status = runtime()?.block_on(async {
        let status = wait_for_servers(&servers, servers.start_and_check()).await;
        servers.stop().await;
        status
    });
    if args.json {
        print_json_text(&serde_json::to_string_pretty(&status)?)?;
    } else if status.is_empty() {
        eprint_line!("note: no MCP servers are configured");
        eprint_line!("hint: {ADD_SERVER_HINT}");
    } else {
        for server in &status {
            print_server(server, args.tools)?;
        }
    }
    let all_ok = status
        .iter()
        .all(|server| matches!(server.state, ServerState::Ready | ServerState::Disabled));
    Ok(if all_ok {
        CliStatus::Success
    } else {
        CliStatus::Failed
    })
}

fn print_server(server: &ServerStatus, every_tool: bool) -> Result<()> {
    let mark = match server.state {
        ServerState::Ready => "✓",
        ServerState::Disabled => "–",
        _ => "✗",
    };
    let ms = |time: Option<f64>| time.map(|time| format!("{time:.0} ms"));
    let facts: Vec<String> = [
        Some(server.state.as_str().to_owned()),
        (server.state == ServerState::Ready).then(|| count_noun(server.tools.len(), "tool")),
        ms(server.start_ms).map(|time| format!("started in {time}")),
        ms(server.latency_ms).map(|time| format!("responds in {time}")),
        server.identity.clone(),
    ]
    .into_iter()
    .flatten()
    .collect();
    print_line(&format!("{mark} {:<16} {}", server.name, facts.join(", ")))?;
    for note in server.reason.iter().chain(&server.notes) {
        print_line(&format!("    {note}"))?;
    }
    if let Some(hint) = &server.hint {
        print_line(&format!("    hint: {hint}"))?;
    }
    if every_tool {
        for tool in &server.tools {
            print_line(&format!("    {tool}"))?;
        }
    }
    Ok(())
}
