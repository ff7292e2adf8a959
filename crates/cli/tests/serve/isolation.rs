//! What a client and its agents cannot reach: other workspaces, files behind links, and rights that
//! were not granted.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::answer_encoding::{block, text};
use crate::fixture::ServeFixture;
use crate::server::{Asked, Reply};
use crate::support::api::{ApiClient, ApiServer, create_token};
use crate::support::{TEST_TIMEOUT, folder_without_commands, store};

/// Returns the text of the last message, without what memory added.
pub fn last_text(asked: &Asked) -> String {
    let messages = asked.body["messages"].as_array().unwrap();
    let content = &messages.last().unwrap()["content"];
    let text = content.as_str().or(content[0]["text"].as_str());
    let text = text.unwrap_or_default();
    text.split("\n\n<recalled>").next().unwrap().to_owned()
}

/// A model that runs the script after `RUN:` in its last message, and then repeats the result.
pub fn runs_scripts(asked: &Asked) -> Reply {
    let last = last_text(asked);
    match last.split_once("RUN:") {
        Some((_, code)) => vec![text(&block(code))].into(),
        None => vec![text(&last)].into(),
    }
}

/// Runs a script in a session, and returns the answer, which has the result.
pub fn run_script(client: &ApiClient, session: &str, code: &str) -> String {
    let number = client.message(session, &format!("RUN:{code}"));
    client.answer(session, number)["answer"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

pub fn wait_for_approval(client: &ApiClient) -> Value {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let approvals = client.get("/api/v1/approvals");
        if let Some(approval) = approvals.body["approvals"].get(0) {
            return approval.clone();
        }
        assert!(Instant::now() < deadline, "no approval was requested");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_session_in_another_workspace_is_approved_by_a_token_that_reaches_both() {
    let other = tempfile::tempdir().unwrap();
    let folder = other.path().canonicalize().unwrap();
    let more = format!(
        "[environments.other]\nworkspace = {:?}",
        folder.display().to_string()
    );
    let fixture = ServeFixture::with_config(&more, runs_scripts);
    let (server, client) = fixture.start();
    let folder = folder.to_str().unwrap();
    let work = fixture.workspace.work();
    let args = [
        "both",
        "--scope",
        "approvals",
        "--workspace",
        work.to_str().unwrap(),
        "--workspace",
        folder,
    ];
    let both = server.client(&create_token(&fixture.workspace, &args));
    for decision in ["once", "all_later_calls"] {
        let session = client.session(json!({}));
        // An approval of all later calls of the script does not cover another folder.
        let first = match decision {
            "once" => "",
            _ => "await tools.exec({ command: ['rm', '-rf', 'doomed'] });",
        };
        let code =
            format!("{first} const s = await sessions.create({{ env: 'other' }}); return s.id");
        let number = client.message(&session, &format!("RUN:{code}"));
        if decision == "all_later_calls" {
            let asked = wait_for_approval(&client);
            let path = format!("/api/v1/approvals/{}", asked["id"].as_str().unwrap());
            assert_eq!(
                client.post(&path, json!({"decision": decision})).status,
                200
            );
        }
        let deadline = Instant::now() + TEST_TIMEOUT;
        let approval = loop {
            let approval = wait_for_approval(&client);
            if approval["calls"][0]["tool"] == "sessions.create" {
                break approval;
            }
            assert!(Instant::now() < deadline, "{approval}");
        };
        assert_eq!(approval["calls"][0]["folder"], folder, "{approval}");
        let path = format!("/api/v1/approvals/{}", approval["id"].as_str().unwrap());
        let refused = client.post(&path, json!({"decision": "once"}));
        assert_eq!(refused.status, 403, "{refused:?}");
        let approved = both.post(&path, json!({"decision": "once"}));
        assert_eq!(approved.status, 200, "{approved:?}");
        assert_eq!(client.answer(&session, number)["state"], "answered");
    }
}

#[test]
fn stored_documents_and_prompts_belong_to_the_workspace() {
    let fixture = ServeFixture::new(runs_scripts);
    let other = fixture.workspace.dir.path().join("other");
    std::fs::create_dir_all(&other).unwrap();
    let (server, client) = fixture.start();
    let args = ["b", "--workspace", other.to_str().unwrap()];
    let foreign = server.client(&create_token(&fixture.workspace, &args));
    let session = client.session(json!({}));
    let save = "const d = await tools.saveToFc({ content: 'zebra text' }); \
        const p = await tools.prompts.save({ prompts: 'zebra prompt' }); \
        return `KEYS ${d.fileKey} ${p.keys[0]} END`";
    let saved = run_script(&client, &session, save);
    let keys = saved
        .split_once("KEYS ")
        .unwrap_or_else(|| panic!("{saved}"));
    let keys = keys.1.split(' ');
    let keys: Vec<&str> = keys.take(2).collect();
    let read = format!(
        "const out = []; \
         try {{ out.push(JSON.stringify(await tools.fetchFromFc('{}'))) }} catch (e) {{ out.push('no') }} \
         try {{ out.push((await tools.prompts.get('{}')).prompts[0]) }} catch (e) {{ out.push('no') }} \
         return out.join(' ')",
        keys[0], keys[1]
    );
    let same = run_script(&client, &client.session(json!({})), &read);
    assert!(
        same.contains("zebra text") && same.contains("zebra prompt"),
        "{same}"
    );
    let hidden = run_script(&foreign, &foreign.session(json!({})), &read);
    assert!(!hidden.contains("zebra"), "{hidden}");
    // A person at the terminal of the workspace finds them.
    let args = ["run", "-e", &read];
    let output = fixture.workspace.command(&args).output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        out.contains("zebra text") && out.contains("zebra prompt"),
        "{output:?}"
    );
}

#[test]
fn a_document_is_not_read_through_a_link_that_appears_meanwhile() {
    let fixture = ServeFixture::new(runs_scripts);
    let (work, other) = (fixture.workspace.work(), tempfile::tempdir().unwrap());
    std::fs::write(other.path().join("x.md"), "of another folder").unwrap();
    std::fs::create_dir(work.join("real")).unwrap();
    std::fs::write(work.join("real/x.md"), "of this folder").unwrap();
    std::fs::create_dir(work.join("race")).unwrap();
    std::fs::write(work.join("race/x.md"), "of this folder").unwrap();
    std::os::unix::fs::symlink(other.path(), work.join("link")).unwrap();
    let (_server, client) = fixture.start();
    let read = || client.get("/api/v1/documents?path=race/x.md");
    assert!(read().text.contains("of this folder"), "{:?}", read());
    let stop = std::sync::atomic::AtomicBool::new(false);
    let leaked = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Exchanges the folder and the link, as fast as possible.
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                let cwd = rustix::fs::CWD;
                rustix::fs::renameat_with(cwd, work.join("race"), cwd, work.join("link"), flags)
                    .unwrap();
            }
        });
        let leaked = (0..400)
            .filter(|_| read().text.contains("of another folder"))
            .count();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        leaked
    });
    assert_eq!(leaked, 0);
}

