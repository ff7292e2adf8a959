//! The `AGENTS.md` files of a project, which the prompt contains. In a folder without one,
//! `CLAUDE.md` takes its place.

use std::path::Path;

use selvedge_files::{FileRefusal, ProjectFiles};

/// Names of the files with instructions for the model. The first that a folder has is used.
const INSTRUCTIONS_FILES: [&str; 2] = ["AGENTS.md", "CLAUDE.md"];

/// Whether a file instructs agents, by its name.
pub(crate) fn is_instructions_file(path: &Path) -> bool {
    path.file_name().is_some_and(|name| {
        INSTRUCTIONS_FILES
            .iter()
            .any(|own| name.eq_ignore_ascii_case(own))
    })
}

/// Maximum size of all instructions in the prompt, in bytes.
const MAX_INSTRUCTIONS_BYTES: usize = 32 << 10;

/// Whether the instructions of a project are part of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum InstructionUse {
    #[default]
    Follow,
    /// The user declined to trust the folder.
    Ignore,
}

/// The instructions of a project.
#[derive(Debug, Default)]
pub(crate) struct ProjectInstructions {
    /// The text of all files; `None` without a file.
    pub(crate) text: Option<String>,
    /// Files that are not used.
    pub(crate) refused: Vec<FileRefusal>,
}

/// Returns the paths of the instructions, from the root of the project down to the working folder.
pub(crate) fn instruction_files(files: &ProjectFiles) -> Vec<std::path::PathBuf> {
    let folders = files.folders().into_iter();
    let paths = folders.filter_map(|folder| {
        let mut named = INSTRUCTIONS_FILES.iter().map(|name| folder.join(name));
        named.find(|path| path.symlink_metadata().is_ok())
    });
    paths.collect()
}

/// Reads the instructions, from the root of the project down to the working folder.
pub(crate) fn read_instructions(files: &ProjectFiles) -> ProjectInstructions {
    let mut found = ProjectInstructions::default();
    let mut texts = Vec::new();
    let mut bytes_left = MAX_INSTRUCTIONS_BYTES;
    for path in instruction_files(files) {
        match files.read_start(&path, bytes_left) {
            Err(refusal) => found.refused.push(refusal),
            Ok(None) => {}
            Ok(Some(start)) => {
                bytes_left = bytes_left.saturating_sub(start.text.len());
                texts.push(match start.is_cut {
                    true => format!("{}\n\n{}", start.text, cut_notice(files.root(), &path)),
                    false => start.text,
                });
            }
        }
    }
    let text = texts.join("\n\n");
    found.text = (!text.trim().is_empty()).then_some(text);
    found
}

/// Says in the prompt that a file continues.
fn cut_notice(root: &Path, path: &Path) -> String {
    let shown = path.strip_prefix(root).unwrap_or(path).display();
    let limit = MAX_INSTRUCTIONS_BYTES >> 10;
    format!("[{shown} continues: instructions are cut after {limit} KB]")
}
