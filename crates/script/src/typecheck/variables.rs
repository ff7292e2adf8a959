//! Types of variables: from their declarations, and from all values that are assigned or pushed.

use oxc_ast::ast::{Expression, VariableDeclarator};
use oxc_semantic::{SymbolFlags, SymbolId};
use oxc_span::GetSpan;

use super::prepass::{AssignedValue, Variable, is_used_locally};
use super::types::TypeId;
use super::{TypeChecker, address};

/// Maximum number of assigned values that are followed for one variable.
const MAX_ASSIGNED_VALUES: usize = 12;

impl<'a> TypeChecker<'a> {
    /// Returns the type of a variable. Its declaration is evaluated first if that has not happened.
    pub(super) fn symbol_type(&mut self, symbol: SymbolId) -> TypeId {
        if let Some(found) = self.variable_types.get(&symbol) {
            let found = *found;
            return self.list_type_after_pushes(symbol).unwrap_or(found);
        }
        if let Some((_, so_far)) = self
            .resolving
            .iter()
            .rev()
            .find(|(open, _)| *open == symbol)
        {
            return *so_far;
        }
        // `declare const x: T` says what the script believes about a global.
        let flags = self.scoping.symbol_flags(symbol);
        if flags.contains(SymbolFlags::Ambient) || !self.take_step() {
            return TypeId::UNKNOWN;
        }
        if let Some(function) = self.prepass.functions.get(&symbol).copied() {
            return match self.prepass.assignments.contains_key(&symbol) {
                true => TypeId::UNKNOWN,
                false => self.infer_function_declaration(function),
            };
        }
        self.resolving.push((symbol, TypeId::UNKNOWN));
        let found = self.resolve_variable(symbol);
        self.resolving.pop();
        self.set_symbol(symbol, found);
        self.list_type_after_pushes(symbol).unwrap_or(found)
    }

    fn resolve_variable(&mut self, symbol: SymbolId) -> TypeId {
        let variable = self.prepass.variables.get(&symbol).copied();
        if let Some(variable) = variable
            && !self.initial_types.contains_key(&symbol)
        {
            // A narrowing at the place of use does not hold at the declaration.
            self.without_narrowings(|checker| {
                checker.check_declarator(variable.declarator, variable.is_const);
            });
            if let Some(found) = self.variable_types.get(&symbol) {
                return *found;
            }
        }
        let Some(initial) = self.initial_types.get(&symbol).copied() else {
            return TypeId::UNKNOWN;
        };
        let starts_empty = TypeId::UNDEFINED_OR_NULL.contains(&initial);
        // `tsc` gives up on such a variable, too.
        if starts_empty && !is_used_locally(self.scoping, symbol) {
            return TypeId::UNKNOWN;
        }
        self.with_assignments(symbol, initial)
    }

    /// Joins the first type of a variable with the types of all values that are assigned to it.
    fn with_assignments(&mut self, symbol: SymbolId, initial: TypeId) -> TypeId {
        let values = self.prepass.assignments.get(&symbol).cloned();
        let values = values.unwrap_or_default();
        if values.len() > MAX_ASSIGNED_VALUES {
            return TypeId::UNKNOWN;
        }
        let first = self.join_assigned(symbol, initial, &values);
        // An assigned value may depend on the variable itself.
        let second = self.join_assigned(symbol, first, &values);
        match first == second {
            true => first,
            false => TypeId::UNKNOWN,
        }
    }

