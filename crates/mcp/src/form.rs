//! Forms in elicitation requests of a server: parses the form and a person's input, and validates
//! the values.

use crate::FormError;
use jsonschema::Validator;
use serde_json::Value;

use crate::elicitation::both_ends;

/// A parsed elicitation request.
///
/// Its texts come from the server. Remove terminal control sequences before you print them.
#[derive(Debug, Clone, PartialEq)]
pub struct Form {
    /// Message of the server, truncated in the middle if it is long.
    pub message: String,
    /// What the person is asked to do.
    pub wants: Wants,
}

/// What an elicitation request asks a person to do.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Wants {
    /// Fill in these fields.
    Fields(Vec<Field>),
    /// Open this URL. Selvedge never opens it.
    Visit(Address),
}

/// A URL that a person is asked to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The whole URL.
    pub url: String,
    /// Host of the URL in ASCII (Punycode), in which lookalike letters are visible.
    pub host: String,
}

/// A field of a form.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// Name of the field in the values that are sent to the server.
    pub name: String,
    /// Label to show instead of the name.
    pub title: Option<String>,
    /// Explanation of the field.
    pub about: Option<String>,
    /// Type of the value.
    pub kind: Kind,
    /// Whether a value is required.
    pub need: Need,
    /// Value that is used if the input is empty.
    pub default: Option<Value>,
    schema: Value,
}

/// Type of a field's value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A string, with its JSON Schema format (such as `email`) if the server names one.
    Text(Option<String>),
    /// A number.
    Number,
    /// An integer.
    Integer,
    /// A boolean, typed as yes or no.
    YesNo,
    /// One of these choices.
    One(Vec<Choice>),
    /// Any number of these choices.
    Several(Vec<Choice>),
}

/// A choice of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Value that is sent to the server.
    pub value: String,
    /// Label that the person reads; the value by default.
    pub title: String,
}

/// Whether a field requires a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The form is invalid without a value.
    Required,
    /// The field may be left empty.
    Optional,
}

/// Most fields of a form.
const MAX_FIELDS: usize = 60;
/// Most choices of a field.
const MAX_CHOICES: usize = 200;
/// Largest elicitation request, in bytes of JSON.
const MAX_BYTES: usize = 64 << 10;
/// Length to which a message is truncated, in characters.
const MAX_MESSAGE: usize = 6000;
/// Length to which a field's explanation is truncated, in characters.
const MAX_ABOUT: usize = 600;
/// Longest name, and length to which labels are truncated, in characters.
const MAX_NAME: usize = 120;

impl Form {
    /// Parses the `params` of `elicitation/create`. Fails if the form cannot be shown.
    pub fn read(request: &Value) -> Result<Self, FormError> {
        if request.to_string().len() > MAX_BYTES {
            let why = format!("the form is larger than {} KB", MAX_BYTES >> 10);
            return Err(FormError::unshowable(why));
        }
        let message = both_ends(request["message"].as_str().unwrap_or_default(), MAX_MESSAGE);
        if request["mode"] == "url" {
            let wants = Wants::Visit(address(request["url"].as_str().unwrap_or_default())?);
            return Ok(Self { message, wants });
        }
        let schema = &request["requestedSchema"];
        let Some(fields) = schema["properties"].as_object() else {
            return Err(FormError::unshowable("the form has no fields"));
        };
        if fields.len() > MAX_FIELDS {
            let why = format!(
                "the form has {} fields, the limit is {MAX_FIELDS}",
                fields.len()
            );
            return Err(FormError::unshowable(why));
        }
        let required = schema["required"].as_array().into_iter().flatten();
        let fields = fields.iter().map(|(name, schema)| {
            let need = match required.clone().any(|one| one == name) {
                true => Need::Required,
                false => Need::Optional,
            };
            field(name, schema, need)
        });
        Ok(Self {
            message,
            wants: Wants::Fields(fields.collect::<Result<_, _>>()?),
        })
    }

    /// Validates the values of a whole form. The error names the first invalid field.
    pub fn check(&self, content: &Value) -> Result<(), FormError> {
        let Wants::Fields(fields) = &self.wants else {
            return Ok(());
        };
        let Value::Object(content) = content else {
            return Err(FormError::misfit("the form values are not an object"));
        };
        for field in fields {
            match content.get(&field.name) {
                // The error does not contain the value, which may be a secret for the server.
                Some(value) => field
                    .check(value)
                    .map_err(|_| FormError::misfit(format!("{} is invalid", field.name)))?,
                None if field.need == Need::Required => {
                    return Err(FormError::misfit(format!("{} is missing", field.name)));
                }
                None => {}
            }
        }
        let unknown = |name: &&String| fields.iter().all(|field| field.name != **name);
        content.keys().find(unknown).map_or(Ok(()), |name| {
            Err(FormError::misfit(format!(
                "{name} is not a field of the form"
            )))
        })
    }
}

