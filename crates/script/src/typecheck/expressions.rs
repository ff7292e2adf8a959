//! Types of expressions.

use oxc_ast::ast::{
    ArrayExpression, ArrayExpressionElement, BinaryExpression, BinaryOperator, ChainElement,
    ConditionalExpression, Expression, IdentifierReference, LogicalExpression, LogicalOperator,
    ObjectExpression, ObjectPropertyKind, PropertyKey, PropertyKind, TSType, UnaryExpression,
    UnaryOperator,
};
use oxc_span::{GetSpan, Span};

use super::TypeChecker;
use super::prepass::symbol_of;
use super::types::{MAX_FIELDS, ObjectType, Type, TypeId};
use crate::globals::global_fields;

impl<'a> TypeChecker<'a> {
    /// Infers the type of an expression, and reports the mistakes in it.
    pub(super) fn infer(&mut self, expression: &'a Expression<'a>) -> TypeId {
        if !self.take_step() {
            return TypeId::UNKNOWN;
        }
        let found = self.nested(|checker| checker.infer_inner(expression));
        self.narrowed(expression, found)
    }

    fn infer_inner(&mut self, expression: &'a Expression<'a>) -> TypeId {
        match expression {
            Expression::StringLiteral(text) => self.types.add(Type::Literal(text.value.as_str())),
            Expression::NumericLiteral(_) => TypeId::NUMBER,
            Expression::BooleanLiteral(_) => TypeId::BOOLEAN,
            Expression::NullLiteral(_) => TypeId::NULL,
            Expression::TemplateLiteral(template) => {
                for part in &template.expressions {
                    self.infer(part);
                }
                TypeId::STRING
            }
            Expression::Identifier(name) => self.identifier(name),
            Expression::ArrayExpression(array) => self.array_literal(array),
            Expression::ObjectExpression(object) => self.object_literal(object),
            Expression::ArrowFunctionExpression(_) | Expression::FunctionExpression(_) => {
                self.infer_function_expression(expression, &[])
            }
            Expression::AwaitExpression(it) => {
                let value = self.infer(&it.argument);
                self.types.awaited(value)
            }
            Expression::StaticMemberExpression(member) => self.static_member(member),
            Expression::ComputedMemberExpression(member) => self.computed_member(member),
            Expression::CallExpression(call) => self.call(call),
            Expression::NewExpression(new) => self.construct(new),
            Expression::ChainExpression(chain) => self.chain(&chain.expression),
            Expression::ConditionalExpression(it) => self.conditional(it),
            Expression::LogicalExpression(it) => self.logical(it),
            Expression::BinaryExpression(it) => self.binary(it),
            Expression::UnaryExpression(it) => self.unary(it),
            Expression::UpdateExpression(it) => {
                self.check_update(&it.argument);
                TypeId::NUMBER
            }
            Expression::AssignmentExpression(it) => self.assignment(it),
            Expression::SequenceExpression(it) => {
                let types = it.expressions.iter().map(|part| self.infer(part));
                types.last().unwrap_or(TypeId::UNKNOWN)
            }
            Expression::ParenthesizedExpression(it) => self.infer(&it.expression),
            _ => self.typescript_expression(expression),
        }
    }

    fn chain(&mut self, chain: &'a ChainElement<'a>) -> TypeId {
        let found = match chain {
            ChainElement::CallExpression(call) => self.call(call),
            ChainElement::StaticMemberExpression(member) => self.static_member(member),
            ChainElement::ComputedMemberExpression(member) => self.computed_member(member),
            ChainElement::TSNonNullExpression(inner) => self.infer(&inner.expression),
            ChainElement::PrivateFieldExpression(_) => TypeId::UNKNOWN,
        };
        self.types.union([found, TypeId::UNDEFINED])
    }

    fn conditional(&mut self, it: &'a ConditionalExpression<'a>) -> TypeId {
        self.check_condition(&it.test, it.consequent.span());
        let consequent = self.scoped_narrowings(|checker| {
            checker.narrow(&it.test, true);
            checker.infer(&it.consequent)
        });
        let alternate = self.scoped_narrowings(|checker| {
            checker.narrow(&it.test, false);
            checker.infer(&it.alternate)
        });
        self.types.union([consequent, alternate])
    }

