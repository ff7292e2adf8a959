//! Properties: which a type has, and their types.

use oxc_ast::ast::{ComputedMemberExpression, Expression, StaticMemberExpression};
use oxc_span::{GetSpan, Span};
use selvedge_protocol::SPAWN_TOOL;
use selvedge_tools::ToolLookup;

use super::TypeChecker;
use super::built_in_properties::{OBJECT_PROPERTIES, property_names, static_properties};
use super::types::{ByAddress, Type, TypeId};
use crate::globals::tool_namespace;

/// Result of looking up a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Property {
    /// It exists, or nothing is known.
    Found(TypeId),
    /// No part of the type has it.
    Missing,
}

impl<'a> TypeChecker<'a> {
    /// Infers `object.name`, and reports the property if it does not exist.
    pub(super) fn static_member(&mut self, member: &'a StaticMemberExpression<'a>) -> TypeId {
        let object = self.infer(&member.object);
        let (name, at) = (member.property.name.as_str(), member.property.span);
        self.read_property(&member.object, object, name, at)
    }

    /// Returns the type of a property, and reports it if it does not exist.
    pub(super) fn read_property(
        &mut self,
        expression: &'a Expression<'a>,
        object: TypeId,
        name: &str,
        at: Span,
    ) -> TypeId {
        match self.property(object, name) {
            Property::Found(found) => found,
            Property::Missing => {
                self.report_missing(Some(expression), object, name, at);
                self.type_after_mistake(TypeId::UNDEFINED)
            }
        }
    }

    /// Returns the type of an expression that contains a mistake. In a speculative evaluation this
    /// is `when_run`, the type of its value at run time. Otherwise it is unknown, so that the
    /// mistake is reported only once.
    pub(super) fn type_after_mistake(&self, when_run: TypeId) -> TypeId {
        match self.speculation {
            0 => TypeId::UNKNOWN,
            _ => when_run,
        }
    }

    /// Infers the type of `object[key]`.
    pub(super) fn computed_member(&mut self, member: &'a ComputedMemberExpression<'a>) -> TypeId {
        let object = self.infer(&member.object);
        let key = self.infer(&member.expression);
        match member.expression.get_inner_expression() {
            Expression::StringLiteral(name) => {
                let at = member.expression.span();
                self.read_property(&member.object, object, name.value.as_str(), at)
            }
            Expression::NumericLiteral(number) => {
                let index = number.value;
                let found = self.element_at(object, Some(index).filter(|index| *index >= 0.0));
                if let (None, Some(name)) = (found, index_name(index)) {
                    self.report_missing(
                        Some(&member.object),
                        object,
                        &name,
                        member.expression.span(),
                    );
                }
                found.unwrap_or(TypeId::UNKNOWN)
            }
            _ if key == TypeId::NUMBER => self.element_at(object, None).unwrap_or(TypeId::UNKNOWN),
            _ => self.computed_field_type(object),
        }
    }

    /// Returns the type of an element, or `None` if no part of the type has elements.
    fn element_at(&mut self, object: TypeId, index: Option<f64>) -> Option<TypeId> {
        let object = self.types.non_nullish(object);
        let mut found = Vec::new();
        for part in self.types.parts(object).iter() {
            match self.types.get(*part).clone() {
                Type::Array { element, .. } => found.push(element),
                Type::Tuple { elements, .. } => match index {
                    // A position after the end is `undefined`; that is not reported.
                    Some(index) => found.push(
                        elements
                            .get(index as usize)
                            .copied()
                            .unwrap_or(TypeId::UNKNOWN),
                    ),
                    None => found.extend(elements.iter()),
                },
                Type::String | Type::Literal(_) => found.push(TypeId::STRING),
                Type::ResultObject(object) if object.schema.0.index_type.is_none() => {}
                Type::Promise(_) => {}
                _ => found.push(self.computed_field_type(*part)),
            }
        }
        match found.is_empty() {
            true if object == TypeId::NEVER => Some(TypeId::UNKNOWN),
            true => None,
            false => Some(self.types.union(found)),
        }
    }

    /// Returns the type of a field whose name is computed.
    fn computed_field_type(&mut self, object: TypeId) -> TypeId {
        let object = self.types.non_nullish(object);
        let parts = self.types.parts(object);
        let found: Vec<TypeId> = parts
            .iter()
            .map(|part| match self.types.get(*part).clone() {
                Type::Object(id) if self.types.object(id).fields.is_empty() => {
                    self.types.object(id).index_type.unwrap_or(TypeId::UNKNOWN)
                }
                Type::ResultObject(object) if object.schema.0.fields.is_empty() => {
                    let found = self.types.result_field(&object, "*");
                    found.unwrap_or(TypeId::UNKNOWN)
                }
                _ => TypeId::UNKNOWN,
            })
            .collect();
        self.types.union(found)
    }

