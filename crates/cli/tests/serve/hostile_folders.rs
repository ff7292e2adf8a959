//! Attempts against a workspace below a folder that agents of another workspace may write: changes
//! in it, and another folder in its place.

use std::path::Path;

use serde_json::json;

use crate::fixture::ServeFixture;
use crate::hostile_scripts::run_and_deny;
use crate::isolation::{run_script, runs_scripts};
use crate::recovery::wait_until;
use crate::support::api::{ALL_SCOPES, ApiServer, create_token};
use crate::support::store;

/// Returns the names in a folder.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn agents_change_nothing_in_another_workspace_of_a_temporary_folder() {
    let fixture = ServeFixture::new(runs_scripts);
    let (target, _) = fixture.other_workspace("target");
    std::fs::write(target.join("notes.txt"), "zebra").unwrap();
    std::os::unix::fs::symlink(&target, fixture.workspace.work().join("link")).unwrap();
    let (_server, client) = fixture.start();
    let other = target.display().to_string();
    for command in [
        format!("echo x > {other}/evil"),
        format!("echo x > {other}/../target/evil"),
        format!("echo x > /proc/self/root{other}/evil"),
        format!("echo x >> {other}/notes.txt"),
        "echo x > link/evil".to_owned(),
        format!("cd {other} && touch evil"),
        format!("mkdir -p {other}/.git/hooks"),
        format!("touch {other}/AGENTS.md"),
        format!("mv {other} {other}2"),
        format!("mv -T {other} here"),
        format!("rm -rf {other}/notes.txt && ! test -e {other}/notes.txt"),
        format!("rmdir {other}"),
        format!("ln -sfnT /etc {other}"),
        format!("mkdir fresh && mv --exchange -T fresh {other}"),
        format!("python3 -c 'import os; os.rename(\"{other}\", \"{other}3\")'"),
        format!("ln {other}/notes.txt stolen && echo x >> stolen"),
        format!("chmod 777 {other}"),
        format!("umount {other}"),
        format!("mount -o remount,rw {other}"),
        format!("unshare -Ur sh -c 'echo x > {other}/evil'"),
    ] {
        let line = json!([
            "sh",
            "-c",
            format!("({command}) && echo DO''NE || echo REF''USED")
        ]);
        let code = format!("return (await tools.exec({{ command: {line} }})).aggregatedOutput");
        let answer = run_and_deny(&client, &code);
        let is_refused = answer.contains("REFUSED") || answer.contains("denied");
        assert!(
            is_refused && !answer.contains("DONE"),
            "{command}: {answer}"
        );
        assert_eq!(names_in(&target), ["notes.txt"], "{command}");
    }
    for call in [
        format!("tools.writeFile({{ path: '{other}/evil', content: 'x' }})"),
        "tools.writeFile({ path: 'link/evil', content: 'x' })".to_owned(),
        "tools.writeFile({ path: '../target/evil', content: 'x' })".to_owned(),
        format!("tools.editFile({{ path: '{other}/notes.txt', oldString: 'z', newString: 'x' }})"),
        format!(
            "tools.applyPatch('*** Begin Patch\\n*** Delete File: {other}/notes.txt\\n*** End \
             Patch')"
        ),
        "workspace.write('link/evil.md', '# x')".to_owned(),
    ] {
        let code = format!("return await {call}.then(() => 'DO' + 'NE', e => 'REFUSED ' + e)");
        let answer = run_and_deny(&client, &code);
        let is_refused = answer.contains("REFUSED ") && !answer.contains("DONE");
        assert!(is_refused, "{call}: {answer}");
    }
    assert_eq!(names_in(&target), ["notes.txt"]);
    let notes = std::fs::read_to_string(target.join("notes.txt")).unwrap();
    assert_eq!(notes, "zebra");
    // Both workspaces are usable, and prompts do not name others.
    let session = client.session(json!({}));
    run_script(
        &client,
        &session,
        "await tools.writeFile({ path: 'own', content: 'x' })",
    );
    assert!(fixture.workspace.work().join("own").exists());
    let asked = fixture.model.asked().pop().unwrap().raw;
    assert!(!asked.contains(&other), "{asked}");
}

/// No client has used the token yet, and the server has not read it.
#[test]
fn agents_change_nothing_in_the_workspace_of_an_unused_token() {
    let fixture = ServeFixture::new(runs_scripts);
    let (_server, client) = fixture.start();
    let session = client.session(json!({}));
    run_script(&client, &session, "return 1");
    let (target, _) = fixture.other_workspace("target");
    std::fs::write(target.join("notes.txt"), "zebra").unwrap();
    let other = target.display().to_string();
    let write = format!("tools.writeFile({{ path: '{other}/evil', content: 'x' }})");
    let line = json!(["sh", "-c", format!("echo x > {other}/evil")]);
    for call in [write, format!("tools.exec({{ command: {line} }})")] {
        let code = format!("return await {call}.then(JSON.stringify, e => 'REFUSED ' + e)");
        let answer = run_and_deny(&client, &code);
        assert_eq!(names_in(&target), ["notes.txt"], "{call}: {answer}");
    }
}

