//! TypeScript declarations of tools, generated from their JSON Schemas.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use serde_json::{Map, Value};

use crate::render_state::RenderState;
use crate::{FieldCase, RegisteredTool, Registry, camel_case};

/// Word in a schema whose value is the TypeScript type itself.
const TS_TYPE: &str = "tsType";

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

/// Which comments fields have.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum DocComments {
    /// Descriptions and defaults.
    Include,
    /// Defaults. Fields that only explain a call are left out.
    Defaults,
    /// No comments.
    Omit,
}

/// Which types are declared as `readonly`, which `tsc` enforces. Declarations for models omit it:
/// their instructions say that results are frozen.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum ReadonlyTypes {
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
            DocComments::Defaults | DocComments::Omit => Self::None,
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

pub(crate) fn parameter_types(tool: &RegisteredTool, depth: usize, words: DocComments) -> String {
    let schema = &tool.spec.input_schema;
    let renderer = TypeScriptRenderer {
        root: schema,
        camel_case_fields: tool.tool.field_case() == FieldCase::Camel,
        doc_comments: words,
        omitted: match words {
            DocComments::Defaults => tool.spec.explanatory,
            DocComments::Include | DocComments::Omit => &[],
        },
        readonly: ReadonlyTypes::of(words, ReadonlyTypes::Lists),
    };
    let is_required = schema
        .get("required")
        .and_then(Value::as_array)
        .is_some_and(|fields| !fields.is_empty());
    let has_no_fields = schema
        .get("properties")
        .and_then(Value::as_object)
        .is_none_or(Map::is_empty);
    if has_no_fields && schema.get("additionalProperties") == Some(&Value::Bool(false)) {
        return match words {
            DocComments::Defaults => String::new(),
            DocComments::Include | DocComments::Omit => "args?: {}".to_owned(),
        };
    }
    if words == DocComments::Defaults
        && let Some(parameters) = positional_parameters(tool, &renderer)
    {
        return parameters;
    }
    let mut state = RenderState::default();
    let object = renderer.render(schema, depth, &mut state);
    let mut positional = tool.spec.positional_fields().into_iter().map(|field| {
        let kind = renderer.render(&schema["properties"][field], depth, &mut state);
        let kind = kind
            .strip_suffix(" | null")
            .map_or(kind.clone(), str::to_owned);
        (camel_case(field), kind)
    });
    // The first positional field is an alternative to the object, the others follow it. A type with
    // fields of its own is not repeated.
    let is_short = |kind: &str| kind != "unknown" && !kind.contains('{');
    let first = positional.next().filter(|(_, kind)| is_short(kind));
    let field_count = schema["properties"].as_object().map_or(0, Map::len);
    let has_other_fields = field_count > tool.spec.positional_fields().len();
    let takes_options = first.is_some() && has_other_fields && words == DocComments::Include;
    let kinds = first.into_iter().map(|(_, kind)| kind).chain([object]);
    let optional = if is_required { "" } else { "?" };
    let mut parameters = format!("args{optional}: {}", union(kinds));
    for (name, kind) in positional {
        let name = if name == "args" { "callArgs" } else { &name };
        parameters.push_str(&format!(", {name}?: {kind}"));
    }
    // The types of the other fields are those of the object.
    if takes_options {
        parameters.push_str(", options?: object");
    }
    parameters
}

/// Returns the shortest way to write a call: the positional fields by their names, and an object
/// with the others. `None` if the tool declares no positional fields, or not every call needs the
/// first.
fn positional_parameters(
    tool: &RegisteredTool,
    renderer: &TypeScriptRenderer<'_>,
) -> Option<String> {
    let (schema, positional) = (&tool.spec.input_schema, tool.spec.positional);
    let required = schema["required"].as_array();
    let is_required =
        |field: &str| required.is_some_and(|names| names.iter().any(|name| name == field));
    let optional = |field: &str| if is_required(field) { "" } else { "?" };
    if !is_required(positional.first()?) {
        return None;
    }
    let mut parameters = Vec::new();
    for field in positional {
        let kind = renderer.render(&schema["properties"][field], 0, &mut RenderState::default());
        let kind = kind.strip_suffix(" | null").unwrap_or(&kind);
        parameters.push(format!("{}{}: {kind}", camel_case(field), optional(field)));
    }
    let mut others = schema["properties"].as_object()?.clone();
    let is_other = |name: &str| !positional.contains(&name) && !renderer.omitted.contains(&name);
    others.retain(|name, _| is_other(name));
    if !others.is_empty() {
        let mark = others.keys().map(|name| optional(name)).min();
        let mark = mark.unwrap_or_default();
        let mut object = schema.clone();
        object["properties"] = Value::Object(others);
        let object = renderer.render(&object, 0, &mut RenderState::default());
        parameters.push(format!("options{mark}: {object}"));
    }
    Some(parameters.join(", "))
}

