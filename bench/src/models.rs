//! Measures decoding a model's answer: throughput, and latency from a chunk's arrival to its event.

use std::time::Instant;

use anyhow::{Context, Result};
use selvedge_models::{Decoder, ModelEvent};
use selvedge_protocol::{ModelOrigin, WireApi};
use serde_json::{Value, json};

use crate::measure::{Samples, elapsed_ms};
use crate::table::BenchTable;

/// Chunks of a long answer.
const CHUNKS: usize = 20_000;

pub(crate) fn measure(table: &mut BenchTable) -> Result<()> {
    let (mut slowest, mut cells) = (f64::MAX, Vec::new());
    let mut latency = Samples::default();
    for wire in [WireApi::Responses, WireApi::Chat, WireApi::Messages] {
        let stream = answer_stream(wire);
        let mut rates = Samples::default();
        for _ in 0..10 {
            let start = cpu_seconds();
            let events = decode(wire, stream.chunks(16 * 1024))?;
            rates.extend([stream.len() as f64 / 1e6 / (cpu_seconds() - start)]);
            anyhow::ensure!(events == CHUNKS + 4, "{events} events of {}", wire.as_str());
        }
        slowest = slowest.min(rates.p50());
        cells.push(format!("{} {:.0}", wire.as_str(), rates.p50()));
        latency.extend(measure_latency(wire, &stream)?);
    }
    table.add_row(
        "decoding a model's answer on one core, MB/s",
        cells.join(", "),
        "",
        "≥ 200 MB/s",
        slowest >= 200.0,
    );
    table.add_row(
        "arrival of a chunk → its event",
        format!(
            "{:.1} µs (p99 {:.1})",
            latency.p50() * 1e3,
            latency.p99() * 1e3
        ),
        "",
        "p99 ≤ 50 µs",
        latency.p99() * 1e3 <= 50.0,
    );
    Ok(())
}

/// Returns the CPU time of this thread in seconds, which other programs do not affect.
fn cpu_seconds() -> f64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    schedstat
        .split(' ')
        .next()
        .and_then(|nanoseconds| nanoseconds.parse::<f64>().ok())
        .map_or(f64::NAN, |ns| ns / 1e9)
}

fn decoder(wire: WireApi) -> Decoder {
    Decoder::new(ModelOrigin {
        wire,
        provider: "bench".into(),
        model: "bench".into(),
    })
}

/// Decodes a stream and returns the number of events.
fn decode<'a>(wire: WireApi, chunks: impl Iterator<Item = &'a [u8]>) -> Result<usize> {
    let mut decoder = decoder(wire);
    let (mut events, mut count) = (Vec::new(), 0);
    for chunk in chunks {
        decoder.feed(chunk, &mut events)?;
        count += events.len();
        events.clear();
    }
    decoder.finish(&mut events)?;
    Ok(count + events.len())
}

/// Feeds a stream event by event, and returns the milliseconds of each text event.
fn measure_latency(wire: WireApi, stream: &[u8]) -> Result<Vec<f64>> {
    let text = std::str::from_utf8(stream).context("the stream is not UTF-8")?;
    let mut decoder = decoder(wire);
    let mut events = Vec::new();
    let mut times = Vec::with_capacity(CHUNKS);
    for chunk in text.split_inclusive("\n\n") {
        let start = Instant::now();
        decoder.feed(chunk.as_bytes(), &mut events)?;
        let elapsed = elapsed_ms(start);
        if matches!(events.first(), Some(ModelEvent::Text { .. })) {
            times.push(elapsed);
        }
        events.clear();
    }
    Ok(times)
}

/// Builds the stream of a long answer in an API's format: one word per chunk, with all the fields
/// that real services send.
fn answer_stream(wire: WireApi) -> Vec<u8> {
    const WORDS: [&str; 6] = ["The", " quick", " brown\n", " \"fox\"", " jumps", " über"];
    let word = |at: usize| WORDS[at % WORDS.len()];
    let whole: String = (0..CHUNKS).map(word).collect();
    let mut events: Vec<Value> = Vec::new();
    match wire {
        WireApi::Responses => {
            let id = "msg_05500b38c2cd9bfc00691c7c9d222481a3b595421266dab424";
            let content = json!({
                "type": "output_text", "annotations": [], "logprobs": [], "text": whole,
            });
            let message = json!({
                "id": id, "type": "message", "status": "completed", "role": "assistant",
                "content": [content],
            });
            events.push(json!({
                "type": "response.created", "sequence_number": 0,
                "response": {"id": "resp_1", "model": "m"},
            }));
            events.push(json!({
                "type": "response.output_item.added", "output_index": 0,
                "item": {"id": id, "type": "message", "content": []},
            }));
            events.extend((0..CHUNKS).map(|at| {
                json!({
                    "type": "response.output_text.delta", "sequence_number": at, "item_id": id,
                    "output_index": 0, "content_index": 0, "delta": word(at), "logprobs": [],
                    "obfuscation": "JHvpm1dMVFaw",
                })
            }));
            events.push(
                json!({"type": "response.output_item.done", "output_index": 0, "item": message}),
            );
            let usage = json!({
                "input_tokens": 10, "output_tokens": CHUNKS, "total_tokens": CHUNKS + 10,
            });
            events.push(json!({
                "type": "response.completed",
                "response": {
                    "id": "resp_1", "model": "m", "status": "completed",
                    "output": [message], "usage": usage,
                },
            }));
        }
        WireApi::Chat => {
            let chunk = |delta: Value, finish: Value| {
                let choice = json!({
                    "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish,
                });
                json!({
                    "id": "chatcmpl-CRqnrXjQ4vJ8Yh1ZLQMPzFOM0a9CK",
                    "object": "chat.completion.chunk", "created": 1_760_000_000,
                    "model": "gpt-4o-2024-08-06", "service_tier": "default",
                    "system_fingerprint": "fp_cbf1785567", "choices": [choice], "usage": null,
                })
            };
            events.push(chunk(
                json!({"role": "assistant", "content": "", "refusal": null}),
                Value::Null,
            ));
            events.extend((0..CHUNKS).map(|at| chunk(json!({"content": word(at)}), Value::Null)));
            events.push(chunk(json!({}), "stop".into()));
            let usage = json!({
                "prompt_tokens": 10, "completion_tokens": CHUNKS, "total_tokens": CHUNKS + 10,
            });
            events.push(json!({"choices": [], "usage": usage}));
        }
        WireApi::Messages => {
            let usage = json!({"input_tokens": 10, "output_tokens": 1});
            events.push(json!({
                "type": "message_start",
                "message": {"id": "msg_1", "model": "m", "content": [], "usage": usage},
            }));
            events.push(json!({
                "type": "content_block_start", "index": 0,
                "content_block": {"type": "text", "text": ""},
            }));
            events.extend((0..CHUNKS).map(|at| {
                json!({
                    "type": "content_block_delta", "index": 0,
                    "delta": {"type": "text_delta", "text": word(at)},
                })
            }));
            events.push(json!({"type": "content_block_stop", "index": 0}));
            events.push(json!({
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": null},
                "usage": {"output_tokens": CHUNKS},
            }));
            events.push(json!({"type": "message_stop"}));
        }
    }
    let mut stream = String::new();
    for event in &events {
        if let Some(name) = event["type"].as_str() {
            stream.push_str(&format!("event: {name}\n"));
        }
        stream.push_str(&format!("data: {event}\n\n"));
    }
    if wire == WireApi::Chat {
        stream.push_str("data: [DONE]\n\n");
    }
    stream.into_bytes()
}
