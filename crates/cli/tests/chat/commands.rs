//! Slash commands of the chat.

use serde_json::json;

use super::driver::ChatFixture;
use super::server::Reply;
use super::{READY, block, call, first, last, polite, text};

#[test]
fn help_lists_commands_and_keys() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.open(&[], 80, 60, &[]);
    terminal.wait_for(READY);
    terminal.send("/help");
    terminal.wait_for("Edit as in a shell");
    terminal.expect_screen(
        "
selvedge

/help
  /model [NAME]        Show the model, or switch to NAME
  /approvals [POLICY]  Show the approval policy, or switch to POLICY
  /mode [MODE]         Show whether scripts run, or switch to MODE
  /diff                Show what this session changed in the folder
  /compact             Shorten the conversation to free context
  /continue [ID]       List the sessions of this folder, or continue session ID
  /new                 Start a new session
  /runs                List the runs of this session
  /mcp                 Show the MCP servers and their state
  /reasoning           Show the model's last reasoning
  /recalled            Show what memory recalled for the last turn
  /memory [accept ID]  Show what memory proposes, or decide about it
  /status              Show the model, the session and the permissions
  /clear               Start a new session on an empty screen
  /init                Let the model write AGENTS.md for this project
  /review              Let the model review the uncommitted changes
  /undo                Undo the file changes of the last turn that changed files
  /copy                Copy the last answer to the clipboard
  /export [FILE]       Write the session to a new file, as Markdown
  /expand              Show the scripts and results of the last turn in full
  /trust [yes]         Show what the files of this folder set, or trust them
  /help                Show the commands and keys
  /quit                Quit; `selvedge continue` reopens the session

  Enter                Send; during a turn, queue for the next turn
  Alt-Enter, Ctrl-J, \\ Enter  Insert a line break
  Up, Down             Browse earlier messages
  Ctrl-R               Search the earlier messages
  Ctrl-G               Edit the message in $VISUAL or $EDITOR
  !COMMAND             Run a command of your own; the model sees its output
  @                    Complete a file name; an image is sent with the message
  Ctrl-V               Insert the image on the clipboard
  Tab                  Accept the completion
  Ctrl-T               Show or hide the model's reasoning
  Ctrl-O               Show the scripts and results of the last turn in full
  Ctrl-L               Draw the screen again
  Ctrl-Z               Return to the shell; `fg` continues the chat
  Esc                  Stop the turn
  Ctrl-C               Stop the turn, or clear the input; twice to quit
  Ctrl-D               Quit if the input is empty
  Ctrl-A E K U W Y, Alt-B F D  Edit as in a shell

› type a message, @ for files, / for commands
  mock · 0 in, 0 out · 100% left · workspace-write",
    );
}

#[test]
fn an_unknown_command_is_an_error_with_a_hint() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.chat();
    terminal.wait_for(READY);
    terminal.send("/frobnicate");
    terminal.wait_for("error: unknown command /frobnicate");
    terminal.wait_for("hint: type /help to list all commands");
    assert!(fixture.server.asked().is_empty());
    // A path is not a command.
    terminal.send("/etc/hosts is what?");
    terminal.wait_for("Hello, person.");
}

#[test]
fn commands_are_offered_and_completed() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.chat();
    terminal.wait_for(READY);
    terminal.type_text("/");
    terminal.wait_for("1 of 23");
    terminal.type_text("app");
    terminal.wait_for("▸ /approvals");
    terminal.type_text("\t");
    terminal.wait_for("▸ untrusted");
    terminal.type_text("n");
    terminal.wait_for("▸ never");
    terminal.type_text("\r");
    terminal.wait_for("approval policy: never");
}

#[test]
fn the_model_and_the_approval_policy_can_be_switched() {
    let code = "await tools.exec({ command: ['touch', 'made'] }); return 'made'";
    let fixture = ChatFixture::new(first(vec![text(&block(code))]));
    let mut terminal = fixture.chat();
    terminal.wait_for(READY);
    terminal.send("/model other-model");
    terminal.wait_for("other-model (mock)");
    terminal.wait_for("  other-model ·");
    terminal.send("/approvals untrusted");
    terminal.wait_for("approval policy: untrusted");
    terminal.send("Make it");
    terminal.choose(1);
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    assert_eq!(fixture.server.asked()[0].body["model"], "other-model");
    terminal.send("/model unknown/x");
    terminal.wait_for("unknown/x (mock)");
    terminal.send("/approvals");
    terminal.wait_for("untrusted: ask before every call that is not known to be harmless");
}

