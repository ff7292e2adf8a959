//! A server's form as a person fills it in: fields with their kinds and choices, what was typed as values, and whether
//! the whole fits what the server asked for.

use crate::FormError;
use jsonschema::Validator;
use serde_json::Value;

use crate::elicitation::both_ends;

/// What a server wants of a person. Its words are foreign: whoever shows them takes out what steers a terminal.
#[derive(Debug, Clone, PartialEq)]
pub struct Form {
    /// What the server says about it.
    pub message: String,
    /// What it wants.
    pub wants: Wants,
}

/// What a form wants.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Wants {
    /// Fields to be filled in.
    Fields(Vec<Field>),
    /// An address to be opened, by the person alone.
    Visit(Address),
}

/// An address a person is asked to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// All of it.
    pub url: String,
    /// Where it leads, in the letters that machines use: what only looks like another name does not look so here.
    pub host: String,
}

/// A field of a form.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// The server's name for it.
    pub name: String,
    /// What to call it.
    pub title: Option<String>,
    /// What belongs there.
    pub about: Option<String>,
    /// What it takes.
    pub kind: Kind,
    /// Whether it must be filled in.
    pub need: Need,
    /// What stands there where nothing is filled in.
    pub default: Option<Value>,
    schema: Value,
}

/// What a field takes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Words, in this format where one is said.
    Text(Option<String>),
    /// A number.
    Number,
    /// A number without a fraction.
    Integer,
    /// Yes or no.
    YesNo,
    /// One of these.
    One(Vec<Choice>),
    /// Some of these.
    Several(Vec<Choice>),
}

/// Something to choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// What the server is told.
    pub value: String,
    /// What the person reads.
    pub title: String,
}

/// Whether a field must be filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It must.
    Required,
    /// It may be left empty.
    Optional,
}

/// Fields and choices a person can be expected to look at, and bytes of it all.
const MAX_FIELDS: usize = 60;
const MAX_CHOICES: usize = 200;
const MAX_BYTES: usize = 64 << 10;
/// Characters of a message, of what is said about a field, and of a name, a title or a choice.
const MAX_MESSAGE: usize = 6000;
const MAX_ABOUT: usize = 600;
const MAX_NAME: usize = 120;

impl Form {
    /// Reads the `params` of `elicitation/create`; the error is why nobody can be shown it.
    pub fn read(request: &Value) -> Result<Self, FormError> {
        if request.to_string().len() > MAX_BYTES {
            return Err(FormError::unshowable("the form is too large to be shown"));
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
            let why = format!("the form has {} fields", fields.len());
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

    /// Whether what was filled in fits; the error is the first thing that does not.
    pub fn check(&self, content: &Value) -> Result<(), FormError> {
        let Wants::Fields(fields) = &self.wants else {
            return Ok(());
        };
        let Value::Object(content) = content else {
            return Err(FormError::misfit("what was filled in is no form"));
        };
        for field in fields {
            match content.get(&field.name) {
                // What was typed is told to nobody but the server.
                Some(value) => field
                    .check(value)
                    .map_err(|_| FormError::misfit(format!("{} does not fit", field.name)))?,
                None if field.need == Need::Required => {
                    return Err(FormError::misfit(format!("{} is missing", field.name)));
                }
                None => {}
            }
        }
        let unknown = |name: &&String| fields.iter().all(|field| field.name != **name);
        content.keys().find(unknown).map_or(Ok(()), |name| {
            Err(FormError::misfit(format!("{name} is no field of the form")))
        })
    }
}

impl Field {
    /// What was typed as a value; `None` where the field is left out. The error says what is wrong with it.
    pub fn read(&self, typed: &str) -> Result<Option<Value>, FormError> {
        let typed = typed.trim();
        if typed.is_empty() {
            return match (&self.default, self.need) {
                (Some(default), _) => Ok(Some(default.clone())),
                (None, Need::Optional) => Ok(None),
                (None, Need::Required) => Err(FormError::misfit("this has to be filled in")),
            };
        }
        let value = match &self.kind {
            Kind::Text(_) => Value::from(typed),
            Kind::Integer => {
                let number = typed.parse::<i64>();
                Value::from(number.map_err(|_| FormError::misfit("this is not a whole number"))?)
            }
            Kind::Number => {
                let number = typed.parse().ok().and_then(serde_json::Number::from_f64);
                Value::from(number.ok_or_else(|| FormError::misfit("this is not a number"))?)
            }
            Kind::YesNo => match typed.to_lowercase().as_str() {
                "y" | "yes" | "true" => Value::from(true),
                "n" | "no" | "false" => Value::from(false),
                _ => return Err(FormError::misfit("this is neither yes nor no")),
            },
            Kind::One(choices) => Value::from(chosen(choices, typed)?),
            Kind::Several(choices) => {
                let words = typed.split(',').map(str::trim);
                let mut all: Vec<&str> = Vec::new();
                for word in words.filter(|word| !word.is_empty()) {
                    let one = chosen(choices, word)?;
                    if !all.contains(&one) {
                        all.push(one);
                    }
                }
                Value::from(all)
            }
        };
        self.check(&value).map(|()| Some(value))
    }

    /// A value as a person reads it.
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
        let why = "what the server wants there cannot be understood";
        let validator = validator(&self.schema).ok_or_else(|| FormError::unshowable(why))?;
        match validator.iter_errors(value).next() {
            None => Ok(()),
            Some(error) => Err(FormError::misfit(
                error.to_string().chars().take(300).collect::<String>(),
            )),
        }
    }
}

/// A checker that knows formats, too.
fn validator(schema: &Value) -> Option<Validator> {
    let options = jsonschema::options().should_validate_formats(true);
    options.build(schema).ok()
}

fn field(name: &str, schema: &Value, need: Need) -> Result<Field, FormError> {
    if name.is_empty() || name.chars().count() > MAX_NAME {
        let why = "the form has a field whose name cannot be shown";
        return Err(FormError::unshowable(why));
    }
    let words = |key: &str, most: usize| {
        let text = schema[key].as_str()?;
        Some(text.chars().take(most).collect())
    };
    let shown_name = crate::link::short(name);
    let one = choices(schema, "oneOf");
    let kind = match schema["type"].as_str() {
        Some("string") if !one.is_empty() => Kind::One(one),
        Some("string") => Kind::Text(words("format", MAX_NAME)),
        Some("number") => Kind::Number,
        Some("integer") => Kind::Integer,
        Some("boolean") => Kind::YesNo,
        Some("array") => Kind::Several(choices(&schema["items"], "anyOf")),
        _ => {
            let why = format!("nobody can be shown the field `{shown_name}`");
            return Err(FormError::unshowable(why));
        }
    };
    if let Kind::One(choices) | Kind::Several(choices) = &kind
        && !(1..=MAX_CHOICES).contains(&choices.len())
    {
        let why = format!("the field `{shown_name}` has {} choices", choices.len());
        return Err(FormError::unshowable(why));
    }
    let default = schema.get("default").filter(|default| !default.is_null());
    let field = Field {
        name: name.to_owned(),
        title: words("title", MAX_NAME),
        about: words("description", MAX_ABOUT),
        kind,
        need,
        default: None,
        schema: schema.clone(),
    };
    if validator(schema).is_none() {
        let why = format!("the field `{shown_name}` cannot be understood");
        return Err(FormError::unshowable(why));
    }
    // What does not fit is no default.
    let default = default.filter(|default| field.check(default).is_ok());
    Ok(Field {
        default: default.cloned(),
        ..field
    })
}

/// Choices in each of the ways there are to write them.
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
        .filter_map(|(at, value)| choice(value, names.get(at).unwrap_or(&Value::Null)))
        .collect()
}

