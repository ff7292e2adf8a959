//! Measures times: search among 100,000 and 1,000,000 turns, appending a turn to a short and to a
//! long session, and assembling the history of a prompt.

use std::sync::Arc;
use std::time::Instant;

use rusqlite::{Connection, params};
use selvedge_database::PostgresUrl;
use selvedge_journal::{JournalLocation, Redactor};
use selvedge_memory::{
    Encoder, GradientOptions, Memory, MemoryError, MemoryQuery, NewTurn, PlanStorage,
};

use crate::chats::{SeededRandom, chat};
use crate::goals::Goals;

/// The time within which 95 of 100 searches among [`GOAL_TURNS`] must end, in milliseconds.
const SEARCH_GOAL_MS: f64 = 15.0;
/// The same in a PostgreSQL database.
const DATABASE_SEARCH_GOAL_MS: f64 = 50.0;
/// The number of turns for which the goals hold.
const GOAL_TURNS: usize = 100_000;

/// Runs all measurements. `sizes` are the numbers of turns for the searches.
pub fn measure(sizes: &[usize], goals: &mut Goals) {
    let sizes = match sizes {
        [] => &[GOAL_TURNS, 1_000_000],
        some => some,
    };
    measure_append();
    measure_assembly();
    for size in sizes {
        measure_search(*size, goals);
    }
    if let Some(size) = sizes.first() {
        measure_vectors((*size).min(MAX_VECTOR_TURNS), goals);
    }
    #[cfg(feature = "pocket")]
    measure_built_in_encoder();
}

/// Measures how long the built-in encoder takes for the first question of a process, which loads
/// it, and for later ones.
#[cfg(feature = "pocket")]
fn measure_built_in_encoder() {
    let encoder = selvedge_memory::PocketEncoder::new();
    let question = "Which database does the staging server use?";
    let mut first = DurationSamples::default();
    first.add(|| _ = std::hint::black_box(encoder.encode_question(question).unwrap()));
    println!("\nbuilt-in encoder");
    first.print("first question of a process");
    let mut later = DurationSamples::default();
    for _ in 0..50 {
        later.add(|| _ = std::hint::black_box(encoder.encode_question(question).unwrap()));
    }
    later.print("later questions");
}

/// Adds the goal of searches among so many turns, if it holds for them.
fn add_goal(goals: &mut Goals, name: &str, size: usize, p95_ms: f64) {
    if size <= GOAL_TURNS {
        let name = format!("p95 of a search among {size} turns, {name}");
        goals.add_time(&name, p95_ms, SEARCH_GOAL_MS);
    }
}

/// Measures searches in a PostgreSQL database, in a schema of its own that is removed afterwards.
pub fn measure_in_database(address: &str, sizes: &[usize], goals: &mut Goals) {
    let address: PostgresUrl = match address.parse() {
        Ok(address) => address,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::exit(2);
        }
    };
    let sizes = match sizes {
        [] => &[GOAL_TURNS],
        some => some,
    };
    for &size in sizes {
        let home = tempfile::tempdir().unwrap();
        let schema = format!("bench_memory_{}_{size}", std::process::id());
        let location = JournalLocation::postgres(home.path(), address.with_schema(&schema));
        let memory = Memory::open(&location, Redactor::new([])).unwrap();
        let (words, mut random) = (ZipfWords::new(40_000), SeededRandom(1));
        let stored = fill(&memory, size, &words, &mut random);
        println!("\n{stored} in {}", address.label());
        for (name, session) in SEARCHES {
            let mut times = DurationSamples::default();
            for _ in 0..MEASURED_SEARCHES {
                let question = words.random_question(&mut random);
                let query = search_query(&question, session);
                times.add(|| _ = std::hint::black_box(memory.search(&query).unwrap()));
            }
            let p95_ms = times.print(name);
            let name = format!("p95 of a search among {size} turns in PostgreSQL, {name}");
            goals.add_time(&name, p95_ms, DATABASE_SEARCH_GOAL_MS);
        }
        measure_search_after_append(&memory, &words, &mut random);
        drop(memory);
        let connection = selvedge_database::Connection::open_postgres(&address).unwrap();
        let drop_schema = format!("DROP SCHEMA {schema} CASCADE");
        connection.execute_batch(&drop_schema).unwrap();
    }
}

