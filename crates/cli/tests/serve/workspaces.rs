//! What the turns of a workspace share.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;
use tempfile::TempDir;

use crate::answer_encoding::{block, text};
use crate::fixture::ServeFixture;
use crate::server::{Asked, Reply};
use crate::support::api::create_token;
use crate::support::{TEST_TIMEOUT, folder_without_commands};

/// Returns a fixture with an MCP server that writes a line to a file whenever it starts, and the
/// folder of that file, which agents cannot write.
fn with_mcp_server(
    script: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
) -> (ServeFixture, PathBuf, TempDir) {
    let fixture = ServeFixture::new(script);
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mcp/tests/servers/odd.py");
    let kept = folder_without_commands();
    let starts = kept.path().join("starts");
    let command = format!(
        "echo start >> '{}'; exec python3 '{}' good",
        starts.display(),
        program.display()
    );
    let server = format!(
        "[mcp_servers.odd]\ncommand = \"sh\"\nargs = [\"-c\", {command:?}]\n\
         default_tools_approval_mode = \"approve\"\nsampling = \"approve\"\n"
    );
    let config = crate::fixture::config_text(&fixture.model.url, "");
    fixture.workspace.config(&format!("{config}{server}"));
    (fixture, starts, kept)
}

fn lines(file: &Path) -> usize {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().count()
}

fn last_message(asked: &Asked) -> String {
    let messages = asked.body["messages"].as_array().unwrap();
    messages.last().unwrap()["content"].to_string()
}

#[test]
fn turns_of_a_workspace_share_its_mcp_server_until_a_reload() {
    let (fixture, starts, _kept) =
        with_mcp_server(|asked| match last_message(asked).contains("echo it") {
            true => vec![text(&block("return await tools.mcp.odd.echo({ x: 7 })"))].into(),
            false => vec![text("done")].into(),
        });
    let (server, client) = fixture.start();
    let sessions = [0; 2].map(|_| client.session(json!({})));
    for _ in 0..2 {
        let sent = sessions
            .each_ref()
            .map(|session| client.message(session, "echo it"));
        for (session, number) in sessions.iter().zip(sent) {
            assert_eq!(client.answer(session, number)["answer"], "done");
        }
    }
    assert_eq!(
        lines(&starts),
        1,
        "the server is started once for four turns"
    );
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    let deadline = Instant::now() + TEST_TIMEOUT;
    while lines(&starts) == 1 {
        assert!(Instant::now() < deadline, "the server is not started again");
        let number = client.message(&sessions[0], "echo it");
        assert_eq!(client.answer(&sessions[0], number)["answer"], "done");
    }
}

/// The model of each session answers with the name of the session, which is in its history.
#[test]
fn a_request_of_an_mcp_server_is_answered_in_the_turn_that_called_it() {
    let (fixture, _, _kept) = with_mcp_server(|asked| match last_message(asked) {
        last if last.contains("think about it") => {
            vec![text(&block("return await tools.mcp.odd.think({})"))].into()
        }
        last if last.contains("six times seven") => vec![text("forty-two")].into(),
        last => vec![text(&last)].into(),
    });
    let (_server, client) = fixture.start();
    for _ in 0..2 {
        let session = client.session(json!({"prompt": "think about it"}));
        let answer = client.answer(&session, 1)["answer"].to_string();
        assert!(answer.contains("forty-two"), "{answer}");
    }
}

#[test]
fn documents_are_indexed_once_for_all_turns_and_found_when_they_change() {
    let fixture = ServeFixture::new(|asked| match last_message(asked).contains("query") {
        true => vec![text(&block(
            "return (await workspace.query({ status: 'open' })).map((found) => found.path)",
        ))]
        .into(),
        false => vec![text(&last_message(asked))].into(),
    });
    let issues = fixture.workspace.work().join("issues");
    std::fs::create_dir(&issues).unwrap();
    let write = |name: &str| {
        std::fs::write(issues.join(name), "---\nstatus: open\n---\nText\n").unwrap();
    };
    write("one.md");
    let (_server, client) = fixture.start();
    let found = || {
        let session = client.session(json!({"prompt": "query"}));
        client.answer(&session, 1)["answer"].to_string()
    };
    assert!(found().contains("issues/one.md"));
    write("two.md");
    let answer = found();
    assert!(
        answer.contains("issues/one.md") && answer.contains("issues/two.md"),
        "{answer}"
    );
    // A person replaces the folder itself, not only its files, and says so.
    let work = fixture.workspace.work();
    let old = work.with_file_name("old");
    std::fs::rename(&work, &old).unwrap();
    std::fs::create_dir_all(&issues).unwrap();
    write("three.md");
    create_token(&fixture.workspace, &["again"]);
    let answer = found();
    assert!(
        answer.contains("issues/three.md") && !answer.contains("one.md"),
        "{answer}"
    );
}
