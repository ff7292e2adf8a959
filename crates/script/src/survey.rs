//! One walk over the syntax tree: what must not be there, and which tool calls can be seen.

use oxc_ast::ast::{
    Argument, ArrayExpressionElement, BinaryExpression, BinaryOperator, CallExpression, Expression,
    IdentifierReference, ImportExpression, ModuleDeclaration, NewExpression, ObjectExpression, ObjectPropertyKind,
    PropertyKind, TSImportEqualsDeclaration, TSModuleBlock, UnaryExpression, UnaryOperator,
};
use oxc_ast_visit::{Visit, walk};
use oxc_semantic::Scoping;
use oxc_span::{GetSpan, Span};
use serde_json::{Map, Number, Value};

/// A construct that may not stand in a script.
#[derive(Debug)]
pub(crate) struct Banned {
    pub(crate) what: &'static str,
    pub(crate) instead: &'static str,
    pub(crate) span: Span,
}

/// A call `tools.<path>(…)` that can be seen without running the script.
#[derive(Debug, Clone)]
pub(crate) struct StaticCall {
    pub(crate) path: String,
    pub(crate) offset: u32,
    pub(crate) args: StaticArgs,
}

/// What can be said of arguments.
#[derive(Debug, Clone)]
pub(crate) enum StaticArgs {
    /// One object literal, or nothing at all.
    Object(StaticObject),
    /// Something else; not checked before it runs.
    Other,
}

/// What can be said of an object literal.
#[derive(Debug, Clone, Default)]
pub(crate) struct StaticObject {
    /// Fields whose values are literals.
    pub(crate) known: Map<String, Value>,
    /// Fields with values only the run will know.
    pub(crate) dynamic: Vec<String>,
    /// Where each field stands.
    pub(crate) offsets: Vec<(String, u32)>,
    /// Whether a spread or a computed key may add fields.
    pub(crate) open: bool,
}

/// Collects while it walks.
pub(crate) struct Survey<'s> {
    scoping: &'s Scoping,
    pub(crate) banned: Vec<Banned>,
    pub(crate) calls: Vec<StaticCall>,
    /// Names asked for with `in`, `typeof` or `?.`: the script knows that they may be absent.
    pub(crate) probed: Vec<String>,
    /// How many namespaces stand around the current node.
    namespaces: usize,
}

impl<'s> Survey<'s> {
    pub(crate) fn new(scoping: &'s Scoping) -> Self {
        Self { scoping, banned: Vec::new(), calls: Vec::new(), probed: Vec::new(), namespaces: 0 }
    }

    fn ban(&mut self, what: &'static str, instead: &'static str, span: Span) {
        self.banned.push(Banned { what, instead, span });
    }

    /// Whether an identifier means the global of that name.
    fn is_global(&self, identifier: &IdentifierReference<'_>) -> bool {
        identifier.reference_id.get().is_none_or(|id| !self.scoping.has_binding(id))
    }

    fn global_name<'e>(&self, expression: &'e Expression<'_>) -> Option<&'e str> {
        match expression.get_inner_expression() {
            Expression::Identifier(identifier) if self.is_global(identifier) => Some(identifier.name.as_str()),
            _ => None,
        }
    }

    /// `tools.a.b` → `a.b`, with whether a `?.` stands on the way.
    fn tool_path(&self, expression: &Expression<'_>) -> Option<(String, bool)> {
        let (object, name, optional) = match expression.get_inner_expression() {
            Expression::StaticMemberExpression(member) => {
                (&member.object, member.property.name.to_string(), member.optional)
            }
            Expression::ComputedMemberExpression(member) => match member.expression.get_inner_expression() {
                Expression::StringLiteral(name) => (&member.object, name.value.to_string(), member.optional),
                _ => return None,
            },
            _ => return None,
        };
        if self.global_name(object) == Some("tools") {
            return Some((name, optional));
        }
        let (path, outer) = self.tool_path(object)?;
        Some((format!("{path}.{name}"), optional || outer))
    }
}

