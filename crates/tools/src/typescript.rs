//! TypeScript declarations of tools, generated from their JSON Schemas.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::{Map, Value};

use crate::{FieldCase, RegisteredTool, Registry, camel_case};

/// Returns a `declare const tools: {…}` that `tsc --strict` accepts.
pub fn declarations(registry: &Registry) -> String {
    let mut root = DeclarationNamespace::default();
    for tool in registry.iter() {
        let mut space = &mut root;
        let parts: Vec<&str> = tool.spec.js_name.split('.').collect();
        for part in &parts[..parts.len() - 1] {
            space = space.namespaces.entry((*part).to_owned()).or_default();
        }
        space.tools.push(tool);
    }
    let mut out = String::from("declare const tools: {\n");
    root.write(&mut out, 1);
    out.push_str("};\n");
    out
}

/// Returns the signature of a tool on one line, without doc comments:
/// `mcp.git.gitStatus(args: { repo_path: string; }): Promise<string>`.
pub fn signature(tool: &RegisteredTool) -> String {
    let text = format!(
        "{}({}): Promise<{}>",
        tool.spec.js_name,
        parameter_types(tool, 0, DocComments::Omit),
        result_type(tool, 0, DocComments::Omit)
    );
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the signatures of all tools, each after its description. It is about a third as long as
/// [`declarations`]; scripts get the descriptions of fields from `help`.
pub fn signatures(registry: &Registry) -> String {
    let mut out = String::new();
    for tool in registry.iter() {
        tool.spec.description.trim().lines().for_each(|line| {
            let _ = writeln!(out, "// {}", line.trim_end());
        });
        let _ = writeln!(out, "tools.{}", signature(tool));
    }
    out
}

/// Whether fields have doc comments.
#[derive(Clone, Copy, PartialEq)]
enum DocComments {
    Include,
    Omit,
}

/// Which types are declared as `readonly`, which `tsc` enforces. Declarations for models omit it:
/// their instructions say that results are frozen.
#[derive(Clone, Copy, PartialEq)]
enum ReadonlyTypes {
    /// No type.
    None,
    /// Lists, so that an argument may be a list from a result.
    Lists,
    /// Lists and fields: results are frozen.
    All,
}

impl ReadonlyTypes {
    fn of(words: DocComments, wanted: Self) -> Self {
        match words {
            DocComments::Include => wanted,
            DocComments::Omit => Self::None,
        }
    }

    fn before_list(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Lists | Self::All => "readonly ",
        }
    }

    fn before_field(self) -> &'static str {
        match self {
            Self::All => "readonly ",
            Self::None | Self::Lists => "",
        }
    }

    /// Returns the type of an object whose fields have this type.
    fn record(self, value: &str) -> String {
        match self {
            Self::All => format!("Readonly<Record<string, {value}>>"),
            Self::None | Self::Lists => format!("Record<string, {value}>"),
        }
    }
}

/// Tools and nested namespaces with a common prefix.
#[derive(Default)]
struct DeclarationNamespace<'a> {
    tools: Vec<&'a RegisteredTool>,
    namespaces: BTreeMap<String, DeclarationNamespace<'a>>,
}

impl DeclarationNamespace<'_> {
    fn write(&self, out: &mut String, depth: usize) {
        let pad = "  ".repeat(depth);
        for tool in &self.tools {
            let name = tool
                .spec
                .js_name
                .rsplit('.')
                .next()
                .unwrap_or(&tool.spec.js_name);
            write_doc_comment(out, &pad, &tool.spec.description);
            let _ = writeln!(
                out,
                "{pad}{}({}): Promise<{}>;",
                property_name(name),
                parameter_types(tool, depth, DocComments::Include),
                result_type(tool, depth, DocComments::Include)
            );
        }
        for (name, space) in &self.namespaces {
            let _ = writeln!(out, "{pad}{}: {{", property_name(name));
            space.write(out, depth + 1);
            let _ = writeln!(out, "{pad}}};");
        }
    }
}

