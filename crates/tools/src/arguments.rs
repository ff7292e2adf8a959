//! Conversion of arguments to canonical spelling, and validation against the tool's schema.

use jsonschema::error::ValidationErrorKind;
use selvedge_protocol::ToolSpec;
use selvedge_text::truncate_chars;
use serde_json::{Map, Value, json};

use crate::schema_cost::{CheckCost, check_schema_depth};
use crate::typescript::type_text;
use crate::{RegisteredTool, camel_case, similar_names, snake_case};

/// An error in the arguments of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentError {
    /// Kind of the error.
    pub kind: ArgumentErrorKind,
    /// Top-level field with the error, in camelCase. `None` if it concerns the whole object.
    pub field: Option<String>,
    /// One line that says what is wrong.
    pub message: String,
    /// What the caller may have meant.
    pub suggestions: Vec<String>,
}

/// Kind of an argument error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentErrorKind {
    /// A required field is missing.
    Missing,
    /// The tool has no such field.
    Unknown,
    /// A value has the wrong type or is out of range.
    Value,
    /// The arguments are not one object.
    NotAnObject,
}

/// Most errors of one call that are explained.
const MAX_ERRORS: usize = 64;

/// Validates arguments against the schema of one tool.
pub(crate) struct ArgumentChecker {
    validator: jsonschema::Validator,
    schema: Value,
    aliases: Vec<(&'static str, &'static str)>,
    /// Fields that may be given by position, and whether each can be an object.
    positional: Vec<(String, bool)>,
}

impl ArgumentChecker {
    pub(crate) fn new(spec: &ToolSpec) -> Result<Self, String> {
        let schema = match &spec.input_schema {
            Value::Object(schema) => Value::Object(schema.clone()),
            _ => json!({"type": "object"}),
        };
        let invalid = |error: &dyn std::fmt::Display| {
            format!("the input schema of `{}` is invalid: {error}", spec.name)
        };
        check_schema_depth(&schema).map_err(|error| invalid(&error))?;
        let validator = jsonschema::validator_for(&schema).map_err(|error| invalid(&error))?;
        Ok(Self {
            validator,
            schema,
            aliases: spec.aliases.clone(),
            positional: spec
                .positional_fields()
                .into_iter()
                .map(|field| (field.to_owned(), spec.field_accepts_objects(field)))
                .collect(),
        })
    }

    /// Converts the argument list of a script's call to the one object that a tool takes: an object
    /// is that object, other values are those of the positional fields, and an object after them
    /// has further fields.
    pub(crate) fn object_from_list(&self, mut list: Vec<Value>) -> Result<Value, ArgumentError> {
        match list.len() {
            0 => return Ok(Value::Object(Map::new())),
            1 if list[0].is_object() => return Ok(self.canonicalise(list.swap_remove(0))),
            1 if list[0].is_null() => return Ok(Value::Object(Map::new())),
            _ => {}
        }
        let last = self.positional.get(list.len() - 1);
        let has_options = list.len() > 1
            && list.last().is_some_and(Value::is_object)
            && !last.is_some_and(|(_, accepts_objects)| *accepts_objects);
        if list.len() - usize::from(has_options) <= self.positional.len() {
            let options = if has_options { list.pop() } else { None };
            return self.object_from_positional(list, options.unwrap_or_default());
        }
        let given = match &list[..] {
            [Value::String(_)] => "a string",
            [Value::Array(_)] => "an array",
            [Value::Number(_)] => "a number",
            [Value::Bool(_)] => "a boolean",
            _ => "several arguments",
        };
        let is_map_callback = matches!(&list[..], [_, Value::Number(_), Value::Array(_)]);
        let mut wanted: Vec<&str> = self.required().take(8).collect();
        if wanted.is_empty() {
            wanted.extend(self.properties().map(|(name, _)| name.as_str()).next());
        }
        let wanted: Vec<String> = wanted
            .into_iter()
            .map(|field| format!("{}: …", camel_case(field)))
            .collect();
        Err(ArgumentError {
            kind: ArgumentErrorKind::NotAnObject,
            field: None,
            message: format!("takes one object, got {given}"),
            suggestions: vec![if is_map_callback {
                "instead of list.map(tools.x) write list.map(x => tools.x({ … })): map passes \
                 three arguments"
                    .to_owned()
            } else {
                format!("({{ {} }})", wanted.join(", "))
            }],
        })
    }

