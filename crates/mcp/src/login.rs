//! Logging in to a server that wants it: OAuth in the user's browser, remembered for later.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rmcp::transport::auth::{
    AuthError, AuthorizationManager, AuthorizationRequest, CredentialStore, OAuthState,
    StoredCredentials,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::settings::{Reach, ServerSettings};

/// Why somebody is not logged in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoginError {
    /// There is nothing to log in to.
    #[error("`{0}` is a program, not an address: it needs no login")]
    NoAddress(String),
    /// It lets us in as we are.
    #[error("`{0}` wants no login")]
    NotWanted(String),
    /// It cannot be reached, or its login cannot be used.
    #[error("cannot log in to `{server}`: {why}")]
    Failed {
        /// The server.
        server: String,
        /// Why, in one line.
        why: String,
    },
}

/// A login on its way: the user is to open [`Login::address`].
pub struct Login {
    server: String,
    state: OAuthState,
    address: String,
    listener: TcpListener,
}

impl Login {
    /// Asks the server how it wants people to log in. What comes of it is kept in `folder`.
    pub async fn begin(settings: &ServerSettings, folder: &Path) -> Result<Self, LoginError> {
        let server = settings.name.clone();
        let Reach::Http { url, .. } = &settings.reach else {
            return Err(LoginError::NoAddress(server));
        };
        let failed = |why: String| LoginError::Failed {
            server: settings.name.clone(),
            why,
        };
        let challenge = crate::http::challenge(&settings.reach).await;
        let Some(challenge) = challenge.map_err(failed)? else {
            return Err(LoginError::NotWanted(server));
        };
        let unbound = |error: std::io::Error| failed(error.to_string());
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(unbound)?;
        let port = listener.local_addr().map_err(unbound)?.port();
        let wrong = |error: AuthError| failed(error.to_string());
        let mut manager = manager(url).await.map_err(wrong)?;
        manager.set_credential_store(InFile(file(folder, settings)));
        let mut state = OAuthState::Unauthorized(manager);
        let mut request = AuthorizationRequest::new(format!("http://127.0.0.1:{port}/callback"))
            .with_client_name("Selvedge")
            .with_application_type("native");
        if !challenge.is_empty() {
            request = request.with_challenge(challenge);
        }
        state.start_authorization(request).await.map_err(wrong)?;
        let address = state.get_authorization_url().await.map_err(wrong)?;
        Ok(Self {
            server,
            state,
            address,
            listener,
        })
    }

    /// Where the user logs in.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits until the user has.
    pub async fn finish(mut self, patience: Duration) -> Result<(), LoginError> {
        let failed = |why: &str| LoginError::Failed {
            server: self.server.clone(),
            why: why.to_owned(),
        };
        let back = tokio::time::timeout(patience, callback(&self.listener)).await;
        let back = back
            .map_err(|_| failed("nobody did in time"))?
            .map_err(|error| failed(&error.to_string()))?;
        let address = self.listener.local_addr();
        let address = address.map_err(|error| failed(&error.to_string()))?;
        let url = format!("http://127.0.0.1:{}{back}", address.port());
        let done = self.state.handle_callback_url(&url).await;
        done.map_err(|error| failed(&error.to_string()))
    }
}

/// What is remembered of a login, ready to be used; `None` where nobody logged in.
pub(crate) async fn remembered(
    settings: &ServerSettings,
    folder: Option<&Path>,
) -> Option<AuthorizationManager> {
    let Reach::Http { url, .. } = &settings.reach else {
        return None;
    };
    let file = file(folder?, settings);
    if !file.exists() {
        return None;
    }
    let mut manager = manager(url).await.ok()?;
    manager.set_credential_store(InFile(file));
    let initialized = manager.initialize_from_store().await;
    initialized.ok()?.then_some(manager)
}

async fn manager(url: &str) -> Result<AuthorizationManager, AuthError> {
    // The HTTP client of our own process has to be there first: it brings the cipher.
    let _ = crate::http::client();
    AuthorizationManager::new(url).await
}

fn file(folder: &Path, settings: &ServerSettings) -> PathBuf {
    folder.join(format!("login-{}.json", settings.fingerprint()))
}

/// The path and query with which the browser comes back.
async fn callback(listener: &TcpListener) -> std::io::Result<String> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        // Whoever comes and says nothing does not keep the user waiting.
        let line = tokio::time::timeout(Duration::from_secs(5), first_line(&mut stream)).await;
        let line = line.ok().flatten().unwrap_or_default();
        let target = line.split(' ').nth(1).unwrap_or_default();
        let (status, words) = match target.starts_with("/callback?") {
            true => ("200 OK", "You are logged in. This page can be closed.\n"),
            false => ("404 Not Found", "There is nothing here.\n"),
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{words}",
            words.len()
        );
        // The browser may have left already.
        let _ = stream.write_all(answer.as_bytes()).await;
        if target.starts_with("/callback?") {
            return Ok(target.to_owned());
        }
    }
}

async fn first_line(stream: &mut TcpStream) -> Option<String> {
    let mut line = String::new();
    let mut reader = BufReader::new(tokio::io::AsyncReadExt::take(stream, 16 << 10));
    reader.read_line(&mut line).await.ok()?;
    Some(line)
}

/// Tokens in a file that only its owner reads.
struct InFile(PathBuf);

#[async_trait::async_trait]
impl CredentialStore for InFile {
    async fn load(&self) -> Result<Option<StoredCredentials>, AuthError> {
        let text = std::fs::read(&self.0).unwrap_or_default();
        Ok(serde_json::from_slice(&text).ok())
    }

    async fn save(&self, credentials: StoredCredentials) -> Result<(), AuthError> {
        let failed = |error: std::io::Error| {
            AuthError::InternalError(format!("cannot remember the login: {error}"))
        };
        let text = serde_json::to_vec(&credentials)
            .map_err(|error| AuthError::InternalError(error.to_string()))?;
        if let Some(folder) = self.0.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let new = self.0.with_extension(format!("{}.new", std::process::id()));
        private(&new)
            .and_then(|mut file| std::io::Write::write_all(&mut file, &text))
            .map_err(failed)?;
        std::fs::rename(new, &self.0).map_err(failed)
    }

    async fn clear(&self) -> Result<(), AuthError> {
        // One that is not there is cleared.
        let _ = std::fs::remove_file(&self.0);
        Ok(())
    }
}

fn private(path: &Path) -> std::io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}
