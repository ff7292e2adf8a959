//! `selvedge models login` and `logout`: store and delete the keys and logins of providers.

use std::io::{BufRead, IsTerminal};
use std::time::Duration;

use anyhow::Result;
use selvedge_http::wait_for_login_callback;
use selvedge_models::{KeySource, OAuthClient, OAuthError, OAuthSettings, OAuthTokens};

use crate::CliStatus;
use crate::args::{ModelsLoginArgs, ModelsLogoutArgs};
use crate::output::{eprint_text, print_line};
use crate::problem::Problem;
use crate::provider_login::{delete_login, oauth_problem, store_login};
use crate::providers;
use crate::setup::load_configuration;
use crate::stop_signals::StopSignals;
use crate::stored_keys::{KeyStore, delete_entry};

/// How long the user may take to log in in the browser.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(600);

/// Logs in to a provider, or reads its key from standard input, and stores the result. The place is
/// chosen first, so that the user is not asked for what cannot be stored.
pub(crate) fn login(args: &ModelsLoginArgs) -> Result<CliStatus> {
    let config = load_configuration(&args.workspace)?.config;
    let provider = providers::find_provider(&providers::all_providers(&config)?, &args.provider)?;
    let name = &provider.name;
    if args.device && provider.oauth.is_none() {
        let hint = format!("set [model_providers.{name}.oauth] in config.toml");
        return Err(
            Problem::new(format!("provider `{name}` has no OAuth login"))
                .hint(hint)
                .into(),
        );
    }
    if !providers::needs_key(&provider) {
        let hint = format!(
            "if it needs one, set env_key = \"VARIABLE\" under [model_providers.{name}] in \
             config.toml"
        );
        return Err(Problem::new(format!("provider `{name}` needs no key"))
            .hint(hint)
            .into());
    }
    let export = provider.env_key.as_ref();
    let export = export.map(|variable| format!("run `export {variable}=KEY`"));
    if provider.key_source == KeySource::Environment {
        let message =
            format!("the project sets the address of provider `{name}`, which gets no stored key");
        let hint = export.unwrap_or_else(|| "log in outside of this project".to_owned());
        return Err(Problem::new(message).hint(hint).into());
    }
    let store = KeyStore::for_new_keys().map_err(|problem| match &export {
        Some(export) => problem.or_hint(export),
        None => problem,
    })?;
    if let KeyStore::File(_) = store {
        let (place, what) = (store.describe(), provider.oauth.as_ref());
        let what = what.map_or("key", |_| "login");
        eprint_line!("note: no system keyring is running; the {what} will be stored in {place}");
    }
    match &provider.oauth {
        Some(settings) => {
            let tokens = oauth_login(name, settings, args.device)?;
            store_login(&store, name, settings, &tokens)?;
            eprint_line!(
                "logged in to {name}; the login is stored in {}",
                store.describe()
            );
        }
        None => {
            let key = read_key(name)?;
            store.set(name, &key)?;
            eprint_line!("stored the key of {name} in {}", store.describe());
        }
    }
    if let Some(variable) = &provider.env_key
        && std::env::var_os(variable).is_some_and(|value| !value.is_empty())
    {
        eprint_line!("note: {variable} is set, and is used instead of the stored key");
    }
    Ok(CliStatus::Success)
}

