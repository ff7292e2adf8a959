//! `make bench-memory DATA=dir`: how much of the evidence is found, beside FTS5 alone, and how fast.
//!
//! The folder may hold conversations in the format of LoCoMo (`*.json`: a list of `{conversation, qa}`), and lines of
//! our own with questions beside them (`x.jsonl` and `x.queries.jsonl`: `{"id","query","session","evidence":[…]}`).
//! Without a folder, conversations that nobody had are made up. `--speed` measures times instead.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../tests/chats/mod.rs"]
mod chats;
mod quality;
mod speed;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--speed", ref sizes @ ..] => speed::measure(sizes),
        [] => quality::measure("made up", quality::made_up()),
        [folder] => quality::of_folder(folder),
        _ => {
            eprintln!("usage: bench_memory [FOLDER | --speed [TURNS…]]");
            std::process::exit(2);
        }
    }
}
