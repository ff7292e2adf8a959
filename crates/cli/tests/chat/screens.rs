//! Snapshots of the main screens at 40, 80 and 120 columns, with wide and combining characters. The
//! files are in `screens/`; `UPDATE_SCREENS=1` writes them.

use super::driver::{ChatFixture, ChatTerminal};
use super::{block, first, text, think};

/// Widths of the terminals, in columns.
const WIDTHS: [u16; 3] = [40, 80, 120];

/// Height of the terminals, in rows.
const HEIGHT: u16 = 50;

/// The beginning of the empty input line, which is cut in a narrow terminal.
const READY: &str = "› type a message";

/// Compares the screens of all widths. `act` brings a terminal into the state to compare.
fn compare(
    name: &str,
    open: impl Fn(u16) -> (ChatFixture, ChatTerminal),
    act: impl Fn(&mut ChatTerminal),
) {
    for width in WIDTHS {
        let (_fixture, mut terminal) = open(width);
        act(&mut terminal);
        terminal.expect_screen_file(&format!("{name}-{width}"));
    }
}

/// Opens a chat whose model answers the first message with these texts.
fn chat_with(answer: &str, args: &[&str], width: u16) -> (ChatFixture, ChatTerminal) {
    let fixture = ChatFixture::new(first(vec![think("考える。"), text(answer)]));
    std::fs::write(fixture.work().join("読む.txt"), "一\n二\n").unwrap();
    let terminal = fixture.open(args, width, HEIGHT, &[]);
    (fixture, terminal)
}

#[test]
fn an_answer_with_markdown() {
    let answer = "# 見出し e\u{301}\n\n日本語の文章は幅が二倍です。 The cafe\u{301} *opens* at **nine**, \
        `mañana` and 한국어, and the line is long enough to wrap.\n\n\
        | 名前 | what it does | n |\n|:--|---|--:|\n\
        | 読む | reads a file, or a slice of it, as text 🎉 | 12 |\n| e\u{301} | short | 7 |\n\n\
        1. 一番\n2. two\n   - nested 項目 that is also long enough to wrap at forty columns\n\n\
        - [x] 完了\n- [ ] open\n\n> 引用 of a reader\n\n\
        ```rust\nfn 主() { println!(\"こんにちは、世界。こんにちは、世界。\"); }\n```\n";
    compare(
        "answer",
        |width| chat_with(answer, &[], width),
        |terminal| {
            terminal.send("日本語 e\u{301}?");
            terminal.wait_for("fn 主()");
            terminal.wait_for(READY);
        },
    );
}

#[test]
fn a_script_with_its_calls_and_their_outcomes() {
    let code = "const file = await tools.readFile({ path: '読む.txt' });\n\
        await tools.exec({ command: ['sh', '-c', 'echo 日本語日本語日本語日本語日本語; exit 3'] });\n\
        await tools.readFile({ path: 'e\u{301}-gone.txt' }).catch(() => null);\n\
        text('表示 cafe\u{301}');\nreturn { 行: file.totalLines };";
    compare(
        "script",
        |width| chat_with(&format!("I count 行.\n\n{}", block(code)), &[], width),
        |terminal| {
            terminal.send("数える");
            terminal.wait_for("Done.");
            terminal.wait_for(READY);
        },
    );
}

#[test]
fn a_question_about_a_long_command() {
    let code = "await tools.exec({ command: ['sh', '-c', 'touch 作る-日本語日本語日本語日本語日本語日本語日本語 \
        cafe\u{301} && echo done'] }); return 1";
    compare(
        "question",
        |width| chat_with(&block(code), &["--approval", "untrusted"], width),
        |terminal| {
            terminal.send("作る");
            terminal.wait_for("approval needed");
            terminal.wait_for("1. ");
            terminal.type_text("\x1b[B");
            terminal.wait_for("❯ 1. ");
        },
    );
}

#[test]
fn input_that_wraps_with_completions_and_a_notice() {
    compare(
        "input",
        |width| chat_with("Fine.", &[], width),
        |terminal| {
            terminal.wait_for(READY);
            terminal.type_text(
                "日本語の長い文章を書くと、行は折り返されます。 cafe\u{301} résumé 🎉 @読",
            );
            terminal.wait_for("▸ 読む.txt");
        },
    );
}

#[test]
fn a_model_with_a_wide_name_and_a_changed_mode() {
    compare(
        "mode",
        |width| chat_with("Fine. 良い。", &["--model", "模型-mock"], width),
        |terminal| {
            terminal.send("良い?");
            terminal.wait_for("Fine. 良い。");
            terminal.wait_for(READY);
            terminal.send("/mode dry-run");
            terminal.wait_for("dry-run");
            terminal.wait_for(READY);
        },
    );
}

#[test]
fn the_list_of_commands() {
    compare(
        "help",
        |width| {
            let fixture = ChatFixture::new(super::polite);
            let terminal = fixture.open(&[], width, 70, &[]);
            (fixture, terminal)
        },
        |terminal| {
            terminal.send("/help");
            terminal.wait_for("Edit as");
            terminal.wait_for(READY);
        },
    );
}

#[test]
fn a_run_outside_of_the_chat() {
    let code = "await tools.exec({ command: \
        ['sh', '-c', 'exit 3 # 日本語日本語日本語日本語日本語日本語日本語'] });\n\
        await tools.exec({ command: ['sh', '-c', 'true cafe\u{301}'] });\n\
        console.log('表示 🎉');\nreturn '終わり e\u{301}'";
    compare(
        "run",
        |width| {
            let fixture = ChatFixture::new(super::polite);
            let terminal = fixture.open(&["run", "-e", code], width, HEIGHT, &[]);
            (fixture, terminal)
        },
        |terminal| terminal.wait_for("終わり"),
    );
}
