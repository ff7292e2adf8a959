//! Elicitation by MCP servers: forms and addresses in the chat, in plain lines at a terminal, and
//! without a terminal.

use super::answer_encoding::{block, text};
use super::driver::{ChatFixture, ChatTerminal};
use super::server::{Asked, Reply};
use super::support::{TestWorkspace, peers};
use super::{last, script};
use serde_json::{Value, json};

/// A fixture with the `everything` server configured, with `more` at the end of its configuration.
/// `None` if the server is not installed.
pub fn fixture(
    more: &str,
    model: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
) -> Option<ChatFixture> {
    let index = peers()?.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    let path = std::env::var_os("PATH").unwrap();
    let node = std::env::split_paths(&path)
        .map(|folder| folder.join("node"))
        .find(|node| node.exists())
        .unwrap();
    let fixture = ChatFixture::new(model);
    fixture.configure(&format!(
        "[mcp_servers.everything]\ncommand = {node:?}\nargs = [{index:?}]\n{more}"
    ));
    Some(fixture)
}

/// A script that has the server send a form, and writes the outcome to `outcome.json`.
const FORM: &str = "const all = await everything.triggerElicitationRequest.raw({});\n\
    await tools.writeFile({ path: 'outcome.json', \
    content: all.content.at(-1).text.split('Raw result: ')[1] });\nreturn 'asked'";

/// Reads and removes the outcome that the server received.
fn take_outcome(fixture: &ChatFixture) -> Value {
    let file = fixture.work().join("outcome.json");
    let outcome = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(file).unwrap();
    outcome
}

/// Fills in the form: most fields keep their default, two inputs are invalid and corrected.
fn fill_in(terminal: &mut ChatTerminal, enter: &str) {
    let mut position = 1;
    let mut next = |terminal: &mut ChatTerminal, typed: &str| {
        terminal.wait_for(&format!("{position} of 13: "));
        terminal.type_text(&format!("{typed}{enter}"));
        position += 1;
    };
    terminal.wait_for("1 of 13: String (name): text; required");
    terminal.type_text(enter);
    terminal.wait_for("a value is required");
    next(terminal, "Ada Lovelace");
    next(terminal, "yes");
    next(terminal, "");
    terminal.wait_for("4 of 13: ");
    terminal.type_text(&format!("not-an-address{enter}"));
    terminal.wait_for("is not a \"email\"");
    if enter == "\r" {
        // The chat keeps the input to be corrected; Ctrl-U clears it.
        terminal.type_text("\x15");
    }
    next(terminal, "ada@example.com");
    for _ in 5..=7 {
        next(terminal, "");
    }
    next(terminal, "2.5");
    next(terminal, "3");
    next(terminal, "piano, 1");
    next(terminal, "Wonder Woman");
    for _ in 12..=13 {
        next(terminal, "");
    }
}

/// Confirms that the values are sent. The list follows an input, so an arrow selects.
fn send_form(terminal: &mut ChatTerminal) {
    terminal.type_text("\x1b[B");
    terminal.wait_for("❯ 1. Send to ");
    terminal.type_text("\r");
}

fn accepted_outcome() -> Value {
    json!({
        "action": "accept",
        "content": {
            "name": "Ada Lovelace",
            "check": true,
            "firstLine": "It was a dark and stormy night.",
            "email": "ada@example.com",
            "integer": 42,
            "number": 2.5,
            "untitledSingleSelectEnum": "Joey",
            "untitledMultipleSelectEnum": ["Piano", "Guitar"],
            "titledSingleSelectEnum": "hero-3",
            "titledMultipleSelectEnum": ["fish-1"],
            "legacyTitledEnum": "pet-1",
        },
    })
}

#[test]
fn a_form_is_filled_in_in_the_chat() {
    let Some(fixture) = fixture("", script(FORM)) else {
        return;
    };
    let mut terminal = fixture.open(&[], 100, 80, &[]);
    terminal.send("Ask me");
    terminal.wait_for("  1. Fill in for everything\n  2. Decline\n");
    for text in [
        "? the server everything asks:\n      Please provide inputs for the following fields:",
        "· String (name): text; required\n      Your full, legal name",
        "· Integer (integer): integer; default: 42",
        "      1. Superman  2. Green Lantern  3. Wonder Woman",
    ] {
        assert!(
            terminal.screen().contains(text),
            "{text}\n{}",
            terminal.screen()
        );
    }
    terminal.choose(1);
    fill_in(&mut terminal, "\r");
    terminal.wait_for("  1. Send to everything\n  2. Start over\n  3. Decline\n");
    assert!(
        terminal.screen().contains("    email: ada@example.com")
            && terminal.screen().contains("homepage: omitted")
    );
    send_form(&mut terminal);
    terminal.wait_for("» sent");
    terminal.wait_for("Done.");
    assert_eq!(
        fixture.server.asked().len(),
        2,
        "the model does not fill in forms"
    );
    assert_eq!(take_outcome(&fixture), accepted_outcome());
}

