//! `selvedge models login` and `logout`: store and delete the keys of providers.

use std::io::{BufRead, IsTerminal};

use anyhow::Result;
use selvedge_models::KeySource;

use crate::CliStatus;
use crate::args::ModelsLoginArgs;
use crate::output::eprint_text;
use crate::problem::Problem;
use crate::providers;
use crate::setup::load_configuration;
use crate::stored_keys::{KeyStore, delete_entry};

/// Reads the key of a provider from standard input and stores it. The place is chosen first, so
/// that the user is not asked for a key that cannot be stored.
pub(crate) fn login(args: &ModelsLoginArgs) -> Result<CliStatus> {
    let config = load_configuration(&args.workspace)?.config;
    let provider = providers::find_provider(&providers::all_providers(&config)?, &args.provider)?;
    let name = &provider.name;
    let Some(variable) = &provider.env_key else {
        let hint = format!(
            "if it needs one, set env_key = \"VARIABLE\" under [model_providers.{name}] in \
             config.toml"
        );
        return Err(Problem::new(format!("provider `{name}` needs no key"))
            .hint(hint)
            .into());
    };
    if provider.key_source == KeySource::Environment {
        let message =
            format!("the project sets the address of provider `{name}`, which gets no stored key");
        let hint = format!("run `export {variable}=KEY`");
        return Err(Problem::new(message).hint(hint).into());
    }
    let export = format!("run `export {variable}=KEY`");
    let store = KeyStore::for_new_keys().map_err(|problem| problem.or_hint(&export))?;
    if let KeyStore::File(_) = store {
        let place = store.describe();
        eprint_line!("note: no system keyring is running; the key will be stored in {place}");
    }
    let key = read_key(name)?;
    store.set(name, &key)?;
    eprint_line!("stored the key of {name} in {}", store.describe());
    if std::env::var_os(variable).is_some_and(|value| !value.is_empty()) {
        eprint_line!("note: {variable} is set, and is used instead of the stored key");
    }
    Ok(CliStatus::Success)
}

/// Deletes the stored key of a provider.
pub(crate) fn logout(args: &ModelsLoginArgs) -> Result<CliStatus> {
    let name = &args.provider;
    let stores = delete_entry(name)?;
    for store in &stores {
        eprint_line!("deleted the key of {name} from {}", store.describe());
    }
    if stores.is_empty() {
        eprint_line!("note: no key of {name} is stored");
    }
    Ok(CliStatus::Success)
}

/// Reads one line from standard input, without echo on a terminal.
fn read_key(provider: &str) -> Result<String> {
    let input = std::io::stdin();
    let quiet = input.is_terminal().then(|| {
        eprint_text(&format!("API key of {provider}: "));
        EchoGuard::disable_echo()
    });
    let mut text = String::new();
    input.lock().read_line(&mut text)?;
    drop(quiet);
    match text.trim() {
        "" => Err(Problem::new("the key is empty")
            .hint(format!("run `selvedge models login {provider} < FILE`"))
            .into()),
        key => Ok(key.to_owned()),
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
