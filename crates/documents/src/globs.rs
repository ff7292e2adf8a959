//! The globs that select documents.

use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// Characters with a meaning in a glob.
const GLOB_CHARACTERS: [char; 6] = ['*', '?', '[', ']', '{', '}'];

/// A glob that cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{glob}` is not a glob: {reason}")]
#[non_exhaustive]
pub struct GlobError {
    /// The glob as it was written.
    pub glob: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Compiled globs. They are relative to the workspace, and `*` and `?` match no slash.
#[derive(Debug, Clone, Default)]
pub struct DocumentGlobs {
    set: GlobSet,
    /// The folder of each glob: its parts before the first one with a special character.
    folders: Vec<PathBuf>,
}

impl DocumentGlobs {
    /// Compiles globs such as `docs/**/*.md`.
    pub fn new<'a>(globs: impl IntoIterator<Item = &'a str>) -> Result<Self, GlobError> {
        let mut set = GlobSetBuilder::new();
        let mut folders = Vec::new();
        for glob in globs {
            let relative = glob.trim_start_matches("./").trim_start_matches('/');
            set.add(compile(relative, glob)?);
            let mut parts: Vec<&str> = relative.split('/').collect();
            // The last part is the name of a file.
            parts.pop();
            let literal = parts
                .iter()
                .take_while(|part| !part.contains(GLOB_CHARACTERS));
            folders.push(literal.collect());
        }
        let set = set.build().map_err(|error| glob_error("", &error))?;
        Ok(Self { set, folders })
    }

    /// Compiles globs that also select everything below a folder that they match.
    pub(crate) fn with_contents(globs: &[&str]) -> Result<Self, GlobError> {
        let relative = |glob: &&str| glob.trim_start_matches("./").trim_matches('/').to_owned();
        let globs: Vec<String> = globs.iter().map(relative).collect();
        let below: Vec<String> = globs.iter().map(|glob| format!("{glob}/**")).collect();
        Self::new(globs.iter().chain(&below).map(String::as_str))
    }

    /// Whether a path, relative to the workspace, is selected.
    pub fn is_match(&self, path: impl AsRef<Path>) -> bool {
        self.set.is_match(path)
    }

    /// Whether a folder, relative to the workspace, can contain selected files.
    pub(crate) fn may_contain(&self, folder: &Path) -> bool {
        let mut folders = self.folders.iter();
        folders.any(|start| start.starts_with(folder) || folder.starts_with(start))
    }
}

fn compile(glob: &str, written: &str) -> Result<globset::Glob, GlobError> {
    let glob = GlobBuilder::new(glob).literal_separator(true).build();
    glob.map_err(|error| glob_error(written, &error))
}

fn glob_error(glob: &str, error: &globset::Error) -> GlobError {
    GlobError {
        glob: glob.to_owned(),
        reason: error.kind().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_select_files_and_folders_to_enter() {
        let globs = DocumentGlobs::new(["issues/**/*.md", "./docs/*.md", "/a/{b,c}/x.md"]).unwrap();
        for path in ["issues/1.md", "issues/x/y/2.md", "docs/a.md", "a/b/x.md"] {
            assert!(globs.is_match(path), "{path}");
        }
        for path in ["1.md", "docs/sub/a.md", "issues/1.txt", "a/d/x.md"] {
            assert!(!globs.is_match(path), "{path}");
        }
        for folder in ["", "issues", "issues/x/y", "docs", "a", "a/b"] {
            assert!(globs.may_contain(Path::new(folder)), "{folder}");
        }
        for folder in ["src", "node_modules/issues", "issuesx"] {
            assert!(!globs.may_contain(Path::new(folder)), "{folder}");
        }
        assert!(
            DocumentGlobs::new(["**/*.md"])
                .unwrap()
                .may_contain(Path::new("any/where"))
        );
        assert_eq!(DocumentGlobs::new(["a[.md"]).unwrap_err().glob, "a[.md");
    }
}
