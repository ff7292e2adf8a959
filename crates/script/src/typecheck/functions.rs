//! Types of variables and functions.

use oxc_ast::ast::{
    ArrowFunctionExpression, Expression, FormalParameter, FormalParameters, Function, FunctionBody,
    TSTypeAnnotation, VariableDeclarator,
};
use oxc_semantic::{SymbolFlags, SymbolId};
use oxc_span::GetSpan;

use super::facts::{AssignedValue, Variable, is_used_locally};
use super::types::{Type, TypeId};
use super::{TypeChecker, address};

/// Maximum number of assigned values that are followed for one variable.
const MAX_ASSIGNED_VALUES: usize = 12;

/// The parts of a function or an arrow function.
struct FunctionParts<'a> {
    params: &'a FormalParameters<'a>,
    return_type: Option<&'a TSTypeAnnotation<'a>>,
    body: FunctionCode<'a>,
    is_async: bool,
    is_generator: bool,
}

enum FunctionCode<'a> {
    Value(&'a Expression<'a>),
    Statements(&'a FunctionBody<'a>),
    None,
}

impl<'a> FunctionParts<'a> {
    fn of_function(function: &'a Function<'a>) -> Self {
        let body = function.body.as_deref();
        Self {
            params: &function.params,
            return_type: function.return_type.as_deref(),
            body: body.map_or(FunctionCode::None, FunctionCode::Statements),
            is_async: function.r#async,
            is_generator: function.generator,
        }
    }

    fn of_arrow(arrow: &'a ArrowFunctionExpression<'a>) -> Self {
        let value = arrow.body.as_expression().map(FunctionCode::Value);
        let statements = arrow.body.as_function_body().map(FunctionCode::Statements);
        Self {
            params: &arrow.params,
            return_type: arrow.return_type.as_deref(),
            body: value.or(statements).unwrap_or(FunctionCode::None),
            is_async: arrow.r#async,
            is_generator: false,
        }
    }
}

