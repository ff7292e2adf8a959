//! Windows of every size, with and without colour, and how the terminal is left.

use rustix::termios::{LocalModes, tcgetattr};

use super::person::Desk;
use super::server::Reply;
use super::{READY, block, polite, text};

const PAGE: &str = "# A title\n\nSome **bold** words with `code` and a [link](https://example.org), long enough to be broken.\n\n\
| name | what it does | calls |\n|---|---|---|\n| read_file | reads a file, or a slice of it, as text | 12 |\n| exec | runs a command | 3 |\n\n\
- one\n- two\n\n```rust\nfn main() {\n    println!(\"hi\");\n}\n```\n";

#[test]
fn a_page_in_sixty_columns() {
    let desk = Desk::new(|_| vec![text(PAGE)].into());
    let mut person = desk.sit_down(&[], 60, 40, &[]);
    person.asks("Show");
    person.wait_for("println!");
    person.wait_for(READY);
    person.expect(
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

› ask, @ a file, / for commands
  mock · 100 in, 20 out · 100% left · workspace-write",
    );
}

#[test]
fn without_colour_nothing_is_coloured() {
    let code = "return (await tools.readFile({ path: 'a.txt' })).totalLines // two";
    for (env, coloured) in [(&[("NO_COLOR", "1")][..], false), (&[], true)] {
        let desk = Desk::new(super::first(vec![text(PAGE), text(&block(code))]));
        let mut person = desk.sit_down(&[], 80, 40, env);
        person.asks("Show");
        person.wait_for("Done.");
        person.wait_for(READY);
        let raw = String::from_utf8_lossy(&person.raw).into_owned();
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
fn a_window_may_change_its_size_while_words_come() {
    let words =
        "Many words come and come and go on and on, so that they fill more than one line of any window. ".repeat(3);
    let desk = Desk::new(move |asked| match asked.number {
        0 => Reply::Hang(vec![text(&format!("First paragraph.\n\n{words}"))]),
        _ => vec![text("Second answer.")].into(),
    });
    let mut person = desk.sit_down(&[], 80, 24, &[]);
    person.asks("Go");
    person.wait_for("Many words");
    for (width, height) in [(60, 24), (100, 30), (40, 12), (80, 24)] {
        person.resizes(width, height);
        let widest = usize::from(width);
        person.wait(&format!("{width} columns"), |screen| {
            let lines: Vec<&str> = screen.lines().collect();
            let at = lines.iter().position(|line| line.starts_with("Many words"));
            let fits = lines.iter().all(|line| line.chars().count() <= widest);
            // Broken for this width, once, with everything below it.
            let filled = at
                .is_some_and(|at| lines[at].chars().count() + 8 > widest.min(lines[at].len() + 8));
            let once = screen.matches("Many words come").count() <= 3
                && screen.matches("type what comes next").count() == 1;
            fits && filled && once
        });
    }
    person.types("\x03");
    person.wait_for("– stopped");
    person.asks("Again");
    person.wait_for("Second answer.");
    person.wait_for(READY);
    person.expect(
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

› ask, @ a file, / for commands
  mock · SPENT · 100% left · workspace-write · ses_ID",
    );
}

#[test]
fn what_is_finished_stays_in_the_scrollback() {
    let lines: String = (0..60).map(|n| format!("- item number {n}\n")).collect();
    let desk = Desk::new(move |_| vec![text(&lines)].into());
    let mut person = desk.sit_down(&[], 60, 16, &[]);
    person.asks("List");
    person.wait_for("item number 59");
    person.wait_for(READY);
    let all = person.scrolled();
    for n in 0..60 {
        assert_eq!(
            all.matches(&format!("• item number {n}\n")).count(),
            1,
            "item {n}:\n{all}"
        );
    }
}

#[test]
fn the_terminal_is_given_back_at_the_end_and_at_a_signal() {
    for by_signal in [false, true] {
        let desk = Desk::new(polite);
        let mut person = desk.chat();
        let before = tcgetattr(person.terminal_end()).unwrap().local_modes;
        person.asks("Hi");
        person.wait_for("Hello, person.");
        person.wait_for(READY);
        assert!(
            !tcgetattr(person.terminal_end())
                .unwrap()
                .local_modes
                .contains(LocalModes::ICANON)
        );
        assert!(person.terminal.screen().bracketed_paste());
        let end = person.terminal_end().try_clone().unwrap();
        match by_signal {
            true => person.signal("TERM"),
            false => person.types("\x04"),
        }
        let (status, screen, terminal) = person.end_with_terminal();
        assert!(
            status == 0 && screen.contains("selvedge continue ses_"),
            "{status}: {screen}"
        );
        assert!(!terminal.screen().bracketed_paste() && !terminal.screen().hide_cursor());
        assert!(!terminal.screen().alternate_screen());
        assert_eq!(tcgetattr(&end).unwrap().local_modes, before);
    }
}
