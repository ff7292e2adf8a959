//! OAuth logins of providers: stores their tokens, and refreshes them before they expire.

use std::fs::File;
use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_models::{
    AccessTokenSource, ModelError, OAuthClient, OAuthError, OAuthSettings, OAuthTokens, Secret,
};
use selvedge_protocol::ModelErrorKind;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;

use crate::problem::Problem;
use crate::stored_keys::{KeyStore, delete_entry, find_entry};

/// How long a process that ends waits for refreshes. A request to the authorization server has a
/// shorter time limit.
const MAX_REFRESH_WAIT: Duration = Duration::from_secs(40);

/// Returns the name of the stored entry with the tokens of a provider.
fn entry_name(provider: &str) -> String {
    format!("{provider} (OAuth login)")
}

/// Stores the tokens of a new login. Waits until no process refreshes a login, so that the new
/// tokens are not replaced by refreshed ones of the login before.
pub(crate) fn store_login(
    store: &KeyStore,
    provider: &str,
    settings: &OAuthSettings,
    tokens: &OAuthTokens,
) -> Result<(), Problem> {
    let _lock = lock_logins()?;
    write_tokens(store, provider, settings, tokens)
}

fn write_tokens(
    store: &KeyStore,
    provider: &str,
    settings: &OAuthSettings,
    tokens: &OAuthTokens,
) -> Result<(), Problem> {
    store.set(&entry_name(provider), &tokens.to_stored_text(settings))
}

/// Deletes the tokens of a provider. Waits until no process refreshes a login, which would store
/// them again. Returns the places that had them.
pub(crate) fn delete_login(provider: &str) -> Result<Vec<KeyStore>, Problem> {
    let _lock = lock_logins()?;
    delete_entry(&entry_name(provider))
}

/// A stored login. Clones share the tokens.
#[derive(Debug, Clone)]
pub(crate) struct ProviderLogin(Arc<LoginState>);

#[derive(Debug)]
struct LoginState {
    provider: String,
    settings: OAuthSettings,
    client: OAuthClient,
    tokens: Mutex<OAuthTokens>,
}

impl ProviderLogin {
    /// Returns the login of a provider and its place; `None` if the user did not log in. A login to
    /// another server or with another client does not count.
    pub(crate) fn find(
        provider: &str,
        settings: &OAuthSettings,
    ) -> Result<Option<(Self, KeyStore)>, Problem> {
        let Some((tokens, store)) = read_tokens(provider, settings)? else {
            return Ok(None);
        };
        let client = OAuthClient::new(settings).map_err(|error| oauth_problem(provider, &error))?;
        let state = LoginState {
            provider: provider.to_owned(),
            settings: settings.clone(),
            client,
            tokens: Mutex::new(tokens),
        };
        Ok(Some((Self(Arc::new(state)), store)))
    }
}

fn read_tokens(
    provider: &str,
    settings: &OAuthSettings,
) -> Result<Option<(OAuthTokens, KeyStore)>, Problem> {
    let Some(stored) = find_entry(&entry_name(provider))? else {
        return Ok(None);
    };
    let tokens = OAuthTokens::from_stored_text(&stored.text, settings);
    Ok(tokens.map(|tokens| (tokens, stored.store)))
}

impl LoginState {
    /// Replaces tokens that have expired or were rejected.
    async fn refresh(&self, tokens: &mut OAuthTokens) -> Result<(), ModelError> {
        // A refresh token may be valid once, so processes take turns.
        let _lock = run_blocking(lock_logins).await?;
        let (provider, settings) = (self.provider.clone(), self.settings.clone());
        let stored = run_blocking(move || read_tokens(&provider, &settings)).await?;
        let store = match stored {
            Some((stored, store)) => {
                let is_newer = stored != *tokens;
                *tokens = stored;
                if is_newer && !tokens.is_expired() {
                    return Ok(());
                }
                store
            }
            None => {
                let message = format!("you are not logged in to provider `{}`", self.provider);
                return Err(ModelError::new(ModelErrorKind::Auth, message));
            }
        };
        let refreshed = self.client.refresh(tokens).await;
        *tokens = refreshed.map_err(|error| self.refresh_error(&error))?;
        let (provider, settings) = (self.provider.clone(), self.settings.clone());
        let new = tokens.clone();
        run_blocking(move || write_tokens(&store, &provider, &settings, &new)).await
    }

