//! Learns from turns by rules, without a model: preferences of the user, decisions, errors with
//! their fixes, errors without one, and the programs that are used.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::actions::ActionKind;
use crate::cleaning::{
    find_key_line, format_arguments, is_notable, split_sentences, truncate_words,
};
use crate::extract::{actions_of_call, outputs_of_calls};
use crate::lesson_learning::{LessonDraft, SourceTurn};
use crate::turn_metrics::SpeakerRole;
use crate::turn_pieces::TurnPiece;
use crate::words::{for_each_word, is_stop_word};
use crate::{LessonKind, LessonStatus};

/// A turn to learn from, with secrets redacted.
pub(crate) struct ObservedTurn {
    /// The row of its session.
    pub(crate) session: i64,
    pub(crate) number: u32,
    /// When it was, in milliseconds since 1970.
    pub(crate) at_ms: i64,
    /// Files and symbols that it is about, the most important first.
    pub(crate) names: Vec<String>,
    pub(crate) pieces: Vec<TurnPiece>,
}

impl ObservedTurn {
    pub(crate) fn source(&self) -> SourceTurn {
        SourceTurn {
            session: self.session,
            number: self.number,
        }
    }
}

/// Phrases that mark a preference of the user.
const PREFERENCE_PHRASES: &str = "\
    i prefer|i'd prefer|always |never |from now on|please use|please don't|please always|\
    don't ever|i like|i don't like|i hate|i love|i want you to|remember that|remember to|\
    my name is|call me |we use |we never|we always|our convention|make sure to|in this project";
/// Phrases that mark a decision.
const DECISION_PHRASES: &str = "\
    we decided|i decided|decided to|decided on|decided against|decision:|we agreed|agreed to|\
    agreed on|let's go with|going with|settled on|we chose|we will use|we'll use|we now use|\
    we switched to|we moved to|we no longer|no longer use";
/// A longer sentence is neither a preference nor a decision.
const MAX_STATEMENT_BYTES: usize = 240;
/// Turns in which a call must fail, without success since, to count as a problem without a fix.
const MIN_UNSOLVED_TURNS: usize = 3;
/// Turns that must use a program before it counts as one of the project.
const MIN_PROGRAM_TURNS: usize = 3;
/// Programs that say nothing about a project.
const COMMON_PROGRAMS: &str = "awk bash cat cd chmod cp curl cut date diff du echo env false file \
    find grep head kill less ln ls mkdir mv ps pwd rg rm sed sh sleep sort stat tail tee test touch \
    tr true uniq wc which xargs";
/// Programs that only read. That they fail says what they found.
const READING_PROGRAMS: &str = "\
    awk cat cut date diff du echo env false file find grep head less ls ps pwd rg sort stat tail \
    test tr true uniq wc which";
/// Characters of a call in a lesson.
const MAX_CALL_CHARS: usize = 120;
/// Keywords of a lesson.
const MAX_KEYWORDS: usize = 8;

/// Finds the sentences in which the user states a preference.
pub(crate) fn find_preferences(turns: &[ObservedTurn]) -> Vec<LessonDraft> {
    find_statements(turns, LessonKind::Preference)
}

/// Finds the sentences in which the user states a decision, and no preference.
pub(crate) fn find_decisions(turns: &[ObservedTurn]) -> Vec<LessonDraft> {
    find_statements(turns, LessonKind::Convention)
}

fn find_statements(turns: &[ObservedTurn], wanted: LessonKind) -> Vec<LessonDraft> {
    let mut drafts = Vec::new();
    for turn in turns {
        for piece in &turn.pieces {
            let TurnPiece::Message { role, text } = piece else {
                continue;
            };
            if SpeakerRole::from_name(role) != SpeakerRole::User {
                continue;
            }
            for sentence in split_sentences(text) {
                let sentence = without_list_mark(sentence);
                let kind = if has_phrase(sentence, PREFERENCE_PHRASES) {
                    LessonKind::Preference
                } else if has_phrase(sentence, DECISION_PHRASES) {
                    LessonKind::Convention
                } else {
                    continue;
                };
                let is_short = sentence.len() <= MAX_STATEMENT_BYTES;
                if kind == wanted && is_short && !sentence.ends_with('?') {
                    let (status, content) = (LessonStatus::Used, sentence.to_owned());
                    let turns = vec![turn.source()];
                    drafts.push(new_draft(kind, status, sentence, content, turns));
                }
            }
        }
    }
    drafts
}

