//! Destructuring: binds the variables of a pattern to parts of a value.

use oxc_ast::ast::{ArrayPattern, BindingPattern, Expression, ObjectPattern, PropertyKey};
use oxc_span::GetSpan;

use super::TypeChecker;
use super::members::Property;
use super::types::{ObjectType, Type, TypeId};

impl<'a> TypeChecker<'a> {
    /// Binds the variables of a pattern to the parts of a value. `source` is the expression of the
    /// value, for messages.
    pub(super) fn bind_pattern(
        &mut self,
        pattern: &'a BindingPattern<'a>,
        value: TypeId,
        source: Option<&'a Expression<'a>>,
    ) {
        match pattern {
            BindingPattern::BindingIdentifier(id) => {
                if let Some(symbol) = id.symbol_id.get() {
                    self.bind(symbol, value);
                }
            }
            BindingPattern::AssignmentPattern(it) => {
                let default = self.infer(&it.right);
                let value = self
                    .types
                    .filter_parts(value, |part| *part != Type::Undefined);
                let value = self.types.union([value, default]);
                self.bind_pattern(&it.left, value, None);
            }
            BindingPattern::ObjectPattern(it) => self.bind_object(it, value, source),
            BindingPattern::ArrayPattern(it) => self.bind_array(it, value),
        }
    }

    fn bind_object(
        &mut self,
        pattern: &'a ObjectPattern<'a>,
        value: TypeId,
        source: Option<&'a Expression<'a>>,
    ) {
        let mut names = Vec::new();
        for property in &pattern.properties {
            let name = match &property.key {
                PropertyKey::StaticIdentifier(name) => Some(name.name.as_str()),
                PropertyKey::StringLiteral(name) => Some(name.value.as_str()),
                key => {
                    if let Some(key) = key.as_expression() {
                        self.infer(key);
                    }
                    None
                }
            };
            let part = match name.map(|name| (name, self.property(value, name))) {
                Some((_, Property::Found(part))) => part,
                Some((name, Property::Missing)) => {
                    self.report_missing(source, value, name, property.key.span());
                    TypeId::UNKNOWN
                }
                None => TypeId::UNKNOWN,
            };
            names.extend(name);
            self.bind_pattern(&property.value, part, None);
        }
        if let Some(rest) = &pattern.rest {
            let rest_type = self.without_fields(value, &names);
            self.bind_pattern(&rest.argument, rest_type, None);
        }
    }

    /// Returns the type of `rest` in `{ a, b, ...rest }`.
    fn without_fields(&mut self, value: TypeId, names: &[&str]) -> TypeId {
        let mut object = ObjectType::default();
        self.spread_fields(&mut object, value);
        object.fields.retain(|(name, _)| !names.contains(name));
        match object.fields.is_empty() {
            true => TypeId::UNKNOWN,
            false => self.types.add_object(object),
        }
    }

    fn bind_array(&mut self, pattern: &'a ArrayPattern<'a>, value: TypeId) {
        let tuple = match self.types.get(value) {
            Type::Tuple { elements, .. } => Some(elements.clone()),
            _ => None,
        };
        let element = match &tuple {
            Some(_) => TypeId::UNKNOWN,
            None => self.element_of(value, pattern.span),
        };
        for (index, part) in pattern.elements.iter().enumerate() {
            let Some(part) = part else {
                continue;
            };
            let ty = match &tuple {
                Some(elements) => elements.get(index).copied().unwrap_or(TypeId::UNKNOWN),
                None => element,
            };
            self.bind_pattern(part, ty, None);
        }
        if let Some(rest) = &pattern.rest {
            let ty = match &tuple {
                Some(elements) => {
                    let rest = elements.iter().skip(pattern.elements.len()).copied();
                    let rest: Vec<TypeId> = rest.collect();
                    match rest.is_empty() {
                        true => TypeId::UNKNOWN,
                        false => self.types.union(rest),
                    }
                }
                None => element,
            };
            let list = self.types.array(ty);
            self.bind_pattern(&rest.argument, list, None);
        }
    }
}
