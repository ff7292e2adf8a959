//! Keys of the chat, commands of the user, and the commands about the session and the folder.

use serde_json::json;

use super::driver::ChatFixture;
use super::{block, last, polite, script, text, think};

const READY: &str = "type a message";

#[test]
fn escape_stops_the_turn_and_keeps_the_chat() {
    let fixture = ChatFixture::new(script("await tools.exec({ command: ['sleep', '60'] })"));
    let mut terminal = fixture.chat();
    terminal.send("Wait");
    terminal.wait_for("exec sleep 60");
    terminal.type_text("\x1b");
    terminal.wait_for("– stopped");
    terminal.wait_for(READY);
}

#[test]
fn ctrl_r_finds_earlier_messages_and_quit_is_not_one_of_them() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.chat();
    for message in ["first apple", "second pear", "third apple"] {
        terminal.send(message);
        terminal.wait_for(READY);
    }
    terminal.send("/quit");
    terminal.wait_for("selvedge continue");
    let mut terminal = fixture.chat();
    terminal.wait_for(READY);
    // The newest message is not `/quit`.
    terminal.type_text("\x1b[A");
    terminal.wait_for("› third apple");
    terminal.type_text("\x03");
    terminal.wait_for(READY);
    // After the input was cleared, browsing starts with the newest message again.
    terminal.type_text("\x1b[A");
    terminal.wait_for("› third apple");
    terminal.type_text("\x03");
    terminal.wait_for(READY);
    // Without a text, each step finds the next older message.
    terminal.type_text("\x12");
    terminal.wait_for("history: ");
    terminal.type_text("\x12");
    terminal.wait_for("› third apple");
    terminal.type_text("\x1b");
    terminal.wait_for(READY);
    terminal.type_text("\x12apple");
    terminal.wait_for("history: apple");
    terminal.wait_for("› third apple");
    terminal.type_text("\x12");
    terminal.wait_for("› first apple");
    terminal.wait_for("Ctrl-R older");
    terminal.type_text("\x12");
    terminal.wait_for("no other message");
    terminal.wait_for("› first apple");
    terminal.type_text("\r");
    terminal.wait_gone("history: apple");
    // Enter took the message, and did not send it.
    assert_eq!(fixture.server.asked().len(), 3);
    terminal.type_text("!\r");
    fixture.wait_for_requests(4);
    assert!(last(&fixture.server.asked()[3]).contains("first apple!"));
}

#[test]
fn a_command_of_the_user_runs_and_the_model_sees_its_output() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.open(&[], 80, 40, &[("SHELL", "/bin/sh")]);
    terminal.send("!echo one; echo two >&2; exit 3");
    terminal.wait_for("  one");
    terminal.wait_for("  two");
    terminal.wait_for("  exit 3");
    terminal.wait_for(READY);
    assert_eq!(fixture.server.asked().len(), 0);
    terminal.send("What was that?");
    fixture.wait_for_requests(1);
    let message = last(&fixture.server.asked()[0]);
    assert!(
        message.contains("What was that?")
            && message.contains("(exit 3)")
            && message.contains("one"),
        "{message}"
    );
    terminal.wait_for(READY);
    terminal.send("!sleep 60");
    terminal.wait_for("running; Ctrl-C stops it");
    terminal.type_text("\x1b");
    terminal.wait_for("  stopped");
}

#[test]
fn only_one_typed_line_runs_as_a_command() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.open(&[], 80, 40, &[("SHELL", "/bin/sh")]);
    terminal.wait_for(READY);
    let refused = "error: only one typed line runs as a command; nothing was run";
    for (typed, pasted) in [("", "!touch made\ntouch made"), ("!", "touch made")] {
        terminal.type_text(typed);
        terminal.paste(pasted);
        terminal.wait_for("touch made");
        terminal.type_text("\r");
        terminal.wait_for(refused);
        // The search in the history returns to the pasted text.
        terminal.type_text("\x12");
        terminal.wait_for("Esc cancels");
        terminal.type_text("\x1b");
        terminal.wait_gone("Esc cancels");
        terminal.type_text("\r");
        terminal.wait_until("the error twice", |screen| {
            screen.matches(refused).count() == 2
        });
        terminal.type_text("\x03");
        terminal.wait_for(READY);
        terminal.send("/clear");
        terminal.wait_gone(refused);
    }
    terminal.type_text("!touch made\\\rtouch made");
    terminal.wait_for("  touch made");
    terminal.type_text("\r");
    terminal.wait_for(refused);
    assert!(!fixture.work().join("made").exists());
    assert!(fixture.server.asked().is_empty());
    terminal.type_text("\x03");
    terminal.wait_for(READY);
    terminal.send("!touch made");
    terminal.wait_for("  exit 0");
    assert!(fixture.work().join("made").exists());
}