/// Returns a sentence without the mark of a list, heading or quotation before it. Otherwise it is
/// kept as it was written: a word that is filler in one sentence is a name in another.
pub(crate) fn without_list_mark(sentence: &str) -> &str {
    let rest = sentence.trim_start_matches(['-', '*', '+', '#', '>', '•']);
    match rest.starts_with(char::is_whitespace) {
        true => rest.trim_start(),
        false => sentence,
    }
}

/// Returns whether a sentence has one of the phrases, which are separated by `|`, at the beginning
/// of a word.
pub(crate) fn has_phrase(sentence: &str, phrases: &str) -> bool {
    let lower = sentence.to_lowercase();
    phrases.split('|').any(|phrase| {
        lower
            .find(phrase)
            .is_some_and(|at| at == 0 || !lower.as_bytes()[at - 1].is_ascii_alphanumeric())
    })
}

/// Finds calls that failed and later succeeded, with the calls in between that may have fixed them,
/// and calls that kept failing. The turns are those of one session.
pub(crate) fn find_fixes(turns: &[ObservedTurn]) -> Vec<LessonDraft> {
    let mut failures: BTreeMap<String, OpenFailure> = BTreeMap::new();
    let mut drafts = Vec::new();
    for turn in turns {
        for observed in calls_of(turn) {
            let ObservedCall {
                call,
                error,
                may_fix,
            } = observed;
            if let Some(error) = error {
                let failure = failures.entry(call).or_insert_with(|| OpenFailure {
                    error,
                    ..OpenFailure::default()
                });
                failure.turns.push(turn.source());
                failure.failed_turns.insert(turn.number);
            } else if let Some(failure) = failures.remove(&call) {
                drafts.extend(failure.into_fix(&call, turn.source()));
            } else if may_fix {
                for failure in failures.values_mut() {
                    failure.add_step(&call, turn.source());
                }
            }
        }
    }
    let unsolved = failures.into_iter();
    drafts.extend(unsolved.filter_map(|(call, failure)| failure.into_gap(&call)));
    drafts
}

/// A call of a turn, in a script or not.
struct ObservedCall {
    /// What was called, without its outcome.
    call: String,
    /// The message of its failure; `None` if it succeeded.
    error: Option<String>,
    /// Whether it may have fixed something. Calls that only read cannot.
    may_fix: bool,
}

/// Returns the calls of a turn in their order, without commands that only read: their exit code
/// says what they found, such as that of `grep`.
fn calls_of(turn: &ObservedTurn) -> Vec<ObservedCall> {
    let outputs = outputs_of_calls(&turn.pieces);
    let mut found = Vec::new();
    for (at, piece) in turn.pieces.iter().enumerate() {
        let TurnPiece::Call { name, args } = piece else {
            continue;
        };
        let output = outputs.get(&at).map(|output| &turn.pieces[*output]);
        let actions = actions_of_call(name, args, output);
        match output {
            Some(TurnPiece::Output { calls, .. }) if !calls.is_empty() => {
                let inner = calls.iter().zip(actions);
                let inner = inner.filter(|(call, _)| !is_reading(command_line(&call.args)));
                found.extend(inner.map(|(_, action)| {
                    let call = action.text.split(" → ").next().unwrap_or_default();
                    ObservedCall {
                        call: truncate_words(call, MAX_CALL_CHARS).into_owned(),
                        error: action.failed.then(|| error_of(&action.outcome)),
                        may_fix: action.kind != ActionKind::Read,
                    }
                }));
            }
            // A script without calls only computes.
            _ if name == "script" => {}
            output => {
                let parsed = serde_json::from_str::<Value>(args).unwrap_or_default();
                if is_reading(command_line(&parsed)) {
                    continue;
                }
                let (text, failed) = match output {
                    Some(TurnPiece::Output { text, failed, .. }) => (text.as_str(), *failed),
                    _ => ("", false),
                };
                let call = format!("{name} {}", format_arguments(args));
                found.push(ObservedCall {
                    call: truncate_words(&call, MAX_CALL_CHARS).into_owned(),
                    error: (failed || looks_failed(text)).then(|| find_key_line(text)),
                    may_fix: actions.iter().all(|action| action.kind != ActionKind::Read),
                });
            }
        }
    }
    found
}

