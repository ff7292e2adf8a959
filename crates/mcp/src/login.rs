//! OAuth login to an HTTP server in the user's browser. The tokens are stored in a file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rmcp::transport::auth::{
    AuthError, AuthorizationManager, AuthorizationRequest, CredentialStore, OAuthState,
    StoredCredentials,
};
use selvedge_http::wait_for_login_callback;
use tokio::net::TcpListener;

use crate::settings::{McpTransport, ServerSettings};

/// Failure of a login.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoginError {
    /// The server is a local program.
    #[error("the MCP server `{0}` is a local program and needs no login")]
    NotHttp(String),
    /// The server accepts connections without a login.
    #[error("the MCP server `{0}` does not require a login")]
    NotRequired(String),
    /// The server cannot be reached, or the login failed.
    #[error("cannot log in to `{server}`: {reason}")]
    Failed {
        /// Name of the server in the configuration.
        server: String,
        /// Reason, in one line.
        reason: String,
    },
}

/// A login in progress: the user has to open [`Login::authorization_url`].
pub struct Login {
    server: String,
    state: OAuthState,
    authorization_url: String,
    listener: TcpListener,
}

impl Login {
    /// Starts the OAuth flow of the server. Its tokens will be stored in `folder`.
    pub async fn start(settings: &ServerSettings, folder: &Path) -> Result<Self, LoginError> {
        let server = settings.name.clone();
        let McpTransport::Http { url, .. } = &settings.transport else {
            return Err(LoginError::NotHttp(server));
        };
        let failed = |reason: String| LoginError::Failed {
            server: settings.name.clone(),
            reason,
        };
        let challenge = crate::http_client::fetch_auth_challenge(&settings.transport).await;
        let Some(challenge) = challenge.map_err(failed)? else {
            return Err(LoginError::NotRequired(server));
        };
        let bind_failed = |error: std::io::Error| failed(error.to_string());
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.map_err(bind_failed)?;
        let port = listener.local_addr().map_err(bind_failed)?.port();
        let auth_failed = |error: AuthError| failed(error.to_string());
        let mut manager = authorization_manager(url).await.map_err(auth_failed)?;
        manager.set_credential_store(FileCredentialStore(login_file(folder, settings)));
        let mut state = OAuthState::Unauthorized(manager);
        let mut request = AuthorizationRequest::new(format!("http://127.0.0.1:{port}/callback"))
            .with_client_name("Selvedge")
            .with_application_type("native");
        if !challenge.is_empty() {
            request = request.with_challenge(challenge);
        }
        let started = state.start_authorization(request).await;
        started.map_err(auth_failed)?;
        let address = state.get_authorization_url().await.map_err(auth_failed)?;
        Ok(Self {
            server,
            state,
            authorization_url: address,
            listener,
        })
    }

    /// URL that the user opens to log in.
    pub fn authorization_url(&self) -> &str {
        &self.authorization_url
    }

    /// Waits until the browser has returned from the login, and stores the tokens.
    pub async fn finish(mut self, timeout: Duration) -> Result<(), LoginError> {
        let failed = |reason: &str| LoginError::Failed {
            server: self.server.clone(),
            reason: reason.to_owned(),
        };
        let returned = wait_for_login_callback(&self.listener, &self.authorization_url);
        let target = tokio::time::timeout(timeout, returned).await;
        let target = target
            .map_err(|_| {
                let seconds = timeout.as_secs();
                failed(&format!("no login in the browser within {seconds} s"))
            })?
            .map_err(|error| failed(&error.to_string()))?;
        let address = self.listener.local_addr();
        let address = address.map_err(|error| failed(&error.to_string()))?;
        let url = format!("http://127.0.0.1:{}{target}", address.port());
        let done = self.state.handle_callback_url(&url).await;
        done.map_err(|error| failed(&error.to_string()))
    }
}

/// Loads the stored login of a server; `None` if there is none or it cannot be used.
pub(crate) async fn load_login(
    settings: &ServerSettings,
    folder: Option<&Path>,
) -> Option<AuthorizationManager> {
    let McpTransport::Http { url, .. } = &settings.transport else {
        return None;
    };
    let file = login_file(folder?, settings);
    if !file.exists() {
        return None;
    }
    let mut manager = authorization_manager(url).await.ok()?;
    manager.set_credential_store(FileCredentialStore(file));
    let initialized = manager.initialize_from_store().await;
    initialized.ok()?.then_some(manager)
}

async fn authorization_manager(url: &str) -> Result<AuthorizationManager, AuthError> {
    // Creating our HTTP client installs the TLS crypto provider, which rmcp needs.
    let _ = crate::http_client::shared_http_client();
    AuthorizationManager::new(url).await
}

fn login_file(folder: &Path, settings: &ServerSettings) -> PathBuf {
    folder.join(format!("login-{}.json", settings.fingerprint()))
}

/// Largest file of tokens that is read, in bytes.
const MAX_LOGIN_BYTES: usize = 1 << 20;

/// Stores tokens in a file that only its owner can read.
struct FileCredentialStore(PathBuf);

#[async_trait::async_trait]
impl CredentialStore for FileCredentialStore {
    async fn load(&self) -> Result<Option<StoredCredentials>, AuthError> {
        let text = selvedge_files::read_user_file(&self.0, MAX_LOGIN_BYTES);
        let text = text.ok().flatten().unwrap_or_default();
        Ok(serde_json::from_slice(&text).ok())
    }

    async fn save(&self, credentials: StoredCredentials) -> Result<(), AuthError> {
        let failed = |error: std::io::Error| {
            AuthError::InternalError(format!("cannot save the login: {error}"))
        };
        let text = serde_json::to_vec(&credentials)
            .map_err(|error| AuthError::InternalError(error.to_string()))?;
        if let Some(folder) = self.0.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let new = self.0.with_extension(format!("{}.new", std::process::id()));
        create_private_file(&new)
            .and_then(|mut file| std::io::Write::write_all(&mut file, &text))
            .map_err(failed)?;
        std::fs::rename(new, &self.0).map_err(failed)
    }

    async fn clear(&self) -> Result<(), AuthError> {
        // Fails if there is no file, which is the same as a cleared one.
        let _ = std::fs::remove_file(&self.0);
        Ok(())
    }
}

/// Creates or truncates a file. A new one is readable and writable by its owner only.
fn create_private_file(path: &Path) -> std::io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}
