//! Clients of other languages: the official OpenAI libraries, and a client that was generated from
//! the OpenAPI document.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::answer_encoding::text;
use crate::fixture::ServeFixture;
use crate::openai::{counts_messages, uses_client_tool};
use crate::server::{Asked, Reply};

/// Returns the folder that `scripts/setup-api-clients` filled, or `None` with a note if it was not
/// run. In CI that is a failure.
fn api_clients() -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/api-clients");
    let folder = std::env::var_os("SELVEDGE_API_CLIENTS").map_or_else(default, PathBuf::from);
    let is_complete = folder.join("node_modules/openai").exists()
        && folder.join("venv/bin/openapi-python-client").exists();
    if is_complete {
        return folder.canonicalize().ok();
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "scripts/setup-api-clients was not run"
    );
    eprintln!("skipped: scripts/setup-api-clients was not run");
    None
}

fn client_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/clients")
        .join(name)
}

fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{err}");
    out
}

/// A model that uses tools of the client and a command that needs approval if it is asked to, and
/// otherwise counts messages.
fn serves_clients(asked: &Asked) -> Reply {
    let messages = asked.body["messages"].as_array().unwrap();
    let last = messages.last().unwrap()["content"].to_string();
    let words = ["weather", "tomorrow", "degrees", "please", "was allowed"];
    match words.iter().any(|word| last.contains(word)) {
        true => uses_client_tool(asked),
        false => counts_messages(asked),
    }
}

#[test]
fn the_official_openai_libraries_work() {
    let Some(clients) = api_clients() else {
        return;
    };
    let fixture = ServeFixture::new(serves_clients);
    let (server, _client) = fixture.start();
    let url = format!("http://{}", server.address);
    let python = output_of(
        Command::new(clients.join("venv/bin/python"))
            .arg(client_file("openai_client.py"))
            .args([&url, &fixture.secret]),
    );
    let node = output_of(
        Command::new("node")
            .arg(client_file("openai_client.mjs"))
            .arg(&clients)
            .args([&url, &fixture.secret]),
    );
    let chat = "Let me see.\n\n\n3 messages";
    let expected = json!({
        "models": ["default"],
        "chat": chat,
        "streamed": chat,
        "tokens": 240,
        "first": "1 messages",
        "second": "2 messages",
        "refused": 400,
        "called": ["get_weather", "get_weather"],
        "warm": ["It is warm.", "It is warm."],
        "later": ["I know 2 results.", "I know 2 results."],
        "approved": [1, "allowed"],
    });
    for printed in [python, node] {
        let printed: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(printed, expected);
    }
}

#[test]
fn a_client_that_was_generated_from_the_openapi_document_drives_a_session() {
    let Some(clients) = api_clients() else {
        return;
    };
    let fixture = ServeFixture::new(|_| vec![text("generated answer")].into());
    let (server, client) = fixture.start();
    let dir = fixture.workspace.dir.path();
    let document = dir.join("openapi.json");
    std::fs::write(&document, client.get("/openapi.json").text).unwrap();
    output_of(
        Command::new(clients.join("venv/bin/openapi-spec-validator"))
            .arg(&document)
            .current_dir(dir),
    );
    let settings = dir.join("settings.yml");
    std::fs::write(
        &settings,
        "package_name_override: selvedge_client\npost_hooks: []\n",
    )
    .unwrap();
    let generated = dir.join("generated");
    let printed = output_of(
        Command::new(clients.join("venv/bin/openapi-python-client"))
            .args(["generate", "--fail-on-warning", "--path"])
            .arg(&document)
            .arg("--config")
            .arg(&settings)
            .arg("--output-path")
            .arg(&generated)
            .current_dir(dir),
    );
    let answer = output_of(
        Command::new(clients.join("venv/bin/python"))
            .arg(client_file("generated_client.py"))
            .arg(&generated)
            .args([&format!("http://{}", server.address), &fixture.secret]),
    );
    assert_eq!(answer, "generated answer\n", "{printed}");
}