/// Returns the message of a failed action: its outcome without the exit code, if there is more.
fn error_of(outcome: &str) -> String {
    let outcome = outcome.strip_prefix("failed: ").unwrap_or(outcome);
    let rest = outcome.strip_prefix("exit ");
    let rest = rest.and_then(|rest| rest.split_once(", "));
    rest.map_or(outcome, |(_, rest)| rest).to_owned()
}

/// A call that has failed and not succeeded since.
#[derive(Default)]
struct OpenFailure {
    error: String,
    /// The turns in which it failed.
    failed_turns: BTreeSet<u32>,
    steps: Vec<String>,
    turns: Vec<SourceTurn>,
}

impl OpenFailure {
    /// Notes a successful call after the failure. Only the first six are kept.
    fn add_step(&mut self, call: &str, turn: SourceTurn) {
        if self.steps.len() < 6 {
            self.steps.push(call.to_owned());
            self.turns.push(turn);
        }
    }

    /// Drafts a lesson from the failure and its fix, when the call has succeeded. Returns `None` if
    /// nothing was done in between.
    fn into_fix(mut self, call: &str, turn: SourceTurn) -> Option<LessonDraft> {
        if self.steps.is_empty() {
            return None;
        }
        self.turns.push(turn);
        self.turns.sort_unstable();
        self.turns.dedup();
        let error = truncate_words(&self.error, 200).into_owned();
        let steps = self.steps.join("; ");
        let content = format!("{call} failed with: {error}\nWhat helped: {steps}");
        let title = format!(
            "{} fails: {}",
            truncate_words(call, 40),
            truncate_words(&error, 60)
        );
        let (kind, status) = (LessonKind::Problem, LessonStatus::Seen);
        Some(LessonDraft {
            identity: signature(&format!("{call} {error}")),
            ..new_draft(kind, status, &title, content, self.turns)
        })
    }
}

impl OpenFailure {
    /// Drafts a gap from a call that failed in several turns and never succeeded since.
    fn into_gap(mut self, call: &str) -> Option<LessonDraft> {
        self.turns.dedup();
        if self.failed_turns.len() < MIN_UNSOLVED_TURNS {
            return None;
        }
        let error = truncate_words(&self.error, 200).into_owned();
        let content = format!("{call} keeps failing, and no fix is known: {error}");
        let title = format!("No fix known for {}", truncate_words(call, 60));
        let (kind, status) = (LessonKind::Gap, LessonStatus::Proposed);
        Some(LessonDraft {
            identity: signature(&format!("{call} {error}")),
            ..new_draft(kind, status, &title, content, self.turns)
        })
    }
}

/// Finds the programs that several turns ran, with an example of each.
pub(crate) fn find_programs(turns: &[ObservedTurn]) -> Vec<LessonDraft> {
    let mut programs: BTreeMap<String, (String, Vec<SourceTurn>)> = BTreeMap::new();
    for turn in turns {
        for command in turn.pieces.iter().flat_map(commands_of) {
            let name = program_of(&command);
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
            let is_common = COMMON_PROGRAMS
                .split_whitespace()
                .any(|common| common == name);
            if name.len() < 2 || is_common || !name.chars().all(is_plain) {
                continue;
            }
            let first = || (truncate_words(&command, 80).into_owned(), Vec::new());
            let (_, sources) = programs.entry(name.to_owned()).or_insert_with(first);
            if sources.last() != Some(&turn.source()) {
                sources.push(turn.source());
            }
        }
    }
    let used = programs.into_iter();
    let used = used.filter(|(_, (_, turns))| turns.len() >= MIN_PROGRAM_TURNS);
    used.map(|(name, (example, turns))| {
        let content = format!("The project uses `{name}`, for example `{example}`.");
        let (kind, status) = (LessonKind::Stack, LessonStatus::Used);
        LessonDraft {
            identity: name.clone(),
            keywords: vec![name.clone()],
            topics: vec![name.clone()],
            ..new_draft(kind, status, &name, content, turns)
        }
    })
    .collect()
}

