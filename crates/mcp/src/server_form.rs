//! Forms in elicitation requests of a server: parses the form and a person's input, and validates
//! the values.

use crate::FormError;
use jsonschema::Validator;
use selvedge_text::truncate_middle;
use selvedge_tools::{CheckCost, check_schema_depth};
use serde_json::Value;

/// A parsed elicitation request.
///
/// Its texts come from the server. Remove terminal control sequences before you print them.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerForm {
    /// Message of the server, truncated in the middle if it is long.
    pub message: String,
    /// What the person is asked to do.
    pub content: FormContent,
}

/// What an elicitation request asks a person to do.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum FormContent {
    /// Fill in these fields.
    Fields(Vec<FormField>),
    /// Open this URL. Selvedge never opens it.
    Url(FormUrl),
}

/// A URL that a person is asked to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormUrl {
    /// The whole URL.
    pub url: String,
    /// Host of the URL in ASCII (Punycode), in which lookalike letters are visible.
    pub host: String,
}

/// A field of a form.
#[derive(Debug, Clone, PartialEq)]
pub struct FormField {
    /// Name of the field in the values that are sent to the server.
    pub name: String,
    /// Label to show instead of the name.
    pub title: Option<String>,
    /// Explanation of the field.
    pub description: Option<String>,
    /// Type of the value.
    pub kind: FormFieldKind,
    /// Whether a value is required.
    pub presence: FormFieldPresence,
    /// Value that is used if the input is empty.
    pub default: Option<Value>,
    schema: Value,
}

/// Type of a field's value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormFieldKind {
    /// A string, with its JSON Schema format (such as `email`) if the server names one.
    Text(Option<String>),
    /// A number with or without a fraction.
    Number,
    /// A number without a fraction.
    Integer,
    /// A boolean, typed as yes or no.
    Boolean,
    /// One of these choices.
    SingleChoice(Vec<FormFieldChoice>),
    /// Any number of these choices.
    MultipleChoice(Vec<FormFieldChoice>),
}

/// A choice of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormFieldChoice {
    /// Value that is sent to the server.
    pub value: String,
    /// Label that the person reads; the value by default.
    pub title: String,
}

/// Whether a field requires a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormFieldPresence {
    /// The form is invalid without a value.
    Required,
    /// The field may be left empty.
    Optional,
}

/// Maximum number of fields of a form.
const MAX_FORM_FIELDS: usize = 60;
/// Maximum number of choices of a field.
const MAX_FIELD_CHOICES: usize = 200;
/// Largest elicitation request, in bytes of JSON.
const MAX_FORM_BYTES: usize = 64 << 10;
/// Length to which a message is truncated, in bytes.
const MAX_FORM_MESSAGE_BYTES: usize = 6000;
/// Length to which a field's explanation is truncated, in characters.
const MAX_FIELD_DESCRIPTION_CHARS: usize = 600;
/// Longest name, and length to which labels are truncated, in characters.
const MAX_FIELD_NAME_CHARS: usize = 120;

impl ServerForm {
    /// Parses the `params` of `elicitation/create`. Fails if the form cannot be shown.
    pub fn parse(request: &Value) -> Result<Self, FormError> {
        if request.to_string().len() > MAX_FORM_BYTES {
            let reason = format!("the form is larger than {} KB", MAX_FORM_BYTES >> 10);
            return Err(FormError::unsupported(reason));
        }
        let message = truncate_middle(
            request["message"].as_str().unwrap_or_default(),
            MAX_FORM_MESSAGE_BYTES,
        );
        if request["mode"] == "url" {
            let content = FormContent::Url(parse_url(request["url"].as_str().unwrap_or_default())?);
            return Ok(Self { message, content });
        }
        let schema = &request["requestedSchema"];
        let Some(fields) = schema["properties"].as_object() else {
            return Err(FormError::unsupported("the form has no fields"));
        };
        if fields.len() > MAX_FORM_FIELDS {
            let reason = format!(
                "the form has {} fields, the limit is {MAX_FORM_FIELDS}",
                fields.len()
            );
            return Err(FormError::unsupported(reason));
        }
        let required = schema["required"].as_array().into_iter().flatten();
        let fields = fields.iter().map(|(name, schema)| {
            let presence = match required.clone().any(|one| one == name) {
                true => FormFieldPresence::Required,
                false => FormFieldPresence::Optional,
            };
            parse_field(name, schema, presence)
        });
        Ok(Self {
            message,
            content: FormContent::Fields(fields.collect::<Result<_, _>>()?),
        })
    }

