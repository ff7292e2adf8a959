//! The chat in a real terminal, with a model on loopback: what the user types and sees.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]
#![cfg(target_os = "linux")]

#[allow(dead_code)]
#[path = "../../agent/tests/support/answer_encoding.rs"]
mod answer_encoding;
#[path = "chat/driver.rs"]
mod driver;
#[allow(dead_code)]
#[path = "../../agent/tests/support/server.rs"]
mod server;

#[path = "support/mod.rs"]
mod support;

#[path = "chat/commands.rs"]
mod commands;
#[path = "chat/deliberate.rs"]
mod deliberate;
#[path = "chat/folder.rs"]
mod folder;
#[path = "chat/forms.rs"]
mod forms;
#[path = "chat/images.rs"]
mod images;
#[path = "chat/inbox.rs"]
mod inbox;
#[path = "chat/keys.rs"]
mod keys;
#[path = "chat/outcomes.rs"]
mod outcomes;
#[path = "chat/questions.rs"]
mod questions;
#[path = "chat/sampling.rs"]
mod sampling;
#[path = "chat/screens.rs"]
mod screens;
#[path = "chat/typing.rs"]
mod typing;
#[path = "chat/windows.rs"]
mod windows;

use answer_encoding::{AnswerPart, block, call, text, think};
use driver::ChatFixture;
use serde_json::json;
use server::{Asked, Reply};

/// Returns the last message of a request to the model.
fn last(asked: &Asked) -> String {
    asked.body["messages"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .to_string()
}

/// Answers every request with a greeting.
fn polite(_: &Asked) -> Reply {
    vec![text("Hello, *person*.")].into()
}

/// Answers the first request with `answer`, and all others with "Done."
fn first(answer: Vec<AnswerPart>) -> impl Fn(&Asked) -> Reply + Send + Sync + 'static {
    move |request| match request.number {
        0 => answer.clone().into(),
        _ => vec![text("Done.")].into(),
    }
}

/// Answers the first request with a script, and all others with "Done."
fn script(code: &str) -> impl Fn(&Asked) -> Reply + Send + Sync + 'static {
    first(vec![text(&block(code))])
}

/// The empty input line while no turn is running.
const READY: &str = "› type a message, @ for files, / for commands";

#[test]
fn a_message_is_answered_and_the_exit_prints_how_to_continue() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.chat();
    terminal.wait_for(READY);
    terminal.send("Hi there");
    terminal.expect_screen(
        "
selvedge

› Hi there

Hello, person.

› type a message, @ for files, / for commands
  mock · 100 in, 20 out · 100% left · workspace-write · ses_ID",
    );
    terminal.type_text("\x04");
    let (status, screen) = terminal.wait_for_exit();
    assert_eq!(status, 0);
    let id = screen.rsplit("selvedge continue ").next().unwrap();
    assert!(
        id.starts_with("ses_") && !screen.contains("type a message"),
        "{screen}"
    );
}

#[test]
fn a_script_is_shown_with_its_calls_and_result() {
    let code = "const all = await Promise.all(['a.txt', 'gone.txt'].map(path =>\n  \
                tools.readFile({ path }).catch(e => e.name)));\n\
                console.log('read');\nreturn { message: 'two', n: all.length };";
    let fixture = ChatFixture::new(first(vec![
        think("First I count.\nThen I tell."),
        text(&format!("I count.\n\n{}", block(code))),
    ]));
    let mut terminal = fixture.chat();
    terminal.send("Count");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    terminal.expect_screen(
        "
selvedge

› Count

· thought for N s

I count.

▶ script  scr_ID
    const all = await Promise.all(['a.txt', 'gone.txt'].map(path =>
      tools.readFile({ path }).catch(e => e.name)));
    console.log('read');
    return { message: 'two', n: all.length };
  ✓ read_file a.txt  N s
  ✗ read_file gone.txt  failed: gone.txt does not exist
  read
◀ two  N s

Done.

› type a message, @ for files, / for commands
  mock · 200 in, 40 out · 100% left · workspace-write · ses_ID",
    );
    terminal.send("/reasoning");
    terminal.wait_for("  First I count.");
}

#[test]
fn structured_calls_are_shown_with_their_results() {
    let fixture = ChatFixture::new(first(vec![
        call("c1", "read_file", json!({"path": "a.txt"})),
        call("c2", "read_file", json!({"path": "gone.txt"})),
    ]));
    let mut terminal = fixture.chat();
    terminal.send("Read");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    terminal.expect_screen(
        "
selvedge

› Read

  ✓ read_file a.txt  N s
    L1: one
    L2: two
  ✗ read_file gone.txt  failed: gone.txt does not exist

Done.

› type a message, @ for files, / for commands
  mock · 200 in, 40 out · 100% left · workspace-write · ses_ID",
    );
}

