//! `selvedge serve`: sessions, messages, events and tokens over HTTP, with a model on loopback.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[allow(dead_code)]
#[path = "../../agent/tests/support/answer_encoding.rs"]
mod answer_encoding;

#[allow(dead_code)]
#[path = "../../agent/tests/support/server.rs"]
mod server;

#[path = "serve/access.rs"]
mod access;
#[path = "serve/approvals.rs"]
mod approvals;
#[path = "serve/clients.rs"]
mod clients;
#[path = "serve/deployment.rs"]
mod deployment;
#[path = "serve/example.rs"]
mod example;
#[path = "serve/faults.rs"]
mod faults;
#[path = "serve/fixture.rs"]
mod fixture;
#[path = "serve/framing.rs"]
mod framing;
#[path = "serve/hostile_cookies.rs"]
mod hostile_cookies;
#[path = "serve/hostile_folders.rs"]
mod hostile_folders;
#[path = "serve/hostile_git.rs"]
mod hostile_git;
#[path = "serve/hostile_redirects.rs"]
mod hostile_redirects;
#[path = "serve/hostile_requests.rs"]
mod hostile_requests;
#[path = "serve/hostile_revocation.rs"]
mod hostile_revocation;
#[path = "serve/hostile_scopes.rs"]
mod hostile_scopes;
#[path = "serve/hostile_scripts.rs"]
mod hostile_scripts;
#[path = "serve/hostile_shared.rs"]
mod hostile_shared;
#[path = "serve/isolation.rs"]
mod isolation;
#[path = "serve/kills.rs"]
mod kills;
#[path = "serve/lifecycle.rs"]
mod lifecycle;
#[path = "serve/limits.rs"]
mod limits;
#[path = "serve/lists.rs"]
mod lists;
#[path = "serve/login.rs"]
mod login;
#[path = "serve/machine_faults.rs"]
mod machine_faults;
#[path = "serve/mcp_programs.rs"]
mod mcp_programs;
#[path = "serve/memory_isolation.rs"]
mod memory_isolation;
#[path = "serve/openai.rs"]
mod openai;
#[path = "serve/page.rs"]
mod page;
#[path = "serve/page_api.rs"]
mod page_api;
#[path = "serve/page_browser.rs"]
mod page_browser;
#[path = "serve/page_data.rs"]
mod page_data;
#[path = "serve/recovery.rs"]
mod recovery;
#[path = "serve/resources.rs"]
mod resources;
#[path = "serve/resumed_scripts.rs"]
mod resumed_scripts;
#[path = "serve/routes.rs"]
mod routes;
#[path = "serve/sessions.rs"]
mod sessions;
#[path = "serve/shared.rs"]
mod shared;
#[path = "serve/spellings.rs"]
mod spellings;
#[path = "serve/spending.rs"]
mod spending;
mod support;
#[path = "serve/workspaces.rs"]
mod workspaces;
