//! Summarises builds and stack traces: how many errors, and the first place in the project.

use crate::cleaning::{clean_text, truncate_words};
use crate::outcome::{MAX_NAMES, OutputKind, OutputSummary, key_line};
use crate::outcome_paths::{dedup, is_library_path, is_source_path, plural};

/// A place in a source file that an output names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ErrorPlace {
    pub(crate) file: String,
    line: u64,
    message: String,
}

/// `2 errors: src/a.rs:10 mismatched types`, `3 warnings`, `built`.
pub(crate) fn build(command: &str, output: &str) -> Option<OutputSummary> {
    let is_build_command = is_build(command);
    let mut lines = output.lines().map(str::trim_start);
    let looks_built = lines.any(|line| {
        [
            "Compiling ",
            "Checking ",
            "Finished ",
            "BUILD SUCCESS",
            "BUILD FAILED",
            "Build succeeded",
        ]
        .iter()
        .any(|mark| line.starts_with(mark) || line.starts_with(&format!("[INFO] {mark}")))
            || line.starts_with("error[E")
            || line.contains("): error TS")
            || line.contains(" - error TS")
    });
    let places = error_places(output);
    if !is_build_command && !looks_built {
        return None;
    }
    if output.contains("Traceback (most recent call last)") {
        return None;
    }
    let errors = output.lines().filter(|line| is_error_line(line)).count();
    let warnings = output.lines().filter(|line| is_warning_line(line)).count();
    let mut names: Vec<String> = places.iter().map(|place| place.file.clone()).collect();
    dedup(&mut names);
    let text = match (
        errors.max(usize::from(!places.is_empty() && warnings == 0)),
        warnings,
    ) {
        (0, 0) if looks_built => "built".to_owned(),
        (0, 0) => key_line(output),
        (0, warnings) => format!("built, {}", plural(warnings, "warning")),
        (errors, _) => {
            let first = places
                .first()
                .map(|place| format!("{}:{} {}", place.file, place.line, place.message));
            let message = || {
                output
                    .lines()
                    .find(|line| is_error_line(line))
                    .map(clean_text)
            };
            let first = first.or_else(message).unwrap_or_default();
            format!("{}: {}", plural(errors, "error"), first.trim())
        }
    };
    names.truncate(MAX_NAMES);
    Some(OutputSummary::new(OutputKind::Build, text, names))
}

/// Returns whether a command builds or checks code.
fn is_build(command: &str) -> bool {
    let commands = [
        "cargo build",
        "cargo check",
        "cargo clippy",
        "cargo run",
        "cargo doc",
        "rustc ",
        "make",
        "cmake --build",
        "ninja",
        "tsc",
        "npm run build",
        "yarn build",
        "pnpm build",
        "vite build",
        "webpack",
        "go build",
        "go vet",
        "gcc ",
        "g++ ",
        "clang",
        "javac ",
        "mvn compile",
        "mvn package",
        "gradle build",
        "gradlew build",
        "dotnet build",
        "compileall",
        "node --check",
        "swift build",
        "zig build",
        "eslint",
        "ruff",
        "mypy",
        "flake8",
    ];
    commands.iter().any(|word| command.contains(word))
}

/// Returns whether a line reports an error. The closing line of a compiler counts only if there is
/// no other.
fn is_error_line(line: &str) -> bool {
    let line = line.trim_start();
    let closing = ["could not compile", "aborting due to", "build failed"];
    (line.starts_with("error:")
        || line.starts_with("error[")
        || line.contains(": error: ")
        || line.contains(": error TS")
        || line.contains(" - error TS")
        || line.contains("SyntaxError:")
        || line.contains(": fatal error: ")
        || line.contains(": error CS")
        || line.starts_with("ERROR in "))
        && !closing.iter().any(|word| line.contains(word))
}

fn is_warning_line(line: &str) -> bool {
    let line = line.trim_start();
    (line.starts_with("warning: ") || line.contains(": warning: ") || line.contains(": warning CS"))
        && !line.contains(" generated ")
}

/// Files whose places are collected.
const MAX_PLACES: usize = 64;

/// Finds the places that an output names: `src/a.rs:10:5`, `a.ts(1,7): error`, ` --> src/a.rs:3:1`,
/// `File "a.py", line 3`.
pub(crate) fn error_places(output: &str) -> Vec<ErrorPlace> {
    let mut places: Vec<ErrorPlace> = Vec::new();
    let mut message = String::new();
    for line in output.lines() {
        let trimmed = line.trim_start();
        if is_error_line(line) && !trimmed.contains("):") {
            message = trimmed.to_owned();
            // Python reports the error after its place.
            if let Some(place) = places.last_mut()
                && place.message.is_empty()
            {
                place.message = strip_error_word(&message).to_owned();
            }
        }
        let place = trimmed.strip_prefix("--> ").and_then(file_and_line);
        let place = place.or_else(|| python_place(trimmed));
        let place = place.or_else(|| file_and_line(trimmed));
        let Some((file, number, rest)) = place else {
            continue;
        };
        if is_library_path(&file) || places.iter().any(|place| place.file == file) {
            continue;
        }
        if places.len() >= MAX_PLACES {
            break;
        }
        let message = match rest.trim_matches([' ', ':', '-', ',']) {
            "" => strip_error_word(&message).to_owned(),
            rest => strip_error_word(rest).to_owned(),
        };
        places.push(ErrorPlace {
            file,
            line: number,
            message,
        });
    }
    places
}