/// The searches that are measured, each with the session that it covers.
const SEARCHES: [(&str, Option<&str>); 2] = [
    ("in one session", Some("long")),
    ("in the whole store", None),
];
const MEASURED_SEARCHES: usize = 200;

fn search_query<'a>(question: &'a str, session: Option<&'a str>) -> MemoryQuery<'a> {
    MemoryQuery {
        session,
        max_turns: 50,
        ..MemoryQuery::new(question)
    }
}

/// Turns of the measurement with vectors. Their levels are written first, which takes a while.
const MAX_VECTOR_TURNS: usize = 100_000;
/// Dimensions of the vectors, as those of the built-in encoder.
const DIMENSIONS: usize = 384;

/// An encoder that takes no time: a vector from a hash of the text.
#[derive(Debug)]
struct HashEncoder;

impl Encoder for HashEncoder {
    fn name(&self) -> &str {
        "hash"
    }

    fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, MemoryError> {
        let vector = |text: &&str| {
            let seed = text.bytes().fold(1, |sum: u64, byte| {
                sum.wrapping_mul(31).wrapping_add(u64::from(byte))
            });
            let mut random = SeededRandom(seed | 1);
            let number = |_| random.below(2000) as f32 - 1000.0;
            (0..DIMENSIONS).map(number).collect()
        };
        Ok(texts.iter().map(vector).collect())
    }
}

fn measure_vectors(size: usize, goals: &mut Goals) {
    let home = tempfile::tempdir().unwrap();
    let memory = Memory::open(home.path(), Redactor::new([]))
        .unwrap()
        .with_encoder(Arc::new(HashEncoder));
    let words = ZipfWords::new(40_000);
    let mut random = SeededRandom(3);
    let texts: Vec<String> = (0..size).map(|_| words.random_text(&mut random)).collect();
    for (at, texts) in texts.chunks(2000).enumerate() {
        let part = at.to_string();
        let turns = texts.iter().map(|text| {
            let part = Some(part.as_str());
            (
                "long",
                NewTurn {
                    part,
                    ..NewTurn::text("user", text)
                },
            )
        });
        memory.append_all(turns).unwrap();
    }
    while memory.write_vectors("long").unwrap() > 0 {}
    let mut times = DurationSamples::default();
    for _ in 0..200 {
        let question = words.random_question(&mut random);
        let query = MemoryQuery {
            max_turns: 50,
            ..MemoryQuery::new(&question).in_session("long")
        };
        times.add(|| _ = std::hint::black_box(memory.search(&query).unwrap()));
    }
    println!("\n{size} turns with vectors of {DIMENSIONS} dimensions");
    let p95_ms = times.print("search in the session");
    add_goal(goals, "with vectors", size, p95_ms);
}

/// A vocabulary with a Zipf distribution: the n-th word has a share of 1/n.
struct ZipfWords {
    words: Vec<String>,
    cumulative_shares: Vec<f64>,
}

impl ZipfWords {
    fn new(count: usize) -> Self {
        let syllables = [
            "ka", "lo", "mi", "ren", "tos", "vu", "pa", "dri", "sel", "no", "gar", "bi", "ta",
            "che", "zon", "fe",
        ];
        let mut random = SeededRandom(5);
        let word = |_| {
            (0..2 + random.below(3))
                .map(|_| random.pick(&syllables))
                .collect::<String>()
        };
        let words = (0..count).map(word).collect();
        let mut sum = 0.0;
        let sums = (1..=count).map(|n| {
            sum += 1.0 / n as f64;
            sum
        });
        Self {
            words,
            cumulative_shares: sums.collect(),
        }
    }

    fn pick(&self, random: &mut SeededRandom) -> &str {
        let all = self.cumulative_shares.last().unwrap();
        let at = random.below(1 << 30) as f64 / f64::from(1 << 30) * all;
        &self.words[self
            .cumulative_shares
            .partition_point(|sum| *sum < at)
            .min(self.words.len() - 1)]
    }

    /// Generates a question. The hundred most frequent words count as stop words and are omitted.
    fn random_question(&self, random: &mut SeededRandom) -> String {
        let mut question = Vec::new();
        let length = 4 + random.below(8);
        while question.len() < length {
            let word = self.pick(random);
            if self.words[..100].iter().all(|common| common != word) {
                question.push(word);
            }
        }
        question.join(" ")
    }

