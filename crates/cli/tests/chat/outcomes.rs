//! What the chat and `exec` show while calls run and after they ended: outcomes, rules that count
//! in one folder, folded output, long commands, and answers as they stream in.

use super::driver::ChatFixture;
use super::server::Reply;
use super::{READY, block, last, polite, text};

/// Returns the id of the newest run.
fn newest_run(fixture: &ChatFixture) -> String {
    let runs = fixture.run(&["runs", "list", "--json"]).stdout;
    let runs: serde_json::Value = serde_json::from_slice(&runs).unwrap();
    runs[0]["id"].as_str().unwrap().to_owned()
}

#[test]
fn failed_reused_and_denied_calls_are_marked_and_name_their_arguments() {
    const CALLS: &str = "await tools.exec({ command: ['sh', '-c', 'exit 4'], timeoutMs: 60000 });\n\
        await tools.exec({ command: ['touch', 'made'] });\n\
        await tools.exec({ command: ['rm', '-rf', 'doomed'] }).catch(() => 0);";
    use std::sync::{Arc, Mutex};
    let earlier = Arc::new(Mutex::new(String::new()));
    let resumed = earlier.clone();
    let fixture = ChatFixture::new(move |asked| match asked.number {
        0 => {
            let run = resumed.lock().unwrap();
            let code = format!("// @exec: {{\"resume\": \"{run}\"}}\n{CALLS}\nreturn 'ended'");
            vec![text(&block(&code))].into()
        }
        _ => vec![text("Done.")].into(),
    });
    let output = fixture.run(&["run", "-q", "-e", &format!("{CALLS} throw 'later'")]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    *earlier.lock().unwrap() = newest_run(&fixture);
    let mut terminal = fixture.open(&[], 80, 40, &[]);
    terminal.send("Again");
    terminal.choose(3);
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    let screen = terminal.screen();
    for line in [
        "\n  ✗ exec sh -c exit 4 · timeout 60 s  exit 4\n",
        "\n  ↺ exec touch made  reused\n",
        "\n  ✗ exec rm -rf doomed  denied\n",
    ] {
        assert!(screen.contains(line), "{line}\n{screen}");
    }
    let shown = fixture.run(&["runs", "show", &newest_run(&fixture)]).stdout;
    let shown = String::from_utf8(shown).unwrap();
    for line in [
        "✗ exec           exit 4  sh -c exit 4 · timeout 60 s\n",
        "↺ exec           reused  touch made\n",
        "✗ exec           denied  rm -rf doomed\n",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
}

#[test]
fn a_rule_for_this_folder_counts_in_no_other() {
    let code = "await tools.exec({ command: ['touch', 'made'] }); return 'made'";
    let fixture = ChatFixture::new(move |asked| match asked.number % 2 {
        0 => vec![text(&block(code))].into(),
        _ => vec![text("Done.")].into(),
    });
    let mut terminal = fixture.open(&["--approval", "untrusted"], 80, 60, &[]);
    terminal.send("Make it");
    terminal.wait_for("4. Approve `touch made …` always in this folder");
    terminal.choose(4);
    terminal.wait_for("» approved always in this folder");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    // Another chat in the folder does not ask.
    let mut terminal = fixture.open(&["--approval", "untrusted"], 80, 60, &[]);
    terminal.send("Again");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    assert!(!terminal.screen().contains("approval needed"));
    // A chat in another folder asks.
    let args = ["--approval", "untrusted", "-C", "src"];
    let mut terminal = fixture.open(&args, 80, 60, &[]);
    terminal.send("Once more");
    terminal.wait_for("4. Approve `touch made …` always in this folder");
    assert!(!fixture.work().join("src/made").exists());
}

#[test]
fn folded_output_can_be_expanded() {
    let code = "text(Array.from({ length: 60 }, (_, n) => `shown row ${n}.`).join('\\n'));\n\
        return Array.from({ length: 60 }, (_, n) => `returned row ${n}.`)";
    let fixture = ChatFixture::new(super::script(code));
    let mut terminal = fixture.open(&[], 80, 24, &[]);
    terminal.send("Show");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    let folded = terminal.with_scrollback();
    assert!(
        folded.contains("shown row 0.") && !folded.contains("row 59."),
        "{folded}"
    );
    terminal.send("/expand");
    terminal.wait_for("\"returned row 59.\"");
    terminal.wait_for(READY);
    let expanded = terminal.with_scrollback();
    for n in 0..60 {
        for row in [format!("shown row {n}."), format!("\"returned row {n}.\"")] {
            assert!(expanded.contains(&row), "{row}\n{expanded}");
        }
    }
}

#[test]
fn a_long_command_is_complete_and_scrolls() {
    let code = "const lines = Array.from({ length: 300 }, (_, n) => `touch row-${n}-of-it`);\n\
        await tools.exec({ command: ['sh', '-c', lines.join('\\n')] }); return 'ran'";
    let fixture = ChatFixture::new(super::script(code));
    let mut terminal = fixture.open(&["--approval", "untrusted"], 80, 24, &[]);
    terminal.send("Run it");
    terminal.wait_for("1. Approve this call, once");
    terminal.wait_for("Page Up and Page Down scroll");
    let mut seen = String::new();
    while !terminal.screen().contains("touch row-299-of-it") {
        let screen = terminal.screen();
        seen += &screen;
        terminal.type_text("\x1b[6~");
        terminal.wait_until("the next page", |next| next != screen);
    }
    seen += &terminal.screen();
    for number in 0..300 {
        let row = format!("touch row-{number}-of-it");
        assert!(seen.contains(&row), "{row:?} was never on the screen");
    }
    // Page Up leads back to the beginning.
    while !terminal.screen().contains("touch row-0-of-it") {
        let screen = terminal.screen();
        terminal.type_text("\x1b[5~");
        terminal.wait_until("the page before", |next| next != screen);
    }
    terminal.type_text("\x1b");
    terminal.wait_for("» denied");
}

#[test]
fn folded_diffs_and_calls_can_be_expanded() {
    let code = "for (let n = 1; n <= 45; n++) await tools.readFile({ path: 'a.txt', limit: n });\n\
        const lines = Array.from({ length: 200 }, (_, n) => `written row ${n}.`);\n\
        await tools.writeFile({ path: 'long.txt', content: lines.join('\\n') }); return 'ended'";
    let fixture = ChatFixture::new(super::script(code));
    let mut terminal = fixture.open(&[], 80, 24, &[]);
    terminal.send("Go");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    let folded = terminal.with_scrollback();
    assert!(
        folded.contains("… 6 more calls; type /expand to list all calls")
            && folded.contains("✓ read_file a.txt · limit 40 ")
            && !folded.contains("limit 41 "),
        "{folded}"
    );
    assert!(
        folded.contains("+written row 0.") && !folded.contains("+written row 199."),
        "{folded}"
    );
    terminal.send("/expand");
    terminal.wait_for("+written row 199.");
    let expanded = terminal.with_scrollback();
    for n in 1..=45 {
        let row = format!("✓ read_file a.txt · limit {n} ");
        assert!(expanded.contains(&row), "{row}\n{expanded}");
    }
    for n in 0..200 {
        let row = format!("+written row {n}.");
        assert!(expanded.contains(&row), "{row}\n{expanded}");
    }
    assert!(expanded.contains("✓ write_file long.txt"), "{expanded}");
}

#[test]
fn exec_prints_finished_blocks_while_the_answer_streams_in() {
    let fixture = ChatFixture::new(|_| {
        // The end of the answer does not come, so that the table is complete and the rest is not.
        let rest = "and never ends, whatever happens and however long it is ".repeat(4);
        let table = "| a | b |\n|---|---|\n| 1 | 2 |\n\n";
        Reply::Hang(vec![text(&format!(
            "{table}The **second** block begins {rest}"
        ))])
    });
    let mut terminal = fixture.open(&["exec", "Show"], 80, 24, &[]);
    // The turn runs: the spinner is below the block that is complete.
    terminal.wait_until("a block above the spinner", |screen| {
        let block = screen.find("a │ b\n──┼──\n1 │ 2\n");
        let spinner = screen.find("working");
        block.is_some() && spinner > block
    });
    terminal.type_text("\x03");
    let (status, screen) = terminal.wait_for_exit();
    assert_eq!(status, 1, "{screen}");
    assert_eq!(screen.matches("1 │ 2").count(), 1, "{screen}");
}

#[test]
fn a_prompt_on_the_command_line_prints_the_answer_alone() {
    let fixture = ChatFixture::new(polite);
    let output = fixture.run(&["-p", "Hello"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "Hello, *person*.\n"
    );
    assert!(last(&fixture.server.asked()[0]).contains("Hello"));
    // `--continue` answers in the same session.
    let output = fixture.run(&["-p", "--continue", "And again"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let request = fixture.server.asked()[1].body["messages"].to_string();
    assert!(
        request.contains("Hello, *person*.") && request.contains("And again"),
        "{request}"
    );
}

#[test]
fn lists_of_sessions_and_runs_have_headings_and_say_only_if_they_are_cut() {
    let fixture = ChatFixture::new(polite);
    for message in ["First question", "Second 日本語 question"] {
        assert!(fixture.run(&["-p", message]).status.success());
    }
    std::fs::write(fixture.work().join("fix.ts"), "\n// Fix it.\nreturn 1").unwrap();
    assert!(fixture.run(&["run", "fix.ts"]).status.success());
    let list = |args: &[&str]| {
        let (status, screen) = fixture.open(args, 160, 24, &[]).wait_for_exit();
        assert_eq!(status, 0, "{screen}");
        screen
    };
    let sessions = list(&["sessions", "list"]);
    let lines: Vec<&str> = sessions.lines().collect();
    assert!(
        lines[0].starts_with("SESSION ") && lines[0].contains("USED") && lines[0].contains("TITLE"),
        "{sessions}"
    );
    assert!(
        lines[1].contains(" ago ") && lines[1].contains("Second 日本語 question"),
        "{sessions}"
    );
    assert!(!sessions.contains("note: "), "{sessions}");
    let all = list(&["sessions", "list", "--limit", "2"]);
    assert!(
        all.contains("First question") && !all.contains("note: "),
        "{all}"
    );
    let cut = list(&["sessions", "list", "--limit", "1"]);
    assert!(
        cut.contains("note: only the last 1 sessions; pass --limit N") && !cut.contains("First"),
        "{cut}"
    );
    let runs = list(&["runs", "list", "--limit", "1"]);
    assert!(
        runs.starts_with("RUN ") && runs.contains("// Fix it.") && !runs.contains("note: "),
        "{runs}"
    );
}

#[test]
fn the_exit_code_stays_visible_behind_a_long_command() {
    let code = "await tools.exec({ command: ['sh', '-c', 'true some words that do not fit; exit 7'] });\n\
        return 'ended'";
    for width in [40, 60, 80] {
        let fixture = ChatFixture::new(super::script(code));
        let mut terminal = fixture.open(&[], width, 40, &[]);
        terminal.send("Run it");
        terminal.wait_for("Done.");
        let screen = terminal.screen();
        let line = screen.lines().find(|line| line.contains("✗ exec sh"));
        let ending = line.map(|line| line.ends_with("  exit 7"));
        assert_eq!(ending, Some(true), "{width}: {screen}");
    }
}

#[test]
fn a_continued_session_shows_how_its_calls_ended() {
    let code = "await tools.exec({ command: ['sh', '-c', 'exit 4'] });\n\
        await tools.exec({ command: ['touch', 'made'] }); return 'ended'";
    let args = serde_json::json!({"command": ["sh", "-c", "exit 9"]});
    let fixture = ChatFixture::new(move |asked| match asked.number {
        0 => vec![text(&block(code))].into(),
        1 => vec![super::call("c1", "shell", args.clone())].into(),
        _ => vec![text("Done.")].into(),
    });
    let mut terminal = fixture.chat();
    terminal.send("Run them");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    terminal.send("/quit");
    terminal.wait_for_exit();
    let mut terminal = fixture.open(&["continue"], 80, 40, &[]);
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    let screen = terminal.screen();
    for line in [
        "\n  ✗ exec sh -c exit 4  exit 4\n",
        "\n  ✓ exec touch made  ",
        "\n    · exit code 9 after ",
    ] {
        assert!(screen.contains(line), "{line}\n{screen}");
    }
    // The only check mark is that of the command that succeeded.
    assert_eq!(screen.matches('✓').count(), 1, "{screen}");
}

#[test]
fn logs_errors_and_the_output_of_own_commands_can_be_expanded() {
    let code = "for (let n = 0; n < 18; n++) console.log(`logged row ${n}.`);\n\
        throw new Error('x'.repeat(500) + ' the' + ' end')";
    let fixture = ChatFixture::new(super::script(code));
    let mut terminal = fixture.open(&[], 80, 24, &[("SHELL", "/bin/sh")]);
    terminal.send("Log");
    terminal.wait_for("more log lines");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    let folded = terminal.with_scrollback();
    assert!(
        !folded.contains("logged row 17.") && !folded.contains("x the end"),
        "{folded}"
    );
    terminal.type_text("\x0f");
    terminal.wait_for("logged row 17.");
    terminal.wait_for("x the end");
    terminal.send("!seq 1000 1060");
    terminal.wait_for("more lines");
    terminal.wait_for("  exit 0");
    assert!(!terminal.with_scrollback().contains("\n  1060\n"));
    terminal.send("/expand");
    terminal.wait_for("\n  1060\n");
    // After the next turn, that turn is expanded.
    terminal.send("Again");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    terminal.send("/expand");
    terminal.wait_for("the last turn has no scripts or results");
}

#[test]
fn lines_that_a_script_prints_are_rows_and_folded() {
    let code = "text('one\\ntwo'); for (let n = 0; n < 14; n++) text(`row ${n}.`); return 1";
    let fixture = ChatFixture::new(super::script(code));
    let mut terminal = fixture.open(&[], 80, 40, &[]);
    terminal.send("Print");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    let screen = terminal.screen();
    let expected = "\n  one\n  two\n  row 0.\n";
    assert!(screen.contains(expected), "{screen}");
    let folded = "\n  row 9.\n  … 4 more lines; Ctrl-O shows all\n◀ 1";
    assert!(screen.contains(folded), "{screen}");
    terminal.type_text("\x0f");
    terminal.wait_for("row 13.");
}

#[test]
fn an_empty_answer_is_reported() {
    let fixture = ChatFixture::new(|asked| match asked.number {
        0 => vec![text("")].into(),
        1 => vec![text(&format!("I look.\n{}", block("return 1")))].into(),
        2 => vec![text(" ")].into(),
        _ => vec![text("Here I am.")].into(),
    });
    let mut terminal = fixture.chat();
    for _ in 0..2 {
        terminal.send("Hi");
        terminal.wait_for("the model gave no answer");
        terminal.wait_for(READY);
        terminal.send("/clear");
        terminal.wait_gone("the model gave no answer");
    }
    terminal.send("Hi");
    terminal.wait_for("Here I am.");
    terminal.wait_for(READY);
    assert!(!terminal.screen().contains("no answer"));
}

#[test]
fn a_table_is_whole_wherever_the_pieces_of_an_answer_end() {
    // The server sends pieces of seven characters: in one of the answers they end after a line
    // break and the first character of a row.
    let fixture = ChatFixture::new(|asked| {
        let before = "x".repeat(asked.number + 1);
        let table = "| a | b |\n|---|--:|\n| 1 | 2 |\n| 3 | 44 |\n";
        vec![text(&format!(
            "{before}\n\n{table}\nAfter {}.",
            asked.number
        ))]
        .into()
    });
    let mut terminal = fixture.open(&[], 80, 40, &[]);
    for number in 0..7 {
        terminal.send("Show");
        terminal.wait_for(&format!("After {number}."));
        terminal.wait_for(READY);
        let table = format!("\n\na │  b\n──┼───\n1 │  2\n3 │ 44\n\nAfter {number}.\n");
        let screen = terminal.screen();
        assert!(screen.contains(&table), "{screen}");
    }
}

#[test]
fn lists_fit_into_the_terminal() {
    let fixture = ChatFixture::new(polite);
    let message = "A long question about 日本語日本語日本語 that does not fit into a line at all";
    assert!(fixture.run(&["-p", message]).status.success());
    let code = "return 'a long script that does not fit into a line' // 日本語日本語";
    assert!(fixture.run(&["run", "-e", code]).status.success());
    for width in [40, 80, 120] {
        for (args, id) in [(&["sessions", "list"], "ses_"), (&["runs", "list"], "scr_")] {
            let (status, screen) = fixture.open(args, width, 24, &[]).wait_for_exit();
            // A heading and one row, none of them wrapped.
            let lines: Vec<&str> = screen.lines().collect();
            assert!(
                status == 0 && lines.len() == 2 && lines[1].starts_with(id),
                "{width}: {screen}"
            );
            // The id is complete.
            let shown = lines[1].split_whitespace().next().unwrap();
            let found = fixture.run(&[args[0], "show", shown]);
            assert!(found.status.success(), "{width}: {screen}\n{found:?}");
        }
    }
}
