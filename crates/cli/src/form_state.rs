//! State of a form of an MCP server while a person fills it in, and the text of its fields. Used by
//! the chat and by the line-based prompts.

use selvedge_mcp::{FormError, FormField, FormFieldChoice, FormFieldKind, FormFieldPresence};
use selvedge_text::visible_line;
use serde_json::{Map, Value};

/// A form and the values entered so far.
pub(crate) struct FormState {
    fields: Vec<FormField>,
    /// Values of the first fields, in order; `None` if a field was omitted.
    values: Vec<Option<Value>>,
}

impl FormState {
    pub(crate) fn new(fields: Vec<FormField>) -> Self {
        Self {
            fields,
            values: Vec::new(),
        }
    }

    pub(crate) fn fields(&self) -> &[FormField] {
        &self.fields
    }

    /// Returns the next field to fill in; `None` if all are filled in.
    pub(crate) fn next_field(&self) -> Option<&FormField> {
        self.fields.get(self.values.len())
    }

    /// Returns the number of the next field, from 1.
    pub(crate) fn next_number(&self) -> usize {
        self.values.len() + 1
    }

    /// Fills in the next field. The error says why the input is invalid.
    pub(crate) fn fill(&mut self, input: &str) -> Result<(), FormError> {
        if let Some(field) = self.next_field() {
            let value = field.parse_input(input)?;
            self.values.push(value);
        }
        Ok(())
    }

    /// Goes back to the previous field. Returns `None` if there is none.
    pub(crate) fn previous_field(&mut self) -> Option<()> {
        self.values.pop().map(drop)
    }

    /// Discards all entered values.
    pub(crate) fn clear(&mut self) {
        self.values.clear();
    }

    /// Returns the name and value of the last field that was filled in.
    pub(crate) fn last_line(&self) -> Option<String> {
        let index = self.values.len().checked_sub(1)?;
        Some(self.field_line(index))
    }

    /// Returns the name and value of each field that was filled in.
    pub(crate) fn lines(&self) -> Vec<String> {
        (0..self.values.len())
            .map(|index| self.field_line(index))
            .collect()
    }

    fn field_line(&self, index: usize) -> String {
        let field = &self.fields[index];
        let value = self.values[index]
            .as_ref()
            .map_or_else(|| "omitted".to_owned(), |value| field.display_value(value));
        // One line, so that the server's text cannot imitate further lines.
        visible_line(&format!("{}: {value}", field.name)).into_owned()
    }

    /// Returns the values as the JSON object that the server receives.
    pub(crate) fn content(&self) -> Value {
        let filled = self.fields.iter().zip(&self.values);
        let content: Map<String, Value> = filled
            .filter_map(|(field, value)| Some((field.name.clone(), value.clone()?)))
            .collect();
        Value::Object(content)
    }
}

/// Describes a field: its name, type, and default or whether it is required.
pub(crate) fn describe_field(field: &FormField) -> String {
    let name = match &field.title {
        Some(title) if *title != field.name => format!("{title} ({})", field.name),
        _ => field.name.clone(),
    };
    let kind = match &field.kind {
        FormFieldKind::Text(None) => "text".to_owned(),
        FormFieldKind::Text(Some(format)) => format!("text ({format})"),
        FormFieldKind::Number => "number".to_owned(),
        FormFieldKind::Integer => "integer".to_owned(),
        FormFieldKind::Boolean => "yes or no".to_owned(),
        FormFieldKind::SingleChoice(_) => "one of these".to_owned(),
        FormFieldKind::MultipleChoice(_) => "some of these, separated by commas".to_owned(),
        _ => "value".to_owned(),
    };
    let need = match field.presence {
        FormFieldPresence::Required => "required",
        FormFieldPresence::Optional => "optional",
    };
    match &field.default {
        Some(default) => format!("{name}: {kind}; default: {}", field.display_value(default)),
        None => format!("{name}: {kind}; {need}"),
    }
}

/// Returns the choices of a field, numbered from 1.
pub(crate) fn choice_lines(field: &FormField) -> Vec<String> {
    let (FormFieldKind::SingleChoice(choices) | FormFieldKind::MultipleChoice(choices)) =
        &field.kind
    else {
        return Vec::new();
    };
    let line =
        |(index, choice): (usize, &FormFieldChoice)| format!("{}. {}", index + 1, choice.title);
    choices.iter().enumerate().map(line).collect()
}