    /// Validates the values of a whole form. The error names the first invalid field.
    pub fn validate(&self, content: &Value) -> Result<(), FormError> {
        let FormContent::Fields(fields) = &self.content else {
            return Ok(());
        };
        let Value::Object(content) = content else {
            return Err(FormError::invalid_value(
                "the form values are not an object",
            ));
        };
        for field in fields {
            match content.get(&field.name) {
                // The error does not contain the value, which may be a secret for the server.
                Some(value) => field
                    .validate(value)
                    .map_err(|_| FormError::invalid_value(format!("{} is invalid", field.name)))?,
                None if field.presence == FormFieldPresence::Required => {
                    return Err(FormError::invalid_value(format!(
                        "{} is missing",
                        field.name
                    )));
                }
                None => {}
            }
        }
        let unknown = |name: &&String| fields.iter().all(|field| field.name != **name);
        content.keys().find(unknown).map_or(Ok(()), |name| {
            Err(FormError::invalid_value(format!(
                "{name} is not a field of the form"
            )))
        })
    }
}

impl FormField {
    /// Parses a person's input. Returns `None` if an optional field is left empty.
    pub fn parse_input(&self, typed: &str) -> Result<Option<Value>, FormError> {
        let typed = typed.trim();
        if typed.is_empty() {
            return match (&self.default, self.presence) {
                (Some(default), _) => Ok(Some(default.clone())),
                (None, FormFieldPresence::Optional) => Ok(None),
                (None, FormFieldPresence::Required) => {
                    Err(FormError::invalid_value("a value is required"))
                }
            };
        }
        let value = match &self.kind {
            FormFieldKind::Text(_) => Value::from(typed),
            FormFieldKind::Integer => {
                let number = typed.parse::<i64>();
                Value::from(number.map_err(|_| FormError::invalid_value("not an integer"))?)
            }
            FormFieldKind::Number => {
                let number = typed.parse().ok().and_then(serde_json::Number::from_f64);
                Value::from(number.ok_or_else(|| FormError::invalid_value("not a number"))?)
            }
            FormFieldKind::Boolean => match typed.to_lowercase().as_str() {
                "y" | "yes" | "true" => Value::from(true),
                "n" | "no" | "false" => Value::from(false),
                _ => return Err(FormError::invalid_value("answer yes or no")),
            },
            FormFieldKind::SingleChoice(choices) => Value::from(find_choice(choices, typed)?),
            FormFieldKind::MultipleChoice(choices) => {
                let parts = typed.split(',').map(str::trim);
                let mut values: Vec<&str> = Vec::new();
                for part in parts.filter(|part| !part.is_empty()) {
                    let value = find_choice(choices, part)?;
                    if !values.contains(&value) {
                        values.push(value);
                    }
                }
                Value::from(values)
            }
        };
        self.validate(&value).map(|()| Some(value))
    }

    /// Formats a value for display.
    pub fn display_value(&self, value: &Value) -> String {
        match (&self.kind, value) {
            (FormFieldKind::Boolean, Value::Bool(yes)) => {
                if *yes { "yes" } else { "no" }.to_owned()
            }
            (FormFieldKind::MultipleChoice(_), Value::Array(all)) => {
                let all = all.iter().map(|one| one.as_str().unwrap_or_default());
                all.collect::<Vec<_>>().join(", ")
            }
            (_, Value::String(text)) => text.clone(),
            (_, other) => other.to_string(),
        }
    }

    fn validate(&self, value: &Value) -> Result<(), FormError> {
        let reason = "the field has an invalid schema";
        let validator =
            compile_schema(&self.schema).ok_or_else(|| FormError::unsupported(reason))?;
        // What is not checked here, the server has to check.
        let error = match CheckCost::of(&self.schema, value) {
            CheckCost::Small | CheckCost::Large => validator.validate(value).err(),
            CheckCost::TooLarge => None,
        };
        match error {
            None => Ok(()),
            Some(error) => Err(FormError::invalid_value(
                error.to_string().chars().take(300).collect::<String>(),
            )),
        }
    }
}

/// Compiles a JSON Schema, with validation of formats; `None` if the schema is invalid.
fn compile_schema(schema: &Value) -> Option<Validator> {
    check_schema_depth(schema).ok()?;
    let options = jsonschema::options().should_validate_formats(true);
    options.build(schema).ok()
}

