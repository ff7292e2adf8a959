//! Projects: what sessions share, the brief of a new session, and where memory ends.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../journal/tests/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use selvedge_journal::Redactor;
use selvedge_memory::{
    LessonScope, LessonStatus, LessonsToForget, Level, MAX_BRIEF_TOKENS, Memory, MemoryAccess,
    MemoryError, NewTurn, ProjectPlace, ProposalDecision, RecallDeadlines, RecallRequest,
    get_turn_tool, search_memory_tool,
};
use selvedge_protocol::{DocumentInfo, DocumentKind, MemoryScope};
use selvedge_tools::{Risk, Tool};
use serde_json::json;
use support::{database, store};

fn memory() -> (tempfile::TempDir, Arc<Memory>) {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(Memory::open(store(dir.path()), Redactor::new([])).unwrap());
    (dir, memory)
}

fn place(folder: &str) -> ProjectPlace {
    ProjectPlace {
        directory: folder.to_owned(),
        root: format!("{folder}/.git"),
    }
}

fn say(memory: &Memory, session: &str, text: &str) {
    memory
        .append(session, &NewTurn::text("user", text))
        .unwrap();
}

async fn recalled(memory: &Arc<Memory>, access: MemoryAccess, text: &str) -> String {
    let request = RecallRequest {
        access,
        deadlines: RecallDeadlines::within(Duration::from_secs(60)),
        ..RecallRequest::new("", text)
    };
    memory.recall(&request).await.text
}