#[test]
fn runs_are_listed_and_sessions_are_listed_and_continued() {
    let fixture = ChatFixture::new(|asked| match last(asked).contains("Result of the script") {
        true => vec![text("Done.")].into(),
        false if last(asked).contains("again") => vec![text("Again indeed.")].into(),
        false => vec![text(&block(
            "return (await tools.readFile({ path: 'a.txt' })).totalLines",
        ))]
        .into(),
    });
    let mut terminal = fixture.chat();
    terminal.send("/runs");
    terminal.wait_for("no runs in this session yet");
    terminal.send("Count");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    terminal.send("/runs");
    terminal.wait_until("the run", |screen| {
        let mut lines = screen
            .lines()
            .skip_while(|line| !line.starts_with("  RUN "));
        let heading = lines.next().unwrap_or_default();
        let run = lines.next().unwrap_or_default();
        heading.ends_with("SCRIPT")
            && run.contains("completed")
            && run.contains("  1 call  return (await tools.read")
    });
    terminal.send("/new");
    terminal.wait_for("started a new session");
    terminal.send("/continue");
    terminal.wait_for("type /continue ID to continue a session");
    assert!(
        terminal.screen().contains("\n  SESSION "),
        "{}",
        terminal.screen()
    );
    // The earlier name of the command.
    terminal.type_text("/resume ");
    terminal.wait_for("▸ ses_");
    terminal.type_text("\r");
    terminal.wait_for("session ses_");
    terminal.send("again");
    terminal.wait_for("Again indeed.");
    let asked = fixture.server.asked().pop().unwrap().body.to_string();
    assert!(
        asked.contains("Count") && asked.contains("again"),
        "{asked}"
    );
}

/// Adds runs of another session and sessions of another folder, all newer than those of the chat.
fn add_newer_rows(journal: &std::path::Path) {
    let journal = rusqlite::Connection::open(journal).unwrap();
    let copies = |table: &str, changes: &str| {
        format!(
            "CREATE TEMP TABLE copied AS SELECT * FROM {table} LIMIT 1;
             WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers
                WHERE n < 600)
             INSERT INTO {table} SELECT {changes} FROM copied, numbers;
             DROP TABLE copied;"
        )
    };
    let columns = |table: &str, changed: &[(&str, &str)]| {
        let sql = format!("SELECT name FROM pragma_table_info('{table}')");
        let mut read = journal.prepare(&sql).unwrap();
        let names = read.query_map([], |row| row.get::<_, String>(0)).unwrap();
        let values = names.map(|name| {
            let name = name.unwrap();
            let change = changed.iter().find(|(column, _)| *column == name);
            change.map_or(format!("copied.{name}"), |(_, value)| (*value).to_owned())
        });
        values.collect::<Vec<_>>().join(", ")
    };
    let runs = [
        ("key", "NULL"),
        ("id", "'scr_other' || n"),
        ("session", "'ses_other'"),
        ("started_ms", "copied.started_ms + 100000 + n"),
    ];
    let sessions = [
        ("key", "NULL"),
        ("id", "'ses_other' || n"),
        ("directory", "'/other'"),
        ("touched_ms", "copied.touched_ms + 100000 + n"),
    ];
    for (table, changed) in [("runs", &runs), ("sessions", &sessions)] {
        let sql = copies(table, &columns(table, changed));
        journal.execute_batch(&sql).unwrap();
    }
}

#[test]
fn a_list_that_is_cut_says_so() {
    let fixture = ChatFixture::new(|asked| match asked.number {
        number @ 0..21 => vec![text(&block(&format!("return {number} // script {number}")))].into(),
        _ => vec![text("Done.")].into(),
    });
    let mut terminal = fixture.open(&[], 80, 60, &[]);
    terminal.send("Count");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    add_newer_rows(&fixture.home().join("journal.sqlite"));
    terminal.send("/runs");
    terminal.wait_for("only the newest 20 runs; run `selvedge runs list` for all");
    let screen = terminal.screen();
    let listed = screen.rsplit("  RUN ").next().unwrap();
    assert!(
        listed.contains("return 20 // script 20") && listed.contains("return 1 // script 1\n"),
        "{screen}"
    );
    assert!(!listed.contains("script 0\n"), "{screen}");
    // The list of sessions is not cut.
    terminal.send("/continue");
    terminal.wait_for("type /continue ID");
    assert!(!terminal.screen().contains("only the last"), "{screen}");
}

