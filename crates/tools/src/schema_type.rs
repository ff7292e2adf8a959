//! Types of arguments and results, read from a tool's JSON Schemas, for the type check of scripts.
//!
//! A type describes what the schema says for certain. Where a schema is recursive, very large, or
//! uses keywords that are not supported here, the type is [`SchemaType::Unknown`].

use serde_json::{Map, Value};

use crate::{FieldCase, RegisteredTool, camel_case, snake_case};

/// Maximum depth of a type. What lies deeper is unknown.
const MAX_DEPTH: usize = 32;
/// Maximum number of parts of a type. The parts beyond are unknown.
const MAX_PARTS: usize = 4096;
/// Maximum number of strings in an enumeration; a longer one is read as "a string".
const MAX_LITERALS: usize = 48;

/// The type of a value, as far as a JSON Schema determines it.
#[derive(Debug, Clone, PartialEq)]
pub enum SchemaType {
    /// A value of any type.
    Unknown,
    /// The value `null`.
    Null,
    /// The values `true` and `false`.
    Boolean,
    /// A number, with or without a fraction.
    Number,
    /// A string with any content.
    String,
    /// Exactly this string.
    Literal(String),
    /// A list of any length.
    Array(Box<SchemaType>),
    /// A list with one type for each position.
    Tuple(Vec<SchemaType>),
    /// An object with known fields.
    Object(SchemaObject),
    /// One of several types, none of which is unknown.
    Union(Vec<SchemaType>),
}

/// The type of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct SchemaObject {
    /// The fields that the schema names.
    pub fields: Vec<SchemaField>,
    /// Type of all other fields. `None` if there are none.
    pub index_type: Option<Box<SchemaType>>,
}

/// A field of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct SchemaField {
    /// Name, as scripts write it.
    pub name: String,
    /// Type of its value.
    pub value: SchemaType,
    /// Whether every object has the field.
    pub required: bool,
}

/// The types of a tool's arguments and result.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolTypes {
    /// Type of the one object that the tool takes.
    pub input: SchemaType,
    /// Type of the result.
    pub output: SchemaType,
}

impl SchemaObject {
    /// Returns the field with exactly this name. For the arguments of a call use
    /// [`RegisteredTool::input_field`], which accepts every spelling.
    pub fn field(&self, name: &str) -> Option<&SchemaField> {
        self.fields.iter().find(|field| field.name == name)
    }
}

impl ToolTypes {
    pub(crate) fn of(tool: &RegisteredTool) -> Self {
        let spec = &tool.spec;
        // The schema of a built-in tool lists every field of its Rust type. The result of another
        // server's tool may have more fields than its schema names.
        let lists_all_fields = spec.mcp_server().is_none();
        let read = |schema: &Value, camel_case_fields| {
            SchemaReader {
                root: schema,
                camel_case_fields,
                lists_all_fields,
                parts: 0,
                open: Vec::new(),
            }
            .read(schema, 0)
        };
        let camel_case_fields = tool.tool.field_case() == FieldCase::Camel;
        let output = spec.output_schema.as_ref();
        Self {
            input: read(&spec.input_schema, camel_case_fields),
            output: output.map_or(SchemaType::Unknown, |schema| read(schema, false)),
        }
    }
}

/// Reads the schemas of one tool.
struct SchemaReader<'s> {
    root: &'s Value,
    camel_case_fields: bool,
    lists_all_fields: bool,
    /// Number of parts that were read.
    parts: usize,
    /// References that are being read: a type that contains itself is unknown inside.
    open: Vec<&'s str>,
}

