//! Words behind a slash.

use serde_json::json;

use super::person::Desk;
use super::server::Reply;
use super::{READY, block, call, first, last, polite, text};

#[test]
fn help_lists_what_there_is() {
    let desk = Desk::new(polite);
    let mut person = desk.sit_down(&[], 80, 40, &[]);
    person.wait_for(READY);
    person.asks("/help");
    person.wait_for("as in a shell");
    person.expect(
        "
selvedge

/help
  /model [NAME]        which model is asked, or another one from now on
  /approvals [POLICY]  when you are asked, or another policy from now on
  /diff                what this session changed in the folder
  /compact             make the conversation shorter, to have room
  /resume [ID]         go on with an earlier session
  /new                 begin a new session
  /runs                what ran in this session
  /mcp                 the MCP servers, and how they are doing
  /thinking            what was thought last
  /help                the keys and commands
  /quit                leave; the session stays

  Enter                send; while a turn runs, for the next one
  Alt-Enter, Ctrl-J, \\ Enter  a new line
  Up, Down             what was asked before
  @                    a file of this folder
  Tab                  take what is offered
  Ctrl-T               show thoughts, or fold them
  Ctrl-C               stop the turn; else clear the line; twice: leave
  Ctrl-D               leave, when nothing is typed
  Ctrl-A E K U W Y, Alt-B F D  as in a shell

› ask, @ a file, / for commands
  mock · 0 in, 0 out · 100% left · workspace-write",
    );
}

#[test]
fn an_unknown_command_says_so_and_what_to_do() {
    let desk = Desk::new(polite);
    let mut person = desk.chat();
    person.wait_for(READY);
    person.asks("/frobnicate");
    person.wait_for("error: there is no command /frobnicate");
    person.wait_for("hint: /help lists what there is");
    assert!(desk.server.asked().is_empty());
    // A path is not meant for the chat.
    person.asks("/etc/hosts is what?");
    person.wait_for("Hello, person.");
}

#[test]
fn commands_are_offered_and_completed() {
    let desk = Desk::new(polite);
    let mut person = desk.chat();
    person.wait_for(READY);
    person.types("/");
    person.wait_for("1 of 11");
    person.types("app");
    person.wait_for("▸ /approvals");
    person.types("\t");
    person.wait_for("▸ untrusted");
    person.types("n");
    person.wait_for("▸ never");
    person.types("\r");
    person.wait_for("never from now on");
}

#[test]
fn another_model_and_another_policy_hold_from_now_on() {
    let code = "await tools.exec({ command: ['touch', 'made'] }); return 'made'";
    let desk = Desk::new(first(vec![text(&block(code))]));
    let mut person = desk.chat();
    person.wait_for(READY);
    person.asks("/model other-model");
    person.wait_for("other-model of mock");
    person.wait_for("  other-model ·");
    person.asks("/approvals untrusted");
    person.wait_for("untrusted from now on");
    person.asks("Make it");
    person.wait_for("y once");
    person.types("y");
    person.wait_for("Done.");
    person.wait_for(READY);
    assert_eq!(desk.server.asked()[0].body["model"], "other-model");
    person.asks("/model nobody/x");
    person.wait_for("nobody/x of mock");
    person.asks("/approvals");
    person.wait_for("untrusted: whatever is not known to be harmless");
}

#[test]
fn runs_and_sessions_are_listed_and_gone_on_with() {
    let desk = Desk::new(|asked| match last(asked).contains("Result of the script") {
        true => vec![text("Done.")].into(),
        false if last(asked).contains("again") => vec![text("Again indeed.")].into(),
        false => vec![text(&block(
            "return (await tools.readFile({ path: 'a.txt' })).totalLines",
        ))]
        .into(),
    });
    let mut person = desk.chat();
    person.asks("/runs");
    person.wait_for("nothing ran in this session yet");
    person.asks("Count");
    person.wait_for("Done.");
    person.wait_for(READY);
    person.asks("/runs");
    person.wait("the run", |screen| {
        screen.contains("completed") && screen.contains("1 call")
    });
    person.asks("/new");
    person.wait_for("a new session");
    person.asks("/resume");
    person.wait_for("/resume ID goes on with one");
    person.types("/resume ");
    person.wait_for("▸ ses_");
    person.types("\r");
    person.wait_for("session ses_");
    person.asks("again");
    person.wait_for("Again indeed.");
    let asked = desk.server.asked().pop().unwrap().body.to_string();
    assert!(
        asked.contains("Count") && asked.contains("again"),
        "{asked}"
    );
}

#[test]
fn a_conversation_is_made_shorter() {
    let words = "Some words that take room. ".repeat(400);
    let desk = Desk::new(move |_| Reply::Counted(vec![text(&words)], 9_000));
    let mut person = desk.chat();
    for number in 0..3 {
        person.asks(&format!("Question {number}"));
        desk.wait_for_requests(number + 1);
        person.wait_for(READY);
    }
    person.asks("/compact");
    person.wait_for("tokens; the originals stay in the journal");
    person.asks("Last question");
    desk.wait_for_requests(4);
    let body = desk.server.asked()[3].body.to_string();
    assert!(
        body.contains("made shorter") && body.contains("Last question"),
        "{body}"
    );
}

#[test]
fn without_servers_there_are_none() {
    let desk = Desk::new(polite);
    let mut person = desk.chat();
    person.wait_for(READY);
    person.asks("/mcp");
    person.wait_for("no MCP servers are configured");
}

#[test]
fn a_server_that_fails_is_told_of() {
    let desk = Desk::new(polite);
    desk.configure("[mcp_servers.broken]\ncommand = \"/nonexistent/server\"\n");
    let mut person = desk.chat();
    person.asks("Hi");
    person.wait_for("Hello, person.");
    person.wait_for(READY);
    person.asks("/mcp");
    person.wait_for("✗ broken");
}

#[test]
fn the_tools_of_servers_are_there_from_the_first_question() {
    let desk = Desk::new(super::script("return (await odd.echo({ x: 41 })).x + 1"));
    let server =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../mcp/tests/servers/odd.py");
    desk.configure(&format!(
        "[mcp_servers.odd]\ncommand = \"python3\"\nargs = [\"{}\", \"good\"]\n",
        server.display()
    ));
    let mut person = desk.chat();
    person.asks("Echo");
    person.wait_for("✓ mcp.odd.echo 41");
    person.wait_for("◀ 42");
    person.wait_for("Done.");
    person.asks("/mcp");
    person.wait_for("✓ odd  ready, 10 tools");
}

#[test]
fn what_cannot_be_while_a_turn_runs_says_so() {
    let desk = Desk::new(|_| {
        Reply::Hang(vec![
            text("It begins and begins and begins and begins."),
            call("c", "read_file", json!({"path": "a.txt"})),
        ])
    });
    let mut person = desk.chat();
    person.asks("Go");
    person.wait_for("It begins");
    person.asks("/model x");
    person.wait_for("error: /model waits until the turn is over");
    person.asks("/runs");
    person.wait_for("nothing ran in this session yet");
    person.types("/quit\r");
    assert_eq!(person.end().0, 0);
}
