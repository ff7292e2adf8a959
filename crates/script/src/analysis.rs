//! Static analysis of a script: finds banned constructs, likely mistakes, and the tool calls that
//! are visible in the text.

use std::collections::BTreeSet;

use oxc_ast::ast::{
    Argument, ArrayExpressionElement, BinaryExpression, BinaryOperator, CallExpression,
    ConditionalExpression, Decorator, Expression, ExpressionStatement, Function,
    IdentifierReference, IfStatement, ImportExpression, ImportMeta, LogicalExpression,
    MemberExpression, ModuleDeclaration, NewExpression, ObjectExpression, ObjectPropertyKind,
    Program, PropertyKind, Statement, TSImportEqualsDeclaration, TSModuleBlock, UnaryExpression,
    UnaryOperator, VariableDeclarator,
};
use oxc_ast_visit::{Visit, walk};
use oxc_semantic::{ScopeFlags, Scoping, SymbolFlags, SymbolId};
use oxc_span::{GetSpan, Span};
use selvedge_protocol::SPAWN_TOOL;
use serde_json::{Map, Number, Value};

/// Suggestion for a script that imports a module.
const IMPORT_SUGGESTION: &str = "everything a script can use is already defined: see help()";

/// Maximum number of names in the path of a tool: a server, its tool, and fields such as `raw`.
const MAX_PATH_PARTS: usize = 16;

/// A construct that a script must not contain.
#[derive(Debug)]
pub(crate) struct BannedConstruct {
    pub(crate) construct: &'static str,
    pub(crate) suggestion: &'static str,
    pub(crate) span: Span,
}

/// A call `tools.<path>(…)` that is visible in the text.
#[derive(Debug, Clone)]
pub(crate) struct StaticCall {
    pub(crate) path: String,
    pub(crate) offset: u32,
    pub(crate) args: StaticArgs,
}

/// Arguments of a call, as far as they are known before it runs.
#[derive(Debug, Clone)]
pub(crate) enum StaticArgs {
    /// One object literal, or no argument.
    Object(StaticObject),
    /// One literal that is not an object.
    Literal(Value),
    /// A value, if it is a literal, and an object literal with further fields.
    WithOptions(Option<Value>, StaticObject),
    /// Anything else; checked when the call is made.
    Other,
}

/// Fields of an object literal, as far as they are known before it runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct StaticObject {
    /// Fields whose values are literals.
    pub(crate) literals: Map<String, Value>,
    /// Fields whose values are only known at run time.
    pub(crate) dynamic: Vec<String>,
    /// Byte offset of each field.
    pub(crate) offsets: Vec<(String, u32)>,
    /// Whether a spread or a computed key may add fields.
    pub(crate) has_unknown_fields: bool,
}

/// A warning about code that is allowed but probably a mistake.
#[derive(Debug, Clone)]
pub(crate) struct LintWarning {
    pub(crate) message: String,
    pub(crate) offset: u32,
    /// Only shown if the script returned and showed nothing.
    pub(crate) only_without_output: bool,
}

/// The tools that a script may call, as far as they are known before it runs.
#[derive(Debug, Clone, Default)]
pub struct ToolMentions {
    /// Paths below `tools`, such as `mcp.github.createIssue`. A path such as `mcp` is a namespace
    /// that is used as a value.
    pub paths: BTreeSet<String>,
    /// Names that the script uses and does not declare.
    pub globals: BTreeSet<String>,
    /// Whether the script can call a tool by a name that is only known at run time, such as
    /// `tools[name]`.
    pub dynamic: bool,
}

/// Globals through which any tool can be found. `tools` and `context` count unless they are the
/// root of a known path.
const GLOBALS_THAT_REACH_ANY_TOOL: [&str; 5] =
    ["tools", "context", "globalThis", "ALL_TOOLS", "help"];