impl<'a> Visit<'a> for Survey<'_> {
    fn visit_module_declaration(&mut self, it: &ModuleDeclaration<'a>) {
        match it {
            ModuleDeclaration::ImportDeclaration(_) => {
                self.ban("import", "everything a script can use is already there: see help()", it.span());
            }
            // Inside a namespace, `export` is how its members are named.
            _ if self.namespaces > 0 => walk::walk_module_declaration(self, it),
            _ => self.ban("export", "write `return value` to give a value back", it.span()),
        }
    }

    fn visit_ts_module_block(&mut self, it: &TSModuleBlock<'a>) {
        self.namespaces += 1;
        walk::walk_ts_module_block(self, it);
        self.namespaces -= 1;
    }

    fn visit_ts_import_equals_declaration(&mut self, it: &TSImportEqualsDeclaration<'a>) {
        self.ban("import", "everything a script can use is already there: see help()", it.span);
    }

    fn visit_import_expression(&mut self, it: &ImportExpression<'a>) {
        self.ban("import()", "everything a script can use is already there: see help()", it.span);
        walk::walk_import_expression(self, it);
    }

    fn visit_call_expression(&mut self, it: &CallExpression<'a>) {
        match self.global_name(&it.callee) {
            Some("require") => {
                self.ban("require()", "there are no modules here: everything a script can use is in help()", it.span)
            }
            Some("eval") => self.ban("eval()", "write the code itself", it.span),
            Some("Function") => self.ban("Function()", "write the function itself", it.span),
            _ => {}
        }
        if let Some((path, optional)) = self.tool_path(&it.callee) {
            if it.optional || optional {
                self.probed.push(path);
            } else {
                self.calls.push(StaticCall { path, offset: it.callee.span().start, args: arguments(&it.arguments) });
            }
        }
        walk::walk_call_expression(self, it);
    }

    fn visit_new_expression(&mut self, it: &NewExpression<'a>) {
        if self.global_name(&it.callee) == Some("Function") {
            self.ban("new Function()", "write the function itself", it.span);
        }
        walk::walk_new_expression(self, it);
    }

    fn visit_unary_expression(&mut self, it: &UnaryExpression<'a>) {
        if it.operator == UnaryOperator::Typeof
            && let Some((path, _)) = self.tool_path(&it.argument)
        {
            self.probed.push(path);
        }
        walk::walk_unary_expression(self, it);
    }

    fn visit_binary_expression(&mut self, it: &BinaryExpression<'a>) {
        if it.operator == BinaryOperator::In
            && self.global_name(&it.right) == Some("tools")
            && let Expression::StringLiteral(name) = it.left.get_inner_expression()
        {
            self.probed.push(name.value.to_string());
        }
        walk::walk_binary_expression(self, it);
    }
}

fn arguments(arguments: &[Argument<'_>]) -> StaticArgs {
    match arguments {
        [] => StaticArgs::Object(StaticObject::default()),
        [argument] => match argument.as_expression().map(Expression::get_inner_expression) {
            Some(Expression::ObjectExpression(object)) => StaticArgs::Object(object_fields(object)),
            _ => StaticArgs::Other,
        },
        _ => StaticArgs::Other,
    }
}

fn object_fields(object: &ObjectExpression<'_>) -> StaticObject {
    let mut fields = StaticObject::default();
    for property in &object.properties {
        let ObjectPropertyKind::ObjectProperty(property) = property else {
            fields.open = true;
            continue;
        };
        let name = match property.key.static_name() {
            Some(name) if property.kind == PropertyKind::Init => name.into_owned(),
            _ => {
                fields.open = true;
                continue;
            }
        };
        fields.offsets.push((name.clone(), property.span.start));
        match literal(&property.value) {
            Some(value) => _ = fields.known.insert(name, value),
            None => fields.dynamic.push(name),
        }
    }
    fields
}

/// The value of an expression that is the same whenever it is evaluated.
fn literal(expression: &Expression<'_>) -> Option<Value> {
    match expression.get_inner_expression() {
        Expression::StringLiteral(text) => Some(Value::String(text.value.to_string())),
        Expression::TemplateLiteral(template) if template.expressions.is_empty() => {
            let text = template.quasis.first().and_then(|quasi| quasi.value.cooked)?;
            Some(Value::String(text.to_string()))
        }
        Expression::BooleanLiteral(boolean) => Some(Value::Bool(boolean.value)),
        Expression::NullLiteral(_) => Some(Value::Null),
        Expression::NumericLiteral(number) => numeric(number.value),
        Expression::UnaryExpression(unary) if unary.operator == UnaryOperator::UnaryNegation => match &unary.argument {
            Expression::NumericLiteral(number) => numeric(-number.value),
            _ => None,
        },
        Expression::ArrayExpression(array) => array
            .elements
            .iter()
            .map(|element| literal(element.as_expression()?))
            .collect::<Option<Vec<_>>>()
            .map(Value::Array),
        Expression::ObjectExpression(object) => {
            let fields = object_fields(object);
            (fields.dynamic.is_empty() && !fields.open).then_some(Value::Object(fields.known))
        }
        _ => None,
    }
}

/// A number the way JSON spells it: whole ones without a fraction.
fn numeric(value: f64) -> Option<Value> {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        return Some(Value::Number((value as i64).into()));
    }
    Number::from_f64(value).map(Value::Number)
}

/// Which entries of an array literal are calls of tools made on the spot.
pub(crate) fn calls_in_place(elements: &[ArrayExpressionElement<'_>]) -> u32 {
    fn is_tool_call(expression: &Expression<'_>) -> bool {
        let Expression::CallExpression(call) = expression.get_inner_expression() else { return false };
        let mut callee = call.callee.get_inner_expression();
        while let Expression::StaticMemberExpression(member) = callee {
            callee = member.object.get_inner_expression();
            if callee.is_specific_id("tools") {
                return true;
            }
        }
        false
    }
    let mut mask = 0;
    for (index, element) in elements.iter().enumerate().take(31) {
        if element.as_expression().is_some_and(is_tool_call) {
            mask |= 1 << index;
        }
    }
    mask
}