    fn refresh_error(&self, error: &OAuthError) -> ModelError {
        let kind = match error {
            OAuthError::Server(_) => ModelErrorKind::Network,
            _ => ModelErrorKind::Auth,
        };
        let provider = &self.provider;
        let message = format!("cannot refresh the login of provider `{provider}`: {error}");
        ModelError::new(kind, message)
    }
}

impl ProviderLogin {
    /// Returns the access token, refreshed if it has to be.
    async fn token(
        &self,
        needs_refresh: impl Fn(&OAuthTokens) -> bool + Send + 'static,
    ) -> Result<Secret, ModelError> {
        {
            let tokens = self.0.tokens.lock().await;
            if !needs_refresh(&tokens) {
                return Ok(tokens.access_token().clone());
            }
        }
        let state = self.0.clone();
        run_to_end(async move {
            let mut tokens = state.tokens.lock().await;
            // Another request may have refreshed it meanwhile.
            if needs_refresh(&tokens) {
                state.refresh(&mut tokens).await?;
            }
            Ok(tokens.access_token().clone())
        })
        .await
    }
}

impl AccessTokenSource for ProviderLogin {
    fn access_token(&self) -> BoxFuture<'_, Result<Secret, ModelError>> {
        // Without a refresh token, the provider decides whether the token is still valid.
        let needs_refresh = |tokens: &OAuthTokens| tokens.is_expired() && tokens.can_refresh();
        self.token(needs_refresh).boxed()
    }

    fn renew_token(&self, rejected: Secret) -> BoxFuture<'_, Result<Secret, ModelError>> {
        let needs_refresh = move |tokens: &OAuthTokens| *tokens.access_token() == rejected;
        self.token(needs_refresh).boxed()
    }
}

/// Runs the refreshes of all logins.
static REFRESH_RUNTIME: LazyLock<io::Result<Runtime>> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build()
});
/// The refreshes that run.
static OPEN_REFRESHES: LazyLock<TaskTracker> = LazyLock::new(TaskTracker::new);

/// Runs a refresh to its end, also if the request that waits for it is cancelled or its command has
/// ended: the server may have replaced the refresh token already, and only the answer has the new
/// one.
async fn run_to_end<T: Send + 'static>(
    refresh: impl Future<Output = Result<T, ModelError>> + Send + 'static,
) -> Result<T, ModelError> {
    let failed = |message: String| ModelError::new(ModelErrorKind::Auth, message);
    let runtime = REFRESH_RUNTIME.as_ref();
    let runtime = runtime.map_err(|error| failed(error.to_string()))?;
    let done = runtime.spawn(OPEN_REFRESHES.track_future(refresh)).await;
    done.map_err(|error| failed(error.to_string()))?
}

/// Waits for refreshes that still run, before the process ends.
pub(crate) fn wait_for_refreshes() {
    OPEN_REFRESHES.close();
    if OPEN_REFRESHES.is_empty() {
        return;
    }
    eprint_line!("note: waiting for the authorization server, to store the new login");
    if let Ok(runtime) = REFRESH_RUNTIME.as_ref() {
        let ended = async { tokio::time::timeout(MAX_REFRESH_WAIT, OPEN_REFRESHES.wait()).await };
        let _ = runtime.block_on(ended);
    }
}

/// Waits until no other process refreshes tokens.
fn lock_logins() -> Result<Option<File>, Problem> {
    let Some(home) = selvedge_config::home() else {
        return Ok(None);
    };
    let locked = selvedge_files::create_private_folder(&home)
        .and_then(|()| selvedge_files::lock_file(&home.join("logins.lock")));
    let lock = locked.map_err(|error| {
        Problem::new(format!("cannot write to {}: {error}", home.display()))
            .hint("set SELVEDGE_HOME to a writable folder")
    })?;
    Ok(Some(lock))
}

/// Runs work that may block, such as a call to the keyring.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, ModelError> {
    let failed = |message: String| ModelError::new(ModelErrorKind::Auth, message);
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|problem| failed(problem.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Describes a login that failed.
pub(crate) fn oauth_problem(provider: &str, error: &OAuthError) -> Problem {
    let problem = Problem::new(format!("cannot log in to provider `{provider}`: {error}"));
    match error {
        OAuthError::Settings(_) => problem.hint(format!(
            "correct [model_providers.{provider}.oauth] in config.toml"
        )),
        OAuthError::Server(_) => problem.hint(format!(
            "check the addresses under [model_providers.{provider}.oauth] in config.toml"
        )),
        _ => problem.hint(format!("run `selvedge models login {provider}` again")),
    }
}
