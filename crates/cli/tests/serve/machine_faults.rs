//! Faults of the machine: a full disk, a clock that jumps, tools that never return.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::answer_encoding::{block, text};
use crate::fixture::ServeFixture;
use crate::recovery::{remaining_items, stored_items, wait_until};
use crate::support::api::{ApiServer, create_token};
use crate::support::{TEST_TIMEOUT, TestWorkspace};

/// Size of the disk that is filled, in megabytes.
const DISK_MEGABYTES: u64 = 12;

/// Returns a command for a server whose home is on a small disk of its own. The files of the home
/// are copied to it.
fn on_small_disk(fixture: &ServeFixture) -> Command {
    let home = fixture.workspace.home();
    let steps = "cp -a \"$1\" \"$1.copy\" && mount -t tmpfs -o \"size=$2m\" none \"$1\" && \
         cp -a \"$1.copy/.\" \"$1\" && exec \"$3\" serve --addr 127.0.0.1:0";
    let mut command = Command::new("unshare");
    command
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            steps,
            "sh",
        ])
        .arg(&home)
        .arg(DISK_MEGABYTES.to_string())
        .arg(env!("CARGO_BIN_EXE_selvedge"))
        .env("SELVEDGE_HOME", &home)
        .current_dir(fixture.workspace.work());
    command
}

/// Writes until the disk is full.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for size in [1 << 16, 1 << 10, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
}

#[test]
fn a_full_disk_loses_no_acknowledged_message() {
    if !crate::support::store::uses_files() {
        return;
    }
    let answer = Arc::new(AtomicBool::new(false));
    let ready = answer.clone();
    let fixture = ServeFixture::new(move |asked| {
        // The first turn is in the middle of an answer when the disk becomes full.
        while asked.number == 0 && !ready.load(Ordering::SeqCst) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        vec![text(&format!("answer {}", asked.number))].into()
    });
    let mut server = ApiServer::listen(on_small_disk(&fixture));
    let client = server.client(&fixture.secret);
    let session = client.session(json!({"prompt": "before"}));
    wait_until("the model is asked", || fixture.model.asked().len() == 1);
    let home = fixture.workspace.home();
    let root = PathBuf::from(format!("/proc/{}/root", server.child.id()));
    let filler = root.join(home.strip_prefix("/").unwrap()).join("filler");
    fill(&filler);
    answer.store(true, Ordering::SeqCst);
    // Space that the journal already has can still take some messages.
    let mut acknowledged = 1;
    let path = format!("/api/v1/sessions/{session}/messages");
    let refused = loop {
        let sent = client.post(&path, json!({"text": "x".repeat(20_000)}));
        if sent.status != 202 {
            break sent;
        }
        acknowledged += 1;
        assert!(acknowledged < 2_000, "the disk is not full");
    };
    assert_eq!(refused.status, 507, "{refused:?}");
    let error = &refused.body["error"];
    assert_eq!(error["code"], "disk_full", "{refused:?}");
    assert!(error["hint"].as_str().is_some(), "{refused:?}");
    // Reading works.
    assert_eq!(
        client.get(&format!("/api/v1/sessions/{session}")).status,
        200
    );
    assert_eq!(client.get("/healthz").status, 200);
    std::fs::remove_file(&filler).unwrap();
    for number in 1..=acknowledged {
        let message = client.answer(&session, number);
        assert_eq!(message["state"], "answered", "{message}");
    }
    assert_eq!(
        remaining_items(&client, &session),
        stored_items(&client, &session)
    );
    assert!(server.child.try_wait().unwrap().is_none());
}

/// Returns the library that sets the clock of a program, or `None` with a note. In CI a missing one
/// is a failure.
fn clock_library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten()
        .map(|folder| folder.path());
    let library = folders
        .chain([PathBuf::from("/usr/lib64")])
        .map(|folder| folder.join("faketime/libfaketimeMT.so.1"))
        .find(|path| path.exists());
    if library.is_none() {
        assert!(
            std::env::var_os("CI").is_none(),
            "the package faketime is not installed"
        );
        eprintln!("skipped: the package faketime is not installed");
    }
    library
}