    /// Infers the expressions that only TypeScript has, and the rare ones.
    fn typescript_expression(&mut self, expression: &'a Expression<'a>) -> TypeId {
        match expression {
            Expression::TSAsExpression(it) => {
                let value = self.infer(&it.expression);
                match &it.type_annotation {
                    TSType::TSTypeReference(reference) if is_const(&reference.type_name) => value,
                    annotation => self.annotated_type(annotation),
                }
            }
            Expression::TSTypeAssertion(it) => {
                self.infer(&it.expression);
                self.annotated_type(&it.type_annotation)
            }
            Expression::TSSatisfiesExpression(it) => self.infer(&it.expression),
            Expression::TSNonNullExpression(it) => {
                let value = self.infer(&it.expression);
                self.types.non_nullish(value)
            }
            Expression::TSInstantiationExpression(it) => {
                self.infer(&it.expression);
                TypeId::UNKNOWN
            }
            Expression::ClassExpression(class) => {
                self.check_class(class);
                TypeId::UNKNOWN
            }
            Expression::TaggedTemplateExpression(it) => {
                self.check_tag(&it.tag);
                for part in &it.quasi.expressions {
                    self.infer(part);
                }
                TypeId::UNKNOWN
            }
            Expression::YieldExpression(it) => {
                if let Some(value) = &it.argument {
                    self.infer(value);
                }
                TypeId::UNKNOWN
            }
            _ => TypeId::UNKNOWN,
        }
    }

    /// Checks the tag of a template. A string as a tag comes from a backtick that is not escaped.
    fn check_tag(&mut self, tag: &'a Expression<'a>) {
        if !starts_with_string(tag) {
            return;
        }
        let kind = self.infer(tag);
        if matches!(self.types.get(kind), Type::String | Type::Literal(_)) {
            self.report_string_tag(tag.span());
        }
    }

    fn identifier(&mut self, name: &'a IdentifierReference<'a>) -> TypeId {
        match symbol_of(self.scoping, name) {
            Some(symbol) => self.symbol_type(symbol),
            None => match name.name.as_str() {
                "undefined" => TypeId::UNDEFINED,
                "NaN" | "Infinity" => TypeId::NUMBER,
                text => self
                    .tool_global(text)
                    .or_else(|| self.global_object_type(text))
                    .unwrap_or_else(|| self.types.add(Type::Global(text))),
            },
        }
    }

    /// Returns the type of a global whose fields are known.
    fn global_object_type(&mut self, name: &str) -> Option<TypeId> {
        let fields = global_fields(name)?.iter();
        Some(self.types.add_object(ObjectType {
            fields: fields.map(|field| (*field, TypeId::UNKNOWN)).collect(),
            index_type: None,
            is_declared: true,
        }))
    }

    fn array_literal(&mut self, array: &'a ArrayExpression<'a>) -> TypeId {
        let mut elements = Vec::with_capacity(array.elements.len());
        let mut spread = Vec::new();
        for element in &array.elements {
            match element {
                ArrayExpressionElement::SpreadElement(it) => {
                    let list = self.infer(&it.argument);
                    spread.push(self.element_of(list, it.argument.span()));
                }
                ArrayExpressionElement::Elision(_) => elements.push(TypeId::UNDEFINED),
                element => {
                    let value = element.as_expression().map(|value| self.infer(value));
                    elements.push(value.unwrap_or(TypeId::UNKNOWN));
                }
            }
        }
        let widened: Vec<TypeId> = elements
            .iter()
            .map(|part| self.types.widened(*part))
            .collect();
        // `[a, b]` is a tuple where it is destructured or given to `Promise.all`. In other places
        // its elements have the same type, and every use of a tuple is a use of such a list.
        if spread.is_empty() && (1..=12).contains(&elements.len()) {
            return self.types.tuple(&widened);
        }
        // An empty list adds nothing to a union with another list.
        let element = self.types.union(widened.into_iter().chain(spread));
        self.types.array(element)
    }

    pub(super) fn object_literal(&mut self, object: &'a ObjectExpression<'a>) -> TypeId {
        let mut found = ObjectType::default();
        for property in &object.properties {
            match property {
                ObjectPropertyKind::ObjectProperty(property) => {
                    if let Some(key) = property.key.as_expression() {
                        self.infer(key);
                    }
                    let value = self.infer(&property.value);
                    let value = self.types.widened(value);
                    let name = borrowed_name(&property.key);
                    match name.filter(|_| property.kind == PropertyKind::Init) {
                        Some(name) => found.set_field(name, value),
                        None => found.index_type = Some(TypeId::UNKNOWN),
                    }
                }
                ObjectPropertyKind::SpreadProperty(it) => {
                    let value = self.infer(&it.argument);
                    self.spread_fields(&mut found, value);
                }
            }
        }
        // `{}` is filled later.
        if found.fields.is_empty() {
            return TypeId::UNKNOWN;
        }
        self.types.add_object(found)
    }

