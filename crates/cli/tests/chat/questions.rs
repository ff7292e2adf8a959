//! Questions of the gate inside the chat.

use super::person::Desk;
use super::{READY, last, script};

const DOOM: &str = "// first\nawait tools.exec({ command: ['rm', '-rf', 'doomed'], approvalContext: 'old build' });\nreturn 'gone'";
const KEYS: &str = "y once";

fn desk(code: &str) -> Desk {
    let desk = Desk::new(script(code));
    std::fs::create_dir(desk.work().join("doomed")).unwrap();
    desk
}

#[test]
fn yes_lets_it_run_once() {
    let desk = desk(DOOM);
    let mut person = desk.chat();
    person.asks("Clean up");
    person.wait_for(KEYS);
    person.expect(
        "
selvedge

› Clean up

▶ script  scr_ID
    // first
    await tools.exec({ command: ['rm', '-rf', 'doomed'], approvalContext: 'old
    build' });
    return 'gone'

? this needs an answer:
  exec: `rm -rf doomed`: deletes files by force
          1 | // first
      >   2 | await tools.exec({ command: ['rm', '-rf', 'doomed'],
      approvalContext: 'old build' });
          3 | return 'gone'
    it says: old build

  ? exec rm -rf doomed old build  waits for an answer

  y once · s for this script · n no · Esc none of it
›
  mock · 100 in, 20 out · 100% left · workspace-write · ses_ID",
    );
    assert!(desk.work().join("doomed").exists());
    person.types("y");
    person.wait_for("» yes, once");
    person.wait_for("◀ \"gone\"");
    person.wait_for("Done.");
    assert!(!desk.work().join("doomed").exists());
}

#[test]
fn no_with_words_reaches_the_model() {
    let desk = desk(DOOM);
    let mut person = desk.chat();
    person.asks("Clean up");
    person.wait_for(KEYS);
    person.types("n");
    person.wait_for("why ›");
    person.types("use the trash");
    person.wait_for("why › use the trash");
    person.types("\r");
    person.wait_for("» no: use the trash");
    person.wait_for("Done.");
    assert!(desk.work().join("doomed").exists());
    assert!(last(&desk.server.asked()[1]).contains("use the trash"));
}

#[test]
fn a_question_fits_sixty_columns() {
    let desk = desk(DOOM);
    let mut person = desk.sit_down(&[], 60, 30, &[]);
    person.asks("Clean up");
    person.wait_for(KEYS);
    person.expect(
        "
selvedge

› Clean up

▶ script  scr_ID
    // first
    await tools.exec({ command: ['rm', '-rf', 'doomed'],
    approvalContext: 'old build' });
    return 'gone'

? this needs an answer:
  exec: `rm -rf doomed`: deletes files by force
          1 | // first
      >   2 | await tools.exec({ command: ['rm', '-rf',
      'doomed'], approvalContext: 'old build' });
          3 | return 'gone'
    it says: old build

  ? exec rm -rf doomed old build  waits for an answer

  y once · s for this script · n no · Esc none of it
›
  mock · 100 in, 20 out · 100% left · workspace-write",
    );
}

#[test]
fn a_structured_call_that_was_left_at_its_question_is_asked_for_anew() {
    let args = serde_json::json!({"command": ["rm", "-rf", "doomed"]});
    let desk = Desk::new(super::first(vec![super::call("c1", "exec", args)]));
    std::fs::create_dir(desk.work().join("doomed")).unwrap();
    let mut person = desk.chat();
    person.asks("Clean up");
    person.wait_for(KEYS);
    person.types("\x04");
    assert_eq!(person.end().0, 0);
    assert!(desk.work().join("doomed").exists());
    let mut person = desk.sit_down(&["continue"], 80, 24, &[]);
    person.wait_for(KEYS);
    person.types("y");
    person.wait_for("Done.");
    assert!(!desk.work().join("doomed").exists());
}

#[test]
fn a_resumed_script_that_was_left_at_its_question_still_reuses_what_was_done() {
    use std::sync::{Arc, Mutex};
    const NOTE: &str = "await tools.exec({ command: ['sh', '-c', 'echo one >> notes'] });";
    let resumed = Arc::new(Mutex::new(String::new()));
    let named = resumed.clone();
    let desk = Desk::new(move |asked| {
        let run = named.lock().unwrap();
        let code = format!("// @exec: {{\"resume\": \"{run}\"}}\n{DOOM}").replace("return", NOTE);
        script(&code)(asked)
    });
    std::fs::create_dir(desk.work().join("doomed")).unwrap();
    desk.selvedge(&["run", "-q", "-e", &format!("{NOTE} throw 'later'")]);
    let runs = desk.selvedge(&["runs", "list", "--json"]).stdout;
    let runs: serde_json::Value = serde_json::from_slice(&runs).unwrap();
    *resumed.lock().unwrap() = runs[0]["id"].as_str().unwrap().to_owned();
    let mut person = desk.chat();
    person.asks("Clean up");
    person.wait_for(KEYS);
    person.types("\x04");
    assert_eq!(person.end().0, 0);
    let mut person = desk.sit_down(&["continue"], 80, 24, &[]);
    person.wait_for(KEYS);
    person.types("y");
    person.wait_for("Done.");
    assert!(!desk.work().join("doomed").exists());
    let notes = std::fs::read_to_string(desk.work().join("notes")).unwrap();
    assert_eq!(notes, "one\n");
}

#[test]
fn escape_answers_nothing_and_nothing_runs() {
    let desk = desk(DOOM);
    let mut person = desk.chat();
    person.asks("Clean up");
    person.wait_for(KEYS);
    person.types("\x1b");
    person.wait_for("» none of it");
    person.wait_for("Done.");
    assert!(desk.work().join("doomed").exists());
}

#[test]
fn what_was_typed_before_the_question_is_no_answer() {
    let desk = desk(DOOM);
    let mut person = desk.chat();
    // The letters are on their way before the question can be seen.
    person.asks("Clean up");
    person.types("yyynya");
    person.wait_for(KEYS);
    person.wait_for("› yyynya");
    assert!(desk.work().join("doomed").exists());
    person.types("n");
    person.wait_for("why ›");
    person.types("\r");
    person.wait_for("» no");
    // What was typed is still there, to be sent or not.
    person.wait_for("› yyynya");
    assert!(desk.work().join("doomed").exists());
}

#[test]
fn always_is_saved_and_not_asked_again() {
    let code = "await tools.exec({ command: ['touch', 'made'] }); return 'made'";
    let desk = Desk::new(move |asked| match asked.number % 2 {
        0 => vec![super::text(&super::block(code))].into(),
        _ => vec![super::text("Done.")].into(),
    });
    let mut person = desk.sit_down(&["--approval", "untrusted"], 80, 60, &[]);
    person.asks("Make it");
    person.wait_for("a always, for `touch made …`");
    person.types("a");
    person.wait_for("» yes, always");
    person.wait_for("Done.");
    let rules = std::fs::read_to_string(desk.home().join("rules.toml")).unwrap();
    assert!(rules.contains("[\"touch\", \"made\"]"), "{rules}");
    person.asks("/new");
    person.wait_for("a new session");
    person.asks("Again");
    person.wait("the second answer", |screen| {
        screen.matches("Done.").count() == 2
    });
    assert_eq!(person.screen().matches("» yes").count(), 1);
}

#[test]
fn several_calls_are_one_question_and_can_be_answered_each_by_itself() {
    let code = "const all = await Promise.allSettled(['a', 'b'].map(f => tools.exec({ command: ['touch', f] })));\nreturn all.map(r => r.status)";
    let desk = Desk::new(script(code));
    let mut person = desk.sit_down(&["--approval", "untrusted"], 80, 30, &[]);
    person.asks("Both");
    person.wait_for("these 2 calls need an answer");
    person.wait_for("each by itself");
    person.types("e");
    person.wait_gone("each by itself");
    person.types("y");
    person.types("n");
    person.wait_for("why ›");
    person.types("\r");
    person.wait_for("» yes, once, then no");
    person.wait_for("Done.");
    assert!(desk.work().join("a").exists() && !desk.work().join("b").exists());
}

#[test]
fn ctrl_c_at_a_question_stops_the_turn() {
    let desk = desk(DOOM);
    let mut person = desk.chat();
    person.asks("Clean up");
    person.wait_for(KEYS);
    person.types("\x03");
    person.wait_for("– stopped");
    person.wait_gone(KEYS);
    person.wait_for(READY);
    assert!(desk.work().join("doomed").exists());
}

#[test]
fn a_question_that_was_left_is_asked_anew() {
    let desk = desk(DOOM);
    let mut person = desk.chat();
    person.asks("Clean up");
    person.wait_for(KEYS);
    // The system wants the process to end.
    person.signal("TERM");
    let (status, screen) = person.end();
    assert!(
        status == 0 && screen.contains("selvedge continue ses_"),
        "{status}: {screen}"
    );
    let mut person = desk.sit_down(&["continue", "--last"], 80, 30, &[]);
    person.wait_for("the last turn was broken off, and goes on");
    person.wait_for("rm -rf doomed");
    person.wait_for(KEYS);
    assert!(desk.work().join("doomed").exists());
    person.types("y");
    person.wait_for("Done.");
    assert!(!desk.work().join("doomed").exists());
}
