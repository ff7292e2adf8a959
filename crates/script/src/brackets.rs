//! What is open at a place of a script's text, for the prediction of the parser's work.

/// The kind of the previous token, as far as the next one depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Previous {
    Start,
    /// The end of an operand: a name, a literal, `)` or `]`.
    Operand,
    /// `)` after `if (…`, `for (…`, `while (…`: a statement follows, or the name was a method's.
    ControlEnd,
    /// `}` of a block, an object or a class.
    Brace,
    /// `.` or `?.`.
    Dot,
    /// A word after which an operand follows, such as `return`.
    Prefix,
    /// A word after which an operand or a type follows, such as `typeof`.
    TypePrefix,
    /// A word that is a name or an operator, such as `await`.
    Contextual,
    /// Punctuation after which an operand follows.
    Operator,
    /// Punctuation after which an operand or a type follows.
    TypeOperator,
    /// Punctuation before or after an operand, such as `!` and `>`.
    Affix,
}

impl Previous {
    pub(crate) fn ends_operand(self) -> bool {
        matches!(self, Self::Operand | Self::ControlEnd | Self::Brace)
    }
}

/// An open bracket and the speculations that may be open inside of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpenBracket {
    /// The opening byte; `$` for a substitution in a template literal, 0 for the whole text.
    pub(crate) kind: u8,
    /// Whether a word such as `if` is before it.
    pub(crate) after_control_word: bool,
    /// Whether it may start the parameters of a function type.
    pub(crate) may_start_type: bool,
    /// Whether only words followed it so far.
    pub(crate) only_words: bool,
    /// How often the text around the bracket may be read.
    pub(crate) outer_factor: u64,
    /// Number of possible arrow functions around the bracket. Each makes the parser read its text
    /// once more.
    pub(crate) outer_arrow_count: u64,
    /// How often each open `<` directly inside may be read as the start of type arguments.
    pub(crate) open_angles: Vec<u64>,
    /// Number of `new` in the current expression. Each reads a following `<` once more.
    pub(crate) new_count: u64,
    /// Number of `infer` directly inside, whose constraint may be read again. Only `;` and the end
    /// of the bracket certainly end a constraint.
    pub(crate) infer_count: u64,
    /// Whether the names after `interface A extends` may follow, whose type arguments are read as
    /// types twice.
    pub(crate) in_heritage: bool,
    /// Number of possible arrow functions directly inside whose body has not ended.
    pub(crate) arrow_count: u64,
}

impl OpenBracket {
    /// How often a token directly inside may be read, without arrow functions. Nested type
    /// arguments do not multiply: the parser does not speculate again inside of type arguments, so
    /// the attempts are added.
    pub(crate) fn factor(&self) -> u64 {
        let attempts: u64 = self.open_angles.iter().sum();
        let factor = self.outer_factor.saturating_mul(1 + attempts);
        factor.saturating_mul(1 << self.infer_count.min(62))
    }

    /// Ends the speculations of the current expression.
    pub(crate) fn end_expression(&mut self) {
        self.open_angles.clear();
        (self.new_count, self.arrow_count) = (0, 0);
    }

    /// Returns the state of the whole text.
    pub(crate) fn whole_text() -> Self {
        Self {
            kind: 0,
            after_control_word: false,
            may_start_type: false,
            only_words: false,
            outer_factor: 1,
            outer_arrow_count: 0,
            open_angles: Vec::new(),
            new_count: 0,
            infer_count: 0,
            in_heritage: false,
            arrow_count: 0,
        }
    }
}
