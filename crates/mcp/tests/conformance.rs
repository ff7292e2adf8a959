//! The official conformance suite against our client.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::process::Command;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use selvedge_mcp::{AskPerson, Asked, Elicited, Reach, ServerSettings, Servers};
use serde_json::{Value, json};
use support::{peers, value};

/// Each scenario, and the script that does what it wants done.
const SCENARIOS: [(&str, &str); 4] = [
    ("initialize", "return Object.keys(tools.mcp.peer)"),
    ("tools_call", "return await peer.addNumbers({ a: 5, b: 3 })"),
    ("elicitation-sep1034-client-defaults", "return await peer.testClientElicitationDefaults({})"),
    ("sse-retry", "return await peer.testReconnection({})"),
];

#[test]
fn the_conformance_suite_passes_for_our_client() {
    let Some(peers) = peers() else { return };
    // The suite starts a client: this very program, which then runs the test below alone.
    let client = format!("{} --exact client_of_the_suite --nocapture", std::env::current_exe().unwrap().display());
    let dir = tempfile::tempdir().unwrap();
    for (scenario, _) in SCENARIOS {
        let output = Command::new(peers.join("node_modules/.bin/node"))
            .arg(peers.join("node_modules/.bin/conformance"))
            .args(["client", "--command", &client, "--scenario", scenario])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{scenario}:\n{said}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A person who agrees to every form as it stands.
struct Agreeable;

impl AskPerson for Agreeable {
    fn elicit<'a>(&'a self, _: &'a str, _: Option<String>, _: Value) -> BoxFuture<'a, Elicited> {
        Box::pin(async { Elicited::Accepted(json!({})) })
    }
}

#[tokio::test]
async fn client_of_the_suite() {
    let Ok(wanted) = std::env::var("MCP_CONFORMANCE_SCENARIO") else { return };
    let (_, script) = SCENARIOS.iter().find(|(scenario, _)| *scenario == wanted).unwrap();
    // The suite adds the address of its server as the last word.
    let url = std::env::args().next_back().unwrap();
    let reach = Reach::Http { url, bearer_token_env_var: None, headers: Default::default() };
    let asked = Asked { person: Some(Arc::new(Agreeable)), model: None };
    let servers = Servers::new(vec![ServerSettings::new("peer", reach)], asked, None);
    println!("{}", value(&servers, script).await);
    servers.stop().await;
}