    fn random_text(&self, random: &mut SeededRandom) -> String {
        let length = 8 + random.below(40);
        (0..length)
            .map(|_| self.pick(random))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// Stores turns of one session, and returns how long it took, for people.
fn fill(memory: &Memory, size: usize, words: &ZipfWords, random: &mut SeededRandom) -> String {
    let start = Instant::now();
    let mut stored = 0;
    while stored < size {
        let texts: Vec<(String, String)> = (0..2000.min(size - stored))
            .map(|at| (words.random_text(random), ((stored + at) / 25).to_string()))
            .collect();
        let turns = texts.iter().map(|(text, part)| {
            (
                "long",
                NewTurn {
                    part: Some(part),
                    ..NewTurn::text("user", text)
                },
            )
        });
        stored += memory.append_all(turns).unwrap().len();
    }
    let took = start.elapsed().as_secs_f64();
    let rate = size as f64 / took;
    format!("{size} turns stored in {took:.1} s ({rate:.0}/s)")
}

fn measure_search(size: usize, goals: &mut Goals) {
    let home = tempfile::tempdir().unwrap();
    let memory = Memory::open(home.path(), Redactor::new([])).unwrap();
    let words = ZipfWords::new(40_000);
    let mut random = SeededRandom(1);
    let stored = fill(&memory, size, &words, &mut random);
    let file = home.path().join("journal.sqlite").metadata().unwrap().len();
    println!("\n{stored}, file {} MB", file >> 20);
    let peer = Connection::open(home.path().join("fts5.sqlite")).unwrap();
    fill_fts5(&peer, home.path());
    for (name, session) in SEARCHES {
        // Interleaved, so that load from other programs affects both.
        let (mut ours, mut theirs) = (DurationSamples::default(), DurationSamples::default());
        for _ in 0..MEASURED_SEARCHES {
            let question = words.random_question(&mut random);
            let query = search_query(&question, session);
            ours.add(|| _ = std::hint::black_box(memory.search(&query).unwrap()));
            theirs.add(|| {
                let any = question
                    .split(' ')
                    .map(|word| format!("\"{word}\""))
                    .collect::<Vec<_>>()
                    .join(" OR ");
                let sql = "SELECT rowid FROM t WHERE t MATCH ?1 ORDER BY rank LIMIT 50";
                let mut read = peer.prepare_cached(sql).unwrap();
                std::hint::black_box(
                    read.query_map(params![any], |row| row.get::<_, i64>(0))
                        .unwrap()
                        .count(),
                );
            });
        }
        let p95_ms = ours.print(name);
        add_goal(goals, &format!("keywords, {name}"), size, p95_ms);
        theirs.print("  FTS5 alone, interleaved");
    }
    let p95_ms = measure_search_after_append(&memory, &words, &mut random);
    add_goal(goals, "keywords, after each appended turn", size, p95_ms);
}

/// As in an agent: a search after each appended turn, which refreshes the cached scope. Returns the
/// 95th percentile in milliseconds.
fn measure_search_after_append(
    memory: &Memory,
    words: &ZipfWords,
    random: &mut SeededRandom,
) -> f64 {
    let mut times = DurationSamples::default();
    for _ in 0..100 {
        let text = words.random_text(random);
        memory
            .append("long", &NewTurn::text("user", &text))
            .unwrap();
        let question = words.random_question(random);
        let query = search_query(&question, Some("long"));
        times.add(|| _ = std::hint::black_box(memory.search(&query).unwrap()));
    }
    times.print("after each appended turn")
}

fn fill_fts5(peer: &Connection, home: &std::path::Path) {
    let store = home.join("journal.sqlite");
    peer.execute_batch(&format!(
        "PRAGMA journal_mode = wal; PRAGMA synchronous = normal; ATTACH '{}' AS store;
         CREATE VIRTUAL TABLE t USING fts5(text, content = '', tokenize = 'porter unicode61');
         INSERT INTO t (rowid, text) SELECT id & 4294967295, substr(raw, 2) FROM store.memory_turns;
         DETACH store;",
        store.display()
    ))
    .unwrap();
}

/// Durations in milliseconds: wall time, and CPU time, which other programs do not affect.
#[derive(Default)]
struct DurationSamples {
    wall: Vec<f64>,
    cpu: Vec<f64>,
}

impl DurationSamples {
    fn add(&mut self, work: impl FnOnce()) {
        let (start, before) = (Instant::now(), cpu_ms());
        work();
        self.cpu.push(cpu_ms() - before);
        self.wall.push(start.elapsed().as_secs_f64() * 1000.0);
    }

    /// Prints the samples, and returns the wall time that 95 of 100 do not exceed.
    fn print(mut self, name: &str) -> f64 {
        let mut at = |share: f64| {
            [&mut self.wall, &mut self.cpu].map(|times| {
                times.sort_by(f64::total_cmp);
                times[((times.len() - 1) as f64 * share) as usize]
            })
        };
        let ([p50, cpu50], [p95, cpu95]) = (at(0.5), at(0.95));
        println!(
            "{name:<32} p50 {p50:>7.2} ms, p95 {p95:>7.2} ms; \
             CPU p50 {cpu50:>7.2} ms, p95 {cpu95:>7.2} ms"
        );
        p95
    }
}

/// Returns the CPU time of this thread in milliseconds; 0 if the system does not report it.
fn cpu_ms() -> f64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    schedstat
        .split(' ')
        .next()
        .and_then(|ns| ns.parse::<f64>().ok())
        .unwrap_or(0.0)
        / 1e6
}

fn measure_append() {
    let home = tempfile::tempdir().unwrap();
    let memory = Memory::open(home.path(), Redactor::new([])).unwrap();
    let lines = chat(3, 600).lines;
    let mut text = lines.iter().map(|line| line.text.as_str()).cycle();
    let mut time = |session: &str, memory: &Memory| {
        let text = text.next().unwrap();
        let start = Instant::now();
        memory
            .append(session, &NewTurn::text("user", text))
            .unwrap();
        start.elapsed().as_secs_f64() * 1000.0
    };
    for _ in 0..10_000 {
        time("long", &memory);
    }
    // Interleaved, so that load from other programs affects both.
    let (mut short, mut long) = (Vec::new(), Vec::new());
    for n in 0..400 {
        if n % 10 == 0 {
            (0..10).for_each(|_| _ = time(&format!("short {n}"), &memory));
        }
        short.push(time(&format!("short {}", n / 10 * 10), &memory));
        long.push(time("long", &memory));
    }
    short.sort_by(f64::total_cmp);
    long.sort_by(f64::total_cmp);
    let (short, long) = (short[200], long[200]);
    println!(
        "appending a turn: {short:.3} ms after 10 turns, {long:.3} ms after 10,000, ratio {:.2}",
        long / short
    );
}

fn measure_assembly() {
    let home = tempfile::tempdir().unwrap();
    let memory = Memory::open(home.path(), Redactor::new([])).unwrap();
    let words = ZipfWords::new(20_000);
    let mut random = SeededRandom(2);
    for _ in 0..1000 {
        let text = (0..6)
            .map(|_| words.random_text(&mut random))
            .collect::<Vec<_>>()
            .join(". ");
        memory.append("s", &NewTurn::text("user", &text)).unwrap();
    }
    while memory.write_levels(None).unwrap().remaining_turns > 0 {}
    let strategy = GradientOptions::new(100_000);
    let mut planning = Vec::new();
    for _ in 0..50 {
        let start = Instant::now();
        std::hint::black_box(
            memory
                .assemble("s", strategy, PlanStorage::Discard)
                .unwrap(),
        );
        planning.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    memory.assemble("s", strategy, PlanStorage::Store).unwrap();
    let mut pinned = Vec::new();
    for _ in 0..50 {
        let start = Instant::now();
        std::hint::black_box(memory.board("s").unwrap());
        std::hint::black_box(memory.assemble("s", strategy, PlanStorage::Store).unwrap());
        pinned.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    planning.sort_by(f64::total_cmp);
    pinned.sort_by(f64::total_cmp);
    println!(
        "1,000 turns within 100,000 tokens: planned in {:.1} ms (p95 {:.1}), \
         board and pinned text in {:.1} ms (p95 {:.1})",
        planning[25], planning[47], pinned[25], pinned[47]
    );
}
