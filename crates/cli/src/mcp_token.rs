//! The bearer token of `selvedge mcp serve --http`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use selvedge_mcp::HttpAuthentication;

use crate::mcp_args::McpServeArgs;
use crate::problem::Problem;

/// The variable that is used if the command line names none.
const DEFAULT_TOKEN_VARIABLE: &str = "SELVEDGE_MCP_TOKEN";
/// Largest file with a token, in bytes.
const MAX_TOKEN_FILE_BYTES: u64 = 4096;
/// Shortest token that is accepted, in characters. A shorter one can be guessed.
const MIN_TOKEN_CHARS: usize = 16;
/// Length of a random token, in bytes.
const RANDOM_TOKEN_BYTES: usize = 32;

/// What clients must send, and where it comes from.
pub(crate) struct TokenChoice {
    pub(crate) authentication: HttpAuthentication,
    pub(crate) source: TokenSource,
}

/// Where a token comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenSource {
    /// The command line or the environment names it, or says that there is none.
    Given,
    /// Generated for this process, and to be printed.
    Generated,
}

/// Returns the name of the variable that may hold the token. It is not passed to commands.
pub(crate) fn token_variable(args: &McpServeArgs) -> &str {
    args.token_env.as_deref().unwrap_or(DEFAULT_TOKEN_VARIABLE)
}

/// Returns the token that the command line or the environment names, else a random one.
pub(crate) fn choose_token(args: &McpServeArgs) -> Result<TokenChoice, Problem> {
    let given = |authentication| TokenChoice {
        authentication,
        source: TokenSource::Given,
    };
    if args.no_token {
        return Ok(given(HttpAuthentication::None));
    }
    let token = match &args.token_file {
        Some(path) => Some(token_from_file(path)?),
        None => token_from_variable(args)?,
    };
    match token {
        Some(token) => Ok(given(HttpAuthentication::Token(token))),
        None => Ok(TokenChoice {
            authentication: HttpAuthentication::Token(random_token()?),
            source: TokenSource::Generated,
        }),
    }
}

fn token_from_variable(args: &McpServeArgs) -> Result<Option<String>, Problem> {
    let name = token_variable(args);
    let value = std::env::var(name).unwrap_or_default();
    if value.trim().is_empty() {
        return match &args.token_env {
            Some(_) => Err(Problem::new(format!("{name} is not set"))
                .hint(format!("run `export {name}=$(openssl rand -hex 32)`"))),
            None => Ok(None),
        };
    }
    check_token(value.trim(), name).map(Some)
}

fn token_from_file(path: &Path) -> Result<String, Problem> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| {
        Problem::new(format!("cannot read {shown}: {error}"))
            .hint(format!("run `(umask 077; openssl rand -hex 32 > {shown})`"))
    };
    // Checked before it is opened, because opening a pipe may block.
    if !path.metadata().map_err(unreadable)?.is_file() {
        return Err(Problem::new(format!("{shown} is not a regular file"))
            .hint("pass --token-file with a file that contains the token"));
    }
    let file = File::open(path).map_err(unreadable)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = file.metadata().map_err(unreadable)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(
                Problem::new(format!("other users have access to the token in {shown}"))
                    .hint(format!("run `chmod 600 {shown}`, and replace the token")),
            );
        }
    }
    let mut text = String::new();
    let mut bounded = file.take(MAX_TOKEN_FILE_BYTES);
    bounded.read_to_string(&mut text).map_err(unreadable)?;
    check_token(text.trim(), &shown.to_string())
}

/// Checks that a token can be sent as a header and is not short.
fn check_token(token: &str, place: &str) -> Result<String, Problem> {
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = format!("the token in {place} must be one word of ASCII characters");
        return Err(Problem::new(message).hint("create a token with `openssl rand -hex 32`"));
    }
    if token.len() < MIN_TOKEN_CHARS {
        let message = format!(
            "the token in {place} has {} characters; it must have at least {MIN_TOKEN_CHARS}",
            token.len()
        );
        return Err(Problem::new(message).hint("create a token with `openssl rand -hex 32`"));
    }
    Ok(token.to_owned())
}

fn random_token() -> Result<String, Problem> {
    let mut bytes = [0; RANDOM_TOKEN_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| {
        Problem::new(format!("cannot create a random token: {error}"))
            .hint("pass --token-file FILE")
    })?;
    Ok(selvedge_text::hex(&bytes))
}
