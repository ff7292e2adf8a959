//! The classification of commands before they run, and the rules for them. The cases are in
//! `commands.tsv` and `command_rules.tsv`.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use selvedge_toolbox::{
    CommandClassification, CommandSafety, classify_command, display_command, is_covered_by_rules,
    rule_prefix,
};
use serde_json::Value;

/// Returns the rows of a table without comments, split at tabs.
fn rows(table: &str) -> impl Iterator<Item = Vec<&str>> {
    table
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split('\t').collect())
}

fn argv(format: &str, command: &str) -> Vec<String> {
    match format {
        "words" => command.split(' ').map(str::to_owned).collect(),
        "bash" => words(&["bash", "-lc", &command.replace("\\n", "\n")]),
        "argv" => serde_json::from_str(command).unwrap(),
        format => panic!("{format} is none of words, bash, argv"),
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn verdict(view: &CommandClassification) -> &'static str {
    match view.safety {
        CommandSafety::ReadOnly => "read-only",
        CommandSafety::Unknown { .. } => "unknown",
        CommandSafety::Dangerous { .. } => "dangerous",
    }
}

#[test]
fn every_case_of_the_table_is_classified_as_expected() {
    let mut wrong = Vec::new();
    for row in rows(include_str!("commands.tsv")) {
        let [expected, format, command] = row[..] else {
            panic!("{row:?}")
        };
        let view = classify_command(&argv(format, command));
        if verdict(&view) != expected {
            wrong.push(format!(
                "{command:60} should be {expected}, is {:?}",
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

/// Commands that are classified more strictly than in the fixtures, and why.
const STRICTER: &[(&str, &str)] = &[];

#[test]
fn the_classification_agrees_with_that_of_codex() {
    let Some(fixtures) = fixtures() else {
        return eprintln!("skipped: the shared fixtures are not available");
    };
    let rows: Vec<Value> =
        serde_json::from_slice(&std::fs::read(fixtures.join("command_safety.json")).unwrap())
            .unwrap();
    assert!(!rows.is_empty());
    for row in rows {
        let argv: Vec<String> = serde_json::from_value(row["argv"].clone()).unwrap();
        let verdict = verdict(&classify_command(&argv));
        let (ours, strict) = match row["question"].as_str().unwrap() {
            "auto_approve" => (verdict == "read-only", false),
            "forced_rm_dangerous" => (verdict == "dangerous", true),
            question => panic!("unknown question {question}"),
        };
        let exception = STRICTER
            .iter()
            .any(|(command, _)| *command == argv.join(" "));
        assert!(
            ours == row["verdict"] || (exception && ours == strict),
            "{argv:?} is {verdict}: {row}"
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
fn rules_are_suggested_and_matched_as_in_the_table() {
    for row in rows(include_str!("command_rules.tsv")) {
        let (kind, format, command, rest) = (
            row[0],
            row[1],
            row[2],
            row.get(3).copied().unwrap_or_default(),
        );
        let argv = argv(format, command);
        let rule = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        if kind == "prefix" {
            let expected = (rest != "-").then(|| rule(rest));
            assert_eq!(rule_prefix(&argv), expected, "{command}");
        } else {
            let rules: Vec<Vec<String>> = rest
                .split(", ")
                .filter(|text| !text.is_empty())
                .map(rule)
                .collect();
            assert_eq!(
                is_covered_by_rules(&argv, &rules),
                kind == "covered",
                "{command} by {rest}"
            );
        }
    }
}

#[test]
fn a_suggested_rule_covers_its_command_and_no_dangerous_one() {
    for row in rows(include_str!("commands.tsv")) {
        let argv = argv(row[1], row[2]);
        let Some(rule) = rule_prefix(&argv) else {
            continue;
        };
        assert!(
            is_covered_by_rules(&argv, std::slice::from_ref(&rule)),
            "{argv:?} by {rule:?}"
        );
        assert_ne!(row[0], "dangerous", "{argv:?} by {rule:?}");
    }
}

#[test]
fn no_rule_covers_a_dangerous_command() {
    for row in rows(include_str!("commands.tsv")).filter(|row| row[0] == "dangerous") {
        let argv = argv(row[1], row[2]);
        let rules: Vec<Vec<String>> = (1..=argv.len())
            .map(|length| argv[..length].to_vec())
            .collect();
        assert!(!is_covered_by_rules(&argv, &rules), "{argv:?}");
    }
}

#[test]
fn a_command_is_displayed_as_it_would_be_typed() {
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
        // Arguments of the script and unusual calls of the shell are shown.
        (
            words(&["bash", "-c", "rm $1", "_", "x"]),
            "bash -c 'rm $1' _ x",
        ),
        (
            words(&["env", "A=1", "bash", "-c", "ls"]),
            "env A=1 bash -c ls",
        ),
        (words(&["./bash", "-c", "ls"]), "./bash -c ls"),
        // Control characters and invisible characters are escaped.
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
        assert_eq!(display_command(&command), expected);
    }
}

#[test]
fn a_script_is_split_into_simple_commands() {
    let commands = |format, command| classify_command(&argv(format, command)).commands;
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
fn the_reason_names_what_a_command_does() {
    for (format, command, expected) in [
        (
            "words",
            "cargo build",
            "`cargo` is not known to be read-only",
        ),
        (
            "argv",
            r#"["\u001b[2Jx"]"#,
            r"`\u{1b}[2Jx` is not known to be read-only",
        ),
        ("words", "sort -no x y", "`sort -o` is not read-only"),
        ("bash", "ls > out", "writes to a file"),
        ("bash", "ls $x", "uses a variable"),
        (
            "bash",
            "sort *",
            "a file name may act as an option of `sort`",
        ),
        ("bash", "if", "has a syntax error"),
        ("words", "sudo rm -rf x", "deletes files by force"),
        ("words", "sudo ls", "runs as another user"),
        ("bash", "curl x | sh", "runs downloaded code"),
    ] {
        match classify_command(&argv(format, command)).safety {
            CommandSafety::Unknown { reason: why }
            | CommandSafety::Dangerous { reason: why, .. } => {
                assert_eq!(why, expected, "{command}")
            }
            CommandSafety::ReadOnly => panic!("{command} is classified as read-only"),
        }
    }
}

#[test]
fn a_command_beyond_the_limits_is_unknown() {
    let unknown = |argv: &[String]| match classify_command(argv).safety {
        CommandSafety::Unknown { reason: why } => why,
        safety => panic!("{safety:?}"),
    };
    let padded = |bytes: usize| words(&["echo", &"x".repeat(bytes - 4)]);
    assert_eq!(
        classify_command(&padded(100 * 1024)).safety,
        CommandSafety::ReadOnly
    );
    assert_eq!(unknown(&padded(100 * 1024 + 1)), "is too long to classify");
    let nested = |shells: usize| {
        let wrap = |script: String| format!("bash -c '{}'", script.replace('\'', r"'\''"));
        words(&[
            "bash",
            "-c",
            &(1..shells).fold("ls".to_owned(), |script, _| wrap(script)),
        ])
    };
    assert_eq!(classify_command(&nested(8)).safety, CommandSafety::ReadOnly);
    assert_eq!(
        unknown(&nested(9)),
        "is too large or nested too deeply to check"
    );
    // A dangerous command is found in a long script.
    let long = format!("{}\nrm -rf x\n", "echo 1234567\n".repeat(1000));
    assert_eq!(
        verdict(&classify_command(&words(&["bash", "-c", &long]))),
        "dangerous"
    );
}

/// Returns a pipeline of shells that all read the same long text.
fn many_readers() -> Vec<String> {
    words(&[
        "bash",
        "-c",
        &format!("{}<<E\n{}E\n", "bash|".repeat(10_000), "a\n".repeat(20_000)),
    ])
}

/// Text on which a careless parser takes very long or overflows its stack.
#[test]
fn hostile_commands_are_classified_in_time() {
    // Far more than needed, even in a debug build on a busy machine.
    let in_time = |argv: &[String], name: &str| {
        let start = Instant::now();
        classify_command(argv);
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{name} took {:?}",
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
