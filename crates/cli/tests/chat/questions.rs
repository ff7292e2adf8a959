//! Approvals in the chat.

use super::driver::ChatFixture;
use super::{READY, last, script};

const DOOM: &str = "// first\nawait tools.exec({ command: ['rm', '-rf', 'doomed'], \
    approvalContext: 'old build' });\nreturn 'gone'";
/// Shown when the prompt accepts keys.
const KEYS: &str = "1. Approve this call, once";

fn fixture(code: &str) -> ChatFixture {
    let fixture = ChatFixture::new(script(code));
    std::fs::create_dir(fixture.work().join("doomed")).unwrap();
    fixture
}

#[test]
fn approving_once_runs_the_call() {
    let fixture = fixture(DOOM);
    let mut terminal = fixture.open(&[], 80, 30, &[]);
    terminal.send("Clean up");
    terminal.wait_for(KEYS);
    terminal.expect_screen(
        "
selvedge

› Clean up

▶ script  scr_ID
    // first
    await tools.exec({ command: ['rm', '-rf', 'doomed'], approvalContext: 'old
    build' });
    return 'gone'

? approval needed:
  exec: `rm -rf doomed`: deletes files by force
    │ rm -rf doomed
          1 | // first
      >   2 | await tools.exec({ command: ['rm', '-rf', 'doomed'], approvalCont…
          3 | return 'gone'
    reason given by the model: old build

  ? exec rm -rf doomed  waiting for approval

  1. Approve this call, once
  2. Approve this call and every later call of this script
  3. Deny
  4. Deny, with a reason for the model
  ↑ ↓ or a digit chooses · Enter confirms · Esc denies
›
  mock · 100 in, 20 out · 100% left · workspace-write · ses_ID",
    );
    assert!(fixture.work().join("doomed").exists());
    terminal.choose(1);
    terminal.wait_for("» approved once");
    terminal.wait_for("◀ \"gone\"");
    terminal.wait_for("Done.");
    assert!(!fixture.work().join("doomed").exists());
}

#[test]
fn the_reason_of_a_denial_reaches_the_model() {
    let fixture = fixture(DOOM);
    let mut terminal = fixture.chat();
    terminal.send("Clean up");
    terminal.wait_for(KEYS);
    terminal.choose(4);
    terminal.wait_for("reason ›");
    terminal.type_text("use the trash");
    terminal.wait_for("reason › use the trash");
    terminal.type_text("\r");
    terminal.wait_for("» denied: use the trash");
    terminal.wait_for("Done.");
    assert!(fixture.work().join("doomed").exists());
    assert!(last(&fixture.server.asked()[1]).contains("use the trash"));
}

#[test]
fn an_approval_fits_sixty_columns() {
    let fixture = fixture(DOOM);
    let mut terminal = fixture.open(&[], 60, 30, &[]);
    terminal.send("Clean up");
    terminal.wait_for(KEYS);
    terminal.expect_screen(
        "
selvedge

› Clean up

▶ script  scr_ID
    // first
    await tools.exec({ command: ['rm', '-rf', 'doomed'],
    approvalContext: 'old build' });
    return 'gone'

? approval needed:
  exec: `rm -rf doomed`: deletes files by force
    │ rm -rf doomed
          1 | // first
      >   2 | await tools.exec({ command: ['rm', '-rf', 'do…
          3 | return 'gone'
    reason given by the model: old build

  ? exec rm -rf doomed  waiting for approval

  1. Approve this call, once
  2. Approve this call and every later call of this script
  3. Deny
  4. Deny, with a reason for the model
  ↑ ↓ or a digit chooses · Enter confirms · Esc denies
›
  mock · 100 in, 20 out · 100% left · workspace-write",
    );
}

#[test]
fn quitting_at_the_approval_of_a_structured_call_asks_again_on_continue() {
    let args = serde_json::json!({"command": ["rm", "-rf", "doomed"]});
    let fixture = ChatFixture::new(super::first(vec![super::call("c1", "exec", args)]));
    std::fs::create_dir(fixture.work().join("doomed")).unwrap();
    let mut terminal = fixture.chat();
    terminal.send("Clean up");
    terminal.wait_for(KEYS);
    terminal.type_text("\x04");
    assert_eq!(terminal.wait_for_exit().0, 0);
    assert!(fixture.work().join("doomed").exists());
    let mut terminal = fixture.open(&["continue"], 80, 24, &[]);
    terminal.wait_for(KEYS);
    terminal.choose(1);
    terminal.wait_for("Done.");
    assert!(!fixture.work().join("doomed").exists());
}

#[test]
fn a_resumed_script_still_reuses_calls_after_quitting_at_its_approval() {
    use std::sync::{Arc, Mutex};
    const NOTE: &str = "await tools.exec({ command: ['sh', '-c', 'echo one >> notes'] });";
    let run_id = Arc::new(Mutex::new(String::new()));
    let resumed = run_id.clone();
    let fixture = ChatFixture::new(move |request| {
        let run = resumed.lock().unwrap();
        let code = format!("// @exec: {{\"resume\": \"{run}\"}}\n{DOOM}").replace("return", NOTE);
        script(&code)(request)
    });
    std::fs::create_dir(fixture.work().join("doomed")).unwrap();
    fixture.run(&["run", "-q", "-e", &format!("{NOTE} throw 'later'")]);
    let runs = fixture.run(&["runs", "list", "--json"]).stdout;
    let runs: serde_json::Value = serde_json::from_slice(&runs).unwrap();
    *run_id.lock().unwrap() = runs[0]["id"].as_str().unwrap().to_owned();
    let mut terminal = fixture.chat();
    terminal.send("Clean up");
    terminal.wait_for(KEYS);
    terminal.type_text("\x04");
    assert_eq!(terminal.wait_for_exit().0, 0);
    let mut terminal = fixture.open(&["continue"], 80, 24, &[]);
    terminal.wait_for(KEYS);
    terminal.choose(1);
    terminal.wait_for("Done.");
    assert!(!fixture.work().join("doomed").exists());
    let notes = std::fs::read_to_string(fixture.work().join("notes")).unwrap();
    assert_eq!(notes, "one\n");
}

#[test]
fn escape_denies_and_the_call_does_not_run() {
    let fixture = fixture(DOOM);
    let mut terminal = fixture.chat();
    terminal.send("Clean up");
    terminal.wait_for(KEYS);
    terminal.type_text("\x1b");
    terminal.wait_for("» denied");
    terminal.wait_for("Done.");
    assert!(fixture.work().join("doomed").exists());
}

#[test]
fn keys_typed_before_the_approval_do_not_answer_it() {
    let fixture = fixture(DOOM);
    let mut terminal = fixture.chat();
    // The keys are typed before the prompt is on the screen.
    terminal.send("Clean up");
    terminal.type_text("yyy1n2");
    terminal.wait_for(KEYS);
    terminal.wait_for("› yyy1n2");
    assert!(fixture.work().join("doomed").exists());
    terminal.choose(3);
    terminal.wait_for("» denied");
    // The input is kept.
    terminal.wait_for("› yyy1n2");
    assert!(fixture.work().join("doomed").exists());
}

#[test]
fn always_is_saved_and_not_asked_again() {
    let code = "await tools.exec({ command: ['touch', 'made'] }); return 'made'";
    let fixture = ChatFixture::new(move |asked| match asked.number % 2 {
        0 => vec![super::text(&super::block(code))].into(),
        _ => vec![super::text("Done.")].into(),
    });
    let mut terminal = fixture.open(&["--approval", "untrusted"], 80, 60, &[]);
    terminal.send("Make it");
    terminal.wait_for("3. Approve `touch made …` until this chat ends");
    terminal.wait_for("4. Approve `touch made …` always in this folder");
    terminal.wait_for("5. Approve `touch made …` always, in every folder");
    terminal.choose(5);
    terminal.wait_for("» approved always, in every folder");
    terminal.wait_for("Done.");
    let rules = std::fs::read_to_string(fixture.home().join("rules.toml")).unwrap();
    assert!(rules.contains("[\"touch\", \"made\"]"), "{rules}");
    terminal.wait_for(READY);
    terminal.send("/new");
    terminal.wait_for("started a new session");
    terminal.send("Again");
    terminal.wait_until("the second answer", |screen| {
        screen.matches("Done.").count() == 2
    });
    assert_eq!(terminal.screen().matches("» approved").count(), 1);
}

#[test]
fn a_rule_until_the_chat_ends_is_not_saved() {
    let code = "await tools.exec({ command: ['touch', 'made'] }); return 'made'";
    let fixture = ChatFixture::new(move |asked| match asked.number % 2 {
        0 => vec![super::text(&super::block(code))].into(),
        _ => vec![super::text("Done.")].into(),
    });
    let mut terminal = fixture.open(&["--approval", "untrusted"], 80, 60, &[]);
    terminal.send("Make it");
    terminal.wait_for("3. Approve `touch made …` until this chat ends");
    terminal.choose(3);
    terminal.wait_for("» approved until this chat ends");
    terminal.wait_for(READY);
    terminal.send("Again");
    terminal.wait_until("the second answer", |screen| {
        screen.matches("Done.").count() == 2
    });
    assert_eq!(terminal.screen().matches("» approved").count(), 1);
    assert!(!fixture.home().join("rules.toml").exists());
    // Another chat asks again.
    let mut terminal = fixture.open(&["--approval", "untrusted"], 80, 60, &[]);
    terminal.send("Make it");
    terminal.wait_for("3. Approve `touch made …` until this chat ends");
}

#[test]
fn several_calls_are_one_prompt_and_can_be_answered_one_by_one() {
    let code = "const all = await Promise.allSettled(\
                ['a', 'b'].map(f => tools.exec({ command: ['touch', f] })));\n\
                return all.map(r => r.status)";
    let fixture = ChatFixture::new(script(code));
    let mut terminal = fixture.open(&["--approval", "untrusted"], 80, 50, &[]);
    terminal.send("Both");
    terminal.wait_for("approval needed for 2 calls:");
    terminal.wait_for("1. Approve these 2 calls, once");
    terminal.wait_for("8. Decide about each call separately");
    terminal.choose(8);
    terminal.wait_gone("8. Decide about each call separately");
    terminal.choose(1);
    terminal.wait_for("Approve `touch b …` until");
    terminal.choose(6);
    terminal.wait_for("» approved once, then denied");
    terminal.wait_for("Done.");
    assert!(fixture.work().join("a").exists() && !fixture.work().join("b").exists());
}

#[test]
fn ctrl_c_at_an_approval_stops_the_turn() {
    let fixture = fixture(DOOM);
    let mut terminal = fixture.chat();
    terminal.send("Clean up");
    terminal.wait_for(KEYS);
    terminal.type_text("\x03");
    terminal.wait_for("– stopped");
    terminal.wait_gone(KEYS);
    terminal.wait_for(READY);
    assert!(fixture.work().join("doomed").exists());
}

#[test]
fn an_approval_left_open_at_exit_is_asked_again_on_continue() {
    let fixture = fixture(DOOM);
    let mut terminal = fixture.chat();
    terminal.send("Clean up");
    terminal.wait_for(KEYS);
    terminal.signal("TERM");
    let (status, screen) = terminal.wait_for_exit();
    assert!(
        status == 0 && screen.contains("selvedge continue ses_"),
        "{status}: {screen}"
    );
    let mut terminal = fixture.open(&["continue", "--last"], 80, 30, &[]);
    terminal.wait_for("the last turn was interrupted; continuing it");
    terminal.wait_for("rm -rf doomed");
    terminal.wait_for(KEYS);
    assert!(fixture.work().join("doomed").exists());
    terminal.choose(1);
    terminal.wait_for("Done.");
    assert!(!fixture.work().join("doomed").exists());
}
