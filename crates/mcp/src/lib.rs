//! MCP, both ways: everybody's tools in, one tool out.
//!
//! [`Servers`] are other people's: programs of the user's, or HTTP endpoints, started when something first needs them. Their
//! tools become ours under `mcp.<server>.<tool>`, and take the same path as any other. What they ask in turn goes to
//! whomever [`Asked`] names: forms to a person, questions to a model.
//!
//! [`ScriptServer`] is the other way: one tool, `script`, for anybody's agent.
// Standard streams belong to whoever runs this.
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

/// What we call ourselves.
pub const NAME: &str = "selvedge";
