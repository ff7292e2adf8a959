//! Methods of lists, strings, promises, maps, sets and iterators.

use oxc_ast::ast::{Argument, CallExpression, Expression, TSType};
use oxc_span::GetSpan;

use super::TypeChecker;
use super::types::{Type, TypeId};

/// Methods that change a list in place, and what to write instead.
const CHANGING_METHODS: [(&str, &str); 9] = [
    ("sort", "use `toSorted(…)`, which returns a sorted copy"),
    (
        "reverse",
        "use `toReversed()`, which returns a reversed copy",
    ),
    ("splice", "use `toSpliced(…)`, which returns a changed copy"),
    ("push", "copy it first: `[...list, value]`"),
    ("unshift", "copy it first: `[value, ...list]`"),
    (
        "pop",
        "read the last element with `.at(-1)`, or copy the list first: `[...list]`",
    ),
    (
        "shift",
        "read the first element with `[0]`, or copy the list first: `[...list]`",
    ),
    ("fill", "copy it first: `[...list].fill(…)`"),
    ("copyWithin", "copy it first: `[...list].copyWithin(…)`"),
];

impl<'a> TypeChecker<'a> {
    /// Infers a method of a list. `list` is a list or a union of lists.
    pub(super) fn list_method(
        &mut self,
        call: &'a CallExpression<'a>,
        object: &'a Expression<'a>,
        list: TypeId,
        name: &'a str,
    ) -> TypeId {
        let element = self.element_of(list, call.span);
        let change = CHANGING_METHODS.iter().find(|(method, _)| *method == name);
        if let Some((_, instead)) = change
            && self.is_frozen(list)
        {
            self.report_change(object, call.callee.span(), instead);
        }
        let arguments = &call.arguments;
        let (number, items) = (TypeId::NUMBER, [element, TypeId::NUMBER, list]);
        match name {
            "map" => {
                let mapped = self.callback(arguments, 0, &items);
                let mapped = match self.explicit_type_argument(call) {
                    Some(given) => given,
                    None => self.types.widened(mapped),
                };
                self.types.array(mapped)
            }
            "flatMap" => {
                let mapped = self.callback(arguments, 0, &items);
                let mapped = self.flattened(mapped);
                self.types.array(mapped)
            }
            "filter" => {
                self.callback(arguments, 0, &items);
                let kept = self.type_predicate_target(arguments).unwrap_or(element);
                self.types.array(kept)
            }
            "find" | "findLast" => {
                self.callback(arguments, 0, &items);
                let found = self.type_predicate_target(arguments).unwrap_or(element);
                self.types.union([found, TypeId::UNDEFINED])
            }
            "findIndex" | "findLastIndex" => {
                self.callback(arguments, 0, &items);
                number
            }
            "some" | "every" => {
                self.callback(arguments, 0, &items);
                TypeId::BOOLEAN
            }
            "forEach" => {
                self.callback(arguments, 0, &items);
                TypeId::UNDEFINED
            }
            "sort" | "toSorted" => {
                self.callback(arguments, 0, &[element, element]);
                self.types.array(element)
            }
            "reduce" | "reduceRight" => self.reduce(call, element, list),
            _ => self.simple_list_method(call, element, name),
        }
    }

    /// Returns the type in `call<T>(…)`; unknown if there are several. `None` if there is none.
    fn explicit_type_argument(&mut self, call: &'a CallExpression<'a>) -> Option<TypeId> {
        let given = call.type_arguments.as_deref()?;
        Some(match &given.params[..] {
            [given] => self.annotated_type(given),
            _ => TypeId::UNKNOWN,
        })
    }