/// Returns the commands that a piece ran, as lines.
fn commands_of(piece: &TurnPiece) -> Vec<String> {
    match piece {
        TurnPiece::Call { args, .. } => {
            let args = serde_json::from_str::<Value>(args).ok();
            let command = args.and_then(|args| command_line(&args));
            command.into_iter().collect()
        }
        TurnPiece::Output { calls, .. } => calls
            .iter()
            .filter_map(|call| command_line(&call.args))
            .collect(),
        TurnPiece::Message { .. } | TurnPiece::Reasoning(_) => Vec::new(),
    }
}

/// Returns the command of a call, as a line; `None` if it runs none.
fn command_line(args: &Value) -> Option<String> {
    let command = args.get("command").or_else(|| args.get("cmd"))?;
    match command {
        Value::String(line) => Some(line.clone()),
        Value::Array(words) => {
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            Some(words.join(" "))
        }
        _ => None,
    }
}

/// Returns the program of a command, without its folder and without variables before it.
fn program_of(command: &str) -> &str {
    let mut words = command
        .split_whitespace()
        .skip_while(|word| word.contains('='));
    let name = words.next().unwrap_or_default();
    name.rsplit('/').next().unwrap_or_default()
}

/// Returns whether a call runs a program that only reads.
fn is_reading(command: Option<String>) -> bool {
    let command = command.unwrap_or_default();
    let program = program_of(&command);
    let mut reading = READING_PROGRAMS.split_whitespace();
    reading.any(|name| name == program)
}

/// Returns whether the output of a call reads like a failure.
fn looks_failed(output: &str) -> bool {
    output.lines().any(|line| {
        let line = line.trim_start().to_lowercase();
        line.starts_with("error")
            || line.starts_with("fatal:")
            || line.contains("exit code: 1")
            || line.contains(" failed")
    }) && is_notable(output)
}

/// Reduces a text to the words that are the same in each occurrence of an error: without numbers,
/// addresses and single letters.
fn signature(text: &str) -> String {
    let mut out = String::new();
    for_each_word(text, |word| {
        if !word.starts_with(|c: char| c.is_ascii_digit()) && word.len() > 1 {
            out.push_str(word);
            out.push(' ');
        }
    });
    out
}

/// Builds a draft. Keywords, topics and identity are derived from the content.
fn new_draft(
    kind: LessonKind,
    status: LessonStatus,
    title: &str,
    content: String,
    turns: Vec<SourceTurn>,
) -> LessonDraft {
    let keywords = extract_keywords(&content);
    LessonDraft {
        kind,
        status,
        title: truncate_words(title, 100).into_owned(),
        topics: keywords.iter().take(3).cloned().collect(),
        keywords,
        identity: signature(&content),
        content,
        turns,
    }
}

