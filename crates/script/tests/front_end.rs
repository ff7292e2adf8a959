//! The compiler is bounded in time for any text, and does not block the async executor. The texts
//! are those of `make attack`.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use selvedge_protocol::ErrorCode;
use selvedge_script::{ParseWork, ScriptCompiler};
use serde_json::Value;
use support::{TestFixture, run_on_thread};

/// Maximum size of a script.
const MAX_BYTES: usize = 20_480;
/// CPU time that compiling one text may take.
const MAX_CPU_TIME: Duration = Duration::from_secs(2);

/// Levels of the nested texts: exponential work shows, and is still cheap.
const NESTED_LEVELS: usize = 12;
/// Memory that the parser may use for each unit of predicted cost, in bytes. Known texts use
/// up to 200.
const MAX_BYTES_PER_COST: u64 = 500;

/// Texts that are expensive for parsers: rows of a prefix, a repeated piece and a repeated end.
const TEXTS: &str = include_str!("../../../attack/data/front_end.tsv");

/// Returns the prefix, the piece and the end of each row.
fn rows() -> impl Iterator<Item = [String; 3]> {
    let rows = TEXTS.lines().filter(|row| !row.starts_with("# "));
    rows.map(|row| {
        let row = row.replace("\\n", "\n").replace("\\u2028", "\u{2028}");
        let row = row.replace("\\u200b", "\u{200b}");
        let mut columns = row.split('\t').map(str::to_owned);
        [(); 3].map(|()| columns.next().unwrap_or_default())
    })
}

/// Returns a text in which the piece and the end are repeated.
fn nested_text([prefix, piece, end]: &[String; 3], times: usize) -> String {
    let repeated = |piece: &str| -> String {
        let numbers = (1..=times).map(|n| (n.to_string(), (n - 1).to_string()));
        numbers
            .map(|(number, before)| piece.replace("%n", &number).replace("%p", &before))
            .collect()
    };
    format!("{prefix}{}{}", repeated(piece), repeated(end))
}

/// Returns each text with its piece repeated 20 times, 100 times, and until it is 20 KB long.
fn hostile_texts() -> impl Iterator<Item = String> {
    rows().flat_map(|row| {
        let mut most = MAX_BYTES / (row[1].len() + row[2].len()).max(1);
        while nested_text(&row, most).len() > MAX_BYTES {
            most -= 1 + most / 20;
        }
        [20, 100, most].map(|times| nested_text(&row, times.min(most)))
    })
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = stat.split(' ').next().and_then(|time| time.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or_default())
}

#[test]
fn any_text_is_compiled_or_rejected_in_bounded_time() {
    let harness = TestFixture::new().harness;
    let mut slowest = (Duration::ZERO, String::new());
    for text in hostile_texts() {
        let started = cpu_time();
        harness.check(text.as_bytes());
        let spent = cpu_time() - started;
        assert!(spent < MAX_CPU_TIME, "{spent:?}: {text:.200}");
        slowest = slowest.max((spent, text.chars().take(60).collect()));
    }
    println!("slowest: {slowest:?}");
}

