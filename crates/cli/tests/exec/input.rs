//! Piped input of `exec`, empty answers, and the answer at a terminal.

use std::io::Write;
use std::process::Stdio;
use std::time::Instant;

use super::answer_encoding::text;
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
fn an_input_that_stays_open_and_silent_is_not_waited_for() {
    let fixture = Fixture::new(|_| vec![text("Fine.")].into());
    let started = Instant::now();
    let mut child = fixture
        .command(&["exec", "go"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let open = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(open);
    assert_eq!(out(&output), "Fine.", "{}", err(&output));
    assert!(
        err(&output).contains("note: nothing came on standard input")
            && started.elapsed().as_secs() < 60,
        "{}",
        err(&output)
    );
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
