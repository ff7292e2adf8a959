//! Calls of built-in namespaces whose promise is dropped: `channels.post(…);` without `await`.

use oxc_ast::ast::{Argument, CallExpression, Expression};
use oxc_span::GetSpan;

use super::TypeChecker;
use super::mistakes::{MistakeKind, TypeMistake};
use super::types::Type;
use crate::globals::is_of_built_in_namespace;

impl<'a> TypeChecker<'a> {
    /// Reports the calls of built-in namespaces in an expression whose value is not used. `void x`
    /// drops a promise on purpose and is accepted.
    pub(super) fn check_dropped(&mut self, expression: &'a Expression<'a>) {
        if !self.take_step() {
            return;
        }
        self.depth += 1;
        match expression.get_inner_expression() {
            Expression::LogicalExpression(it) => self.check_dropped(&it.right),
            Expression::ConditionalExpression(it) => {
                self.check_dropped(&it.consequent);
                self.check_dropped(&it.alternate);
            }
            Expression::SequenceExpression(it) => {
                it.expressions.iter().for_each(|it| self.check_dropped(it));
            }
            Expression::CallExpression(call) => self.check_dropped_call(call),
            _ => {}
        }
        self.depth -= 1;
    }

    fn check_dropped_call(&mut self, call: &'a CallExpression<'a>) {
        let callee = call.callee.get_inner_expression();
        if let Expression::StaticMemberExpression(member) = callee {
            match member.property.name.as_str() {
                // The promise of a chain is the one that is dropped.
                "then" | "catch" | "finally" => return self.check_dropped(&member.object),
                "forEach" => {
                    let callback = call.arguments.first().and_then(Argument::as_expression);
                    let callback = callback.map(Expression::get_inner_expression);
                    if let Some(Expression::ArrowFunctionExpression(arrow)) = callback
                        && let Some(value) = arrow.body.as_expression()
                    {
                        return self.check_dropped(value);
                    }
                }
                _ => {}
            }
        }
        let ty = self.infer_silently(callee);
        if let Type::Tool(tool) = self.types.get(ty)
            && is_of_built_in_namespace(&tool.0.spec.js_name)
        {
            let name = tool.0.spec.js_name.clone();
            let text = self.quoted(callee.span());
            self.report(TypeMistake {
                kind: MistakeKind::Dropped,
                offset: callee.span().start,
                message: format!(
                    "`{text}(…)` is not awaited: the script may end before the call does, which \
                     cancels it"
                ),
                suggestions: vec![format!("write `await {text}(…)`")],
                tool: Some(name),
            });
        }
    }
}
