//! What is typed: several lines, pastes, what was asked before, files and what comes next.

use super::person::Desk;
use super::server::{Asked, Reply};
use super::{READY, last, polite, text};

#[test]
fn a_text_has_as_many_lines_as_one_likes() {
    let desk = Desk::new(polite);
    let mut person = desk.chat();
    person.wait_for(READY);
    person.types("one\\\rtwo\x1b\rthree\nfour");
    person.wait_for("four");
    person.expect(
        "
selvedge

› one
  two
  three
  four
  mock · 0 in, 0 out · 100% left · workspace-write",
    );
    person.types("\r");
    person.wait_for("Hello, person.");
    assert!(
        last(&desk.server.asked()[0]).contains(r"one\ntwo\nthree\nfour"),
        "{}",
        desk.server.asked()[0].body
    );
}

#[test]
fn a_paste_is_kept_as_it_is() {
    let desk = Desk::new(polite);
    let mut person = desk.chat();
    person.wait_for(READY);
    person.types("See: ");
    person.pastes("fn a() {\n\tif x { y }\n}\n");
    person.wait_for("if x { y }");
    // Nothing of it was sent.
    assert!(desk.server.asked().is_empty());
    let long: String = (0..40).map(|n| format!("line {n}\n")).collect();
    person.pastes(&long);
    person.wait_for("[40 lines pasted]");
    person.types("\r");
    person.wait_for("Hello, person.");
    let asked = &desk.server.asked()[0].body;
    let sent = asked["messages"].as_array().unwrap().last().unwrap()["content"].to_string();
    assert!(
        sent.contains(r"See: fn a() {\n\tif x { y }\n}\nline 0\nline 1\n"),
        "{sent}"
    );
}

#[test]
fn what_was_asked_before_comes_back_also_in_the_next_chat() {
    let desk = Desk::new(polite);
    let mut person = desk.chat();
    person.asks("the first");
    person.wait_for("Hello, person.");
    person.wait_for(READY);
    person.asks("the second");
    person.wait("two answers", |screen| {
        screen.matches("Hello").count() == 2 && screen.contains(READY)
    });
    person.types("\x04");
    person.end();
    let mut person = desk.chat();
    person.wait_for(READY);
    person.types("draft\x1b[A\x1b[A");
    person.wait_for("› the first");
    person.types("\x1b[B\x1b[B");
    person.wait_for("› draft");
    // Where nothing is written down, neither is this.
    let before = std::fs::read_to_string(desk.home().join("chat_history.jsonl")).unwrap();
    let mut person = desk.sit_down(&["--ephemeral"], 80, 24, &[]);
    person.asks("a secret");
    person.wait_for("Hello, person.");
    person.wait_for(READY);
    person.types("\x04");
    let screen = person.end().1;
    assert!(!screen.contains("selvedge continue"), "{screen}");
    assert_eq!(
        std::fs::read_to_string(desk.home().join("chat_history.jsonl")).unwrap(),
        before
    );
}

#[test]
fn files_are_offered_behind_an_at() {
    let desk = Desk::new(polite);
    std::fs::write(desk.work().join(".gitignore"), "ignored*\n").unwrap();
    std::fs::write(desk.work().join("ignored_parser.rs"), "").unwrap();
    let mut person = desk.chat();
    person.wait_for(READY);
    person.types("look at @pars");
    person.wait_for("▸ src/parser.rs");
    assert!(!person.screen().contains("ignored"), "{}", person.screen());
    person.types("\t");
    person.wait_for("› look at @src/parser.rs");
    person.wait_gone("▸");
    person.types("please\r");
    person.wait_for("Hello, person.");
    assert!(last(&desk.server.asked()[0]).contains("look at @src/parser.rs please"));
}

/// Waits for a file before it answers.
fn patient(go: std::path::PathBuf) -> impl Fn(&Asked) -> Reply + Send + Sync + 'static {
    move |asked| {
        while asked.number == 0 && !go.exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        vec![text(&format!("Answer {}.", asked.number))].into()
    }
}

#[test]
fn what_is_typed_while_a_turn_runs_comes_next() {
    let place = tempfile::tempdir().unwrap();
    let go = place.path().join("go");
    let desk = Desk::new(patient(go.clone()));
    let mut person = desk.chat();
    person.asks("first");
    person.wait_for("waiting for mock");
    person.asks("second");
    person.wait_for("next: second");
    std::fs::write(&go, "").unwrap();
    person.wait_for("Answer 1.");
    person.wait_gone("next: second");
    let asked = desk.server.asked();
    assert!(last(&asked[0]).contains("first") && last(&asked[1]).contains("second"));
}

#[test]
fn what_should_come_next_comes_back_when_the_turn_is_stopped() {
    let place = tempfile::tempdir().unwrap();
    let desk = Desk::new(|_| {
        Reply::Hang(vec![text(
            "It begins and begins and begins and begins and begins.",
        )])
    });
    let _ = place;
    let mut person = desk.chat();
    person.asks("first");
    person.wait_for("It begins");
    person.asks("second");
    person.wait_for("next: second");
    person.types("\x03");
    person.wait_for("– stopped");
    person.wait_for("› second");
    assert_eq!(desk.server.asked().len(), 1);
}
