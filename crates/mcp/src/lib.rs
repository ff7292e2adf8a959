//! MCP client and server.
//!
//! As a client, [`Servers`] connects to the configured MCP servers (local programs or HTTP
//! endpoints) when a script first needs them. Their tools are registered as `mcp.<server>.<tool>`
//! and are called like built-in tools. Requests that a server sends during a call go to the
//! handlers in [`Asked`]: elicitation to a person, sampling to a model.
//!
//! As a server, [`ScriptServer`] offers the tools `script` and `script_wait` to MCP clients.
// Standard output and standard error belong to the embedding program.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod answer;
mod callbacks;
mod calls;
mod catalogue;
mod common_tools;
mod elicitation;
mod error;
mod form;
mod http;
mod link;
mod login;
mod program;
mod progress;
mod recursion;
mod render;
mod sampling;
mod serve;
mod serve_http;
mod serve_stdio;
mod server;
mod servers;
mod settings;
mod tool;

pub use callbacks::{AskModel, AskPerson, Asked, Elicitation, Elicited, Shows};
pub use error::{AskError, FormError, ServerError};
pub use form::{Address, Choice, Field, Form, Kind, Need, Wants};
pub use login::{Login, LoginError};
pub use program::NESTED;
pub use sampling::{Said, Sampled, SampledEnd, Sampling};
pub use serve::{FindEarlier, Offer, ScriptServer};
pub use serve_http::{Entrance, HttpServer, ServeError};
pub use serve_stdio::serve_stdio;
pub use server::{ServerState, ServerStatus};
pub use servers::Servers;
pub use settings::{Reach, ServerSettings};

/// Implementation name that Selvedge sends in MCP handshakes, as client and as server.
pub const NAME: &str = "selvedge";
