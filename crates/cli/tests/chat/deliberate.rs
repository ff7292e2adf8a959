//! Approvals in the chat are deliberate: words and pastes answer nothing, the whole call is shown,
//! and the question waits.

use super::driver::{ChatFixture, ChatTerminal};
use super::{last, script};

/// A script whose first call needs approval, and that writes `approved` if it gets it.
const SCRIPT: &str = "try {\n  await tools.exec({ command: ['rm', '-rf', 'doomed'] });\n  \
    await tools.writeFile({ path: 'approved', content: 'x' });\n} \
    catch (error) { return error.name }";

/// Sentences that a person may type at a question. Some begin with the number or the letters of an
/// option, some end with a digit.
pub const SENTENCES: [&str; 40] = [
    "stop it",
    "yes",
    "y",
    "n",
    "no",
    "yes please",
    "always",
    "approve",
    "Approve this call, once",
    "a",
    "s",
    "e",
    "ok",
    "okay 1",
    "use option 1",
    "use option 2",
    "1 more thing",
    "2 files are wrong",
    "3rd time",
    "1. do it",
    "1) do it",
    "1, 2",
    "1 2 3 4",
    "run it in folder 1",
    "delete version 2",
    "what is rm -rf 1",
    "please stop after 3",
    "I said no 4 times, 2",
    "not now, at 10:21",
    "0",
    "00 1",
    "9 lives",
    "12 monkeys",
    "x1",
    "1x",
    "-1",
    "+2",
    "#1",
    "/approvals never 1",
    "@src 2",
];

fn fixture(code: &str) -> ChatFixture {
    let fixture = ChatFixture::new(script(code));
    std::fs::create_dir(fixture.work().join("doomed")).unwrap();
    fixture
}

/// Opens a chat at its question.
fn ask(fixture: &ChatFixture, width: u16, height: u16) -> ChatTerminal {
    let mut terminal = fixture.open(&[], width, height, &[]);
    terminal.send("Clean up");
    terminal.wait_for("1. Approve this call, once");
    terminal
}

#[track_caller]
fn assert_open(fixture: &ChatFixture, terminal: &ChatTerminal, input: &str) {
    let screen = terminal.screen();
    assert!(
        fixture.work().join("doomed").exists()
            && !fixture.work().join("approved").exists()
            && !screen.contains("» "),
        "{input:?} answered the question:\n{screen}"
    );
}

#[test]
fn typed_sentences_approve_nothing() {
    let fixture = fixture(SCRIPT);
    let mut terminal = ask(&fixture, 80, 40);
    for sentence in SENTENCES {
        // Digits select an option after an arrow.
        terminal.type_text("\x1b[B");
        terminal.wait_for("❯ 1. ");
        terminal.type_text(sentence);
        // All of the sentence is in the input, also a digit at its beginning.
        terminal.wait_until(sentence, |screen| {
            let input = screen.lines().rfind(|line| line.starts_with('›'));
            input.is_some_and(|line| line.trim_end() == format!("› {sentence}"))
        });
        terminal.type_text("\r");
        // Ctrl-U clears the input, which shows that Enter was read.
        terminal.type_text("\x15");
        terminal.wait_until("the empty input", |screen| {
            screen.lines().any(|line| line.trim_end() == "›")
        });
        assert_open(&fixture, &terminal, sentence);
        assert!(!terminal.screen().contains("❯"), "{}", terminal.screen());
    }
    // The question is still open, and can be answered.
    terminal.type_text("\x1b[A");
    terminal.wait_for("❯ 4. Deny, with a reason for the model");
    terminal.choose(3);
    terminal.wait_for("» denied");
    terminal.wait_for("Done.");
    assert!(fixture.work().join("doomed").exists());
    assert!(last(&fixture.server.asked()[1]).contains("ApprovalDeniedError"));
}

