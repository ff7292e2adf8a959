//! A tool argument that is a string or a list of strings.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::command_safety::command_line;

/// A string or a list of strings.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(crate) fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }

    /// Returns a string as it is, and a list as a command line with quoted words.
    pub(crate) fn into_line(self) -> String {
        match self {
            Self::One(line) => line,
            Self::Many(words) => command_line(&words),
        }
    }

    /// Returns the strings in a field of the arguments. Empty if the field has another type.
    #[cfg(feature = "web")]
    pub(crate) fn from_field(args: &serde_json::Value, field: &str) -> Vec<String> {
        serde_json::from_value(args[field].clone()).map_or_else(|_| Vec::new(), Self::into_vec)
    }
}
