//! `selvedge serve`: the agent server.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use anyhow::Result;
use selvedge_config::{Config, JournalSettings, UserFile};
use selvedge_http::{HttpBindError, TlsError, TlsSettings, TrustedProxies, host_of_url};
use selvedge_protocol::{ApiTokenStore, since_epoch};
use selvedge_server::{
    AgentServer, ServerLimits, ServerNetwork, ServerStores, TokenSecret, openapi_json,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::CliStatus;
use crate::distill_schedule::distill_in_server;
use crate::log::reopen_log;
use crate::output::{print_line, print_text};
use crate::problem::Problem;
use crate::programs::{ServedWorkspaces, watch_served_workspaces};
use crate::run::runtime;
use crate::runs::open_user_journal;
use crate::serve_args::{LoginArgs, ServeArgs, ServeCommand};
use crate::serve_host::JournalHost;
use crate::serve_tokens::{store_problem, tokens};
use crate::setup::load_user_configuration;

/// How long a login URL works.
const LOGIN_TIME: Duration = Duration::from_secs(10 * 60);
/// Address of a server that was started without flags.
const DEFAULT_URL: &str = "http://127.0.0.1:7420";
/// Stack of a thread that runs turns, in bytes: as large as that of the main thread.
const THREAD_STACK_BYTES: usize = 8 << 20;
/// How often the server looks whether old runs are to be removed.
const RETENTION_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// The certificate of the server, and the files it came from.
#[cfg_attr(not(unix), allow(dead_code))]
struct ServerTls {
    settings: TlsSettings,
    certificate: PathBuf,
    key: PathBuf,
}

pub(crate) fn serve(mut args: ServeArgs) -> Result<CliStatus> {
    match args.command.take() {
        Some(ServeCommand::Token(command)) => tokens(command),
        Some(ServeCommand::Login(args)) => print_login(&args),
        Some(ServeCommand::Openapi) => {
            print_text(&openapi_json())?;
            Ok(CliStatus::Success)
        }
        None => serve_api(&args),
    }
}

fn serve_api(args: &ServeArgs) -> Result<CliStatus> {
    let home = selvedge_config::home().ok_or_else(|| {
        Problem::new("cannot find the home folder").hint("set SELVEDGE_HOME to a folder")
    })?;
    let config = load_user_configuration(Some(&home))?;
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(ServerTls {
            settings: TlsSettings::from_files(certificate, key)
                .map_err(|error| tls_problem(&error))?,
            certificate: certificate.clone(),
            key: key.clone(),
        }),
        _ => None,
    };
    let journal = crate::journal::open_waiting_journal(&home, &config.journal)?;
    let requests = crate::journal::open_journal(&home, &config.journal)?;
    let reader = crate::journal::open_journal_read_only(&home, &config.journal)?;
    let stores = ServerStores {
        events: journal.clone(),
        sessions: requests.clone(),
        queues: requests.clone(),
        channels: requests.clone(),
        tokens: requests.clone(),
        replies: requests.clone(),
        deciders: requests.clone(),
        leases: journal.has_leases().then(|| journal.clone() as _),
        approvals: journal.has_leases().then(|| journal.clone() as _),
    };
    let user_file = UserFile::read(&home)?;
    let host = JournalHost::new(
        journal.clone(),
        requests.clone(),
        reader,
        user_file,
        config.clone(),
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_stack_size(THREAD_STACK_BYTES)
        .enable_all()
        .build()?;
    let served = runtime.block_on(serve_until_stopped(
        args,
        &home,
        &config,
        tls,
        stores,
        Arc::new(host),
    ));
    runtime.shutdown_background();
    for journal in [journal, requests] {
        journal
            .flush()
            .map_err(|error| crate::runs::journal_error_problem(&error))?;
    }
    served?;
    Ok(CliStatus::Success)
}

async fn serve_until_stopped(
    args: &ServeArgs,
    home: &Path,
    config: &Config,
    tls: Option<ServerTls>,
    stores: ServerStores,
    host: Arc<JournalHost>,
) -> Result<()> {
    let settings = &config.serve;
    let journal_settings = config.journal.clone();
    let tokens = stores.tokens.clone();
    check_tokens(ServedWorkspaces::serve(tokens.clone())).await?;
    let limits = ServerLimits {
        concurrent_turns: settings.max_concurrent_turns as usize,
        queued_turns: settings.max_queued_turns,
        sessions: settings.max_sessions,
        connections: settings.max_connections as usize,
        request_bytes: settings.max_request_bytes as usize,
    };
    let allowed_hosts = match &settings.public_url {
        Some(url) => vec![host_of_url(url).ok_or_else(|| {
            Problem::new(format!("serve.public_url is not a URL: {url}"))
                .hint("set it to a URL such as https://agents.example")
        })?],
        None => Vec::new(),
    };
    let proxies = settings.trusted_proxies.iter().map(String::as_str);
    let is_https = |url: &&String| url.to_lowercase().starts_with("https://");
    let network = ServerNetwork {
        public_tls_host: settings
            .public_url
            .as_ref()
            .filter(is_https)
            .and(allowed_hosts.first().cloned()),
        allowed_hosts,
        trusted_proxies: TrustedProxies::parse(proxies).map_err(|error| {
            Problem::new(format!("serve.trusted_proxies: {error}"))
                .hint("set it to addresses such as [\"10.0.0.1\", \"10.1.0.0/16\"]")
        })?,
    };
    let server = AgentServer::bind(&args.addr, network, stores, host.clone(), limits).await;
    let mut server = server.map_err(|error| bind_problem(&error))?;
    let address = server.local_addr();
    if !address.ip().is_loopback() && tls.is_none() && !args.insecure {
        let message = format!("{address} can be reached from other machines, which requires TLS");
        return Err(Problem::new(message)
            .hint("pass --tls-cert FILE --tls-key FILE, or --insecure behind a proxy with TLS")
            .into());
    }
    let scheme = if tls.is_some() { "https" } else { "http" };
    if let Some(tls) = &tls {
        server = server.with_tls(tls.settings.clone());
    }
    // Signals are received before the address is printed, so that none is lost.
    let mut stop_signals = stop_signals()?;
    let reload_on_hangup = reload_on_hangup(host.clone(), tls)?;
    let base = settings.public_url.clone();
    let base = base.unwrap_or_else(|| format!("{scheme}://{address}"));
    eprint_line!("serving at {scheme}://{address}");
    // Agents may be able to read a log.
    if std::io::stderr().is_terminal() {
        let login = login_url(&*tokens, &base).await?;
        let minutes = LOGIN_TIME.as_secs() / 60;
        eprint_line!("note: log in once within {minutes} minutes: {login}");
    } else {
        eprint_line!("note: run `selvedge serve login` to log in with a browser");
    }
    let unused = host.clone();
    let background = [
        tokio::spawn(reload_on_hangup),
        tokio::spawn(async move { unused.drop_unused_workspaces().await }),
        tokio::spawn(watch_served_workspaces()),
        tokio::spawn(apply_retention_daily(home.to_owned(), journal_settings)),
        tokio::spawn(distill_in_server(host)),
    ];
    let drain_timeout = Duration::from_millis(settings.drain_timeout_ms.into());
    let mut second_signal = stop_signals.clone();
    let stopping = async {
        let _ = stop_signals.wait_for(|count| *count > 0).await;
        eprint_line!("note: stopping; turns that run have {drain_timeout:?} to end");
    };
    let stop_now = async { _ = second_signal.wait_for(|count| *count > 1).await };
    server.run(stopping, drain_timeout, stop_now).await;
    background.iter().for_each(JoinHandle::abort);
    eprint_line!("note: stopped; the next start continues open turns");
    Ok(())
}

/// Prints a URL with which a browser can log in once at a running server.
fn print_login(args: &LoginArgs) -> Result<CliStatus> {
    let config = load_user_configuration(selvedge_config::home().as_deref())?;
    let base = args.url.clone().or(config.serve.public_url);
    let base = base.unwrap_or_else(|| DEFAULT_URL.to_owned());
    let journal = open_user_journal()?;
    print_line(&runtime()?.block_on(login_url(&*journal, &base))?)?;
    Ok(CliStatus::Success)
}

/// Returns a URL with which a browser can log in once, within [`LOGIN_TIME`].
async fn login_url(store: &dyn ApiTokenStore, base: &str) -> Result<String, Problem> {
    let secret = TokenSecret::random().map_err(|error| Problem::new(error.to_string()))?;
    let expires = (since_epoch() + LOGIN_TIME).as_millis() as i64;
    let created = store.create_login(secret.hash(), expires).await;
    created.map_err(|error| store_problem(&error))?;
    let base = base.trim_end_matches('/');
    Ok(format!("{base}/login?code={}", secret.reveal()))
}

/// Removes expired documents and old runs from the journal once a day, as other commands do when
/// they end.
async fn apply_retention_daily(home: PathBuf, settings: JournalSettings) {
    loop {
        let (home, settings) = (home.clone(), settings.clone());
        let apply = move || {
            if !crate::journal::begin_retention_if_due(&home) {
                return Ok(());
            }
            // Its own handle, so that requests do not wait for it.
            let journal = crate::journal::open_journal(&home, &settings)?;
            journal.apply_retention_while_in_use(&settings.retention)?;
            anyhow::Ok(())
        };
        if let Ok(Err(error)) = tokio::task::spawn_blocking(apply).await {
            tracing::error!(error = format!("{error:#}"), "cannot remove old runs");
        }
        tokio::time::sleep(RETENTION_CHECK_INTERVAL).await;
    }
}

/// Fails if no token can be used, because the server would then refuse every request.
async fn check_tokens(served: &ServedWorkspaces) -> Result<(), Problem> {
    let valid = served.valid_tokens().await;
    let valid = valid.map_err(|error| store_problem(&error))?;
    if valid.is_empty() {
        let problem = Problem::new("there is no valid token, so no client can use the server");
        return Err(problem.hint("run `selvedge serve token create`"));
    }
    let mut workspaces = valid.iter().flat_map(|token| &token.workspaces);
    match workspaces.find_map(|workspace| path_folder_in(Path::new(workspace))) {
        None => Ok(()),
        Some(folder) => Err(Problem::new(format!(
            "PATH has {}, in which agents could replace the programs of MCP servers",
            folder.display()
        ))
        .hint("run `PATH=/usr/local/bin:/usr/bin:/bin selvedge serve`")),
    }
}

/// The folders of `PATH`, and those that their links lead to.
static PATH_FOLDERS: LazyLock<Vec<PathBuf>> = LazyLock::new(|| {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path);
    let with_target = |folder: PathBuf| {
        let target = folder.canonicalize().ok();
        std::iter::once(folder).chain(target)
    };
    folders.flat_map(with_target).collect()
});

