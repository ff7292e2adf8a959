//! A server's form on its way to being filled in, and its parts in words: the same in the chat and in plain lines.

use selvedge_mcp::{Choice, Field, FormError, Kind, Need};
use serde_json::{Map, Value};

use crate::ask::one_line;

pub(crate) struct Filling {
    fields: Vec<Field>,
    /// What was filled in so far; `None` where a field was left out.
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

    /// The field that comes next; `None` where all are filled in.
    pub(crate) fn next(&self) -> Option<&Field> {
        self.fields.get(self.filled.len())
    }

    /// Which one that is, from one.
    pub(crate) fn place(&self) -> usize {
        self.filled.len() + 1
    }

    /// Fills in the next field; the error says what is wrong with it.
    pub(crate) fn fill(&mut self, typed: &str) -> Result<(), FormError> {
        if let Some(field) = self.next() {
            let value = field.read(typed)?;
            self.filled.push(value);
        }
        Ok(())
    }

    /// Goes back to the field before; whether there is one.
    pub(crate) fn back(&mut self) -> Option<()> {
        self.filled.pop().map(drop)
    }

    pub(crate) fn again(&mut self) {
        self.filled.clear();
    }

    /// What was filled in last, in words.
    pub(crate) fn last(&self) -> Option<String> {
        let at = self.filled.len().checked_sub(1)?;
        Some(self.line(at))
    }

    /// All that was filled in, a line for each field.
    pub(crate) fn lines(&self) -> Vec<String> {
        (0..self.filled.len()).map(|at| self.line(at)).collect()
    }

    fn line(&self, at: usize) -> String {
        let field = &self.fields[at];
        let words = self.filled[at]
            .as_ref()
            .map_or_else(|| "left out".to_owned(), |value| field.shown(value));
        // A line for each: foreign words cannot look like more of them.
        one_line(&format!("{}: {words}", field.name))
    }

    /// What the server is told.
    pub(crate) fn content(&self) -> Value {
        let filled = self.fields.iter().zip(&self.filled);
        let content: Map<String, Value> = filled
            .filter_map(|(field, value)| Some((field.name.clone(), value.clone()?)))
            .collect();
        Value::Object(content)
    }
}

/// What a field is called, and what it takes.
pub(crate) fn about(field: &Field) -> String {
    let name = match &field.title {
        Some(title) if *title != field.name => format!("{title} ({})", field.name),
        _ => field.name.clone(),
    };
    let kind = match &field.kind {
        Kind::Text(None) => "text".to_owned(),
        Kind::Text(Some(format)) => format!("text, as {format}"),
        Kind::Number => "number".to_owned(),
        Kind::Integer => "whole number".to_owned(),
        Kind::YesNo => "yes or no".to_owned(),
        Kind::One(_) => "one of these".to_owned(),
        Kind::Several(_) => "some of these, with commas between".to_owned(),
        _ => "something".to_owned(),
    };
    let need = match field.need {
        Need::Required => "required",
        Need::Optional => "may be left out",
    };
    match &field.default {
        Some(default) => format!(
            "{name}: {kind}; {} where nothing is typed",
            field.shown(default)
        ),
        None => format!("{name}: {kind}; {need}"),
    }
}

/// The choices of a field, numbered.
pub(crate) fn choices(field: &Field) -> Vec<String> {
    let (Kind::One(choices) | Kind::Several(choices)) = &field.kind else {
        return Vec::new();
    };
    let line = |(at, choice): (usize, &Choice)| format!("{}. {}", at + 1, choice.title);
    choices.iter().enumerate().map(line).collect()
}