/// Returns the longest content words of a text, the longest first.
pub(crate) fn extract_keywords(text: &str) -> Vec<String> {
    let mut words = BTreeSet::new();
    for_each_word(text, |word| {
        if word.len() > 3 && !is_stop_word(word) && !word.starts_with(|c: char| c.is_ascii_digit())
        {
            words.insert(word.to_owned());
        }
    });
    let mut words: Vec<String> = words.into_iter().collect();
    words.sort_by_key(|word| std::cmp::Reverse(word.len()));
    words.truncate(MAX_KEYWORDS);
    words
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::turn_pieces::ScriptCall;

    fn message(number: u32, role: &str, text: &str) -> ObservedTurn {
        ObservedTurn {
            session: 1,
            number,
            at_ms: 0,
            names: Vec::new(),
            pieces: vec![TurnPiece::Message {
                role: role.into(),
                text: text.into(),
            }],
        }
    }

    #[test]
    fn preferences_are_distinguished_from_other_sentences() {
        let turns = [
            message(
                1,
                "user",
                "Hi! From now on always answer in German. The weather is fine.",
            ),
            message(2, "assistant", "I always do."),
            message(
                3,
                "user",
                "Do you always do that? We use pnpm in this project.",
            ),
        ];
        let found = find_preferences(&turns);
        let contents: Vec<&str> = found.iter().map(|draft| draft.content.as_str()).collect();
        assert_eq!(
            contents,
            [
                "From now on always answer in German.",
                "We use pnpm in this project."
            ]
        );
        assert_eq!(found[1].turns, [turns[2].source()]);
    }

    #[test]
    fn statements_are_kept_as_they_were_written() {
        let text = "Two things:\n- Please use tabs.\n* We use just for all tasks.";
        let found = find_preferences(&[message(1, "user", text)]);
        let contents: Vec<&str> = found.iter().map(|draft| draft.content.as_str()).collect();
        assert_eq!(contents, ["Please use tabs.", "We use just for all tasks."]);
    }

    #[test]
    fn an_error_in_a_script_and_its_fix_become_a_draft() {
        let call = |tool: &str, args: Value, result: Value| ScriptCall {
            tool: tool.into(),
            args,
            result,
            error: None,
        };
        let tests = |output: &str, exit: i32| {
            let args = json!({"command": ["cargo", "test", "-p", "auth"]});
            let result = json!({"exitCode": exit, "aggregatedOutput": output});
            call("exec", args, result)
        };
        let edit = call(
            "edit_file",
            json!({"path": "src/lib.rs", "old": "a", "new": "b"}),
            json!({}),
        );
        let search = call(
            "exec",
            json!({"command": "grep -rn nothing src"}),
            json!({"exitCode": 1}),
        );
        let read = call("read_file", json!({"path": "a.rs"}), json!({"text": "x"}));
        let failed = "test login ... FAILED\ntest result: FAILED. 2 passed; 1 failed; 0 ignored";
        let passed = "test result: ok. 3 passed; 0 failed; 0 ignored";
        let script = |number, calls: Vec<ScriptCall>| ObservedTurn {
            pieces: vec![
                TurnPiece::Call {
                    name: "script".into(),
                    args: "await tools.exec(test)".into(),
                },
                TurnPiece::Output {
                    text: "{}".into(),
                    failed: false,
                    calls,
                },
            ],
            ..message(number, "user", "")
        };
        let turns = [
            script(1, vec![tests(failed, 101), search, read]),
            script(2, vec![edit, tests(passed, 0)]),
        ];
        let found = find_fixes(&turns);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            found[0].content,
            "exec cargo test -p auth failed with: 1 failed: login; 2 passed\n\
             What helped: editFile src/lib.rs +1 −1"
        );
        assert_eq!(found[0].turns, [turns[0].source(), turns[1].source()]);
    }

    #[test]
    fn an_error_and_its_fix_become_a_draft() {
        let called = |args: &str, output: &str, failed| {
            [
                TurnPiece::Call {
                    name: "exec".into(),
                    args: format!("{{\"command\":\"{args}\"}}"),
                },
                TurnPiece::Output {
                    text: output.into(),
                    failed,
                    calls: Vec::new(),
                },
            ]
        };
        let pieces = [
            called(
                "npm test",
                "Error: Cannot find module 'left-pad' at line 12",
                true,
            ),
            called("npm install left-pad", "added 1 package", false),
            called("npm test", "12 passing", false),
        ];
        let found = find_fixes(&[ObservedTurn {
            pieces: pieces.concat(),
            ..message(4, "user", "")
        }]);
        assert_eq!(found.len(), 1);
        assert!(
            found[0]
                .content
                .contains("What helped: exec npm install left-pad"),
            "{}",
            found[0].content
        );
        let again = find_fixes(&[ObservedTurn {
            pieces: pieces.concat(),
            ..message(9, "user", "")
        }]);
        assert_eq!(found[0].identity, again[0].identity);
        // A call that fails often in one turn is no gap; one that fails in three turns is.
        let failing = || called("npm test", "Error: Cannot find module", true);
        let turn = |number, calls: Vec<[TurnPiece; 2]>| ObservedTurn {
            pieces: calls.concat(),
            ..message(number, "user", "")
        };
        let often = turn(1, vec![failing(), failing(), failing()]);
        assert_eq!(find_fixes(&[often]), []);
        let turns = [1, 2, 3].map(|number| turn(number, vec![failing()]));
        assert_eq!(find_fixes(&turns)[0].kind, LessonKind::Gap);
    }
}