#[test]
fn a_journal_that_cannot_be_read_is_an_error_instead_of_an_empty_list() {
    let fixture = ChatFixture::new(|_| vec![text("Done.")].into());
    let mut terminal = fixture.chat();
    terminal.wait_for(READY);
    // Without a session, there are no runs to read.
    terminal.send("hello");
    terminal.wait_for("Done.");
    let file = fixture.home().join("journal.sqlite");
    let journal = rusqlite::Connection::open(file).unwrap();
    journal
        .execute_batch("ALTER TABLE sessions RENAME TO hidden; ALTER TABLE runs RENAME TO gone;")
        .unwrap();
    terminal.send("/continue");
    terminal.wait_for("error: cannot access the journal: no such table: sessions");
    terminal.send("/runs");
    terminal.wait_for("error: cannot access the journal: no such table: runs");
    terminal.type_text("/continue ");
    terminal.wait_for("  cannot access the journal: no such table: sessions");
}

#[test]
fn compact_shortens_the_conversation() {
    let answer = "Some words that take room. ".repeat(400);
    let fixture = ChatFixture::new(move |_| Reply::Counted(vec![text(&answer)], 9_000));
    let mut terminal = fixture.chat();
    for number in 0..3 {
        terminal.send(&format!("Question {number}"));
        fixture.wait_for_requests(number + 1);
        terminal.wait_for(READY);
    }
    terminal.send("/compact");
    terminal.wait_for("  compacted about ");
    terminal.wait_for("; the originals stay in the journal");
    terminal.send("Last question");
    fixture.wait_for_requests(4);
    let body = fixture.server.asked()[3].body.to_string();
    assert!(
        body.contains("was compacted") && body.contains("Last question"),
        "{body}"
    );
}

#[test]
fn mcp_reports_that_no_servers_are_configured() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.chat();
    terminal.wait_for(READY);
    terminal.send("/mcp");
    terminal.wait_for("hint: run `selvedge mcp add NAME -- PROGRAM` to add one");
}

#[test]
fn a_message_that_waits_for_a_slow_mcp_server_can_be_taken_back() {
    let fixture = ChatFixture::new(polite);
    fixture.configure(
        "[mcp_servers.slow]\ncommand = \"sleep\"\nargs = [\"100\"]\nstartup_timeout_sec = 600\n",
    );
    let mut terminal = fixture.chat();
    terminal.wait_for(READY);
    // Esc, and Ctrl-C.
    for key in ["\x1b", "\x03"] {
        terminal.send("Hi");
        terminal.wait_for("queued: Hi");
        terminal.wait_for("starting the MCP servers… Esc takes the message back");
        // Another key does not hide why nothing happens.
        terminal.type_text("x");
        terminal.wait_for("› x");
        assert!(terminal.screen().contains("starting the MCP servers…"));
        terminal.type_text("\x7f");
        terminal.wait_for(READY);
        terminal.type_text(key);
        terminal.wait_for("› Hi");
        terminal.wait_gone("starting the MCP servers…");
        terminal.type_text("\x15");
        terminal.wait_for(READY);
    }
    assert!(fixture.server.asked().is_empty());
}

#[test]
fn mcp_shows_a_server_that_failed() {
    let fixture = ChatFixture::new(polite);
    fixture.configure("[mcp_servers.broken]\ncommand = \"/nonexistent/server\"\n");
    let mut terminal = fixture.chat();
    terminal.send("Hi");
    terminal.wait_for("Hello, person.");
    terminal.wait_for(READY);
    terminal.send("/mcp");
    terminal.wait_for("✗ broken");
}

#[test]
fn the_first_turn_has_the_tools_of_mcp_servers() {
    let fixture = ChatFixture::new(super::script("return (await odd.echo({ x: 41 })).x + 1"));
    let server =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../mcp/tests/servers/odd.py");
    fixture.configure(&format!(
        "[mcp_servers.odd]\ncommand = \"python3\"\nargs = [\"{}\", \"good\"]\n",
        server.display()
    ));
    let mut terminal = fixture.chat();
    terminal.send("Echo");
    terminal.wait_for("✓ mcp.odd.echo x 41");
    terminal.wait_for("◀ 42");
    terminal.wait_for("Done.");
    terminal.send("/mcp");
    terminal.wait_for("✓ odd  ready, 10 tools");
}

#[test]
fn some_commands_are_rejected_during_a_turn() {
    let fixture = ChatFixture::new(|_| {
        Reply::Hang(vec![
            text("It begins and begins and begins and begins."),
            call("c", "read_file", json!({"path": "a.txt"})),
        ])
    });
    let mut terminal = fixture.chat();
    terminal.send("Go");
    terminal.wait_for("It begins");
    terminal.send("/model x");
    terminal.wait_for("error: /model is not available during a turn");
    terminal.send("/runs");
    terminal.wait_for("no runs in this session yet");
    terminal.type_text("/quit\r");
    assert_eq!(terminal.wait_for_exit().0, 0);
}