    /// Makes an object of the values of the positional fields and of an object with further fields.
    fn object_from_positional(
        &self,
        values: Vec<Value>,
        options: Value,
    ) -> Result<Value, ArgumentError> {
        let fields = self.positional.iter().map(|(field, _)| field.clone());
        let mut args: Map<String, Value> = fields.zip(values).collect();
        if let Value::Object(options) = self.canonicalise(options) {
            for (field, value) in options {
                if args.contains_key(&field) {
                    let field = camel_case(&field);
                    return Err(ArgumentError {
                        kind: ArgumentErrorKind::Value,
                        message: format!("`{field}` is given twice"),
                        field: Some(field),
                        suggestions: vec![],
                    });
                }
                args.insert(field, value);
            }
        }
        Ok(self.canonicalise(Value::Object(args)))
    }

    /// Returns the errors of the validator, at most [`MAX_ERRORS`]. If the check could take too
    /// long, there are none: the tool itself has to check its arguments.
    fn validation_errors<'v>(
        &'v self,
        args: &'v Value,
    ) -> impl Iterator<Item = jsonschema::ValidationError<'v>> {
        let (all, first) = match CheckCost::of(&self.schema, args) {
            CheckCost::Small => (Some(self.validator.iter_errors(args)), None),
            CheckCost::Large => (None, self.validator.validate(args).err()),
            CheckCost::TooLarge => (None, None),
        };
        all.into_iter().flatten().chain(first).take(MAX_ERRORS)
    }

    /// Returns the errors: unknown fields first, then missing ones, then invalid values.
    pub(crate) fn check(&self, args: &Value) -> Vec<ArgumentError> {
        let mut errors: Vec<ArgumentError> = self
            .validation_errors(args)
            .flat_map(|error| self.explain(&error))
            .collect();
        errors.sort_by_key(|error| match error.kind {
            ArgumentErrorKind::Unknown => 0,
            ArgumentErrorKind::Missing => 1,
            ArgumentErrorKind::Value | ArgumentErrorKind::NotAnObject => 2,
        });
        errors
    }

    /// Renames fields to their spelling in the schema, at every depth.
    pub(crate) fn canonicalise(&self, mut args: Value) -> Value {
        if let Some(object) = args.as_object_mut() {
            let aliased: Vec<(String, String)> = object
                .keys()
                .filter(|key| !self.has_property(key))
                .filter_map(|key| {
                    let snake = snake_case(key);
                    let (_, field) = self
                        .aliases
                        .iter()
                        .find(|(alias, _)| alias == key || *alias == snake)?;
                    (!object.contains_key(*field)).then(|| (key.clone(), (*field).to_owned()))
                })
                .collect();
            for (key, field) in aliased {
                rename_key(object, &key, &field);
            }
        }
        respell_keys(&mut args, &self.schema, &self.schema, 0);
        args
    }

    /// Converts an error of the validator to messages with suggestions.
    fn explain(&self, error: &jsonschema::ValidationError<'_>) -> Vec<ArgumentError> {
        let path = error.instance_path().to_string();
        let field = path
            .split('/')
            .nth(1)
            .filter(|part| !part.is_empty())
            .map(camel_case);
        let place = if path.is_empty() {
            String::new()
        } else {
            format!(" in `{}`", display_path(&path))
        };
        let argument_error = |kind, field, message, suggestions| ArgumentError {
            kind,
            field,
            message,
            suggestions,
        };
        match error.kind() {
            ValidationErrorKind::Required { property } => {
                let name = camel_case(property.as_str().unwrap_or_default());
                vec![argument_error(
                    ArgumentErrorKind::Missing,
                    Some(name.clone()),
                    format!("the field `{name}` is missing{place}"),
                    vec![],
                )]
            }
            ValidationErrorKind::AdditionalProperties { unexpected }
            | ValidationErrorKind::UnevaluatedProperties { unexpected } => unexpected
                .iter()
                .take(8)
                .map(|name| {
                    let name: &String = &name.chars().take(80).collect();
                    let known: Vec<String> = self
                        .properties()
                        .map(|(name, _)| camel_case(name))
                        .collect();
                    let near = similar_names(name, known.iter().map(String::as_str));
                    let hint = match near.first() {
                        Some(near) => format!(": did you mean `{near}`?"),
                        None if known.is_empty() => ": it takes no fields".to_owned(),
                        None => format!(
                            ": it takes {}",
                            known
                                .iter()
                                .map(|name| format!("`{name}`"))
                                .collect::<Vec<_>>()
                                .join(", ")
                        ),
                    };
                    argument_error(
                        ArgumentErrorKind::Unknown,
                        Some(name.clone()),
                        format!("there is no field `{name}`{place}{hint}"),
                        near,
                    )
                })
                .collect(),
            ValidationErrorKind::AnyOf { .. } | ValidationErrorKind::OneOfNotValid { .. }
                if path.matches('/').count() == 1 =>
            {
                let name = field.clone().unwrap_or_default();
                let property = &self.schema["properties"][path.trim_start_matches('/')];
                let value = error.instance().to_string();
                let message = format!(
                    "`{name}`: {} is not of type `{}`",
                    truncate_chars(&value, 100),
                    type_text(property, &self.schema)
                );
                let kind = ArgumentErrorKind::Value;
                vec![argument_error(kind, field, message, vec![])]
            }
            _ => {
                let reason = truncate_chars(&error.to_string(), 200).into_owned();
                let message = if path.is_empty() {
                    reason
                } else {
                    format!("`{}`: {reason}", display_path(&path))
                };
                let suggestions = suggest_list(error);
                vec![argument_error(
                    ArgumentErrorKind::Value,
                    field,
                    message,
                    suggestions,
                )]
            }
        }
    }

    fn properties(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.schema
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
    }

    fn has_property(&self, name: &str) -> bool {
        self.schema
            .get("properties")
            .and_then(|properties| properties.get(name))
            .is_some()
    }

    fn required(&self) -> impl Iterator<Item = &str> {
        self.schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
    }
}

