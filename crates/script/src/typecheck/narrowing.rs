//! What conditions say about the values that they test.
//!
//! Only variables and parameters that are never reassigned are narrowed. If a script tests for a
//! type that the value cannot have, the narrowed type is `never`, and nothing is reported in that
//! branch: `typeof r === "string" ? r.trim() : r.stdout`.

use oxc_ast::ast::{
    BinaryExpression, BinaryOperator, CallExpression, ChainElement, Expression, LogicalOperator,
    TSType, UnaryOperator,
};
use oxc_semantic::SymbolId;

use super::TypeChecker;
use super::prepass::symbol_of;
use super::types::{Type, TypeId};

/// Maximum number of fields in a path that is narrowed.
const MAX_PATH_FIELDS: usize = 4;

/// The type of a variable, or of a path below it, in a part of the script.
#[derive(Debug, Clone)]
pub(super) struct Narrowing<'a> {
    reference: Reference<'a>,
    ty: TypeId,
}

/// A variable or a path such as `r.entries`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reference<'a> {
    root: SymbolId,
    path: Vec<&'a str>,
}

impl<'a> TypeChecker<'a> {
    /// Returns what is known about an expression here: the narrowed type, or the type itself.
    pub(super) fn narrowed(&mut self, expression: &'a Expression<'a>, ty: TypeId) -> TypeId {
        if self.narrowings.is_empty()
            || !matches!(
                expression,
                Expression::Identifier(_) | Expression::StaticMemberExpression(_)
            )
        {
            return ty;
        }
        let Some(reference) = self.reference(expression) else {
            return ty;
        };
        let mut known = self.narrowings.iter().rev();
        let known = known.find(|narrowing| narrowing.reference == reference);
        known.map_or(ty, |narrowing| narrowing.ty)
    }