#[test]
fn agents_change_nothing_in_the_workspace_of_a_token_that_is_created_during_their_turn() {
    let fixture = ServeFixture::new(runs_scripts);
    let (_server, client) = fixture.start();
    let target = fixture.workspace.work().with_file_name("target");
    let other = target.display().to_string();
    let own = fixture.workspace.work().join("own");
    let line = json!(["sh", "-c", format!("echo x > {other}/later")]);
    let code = format!(
        "await tools.writeFile({{ path: 'own', content: 'x' }});
        for (;;) {{
            const error = await tools.writeFile({{ path: '{other}/evil', content: 'x' }})
                .then(() => '', e => 'REF' + 'USED ' + e);
            if (error) {{
                await tools.exec({{ command: {line} }}).catch(() => 'refused');
                return error;
            }}
            await tools.exec({{ command: ['sleep', '0.05'] }});
        }}"
    );
    let answer = std::thread::scope(|scope| {
        let turn = scope.spawn(|| run_and_deny(&client, &code));
        wait_until("the turn writes", || own.exists());
        fixture.other_workspace("target");
        turn.join().unwrap()
    });
    assert!(answer.contains("REFUSED "), "{answer}");
    assert!(!target.join("later").exists(), "{answer}");
}

/// An agent can move a folder above a workspace, which looks to the server as if a person did.
#[test]
fn another_folder_in_the_place_of_a_workspace_is_not_used() {
    if !store::uses_files() {
        // Another machine may have the folder, so the session waits for its server.
        return;
    }
    let fixture = ServeFixture::new(runs_scripts);
    let (target, secret) = fixture.other_workspace("target");
    let kept = target.with_file_name("kept");
    let check = |server: &ApiServer, session: &str| {
        let client = server.client(&secret);
        let failed = client.answer(session, client.message(session, "RUN:return 'ran'"));
        assert_eq!(failed["state"], "failed", "{failed}");
        let why = failed["answer"].as_str().unwrap();
        assert!(why.contains("another folder is in the place of"), "{why}");
        let created = client.post("/api/v1/sessions", json!({}));
        assert_eq!(created.status, 404, "{created:?}");
        for path in ["documents?path=evil.md", "tools", "health"] {
            let refused = client.get(&format!("/api/v1/{path}"));
            assert_eq!(refused.status, 404, "{path}: {refused:?}");
        }
        for action in ["revert", "apply", "discard"] {
            let refused = client.post(&format!("/api/v1/sessions/{session}/{action}"), json!({}));
            assert_eq!(refused.status, 400, "{action}: {refused:?}");
            assert!(refused.text.contains("another folder"), "{refused:?}");
        }
    };
    let (mut server, _) = fixture.start();
    let client = server.client(&secret);
    let session = client.session(json!({}));
    let answer = run_script(&client, &session, "return 'ran'");
    assert!(answer.contains("ran"), "{answer}");
    std::fs::rename(&target, &kept).unwrap();
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("evil.md"), "# evil").unwrap();
    check(&server, &session);
    // A folder that is removed and created again may have the same inode.
    std::fs::remove_dir_all(&target).unwrap();
    std::fs::create_dir(&target).unwrap();
    check(&server, &session);
    // Neither a restart nor a token for another workspace changes that.
    server.terminate();
    create_token(&fixture.workspace, &["unrelated"]);
    let server = ApiServer::start(&fixture.workspace);
    check(&server, &session);
    std::fs::remove_dir(&target).unwrap();
    std::os::unix::fs::symlink(&kept, &target).unwrap();
    let client = server.client(&secret);
    assert_eq!(client.post("/api/v1/sessions", json!({})).status, 404);
    // The folder itself is used again, also if it was moved meanwhile.
    std::fs::remove_file(&target).unwrap();
    std::fs::rename(&kept, &target).unwrap();
    let answer = run_script(&client, &session, "return 'back'");
    assert!(answer.contains("back"), "{answer}");
    // A person who replaces the folder creates a token for it.
    std::fs::rename(&target, &kept).unwrap();
    std::fs::create_dir(&target).unwrap();
    let args = ["new", "--workspace", target.to_str().unwrap()];
    create_token(&fixture.workspace, &[&args, &ALL_SCOPES[..]].concat());
    let answer = run_script(&client, &session, "return 'accepted'");
    assert!(answer.contains("accepted"), "{answer}");
}