#[test]
fn the_work_of_the_parser_is_predicted_for_nested_texts() {
    let mut wrong = Vec::new();
    for row in rows() {
        let text = nested_text(&row, NESTED_LEVELS);
        if let Some(work) = ParseWork::measure(&text)
            && work.arena_bytes as u64 > work.predicted_cost * MAX_BYTES_PER_COST
        {
            wrong.push(format!("{work:?}: {text:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_template_literal_cannot_hide_nested_ambiguous_constructs() {
    let compiler = ScriptCompiler::default();
    for prefix in ["const q=`/*`;", "x = a\n/`/; ", "if (a) /`/g; ", ""] {
        let error = compiler
            .compile(&format!("{prefix}{}", "(a=a<".repeat(20)), MAX_BYTES)
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::ScriptRejectedError, "{error:?}");
        assert!(error.message.starts_with("the script is too complex"));
    }
}

#[test]
fn nested_groups_of_a_regular_expression_do_not_overflow_the_stack() {
    let compiler = ScriptCompiler::default();
    for (open, close) in [
        ("(", ""),
        ("(", ")"),
        ("(?:", ")"),
        ("(?=", ")"),
        ("(|", ")+"),
    ] {
        let regex = format!("/{}x{}/", open.repeat(256), close.repeat(256));
        let compiled = compiler.compile(&format!("return {regex}"), MAX_BYTES);
        assert_eq!(compiled.is_ok(), !close.is_empty(), "{regex:.20}");
    }
    let classes = format!("return /{}x{}/v", "[".repeat(256), "]".repeat(256));
    assert!(compiler.compile(&classes, MAX_BYTES).is_ok());
    let deeper = format!("return /{}x{}/", "(".repeat(257), ")".repeat(257));
    let error = compiler.compile(&deeper, MAX_BYTES).unwrap_err();
    assert!(error.message.contains("more than 256 deep"), "{error:?}");
}

#[test]
fn enum_values_are_bounded() {
    let compiler = ScriptCompiler::default();
    let doubled: String = (1..40)
        .map(|n| format!("M{n} = `${{M{}}}${{M{}}}`, ", n - 1, n - 1))
        .collect();
    let source = format!("enum E {{ M0 = 'xxxxxxxx', {doubled} }} return E.M39.length");
    let error = compiler.compile(&source, MAX_BYTES).unwrap_err();
    assert_eq!(error.message, "the values of enums are too long");
    let ordinary = "enum A { X = 1, Y = X << 1, Z = X | Y } enum B { P = 'p', Q = `${P}-q` } \
                    return [A.Z, B.Q]";
    assert!(compiler.compile(ordinary, MAX_BYTES).is_ok());
}

#[test]
fn ordinary_scripts_are_not_too_complex() {
    let compiler = ScriptCompiler::default();
    for source in [
        "for (let i = 0; i < n; i++) { if (a(i) < b[i]) c.push(i); }\n".repeat(300),
        "m.push(new Map<string, Array<Record<string, number>>>());\n".repeat(200),
        "f(\"<div><p>(((((((\" + '<a><b>'); // <<<<<< ((((\n/* < ( < ( */\n".repeat(100),
        "const f = (x) => x < 1 ? (x) : { y: x }\nf(2)\n"
            .lines()
            .cycle()
            .take(400)
            .enumerate()
            .map(|(n, line)| line.replace("const f", &format!("const f{n}")) + "\n")
            .collect(),
        "x.map((a) => ({ b: a.map((c) => ({ d: c.map((e) => ({ f: e < 1 })) })) }))\n".repeat(200),
        "y = (a + b) / 2 + (c) / 3 // it's half\nif (/[\"'`]/.test(y)) z = `${y}/${y}`\n"
            .repeat(200),
        format!("g({})", "a < b, ".repeat(200)),
        "f(g(h(i(j(k(1 < 2))))))".to_owned(),
    ] {
        let compiled = compiler.compile(&source, MAX_BYTES);
        assert!(compiled.is_ok(), "{:?}: {source:.200}", compiled.err());
    }
}

/// Returns the files with this ending in a folder and below it.
fn files_below(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => files_below(&path, ending),
            false => vec![path],
        })
        .filter(|path| path.to_string_lossy().ends_with(ending))
        .collect()
}

#[test]
fn scripts_of_the_repository_cost_little() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &PathBuf| std::fs::read_to_string(path).unwrap();
    let examples = files_below(&root.join("examples"), ".ts");
    let mut scripts: Vec<String> = examples.iter().map(read).collect();
    for tasks in files_below(&root.join("crates/cli/tests/first_try"), ".md") {
        let answers = read(&tasks);
        let calls = answers
            .lines()
            .filter_map(|line| line.strip_prefix("CALL script "));
        let calls = calls.filter_map(|call| serde_json::from_str::<Value>(call).ok());
        scripts.extend(calls.filter_map(|call| call["code"].as_str().map(str::to_owned)));
    }
    for text in &scripts {
        let cost = ParseWork::measure(text).map(|work| work.predicted_cost);
        let most = 6 * text.len() as u64 + 100;
        assert!(cost.is_some_and(|cost| cost < most), "{cost:?}: {text}");
    }
    assert!(scripts.len() > 20, "{}", scripts.len());
}

#[test]
fn a_costly_script_does_not_block_other_scripts() {
    // Both scripts are one task: the second can only end first if the first does not block it.
    let fixture = TestFixture::new();
    let harness = fixture.harness.clone();
    let first = run_on_thread("two scripts", Duration::from_secs(60), async move {
        let costly = format!("x={}", "a?(b):c=>".repeat(300));
        tokio::select! {
            biased;
            _ = harness.run(&costly) => "costly",
            _ = harness.run("return 1") => "quick",
        }
    });
    assert_eq!(first, "quick");
}
