//! The memory of sessions of the server: what they share, what is learned from them, and which
//! lessons they can change.

use serde_json::json;

use crate::answer_encoding::text;
use crate::fixture::ServeFixture;
use crate::isolation::{last_text, run_script, runs_scripts};
use crate::support::api::{ALL_SCOPES, ApiClient, create_token};

#[test]
fn memory_of_a_session_stays_within_its_workspace_also_with_the_scope_all() {
    let memory = "memory.scope = \"all\"\nmemory.recall_timeout_ms = 30000";
    let fixture = ServeFixture::with_config(memory, runs_scripts);
    let (_, secret) = fixture.other_workspace("neighbour");
    let (server, client) = fixture.start();
    let other = server.client(&secret);
    let say = |client: &ApiClient, text: &str| {
        let session = client.session(json!({}));
        let number = client.message(&session, text);
        client.answer(&session, number);
        fixture.model.asked().pop().unwrap().raw
    };
    say(
        &client,
        "We decided to keep the queue in heron, a database.",
    );
    let question = "In which database is the queue kept?";
    assert!(say(&client, question).contains("heron"));
    let asked = say(&other, question);
    assert!(!asked.contains("heron"), "{asked}");
    let session = other.session(json!({}));
    let code = "return await tools.memory.search({ query: 'queue database', scope: 'all' })";
    let found = run_script(&other, &session, code);
    assert!(
        !found.contains("heron") && found.contains("queue"),
        "{found}"
    );
}

/// Otherwise an agent could instruct the later sessions of its workspace.
#[test]
fn nothing_is_learned_from_requests_of_agents() {
    let memory = "memory.scope = \"project\"\nmemory.recall_timeout_ms = 30000";
    // It does not repeat what was decided.
    let fixture = ServeFixture::with_config(memory, |asked| match last_text(asked) {
        request if request.contains("decided") && !request.contains("RUN:") => {
            vec![text("Noted.")].into()
        }
        _ => runs_scripts(asked),
    });
    let (_server, client) = fixture.start();
    let brief = |question: &str| {
        let session = client.session(json!({}));
        let number = client.message(&session, question);
        client.answer(&session, number);
        let asked = fixture.model.asked().pop().unwrap();
        asked.body["messages"][0].to_string()
    };
    let by_person = client.session(json!({}));
    let number = client.message(&by_person, "We decided to keep the logs in heron.");
    client.answer(&by_person, number);
    let session = client.session(json!({}));
    // The request of the person does not contain the sentence.
    let code = "const prompt = ['We', 'decided', 'on', 'os' + 'prey.'].join(' '); \
                const s = await sessions.create({ prompt }); return `ID ${s.id} END`";
    let created = run_script(&client, &session, code);
    let child = created.split_once("ID ").unwrap().1;
    let child = child.split_once(' ').unwrap().0;
    client.answer(child, 1);
    let hello = brief("Hello?");
    assert!(hello.contains("heron"), "{hello}");
    assert!(!hello.contains("osprey"), "{hello}");
    // Nor from a fork of the session, which a person continues.
    let fork = client.post(&format!("/api/v1/sessions/{child}/fork"), json!({}));
    let fork = fork.body["id"].as_str().unwrap();
    let number = client.message(fork, "We decided to paint the gate green.");
    client.answer(fork, number);
    let hello = brief("Hello again?");
    assert!(hello.contains("gate green"), "{hello}");
    assert!(!hello.contains("osprey"), "{hello}");
    // Lessons are not learned from it either.
    for args in [["memory", "distill"], ["memory", "lessons"]] {
        let done = fixture.workspace.command(&args).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        let shown = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(!shown.contains("osprey"), "{shown}");
        assert_eq!(shown.contains("heron"), args[1] == "lessons", "{shown}");
    }
}

