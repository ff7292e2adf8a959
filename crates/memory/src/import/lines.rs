//! Parses Selvedge's own format: `{"session","part"?,"turn","role","speaker"?,"ts"?,"text"}`.

use serde_json::Value;

use super::ImportedTurn;
use crate::TurnFormat;

/// Parses a line. The error is a message about the field that is missing or wrong.
pub(super) fn parse_line(line: &Value) -> Result<ImportedTurn, String> {
    let optional = |field: &str| match &line[field] {
        Value::String(text) => Ok(Some(text.clone())),
        Value::Number(number) => Ok(Some(number.to_string())),
        Value::Null => Ok(None),
        _ => Err(format!("`{field}` must be a string or a number")),
    };
    let required = |field: &str| optional(field)?.ok_or_else(|| format!("`{field}` is missing"));
    let Value::String(text) = &line["text"] else {
        return Err("`text` is missing".into());
    };
    required("turn")?;
    Ok(ImportedTurn {
        session: required("session")?,
        key: line["turn"].to_string(),
        role: required("role")?,
        speaker: optional("speaker")?,
        ts: optional("ts")?,
        part: optional("part")?,
        format: if line["form"] == "items" {
            TurnFormat::Items
        } else {
            TurnFormat::Text
        },
        raw: text.clone(),
    })
}
