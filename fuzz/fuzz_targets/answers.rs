//! Decoding arbitrary bytes of a model's answer ends with events or an error, never with a panic,
//! and does not depend on how the bytes are split. The first byte of the input chooses the API, the
//! second the size of the chunks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use selvedge_models::{Decoder, ModelError, ModelEvent};
use selvedge_protocol::{ConversationItem, ModelOrigin, WireApi};

fuzz_target!(|input: &[u8]| {
    let [api, size, bytes @ ..] = input else {
        return;
    };
    let wire = [WireApi::Responses, WireApi::Chat, WireApi::Messages][usize::from(api % 3)];
    let whole = decode(wire, [bytes]);
    let split = decode(wire, bytes.chunks(usize::from(*size).max(1)));
    assert_eq!(split.1, whole.1);
    assert_eq!(without_ids(split.0), without_ids(whole.0));
});

fn decode<'a>(
    wire: WireApi,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<ModelEvent>, Option<ModelError>) {
    let mut decoder = Decoder::new(ModelOrigin {
        wire,
        provider: "p".into(),
        model: "m".into(),
    });
    let mut events = Vec::new();
    for chunk in chunks {
        if let Err(error) = decoder.feed(chunk, &mut events) {
            return (events, Some(error));
        }
    }
    let error = decoder.finish(&mut events).err();
    (events, error)
}

/// Clears the call ids, because generated ones are random.
fn without_ids(mut events: Vec<ModelEvent>) -> Vec<ModelEvent> {
    for event in &mut events {
        match event {
            ModelEvent::CallStarted { call_id, .. } => call_id.clear(),
            ModelEvent::CallTruncated { call, .. }
            | ModelEvent::ItemDone {
                item: ConversationItem::FunctionCall(call),
                ..
            } => {
                call.call_id.clear();
            }
            _ => {}
        }
    }
    events
}
