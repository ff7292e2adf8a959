//! Lines of our own: `{"session","part"?,"turn","role","speaker"?,"ts"?,"text"}`.

use serde_json::Value;

use super::Read;
use crate::Form;

pub(super) fn read(line: &Value) -> Result<Read, String> {
    let word = |field: &str| match &line[field] {
        Value::String(text) => Ok(Some(text.clone())),
        Value::Number(number) => Ok(Some(number.to_string())),
        Value::Null => Ok(None),
        _ => Err(format!("`{field}` is neither text nor a number")),
    };
    let needed = |field: &str| word(field)?.ok_or_else(|| format!("`{field}` is missing"));
    let Value::String(text) = &line["text"] else {
        return Err("`text` is missing".into());
    };
    needed("turn")?;
    Ok(Read {
        session: needed("session")?,
        key: line["turn"].to_string(),
        role: needed("role")?,
        speaker: word("speaker")?,
        ts: word("ts")?,
        part: word("part")?,
        form: if line["form"] == "items" {
            Form::Items
        } else {
            Form::Text
        },
        raw: text.clone(),
    })
}