#[test]
fn the_message_can_be_written_in_an_editor() {
    let fixture = ChatFixture::new(polite);
    let editor = fixture.dir.path().join("editor");
    std::fs::write(&editor, "#!/bin/sh\nprintf 'from the editor' >> \"$1\"\n").unwrap();
    let editor = format!("sh {}", editor.display());
    // VISUAL has precedence.
    for (number, env) in [
        &[("EDITOR", editor.as_str())][..],
        &[("VISUAL", editor.as_str()), ("EDITOR", "false")],
    ]
    .into_iter()
    .enumerate()
    {
        let mut terminal = fixture.open(&[], 80, 24, env);
        terminal.wait_for(READY);
        terminal.type_text("typed ");
        terminal.wait_for("› typed");
        terminal.type_text("\x07");
        terminal.wait_for("› typed from the editor");
        terminal.type_text("\r");
        fixture.wait_for_requests(number + 1);
        assert!(last(&fixture.server.asked()[number]).contains("typed from the editor"));
    }
}

#[test]
fn the_first_message_can_be_an_argument_and_the_last_session_continues() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.open(&["explain this project"], 80, 24, &[]);
    terminal.wait_for("› explain this project");
    fixture.wait_for_requests(1);
    terminal.wait_for(READY);
    terminal.send("/quit");
    terminal.wait_for("selvedge continue");
    let mut terminal = fixture.open(&["--continue"], 80, 24, &[]);
    terminal.wait_for("› explain this project");
    terminal.send("/quit");
    terminal.wait_for("selvedge continue");
    let output = fixture.run(&["-p", "one more"]);
    assert!(output.status.success(), "{output:?}");
    // A mistyped command is not a message.
    let output = fixture.run(&["doctr"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2) && error.contains("hint: run `selvedge doctor`"),
        "{error}"
    );
}

#[test]
fn exec_at_a_terminal_streams_markdown_and_reports_session_and_usage() {
    let answer = "# Title\n\n| a | b |\n|---|--:|\n| 1 | 22 |\n\nThe **end**.";
    let fixture = ChatFixture::new(move |_| vec![text(answer)].into());
    let terminal = fixture.open(&["exec", "Show"], 80, 24, &[]);
    let (status, screen) = terminal.wait_for_exit();
    assert_eq!(status, 0, "{screen}");
    assert!(
        screen.contains("Title\n\na │  b\n──┼───\n1 │ 22\n\nThe end.\n"),
        "{screen}"
    );
    assert_eq!(screen.matches("The end.").count(), 1, "{screen}");
    let summary = |screen: &str| screen.lines().last().unwrap().to_owned();
    let unknown = " · 100 in, 20 out · cost unknown: the model has no prices";
    assert!(
        summary(&screen).starts_with("ses_") && summary(&screen).ends_with(unknown),
        "{screen}"
    );
    // 100 tokens at 5000 and 20 at 10000 per million.
    let prices = |input: f64, output: f64| {
        fixture.configure(&format!(
            "[models.mock]\nprices = {{ input = {input:.1}, output = {output:.1} }}\n"
        ));
        let terminal = fixture.open(&["exec", "--ephemeral", "Show"], 80, 24, &[]);
        summary(&terminal.wait_for_exit().1)
    };
    assert_eq!(prices(5000.0, 10000.0), "100 in, 20 out · $0.7000");
    assert_eq!(prices(0.0, 0.0), "100 in, 20 out");
    // `--quiet` omits it.
    let terminal = fixture.open(&["exec", "--quiet", "Show"], 80, 24, &[]);
    assert_eq!(summary(&terminal.wait_for_exit().1), "The end.");
}

#[test]
fn the_summary_of_exec_is_not_part_of_the_answer() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.open_shell();
    terminal.wait_for("shell>");
    let program = env!("CARGO_BIN_EXE_selvedge");
    terminal.type_text(&format!("{program} exec Show > answer.txt\r"));
    // Standard error is the terminal.
    terminal.wait_for(" · 100 in, 20 out");
    let answer = std::fs::read_to_string(fixture.work().join("answer.txt")).unwrap();
    assert_eq!(answer, "Hello, *person*.\n");
}