#[test]
fn a_key_answers_only_the_question_on_the_screen() {
    // The approval comes first, the form while it is open.
    let fixture = ChatFixture::new(script(
        "const wiped = danger.wipe({}); await new Promise(then => setTimeout(then, 200));\n\
         await odd.ask({}); await wiped; return 1",
    ));
    let asked = fixture.work().join("asked");
    let odd =
        TestWorkspace::odd("odd", "good").replace("\"good\"]", &format!("\"good\", {asked:?}]"));
    fixture.configure(&format!(
        "{odd}{}",
        TestWorkspace::odd("danger", "annotated")
    ));
    let mut terminal = fixture.open(&[], 100, 40, &[]);
    terminal.send("Wipe it");
    terminal.wait_for("is marked as destructive");
    terminal.wait_for("1. Approve this call, once");
    while !asked.exists() {
        assert!(
            terminal.screen().contains("1. Approve this call, once"),
            "{}",
            terminal.screen()
        );
    }
    // The form is queued: it is not shown, and the further keys do not answer it.
    assert!(
        !terminal.screen().contains("Which one?"),
        "{}",
        terminal.screen()
    );
    terminal.type_text("1");
    terminal.wait_for("❯ 1. Approve this call, once");
    terminal.type_text("\r1\x1b[B");
    terminal.wait_for("Which one?");
    terminal.choose(1);
    terminal.wait_for("1 of 1: ");
    terminal.type_text("this\r");
    terminal.wait_for("1. Send to odd");
    send_form(&mut terminal);
    terminal.wait_for("» sent");
    terminal.wait_for("Done.");
}

#[test]
fn a_form_can_be_declined_cancelled_or_stopped() {
    let Some(fixture) = fixture("", script_per_message(FORM)) else {
        return;
    };
    let mut terminal = fixture.open(&[], 100, 80, &[]);
    terminal.send("Ask me");
    // Esc in the first field goes back to the start of the form.
    terminal.choose(1);
    terminal.wait_for("1 of 13: ");
    terminal.type_text("half a na");
    terminal.wait_for("name › half a na");
    terminal.type_text("\x1b");
    terminal.wait_for("\n  1. Fill in for everything");
    terminal.choose(2);
    terminal.wait_for("» declined");
    terminal.wait_for("Done.");
    assert_eq!(take_outcome(&fixture), json!({"action": "decline"}));

    terminal.send("Ask me again");
    terminal.wait_for("1. Fill in for everything");
    terminal.type_text("\x1b");
    terminal.wait_for("» cancelled");
    terminal.wait_until("the end", |screen| screen.matches("Done.").count() == 2);
    assert_eq!(take_outcome(&fixture), json!({"action": "cancel"}));

    terminal.send("And again");
    terminal.wait_for("1. Fill in for everything");
    terminal.type_text("\x03");
    terminal.wait_for("– stopped");
    terminal.wait_gone("1. Fill in for everything");
}