/// Walks the syntax tree of a script and collects findings.
pub(crate) struct ScriptAnalyzer<'s> {
    scoping: &'s Scoping,
    pub(crate) findings: ScriptFindings,
    /// Names of async functions that the script declares.
    async_functions: Vec<String>,
    /// Number of TypeScript namespaces around the current node.
    namespace_depth: usize,
}

/// What the analysis found in a script.
#[derive(Default)]
pub(crate) struct ScriptFindings {
    pub(crate) banned: Vec<BannedConstruct>,
    pub(crate) calls: Vec<StaticCall>,
    /// Calls `name.<path>(…)` on a name that the script does not declare: possibly of a built-in
    /// namespace or an MCP server. The path begins with the name.
    pub(crate) global_calls: Vec<StaticCall>,
    /// Paths that the script tests (`in`, `typeof`, `?.`, a condition): these tools may be absent.
    /// Of a global, both paths that it can mean.
    pub(crate) probed_tools: Vec<String>,
    pub(crate) warnings: Vec<LintWarning>,
    /// Functions that are called by a name the script does not declare, with the call's byte
    /// offset.
    pub(crate) bare_calls: Vec<(String, u32)>,
    /// Assignments to constants: name and position.
    pub(crate) assigned_constants: Vec<(String, Span)>,
    pub(crate) mentions: ToolMentions,
}

impl<'s> ScriptAnalyzer<'s> {
    pub(crate) fn new(scoping: &'s Scoping) -> Self {
        Self {
            scoping,
            findings: ScriptFindings::default(),
            async_functions: Vec::new(),
            namespace_depth: 0,
        }
    }

    fn ban(&mut self, what: &'static str, instead: &'static str, span: Span) {
        self.findings.banned.push(BannedConstruct {
            construct: what,
            suggestion: instead,
            span,
        });
    }

    /// Whether an identifier refers to the global of that name.
    fn is_global(&self, identifier: &IdentifierReference<'_>) -> bool {
        match self.symbol_of(identifier) {
            None => true,
            // `declare const tools: …` describes the global, it does not declare a variable.
            Some(symbol) => self.has_flags(symbol, SymbolFlags::Ambient),
        }
    }

    fn has_flags(&self, symbol: SymbolId, flags: SymbolFlags) -> bool {
        self.scoping.symbol_flags(symbol).contains(flags)
    }

    fn symbol_of(&self, identifier: &IdentifierReference<'_>) -> Option<SymbolId> {
        let id = identifier.reference_id.get()?;
        self.scoping.get_reference(id).symbol_id()
    }

    /// Records `tools.x` as tested, if the expression is a path.
    fn record_probe(&mut self, expression: &Expression<'_>) {
        let member = expression.get_inner_expression().as_member_expression();
        if let Some((root, path, _)) = member.and_then(|member| self.global_path(member)) {
            self.add_probe(&root, &path);
        }
    }

    /// Records `root.path` as tested.
    fn add_probe(&mut self, root: &str, path: &str) {
        let probed = &mut self.findings.probed_tools;
        match root {
            "tools" => probed.push(path.to_owned()),
            // A global is a built-in namespace or an MCP server, which the registry decides.
            root => probed.extend([format!("{root}.{path}"), format!("mcp.{root}.{path}")]),
        }
    }

    fn warn(&mut self, offset: u32, message: impl Into<String>) {
        self.findings.warnings.push(LintWarning {
            message: message.into(),
            offset,
            only_without_output: false,
        });
    }

    /// Warns about a call of an async function whose promise is discarded.
    fn check_discarded_call(&mut self, expression: &Expression<'_>) {
        let Expression::CallExpression(call) = expression.get_inner_expression() else {
            return;
        };
        let is_async = match call.callee.get_inner_expression() {
            Expression::Identifier(name) => {
                let name = name.name.as_str();
                if self.async_functions.iter().any(|known| known == name) {
                    let message = format!(
                        "`{name}()` is not awaited: write `await {name}()`, or \
                         `return await {name}()` for its value"
                    );
                    self.warn(call.span.start, message);
                }
                return;
            }
            Expression::ArrowFunctionExpression(function) => function.r#async,
            Expression::FunctionExpression(function) => function.r#async,
            _ => false,
        };
        if is_async {
            let message = "this async function is called and not awaited: write `await` or \
                           `return await` before it";
            self.warn(call.span.start, message);
        }
    }

