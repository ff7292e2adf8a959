//! Short declarations of tools, for the prompt of a model.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use serde_json::Value;

use crate::render_state::RenderState;
use crate::typescript::{
    DocComments, ReadonlyTypes, TypeScriptRenderer, parameter_types, property_name, result_type,
};
use crate::{FieldCase, RegisteredTool, Registry, camel_case};

/// Most fields that a short signature names.
const MAX_NAMED_FIELDS: usize = 8;

/// Length from which a type that several tools share gets a name.
const MIN_SHARED_TYPE_CHARS: usize = 40;

/// Returns one line for each tool after its description: `name(args: { id: string }): {…}`.
/// Every call returns a promise of the type after the colon. It is about a quarter as long as
/// [`declarations`](crate::declarations): fields have no comments except their defaults, fields
/// that only explain a call are omitted, and a type that several tools share is declared once.
/// `help` describes the fields.
pub fn compact_declarations(registry: &Registry) -> String {
    let rendered: Vec<_> = registry
        .iter()
        .map(|tool| {
            let (args, result) = tool.compact_types();
            (tool, args, result)
        })
        .collect();
    let mut uses: HashMap<&str, usize> = HashMap::new();
    for &(.., result) in &rendered {
        *uses.entry(item_type(result).unwrap_or(result)).or_default() += 1;
    }
    // The names of shared types, by type.
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut taken = HashSet::new();
    let mut out = String::new();
    for &(tool, _, result) in &rendered {
        let title = tool
            .spec
            .output_schema
            .as_ref()
            .and_then(|schema| schema.get("title"));
        if let Some(name) = title.and_then(Value::as_str)
            && result.len() > MIN_SHARED_TYPE_CHARS
            && uses.get(result.as_str()).is_some_and(|uses| *uses > 1)
            && !names.contains_key(result.as_str())
            && taken.insert(name)
        {
            names.insert(result, name);
            let _ = writeln!(out, "type {name} = {result}");
        }
    }
    for &(tool, args, result) in &rendered {
        for line in tool.spec.description.trim().lines() {
            let _ = writeln!(out, "// {}", line.trim_end());
        }
        let result = shared_type_name(result, &names).unwrap_or(Cow::Borrowed(result));
        let _ = writeln!(out, "{}({args}): {result}", tool.spec.js_name);
    }
    out
}

/// Returns the types of a tool's arguments and result, in one line each.
pub(crate) fn compact_types(tool: &RegisteredTool) -> (String, String) {
    let args = one_line(&parameter_types(tool, 0, DocComments::Defaults));
    let result = one_line(&result_type(tool, 0, DocComments::Defaults));
    (args, result)
}

/// Returns a result with the name of the shared type that it is, or that it is a list of.
fn shared_type_name<'a>(result: &str, names: &HashMap<&str, &'a str>) -> Option<Cow<'a, str>> {
    if let Some(name) = names.get(result) {
        return Some(Cow::Borrowed(name));
    }
    let name = names.get(item_type(result)?)?;
    Some(Cow::Owned(format!("{name}[]")))
}

/// Returns the type of a list's items; `None` if the type is no list.
fn item_type(list: &str) -> Option<&str> {
    let item = list.strip_suffix("[]")?;
    let unwrapped = item
        .strip_prefix('(')
        .and_then(|item| item.strip_suffix(')'));
    Some(unwrapped.unwrap_or(item))
}

/// Returns a tool as [`compact_declarations`] does, in at most `max_chars` characters if possible:
/// optional fields are omitted first, then the types of the others, then the result.
pub fn compact_signature(tool: &RegisteredTool, max_chars: usize) -> String {
    let name = &tool.spec.js_name;
    let (whole, result) = tool.compact_types();
    let schema = &tool.spec.input_schema;
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let camel_case_fields = tool.tool.field_case() == FieldCase::Camel;
    let spell = |field: &str| match camel_case_fields {
        true => camel_case(field),
        false => field.to_owned(),
    };
    let names: String = required
        .iter()
        .take(MAX_NAMED_FIELDS)
        .map(|field| format!("{}, ", spell(field)))
        .collect();
    let renderer = TypeScriptRenderer {
        root: schema,
        camel_case_fields,
        doc_comments: DocComments::Defaults,
        omitted: &[],
        readonly: ReadonlyTypes::None,
    };
    let typed: String = required
        .iter()
        .filter_map(|field| Some((field, schema.get("properties")?.get(field)?)))
        .map(|(field, schema)| {
            let kind = renderer.render(schema, 0, &mut RenderState::default());
            format!("{}: {}; ", property_name(&spell(field)), one_line(&kind))
        })
        .collect();
    let forms = [
        format!("{name}({whole}): {result}"),
        format!("{name}(args: {{ {typed}… }}): {result}"),
        format!("{name}({{ {names}… }}): {result}"),
    ];
    let mut forms = forms.into_iter();
    let fitting = forms.find(|form| form.chars().count() <= max_chars);
    fitting.unwrap_or_else(|| format!("{name}({{ {names}… }})"))
}

fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace("; }", " }")
}