fn parameter_types(tool: &RegisteredTool, depth: usize, words: DocComments) -> String {
    let schema = &tool.spec.input_schema;
    let renderer = TypeScriptRenderer {
        root: schema,
        camel_case_fields: tool.tool.field_case() == FieldCase::Camel,
        doc_comments: words,
        readonly: ReadonlyTypes::of(words, ReadonlyTypes::Lists),
    };
    let required = schema
        .get("required")
        .and_then(Value::as_array)
        .is_some_and(|fields| !fields.is_empty());
    let has_no_fields = schema
        .get("properties")
        .and_then(Value::as_object)
        .is_none_or(Map::is_empty);
    if has_no_fields && schema.get("additionalProperties") == Some(&Value::Bool(false)) {
        return "args?: {}".to_owned();
    }
    format!(
        "args{}: {}",
        if required { "" } else { "?" },
        renderer.render(schema, depth, &mut BTreeSet::new())
    )
}

fn result_type(tool: &RegisteredTool, depth: usize, words: DocComments) -> String {
    match &tool.spec.output_schema {
        Some(schema) => TypeScriptRenderer {
            root: schema,
            camel_case_fields: false,
            doc_comments: words,
            readonly: ReadonlyTypes::of(words, ReadonlyTypes::All),
        }
        .render(schema, depth, &mut BTreeSet::new()),
        None => "unknown".to_owned(),
    }
}

/// Renders JSON Schemas as TypeScript types.
struct TypeScriptRenderer<'a> {
    root: &'a Value,
    camel_case_fields: bool,
    doc_comments: DocComments,
    readonly: ReadonlyTypes,
}