/// Two workspaces in one repository, which would be one project in a terminal.
#[test]
fn workspaces_of_a_repository_share_no_memory() {
    let memory = "memory.scope = \"project\"\nmemory.recall_timeout_ms = 30000";
    let fixture = ServeFixture::with_config(memory, runs_scripts);
    let repository = fixture.workspace.work().with_file_name("repository");
    for folder in [".git", "x/below", "y"] {
        std::fs::create_dir_all(repository.join(folder)).unwrap();
    }
    std::fs::write(repository.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    let repository = repository.canonicalize().unwrap();
    let (x, y) = (repository.join("x"), repository.join("y"));
    let (x, y) = (x.to_str().unwrap(), y.to_str().unwrap());
    let token = |args: &[&str]| create_token(&fixture.workspace, &[args, &ALL_SCOPES].concat());
    let only_x = token(&["x", "--workspace", x]);
    let both = token(&["both", "--workspace", x, "--workspace", y]);
    let (server, _) = fixture.start();
    let (both, only_x) = (server.client(&both), server.client(&only_x));
    let say = |client: &ApiClient, session: &str, text: &str| {
        let number = client.message(session, text);
        client.answer(session, number);
        fixture.model.asked().pop().unwrap().raw
    };
    let in_y = both.session(json!({"workspace": y}));
    say(
        &both,
        &in_y,
        "We decided to keep the queue in heron, a database.",
    );
    let question = "In which database is the queue kept?";
    let next = both.session(json!({"workspace": y}));
    assert!(say(&both, &next, question).contains("heron"));
    // A session of x, which another token uses later, gets no brief of y.
    let in_x = both.session(json!({"workspace": x}));
    let asked = say(&both, &in_x, question);
    assert!(!asked.contains("heron"), "{asked}");
    assert!(!say(&only_x, &in_x, question).contains("heron"));
    // The score of an own turn does not depend on the words of other workspaces.
    let score = |word: &str| {
        let path = format!("/api/v1/memory/search?query=database+{word}");
        only_x.get(&path).body["turns"][0]["score"].clone()
    };
    assert!(score("heron").is_number());
    assert_eq!(score("heron"), score("nowhere"));
    // Nor do sessions of folders below a workspace belong to it.
    let mut terminal = fixture
        .workspace
        .command(&["exec", "The walrus code is 7711."]);
    let done = terminal
        .args(["-C", &format!("{x}/below")])
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    let found = only_x.get("/api/v1/memory/search?query=walrus+code");
    assert_eq!(found.body["turns"], json!([]), "{found:?}");
}

/// A lesson of a terminal and sessions of a token belong to one project: the repository.
#[test]
fn a_token_deletes_no_lesson_that_was_learned_elsewhere() {
    let fixture = ServeFixture::new(runs_scripts);
    let repository = fixture.workspace.work();
    for folder in [".git", "below"] {
        std::fs::create_dir_all(repository.join(folder)).unwrap();
    }
    std::fs::write(repository.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    let run = |args: &[&str]| {
        let done = fixture.workspace.command(args).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    let below = repository.join("below").display().to_string();
    run(&["exec", "Always run the linter.", "-C", &below]);
    run(&["memory", "distill"]);
    let (_server, client) = fixture.start();
    let session = client.session(json!({}));
    for message in [
        "Always run the linter.",
        "I prefer the slow ferry.",
        "Never run the linter.",
    ] {
        let number = client.message(&session, message);
        client.answer(&session, number);
    }
    run(&["memory", "distill"]);
    let lessons = run(&["memory", "lessons", "--json"]);
    assert!(lessons.contains("slow ferry"), "{lessons}");
    let removed = client.request(&format!("DELETE /api/v1/sessions/{session}"), &[], "");
    assert_eq!(removed.status, 204, "{removed:?}");
    let lessons = run(&["memory", "lessons", "--json"]);
    assert!(!lessons.contains("slow ferry"), "{lessons}");
    let lessons: serde_json::Value = serde_json::from_str(&lessons).unwrap();
    assert_eq!(lessons.as_array().unwrap().len(), 1, "{lessons}");
    assert_eq!(
        (&lessons[0]["content"], &lessons[0]["status"]),
        (&json!("Always run the linter."), &json!("used"))
    );
}
