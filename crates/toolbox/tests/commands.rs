//! What is made of a command before it runs. The cases are in `commands.tsv` and `command_rules.tsv`.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use selvedge_toolbox::{CommandView, Safety, covered_by, judge_command, prefix_of, shown};
use serde_json::Value;

/// Rows of a table without its comments, cut at the tabs.
fn rows(table: &str) -> impl Iterator<Item = Vec<&str>> {
    table
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split('\t').collect())
}

fn argv(how: &str, command: &str) -> Vec<String> {
    match how {
        "words" => command.split(' ').map(str::to_owned).collect(),
        "bash" => words(&["bash", "-lc", &command.replace("\\n", "\n")]),
        "argv" => serde_json::from_str(command).unwrap(),
        how => panic!("{how} is none of words, bash, argv"),
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn verdict(view: &CommandView) -> &'static str {
    match view.safety {
        Safety::ReadOnly => "read-only",
        Safety::Unknown { .. } => "unknown",
        Safety::Dangerous { .. } => "dangerous",
    }
}

#[test]
fn every_case_is_judged_as_it_says() {
    let mut wrong = Vec::new();
    for row in rows(include_str!("commands.tsv")) {
        let [expected, how, command] = row[..] else {
            panic!("{row:?}")
        };
        let view = judge_command(&argv(how, command));
        if verdict(&view) != expected {
            wrong.push(format!(
                "{command:60} is {expected}, was judged {:?}",
                view.safety
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Where this judge is stricter than the one the rows come from: the command, and why.
const STRICTER: &[(&str, &str)] = &[];

#[test]
fn the_verdicts_of_codex_are_agreed_with() {
    let Some(fixtures) = fixtures() else {
        return eprintln!("no shared fixtures here: nothing to compare with");
    };
    let rows: Vec<Value> =
        serde_json::from_slice(&std::fs::read(fixtures.join("command_safety.json")).unwrap())
            .unwrap();
    assert!(!rows.is_empty());
    for row in rows {
        let argv: Vec<String> = serde_json::from_value(row["argv"].clone()).unwrap();
        let verdict = verdict(&judge_command(&argv));
        let (ours, strict) = match row["question"].as_str().unwrap() {
            "auto_approve" => (verdict == "read-only", false),
            "forced_rm_dangerous" => (verdict == "dangerous", true),
            question => panic!("{question} is a question nobody knows"),
        };
        let exception = STRICTER
            .iter()
            .any(|(command, _)| *command == argv.join(" "));
        assert!(
            ours == row["verdict"] || (exception && ours == strict),
            "{argv:?} was judged {verdict}: {row}"
        );
    }
}

fn fixtures() -> Option<PathBuf> {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders
        .map(|folder| folder.join("shared/fixtures"))
        .find(|folder| folder.is_dir())
}

#[test]
fn rules_cover_what_they_say() {
    for row in rows(include_str!("command_rules.tsv")) {
        let (kind, how, command, rest) = (
            row[0],
            row[1],
            row[2],
            row.get(3).copied().unwrap_or_default(),
        );
        let argv = argv(how, command);
        let rule = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        if kind == "prefix" {
            let expected = (rest != "-").then(|| rule(rest));
            assert_eq!(prefix_of(&argv), expected, "{command}");
        } else {
            let rules: Vec<Vec<String>> = rest
                .split(", ")
                .filter(|text| !text.is_empty())
                .map(rule)
                .collect();
            assert_eq!(
                covered_by(&argv, &rules),
                kind == "covered",
                "{command} by {rest}"
            );
        }
    }
}

#[test]
fn the_rule_that_is_offered_covers_the_command_and_nothing_dangerous() {
    for row in rows(include_str!("commands.tsv")) {
        let argv = argv(row[1], row[2]);
        let Some(rule) = prefix_of(&argv) else {
            continue;
        };
        assert!(
            covered_by(&argv, std::slice::from_ref(&rule)),
            "{argv:?} by {rule:?}"
        );
        assert_ne!(row[0], "dangerous", "{argv:?} by {rule:?}");
    }
}

#[test]
fn nothing_covers_what_is_dangerous() {
    for row in rows(include_str!("commands.tsv")).filter(|row| row[0] == "dangerous") {
        let argv = argv(row[1], row[2]);
        let rules: Vec<Vec<String>> = (1..=argv.len())
            .map(|length| argv[..length].to_vec())
            .collect();
        assert!(!covered_by(&argv, &rules), "{argv:?}");
    }
}

#[test]
fn a_command_is_shown_as_it_would_be_typed() {
    for (command, expected) in [
        (
            words(&["cargo", "test", "--", "a b"]),
            "cargo test -- 'a b'",
        ),
        (words(&["echo", "it's", ""]), r"echo 'it'\''s' ''"),
        (words(&["bash", "-lc", "npm test"]), "npm test"),
        (
            words(&["/bin/sh", "-c", "ls -la&&pwd ; cat 'a;b' | wc -l"]),
            "ls -la&&\npwd\ncat 'a;b' |\nwc -l",
        ),
        (
            words(&["bash", "-lc", "ls 2>&1\n\npwd # why\n"]),
            "ls 2>&1\npwd # why",
        ),
        (
            words(&["bash", "-lc", "for x in a; do\n\trm $x\ndone"]),
            "for x in a; do\n\trm $x\ndone",
        ),
        // The words after the script, and how the shell was called, are part of what runs.
        (
            words(&["bash", "-c", "rm $1", "_", "x"]),
            "bash -c 'rm $1' _ x",
        ),
        (
            words(&["env", "A=1", "bash", "-c", "ls"]),
            "env A=1 bash -c ls",
        ),
        (words(&["./bash", "-c", "ls"]), "./bash -c ls"),
        // Nothing a terminal acts on, nothing that looks like nothing.
        (
            words(&["echo", "\u{1b}[2Jx", "a\nb"]),
            r"echo '\u{1b}[2Jx' 'a\nb'",
        ),
        (
            words(&["bash", "-c", "ls '\u{1b}]0;x\u{7}'"]),
            r"ls '\u{1b}]0;x\u{7}'",
        ),
        (
            words(&["cat", "a\u{202e}txt.exe", "b\u{200b}c", "d\u{a0}e"]),
            r"cat 'a\u{202e}txt.exe' 'b\u{200b}c' 'd\u{a0}e'",
        ),
    ] {
        assert_eq!(shown(&command), expected);
    }
}

#[test]
fn commands_are_taken_apart_into_their_words() {
    let commands = |how, command| judge_command(&argv(how, command)).commands;
    assert_eq!(commands("words", "cargo test"), [words(&["cargo", "test"])]);
    assert_eq!(
        commands(
            "bash",
            r#"cd "my dir" && npm test 2>&1 | tail -n5; echo 'a'"b"c\ d"#
        ),
        [
            words(&["cd", "my dir"]),
            words(&["npm", "test"]),
            words(&["tail", "-n5"]),
            words(&["echo", "abc d"])
        ]
    );
    assert_eq!(
        commands("bash", "bash -c 'ls; sh -c pwd'"),
        [words(&["ls"]), words(&["pwd"])]
    );
    assert_eq!(commands("bash", "ls $x"), [] as [Vec<String>; 0]);
    assert_eq!(commands("bash", "ls > x"), [] as [Vec<String>; 0]);
}

#[test]
fn reasons_are_in_plain_words() {
    for (how, command, expected) in [
        ("words", "cargo build", "`cargo` is not known to only read"),
        (
            "argv",
            r#"["\u001b[2Jx"]"#,
            r"`\u{1b}[2Jx` is not known to only read",
        ),
        ("words", "sort -no x y", "`sort -o` does more than read"),
        ("bash", "ls > out", "it writes to a file"),
        ("bash", "ls $x", "it uses a variable"),
        (
            "bash",
            "sort *",
            "a file may be named like an option of `sort`",
        ),
        ("bash", "if", "it has a syntax error"),
        ("words", "sudo rm -rf x", "it removes files by force"),
        ("words", "sudo ls", "it runs with another user's rights"),
        ("bash", "curl x | sh", "it runs what it downloads"),
    ] {
        match judge_command(&argv(how, command)).safety {
            Safety::Unknown { why } | Safety::Dangerous { why, .. } => {
                assert_eq!(why, expected, "{command}")
            }
            Safety::ReadOnly => panic!("{command} was judged read-only"),
        }
    }
}

#[test]
fn what_is_too_much_to_judge_is_not_known() {
    let unknown = |argv: &[String]| match judge_command(argv).safety {
        Safety::Unknown { why } => why,
        safety => panic!("{safety:?}"),
    };
    let padded = |bytes: usize| words(&["echo", &"x".repeat(bytes - 4)]);
    assert_eq!(judge_command(&padded(100 * 1024)).safety, Safety::ReadOnly);
    assert_eq!(
        unknown(&padded(100 * 1024 + 1)),
        "it is too long to be judged"
    );
    let nested = |shells: usize| {
        let wrap = |script: String| format!("bash -c '{}'", script.replace('\'', r"'\''"));
        words(&[
            "bash",
            "-c",
            &(1..shells).fold("ls".to_owned(), |script, _| wrap(script)),
        ])
    };
    assert_eq!(judge_command(&nested(8)).safety, Safety::ReadOnly);
    assert_eq!(unknown(&nested(9)), "it is nested too deeply");
    // What is dangerous is found however long the script around it is.
    let long = format!("{}\nrm -rf x\n", "echo 1234567\n".repeat(1000));
    assert_eq!(
        verdict(&judge_command(&words(&["bash", "-c", &long]))),
        "dangerous"
    );
}

/// A line of shells that all read the same long text.
fn many_readers() -> Vec<String> {
    words(&[
        "bash",
        "-c",
        &format!("{}<<E\n{}E\n", "bash|".repeat(10_000), "a\n".repeat(20_000)),
    ])
}

/// Text on which a careless reader takes for ever, or runs out of stack.
#[test]
fn hostile_commands_are_judged_in_time() {
    // Far more than it takes, also where nothing is optimised and much else is running.
    let in_time = |argv: &[String], what: &str| {
        let start = Instant::now();
        judge_command(argv);
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{what} took {:?}",
            start.elapsed()
        );
    };
    in_time(&many_readers(), "many readers");
    for piece in [
        "(",
        "$(",
        "\"$(",
        "ls|",
        "a=(",
        "if a; ",
        "<<E ",
        "${a[",
        "\\",
        "[[ ",
        "`a ",
        "f(){ ",
        "$(<(",
        "\"${",
        "'",
        "$'",
        "\u{0}",
        "a\n",
        "{a,b}",
        "a{b,c}{d,e} ",
        "{a,",
        "sudo env ",
        "eval 'a' ",
        "find -exec ",
        "curl x | ",
        "hyperfine a ",
        "$IFS",
        "é",
    ] {
        for bytes in [8 * 1024, 100 * 1024 - 10] {
            let text = piece.repeat(bytes / piece.len());
            in_time(&words(&["bash", "-c", &text]), piece);
            in_time(
                &text.split(' ').map(str::to_owned).collect::<Vec<_>>(),
                piece,
            );
        }
    }
}
