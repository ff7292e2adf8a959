//! Measures how much of the evidence search finds: among the first 5, 10, 20 and 50 turns, and
//! within 2,000 and 4,000 tokens.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, params};
use selvedge_journal::Redactor;
use selvedge_memory::{Encoder, Memory, MemoryQuery, NewTurn, RankWeights, TurnFormat};
use serde_json::Value;

use crate::chats;
use crate::goals::Goals;

/// A conversation of a data set, with questions about it.
pub struct Conversation {
    name: String,
    lines: Vec<BenchLine>,
    /// Each question with the keys of the turns that answer it.
    questions: Vec<(String, BTreeSet<String>)>,
}

struct BenchLine {
    key: String,
    part: Option<String>,
    role: String,
    speaker: Option<String>,
    ts: Option<String>,
    text: String,
    format: TurnFormat,
}

/// Generates synthetic conversations.
pub fn synthetic_conversations() -> Vec<Conversation> {
    let conversation = |seed: u64| {
        let chat = chats::chat(seed, 28);
        let lines = chat.lines.into_iter().map(|line| BenchLine {
            key: line.key,
            part: Some(line.part),
            role: "user".to_owned(),
            speaker: Some(line.speaker),
            ts: Some(line.ts),
            text: line.text,
            format: TurnFormat::Text,
        });
        let questions = chat
            .questions
            .into_iter()
            .map(|question| (question.text, question.evidence.into_iter().collect()));
        Conversation {
            name: format!("synthetic {seed}"),
            lines: lines.collect(),
            questions: questions.collect(),
        }
    };
    (0..10).map(conversation).collect()
}

/// Measures each data set in a folder.
pub fn measure_folder(folder: &str, encoder: Option<&Arc<dyn Encoder>>, goals: &mut Goals) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| {
        eprintln!("error: cannot read {folder}: {error}");
        eprintln!("hint: pass a folder: make bench-memory DATA=dir");
        std::process::exit(2);
    });
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut measured = false;
    for path in &files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let set = match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") => read_locomo(path),
            Some("jsonl") if !name.ends_with(".queries.jsonl") => read_lines(path),
            _ => continue,
        };
        if set
            .iter()
            .any(|conversation| !conversation.questions.is_empty())
        {
            measure(&name, set, encoder, goals);
            measured = true;
        }
    }
    if !measured {
        eprintln!("error: no conversations with questions in {folder}");
        eprintln!("hint: add LoCoMo's locomo10.json, or x.jsonl and x.queries.jsonl");
        std::process::exit(2);
    }
}

/// Reads a file in LoCoMo's format. Questions without evidence, and those without an answer in the
/// conversation (category 5), are omitted.
fn read_locomo(path: &Path) -> Vec<Conversation> {
    let text = std::fs::read_to_string(path).unwrap();
    let Ok(value) = serde_json::from_str::<Value>(&text) else {
        return Vec::new();
    };
    let samples = match value {
        Value::Array(samples) => samples,
        one => vec![one],
    };
    let mut set = Vec::new();
    for (at, sample) in samples.iter().enumerate() {
        let conversation = if sample["conversation"].is_object() {
            &sample["conversation"]
        } else {
            sample
        };
        let mut lines = Vec::new();
        let sessions = (1..)
            .take_while(|n| *n < 2000)
            .map(|n| (n, &conversation[format!("session_{n}")]));
        for (n, session) in sessions.filter(|(_, session)| session.is_array()) {
            let ts = conversation[format!("session_{n}_date_time")]
                .as_str()
                .map(str::to_owned);
            for line in session.as_array().unwrap() {
                let text = line["text"]
                    .as_str()
                    .or(line["clean_text"].as_str())
                    .unwrap_or_default();
                let image = line["blip_caption"]
                    .as_str()
                    .map(|caption| format!(" [image: {caption}]"))
                    .unwrap_or_default();
                lines.push(BenchLine {
                    key: line["dia_id"].as_str().unwrap_or_default().to_owned(),
                    part: Some(format!("session_{n}")),
                    role: "user".to_owned(),
                    speaker: line["speaker"].as_str().map(str::to_owned),
                    ts: ts.clone(),
                    text: format!("{text}{image}"),
                    format: TurnFormat::Text,
                });
            }
        }
        let keys: BTreeSet<&str> = lines.iter().map(|line| line.key.as_str()).collect();
        let mut questions = Vec::new();
        for question in sample["qa"].as_array().into_iter().flatten() {
            if question["category"] == 5 {
                continue;
            }
            let listed = question["evidence"].to_string();
            let evidence: BTreeSet<String> = evidence_ids(&listed)
                .filter(|id| keys.contains(id.as_str()))
                .collect();
            if let (Some(text), false) = (question["question"].as_str(), evidence.is_empty()) {
                questions.push((text.to_owned(), evidence));
            }
        }
        let name = sample["sample_id"]
            .as_str()
            .map_or_else(|| format!("{at}"), str::to_owned);
        set.push(Conversation {
            name,
            lines,
            questions,
        });
    }
    set
}

