//! Describes the calls of a turn as actions with their outcome: `exec cargo test -p auth → exit 0,
//! 115 passed`, `applyPatch crates/auth/src/lib.rs +12 −3`. Pure functions, without I/O.

use serde_json::Value;

use crate::change_actions::{edit_action, patch_action, write_action};
use crate::cleaning::{collapse_whitespace, find_key_line, format_arguments, truncate_words};
use crate::identifiers::identifiers_in;
use crate::outcome::{OutputKind, summarise_output};
use crate::outcome_paths::{dedup, is_source_path, list, paths_in, plural};
use crate::turn_pieces::{ScriptCall, text_of_value};

/// How important a name is for the topic of a turn.
pub(crate) mod importance {
    /// A file that was changed.
    pub(crate) const CHANGED: u32 = 6;
    /// Named by a failure, an error or a diff.
    pub(crate) const FAILED: u32 = 5;
    /// An argument of a command, or the pattern of a search.
    pub(crate) const ARGUMENT: u32 = 3;
    /// A file that was read.
    pub(crate) const READ: u32 = 2;
    /// Found by a search or a listing.
    pub(crate) const FOUND: u32 = 1;
}

/// What an action is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ActionKind {
    /// Checks something: a test run, a build, a program that crashed.
    Check,
    /// Changes files of the workspace.
    Change,
    /// Reads files, or searches them.
    Read,
    /// Does what no rule knows.
    Other,
}

/// What a call did and what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Action {
    /// The action and its outcome on one line.
    pub(crate) text: String,
    /// The outcome alone; empty if it says nothing.
    pub(crate) outcome: String,
    /// Whether the call failed.
    pub(crate) failed: bool,
    pub(crate) kind: ActionKind,
    /// The files and symbols it is about, with their importance.
    pub(crate) names: Vec<(String, u32)>,
    /// The output, for the smoothed level. Empty if the action says it all.
    pub(crate) output: String,
}

/// Characters of a command in an action.
const MAX_COMMAND_CHARS: usize = 110;
/// Characters of the arguments of other calls.
const MAX_ARGUMENT_CHARS: usize = 80;
/// Characters of an error's message.
const MAX_ERROR_CHARS: usize = 140;

/// Describes a call inside a script.
pub(crate) fn describe_script_call(call: &ScriptCall) -> Action {
    let error = call.error.as_deref();
    describe(&call.tool, &call.args, &call.result, error)
}

/// Describes a call that the model made itself. `output` is the text the model saw.
pub(crate) fn describe_call(name: &str, args: &str, output: &str, failed: bool) -> Action {
    let args: Value = serde_json::from_str(args).unwrap_or_else(|_| Value::from(args));
    let result = match serde_json::from_str::<Value>(output) {
        Ok(value @ (Value::Object(_) | Value::Array(_))) => value,
        _ => Value::from(output),
    };
    let error = failed.then(|| find_key_line(output));
    describe(
        name,
        &args,
        &result,
        error.as_deref().filter(|_| !is_command(name)),
    )
}

/// Describes a script that made no calls. `output` is what it returned.
pub(crate) fn describe_script(output: &str, failed: bool) -> Action {
    let summary = summarise_output("", output);
    let outcome = match failed {
        true => truncate_words(&find_key_line(output), MAX_ERROR_CHARS).into_owned(),
        false => summary.text,
    };
    let text = match (failed, outcome.is_empty()) {
        (true, _) => format!("script failed: {outcome}"),
        (false, true) => "script".to_owned(),
        (false, false) => format!("script → {outcome}"),
    };
    Action {
        text,
        outcome,
        failed,
        kind: ActionKind::Other,
        names: with_importance(summary.names, importance::FOUND),
        output: output.to_owned(),
    }
}

/// Returns whether a tool runs a command.
fn is_command(name: &str) -> bool {
    matches!(
        name,
        "exec"
            | "exec_command"
            | "execCommand"
            | "shell"
            | "local_shell"
            | "bash"
            | "Bash"
            | "run_shell_command"
            | "run_terminal_cmd"
            | "shell_command"
    )
}