    /// Warns about a `return` that ends at a line break, and about a last value that is not
    /// returned.
    fn check_return(&mut self, statements: &[Statement<'_>]) {
        for pair in statements.windows(2) {
            if let Statement::ReturnStatement(early) = &pair[0]
                && early.argument.is_none()
            {
                let message = "`return` ends at the line break: put the value on the same line";
                self.warn(early.span.start, message);
            }
        }
        if let Some(Statement::ExpressionStatement(last)) = statements.last() {
            let value = last.expression.get_inner_expression();
            let has_effect = matches!(
                value,
                Expression::AssignmentExpression(_)
                    | Expression::UpdateExpression(_)
                    | Expression::CallExpression(_)
                    | Expression::NewExpression(_)
            );
            if !has_effect {
                let message = "the script returned nothing: write `return` before its last line";
                self.findings.warnings.push(LintWarning {
                    message: message.to_owned(),
                    offset: last.span.start,
                    only_without_output: true,
                });
            }
        }
    }

    /// Returns the name of a global, if the expression is one.
    fn global_name<'e>(&self, expression: &'e Expression<'_>) -> Option<&'e str> {
        match expression.get_inner_expression() {
            Expression::Identifier(identifier) if self.is_global(identifier) => {
                Some(identifier.name.as_str())
            }
            _ => None,
        }
    }

    /// Splits `root.a.b` into `root` and `a.b`, if the script does not declare `root`. Also returns
    /// whether it contains a `?.`. Longer paths than [`MAX_PATH_PARTS`] name no tool.
    fn global_path(&self, member: &MemberExpression<'_>) -> Option<(String, String, bool)> {
        let mut parts = Vec::new();
        let mut optional = false;
        let mut member = member;
        while parts.len() < MAX_PATH_PARTS {
            parts.push(member.static_property_name()?);
            optional |= member.optional();
            if let Some(root) = self.global_name(member.object()) {
                parts.reverse();
                return Some((root.to_owned(), parts.join("."), optional));
            }
            let object = member.object().get_inner_expression();
            member = object.as_member_expression()?;
        }
        None
    }

    /// Records the tool that a task calls, which is named by a string.
    fn record_task_tool(&mut self, call: &CallExpression<'_>) {
        let Some(first) = call.arguments.first() else {
            return;
        };
        let mentions = &mut self.findings.mentions;
        let tool = match first.as_expression().map(Expression::get_inner_expression) {
            Some(Expression::ObjectExpression(object)) => {
                let mut fields = object_fields(object);
                mentions.dynamic |=
                    fields.has_unknown_fields || fields.dynamic.iter().any(|name| name == "tool");
                fields.literals.remove("tool")
            }
            first => {
                let first = first.and_then(literal_value);
                mentions.dynamic |= first.is_none();
                first
            }
        };
        if let Some(Value::String(path)) = tool {
            mentions.paths.insert(path);
        }
    }
}

impl<'a> Visit<'a> for ScriptAnalyzer<'_> {
    fn visit_module_declaration(&mut self, it: &ModuleDeclaration<'a>) {
        match it {
            ModuleDeclaration::ImportDeclaration(_) => {
                self.ban("import", IMPORT_SUGGESTION, it.span())
            }
            // Inside a namespace, `export` makes members visible.
            _ if self.namespace_depth > 0 => walk::walk_module_declaration(self, it),
            _ => {
                let instead = "write `return value` to return a value";
                self.ban("export", instead, it.span());
            }
        }
    }

    fn visit_ts_module_block(&mut self, it: &TSModuleBlock<'a>) {
        self.namespace_depth += 1;
        walk::walk_ts_module_block(self, it);
        self.namespace_depth -= 1;
    }