impl<'s> SchemaReader<'s> {
    fn read(&mut self, schema: &'s Value, depth: usize) -> SchemaType {
        self.parts += 1;
        let Some(object) = schema.as_object() else {
            return SchemaType::Unknown;
        };
        if depth > MAX_DEPTH || self.parts > MAX_PARTS {
            return SchemaType::Unknown;
        }
        if let Some(reference) = object.get("$ref").and_then(Value::as_str) {
            return self.read_reference(reference, depth);
        }
        if let Some(value) = object.get("const") {
            return literal(value);
        }
        if let Some(values) = object.get("enum").and_then(Value::as_array) {
            let any_string = |value: &Value| match value {
                Value::String(_) => SchemaType::String,
                other => literal(other),
            };
            return match values.len() > MAX_LITERALS {
                true => union(values.iter().map(any_string).collect()),
                false => union(values.iter().map(literal).collect()),
            };
        }
        for word in ["anyOf", "oneOf"] {
            if let Some(options) = object.get(word).and_then(Value::as_array) {
                if object.contains_key("properties") {
                    return SchemaType::Unknown;
                }
                let options = options.iter().map(|option| self.read(option, depth + 1));
                return union(options.collect());
            }
        }
        if [
            "allOf",
            "not",
            "if",
            "patternProperties",
            "unevaluatedProperties",
        ]
        .iter()
        .any(|word| object.contains_key(*word))
        {
            return SchemaType::Unknown;
        }
        match object.get("type") {
            Some(Value::Array(types)) => {
                let names = types.iter().filter_map(Value::as_str);
                union(
                    names
                        .map(|name| self.read_type(name, object, depth))
                        .collect(),
                )
            }
            Some(Value::String(name)) => self.read_type(name, object, depth),
            _ if object.contains_key("properties") => self.read_object(object, depth),
            _ => SchemaType::Unknown,
        }
    }

    fn read_reference(&mut self, reference: &'s str, depth: usize) -> SchemaType {
        let target = reference
            .strip_prefix('#')
            .and_then(|path| self.root.pointer(path));
        match target {
            Some(target) if !self.open.contains(&reference) => {
                self.open.push(reference);
                let found = self.read(target, depth + 1);
                self.open.pop();
                found
            }
            _ => SchemaType::Unknown,
        }
    }

    fn read_type(
        &mut self,
        name: &str,
        object: &'s Map<String, Value>,
        depth: usize,
    ) -> SchemaType {
        match name {
            "string" => SchemaType::String,
            "number" | "integer" => SchemaType::Number,
            "boolean" => SchemaType::Boolean,
            "null" => SchemaType::Null,
            "array" => {
                if let Some(items) = object.get("prefixItems").and_then(Value::as_array) {
                    let items = items.iter().map(|item| self.read(item, depth + 1));
                    return SchemaType::Tuple(items.collect());
                }
                let items = object.get("items");
                let item = items.map_or(SchemaType::Unknown, |items| self.read(items, depth + 1));
                SchemaType::Array(Box::new(item))
            }
            "object" => self.read_object(object, depth),
            _ => SchemaType::Unknown,
        }
    }

    fn read_object(&mut self, object: &'s Map<String, Value>, depth: usize) -> SchemaType {
        let required = object.get("required").and_then(Value::as_array);
        let is_required =
            |name: &str| required.is_some_and(|names| names.iter().any(|known| known == name));
        let properties = object.get("properties").and_then(Value::as_object);
        let properties = properties.into_iter().flatten();
        let fields: Vec<SchemaField> = properties
            .map(|(name, schema)| SchemaField {
                name: match self.camel_case_fields {
                    true => camel_case(name),
                    false => name.clone(),
                },
                value: self.read(schema, depth + 1),
                required: is_required(name),
            })
            .collect();
        let index_type = match object.get("additionalProperties") {
            Some(Value::Bool(false)) => None,
            None if self.lists_all_fields && !fields.is_empty() => None,
            Some(schema @ Value::Object(_)) if fields.is_empty() => {
                Some(Box::new(self.read(schema, depth + 1)))
            }
            _ => Some(Box::new(SchemaType::Unknown)),
        };
        SchemaType::Object(SchemaObject { fields, index_type })
    }
}

fn literal(value: &Value) -> SchemaType {
    match value {
        Value::Null => SchemaType::Null,
        Value::Bool(_) => SchemaType::Boolean,
        Value::Number(_) => SchemaType::Number,
        Value::String(text) => SchemaType::Literal(text.clone()),
        Value::Array(_) | Value::Object(_) => SchemaType::Unknown,
    }
}

