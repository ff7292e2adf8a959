//! Front matter: YAML between two lines `---` at the start of a document.

use serde_json::{Map, Value};
use serde_saphyr::{Budget, Error as YamlError, Options};

/// Largest front matter, in bytes.
const MAX_FRONT_MATTER_BYTES: usize = 64 << 10;
/// Maximum nesting of lists and mappings.
const MAX_DEPTH: usize = 16;
/// Maximum number of values, including those that aliases repeat.
const MAX_VALUES: usize = 2_000;
/// Maximum number of aliases (`*name`).
const MAX_ALIASES: usize = 64;

/// Why the front matter of a document cannot be used. Displayed as a clause that follows the path
/// of the document and a colon.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrontMatterError {
    /// There is no line `---` after it.
    #[error("the front matter has no end: write a line `---` after it")]
    Unclosed,
    /// It is larger than the limit.
    #[error("the front matter is larger than {} KiB", MAX_FRONT_MATTER_BYTES >> 10)]
    TooLarge,
    /// It nests deeper than the limit, or has more values or aliases.
    #[error(
        "the front matter is nested deeper than {MAX_DEPTH} or has more than {MAX_VALUES} values"
    )]
    TooComplex,
    /// It is not valid YAML.
    #[error("line {line}: {message}")]
    Yaml {
        /// Line of the document, counted from one.
        line: u64,
        /// What is wrong there.
        message: String,
    },
    /// It is not a mapping of names to values.
    #[error("the front matter is not a list of fields such as `kind: issue`")]
    NotFields,
    /// A field with a fixed meaning has a list, a mapping or another name's value.
    #[error("`{0}` must be a text")]
    NotText(&'static str),
}

impl FrontMatterError {
    /// Returns what to change, if a message alone does not say it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Yaml { .. } => {
                Some("quote a text that contains `: ` or starts with a special character")
            }
            Self::NotText(_) => Some("write one text, such as `kind: issue`"),
            _ => None,
        }
    }
}

/// A text with its front matter taken off.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SplitText<'a> {
    pub(crate) fields: Map<String, Value>,
    pub(crate) body: &'a str,
}

/// Reads the front matter of a text. A text that does not start with a line `---` has none.
pub(crate) fn split(text: &str) -> Result<SplitText<'_>, FrontMatterError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Some(first) = text
        .split_inclusive('\n')
        .next()
        .filter(|line| is_fence(line))
    else {
        let fields = Map::new();
        return Ok(SplitText { fields, body: text });
    };
    let rest = &text[first.len()..];
    let mut length = 0;
    for line in rest.split_inclusive('\n') {
        if is_fence(line) || line.trim_end() == "..." {
            let fields = parse_fields(&rest[..length])?;
            let body = &rest[length + line.len()..];
            return Ok(SplitText { fields, body });
        }
        length += line.len();
        if length > MAX_FRONT_MATTER_BYTES {
            return Err(FrontMatterError::TooLarge);
        }
    }
    Err(FrontMatterError::Unclosed)
}

fn is_fence(line: &str) -> bool {
    line.trim_end() == "---"
}

fn parse_fields(yaml: &str) -> Result<Map<String, Value>, FrontMatterError> {
    // Most fields of most documents are `name: value`, but only a YAML parser knows which.
    let parsed: Result<Option<Value>, YamlError> =
        serde_saphyr::from_str_with_options(yaml, options());
    match parsed.map_err(|error| describe(&error))? {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(fields)) => Ok(fields),
        Some(_) => Err(FrontMatterError::NotFields),
    }
}

fn options() -> Options {
    let mut budget = Budget::default();
    budget.max_depth = MAX_DEPTH;
    budget.flow_nesting_limit = MAX_DEPTH;
    budget.max_nodes = MAX_VALUES;
    budget.max_events = 4 * MAX_VALUES;
    budget.max_aliases = MAX_ALIASES;
    budget.max_anchors = MAX_ALIASES;
    budget.max_merge_keys = MAX_ALIASES;
    let mut options = Options::default();
    options.alias_limits.max_total_replayed_events = 4 * MAX_VALUES;
    options.budget = Some(budget);
    // Only `true` and `false` are booleans: `answer: yes` is a text.
    options.strict_booleans = true;
    options.with_snippet = false;
    options
}

fn describe(error: &YamlError) -> FrontMatterError {
    let error = match error.without_snippet() {
        YamlError::AliasError { error, .. } => error,
        other => other,
    };
    let message = match error {
        YamlError::Budget { .. }
        | YamlError::AliasReplayLimitExceeded { .. }
        | YamlError::AliasExpansionLimitExceeded { .. }
        | YamlError::AliasReplayStackDepthExceeded { .. }
        | YamlError::RecursiveReferencesRequireWeakTypes { .. } => {
            return FrontMatterError::TooComplex;
        }
        YamlError::DuplicateMappingKey { key, .. } => {
            format!(
                "the field `{}` is given twice",
                key.as_deref().unwrap_or("?")
            )
        }
        YamlError::NonFiniteFloat { value, .. } => format!("`{value}` is not a number"),
        other => other.to_string(),
    };
    // The position is given as a line of the document.
    let end = message.find(" at line ").unwrap_or(message.len());
    let line = error.location().map_or(1, |location| location.line());
    FrontMatterError::Yaml {
        line: line + 1,
        message: selvedge_text::one_line(&message[..end], MAX_MESSAGE_CHARS),
    }
}

/// Longest message about invalid YAML, in characters.
const MAX_MESSAGE_CHARS: usize = 200;