    fn reference(&self, expression: &Expression<'a>) -> Option<Reference<'a>> {
        let mut path = Vec::new();
        let mut expression = expression.get_inner_expression();
        loop {
            let member = match expression {
                Expression::Identifier(name) => {
                    let root = symbol_of(self.scoping, name)?;
                    let is_fixed = !self.prepass.assignments.contains_key(&root);
                    path.reverse();
                    return is_fixed.then_some(Reference { root, path });
                }
                Expression::StaticMemberExpression(member) => member,
                Expression::ChainExpression(chain) => match &chain.expression {
                    ChainElement::StaticMemberExpression(member) => member,
                    _ => return None,
                },
                _ => return None,
            };
            let name = member.property.name.as_str();
            if path.len() >= MAX_PATH_FIELDS || self.prepass.added_names.contains(name) {
                return None;
            }
            path.push(name);
            expression = member.object.get_inner_expression();
        }
    }

    /// Adds what holds if a condition is true or false.
    pub(super) fn narrow(&mut self, test: &'a Expression<'a>, holds: bool) {
        if !self.take_step() {
            return;
        }
        match test.get_inner_expression() {
            Expression::UnaryExpression(it) if it.operator == UnaryOperator::LogicalNot => {
                self.narrow(&it.argument, !holds);
            }
            Expression::LogicalExpression(it) => match (it.operator, holds) {
                (LogicalOperator::And, true) | (LogicalOperator::Or, false) => {
                    self.narrow(&it.left, holds);
                    self.narrow(&it.right, holds);
                }
                _ => {}
            },
            Expression::BinaryExpression(it) => self.narrow_by_comparison(it, holds),
            Expression::CallExpression(call) => self.narrow_by_call(call, holds),
            expression => self.narrow_reference(expression, |part| match holds {
                true => !matches!(part, Type::Null | Type::Undefined),
                false => part.can_be_falsy(),
            }),
        }
    }

    /// Keeps the parts of a variable's type for which `keep` returns true.
    fn narrow_reference(
        &mut self,
        expression: &'a Expression<'a>,
        keep: impl FnMut(&Type<'a>) -> bool,
    ) {
        let Some(reference) = self.reference(expression) else {
            return;
        };
        let ty = self.infer_silently(expression);
        let ty = self.types.filter_parts(ty, keep);
        self.narrowings.push(Narrowing { reference, ty });
    }

    /// Infers a type without reporting mistakes.
    pub(super) fn infer_silently(&mut self, expression: &'a Expression<'a>) -> TypeId {
        self.speculatively(|checker| checker.infer(expression.get_inner_expression()))
    }

    fn narrow_to_unknown(&mut self, expression: &'a Expression<'a>) {
        if let Some(reference) = self.reference(expression) {
            let ty = TypeId::UNKNOWN;
            self.narrowings.push(Narrowing { reference, ty });
        }
    }

    fn narrow_by_comparison(&mut self, it: &'a BinaryExpression<'a>, holds: bool) {
        if it.operator == BinaryOperator::Instanceof {
            if holds {
                self.narrow_to_unknown(&it.left);
            }
            return;
        }
        if !it.operator.is_equality() {
            return;
        }
        let is_negated = matches!(
            it.operator,
            BinaryOperator::Inequality | BinaryOperator::StrictInequality
        );
        let is_strict = matches!(
            it.operator,
            BinaryOperator::StrictEquality | BinaryOperator::StrictInequality
        );
        let equal = holds != is_negated;
        let (left, right) = (
            it.left.get_inner_expression(),
            it.right.get_inner_expression(),
        );
        match (left, right) {
            (Expression::UnaryExpression(test), Expression::StringLiteral(name))
                if test.operator == UnaryOperator::Typeof =>
            {
                let name = name.value.as_str();
                self.narrow_reference(&test.argument, |part| {
                    *part == Type::Unknown || (typeof_result(part) == name) == equal
                });
            }
            (value, Expression::NullLiteral(_)) => {
                self.narrow_reference(value, |part| {
                    let same = *part == Type::Null || (!is_strict && *part == Type::Undefined);
                    *part == Type::Unknown || same == equal
                });
            }
            (value, Expression::Identifier(name)) if name.name == "undefined" => {
                self.narrow_reference(value, |part| {
                    let same = *part == Type::Undefined || (!is_strict && *part == Type::Null);
                    *part == Type::Unknown || same == equal
                });
            }
            (Expression::StaticMemberExpression(member), Expression::StringLiteral(text)) => {
                let (field, text) = (member.property.name.as_str(), text.value.as_str());
                self.narrow_by_field(&member.object, field, text, equal);
            }
            _ => {}
        }
    }

    /// Narrows `r` by `r.status === "fulfilled"`.
    fn narrow_by_field(
        &mut self,
        object: &'a Expression<'a>,
        field: &'a str,
        text: &'a str,
        equal: bool,
    ) {
        let Some(reference) = self.reference(object) else {
            return;
        };
        let ty = self.infer_silently(object);
        let parts = self.types.parts(ty);
        let kept: Vec<TypeId> = parts
            .iter()
            .copied()
            .filter(|part| {
                let found = self.property_type(*part, field);
                match found.map(|found| self.types.get(found)) {
                    Some(Type::Literal(known)) => (*known == text) == equal,
                    _ => true,
                }
            })
            .collect();
        let ty = self.types.union(kept);
        self.narrowings.push(Narrowing { reference, ty });
    }

    fn narrow_by_call(&mut self, call: &'a CallExpression<'a>, holds: bool) {
        let first = call
            .arguments
            .first()
            .and_then(|first| first.as_expression());
        let Some(first) = first else {
            return;
        };
        if call.callee.is_specific_member_access("Array", "isArray") {
            let ty = self.infer_silently(first);
            let parts = self.types.parts(ty);
            // For `tsc`, a read-only list that passes this test is a list of anything.
            let can_be_changed = |part: &TypeId| match self.types.get(*part) {
                Type::Array { frozen, .. } | Type::Tuple { frozen, .. } => !frozen,
                _ => false,
            };
            return match holds && !parts.iter().any(can_be_changed) {
                true => self.narrow_to_unknown(first),
                false => self.narrow_reference(first, |part| {
                    *part == Type::Unknown || part.is_list() == holds
                }),
            };
        }
        if self.is_type_guard(&call.callee) {
            for argument in &call.arguments {
                if let Some(argument) = argument.as_expression() {
                    self.narrow_to_unknown(argument);
                }
            }
        }
    }

    /// Whether a function of the script declares that it tests a type: `x is T`.
    fn is_type_guard(&self, callee: &Expression<'a>) -> bool {
        let Expression::Identifier(name) = callee else {
            return false;
        };
        let Some(symbol) = symbol_of(self.scoping, name) else {
            return false;
        };
        let returned = match self.prepass.functions.get(&symbol) {
            Some(function) => function.return_type.as_ref(),
            None => match self
                .const_declaration(symbol)
                .and_then(|it| it.declarator.init.as_ref())
            {
                Some(Expression::ArrowFunctionExpression(arrow)) => arrow.return_type.as_ref(),
                Some(Expression::FunctionExpression(function)) => function.return_type.as_ref(),
                _ => None,
            },
        };
        returned.is_some_and(|it| matches!(it.type_annotation, TSType::TSTypePredicate(_)))
    }
}

/// Returns what `typeof` gives for a value.
fn typeof_result(kind: &Type<'_>) -> &'static str {
    match kind {
        Type::Undefined => "undefined",
        Type::Boolean => "boolean",
        Type::Number => "number",
        Type::String | Type::Literal(_) => "string",
        Type::Function { .. } | Type::Method | Type::Tool(_) | Type::Global(_) => "function",
        _ => "object",
    }
}
