//! The chat as a person uses it: a real terminal, a model on loopback, and what is to be seen.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]
#![cfg(target_os = "linux")]

#[path = "chat/person.rs"]
mod person;
#[allow(dead_code)]
#[path = "../../agent/tests/support/server.rs"]
mod server;
#[allow(dead_code)]
#[path = "../../agent/tests/support/speech.rs"]
mod speech;

#[path = "support/mod.rs"]
mod support;

#[path = "chat/commands.rs"]
mod commands;
#[path = "chat/forms.rs"]
mod forms;
#[path = "chat/questions.rs"]
mod questions;
#[path = "chat/sampling.rs"]
mod sampling;
#[path = "chat/typing.rs"]
mod typing;
#[path = "chat/windows.rs"]
mod windows;

use person::Desk;
use serde_json::json;
use server::{Asked, Reply};
use speech::{Say, block, call, text, think};

/// The last thing that was said to the model.
fn last(asked: &Asked) -> String {
    asked.body["messages"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .to_string()
}

/// Says hello to whatever is asked.
fn polite(_: &Asked) -> Reply {
    vec![text("Hello, *person*.")].into()
}

/// Answers the first request with this, and what comes of it with "Done."
fn first(said: Vec<Say>) -> impl Fn(&Asked) -> Reply + Send + Sync + 'static {
    move |asked| match asked.number {
        0 => said.clone().into(),
        _ => vec![text("Done.")].into(),
    }
}

/// A script in the first answer.
fn script(code: &str) -> impl Fn(&Asked) -> Reply + Send + Sync + 'static {
    first(vec![text(&block(code))])
}

/// The line of a chat that waits for something to be typed.
const READY: &str = "› ask, @ a file, / for commands";

#[test]
fn a_question_is_answered_and_the_way_back_is_told() {
    let desk = Desk::new(polite);
    let mut person = desk.chat();
    person.wait_for(READY);
    person.asks("Hi there");
    person.expect(
        "
selvedge

› Hi there

Hello, person.

› ask, @ a file, / for commands
  mock · 100 in, 20 out · 100% left · workspace-write · ses_ID",
    );
    person.types("\x04");
    let (status, screen) = person.end();
    assert_eq!(status, 0);
    let id = screen.rsplit("selvedge continue ").next().unwrap();
    assert!(
        id.starts_with("ses_") && !screen.contains("ask, @ a file"),
        "{screen}"
    );
}

#[test]
fn a_script_is_shown_with_its_calls_and_what_came_of_them() {
    let code = "const all = await Promise.all(['a.txt', 'gone.txt'].map(path =>\n  tools.readFile({ path }).catch(e => e.name)));\nconsole.log('read');\nreturn { message: 'two', n: all.length };";
    let desk = Desk::new(first(vec![
        think("First I count.\nThen I tell."),
        text(&format!("I count.\n\n{}", block(code))),
    ]));
    let mut person = desk.chat();
    person.asks("Count");
    person.wait_for("Done.");
    person.wait_for(READY);
    person.expect(
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

› ask, @ a file, / for commands
  mock · 200 in, 40 out · 100% left · workspace-write · ses_ID",
    );
    person.asks("/thinking");
    person.wait_for("  First I count.");
}

#[test]
fn structured_calls_are_shown_with_what_they_returned() {
    let desk = Desk::new(first(vec![
        call("c1", "read_file", json!({"path": "a.txt"})),
        call("c2", "read_file", json!({"path": "gone.txt"})),
    ]));
    let mut person = desk.chat();
    person.asks("Read");
    person.wait_for("Done.");
    person.wait_for(READY);
    person.expect(
        "
selvedge

› Read

  ✓ read_file a.txt  N s
    L1: one
    L2: two
  ✗ read_file gone.txt  failed: gone.txt does not exist

Done.

› ask, @ a file, / for commands
  mock · 200 in, 40 out · 100% left · workspace-write · ses_ID",
    );
}

