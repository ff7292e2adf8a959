//! Sizes of the terminal, colour, scrollback, and the state in which the terminal is left.

use rustix::termios::{LocalModes, tcgetattr};

use super::driver::ChatFixture;
use super::server::Reply;
use super::support::TestWorkspace;
use super::{READY, block, polite, script, text};

const PAGE: &str = "# A title\n\nSome **bold** words with `code` and a \
    [link](https://example.org), long enough to be broken.\n\n\
    | name | what it does | calls |\n|---|---|---|\n\
    | read_file | reads a file, or a slice of it, as text | 12 |\n| exec | runs a command | 3 |\n\n\
    - one\n- two\n\n```rust\nfn main() {\n    println!(\"hi\");\n}\n```\n";

#[test]
fn markdown_is_readable_in_sixty_columns() {
    let fixture = ChatFixture::new(|_| vec![text(PAGE)].into());
    let mut terminal = fixture.open(&[], 60, 40, &[]);
    terminal.send("Show");
    terminal.wait_for("println!");
    terminal.wait_for(READY);
    terminal.expect_screen(
        "
selvedge

› Show

A title

Some bold words with code and a link (https://example.org),
long enough to be broken.

name      │ what it does                            │ calls
──────────┼─────────────────────────────────────────┼──────
read_file │ reads a file, or a slice of it, as text │ 12
exec      │ runs a command                          │ 3

• one
• two

  fn main() {
      println!(\"hi\");
  }

› type a message, @ for files, / for commands
  mock · 100 in, 20 out · 100% left · workspace-write",
    );
}

#[test]
fn no_color_disables_colours() {
    let code = "return (await tools.readFile({ path: 'a.txt' })).totalLines // two";
    for (env, coloured) in [(&[("NO_COLOR", "1")][..], false), (&[], true)] {
        let fixture = ChatFixture::new(super::first(vec![text(PAGE), text(&block(code))]));
        let mut terminal = fixture.open(&[], 80, 40, env);
        terminal.send("Show");
        terminal.wait_for("Done.");
        terminal.wait_for(READY);
        let raw = String::from_utf8_lossy(&terminal.raw_output).into_owned();
        let found = raw.split("\x1b[").skip(1).any(|escape| {
            let codes = escape.split('m').next().unwrap_or_default();
            let all = codes.chars().all(|c| c.is_ascii_digit() || c == ';');
            all && codes
                .split(';')
                .any(|code| matches!(code.as_bytes(), [b'3' | b'4' | b'9', b'0'..=b'8']))
        });
        assert_eq!(found, coloured, "{raw:?}");
    }
}

#[test]
fn the_terminal_can_be_resized_while_an_answer_streams() {
    let answer = "Many words come and come and go on and on, \
                  so that they fill more than one line of any window. "
        .repeat(3);
    let fixture = ChatFixture::new(move |request| match request.number {
        0 => Reply::Hang(vec![text(&format!("First paragraph.\n\n{answer}"))]),
        _ => vec![text("Second answer.")].into(),
    });
    let mut terminal = fixture.open(&[], 80, 24, &[]);
    terminal.send("Go");
    terminal.wait_for("Many words");
    for (width, height) in [(60, 24), (100, 30), (40, 12), (80, 24)] {
        terminal.resize(width, height);
        let widest = usize::from(width);
        terminal.wait_until(&format!("{width} columns"), |screen| {
            let lines: Vec<&str> = screen.lines().collect();
            let at = lines.iter().position(|line| line.starts_with("Many words"));
            let fits = lines.iter().all(|line| line.chars().count() <= widest);
            // Wrapped for this width, shown once, with the live part below it.
            let filled = at
                .is_some_and(|at| lines[at].chars().count() + 8 > widest.min(lines[at].len() + 8));
            let once = screen.matches("Many words come").count() <= 3
                && screen.matches("type the next message").count() == 1;
            fits && filled && once
        });
    }
    terminal.type_text("\x03");
    terminal.wait_for("– stopped");
    terminal.send("Again");
    terminal.wait_for("Second answer.");
    terminal.wait_for(READY);
    terminal.expect_screen(
        "
selvedge

› Go

First paragraph.

Many words come and come and go on and on, so that they fill more than one line
of any window. Many words come and come and go on and on, so that they fill more
than one line of any window. Many words come and come and g

– stopped

› Again

Second answer.

› type a message, @ for files, / for commands
  mock · SPENT · 100% left · workspace-write · ses_ID",
    );
}

#[test]
fn finished_rows_stay_in_the_scrollback() {
    let lines: String = (0..60).map(|n| format!("- item number {n}\n")).collect();
    let fixture = ChatFixture::new(move |_| vec![text(&lines)].into());
    let mut terminal = fixture.open(&[], 60, 16, &[]);
    terminal.send("List");
    terminal.wait_for("item number 59");
    terminal.wait_for(READY);
    let all = terminal.with_scrollback();
    for n in 0..60 {
        assert_eq!(
            all.matches(&format!("• item number {n}\n")).count(),
            1,
            "item {n}:\n{all}"
        );
    }
}

#[test]
fn the_terminal_is_restored_at_exit_and_after_a_signal() {
    for by_signal in [false, true] {
        let fixture = ChatFixture::new(polite);
        let mut terminal = fixture.chat();
        let before = tcgetattr(terminal.master()).unwrap().local_modes;
        terminal.send("Hi");
        terminal.wait_for("Hello, person.");
        terminal.wait_for(READY);
        assert!(
            !tcgetattr(terminal.master())
                .unwrap()
                .local_modes
                .contains(LocalModes::ICANON)
        );
        assert!(terminal.emulator.screen().bracketed_paste());
        let master = terminal.master().try_clone().unwrap();
        match by_signal {
            true => terminal.signal("TERM"),
            false => terminal.type_text("\x04"),
        }
        let (status, screen, emulator) = terminal.wait_for_exit_and_emulator();
        assert!(
            status == 0 && screen.contains("selvedge continue ses_"),
            "{status}: {screen}"
        );
        assert!(!emulator.screen().bracketed_paste() && !emulator.screen().hide_cursor());
        assert!(!emulator.screen().alternate_screen());
        assert_eq!(tcgetattr(&master).unwrap().local_modes, before);
    }
}

#[test]
fn an_interrupted_question_for_a_key_restores_the_terminal() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.open(&["models", "login", "openai"], 100, 24, &[]);
    let echoes = |terminal: &super::driver::ChatTerminal| {
        let modes = tcgetattr(terminal.master()).unwrap().local_modes;
        modes.contains(LocalModes::ECHO)
    };
    terminal.wait_for("API key of openai:");
    while echoes(&terminal) {
        std::thread::yield_now();
    }
    let master = terminal.master().try_clone().unwrap();
    terminal.type_text("sk-secret\x03");
    let (status, screen) = terminal.wait_for_exit();
    assert!(
        status == 2 && screen.contains("error: interrupted; no key was stored"),
        "{status}: {screen}"
    );
    assert!(!screen.contains("sk-secret"), "{screen}");
    let modes = tcgetattr(&master).unwrap().local_modes;
    assert!(modes.contains(LocalModes::ECHO));
    assert!(!fixture.home().join("credentials.json").exists());
}

#[test]
fn a_key_typed_at_a_terminal_is_stored_and_not_shown() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.open(&["models", "login", "openai"], 100, 24, &[]);
    terminal.wait_for("API key of openai:");
    let master = terminal.master().try_clone().unwrap();
    let echoes = || {
        tcgetattr(&master)
            .unwrap()
            .local_modes
            .contains(LocalModes::ECHO)
    };
    while echoes() {
        std::thread::yield_now();
    }
    terminal.type_text("sk-typed\r");
    let (status, screen) = terminal.wait_for_exit();
    assert!(
        status == 0 && screen.contains("stored the key of openai in "),
        "{status}: {screen}"
    );
    assert!(!screen.contains("sk-typed"), "{screen}");
    assert!(echoes());
    let stored = std::fs::read_to_string(fixture.home().join("credentials.json")).unwrap();
    assert!(stored.contains("sk-typed"), "{stored}");
}

