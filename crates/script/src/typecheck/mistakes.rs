//! The mistakes that the type check reports, and their messages.

use oxc_ast::ast::Expression;
use oxc_span::{GetSpan, Span};
use selvedge_tools::similar_names;

use super::TypeChecker;
use super::built_in_properties::{ARRAY_PROPERTIES, property_names, static_properties};
use super::members::is_index;
use super::types::{MAX_FIELDS, Type, TypeId};
use crate::hints::ESCAPE_BACKTICK_HINT;

/// Maximum number of field names in a message.
const MAX_LISTED_FIELDS: usize = 8;
/// Maximum length of the text that is read to quote an expression, in bytes.
const MAX_READ_BYTES: usize = 400;
/// Maximum length of an expression in a message, in bytes.
const MAX_QUOTED_BYTES: usize = 40;

/// Names that models use for fields, and the fields that tools have.
const SYNONYMS: [(&str, &[&str]); 14] = [
    ("output", &["stdout", "aggregatedOutput", "text"]),
    ("out", &["stdout"]),
    ("err", &["stderr"]),
    ("error", &["stderr"]),
    ("code", &["exitCode"]),
    ("status", &["exitCode"]),
    ("content", &["text"]),
    ("contents", &["content", "text"]),
    ("data", &["text", "content"]),
    ("body", &["text", "content"]),
    ("name", &["path"]),
    ("file", &["path"]),
    ("type", &["kind"]),
    ("files", &["entries"]),
];

/// A certain mistake in a script.
#[derive(Debug, Clone)]
pub(crate) struct TypeMistake {
    pub(crate) kind: MistakeKind,
    /// Byte offset in the script.
    pub(crate) offset: u32,
    pub(crate) message: String,
    pub(crate) suggestions: Vec<String>,
    /// The tool whose arguments or result the mistake is about, by its name in scripts.
    pub(crate) tool: Option<String>,
}

/// Kind of a mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MistakeKind {
    /// A value does not have the property, or is not a list or a function.
    Property,
    /// A promise is used as if it were its value.
    Await,
    /// The promise of a call is neither awaited nor returned nor stored.
    Dropped,
    /// An argument contradicts the tool's schema.
    Argument,
    /// A result of a tool is changed in place.
    Readonly,
}

impl MistakeKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Property => "property",
            Self::Await => "await",
            Self::Dropped => "dropped",
            Self::Argument => "argument",
            Self::Readonly => "readonly",
        }
    }
}

impl<'a> TypeChecker<'a> {
    /// Returns the text of an expression, shortened.
    pub(super) fn quoted(&self, span: Span) -> String {
        let text = self.source.get(span.start as usize..span.end as usize);
        let text = text.unwrap_or_default();
        let text = &text[..text.floor_char_boundary(MAX_READ_BYTES)];
        let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
        match text.len() > MAX_QUOTED_BYTES {
            true => format!("{}…", &text[..text.floor_char_boundary(MAX_QUOTED_BYTES)]),
            false => text,
        }
    }

    /// Reports that a value has no such property.
    pub(super) fn report_missing(
        &mut self,
        object: Option<&Expression<'a>>,
        ty: TypeId,
        name: &str,
        at: Span,
    ) {
        if !self.is_reporting() {
            return;
        }
        let ty = self.types.non_nullish(ty);
        let parts = self.types.parts(ty);
        if self.is_promise(ty) {
            return self.report_unawaited(object, name, at);
        }
        let first = parts.first().copied().unwrap_or(TypeId::UNKNOWN);
        let shown = shortened(name);
        let (what, tool) = self.describe_value(first);
        let mut mistake = TypeMistake {
            kind: MistakeKind::Property,
            offset: at.start,
            message: format!("`{shown}` does not exist: {what}"),
            suggestions: Vec::new(),
            tool,
        };
        if let Some(list) = self.list_field(first).filter(|_| is_list_property(name)) {
            mistake.message.push_str(&format!("; use `.{list}`"));
            mistake.suggestions.push(format!("use `.{list}.{shown}`"));
        } else if let Some(near) = self.similar_property(first, name) {
            mistake
                .message
                .push_str(&format!("; did you mean `{near}`?"));
            mistake.suggestions.push(near);
        } else if let Some(hint) = self.element_hint(first, name) {
            mistake.message.push_str(&format!("; {hint}"));
            mistake.suggestions.push(hint);
        }
        self.report(mistake);
    }