    /// Returns the type of a property if it exists.
    pub(super) fn property_type(&mut self, object: TypeId, name: &str) -> Option<TypeId> {
        match self.property(object, name) {
            Property::Found(found) => Some(found),
            Property::Missing => None,
        }
    }

    /// Looks up a property of a type. Of a union, at least one part must have it.
    pub(super) fn property(&mut self, object: TypeId, name: &str) -> Property {
        let object = self.types.non_nullish(object);
        if object == TypeId::NEVER {
            return Property::Found(TypeId::UNKNOWN);
        }
        let mut found = Vec::new();
        for part in self.types.parts(object).iter() {
            if let Property::Found(part) = self.property_of_part(*part, name) {
                found.push(part);
            }
        }
        match found.is_empty() {
            true => Property::Missing,
            false => Property::Found(self.types.union(found)),
        }
    }

    fn property_of_part(&mut self, part: TypeId, name: &str) -> Property {
        const UNKNOWN: Property = Property::Found(TypeId::UNKNOWN);
        if OBJECT_PROPERTIES.contains(&name) {
            return UNKNOWN;
        }
        let kind = self.types.get(part).clone();
        match &kind {
            Type::ResultObject(object) => match self.types.result_field(object, name) {
                Some(found) => Property::Found(found),
                None if self.prepass.tested_names.contains(name) => UNKNOWN,
                None => Property::Missing,
            },
            Type::Object(id) => {
                let object = self.types.object(*id);
                let is_assigned = !object.is_declared && self.prepass.added_names.contains(name);
                match object.field(name).or(object.index_type) {
                    Some(_) if is_assigned => UNKNOWN,
                    Some(found) => Property::Found(found),
                    None if self.prepass.may_be_added(name) => UNKNOWN,
                    None => Property::Missing,
                }
            }
            Type::Namespace(prefix) => {
                Property::Found(self.tool_member(&format!("{prefix}{name}")))
            }
            Type::Tool(tool) if name == "raw" => {
                let raw = tool.0.raw();
                Property::Found(raw.map_or(TypeId::UNKNOWN, |raw| {
                    self.types.add(Type::Tool(ByAddress(raw)))
                }))
            }
            Type::Array { .. }
            | Type::Tuple { .. }
            | Type::String
            | Type::Literal(_)
            | Type::Number
            | Type::Boolean
            | Type::Promise(_)
            | Type::Map(..)
            | Type::Set(_)
            | Type::Iterator(_)
            | Type::Method => self.built_in_property(&kind, name),
            Type::Global(global) => match static_properties(global) {
                Some(known) if !known.split(' ').any(|known| known == name) => Property::Missing,
                _ => UNKNOWN,
            },
            _ => UNKNOWN,
        }
    }

    fn built_in_property(&mut self, kind: &Type<'a>, name: &str) -> Property {
        let exists = property_names(kind).contains(&name)
            || (kind.is_list() && is_index(name))
            || self.prepass.tested_names.contains(name);
        match name {
            _ if !exists => Property::Missing,
            "length" | "size" => Property::Found(TypeId::NUMBER),
            "groups" | "index" | "input" => Property::Found(TypeId::UNKNOWN),
            _ if self.prepass.tested_names.contains(name) || is_index(name) => {
                Property::Found(TypeId::UNKNOWN)
            }
            _ => Property::Found(self.types.add(Type::Method)),
        }
    }

    /// Returns the type of a global that holds tools: `tools` or a server.
    pub(super) fn tool_global(&mut self, name: &str) -> Option<TypeId> {
        let mut prefix = tool_namespace(name, self.registry)?;
        if !prefix.is_empty() {
            prefix.push('.');
        }
        Some(self.types.add(Type::Namespace(prefix.into())))
    }

    /// Returns the type of a path below `tools`. A path that is not a tool is reported by another
    /// check.
    fn tool_member(&mut self, path: &str) -> TypeId {
        // A task is not a promise.
        if path == SPAWN_TOOL || path.split('.').next() == Some("spawn") {
            return TypeId::UNKNOWN;
        }
        let registry = self.registry;
        match registry.look_up(path) {
            ToolLookup::Tool(tool) => self.types.add(Type::Tool(ByAddress(tool))),
            ToolLookup::Namespace => self.types.add(Type::Namespace(format!("{path}.").into())),
            ToolLookup::NotFound(_) => TypeId::UNKNOWN,
        }
    }
}

/// Whether a name is a position in a list.
pub(super) fn is_index(name: &str) -> bool {
    name.parse::<u32>().is_ok()
}

/// Returns the name of a position in a list.
fn index_name(index: f64) -> Option<String> {
    (index >= 0.0 && index.fract() == 0.0 && index < 1e6).then(|| format!("{index}"))
}
