//! The type check of scripts: infers types from the tools' schemas through the script, and finds
//! mistakes that are certain.
//!
//! It is a pure function of the syntax tree and the registry. What it cannot follow has the type
//! `Type::Unknown`, and every use of an unknown value is accepted. The reference is `tsc` with the
//! generated declarations: a test compares the findings on a corpus of scripts.
//!
//! | module | contents |
//! |---|---|
//! | `types` | the representation of types |
//! | `prepass` | declarations and assignments, collected before |
//! | `statements`, `functions`, `variables`, `patterns` | walk through the script, bind variables |
//! | `expressions`, `members`, `calls`, `methods`, `globals` | infer the type of an expression |
//! | `built_in_properties` | which properties lists, strings and global objects have |
//! | `annotations` | types that the script writes |
//! | `narrowing` | what conditions say about a value |
//! | `changes` | assignments, and changes of frozen results |
//! | `dropped` | calls whose promise is dropped |
//! | `arguments`, `mistakes` | compare arguments with schemas; messages |

mod annotations;
mod arguments;
mod built_in_properties;
mod calls;
mod changes;
mod dropped;
mod expressions;
mod functions;
mod globals;
mod members;
mod methods;
mod mistakes;
mod narrowing;
mod patterns;
mod prepass;
mod statements;
mod types;
mod variables;

use std::collections::{HashMap, HashSet};

use oxc_ast::ast::Program;
use oxc_semantic::{Scoping, SymbolId};
use selvedge_tools::Registry;

pub(crate) use mistakes::{MistakeKind, TypeMistake};

use narrowing::Narrowing;
use prepass::ScriptPrepass;
use types::{TypeId, TypeTable};

/// Maximum number of mistakes that are reported for one script.
const MAX_MISTAKES: usize = 20;
/// Maximum number of mistakes that are collected. The first in the text are reported.
const MAX_COLLECTED_MISTAKES: usize = 200;
/// Maximum nesting of expressions and functions. What is nested deeper is unknown.
const MAX_DEPTH: u32 = 200;
/// Maximum number of steps per byte of source. Each expression takes one step, and an assigned
/// value a few more.
const STEPS_PER_BYTE: u32 = 8;

/// Returns the mistakes of a script, in the order of the text. The caller provides the native stack
/// that parsing the script needs.
pub(crate) fn find_mistakes<'a>(
    program: &'a Program<'a>,
    scoping: &'a Scoping,
    registry: &'a Registry,
) -> Vec<TypeMistake> {
    let prepass = prepass::collect(program, scoping);
    if prepass.is_unsupported {
        return Vec::new();
    }
    let mut checker = TypeChecker {
        types: TypeTable::new(program.source_text.len()),
        source: program.source_text,
        scoping,
        registry,
        prepass,
        variable_types: HashMap::new(),
        initial_types: HashMap::new(),
        speculative_bindings: Vec::new(),
        resolving: Vec::new(),
        evaluated_declarators: HashSet::new(),
        function_types: HashMap::new(),
        pushed_types: HashMap::new(),
        contradictions: HashMap::new(),
        narrowings: Vec::new(),
        returns: Vec::new(),
        mistakes: Vec::new(),
        declared_types: HashMap::new(),
        steps_left: (program.source_text.len() as u32).saturating_mul(STEPS_PER_BYTE),
        depth: 0,
        speculation: 0,
    };
    checker.check_statements(&program.body);
    if checker.is_exhausted() {
        return Vec::new();
    }
    let mut mistakes = checker.mistakes;
    mistakes.sort_by_key(|mistake| mistake.offset);
    mistakes.dedup_by_key(|mistake| mistake.offset);
    mistakes.truncate(MAX_MISTAKES);
    mistakes
}

/// Walks through a script once, from top to bottom.
struct TypeChecker<'a> {
    types: TypeTable<'a>,
    source: &'a str,
    scoping: &'a Scoping,
    registry: &'a Registry,
    prepass: ScriptPrepass<'a>,
    /// Types of the variables that are bound. An unbound variable is unknown.
    variable_types: HashMap<SymbolId, TypeId>,
    /// Types of the first values of variables that are assigned later, too.
    initial_types: HashMap<SymbolId, TypeId>,
    /// Types that speculative evaluations replaced in `variable_types`.
    speculative_bindings: Vec<(SymbolId, Option<TypeId>)>,
    /// Variables whose types are being inferred, with what is known so far.
    resolving: Vec<(SymbolId, TypeId)>,
    /// Addresses of the declarators that were evaluated.
    evaluated_declarators: HashSet<usize>,
    /// Types of the functions that were evaluated, by address.
    function_types: HashMap<usize, TypeId>,
    /// For each list that starts empty: the type of the values pushed so far, and the number of
    /// `push` calls seen.
    pushed_types: HashMap<SymbolId, (TypeId, usize)>,
    /// Whether a type contradicts the schema at an address.
    contradictions: HashMap<(TypeId, usize), bool>,
    narrowings: Vec<Narrowing<'a>>,
    /// Types of the `return` statements of the functions around the current statement.
    returns: Vec<Vec<TypeId>>,
    mistakes: Vec<TypeMistake>,
    /// Types that the script declares. `None` while one is being read.
    declared_types: HashMap<SymbolId, Option<TypeId>>,
    steps_left: u32,
    depth: u32,
    /// Number of speculative evaluations around the current expression: these report no mistakes
    /// and bind nothing for good.
    speculation: u32,
}

impl<'a> TypeChecker<'a> {
    /// Takes a step. Returns false if the budget of steps or the depth is exhausted.
    fn take_step(&mut self) -> bool {
        self.steps_left = self.steps_left.saturating_sub(1);
        !self.is_exhausted() && self.depth < MAX_DEPTH
    }

    /// Whether a budget is exhausted. Types are incomplete then, and nothing is reported.
    fn is_exhausted(&self) -> bool {
        self.steps_left == 0 || self.types.is_exhausted()
    }

    /// Whether a mistake would be reported now. Otherwise its message need not be written.
    fn is_reporting(&self) -> bool {
        self.speculation == 0 && self.mistakes.len() < MAX_COLLECTED_MISTAKES
    }

    /// Runs a part of the check one level deeper.
    fn nested<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        self.depth += 1;
        let result = work(self);
        self.depth -= 1;
        result
    }

    /// Runs a part of the check and forgets the narrowings that it adds.
    fn scoped_narrowings<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        let kept = self.narrowings.len();
        let result = work(self);
        self.narrowings.truncate(kept);
        result
    }

    /// Runs a part of the check for another place of the script, where the present narrowings do
    /// not hold.
    fn without_narrowings<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        let narrowings = std::mem::take(&mut self.narrowings);
        let result = work(self);
        self.narrowings = narrowings;
        result
    }

    /// Runs a part of the check without reporting mistakes, and without binding variables for good.
    fn speculatively<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        let bound = self.speculative_bindings.len();
        self.speculation += 1;
        let result = work(self);
        self.speculation -= 1;
        for (symbol, before) in self.speculative_bindings.drain(bound..).rev() {
            match before {
                Some(before) => self.variable_types.insert(symbol, before),
                None => self.variable_types.remove(&symbol),
            };
        }
        result
    }

    fn report(&mut self, mistake: TypeMistake) {
        if self.is_reporting() {
            self.mistakes.push(mistake);
        }
    }
}

/// Returns the address of a node, which identifies it: the tree does not change during the check.
fn address<T>(node: &T) -> usize {
    std::ptr::from_ref(node).addr()
}