impl TypeScriptRenderer<'_> {
    /// Renders a schema. `open` are the references that are being rendered: a type that contains
    /// itself is `unknown` inside.
    fn render(&self, schema: &Value, depth: usize, open: &mut BTreeSet<String>) -> String {
        let Some(object) = schema.as_object() else {
            return if schema == &Value::Bool(false) {
                "never"
            } else {
                "unknown"
            }
            .to_owned();
        };
        if let Some(reference) = object.get("$ref").and_then(Value::as_str) {
            let target = reference
                .strip_prefix('#')
                .and_then(|path| self.root.pointer(path));
            return match target {
                Some(target) if open.insert(reference.to_owned()) => {
                    let text = self.render(target, depth, open);
                    open.remove(reference);
                    text
                }
                _ => "unknown".to_owned(),
            };
        }
        if let Some(value) = object.get("const") {
            return literal(value);
        }
        if let Some(values) = object.get("enum").and_then(Value::as_array) {
            return union(values.iter().map(literal));
        }
        for (word, join) in [("anyOf", " | "), ("oneOf", " | "), ("allOf", " & ")] {
            if let Some(options) = object.get(word).and_then(Value::as_array) {
                let parts: Vec<String> = options
                    .iter()
                    .map(|option| self.render(option, depth, open))
                    .collect();
                return match join {
                    " | " => union(parts.into_iter()),
                    _ => parts.join(join),
                };
            }
        }
        match object.get("type") {
            Some(Value::Array(types)) => union(
                types
                    .iter()
                    .filter_map(Value::as_str)
                    .map(|name| self.render_type(name, object, depth, open)),
            ),
            Some(Value::String(name)) => self.render_type(name, object, depth, open),
            _ if object.contains_key("properties") => {
                self.render_type("object", object, depth, open)
            }
            _ => "unknown".to_owned(),
        }
    }

    fn render_type(
        &self,
        name: &str,
        object: &Map<String, Value>,
        depth: usize,
        open: &mut BTreeSet<String>,
    ) -> String {
        match name {
            "string" => "string".to_owned(),
            "number" | "integer" => "number".to_owned(),
            "boolean" => "boolean".to_owned(),
            "null" => "null".to_owned(),
            "array" => {
                if let Some(items) = object.get("prefixItems").and_then(Value::as_array) {
                    let parts: Vec<String> = items
                        .iter()
                        .map(|item| self.render(item, depth, open))
                        .collect();
                    return format!("{}[{}]", self.readonly.before_list(), parts.join(", "));
                }
                let item = object.get("items").map_or_else(
                    || "unknown".to_owned(),
                    |items| self.render(items, depth, open),
                );
                let readonly = self.readonly.before_list();
                if item.contains(" | ") || item.contains(" & ") || item.starts_with("readonly ") {
                    format!("{readonly}({item})[]")
                } else {
                    format!("{readonly}{item}[]")
                }
            }
            "object" => self.render_object(object, depth, open),
            _ => "unknown".to_owned(),
        }
    }

    fn render_object(
        &self,
        object: &Map<String, Value>,
        depth: usize,
        open: &mut BTreeSet<String>,
    ) -> String {
        let required: Vec<&str> = object
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let properties = object.get("properties").and_then(Value::as_object);
        let Some(properties) = properties.filter(|properties| !properties.is_empty()) else {
            return match object.get("additionalProperties") {
                Some(Value::Bool(false)) => "{}".to_owned(),
                Some(schema @ Value::Object(_)) => {
                    self.readonly.record(&self.render(schema, depth, open))
                }
                _ => self.readonly.record("unknown"),
            };
        };
        let pad = "  ".repeat(depth + 1);
        let mut out = String::from("{\n");
        for (name, schema) in properties {
            if let Some(description) = schema.get("description").and_then(Value::as_str)
                && self.doc_comments == DocComments::Include
            {
                let default = schema
                    .get("default")
                    .filter(|value| !value.is_null())
                    .map(|value| format!(" (default {value})"));
                write_doc_comment(
                    &mut out,
                    &pad,
                    &format!("{description}{}", default.unwrap_or_default()),
                );
            }
            let spelled = if self.camel_case_fields {
                camel_case(name)
            } else {
                name.clone()
            };
            let optional = if required.contains(&name.as_str()) {
                ""
            } else {
                "?"
            };
            let mut kind = self.render(schema, depth + 1, open);
            if self.doc_comments == DocComments::Omit && !optional.is_empty() {
                // `?` already says that the field may be absent.
                kind = kind
                    .strip_suffix(" | null")
                    .map_or(kind.clone(), str::to_owned);
            }
            let readonly = self.readonly.before_field();
            let name = property_name(&spelled);
            let _ = writeln!(out, "{pad}{readonly}{name}{optional}: {kind};");
        }
        let _ = write!(out, "{}}}", "  ".repeat(depth));
        out
    }
}

/// Joins types with `|`, without duplicates.
fn union(parts: impl Iterator<Item = String>) -> String {
    let mut types = Vec::new();
    for part in parts {
        if !types.contains(&part) {
            types.push(part);
        }
    }
    match types.len() {
        0 => "never".to_owned(),
        _ if types.iter().any(|part| part == "unknown") => "unknown".to_owned(),
        _ => types.join(" | "),
    }
}

fn literal(value: &Value) -> String {
    match value {
        Value::Object(_) | Value::Array(_) => "unknown".to_owned(),
        value => value.to_string(),
    }
}

/// Returns a property name, in quotes if it is not an identifier.
fn property_name(name: &str) -> String {
    let is_identifier = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$');
    if is_identifier {
        name.to_owned()
    } else {
        Value::String(name.to_owned()).to_string()
    }
}

/// Writes a text as a doc comment.
fn write_doc_comment(out: &mut String, pad: &str, text: &str) {
    let text = text.trim().replace("*/", "*\u{200b}/");
    if text.is_empty() {
        return;
    }
    let lines: Vec<&str> = text.lines().collect();
    if let [line] = lines[..] {
        let _ = writeln!(out, "{pad}/** {line} */");
    } else {
        let _ = writeln!(out, "{pad}/**");
        for line in lines {
            let _ = writeln!(out, "{pad} * {}", line.trim_end());
        }
        let _ = writeln!(out, "{pad} */");
    }
}
