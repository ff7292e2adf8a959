//! Assignments and other changes: of variables, and of values that belong to a tool's result.

use oxc_ast::ast::{
    AssignmentExpression, AssignmentOperator, AssignmentTarget, Expression, IdentifierReference,
    SimpleAssignmentTarget,
};
use oxc_span::{GetSpan, Span};

use super::TypeChecker;
use super::prepass::symbol_of;
use super::types::{Type, TypeId};

impl<'a> TypeChecker<'a> {
    pub(super) fn assignment(&mut self, it: &'a AssignmentExpression<'a>) -> TypeId {
        let value = self.infer(&it.right);
        match &it.left {
            AssignmentTarget::StaticMemberExpression(member) => {
                let object = self.infer(&member.object);
                self.check_change(&member.object, object, member.span);
            }
            AssignmentTarget::ComputedMemberExpression(member) => {
                let object = self.infer(&member.object);
                self.infer(&member.expression);
                self.check_change(&member.object, object, member.span);
            }
            AssignmentTarget::AssignmentTargetIdentifier(name) => {
                self.check_added_promise(it, name, value);
            }
            _ => {}
        }
        match it.operator {
            AssignmentOperator::Assign => value,
            _ => TypeId::UNKNOWN,
        }
    }

    /// Reports `total += promise` for a number.
    fn check_added_promise(
        &mut self,
        it: &'a AssignmentExpression<'a>,
        name: &'a IdentifierReference<'a>,
        value: TypeId,
    ) {
        if !it.operator.is_arithmetic() || !self.is_promise(value) {
            return;
        }
        let Some(symbol) = symbol_of(self.scoping, name) else {
            return;
        };
        // The first value decides the type of the variable.
        self.symbol_type(symbol);
        let is_number = self.initial_types.get(&symbol) == Some(&TypeId::NUMBER);
        if is_number || it.operator != AssignmentOperator::Addition {
            let how = format!("it is used with `{}`", it.operator.as_str());
            self.report_promise_used(it.right.span(), &how);
        }
    }

    /// Infers the target of `++` and `--`.
    pub(super) fn check_update(&mut self, target: &'a SimpleAssignmentTarget<'a>) {
        match target {
            SimpleAssignmentTarget::StaticMemberExpression(member) => {
                let object = self.infer(&member.object);
                self.check_change(&member.object, object, member.span);
            }
            SimpleAssignmentTarget::ComputedMemberExpression(member) => {
                let object = self.infer(&member.object);
                self.infer(&member.expression);
                self.check_change(&member.object, object, member.span);
            }
            _ => {}
        }
    }

    /// Infers the target of `delete`.
    pub(super) fn check_delete(&mut self, target: &'a Expression<'a>) {
        let inner = target.get_inner_expression();
        let Some(member) = inner.as_member_expression() else {
            self.infer(inner);
            return;
        };
        let object = self.infer(member.object());
        self.check_change(member.object(), object, inner.span());
    }

    /// Reports an assignment to a field or element of a frozen value.
    fn check_change(&mut self, object: &'a Expression<'a>, ty: TypeId, at: Span) {
        if self.is_frozen(ty) {
            let text = self.quoted(object.get_inner_expression().span());
            let parts = self.types.parts(ty);
            let is_list = |part: &TypeId| !matches!(self.types.get(*part), Type::ResultObject(_));
            let instead = match parts.iter().any(is_list) {
                true => format!("copy it first: `const copy = [...{text}]`"),
                false => format!("make a copy with the change: `{{ ...{text}, field: value }}`"),
            };
            self.report_change(object, at, &instead);
        }
    }

    /// Whether a value certainly belongs to the result of a tool.
    pub(super) fn is_frozen(&mut self, ty: TypeId) -> bool {
        let ty = self.types.non_nullish(ty);
        let parts = self.types.parts(ty);
        parts.iter().all(|part| match self.types.get(*part) {
            Type::ResultObject(object) => object.frozen,
            Type::Array { frozen, .. } | Type::Tuple { frozen, .. } => *frozen,
            _ => false,
        })
    }
}