/// Wide and combining characters, a task list and an aligned table.
const WIDE_PAGE: &str = "# 見出し\n\n日本語の文章は幅が二倍です。 cafe\u{301} と résumé, words that wrap at \
    forty columns.\n\n| 名前 | n |\n|:--|--:|\n| 読む | 12 |\n| e\u{301} | 7 |\n\n- [x] 完了\n- [ ] open\n";

#[test]
fn wide_and_combining_characters_are_aligned_at_every_width() {
    let end = "名前 │  n\n─────┼───\n読む │ 12\ne\u{301}    │  7\n\n☑ 完了\n☐ open\n";
    let one_line =
        "日本語の文章は幅が二倍です。 cafe\u{301} と résumé, words that wrap at forty columns.\n";
    let three_lines =
        "日本語の文章は幅が二倍です。 cafe\u{301} と\nrésumé, words that wrap at forty\ncolumns.\n";
    for (width, text_lines) in [(40, three_lines), (80, one_line), (120, one_line)] {
        let fixture = ChatFixture::new(|_| vec![text(WIDE_PAGE)].into());
        let mut terminal = fixture.open(&[], width, 40, &[]);
        terminal.send("日本語");
        terminal.wait_for("☐ open");
        terminal.wait_for("› type a message");
        let expected = format!("› 日本語\n\n見出し\n\n{text_lines}\n{end}");
        let screen = terminal.screen();
        assert!(
            screen.contains(&expected),
            "{width} columns:\n{screen}\n{expected}"
        );
        // The input and the status line follow, without a row that wrapped.
        let rest = screen.split("☐ open\n").nth(1).unwrap();
        assert_eq!(rest.trim_start().lines().count(), 2, "{screen}");
    }
}

#[test]
fn a_form_field_with_a_wide_name_wraps_its_input() {
    let fixture = ChatFixture::new(script("return await odd.ask({ field: '名前' })"));
    fixture.configure(&TestWorkspace::odd("odd", "good"));
    let mut terminal = fixture.open(&[], 40, 40, &[]);
    terminal.send("尋ねる");
    terminal.wait_for("1. Fill in for odd");
    terminal.choose(1);
    terminal.wait_for("1 of 1: 名前");
    terminal.type_text(&"日".repeat(20));
    // The label takes 7 columns, and one is free at the end.
    let (first, rest) = ("日".repeat(16), "日".repeat(4));
    terminal.wait_for(&format!("\n名前 › {first}\n       {rest}\n"));
    assert_eq!(terminal.emulator.screen().cursor_position().1, 15);
    terminal.type_text("\r");
    terminal.wait_for("1. Send to odd");
    assert!(
        terminal.screen().contains("名前: 日"),
        "{}",
        terminal.screen()
    );
}