    /// Infers the methods of lists that take no function.
    fn simple_list_method(
        &mut self,
        call: &'a CallExpression<'a>,
        element: TypeId,
        name: &'a str,
    ) -> TypeId {
        let arguments = &call.arguments;
        if name == "concat" {
            let mut elements = vec![element];
            for index in 0..arguments.len() {
                let other = self.argument(arguments, index);
                elements.push(self.flattened(other));
            }
            let element = self.types.union(elements);
            return self.types.array(element);
        }
        match name {
            "push" | "unshift" => {
                let wanted = vec![element; arguments.len()];
                self.check_promises(arguments, &wanted);
            }
            _ => self.infer_arguments(arguments),
        }
        match name {
            "slice" | "reverse" | "toReversed" | "splice" => self.types.array(element),
            "toSpliced" if arguments.len() <= 2 => self.types.array(element),
            "pop" | "shift" | "at" => self.types.union([element, TypeId::UNDEFINED]),
            "push" | "unshift" | "indexOf" | "lastIndexOf" => TypeId::NUMBER,
            "includes" => TypeId::BOOLEAN,
            "join" | "toString" | "toLocaleString" => TypeId::STRING,
            "entries" => {
                let entry = self.types.tuple(&[TypeId::NUMBER, element]);
                self.types.add(Type::Iterator(entry))
            }
            "keys" => self.types.add(Type::Iterator(TypeId::NUMBER)),
            "values" => self.types.add(Type::Iterator(element)),
            "flat" if arguments.is_empty() => {
                let element = self.flattened(element);
                self.types.array(element)
            }
            _ => TypeId::UNKNOWN,
        }
    }

    /// Returns the elements of lists, and other types as they are.
    fn flattened(&mut self, ty: TypeId) -> TypeId {
        self.types
            .map_parts(ty, |types, part| match types.get(part).clone() {
                Type::Array { element, .. } => element,
                Type::Tuple { elements, .. } => types.union(elements.iter().copied()),
                _ => part,
            })
    }

