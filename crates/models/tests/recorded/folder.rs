//! Recorded answers of real services, where the machine has them.

use std::path::{Path, PathBuf};

use selvedge_protocol::WireApi;

/// One recorded file.
pub struct Recorded {
    pub path: String,
    pub wire: WireApi,
    pub status: u16,
    pub features: Vec<String>,
    /// The answers in it, each as a server would send it.
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
        self.features.iter().any(|own| own == feature)
    }
}

/// The folder, by the environment or beside the checkout.
pub fn folder() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let named = std::env::var_os("SELVEDGE_FIXTURES").map(PathBuf::from);
    let beside = root.canonicalize().ok().and_then(|root| {
        root.ancestors()
            .skip(1)
            .map(|above| above.join("shared/fixtures"))
            .find(|folder| folder.is_dir())
    });
    named
        .or(beside)
        .filter(|folder| folder.join("INDEX.tsv").is_file())
}

/// Everything recorded of the three APIs; nothing where there is no folder, which is said.
pub fn all() -> Vec<Recorded> {
    let Some(folder) = folder() else {
        eprintln!("skipped: no recorded answers here");
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
        "chunks" => (Form::Stream, framed(&String::from_utf8(bytes).unwrap())),
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

/// One event per line, several answers one after the other.
fn framed(text: &str) -> Vec<Vec<u8>> {
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
