//! The official conformance suite against our client.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use selvedge_mcp::{
    AskError, AskPerson, Asked, Elicitation, Elicited, Login, Reach, ServerSettings, Servers,
};
use serde_json::json;
use support::{peers, value};

/// Each scenario, and the script that does what it wants done.
const SCENARIOS: [(&str, &str); 14] = [
    ("initialize", "return Object.keys(tools.mcp.peer)"),
    ("tools_call", "return await peer.addNumbers({ a: 5, b: 3 })"),
    (
        "elicitation-sep1034-client-defaults",
        "return await peer.testClientElicitationDefaults({})",
    ),
    ("sse-retry", "return await peer.testReconnection({})"),
    ("auth/metadata-default", LOOK),
    ("auth/metadata-var1", LOOK),
    ("auth/metadata-var2", LOOK),
    ("auth/metadata-var3", LOOK),
    ("auth/scope-from-www-authenticate", LOOK),
    ("auth/scope-from-scopes-supported", LOOK),
    ("auth/scope-omitted-when-undefined", LOOK),
    ("auth/token-endpoint-auth-basic", LOOK),
    ("auth/token-endpoint-auth-post", LOOK),
    ("auth/token-endpoint-auth-none", LOOK),
];

const LOOK: &str =
    "const [name] = Object.keys(tools.mcp.peer); return await tools.mcp.peer[name]({})";

#[test]
fn the_conformance_suite_passes_for_our_client() {
    let Some(peers) = peers() else { return };
    // The suite starts a client: this very program, which then runs the test below alone.
    let client = format!(
        "{} --exact client_of_the_suite --nocapture",
        std::env::current_exe().unwrap().display()
    );
    let dir = tempfile::tempdir().unwrap();
    for (scenario, _) in SCENARIOS {
        let output = Command::new(peers.join("node_modules/.bin/node"))
            .arg(peers.join("node_modules/.bin/conformance"))
            .args(["client", "--command", &client, "--scenario", scenario])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{scenario}:\n{said}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// A person who agrees to every form as it stands.
struct Agreeable;

impl AskPerson for Agreeable {
    fn elicit<'a>(&'a self, _: &'a Elicitation) -> BoxFuture<'a, Result<Elicited, AskError>> {
        Box::pin(async { Ok(Elicited::Accepted(json!({}))) })
    }
}

#[tokio::test]
async fn client_of_the_suite() {
    let Ok(wanted) = std::env::var("MCP_CONFORMANCE_SCENARIO") else {
        return;
    };
    let (_, script) = SCENARIOS
        .iter()
        .find(|(scenario, _)| *scenario == wanted)
        .unwrap();
    // The suite adds the address of its server as the last word.
    let url = std::env::args().next_back().unwrap();
    let reach = Reach::Http {
        url,
        bearer_token_env_var: None,
        headers: Default::default(),
    };
    let asked = Asked {
        person: Some(Arc::new(Agreeable)),
        model: None,
    };
    let settings = ServerSettings::new("peer", reach);
    let home = tempfile::tempdir().unwrap();
    if wanted.starts_with("auth/") {
        let login = Login::begin(&settings, home.path()).await.unwrap();
        // The browser of somebody who agrees: it follows where it is sent, which is back to us.
        let browser = tokio::spawn(reqwest::get(login.address().to_owned()));
        login.finish(Duration::from_secs(20)).await.unwrap();
        browser.await.unwrap().unwrap();
    }
    let servers = Servers::new(vec![settings], asked, Some(home.path().to_owned()));
    println!("{}", value(&servers, script).await);
    servers.stop().await;
}
