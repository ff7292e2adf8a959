//! The command line of `selvedge serve`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use selvedge_protocol::TokenScope;

use crate::args::enum_parser;
use crate::units;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ServeArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ServeCommand>,

    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7420")]
    pub(crate) addr: String,

    /// Certificate chain for TLS, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Private key of the certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Serve other machines without TLS, for example behind a proxy
    #[arg(long)]
    pub(crate) insecure: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ServeCommand {
    /// Create, list and revoke the tokens of clients
    #[command(subcommand)]
    Token(ServeTokenCommand),
    /// Print a URL with which a browser can log in once, within 10 minutes
    Login(LoginArgs),
    /// Print the OpenAPI document of the API
    Openapi,
}

#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    /// URL of the server [default: serve.public_url, else http://127.0.0.1:7420]
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ServeTokenCommand {
    /// Create a token and print its secret, which is not stored
    Create(TokenCreateArgs),
    /// List the tokens
    List(TokenListArgs),
    /// Revoke a token: it cannot be used any more
    Revoke(TokenRevokeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TokenCreateArgs {
    /// Name of the token, and of the person or program that uses it [default: a random name]
    pub(crate) name: Option<String>,

    /// What the token may be used for; repeat for several [default: all except approvals
    /// and user-memory]
    #[arg(long, value_parser = enum_parser::<TokenScope>(), value_name = "SCOPE")]
    pub(crate) scope: Vec<TokenScope>,

    /// Folder that the token can reach; repeat for several [default: the current folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) workspace: Vec<PathBuf>,

    /// Let the token expire after this time, such as 12h or 30d [default: never]
    #[arg(long, value_parser = units::time_limit, value_name = "TIME")]
    pub(crate) expires: Option<Duration>,

    /// Let turns of the token cost at most this much in all [default: no limit]
    #[arg(long, value_parser = units::money, value_name = "AMOUNT")]
    pub(crate) max_cost: Option<f64>,

    /// Print the token as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TokenListArgs {
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TokenRevokeArgs {
    /// Name or id of the token
    pub(crate) name: String,
}
