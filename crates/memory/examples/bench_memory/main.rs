//! `make bench-memory DATA=dir`: measures how much of the evidence search finds, compared with FTS5
//! alone, and how fast it is.
//!
//! A folder contains conversations in the format of LoCoMo (`*.json`: a list of
//! `{conversation, qa}`), or Selvedge's own lines with a file of questions (`x.jsonl` and
//! `x.queries.jsonl`: `{"id","query","session","evidence":[…]}`). Synthetic conversations are
//! measured, too. `--speed` measures times instead, `--levels` the lower levels of recorded turns.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../tests/chats/mod.rs"]
mod chats;
mod levels;
mod quality;
mod speed;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--speed", ref sizes @ ..] => speed::measure(sizes),
        ["--levels", file] => levels::measure(file.as_ref(), false),
        ["--levels", file, "--show"] => levels::measure(file.as_ref(), true),
        ref folders if folders.iter().all(|folder| !folder.starts_with('-')) => {
            quality::measure("synthetic", quality::synthetic_conversations());
            folders
                .iter()
                .for_each(|folder| quality::measure_folder(folder));
        }
        _ => {
            eprintln!("usage: bench_memory [FOLDER… | --speed [TURNS…] | --levels FILE [--show]]");
            std::process::exit(2);
        }
    }
}