/// Finds the ids in a text: `D1:3`, also if it is written `D:1:3`.
fn evidence_ids(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !(c.is_ascii_digit() || c == 'D' || c == ':'))
        .filter_map(|word| {
            let rest = word.strip_prefix('D')?;
            let (session, line) = rest.trim_start_matches(':').split_once(':')?;
            let (session, line): (u32, u32) = (
                session.parse().ok()?,
                line.trim_end_matches(':').parse().ok()?,
            );
            Some(format!("D{session}:{line}"))
        })
}

/// Reads a file of Selvedge's own lines and the questions next to it.
fn read_lines(path: &Path) -> Vec<Conversation> {
    let read = |path: &Path| -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    };
    let text_of = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Null => None,
        other => Some(other.to_string()),
    };
    let mut set: Vec<Conversation> = Vec::new();
    for line in read(path) {
        let name = text_of(&line["session"]).unwrap_or_default();
        if !set.iter().any(|conversation| conversation.name == name) {
            set.push(Conversation {
                name: name.clone(),
                lines: Vec::new(),
                questions: Vec::new(),
            });
        }
        let conversation = set
            .iter_mut()
            .find(|conversation| conversation.name == name)
            .unwrap();
        conversation.lines.push(BenchLine {
            key: text_of(&line["turn"]).unwrap_or_default(),
            part: text_of(&line["part"]),
            role: text_of(&line["role"]).unwrap_or_default(),
            speaker: text_of(&line["speaker"]),
            ts: text_of(&line["ts"]),
            text: text_of(&line["text"]).unwrap_or_default(),
            format: match line["form"].as_str() {
                Some("items") => TurnFormat::Items,
                _ => TurnFormat::Text,
            },
        });
    }
    for query in read(&path.with_extension("queries.jsonl")) {
        let name = text_of(&query["session"]).unwrap_or_default();
        let evidence = query["evidence"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(text_of)
            .collect();
        if let Some(conversation) = set
            .iter_mut()
            .find(|conversation| conversation.name == name)
        {
            conversation
                .questions
                .push((text_of(&query["query"]).unwrap_or_default(), evidence));
        }
    }
    set
}

/// Sums of the share of evidence found.
#[derive(Default, Clone)]
struct RecallScore {
    /// Among the first `RESULT_COUNTS` turns.
    by_count: [f64; 4],
    /// Within `TOKEN_BUDGETS` tokens.
    by_budget: [f64; 2],
    questions: f64,
}

/// Numbers of turns among which evidence is counted.
const RESULT_COUNTS: [usize; 4] = [5, 10, 20, 50];
/// The share of the evidence among the first ten turns that is demanded, in per cent.
const KEYWORD_GOAL: f64 = 75.0;
/// The same with vectors.
const VECTOR_GOAL: f64 = 78.0;
/// Token budgets within which evidence is counted.
const TOKEN_BUDGETS: [u32; 2] = [2000, 4000];

impl RecallScore {
    fn add(
        &mut self,
        evidence: &BTreeSet<String>,
        ranking: &[String],
        within_budget: [&[String]; 2],
    ) {
        let share = |found: &[String]| {
            found.iter().filter(|key| evidence.contains(*key)).count() as f64
                / evidence.len() as f64
        };
        for (sum, k) in self.by_count.iter_mut().zip(RESULT_COUNTS) {
            *sum += share(&ranking[..k.min(ranking.len())]);
        }
        for (sum, within_budget) in self.by_budget.iter_mut().zip(within_budget) {
            *sum += share(within_budget);
        }
        self.questions += 1.0;
    }