/// Answers every message with the script, and its result with "Done."
fn script_per_message(code: &'static str) -> impl Fn(&Asked) -> Reply + Send + Sync + 'static {
    move |request| match last(request).contains("Result of the script") {
        true => vec![text("Done.")].into(),
        false => vec![text(&block(code))].into(),
    }
}

/// A script that has the server send an address, with a message that contains an escape sequence
/// and imitates a prompt.
const ADDRESS: &str = "const all = await everything.triggerUrlElicitation.raw({ \
    url: 'https://example.com/login?next=1', \
    message: 'Log in\\u001b[2J\\n? the gate asks' });\n\
    await tools.writeFile({ path: 'outcome.json', \
    content: all.content.at(-1).text.split('Raw result: ')[1] });\nreturn 'asked'";

#[test]
fn an_address_is_shown_and_never_opened() {
    let Some(fixture) = fixture("", script(ADDRESS)) else {
        return;
    };
    // Programs that would open the address leave a marker instead.
    let bin = fixture.dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for opener in ["xdg-open", "open", "sensible-browser", "www-browser"] {
        use std::os::unix::fs::PermissionsExt;
        let marker = fixture.dir.path().join("opened");
        std::fs::write(
            bin.join(opener),
            format!("#!/bin/sh\ntouch {}\n", marker.display()),
        )
        .unwrap();
        std::fs::set_permissions(bin.join(opener), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let browser = bin.join("xdg-open").display().to_string();
    let mut terminal = fixture.open(
        &[],
        100,
        40,
        &[("PATH", &path), ("BROWSER", &browser), ("DISPLAY", ":0")],
    );
    terminal.send("Log me in");
    terminal.wait_for("  1. I will open it\n  2. Decline\n");
    let shown = "? the server everything asks:\n      Log in\\u{1b}[2J\n      ? the gate asks\n  \
        open this address on example.com yourself; Selvedge does not open it:\n      \
        https://example.com/login?next=1";
    assert!(terminal.screen().contains(shown), "{}", terminal.screen());
    terminal.choose(1);
    terminal.wait_for("» accepted");
    terminal.wait_for("Done.");
    assert_eq!(take_outcome(&fixture), json!({"action": "accept"}));
    assert!(!fixture.dir.path().join("opened").exists());
}

#[test]
fn run_and_exec_show_forms_in_plain_lines() {
    let Some(fixture) = fixture("", script(FORM)) else {
        return;
    };
    for args in [&["run", "-e", FORM][..], &["exec", "Ask me"]] {
        let mut terminal = fixture.open(args, 100, 100, &[]);
        terminal.wait_for("  1. Fill in\n  2. Decline\n  3. Cancel\n");
        terminal.wait_for("\n>");
        let shown = "? the server everything asks:\n      \
            Please provide inputs for the following fields:\n  \
            13 fields to fill in for the server everything; Ctrl-D cancels\n";
        assert!(terminal.screen().contains(shown), "{}", terminal.screen());
        terminal.type_text("1\n");
        fill_in(&mut terminal, "\n");
        terminal.wait_for(
            "this will be sent to the server everything:\n      name: Ada Lovelace\n      \
             check: yes\n",
        );
        terminal.wait_for("type a number from 1 to 4, then Enter\n>");
        terminal.type_text("1\n");
        let (status, screen) = terminal.wait_for_exit();
        assert_eq!(status, 0, "{screen}");
        assert_eq!(take_outcome(&fixture), accepted_outcome());
    }
    let mut terminal = fixture.open(&["run", "-e", ADDRESS], 100, 40, &[]);
    terminal.wait_for(
        "open this address on example.com yourself; Selvedge does not open it:\n      \
         https://example.com/login?next=1\n",
    );
    terminal.wait_for("type a number from 1 to 3, then Enter\n>");
    terminal.type_text("2\n");
    assert_eq!(terminal.wait_for_exit().0, 0);
    assert_eq!(take_outcome(&fixture), json!({"action": "decline"}));
    // Ctrl-D cancels the form.
    let mut terminal = fixture.open(&["run", "-e", FORM], 100, 100, &[]);
    terminal.wait_for("type a number from 1 to 3, then Enter\n>");
    terminal.type_text("\x04");
    assert_eq!(terminal.wait_for_exit().0, 0);
    assert_eq!(take_outcome(&fixture), json!({"action": "cancel"}));
}

#[test]
fn without_a_terminal_forms_are_declined_with_a_message() {
    let code = "return [await odd.ask(), await odd.think()]";
    let fixture = ChatFixture::new(script(code));
    fixture.configure(&TestWorkspace::odd("odd", "good"));
    let output = fixture.run(&["run", "-e", code]);
    let (stdout, stderr) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    let value: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(value[0], json!({"action": "decline"}), "{stderr}");
    assert!(
        stderr.contains("MCP server odd: elicitation declined: no person can be asked"),
        "{stderr}"
    );
    assert!(
        stderr.contains("MCP server odd: sampling declined: no model is available"),
        "{stderr}"
    );
    let output = fixture.run(&["exec", "--json", "Go"]);
    let events = String::from_utf8(output.stdout).unwrap();
    let has_progress = |text: &str| {
        events
            .lines()
            .any(|line| line.contains("script.progress") && line.contains(text))
    };
    assert!(
        has_progress("MCP server odd: elicitation declined: no person can be asked"),
        "{events}"
    );
    assert!(
        has_progress("MCP server odd: sampling declined: `selvedge exec` never asks for approval"),
        "{events}"
    );
    assert_eq!(
        fixture.server.asked().len(),
        2,
        "the server's request does not reach the model"
    );
}

#[test]
fn a_form_in_plain_lines_notifies_and_restores_the_title() {
    let fixture = ChatFixture::new(super::polite);
    let server =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../mcp/tests/servers/odd.py");
    fixture.configure(&format!(
        "[mcp_servers.odd]\ncommand = \"python3\"\nargs = [\"{}\", \"good\"]\n",
        server.display()
    ));
    let args = ["run", "-e", "return (await odd.ask()).action"];
    let mut terminal = fixture.open(&args, 80, 30, &[]);
    terminal.wait_for("? the server odd asks:");
    terminal.wait_for("then Enter");
    let output = String::from_utf8_lossy(&terminal.raw_output).into_owned();
    let restored = "\x1b]2;selvedge\x1b\\\x1b[23;2t";
    assert!(
        output.contains("\x07\x1b]9;selvedge asks a question\x1b\\")
            && output.contains("\x1b]2;? selvedge asks a question\x1b\\")
            && !output.contains(restored),
        "{output:?}"
    );
    // Ctrl-D leaves the form.
    terminal.type_text("\x04");
    terminal.wait_for("\ncancel");
    let output = String::from_utf8_lossy(&terminal.raw_output).into_owned();
    assert!(output.contains(restored), "{output:?}");
}