/// Returns the object that a call with one argument means. Its values are not checked.
pub fn object_from_literal(
    tool: &RegisteredTool,
    argument: Value,
) -> Result<Map<String, Value>, ArgumentError> {
    let Ok(checker) = tool.checker() else {
        return Ok(Map::new());
    };
    match checker.object_from_list(vec![argument])? {
        Value::Object(object) => Ok(object),
        _ => Ok(Map::new()),
    }
}

/// Checks a call in a script's source before it runs.
///
/// `known` are the fields whose values are literals, `dynamic` the names of fields whose values are
/// computed at run time. `open` means that there may be further fields.
pub fn check_partial(
    tool: &RegisteredTool,
    known: Map<String, Value>,
    dynamic: &[String],
    open: bool,
) -> Vec<ArgumentError> {
    let Ok(checker) = tool.checker() else {
        return Vec::new();
    };
    let mut args = known;
    // Of a field with an unknown value only the name is checked.
    for field in dynamic {
        args.entry(field.clone()).or_insert(Value::Null);
    }
    let is_dynamic = |field: &str| {
        dynamic
            .iter()
            .any(|name| camel_case(&snake_case(name)) == field || name == field)
    };
    let renamed: Vec<(String, String)> = dynamic
        .iter()
        .map(|name| {
            let single =
                checker.canonicalise(Value::Object(Map::from_iter([(name.clone(), Value::Null)])));
            (
                name.clone(),
                single
                    .as_object()
                    .and_then(|object| object.keys().next().cloned())
                    .unwrap_or_default(),
            )
        })
        .collect();
    let args = checker.canonicalise(Value::Object(args));
    checker
        .validation_errors(&args)
        .filter(|error| {
            // While values are unknown, alternatives of the whole object cannot be decided. Those
            // of one field can: its value is known, or its errors are dropped below.
            let path = error.schema_path().to_string();
            let is_alternative = ["anyOf", "oneOf", "allOf", "if", "then", "else", "not"]
                .iter()
                .any(|word| path.split('/').any(|part| part == *word));
            !is_alternative || !error.instance_path().as_str().is_empty()
        })
        .flat_map(|error| checker.explain(&error))
        .filter(|error| match error.kind {
            ArgumentErrorKind::Missing => !open && !error.field.as_deref().is_some_and(is_dynamic),
            ArgumentErrorKind::Unknown => true,
            ArgumentErrorKind::Value => !error
                .field
                .as_deref()
                .is_some_and(|field| renamed.iter().any(|(_, name)| camel_case(name) == field)),
            ArgumentErrorKind::NotAnObject => false,
        })
        .collect()
}

