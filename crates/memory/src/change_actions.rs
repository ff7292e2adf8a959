//! Describes the calls that change files.

use serde_json::Value;

use crate::actions::{
    Action, ActionKind, field, importance, new_action, other_action, path_of, script_name,
    with_importance,
};
use crate::diff_summary::{describe_changes, parse_diff, symbol_in};
use crate::outcome_paths::{dedup, plural};

/// Describes an edit of a file: `editFile a.py +1 −1`.
pub(crate) fn edit_action(name: &str, args: &Value) -> Action {
    let path = path_of(args);
    let (mut added, mut removed) = (0, 0);
    let edits = args["edits"]
        .as_array()
        .map_or(std::slice::from_ref(args), Vec::as_slice);
    let mut symbols = Vec::new();
    for edit in edits {
        let old = field(edit, &["old", "old_string", "old_str", "oldText"]);
        let new = field(edit, &["new", "new_string", "new_str", "newText"]);
        // Equal lines at the start and at the end are context.
        let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
        let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
        let rest = old[same..].iter().rev().zip(new[same..].iter().rev());
        let same_end = rest.take_while(|(a, b)| a == b).count();
        added += new.len() - same - same_end;
        removed += old.len() - same - same_end;
        symbols.extend(old.iter().chain(&new).filter_map(|line| symbol_in(line)));
    }
    dedup(&mut symbols);
    symbols.truncate(2);
    let mut names = vec![(path.to_owned(), importance::CHANGED)];
    names.extend(with_importance(symbols, importance::ARGUMENT));
    let outcome = format!("+{added} −{removed}");
    Action {
        text: format!("{} {path} {outcome}", script_name(name)),
        names,
        kind: ActionKind::Change,
        output: field(args, &["new", "new_string", "new_str", "newText"]).to_owned(),
        ..new_action(String::new(), outcome)
    }
}

/// Describes a written file: `writeFile a.py, 12 lines`.
pub(crate) fn write_action(name: &str, args: &Value) -> Action {
    let path = path_of(args);
    let content = field(args, &["content", "text", "file_text"]);
    let outcome = plural(content.lines().count(), "line");
    Action {
        text: format!("{} {path}, {outcome}", script_name(name)),
        names: vec![(path.to_owned(), importance::CHANGED)],
        kind: ActionKind::Change,
        ..new_action(String::new(), outcome)
    }
}

/// Describes a patch: `applyPatch a.py +12 −3`.
pub(crate) fn patch_action(name: &str, args: &Value) -> Action {
    let patch = match args.as_str() {
        Some(patch) => patch,
        None => field(args, &["patch", "input", "diff"]),
    };
    let Some(changes) = parse_diff(patch) else {
        return other_action(name, args, &Value::Null);
    };
    let mut names = Vec::new();
    for change in &changes {
        names.push((change.path.clone(), importance::CHANGED));
        names.extend(with_importance(
            change.symbols.clone(),
            importance::ARGUMENT,
        ));
    }
    let outcome = match &changes[..] {
        [change] => format!("+{} −{}", change.added, change.removed),
        changes => describe_changes(changes),
    };
    let text = match &changes[..] {
        [change] => format!("{} {} {outcome}", script_name(name), change.path),
        _ => format!("{} {outcome}", script_name(name)),
    };
    Action {
        text,
        names,
        kind: ActionKind::Change,
        output: patch.to_owned(),
        ..new_action(String::new(), outcome)
    }
}
