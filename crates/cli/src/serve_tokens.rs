//! `selvedge serve token`: creates, lists and revokes the tokens of the agent server's clients.

use std::path::{Path, PathBuf};

use anyhow::Result;
use selvedge_journal::Journal;
use selvedge_protocol::{
    ApiToken, ApiTokenStore, NewApiToken, SandboxPolicy, ServerStoreError, TokenScope,
    is_token_name, since_epoch,
};
use selvedge_server::TokenSecret;
use selvedge_toolbox::{Workspace, worktrees_folder};
use serde_json::json;

use crate::CliStatus;
use crate::output::{print_json, print_line};
use crate::problem::Problem;
use crate::run::runtime;
use crate::runs::{format_age, open_user_journal, open_user_journal_read_only};
use crate::serve_args::{ServeTokenCommand, TokenCreateArgs};
use crate::setup::{cannot_open_workspace, private_folders, working_directory};

pub(crate) fn tokens(command: ServeTokenCommand) -> Result<CliStatus> {
    let runtime = runtime()?;
    match command {
        ServeTokenCommand::Create(args) => runtime.block_on(create(&*open_user_journal()?, args)),
        ServeTokenCommand::List(args) => {
            runtime.block_on(list(&*open_user_journal_read_only()?, args.json))
        }
        ServeTokenCommand::Revoke(args) => {
            let journal = open_user_journal()?;
            let revoked = runtime.block_on(journal.revoke_token(&args.name));
            let revoked = revoked.map_err(|error| store_problem(&error))?;
            eprint_line!("note: revoked the token `{}`", revoked.name);
            Ok(CliStatus::Success)
        }
    }
}

/// Fails for a folder in which agents of the server must not work: one with secrets, and one with
/// the files or the worktrees of Selvedge.
fn refuse_private(workspace: &Path) -> Result<()> {
    let home = selvedge_config::home();
    let own = private_folders();
    let folders = own
        .iter()
        .cloned()
        .chain(home.as_deref().map(worktrees_folder));
    let mut folders = folders.map(|folder| folder.canonicalize().unwrap_or(folder));
    let overlaps =
        |folder: &PathBuf| folder.starts_with(workspace) || workspace.starts_with(folder);
    // A workspace does not hide its own folder, so this asks that of the root folder.
    let root = Path::new("/");
    let root = Workspace::open(root, SandboxPolicy::ReadOnly, &own)
        .map_err(|error| cannot_open_workspace(root, &error))?;
    let reason = match folders.find(overlaps) {
        Some(folder) => format!("Selvedge keeps its own files in {}", folder.display()),
        None if root.is_secret(workspace) => "it holds secrets".to_owned(),
        None => return Ok(()),
    };
    let message = format!("{} cannot be a workspace: {reason}", workspace.display());
    let problem = Problem::new(message);
    Err(problem
        .hint("pass the folder of a project with --workspace")
        .into())
}

async fn create(journal: &Journal, args: TokenCreateArgs) -> Result<CliStatus> {
    let secret = TokenSecret::random().map_err(|error| Problem::new(error.to_string()))?;
    let name = match args.name {
        Some(name) => checked_name(name)?,
        None => selvedge_protocol::new_id("client"),
    };
    let mut workspaces = Vec::new();
    for folder in &args.workspace {
        workspaces.push(working_directory(Some(folder))?.display().to_string());
    }
    if workspaces.is_empty() {
        workspaces.push(working_directory(None)?.display().to_string());
    }
    for workspace in &workspaces {
        refuse_private(Path::new(workspace))?;
    }
    let mut scopes = args.scope;
    if scopes.is_empty() {
        let all = TokenScope::ALL.into_iter();
        scopes = all
            .filter(|scope| !TokenScope::BY_NAME.contains(scope))
            .collect();
    }
    scopes.sort();
    scopes.dedup();
    let expires = args.expires.map(|time| since_epoch() + time);
    let token = NewApiToken {
        name,
        secret_hash: secret.hash(),
        scopes,
        workspaces,
        expires_ms: expires.map(|time| time.as_millis() as i64),
        max_cost: args.max_cost,
    };
    let token = journal.create_token(token).await;
    let token = token.map_err(|error| store_problem(&error))?;
    if args.json {
        return print_json(&json!({"token": token, "secret": secret.reveal()}));
    }
    eprint_line!("note: token `{}` for {}", token.name, describe(&token));
    eprint_line!("note: keep the secret; it is printed once");
    print_line(secret.reveal())?;
    Ok(CliStatus::Success)
}

fn checked_name(name: String) -> Result<String, Problem> {
    match is_token_name(&name) {
        true => Ok(name),
        false => Err(Problem::new("the name of the token is not valid")
            .hint("use up to 64 letters, digits, `-`, `_` and `.`, not like an id, such as `ci`")),
    }
}

async fn list(journal: &Journal, as_json: bool) -> Result<CliStatus> {
    let tokens = journal.tokens().await;
    let tokens = tokens.map_err(|error| store_problem(&error))?;
    if as_json {
        return print_json(&tokens);
    }
    let now = since_epoch();
    for token in &tokens {
        let now_ms = now.as_millis() as i64;
        let state = match (token.revoked_ms, token.is_valid_at(now_ms)) {
            (Some(_), _) => "revoked",
            (None, true) => "valid",
            (None, false) => "expired",
        };
        let age = format_age(now, token.created_ms);
        print_line(&format!(
            "{:<20} {state:<8} {age:>8}  {}",
            token.name,
            describe(token)
        ))?;
    }
    if tokens.is_empty() {
        eprint_line!("note: there are no tokens; `selvedge serve token create` creates one");
    }
    Ok(CliStatus::Success)
}

fn describe(token: &ApiToken) -> String {
    let scopes: Vec<&str> = token.scopes.iter().map(|scope| scope.as_str()).collect();
    let cost = match token.max_cost {
        Some(limit) => format!("; spent {:.2} of {limit:.2}", token.spent),
        None => String::new(),
    };
    let workspaces = token.workspaces.join(", ");
    format!("{} in {workspaces}{cost}", scopes.join(", "))
}

pub(crate) fn store_problem(error: &ServerStoreError) -> Problem {
    let problem = Problem::new(error.to_string());
    match error.hint() {
        Some(hint) => problem.hint(hint),
        None => problem,
    }
}