#[test]
fn a_clock_that_jumps_changes_no_order_and_loses_nothing() {
    let Some(library) = clock_library() else {
        return;
    };
    let fixture =
        ServeFixture::new(
            |asked| match asked.body["messages"].as_array().unwrap().len() % 2 {
                0 => vec![text(&block("return await tools.listDir({ path: '.' })"))].into(),
                _ => vec![text("done")].into(),
            },
        );
    let workspace: &TestWorkspace = &fixture.workspace;
    let monthly = create_token(workspace, &["monthly", "--expires", "30d"]);
    let clock = workspace.dir.path().join("clock");
    let set_clock = |offset: &str| {
        let new = workspace.dir.path().join("new-clock");
        std::fs::write(&new, offset).unwrap();
        std::fs::rename(new, &clock).unwrap();
    };
    set_clock("+0");
    let mut command = workspace.command(&["serve", "--addr", "127.0.0.1:0"]);
    command
        .env("LD_PRELOAD", library)
        .env("FAKETIME_TIMESTAMP_FILE", &clock)
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let server = ApiServer::listen(command);
    let client = server.client(&fixture.secret);
    let session = client.session(json!({}));
    let mut reader = client.follow(&session, None);
    let mut numbers = Vec::new();
    for (round, (offset, status)) in [("+0", 200), ("+400d", 401), ("-400d", 200), ("+0", 200)]
        .into_iter()
        .enumerate()
    {
        set_clock(offset);
        let headers = [("Idempotency-Key", format!("key {round}"))];
        let headers = headers
            .each_ref()
            .map(|(name, value)| (*name, value.as_str()));
        let path = format!("POST /api/v1/sessions/{session}/messages");
        let body = json!({"text": "go"}).to_string();
        let sent = [0; 2].map(|_| client.request(&path, &headers, &body));
        assert_eq!(
            sent[0].body["number"],
            round as u64 + 1,
            "{offset}: {sent:?}"
        );
        assert_eq!(sent[1].body["number"], sent[0].body["number"], "{offset}");
        let answer = client.answer(&session, round as u64 + 1);
        assert_eq!(answer["state"], "answered", "{offset}: {answer}");
        numbers.extend(
            reader
                .until("turn.completed")
                .into_iter()
                .filter_map(|event| event.0),
        );
        assert_eq!(
            server.client(&monthly).get("/metrics").status,
            status,
            "{offset}"
        );
        let posted = client.post("/api/v1/channels/log/messages", json!({"text": offset}));
        assert_eq!(posted.status, 201, "{posted:?}");
    }
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    let posts = client.get("/api/v1/channels/log/messages");
    let texts = posts.body["messages"].as_array().unwrap().iter();
    let texts: Vec<&str> = texts.map(|post| post["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["+0", "+400d", "-400d", "+0"]);
    assert_eq!(
        remaining_items(&client, &session),
        stored_items(&client, &session)
    );
}

#[test]
fn a_tool_that_hangs_holds_its_own_session_only() {
    let fixture = ServeFixture::new(|asked| {
        let messages = asked.body["messages"].as_array().unwrap();
        let last = messages.last().unwrap()["content"].to_string();
        match () {
            () if last.contains("hang in a command") => vec![text(&block(
                "await tools.exec({ command: ['sh', '-c', 'touch hangs; sleep 1000'] })",
            ))]
            .into(),
            () if last.contains("hang in a server") => {
                vec![text(&block("await tools.odd.hang({})"))].into()
            }
            () => vec![text("hello")].into(),
        }
    });
    fixture.add_config(&TestWorkspace::odd("odd", "plain"));
    let (_server, client) = fixture.start();
    let hanging = ["hang in a command", "hang in a server"]
        .map(|prompt| client.session(json!({"prompt": prompt})));
    let marker = fixture.workspace.work().join("hangs");
    wait_until("the command starts", || marker.exists());
    let other = client.session(json!({}));
    for _ in 0..10 {
        let number = client.message(&other, "hi");
        assert_eq!(client.answer(&other, number)["answer"], "hello");
    }
    // A person can stop what hangs, and the session takes the next message.
    for session in hanging {
        let stopped = client.post(&format!("/api/v1/sessions/{session}/stop"), json!({}));
        assert_eq!(stopped.status, 200, "{stopped:?}");
        let started = std::time::Instant::now();
        client.answer(&session, 1);
        assert!(
            started.elapsed() < TEST_TIMEOUT / 3,
            "stopping took too long"
        );
        let number = client.message(&session, "hi");
        assert_eq!(client.answer(&session, number)["answer"], "hello");
    }
}
