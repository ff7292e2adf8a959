//! Reads recorded answers of real services, which are not part of the repository.

use std::path::{Path, PathBuf};

use selvedge_protocol::WireApi;

/// One recorded file.
pub struct Recorded {
    pub path: String,
    pub wire: WireApi,
    pub status: u16,
    pub features: Vec<String>,
    /// The answers in the file, each as a server sends it.
    pub answers: Vec<Vec<u8>>,
    pub form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Stream,
    Body,
}

impl Recorded {
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|name| name == feature)
    }
}

/// Returns the folder of recordings: `SELVEDGE_FIXTURES`, or `shared/fixtures` beside the checkout.
pub fn folder() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let configured = std::env::var_os("SELVEDGE_FIXTURES").map(PathBuf::from);
    let beside = root.canonicalize().ok().and_then(|root| {
        root.ancestors()
            .skip(1)
            .map(|folder| folder.join("shared/fixtures"))
            .find(|folder| folder.is_dir())
    });
    configured
        .or(beside)
        .filter(|folder| folder.join("INDEX.tsv").is_file())
}

/// Returns all recordings of the three APIs. Without a folder, prints that the test is skipped.
pub fn all() -> Vec<Recorded> {
    let Some(folder) = folder() else {
        eprintln!("skipped: no recorded answers found");
        return Vec::new();
    };
    let index = std::fs::read_to_string(folder.join("INDEX.tsv")).unwrap();
    let rows = index
        .lines()
        .skip(1)
        .map(|line| line.split('\t').collect::<Vec<_>>());
    let recorded: Vec<Recorded> = rows.filter_map(|row| read(&folder, &row)).collect();
    assert!(
        recorded.len() > 200,
        "only {} recorded answers",
        recorded.len()
    );
    recorded
}

fn read(folder: &Path, row: &[&str]) -> Option<Recorded> {
    let wire = match row[0].split('/').next()? {
        "openai_responses" => WireApi::Responses,
        "openai_chat" => WireApi::Chat,
        "anthropic_messages" => WireApi::Messages,
        _ => return None,
    };
    let bytes = std::fs::read(folder.join(row[0])).unwrap();
    let (form, answers) = match row[1] {
        "sse" => (Form::Stream, vec![bytes]),
        "json" => (Form::Body, vec![bytes]),
        "chunks" => (Form::Stream, to_sse(&String::from_utf8(bytes).unwrap())),
        other => panic!("{}: unknown kind {other}", row[0]),
    };
    Some(Recorded {
        path: row[0].to_owned(),
        wire,
        status: row[3].parse().unwrap(),
        features: row[13].split(',').map(str::to_owned).collect(),
        answers,
        form,
    })
}

/// Converts a file with one event per line, and several answers, to server-sent events.
fn to_sse(text: &str) -> Vec<Vec<u8>> {
    let mut answers = vec![Vec::new()];
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let last = answers.last_mut().unwrap();
        last.extend_from_slice(format!("data: {line}\n\n").as_bytes());
        if [r#""type":"message_stop""#, r#""type":"response.completed""#]
            .iter()
            .any(|end| line.contains(end))
        {
            answers.push(Vec::new());
        }
    }
    answers.retain(|answer| !answer.is_empty());
    answers
}
