//! The turn loop: assembles the prompt, asks the model, runs the scripts and calls of its answer,
//! records everything, and repeats until the model is done.
//!
//! ```no_run
//! use std::sync::Arc;
//! use selvedge_agent::{Agent, AgentOptions, Session, SubAgents, TurnOptions};
//! use selvedge_journal::Journal;
//! use selvedge_models::{Model, ModelClient, Provider, Secret};
//! use selvedge_protocol::{EventSink, RuntimeEvent, TurnEnd};
//! use selvedge_script::Harness;
//! use selvedge_tools::{Orchestrator, Registry};
//!
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! let journal = Journal::open("/home/me/.selvedge")?;
//! let mut registry = Registry::new();            // your tools, or those of `selvedge-toolbox`
//! let sub_agents = SubAgents::default();
//! sub_agents.register(&mut registry)?;           // `agents.launch.sync` and the other tools
//! let orchestrator = Orchestrator::new(registry).with_ledger(journal.clone());
//!
//! let mut provider = Provider::find_built_in("anthropic").expect("the provider is built in");
//! provider.key = Some(Secret::new("sk-…"));
//! let options = AgentOptions {
//!     directory: "/home/me/project".into(),
//!     ..AgentOptions::default()
//! };
//! let model = Model::from_table("claude-sonnet-5");
//! let client = ModelClient::new(provider)?;
//! let agent = Agent::new(client, model, Harness::new(orchestrator)?, options)
//!     .with_sub_agents(&sub_agents, Some(journal.clone()));
//!
//! // A new session; `Session::open(&journal, id)` opens an earlier one.
//! let mut session = Session::begin(&journal, "/home/me/project").await?;
//! let options = TurnOptions {
//!     events: EventSink::new(|event| match event {
//!         RuntimeEvent::ItemUpdated { delta, .. } => print!("{delta}"),
//!         RuntimeEvent::CallStarted { tool, args_summary, .. } => {
//!             eprintln!("{tool} {args_summary}")
//!         }
//!         _ => {}
//!     }),
//!     ..TurnOptions::default()
//! };
//! // `options.cancel.cancel()` stops the turn and the sub-agents it launched. The session remains.
//! let outcome = agent.run_turn(&mut session, "Which tests fail, and why?", &options).await;
//! if outcome.end == Ok(TurnEnd::Stop) {
//!     println!("{}", outcome.message.unwrap_or_default());
//! }
//! // After a crash: recorded calls do not run again.
//! if session.has_open_turn() {
//!     agent.run_open_turn(&mut session, &options).await;
//! }
//! # Ok(()) }
//! ```
//!
//! Every answer is recorded in the journal before its scripts and calls run. [`Agent::run_turn`] is
//! the turn loop. A [`HistoryStrategy`] chooses which earlier turns a prompt contains. A
//! [`TurnHook`] adds text to the user's message of the current turn.
// Only the program that uses this crate writes to the standard streams.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod agent;
mod agent_memory;
mod agent_model;
mod answer;
mod answer_cut;
mod budget;
mod change_tracker;
mod charged_model;
mod compaction;
mod copied_block;
mod environment;
mod error;
mod execution;
mod forget;
mod history;
mod kept_session;
mod metrics;
mod missing_turns;
mod model_request;
mod options;
mod past_turns;
mod prompt;
mod recovery;
mod remote_encoder;
mod resume;
mod sampling;
mod script_call;
mod script_result;
mod session;
mod session_pages;
mod session_record;
mod small_model;
mod stop;
mod sub_agents;
mod token_estimate;
mod turn;
mod turn_documents;
mod turn_hook;

pub use agent::Agent;
pub use agent_memory::{
    AgentMemory, AgentMemoryOptions, AgentProject, BackgroundWork, HistoryStrategyKind,
};
pub use agent_model::AgentModel;
pub use change_tracker::ChangeTracker;
pub use charged_model::TurnCharge;
pub use environment::AgentEnvironment;
pub use error::AgentError;
pub use history::{HistoryStrategy, OneShotHistory, PastTurns, RegularHistory};
pub use kept_session::KeptSession;
pub use options::{AfterBlock, AgentOptions, AgentToolOffer, BudgetLimits};
pub use recovery::cancelled_output;
pub use remote_encoder::RemoteEncoder;
pub use resume::{ChainEnd, ResumeError, recorded_task, resume_input, resume_input_of_run};
pub use sampling::{TurnSamplingRequest, TurnSamplingResponse};
pub use script_result::shown_text;
pub use selvedge_protocol::BlockOrder;
pub use session::{Session, TurnAuthor, TurnInput};
pub use session_pages::{SessionPage, SessionPages};
pub use session_record::{SessionStep, SessionStepKind};
pub use small_model::SmallModelClient;
pub use stop::{
    ChildSessions, TurnActivity, claim_between_turns, request_stop, wait_until_stopped,
};
pub use sub_agents::{BackgroundPolicy, SubAgents};
pub use turn::{TurnOptions, TurnOutcome};
pub use turn_hook::{TurnAdditions, TurnHook};
