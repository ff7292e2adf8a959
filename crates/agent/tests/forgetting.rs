//! A forgotten turn is deleted from every byte of the journal's file, and the session can be
//! continued.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use selvedge_agent::{
    Agent, AgentError, AgentMemory, AgentMemoryOptions, AgentProject, BackgroundWork,
    HistoryStrategyKind, Session, SessionStepKind,
};
use selvedge_journal::{Journal, JournalError, JournalOptions, Redactor, RunFilter};
use selvedge_memory::{GradientOptions, Memory};
use selvedge_protocol::{Ledger, RunStart, TurnEnd, WireApi};
use serde_json::json;
use support::answer_encoding::{block, call, text};
use support::server::{Asked, Reply, Server};
use support::{APIS, TestAgent, history, text_of};

/// A word that occurs in no other text.
const WORD: &str = "zyzzyvaplex";

/// Returns whether the journal's file or its log contains the word.
fn is_in_file(test: &TestAgent) -> bool {
    ["journal.sqlite", "journal.sqlite-wal"].iter().any(|name| {
        let bytes = std::fs::read(test.dir.path().join("home").join(name)).unwrap_or_default();
        bytes
            .windows(WORD.len())
            .any(|window| window.eq_ignore_ascii_case(WORD.as_bytes()))
    })
}

/// Opens the journal a second time, as another process does. Its locks are separate.
fn another(test: &TestAgent) -> Arc<Journal> {
    Journal::open(&test.dir.path().join("home")).unwrap()
}

/// The model's answers: runs a script, a sub-agent and a call with the word in the turn that asks
/// for it, and answers briefly in other turns.
fn answers(asked: &Asked) -> Reply {
    let key = if asked.path.ends_with("responses") {
        "input"
    } else {
        "messages"
    };
    let last = text_of(asked.body[key].as_array().unwrap().last().unwrap());
    if last.contains("Tell me about") && !last.contains("Result of the script") {
        let code = format!(
            "store('kept', '{WORD} is kept'); await tools.agents.launch.sync('Say {WORD}.');\n\
             return (await tools.readFile({{ path: 'z.txt' }})).text + '{WORD} '.repeat(400)"
        );
        vec![
            text(&block(&code)),
            call("call_forgotten", "read_file", json!({"path": "z.txt"})),
        ]
        .into()
    } else if last.contains(&format!("Say {WORD}")) || last.contains("Result of the script") {
        vec![text(&format!("{WORD} is a beetle."))].into()
    } else {
        vec![text("Noted.")].into()
    }
}

fn agent_memory(memory: &Arc<Memory>) -> AgentMemory {
    let history = HistoryStrategyKind::Gradient(GradientOptions::new(20_000));
    let recall = Some(Duration::from_secs(20));
    AgentMemory::new(
        memory.clone(),
        AgentMemoryOptions {
            history,
            recall_timeout: recall,
            max_recall_tokens: 600,
            background_work: BackgroundWork::InProcess,
            distill_idle_time: None,
            project: AgentProject::default(),
        },
        None,
    )
}

async fn say(agent: &Agent, session: &mut Session, test: &TestAgent, prompt: &str) {
    assert_eq!(
        agent.run_turn(session, prompt, &test.options()).await.end,
        Ok(TurnEnd::Stop),
        "{prompt}"
    );
}

