//! Arguments that are one string or several.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// One or several.
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

    /// The strings in a field of arguments.
    pub(crate) fn in_args(args: &Value, field: &str) -> Vec<String> {
        serde_json::from_value(args[field].clone()).map_or_else(|_| Vec::new(), Self::into_vec)
    }
}