fn describe(name: &str, args: &Value, result: &Value, error: Option<&str>) -> Action {
    let mut action = match name {
        name if is_command(name) => command_action(name, args, result),
        "edit_file" | "editFile" | "Edit" | "str_replace" | "MultiEdit" => edit_action(name, args),
        "write_file" | "writeFile" | "Write" => write_action(name, args),
        "apply_patch" | "applyPatch" => patch_action(name, args),
        "read_file" | "readFile" | "Read" | "view" => read_action(name, args, result),
        "grep_files" | "grepFiles" | "Grep" => search_action(name, args, result),
        "list_dir" | "listDir" | "file_search" | "fileSearch" | "Glob" | "LS" => {
            listing_action(name, args, result)
        }
        name => other_action(name, args, result),
    };
    if let Some(error) = error {
        let error = collapse_whitespace(error);
        let error = truncate_words(&error, MAX_ERROR_CHARS);
        action.failed = true;
        action.outcome = format!("failed: {error}");
        let head = action.text.split(" → ").next().unwrap_or_default();
        action.text = format!("{head} → {}", action.outcome);
        for name in paths_in(&error) {
            action.names.push((name, importance::FAILED));
        }
    }
    action
}

/// Returns the name of a tool as scripts write it: `grepFiles` for `grep_files`.
pub(crate) fn script_name(name: &str) -> String {
    if name.contains("__") || name.contains(char::is_uppercase) {
        return name.to_owned();
    }
    let mut out = String::new();
    let mut words = name.split('_');
    out.push_str(words.next().unwrap_or_default());
    for word in words {
        let mut chars = word.chars();
        out.extend(chars.next().map(|c| c.to_ascii_uppercase()));
        out.push_str(chars.as_str());
    }
    out
}

pub(crate) fn new_action(text: String, outcome: String) -> Action {
    let text = match outcome.is_empty() {
        true => text,
        false => format!("{text} → {outcome}"),
    };
    Action {
        text,
        outcome,
        failed: false,
        kind: ActionKind::Other,
        names: Vec::new(),
        output: String::new(),
    }
}

pub(crate) fn with_importance(names: Vec<String>, importance: u32) -> Vec<(String, u32)> {
    names.into_iter().map(|name| (name, importance)).collect()
}

/// Returns a string among the fields of the arguments.
pub(crate) fn field<'a>(args: &'a Value, names: &[&str]) -> &'a str {
    names
        .iter()
        .find_map(|name| args[*name].as_str())
        .unwrap_or_default()
}

/// Returns the path among the arguments.
pub(crate) fn path_of(args: &Value) -> &str {
    field(args, &["path", "file_path", "filePath", "file", "dir_path"])
}

/// Returns the command line of a call, without the shell that runs it.
fn command_line(args: &Value) -> String {
    let command = ["command", "cmd", "argv"]
        .iter()
        .find_map(|name| match &args[*name] {
            Value::Null => None,
            value => Some(value),
        });
    let command = command.unwrap_or(args);
    let text = match command {
        Value::Array(words) => {
            let words: Vec<String> = words.iter().map(text_of_value).collect();
            match &words[..] {
                [shell, option, script]
                    if shell.ends_with("sh")
                        && option.starts_with('-')
                        && option.ends_with('c') =>
                {
                    script.clone()
                }
                words => words.join(" "),
            }
        }
        Value::String(text) => text.clone(),
        other => format_arguments(&other.to_string()),
    };
    collapse_whitespace(&text)
}

fn command_action(name: &str, args: &Value, result: &Value) -> Action {
    let command = command_line(args);
    let first_text = |names: &[&str]| {
        let mut texts = names.iter().map(|name| text_of_value(&result[*name]));
        texts.find(|text| !text.is_empty()).unwrap_or_default()
    };
    let output = match result {
        Value::Object(_) => first_text(&["aggregatedOutput", "output", "stdout", "stderr"]),
        other => text_of_value(other),
    };
    let exit = ["exitCode", "exit_code"]
        .iter()
        .find_map(|name| result[*name].as_i64());
    let exit = exit.or_else(|| result["metadata"]["exit_code"].as_i64());
    let summary = summarise_output(&command, &output);
    let mut parts = Vec::new();
    if result["timedOut"] == true {
        parts.push("timed out".to_owned());
    }
    parts.extend(exit.map(|code| format!("exit {code}")));
    // A command that failed without output says nothing more than its exit code.
    if !summary.text.is_empty() {
        parts.push(summary.text);
    }
    let outcome = parts.join(", ");
    let failed = exit.is_some_and(|code| code != 0);
    let head = format!(
        "{} {}",
        script_name(name),
        truncate_words(&command, MAX_COMMAND_CHARS)
    );
    let mut names = Vec::new();
    let changes = command_changes_files(&command);
    for path in paths_in(&command) {
        let weight = if changes {
            importance::CHANGED
        } else {
            importance::ARGUMENT
        };
        names.push((path, weight));
    }
    if summary.kind == OutputKind::TestRun {
        names.extend(with_importance(
            test_filters(&command),
            importance::ARGUMENT,
        ));
    }
    let weight = match summary.kind {
        OutputKind::TestRun | OutputKind::Trace | OutputKind::Build | OutputKind::Diff => {
            importance::FAILED
        }
        _ => importance::FOUND,
    };
    names.extend(with_importance(summary.names, weight));
    Action {
        failed,
        kind: match summary.kind {
            OutputKind::TestRun | OutputKind::Build | OutputKind::Trace => ActionKind::Check,
            _ => ActionKind::Other,
        },
        names,
        output,
        ..new_action(head, outcome)
    }
}

