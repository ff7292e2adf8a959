//! Reasoning of Chat servers, which send it in different fields. It is emitted once, and sent back
//! in the fields in which it came.

use selvedge_protocol::{ModelOrigin, NativePayload, Reasoning};
use serde_json::{Map, Value};

/// Reasoning as received so far.
#[derive(Debug, Default)]
pub(crate) struct ChatReasoning {
    /// Text that was emitted.
    pub(crate) text: String,
    /// Fields to send back.
    fields: Map<String, Value>,
}

impl ChatReasoning {
    /// Appends a delta to a text field, and returns the delta.
    pub(crate) fn add_text(&mut self, field: &str, delta: &str) -> String {
        if !delta.is_empty() {
            match self.fields.entry(field).or_insert_with(|| "".into()) {
                Value::String(text) => text.push_str(delta),
                other => *other = delta.into(),
            }
        }
        delta.to_owned()
    }

    /// Sets a field that is not sent in deltas.
    pub(crate) fn set_field(&mut self, field: &str, value: Value) {
        if !value.is_null() {
            self.fields.insert(field.to_owned(), value);
        }
    }

    /// Appends deltas of `reasoning_details`, and returns their text.
    pub(crate) fn add_details(&mut self, deltas: Vec<Value>) -> String {
        let entry = self.fields.entry("reasoning_details");
        let Value::Array(details) = entry.or_insert_with(|| Value::Array(Vec::new())) else {
            return String::new();
        };
        let mut text = String::new();
        for delta in deltas {
            for field in ["text", "summary"] {
                text.push_str(delta[field].as_str().unwrap_or_default());
            }
            match details.last_mut() {
                Some(last) if continues_detail(last, &delta) => append_detail(last, delta),
                _ => details.push(delta),
            }
        }
        text
    }

    pub(crate) fn into_item(self, origin: &ModelOrigin) -> Reasoning {
        Reasoning {
            summary: Vec::new(),
            content: Vec::from_iter(Some(self.text).filter(|text| !text.is_empty())),
            native: (!self.fields.is_empty()).then(|| NativePayload {
                origin: origin.clone(),
                json: Value::Object(self.fields),
            }),
        }
    }
}

/// Whether a delta continues the last detail. Encrypted details are not sent in deltas.
fn continues_detail(last: &Value, delta: &Value) -> bool {
    let same = |field: &str| {
        last[field] == delta[field] || last[field].is_null() || delta[field].is_null()
    };
    let encrypted = |detail: &Value| detail["type"] == "reasoning.encrypted";
    same("type") && same("index") && same("id") && !encrypted(last) && !encrypted(delta)
}

/// Appends the texts of a delta to the last detail, and replaces its other fields.
fn append_detail(last: &mut Value, delta: Value) {
    let (Value::Object(last), Value::Object(delta)) = (last, delta) else {
        return;
    };
    for (field, value) in delta {
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