    /// Reports a property of a promise.
    fn report_unawaited(&mut self, object: Option<&Expression<'a>>, name: &str, at: Span) {
        let text = object.map(|object| self.quoted(object.get_inner_expression().span()));
        let shown = shortened(name);
        let value = text.as_deref().unwrap_or("value");
        let instead = match object.is_some_and(|it| at.start < it.span().start) {
            true => format!("write `await {value}`"),
            false => format!("write `(await {value}).{shown}`"),
        };
        self.report(TypeMistake {
            kind: MistakeKind::Await,
            offset: at.start,
            message: format!("`{shown}` is read from a promise that is not awaited: `{value}`"),
            suggestions: vec![instead],
            tool: None,
        });
    }

    /// Reports a promise that is used in a way that only its value allows.
    pub(super) fn report_promise_used(&mut self, promise: Span, how: &str) {
        let text = self.quoted(promise);
        self.report(TypeMistake {
            kind: MistakeKind::Await,
            offset: promise.start,
            message: format!("`{text}` is a promise and is not awaited, but {how}"),
            suggestions: vec![format!("write `await {text}`")],
            tool: None,
        });
    }

    /// Reports a change of a frozen value.
    pub(super) fn report_change(&mut self, object: &Expression<'a>, at: Span, instead: &str) {
        let text = self.quoted(object.get_inner_expression().span());
        self.report(TypeMistake {
            kind: MistakeKind::Readonly,
            offset: at.start,
            message: format!(
                "`{text}` belongs to the result of a tool, which is frozen and cannot be changed"
            ),
            suggestions: vec![instead.to_owned()],
            tool: None,
        });
    }

    /// Reports a value that is not a list where one is required.
    pub(super) fn report_not_iterable(&mut self, value: TypeId, at: Span) {
        if !self.is_reporting() {
            return;
        }
        let text = self.quoted(at);
        let (what, tool) = self.describe_value(value);
        let mut mistake = TypeMistake {
            kind: MistakeKind::Property,
            offset: at.start,
            message: format!("`{text}` is not a list: {what}"),
            suggestions: Vec::new(),
            tool,
        };
        if let Some(list) = self.list_field(value) {
            mistake.message.push_str(&format!("; use `.{list}`"));
            mistake.suggestions.push(format!("write `{text}.{list}`"));
        }
        self.report(mistake);
    }

    /// Reports a call of a value that is not a function.
    pub(super) fn report_not_callable(&mut self, callee: Span, value: TypeId) {
        let text = self.quoted(callee);
        let what = self.type_label(value);
        self.report(TypeMistake {
            kind: MistakeKind::Property,
            offset: callee.start,
            message: format!("`{text}` is {what}, not a function"),
            suggestions: vec![format!("write `{text}` without parentheses")],
            tool: None,
        });
    }

    /// Reports a string as the tag of a template, at the backtick that ends the string.
    pub(super) fn report_string_tag(&mut self, tag: Span) {
        let text = self.source.get(..tag.end as usize).unwrap_or_default();
        let (offset, message) = match text.ends_with('`') {
            true => (
                tag.end - 1,
                "the template literal ends at this backtick, and another one follows",
            ),
            false => (
                tag.end,
                "a string is followed by a backtick, which calls it like a function",
            ),
        };
        self.report(TypeMistake {
            kind: MistakeKind::Property,
            offset,
            message: message.to_owned(),
            suggestions: vec![ESCAPE_BACKTICK_HINT.to_owned()],
            tool: None,
        });
    }

    /// Describes a value with its fields: `exec returns { exitCode, stdout, … }`. Also returns the
    /// tool that it comes from.
    fn describe_value(&self, ty: TypeId) -> (String, Option<String>) {
        match self.types.get(ty) {
            Type::ResultObject(object) => {
                let fields = self.format_fields(ty);
                let text = match &*object.path {
                    "" => format!("{} returns {fields}", object.tool),
                    path => format!(
                        "`{}` of {} is {fields}",
                        path.trim_start_matches('.'),
                        object.tool
                    ),
                };
                (text, Some(object.tool.to_owned()))
            }
            Type::Object(_) => (format!("the object is {}", self.format_fields(ty)), None),
            Type::Array { element, .. } => {
                let origin = match self.types.get(*element) {
                    Type::ResultObject(object) => Some(object),
                    _ => None,
                };
                let fields = match self.types.get(*element) {
                    Type::ResultObject(_) | Type::Object(_) => self.format_fields(*element),
                    _ => self.type_label(*element),
                };
                let whose = match origin {
                    Some(object) if &*object.path == "[]" => {
                        format!("{} returns a list of {fields}", object.tool)
                    }
                    _ => format!("the value is a list of {fields}"),
                };
                (whose, origin.map(|object| object.tool.to_owned()))
            }
            Type::Global(name) => (format!("`{name}` has no such property"), None),
            _ => (format!("it is {}", self.type_label(ty)), None),
        }
    }

