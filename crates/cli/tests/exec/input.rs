//! Piped input of `exec`, empty answers, and the answer at a terminal.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::json;

use super::answer_encoding::{block, call, text};
use super::server::Reply;
use super::{Fixture, err, out};

/// Runs `exec` with this text piped into its standard input.
fn piped(fixture: &Fixture, args: &[&str], input: &[u8]) -> std::process::Output {
    let mut child = fixture
        .command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn last_message(fixture: &Fixture) -> String {
    let asked = fixture.server.asked();
    let messages = asked.last().unwrap().body["messages"].clone();
    messages.as_array().unwrap().last().unwrap().to_string()
}

#[test]
fn piped_input_is_appended_to_the_prompt() {
    let fixture = Fixture::new(|_| vec![text("Fine.")].into());
    let diff = "-old\n+new é\n".repeat(20_000);
    let output = piped(&fixture, &["exec", "review this"], diff.as_bytes());
    assert_eq!(out(&output), "Fine.", "{}", err(&output));
    let message = last_message(&fixture);
    assert!(
        message.contains("review this\\n\\n<stdin>\\n-old\\n+new é\\n")
            && message.contains("+new é\\n</stdin>"),
        "{}",
        &message[..200]
    );
    // Empty input adds nothing.
    piped(&fixture, &["exec", "nothing more"], b"");
    assert!(!last_message(&fixture).contains("stdin"));
    // Without a prompt, the input is the prompt.
    piped(&fixture, &["exec", "-"], b"the whole prompt");
    assert!(last_message(&fixture).contains("the whole prompt"));
    let output = piped(&fixture, &["exec", "x"], b"\xff\xfe");
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert!(err(&output).contains("hint: pass the prompt as UTF-8 text"));
    let output = piped(&fixture, &["exec", "x"], &vec![b'x'; (4 << 20) + 1]);
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert!(err(&output).contains("error: standard input has more than 4 MB"));
}

#[test]
fn input_that_comes_late_is_waited_for_and_used() {
    let fixture = Fixture::new(|_| vec![text("Fine.")].into());
    let mut child = fixture
        .command(&["exec", "review this"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    errors.read_line(&mut first).unwrap();
    assert_eq!(
        first,
        "note: waiting for standard input; pass </dev/null if there is none\n"
    );
    assert!(fixture.server.asked().is_empty());
    input.write_all(b"THE DIFF").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert_eq!(out(&output), "Fine.");
    let message = last_message(&fixture);
    let expected = "review this\\n\\n<stdin>\\nTHE DIFF\\n</stdin>";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn an_empty_answer_is_an_error() {
    for answer in ["", " \n"] {
        let fixture = Fixture::new(move |_| vec![text(answer)].into());
        let output = fixture.run(&["exec", "go"]);
        assert_eq!(
            (output.status.code(), out(&output).as_str()),
            (Some(1), ""),
            "{}",
            err(&output)
        );
        assert!(
            err(&output).contains(
                "error: the model gave no answer\nhint: run `selvedge exec --continue ses_"
            ),
            "{}",
            err(&output)
        );
        let (events, status) = fixture.events(&["exec", "--json", "go"]);
        assert_eq!(status, 1);
        assert!(
            events
                .iter()
                .any(|event| event["message"] == "the model gave no answer"),
            "{events:#?}"
        );
    }
}

#[test]
fn an_empty_answer_after_a_script_or_a_call_is_an_error() {
    let of_script: fn() -> Reply = || vec![text(&format!("I look.\n{}", block("return 1")))].into();
    let of_call: fn() -> Reply = || {
        vec![
            text("I look."),
            call("c1", "read_file", json!({"path": "a.txt"})),
        ]
        .into()
    };
    for (name, first) in [("script", of_script), ("call", of_call)] {
        let fixture = Fixture::new(move |asked| match asked.number {
            0 => first(),
            _ => vec![text("")].into(),
        });
        let output = fixture.run(&["exec", "go"]);
        let (expected, shown) = ((Some(1), ""), out(&output));
        assert_eq!((output.status.code(), shown.as_str()), expected, "{name}");
        assert!(
            err(&output).contains("error: the model gave no answer\n"),
            "{name}: {}",
            err(&output)
        );
    }
}