    fn join_assigned(
        &mut self,
        symbol: SymbolId,
        so_far: TypeId,
        values: &[AssignedValue<'a>],
    ) -> TypeId {
        self.resolving.push((symbol, so_far));
        let mut types = vec![so_far];
        for value in values {
            match value {
                AssignedValue::Value(expression) => {
                    let found = self.speculate(expression);
                    types.push(self.types.widened(found));
                }
                AssignedValue::Number => types.push(TypeId::NUMBER),
                AssignedValue::Sum(expression) => {
                    let added = self.speculate(expression);
                    match (so_far, added) {
                        (TypeId::STRING, _) => types.push(TypeId::STRING),
                        (TypeId::NUMBER, TypeId::NUMBER) => types.push(TypeId::NUMBER),
                        _ => types.extend([TypeId::NUMBER, TypeId::STRING]),
                    }
                }
                AssignedValue::Unknown => types.push(TypeId::UNKNOWN),
            }
        }
        self.resolving.pop();
        self.types.union(types)
    }

    /// Infers a type without reporting mistakes, and without lasting effects.
    fn speculate(&mut self, expression: &'a Expression<'a>) -> TypeId {
        self.without_narrowings(|checker| {
            checker.speculatively(|checker| checker.infer(expression))
        })
    }

    pub(super) fn set_symbol(&mut self, symbol: SymbolId, ty: TypeId) {
        let before = self.variable_types.insert(symbol, ty);
        if self.speculation > 0 {
            self.speculative_bindings.push((symbol, before));
        }
    }

    /// Binds a declared variable to its first value.
    pub(super) fn bind(&mut self, symbol: SymbolId, ty: TypeId) {
        if self.prepass.assignments.contains_key(&symbol) {
            // All assigned values are joined when the variable is first read.
            self.initial_types.insert(symbol, self.types.widened(ty));
        } else {
            self.set_symbol(symbol, ty);
        }
    }

    /// Returns the type of a list that starts as `[]`, after everything was pushed to it.
    fn list_type_after_pushes(&mut self, symbol: SymbolId) -> Option<TypeId> {
        let (element, count) = self.pushed_types.get(&symbol)?;
        if self.prepass.push_counts.get(&symbol) != Some(count) {
            return None;
        }
        Some(self.types.array(*element))
    }

    /// Evaluates `pattern = init` of a declaration, once.
    pub(super) fn check_declarator(&mut self, it: &'a VariableDeclarator<'a>, is_const: bool) {
        let is_first = match self.speculation {
            0 => self.evaluated_declarators.insert(address(it)),
            _ => !self.evaluated_declarators.contains(&address(it)),
        };
        if !is_first {
            return;
        }
        let annotation = it.type_annotation.as_deref();
        let Some(init) = &it.init else {
            // A loop binds its variable itself.
            if self.prepass.loop_declarators.contains(&address(it)) {
                return;
            }
            let ty = match annotation {
                Some(annotation) => self.annotated_type(&annotation.type_annotation),
                None => TypeId::UNDEFINED,
            };
            return self.bind_pattern(&it.id, ty, None);
        };
        let value = self.infer(init);
        let is_empty_list =
            matches!(init, Expression::ArrayExpression(array) if array.elements.is_empty());
        let value = match annotation {
            Some(annotation) => {
                let declared = self.annotated_type(&annotation.type_annotation);
                self.check_not_promise(
                    value,
                    declared,
                    init.span(),
                    "the variable is declared with another type",
                );
                declared
            }
            None if is_empty_list => self.types.array(TypeId::UNKNOWN),
            None if is_const => value,
            None => self.types.widened(value),
        };
        if annotation.is_none()
            && is_empty_list
            && let Some(id) = it.id.get_binding_identifier()
            && let Some(symbol) = id.symbol_id.get()
            && !self.prepass.assignments.contains_key(&symbol)
            && self.prepass.push_counts.contains_key(&symbol)
            && !self.prepass.index_assigned.contains(&symbol)
            && is_used_locally(self.scoping, symbol)
            && self.speculation == 0
        {
            self.pushed_types.insert(symbol, (TypeId::NEVER, 0));
        }
        self.bind_pattern(&it.id, value, Some(init));
    }

    /// Returns the declaration of a variable that never changes.
    pub(super) fn const_declaration(&self, symbol: SymbolId) -> Option<Variable<'a>> {
        let variable = self.prepass.variables.get(&symbol).copied();
        variable.filter(|variable| variable.is_const)
    }
}
