//! Calls of global functions, and of methods of global objects such as `Promise` and `Object`.

use oxc_ast::ast::CallExpression;
use oxc_span::GetSpan;

use super::TypeChecker;
use super::types::{ObjectType, Type, TypeId};

impl<'a> TypeChecker<'a> {
    /// Infers the call of a global function.
    pub(super) fn global_call(&mut self, call: &'a CallExpression<'a>, name: &'a str) -> TypeId {
        if name == "structuredClone" {
            let value = self.argument(&call.arguments, 0);
            return self.types.mutable_copy(value);
        }
        match name {
            "parseInt" | "parseFloat" | "encodeURIComponent" => {
                self.check_promises(&call.arguments, &[TypeId::STRING]);
            }
            _ => self.infer_arguments(&call.arguments),
        }
        match name {
            "String" | "encodeURIComponent" | "decodeURIComponent" | "encodeURI" | "decodeURI"
            | "help" | "atob" | "btoa" => TypeId::STRING,
            "Number" | "parseInt" | "parseFloat" | "setTimeout" => TypeId::NUMBER,
            "Boolean" | "isNaN" | "isFinite" => TypeId::BOOLEAN,
            "text" | "image" | "audio" | "notify" | "store" => TypeId::UNDEFINED,
            _ => TypeId::UNKNOWN,
        }
    }

    /// Infers the call of a method of a global object.
    pub(super) fn global_method(
        &mut self,
        call: &'a CallExpression<'a>,
        global: &'a str,
        name: &'a str,
    ) -> TypeId {
        match global {
            "Promise" => self.promise_static(call, name),
            "Object" => self.object_static(call, name),
            "Array" => self.array_static(call, name),
            _ => {
                let wanted = match (global, name) {
                    ("JSON", "parse") => [TypeId::STRING; 2],
                    ("Math", _) => [TypeId::NUMBER; 2],
                    _ => [TypeId::UNKNOWN; 2],
                };
                self.check_promises(&call.arguments, &wanted);
                match (global, name) {
                    ("Math", _) | ("Date", "now" | "parse" | "UTC") => TypeId::NUMBER,
                    ("Number", "parseInt" | "parseFloat") => TypeId::NUMBER,
                    ("Number", "isInteger" | "isFinite" | "isNaN" | "isSafeInteger") => {
                        TypeId::BOOLEAN
                    }
                    ("JSON", "stringify") | ("String", "raw" | "fromCharCode") => TypeId::STRING,
                    _ => TypeId::UNKNOWN,
                }
            }
        }
    }

    fn promise_static(&mut self, call: &'a CallExpression<'a>, name: &'a str) -> TypeId {
        let arguments = &call.arguments;
        match name {
            "all" | "allSettled" => {
                let list = self.argument(arguments, 0);
                let list = match self.types.get(list).clone() {
                    Type::Tuple { elements, .. } => {
                        let elements: Vec<TypeId> = elements
                            .iter()
                            .map(|element| self.settled(*element, name))
                            .collect();
                        self.types.tuple(&elements)
                    }
                    Type::Array { element, .. } | Type::Set(element) | Type::Iterator(element) => {
                        let element = self.settled(element, name);
                        self.types.array(element)
                    }
                    _ => TypeId::UNKNOWN,
                };
                self.types.promise(list)
            }
            "race" | "any" => {
                let list = self.argument(arguments, 0);
                let value = match self.types.get(list) {
                    Type::Array { .. } | Type::Tuple { .. } | Type::Set(_) => {
                        self.element_of(list, call.span)
                    }
                    _ => TypeId::UNKNOWN,
                };
                self.types.promise(value)
            }
            "resolve" => {
                let value = self.argument(arguments, 0);
                self.types.promise(value)
            }
            "reject" => {
                self.infer_arguments(arguments);
                self.types.promise(TypeId::UNKNOWN)
            }
            _ => {
                self.infer_arguments(arguments);
                TypeId::UNKNOWN
            }
        }
    }

