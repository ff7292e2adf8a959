//! What a revoked token still has: turns, queued messages, sessions that its scripts created,
//! resumed scripts, streams, open requests, stored answers and turns that wait for its tools.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use serde_json::json;

use crate::fixture::ServeFixture;
use crate::isolation::{run_script, runs_scripts};
use crate::shared::wait_until;
use crate::support::TEST_TIMEOUT;
use crate::support::api::{ALL_SCOPES, ApiServer, create_token};

/// A script whose command adds a line to a file again and again.
fn endless(file: &str) -> String {
    let command = json!([
        "sh",
        "-c",
        format!("while true; do echo x >> {file}; sleep 0.05; done")
    ]);
    format!("await tools.exec({{ command: {command}, timeoutMs: 60000 }}); return 1")
}

fn size(path: &Path) -> u64 {
    path.metadata().map_or(0, |file| file.len())
}

#[test]
fn nothing_of_a_revoked_token_goes_on_at_any_server() {
    let fixture = ServeFixture::new(runs_scripts);
    let work = fixture.workspace.work();
    let (server, keeper) = fixture.start();
    // A second process with the same journal.
    let second = ApiServer::start(&fixture.workspace);
    let secret = create_token(&fixture.workspace, &[&["brief"], &ALL_SCOPES[..]].concat());
    let (client, elsewhere) = (server.client(&secret), second.client(&secret));

    let first = client.session(json!({}));
    run_script(&client, &first, "return 1");
    let run = client.get("/api/v1/runs").body["runs"][0]["id"].clone();
    let resumed = elsewhere.post(
        &format!("/api/v1/runs/{}/resume", run.as_str().unwrap()),
        json!({"source": endless("resumed")}),
    );
    assert_eq!(resumed.status, 202, "{resumed:?}");
    let resumed = resumed.body["id"].as_str().unwrap().to_owned();
    let busy = client.session(json!({}));
    let running = client.message(&busy, &format!("RUN:{}", endless("turn")));
    let queued = client.message(&busy, "later");
    let creator = client.session(json!({}));
    let send = json!(format!("RUN:{}", endless("child")));
    let code = format!(
        "const child = await sessions.create({{}}); \
         await sessions.send({{ id: child.id, message: {send} }}); \
         return `CHILD ${{child.id}} END`"
    );
    let answer = run_script(&client, &creator, &code);
    let child = answer.split_once("CHILD ").unwrap().1;
    let child = child.split_once(' ').unwrap().0;
    let files = ["resumed", "turn", "child"].map(|name| work.join(name));
    wait_until("all commands run", || {
        files.iter().all(|file| size(file) > 0)
    });

    let streams = [
        client.send(&format!("GET /api/v1/sessions/{busy}/events"), &[], ""),
        client.send("GET /api/v1/approvals/events", &[], ""),
        elsewhere.send(&format!("GET /api/v1/sessions/{busy}/events"), &[], ""),
    ];
    let waits = client.send(
        &format!("GET /api/v1/sessions/{busy}/messages/{running}?wait_ms=60000"),
        &[],
        "",
    );
    let key = [("Idempotency-Key", "k1")];
    let create = || client.request("POST /api/v1/sessions", &key, "{}").status;
    assert_eq!(create(), 201);
    // A connection that stays open.
    let mut open = TcpStream::connect(&client.address).unwrap();
    open.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let request = format!(
        "GET /api/v1/workspaces HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {secret}\r\n\r\n",
        client.address
    );
    let mut status_of_open = || {
        open.write_all(request.as_bytes()).unwrap();
        let mut bytes = [0; 4096];
        let count = open.read(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count])[9..12].to_owned()
    };
    assert_eq!(status_of_open(), "200");

    let revoke = ["serve", "token", "revoke", "brief"];
    assert!(
        fixture
            .workspace
            .command(&revoke)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(status_of_open(), "401");
    assert_eq!(create(), 401, "a stored answer is not repeated");
    assert_eq!(elsewhere.get("/api/v1/sessions").status, 401);
    for mut stream in streams {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
    }
    let mut answer = String::new();
    let mut waits = waits;
    waits.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    assert_eq!(keeper.answer(&busy, running)["state"], "stopped");
    let failed = keeper.answer(&busy, queued);
    assert_eq!(
        failed["answer"], "the token `brief` was revoked",
        "{failed}"
    );
    assert_eq!(keeper.answer(child, 1)["state"], "stopped");
    wait_until("the resumed script ends", || {
        keeper.get(&format!("/api/v1/runs/{resumed}")).body["run"]["state"] == "failed"
    });
    // Every command has ended with its script: no file grows while another command runs.
    let sizes = files.each_ref().map(|file| size(file));
    let pause = "await tools.exec({ command: ['sleep', '0.5'] }); return 1";
    run_script(&keeper, &keeper.session(json!({})), pause);
    assert_eq!(files.each_ref().map(|file| size(file)), sizes);
}