    /// Returns the share of the evidence among the first ten turns, in per cent.
    fn share_of_ten(&self) -> f64 {
        100.0 * self.by_count[1] / self.questions.max(1.0)
    }

    /// Prints a row of the table, in per cent.
    fn print_row(&self, name: &str) {
        let cell = |sum: &f64| format!("{:>6.1}", 100.0 * sum / self.questions.max(1.0));
        let cells: Vec<String> = self
            .by_count
            .iter()
            .chain(&self.by_budget)
            .map(cell)
            .collect();
        println!("| {name:<38} | {} |", cells.join(" | "));
    }
}

/// Measures a data set and prints its table. Without an encoder, the built-in one is used, if there
/// is one.
pub fn measure(
    name: &str,
    set: Vec<Conversation>,
    encoder: Option<&Arc<dyn Encoder>>,
    goals: &mut Goals,
) {
    let home = tempfile::tempdir().unwrap();
    let memory = Memory::open(home.path(), Redactor::new([])).unwrap();
    let memory = match encoder {
        Some(encoder) => memory.with_encoder(encoder.clone()),
        None => memory.with_built_in_encoder(),
    };
    let has_vectors = encoder.is_some() || cfg!(feature = "pocket");
    let (mut fts5, mut bm25, mut full, mut vectors) = (
        RecallScore::default(),
        RecallScore::default(),
        RecallScore::default(),
        RecallScore::default(),
    );
    let mut halves = [RecallScore::default(), RecallScore::default()];
    let mut raw = RecallScore::default();
    let turns: usize = set
        .iter()
        .map(|conversation| conversation.lines.len())
        .sum();
    for (at, conversation) in set.iter().enumerate() {
        let keys: Vec<String> = conversation
            .lines
            .iter()
            .map(|line| Value::from(line.key.clone()).to_string())
            .collect();
        let lines = conversation.lines.iter().zip(&keys).map(|(line, key)| {
            let turn = NewTurn {
                key: Some(key),
                speaker: line.speaker.as_deref(),
                part: line.part.as_deref(),
                ts: line.ts.as_deref(),
                format: line.format,
                ..NewTurn::text(&line.role, &line.text)
            };
            (conversation.name.as_str(), turn)
        });
        memory.append_all(lines).unwrap();
        while memory
            .write_levels(Some(&conversation.name))
            .unwrap()
            .remaining_turns
            > 0
        {}
        while memory.write_vectors(&conversation.name).unwrap() > 0 {}
        let peer = Fts5Index::new(&conversation.lines);
        for (question, evidence) in &conversation.questions {
            let (ranking, within_budget) = peer.rank(question, &conversation.lines);
            fts5.add(evidence, &ranking, [&within_budget[0], &within_budget[1]]);
            let rows = [
                (&mut bm25, RankWeights::BM25),
                (&mut full, RankWeights::KEYWORDS),
                (&mut vectors, RankWeights::default()),
            ];
            for (score, weights) in rows.into_iter().take(if has_vectors { 3 } else { 2 }) {
                let query = MemoryQuery {
                    max_turns: 50,
                    weights,
                    ..MemoryQuery::new(question).in_session(&conversation.name)
                };
                let ranking = search_keys(&memory, &query);
                let within_budget = TOKEN_BUDGETS.map(|budget| {
                    search_keys(
                        &memory,
                        &MemoryQuery {
                            max_turns: usize::MAX,
                            budget: Some(budget),
                            ..query.clone()
                        },
                    )
                });
                score.add(evidence, &ranking, [&within_budget[0], &within_budget[1]]);
                if weights == RankWeights::KEYWORDS {
                    halves[at % 2].add(evidence, &ranking, [&within_budget[0], &within_budget[1]]);
                    let all = search_keys(
                        &memory,
                        &MemoryQuery {
                            max_turns: 400,
                            ..query.clone()
                        },
                    );
                    let raw_within_budget =
                        TOKEN_BUDGETS.map(|budget| peer.fit_budget(&all, budget));
                    raw.add(
                        evidence,
                        &ranking,
                        [&raw_within_budget[0], &raw_within_budget[1]],
                    );
                }
            }
        }
    }
    println!(
        "\n{name}: {} conversations, {turns} turns, {} questions\n",
        set.len(),
        full.questions
    );
    println!(
        "| {:<38} |   R@5 |  R@10 |  R@20 |  R@50 |  @2kt |  @4kt |",
        "evidence found, in per cent"
    );
    println!("|{}|{}", "-".repeat(40), "-------:|".repeat(6));
    fts5.print_row("FTS5 (porter, without stop words)");
    bm25.print_row("selvedge, BM25 only");
    full.print_row("selvedge");
    let row = format!("R@10 on {name}, keywords");
    goals.add_share(&row, full.share_of_ten(), KEYWORD_GOAL);
    let row = format!("R@10 on {name}, vectors");
    if has_vectors {
        vectors.print_row("selvedge, with vectors");
        goals.add_share(&row, vectors.share_of_ten(), VECTOR_GOAL);
    } else {
        goals.add_missing(&row, "pass ENCODER=… or FEATURES=pocket");
    }
    raw.print_row("selvedge, raw turns without tags");
    if set.len() > 1 {
        halves[0].print_row("selvedge, even conversations");
        halves[1].print_row("selvedge, odd conversations");
    }
}