    /// Returns the type of a value in the result of `Promise.all` or `Promise.allSettled`.
    fn settled(&mut self, element: TypeId, name: &str) -> TypeId {
        let value = self.types.awaited(element);
        if name == "all" {
            return value;
        }
        let fulfilled = self.types.add(Type::Literal("fulfilled"));
        let rejected = self.types.add(Type::Literal("rejected"));
        let done = self.types.add_object(ObjectType {
            fields: vec![("status", fulfilled), ("value", value)],
            ..ObjectType::default()
        });
        let failed = self.types.add_object(ObjectType {
            fields: vec![("status", rejected), ("reason", TypeId::UNKNOWN)],
            ..ObjectType::default()
        });
        self.types.union([done, failed])
    }

    fn object_static(&mut self, call: &'a CallExpression<'a>, name: &'a str) -> TypeId {
        let arguments = &call.arguments;
        if name == "groupBy" {
            let list = self.argument(arguments, 0);
            let element = self.element_or_unknown(list, call);
            self.callback(arguments, 1, &[element, TypeId::NUMBER]);
            let group = self.types.array(element);
            let group = self.types.union([group, TypeId::UNDEFINED]);
            return self.types.add_object(ObjectType {
                index_type: Some(group),
                ..ObjectType::default()
            });
        }
        let first = self.argument(arguments, 0);
        for index in 1..arguments.len() {
            self.argument(arguments, index);
        }
        match name {
            "keys" | "getOwnPropertyNames" => self.types.array(TypeId::STRING),
            "values" => {
                let value = self.field_union(first);
                self.types.array(value)
            }
            "entries" => {
                let value = self.field_union(first);
                let entry = self.types.tuple(&[TypeId::STRING, value]);
                self.types.array(entry)
            }
            "assign" | "defineProperty" | "defineProperties" | "setPrototypeOf" => {
                let target = arguments.first().and_then(|first| first.as_expression());
                if let Some(target) = target.filter(|_| self.is_frozen(first)) {
                    let text = self.quoted(target.get_inner_expression().span());
                    let instead = format!("make a copy: `{{ ...{text}, field: value }}`");
                    self.report_change(target, call.span, &instead);
                }
                TypeId::UNKNOWN
            }
            "freeze" | "seal" => first,
            "hasOwn" | "is" | "isFrozen" => TypeId::BOOLEAN,
            _ => TypeId::UNKNOWN,
        }
    }

    /// Returns the type of the values of an object.
    fn field_union(&mut self, object: TypeId) -> TypeId {
        match self.types.get(object).clone() {
            Type::Array { element, .. } => element,
            Type::Object(id) => {
                let object = self.types.object(id);
                let types = object.fields.iter().map(|field| field.1);
                let types: Vec<TypeId> = types.chain(object.index_type).collect();
                self.types.union(types)
            }
            Type::ResultObject(result) => {
                let names = result
                    .schema
                    .0
                    .fields
                    .iter()
                    .map(|field| field.name.as_str());
                let names = names.chain(result.schema.0.index_type.as_ref().map(|_| "*"));
                let types: Vec<TypeId> = names
                    .map(|name| self.types.result_field(&result, name))
                    .map(|found| found.unwrap_or(TypeId::UNKNOWN))
                    .collect();
                self.types.union(types)
            }
            _ => TypeId::UNKNOWN,
        }
    }

    fn array_static(&mut self, call: &'a CallExpression<'a>, name: &'a str) -> TypeId {
        let arguments = &call.arguments;
        match name {
            "from" | "fromAsync" => {
                let source = self.argument(arguments, 0);
                let element = self.element_or_unknown(source, call);
                let element = match arguments.len() {
                    0 | 1 => element,
                    _ => {
                        let mapped = self.callback(arguments, 1, &[element, TypeId::NUMBER]);
                        self.types.widened(mapped)
                    }
                };
                match name {
                    "from" => self.types.array(element),
                    _ => TypeId::UNKNOWN,
                }
            }
            "isArray" => {
                self.infer_arguments(arguments);
                TypeId::BOOLEAN
            }
            _ => {
                self.infer_arguments(arguments);
                TypeId::UNKNOWN
            }
        }
    }

    /// Returns the type of the elements of a list, or unknown for other values.
    fn element_or_unknown(&mut self, list: TypeId, call: &'a CallExpression<'a>) -> TypeId {
        match self.types.get(list) {
            Type::Array { .. }
            | Type::Tuple { .. }
            | Type::Set(_)
            | Type::Map(..)
            | Type::Iterator(_)
            | Type::String => self.element_of(list, call.span),
            _ => TypeId::UNKNOWN,
        }
    }
}