/// A script that runs two commands, each until a file exists.
const TWO_AT_ONCE: &str = "const wait = n => tools.exec({ command: ['sh', '-c', \
    `while [ ! -e go${n} ]; do sleep 0.02; done; echo ${n}`] });\n\
    await Promise.all([wait(1), wait(2)]);\nreturn 'both'";

#[test]
fn concurrent_calls_are_shown_at_the_same_time() {
    let fixture = ChatFixture::new(script(TWO_AT_ONCE));
    let mut terminal = fixture.chat();
    terminal.send("Go");
    let running = |screen: &str| {
        screen
            .lines()
            .filter(|line| line.contains(" exec sh -c") && !line.contains('✓'))
            .count()
    };
    terminal.wait_until("both calls", |screen| running(screen) == 2);
    std::fs::write(fixture.work().join("go2"), "").unwrap();
    terminal.wait_until("one of them", |screen| {
        running(screen) == 1 && screen.contains("✓ exec")
    });
    std::fs::write(fixture.work().join("go1"), "").unwrap();
    terminal.wait_for("◀ \"both\"");
    terminal.wait_for("Done.");
}

#[test]
fn a_long_script_is_folded_and_an_error_shows_its_line() {
    let code = (1..20)
        .map(|n| format!("const a{n} = {n};"))
        .collect::<Vec<_>>()
        .join("\n")
        + "\nthrow new Error('no more');";
    let fixture = ChatFixture::new(script(&code));
    let mut terminal = fixture.chat();
    terminal.send("Go");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    terminal.expect_screen(
        "
selvedge

› Go

▶ script  scr_ID
    const a1 = 1;
    const a2 = 2;
    const a3 = 3;
    const a4 = 4;
    const a5 = 5;
    const a6 = 6;
    const a7 = 7;
    const a8 = 8;
    const a9 = 9;
    const a10 = 10;
    const a11 = 11;
    … 9 more lines; Ctrl-O shows all
✗ ScriptRuntimeError: Error: no more (line 20)  N s

Done.

› type a message, @ for files, / for commands
  mock · 200 in, 40 out · 100% left · workspace-write · ses_ID",
    );
}

#[test]
fn file_changes_are_shown_as_a_coloured_diff() {
    let code = "await tools.writeFile({ path: 'a.txt', content: 'one\\n2\\nthree\\n' });\n\
                return 'written'";
    let fixture = ChatFixture::new(script(code));
    let mut terminal = fixture.chat();
    terminal.send("Change it");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    terminal.expect_screen(
        "
selvedge

› Change it

▶ script  scr_ID
    await tools.writeFile({ path: 'a.txt', content: 'one\\n2\\nthree\\n' });
    return 'written'
  ✓ write_file a.txt  N s
    a.txt  +2 -1
    @@ -1,2 +1,3 @@
     one
    -two
    +2
    +three
◀ \"written\"  N s

Done.

› type a message, @ for files, / for commands
  mock · 200 in, 40 out · 100% left · workspace-write · ses_ID",
    );
    let raw = String::from_utf8_lossy(&terminal.raw_output).into_owned();
    assert!(
        raw.contains("\x1b[32m+2\x1b[0m") && raw.contains("\x1b[31m-two\x1b[0m"),
        "{raw:?}"
    );
    terminal.send("/diff");
    terminal.wait_until("the diff again", |screen| {
        screen.matches("+three").count() == 2
    });
}

#[test]
fn reasoning_is_hidden_until_ctrl_t_shows_it() {
    let fixture = ChatFixture::new(|_| vec![think("Deep thoughts."), text("Said.")].into());
    let mut terminal = fixture.chat();
    terminal.send("one");
    terminal.wait_for("Said.");
    terminal.wait_for("· thought for");
    assert!(!terminal.screen().contains("Deep thoughts."));
    terminal.type_text("\x14");
    terminal.wait_for("new reasoning is shown");
    terminal.send("two");
    terminal.wait_for("  Deep thoughts.");
}

/// Returns the `sleep` commands whose working folder is this one.
fn commands_in(folder: &std::path::Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.path()));
    let here = processes
        .filter(|process| std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == folder));
    let commands = here.filter_map(|process| std::fs::read_to_string(process.join("cmdline")).ok());
    commands
        .filter(|command| command.starts_with("sleep"))
        .collect()
}

#[test]
fn ctrl_c_stops_the_turn_and_its_children_and_keeps_the_session() {
    let fixture = ChatFixture::new(|asked| match asked.number {
        0 => vec![text(&block(
            "return await tools.exec({ command: ['sh', '-c', 'echo $$ > pid; exec sleep 1000'] })",
        ))]
        .into(),
        _ => vec![text("Again.")].into(),
    });
    let mut terminal = fixture.chat();
    terminal.send("Go");
    terminal.wait_for("exec sh -c");
    let pid = fixture.work().join("pid");
    while std::fs::read_to_string(&pid)
        .map(|text| text.trim().is_empty())
        .unwrap_or(true)
        || commands_in(&fixture.work()).is_empty()
    {
        std::thread::yield_now();
    }
    terminal.type_text("\x03");
    terminal.wait_for("– stopped");
    terminal.wait_for(READY);
    assert_eq!(
        commands_in(&fixture.work()),
        Vec::<String>::new(),
        "the turn's commands are killed"
    );
    terminal.send("And now?");
    terminal.wait_for("Again.");
    assert!(
        fixture.server.asked()[1].body.to_string().contains("Go"),
        "the session is the same"
    );
}