impl RegisteredTool {
    /// Returns the arguments of a structured call with the tool's defaults for such calls.
    pub(crate) fn add_structured_defaults(&self, args: Value) -> Value {
        let defaults = self.spec.structured_defaults;
        let Some(checker) = self.checker().ok().filter(|_| !defaults.is_empty()) else {
            return args;
        };
        let mut args = checker.canonicalise(args);
        for (field, default) in defaults {
            if args.get(field).is_none_or(Value::is_null) {
                args[*field] = json!(default);
            }
        }
        args
    }

    /// Returns the canonical arguments of a call, or all errors in them.
    pub(crate) fn validate(
        &self,
        args: crate::orchestrator::CallArguments,
    ) -> Result<Value, Vec<ArgumentError>> {
        let invalid = |message: &str| {
            vec![ArgumentError {
                kind: ArgumentErrorKind::NotAnObject,
                field: None,
                message: message.to_owned(),
                suggestions: vec![],
            }]
        };
        let checker = self.checker().map_err(invalid)?;
        let args = match args {
            crate::orchestrator::CallArguments::Positional(list) => checker
                .object_from_list(list)
                .map_err(|error| vec![error])?,
            crate::orchestrator::CallArguments::Object(args) => checker.canonicalise(args),
            crate::orchestrator::CallArguments::Invalid(message) => return Err(invalid(&message)),
        };
        let errors = checker.check(&args);
        if errors.is_empty() {
            Ok(self.tool.canonical_args(args))
        } else {
            Err(errors)
        }
    }
}

/// Suggests a list if a string is given where a list is required.
fn suggest_list(error: &jsonschema::ValidationError<'_>) -> Vec<String> {
    let wants_array = matches!(error.kind(), ValidationErrorKind::Type { .. })
        && error.to_string().contains("\"array\"");
    match error.instance().as_str() {
        Some(text) if wants_array => vec![format!("write {}", json!([text]))],
        _ => Vec::new(),
    }
}

fn rename_key(object: &mut Map<String, Value>, from: &str, to: &str) {
    let renamed = std::mem::take(object)
        .into_iter()
        .map(|(key, value)| (if key == from { to.to_owned() } else { key }, value));
    *object = renamed.collect();
}

/// Renames each key that is not in the schema to the key that differs only in spelling, if there is
/// exactly one.
fn respell_keys(value: &mut Value, schema: &Value, root: &Value, depth: usize) {
    if depth > 16 {
        return;
    }
    let schema = resolve_ref(schema, root);
    match value {
        Value::Object(object) => {
            let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
                return;
            };
            let unknown: Vec<String> = object
                .keys()
                .filter(|key| !properties.contains_key(*key))
                .cloned()
                .collect();
            for key in unknown {
                let snake = snake_case(&key);
                let mut same = properties.keys().filter(|name| snake_case(name) == snake);
                if let (Some(name), None) = (same.next(), same.next())
                    && !object.contains_key(name)
                {
                    rename_key(object, &key, name);
                }
            }
            for (name, inner) in object.iter_mut() {
                if let Some(schema) = properties.get(name) {
                    respell_keys(inner, schema, root, depth + 1);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                items
                    .iter_mut()
                    .for_each(|item| respell_keys(item, schema, root, depth + 1));
            }
        }
        _ => {}
    }
}

/// Resolves a local `$ref`. Returns the schema itself if it has none.
fn resolve_ref<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let target = schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|path| root.pointer(path.strip_prefix('#')?));
    target.unwrap_or(schema)
}

/// Converts the JSON pointer `/plan/0/step` to `plan[0].step`.
fn display_path(path: &str) -> String {
    let mut out = String::new();
    for part in path.split('/').skip(1) {
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            out.push_str(&format!("[{part}]"));
        } else {
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(&camel_case(part));
        }
    }
    out
}
