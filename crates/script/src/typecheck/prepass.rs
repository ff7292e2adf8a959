//! The first pass of the type check: collects declarations, assignments, and the names of fields
//! that the script tests or adds.

use std::collections::{HashMap, HashSet};

use oxc_ast::AstKind;
use oxc_ast::ast::{
    Argument, AssignmentExpression, AssignmentOperator, AssignmentTarget, BinaryOperator,
    CallExpression, Expression, ForStatementLeft, Function, IdentifierReference, Program,
    SimpleAssignmentTarget, TSInterfaceDeclaration, TSTypeAliasDeclaration, VariableDeclaration,
    VariableDeclarator,
};
use oxc_ast_visit::Visit;
use oxc_semantic::{ReferenceId, ScopeId, Scoping, SymbolId};

use super::address;

/// A variable declaration.
#[derive(Clone, Copy)]
pub(super) struct Variable<'a> {
    pub(super) declarator: &'a VariableDeclarator<'a>,
    pub(super) is_const: bool,
}

/// A value that is assigned to a variable after its declaration.
#[derive(Clone, Copy)]
pub(super) enum AssignedValue<'a> {
    /// The value of an expression.
    Value(&'a Expression<'a>),
    /// A number of unknown value.
    Number,
    /// The sum with the value of an expression, as `+=` gives.
    Sum(&'a Expression<'a>),
    /// A value of any type.
    Unknown,
}

/// A type that the script declares.
#[derive(Clone, Copy)]
pub(super) enum TypeDeclaration<'a> {
    Alias(&'a TSTypeAliasDeclaration<'a>),
    Interface(&'a TSInterfaceDeclaration<'a>),
}

/// What is known about a script before types are inferred.
#[derive(Default)]
pub(super) struct ScriptPrepass<'a> {
    pub(super) variables: HashMap<SymbolId, Variable<'a>>,
    /// Addresses of the declarators in the heads of `for … of` and `for … in`.
    pub(super) loop_declarators: HashSet<usize>,
    pub(super) functions: HashMap<SymbolId, &'a Function<'a>>,
    pub(super) type_declarations: HashMap<SymbolId, TypeDeclaration<'a>>,
    /// Assignments to variables after their declaration.
    pub(super) assignments: HashMap<SymbolId, Vec<AssignedValue<'a>>>,
    /// Number of `x.push(…)` and `x.unshift(…)` calls on a variable.
    pub(super) push_counts: HashMap<SymbolId, usize>,
    /// Lists whose elements are assigned: `x[i] = …`.
    pub(super) index_assigned: HashSet<SymbolId>,
    /// Names of fields that the script assigns: an object that it made may have them.
    pub(super) added_names: HashSet<&'a str>,
    /// Names of fields that the script tests with `in`: any object may have them.
    pub(super) tested_names: HashSet<&'a str>,
    /// Whether the script assigns fields by computed names to objects that have named fields.
    pub(super) adds_computed_names: bool,
    /// Whether the script uses a form that changes types in ways that are not followed.
    pub(super) is_unsupported: bool,
}

impl<'a> ScriptPrepass<'a> {
    /// Whether a name may have been added to an object after it was made.
    pub(super) fn may_be_added(&self, name: &str) -> bool {
        self.adds_computed_names
            || self.added_names.contains(name)
            || self.tested_names.contains(name)
    }
}

/// Makes the first pass over a script.
pub(super) fn collect<'a>(program: &'a Program<'a>, scoping: &'a Scoping) -> ScriptPrepass<'a> {
    let mut visitor = PrepassVisitor {
        scoping,
        prepass: ScriptPrepass::default(),
    };
    visitor.visit_program(program);
    visitor.prepass
}

struct PrepassVisitor<'a> {
    scoping: &'a Scoping,
    prepass: ScriptPrepass<'a>,
}