    fn visit_ts_import_equals_declaration(&mut self, it: &TSImportEqualsDeclaration<'a>) {
        self.ban("import", IMPORT_SUGGESTION, it.span);
    }

    fn visit_import_expression(&mut self, it: &ImportExpression<'a>) {
        self.ban("import()", IMPORT_SUGGESTION, it.span);
        walk::walk_import_expression(self, it);
    }

    fn visit_program(&mut self, it: &Program<'a>) {
        self.check_return(&it.body);
        // Functions are hoisted: a call may precede its declaration.
        AsyncFunctionNames(&mut self.async_functions).visit_program(it);
        walk::walk_program(self, it);
    }

    fn visit_expression_statement(&mut self, it: &ExpressionStatement<'a>) {
        self.check_discarded_call(&it.expression);
        walk::walk_expression_statement(self, it);
    }

    fn visit_decorator(&mut self, it: &Decorator<'a>) {
        let instead = "call the function yourself: `const A = decorate(class { … })`";
        self.ban("@decorator", instead, it.span);
    }

    fn visit_import_meta(&mut self, it: &ImportMeta) {
        let instead = "a script is not a module: use `context.workingDirectory`";
        self.ban("import.meta", instead, it.span);
    }

    fn visit_member_expression(&mut self, it: &MemberExpression<'a>) {
        match self.global_path(it) {
            Some((root, path, _)) if root == "tools" => {
                // Calls are handled in `visit_call_expression`: here the function is used as a
                // value.
                self.findings.mentions.dynamic |= path == SPAWN_TOOL || path == "spawn";
                self.findings.mentions.paths.insert(path);
            }
            // Other fields of `context` do not name tools.
            Some((root, path, _)) if root == "context" && !path.starts_with("capabilities") => {}
            _ => walk::walk_member_expression(self, it),
        }
    }

    fn visit_identifier_reference(&mut self, it: &IdentifierReference<'a>) {
        if self.is_global(it) {
            let mentions = &mut self.findings.mentions;
            mentions.dynamic |= GLOBALS_THAT_REACH_ANY_TOOL.contains(&it.name.as_str());
            mentions.globals.insert(it.name.to_string());
        }
        let Some(id) = it.reference_id.get() else {
            return;
        };
        let reference = self.scoping.get_reference(id);
        if reference.is_write()
            && let Some(symbol) = reference.symbol_id()
            && self.has_flags(symbol, SymbolFlags::ConstVariable)
        {
            self.findings
                .assigned_constants
                .push((it.name.to_string(), it.span));
        }
    }

    fn visit_if_statement(&mut self, it: &IfStatement<'a>) {
        self.record_probe(&it.test);
        walk::walk_if_statement(self, it);
    }

    fn visit_conditional_expression(&mut self, it: &ConditionalExpression<'a>) {
        self.record_probe(&it.test);
        walk::walk_conditional_expression(self, it);
    }

    fn visit_logical_expression(&mut self, it: &LogicalExpression<'a>) {
        self.record_probe(&it.left);
        walk::walk_logical_expression(self, it);
    }

