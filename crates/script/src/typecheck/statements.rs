//! Walks through statements.

use oxc_ast::ast::{
    Class, ClassElement, Declaration, Expression, ForStatementInit, ForStatementLeft, IfStatement,
    LogicalOperator, Statement, VariableDeclaration,
};
use oxc_span::{GetSpan, Span};

use super::TypeChecker;
use super::types::TypeId;

impl<'a> TypeChecker<'a> {
    pub(super) fn check_statements(&mut self, statements: &'a [Statement<'a>]) {
        self.scoped_narrowings(|checker| {
            for statement in statements {
                checker.check_statement(statement);
                // `if (!x) return;` says something about the statements after it.
                if let Statement::IfStatement(it) = statement {
                    if exits(&it.consequent) {
                        checker.narrow(&it.test, false);
                    }
                    if it.alternate.as_ref().is_some_and(exits) {
                        checker.narrow(&it.test, true);
                    }
                }
            }
        });
    }

    fn check_statement(&mut self, statement: &'a Statement<'a>) {
        if !self.take_step() {
            return;
        }
        self.nested(|checker| checker.check_statement_inner(statement));
    }

    fn check_statement_inner(&mut self, statement: &'a Statement<'a>) {
        match statement {
            Statement::ExpressionStatement(it) => {
                self.infer(&it.expression);
                self.check_dropped(&it.expression);
            }
            Statement::BlockStatement(it) => self.check_statements(&it.body),
            Statement::IfStatement(it) => self.check_if(it),
            Statement::ReturnStatement(it) => {
                let value = it.argument.as_ref().map(|value| self.infer(value));
                if let Some(returns) = self.returns.last_mut() {
                    returns.push(value.unwrap_or(TypeId::UNDEFINED));
                }
            }
            Statement::ThrowStatement(it) => {
                self.infer(&it.argument);
            }
            Statement::TryStatement(it) => {
                self.check_statements(&it.block.body);
                if let Some(handler) = &it.handler {
                    self.check_statements(&handler.body.body);
                }
                if let Some(finalizer) = &it.finalizer {
                    self.check_statements(&finalizer.body);
                }
            }
            Statement::SwitchStatement(it) => {
                self.infer(&it.discriminant);
                for case in &it.cases {
                    if let Some(test) = &case.test {
                        self.infer(test);
                    }
                    self.check_statements(&case.consequent);
                }
            }
            Statement::LabeledStatement(it) => self.check_statement(&it.body),
            _ => match statement.as_declaration() {
                Some(declaration) => self.check_declaration(declaration),
                None => self.scoped_narrowings(|checker| checker.check_loop(statement)),
            },
        }
    }

    fn check_if(&mut self, it: &'a IfStatement<'a>) {
        self.check_condition(&it.test, it.consequent.span());
        self.scoped_narrowings(|checker| {
            checker.narrow(&it.test, true);
            checker.check_statement(&it.consequent);
        });
        if let Some(alternate) = &it.alternate {
            self.scoped_narrowings(|checker| {
                checker.narrow(&it.test, false);
                checker.check_statement(alternate);
            });
        }
    }

    /// Infers the condition of `if` or `? :`, and reports a promise that is tested instead of its
    /// value. `guarded` is what the condition guards: a promise that it uses is tested on purpose.
    pub(super) fn check_condition(&mut self, test: &'a Expression<'a>, guarded: Span) {
        self.infer(test);
        self.check_tested_promise(test, guarded);
    }

    fn check_tested_promise(&mut self, test: &'a Expression<'a>, guarded: Span) {
        let test = test.get_inner_expression();
        let is_tested = match test {
            Expression::LogicalExpression(it) if it.operator == LogicalOperator::And => {
                self.check_tested_promise(&it.left, guarded);
                return self.check_tested_promise(&it.right, guarded);
            }
            Expression::CallExpression(_) => true,
            Expression::Identifier(name) => {
                let guarded = &self.source[guarded.start as usize..guarded.end as usize];
                !guarded.contains(name.name.as_str())
            }
            _ => false,
        };
        if is_tested {
            let ty = self.infer_silently(test);
            if self.is_promise(ty) {
                self.report_promise_used(test.span(), "it is used as a condition");
            }
        }
    }

    fn check_loop(&mut self, statement: &'a Statement<'a>) {
        match statement {
            Statement::WhileStatement(it) => {
                self.infer(&it.test);
                self.narrow(&it.test, true);
                self.check_statement(&it.body);
            }
            Statement::DoWhileStatement(it) => {
                self.check_statement(&it.body);
                self.infer(&it.test);
            }
            Statement::ForStatement(it) => {
                match &it.init {
                    Some(ForStatementInit::VariableDeclaration(it)) => self.check_variables(it),
                    Some(init) => {
                        init.as_expression().map(|init| self.infer(init));
                    }
                    None => {}
                }
                if let Some(test) = &it.test {
                    self.infer(test);
                    self.narrow(test, true);
                }
                self.check_statement(&it.body);
                if let Some(update) = &it.update {
                    self.infer(update);
                }
            }
            Statement::ForOfStatement(it) => {
                let list = self.infer(&it.right);
                let element = match it.r#await {
                    true => TypeId::UNKNOWN,
                    false => self.element_of(list, it.right.span()),
                };
                self.bind_loop_variable(&it.left, element);
                self.check_statement(&it.body);
            }
            Statement::ForInStatement(it) => {
                self.infer(&it.right);
                self.bind_loop_variable(&it.left, TypeId::STRING);
                self.check_statement(&it.body);
            }
            _ => {}
        }
    }

    fn bind_loop_variable(&mut self, left: &'a ForStatementLeft<'a>, element: TypeId) {
        if let ForStatementLeft::VariableDeclaration(declaration) = left {
            for declarator in &declaration.declarations {
                self.bind_pattern(&declarator.id, element, None);
            }
        }
    }

    fn check_declaration(&mut self, declaration: &'a Declaration<'a>) {
        match declaration {
            Declaration::VariableDeclaration(it) if !it.declare => self.check_variables(it),
            Declaration::FunctionDeclaration(it) => {
                self.infer_function_declaration(it);
            }
            Declaration::ClassDeclaration(it) => self.check_class(it),
            _ => {}
        }
    }

    fn check_variables(&mut self, declaration: &'a VariableDeclaration<'a>) {
        for declarator in &declaration.declarations {
            self.check_declarator(declarator, declaration.kind.is_const());
        }
    }

    /// Checks the bodies of a class. Its instances are unknown.
    pub(super) fn check_class(&mut self, class: &'a Class<'a>) {
        for element in &class.body.body {
            match element {
                ClassElement::MethodDefinition(method) => {
                    self.infer_function_declaration(&method.value);
                }
                ClassElement::PropertyDefinition(property) => {
                    if let Some(value) = &property.value {
                        self.infer(value);
                    }
                }
                ClassElement::StaticBlock(block) => self.check_statements(&block.body),
                _ => {}
            }
        }
    }
}

/// Whether the statements after this one are not reached.
pub(super) fn exits(statement: &Statement<'_>) -> bool {
    match statement {
        Statement::ReturnStatement(_)
        | Statement::ThrowStatement(_)
        | Statement::ContinueStatement(_)
        | Statement::BreakStatement(_) => true,
        Statement::BlockStatement(it) => it.body.last().is_some_and(exits),
        Statement::IfStatement(it) => {
            exits(&it.consequent) && it.alternate.as_ref().is_some_and(exits)
        }
        _ => false,
    }
}