#[test]
fn selvedge_trust_does_not_count_for_the_folders_of_a_server() {
    let fixture = ServeFixture::new(runs_scripts);
    let (sub, secret) = fixture.other_workspace("sub");
    std::fs::create_dir_all(sub.join(".selvedge")).unwrap();
    let ran = sub.join("ran");
    let config = format!(
        "[mcp_servers.x]\ncommand = \"touch\"\nargs = [{:?}]\n",
        ran.display().to_string()
    );
    std::fs::write(sub.join(".selvedge/config.toml"), config).unwrap();
    let mut command = fixture
        .workspace
        .command(&["serve", "--addr", "127.0.0.1:0"]);
    command.env("SELVEDGE_TRUST", "1");
    let server = crate::support::api::ApiServer::listen(command);
    let client = server.client(&secret);
    let session = client.session(json!({}));
    let answer = run_script(&client, &session, "return Object.keys(tools).join()");
    assert!(!answer.is_empty() && !ran.exists(), "{answer}");
}

#[test]
fn a_fork_keeps_the_environment_and_the_permissions() {
    let more = "[environments.strict]\nsandbox_mode = \"read-only\"";
    let fixture = ServeFixture::with_config(more, runs_scripts);
    let (_server, client) = fixture.start();
    let write = "try { await tools.writeFile({ path: 'a.txt', content: 'a' }); return 'written' } \
        catch (e) { return 'refused' }";
    let session = client.session(json!({"environment": "strict"}));
    assert!(run_script(&client, &session, write).contains("refused"));
    let fork = |id: &str| {
        let fork = client.post(&format!("/api/v1/sessions/{id}/fork"), json!({}));
        assert_eq!(fork.status, 201, "{fork:?}");
        fork.body
    };
    let forked = fork(&session);
    assert_eq!(forked["environment"], "strict", "{forked}");
    let answer = run_script(&client, forked["id"].as_str().unwrap(), write);
    assert!(answer.contains("refused"), "{answer}");
    // A session that a script of a stricter session created stays below it, also as a fork.
    let create = "const s = await sessions.create({ title: 'kid' }); return `ID ${s.id} END`";
    let created = run_script(&client, &session, create);
    let kid = created.split_once("ID ").unwrap().1;
    let kid = kid.split_once(' ').unwrap().0;
    let forked = fork(kid);
    assert_eq!(forked["creator"], json!(session), "{forked}");
    let answer = run_script(&client, forked["id"].as_str().unwrap(), write);
    assert!(answer.contains("refused"), "{answer}");
}