fn strip_error_word(message: &str) -> &str {
    let message = message.trim();
    let message = message.strip_prefix("error").unwrap_or(message);
    let message = match message.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(message, |(_, rest)| rest),
        None => message,
    };
    message.trim_start_matches([':', ' '])
}

/// Parses `File "a.py", line 3, in f`.
fn python_place(line: &str) -> Option<(String, u64, &str)> {
    let rest = line
        .trim_start_matches('*')
        .trim_start()
        .strip_prefix("File \"")?;
    let (file, rest) = rest.split_once("\", line ")?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    Some((file.to_owned(), rest[..digits].parse().ok()?, ""))
}

/// Parses the place at the beginning of a line: `src/a.rs:10:5: message`, `a.ts(1,7): message`.
fn file_and_line(line: &str) -> Option<(String, u64, &str)> {
    let end = line.find([':', '(', ' '])?;
    let (file, rest) = line.split_at(end);
    if !is_source_path(file) {
        return None;
    }
    let rest = rest.strip_prefix([':', '('])?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let number = rest[..digits].parse().ok()?;
    // The column follows.
    let rest = rest[digits..].trim_start_matches(|c: char| c.is_ascii_digit() || ":,)".contains(c));
    Some((file.trim_start_matches("./").to_owned(), number, rest))
}

/// `TypeError: no len() at encoding.py:33 in base64_decode`, for traces of Python, Node, Rust, Java
/// and Go.
pub(crate) fn trace(output: &str) -> Option<OutputSummary> {
    let lines: Vec<&str> = output.lines().collect();
    let mut frames: Vec<(String, u64, String)> = Vec::new();
    let mut message = None;
    if let Some(start) = lines
        .iter()
        .rposition(|line| line.contains("Traceback (most recent"))
    {
        for line in &lines[start..] {
            if let Some((file, number, _)) = python_place(line.trim_start()) {
                let function = line.split_once(", in ").map_or("", |(_, name)| name);
                frames.insert(0, (file, number, function.to_owned()));
            } else if !line.starts_with(' ') && line.contains("Error") | line.contains("Exception")
            {
                message = Some(*line);
            }
        }
        let is_message = |line: &&&str| !line.starts_with(' ') && line.contains(':');
        message = message.or(lines[start + 1..].iter().find(is_message).copied());
    } else if let Some(at) = lines.iter().position(|line| line.contains("panicked at ")) {
        let place = lines[at]
            .split_once("panicked at ")?
            .1
            .trim_end_matches(':');
        let (file, number, _) = file_and_line(place)?;
        frames.push((file, number, String::new()));
        message = lines.get(at + 1).copied().or(Some(lines[at]));
    } else {
        for line in &lines {
            let Some(frame) = line.trim_start().strip_prefix("at ") else {
                continue;
            };
            // `at f (/p/a.js:3:9)`, `at /p/a.js:3:9`, `at pkg.Cart.add(Cart.java:12)`.
            let (function, place) = match frame.rsplit_once('(') {
                Some((function, place)) => (function.trim(), place.trim_end_matches(')')),
                None => ("", frame),
            };
            let place = place.strip_prefix("file://").unwrap_or(place);
            if let Some((file, number, _)) = file_and_line(place) {
                let function = function.rsplit(' ').next().unwrap_or(function);
                frames.push((file, number, function.to_owned()));
            }
        }
        if frames.is_empty() && !lines.iter().any(|line| line.starts_with("panic: ")) {
            return None;
        }
        let is_message = |line: &&&str| {
            let line = line.trim_start();
            line.starts_with("panic: ")
                || line.starts_with("Exception in thread")
                || line.split_once(": ").is_some_and(|(name, _)| {
                    (name.ends_with("Error")
                        || name.ends_with("Exception")
                        || name.contains("Error ["))
                        && !name.contains("    ")
                })
        };
        message = lines.iter().find(is_message).map(|line| line.trim());
        if frames.is_empty() {
            let place = lines.iter().find_map(|line| file_and_line(line.trim()));
            frames.extend(place.map(|(file, number, _)| (file, number, String::new())));
        }
    }
    let message = message?.trim();
    let own = frames.iter().find(|(file, ..)| !is_library_path(file));
    let place = own.or(frames.first());
    let mut names = Vec::new();
    let mut text = truncate_words(message, 110).into_owned();
    if let Some((file, number, function)) = place {
        let short = file.rsplit('/').next().unwrap_or(file);
        text.push_str(&format!(" at {short}:{number}"));
        names.push(file.clone());
        if !function.is_empty() && !function.starts_with('<') {
            let function = function.rsplit('.').next().unwrap_or(function);
            text.push_str(&format!(" in {function}"));
            names.push(function.to_owned());
        }
    }
    for (file, ..) in frames.iter().filter(|(file, ..)| !is_library_path(file)) {
        names.push(file.clone());
    }
    dedup(&mut names);
    names.truncate(MAX_NAMES);
    Some(OutputSummary::new(OutputKind::Trace, text, names))
}