    /// Adds the fields of `...value` to an object.
    pub(super) fn spread_fields(&mut self, object: &mut ObjectType<'a>, value: TypeId) {
        match self.types.get(value).clone() {
            Type::ResultObject(result)
                if result.schema.0.index_type.is_none()
                    && result.schema.0.fields.len() <= MAX_FIELDS =>
            {
                for field in &result.schema.0.fields {
                    let found = self.types.result_field(&result, &field.name);
                    object.set_field(&field.name, found.unwrap_or(TypeId::UNKNOWN));
                }
            }
            Type::Object(id) if self.types.object(id).index_type.is_none() => {
                let fields = self.types.object(id).fields.clone();
                if !self.types.take_parts(fields.len()) {
                    object.index_type = Some(TypeId::UNKNOWN);
                    return;
                }
                for (name, kind) in fields {
                    object.set_field(name, kind);
                }
            }
            _ => object.index_type = Some(TypeId::UNKNOWN),
        }
    }

    fn logical(&mut self, it: &'a LogicalExpression<'a>) -> TypeId {
        if it.operator != LogicalOperator::And && self.reads_fields_of_one_variable(it) {
            return self.infer_alternatives(it);
        }
        let left = self.infer(&it.left);
        let right = self.scoped_narrowings(|checker| {
            match it.operator {
                LogicalOperator::And => checker.narrow(&it.left, true),
                LogicalOperator::Or => checker.narrow(&it.left, false),
                LogicalOperator::Coalesce => {}
            }
            checker.infer(&it.right)
        });
        let left = match it.operator {
            LogicalOperator::And => self.types.filter_parts(left, Type::can_be_falsy),
            _ => self.types.non_nullish(left),
        };
        self.types.union([left, right])
    }

    /// Infers `r.output ?? r.stdout`, which works if either of the two exists.
    fn infer_alternatives(&mut self, it: &'a LogicalExpression<'a>) -> TypeId {
        let before = self.mistakes.len();
        let left = self.infer(&it.left);
        let between = self.mistakes.len();
        let right = self.infer(&it.right);
        let after = self.mistakes.len();
        if before == between || between == after {
            self.mistakes.truncate(before);
        }
        match before == after {
            true => {
                let left = self.types.non_nullish(left);
                self.types.union([left, right])
            }
            false => TypeId::UNKNOWN,
        }
    }