#[test]
fn a_turn_is_not_reverted_in_the_target_of_a_link() {
    let fixture = ServeFixture::new(runs_scripts);
    let (folder, secret) = fixture.other_workspace("sub");
    let other = tempfile::tempdir().unwrap();
    std::fs::write(folder.join("rules.toml"), "old").unwrap();
    let (server, _) = fixture.start();
    let client = server.client(&secret);
    let session = client.session(json!({}));
    run_script(
        &client,
        &session,
        "await tools.applyPatch('*** Begin Patch\\n*** Delete File: rules.toml\\n*** End Patch')",
    );
    assert!(!folder.join("rules.toml").exists());
    std::fs::rename(&folder, folder.with_file_name("old")).unwrap();
    std::os::unix::fs::symlink(other.path(), &folder).unwrap();
    let reverted = client.post(&format!("/api/v1/sessions/{session}/revert"), json!({}));
    assert!(reverted.status >= 400, "{reverted:?}");
    // Another machine that shares the database may have the folder.
    let refusal = match store::uses_files() {
        true => "another folder is in the place of",
        false => "does not serve the workspace",
    };
    assert!(reverted.text.contains(refusal), "{reverted:?}");
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 0);
}

#[test]
fn no_session_works_in_a_protected_folder() {
    let fixture = ServeFixture::new(runs_scripts);
    let work = fixture.workspace.work().canonicalize().unwrap();
    for folder in [
        ".git/hooks",
        ".selvedge",
        "sub/.vscode",
        "bare/objects",
        "plain",
    ] {
        std::fs::create_dir_all(work.join(folder)).unwrap();
    }
    std::fs::write(work.join("bare/HEAD"), "ref: refs/heads/main\n").unwrap();
    let (_server, client) = fixture.start();
    for folder in [
        ".git",
        ".git/hooks",
        ".selvedge",
        "sub/.vscode",
        "bare",
        "bare/objects",
    ] {
        let body = json!({"workspace": work.join(folder)});
        let refused = client.post("/api/v1/sessions", body);
        assert_eq!(refused.status, 404, "{folder}: {refused:?}");
    }
}

#[test]
fn an_environment_leads_to_no_folder_below_a_workspace() {
    let more = "[environments.web]\nworkspace = \"web\"";
    let fixture = ServeFixture::with_config(more, runs_scripts);
    let work = fixture.workspace.work().canonicalize().unwrap();
    std::fs::create_dir_all(work.join(".git/hooks")).unwrap();
    let (_server, client) = fixture.start();
    let environment = json!({"environment": "web"});
    let completion = json!({"model": "web", "messages": [{"role": "user", "content": "hi"}]});
    let check_refused = || {
        let refused = client.post("/api/v1/sessions", environment.clone());
        assert_eq!(refused.status, 403, "{refused:?}");
        let refused = client.post("/v1/chat/completions", completion.clone());
        assert_eq!(refused.status, 404, "{refused:?}");
    };
    std::fs::create_dir(work.join("web")).unwrap();
    check_refused();
    std::fs::remove_dir(work.join("web")).unwrap();
    std::os::unix::fs::symlink(".git/hooks", work.join("web")).unwrap();
    check_refused();
}