#[test]
fn deleting_a_session_asks_first() {
    let fixture = ChatFixture::new(polite);
    assert!(fixture.run(&["-p", "Hello"]).status.success());
    let sessions = || {
        let listed = fixture.run(&["sessions", "list", "--json"]).stdout;
        let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap();
        listed.as_array().unwrap().clone()
    };
    let id = sessions()[0]["id"].as_str().unwrap().to_owned();
    for command in [
        &["sessions", "delete", &id][..],
        &["memory", "forget", "--session", &id],
    ] {
        // Without a terminal there is no answer.
        let output = fixture.run(command);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && error.contains("hint: pass -y"),
            "{error}"
        );
        let mut terminal = fixture.open(command, 100, 24, &[]);
        terminal.wait_for("2. Keep");
        terminal.wait_for("\n>");
        terminal.type_text("2\r");
        assert_eq!(terminal.wait_for_exit().0, 1);
        assert_eq!(sessions().len(), 1);
    }
    let mut terminal = fixture.open(&["sessions", "delete", &id], 100, 24, &[]);
    terminal.wait_for("1. Delete");
    terminal.wait_for("\n>");
    terminal.type_text("1\r");
    assert_eq!(terminal.wait_for_exit().0, 0);
    assert!(sessions().is_empty());
    assert!(fixture.run(&["-p", "Hello"]).status.success());
    let id = sessions()[0]["id"].as_str().unwrap().to_owned();
    let args = ["memory", "forget", "--session", &id];
    let mut terminal = fixture.open(&args, 100, 24, &[]);
    terminal.wait_for("2. Keep");
    terminal.wait_for("\n>");
    terminal.type_text("1\r");
    assert_eq!(terminal.wait_for_exit().0, 0);
    assert!(sessions().is_empty());
    for command in [
        &["sessions", "delete"][..],
        &["memory", "forget", "--session"],
    ] {
        assert!(fixture.run(&["-p", "Hello"]).status.success());
        let id = sessions()[0]["id"].as_str().unwrap().to_owned();
        let output = fixture.run(&[command, &[&id, "-y"]].concat());
        assert!(output.status.success(), "{output:?}");
        assert!(sessions().is_empty());
    }
}

#[test]
fn claude_md_is_read_where_agents_md_is_absent() {
    let fixture = ChatFixture::new(polite);
    std::fs::write(fixture.work().join("CLAUDE.md"), "Speak like a sailor.").unwrap();
    fixture.run(&["-p", "Hello"]);
    let prompt = fixture.server.asked()[0].body.to_string();
    assert!(prompt.contains("Speak like a sailor."), "{prompt}");
    std::fs::write(fixture.work().join("AGENTS.md"), "Speak like a poet.").unwrap();
    fixture.run(&["-p", "Hello"]);
    let prompt = fixture.server.asked()[1].body.to_string();
    assert!(
        prompt.contains("Speak like a poet.") && !prompt.contains("sailor"),
        "{prompt}"
    );
}

#[test]
fn lists_have_headings_at_a_terminal_and_say_when_they_are_cut() {
    let fixture = ChatFixture::new(polite);
    for code in ["return 1 // 日本語", "return 2"] {
        assert!(fixture.run(&["run", "-e", code]).status.success());
    }
    let mut terminal = fixture.open(&["runs", "list", "--limit", "1"], 160, 24, &[]);
    terminal.wait_for("note: only the newest run; pass --limit N");
    let screen = terminal.screen();
    assert!(
        screen.starts_with("RUN ") && screen.contains(" ago ") && screen.contains("return 2"),
        "{screen}"
    );
    let raw = String::from_utf8_lossy(&terminal.raw_output).into_owned();
    assert!(raw.contains("\x1b[32mcompleted\x1b[0m"), "{raw:?}");
    let piped = fixture.run(&["runs", "list"]).stdout;
    let piped = String::from_utf8(piped).unwrap();
    assert!(
        piped.starts_with("scr_")
            && piped.contains("return 1 // 日本語")
            && !piped.contains('\x1b'),
        "{piped}"
    );
}

#[test]
fn the_progress_line_of_a_wide_command_does_not_scroll() {
    let fixture = ChatFixture::new(polite);
    let code = "await tools.exec({ command: ['sh', '-c', 'sleep 1; true 日本語日本語日本語日本語日本語日本語'] }); return 1";
    let mut terminal = fixture.open(&["run", "-e", code], 40, 10, &[]);
    terminal.wait_for("✓ exec");
    terminal.wait_for("\n1");
    let screen = terminal.with_scrollback();
    // The line of the spinner was redrawn in its place, and nothing was left above.
    assert!(screen.starts_with("✓ exec"), "{screen}");
}

