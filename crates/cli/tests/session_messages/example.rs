//! One script finds the most urgent issue, starts a session for it and posts to a channel.
//! `docs/sessions-and-channels.md` shows it; `UPDATE_DOCS=1` updates the page.

use super::answer_encoding::{block, text};
use super::support::issue_example::{SCRIPT, compare_with_docs, write_issues};
use super::{MessageFixture, last_text};

/// The script of the new session.
const FIX: &str = "\
await tools.editFile({
  path: 'login.js',
  oldString: 'return true',
  newString: 'return password.length > 0'
});";

fn fixture() -> MessageFixture {
    let fixture = MessageFixture::new(|asked| {
        let last = last_text(asked);
        let all = asked.body["messages"].to_string();
        let answer = match all.contains("most urgent issue") {
            true if last.contains("most urgent issue") => block(SCRIPT),
            true => "A new session works on the login.".to_owned(),
            false if last.contains("empty password") => block(FIX),
            false => "Fixed: empty passwords are refused.".to_owned(),
        };
        vec![text(&answer)].into()
    });
    fixture.configure("[environments.frontend]\nworkspace = \"web\"\n");
    write_issues(&fixture.workspace.work());
    fixture
}

#[test]
fn one_script_queries_issues_starts_a_session_and_posts_to_a_channel() {
    let fixture = fixture();
    let mut transcript = Transcript::default();
    let out = transcript.run(
        &fixture,
        &["exec", "-q", "Start with the most urgent issue."],
    );
    assert!(out.ends_with("works on the login.\n"), "{out}");
    assert_eq!(
        fixture.server.asked().len(),
        2,
        "one script, and the final answer"
    );
    let sessions = fixture.sessions();
    let is_child = |session: &&serde_json::Value| !session["creator"].is_null();
    let child = sessions.iter().find(is_child).unwrap();
    let parent = child["creator"].as_str().unwrap();
    assert_eq!(child["title"], "Fix Login accepts empty passwords");
    assert_eq!(child["environment"], "frontend");
    assert_eq!(child["queued"], 1);
    transcript.names = vec![
        (parent.to_owned(), "ses_a"),
        (child["id"].as_str().unwrap().to_owned(), "ses_b"),
    ];
    transcript.run(&fixture, &["sessions", "show", parent]);
    let child = child["id"].as_str().unwrap();
    let answer = transcript.run(&fixture, &["sessions", "send", child, "--wait"]);
    assert_eq!(answer, "Fixed: empty passwords are refused.\n");
    let code = std::fs::read_to_string(fixture.workspace.work().join("web/login.js")).unwrap();
    assert!(code.contains("return password.length > 0;"), "{code}");
    transcript.run(&fixture, &["sessions", "show", child]);
    let posts = transcript.run(&fixture, &["channels", "read", "engineering"]);
    assert!(
        posts.contains("Started working on Login accepts empty passwords"),
        "{posts}"
    );
    let shown = fixture.json(&["sessions", "show", child, "--json"]);
    assert_eq!(shown["queue"], serde_json::json!([]));
    compare_with_docs("sessions-and-channels.md", &transcript.text);
}

#[test]
fn the_script_without_await_is_an_error_with_a_hint() {
    let fixture = fixture();
    let script = SCRIPT.replace("await ", "");
    for (dropped, code) in [
        ("channels.post", "channels.post('engineering', 'x');"),
        ("sessions.send", "sessions.send('ses_x', 'x');"),
        ("await issues", script.as_str()),
    ] {
        std::fs::write(fixture.workspace.work().join("script.ts"), code).unwrap();
        let (status, _, err) = fixture.run(&["check", "script.ts"]);
        assert_eq!(status, 2, "{err}");
        assert!(err.contains("hint: "), "{err}");
        assert!(err.contains("await") && err.contains(dropped), "{err}");
    }
}

/// Commands and what they print, with stable ids and times.
#[derive(Default)]
struct Transcript {
    text: String,
    names: Vec<(String, &'static str)>,
}

impl Transcript {
    /// Runs a command, which must succeed, and returns its standard output.
    fn run(&mut self, fixture: &MessageFixture, args: &[&str]) -> String {
        let (status, out, err) = fixture.run(args);
        assert_eq!(status, 0, "{args:?}: {err}");
        let quoted = args.iter().map(|arg| match arg.contains(' ') {
            true => format!("{arg:?}"),
            false => (*arg).to_owned(),
        });
        let words: Vec<String> = quoted.collect();
        let shown = format!("$ selvedge {}\n{out}", words.join(" "));
        for line in shown.lines() {
            let mut line = match (
                line.split_once("  script scr_"),
                line.split_once(" s  ses_"),
            ) {
                (Some((turn, _)), _) => format!("{turn}  script"),
                (_, Some((_, author))) => format!("#1        1 s  ses_{author}"),
                _ => line.to_owned(),
            };
            for (id, name) in &self.names {
                line = line.replace(id, name);
            }
            self.text.push_str(line.trim_end());
            self.text.push('\n');
        }
        out
    }
}