impl<'a> TypeChecker<'a> {
    /// Returns the type of a variable. Its declaration is evaluated first if that has not happened.
    pub(super) fn symbol_type(&mut self, symbol: SymbolId) -> TypeId {
        if let Some(found) = self.symbols.get(&symbol) {
            let found = *found;
            return self.grown_list(symbol).unwrap_or(found);
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
        if let Some(function) = self.facts.functions.get(&symbol).copied() {
            return match self.facts.assignments.contains_key(&symbol) {
                true => TypeId::UNKNOWN,
                false => self.function_declaration(function),
            };
        }
        self.resolving.push((symbol, TypeId::UNKNOWN));
        let found = self.resolve_variable(symbol);
        self.resolving.pop();
        self.set_symbol(symbol, found);
        self.grown_list(symbol).unwrap_or(found)
    }

    fn resolve_variable(&mut self, symbol: SymbolId) -> TypeId {
        let variable = self.facts.variables.get(&symbol).copied();
        if let Some(variable) = variable
            && !self.initial_types.contains_key(&symbol)
        {
            // A narrowing at the place of use does not hold at the declaration.
            let narrowings = std::mem::take(&mut self.narrowings);
            self.check_declarator(variable.declarator, variable.is_const);
            self.narrowings = narrowings;
            if let Some(found) = self.symbols.get(&symbol) {
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
        let values = self.facts.assignments.get(&symbol).cloned();
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
        let bound = self.speculative_bindings.len();
        let narrowings = std::mem::take(&mut self.narrowings);
        self.speculation += 1;
        let found = self.infer(expression);
        self.speculation -= 1;
        self.narrowings = narrowings;
        while self.speculative_bindings.len() > bound {
            if let Some((symbol, before)) = self.speculative_bindings.pop() {
                match before {
                    Some(before) => self.symbols.insert(symbol, before),
                    None => self.symbols.remove(&symbol),
                };
            }
        }
        found
    }

    /// Sets the type of a variable.
    pub(super) fn set_symbol(&mut self, symbol: SymbolId, kind: TypeId) {
        let before = self.symbols.insert(symbol, kind);
        if self.speculation > 0 {
            self.speculative_bindings.push((symbol, before));
        }
    }

    /// Binds a declared variable to its first value.
    pub(super) fn bind(&mut self, symbol: SymbolId, kind: TypeId) {
        if self.facts.assignments.contains_key(&symbol) {
            // All assigned values are joined when the variable is first read.
            self.initial_types.insert(symbol, self.types.widened(kind));
        } else {
            self.set_symbol(symbol, kind);
        }
    }

    /// Returns the type of a list that starts as `[]`, after everything was pushed to it.
    fn grown_list(&mut self, symbol: SymbolId) -> Option<TypeId> {
        let (element, count) = self.pushed.get(&symbol)?;
        if self.facts.pushes.get(&symbol) != Some(count) {
            return None;
        }
        Some(self.types.array(*element))
    }

    /// Evaluates `pattern = init` of a declaration, once.
    pub(super) fn check_declarator(&mut self, it: &'a VariableDeclarator<'a>, is_const: bool) {
        let is_first = match self.speculation {
            0 => self.evaluated.insert(address(it)),
            _ => !self.evaluated.contains(&address(it)),
        };
        if !is_first {
            return;
        }
        let annotation = it.type_annotation.as_deref();
        let Some(init) = &it.init else {
            // A loop binds its variable itself.
            if self.facts.loop_declarators.contains(&address(it)) {
                return;
            }
            let kind = match annotation {
                Some(annotation) => self.annotated_type(&annotation.type_annotation),
                None => TypeId::UNDEFINED,
            };
            return self.bind_pattern(&it.id, kind, None);
        };
        let value = self.infer(init);
        let is_empty_list =
            matches!(init, Expression::ArrayExpression(array) if array.elements.is_empty());
        let value = match annotation {
            Some(annotation) => {
                let declared = self.annotated_type(&annotation.type_annotation);
                self.check_not_promise(value, declared, init.span(), "its type is declared");
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
            && !self.facts.assignments.contains_key(&symbol)
            && self.facts.pushes.contains_key(&symbol)
            && !self.facts.indexed.contains(&symbol)
            && is_used_locally(self.scoping, symbol)
            && self.speculation == 0
        {
            self.pushed.insert(symbol, (TypeId::NEVER, 0));
        }
        self.bind_pattern(&it.id, value, Some(init));
    }

    /// Evaluates a function declaration, once, and returns its type.
    pub(super) fn function_declaration(&mut self, function: &'a Function<'a>) -> TypeId {
        let narrowings = std::mem::take(&mut self.narrowings);
        let parts = FunctionParts::of_function(function);
        let kind = self.function_type(address(function), &parts, &[]);
        self.narrowings = narrowings;
        kind
    }

    /// Evaluates a function expression, once, and returns its type. `given` are the types of the
    /// arguments that it is called with.
    pub(super) fn function_value(
        &mut self,
        expression: &'a Expression<'a>,
        given: &[TypeId],
    ) -> TypeId {
        match expression {
            Expression::ArrowFunctionExpression(arrow) => {
                let parts = FunctionParts::of_arrow(arrow);
                self.function_type(address(&**arrow), &parts, given)
            }
            Expression::FunctionExpression(function) => {
                let parts = FunctionParts::of_function(function);
                self.function_type(address(&**function), &parts, given)
            }
            _ => TypeId::UNKNOWN,
        }
    }

    fn function_type(&mut self, key: usize, parts: &FunctionParts<'a>, given: &[TypeId]) -> TypeId {
        if let Some(known) = self.function_types.get(&key) {
            return *known;
        }
        let is_known = matches!(parts.body, FunctionCode::Value(_)) || self.speculation == 0;
        if !self.take_step() || !is_known {
            return TypeId::UNKNOWN;
        }
        self.depth += 1;
        let params = parts.params.items.iter();
        let params: Vec<TypeId> = params
            .map(|param| self.parameter_type(param, None))
            .collect();
        let returned = parts
            .return_type
            .map(|it| self.annotated_type(&it.type_annotation));
        // A function without an annotation that calls itself returns something unknown.
        let so_far = returned.map_or(TypeId::UNKNOWN, |result| self.function(&params, result));
        if self.speculation == 0 {
            self.function_types.insert(key, so_far);
        }
        let result = self.evaluate_function(parts, given);
        let kind = self.function(&params, returned.unwrap_or(result));
        if self.speculation == 0 {
            self.function_types.insert(key, kind);
        }
        self.depth -= 1;
        kind
    }

    fn function(&mut self, params: &[TypeId], result: TypeId) -> TypeId {
        self.types.add(Type::Function {
            params: params.into(),
            result,
        })
    }

    /// Evaluates the body of a function, and returns the type of what it returns.
    fn evaluate_function(&mut self, parts: &FunctionParts<'a>, given: &[TypeId]) -> TypeId {
        self.bind_parameters(parts.params, given);
        self.returns.push(Vec::new());
        let last = match parts.body {
            FunctionCode::Value(expression) => self.infer(expression),
            FunctionCode::Statements(body) => {
                self.check_statements(&body.statements);
                match body.statements.last().is_some_and(super::statements::exits) {
                    true => TypeId::NEVER,
                    false => TypeId::UNDEFINED,
                }
            }
            FunctionCode::None => TypeId::UNKNOWN,
        };
        let returned = self.returns.pop().unwrap_or_default();
        let value = self.types.union(returned.into_iter().chain([last]));
        match (parts.is_generator, parts.is_async) {
            (true, _) => TypeId::UNKNOWN,
            (false, true) => self.types.promise(value),
            (false, false) => value,
        }
    }

    /// Returns the type of a parameter: its annotation, or the type of what is passed to it.
    fn parameter_type(&mut self, param: &'a FormalParameter<'a>, given: Option<TypeId>) -> TypeId {
        let kind = match &param.type_annotation {
            Some(annotation) => self.annotated_type(&annotation.type_annotation),
            None if param.initializer.is_some() => TypeId::UNKNOWN,
            None => given.unwrap_or(TypeId::UNKNOWN),
        };
        match param.optional {
            true => self.types.union([kind, TypeId::UNDEFINED]),
            false => kind,
        }
    }

    fn bind_parameters(&mut self, params: &'a FormalParameters<'a>, given: &[TypeId]) {
        for (index, param) in params.items.iter().enumerate() {
            let kind = self.parameter_type(param, given.get(index).copied());
            if let Some(initializer) = &param.initializer {
                self.infer(initializer);
            }
            self.bind_pattern(&param.pattern, kind, None);
        }
        if let Some(rest) = &params.rest {
            let kind = match &rest.type_annotation {
                Some(annotation) => self.annotated_type(&annotation.type_annotation),
                None => self.types.array(TypeId::UNKNOWN),
            };
            self.bind_pattern(&rest.rest.argument, kind, None);
        }
    }

    /// Returns the declaration of a variable that never changes.
    pub(super) fn constant(&self, symbol: SymbolId) -> Option<Variable<'a>> {
        let variable = self.facts.variables.get(&symbol).copied();
        variable.filter(|variable| variable.is_const)
    }
}