#[test]
fn ctrl_c_stops_an_answer_that_does_not_end() {
    let fixture = ChatFixture::new(|asked| match asked.number {
        0 => Reply::Hang(vec![text(
            "It begins and begins and begins and begins and begins and begins.",
        )]),
        _ => vec![text("Again.")].into(),
    });
    let mut terminal = fixture.chat();
    terminal.send("Go");
    terminal.wait_for("It begins");
    terminal.type_text("\x03");
    terminal.wait_for("– stopped");
    terminal.send("And now?");
    terminal.wait_for("Again.");
    terminal.wait_for(READY);
    // Without a turn: the first Ctrl-C clears the input, two more quit.
    terminal.type_text("half a thought");
    terminal.wait_for("› half a thought");
    terminal.type_text("\x03");
    terminal.wait_for(READY);
    terminal.type_text("\x03");
    terminal.wait_for("press Ctrl-C again to quit");
    terminal.type_text("\x03");
    assert_eq!(terminal.wait_for_exit().0, 0);
}

#[test]
fn a_failed_turn_shows_an_error_with_a_hint() {
    let fixture =
        ChatFixture::new(|_| Reply::Fail(401, r#"{"error":{"message":"bad key"}}"#.into()));
    let mut terminal = fixture.chat();
    terminal.send("Hi");
    terminal.wait_for("error: provider `mock`: bad key");
    terminal.wait_for("hint: set env_key = \"VARIABLE\" under [model_providers.mock]");
    terminal.wait_for(READY);
}

#[test]
fn a_session_can_be_continued() {
    let fixture = ChatFixture::new(|asked| match last(asked).contains("second") {
        true => vec![text("The second answer.")].into(),
        false => vec![text("The first answer.")].into(),
    });
    let mut terminal = fixture.chat();
    terminal.send("first");
    terminal.wait_for("The first answer.");
    terminal.type_text("\x04");
    let screen = terminal.wait_for_exit().1;
    let id = screen
        .rsplit("selvedge continue ")
        .next()
        .unwrap()
        .to_owned();
    for args in [&["continue", id.as_str()][..], &["resume", "--last"]] {
        let mut terminal = fixture.open(args, 80, 24, &[]);
        terminal.wait_for("The first answer.");
        terminal.wait_for("› first");
        terminal.send("second");
        terminal.wait_for("The second answer.");
        terminal.type_text("\x04");
        assert!(terminal.wait_for_exit().1.contains(&id));
    }
    let asked = fixture.server.asked().pop().unwrap();
    assert!(
        asked.body.to_string().contains("The first answer."),
        "{}",
        asked.body
    );
    let (status, screen) = fixture
        .open(&["continue", "ses_nothing"], 80, 24, &[])
        .wait_for_exit();
    assert!(
        status == 2 && screen.contains("error: ") && screen.contains("hint: "),
        "{status}: {screen}"
    );
}

#[test]
fn an_interrupted_turn_is_continued() {
    let fixture = ChatFixture::new(|asked| match asked.number {
        0 => vec![
            text("Working."),
            call("c1", "read_file", json!({"path": "a.txt"})),
        ]
        .into(),
        1 => Reply::Hang(vec![text(
            "Never said to its end, whatever happens and however long it is.",
        )]),
        _ => vec![text("Done after all.")].into(),
    });
    let mut terminal = fixture.chat();
    terminal.send("Go");
    fixture.wait_for_requests(2);
    terminal.signal("KILL");
    assert_eq!(terminal.wait_for_exit().0, 137);
    let mut terminal = fixture.open(&["continue"], 80, 24, &[]);
    terminal.wait_for("the last turn was interrupted; continuing it");
    terminal.wait_for("Done after all.");
    terminal.wait_for(READY);
}

#[test]
fn without_a_terminal_the_chat_fails_with_a_hint() {
    let fixture = ChatFixture::new(polite);
    let output = fixture.run(&[]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        stderr.starts_with("error: a chat needs a terminal as standard input and output\n")
            && stderr.contains("hint: run `selvedge exec \"PROMPT\"` for a single task"),
        "{stderr}"
    );
    let output = fixture.run(&["--model", "x", "exec", "hi"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2)
            && stderr.contains("--model has no effect before the command `exec`"),
        "{stderr}"
    );
}