impl<'a> Visit<'a> for PrepassVisitor<'a> {
    fn enter_node(&mut self, kind: AstKind<'a>) {
        let prepass = &mut self.prepass;
        match kind {
            AstKind::VariableDeclaration(it) => self.record_variables(it),
            AstKind::Function(it) => {
                let symbol = it.id.as_ref().and_then(|id| id.symbol_id.get());
                if let Some(symbol) = symbol.filter(|_| it.is_declaration()) {
                    // Overloads and redeclarations are not followed.
                    prepass.is_unsupported |= prepass.functions.insert(symbol, it).is_some();
                }
            }
            AstKind::TSTypeAliasDeclaration(it) => {
                let symbol = it.id.symbol_id.get();
                let entry = symbol.map(|symbol| (symbol, TypeDeclaration::Alias(it)));
                prepass.type_declarations.extend(entry);
            }
            AstKind::TSInterfaceDeclaration(it) => {
                let symbol = it.id.symbol_id.get();
                let entry = symbol.map(|symbol| (symbol, TypeDeclaration::Interface(it)));
                prepass.type_declarations.extend(entry);
            }
            AstKind::TSTypePredicate(it) => prepass.is_unsupported |= it.asserts,
            AstKind::TSGlobalDeclaration(_) => prepass.is_unsupported = true,
            AstKind::AssignmentExpression(it) => self.record_assignment(it),
            AstKind::UpdateExpression(it) => self.record_update(&it.argument),
            AstKind::ForOfStatement(it) => self.record_loop_target(&it.left),
            AstKind::ForInStatement(it) => self.record_loop_target(&it.left),
            AstKind::BinaryExpression(it) if it.operator == BinaryOperator::In => {
                if let Expression::StringLiteral(name) = it.left.get_inner_expression() {
                    prepass.tested_names.insert(name.value.as_str());
                }
            }
            AstKind::CallExpression(it) => self.record_call(it),
            _ => {}
        }
    }
}

impl<'a> PrepassVisitor<'a> {
    fn record_variables(&mut self, declaration: &'a VariableDeclaration<'a>) {
        for declarator in &declaration.declarations {
            let variable = Variable {
                declarator,
                is_const: declaration.kind.is_const(),
            };
            for symbol in declarator.id.get_symbol_ids() {
                if self.prepass.variables.insert(symbol, variable).is_some() {
                    // `var x` twice: nothing is known about its value.
                    self.assign_unknown(symbol);
                }
            }
        }
    }

    fn assign_unknown(&mut self, symbol: SymbolId) {
        let values = self.prepass.assignments.entry(symbol).or_default();
        values.push(AssignedValue::Unknown);
    }

    fn record_assignment(&mut self, assignment: &'a AssignmentExpression<'a>) {
        let value = match assignment.operator {
            AssignmentOperator::Assign
            | AssignmentOperator::LogicalAnd
            | AssignmentOperator::LogicalOr
            | AssignmentOperator::LogicalNullish => AssignedValue::Value(&assignment.right),
            AssignmentOperator::Addition => AssignedValue::Sum(&assignment.right),
            _ => AssignedValue::Number,
        };
        match &assignment.left {
            AssignmentTarget::AssignmentTargetIdentifier(name) => {
                if let Some(symbol) = symbol_of(self.scoping, name) {
                    let values = self.prepass.assignments.entry(symbol).or_default();
                    values.push(value);
                }
            }
            target => self.record_target(target),
        }
    }

    fn record_update(&mut self, target: &'a SimpleAssignmentTarget<'a>) {
        if let SimpleAssignmentTarget::AssignmentTargetIdentifier(name) = target
            && let Some(symbol) = symbol_of(self.scoping, name)
        {
            let values = self.prepass.assignments.entry(symbol).or_default();
            values.push(AssignedValue::Number);
        }
    }

    fn record_loop_target(&mut self, left: &'a ForStatementLeft<'a>) {
        if let ForStatementLeft::VariableDeclaration(declaration) = left {
            let declarators = declaration.declarations.iter().map(address);
            self.prepass.loop_declarators.extend(declarators);
        }
        if let Some(target) = left.as_assignment_target() {
            self.record_target(target);
        }
    }