/// Logs in with OAuth 2.0: in the browser of this machine, or with a code in any browser.
fn oauth_login(name: &str, settings: &OAuthSettings, device: bool) -> Result<OAuthTokens> {
    let problem = |error: OAuthError| oauth_problem(name, &error);
    let client = OAuthClient::new(settings).map_err(problem)?;
    crate::run::runtime()?.block_on(async {
        if device || settings.authorization_url.is_none() {
            let login = client.start_device_login().await.map_err(problem)?;
            let code = login.user_code();
            eprint_line!("open this URL to log in to {name}, and enter the code {code}:");
            print_line(login.complete_url().unwrap_or(login.verification_url()))?;
            return Ok(login.finish().await.map_err(problem)?);
        }
        let port = settings.redirect_port.unwrap_or(0);
        let bound = tokio::net::TcpListener::bind(("127.0.0.1", port)).await;
        let bound = bound.and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = bound.map_err(|error| {
            Problem::new(format!("cannot listen on 127.0.0.1:{port}: {error}"))
                .hint(format!("run `selvedge models login {name} --device`"))
        })?;
        let redirect = format!("http://127.0.0.1:{}/callback", address.port());
        let login = client.start_browser_login(&redirect).map_err(problem)?;
        eprint_line!("open this URL to log in to {name}:");
        print_line(login.authorization_url())?;
        let returned = wait_for_login_callback(&listener, login.authorization_url());
        let target = tokio::time::timeout(LOGIN_TIMEOUT, returned).await;
        let target = target.map_err(|_| problem(OAuthError::Expired))??;
        Ok(login.finish(&target).await.map_err(problem)?)
    })
}

/// Deletes the stored key and the login of a provider.
pub(crate) fn logout(args: &ModelsLogoutArgs) -> Result<CliStatus> {
    let name = &args.provider;
    let keys = delete_entry(name)?;
    for store in &keys {
        eprint_line!("deleted the key of {name} from {}", store.describe());
    }
    let logins = delete_login(name)?;
    for store in &logins {
        eprint_line!("deleted the login to {name} from {}", store.describe());
    }
    if keys.is_empty() && logins.is_empty() {
        eprint_line!("note: no key of {name} is stored");
    }
    Ok(CliStatus::Success)
}

/// Reads one line from standard input, without echo on a terminal.
fn read_key(provider: &str) -> Result<String> {
    let text = match std::io::stdin().is_terminal() {
        true => {
            eprint_text(&format!("API key of {provider}: "));
            crate::run::runtime()?.block_on(read_hidden_line())?
        }
        false => read_line()?,
    };
    match text.trim() {
        "" => Err(Problem::new("the key is empty")
            .hint(format!("run `selvedge models login {provider} < FILE`"))
            .into()),
        key => Ok(key.to_owned()),
    }
}

fn read_line() -> std::io::Result<String> {
    let mut text = String::new();
    std::io::stdin().lock().read_line(&mut text)?;
    Ok(text)
}

/// Reads one line without echo. A signal ends the wait with an error, so that the terminal is
/// restored.
async fn read_hidden_line() -> Result<String> {
    // Before the echo is disabled: a signal that is not received ends the process.
    let mut stop = StopSignals::listen()?;
    let _quiet = EchoGuard::disable_echo();
    let (sender, line) = tokio::sync::oneshot::channel();
    // On its own thread, because a read cannot be stopped. The thread ends with the process.
    std::thread::spawn(move || _ = sender.send(read_line()));
    tokio::select! {
        biased;
        _ = stop.next() => Err(Problem::new("interrupted; no key was stored").into()),
        line = line => Ok(line??),
    }
}

/// Disables the echo of the terminal until it is dropped.
struct EchoGuard {
    #[cfg(unix)]
    before: Option<rustix::termios::Termios>,
}

#[cfg(unix)]
impl EchoGuard {
    fn disable_echo() -> Self {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
        let before = tcgetattr(std::io::stdin()).ok();
        if let Some(mut quiet) = before.clone() {
            quiet.local_modes.remove(LocalModes::ECHO);
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &quiet);
        }
        Self { before }
    }
}

#[cfg(unix)]
impl Drop for EchoGuard {
    fn drop(&mut self) {
        use rustix::termios::{OptionalActions, tcsetattr};
        if let Some(before) = &self.before {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
            eprint_text("\n");
        }
    }
}

#[cfg(not(unix))]
impl EchoGuard {
    fn disable_echo() -> Self {
        Self {}
    }
}