    /// Whether both sides of `a.x ?? a.y` or `a.x || a.y` read fields of the same variable.
    fn reads_fields_of_one_variable(&self, it: &LogicalExpression<'a>) -> bool {
        let root = |side: &Expression<'a>| {
            let mut side = side.get_inner_expression();
            while let Expression::LogicalExpression(inner) = side {
                side = inner.left.get_inner_expression();
            }
            if let Expression::ChainExpression(chain) = side
                && let ChainElement::StaticMemberExpression(member) = &chain.expression
                && let Expression::Identifier(name) = &member.object
            {
                return symbol_of(self.scoping, name);
            }
            match side {
                Expression::StaticMemberExpression(member) => match &member.object {
                    Expression::Identifier(name) => symbol_of(self.scoping, name),
                    _ => None,
                },
                _ => None,
            }
        };
        let left = root(&it.left);
        left.is_some() && left == root(&it.right)
    }

    fn binary(&mut self, it: &'a BinaryExpression<'a>) -> TypeId {
        let (left, right) = (self.infer(&it.left), self.infer(&it.right));
        self.check_operand(it, &it.left, left, right);
        self.check_operand(it, &it.right, right, left);
        match it.operator {
            BinaryOperator::Addition => {
                let is_string = |id: TypeId| self.types.get(id).is_string();
                match () {
                    () if is_string(left) || is_string(right) => TypeId::STRING,
                    () if left == TypeId::NUMBER && right == TypeId::NUMBER => TypeId::NUMBER,
                    () => TypeId::UNKNOWN,
                }
            }
            operator if operator.is_arithmetic() => TypeId::NUMBER,
            operator if operator.is_compare() || operator.is_equality() => TypeId::BOOLEAN,
            BinaryOperator::In | BinaryOperator::Instanceof => TypeId::BOOLEAN,
            _ => TypeId::UNKNOWN,
        }
    }

    /// Reports a promise in arithmetic or a comparison.
    fn check_operand(
        &mut self,
        it: &BinaryExpression<'a>,
        operand: &Expression<'a>,
        ty: TypeId,
        other: TypeId,
    ) {
        if !self.is_promise(ty) {
            return;
        }
        let other_is = |wanted: &[TypeId]| wanted.contains(&other);
        let is_string = self.types.get(other).is_string();
        let certain = match it.operator {
            BinaryOperator::Addition => other_is(&[TypeId::NUMBER]),
            operator if operator.is_equality() => {
                is_string || other_is(&[TypeId::NUMBER, TypeId::BOOLEAN])
            }
            operator if operator.is_compare() => is_string || other_is(&[TypeId::NUMBER]),
            operator => operator.is_arithmetic(),
        };
        if certain {
            let how = format!("it is used with `{}`", it.operator.as_str());
            self.report_promise_used(operand.span(), &how);
        }
    }

    /// Whether a type is certainly a promise.
    pub(super) fn is_promise(&self, ty: TypeId) -> bool {
        let parts = self.types.parts(ty);
        parts
            .iter()
            .all(|part| matches!(self.types.get(*part), Type::Promise(_)))
    }

    fn unary(&mut self, it: &'a UnaryExpression<'a>) -> TypeId {
        if it.operator == UnaryOperator::Delete {
            self.check_delete(&it.argument);
            return TypeId::BOOLEAN;
        }
        self.infer(&it.argument);
        match it.operator {
            UnaryOperator::LogicalNot => TypeId::BOOLEAN,
            UnaryOperator::Typeof => TypeId::STRING,
            UnaryOperator::Void => TypeId::UNDEFINED,
            _ => TypeId::NUMBER,
        }
    }

    /// Returns the type of the elements that iterating over a value gives, and reports a value
    /// that cannot be iterated over.
    pub(super) fn element_of(&mut self, list: TypeId, at: Span) -> TypeId {
        let mut found = Vec::new();
        let mut wrong = Vec::new();
        let parts = self.types.parts(list);
        for part in parts.iter() {
            match self.types.get(*part).clone() {
                Type::Array { element, .. } | Type::Set(element) | Type::Iterator(element) => {
                    found.push(element);
                }
                Type::Tuple { elements, .. } => found.extend(elements.iter()),
                Type::Map(key, value) => found.push(self.types.tuple(&[key, value])),
                Type::String | Type::Literal(_) => found.push(TypeId::STRING),
                Type::ResultObject(object) if object.schema.0.index_type.is_some() => {
                    found.push(TypeId::UNKNOWN);
                }
                Type::Object(id) if self.types.object(id).index_type.is_some() => {
                    found.push(TypeId::UNKNOWN);
                }
                Type::Promise(_)
                | Type::ResultObject(_)
                | Type::Object(_)
                | Type::Method
                | Type::Number
                | Type::Boolean => wrong.push(*part),
                _ => found.push(TypeId::UNKNOWN),
            }
        }
        if let (true, Some(first)) = (found.is_empty(), wrong.first()) {
            match self.is_promise(*first) {
                true => self.report_promise_used(at, "its elements are used"),
                false => self.report_not_iterable(*first, at),
            }
            return TypeId::UNKNOWN;
        }
        self.types.union(found)
    }
}

/// Returns the name of a property, if the text of the script has it without escapes.
pub(super) fn borrowed_name<'a>(key: &'a PropertyKey<'a>) -> Option<&'a str> {
    match key.static_name() {
        Some(std::borrow::Cow::Borrowed(name)) => Some(name),
        _ => None,
    }
}

/// Whether a type is the `const` of `as const`.
fn is_const(name: &oxc_ast::ast::TSTypeName<'_>) -> bool {
    matches!(name, oxc_ast::ast::TSTypeName::IdentifierReference(name) if name.name == "const")
}

/// Whether an expression starts with a string or a template literal: the literal itself, or calls
/// and members of it.
fn starts_with_string(expression: &Expression<'_>) -> bool {
    let mut expression = expression;
    loop {
        expression = match expression.get_inner_expression() {
            Expression::StringLiteral(_) | Expression::TemplateLiteral(_) => return true,
            Expression::TaggedTemplateExpression(it) => &it.tag,
            Expression::CallExpression(it) => &it.callee,
            Expression::StaticMemberExpression(it) => &it.object,
            Expression::ComputedMemberExpression(it) => &it.object,
            _ => return false,
        };
    }
}
