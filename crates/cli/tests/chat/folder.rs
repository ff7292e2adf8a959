//! Ctrl-Z, the commands about the folder, and the colours of `runs show`.

use super::driver::ChatFixture;
use super::{READY, block, last, polite, text};

#[test]
fn ctrl_z_returns_to_the_shell_and_fg_to_the_chat() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.open_shell();
    terminal.wait_for("shell>");
    terminal.type_text(&format!("{}\r", env!("CARGO_BIN_EXE_selvedge")));
    terminal.wait_for(READY);
    terminal.type_text("half a message");
    terminal.wait_for("› half a message");
    terminal.type_text("\x1a");
    terminal.wait_for("Stopped");
    // The shell has its terminal back: it echoes what is typed, and ends lines.
    terminal.type_text("echo one$((1 + 1))three\r");
    terminal.wait_for("\none2three\nshell>");
    terminal.type_text("fg\r");
    terminal.wait_for("› half a message");
    terminal.type_text(" is sent\r");
    fixture.wait_for_requests(1);
    assert!(last(&fixture.server.asked()[0]).contains("half a message is sent"));
    terminal.wait_for("Hello, person.");
}

#[test]
fn ctrl_l_draws_the_screen_again() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.chat();
    terminal.wait_for(READY);
    terminal.type_text("half a message");
    terminal.wait_for("› half a message");
    // Another program writes to the terminal.
    terminal.emulator.process(b"\x1b[2J\x1b[Hbackground noise");
    terminal.type_text("\x0c");
    terminal.wait_for("› half a message");
    terminal.wait_gone("background noise");
    assert_eq!(terminal.screen().matches("half a message").count(), 1);
}

#[test]
fn init_lets_the_model_write_instructions_for_the_next_session() {
    let code = "await tools.writeFile({ path: 'AGENTS.md', content: 'Speak like a poet.\\n' });\n\
                return 'written'";
    let fixture = ChatFixture::new(move |asked| match asked.number {
        0 => vec![text(&block(code))].into(),
        _ => vec![text("Done.")].into(),
    });
    let mut terminal = fixture.open(&[], 80, 40, &[]);
    terminal.send("/init");
    terminal.wait_for("Done.");
    terminal.wait_for(READY);
    let asked = last(&fixture.server.asked()[0]);
    assert!(
        asked.contains("Write AGENTS.md in the root of this project") && asked.contains("build"),
        "{asked}"
    );
    let written = std::fs::read_to_string(fixture.work().join("AGENTS.md")).unwrap();
    assert_eq!(written, "Speak like a poet.\n");
    terminal.send("/quit");
    terminal.wait_for("selvedge continue");
    fixture.run(&["-p", "Hello"]);
    let prompt = fixture.server.asked().last().unwrap().body.to_string();
    assert!(prompt.contains("Speak like a poet."), "{prompt}");
}

#[test]
fn review_asks_for_a_review_of_the_changes() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.open(&[], 80, 40, &[]);
    terminal.send("/review");
    fixture.wait_for_requests(1);
    let asked = last(&fixture.server.asked()[0]);
    assert!(
        asked.contains("Review the uncommitted changes") && asked.contains("Change nothing"),
        "{asked}"
    );
    terminal.wait_for("Hello, person.");
    terminal.wait_for(READY);
}

#[test]
fn trust_shows_what_the_files_set_and_trusts_them_after_yes() {
    let fixture = ChatFixture::new(polite);
    let mut terminal = fixture.open(&[], 80, 60, &[]);
    terminal.wait_for(READY);
    std::fs::create_dir(fixture.work().join(".selvedge")).unwrap();
    let file = fixture.work().join(".selvedge/config.toml");
    std::fs::write(&file, "model = \"other\"\n").unwrap();
    let asked_model = || {
        assert!(fixture.run(&["-p", "Hello"]).status.success());
        fixture.server.asked().last().unwrap().body["model"].clone()
    };
    terminal.send("/trust");
    terminal.wait_for("its files would start or set:");
    terminal.wait_for("model = \"other\"  [.selvedge/config.toml]");
    terminal.wait_for("type /trust yes to trust this folder");
    assert_eq!(asked_model(), "mock");
    // Only what was shown is trusted.
    std::fs::write(&file, "model = \"changed\"\n").unwrap();
    terminal.send("/trust yes");
    terminal.wait_for("its files have changed; they would start or set:");
    terminal.wait_for("model = \"changed\"  [.selvedge/config.toml]");
    assert_eq!(asked_model(), "mock");
    std::fs::write(&file, "model = \"other\"\n").unwrap();
    terminal.send("/trust");
    terminal.wait_until("the files again", |screen| {
        screen.matches("model = \"other\"").count() == 2
    });
    terminal.send("/trust yes");
    terminal.wait_for("trusted; start the chat again to use its files");
    assert_eq!(asked_model(), "other");
}

#[test]
fn a_run_is_shown_in_colour_at_a_terminal_only() {
    let fixture = ChatFixture::new(polite);
    let code = "await tools.exec({ command: ['true'] });\n\
                await tools.exec({ command: ['sh', '-c', 'exit 3'] });\n\
                await tools.readFile({ path: 'gone.txt' })";
    fixture.run(&["run", "-e", code]);
    let listed = fixture.run(&["runs", "list", "--json"]).stdout;
    let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap();
    let id = listed[0]["id"].as_str().unwrap();
    let raw = |env: &[(&str, &str)]| {
        let mut terminal = fixture.open(&["runs", "show", id], 160, 24, env);
        terminal.wait_for("ToolExecutionError");
        terminal.wait_for("exit 3");
        String::from_utf8_lossy(&terminal.raw_output).into_owned()
    };
    let coloured = raw(&[]);
    for part in [
        "\x1b[31mfailed\x1b[0m, started ",
        "\x1b[32m✓\x1b[0m exec ",
        "\x1b[31m✗\x1b[0m exec           \x1b[31mexit 3\x1b[0m",
        "\x1b[31mToolExecutionError\x1b[0m: ",
    ] {
        assert!(coloured.contains(part), "{part:?}: {coloured:?}");
    }
    assert!(!raw(&[("NO_COLOR", "1")]).contains('\x1b'));
    let piped = fixture.run(&["runs", "show", id]).stdout;
    let piped = String::from_utf8(piped).unwrap();
    assert!(
        piped.contains("✗ exec           exit 3") && !piped.contains('\x1b'),
        "{piped}"
    );
}

#[test]
fn runs_checks_and_errors_have_colours_at_a_terminal_unless_no_color_is_set() {
    let fixture = ChatFixture::new(polite);
    let code = "await tools.exec({ command: ['true'] }); return 'ready'";
    for (args, last, part) in [
        (
            &["run", "-e", code][..],
            "ready",
            "\x1b[32m✓\x1b[0m exec true",
        ),
        (&["runs", "list"], "completed", "\x1b[32mcompleted\x1b[0m"),
        (&["doctor"], "memory ", "\x1b[32m✓\x1b[0m version"),
        (
            &["runs", "show", "scr_none"],
            "error: ",
            "\x1b[1;31merror\x1b[0m: ",
        ),
    ] {
        for (env, is_coloured) in [(&[][..], true), (&[("NO_COLOR", "1")], false)] {
            let mut terminal = fixture.open(args, 120, 40, env);
            terminal.wait_for(last);
            let raw = String::from_utf8_lossy(&terminal.raw_output).into_owned();
            assert_eq!(raw.contains(part), is_coloured, "{args:?} {env:?}: {raw:?}");
        }
    }
}