/// Searches, and returns the keys of the turns found.
fn search_keys(memory: &Memory, query: &MemoryQuery<'_>) -> Vec<String> {
    let hits = memory.search(query).unwrap();
    hits.into_iter()
        .filter_map(|hit| serde_json::from_str(&hit.key?).ok())
        .collect()
}

/// FTS5 over one conversation, for comparison.
struct Fts5Index {
    connection: Connection,
    tokens: std::collections::HashMap<String, u32>,
}

impl Fts5Index {
    fn new(lines: &[BenchLine]) -> Self {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch("CREATE VIRTUAL TABLE t USING fts5(text, tokenize = 'porter unicode61')")
            .unwrap();
        let mut tokens = std::collections::HashMap::new();
        for (at, line) in lines.iter().enumerate() {
            connection
                .execute(
                    "INSERT INTO t (rowid, text) VALUES (?1, ?2)",
                    params![at as i64, line.text],
                )
                .unwrap();
            tokens.insert(line.key.clone(), selvedge_tokens::count(&line.text) as u32);
        }
        Self { connection, tokens }
    }

    /// Returns the keys of the best lines, and those that fit into each token budget.
    fn rank(&self, question: &str, lines: &[BenchLine]) -> (Vec<String>, [Vec<String>; 2]) {
        let words: Vec<String> = question
            .split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty() && !STOP_WORDS.contains(&word.to_lowercase().as_str()))
            .map(|word| format!("\"{word}\""))
            .collect();
        let mut read = self
            .connection
            .prepare_cached("SELECT rowid FROM t WHERE t MATCH ?1 ORDER BY rank LIMIT 400")
            .unwrap();
        let rows = read.query_map(params![words.join(" OR ")], |row| row.get::<_, i64>(0));
        let ranking: Vec<String> = rows
            .unwrap()
            .filter_map(Result::ok)
            .map(|at| lines[at as usize].key.clone())
            .collect();
        let within_budget = TOKEN_BUDGETS.map(|budget| self.fit_budget(&ranking, budget));
        (ranking, within_budget)
    }

    /// Returns the first keys of a ranking whose lines fit into a budget in full.
    fn fit_budget(&self, ranking: &[String], budget: u32) -> Vec<String> {
        let mut left = budget;
        let fits = |key: &&String| {
            let rest = left.checked_sub(self.tokens.get(*key).copied().unwrap_or(0));
            left = rest.unwrap_or(left);
            rest.is_some()
        };
        ranking.iter().take_while(fits).cloned().collect()
    }
}

const STOP_WORDS: &[&str] = &[
    "a", "about", "after", "all", "am", "an", "and", "any", "are", "as", "at", "be", "because",
    "been", "before", "being", "between", "both", "but", "by", "can", "could", "did", "do", "does",
    "doing", "down", "during", "each", "for", "from", "had", "has", "have", "having", "he", "her",
    "hers", "him", "his", "how", "i", "if", "in", "into", "is", "it", "its", "just", "me", "more",
    "most", "my", "no", "not", "of", "off", "on", "once", "only", "or", "other", "our", "out",
    "over", "own", "s", "same", "she", "should", "so", "some", "such", "t", "than", "that", "the",
    "their", "them", "then", "there", "these", "they", "this", "those", "through", "to", "too",
    "under", "until", "up", "very", "was", "we", "were", "what", "when", "where", "which", "while",
    "who", "whom", "why", "will", "with", "would", "you", "your",
];