    fn visit_call_expression(&mut self, it: &CallExpression<'a>) {
        if let Expression::Identifier(callee) = it.callee.get_inner_expression()
            && self.is_global(callee)
        {
            let call = (callee.name.to_string(), callee.span.start);
            self.findings.bare_calls.push(call);
        }
        let first = it.arguments.first().and_then(Argument::as_expression);
        if let Expression::StaticMemberExpression(member) = it.callee.get_inner_expression()
            && first.is_some_and(is_async_function)
        {
            let at = member.property.span.start;
            match member.property.name.as_str() {
                "forEach" => self.warn(
                    at,
                    "`forEach` does not wait for async functions: use `for (const x of list)`, or \
                     `await Promise.all(list.map(async x => …))`",
                ),
                name @ ("filter" | "some" | "every" | "find" | "findIndex" | "findLast") => {
                    let message = format!(
                        "`{name}` does not wait for async functions, and a promise counts as true: \
                         await the values first, then `{name}`"
                    );
                    self.warn(at, message);
                }
                _ => {}
            }
        }
        match self.global_name(&it.callee) {
            Some("require") => {
                let instead = "scripts cannot load modules: help() lists what they can use";
                self.ban("require()", instead, it.span);
            }
            Some("eval") => self.ban("eval()", "write the code itself", it.span),
            Some("Function") => self.ban("Function()", "write the function itself", it.span),
            _ => {}
        }
        let callee = it.callee.get_inner_expression().as_member_expression();
        let callee = callee.and_then(|member| self.global_path(member));
        let starts_task = callee
            .as_ref()
            .is_some_and(|(root, path, _)| root == "tools" && path == SPAWN_TOOL);
        if let Some((root, path, optional)) = callee {
            let call = |path| StaticCall {
                path,
                offset: it.callee.span().start,
                args: static_args(&it.arguments),
            };
            match root.as_str() {
                root if it.optional || optional => self.add_probe(root, &path),
                "tools" => self.findings.calls.push(call(path)),
                root => self
                    .findings
                    .global_calls
                    .push(call(format!("{root}.{path}"))),
            }
        }
        match starts_task {
            true => {
                self.record_task_tool(it);
                self.visit_arguments(&it.arguments);
            }
            false => walk::walk_call_expression(self, it),
        }
    }

    fn visit_new_expression(&mut self, it: &NewExpression<'a>) {
        if self.global_name(&it.callee) == Some("Function") {
            self.ban("new Function()", "write the function itself", it.span);
        }
        walk::walk_new_expression(self, it);
    }

    fn visit_unary_expression(&mut self, it: &UnaryExpression<'a>) {
        if [UnaryOperator::Typeof, UnaryOperator::LogicalNot].contains(&it.operator) {
            self.record_probe(&it.argument);
        }
        walk::walk_unary_expression(self, it);
    }

    fn visit_binary_expression(&mut self, it: &BinaryExpression<'a>) {
        if it.operator == BinaryOperator::In
            && let Some(object) = self.global_name(&it.right)
            && let Expression::StringLiteral(name) = it.left.get_inner_expression()
        {
            self.add_probe(object, name.value.as_str());
        }
        walk::walk_binary_expression(self, it);
    }
}

/// Collects the names of async functions.
struct AsyncFunctionNames<'n>(&'n mut Vec<String>);

impl<'a> Visit<'a> for AsyncFunctionNames<'_> {
    fn visit_function(&mut self, it: &Function<'a>, flags: ScopeFlags) {
        if it.r#async && !it.generator {
            self.0.extend(it.id.as_ref().map(|id| id.name.to_string()));
        }
        walk::walk_function(self, it, flags);
    }

    fn visit_variable_declarator(&mut self, it: &VariableDeclarator<'a>) {
        if it.init.as_ref().is_some_and(is_async_function) {
            let name = it.id.get_identifier_name();
            self.0.extend(name.map(|name| name.to_string()));
        }
        walk::walk_variable_declarator(self, it);
    }
}

fn is_async_function(expression: &Expression<'_>) -> bool {
    match expression.get_inner_expression() {
        Expression::ArrowFunctionExpression(function) => function.r#async,
        Expression::FunctionExpression(function) => function.r#async && !function.generator,
        _ => false,
    }
}

