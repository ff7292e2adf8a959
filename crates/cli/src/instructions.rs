//! The `AGENTS.md` files of a project, which the prompt contains. In a folder without one,
//! `CLAUDE.md` takes its place.

use std::path::Path;

use selvedge_files::{FileRefusal, ProjectFiles};

/// Names of the files with instructions for the model. The first that a folder has is used.
const INSTRUCTIONS_FILES: [&str; 2] = ["AGENTS.md", "CLAUDE.md"];

/// Names of files that instruct agents, up to the first dot and in lower case:
/// `AGENTS.override.md` and `CLAUDE.local.md` are such files, too. Other agents that work in the
/// folder obey those that Selvedge does not read.
const AGENT_FILE_STEMS: [&str; 10] = [
    "agent",
    "agents",
    "claude",
    "conventions",
    "copilot-instructions",
    "crush",
    "gemini",
    "qwen",
    "skill",
    "warp",
];
/// Endings of files that instruct agents, whatever their name, in lower case.
const AGENT_FILE_ENDINGS: [&str; 5] = [
    ".instructions.md",
    ".prompt.md",
    ".chatmode.md",
    ".agent.md",
    ".mdc",
];

/// Whether a file may instruct agents, this one or others, by its path in a workspace: a known name
/// in any folder, or a hidden file or folder, such as `.cursorrules`, `.windsurfrules` and
/// `.github`. Also whether a folder above it would take the place of such a file, as in
/// `AGENTS.md/x.md`.
pub(crate) fn is_instructions_file(path: &Path) -> bool {
    let parts = path.components().map(|part| part.as_os_str());
    let parts: Vec<String> = parts
        .map(|part| part.to_string_lossy().to_lowercase())
        .collect();
    let names_instructions = |(index, part): (usize, &String)| {
        let stem = part.split('.').next().unwrap_or_default();
        let is_file = index + 1 == parts.len() || part.contains('.');
        is_file && AGENT_FILE_STEMS.contains(&stem)
            || AGENT_FILE_ENDINGS.iter().any(|end| part.ends_with(end))
            || part.starts_with('.')
    };
    parts.iter().enumerate().any(names_instructions)
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
        // A folder with the name has no instructions.
        named.find(|path| path.symlink_metadata().is_ok() && !path.is_dir())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_instruct_agents_are_known_by_their_names() {
        for path in [
            "AGENTS.md",
            "agents.MD",
            "sub/Claude.md",
            "CLAUDE.local.md",
            "AGENTS.override.md",
            "GEMINI.md",
            "QWEN.md",
            "a/b/CONVENTIONS.md",
            "skills/x/SKILL.md",
            ".cursorrules",
            ".cursor/rules/x.md",
            ".windsurfrules",
            ".clinerules/x.md",
            ".github/copilot-instructions.md",
            "docs/copilot-instructions.md",
            "rust.instructions.md",
            "review.prompt.md",
            "rules/x.mdc",
            ".goosehints",
            "AGENTS.md/x.md",
            "sub/claude.MD/deep/x.md",
            "x.mdc/y.md",
        ] {
            assert!(is_instructions_file(Path::new(path)), "{path}");
        }
        for path in [
            "README.md",
            "issues/agents-fail.md",
            "agents/notes.md",
            "prompt.md",
            "instructions.md",
        ] {
            assert!(!is_instructions_file(Path::new(path)), "{path}");
        }
    }
}
