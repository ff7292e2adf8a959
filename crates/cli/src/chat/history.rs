//! What was asked before, to be asked again: kept across chats, for the person alone.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

const MOST: usize = 1000;

/// Everything asked before, oldest first, and where somebody looks.
#[derive(Debug, Default)]
pub(crate) struct History {
    entries: Vec<String>,
    /// `None` while nobody looks back.
    at: Option<usize>,
    /// What was being typed before somebody looked back.
    draft: String,
    file: Option<PathBuf>,
}

impl History {
    /// That of this folder; nothing is kept where there is none.
    pub(crate) fn open(home: Option<&Path>) -> Self {
        let file = home.map(|home| home.join("chat_history.jsonl"));
        let text = file
            .as_ref()
            .and_then(|file| std::fs::read_to_string(file).ok());
        let text = text.unwrap_or_default();
        let entries = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let mut entries: Vec<String> = entries.collect();
        if entries.len() > MOST {
            entries.drain(..entries.len() - MOST);
            if let Some(file) = &file {
                let lines = entries
                    .iter()
                    .map(|entry| format!("{}\n", serde_json::json!(entry)));
                let lines: String = lines.collect();
                // The next time will do.
                let _ = write(file, &lines, OpenOptions::new().write(true).truncate(true));
            }
        }
        Self {
            entries,
            file,
            ..Self::default()
        }
    }

    /// Remembers what was asked. That it cannot be kept is no reason not to ask it.
    pub(crate) fn add(&mut self, text: &str) {
        self.at = None;
        if self.entries.last().is_some_and(|last| last == text) {
            return;
        }
        self.entries.push(text.to_owned());
        if let Some(file) = &self.file {
            let line = format!("{}\n", serde_json::json!(text));
            let _ = write(file, &line, OpenOptions::new().append(true));
        }
    }

    pub(crate) fn back(&mut self, typed: &str) -> Option<&str> {
        if self.at.is_none() {
            self.draft = typed.to_owned();
        }
        let at = self.at.unwrap_or(self.entries.len()).checked_sub(1)?;
        self.at = Some(at);
        self.entries.get(at).map(String::as_str)
    }

    /// What was asked after that; at the end what was being typed.
    pub(crate) fn forth(&mut self) -> Option<&str> {
        let at = self.at? + 1;
        if at < self.entries.len() {
            self.at = Some(at);
            return self.entries.get(at).map(String::as_str);
        }
        self.at = None;
        Some(&self.draft)
    }

    /// Something else was typed.
    pub(crate) fn leave(&mut self) {
        self.at = None;
    }
}

/// Takes these out of what was asked before.
pub(crate) fn forget_asked(home: &Path, texts: &BTreeSet<String>) -> std::io::Result<()> {
    let file = home.join("chat_history.jsonl");
    let Ok(there) = std::fs::read_to_string(&file) else {
        return Ok(());
    };
    let is_kept =
        |line: &&str| serde_json::from_str::<String>(line).is_ok_and(|text| !texts.contains(&text));
    let kept: String = there
        .lines()
        .filter(is_kept)
        .map(|line| format!("{line}\n"))
        .collect();
    if kept.len() == there.len() {
        return Ok(());
    }
    write(&file, &kept, OpenOptions::new().write(true).truncate(true))
}

fn write(file: &Path, text: &str, how: &mut OpenOptions) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        how.mode(0o600);
    }
    how.create(true).open(file)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_looks_back_and_comes_forth_to_what_was_being_typed() {
        let mut history = History::default();
        for text in ["one", "two", "two"] {
            history.add(text);
        }
        assert_eq!(history.back("draft"), Some("two"));
        assert_eq!(history.back("two"), Some("one"));
        assert_eq!(history.back("one"), None);
        assert_eq!(history.forth(), Some("two"));
        assert_eq!(history.forth(), Some("draft"));
        assert_eq!(history.forth(), None);
    }

    #[test]
    fn it_is_kept_for_the_person_alone() {
        let home = tempfile::tempdir().unwrap();
        History::open(Some(home.path())).add("several\nlines");
        let mut history = History::open(Some(home.path()));
        assert_eq!(history.back(""), Some("several\nlines"));
        history.add("another");
        forget_asked(home.path(), &BTreeSet::from(["several\nlines".to_owned()])).unwrap();
        assert_eq!(History::open(Some(home.path())).entries, ["another"]);
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