#[tokio::test]
async fn a_forgotten_turn_is_deleted_and_the_session_continues() {
    for api in APIS {
        let (test, server) = (TestAgent::new(api), Server::start(answers).await);
        std::fs::write(
            test.work().join("z.txt"),
            format!("{WORD}, says the file\n"),
        )
        .unwrap();
        let memory =
            Arc::new(Memory::open(&test.dir.path().join("home"), Redactor::new([])).unwrap());
        let agent = test.agent(&server).with_memory(&agent_memory(&memory));
        let mut session = test.session().await;
        say(&agent, &mut session, &test, "Good morning.").await;
        say(
            &agent,
            &mut session,
            &test,
            &format!("Tell me about the {WORD}. Always call the {WORD} by its name."),
        )
        .await;
        say(&agent, &mut session, &test, "Good evening.").await;
        while memory
            .distill(session.id(), None)
            .await
            .unwrap()
            .remaining_turns
            > 0
        {}
        assert_eq!(memory.lessons(None).unwrap().len(), 1);
        let fork = Session::fork(&test.journal, session.id(), Some(2))
            .await
            .unwrap()
            .id()
            .to_owned();
        let id = session.id().to_owned();
        assert!(is_in_file(&test) && test.journal.all_sessions(10).unwrap().len() == 3);
        let spent = session.total_spent();

        // A session that is in use and a turn with a running run cannot be forgotten.
        let other = another(&test);
        let refused = Session::forget(&other, &id, Some(2));
        assert!(
            matches!(refused, Err(AgentError::Journal(JournalError::SessionInUse(used))) if used == id)
        );
        drop(session);
        // The release may be queued while the memory writes to the same file.
        test.journal.flush().unwrap();
        let third = another(&test);
        let start = RunStart {
            id: "scr_open",
            source: "1",
            directory: "/",
            session: &id,
            seed: "1",
            resumes: None,
            saved_config: "",
        };
        third.record_run_start(start).await.unwrap();
        let refused = Session::forget(&other, &id, Some(3));
        assert!(
            matches!(refused, Err(AgentError::Journal(JournalError::RunNotEnded(run))) if run == "scr_open")
        );
        drop(third);

        let would = Session::preview_forget(&other, &id, Some(2)).unwrap();
        assert!(
            is_in_file(&test) && Session::open_read_only(&other, &id).unwrap().turn_number() == 3,
            "the preview changes nothing"
        );
        let gone = Session::forget(&other, &id, Some(2)).unwrap();
        assert_eq!(would, gone);
        // The script, the structured call, and what ran for the launched agent; the fork has the
        // same turn.
        assert_eq!((gone.sessions.len(), gone.runs), (1, 3), "{gone:?}");
        assert_eq!(gone.turns.keys().collect::<Vec<_>>().len(), 2, "{gone:?}");
        assert!(gone.turns[&id].contains(&2) && gone.turns[&fork].contains(&2));
        memory.forget_turn(&id, 2).unwrap();
        other.scrub().unwrap();
        assert!(!is_in_file(&test), "{api:?}");
        assert!(memory.lessons(None).unwrap().is_empty());
        let left = other.runs(&RunFilter::default()).unwrap();
        assert_eq!(
            left.iter().map(|run| run.id.as_str()).collect::<Vec<_>>(),
            ["scr_open"]
        );
        // Forgetting a turn twice is not an error.
        assert_eq!(Session::forget(&other, &id, Some(2)).unwrap().runs, 0);
        assert_eq!(memory.forget_turn(&id, 2).unwrap().turns, 0);

        // The session can be continued: calls were deleted with their results, and the other turns
        // are unchanged.
        let mut session = Session::open(&test.journal, &id).await.unwrap();
        assert!(
            !session.has_open_turn()
                && session.turn_number() == 3
                && session.total_spent() == spent
        );
        let before = server.asked().len();
        say(&agent, &mut session, &test, "And now?").await;
        let asked = &server.asked()[before];
        let request = text_of(&asked.body);
        assert!(
            !asked.raw.contains(WORD) && !asked.raw.contains("call_forgotten"),
            "{}",
            asked.raw
        );
        assert!(
            request.contains("Good morning.") && request.contains("Good evening."),
            "{request}"
        );
        let fork = Session::open(&test.journal, &fork).await.unwrap();
        assert_eq!(history(&fork).len(), 3, "{:?}", history(&fork));
        assert!(history(&fork)[2].contains("removed from the conversation"));

        // A whole session can be forgotten as well. Other sessions remain.
        drop((session, fork));
        test.journal.flush().unwrap();
        assert!(
            Session::forget(&other, &id, None)
                .unwrap()
                .sessions
                .contains(&id)
        );
        assert!(matches!(
            Session::open(&other, &id).await,
            Err(AgentError::Journal(JournalError::SessionNotFound(_)))
        ));
        assert_eq!(
            other.all_sessions(10).unwrap().len(),
            1,
            "the fork is another session"
        );
    }
}

