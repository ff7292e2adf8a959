//! Answers that break off, and failures of the server: a request that may have been paid for is
//! sent once.

use serde_json::json;

use super::runs::full_answer;
use super::{OfflineFixture, WORK};
use crate::answer_encoding::text;
use crate::server::{Reply, ReplyPart};

/// Turns that fit into one request.
const TURNS: usize = 20;

/// A project whose model gives this reply to the first request, and answers the others.
fn fixture(first: Reply) -> OfflineFixture {
    let fixture = OfflineFixture::new("model = \"mock/small\"", move |asked| match asked.number {
        0 => first.clone(),
        _ => vec![text(&full_answer(asked))].into(),
    });
    fixture.import_project(TURNS);
    fixture
}

#[test]
fn a_request_that_may_have_been_paid_for_is_sent_once() {
    let failures = [
        Reply::CloseAfter(ReplyPart::Nothing),
        Reply::CloseAfter(ReplyPart::Headers),
        Reply::CloseAfter(ReplyPart::FirstByte),
        Reply::Fail(408, "{}".to_owned()),
        Reply::Fail(500, "{}".to_owned()),
        Reply::Fail(504, "{}".to_owned()),
    ];
    for failure in failures {
        let fixture = fixture(failure.clone());
        let asked = || fixture.server.asked().len();
        let done = fixture.json(WORK, &["memory", "distill", "--json"]);
        assert_eq!((&done["turns"], asked()), (&json!(TURNS), 1), "{failure:?}");
        fixture.out(WORK, &["memory", "distill"]);
        assert_eq!(asked(), 1, "{failure:?}");
        let status = fixture.out(WORK, &["memory", "distill", "--status"]);
        assert!(
            status.contains("1 request without an answer: 20 turns read without a model"),
            "{failure:?}: {status}"
        );
        let retry = ["memory", "distill", "--now", "--retry", "--json"];
        let done = fixture.json(WORK, &retry);
        assert_eq!((&done["retried"], asked()), (&json!(1), 2), "{failure:?}");
    }
}

#[test]
fn the_turns_of_a_rejected_request_wait_for_the_model() {
    let fixture = fixture(Reply::Fail(401, "{}".to_owned()));
    let (status, _, err) = fixture.run(WORK, &["memory", "distill"]);
    assert!(
        status == 2 && err.contains("error: memory.model is not available: "),
        "{err}"
    );
    assert_eq!(fixture.server.asked().len(), 1);
    let done = fixture.json(WORK, &["memory", "distill", "--json"]);
    assert_eq!(done["turns"], TURNS);
    assert_eq!(fixture.server.asked().len(), 2);
    let status = fixture.json(WORK, &["memory", "distill", "--status", "--json"]);
    assert_eq!(status[0]["unanswered_requests"], 0, "{status}");
}

#[test]
fn an_overloaded_model_is_asked_again_at_once() {
    let fixture = fixture(Reply::Fail(503, "{}".to_owned()));
    let done = fixture.json(WORK, &["memory", "distill", "--json"]);
    assert_eq!(done["turns"], TURNS);
    assert_eq!(fixture.server.asked().len(), 2);
}
