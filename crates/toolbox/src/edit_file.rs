//! The tool `edit_file`: replaces an exact text in a file.

use memchr::memmem;
use schemars::JsonSchema;
use selvedge_protocol::{Preview, PreviewContent, ToolSpec};
use selvedge_text::group_digits;
use selvedge_tools::{CallContext, CallFuture, Risk, Tool, ToolError, parse_args, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::commit::{FileWrite, commit};
use crate::nearest_text::text_not_found_error;
use crate::preview::file_diff;
use crate::target_file::{FileMode, LinkMode, TargetFile};
use crate::text_file::bom_encoding;
use crate::{TurnDiffTracker, Workspace};

/// Maximum number of lines that an error lists.
const MAX_LISTED_LINES: usize = 10;

/// The file to edit, and the text to replace.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct EditFileArgs {
    /// File to edit, relative to the workspace or absolute.
    path: String,
    /// Text to replace, exactly as it is in the file. It must occur once, unless `all` is set.
    old: String,
    /// Text to put in its place.
    new: String,
    /// Whether to replace every occurrence.
    #[serde(default)]
    all: bool,
    /// Reason shown to the person who approves the call.
    #[allow(dead_code)]
    approval_context: Option<String>,
}

/// The edited file.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EditFileOutput {
    path: String,
    /// Number of replaced occurrences.
    replacements: usize,
    /// Lines of the edited file where the new texts begin.
    lines: Vec<usize>,
}

/// The tool `edit_file`.
pub(crate) struct EditFile(pub(crate) Workspace, pub(crate) TurnDiffTracker);

/// An edit that is ready to be written.
struct PlannedEdit {
    target_file: TargetFile,
    mode: FileMode,
    before: Vec<u8>,
    after: Vec<u8>,
    lines: Vec<usize>,
}

impl Tool for EditFile {
    fn spec(&self) -> ToolSpec {
        let description = "Replaces an exact text in a file.";
        built_in_spec::<EditFileArgs, EditFileOutput>("edit_file", &[], description)
            .approval_by_arguments()
    }

    fn risk(&self, args: &Value) -> Risk {
        Risk::Moderate {
            reason: format!("edits {}", args["path"].as_str().unwrap_or_default()),
        }
    }

    /// A diff of the current and the new content; no view if the edit does not apply.
    fn preview(&self, args: &Value) -> Preview {
        let planned = parse_args(args.clone()).and_then(|args| plan(&self.0, &args));
        let view = planned.map(|edit| {
            let path = &edit.target_file.display_path;
            PreviewContent::Diff(file_diff(path, path, Some(&edit.before), Some(&edit.after)))
        });
        Preview {
            view: view.ok(),
            rule: None,
        }
    }

    /// The path of the file with symbolic links resolved now.
    fn approval_key(&self, args: &Value) -> Option<String> {
        self.0.write_approval_key(args["path"].as_str()?)
    }

    fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
        let (workspace, turn_diff) = (self.0.clone(), self.1.clone());
        let run = |args: EditFileArgs| run_blocking(move || edit(&workspace, &turn_diff, &args));
        typed_call(args, run, |output: &EditFileOutput| {
            let noun = match output.replacements {
                1 => "replacement",
                _ => "replacements",
            };
            Some(format!(
                "edited {}: {} {noun} at {}",
                output.path,
                output.replacements,
                list_lines(&output.lines)
            ))
        })
    }
}

fn edit(
    workspace: &Workspace,
    turn_diff: &TurnDiffTracker,
    args: &EditFileArgs,
) -> Result<EditFileOutput, ToolError> {
    let _write_lock = workspace.lock_changes();
    let edit = plan(workspace, args)?;
    edit.target_file.check_writable()?;
    turn_diff.before_write(&workspace.absolute(&args.path, None));
    commit(&[FileWrite {
        target_file: &edit.target_file,
        content: Some((edit.after.as_slice(), edit.mode)),
    }])?;
    Ok(EditFileOutput {
        path: edit.target_file.display_path,
        replacements: edit.lines.len(),
        lines: edit.lines,
    })
}

