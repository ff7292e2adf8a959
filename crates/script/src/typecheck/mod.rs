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
//! | `facts` | declarations and assignments, collected before |
//! | `statements`, `functions`, `patterns` | walk through the script, bind variables |
//! | `expressions`, `members`, `calls`, `methods`, `globals` | infer the type of an expression |
//! | `annotations` | types that the script writes |
//! | `narrowing` | what conditions say about a value |
//! | `changes` | assignments, and changes of frozen results |
//! | `dropped` | calls whose promise is dropped |
//! | `arguments`, `mistakes` | compare arguments with schemas; messages |

mod annotations;
mod arguments;
mod calls;
mod changes;
mod dropped;
mod expressions;
mod facts;
mod functions;
mod globals;
mod members;
mod methods;
mod mistakes;
mod narrowing;
mod patterns;
mod statements;
mod types;

use std::collections::{HashMap, HashSet};

use oxc_ast::ast::Program;
use oxc_semantic::{Scoping, SymbolId};
use selvedge_tools::Registry;

pub(crate) use mistakes::{MistakeKind, TypeMistake};

use facts::ScriptFacts;
use narrowing::Narrowing;
use types::{TypeId, TypeTable};

/// Maximum number of mistakes that are reported for one script.
const MAX_MISTAKES: usize = 20;
/// Maximum nesting of expressions and functions. What is nested deeper is unknown.
const MAX_DEPTH: u32 = 200;
/// Maximum number of expressions that are looked at per byte of source. Each expression is looked
/// at once, and assigned values a few times more.
const STEPS_PER_BYTE: u32 = 8;

/// Returns the mistakes of a script, in the order of the text. The caller provides the native stack
/// that parsing the script needs.
pub(crate) fn find_mistakes<'a>(
    program: &'a Program<'a>,
    scoping: &'a Scoping,
    registry: &'a Registry,
) -> Vec<TypeMistake> {
    let facts = facts::collect(program, scoping);
    if facts.is_unsupported {
        return Vec::new();
    }
    let mut checker = TypeChecker {
        types: TypeTable::new(),
        source: program.source_text,
        scoping,
        registry,
        facts,
        symbols: HashMap::new(),
        initial_types: HashMap::new(),
        speculative_bindings: Vec::new(),
        resolving: Vec::new(),
        evaluated: HashSet::new(),
        function_types: HashMap::new(),
        pushed: HashMap::new(),
        narrowings: Vec::new(),
        returns: Vec::new(),
        mistakes: Vec::new(),
        declared_types: HashMap::new(),
        steps_left: (program.source_text.len() as u32).saturating_mul(STEPS_PER_BYTE),
        depth: 0,
        speculation: 0,
    };
    checker.check_statements(&program.body);
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
    facts: ScriptFacts<'a>,
    /// Types of the variables that are bound. An unbound variable is unknown.
    symbols: HashMap<SymbolId, TypeId>,
    /// Types of the first values of variables that are assigned later, too.
    initial_types: HashMap<SymbolId, TypeId>,
    /// Types that speculative evaluations replaced in `symbols`.
    speculative_bindings: Vec<(SymbolId, Option<TypeId>)>,
    /// Variables whose types are being inferred, with what is known so far.
    resolving: Vec<(SymbolId, TypeId)>,
    /// Addresses of the declarators that were evaluated.
    evaluated: HashSet<usize>,
    /// Types of the functions that were evaluated, by address.
    function_types: HashMap<usize, TypeId>,
    /// What was pushed so far to a list that starts empty: types, and number of calls.
    pushed: HashMap<SymbolId, (Vec<TypeId>, usize)>,
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
        self.steps_left > 0 && self.depth < MAX_DEPTH
    }

    fn report(&mut self, mistake: TypeMistake) {
        // After the budget is exhausted, types are incomplete.
        if self.speculation == 0 && self.steps_left > 0 {
            self.mistakes.push(mistake);
        }
    }
}

/// Returns the address of a node, which identifies it: the tree does not change during the check.
fn address<T>(node: &T) -> usize {
    std::ptr::from_ref(node).addr()
}