impl Field {
    /// Parses a person's input. Returns `None` if an optional field is left empty.
    pub fn read(&self, typed: &str) -> Result<Option<Value>, FormError> {
        let typed = typed.trim();
        if typed.is_empty() {
            return match (&self.default, self.need) {
                (Some(default), _) => Ok(Some(default.clone())),
                (None, Need::Optional) => Ok(None),
                (None, Need::Required) => Err(FormError::misfit("a value is required")),
            };
        }
        let value = match &self.kind {
            Kind::Text(_) => Value::from(typed),
            Kind::Integer => {
                let number = typed.parse::<i64>();
                Value::from(number.map_err(|_| FormError::misfit("not an integer"))?)
            }
            Kind::Number => {
                let number = typed.parse().ok().and_then(serde_json::Number::from_f64);
                Value::from(number.ok_or_else(|| FormError::misfit("not a number"))?)
            }
            Kind::YesNo => match typed.to_lowercase().as_str() {
                "y" | "yes" | "true" => Value::from(true),
                "n" | "no" | "false" => Value::from(false),
                _ => return Err(FormError::misfit("answer yes or no")),
            },
            Kind::One(choices) => Value::from(chosen(choices, typed)?),
            Kind::Several(choices) => {
                let parts = typed.split(',').map(str::trim);
                let mut values: Vec<&str> = Vec::new();
                for part in parts.filter(|part| !part.is_empty()) {
                    let value = chosen(choices, part)?;
                    if !values.contains(&value) {
                        values.push(value);
                    }
                }
                Value::from(values)
            }
        };
        self.check(&value).map(|()| Some(value))
    }

    /// Formats a value for display.
    pub fn shown(&self, value: &Value) -> String {
        match (&self.kind, value) {
            (Kind::YesNo, Value::Bool(yes)) => if *yes { "yes" } else { "no" }.to_owned(),
            (Kind::Several(_), Value::Array(all)) => {
                let all = all.iter().map(|one| one.as_str().unwrap_or_default());
                all.collect::<Vec<_>>().join(", ")
            }
            (_, Value::String(text)) => text.clone(),
            (_, other) => other.to_string(),
        }
    }

    fn check(&self, value: &Value) -> Result<(), FormError> {
        let why = "the field has an invalid schema";
        let validator = validator(&self.schema).ok_or_else(|| FormError::unshowable(why))?;
        match validator.iter_errors(value).next() {
            None => Ok(()),
            Some(error) => Err(FormError::misfit(
                error.to_string().chars().take(300).collect::<String>(),
            )),
        }
    }
}

/// Compiles a JSON Schema, with validation of formats; `None` if the schema is invalid.
fn validator(schema: &Value) -> Option<Validator> {
    let options = jsonschema::options().should_validate_formats(true);
    options.build(schema).ok()
}

fn field(name: &str, schema: &Value, need: Need) -> Result<Field, FormError> {
    if name.is_empty() || name.chars().count() > MAX_NAME {
        let why = format!("the name of a field is empty or longer than {MAX_NAME} characters");
        return Err(FormError::unshowable(why));
    }
    let text = |key: &str, limit: usize| {
        let text = schema[key].as_str()?;
        Some(text.chars().take(limit).collect())
    };
    let shown_name = crate::link::short(name);
    let one = choices(schema, "oneOf");
    let kind = match schema["type"].as_str() {
        Some("string") if !one.is_empty() => Kind::One(one),
        Some("string") => Kind::Text(text("format", MAX_NAME)),
        Some("number") => Kind::Number,
        Some("integer") => Kind::Integer,
        Some("boolean") => Kind::YesNo,
        Some("array") => Kind::Several(choices(&schema["items"], "anyOf")),
        _ => {
            let why = format!("the field `{shown_name}` has an unsupported type");
            return Err(FormError::unshowable(why));
        }
    };
    if let Kind::One(choices) | Kind::Several(choices) = &kind
        && !(1..=MAX_CHOICES).contains(&choices.len())
    {
        let why = format!(
            "the field `{shown_name}` has {} choices, not 1 to {MAX_CHOICES}",
            choices.len()
        );
        return Err(FormError::unshowable(why));
    }
    let default = schema.get("default").filter(|default| !default.is_null());
    let field = Field {
        name: name.to_owned(),
        title: text("title", MAX_NAME),
        about: text("description", MAX_ABOUT),
        kind,
        need,
        default: None,
        schema: schema.clone(),
    };
    if validator(schema).is_none() {
        let why = format!("the field `{shown_name}` has an invalid schema");
        return Err(FormError::unshowable(why));
    }
    // An invalid default is ignored.
    let default = default.filter(|default| field.check(default).is_ok());
    Ok(Field {
        default: default.cloned(),
        ..field
    })
}