    /// Returns `T` if the argument is a function `(x): x is T => …`, or unknown if it may be one.
    fn type_predicate_target(&mut self, arguments: &'a [Argument<'a>]) -> Option<TypeId> {
        let returned = match arguments.first()?.as_expression()?.get_inner_expression() {
            Expression::ArrowFunctionExpression(arrow) => arrow.return_type.as_deref()?,
            Expression::FunctionExpression(function) => function.return_type.as_deref()?,
            Expression::Identifier(name) if name.name != "Boolean" => {
                return Some(TypeId::UNKNOWN);
            }
            _ => return None,
        };
        let TSType::TSTypePredicate(predicate) = &returned.type_annotation else {
            return None;
        };
        let annotation = predicate.type_annotation.as_deref()?;
        Some(self.annotated_type(&annotation.type_annotation))
    }

    fn reduce(&mut self, call: &'a CallExpression<'a>, element: TypeId, list: TypeId) -> TypeId {
        let arguments = &call.arguments;
        if arguments.len() < 2 {
            let given = [element, element, TypeId::NUMBER, list];
            self.callback(arguments, 0, &given);
            return element;
        }
        let initial = self.argument(arguments, 1);
        let initial = match self.explicit_type_argument(call) {
            Some(given) => given,
            None => self.types.widened(initial),
        };
        // The accumulator may grow: only numbers, strings and described types stay what they are.
        let total = match self.types.get(initial) {
            Type::Number | Type::String | Type::Boolean | Type::Map(..) | Type::Set(_) => initial,
            Type::Object(id) if self.types.object(*id).is_declared => initial,
            Type::Array { element, .. } if *element != TypeId::NEVER => initial,
            _ => TypeId::UNKNOWN,
        };
        self.callback(arguments, 0, &[total, element, TypeId::NUMBER, list]);
        total
    }

    /// Infers a method of a string.
    pub(super) fn string_method(&mut self, call: &'a CallExpression<'a>, name: &'a str) -> TypeId {
        match name {
            "replace" | "replaceAll" => {
                self.argument(&call.arguments, 0);
                // The parameters of the function are the match and its groups.
                self.callback(&call.arguments, 1, &[TypeId::STRING]);
                return TypeId::STRING;
            }
            _ => self.infer_arguments(&call.arguments),
        }
        match name {
            "split" => self.types.array(TypeId::STRING),
            "match" => {
                let found = self.types.array(TypeId::STRING);
                self.types.union([found, TypeId::NULL])
            }
            "matchAll" => {
                let found = self.types.array(TypeId::STRING);
                self.types.add(Type::Iterator(found))
            }
            "at" => self.types.union([TypeId::STRING, TypeId::UNDEFINED]),
            "codePointAt" => self.types.union([TypeId::NUMBER, TypeId::UNDEFINED]),
            "indexOf" | "lastIndexOf" | "search" | "charCodeAt" | "localeCompare" => TypeId::NUMBER,
            "includes" | "startsWith" | "endsWith" | "isWellFormed" => TypeId::BOOLEAN,
            _ => TypeId::STRING,
        }
    }

    /// Infers a method of a promise.
    pub(super) fn promise_method(
        &mut self,
        call: &'a CallExpression<'a>,
        value: TypeId,
        name: &'a str,
    ) -> TypeId {
        let arguments = &call.arguments;
        let result = match name {
            "then" => {
                let done = self.callback(arguments, 0, &[value]);
                match arguments.len() {
                    0 => value,
                    1 => done,
                    _ => {
                        let failed = self.callback(arguments, 1, &[TypeId::UNKNOWN]);
                        self.types.union([done, failed])
                    }
                }
            }
            "catch" => {
                let failed = self.callback(arguments, 0, &[TypeId::UNKNOWN]);
                self.types.union([value, failed])
            }
            _ => {
                self.infer_arguments(arguments);
                value
            }
        };
        self.types.promise(result)
    }

    /// Infers a method of a map.
    pub(super) fn map_method(
        &mut self,
        call: &'a CallExpression<'a>,
        map: TypeId,
        key: TypeId,
        value: TypeId,
        name: &'a str,
    ) -> TypeId {
        if name == "forEach" {
            self.callback(&call.arguments, 0, &[value, key, map]);
            return TypeId::UNDEFINED;
        }
        match name {
            "set" => self.check_promises(&call.arguments, &[key, value]),
            _ => self.infer_arguments(&call.arguments),
        }
        match name {
            "get" => self.types.union([value, TypeId::UNDEFINED]),
            "set" => map,
            "has" | "delete" => TypeId::BOOLEAN,
            "keys" => self.types.add(Type::Iterator(key)),
            "values" => self.types.add(Type::Iterator(value)),
            "entries" => {
                let entry = self.types.tuple(&[key, value]);
                self.types.add(Type::Iterator(entry))
            }
            _ => TypeId::UNKNOWN,
        }
    }

    /// Infers a method of a set.
    pub(super) fn set_method(
        &mut self,
        call: &'a CallExpression<'a>,
        set: TypeId,
        element: TypeId,
        name: &'a str,
    ) -> TypeId {
        if name == "forEach" {
            self.callback(&call.arguments, 0, &[element, element, set]);
            return TypeId::UNDEFINED;
        }
        self.infer_arguments(&call.arguments);
        match name {
            "add" => set,
            "has" | "delete" => TypeId::BOOLEAN,
            "keys" | "values" => self.types.add(Type::Iterator(element)),
            _ => TypeId::UNKNOWN,
        }
    }

    /// Infers a method of an iterator.
    pub(super) fn iterator_method(
        &mut self,
        call: &'a CallExpression<'a>,
        iterator: TypeId,
        element: TypeId,
        name: &'a str,
    ) -> TypeId {
        let arguments = &call.arguments;
        match name {
            "toArray" => self.types.array(element),
            "map" => {
                let mapped = self.callback(arguments, 0, &[element, TypeId::NUMBER]);
                self.types.add(Type::Iterator(mapped))
            }
            "filter" => {
                self.callback(arguments, 0, &[element, TypeId::NUMBER]);
                match self.type_predicate_target(arguments) {
                    Some(kept) => self.types.add(Type::Iterator(kept)),
                    None => iterator,
                }
            }
            "some" | "every" | "find" | "forEach" => {
                self.callback(arguments, 0, &[element, TypeId::NUMBER]);
                TypeId::UNKNOWN
            }
            "take" | "drop" => {
                self.infer_arguments(arguments);
                iterator
            }
            _ => {
                self.infer_arguments(arguments);
                TypeId::UNKNOWN
            }
        }
    }
}