/// Returns the TypeScript type of a schema on one line, without doc comments. `root` is the
/// document that the schema is part of.
pub(crate) fn type_text(schema: &Value, root: &Value) -> String {
    let renderer = TypeScriptRenderer {
        root,
        camel_case_fields: true,
        doc_comments: DocComments::Omit,
        omitted: &[],
        readonly: ReadonlyTypes::None,
    };
    let text = renderer.render(schema, 0, &mut RenderState::default());
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(crate) fn result_type(tool: &RegisteredTool, depth: usize, words: DocComments) -> String {
    match &tool.spec.output_schema {
        Some(schema) => TypeScriptRenderer {
            root: schema,
            camel_case_fields: false,
            doc_comments: words,
            omitted: &[],
            readonly: ReadonlyTypes::of(words, ReadonlyTypes::All),
        }
        .render(schema, depth, &mut RenderState::default()),
        None => "unknown".to_owned(),
    }
}

/// Renders JSON Schemas as TypeScript types.
pub(crate) struct TypeScriptRenderer<'a> {
    /// The document that the schemas are part of.
    pub(crate) root: &'a Value,
    pub(crate) camel_case_fields: bool,
    pub(crate) doc_comments: DocComments,
    /// Names of fields that are left out.
    pub(crate) omitted: &'a [&'a str],
    pub(crate) readonly: ReadonlyTypes,
}

impl TypeScriptRenderer<'_> {
    /// Renders a schema. A type that contains itself, and what exceeds the limits of
    /// [`RenderState`], is `unknown` inside.
    pub(crate) fn render(&self, schema: &Value, depth: usize, state: &mut RenderState) -> String {
        if !state.enter() {
            return "unknown".to_owned();
        }
        let text = self.render_schema(schema, depth, state);
        state.leave(&text);
        text
    }

    fn render_schema(&self, schema: &Value, depth: usize, state: &mut RenderState) -> String {
        let Some(object) = schema.as_object() else {
            return if schema == &Value::Bool(false) {
                "never"
            } else {
                "unknown"
            }
            .to_owned();
        };
        // A function that the sandbox adds to a result. JSON Schema has no word for it.
        if let Some(text) = object.get(TS_TYPE).and_then(Value::as_str) {
            return text.to_owned();
        }
        if let Some(reference) = object.get("$ref").and_then(Value::as_str) {
            let target = reference
                .strip_prefix('#')
                .and_then(|path| self.root.pointer(path));
            return match target {
                Some(target) if state.open.insert(reference.to_owned()) => {
                    let text = self.render(target, depth, state);
                    state.open.remove(reference);
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
                    .map(|option| self.render(option, depth, state))
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
                    .map(|name| self.render_type(name, object, depth, state)),
            ),
            Some(Value::String(name)) => self.render_type(name, object, depth, state),
            _ if object.contains_key("properties") => {
                self.render_type("object", object, depth, state)
            }
            _ => "unknown".to_owned(),
        }
    }

    fn render_type(
        &self,
        name: &str,
        object: &Map<String, Value>,
        depth: usize,
        state: &mut RenderState,
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
                        .map(|item| self.render(item, depth, state))
                        .collect();
                    return format!("{}[{}]", self.readonly.before_list(), parts.join(", "));
                }
                let item = object.get("items").map_or_else(
                    || "unknown".to_owned(),
                    |items| self.render(items, depth, state),
                );
                let readonly = self.readonly.before_list();
                if item.contains(" | ") || item.contains(" & ") || item.starts_with("readonly ") {
                    format!("{readonly}({item})[]")
                } else {
                    format!("{readonly}{item}[]")
                }
            }
            "object" => self.render_object(object, depth, state),
            _ => "unknown".to_owned(),
        }
    }

    fn render_object(
        &self,
        object: &Map<String, Value>,
        depth: usize,
        state: &mut RenderState,
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
                    self.readonly.record(&self.render(schema, depth, state))
                }
                _ => self.readonly.record("unknown"),
            };
        };
        let pad = "  ".repeat(depth + 1);
        let mut out = String::from("{\n");
        let shown = properties
            .iter()
            .filter(|(name, _)| !self.omitted.contains(&name.as_str()));
        for (name, schema) in shown {
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
            let mut kind = self.render(schema, depth + 1, state);
            if self.doc_comments != DocComments::Include && !optional.is_empty() {
                // `?` already says that the field may be absent.
                kind = kind
                    .strip_suffix(" | null")
                    .map_or(kind.clone(), str::to_owned);
            }
            let default = match self.doc_comments {
                DocComments::Defaults => default_comment(schema),
                DocComments::Include | DocComments::Omit => String::new(),
            };
            let readonly = self.readonly.before_field();
            let name = property_name(&spelled);
            let _ = writeln!(out, "{pad}{readonly}{name}{optional}: {kind}{default};");
        }
        if object.get("additionalProperties") == Some(&Value::Bool(true)) {
            let readonly = self.readonly.before_field();
            let _ = writeln!(out, "{pad}{readonly}[field: string]: any;");
        }
        let _ = write!(out, "{}}}", "  ".repeat(depth));
        out
    }
}

/// Returns a comment with the default of a field, if it is a number or a word. Other defaults, such
/// as false or an empty list, are what a reader expects.
fn default_comment(schema: &Value) -> String {
    match schema.get("default") {
        Some(default @ Value::Number(_)) => format!(" /* {default} */"),
        Some(default @ Value::Bool(true)) => format!(" /* {default} */"),
        _ => String::new(),
    }
}

/// Joins types with `|`, without duplicates.
fn union(parts: impl Iterator<Item = String>) -> String {
    let mut types = Vec::new();
    let mut seen = HashSet::new();
    for part in parts {
        if seen.insert(part.clone()) {
            types.push(part);
        }
    }
    match types.len() {
        0 => "never".to_owned(),
        _ if seen.contains("unknown") => "unknown".to_owned(),
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
pub(crate) fn property_name(name: &str) -> String {
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