/// Reads the file and applies the edit in memory.
fn plan(workspace: &Workspace, args: &EditFileArgs) -> Result<PlannedEdit, ToolError> {
    let target_file =
        workspace.target_file(&workspace.absolute(&args.path, None), LinkMode::Follow)?;
    let display_path = &target_file.display_path;
    if args.old.is_empty() {
        return Err(ToolError::new("`old` is empty")
            .suggest("give the text to replace; write a whole file with writeFile"));
    }
    let Some((before, mode)) = target_file.read()? else {
        return Err(ToolError::new(format!("{display_path} does not exist"))
            .suggest("find the file with fileSearch, or create it with writeFile"));
    };
    if let Some((encoding, _)) = bom_encoding(&before) {
        return Err(ToolError::new(format!(
            "{display_path} is not UTF-8 but {encoding}, which cannot be edited"
        ))
        .suggest("read it with readFile and write it as UTF-8 with writeFile"));
    }
    let Occurrences { old, new, offsets } = find_occurrences(&before, args);
    match offsets.len() {
        0 => return Err(text_not_found_error(display_path, &before, &args.old)),
        count if count > 1 && !args.all => {
            let lines: Vec<usize> = offsets.iter().map(|at| line_at(&before, *at)).collect();
            let count = group_digits(count);
            return Err(ToolError::new(format!(
                "`old` occurs {count} times in {display_path}, at {}",
                list_lines(&lines)
            ))
            .suggest("add lines around it to `old`, or pass all: true"));
        }
        _ => {}
    }
    let mut after = Vec::with_capacity(before.len());
    let (mut copied, mut lines, mut line) = (0, Vec::new(), 1);
    for at in offsets {
        let kept = &before[copied..at];
        line += count_newlines(kept);
        lines.push(line);
        line += count_newlines(&new);
        after.extend_from_slice(kept);
        after.extend_from_slice(&new);
        copied = at + old.len();
    }
    after.extend_from_slice(&before[copied..]);
    Ok(PlannedEdit {
        target_file,
        mode,
        before,
        after,
        lines,
    })
}

/// The texts of an edit with the line endings of the file, and where the old one occurs.
struct Occurrences {
    old: Vec<u8>,
    new: Vec<u8>,
    offsets: Vec<usize>,
}

fn find_occurrences(file: &[u8], args: &EditFileArgs) -> Occurrences {
    let find = |old: &[u8]| memmem::find_iter(file, old).collect::<Vec<usize>>();
    let newlines = count_newlines(file);
    let crlf_count = memmem::find_iter(file, b"\r\n").count();
    let exact = find(args.old.as_bytes());
    if exact.is_empty() && crlf_count > 0 {
        let old = to_crlf(&args.old);
        return Occurrences {
            offsets: find(&old),
            new: to_crlf(&args.new),
            old,
        };
    }
    let uses_crlf = newlines > 0 && newlines == crlf_count;
    Occurrences {
        old: args.old.clone().into_bytes(),
        new: match uses_crlf {
            true => to_crlf(&args.new),
            false => args.new.clone().into_bytes(),
        },
        offsets: exact,
    }
}

/// Returns a text with `\r\n` as its line endings.
fn to_crlf(text: &str) -> Vec<u8> {
    text.replace("\r\n", "\n")
        .replace('\n', "\r\n")
        .into_bytes()
}

fn count_newlines(bytes: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', bytes).count()
}

fn line_at(bytes: &[u8], at: usize) -> usize {
    count_newlines(&bytes[..at]) + 1
}

/// Lists line numbers: `line 3`, `lines 3 and 7`, `lines 1, 2 and 5 more`.
fn list_lines(lines: &[usize]) -> String {
    let numbers: Vec<String> = lines.iter().map(|line| group_digits(*line)).collect();
    match &numbers[..] {
        [one] => format!("line {one}"),
        [first @ .., last] if numbers.len() <= MAX_LISTED_LINES => {
            format!("lines {} and {last}", first.join(", "))
        }
        _ => format!(
            "lines {} and {} more",
            numbers[..MAX_LISTED_LINES.min(numbers.len())].join(", "),
            group_digits(numbers.len().saturating_sub(MAX_LISTED_LINES))
        ),
    }
}
