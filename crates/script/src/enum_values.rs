//! Bounds the values of enums before they are computed: each member can repeat the previous one, so
//! that forty members would be a string of a terabyte.

use oxc_ast::ast::{BinaryOperator, Expression, Program, TSEnumMember};
use oxc_ast_visit::{Visit, walk};

/// Maximum number of bytes of all computed values together.
const MAX_VALUE_BYTES: usize = 1 << 20;
/// Maximum number of bytes of a number as text.
const MAX_NUMBER_BYTES: usize = 24;

/// Checks that the values of all enums together are short. Otherwise returns the offset of the
/// member with which they become too long.
pub(crate) fn bound_enum_values(program: &Program<'_>) -> Result<(), u32> {
    let mut bound = EnumValueBound::default();
    bound.visit_program(program);
    bound.excessive.map_or(Ok(()), Err)
}

/// Adds up the possible lengths of values.
#[derive(Default)]
struct EnumValueBound {
    /// Length of the longest string so far. A reference is at most as long.
    longest_string: Option<usize>,
    /// Bytes of all values and of the intermediate results.
    total: usize,
    excessive: Option<u32>,
}

/// The possible value of an expression.
#[derive(Clone, Copy)]
struct ValueBound {
    bytes: usize,
    may_be_string: bool,
}

const NUMBER: ValueBound = ValueBound {
    bytes: MAX_NUMBER_BYTES,
    may_be_string: false,
};

impl EnumValueBound {
    fn value_of(&mut self, expression: &Expression<'_>) -> ValueBound {
        let string = |bytes| ValueBound {
            bytes,
            may_be_string: true,
        };
        match expression {
            Expression::StringLiteral(text) => string(text.value.len()),
            Expression::TemplateLiteral(template) => {
                let quasis = template.quasis.iter();
                let mut bytes: usize = quasis.map(|quasi| quasi.value.raw.len()).sum();
                for part in &template.expressions {
                    bytes = bytes.saturating_add(self.value_of(part).bytes);
                }
                self.total = self.total.saturating_add(bytes);
                string(bytes)
            }
            Expression::BinaryExpression(sum) if sum.operator == BinaryOperator::Addition => {
                let (left, right) = (self.value_of(&sum.left), self.value_of(&sum.right));
                if !left.may_be_string && !right.may_be_string {
                    return NUMBER;
                }
                let bytes = left.bytes.saturating_add(right.bytes);
                self.total = self.total.saturating_add(bytes);
                string(bytes)
            }
            Expression::ParenthesizedExpression(inner) => self.value_of(&inner.expression),
            Expression::Identifier(_)
            | Expression::StaticMemberExpression(_)
            | Expression::ComputedMemberExpression(_) => match self.longest_string {
                Some(longest) => string(longest.max(MAX_NUMBER_BYTES)),
                None => NUMBER,
            },
            _ => NUMBER,
        }
    }
}

impl<'a> Visit<'a> for EnumValueBound {
    fn visit_ts_enum_member(&mut self, it: &TSEnumMember<'a>) {
        if let Some(value) = &it.initializer {
            let value = self.value_of(value);
            if value.may_be_string {
                self.longest_string = self.longest_string.max(Some(value.bytes));
                self.total = self.total.saturating_add(value.bytes);
            }
        }
        if self.total > MAX_VALUE_BYTES && self.excessive.is_none() {
            self.excessive = Some(it.span.start);
        }
        walk::walk_ts_enum_member(self, it);
    }
}
