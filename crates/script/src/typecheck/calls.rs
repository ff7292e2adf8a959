//! Calls: of tools, functions of the script, and methods.

use oxc_ast::ast::{Argument, CallExpression, Expression, NewExpression, StaticMemberExpression};
use oxc_span::{GetSpan, Span};
use selvedge_tools::RegisteredTool;

use super::TypeChecker;
use super::members::Property;
use super::prepass::pushed_variable;
use super::types::{Type, TypeId};

impl<'a> TypeChecker<'a> {
    pub(super) fn call(&mut self, call: &'a CallExpression<'a>) -> TypeId {
        match &call.callee {
            Expression::StaticMemberExpression(member) => {
                let object = self.infer(&member.object);
                self.method_call(call, member, object)
            }
            callee => {
                let ty = self.infer(callee);
                self.call_value(call, ty)
            }
        }
    }

    fn method_call(
        &mut self,
        call: &'a CallExpression<'a>,
        member: &'a StaticMemberExpression<'a>,
        object: TypeId,
    ) -> TypeId {
        let name = member.property.name.as_str();
        let receiver = self.types.non_nullish(object);
        let property = self.property(receiver, name);
        if let (Type::Global(global), Property::Found(_)) = (self.types.get(receiver), property) {
            let global = *global;
            return self.global_method(call, global, name);
        }
        match property {
            Property::Missing => {
                self.report_missing(Some(&member.object), receiver, name, member.property.span);
                self.infer_arguments(&call.arguments);
                // The call throws.
                self.type_after_mistake(TypeId::NEVER)
            }
            Property::Found(property) => {
                let known = self.built_in_method(call, member, receiver, name);
                known.unwrap_or_else(|| self.call_value(call, property))
            }
        }
    }

    /// Infers the call of a method of a list, string, promise, map, set or iterator.
    fn built_in_method(
        &mut self,
        call: &'a CallExpression<'a>,
        member: &'a StaticMemberExpression<'a>,
        receiver: TypeId,
        name: &'a str,
    ) -> Option<TypeId> {
        let parts = self.types.parts(receiver);
        let kind = self.types.get(*parts.first()?).clone();
        let all = |checker: &Self, is: fn(&Type<'a>) -> bool| {
            parts.iter().all(|part| is(checker.types.get(*part)))
        };
        match kind {
            Type::Array { .. } | Type::Tuple { .. } if all(self, Type::is_list) => {
                self.record_push(call, name);
                Some(self.list_method(call, &member.object, receiver, name))
            }
            Type::String | Type::Literal(_) if all(self, Type::is_string) => {
                Some(self.string_method(call, name))
            }
            Type::Number if parts.len() == 1 => {
                self.infer_arguments(&call.arguments);
                Some(TypeId::STRING)
            }
            Type::Promise(value) if parts.len() == 1 => {
                Some(self.promise_method(call, value, name))
            }
            Type::Map(key, value) if parts.len() == 1 => {
                Some(self.map_method(call, receiver, key, value, name))
            }
            Type::Set(element) if parts.len() == 1 => {
                Some(self.set_method(call, receiver, element, name))
            }
            Type::Iterator(element) if parts.len() == 1 => {
                Some(self.iterator_method(call, receiver, element, name))
            }
            _ => None,
        }
    }

    /// Remembers what is added to a list that starts empty.
    fn record_push(&mut self, call: &'a CallExpression<'a>, name: &str) {
        if !matches!(name, "push" | "unshift") || self.speculation > 0 {
            return;
        }
        let symbol = pushed_variable(self.scoping, call);
        let Some(symbol) = symbol.filter(|symbol| self.pushed_types.contains_key(symbol)) else {
            return;
        };
        let added = self.speculatively(|checker| {
            let arguments = call.arguments.iter();
            let types = arguments.map(|argument| checker.pushed_type(argument));
            types.collect::<Vec<_>>()
        });
        if let Some((before, count)) = self.pushed_types.get(&symbol).copied() {
            let element = self.types.union([before].into_iter().chain(added));
            self.pushed_types.insert(symbol, (element, count + 1));
        }
    }

    /// Infers the type of the elements that an argument of `push` adds.
    fn pushed_type(&mut self, argument: &'a Argument<'a>) -> TypeId {
        let ty = match argument {
            Argument::SpreadElement(it) => {
                let list = self.infer(&it.argument);
                self.element_of(list, it.span)
            }
            argument => match argument.as_expression() {
                Some(value) => self.infer(value),
                None => TypeId::UNKNOWN,
            },
        };
        self.types.widened(ty)
    }

    pub(super) fn call_value(&mut self, call: &'a CallExpression<'a>, callee: TypeId) -> TypeId {
        let callee = self.types.non_nullish(callee);
        match self.types.get(callee).clone() {
            Type::Tool(tool) => {
                self.check_arguments(call, tool.0);
                self.tool_result(tool.0)
            }
            Type::Function { params, result } => {
                self.check_promises(&call.arguments, &params);
                result
            }
            Type::Global(name) => self.global_call(call, name),
            _ => {
                if callee != TypeId::NEVER && !self.may_be_callable(callee) {
                    self.report_not_callable(call.callee.span(), callee);
                }
                self.infer_arguments(&call.arguments);
                TypeId::UNKNOWN
            }
        }
    }

