//! Types of functions.

use oxc_ast::ast::{
    ArrowFunctionExpression, Expression, FormalParameter, FormalParameters, Function, FunctionBody,
    TSTypeAnnotation,
};

use super::types::{Type, TypeId};
use super::{TypeChecker, address};

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
    /// Evaluates a function declaration, once, and returns its type.
    pub(super) fn infer_function_declaration(&mut self, function: &'a Function<'a>) -> TypeId {
        let parts = FunctionParts::of_function(function);
        self.without_narrowings(|checker| checker.infer_function(address(function), &parts, &[]))
    }

    /// Evaluates a function expression, once, and returns its type. `given` are the types of the
    /// arguments that it is called with.
    pub(super) fn infer_function_expression(
        &mut self,
        expression: &'a Expression<'a>,
        given: &[TypeId],
    ) -> TypeId {
        match expression {
            Expression::ArrowFunctionExpression(arrow) => {
                let parts = FunctionParts::of_arrow(arrow);
                self.infer_function(address(&**arrow), &parts, given)
            }
            Expression::FunctionExpression(function) => {
                let parts = FunctionParts::of_function(function);
                self.infer_function(address(&**function), &parts, given)
            }
            _ => TypeId::UNKNOWN,
        }
    }

    fn infer_function(
        &mut self,
        key: usize,
        parts: &FunctionParts<'a>,
        given: &[TypeId],
    ) -> TypeId {
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
        let so_far = returned.map_or(TypeId::UNKNOWN, |result| {
            self.add_function_type(&params, result)
        });
        if self.speculation == 0 {
            self.function_types.insert(key, so_far);
        }
        let result = self.evaluate_function(parts, given);
        let ty = self.add_function_type(&params, returned.unwrap_or(result));
        if self.speculation == 0 {
            self.function_types.insert(key, ty);
        }
        self.depth -= 1;
        ty
    }

    fn add_function_type(&mut self, params: &[TypeId], result: TypeId) -> TypeId {
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
        let ty = match &param.type_annotation {
            Some(annotation) => self.annotated_type(&annotation.type_annotation),
            None if param.initializer.is_some() => TypeId::UNKNOWN,
            None => given.unwrap_or(TypeId::UNKNOWN),
        };
        match param.optional {
            true => self.types.union([ty, TypeId::UNDEFINED]),
            false => ty,
        }
    }

    fn bind_parameters(&mut self, params: &'a FormalParameters<'a>, given: &[TypeId]) {
        for (index, param) in params.items.iter().enumerate() {
            let ty = self.parameter_type(param, given.get(index).copied());
            if let Some(initializer) = &param.initializer {
                self.infer(initializer);
            }
            self.bind_pattern(&param.pattern, ty, None);
        }
        if let Some(rest) = &params.rest {
            let ty = match &rest.type_annotation {
                Some(annotation) => self.annotated_type(&annotation.type_annotation),
                None => self.types.array(TypeId::UNKNOWN),
            };
            self.bind_pattern(&rest.rest.argument, ty, None);
        }
    }
}
