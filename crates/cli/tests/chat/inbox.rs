//! Stored messages to the session of a chat.

use serde_json::json;

use super::{READY, answer_encoding::text, driver::ChatFixture};

#[test]
fn a_chat_answers_the_messages_that_wait_for_its_session() {
    let fixture = ChatFixture::new(|_| vec![text("I will.")].into());
    let create = "return (await sessions.create({ prompt: 'Fix it.' })).id";
    let created = fixture.run(&["run", "-q", "-e", create]);
    let id = String::from_utf8(created.stdout).unwrap().trim().to_owned();
    fixture.run(&["sessions", "send", &id, "And test it."]);
    let mut terminal = fixture.open(&["continue", &id], 80, 24, &[]);
    terminal.wait_until("both answers", |screen| {
        screen.matches("I will.").count() == 2
    });
    terminal.wait_for(READY);
    assert!(terminal.screen().contains("› And test it."));
    let shown = fixture.run(&["sessions", "show", &id, "--json"]).stdout;
    let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
    assert_eq!(shown["queue"], json!([]));
}

#[test]
fn a_chat_does_not_lend_its_permissions_to_a_message() {
    let fixture = ChatFixture::new(|_| vec![text("I will.")].into());
    let create = "return (await sessions.create({ prompt: 'Fix it.' })).id";
    let created = fixture.run(&["run", "-q", "--sandbox", "read-only", "-e", create]);
    let id = String::from_utf8(created.stdout).unwrap().trim().to_owned();
    let mut terminal = fixture.open(&["continue", &id], 80, 24, &[]);
    terminal.wait_for(READY);
    terminal.send("Hello");
    terminal.wait_for("I will.");
    terminal.wait_for(READY);
    let shown = fixture.run(&["sessions", "show", &id, "--json"]).stdout;
    let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
    assert_eq!(shown["queue"].as_array().unwrap().len(), 1);
}

#[test]
fn an_idle_chat_answers_a_message_without_a_key_press() {
    let fixture = ChatFixture::new(|_| vec![text("I will.")].into());
    let mut terminal = fixture.open(&[], 80, 24, &[]);
    terminal.wait_for(READY);
    terminal.send("Hello");
    terminal.wait_for("I will.");
    terminal.wait_for(READY);
    let listed = fixture.run(&["sessions", "list", "--json"]).stdout;
    let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap();
    let id = listed[0]["id"].as_str().unwrap();
    let answered = fixture.run(&["sessions", "send", id, "Fix it.", "--wait"]);
    assert_eq!(String::from_utf8_lossy(&answered.stdout), "I will.\n");
    terminal.wait_until("the second answer", |screen| {
        screen.contains("› Fix it.") && screen.matches("I will.").count() == 2
    });
    terminal.wait_for(READY);

    terminal.type_text("half a mess");
    fixture.run(&["sessions", "send", id, "And test it."]);
    terminal.wait_for("a message waits");
    assert!(terminal.screen().contains("half a mess"));
    assert!(!terminal.screen().contains("And test it."));
    terminal.type_text(&"\u{7f}".repeat(11));
    terminal.wait_for("› And test it.");
    terminal.wait_until("the third answer", |screen| {
        screen.matches("I will.").count() == 3
    });
}