/// Parses choices from `oneOf`, `anyOf`, or `enum` with `enumNames`. `titled` is the keyword of
/// choices with labels.
fn choices(schema: &Value, titled: &str) -> Vec<Choice> {
    let choice = |value: &Value, title: &Value| {
        let value = value.as_str()?.to_owned();
        let title = title.as_str().unwrap_or(&value);
        let title = title.chars().take(MAX_NAME).collect();
        Some(Choice { title, value })
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
fn chosen<'a>(choices: &'a [Choice], typed: &str) -> Result<&'a str, FormError> {
    let by_text = |matches: &dyn Fn(&str) -> bool| {
        let mut choices = choices.iter();
        choices.find(|choice| matches(&choice.value) || matches(&choice.title))
    };
    let by_number = || choices.get(typed.parse::<usize>().ok()?.checked_sub(1)?);
    let choice = by_text(&|text| text == typed)
        .or_else(|| by_text(&|text| text.to_lowercase() == typed.to_lowercase()))
        .or_else(by_number);
    let choice = choice.ok_or_else(|| FormError::misfit("not one of the choices"))?;
    Ok(&choice.value)
}

fn address(url: &str) -> Result<Address, FormError> {
    let parsed = reqwest::Url::parse(url)
        .map_err(|error| FormError::unshowable(format!("invalid URL: {error}")))?;
    if !matches!(parsed.scheme(), "http" | "https") {
        let why = "the URL must start with http:// or https://";
        return Err(FormError::unshowable(why));
    }
    let host = parsed.host_str();
    let host = host.ok_or_else(|| FormError::unshowable("the URL has no host"))?;
    Ok(Address {
        url: parsed.to_string(),
        host: host.to_owned(),
    })
}

/// Adds the form's defaults for fields that have no value.
pub(crate) fn with_defaults(mut content: Value, request: &Value) -> Value {
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

    fn form() -> Form {
        Form::read(&json!({
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
        let Wants::Fields(fields) = form().wants else {
            panic!()
        };
        fields
            .iter()
            .find(|field| field.name == name)
            .unwrap()
            .read(input)
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
            form.check(&json!({"name": "Ada", "fruits": ["pear"]})),
            Ok(())
        );
        assert_eq!(
            form.check(&json!({"age": 3})),
            Err(FormError::misfit("name is missing"))
        );
        assert_eq!(
            form.check(&json!({"name": "Ada", "key": 1})),
            Err(FormError::misfit("key is not a field of the form"))
        );
        assert!(form.check(&json!({"name": "Ada", "age": "old"})).is_err());
    }

    #[test]
    fn an_unsupported_or_oversized_form_is_an_error() {
        let with =
            |field: Value| Form::read(&json!({"requestedSchema": {"properties": {"x": field}}}));
        assert!(with(json!({"type": "object"})).is_err());
        assert!(with(json!({"type": "array", "items": {"type": "string"}})).is_err());
        assert!(with(json!({"type": "string", "pattern": "("})).is_err());
        let many: Map<String, Value> = (0..=MAX_FIELDS)
            .map(|n| (n.to_string(), json!({"type": "string"})))
            .collect();
        assert!(Form::read(&json!({"requestedSchema": {"properties": many}})).is_err());
        assert!(
            Form::read(
                &json!({"message": "x".repeat(MAX_BYTES), "requestedSchema": {"properties": {}}})
            )
            .is_err()
        );
    }

    #[test]
    fn the_host_of_a_url_is_ascii() {
        let visit = |url: &str| {
            Form::read(&json!({"mode": "url", "message": "", "url": url})).map(|form| form.wants)
        };
        let Ok(Wants::Visit(address)) = visit("https://gооgle.com@login.example/p?q=1") else {
            panic!()
        };
        assert_eq!(address.host, "login.example");
        let Ok(Wants::Visit(address)) = visit("https://gооgle.com/") else {
            panic!()
        };
        assert!(address.host.starts_with("xn--"), "{}", address.host);
        for bad in ["javascript:alert(1)", "file:///etc/passwd", "nothing"] {
            assert!(visit(bad).is_err(), "{bad}");
        }
    }
}