/// What was meant: the words of a choice, or its number.
fn chosen<'a>(choices: &'a [Choice], typed: &str) -> Result<&'a str, FormError> {
    let named = |is: &dyn Fn(&str) -> bool| {
        let mut choices = choices.iter();
        choices.find(|choice| is(&choice.value) || is(&choice.title))
    };
    let numbered = || choices.get(typed.parse::<usize>().ok()?.checked_sub(1)?);
    let choice = named(&|word| word == typed)
        .or_else(|| named(&|word| word.to_lowercase() == typed.to_lowercase()))
        .or_else(numbered);
    let choice = choice.ok_or_else(|| FormError::misfit("this is none of the choices"))?;
    Ok(&choice.value)
}

fn address(url: &str) -> Result<Address, FormError> {
    let parsed = reqwest::Url::parse(url)
        .map_err(|_| FormError::unshowable("the address it gives is none"))?;
    if !matches!(parsed.scheme(), "http" | "https") {
        let why = "the address it gives is not one of the web";
        return Err(FormError::unshowable(why));
    }
    let host = parsed.host_str();
    let host = host.ok_or_else(|| FormError::unshowable("the address it gives leads nowhere"))?;
    Ok(Address {
        url: parsed.to_string(),
        host: host.to_owned(),
    })
}

/// What was filled in, and for the rest what the form says where nothing is.
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
                    "colour": {"type": "string", "oneOf": [{"const": "#f00", "title": "Red"}, {"const": "#0f0", "title": "Green"}]},
                    "pet": {"type": "string", "enum": ["cat", "dog"], "enumNames": ["Cats", "Dogs"]},
                    "fruits": {"type": "array", "minItems": 1, "items": {"type": "string", "enum": ["apple", "pear", "2"]}},
                },
                "required": ["name"],
            },
        }))
        .unwrap()
    }

    fn typed(name: &str, words: &str) -> Result<Option<Value>, String> {
        let Wants::Fields(fields) = form().wants else {
            panic!()
        };
        fields
            .iter()
            .find(|field| field.name == name)
            .unwrap()
            .read(words)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_typed_becomes_a_value_of_the_kind_that_is_wanted() {
        for (name, words, value) in [
            ("name", " Ada ", json!("Ada")),
            ("mail", "ada@example.com", json!("ada@example.com")),
            ("age", "", json!(42)),
            ("age", "7", json!(7)),
            ("size", "1.5", json!(1.5)),
            ("news", "N", json!(false)),
            ("colour", "2", json!("#0f0")),
            ("colour", "red", json!("#f00")),
            ("pet", "Dogs", json!("dog")),
            // A word goes before a number.
            ("fruits", "pear, 1, 2, pear", json!(["pear", "apple", "2"])),
        ] {
            assert_eq!(typed(name, words), Ok(Some(value)), "{name}: {words}");
        }
        assert_eq!(typed("mail", ""), Ok(None));
    }

    #[test]
    fn what_does_not_fit_is_said() {
        for (name, words) in [
            ("name", ""),
            ("name", "A"),
            ("mail", "nobody"),
            ("age", "151"),
            ("age", "4.5"),
            ("size", "NaN"),
            ("news", "perhaps"),
            ("colour", "3"),
            ("pet", "cow"),
            ("fruits", ","),
        ] {
            assert!(typed(name, words).is_err(), "{name}: {words}");
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
            Err(FormError::misfit("key is no field of the form"))
        );
        assert!(form.check(&json!({"name": "Ada", "age": "old"})).is_err());
    }

    #[test]
    fn what_nobody_can_be_shown_is_no_form() {
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
    fn an_address_says_where_it_leads() {
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
