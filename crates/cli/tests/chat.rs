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

use person::Desk;
use server::{Asked, Reply};
use speech::{block, text, think};

/// The last thing that was said to the model.
fn last(asked: &Asked) -> String {
    asked.body["messages"].as_array().unwrap().last().unwrap().to_string()
}

/// Says hello to whatever is asked.
fn polite(_: &Asked) -> Reply {
    vec![text("Hello, *person*.")].into()
}

const READY: &str = "ask, @ a file, / for commands";

#[test]
fn a_question_is_answered_and_the_way_back_is_told() {
    let desk = Desk::new(polite);
    let mut person = desk.chat();
    person.wait_for(READY);
    person.asks("Hi there");
    person.wait_for("Hello, person.");
    person.wait_for(READY);
    person.expect("");
    person.types("\x04");
    let (status, screen) = person.end();
    assert_eq!(status, 0);
    assert!(screen.contains("selvedge resume ses_"), "{screen}");
}
