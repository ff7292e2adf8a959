//! Short fuzz tests of the parts that untrusted text reaches first: the detector, the compiler, and
//! values that cross the sandbox. `make fuzz` runs longer, with coverage.
#![allow(clippy::unwrap_used, missing_docs)]

mod pieces;
mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use pieces::{AMBIGUOUS_PIECES, PIECES, TYPE_PIECES, TYPE_STATEMENTS};
use selvedge_script::detect::{BlockDetector, detect, merge_text};
use selvedge_script::{ParseWork, ScriptCompiler};
use serde_json::Value;
use support::{TestFixture, run_on_thread};

/// Time for each of the tests.
fn budget() -> Duration {
    let seconds = std::env::var("FUZZ_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse::<u64>().ok())
        .unwrap_or(30);
    Duration::from_secs(seconds) / 6
}

/// The seed unless `FUZZ_SEED` is set: the same inputs in every run. `make fuzz` sets another one.
const DEFAULT_SEED: u64 = 0x5e1f_ed6e;

/// A random number generator. The same seed gives the same inputs, so that a failure can be
/// repeated.
struct ScriptRandom(u64);

impl ScriptRandom {
    fn new() -> Self {
        let seed = std::env::var("FUZZ_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or(DEFAULT_SEED);
        println!("FUZZ_SEED={seed}");
        Self(seed | 1)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

fn seeds() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut seeds = vec![String::new()];
    for name in ["models.md", "hostile.md"] {
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        let blocks = text
            .split("\n```ts\n")
            .skip(1)
            .filter_map(|rest| rest.split_once("\n```").map(|(code, _)| code.to_owned()));
        seeds.extend(blocks.filter(|code| code.len() < 4000));
    }
    seeds
}

/// Mutates a seed: inserts pieces and parts of other seeds, and removes parts.
fn mutate(random: &mut ScriptRandom, seeds: &[String]) -> String {
    let mut text: Vec<char> = random.pick(seeds).chars().collect();
    for _ in 0..1 + random.below(6) {
        let at = random.below(text.len() + 1);
        match random.below(5) {
            0 | 1 => _ = text.splice(at..at, random.pick(PIECES).chars()),
            2 => {
                let end = (at + random.below(40)).min(text.len());
                text.drain(at..end);
            }
            3 => {
                let other: Vec<char> = random.pick(seeds).chars().collect();
                let start = random.below(other.len() + 1);
                let end = (start + random.below(200)).min(other.len());
                text.splice(at..at, other[start..end].iter().copied());
            }
            _ => {
                let piece: Vec<char> = random.pick(PIECES).chars().collect();
                let times = 1 + random.below(300);
                text.splice(
                    at..at,
                    piece.iter().copied().cycle().take(piece.len() * times),
                );
            }
        }
    }
    text.into_iter().collect()
}

#[test]
fn the_detector_does_not_depend_on_how_text_is_split() {
    let (mut random, seeds, end) = (ScriptRandom::new(), seeds(), Instant::now() + budget());
    let mut runs = 0;
    while Instant::now() < end {
        let text = mutate(&mut random, &seeds);
        let whole = detect(&text);
        let mut detector = BlockDetector::default();
        let mut segments = Vec::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let mut at = 1 + random.below(rest.len());
            while !rest.is_char_boundary(at) {
                at += 1;
            }
            segments.extend(detector.push(&rest[..at]));
            rest = &rest[at..];
        }
        segments.extend(detector.finish());
        assert_eq!(merge_text(segments), whole, "{text:?}");
        runs += 1;
    }
    println!("{runs} messages");
}

#[test]
fn compiler_errors_have_valid_positions() {
    run_on_thread(
        "fuzzing the compiler",
        budget() + Duration::from_secs(30),
        async {
            let (mut random, seeds, end) =
                (ScriptRandom::new(), seeds(), Instant::now() + budget());
            let (compiler, harness) = (ScriptCompiler::default(), TestFixture::new().harness);
            let mut compiled = 0;
            while Instant::now() < end {
                let source = mutate(&mut random, &seeds);
                // Checks the types, too.
                harness.check(source.as_bytes());
                match compiler.compile(&source, 20_480) {
                    Ok(_) => compiled += 1,
                    Err(error) => {
                        let lines = source.split('\n').count() as u32;
                        assert!(
                            error.line.is_none_or(|line| (1..=lines).contains(&line)),
                            "{source:?}: {error:?}"
                        );
                    }
                }
            }
            println!("{compiled} compiled");
        },
    );
}

/// CPU time of compiling one text. The slowest known one takes a tenth of it, without optimisation.
const MAX_COMPILE_TIME: Duration = Duration::from_secs(2);

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = stat.split(' ').next().and_then(|time| time.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or_default())
}

#[test]
fn nested_ambiguous_constructs_are_compiled_in_bounded_time() {
    let (mut random, end) = (ScriptRandom::new(), Instant::now() + budget());
    let harness = TestFixture::new().harness;
    let (mut runs, mut slowest) = (0, Duration::ZERO);
    while Instant::now() < end {
        let mut pieces = |most: usize| -> String {
            let count = random.below(most);
            (0..count).map(|_| *random.pick(AMBIGUOUS_PIECES)).collect()
        };
        let (prefix, repeated, last) = (pieces(4), pieces(9), pieces(9));
        let times = *random.pick(&[3, 8, 12, 16, 40, 200, 1000]);
        let text = format!("x={prefix}{}{}", repeated.repeat(times), last.repeat(times));
        let started = cpu_time();
        harness.check(text.as_bytes());
        let spent = cpu_time() - started;
        assert!(spent < MAX_COMPILE_TIME, "{spent:?}: {text}");
        (runs, slowest) = (runs + 1, slowest.max(spent));
    }
    println!("{runs} texts, the slowest took {slowest:?}");
}

/// Levels of the nested texts: exponential work shows, and is still cheap.
const NESTED_LEVELS: [usize; 3] = [6, 12, 16];
/// Memory that the parser may use for each unit of predicted cost and each byte. Known texts use up
/// to 200.
const MAX_BYTES_PER_COST: usize = 500;

/// Returns the brackets that close those of a text.
fn closing_brackets(open: &str) -> String {
    let mut closing = String::new();
    for c in open.chars() {
        match c {
            '(' => closing.insert(0, ')'),
            '[' => closing.insert(0, ']'),
            '{' => closing.insert(0, '}'),
            ')' | ']' | '}' if closing.starts_with(c) => _ = closing.remove(0),
            _ => {}
        }
    }
    closing
}

#[test]
fn the_work_of_the_parser_is_predicted() {
    let (mut random, end) = (ScriptRandom::new(), Instant::now() + budget());
    let (mut runs, mut worst) = (0, (0, String::new()));
    while Instant::now() < end {
        let mut pieces = |most: usize| -> String {
            let count = random.below(most);
            let mut piece = || match random.below(2) {
                0 => *random.pick(AMBIGUOUS_PIECES),
                _ => *random.pick(TYPE_PIECES),
            };
            (0..count).map(|_| piece()).collect()
        };
        let (prefix, open, middle, after) = (pieces(4), pieces(6), pieces(3), pieces(4));
        let start = *random.pick(&["x=", "", "type X=", "let x:", "x=a as ", "return "]);
        let closing = match random.below(3) {
            0 => String::new(),
            1 => after.clone(),
            _ => closing_brackets(&open) + &after,
        };
        for levels in NESTED_LEVELS {
            let (open, close) = (open.repeat(levels), closing.repeat(levels));
            let text = format!("{start}{prefix}{open}{middle}{close}");
            let Some(work) = ParseWork::measure(&text) else {
                break;
            };
            let ratio = work.arena_bytes / (work.predicted_cost as usize + text.len() + 1);
            assert!(
                ratio < MAX_BYTES_PER_COST,
                "{ratio} bytes per cost: {text:?}"
            );
            if ratio > worst.0 {
                worst = (ratio, text);
            }
            runs += 1;
        }
    }
    println!(
        "{runs} texts, at most {} bytes per cost: {:?}",
        worst.0, worst.1
    );
}

#[test]
fn types_that_grow_are_checked_in_bounded_time() {
    let (mut random, end) = (ScriptRandom::new(), Instant::now() + budget());
    let harness = TestFixture::new().harness;
    let (mut runs, mut slowest) = (0, Duration::ZERO);
    while Instant::now() < end {
        let count = 1 + random.below(4);
        let pieces: String = (0..count).map(|_| *random.pick(TYPE_STATEMENTS)).collect();
        let mut text = String::from("const a0=[{x:1}];type T0={x:1};const list=[];\n");
        for number in 1..=*random.pick(&[10, 40, 200, 1000]) {
            let next = pieces
                .replace("%n", &number.to_string())
                .replace("%p", &(number - 1).to_string());
            if text.len() + next.len() > 20_480 {
                break;
            }
            text.push_str(&next);
        }
        let started = cpu_time();
        harness.check(text.as_bytes());
        let spent = cpu_time() - started;
        assert!(spent < MAX_COMPILE_TIME, "{spent:?}: {text}");
        (runs, slowest) = (runs + 1, slowest.max(spent));
    }
    println!("{runs} texts, the slowest took {slowest:?}");
}

#[test]
fn values_cross_the_sandbox_unchanged() {
    let fixture = TestFixture::new();
    let harness = fixture.harness.clone();
    run_on_thread(
        "fuzzing values",
        budget() + Duration::from_secs(60),
        async move {
            let (mut random, end) = (ScriptRandom::new(), Instant::now() + budget());
            let mut runs = 0;
            while Instant::now() < end {
                let value = random_value(&mut random, 5);
                let source = format!(
                    "const v = {value}; const [a] = [await tools.echo({{value: v}})]; return [a, v]"
                );
                let output = harness.run(&source).await;
                let oversized = source.len() > 20_480;
                assert_eq!(
                    output.error.is_some(),
                    oversized,
                    "{source}: {:?}",
                    output.error
                );
                if !oversized {
                    let expected = Value::Array(vec![value.clone(), value]);
                    assert_eq!(
                        output
                            .value()
                            .map(|value| value.to_string().parse::<Value>().unwrap()),
                        Some(expected),
                        "{source}"
                    );
                }
                runs += 1;
            }
            println!("{runs} values");
        },
    );
}

fn random_value(random: &mut ScriptRandom, depth: usize) -> Value {
    match random.below(if depth == 0 { 5 } else { 7 }) {
        0 => Value::Null,
        1 => Value::Bool(random.below(2) == 0),
        2 => Value::from(random.below(1 << 40) as i64 - (1 << 39)),
        3 => Value::from((random.below(1 << 30) as f64 - 5e8) / 1024.0 + 0.5)
            .as_f64()
            .filter(|n| n.fract() != 0.0)
            .map_or(Value::Null, Value::from),
        4 => Value::String(
            (0..random.below(20))
                .map(|_| char::from_u32(random.below(0x1_0000) as u32).unwrap_or('�'))
                .collect(),
        ),
        5 => (0..random.below(6))
            .map(|_| random_value(random, depth - 1))
            .collect(),
        _ => {
            let keys = [
                "a",
                "b",
                "toString",
                "constructor",
                "then",
                "toJSON",
                "length",
                "ü",
                "",
                "a b",
            ];
            Value::Object(
                (0..random.below(6))
                    .map(|_| {
                        (
                            (*random.pick(&keys)).to_owned(),
                            random_value(random, depth - 1),
                        )
                    })
                    .collect(),
            )
        }
    }
}