/// Returns the first folder of `PATH` that lies in a workspace, which is a path without links.
pub(crate) fn path_folder_in(workspace: &Path) -> Option<&'static Path> {
    let mut folders = PATH_FOLDERS.iter().map(PathBuf::as_path);
    folders.find(|folder| folder.starts_with(workspace))
}

fn bind_problem(error: &HttpBindError) -> Problem {
    let hint = match error.error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "stop the other program, or pass a free port such as --addr 127.0.0.1:0"
        }
        _ => "pass an address such as --addr 127.0.0.1:7420",
    };
    Problem::new(error.to_string()).hint(hint)
}

fn tls_problem(error: &TlsError) -> Problem {
    let hint = match error {
        TlsError::Certificate { .. } => "pass the certificate that belongs to the key",
        _ => "pass readable PEM files with --tls-cert and --tls-key",
    };
    Problem::new(error.to_string()).hint(hint)
}

/// Receives SIGINT and SIGTERM from now on, and returns their number so far.
#[cfg(unix)]
fn stop_signals() -> std::io::Result<watch::Receiver<u32>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (sender, count) = watch::channel(0);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            sender.send_modify(|count| *count += 1);
        }
    });
    Ok(count)
}

/// Receives interrupts (Ctrl-C) from now on, and returns their number so far.
#[cfg(not(unix))]
fn stop_signals() -> std::io::Result<watch::Receiver<u32>> {
    let (sender, count) = watch::channel(0);
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            sender.send_modify(|count| *count += 1);
        }
    });
    Ok(count)
}

/// Receives SIGHUP from now on. After each one, the future reads the configuration and the
/// certificate again, and opens the log again.
#[cfg(unix)]
fn reload_on_hangup(
    host: Arc<JournalHost>,
    tls: Option<ServerTls>,
) -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangups = signal(SignalKind::hangup())?;
    Ok(async move {
        while hangups.recv().await.is_some() {
            reopen_log();
            match host.reload() {
                Ok(()) => eprint_line!("note: new turns use the configuration as it is now"),
                Err(error) => {
                    let problem = Problem::from_error(&error);
                    eprint_line!("warning: the configuration stays as it was: {problem}");
                }
            }
            if let Some(tls) = &tls
                && let Err(error) = tls.settings.reload(&tls.certificate, &tls.key)
            {
                eprint_line!("warning: the certificate stays as it was: {error}");
            }
        }
    })
}

/// Does nothing: other systems have no such signal.
#[cfg(not(unix))]
fn reload_on_hangup(
    _: Arc<JournalHost>,
    _: Option<ServerTls>,
) -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {})
}