/// Returns the words of a test command that select tests: `kebab` of `cargo test --lib kebab`.
fn test_filters(command: &str) -> Vec<String> {
    let words = command.split_whitespace();
    let after = words.skip_while(|word| !matches!(*word, "test" | "nextest" | "pytest"));
    let is_filter = |word: &&str| {
        let plain = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        word.len() > 3
            && word.chars().all(plain)
            && word.contains(char::is_alphabetic)
            && !matches!(
                *word,
                "test" | "nextest" | "pytest" | "unittest" | "discover"
            )
    };
    after.filter(is_filter).map(str::to_owned).take(2).collect()
}

/// Returns whether a command changes the files it names.
fn command_changes_files(command: &str) -> bool {
    [
        "git checkout ",
        "git restore ",
        "git rm ",
        "git mv ",
        "git revert ",
        "rm ",
        "mv ",
        "sed -i",
    ]
    .iter()
    .any(|word| command.contains(word))
}

fn read_action(name: &str, args: &Value, result: &Value) -> Action {
    let path = path_of(args);
    let text = match result {
        Value::Object(_) => field(result, &["text", "numbered", "content"]).to_owned(),
        other => text_of_value(other),
    };
    let from = args["offset"]
        .as_u64()
        .map(|line| format!(":{line}"))
        .unwrap_or_default();
    let head = format!("{} {path}{from}", script_name(name));
    Action {
        kind: ActionKind::Read,
        names: vec![(path.to_owned(), importance::READ)],
        output: text,
        ..new_action(head, String::new())
    }
}

fn search_action(name: &str, args: &Value, result: &Value) -> Action {
    let pattern = field(args, &["pattern", "query", "regex"]);
    let pattern = match args.as_str() {
        Some(pattern) => pattern,
        None => pattern,
    };
    let path = path_of(args);
    let mut files: Vec<String> = Vec::new();
    let mut output = String::new();
    let outcome = match result {
        Value::Array(matches) => {
            for found in matches {
                files.extend(found["path"].as_str().map(str::to_owned));
                if output.len() < 8_000 {
                    output.push_str(&format!(
                        "{}:{}: {}\n",
                        found["path"].as_str().unwrap_or_default(),
                        found["line"],
                        found["text"].as_str().unwrap_or_default()
                    ));
                }
            }
            let count = matches.len();
            dedup(&mut files);
            match &files[..] {
                [] => plural(count, "match"),
                [file] => format!("{} in {file}", plural(count, "match")),
                files => format!(
                    "{} in {}: {}",
                    plural(count, "match"),
                    plural(files.len(), "file"),
                    list(files)
                ),
            }
        }
        Value::Null => String::new(),
        other => {
            output = text_of_value(other);
            let summary = summarise_output("grep", &output);
            files = summary.names;
            summary.text
        }
    };
    let place = if path.is_empty() || path == "." {
        String::new()
    } else {
        format!(" in {path}")
    };
    let head = format!(
        "{} {}{place}",
        script_name(name),
        truncate_words(&collapse_whitespace(pattern), MAX_ARGUMENT_CHARS)
    );
    let mut names: Vec<(String, u32)> = identifiers_in(pattern)
        .into_iter()
        .map(|name| (name, importance::ARGUMENT))
        .collect();
    if is_source_path(path) {
        names.push((path.to_owned(), importance::ARGUMENT));
    }
    files.truncate(3);
    names.extend(with_importance(files, importance::FOUND));
    Action {
        kind: ActionKind::Read,
        names,
        output,
        ..new_action(head, outcome)
    }
}