fn parse_field(
    name: &str,
    schema: &Value,
    presence: FormFieldPresence,
) -> Result<FormField, FormError> {
    if name.is_empty() || name.chars().count() > MAX_FIELD_NAME_CHARS {
        let reason = format!(
            "the name of a field is empty or longer than {MAX_FIELD_NAME_CHARS} characters"
        );
        return Err(FormError::unsupported(reason));
    }
    let text = |key: &str, limit: usize| {
        let text = schema[key].as_str()?;
        Some(text.chars().take(limit).collect())
    };
    let shown_name = crate::connection::shorten(name);
    let one = parse_choices(schema, "oneOf");
    let kind = match schema["type"].as_str() {
        Some("string") if !one.is_empty() => FormFieldKind::SingleChoice(one),
        Some("string") => FormFieldKind::Text(text("format", MAX_FIELD_NAME_CHARS)),
        Some("number") => FormFieldKind::Number,
        Some("integer") => FormFieldKind::Integer,
        Some("boolean") => FormFieldKind::Boolean,
        Some("array") => FormFieldKind::MultipleChoice(parse_choices(&schema["items"], "anyOf")),
        _ => {
            let reason = format!("the field `{shown_name}` has an unsupported type");
            return Err(FormError::unsupported(reason));
        }
    };
    if let FormFieldKind::SingleChoice(choices) | FormFieldKind::MultipleChoice(choices) = &kind
        && !(1..=MAX_FIELD_CHOICES).contains(&choices.len())
    {
        let reason = format!(
            "the field `{shown_name}` has {} choices, not 1 to {MAX_FIELD_CHOICES}",
            choices.len()
        );
        return Err(FormError::unsupported(reason));
    }
    let default = schema.get("default").filter(|default| !default.is_null());
    let field = FormField {
        name: name.to_owned(),
        title: text("title", MAX_FIELD_NAME_CHARS),
        description: text("description", MAX_FIELD_DESCRIPTION_CHARS),
        kind,
        presence,
        default: None,
        schema: schema.clone(),
    };
    if compile_schema(schema).is_none() {
        let reason = format!("the field `{shown_name}` has an invalid schema");
        return Err(FormError::unsupported(reason));
    }
    // An invalid default is ignored.
    let default = default.filter(|default| field.validate(default).is_ok());
    Ok(FormField {
        default: default.cloned(),
        ..field
    })
}

/// Parses choices from `oneOf`, `anyOf`, or `enum` with `enumNames`. `titled` is the keyword of
/// choices with labels.
fn parse_choices(schema: &Value, titled: &str) -> Vec<FormFieldChoice> {
    let choice = |value: &Value, title: &Value| {
        let value = value.as_str()?.to_owned();
        let title = title.as_str().unwrap_or(&value);
        let title = title.chars().take(MAX_FIELD_NAME_CHARS).collect();
        Some(FormFieldChoice { title, value })
    };
    if let Some(all) = schema[titled].as_array().or(schema["oneOf"].as_array()) {
        let all = all.iter();
        let all = all.filter_map(|one| choice(&one["const"], &one["title"]));
        return all.collect();
    }
    let names = schema["enumNames"].as_array().cloned().unwrap_or_default();
    let values = schema["enum"].as_array().into_iter().flatten().enumerate();
    values
        .filter_map(|(index, value)| choice(value, names.get(index).unwrap_or(&Value::Null)))
        .collect()
}

/// Returns the value of the choice that `typed` names by value, label, or number from one.
fn find_choice<'a>(choices: &'a [FormFieldChoice], typed: &str) -> Result<&'a str, FormError> {
    let by_text = |matches: &dyn Fn(&str) -> bool| {
        let mut choices = choices.iter();
        choices.find(|choice| matches(&choice.value) || matches(&choice.title))
    };
    let by_number = || choices.get(typed.parse::<usize>().ok()?.checked_sub(1)?);
    let choice = by_text(&|text| text == typed)
        .or_else(|| by_text(&|text| text.to_lowercase() == typed.to_lowercase()))
        .or_else(by_number);
    let choice = choice.ok_or_else(|| FormError::invalid_value("not one of the choices"))?;
    Ok(&choice.value)
}

fn parse_url(url: &str) -> Result<FormUrl, FormError> {
    let parsed = reqwest::Url::parse(url)
        .map_err(|error| FormError::unsupported(format!("invalid URL: {error}")))?;
    if !matches!(parsed.scheme(), "http" | "https") {
        let reason = "the URL must start with http:// or https://";
        return Err(FormError::unsupported(reason));
    }
    let host = parsed.host_str();
    let host = host.ok_or_else(|| FormError::unsupported("the URL has no host"))?;
    Ok(FormUrl {
        url: parsed.to_string(),
        host: host.to_owned(),
    })
}