/// Two sessions in one project, and one in another.
fn three_sessions(memory: &Memory) {
    for (session, folder) in [("one", "/a"), ("two", "/a"), ("other", "/b")] {
        memory.join_project(session, &place(folder)).unwrap();
    }
    say(
        memory,
        "one",
        "We decided to keep the queue in heron, a database in Oslo. TODO: write the migration.",
    );
    say(memory, "two", "Hello there, this is about something else.");
    say(memory, "other", "A different conversation about nothing.");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_recalls_turns_of_its_project_only() {
    let (_dir, memory) = memory();
    three_sessions(&memory);
    let question = "in which database is the queue?";
    let text = recalled(&memory, MemoryAccess::new("two"), question).await;
    assert!(
        text.contains("heron") && text.contains("one/T-1-R"),
        "{text}"
    );
    let text = recalled(&memory, MemoryAccess::new("other"), question).await;
    assert!(!text.contains("heron"), "{text}");
    let session = MemoryAccess::new("two").with_scope(MemoryScope::Session);
    assert_eq!(recalled(&memory, session, question).await, "");
    let all = MemoryAccess::new("other").with_scope(MemoryScope::All);
    assert!(
        recalled(&memory, all.clone(), question)
            .await
            .contains("heron")
    );
    // The folders of a token end every scope.
    let bounded = MemoryAccess {
        folders: Some(vec!["/b".to_owned()]),
        ..all
    };
    assert_eq!(recalled(&memory, bounded.clone(), question).await, "");
    assert!(!memory.can_read(&bounded, "one").unwrap());
    assert!(
        !memory
            .compose_brief(&bounded, 1_500)
            .unwrap()
            .contains("heron")
    );
}

#[test]
fn a_turn_of_another_session_is_fetched_within_the_project() {
    let (_dir, memory) = memory();
    three_sessions(&memory);
    let two = MemoryAccess::new("two");
    let text = memory.get_turn(&two, "one/T-1", Level::Raw).unwrap();
    assert!(text.contains("heron"));
    assert!(
        memory.board("two").unwrap()[0]
            .text
            .starts_with("one/T-1 at R: We decided")
    );
    assert!(matches!(
        memory.get_turn(&MemoryAccess::new("other"), "one/T-1", Level::Raw),
        Err(MemoryError::TurnNotFound { .. })
    ));
    // Forgetting a turn also removes it from the boards of other sessions.
    memory.forget_turn("one", 1).unwrap();
    assert!(memory.board("two").unwrap().is_empty());
    // A closing tag names no session.
    assert!(memory.get_turn(&two, "</T-1-R>", Level::Raw).is_err());
    assert!(memory.get_turn(&two, "<T-1-R>", Level::Raw).is_ok());
}

#[test]
fn a_wider_scope_than_the_configured_one_needs_approval() {
    let (_dir, memory) = memory();
    three_sessions(&memory);
    let access = MemoryAccess::new("other");
    let search = search_memory_tool(memory.clone(), access.clone());
    let needs = |risk: Risk| matches!(risk, Risk::NeedsApproval { .. });
    assert!(!needs(search.risk(&json!({ "query": "queue" }))));
    assert!(!needs(
        search.risk(&json!({ "query": "queue", "scope": "session" }))
    ));
    assert!(needs(
        search.risk(&json!({ "query": "queue", "scope": "all" }))
    ));
    let get_turn = get_turn_tool(memory.clone(), access.clone());
    assert!(!needs(get_turn.risk(&json!({ "turn": "T-1" }))));
    assert!(!needs(get_turn.risk(&json!({ "turn": "unknown/T-1" }))));
    assert!(needs(get_turn.risk(&json!({ "turn": "one/T-1" }))));
    // Beyond the folders of a token there is nothing to approve.
    let bounded = MemoryAccess {
        folders: Some(vec!["/b".to_owned()]),
        ..access
    };
    let get_turn = get_turn_tool(memory, bounded);
    assert!(!needs(get_turn.risk(&json!({ "turn": "one/T-1" }))));
}

#[test]
fn the_brief_states_decisions_and_open_ends_and_stays_the_same() {
    let (_dir, memory) = memory();
    three_sessions(&memory);
    let two = MemoryAccess::new("two");
    let brief = memory.compose_brief(&two, MAX_BRIEF_TOKENS).unwrap();
    assert!(
        brief.contains("Decisions:\n- We decided to keep the queue in heron, a database in Oslo.")
            && brief.contains("Open ends:\n- TODO: write the migration.")
            && brief.contains("one/T-1"),
        "{brief}"
    );
    let other = MemoryAccess::new("other");
    assert_eq!(memory.compose_brief(&other, MAX_BRIEF_TOKENS).unwrap(), "");
    // What is stored stays, whatever is said later.
    assert_eq!(memory.store_brief("two", &brief).unwrap(), brief);
    say(&memory, "one", "From now on the queue is called kestrel.");
    let later = memory.compose_brief(&two, MAX_BRIEF_TOKENS).unwrap();
    assert!(later.contains("kestrel"));
    assert_eq!(memory.store_brief("two", &later).unwrap(), brief);
    assert_eq!(memory.brief("two").unwrap().as_deref(), Some(&*brief));
    // Forgetting what it may quote deletes it.
    memory.forget_turn("one", 1).unwrap();
    assert_eq!(memory.brief("two").unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_brief_leaves_out_what_was_taken_back_declined_or_asked_for_by_an_agent() {
    let (_dir, memory) = memory();
    for session in ["one", "two", "three", "new"] {
        memory.join_project(session, &place("/a")).unwrap();
    }
    say(
        &memory,
        "one",
        "Please always indent with tabs. We use yarn in this project.",
    );
    say(
        &memory,
        "one",
        "We use just for all tasks. Never commit on Fridays.",
    );
    let brief = || {
        let access = MemoryAccess::new("new");
        let brief = memory.compose_brief(&access, MAX_BRIEF_TOKENS).unwrap();
        // The list of sessions has their first requests, whatever became of them.
        brief.split("Last sessions:").next().unwrap().to_owned()
    };
    let first = brief();
    for statement in [
        "indent with tabs",
        "We use yarn",
        "We use just for all tasks.",
    ] {
        assert!(first.contains(statement), "{statement}: {first}");
    }
    // A later statement takes back an earlier one, before and after both are lessons.
    say(
        &memory,
        "two",
        "From now on indent with spaces instead of tabs.",
    );
    let asked_by_agent = [
        json!({"type": "message", "role": "agent", "content": "Decide."}),
        json!({"type": "message", "role": "assistant", "content": "We decided to use cobol."}),
    ];
    let raw: String = asked_by_agent
        .iter()
        .map(|item| format!("{item}\n"))
        .collect();
    let turn = NewTurn::from_items(raw.as_bytes());
    memory.append("two", &turn).unwrap();
    for _ in 0..2 {
        let brief = brief();
        assert!(!brief.contains("indent with tabs"), "{brief}");
        assert_eq!(brief.matches("indent with spaces").count(), 1, "{brief}");
        assert!(!brief.contains("cobol"), "{brief}");
        while memory.distill("one", None).await.unwrap().remaining_turns > 0 {}
    }
    // The next one is not distilled yet, and takes back a lesson.
    say(
        &memory,
        "three",
        "We no longer use yarn, use pnpm instead of yarn.",
    );
    let lessons = memory.lessons(None).unwrap();
    let fridays = lessons.iter().find(|it| it.content.contains("Fridays"));
    let id = &fridays.unwrap().lesson_id;
    memory.review_lesson(id, ProposalDecision::Decline).unwrap();
    let last = brief();
    assert!(
        !last.contains("We use yarn") && last.contains("pnpm"),
        "{last}"
    );
    assert!(!last.contains("Fridays"), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_of_half_of_the_turns_finds_them_in_a_small_project() {
    let (_dir, memory) = memory();
    for (session, text) in [
        (
            "one",
            "We decided to keep the queue in heron, a database in Oslo.",
        ),
        ("two", "Where is the queue kept?"),
        ("three", "Hello."),
    ] {
        memory.join_project(session, &place("/a")).unwrap();
        say(&memory, session, text);
    }
    let access = MemoryAccess::new("three");
    let text = recalled(&memory, access, "Where is the queue kept?").await;
    assert!(text.contains("heron"), "{text}");
}

#[test]
fn the_brief_of_a_large_project_fits_into_its_limit() {
    let (_dir, memory) = memory();
    let filler = "and so on, with many words about the reasons for it ".repeat(4);
    for session in 0..20 {
        let session = format!("s{session}");
        memory.join_project(&session, &place("/a")).unwrap();
        for turn in 0..10 {
            let text = format!(
                "We decided on option {turn} of {session} {filler}. Always write test {turn} of \
                 {session} first. TODO: part {turn} of {session} is open."
            );
            say(&memory, &session, &text);
        }
    }
    let access = MemoryAccess::new("new");
    memory.join_project("new", &place("/a")).unwrap();
    for limit in [100, 500, MAX_BRIEF_TOKENS, 100_000] {
        let brief = memory.compose_brief(&access, limit).unwrap();
        let tokens = selvedge_tokens::count(&brief);
        assert!(
            tokens <= limit.min(MAX_BRIEF_TOKENS) as usize && !brief.is_empty(),
            "{tokens} of {limit}: {brief}"
        );
    }
    let brief = memory.compose_brief(&access, MAX_BRIEF_TOKENS).unwrap();
    for heading in ["Decisions:", "Preferences:", "Open ends:", "Last sessions:"] {
        assert!(brief.contains(heading), "{heading}: {brief}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lesson_is_used_in_its_project_or_everywhere() {
    let (_dir, memory) = memory();
    for (session, folder) in [("one", "/a"), ("two", "/a"), ("other", "/b")] {
        memory.join_project(session, &place(folder)).unwrap();
        say(&memory, session, "Hello there");
    }
    say(
        &memory,
        "one",
        "Always run the linter before you commit to this repository.",
    );
    memory.distill("one", None).await.unwrap();
    let found = |session: &str| {
        let access = MemoryAccess::new(session);
        let found = memory.find_lessons(Some(&access), "commit to the repository", 5);
        found.unwrap().len()
    };
    assert_eq!((found("one"), found("two"), found("other")), (1, 1, 0));
    let lesson = memory.lessons(None).unwrap().remove(0);
    assert_eq!(lesson.project, memory.project_of("one").unwrap());
    let id = &lesson.lesson_id;
    memory.set_lesson_scope(id, LessonScope::User).unwrap();
    assert_eq!((found("two"), found("other")), (1, 1));
    memory.set_lesson_scope(id, LessonScope::Project).unwrap();
    assert_eq!((found("two"), found("other")), (1, 0));
    assert!(matches!(
        memory.set_lesson_scope("les_x", LessonScope::User),
        Err(MemoryError::LessonNotFound(_))
    ));
    // The same lesson of another project is another lesson.
    say(
        &memory,
        "other",
        "Always run the linter before you commit to this repository.",
    );
    memory.distill("other", None).await.unwrap();
    assert_eq!((found("two"), found("other")), (1, 1));
    assert_eq!(memory.lessons(None).unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn earlier_data_is_assigned_by_the_folder_of_its_session() {
    let (_dir, memory) = memory();
    let rule = "Always run the linter before you commit to this repository.";
    for session in ["one", "two", "imported"] {
        say(&memory, session, rule);
    }
    memory.distill("one", None).await.unwrap();
    // As if it had been stored before there were projects.
    database(_dir.path())
        .execute_batch(
            "UPDATE memory_sessions SET project = NULL; UPDATE memory_lessons SET project = NULL",
        )
        .unwrap();
    let place_of = |session: &str| (session != "imported").then(|| place("/a"));
    assert_eq!(memory.adopt_sessions(place_of).unwrap(), 3);
    let project = memory.project_of("one").unwrap();
    assert!(project.is_some());
    assert_eq!(memory.project_of("two").unwrap(), project);
    assert_eq!(memory.project_of("imported").unwrap(), None);
    assert_eq!(memory.lessons(None).unwrap()[0].project, project);
    // A second time there is nothing to do.
    assert_eq!(memory.adopt_sessions(|_| None).unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn projects_are_moved_and_merged() {
    let (_dir, memory) = memory();
    three_sessions(&memory);
    let project = memory.project_of("one").unwrap().unwrap();
    let moved = memory
        .move_project(("/a/.git", "/c/.git"), ("/a", "/c"))
        .unwrap();
    assert_eq!(moved, project);
    // A new session in the new folder belongs to it, one in the old folder does not.
    assert_eq!(memory.join_project("three", &place("/c")).unwrap(), project);
    assert_ne!(memory.join_project("four", &place("/a")).unwrap(), project);
    let bounded = MemoryAccess {
        folders: Some(vec!["/c".to_owned()]),
        ..MemoryAccess::new("three")
    };
    assert!(memory.can_read(&bounded, "one").unwrap());
    assert!(matches!(
        memory.move_project(("/c/.git", "/b/.git"), ("/c", "/b")),
        Err(MemoryError::ProjectExists(_))
    ));
    assert!(matches!(
        memory.move_project(("/x", "/y"), ("/x", "/y")),
        Err(MemoryError::ProjectNotFound(_))
    ));
    assert_eq!(
        memory.merge_projects("/b/.git", "/c/.git").unwrap(),
        project
    );
    let text = recalled(
        &memory,
        MemoryAccess::new("other"),
        "in which database is the queue?",
    )
    .await;
    assert!(text.contains("heron"), "{text}");
    let projects = memory.projects().unwrap();
    let merged = projects.iter().find(|found| found.id == project).unwrap();
    assert_eq!(merged.roots, ["/b/.git", "/c/.git"]);
    assert_eq!((merged.sessions, merged.turns), (4, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_board_lists_documents_of_the_project() {
    let (_dir, memory) = memory();
    three_sessions(&memory);
    let document = DocumentInfo {
        key: "FABC1234".into(),
        kind: DocumentKind::Saved,
        title: "Notes about OAuth".into(),
        source: String::new(),
        media_type: "text/markdown".into(),
        bytes: 1,
        saved_ms: selvedge_protocol::now_ms() - 2 * 24 * 3600 * 1000,
    };
    let one = MemoryAccess::new("one");
    memory.announce_document(&one, &document).unwrap();
    let text = recalled(&memory, MemoryAccess::new("two"), "hm").await;
    assert!(
        text.contains("File Cabinet of this project")
            && text.contains("- FABC1234: \"Notes about OAuth\" (2 days ago)"),
        "{text}"
    );
    assert_eq!(
        recalled(&memory, MemoryAccess::new("other"), "hm").await,
        ""
    );
    // The session that saved it has it on its board.
    let text = recalled(&memory, one, "hm").await;
    assert_eq!(text.matches("Notes about OAuth").count(), 1, "{text}");
    // A session of the agent server cannot read documents of the user.
    let served = MemoryAccess {
        folders: Some(vec!["/a".to_owned()]),
        ..MemoryAccess::new("two")
    };
    assert_eq!(recalled(&memory, served, "hm").await, "");
    memory.forget_session("one", LessonsToForget::All).unwrap();
    assert_eq!(recalled(&memory, MemoryAccess::new("two"), "hm").await, "");
}

/// A session of the agent server, whose memory ends at its folder, and one of a terminal in a
/// folder below, which belong to one project.
#[tokio::test]
async fn a_session_of_the_server_changes_no_lesson_of_another_folder() {
    let (_dir, memory) = memory();
    for (session, directory) in [("terminal", "/a/below"), ("served", "/a")] {
        let place = ProjectPlace {
            directory: directory.to_owned(),
            root: "/a".to_owned(),
        };
        memory.join_project(session, &place).unwrap();
    }
    memory.bound_to_folder("served").unwrap();
    let say = async |session: &str, text: &str| {
        let turn = NewTurn::text("user", text);
        memory.append(session, &turn).unwrap();
        memory.distill(session, None).await.unwrap();
    };
    let learned = |content: &str| {
        let lessons = memory.lessons(None).unwrap().into_iter();
        let lessons = lessons.filter(|lesson| lesson.content == content);
        let mut found: Vec<_> = lessons
            .map(|lesson| (lesson.source_turns, lesson.status))
            .collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    };
    let used = |session: &str, turn: u32| {
        let source = format!("{session}/T-{turn}");
        (vec![source], LessonStatus::Used)
    };
    say("terminal", "Always run the linter.").await;
    say("served", "Always run the linter.").await;
    let mut own = used("served", 1);
    assert_eq!(
        learned("Always run the linter."),
        [own.clone(), used("terminal", 1)]
    );
    // It takes back its own lesson only.
    say("served", "Never run the linter.").await;
    own.1 = LessonStatus::Contradicted;
    assert_eq!(
        learned("Always run the linter."),
        [own, used("terminal", 1)]
    );
    say("served", "I prefer the slow ferry.").await;
    say("served", "We decided to keep the logs in heron.").await;
    say("terminal", "We decided to keep the logs in heron.").await;
    let forgotten = memory.forget_session("served", LessonsToForget::OfFolder);
    assert!(forgotten.unwrap().lessons > 0);
    assert_eq!(learned("I prefer the slow ferry."), []);
    assert_eq!(
        learned("We decided to keep the logs in heron."),
        [used("terminal", 2)]
    );
    assert_eq!(learned("Always run the linter."), [used("terminal", 1)]);
    // A person who forgets a session forgets all that it said.
    memory
        .forget_session("terminal", LessonsToForget::All)
        .unwrap();
    assert_eq!(memory.lessons(None).unwrap(), []);
}