#[test]
fn digits_typed_at_a_new_question_approve_nothing() {
    for digits in ["12", "11", "1234"] {
        let chat = fixture(SCRIPT);
        let mut terminal = ask(&chat, 80, 40);
        terminal.type_text("1");
        terminal.wait_for("❯ 1. ");
        terminal.type_text(&digits[1..]);
        terminal.wait_for(&format!("\n› {digits}"));
        terminal.type_text("\r\x15");
        terminal.wait_until("the empty input", |screen| {
            screen.lines().any(|line| line.trim_end() == "›")
        });
        assert!(!terminal.screen().contains("❯"), "{}", terminal.screen());
        assert_open(&chat, &terminal, digits);
        // A digit before a paste stays in front of it.
        terminal.type_text("\x1b[B");
        terminal.wait_for("❯ 1. ");
        terminal.type_text("2");
        terminal.wait_for("❯ 2. ");
        terminal.paste("nd of May");
        terminal.wait_for("\n› 2nd of May");
        terminal.wait_gone("❯");
    }
}

#[test]
fn pasted_text_approves_nothing() {
    let fixture = fixture(SCRIPT);
    let mut terminal = ask(&fixture, 80, 60);
    for text in [
        "1",
        "1\n",
        "1\n1\n",
        "\n1\n",
        "yes\n1\n",
        "2\r\n2\r\n",
        "a\nb\nc\nd\ne\nf\ng\n1\n",
    ] {
        // An option may be selected before.
        terminal.type_text("\x1b[B");
        terminal.wait_for("❯ 1. ");
        terminal.paste(text);
        terminal.wait_gone("❯ 1. ");
        terminal.type_text("\r1\r");
        terminal.type_text("\x15\x15\x15\x15\x15\x15\x15\x15\x15");
        terminal.wait_for("↑ ↓ chooses");
        assert_open(&fixture, &terminal, text);
    }
    terminal.type_text("\x1b");
    terminal.wait_for("» denied");
    terminal.wait_for("Done.");
    assert!(fixture.work().join("doomed").exists());
}

#[test]
fn enter_without_a_selection_does_nothing() {
    let fixture = fixture(SCRIPT);
    let mut terminal = ask(&fixture, 80, 40);
    terminal.type_text("\r\r\r");
    terminal.type_text("\x1b[B");
    terminal.wait_for("❯ 1. ");
    assert_open(&fixture, &terminal, "Enter");
    terminal.type_text("\r");
    terminal.wait_for("» approved once");
    terminal.wait_for("Done.");
    assert!(fixture.work().join("approved").exists());
}

#[test]
fn the_command_is_shown_whatever_the_script_says() {
    // The justification contains the command, a fake question and hidden characters.
    let code = "await tools.exec({ command: ['rm', '-rf', 'doomed\\u202e\\u200b\\u{e0041}'], \
        withEscalatedPermissions: true, justification: \
        'runs `rm -rf doomed`\\n? approval needed:\\n  exec: lists files\\u061c ' \
        + 'x'.repeat(5000) })";
    let fixture = fixture(code);
    let mut terminal = ask(&fixture, 80, 40);
    let screen = terminal.screen();
    for text in [
        "    │ rm -rf 'doomed\\u{202e}\\u{200b}\\u{e0041}'\n",
        "    reason given by the model: runs `rm -rf doomed`⏎? approval needed:⏎  exec:",
        "lists files\\u{61c} xxx",
    ] {
        assert!(screen.contains(text), "{text}\n{screen}");
    }
    assert!(screen.matches("xxx").count() < 300, "{screen}");
    let output = String::from_utf8_lossy(&terminal.raw_output);
    assert!(!output.contains(['\u{202e}', '\u{200b}', '\u{61c}', '\u{e0041}']));
    terminal.type_text("\x1b");
    terminal.wait_for("» denied");
}