/// Adds the form's defaults for fields that have no value.
pub(crate) fn fill_in_defaults(mut content: Value, request: &Value) -> Value {
    let fields = request["requestedSchema"]["properties"].as_object();
    if let Value::Object(content) = &mut content {
        for (name, field) in fields.into_iter().flatten() {
            if let (Some(default), false) = (field.get("default"), content.contains_key(name)) {
                content.insert(name.clone(), default.clone());
            }
        }
    }
    content
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, json};

    fn form() -> ServerForm {
        ServerForm::parse(&json!({
            "message": "Who are you?",
            "requestedSchema": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "title": "Full name", "minLength": 2},
                    "mail": {"type": "string", "format": "email"},
                    "age": {"type": "integer", "minimum": 0, "maximum": 150, "default": 42},
                    "size": {"type": "number"},
                    "news": {"type": "boolean", "default": true},
                    "colour": {
                        "type": "string",
                        "oneOf": [
                            {"const": "#f00", "title": "Red"},
                            {"const": "#0f0", "title": "Green"},
                        ],
                    },
                    "pet": {
                        "type": "string",
                        "enum": ["cat", "dog"],
                        "enumNames": ["Cats", "Dogs"],
                    },
                    "fruits": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "string", "enum": ["apple", "pear", "2"]},
                    },
                },
                "required": ["name"],
            },
        }))
        .unwrap()
    }

    fn parse(name: &str, input: &str) -> Result<Option<Value>, String> {
        let FormContent::Fields(fields) = form().content else {
            panic!()
        };
        fields
            .iter()
            .find(|field| field.name == name)
            .unwrap()
            .parse_input(input)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn input_becomes_a_value_of_the_field_type() {
        for (name, input, value) in [
            ("name", " Ada ", json!("Ada")),
            ("mail", "ada@example.com", json!("ada@example.com")),
            ("age", "", json!(42)),
            ("age", "7", json!(7)),
            ("size", "1.5", json!(1.5)),
            ("news", "N", json!(false)),
            ("colour", "2", json!("#0f0")),
            ("colour", "red", json!("#f00")),
            ("pet", "Dogs", json!("dog")),
            // A value is matched before a number.
            ("fruits", "pear, 1, 2, pear", json!(["pear", "apple", "2"])),
        ] {
            assert_eq!(parse(name, input), Ok(Some(value)), "{name}: {input}");
        }
        assert_eq!(parse("mail", ""), Ok(None));
    }

    #[test]
    fn invalid_input_is_an_error() {
        for (name, input) in [
            ("name", ""),
            ("name", "A"),
            ("mail", "not an address"),
            ("age", "151"),
            ("age", "4.5"),
            ("size", "NaN"),
            ("news", "perhaps"),
            ("colour", "3"),
            ("pet", "cow"),
            ("fruits", ","),
        ] {
            assert!(parse(name, input).is_err(), "{name}: {input}");
        }
        let form = form();
        assert_eq!(
            form.validate(&json!({"name": "Ada", "fruits": ["pear"]})),
            Ok(())
        );
        assert_eq!(
            form.validate(&json!({"age": 3})),
            Err(FormError::invalid_value("name is missing"))
        );
        assert_eq!(
            form.validate(&json!({"name": "Ada", "key": 1})),
            Err(FormError::invalid_value("key is not a field of the form"))
        );
        assert!(
            form.validate(&json!({"name": "Ada", "age": "old"}))
                .is_err()
        );
    }

    #[test]
    fn an_unsupported_or_oversized_form_is_an_error() {
        let with = |field: Value| {
            ServerForm::parse(&json!({"requestedSchema": {"properties": {"x": field}}}))
        };
        assert!(with(json!({"type": "object"})).is_err());
        assert!(with(json!({"type": "array", "items": {"type": "string"}})).is_err());
        assert!(with(json!({"type": "string", "pattern": "("})).is_err());
        let many: Map<String, Value> = (0..=MAX_FORM_FIELDS)
            .map(|n| (n.to_string(), json!({"type": "string"})))
            .collect();
        assert!(ServerForm::parse(&json!({"requestedSchema": {"properties": many}})).is_err());
        assert!(
            ServerForm::parse(
                &json!({"message": "x".repeat(MAX_FORM_BYTES), "requestedSchema": {"properties": {}}})
            )
            .is_err()
        );
    }

    #[test]
    fn the_host_of_a_url_is_ascii() {
        let visit = |url: &str| {
            ServerForm::parse(&json!({"mode": "url", "message": "", "url": url}))
                .map(|form| form.content)
        };
        let Ok(FormContent::Url(address)) = visit("https://gооgle.com@login.example/p?q=1")
        else {
            panic!()
        };
        assert_eq!(address.host, "login.example");
        let Ok(FormContent::Url(address)) = visit("https://gооgle.com/") else {
            panic!()
        };
        assert!(address.host.starts_with("xn--"), "{}", address.host);
        for bad in ["javascript:alert(1)", "file:///etc/passwd", "nothing"] {
            assert!(visit(bad).is_err(), "{bad}");
        }
    }
}