    /// Names the kind of a value: `a string`.
    pub(super) fn type_label(&self, ty: TypeId) -> String {
        match self.types.get(ty) {
            Type::Unknown | Type::Never | Type::Global(_) => "a value",
            Type::Undefined => "undefined",
            Type::Null => "null",
            Type::Boolean => "a boolean",
            Type::Number => "a number",
            Type::String => "a string",
            Type::Literal(text) => return format!("\"{text}\""),
            Type::ResultObject(_) | Type::Object(_) | Type::Namespace(_) => "an object",
            Type::Array { .. } | Type::Tuple { .. } => "a list",
            Type::Promise(_) => "a promise",
            Type::Iterator(_) => "an iterator",
            Type::Map(..) => "a Map",
            Type::Set(_) => "a Set",
            Type::Function { .. } | Type::Tool(_) | Type::Method => "a function",
            Type::Union(parts) => {
                let names: Vec<String> = parts.iter().map(|part| self.type_label(*part)).collect();
                return names.join(" or ");
            }
        }
        .to_owned()
    }

    /// Returns the names of an object's fields.
    fn field_names(&self, ty: TypeId) -> Vec<&str> {
        match self.types.get(ty) {
            Type::ResultObject(object) => {
                let fields = object.schema.0.fields.iter();
                fields.map(|field| field.name.as_str()).collect()
            }
            Type::Object(id) => {
                let fields = self.types.object(*id).fields.iter();
                fields.map(|(name, _)| *name).collect()
            }
            _ => Vec::new(),
        }
    }

    fn format_fields(&self, ty: TypeId) -> String {
        let names = self.field_names(ty);
        let mut listed: Vec<&str> = names.iter().copied().take(MAX_LISTED_FIELDS).collect();
        if names.len() > MAX_LISTED_FIELDS {
            listed.push("…");
        }
        match listed.is_empty() {
            true => "{}".to_owned(),
            false => format!("{{ {} }}", listed.join(", ")),
        }
    }

    fn similar_property(&self, ty: TypeId, name: &str) -> Option<String> {
        let fields = self.field_names(ty);
        let fields = match self.types.get(ty) {
            Type::Global(name) => static_properties(name)
                .unwrap_or_default()
                .split(' ')
                .collect(),
            known if fields.is_empty() => property_names(known).to_vec(),
            _ => fields,
        };
        let synonym = SYNONYMS.iter().find(|(synonym, _)| *synonym == name);
        let synonym = synonym.and_then(|(_, known)| {
            let mut known = known.iter();
            known.find(|known| fields.contains(known))
        });
        match synonym {
            Some(known) => Some((*known).to_owned()),
            None => similar_names(name, fields).into_iter().next(),
        }
    }

    /// Returns the field of an object that is a list, if there is exactly one.
    fn list_field(&mut self, ty: TypeId) -> Option<String> {
        let names: Vec<String> = self
            .field_names(ty)
            .into_iter()
            .map(str::to_owned)
            .collect();
        if names.len() > MAX_FIELDS {
            return None;
        }
        let mut lists = names.into_iter().filter(|name| {
            let field = self.property_type(ty, name);
            let field = field.map(|field| self.types.non_nullish(field));
            field.is_some_and(|field| matches!(self.types.get(field), Type::Array { .. }))
        });
        let found = lists.next()?;
        lists.next().is_none().then_some(found)
    }

    /// Returns a hint for a property of a list that its elements have.
    fn element_hint(&mut self, ty: TypeId, name: &str) -> Option<String> {
        let Type::Array { element, .. } = *self.types.get(ty) else {
            return None;
        };
        self.property_type(element, name)?;
        Some(format!("use `[0].{name}`, or `.map((x) => x.{name})`"))
    }
}

/// Returns the start of a property's name, for a message.
fn shortened(name: &str) -> String {
    name.chars().take(MAX_QUOTED_BYTES).collect()
}

/// Whether a property belongs to lists.
fn is_list_property(name: &str) -> bool {
    ARRAY_PROPERTIES.contains(&name) || is_index(name)
}