/// Joins types. The union with an unknown type is unknown.
fn union(options: Vec<SchemaType>) -> SchemaType {
    let mut types: Vec<SchemaType> = Vec::new();
    for option in options {
        let parts = match option {
            SchemaType::Union(parts) => parts,
            other => vec![other],
        };
        for part in parts {
            if part == SchemaType::Unknown {
                return SchemaType::Unknown;
            }
            if !types.contains(&part) {
                types.push(part);
            }
        }
    }
    match types.len() {
        0 => SchemaType::Unknown,
        1 => types.remove(0),
        _ => SchemaType::Union(types),
    }
}

impl RegisteredTool {
    /// Returns the field of the arguments that scripts may write as `name`: in any spelling, or by
    /// an alias.
    pub fn input_field(&self, name: &str) -> Option<&SchemaField> {
        let SchemaType::Object(input) = &self.types().input else {
            return None;
        };
        let snake = snake_case(name);
        let alias = self.spec.aliases.iter();
        let alias = alias
            .filter(|(alias, _)| *alias == name || *alias == snake)
            .map(|(_, field)| *field)
            .next();
        let same = |field: &&SchemaField, name: &str| snake_case(&field.name) == snake_case(name);
        let mut fields = input.fields.iter();
        input
            .field(name)
            .or_else(|| fields.find(|field| same(field, name)))
            .or_else(|| {
                input
                    .fields
                    .iter()
                    .find(|field| alias.is_some_and(|name| same(field, name)))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(schema: &Value) -> SchemaType {
        SchemaReader {
            root: schema,
            camel_case_fields: false,
            lists_all_fields: true,
            parts: 0,
            open: Vec::new(),
        }
        .read(schema, 0)
    }

    #[test]
    fn schemas_become_types() {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "kind": {"enum": ["file", "dir", null]},
                "self": {"$ref": "#"},
                "tags": {"type": ["array", "null"], "items": {"type": "integer"}},
            },
            "required": ["path"],
        });
        let SchemaType::Object(object) = read(&schema) else {
            panic!("not an object")
        };
        assert_eq!(object.index_type, None);
        let value = |name| &object.field(name).unwrap().value;
        assert_eq!(value("path"), &SchemaType::String);
        assert!(object.field("path").unwrap().required);
        assert!(matches!(value("kind"), SchemaType::Union(parts) if parts.len() == 3));
        let SchemaType::Object(inner) = value("self") else {
            panic!("not an object")
        };
        assert_eq!(inner.field("self").unwrap().value, SchemaType::Unknown);
        let list = SchemaType::Array(Box::new(SchemaType::Number));
        let list_or_null = SchemaType::Union(vec![list, SchemaType::Null]);
        assert_eq!(value("tags"), &list_or_null);
    }

    #[test]
    fn what_a_schema_leaves_open_is_unknown() {
        for schema in [
            json!(true),
            json!({}),
            json!({"allOf": [{"type": "string"}]}),
            json!({"anyOf": [{"type": "string"}, {}]}),
            json!({"$ref": "#/missing"}),
        ] {
            assert_eq!(read(&schema), SchemaType::Unknown, "{schema}");
        }
        let record = read(&json!({"type": "object", "additionalProperties": {"type": "string"}}));
        let index_type = Some(Box::new(SchemaType::String));
        assert_eq!(
            record,
            SchemaType::Object(SchemaObject {
                fields: vec![],
                index_type
            })
        );
    }

    #[test]
    fn a_schema_that_nests_very_deeply_is_cut() {
        let mut schema = json!({"type": "string"});
        for _ in 0..1000 {
            schema = json!({"type": "array", "items": schema});
        }
        let mut part = &read(&schema);
        let mut depth = 0;
        while let SchemaType::Array(item) = part {
            part = item;
            depth += 1;
        }
        assert_eq!((depth, part), (MAX_DEPTH + 1, &SchemaType::Unknown));
    }
}