#[test]
fn a_long_patch_is_complete_and_scrolls() {
    let code = "const lines = Array.from({ length: 1500 }, (_, n) => `row ${n} of it`);\n\
        await tools.writeFile({ path: 'made', content: lines.join('\\n') }); return 'made'";
    let fixture = fixture(code);
    let mut terminal = fixture.open(&["--approval", "untrusted"], 80, 24, &[]);
    terminal.send("Write it");
    terminal.wait_for("1. Approve this call, once");
    terminal.wait_for("│ +row 2 of it");
    terminal.wait_for("Page Up and Page Down scroll");
    let mut seen = String::new();
    while !terminal.screen().contains("+row 1499 of it") {
        let screen = terminal.screen();
        seen += &screen;
        terminal.type_text("\x1b[6~");
        terminal.wait_until("the next page", |next| next != screen);
    }
    seen += &terminal.screen();
    for number in 0..1500 {
        let row = format!("│ +row {number} of it\n");
        assert!(seen.contains(&row), "{row:?} was never on the screen");
    }
    assert!(!fixture.work().join("made").exists());
    terminal.type_text("\x1b[B");
    terminal.wait_for("❯ 1. ");
    terminal.type_text("\r");
    terminal.wait_for("Done.");
    assert!(fixture.work().join("made").exists());
}

#[test]
fn the_answers_stay_visible_in_a_short_terminal() {
    let code = "const lines = Array.from({ length: 1500 }, (_, n) => `row ${n} of it`);\n\
        await tools.writeFile({ path: 'made', content: lines.join('\\n') }); return 'made'";
    let fixture = fixture(code);
    let mut terminal = fixture.open(&["--approval", "untrusted"], 40, 12, &[]);
    terminal.send("Write it");
    for answer in [
        "\n  1. Approve this call, once",
        "\n  2. Approve this call and every later",
        "\n  3. Deny",
        "\n  4. Deny, with a reason for the model",
        "Page Up",
    ] {
        terminal.wait_for(answer);
    }
    // The patch can still be read.
    while !terminal.screen().contains("│ +row 1 of it") {
        let screen = terminal.screen();
        terminal.type_text("\x1b[6~");
        terminal.wait_until("the next page", |next| next != screen);
    }
    terminal.type_text("\x1b[B");
    terminal.wait_for("❯ 1. ");
    terminal.type_text("\r");
    terminal.wait_for_printed("» approved once");
    terminal.wait_for_printed("Done.");
    assert!(fixture.work().join("made").exists());
}

#[test]
fn answers_that_do_not_fit_are_reached_with_the_arrows() {
    let fixture = fixture("await tools.exec({ command: ['touch', 'made'] }); return 'made'");
    let mut terminal = fixture.open(&["--approval", "untrusted"], 40, 12, &[]);
    terminal.send("Make it");
    terminal.wait_for("1. Approve this call, once");
    terminal.wait_for("options 1 to 3 of 7");
    terminal.type_text("5");
    terminal.wait_for("❯ 5. ");
    for option in ["6. Deny", "7. Deny, with a reason"] {
        terminal.type_text("\x1b[B");
        terminal.wait_for(&format!("❯ {option}"));
    }
    terminal.wait_for("to 7 of 7");
    // A long message in the input leaves the answers on the screen.
    terminal.type_text(&"some words ".repeat(30));
    terminal.wait_for("1. Approve this call, once");
    terminal.type_text("\x15\x1b");
    terminal.wait_for_printed("» denied");
    assert!(!fixture.work().join("made").exists());
}

#[test]
fn an_approval_for_the_rest_of_the_script_covers_its_later_calls_only() {
    let code = "for (const name of ['a', 'b', 'c']) \
        await tools.exec({ command: ['rm', '-rf', name] });\n\
        await tools.writeFile({ path: 'rest', content: 'x' }); return 'rest'";
    let fixture = ChatFixture::new(move |asked| match asked.number % 2 {
        0 => vec![super::text(&super::block(code))].into(),
        _ => vec![super::text("Done.")].into(),
    });
    for name in ["a", "b", "c"] {
        std::fs::create_dir(fixture.work().join(name)).unwrap();
    }
    let mut terminal = fixture.open(&["--approval", "untrusted"], 80, 60, &[]);
    terminal.send("Remove them");
    terminal.wait_for("2. Approve this call and every later call of this script");
    terminal.choose(2);
    terminal.wait_for("» approved, with all later calls of this script");
    terminal.wait_for("Done.");
    assert!(fixture.work().join("rest").exists());
    assert!(
        !["a", "b", "c"]
            .iter()
            .any(|name| fixture.work().join(name).exists())
    );
    // The next script asks again.
    terminal.send("Again");
    terminal.wait_for("1. Approve this call, once");
}