/// A session that a person began at a terminal in a folder below the workspace.
#[test]
fn sessions_of_folders_below_a_workspace_do_not_exist_for_clients() {
    let fixture = ServeFixture::new(runs_scripts);
    let below = fixture.workspace.work().join("below");
    std::fs::create_dir(&below).unwrap();
    let mut begin = fixture.workspace.command(&["exec", "hello"]);
    let begun = begin.current_dir(&below).output().unwrap();
    assert!(begun.status.success(), "{begun:?}");
    let mut list = fixture.workspace.command(&["sessions", "list", "--json"]);
    let listed = list.output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let session = listed[0]["id"].as_str().unwrap();
    let follow = ["channels", "follow", "news", session];
    let followed = fixture.workspace.command(&follow).output().unwrap();
    assert!(followed.status.success(), "{followed:?}");
    let (_server, client) = fixture.start();
    let all = client.get("/api/v1/sessions");
    assert_eq!(all.body["sessions"], json!([]), "{all:?}");
    let sent = client.post(
        &format!("/api/v1/sessions/{session}/messages"),
        json!({"text": "hi"}),
    );
    assert_eq!(sent.status, 404, "{sent:?}");
    // A post and a script of the client do not reach it either.
    let text = format!("@{session} hello");
    let posted = client.post("/api/v1/channels/news/messages", json!({"text": text}));
    assert_eq!(posted.status, 201, "{posted:?}");
    let reached = (&posted.body["queued"], &posted.body["refused"]);
    assert_eq!(reached, (&json!([]), &json!([])), "{posted:?}");
    let code = format!(
        "const no = () => 'no'; \
         const got = await sessions.get('{session}').catch(no); \
         const sent = await tools.sessions.send({{ id: '{session}', message: 'x' }}).catch(no); \
         const listed = await sessions.list(); \
         return `GOT ${{got}} ${{sent}} ${{listed.some(s => s.id == '{session}')}} END`"
    );
    let answer = run_script(&client, &client.session(json!({})), &code);
    assert!(answer.contains("GOT no no false END"), "{answer}");
}

#[test]
fn workspaces_of_tokens_do_not_lie_in_each_other() {
    let fixture = ServeFixture::new(runs_scripts);
    let inner = fixture.workspace.work().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let inner = inner.to_str().unwrap();
    let args = ["serve", "token", "create", "inner", "--workspace", inner];
    let refused = fixture.workspace.command(&args).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && text.contains("lies in"),
        "{text}"
    );
    let revoke = ["serve", "token", "revoke", "all"];
    let revoked = fixture.workspace.command(&revoke).output().unwrap();
    assert!(revoked.status.success(), "{revoked:?}");
    let created = fixture.workspace.command(&args).output().unwrap();
    assert!(created.status.success(), "{created:?}");
    // The outer one is refused as well, and both at once.
    let outer = fixture.workspace.work().display().to_string();
    let both = ["serve", "token", "create", "outer", "--workspace", &outer];
    let refused = fixture.workspace.command(&both).output().unwrap();
    assert!(!refused.status.success(), "{refused:?}");
}

#[test]
fn folders_with_secrets_are_no_workspaces_of_tokens() {
    let fixture = ServeFixture::new(runs_scripts);
    let home = fixture.workspace.home();
    let user = fixture.workspace.dir.path();
    let folders = [
        (home.clone(), "Selvedge keeps its own files in"),
        (home.join("inner"), "Selvedge keeps its own files in"),
        (user.to_owned(), "Selvedge keeps its own files in"),
        (user.join("home-worktrees"), "Selvedge keeps its own files"),
        (user.join(".ssh"), "it holds secrets"),
    ];
    for (folder, reason) in folders {
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.to_str().unwrap();
        let args = ["serve", "token", "create", "x", "--workspace", path];
        let mut command = fixture.workspace.command(&args);
        let refused = command.env("HOME", user).output().unwrap();
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success(), "{path}");
        assert!(text.contains(reason) && text.contains("hint: "), "{text}");
    }
}