#[test]
fn changes_of_a_turn_can_be_undone() {
    let code = "await tools.writeFile({ path: 'a.txt', content: 'changed\\n' }); return 'ok'";
    let fixture = ChatFixture::new(script(code));
    let mut terminal = fixture.open(&[], 80, 40, &[]);
    terminal.send("Change it");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    let file = fixture.work().join("a.txt");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "changed\n");
    terminal.send("/undo");
    terminal.wait_for("undid the file changes of turn 1:");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\ntwo\n");
    terminal.send("/undo");
    terminal.wait_for("turn 1 was undone before");
    // The model learns of it once.
    for (message, is_noted) in [("What now?", true), ("And now?", false)] {
        let before = fixture.server.asked().len();
        terminal.send(message);
        fixture.wait_for_requests(before + 1);
        let asked = last(&fixture.server.asked()[before]);
        let note = asked.contains("I undid the file changes of turn 1: a.txt");
        assert!(asked.contains(message) && note == is_noted, "{asked}");
        terminal.wait_for(READY);
    }
}

#[test]
fn a_folded_script_can_be_expanded_and_the_session_copied_and_exported() {
    let lines: Vec<String> = (0..30).map(|n| format!("const line{n} = {n};")).collect();
    let code = format!("{}\nreturn [line1, line29]", lines.join("\n"));
    let fixture = ChatFixture::new(move |asked| match asked.number {
        0 => vec![text(&block(&code))].into(),
        _ => vec![text("Done.")].into(),
    });
    let mut terminal = fixture.open(&[], 80, 60, &[]);
    terminal.send("Compute");
    terminal.wait_for("more lines");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    assert!(!terminal.screen().contains("const line28"));
    terminal.type_text("\x0f");
    terminal.wait_for("const line28");
    terminal.send("/copy");
    terminal.wait_for("copied the last answer");
    let output = String::from_utf8_lossy(&terminal.raw_output).into_owned();
    assert!(output.contains("\x1b]52;c;RG9uZS4=\x1b\\"));
    terminal.send("/export talk.md");
    terminal.wait_for("wrote ");
    let exported = std::fs::read_to_string(fixture.work().join("talk.md")).unwrap();
    assert!(
        exported.contains("> Compute") && exported.contains("~~~~ts\nconst line0"),
        "{exported}"
    );
    terminal.send("/export talk.md");
    terminal.wait_for("hint: type /export FILE with a new file");
}

#[test]
fn status_and_clear() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.open(&[], 80, 40, &[]);
    terminal.send("Hello");
    terminal.wait_for(READY);
    terminal.send("/status");
    terminal.wait_for("approvals  on-request");
    terminal.wait_for("sandbox    workspace-write");
    terminal.wait_for("model      mock (mock)");
    terminal.send("/clear");
    terminal.wait_for("started a new session");
    terminal.wait_gone("› Hello");
    terminal.send("/trust");
    terminal.wait_for("this folder has no configuration files");
}

#[test]
fn a_new_session_knows_nothing_of_the_one_before() {
    let wait = "!while [ ! -e go ]; do sleep 0.05; done; echo late zebra";
    for command in ["/clear", "/new"] {
        let fixture = ChatFixture::new(|_| vec![think("Deep thoughts."), text("Said.")].into());
        let mut terminal = fixture.open(&[], 80, 40, &[("SHELL", "/bin/sh")]);
        terminal.send("Hello giraffe");
        terminal.wait_for("Said.");
        terminal.wait_for(READY);
        terminal.send("!echo early zebra");
        terminal.wait_for("  early zebra");
        terminal.wait_for("  exit 0");
        // This one ends in the new session.
        terminal.send(wait);
        terminal.wait_for("running; Ctrl-C stops it");
        terminal.send(command);
        terminal.wait_for("started a new session");
        std::fs::write(fixture.work().join("go"), "").unwrap();
        terminal.wait_for("  late zebra");
        terminal.wait_for(READY);
        terminal.send("/reasoning");
        terminal.wait_for("the model has shown no reasoning yet");
        terminal.type_text("\x0f");
        terminal.wait_for("nothing to expand");
        terminal.send("Who are you?");
        fixture.wait_for_requests(2);
        let asked = fixture.server.asked()[1].body.to_string();
        // Only the brief of the project names the session before.
        let earlier = json!({"role": "user", "content": "Hello giraffe"}).to_string();
        assert!(
            asked.contains("Who are you?") && !asked.contains(&earlier),
            "{asked}"
        );
        assert!(!asked.contains("zebra"), "{asked}");
    }
}