    fn may_be_callable(&self, callee: TypeId) -> bool {
        let parts = self.types.parts(callee);
        let is_value = |part: &TypeId| {
            matches!(
                self.types.get(*part),
                Type::Boolean
                    | Type::Number
                    | Type::String
                    | Type::Literal(_)
                    | Type::ResultObject(_)
                    | Type::Array { .. }
                    | Type::Tuple { .. }
                    | Type::Promise(_)
            )
        };
        !parts.iter().all(is_value)
    }

    /// Returns the type of a call of a tool.
    pub(super) fn tool_result(&mut self, tool: &'a RegisteredTool) -> TypeId {
        let output = &tool.types().output;
        let value = self
            .types
            .type_of_schema(output, &tool.spec.js_name, "", true);
        self.types.promise(value)
    }

    /// Infers the arguments of a call whose parameters are not known.
    pub(super) fn infer_arguments(&mut self, arguments: &'a [Argument<'a>]) {
        for argument in arguments {
            match argument {
                Argument::SpreadElement(it) => {
                    let list = self.infer(&it.argument);
                    self.element_of(list, it.argument.span());
                }
                argument => {
                    argument.as_expression().map(|value| self.infer(value));
                }
            }
        }
    }

    /// Infers the arguments of a function with these parameters, and reports promises that are
    /// passed in place of their values.
    pub(super) fn check_promises(&mut self, arguments: &'a [Argument<'a>], params: &[TypeId]) {
        for (index, argument) in arguments.iter().enumerate() {
            let Some(value) = argument.as_expression() else {
                return self.infer_arguments(&arguments[index..]);
            };
            let ty = self.infer(value);
            if let Some(wanted) = params.get(index) {
                self.check_not_promise(ty, *wanted, value.span(), "its value is required");
            }
        }
    }

    /// Reports a promise in a place for values of another type.
    pub(super) fn check_not_promise(&mut self, value: TypeId, wanted: TypeId, at: Span, how: &str) {
        let parts = self.types.parts(wanted);
        let excludes_promises = |part: &TypeId| match self.types.get(*part) {
            Type::String
            | Type::Literal(_)
            | Type::Number
            | Type::Boolean
            | Type::Null
            | Type::Undefined
            | Type::Array { .. }
            | Type::Tuple { .. }
            | Type::Map(..)
            | Type::Set(_)
            | Type::ResultObject(_) => true,
            Type::Object(id) => {
                let object = self.types.object(*id);
                let is_required = |ty: &TypeId| !self.types.parts(*ty).contains(&TypeId::UNDEFINED);
                object.index_type.is_none() && object.fields.iter().any(|(_, it)| is_required(it))
            }
            _ => false,
        };
        if self.is_promise(value) && parts.iter().all(excludes_promises) {
            self.report_promise_used(at, how);
        }
    }

    /// Infers the argument at a position.
    pub(super) fn argument(&mut self, arguments: &'a [Argument<'a>], index: usize) -> TypeId {
        match arguments.get(index).and_then(Argument::as_expression) {
            Some(value) => self.infer(value),
            None => TypeId::UNDEFINED,
        }
    }

    /// Infers a function that is an argument, called with values of these types. Returns the type
    /// of what it returns.
    pub(super) fn callback(
        &mut self,
        arguments: &'a [Argument<'a>],
        index: usize,
        given: &[TypeId],
    ) -> TypeId {
        let Some(expression) = arguments.get(index).and_then(Argument::as_expression) else {
            return TypeId::UNKNOWN;
        };
        let function = match expression.get_inner_expression() {
            inner
            @ (Expression::ArrowFunctionExpression(_) | Expression::FunctionExpression(_)) => {
                self.infer_function_expression(inner, given)
            }
            _ => self.infer(expression),
        };
        match self.types.get(function) {
            Type::Function { result, .. } => *result,
            Type::Global("String") => TypeId::STRING,
            Type::Global("Number") => TypeId::NUMBER,
            Type::Global("Boolean") => TypeId::BOOLEAN,
            _ => TypeId::UNKNOWN,
        }
    }

    /// Infers `new X(…)`.
    pub(super) fn construct(&mut self, new: &'a NewExpression<'a>) -> TypeId {
        let callee = self.infer(&new.callee);
        let Type::Global(name) = *self.types.get(callee) else {
            self.infer_arguments(&new.arguments);
            return TypeId::UNKNOWN;
        };
        if let (Some(_), "Map" | "Set" | "Array" | "Promise") = (&new.type_arguments, name) {
            self.infer_arguments(&new.arguments);
            return self.standard_type(name, new.type_arguments.as_deref());
        }
        match name {
            "Set" | "Map" => {
                let element = match new.arguments.first() {
                    Some(first) => {
                        let source = self.argument(&new.arguments, 0);
                        self.element_of(source, first.span())
                    }
                    None => TypeId::UNKNOWN,
                };
                match (name, self.types.get(element).clone()) {
                    ("Set", _) => {
                        let element = self.types.widened(element);
                        self.types.add(Type::Set(element))
                    }
                    (_, Type::Tuple { elements, .. }) if elements.len() == 2 => {
                        let (key, value) = (elements[0], elements[1]);
                        self.types.add(Type::Map(key, value))
                    }
                    _ => self.types.add(Type::Map(TypeId::UNKNOWN, TypeId::UNKNOWN)),
                }
            }
            "Array" => {
                self.infer_arguments(&new.arguments);
                self.types.array(TypeId::UNKNOWN)
            }
            "Promise" => {
                self.callback(&new.arguments, 0, &[]);
                self.types.promise(TypeId::UNKNOWN)
            }
            _ => {
                self.infer_arguments(&new.arguments);
                TypeId::UNKNOWN
            }
        }
    }
}