fn static_args(arguments: &[Argument<'_>]) -> StaticArgs {
    match arguments {
        [] => StaticArgs::Object(StaticObject::default()),
        [argument] => {
            let argument = argument.as_expression();
            match argument.map(Expression::get_inner_expression) {
                Some(Expression::ObjectExpression(object)) => {
                    StaticArgs::Object(object_fields(object))
                }
                Some(other) => literal_value(other).map_or(StaticArgs::Other, StaticArgs::Literal),
                None => StaticArgs::Other,
            }
        }
        [first, options] => {
            let (Some(first), Some(Expression::ObjectExpression(options))) = (
                first.as_expression(),
                options
                    .as_expression()
                    .map(Expression::get_inner_expression),
            ) else {
                return StaticArgs::Other;
            };
            StaticArgs::WithOptions(literal_value(first), object_fields(options))
        }
        _ => StaticArgs::Other,
    }
}

pub(crate) fn object_fields(object: &ObjectExpression<'_>) -> StaticObject {
    let mut fields = StaticObject::default();
    for property in &object.properties {
        let ObjectPropertyKind::ObjectProperty(property) = property else {
            fields.has_unknown_fields = true;
            continue;
        };
        let name = property.key.static_name();
        let Some(name) = name.filter(|_| property.kind == PropertyKind::Init) else {
            fields.has_unknown_fields = true;
            continue;
        };
        let name = name.into_owned();
        fields.offsets.push((name.clone(), property.span.start));
        match literal_value(&property.value) {
            Some(value) => _ = fields.literals.insert(name, value),
            None => fields.dynamic.push(name),
        }
    }
    fields
}

/// Returns the value of an expression that is a literal.
pub(crate) fn literal_value(expression: &Expression<'_>) -> Option<Value> {
    match expression.get_inner_expression() {
        Expression::StringLiteral(text) => Some(Value::String(text.value.to_string())),
        Expression::TemplateLiteral(template) if template.expressions.is_empty() => {
            let text = template.quasis.first()?.value.cooked?;
            Some(Value::String(text.to_string()))
        }
        Expression::BooleanLiteral(boolean) => Some(Value::Bool(boolean.value)),
        Expression::NullLiteral(_) => Some(Value::Null),
        Expression::NumericLiteral(number) => json_number(number.value),
        Expression::UnaryExpression(unary) if unary.operator == UnaryOperator::UnaryNegation => {
            match &unary.argument {
                Expression::NumericLiteral(number) => json_number(-number.value),
                _ => None,
            }
        }
        Expression::ArrayExpression(array) => {
            let elements = array.elements.iter();
            let values = elements.map(|element| literal_value(element.as_expression()?));
            values.collect::<Option<_>>().map(Value::Array)
        }
        Expression::ObjectExpression(object) => {
            let fields = object_fields(object);
            (fields.dynamic.is_empty() && !fields.has_unknown_fields)
                .then_some(Value::Object(fields.literals))
        }
        _ => None,
    }
}

/// Returns a number as JSON writes it: integers without a fraction.
fn json_number(value: f64) -> Option<Value> {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        return Some(Value::Number((value as i64).into()));
    }
    Number::from_f64(value).map(Value::Number)
}

/// Returns which entries of an array literal are tool calls, as a bit mask. `roots` are the names
/// of globals that hold tools.
pub(crate) fn inline_tool_calls(
    elements: &[ArrayExpressionElement<'_>],
    roots: &BTreeSet<String>,
) -> u32 {
    let is_tool_call = |expression: &Expression<'_>| {
        let Expression::CallExpression(call) = expression.get_inner_expression() else {
            return false;
        };
        let mut callee = call.callee.get_inner_expression();
        while let Expression::StaticMemberExpression(member) = callee {
            callee = member.object.get_inner_expression();
        }
        callee
            .get_identifier_reference()
            .is_some_and(|root| roots.contains(root.name.as_str()))
    };
    // With a spread entry, positions in the text are not positions in the array.
    let spread = |element: &_| matches!(element, ArrayExpressionElement::SpreadElement(_));
    if elements.len() > 31 || elements.iter().any(spread) {
        return 0;
    }
    let bit = |(index, element): (usize, &ArrayExpressionElement<'_>)| {
        u32::from(element.as_expression().is_some_and(is_tool_call)) << index
    };
    elements.iter().enumerate().map(bit).sum()
}
