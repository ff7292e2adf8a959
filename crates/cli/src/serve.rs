//! `selvedge serve`: the agent server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use selvedge_config::{Config, JournalSettings};
use selvedge_http::{HttpBindError, TlsError, TlsSettings, host_of_url};
use selvedge_journal::Journal;
use selvedge_protocol::{ApiTokenStore, since_epoch};
use selvedge_server::{AgentServer, ServerLimits, ServerStores, openapi_json};
use tokio::task::JoinHandle;

use crate::CliStatus;
use crate::log::reopen_log;
use crate::output::print_text;
use crate::problem::Problem;
use crate::serve_args::{ServeArgs, ServeCommand};
use crate::serve_host::JournalHost;
use crate::serve_memory::distill_idle_sessions;
use crate::serve_tokens::{store_problem, tokens};
use crate::setup::{begin_retention_if_due, load_user_configuration};

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
    let journal = crate::journal::open_journal(&home, &config.journal)?;
    let reader = crate::journal::open_journal_read_only(&home, &config.journal)?;
    let host = Arc::new(JournalHost::new(journal.clone(), reader));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_stack_size(THREAD_STACK_BYTES)
        .enable_all()
        .build()?;
    let served = runtime.block_on(serve_until_stopped(
        args, &home, &config, tls, &journal, host,
    ));
    runtime.shutdown_background();
    journal
        .flush()
        .map_err(|error| crate::runs::journal_error_problem(&error))?;
    served?;
    Ok(CliStatus::Success)
}

async fn serve_until_stopped(
    args: &ServeArgs,
    home: &Path,
    config: &Config,
    tls: Option<ServerTls>,
    journal: &Arc<Journal>,
    host: Arc<JournalHost>,
) -> Result<()> {
    let settings = &config.serve;
    let journal_settings = config.journal.clone();
    check_tokens(journal).await?;
    let stores = ServerStores {
        sessions: journal.clone(),
        queues: journal.clone(),
        events: journal.clone(),
        channels: journal.clone(),
        tokens: journal.clone(),
        replies: journal.clone(),
        deciders: journal.clone(),
    };
    let limits = ServerLimits {
        concurrent_turns: settings.max_concurrent_turns as usize,
        queued_turns: settings.max_queued_turns,
        request_bytes: settings.max_request_bytes as usize,
    };
    let hosts = match &settings.public_url {
        Some(url) => vec![host_of_url(url).ok_or_else(|| {
            Problem::new(format!("serve.public_url is not a URL: {url}"))
                .hint("set it to a URL such as https://agents.example")
        })?],
        None => Vec::new(),
    };
    let server = AgentServer::bind(&args.addr, hosts, stores, host.clone(), limits).await;
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
    eprint_line!("serving at {scheme}://{address}");
    let background = [
        tokio::spawn(reload_on_hangup(host.clone(), tls)),
        tokio::spawn(apply_retention_daily(home.to_owned(), journal_settings)),
        tokio::spawn(distill_idle_sessions(host)),
    ];
    let drain_timeout = Duration::from_millis(settings.drain_timeout_ms.into());
    let stopping = async {
        stop_requested().await;
        eprint_line!("note: stopping; turns that run have {drain_timeout:?} to end");
    };
    server.run(stopping, drain_timeout, stop_requested()).await;
    background.iter().for_each(JoinHandle::abort);
    eprint_line!("note: stopped; the next start continues open turns");
    Ok(())
}

/// Removes expired documents and old runs from the journal once a day, as other commands do when
/// they end.
async fn apply_retention_daily(home: PathBuf, settings: JournalSettings) {
    loop {
        let (home, settings) = (home.clone(), settings.clone());
        let apply = move || {
            if !begin_retention_if_due(&home) {
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
async fn check_tokens(journal: &Journal) -> Result<(), Problem> {
    let now = since_epoch().as_millis() as i64;
    let tokens = journal.tokens().await;
    let tokens = tokens.map_err(|error| store_problem(&error))?;
    match tokens.iter().any(|token| token.is_valid_at(now)) {
        true => Ok(()),
        false => Err(
            Problem::new("there is no valid token, so no client can use the server")
                .hint("run `selvedge serve token create`"),
        ),
    }
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

/// Waits for SIGINT or SIGTERM.
#[cfg(unix)]
async fn stop_requested() {
    use tokio::signal::unix::{SignalKind, signal};
    let received = |kind: SignalKind| async move {
        match signal(kind) {
            Ok(mut signal) => _ = signal.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = received(SignalKind::interrupt()) => {}
        () = received(SignalKind::terminate()) => {}
    }
}

/// Waits for an interrupt (Ctrl-C).
#[cfg(not(unix))]
async fn stop_requested() {
    let _ = tokio::signal::ctrl_c().await;
}

/// Reads the configuration and the certificate again after each SIGHUP, and opens the log again.
#[cfg(unix)]
async fn reload_on_hangup(host: Arc<JournalHost>, tls: Option<ServerTls>) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut hangups) = signal(SignalKind::hangup()) else {
        return;
    };
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
}

/// Does nothing: other systems have no such signal.
#[cfg(not(unix))]
async fn reload_on_hangup(_: Arc<JournalHost>, _: Option<ServerTls>) {}
