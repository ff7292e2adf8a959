//! Reasoning under its many names: shown once, sent back under the name it came with.

use selvedge_protocol::{Native, Origin, Reasoning};
use serde_json::{Map, Value};

/// What the model thought, as far as it came.
#[derive(Debug, Default)]
pub(crate) struct Thought {
    /// What was shown.
    pub(crate) text: String,
    /// The fields as they go back.
    fields: Map<String, Value>,
}

impl Thought {
    /// Takes a piece of a text field, and gives it back to be shown.
    pub(crate) fn words(&mut self, field: &str, piece: &str) -> String {
        if !piece.is_empty() {
            match self.fields.entry(field).or_insert_with(|| "".into()) {
                Value::String(text) => text.push_str(piece),
                other => *other = piece.into(),
            }
        }
        piece.to_owned()
    }

    /// Takes a field that comes whole.
    pub(crate) fn extra(&mut self, field: &str, value: Value) {
        if !value.is_null() {
            self.fields.insert(field.to_owned(), value);
        }
    }

    /// Takes pieces of `reasoning_details`, and gives their words back to be shown.
    pub(crate) fn details(&mut self, pieces: Vec<Value>) -> String {
        let place = self.fields.entry("reasoning_details");
        let Value::Array(details) = place.or_insert_with(|| Value::Array(Vec::new())) else {
            return String::new();
        };
        let mut words = String::new();
        for piece in pieces {
            for field in ["text", "summary"] {
                words.push_str(piece[field].as_str().unwrap_or_default());
            }
            match details.last_mut() {
                Some(last) if goes_on(last, &piece) => join(last, piece),
                _ => details.push(piece),
            }
        }
        words
    }

    pub(crate) fn into_item(self, origin: &Origin) -> Reasoning {
        Reasoning {
            summary: Vec::new(),
            content: Vec::from_iter(Some(self.text).filter(|text| !text.is_empty())),
            native: (!self.fields.is_empty()).then(|| Native {
                origin: origin.clone(),
                json: Value::Object(self.fields),
            }),
        }
    }
}

/// Whether a piece belongs to the detail before it. Encrypted ones are whole.
fn goes_on(last: &Value, piece: &Value) -> bool {
    let same = |field: &str| {
        last[field] == piece[field] || last[field].is_null() || piece[field].is_null()
    };
    let encrypted = |detail: &Value| detail["type"] == "reasoning.encrypted";
    same("type") && same("index") && same("id") && !encrypted(last) && !encrypted(piece)
}

fn join(last: &mut Value, piece: Value) {
    let (Value::Object(last), Value::Object(piece)) = (last, piece) else {
        return;
    };
    for (field, value) in piece {
        match (last.get_mut(&field), value) {
            (_, Value::Null) => {}
            (Some(Value::String(text)), Value::String(more))
                if matches!(field.as_str(), "text" | "summary") =>
            {
                text.push_str(&more);
            }
            (_, value) => _ = last.insert(field, value),
        }
    }
}