/// A script that runs two commands until a file is there.
const TWO_AT_ONCE: &str = "const wait = n => tools.exec({ command: ['sh', '-c', `while [ ! -e go${n} ]; do sleep 0.02; done; echo ${n}`] });\nawait Promise.all([wait(1), wait(2)]);\nreturn 'both'";

#[test]
fn calls_that_run_side_by_side_are_seen_together() {
    let desk = Desk::new(script(TWO_AT_ONCE));
    let mut person = desk.chat();
    person.asks("Go");
    let running = |screen: &str| {
        screen
            .lines()
            .filter(|line| line.contains(" exec sh -c") && !line.contains('✓'))
            .count()
    };
    person.wait("both calls", |screen| running(screen) == 2);
    std::fs::write(desk.work().join("go2"), "").unwrap();
    person.wait("one of them", |screen| {
        running(screen) == 1 && screen.contains("✓ exec")
    });
    std::fs::write(desk.work().join("go1"), "").unwrap();
    person.wait_for("◀ \"both\"");
    person.wait_for("Done.");
}

#[test]
fn a_long_script_is_folded_and_a_failure_says_where() {
    let code = (1..20)
        .map(|n| format!("const a{n} = {n};"))
        .collect::<Vec<_>>()
        .join("\n")
        + "\nthrow new Error('no more');";
    let desk = Desk::new(script(&code));
    let mut person = desk.chat();
    person.asks("Go");
    person.wait_for("Done.");
    person.wait_for(READY);
    person.expect(
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
    … 9 more lines
✗ ScriptRuntimeError: Error: no more (line 20)  N s

Done.

› ask, @ a file, / for commands
  mock · 200 in, 40 out · 100% left · workspace-write · ses_ID",
    );
}

#[test]
fn changes_are_shown_in_colour() {
    let code = "await tools.writeFile({ path: 'a.txt', content: 'one\\n2\\nthree\\n' });\nreturn 'written'";
    let desk = Desk::new(script(code));
    let mut person = desk.chat();
    person.asks("Change it");
    person.wait_for("Done.");
    person.wait_for(READY);
    person.expect(
        "
selvedge

› Change it

▶ script  scr_ID
    await tools.writeFile({ path: 'a.txt', content: 'one\\n2\\nthree\\n' });
    return 'written'
  ✓ write_file a.txt one 2 three   N s
    a.txt  +2 -1
    @@ -1,2 +1,3 @@
     one
    -two
    +2
    +three
◀ \"written\"  N s

Done.

› ask, @ a file, / for commands
  mock · 200 in, 40 out · 100% left · workspace-write · ses_ID",
    );
    let raw = String::from_utf8_lossy(&person.raw).into_owned();
    assert!(
        raw.contains("\x1b[32m+2\x1b[0m") && raw.contains("\x1b[31m-two\x1b[0m"),
        "{raw:?}"
    );
    person.asks("/diff");
    person.wait("the diff again", |screen| {
        screen.matches("+three").count() == 2
    });
}

#[test]
fn thoughts_are_folded_unless_somebody_wants_them() {
    let desk = Desk::new(|_| vec![think("Deep thoughts."), text("Said.")].into());
    let mut person = desk.chat();
    person.asks("one");
    person.wait_for("Said.");
    person.wait_for("· thought for");
    assert!(!person.screen().contains("Deep thoughts."));
    person.types("\x14");
    person.wait_for("thoughts are shown from now on");
    person.asks("two");
    person.wait_for("  Deep thoughts.");
}

/// The commands that run in a folder.
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
    let desk = Desk::new(|asked| match asked.number {
        0 => vec![text(&block(
            "return await tools.exec({ command: ['sh', '-c', 'echo $$ > pid; exec sleep 1000'] })",
        ))]
        .into(),
        _ => vec![text("Again.")].into(),
    });
    let mut person = desk.chat();
    person.asks("Go");
    person.wait_for("exec sh -c");
    let pid = desk.work().join("pid");
    while std::fs::read_to_string(&pid)
        .map(|text| text.trim().is_empty())
        .unwrap_or(true)
        || commands_in(&desk.work()).is_empty()
    {
        std::thread::yield_now();
    }
    person.types("\x03");
    person.wait_for("– stopped");
    person.wait_for(READY);
    assert_eq!(
        commands_in(&desk.work()),
        Vec::<String>::new(),
        "nothing outlives the turn"
    );
    person.asks("And now?");
    person.wait_for("Again.");
    assert!(
        desk.server.asked()[1].body.to_string().contains("Go"),
        "the session is the same"
    );
}

