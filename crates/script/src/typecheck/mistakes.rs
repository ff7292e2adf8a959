//! The mistakes that the type check reports, and their messages.

use oxc_ast::ast::Expression;
use oxc_span::{GetSpan, Span};
use selvedge_tools::similar_names;

use super::TypeChecker;
use super::members::{ARRAY_PROPERTIES, property_names, static_properties};
use super::types::{Type, TypeId};

/// Maximum number of field names in a message.
const MAX_LISTED_FIELDS: usize = 8;
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
    /// Name of the tool in scripts whose arguments or result are meant.
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
        kind: TypeId,
        name: &str,
        at: Span,
    ) {
        let kind = self.types.non_nullish(kind);
        let parts = self.types.parts(kind);
        if parts
            .iter()
            .all(|part| matches!(self.types.get(*part), Type::Promise(_)))
        {
            return self.report_unawaited(object, name, at);
        }
        let first = parts.first().copied().unwrap_or(TypeId::UNKNOWN);
        let shown: String = name.chars().take(MAX_QUOTED_BYTES).collect();
        let (what, tool) = self.described(first);
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
        let shown: String = name.chars().take(MAX_QUOTED_BYTES).collect();
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
        let text = self.quoted(at);
        let (what, tool) = self.described(value);
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
        let what = self.name_of(value);
        self.report(TypeMistake {
            kind: MistakeKind::Property,
            offset: callee.start,
            message: format!("`{text}` is {what}, not a function"),
            suggestions: vec![format!("write `{text}` without parentheses")],
            tool: None,
        });
    }

    /// Describes a value with its fields: `exec returns { exitCode, stdout, … }`. Also returns the
    /// tool that it comes from.
    fn described(&self, kind: TypeId) -> (String, Option<String>) {
        match self.types.get(kind) {
            Type::Result(object) => {
                let fields = self.listed_fields(kind);
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
            Type::Object(_) => (format!("the object is {}", self.listed_fields(kind)), None),
            Type::Array { element, .. } => {
                let origin = match self.types.get(*element) {
                    Type::Result(object) => Some(object),
                    _ => None,
                };
                let fields = match self.types.get(*element) {
                    Type::Result(_) | Type::Object(_) => self.listed_fields(*element),
                    _ => self.name_of(*element),
                };
                let whose = match origin {
                    Some(object) if &*object.path == "[]" => {
                        format!("{} returns a list of {fields}", object.tool)
                    }
                    _ => format!("it is a list of {fields}"),
                };
                (whose, origin.map(|object| object.tool.to_owned()))
            }
            Type::Global(name) => (format!("`{name}` has no such property"), None),
            _ => (format!("it is {}", self.name_of(kind)), None),
        }
    }

    /// Names the kind of a value: `a string`.
    pub(super) fn name_of(&self, kind: TypeId) -> String {
        match self.types.get(kind) {
            Type::Unknown | Type::Never | Type::Global(_) => "a value",
            Type::Undefined => "undefined",
            Type::Null => "null",
            Type::Boolean => "a boolean",
            Type::Number => "a number",
            Type::String => "a string",
            Type::Literal(text) => return format!("\"{text}\""),
            Type::Result(_) | Type::Object(_) | Type::Namespace(_) => "an object",
            Type::Array { .. } | Type::Tuple { .. } => "a list",
            Type::Promise(_) => "a promise",
            Type::Iterator(_) => "an iterator",
            Type::Map(..) => "a Map",
            Type::Set(_) => "a Set",
            Type::Function { .. } | Type::Tool(_) | Type::Method => "a function",
            Type::Union(parts) => {
                let names: Vec<String> = parts.iter().map(|part| self.name_of(*part)).collect();
                return names.join(" or ");
            }
        }
        .to_owned()
    }

    /// Returns the names of an object's fields.
    fn field_names(&self, kind: TypeId) -> Vec<&str> {
        match self.types.get(kind) {
            Type::Result(object) => {
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

    fn listed_fields(&self, kind: TypeId) -> String {
        let names = self.field_names(kind);
        let mut listed: Vec<&str> = names.iter().copied().take(MAX_LISTED_FIELDS).collect();
        if names.len() > MAX_LISTED_FIELDS {
            listed.push("…");
        }
        match listed.is_empty() {
            true => "{}".to_owned(),
            false => format!("{{ {} }}", listed.join(", ")),
        }
    }

    fn similar_property(&self, kind: TypeId, name: &str) -> Option<String> {
        let fields = self.field_names(kind);
        let fields = match self.types.get(kind) {
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
    fn list_field(&mut self, kind: TypeId) -> Option<String> {
        let names: Vec<String> = self
            .field_names(kind)
            .into_iter()
            .map(str::to_owned)
            .collect();
        let mut lists = names.into_iter().filter(|name| {
            let field = self.property_type(kind, name);
            let field = field.map(|field| self.types.non_nullish(field));
            field.is_some_and(|field| matches!(self.types.get(field), Type::Array { .. }))
        });
        let found = lists.next()?;
        lists.next().is_none().then_some(found)
    }

    /// Returns a hint for a property of a list that its elements have.
    fn element_hint(&mut self, kind: TypeId, name: &str) -> Option<String> {
        let Type::Array { element, .. } = *self.types.get(kind) else {
            return None;
        };
        self.property_type(element, name)?;
        Some(format!("use `[0].{name}`, or `.map((x) => x.{name})`"))
    }
}

/// Whether a property belongs to lists.
fn is_list_property(name: &str) -> bool {
    ARRAY_PROPERTIES.contains(&name) || name.parse::<u32>().is_ok()
}
