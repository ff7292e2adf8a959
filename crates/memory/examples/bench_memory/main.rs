//! `make bench-memory DATA=dir`: measures how much of the evidence search finds, compared with FTS5
//! alone, and how fast it is.
//!
//! A folder contains conversations in the format of LoCoMo (`*.json`: a list of
//! `{conversation, qa}`), or Selvedge's own lines with a file of questions (`x.jsonl` and
//! `x.queries.jsonl`: `{"id","query","session","evidence":[…]}`). Synthetic conversations are
//! measured, too. With `--encoder COMMAND` (see `program_encoder`), or the feature `pocket`, recall
//! with vectors is printed as well. `--speed` measures times, with `--store` those of searches in a
//! PostgreSQL database, `--levels` the lower levels of recorded turns.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../tests/chats/mod.rs"]
mod chats;
mod levels;
mod program_encoder;
mod quality;
mod speed;

use std::sync::Arc;

use program_encoder::ProgramEncoder;
use selvedge_memory::Encoder;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--speed", "--store", address, ref sizes @ ..] => {
            speed::measure_in_database(address, sizes);
        }
        ["--speed", ref sizes @ ..] => speed::measure(sizes),
        ["--levels", file] => levels::measure(file.as_ref(), false),
        ["--levels", file, "--show"] => levels::measure(file.as_ref(), true),
        ["--encoder", command, ref folders @ ..] => match ProgramEncoder::start(command) {
            Ok(encoder) => measure_recall(folders, Some(Arc::new(encoder))),
            Err(error) => {
                eprintln!("error: cannot run `{command}`: {error}");
                std::process::exit(2);
            }
        },
        ref folders if folders.iter().all(|folder| !folder.starts_with('-')) => {
            measure_recall(folders, None);
        }
        _ => {
            eprintln!(
                "usage: bench_memory [--encoder COMMAND] [FOLDER…] | \
                 --speed [--store postgres://…] [TURNS…] | --levels FILE [--show]"
            );
            std::process::exit(2);
        }
    }
}

fn measure_recall(folders: &[&str], encoder: Option<Arc<dyn Encoder>>) {
    let synthetic = quality::synthetic_conversations();
    quality::measure("synthetic", synthetic, encoder.as_ref());
    for folder in folders {
        quality::measure_folder(folder, encoder.as_ref());
    }
}