fn listing_action(name: &str, args: &Value, result: &Value) -> Action {
    let what = match args.as_str() {
        Some(text) => text,
        None => field(args, &["path", "query", "pattern", "dir_path"]),
    };
    let entries = match result {
        Value::Array(entries) => Some(entries.len()),
        Value::Object(fields) => fields
            .values()
            .find_map(|value| Some(value.as_array()?.len())),
        _ => None,
    };
    let outcome = match entries {
        Some(1) => "1 entry".to_owned(),
        Some(count) => format!("{count} entries"),
        None => String::new(),
    };
    Action {
        kind: ActionKind::Read,
        output: text_of_value(result),
        ..new_action(
            format!("{} {what}", script_name(name))
                .trim_end()
                .to_owned(),
            outcome,
        )
    }
}

pub(crate) fn other_action(name: &str, args: &Value, result: &Value) -> Action {
    let arguments = match args {
        Value::Null => String::new(),
        Value::String(text) => collapse_whitespace(text),
        other => format_arguments(&other.to_string()),
    };
    let output = match result {
        Value::Object(_) | Value::Array(_) => result.to_string(),
        other => text_of_value(other),
    };
    let summary = summarise_output("", &output);
    let head = format!(
        "{} {}",
        script_name(name),
        truncate_words(&arguments, MAX_ARGUMENT_CHARS)
    );
    let mut names = with_importance(paths_in(&arguments), importance::ARGUMENT);
    names.extend(with_importance(summary.names, importance::FOUND));
    Action {
        names,
        output,
        ..new_action(head.trim_end().to_owned(), summary.text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text_of(tool: &str, args: Value, result: Value) -> String {
        describe_script_call(&ScriptCall {
            tool: tool.to_owned(),
            args,
            result,
            error: None,
        })
        .text
    }

    #[test]
    fn actions_state_what_was_done_and_its_outcome() {
        let ran = json!({"exitCode": 0, "aggregatedOutput":
            "   Compiling auth v0.8.0\ntest result: ok. 115 passed; 0 failed; 0 ignored\n"});
        let patch = "*** Begin Patch\n*** Update File: crates/auth/src/lib.rs\n@@ fn login()\n \
                     context\n-old\n+new\n+more\n*** End Patch";
        for (tool, args, result, expected) in [
            (
                "exec",
                json!({"command": ["cargo", "test", "-p", "auth"]}),
                ran.clone(),
                "exec cargo test -p auth → exit 0, 115 passed",
            ),
            (
                "exec",
                json!({"command": ["bash", "-lc", "cargo test"]}),
                ran,
                "exec cargo test → exit 0, 115 passed",
            ),
            (
                "exec",
                json!("git commit -qam x"),
                json!({"exitCode": 0, "aggregatedOutput": ""}),
                "exec git commit -qam x → exit 0",
            ),
            (
                "apply_patch",
                json!({"patch": patch}),
                json!({}),
                "applyPatch crates/auth/src/lib.rs +2 −1",
            ),
            (
                "edit_file",
                json!({"path": "a.py", "old": "def f():\n  return 1", "new": "def f():\n  return 2"}),
                json!({}),
                "editFile a.py +1 −1",
            ),
            (
                "write_file",
                json!({"path": "a.py", "content": "a\nb\n"}),
                json!({}),
                "writeFile a.py, 2 lines",
            ),
            (
                "read_file",
                json!({"path": "src/lib.rs", "offset": 20}),
                json!({"text": "x"}),
                "readFile src/lib.rs:20",
            ),
            (
                "grep_files",
                json!({"pattern": "split_opt", "path": "."}),
                json!([{"path": "a.py", "line": 1, "text": "x"}, {"path": "b.py", "line": 2, "text": "y"}]),
                "grepFiles split_opt → 2 matches in 2 files: a.py, b.py",
            ),
            (
                "list_dir",
                json!({"path": "src"}),
                json!(["a", "b"]),
                "listDir src → 2 entries",
            ),
            (
                "web_search",
                json!({"query": "rust lru"}),
                json!([{"url": "x"}]),
                "webSearch rust lru → JSON list of 1",
            ),
        ] {
            assert_eq!(text_of(tool, args, result), expected);
        }
        let failed = describe_script_call(&ScriptCall {
            tool: "edit_file".into(),
            args: json!({"path": "a.py", "old": "x", "new": "y"}),
            result: Value::Null,
            error: Some("the text does not occur in a.py".into()),
        });
        assert!(failed.failed);
        assert_eq!(
            failed.text,
            "editFile a.py +1 −1 → failed: the text does not occur in a.py"
        );
    }
}
