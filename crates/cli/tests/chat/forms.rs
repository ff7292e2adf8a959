//! What MCP servers want of a person: forms and addresses, in the chat, at the terminal, and where nobody is there.

use super::person::{Desk, Person};
use super::server::{Asked, Reply};
use super::speech::{block, text};
use super::support::{Place, peers};
use super::{last, script};
use serde_json::{Value, json};

/// A desk whose servers are the everything server and this.
pub fn desk(more: &str, answers: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Option<Desk> {
    let index = peers()?.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    let path = std::env::var_os("PATH").unwrap();
    let node = std::env::split_paths(&path)
        .map(|folder| folder.join("node"))
        .find(|node| node.exists())
        .unwrap();
    let desk = Desk::new(answers);
    desk.configure(&format!(
        "[mcp_servers.everything]\ncommand = {node:?}\nargs = [{index:?}]\n{more}"
    ));
    Some(desk)
}

/// Has the server ask, and keeps what it was told.
const FORM: &str = "const all = await everything.triggerElicitationRequest.raw({});\nawait tools.writeFile({ path: 'told.json', content: all.content.at(-1).text.split('Raw result: ')[1] });\nreturn 'asked'";

/// What the server was told.
fn told(desk: &Desk) -> Value {
    let file = desk.work().join("told.json");
    let told = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(file).unwrap();
    told
}

/// Everything but what has to be filled in is left as it is; the two mistakes are told.
fn fills_in(person: &mut Person, enter: &str) {
    let mut place = 1;
    let mut next = |person: &mut Person, typed: &str| {
        person.wait_for(&format!("{place} of 13: "));
        person.types(&format!("{typed}{enter}"));
        place += 1;
    };
    person.wait_for("1 of 13: String (name): text; required");
    person.types(enter);
    person.wait_for("a value is required");
    next(person, "Ada Lovelace");
    next(person, "yes");
    next(person, "");
    person.wait_for("4 of 13: ");
    person.types(&format!("nobody{enter}"));
    person.wait_for("is not a \"email\"");
    if enter == "\r" {
        // The line is still there to be mended.
        person.types("\x15");
    }
    next(person, "ada@example.com");
    for _ in 5..=7 {
        next(person, "");
    }
    next(person, "2.5");
    next(person, "3");
    next(person, "piano, 1");
    next(person, "Wonder Woman");
    for _ in 12..=13 {
        next(person, "");
    }
}

fn filled_in() -> Value {
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
fn a_servers_form_is_filled_in_by_the_person_in_the_chat() {
    let Some(desk) = desk("", script(FORM)) else {
        return;
    };
    let mut person = desk.sit_down(&[], 100, 80, &[]);
    person.asks("Ask me");
    person.wait_for("y fill it in for everything · n no · Esc leave it");
    for words in [
        "? the server everything asks:\n      Please provide inputs for the following fields:",
        "· String (name): text; required\n      Your full, legal name",
        "· Integer (integer): whole number; 42 where nothing is typed",
        "      1. Superman  2. Green Lantern  3. Wonder Woman",
    ] {
        assert!(
            person.screen().contains(words),
            "{words}\n{}",
            person.screen()
        );
    }
    person.types("y");
    fills_in(&mut person, "\r");
    person.wait_for("y send this to everything · e fill it in again");
    assert!(
        person.screen().contains("    email: ada@example.com")
            && person.screen().contains("homepage: left out")
    );
    person.types("y");
    person.wait_for("» sent");
    person.wait_for("Done.");
    assert_eq!(desk.server.asked().len(), 2, "no model fills in a form");
    assert_eq!(told(&desk), filled_in());
}

#[test]
fn a_key_is_for_the_question_it_was_pressed_for() {
    // The call is asked for first, the form comes behind it.
    let desk = Desk::new(script(
        "const wiped = danger.wipe({}); await new Promise(then => setTimeout(then, 200));\nawait odd.ask({}); await wiped; return 1",
    ));
    let asked = desk.work().join("asked");
    let odd = Place::odd("odd", "good").replace("\"good\"]", &format!("\"good\", {asked:?}]"));
    desk.configure(&format!("{odd}{}", Place::odd("danger", "annotated")));
    let mut person = desk.sit_down(&[], 100, 40, &[]);
    person.asks("Wipe it");
    person.wait_for("is marked as destructive");
    person.wait_for("y once");
    while !asked.exists() {
        assert!(person.screen().contains("y once"), "{}", person.screen());
    }
    // The form stands behind the question: it is not shown, and the second key is not for it.
    assert!(
        !person.screen().contains("Which one?"),
        "{}",
        person.screen()
    );
    person.types("yy");
    person.wait_for("Which one?");
    person.wait_for("y fill it in for odd");
    person.types("y");
    person.wait_for("1 of 1: ");
    person.types("this\r");
    person.wait_for("y send this to odd");
    person.types("y");
    person.wait_for("» sent");
    person.wait_for("Done.");
}

#[test]
fn a_form_can_be_declined_left_or_stopped() {
    let Some(desk) = desk("", answering(FORM)) else {
        return;
    };
    let mut person = desk.sit_down(&[], 100, 80, &[]);
    person.asks("Ask me");
    person.wait_for("y fill it in for everything");
    // A field that is left goes back to where the form began.
    person.types("y");
    person.wait_for("1 of 13: ");
    person.types("half a na");
    person.wait_for("name › half a na");
    person.types("\x1b");
    person.wait_for("y fill it in for everything");
    person.types("n");
    person.wait_for("» no");
    person.wait_for("Done.");
    assert_eq!(told(&desk), json!({"action": "decline"}));

    person.asks("Ask me again");
    person.wait_for("y fill it in for everything");
    person.types("\x1b");
    person.wait_for("» left");
    person.wait("the end", |screen| screen.matches("Done.").count() == 2);
    assert_eq!(told(&desk), json!({"action": "cancel"}));

    person.asks("And again");
    person.wait_for("y fill it in for everything");
    person.types("\x03");
    person.wait_for("– stopped");
    person.wait_gone("y fill it in for everything");
}

/// A script, and "Done." to what comes of it; the same for every question.
fn answering(code: &'static str) -> impl Fn(&Asked) -> Reply + Send + Sync + 'static {
    move |asked| match last(asked).contains("Result of the script") {
        true => vec![text("Done.")].into(),
        false => vec![text(&block(code))].into(),
    }
}

/// An address, and words that would steer a terminal or look like ours.
const ADDRESS: &str = "const all = await everything.triggerUrlElicitation.raw({ url: 'https://example.com/login?next=1', message: 'Log in\\u001b[2J\\n? the gate asks' });\nawait tools.writeFile({ path: 'told.json', content: all.content.at(-1).text.split('Raw result: ')[1] });\nreturn 'asked'";

#[test]
fn an_address_is_shown_and_never_opened() {
    let Some(desk) = desk("", script(ADDRESS)) else {
        return;
    };
    // Whatever would open it says so.
    let bin = desk.dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for opener in ["xdg-open", "open", "sensible-browser", "www-browser"] {
        use std::os::unix::fs::PermissionsExt;
        let marker = desk.dir.path().join("opened");
        std::fs::write(
            bin.join(opener),
            format!("#!/bin/sh\ntouch {}\n", marker.display()),
        )
        .unwrap();
        std::fs::set_permissions(bin.join(opener), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let browser = bin.join("xdg-open").display().to_string();
    let mut person = desk.sit_down(
        &[],
        100,
        40,
        &[("PATH", &path), ("BROWSER", &browser), ("DISPLAY", ":0")],
    );
    person.asks("Log me in");
    person.wait_for("y I open it · n no · Esc leave it");
    let shown = "? the server everything asks:\n      Log in[2J\n      ? the gate asks\n  it wants you to open this address, which leads to example.com; it is not opened for you:\n      https://example.com/login?next=1";
    assert!(person.screen().contains(shown), "{}", person.screen());
    // The terminal here does not draw what stands for the character that would steer it.
    assert!(String::from_utf8_lossy(&person.raw).contains("Log in\u{fffd}[2J"));
    person.types("y");
    person.wait_for("» yes");
    person.wait_for("Done.");
    assert_eq!(told(&desk), json!({"action": "accept"}));
    assert!(!desk.dir.path().join("opened").exists());
}

#[test]
fn run_and_exec_ask_in_plain_lines_at_a_terminal() {
    let Some(desk) = desk("", script(FORM)) else {
        return;
    };
    for args in [&["run", "-e", FORM][..], &["exec", "Ask me"]] {
        let mut person = desk.sit_down(args, 100, 100, &[]);
        person.wait_for("[y: fill it in | n: no | c: cancel]\n>");
        let shown = "? the server everything asks:\n      Please provide inputs for the following fields:\n  13 fields to fill in, for the server everything; Ctrl-D leaves it\n";
        assert!(person.screen().contains(shown), "{}", person.screen());
        person.types("y\n");
        fills_in(&mut person, "\n");
        person.wait_for(
            "this is told to the server everything:\n      name: Ada Lovelace\n      check: yes\n",
        );
        person.wait_for("[y: send it | e: fill it in again | n: no | c: cancel]\n>");
        person.types("y\n");
        let (status, screen) = person.end();
        assert_eq!(status, 0, "{screen}");
        assert_eq!(told(&desk), filled_in());
    }
    let mut person = desk.sit_down(&["run", "-e", ADDRESS], 100, 40, &[]);
    person.wait_for(
        "leads to example.com; it is not opened for you:\n      https://example.com/login?next=1\n",
    );
    person.wait_for("[y: I open it | n: no | c: cancel]\n>");
    person.types("n\n");
    assert_eq!(person.end().0, 0);
    assert_eq!(told(&desk), json!({"action": "decline"}));
    // The end of what is typed leaves the form.
    let mut person = desk.sit_down(&["run", "-e", FORM], 100, 100, &[]);
    person.wait_for("[y: fill it in | n: no | c: cancel]\n>");
    person.types("\x04");
    assert_eq!(person.end().0, 0);
    assert_eq!(told(&desk), json!({"action": "cancel"}));
}

#[test]
fn without_a_terminal_forms_are_declined_and_that_is_said() {
    let code = "return [await odd.ask(), await odd.think()]";
    let desk = Desk::new(script(code));
    desk.configure(&Place::odd("odd", "good"));
    let output = desk.selvedge(&["run", "-e", code]);
    let (out, talk) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value[0], json!({"action": "decline"}), "{talk}");
    assert!(
        talk.contains("MCP server odd: elicitation declined: no interactive terminal"),
        "{talk}"
    );
    assert!(
        talk.contains("MCP server odd: sampling declined: no model is available"),
        "{talk}"
    );
    let output = desk.selvedge(&["exec", "--json", "Go"]);
    let events = String::from_utf8(output.stdout).unwrap();
    let told = |words: &str| {
        events
            .lines()
            .any(|line| line.contains("script.progress") && line.contains(words))
    };
    assert!(
        told("MCP server odd: elicitation declined: no interactive terminal"),
        "{events}"
    );
    assert!(
        told("MCP server odd: sampling declined: there is no terminal to ask at"),
        "{events}"
    );
    assert_eq!(
        desk.server.asked().len(),
        2,
        "the model was asked by nobody else"
    );
}
