//! MCP client and server.
//!
//! As a client, [`Servers`] connects to the configured MCP servers (local programs or HTTP
//! endpoints) when a script first needs them. Their tools are registered as `mcp.<server>.<tool>`
//! and are called like built-in tools. Requests that a server sends during a call go to the
//! handlers in [`ServerRequestHandlers`]: elicitation to a person, sampling to a model.
//!
//! As a server, [`ScriptServerSession`] offers the tools `script` and `script_wait` to MCP clients.
// Standard output and standard error belong to the embedding program.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod bounded_http;
mod catalogue;
mod client_handler;
mod code_tools;
mod common_tools;
mod configured_server;
mod connection;
mod error;
mod http_client;
mod http_sessions;
mod in_flight;
mod login;
mod open_sessions;
mod process;
mod question_elicitation;
mod render;
mod sampling;
mod script_server;
mod script_server_config;
mod serve_http;
mod serve_progress;
mod serve_stdio;
mod server_form;
mod server_status;
mod servers;
mod settings;
mod tool;
mod tool_result;

pub use client_handler::{
    ElicitationHandler, ElicitationModes, ElicitationRequest, ElicitationResponse, SamplingHandler,
    ServerRequestHandlers,
};
pub use error::{FormError, ServerError, ServerRequestError};
pub use login::{Login, LoginError};
pub use open_sessions::OpenSessions;
pub use process::NESTED_ENV_VAR;
pub use sampling::{
    McpSamplingMessage, McpSamplingRequest, McpSamplingResponse, McpSamplingStopReason,
};
pub use script_server::ScriptServerSession;
pub use script_server_config::{
    ClientApprovals, ResumeInputFn, ResumeRequest, ResumeRequestError, ScriptServerConfig,
};
pub use serve_http::{HttpAccess, HttpAuthentication, ScriptHttpServer, ScriptServerError};
pub use serve_stdio::serve_stdio;
pub use server_form::{
    FormContent, FormField, FormFieldChoice, FormFieldKind, FormFieldPresence, FormUrl, ServerForm,
};
pub use server_status::{ServerState, ServerStatus};
pub use servers::Servers;
pub use settings::{
    McpTransport, ProgramFinder, ServerConfigError, ServerOrigin, ServerProgram, ServerSettings,
};

/// Implementation name that Selvedge sends in MCP handshakes, as client and as server.
pub const IMPLEMENTATION_NAME: &str = "selvedge";
