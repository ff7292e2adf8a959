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