#[test]
fn the_mode_command_decides_whether_the_scripts_of_the_next_turns_run() {
    let fixture = ChatFixture::new(|asked| {
        let words = last(asked);
        match words.contains("Result of the script") {
            true => vec![text(if words.contains("dry_run") {
                "only checked"
            } else {
                "it ran"
            })],
            false => vec![text(&block("return (await tools.readFile('a.txt')).text"))],
        }
        .into()
    });
    let mut terminal = fixture.chat();
    terminal.wait_for(READY);
    terminal.send("/mode dry-run");
    terminal.wait_for("dry-run: check scripts and report what they would call");
    terminal.send("first");
    terminal.wait_for("only checked");
    terminal.send("/mode enabled");
    terminal.wait_for("enabled: check and run scripts");
    terminal.send("second");
    terminal.wait_for("it ran");
    terminal.send("/mode maybe");
    terminal.wait_for("hint: use one of disabled, dry-run, enabled");
}

#[test]
fn disabled_scripts_do_not_run() {
    let code = "await tools.writeFile({ path: 'made', content: 'x' }); return 'made'";
    let fixture = ChatFixture::new(super::script(code));
    let mut terminal = fixture.chat();
    terminal.wait_for(READY);
    terminal.send("/mode disabled");
    terminal.wait_for("  disabled: ");
    terminal.wait_for(READY);
    terminal.send("Make it");
    fixture.wait_for_requests(1);
    terminal.wait_gone("waiting for mock");
    terminal.wait_for(READY);
    terminal.send("/status");
    terminal.wait_for("scripts    disabled");
    assert!(!fixture.work().join("made").exists());
}

#[test]
fn the_chat_says_what_was_recalled_and_shows_it() {
    let fixture = ChatFixture::new(polite);
    let done = fixture.run(&["exec", "We decided to keep the queue in heron, in Oslo."]);
    assert!(done.status.success(), "{done:?}");
    let mut terminal = fixture.open(&[], 100, 40, &[]);
    terminal.wait_for(READY);
    terminal.send("/recalled");
    terminal.wait_for("memory has recalled nothing in this session yet");
    terminal.send("Where is the queue kept?");
    terminal.wait_for("· recalled 1 turn · ");
    terminal.wait_for("Hello, person.");
    terminal.wait_for(READY);
    terminal.send("/recalled");
    terminal.wait_for("/T-1 quoted");
}

#[test]
fn the_chat_says_that_proposals_wait_and_decides_about_them() {
    let fixture = ChatFixture::new(polite);
    let turn = |n: usize| {
        let subject = match n % 7 {
            0 => "The migration of the billing database",
            _ => "Our lunch",
        };
        let words = [
            "slow", "careful", "weekend", "rollback", "index", "walk", "green",
        ];
        let more = (0..60).map(|at| words[(n * 5 + at * at * 3 + at / 7) % words.len()]);
        let more: Vec<&str> = more.collect();
        let text = format!("{subject} number {n} went like this: {}.", more.join(" "));
        let line = json!({"session": "s", "turn": n, "role": "user", "text": text});
        format!("{line}\n")
    };
    let lines: String = (0..150).map(turn).collect();
    std::fs::write(fixture.work().join("chat.jsonl"), lines).unwrap();
    for args in [
        &["memory", "import", "chat.jsonl"][..],
        &["memory", "distill"],
    ] {
        let done = fixture.run(args);
        assert!(done.status.success(), "{done:?}");
    }
    let listed = fixture.run(&["memory", "review", "--json"]);
    let proposals: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let proposals = proposals.as_array().unwrap();
    let layers = |id: &str| {
        let listed = fixture.run(&["memory", "layer", "list", "--all", "--json"]);
        let layers: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
        let mut layers = layers.as_array().unwrap().clone().into_iter();
        layers.find(|layer| layer["lessonId"] == id)
    };
    let layer = proposals
        .iter()
        .find(|proposal| proposal["kind"] == "layer");
    let id = layer.unwrap()["lessonId"].as_str().unwrap().to_owned();
    assert_eq!(layers(&id).unwrap()["status"], "proposed");
    let mut terminal = fixture.open(&[], 100, 60, &[]);
    terminal.wait_for(READY);
    terminal.wait_for("to review: /memory");
    terminal.send("/memory");
    terminal.wait_for("type /memory accept ID, or /memory decline ID");
    terminal.send(&format!("/memory accept {id}"));
    terminal.wait_for("it is used from now on");
    assert_eq!(layers(&id).unwrap()["status"], "used");
    terminal.send("/memory accept les_nothing");
    terminal.wait_for("error: there is no lesson `les_nothing`");
}