#[test]
fn a_token_that_is_revoked_while_a_body_arrives_does_nothing() {
    use std::io::{Read, Write};
    let fixture = ServeFixture::new(runs_scripts);
    let (server, client) = fixture.start();
    let secret = create_token(&fixture.workspace, &["brief", "--scope", "sessions"]);
    let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let head = format!(
        "POST /api/v1/sessions HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {secret}\r\n\
         Connection: close\r\nContent-Length: 2\r\n\r\n{{",
        server.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    let revoke = ["serve", "token", "revoke", "brief"];
    let revoked = fixture.workspace.command(&revoke).output().unwrap();
    assert!(revoked.status.success(), "{revoked:?}");
    stream.write_all(b"}").unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    let sessions = client.get("/api/v1/sessions");
    assert_eq!(sessions.body["sessions"].as_array().unwrap().len(), 0);
}

/// Programs of MCP servers are found through `PATH` and are not confined.
#[test]
fn no_workspace_has_a_folder_of_path() {
    let fixture = ServeFixture::new(runs_scripts);
    let (other, secret) = fixture.other_workspace("other");
    let bin = other.join("bin");
    std::fs::create_dir(&bin).unwrap();
    let link = other.with_file_name("link");
    std::os::unix::fs::symlink(&bin, &link).unwrap();
    let with_path = |folder: &std::path::Path| {
        let mut command = fixture
            .workspace
            .command(&["serve", "--addr", "127.0.0.1:0"]);
        command.env("PATH", format!("{}:/usr/bin:/bin", folder.display()));
        command
    };
    for folder in [&bin, &link] {
        let refused = with_path(folder).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let message = String::from_utf8_lossy(&refused.stderr);
        assert!(message.starts_with("error: PATH has "), "{message}");
    }
    // A token may be created while the server runs.
    let later = fixture.workspace.work().with_file_name("later");
    std::fs::create_dir_all(later.join("bin")).unwrap();
    let server = ApiServer::listen(with_path(&later.join("bin")));
    assert_eq!(server.client(&secret).get("/api/v1/sessions").status, 200);
    let (_, secret) = fixture.other_workspace("later");
    let refused = server.client(&secret).get("/api/v1/sessions");
    assert_eq!(refused.status, 403, "{refused:?}");
}

/// A program in a temporary folder, a link of a program into a workspace, and a link to a folder
/// that an agent creates later.
#[test]
fn programs_of_mcp_servers_are_not_taken_from_where_agents_write() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let fixture =
        ServeFixture::with_config("[mcp_servers.x]\ncommand = \"helper\"\n", runs_scripts);
    let (other, secret) = fixture.other_workspace("other");
    let temporary = tempfile::tempdir().unwrap();
    let safe = folder_without_commands();
    let folder = |name: &str| {
        let folder = safe.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        folder
    };
    let started = temporary.path().join("started");
    let install = |folder: &std::path::Path| {
        let program = folder.join("helper");
        std::fs::write(&program, format!("#!/bin/sh\ntouch {started:?}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let (own, links) = (folder("own"), folder("links"));
    let later = safe.path().join("later");
    install(&own);
    install(temporary.path());
    install(&other);
    symlink(other.join("helper"), links.join("helper")).unwrap();
    symlink(other.join("bin"), &later).unwrap();
    for (path, is_started) in [
        (temporary.path(), false),
        (&links, false),
        (&later, false),
        (&own, true),
    ] {
        let _ = std::fs::remove_dir_all(other.join("bin"));
        let mut command = fixture
            .workspace
            .command(&["serve", "--addr", "127.0.0.1:0"]);
        command.env("PATH", format!("{}:/usr/bin:/bin", path.display()));
        let server = ApiServer::listen(command);
        let client = server.client(&secret);
        std::fs::create_dir(other.join("bin")).unwrap();
        install(&other.join("bin"));
        let session = client.session(json!({}));
        let number = client.message(&session, "Hello");
        client.answer(&session, number);
        assert_eq!(started.exists(), is_started, "{}", path.display());
        let status = client.get("/api/v1/status").body;
        assert_eq!(status["mcp_servers"][0]["state"], "failed", "{status}");
    }
}