#[tokio::test]
async fn without_memory_the_notes_keep_the_roles_alternating() {
    for api in APIS {
        let (test, server) = (TestAgent::new(api), Server::start(answers).await);
        std::fs::write(
            test.work().join("z.txt"),
            format!("{WORD}, says the file\n"),
        )
        .unwrap();
        let agent = test.agent(&server);
        let mut session = test.session().await;
        say(&agent, &mut session, &test, "Good morning.").await;
        say(
            &agent,
            &mut session,
            &test,
            &format!("Tell me about the {WORD}."),
        )
        .await;
        let id = session.id().to_owned();
        drop(session);
        Session::forget(&test.journal, &id, Some(2)).unwrap();
        test.journal.scrub().unwrap();
        assert!(!is_in_file(&test), "{api:?}");
        let mut session = Session::open(&test.journal, &id).await.unwrap();
        say(&agent, &mut session, &test, "And now?").await;
        let asked = server.asked();
        let key = if api == WireApi::Responses {
            "input"
        } else {
            "messages"
        };
        let messages = asked.last().unwrap().body[key].as_array().unwrap().clone();
        let roles: Vec<&str> = messages
            .iter()
            .filter_map(|item| item["role"].as_str())
            .filter(|role| ["user", "assistant"].contains(role))
            .collect();
        assert_eq!(
            roles,
            ["user", "assistant", "user", "assistant", "user"],
            "{api:?}: {messages:?}"
        );
        assert!(
            text_of(&messages[messages.len() - 3]).contains("removed from the conversation"),
            "{messages:?}"
        );
    }
}

#[tokio::test]
async fn a_later_compaction_does_not_contain_the_forgotten_turn() {
    let long = "x".repeat(3_000);
    let server = Server::start(move |asked| {
        let last = asked.body["messages"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()
            .to_string();
        let answer = match last.contains("Result of the script") {
            true => "noted".to_owned(),
            false => block(&format!("return {{ n: {}, s: '{long}' }}", asked.number)),
        };
        Reply::Counted(
            vec![text(&answer)],
            asked.body["messages"].to_string().len() as u64 / 4 + 100,
        )
    })
    .await;
    let mut test = TestAgent::new(WireApi::Chat);
    (test.model.context_window, test.model.max_output_tokens) = (16_000, 1_000);
    test.settings.max_declaration_tokens = 100;
    let agent = test.agent(&server);
    let mut session = test.session().await;
    say(
        &agent,
        &mut session,
        &test,
        &format!("TASK: find the {WORD}"),
    )
    .await;
    let shortened = |session: &Session| {
        session
            .steps()
            .iter()
            .any(|step| step.kind == SessionStepKind::Compaction)
    };
    while !shortened(&session) {
        say(&agent, &mut session, &test, "please go on").await;
    }
    let steps = |session: &Session| format!("{:?}", session.steps());
    assert!(
        steps(&session).matches(WORD).count() > 2,
        "the summary contains the word"
    );
    let id = session.id().to_owned();
    drop(session);
    Session::forget(&test.journal, &id, Some(1)).unwrap();
    test.journal.scrub().unwrap();
    assert!(!is_in_file(&test));
    // The session is compacted again, from the turns that remain.
    let mut session = Session::open(&test.journal, &id).await.unwrap();
    assert!(!shortened(&session) && !steps(&session).contains(WORD));
    while !shortened(&session) {
        say(&agent, &mut session, &test, "please go on").await;
    }
    assert!(!server.asked().last().unwrap().raw.contains(WORD));
}

#[tokio::test]
async fn an_encrypted_journal_never_contains_the_word() {
    let (mut test, server) = (TestAgent::new(WireApi::Chat), Server::start(answers).await);
    std::fs::write(
        test.work().join("z.txt"),
        format!("{WORD}, says the file\n"),
    )
    .unwrap();
    let (home, key) = (test.dir.path().join("home"), [5; 32]);
    let keeping = JournalOptions {
        encryption_key: Some(key),
        ..JournalOptions::default()
    };
    test.journal = Journal::open_with(&home, &keeping).unwrap();
    let memory = Arc::new(Memory::open_encrypted(&home, Redactor::new([]), &key).unwrap());
    let agent = test.agent(&server).with_memory(&agent_memory(&memory));
    let mut session = test.session().await;
    say(
        &agent,
        &mut session,
        &test,
        &format!("Tell me about the {WORD}. Always call the {WORD} by its name."),
    )
    .await;
    while memory
        .distill(session.id(), None)
        .await
        .unwrap()
        .remaining_turns
        > 0
    {}
    assert_eq!(memory.lessons(None).unwrap().len(), 1);
    say(
        &agent,
        &mut session,
        &test,
        &format!("By which name do I call the {WORD}?"),
    )
    .await;
    assert!(!is_in_file(&test));
    let asked = server.asked();
    assert!(
        asked.last().unwrap().raw.contains("<recalled>"),
        "memory works with encryption: {}",
        asked.last().unwrap().raw
    );
}
