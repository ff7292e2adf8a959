//! `make bench-memory DATA=dir`: measures what the levels of turns still name, how much of the
//! evidence search finds, compared with FTS5 alone, and how fast it is.
//!
//! A folder contains conversations in the format of LoCoMo (`*.json`: a list of
//! `{conversation, qa}`), or Selvedge's own lines with a file of questions (`x.jsonl` and
//! `x.queries.jsonl`: `{"id","query","session","evidence":[…]}`). Synthetic conversations are
//! measured, too. With `--encoder COMMAND` (see `program_encoder`), or the feature `pocket`, recall
//! with vectors is printed as well. `--speed` measures times, with `--store` those of searches in a
//! PostgreSQL database, `--levels` the lower levels of recorded turns. A table at the end compares
//! all numbers with the goals.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../tests/chats/mod.rs"]
mod chats;
mod goals;
mod levels;
mod program_encoder;
mod quality;
mod speed;

use std::sync::Arc;

use goals::Goals;
use program_encoder::ProgramEncoder;
use selvedge_memory::Encoder;

/// What to measure.
#[derive(Default)]
struct BenchArgs {
    /// The file of recorded turns, for their levels.
    levels: Option<String>,
    /// Whether the levels of every turn are printed.
    show: bool,
    /// Whether recall is measured.
    recall: bool,
    /// The command of the encoder.
    encoder: Option<String>,
    /// Folders with data sets.
    folders: Vec<String>,
    /// Whether times are measured.
    speed: bool,
    /// The PostgreSQL database in which times are measured, instead of a file.
    store: Option<String>,
    /// Numbers of turns among which searches are measured.
    sizes: Vec<usize>,
}

impl BenchArgs {
    /// Parses the arguments; `None` if they are wrong.
    fn parse(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let mut parsed = Self::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--levels" => parsed.levels = Some(args.next()?),
                "--show" => parsed.show = true,
                "--recall" => parsed.recall = true,
                "--encoder" => parsed.encoder = Some(args.next()?),
                "--speed" => parsed.speed = true,
                "--store" => parsed.store = Some(args.next()?),
                "--turns" => parsed.sizes.push(args.next()?.parse().ok()?),
                option if option.starts_with('-') => return None,
                folder => parsed.folders.push(folder.to_owned()),
            }
        }
        parsed.recall |= !parsed.folders.is_empty() || parsed.encoder.is_some();
        parsed.recall |= parsed.levels.is_none() && !parsed.speed;
        Some(parsed)
    }
}

fn main() {
    let Some(args) = BenchArgs::parse(std::env::args().skip(1)) else {
        eprintln!(
            "usage: bench_memory [--levels FILE [--show]] [--recall] [--encoder COMMAND] \
             [--speed [--store postgres://…] [--turns COUNT]…] [FOLDER…]"
        );
        std::process::exit(2);
    };
    let mut goals = Goals::default();
    if let Some(file) = &args.levels {
        levels::measure(file.as_ref(), args.show, &mut goals);
    }
    if args.recall {
        measure_recall(&args, &mut goals);
    }
    if args.speed {
        print_program_size();
        match &args.store {
            Some(address) => speed::measure_in_database(address, &args.sizes, &mut goals),
            None => speed::measure(&args.sizes, &mut goals),
        }
    }
    goals.print();
}

fn measure_recall(args: &BenchArgs, goals: &mut Goals) {
    let encoder: Option<Arc<dyn Encoder>> = args.encoder.as_ref().map(|command| {
        let started = ProgramEncoder::start(command).unwrap_or_else(|error| {
            eprintln!("error: cannot run `{command}`: {error}");
            std::process::exit(2);
        });
        Arc::new(started) as Arc<dyn Encoder>
    });
    let synthetic = quality::synthetic_conversations();
    quality::measure("synthetic", synthetic, encoder.as_ref(), goals);
    for folder in &args.folders {
        quality::measure_folder(folder, encoder.as_ref(), goals);
    }
    if args.folders.is_empty() {
        goals.add_missing("R@10 on conversations of people", "pass DATA=dir");
    }
}

/// Prints the size of this program, which tells what the built-in encoder adds to a binary.
fn print_program_size() {
    let encoder = match cfg!(feature = "pocket") {
        true => "with the built-in encoder",
        false => "without the built-in encoder",
    };
    let size = std::env::current_exe().and_then(|program| program.metadata());
    let size = size.map_or(0.0, |file| file.len() as f64 / 1e6);
    println!("\nthis program, {encoder}: {size:.1} MB");
}
