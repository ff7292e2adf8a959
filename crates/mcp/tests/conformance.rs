//! Runs the official MCP conformance suite against the client of this crate.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use selvedge_mcp::{
    ElicitationHandler, ElicitationRequest, ElicitationResponse, Login, McpTransport,
    ServerRequestError, ServerRequestHandlers, ServerSettings, Servers,
};
use serde_json::json;
use support::{peers, value};

/// Each scenario of the suite, and the script that performs it.
const SCENARIOS: [(&str, &str); 14] = [
    ("initialize", "return Object.keys(tools.mcp.peer)"),
    ("tools_call", "return await peer.addNumbers({ a: 5, b: 3 })"),
    (
        "elicitation-sep1034-client-defaults",
        "return await peer.testClientElicitationDefaults({})",
    ),
    ("sse-retry", "return await peer.testReconnection({})"),
    ("auth/metadata-default", CALL_FIRST_TOOL),
    ("auth/metadata-var1", CALL_FIRST_TOOL),
    ("auth/metadata-var2", CALL_FIRST_TOOL),
    ("auth/metadata-var3", CALL_FIRST_TOOL),
    ("auth/scope-from-www-authenticate", CALL_FIRST_TOOL),
    ("auth/scope-from-scopes-supported", CALL_FIRST_TOOL),
    ("auth/scope-omitted-when-undefined", CALL_FIRST_TOOL),
    ("auth/token-endpoint-auth-basic", CALL_FIRST_TOOL),
    ("auth/token-endpoint-auth-post", CALL_FIRST_TOOL),
    ("auth/token-endpoint-auth-none", CALL_FIRST_TOOL),
];

const CALL_FIRST_TOOL: &str =
    "const [name] = Object.keys(tools.mcp.peer); return await tools.mcp.peer[name]({})";

#[test]
fn the_conformance_suite_passes() {
    let Some(peers) = peers() else { return };
    // The suite starts a client: this test program, with the test below.
    let client = format!(
        "{} --exact conformance_client --nocapture",
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
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{scenario}:\n{stdout}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// A person who accepts the defaults of every form.
struct Agreeable;

impl ElicitationHandler for Agreeable {
    fn elicit<'a>(
        &'a self,
        _: &'a ElicitationRequest,
    ) -> BoxFuture<'a, Result<ElicitationResponse, ServerRequestError>> {
        Box::pin(async { Ok(ElicitationResponse::Accepted(json!({}))) })
    }
}

#[tokio::test]
async fn conformance_client() {
    let Ok(requested) = std::env::var("MCP_CONFORMANCE_SCENARIO") else {
        return;
    };
    let (_, script) = SCENARIOS
        .iter()
        .find(|(scenario, _)| *scenario == requested)
        .unwrap();
    // The suite passes the URL of its server as the last argument.
    let url = std::env::args().next_back().unwrap();
    let reach = McpTransport::Http {
        url,
        bearer_token_env_var: None,
        headers: Default::default(),
    };
    let handlers = ServerRequestHandlers {
        elicitation: Some(Arc::new(Agreeable)),
        sampling: None,
    };
    let settings = ServerSettings::new("peer", reach);
    let home = tempfile::tempdir().unwrap();
    if requested.starts_with("auth/") {
        let login = Login::start(&settings, home.path()).await.unwrap();
        // Acts as the browser: it follows the redirect to the callback URL.
        let browser = tokio::spawn(reqwest::get(login.authorization_url().to_owned()));
        login.finish(Duration::from_secs(20)).await.unwrap();
        browser.await.unwrap().unwrap();
    }
    let servers = Servers::new(vec![settings], handlers, Some(home.path().to_owned()));
    println!("{}", value(&servers, script).await);
    servers.stop().await;
}
