//! The input history of the chat, stored in `chat_history.jsonl` in Selvedge's home, readable by
//! the user only.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::editor::Draft;

/// Entries kept in the file.
const MAX_HISTORY_ENTRIES: usize = 1000;

/// Largest history that is read, in bytes.
const MAX_HISTORY_BYTES: usize = 64 << 20;

/// The messages sent before, and the position while the user browses them.
#[derive(Debug, Default)]
pub(crate) struct InputHistory {
    /// The messages, oldest first.
    entries: Vec<String>,
    /// Index of the entry in the editor; `None` while the user is not browsing.
    position: Option<usize>,
    /// The input from before browsing started.
    draft: Draft,
    /// `None` if the history is not stored.
    file: Option<PathBuf>,
}

impl InputHistory {
    /// Reads the history stored in `home`. Without a home, the history is kept in memory only.
    pub(crate) fn open(home: Option<&Path>) -> Self {
        let file = home.map(|home| home.join("chat_history.jsonl"));
        let text = file.as_ref().and_then(|file| read_history(file));
        let text = text.unwrap_or_default();
        let entries = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let mut entries: Vec<String> = entries.collect();
        if entries.len() > MAX_HISTORY_ENTRIES {
            entries.drain(..entries.len() - MAX_HISTORY_ENTRIES);
            if let Some(file) = &file {
                let lines = entries
                    .iter()
                    .map(|entry| format!("{}\n", serde_json::json!(entry)));
                let lines: String = lines.collect();
                // If this fails, the next chat truncates the file.
                let _ =
                    write_private_file(file, &lines, OpenOptions::new().write(true).truncate(true));
            }
        }
        Self {
            entries,
            file,
            ..Self::default()
        }
    }

    /// Adds a message, unless it repeats the last one. Errors while writing the file are ignored.
    pub(crate) fn add(&mut self, text: &str) {
        self.position = None;
        if self.entries.last().is_some_and(|last| last == text) {
            return;
        }
        self.entries.push(text.to_owned());
        if let Some(file) = &self.file {
            let line = format!("{}\n", serde_json::json!(text));
            let _ = write_private_file(file, &line, OpenOptions::new().append(true));
        }
    }

    /// Returns the next older entry. The first step back saves the current input as the draft.
    pub(crate) fn previous_entry(&mut self, input: Draft) -> Option<&str> {
        if self.position.is_none() {
            self.draft = input;
        }
        let index = self.position.unwrap_or(self.entries.len()).checked_sub(1)?;
        self.position = Some(index);
        self.entries.get(index).map(String::as_str)
    }

    /// Returns the next newer entry, and the draft after the newest.
    pub(crate) fn next_entry(&mut self) -> Option<Draft> {
        let index = self.position? + 1;
        self.position = (index < self.entries.len()).then_some(index);
        let entry = self.entries.get(index).map(|text| Draft {
            text: text.clone(),
            has_paste: false,
        });
        Some(entry.unwrap_or_else(|| self.draft.clone()))
    }

    /// Returns the newest entry before index `before` that contains the text, and its index.
    pub(crate) fn find_before(&self, text: &str, before: usize) -> Option<(usize, &str)> {
        let entries = self.entries.iter().enumerate().rev();
        let mut older = entries.skip_while(|(index, _)| *index >= before);
        let found = older.find(|(_, entry)| entry.contains(text));
        found.map(|(index, entry)| (index, entry.as_str()))
    }

    /// Stops browsing, after the input was edited.
    pub(crate) fn reset_position(&mut self) {
        self.position = None;
    }
}

/// Removes these messages from the stored history.
pub(crate) fn remove_from_history(home: &Path, texts: &BTreeSet<String>) -> std::io::Result<()> {
    let file = home.join("chat_history.jsonl");
    let Some(stored) = read_history(&file) else {
        return Ok(());
    };
    // A message may end with the output of commands that the user ran before it.
    let is_start = |entry: &str| {
        let start = format!("{entry}\n\n");
        texts.iter().any(|text| text.starts_with(&start))
    };
    let is_kept = |line: &&str| {
        let entry = serde_json::from_str::<String>(line);
        entry.is_ok_and(|entry| !texts.contains(&entry) && !is_start(&entry))
    };
    let kept: String = stored
        .lines()
        .filter(is_kept)
        .map(|line| format!("{line}\n"))
        .collect();
    if kept.len() == stored.len() {
        return Ok(());
    }
    write_private_file(&file, &kept, OpenOptions::new().write(true).truncate(true))
}

fn read_history(file: &Path) -> Option<String> {
    selvedge_files::read_user_text(file, MAX_HISTORY_BYTES)
        .ok()
        .flatten()
}

/// Writes the file; a new one is readable by the user only.
fn write_private_file(file: &Path, text: &str, options: &mut OpenOptions) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options.create(true).open(file)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsing_forward_ends_at_the_draft() {
        let mut history = InputHistory::default();
        for text in ["one", "two", "two"] {
            history.add(text);
        }
        let draft = |text: &str, has_paste| Draft {
            text: text.to_owned(),
            has_paste,
        };
        assert_eq!(history.previous_entry(draft("draft", true)), Some("two"));
        assert_eq!(history.previous_entry(draft("two", false)), Some("one"));
        assert_eq!(history.previous_entry(draft("one", false)), None);
        assert_eq!(history.next_entry(), Some(draft("two", false)));
        assert_eq!(history.next_entry(), Some(draft("draft", true)));
        assert_eq!(history.next_entry(), None);
    }

    #[test]
    fn the_history_is_stored_readable_by_the_user_only() {
        let home = tempfile::tempdir().unwrap();
        InputHistory::open(Some(home.path())).add("several\nlines");
        let mut history = InputHistory::open(Some(home.path()));
        assert_eq!(
            history.previous_entry(Draft::default()),
            Some("several\nlines")
        );
        history.add("with output");
        history.add("another");
        let forgotten = ["several\nlines", "with output\n\nI ran `ls`"];
        let forgotten = BTreeSet::from(forgotten.map(str::to_owned));
        remove_from_history(home.path(), &forgotten).unwrap();
        assert_eq!(InputHistory::open(Some(home.path())).entries, ["another"]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = home
                .path()
                .join("chat_history.jsonl")
                .metadata()
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }
}
