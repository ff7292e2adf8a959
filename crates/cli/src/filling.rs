//! State of a form of an MCP server while a person fills it in, and the text of its fields. Used by
//! the chat and by the line-based prompts.

use selvedge_mcp::{Choice, Field, FormError, Kind, Need};
use serde_json::{Map, Value};

use crate::ask::one_line;

/// A form and the values entered so far.
pub(crate) struct Filling {
    fields: Vec<Field>,
    /// Values of the first fields, in order; `None` if a field was left out.
    filled: Vec<Option<Value>>,
}

impl Filling {
    pub(crate) fn new(fields: Vec<Field>) -> Self {
        Self {
            fields,
            filled: Vec::new(),
        }
    }

    pub(crate) fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Returns the next field to fill in; `None` if all are filled in.
    pub(crate) fn next(&self) -> Option<&Field> {
        self.fields.get(self.filled.len())
    }

    /// Returns the number of the next field, from 1.
    pub(crate) fn place(&self) -> usize {
        self.filled.len() + 1
    }

    /// Fills in the next field. The error says why the input is invalid.
    pub(crate) fn fill(&mut self, input: &str) -> Result<(), FormError> {
        if let Some(field) = self.next() {
            let value = field.read(input)?;
            self.filled.push(value);
        }
        Ok(())
    }

    /// Goes back to the previous field. Returns `None` if there is none.
    pub(crate) fn back(&mut self) -> Option<()> {
        self.filled.pop().map(drop)
    }

    /// Discards all entered values.
    pub(crate) fn again(&mut self) {
        self.filled.clear();
    }

    /// Returns the name and value of the last field that was filled in.
    pub(crate) fn last(&self) -> Option<String> {
        let index = self.filled.len().checked_sub(1)?;
        Some(self.line(index))
    }

    /// Returns the name and value of each field that was filled in.
    pub(crate) fn lines(&self) -> Vec<String> {
        (0..self.filled.len())
            .map(|index| self.line(index))
            .collect()
    }

    fn line(&self, index: usize) -> String {
        let field = &self.fields[index];
        let value = self.filled[index]
            .as_ref()
            .map_or_else(|| "left out".to_owned(), |value| field.shown(value));
        // One line, so that the server's text cannot imitate further lines.
        one_line(&format!("{}: {value}", field.name))
    }

    /// Returns the values as the JSON object that the server receives.
    pub(crate) fn content(&self) -> Value {
        let filled = self.fields.iter().zip(&self.filled);
        let content: Map<String, Value> = filled
            .filter_map(|(field, value)| Some((field.name.clone(), value.clone()?)))
            .collect();
        Value::Object(content)
    }
}

/// Describes a field: its name, type, and default or whether it is required.
pub(crate) fn about(field: &Field) -> String {
    let name = match &field.title {
        Some(title) if *title != field.name => format!("{title} ({})", field.name),
        _ => field.name.clone(),
    };
    let kind = match &field.kind {
        Kind::Text(None) => "text".to_owned(),
        Kind::Text(Some(format)) => format!("text ({format})"),
        Kind::Number => "number".to_owned(),
        Kind::Integer => "integer".to_owned(),
        Kind::YesNo => "yes or no".to_owned(),
        Kind::One(_) => "one of these".to_owned(),
        Kind::Several(_) => "some of these, separated by commas".to_owned(),
        _ => "value".to_owned(),
    };
    let need = match field.need {
        Need::Required => "required",
        Need::Optional => "optional",
    };
    match &field.default {
        Some(default) => format!("{name}: {kind}; default: {}", field.shown(default)),
        None => format!("{name}: {kind}; {need}"),
    }
}

/// Returns the choices of a field, numbered from 1.
pub(crate) fn choices(field: &Field) -> Vec<String> {
    let (Kind::One(choices) | Kind::Several(choices)) = &field.kind else {
        return Vec::new();
    };
    let line = |(index, choice): (usize, &Choice)| format!("{}. {}", index + 1, choice.title);
    choices.iter().enumerate().map(line).collect()
}