#[test]
fn ctrl_c_stops_an_answer_that_does_not_end() {
    let desk = Desk::new(|asked| match asked.number {
        0 => Reply::Hang(vec![text(
            "It begins and begins and begins and begins and begins and begins.",
        )]),
        _ => vec![text("Again.")].into(),
    });
    let mut person = desk.chat();
    person.asks("Go");
    person.wait_for("It begins");
    person.types("\x03");
    person.wait_for("– stopped");
    person.asks("And now?");
    person.wait_for("Again.");
    // With nothing to stop: first what is typed goes, then the chat.
    person.types("half a thought");
    person.wait_for("› half a thought");
    person.types("\x03");
    person.wait_for(READY);
    person.types("\x03");
    person.wait_for("Ctrl-C again leaves");
    person.types("\x03");
    assert_eq!(person.end().0, 0);
}

#[test]
fn a_failure_is_told_with_what_to_do() {
    let desk = Desk::new(|_| Reply::Fail(401, r#"{"error":{"message":"bad key"}}"#.into()));
    let mut person = desk.chat();
    person.asks("Hi");
    person.wait_for("error: auth:");
    person.wait_for("hint: `selvedge models test` tries the key");
    person.wait_for(READY);
}

#[test]
fn a_session_is_gone_on_with() {
    let desk = Desk::new(|asked| match last(asked).contains("second") {
        true => vec![text("The second answer.")].into(),
        false => vec![text("The first answer.")].into(),
    });
    let mut person = desk.chat();
    person.asks("first");
    person.wait_for("The first answer.");
    person.types("\x04");
    let screen = person.end().1;
    let id = screen
        .rsplit("selvedge continue ")
        .next()
        .unwrap()
        .to_owned();
    for args in [&["continue", id.as_str()][..], &["resume", "--last"]] {
        let mut person = desk.sit_down(args, 80, 24, &[]);
        person.wait_for("The first answer.");
        person.wait_for("› first");
        person.asks("second");
        person.wait_for("The second answer.");
        person.types("\x04");
        assert!(person.end().1.contains(&id));
    }
    let asked = desk.server.asked().pop().unwrap();
    assert!(
        asked.body.to_string().contains("The first answer."),
        "{}",
        asked.body
    );
    let (status, screen) = desk
        .sit_down(&["continue", "ses_nothing"], 80, 24, &[])
        .end();
    assert!(
        status == 2 && screen.contains("error: ") && screen.contains("hint: "),
        "{status}: {screen}"
    );
}

#[test]
fn a_turn_that_was_broken_off_goes_on() {
    let desk = Desk::new(|asked| match asked.number {
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
    let mut person = desk.chat();
    person.asks("Go");
    desk.wait_for_requests(2);
    person.signal("KILL");
    assert_eq!(person.end().0, 137);
    let mut person = desk.sit_down(&["continue"], 80, 24, &[]);
    person.wait_for("the last turn was broken off, and goes on");
    person.wait_for("Done after all.");
    person.wait_for(READY);
}

#[test]
fn without_a_terminal_there_is_one_clear_error() {
    let desk = Desk::new(polite);
    let output = desk.selvedge(&[]);
    assert_eq!(output.status.code(), Some(2));
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        talk.starts_with("error: a chat needs a terminal") && talk.contains("hint: `selvedge exec"),
        "{talk}"
    );
    let output = desk.selvedge(&["--model", "x", "exec", "hi"]);
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2)
            && talk.contains("--model has no effect before the command `exec`"),
        "{talk}"
    );
}
