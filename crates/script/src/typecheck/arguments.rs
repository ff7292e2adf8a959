//! Arguments of tool calls, compared with the tool's schema.
//!
//! Arguments that are literals in a call `tools.x(…)` are checked by the pre-flight against the
//! schema itself. Here only values that are known by their type are compared, and literals in calls
//! that the pre-flight does not recognise, such as those of `const { readFile } = tools`.

use oxc_ast::ast::{
    Argument, CallExpression, Expression, ObjectExpression, ObjectPropertyKind, PropertyKind,
};
use oxc_span::{GetSpan, Span};
use selvedge_tools::{RegisteredTool, SchemaType, check_partial};

use super::expressions::borrowed_name;
use super::mistakes::{MistakeKind, TypeMistake};
use super::prepass::symbol_of;
use super::types::{ObjectType, Type, TypeId};
use super::{TypeChecker, address};
use crate::analysis::{literal_value, object_fields};

/// Maximum depth to which values are compared with a schema.
const MAX_COMPARED_DEPTH: usize = 12;
/// Number of comparisons of names that count as one part of a type.
const NAMES_PER_PART: usize = 16;

impl<'a> TypeChecker<'a> {
    /// Infers the arguments of a call of a tool, and reports those that contradict its schema.
    pub(super) fn check_arguments(
        &mut self,
        call: &'a CallExpression<'a>,
        tool: &'a RegisteredTool,
    ) {
        match &call.arguments[..] {
            [] => {
                if !self.is_checked_by_preflight(&call.callee) {
                    self.check_literals(None, tool, call.span);
                }
            }
            [Argument::ObjectExpression(object)] => {
                if !self.is_checked_by_preflight(&call.callee) {
                    self.check_literals(Some(object), tool, call.span);
                }
                self.check_object(object, tool);
            }
            [argument] if !argument.is_spread() => {
                let value = self.argument(&call.arguments, 0);
                self.check_argument_value(value, tool, argument.span());
            }
            arguments => {
                self.infer_arguments(arguments);
                let spread = arguments.iter().any(Argument::is_spread);
                // An object with further fields may follow the fields that are given by position.
                if !spread && arguments.len() > tool.spec.positional_fields().len() + 1 {
                    let message = "takes one object with named fields, got several arguments";
                    self.report_argument(tool, call.arguments[1].span(), message.to_owned());
                }
            }
        }
    }

    /// Whether the pre-flight recognises the call: a path below a global.
    fn is_checked_by_preflight(&self, callee: &Expression<'a>) -> bool {
        let mut callee = callee.get_inner_expression();
        while let Some(member) = callee.as_member_expression() {
            if member.static_property_name().is_none() {
                return false;
            }
            callee = member.object().get_inner_expression();
        }
        matches!(callee, Expression::Identifier(name) if symbol_of(self.scoping, name).is_none())
    }

    /// Checks literals as the pre-flight does.
    fn check_literals(
        &mut self,
        object: Option<&ObjectExpression<'a>>,
        tool: &'a RegisteredTool,
        at: Span,
    ) {
        let fields = object.map(object_fields).unwrap_or_default();
        let (known, dynamic) = (fields.literals, &fields.dynamic);
        for problem in check_partial(tool, known, dynamic, fields.has_unknown_fields) {
            let field = problem.field.as_deref();
            let mut offsets = fields.offsets.iter();
            let offset = offsets.find(|(name, _)| Some(name.as_str()) == field);
            let start = offset.map_or(at.start, |(_, offset)| *offset);
            self.report_argument(tool, Span::new(start, at.end), problem.message);
        }
    }

