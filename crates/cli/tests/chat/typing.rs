//! Input of the chat: several lines, pastes, history, file completion and queued messages.

use super::driver::ChatFixture;
use super::server::{Asked, Reply};
use super::{READY, last, polite, text};

#[test]
fn a_message_can_have_several_lines() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.chat();
    terminal.wait_for(READY);
    terminal.type_text("one\\\rtwo\x1b\rthree\nfour");
    terminal.wait_for("four");
    terminal.expect_screen(
        "
selvedge

› one
  two
  three
  four
  mock · 0 in, 0 out · 100% left · workspace-write",
    );
    terminal.type_text("\r");
    terminal.wait_for("Hello, person.");
    assert!(
        last(&fixture.server.asked()[0]).contains(r"one\ntwo\nthree\nfour"),
        "{}",
        fixture.server.asked()[0].body
    );
}

#[test]
fn a_paste_is_sent_unchanged() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.chat();
    terminal.wait_for(READY);
    terminal.type_text("See: ");
    terminal.paste("fn a() {\n\tif x { y }\n}\n");
    terminal.wait_for("if x { y }");
    // The line breaks of the paste do not send it.
    assert!(fixture.server.asked().is_empty());
    let long: String = (0..40).map(|n| format!("line {n}\n")).collect();
    terminal.paste(&long);
    terminal.wait_for("[40 lines pasted]");
    terminal.type_text("\r");
    terminal.wait_for("Hello, person.");
    let body = &fixture.server.asked()[0].body;
    let sent = body["messages"].as_array().unwrap().last().unwrap()["content"].to_string();
    assert!(
        sent.contains(r"See: fn a() {\n\tif x { y }\n}\nline 0\nline 1\n"),
        "{sent}"
    );
}

#[test]
fn the_input_history_is_kept_across_chats() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.chat();
    terminal.send("the first");
    terminal.wait_for("Hello, person.");
    terminal.wait_for(READY);
    terminal.send("the second");
    terminal.wait_until("two answers", |screen| {
        screen.matches("Hello").count() == 2 && screen.contains(READY)
    });
    terminal.type_text("\x04");
    terminal.wait_for_exit();
    let mut terminal = fixture.chat();
    terminal.wait_for(READY);
    terminal.type_text("draft\x1b[A\x1b[A");
    terminal.wait_for("› the first");
    terminal.type_text("\x1b[B\x1b[B");
    terminal.wait_for("› draft");
    // An ephemeral chat does not write the history.
    let before = std::fs::read_to_string(fixture.home().join("chat_history.jsonl")).unwrap();
    let mut terminal = fixture.open(&["--ephemeral"], 80, 24, &[]);
    terminal.send("a secret");
    terminal.wait_for("Hello, person.");
    terminal.wait_for(READY);
    terminal.type_text("\x04");
    let screen = terminal.wait_for_exit().1;
    assert!(!screen.contains("selvedge continue"), "{screen}");
    assert_eq!(
        std::fs::read_to_string(fixture.home().join("chat_history.jsonl")).unwrap(),
        before
    );
}

#[test]
fn files_are_completed_after_an_at_sign() {
    let fixture = ChatFixture::new(polite);
    std::fs::write(fixture.work().join(".gitignore"), "ignored*\n").unwrap();
    std::fs::write(fixture.work().join("ignored_parser.rs"), "").unwrap();
    let mut terminal = fixture.chat();
    terminal.wait_for(READY);
    terminal.type_text("look at @pars");
    terminal.wait_for("▸ src/parser.rs");
    assert!(
        !terminal.screen().contains("ignored"),
        "{}",
        terminal.screen()
    );
    terminal.type_text("\t");
    terminal.wait_for("› look at @src/parser.rs");
    terminal.wait_gone("▸");
    terminal.type_text("please\r");
    terminal.wait_for("Hello, person.");
    assert!(last(&fixture.server.asked()[0]).contains("look at @src/parser.rs please"));
}

/// Delays the first answer until a file exists.
fn answer_after(go: std::path::PathBuf) -> impl Fn(&Asked) -> Reply + Send + Sync + 'static {
    move |request| {
        while request.number == 0 && !go.exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        vec![text(&format!("Answer {}.", request.number))].into()
    }
}

#[test]
fn a_message_sent_during_a_turn_is_queued() {
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let fixture = ChatFixture::new(answer_after(go.clone()));
    let mut terminal = fixture.chat();
    terminal.send("first");
    terminal.wait_for("waiting for mock");
    terminal.send("second");
    terminal.wait_for("queued: second");
    std::fs::write(&go, "").unwrap();
    terminal.wait_for("Answer 1.");
    terminal.wait_gone("queued: second");
    let requests = fixture.server.asked();
    assert!(last(&requests[0]).contains("first") && last(&requests[1]).contains("second"));
}

#[test]
fn queued_messages_return_to_the_input_when_the_turn_is_stopped() {
    let fixture = ChatFixture::new(|_| {
        Reply::Hang(vec![text(
            "It begins and begins and begins and begins and begins.",
        )])
    });
    let mut terminal = fixture.chat();
    terminal.send("first");
    terminal.wait_for("It begins");
    terminal.send("second");
    terminal.wait_for("queued: second");
    terminal.type_text("\x03");
    terminal.wait_for("– stopped");
    terminal.wait_for("› second");
    assert_eq!(fixture.server.asked().len(), 1);
}

#[test]
fn alt_b_and_alt_d_move_and_cut_by_words() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.chat();
    terminal.wait_for(READY);
    terminal.type_text("one two three");
    terminal.wait_for("› one two three");
    // Back by two words; what Alt-D cuts, Ctrl-Y inserts at the end.
    terminal.type_text("\x1bb\x1bb\x1bd");
    terminal.wait_for("› one  three");
    terminal.type_text("\x05 \x19");
    terminal.wait_for("› one  three two");
    terminal.type_text("\r");
    fixture.wait_for_requests(1);
    assert!(last(&fixture.server.asked()[0]).contains("one  three two"));
}