    /// Records an assignment whose value is not followed.
    fn record_target(&mut self, target: &'a AssignmentTarget<'a>) {
        match target {
            AssignmentTarget::AssignmentTargetIdentifier(name) => {
                if let Some(symbol) = symbol_of(self.scoping, name) {
                    self.assign_unknown(symbol);
                }
            }
            AssignmentTarget::StaticMemberExpression(member) => {
                self.prepass
                    .added_names
                    .insert(member.property.name.as_str());
            }
            AssignmentTarget::ComputedMemberExpression(member) => {
                if let Expression::Identifier(name) = &member.object {
                    self.prepass
                        .index_assigned
                        .extend(symbol_of(self.scoping, name));
                }
                match member.expression.get_inner_expression() {
                    Expression::NumericLiteral(_) => {}
                    Expression::StringLiteral(name) => {
                        self.prepass.added_names.insert(name.value.as_str());
                    }
                    _ if self.is_dictionary(&member.object) => {}
                    _ => self.prepass.adds_computed_names = true,
                }
            }
            AssignmentTarget::ArrayAssignmentTarget(_)
            | AssignmentTarget::ObjectAssignmentTarget(_) => {
                let mut names = TargetNames(Vec::new());
                names.visit_assignment_target(target);
                for name in names.0 {
                    if let Some(symbol) = self.scoping.get_reference(name).symbol_id() {
                        self.assign_unknown(symbol);
                    }
                }
                self.prepass.adds_computed_names = true;
            }
            _ => {}
        }
    }

    /// Whether an expression is a variable that starts as `{}` or a list, or has a type annotation:
    /// its type then allows computed names.
    fn is_dictionary(&self, object: &Expression<'a>) -> bool {
        let Expression::Identifier(name) = object.get_inner_expression() else {
            return false;
        };
        let symbol = symbol_of(self.scoping, name);
        let Some(variable) = symbol.and_then(|symbol| self.prepass.variables.get(&symbol)) else {
            return false;
        };
        let init = variable.declarator.init.as_ref();
        variable.declarator.type_annotation.is_some()
            || init.is_some_and(|init| match init {
                Expression::ObjectExpression(object) => object.properties.is_empty(),
                Expression::ArrayExpression(_)
                | Expression::TSAsExpression(_)
                | Expression::NewExpression(_) => true,
                _ => false,
            })
    }

    fn record_call(&mut self, call: &'a CallExpression<'a>) {
        // These add fields to their first argument.
        let is_new = matches!(call.arguments.first(), Some(Argument::ObjectExpression(_)));
        let adds_fields = [
            "assign",
            "defineProperty",
            "defineProperties",
            "setPrototypeOf",
        ]
        .iter()
        .any(|name| call.callee.is_specific_member_access("Object", name));
        self.prepass.adds_computed_names |= adds_fields && !is_new;
        if let Some(symbol) = pushed_variable(self.scoping, call) {
            *self.prepass.push_counts.entry(symbol).or_default() += 1;
        }
    }
}

/// Returns `x` for `x.push(…)` and `x.unshift(…)`.
pub(super) fn pushed_variable(scoping: &Scoping, call: &CallExpression<'_>) -> Option<SymbolId> {
    let Expression::StaticMemberExpression(member) = &call.callee else {
        return None;
    };
    let Expression::Identifier(name) = &member.object else {
        return None;
    };
    let adds = matches!(member.property.name.as_str(), "push" | "unshift");
    adds.then(|| symbol_of(scoping, name)).flatten()
}

/// Collects the variables in a pattern of an assignment, and those in its default values.
struct TargetNames(Vec<ReferenceId>);

impl<'a> Visit<'a> for TargetNames {
    fn visit_identifier_reference(&mut self, it: &IdentifierReference<'a>) {
        self.0.extend(it.reference_id.get());
    }
}

/// Returns the variable that an identifier refers to, or `None` for a global.
pub(super) fn symbol_of(
    scoping: &Scoping,
    identifier: &IdentifierReference<'_>,
) -> Option<SymbolId> {
    let reference = identifier.reference_id.get()?;
    scoping.get_reference(reference).symbol_id()
}

/// Returns the scope of the function around a scope. `None` at the top level of the script.
pub(super) fn function_scope(scoping: &Scoping, scope: ScopeId) -> Option<ScopeId> {
    let mut ancestors = scoping.scope_ancestors(scope);
    let is_function = |scope: &ScopeId| scoping.scope_flags(*scope).is_function();
    ancestors.find(is_function)
}

/// Whether a variable is used only in the function that declares it.
pub(super) fn is_used_locally(scoping: &Scoping, symbol: SymbolId) -> bool {
    let home = function_scope(scoping, scoping.symbol_scope_id(symbol));
    let mut references = scoping.get_resolved_references(symbol);
    references.all(|reference| function_scope(scoping, reference.scope_id()) == home)
}