    /// Checks the fields of an object literal whose values are not literals.
    fn check_object(&mut self, object: &'a ObjectExpression<'a>, tool: &'a RegisteredTool) {
        let mut spread: Option<ObjectType<'a>> = None;
        let mut written: Vec<(&'a str, TypeId, Span)> = Vec::new();
        for property in &object.properties {
            match property {
                ObjectPropertyKind::SpreadProperty(it) => {
                    let value = self.infer(&it.argument);
                    let mut fields = spread.take().unwrap_or_default();
                    self.spread_fields(&mut fields, value);
                    spread = Some(fields);
                }
                ObjectPropertyKind::ObjectProperty(property) => {
                    let value = self.infer(&property.value);
                    let name = borrowed_name(&property.key);
                    let is_literal = literal_value(&property.value).is_some();
                    if let Some(name) = name.filter(|_| property.kind == PropertyKind::Init)
                        && !is_literal
                    {
                        written.push((name, value, property.value.span()));
                    } else if name.is_none() {
                        spread.get_or_insert_default().index_type = Some(TypeId::UNKNOWN);
                    }
                }
            }
        }
        for (name, value, at) in written {
            self.check_field(tool, name, value, at);
        }
        if let Some(spread) = spread {
            let names = object.properties.iter().filter_map(|property| {
                let name = property.as_property()?.key.static_name()?;
                Some(name.into_owned())
            });
            let names: Vec<String> = names.collect();
            self.check_required(tool, &spread, &names, object.span);
        }
    }

    fn check_field(&mut self, tool: &'a RegisteredTool, name: &str, value: TypeId, at: Span) {
        let Some(field) = tool.input_field(name) else {
            return;
        };
        let value = match field.required {
            true => value,
            false => self
                .types
                .filter_parts(value, |part| *part != Type::Undefined),
        };
        if value == TypeId::NEVER || !self.contradicts(value, &field.value, 0) {
            return;
        }
        let wanted = schema_label(&field.value);
        if self.is_promise(value) {
            let how = format!("`{name}` of {} must be {wanted}", tool.spec.js_name);
            return self.report_promise_used(at, &how);
        }
        let given = self.type_label(value);
        self.report_argument(tool, at, format!("`{name}` must be {wanted}, not {given}"));
    }

    /// Reports the first required field that neither the spread objects nor the literal has.
    fn check_required(
        &mut self,
        tool: &'a RegisteredTool,
        spread: &ObjectType<'a>,
        names: &[String],
        at: Span,
    ) {
        let SchemaType::Object(input) = &tool.types().input else {
            return;
        };
        if spread.index_type.is_some() {
            return;
        }
        let given = spread.fields.iter().map(|(name, _)| *name);
        let given = given.chain(names.iter().map(String::as_str));
        let compared = (spread.fields.len() + names.len()).saturating_mul(input.fields.len());
        if !self.types.take_parts(compared / NAMES_PER_PART) {
            return;
        }
        let given: Vec<&str> = given
            .filter_map(|name| tool.input_field(name))
            .map(|field| field.name.as_str())
            .collect();
        let mut required = input.fields.iter().filter(|field| field.required);
        if let Some(field) = required.find(|field| !given.contains(&field.name.as_str())) {
            let message = format!("the field `{}` is missing", field.name);
            self.report_argument(tool, at, message);
        }
    }

    /// Checks an argument that is not an object literal.
    fn check_argument_value(&mut self, value: TypeId, tool: &'a RegisteredTool, at: Span) {
        if self.is_promise(value) {
            let how = format!("{} needs its value", tool.spec.js_name);
            return self.report_promise_used(at, &how);
        }
        let mut fields = ObjectType::default();
        match self.types.get(value) {
            Type::Object(_) | Type::ResultObject(_) => self.spread_fields(&mut fields, value),
            _ => return,
        }
        for (name, value) in fields.fields.clone() {
            self.check_field(tool, name, value, at);
        }
        self.check_required(tool, &fields, &[], at);
    }

    fn report_argument(&mut self, tool: &RegisteredTool, at: Span, message: String) {
        self.report(TypeMistake {
            kind: MistakeKind::Argument,
            offset: at.start,
            message: format!("{}: {message}", tool.spec.js_name),
            suggestions: Vec::new(),
            tool: Some(tool.spec.js_name.clone()),
        });
    }

    /// Whether no value of a type matches the schema.
    fn contradicts(&mut self, value: TypeId, wanted: &SchemaType, depth: usize) -> bool {
        if depth > MAX_COMPARED_DEPTH || value == TypeId::NEVER {
            return false;
        }
        let key = (value, address(wanted));
        if let Some(known) = self.contradictions.get(&key) {
            return *known;
        }
        let found = self.compare(value, wanted, depth);
        // At the maximum depth nothing contradicts, so a contradiction holds at any depth.
        self.contradictions.insert(key, found);
        found
    }

    fn compare(&mut self, value: TypeId, wanted: &SchemaType, depth: usize) -> bool {
        let options = match wanted {
            SchemaType::Union(options) => &options[..],
            option => std::slice::from_ref(option),
        };
        let parts = self.types.parts(value);
        let mut pairs = parts
            .iter()
            .flat_map(|part| options.iter().map(move |option| (*part, option)));
        pairs.all(|(part, option)| self.part_contradicts(part, option, depth))
    }

    fn part_contradicts(&mut self, part: TypeId, wanted: &SchemaType, depth: usize) -> bool {
        if !self.types.take_parts(1) {
            return false;
        }
        let kind = self.types.get(part).clone();
        match (&kind, wanted) {
            (Type::Unknown | Type::Never | Type::Union(_), _) | (_, SchemaType::Unknown) => false,
            (Type::Null, SchemaType::Null)
            | (Type::Boolean, SchemaType::Boolean)
            | (Type::Number, SchemaType::Number)
            | (Type::String | Type::Literal(_), SchemaType::String)
            | (Type::String, SchemaType::Literal(_)) => false,
            (Type::Literal(text), SchemaType::Literal(wanted)) => text != wanted,
            (Type::Array { element, .. }, SchemaType::Array(item)) => {
                self.contradicts(*element, item, depth + 1)
            }
            (Type::Tuple { elements, .. }, SchemaType::Array(item)) => {
                let mut elements = elements.iter();
                elements.any(|element| self.contradicts(*element, item, depth + 1))
            }
            (Type::Array { .. } | Type::Tuple { .. }, SchemaType::Tuple(_)) => false,
            (Type::Object(_) | Type::ResultObject(_), SchemaType::Object(wanted)) => {
                let mut given = ObjectType::default();
                self.spread_fields(&mut given, part);
                let compared = given.fields.len().saturating_mul(wanted.fields.len());
                if !self.types.take_parts(compared / NAMES_PER_PART) {
                    return false;
                }
                wanted
                    .fields
                    .iter()
                    .any(|field| match given.field(&field.name) {
                        Some(value) => self.contradicts(value, &field.value, depth + 1),
                        None => {
                            field.required
                                && given.index_type.is_none()
                                && !has_spelling(&given, field)
                        }
                    })
            }
            // Maps, sets and functions are objects, too.
            (
                Type::Map(..)
                | Type::Set(_)
                | Type::Iterator(_)
                | Type::Function { .. }
                | Type::Method
                | Type::Tool(_)
                | Type::Namespace(_)
                | Type::Global(_),
                _,
            ) => false,
            _ => true,
        }
    }
}

/// Whether an object has the field in another spelling.
fn has_spelling(object: &ObjectType<'_>, field: &selvedge_tools::SchemaField) -> bool {
    let wanted = selvedge_tools::snake_case(&field.name);
    let mut fields = object.fields.iter();
    fields.any(|(name, _)| selvedge_tools::snake_case(name) == wanted)
}

/// Names the kind of value that a schema describes: `a string`.
fn schema_label(schema: &SchemaType) -> String {
    match schema {
        SchemaType::Unknown => "a value".to_owned(),
        SchemaType::Null => "null".to_owned(),
        SchemaType::Boolean => "a boolean".to_owned(),
        SchemaType::Number => "a number".to_owned(),
        SchemaType::String => "a string".to_owned(),
        SchemaType::Literal(text) => format!("\"{text}\""),
        SchemaType::Array(item) => match &**item {
            SchemaType::String => "a list of strings".to_owned(),
            SchemaType::Number => "a list of numbers".to_owned(),
            _ => "a list".to_owned(),
        },
        SchemaType::Tuple(_) => "a list".to_owned(),
        SchemaType::Object(_) => "an object".to_owned(),
        SchemaType::Union(options) => {
            // An optional field may be null: that is not worth naming.
            let named = options.iter().filter(|option| **option != SchemaType::Null);
            let names: Vec<String> = named.map(schema_label).collect();
            names.join(" or ")
        }
    }
}