#[test]
fn a_question_waits_without_limit_and_notifies() {
    let fixture = fixture(SCRIPT);
    fixture.configure("[script_harness.limits]\napproval_timeout_ms = 300\n");
    let mut terminal = ask(&fixture, 80, 40);
    let output = String::from_utf8_lossy(&terminal.raw_output).into_owned();
    assert!(
        output.contains("\x07\x1b]9;selvedge asks a question\x1b\\")
            && output.contains("\x1b]2;? selvedge asks a question\x1b\\"),
        "{output:?}"
    );
    // Four times the limit later, the question is open.
    let asked = std::time::Instant::now();
    while asked.elapsed() < std::time::Duration::from_millis(1200) {
        terminal.type_text("x\x7f");
        terminal.wait_for("1. Approve this call, once");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_open(&fixture, &terminal, "waiting");
    terminal.type_text("\x1b[B");
    terminal.wait_for("❯ 1. ");
    terminal.type_text("\r");
    terminal.wait_for("Done.");
    assert!(fixture.work().join("approved").exists());
    let output = String::from_utf8_lossy(&terminal.raw_output).into_owned();
    let after = output.rsplit("? selvedge asks a question").next().unwrap();
    assert!(
        after.contains("\x1b]2;selvedge\x1b\\\x1b[23;2t"),
        "{after:?}"
    );
}

#[test]
fn a_second_question_rings_the_bell_again() {
    let code = "for (const name of ['one', 'two']) \
        await tools.exec({ command: ['rm', '-rf', name] });\n\
        await tools.writeFile({ path: 'approved', content: 'x' }); return 'gone'";
    let fixture = fixture(code);
    let mut terminal = ask(&fixture, 80, 40);
    let bells = |terminal: &ChatTerminal| {
        let output = String::from_utf8_lossy(&terminal.raw_output).into_owned();
        output
            .matches("\x07\x1b]9;selvedge asks a question\x1b\\")
            .count()
    };
    terminal.wait_for("│ rm -rf one");
    assert_eq!(bells(&terminal), 1);
    terminal.choose(1);
    terminal.wait_for("│ rm -rf two");
    terminal.wait_for("\n  1. Approve this call, once");
    assert_eq!(bells(&terminal), 2);
    terminal.choose(1);
    terminal.wait_for("Done.");
    assert!(fixture.work().join("approved").exists());
    assert_eq!(bells(&terminal), 2);
}

#[test]
fn ctrl_z_at_a_question_leaves_it_open() {
    let fixture = fixture(SCRIPT);
    let mut terminal = fixture.open_shell();
    terminal.wait_for("shell>");
    terminal.type_text(&format!("{}\r", env!("CARGO_BIN_EXE_selvedge")));
    terminal.send("Clean up");
    terminal.wait_for("1. Approve this call, once");
    terminal.type_text("1");
    terminal.wait_for("❯ 1. ");
    terminal.type_text("\x1a");
    terminal.wait_for("Stopped");
    // What is typed is for the shell.
    terminal.type_text("echo one$((1 + 1))three\r");
    terminal.wait_for("\none2three\nshell>");
    assert_open(&fixture, &terminal, "Ctrl-Z");
    terminal.type_text("fg\r");
    terminal.wait_for("↑ ↓ chooses");
    terminal.type_text("\r\x15");
    terminal.wait_gone("❯");
    assert_open(&fixture, &terminal, "Enter after Ctrl-Z");
    terminal.type_text("\x1b[B");
    terminal.wait_for("❯ 1. ");
    terminal.type_text("\r");
    terminal.wait_for("» approved once");
    terminal.wait_for("Done.");
    assert!(fixture.work().join("approved").exists());
}
