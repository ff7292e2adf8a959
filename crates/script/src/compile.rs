//! Compiles a script from TypeScript to an async JavaScript function, and collects what is known
//! about it without running it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use oxc_allocator::Allocator;
use oxc_ast::ast::{Argument, CallExpression, Expression, NumberBase, Program};
use oxc_ast::builder::AstBuilder;
use oxc_ast_visit::{Visit, VisitMut, walk_mut};
use oxc_codegen::{Codegen, CodegenOptions, CommentOptions};
use oxc_diagnostics::OxcDiagnostic;
use oxc_parser::{ParseOptions, Parser, ParserReturn};
use oxc_semantic::{Scoping, SemanticBuilder, SymbolFlags};
use oxc_span::{SPAN, SourceType};
use oxc_transformer::{TransformOptions, Transformer};
use selvedge_protocol::{ErrorCode, Phase, ScriptError};
use selvedge_sandbox::Position;
use selvedge_tools::{Registry, RegistryIdentity};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::analysis::{LintWarning, ScriptAnalyzer, StaticCall, ToolMentions, inline_tool_calls};
use crate::enum_values::bound_enum_values;
use crate::globals::is_reserved_name;
use crate::hints::ESCAPE_BACKTICK_HINT;
use crate::lexing::is_short_and_shallow;
use crate::parse_cost::{UnparsableText, bound_parse_cost};
use crate::positions::{LineStarts, PositionMap};
use crate::pragma::Pragma;
use crate::script_cache::ScriptCache;
use crate::typecheck::{TypeMistake, find_mistakes};

/// Parse cost up to which a script is compiled on the thread of the caller: about a millisecond.
const MAX_INLINE_COST: u64 = 50_000;
/// Number of costlier scripts that are compiled at the same time, in all sessions.
const MAX_CONCURRENT_COSTLY_SCRIPTS: usize = 2;
/// Memory of a name besides its text, in bytes: the `String` and its allocation.
const BYTES_PER_NAME: usize = 48;
/// Lines that the wrapper function puts before the script.
const WRAPPER_LINES: u32 = 1;
/// Native stack for brackets, which may be nested 256 deep. Groups of a regular expression need
/// the most: half of it, in a debug build.
const STACK_BYTES_FOR_BRACKETS: usize = 8 << 20;
/// Native stack per byte of source, for recursion that has no limit of depth, such as `a()()()`.
/// The deepest known script needs a ninth of it to be parsed, in a debug build.
const STACK_BYTES_PER_SOURCE_BYTE: usize = 8 << 10;

/// A compiled script.
#[derive(Debug)]
pub struct CompiledScript {
    /// The script as written, without a byte-order mark.
    pub source: Arc<str>,
    /// SHA-256 of `source`, in hexadecimal.
    pub sha256: String,
    /// Options from the script's first line.
    pub pragma: Option<Pragma>,
    pub(crate) javascript: String,
    pub(crate) calls: Vec<StaticCall>,
    pub(crate) global_calls: Vec<StaticCall>,
    probed_tools: Vec<String>,
    pub(crate) warnings: Vec<LintWarning>,
    pub(crate) mentions: ToolMentions,
    /// Functions that are called by a name the script does not declare, with the call's byte
    /// offset.
    pub(crate) bare_calls: Vec<(String, u32)>,
    /// Names that the script declares.
    pub(crate) declared_names: Vec<String>,
    /// Names that the script uses and does not declare.
    pub(crate) undeclared_names: BTreeSet<String>,
    lines: LineStarts,
    position_map: PositionMap,
    type_check: Mutex<Option<TypeCheck>>,
    /// Whether it may be compiled and checked on a thread of the async executor.
    is_quick: bool,
}

/// The result of the type check against one registry.
#[derive(Debug, Clone)]
struct TypeCheck {
    registry: RegistryIdentity,
    mistakes: Arc<[TypeMistake]>,
}

impl CompiledScript {
    /// Returns the mistakes that the type check against a registry finds. The result of the last
    /// registry is cached.
    pub(crate) fn type_mistakes(&self, registry: &Registry) -> Arc<[TypeMistake]> {
        let mut cached = self
            .type_check
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*cached
            && registry.has_identity(&known.registry)
        {
            return known.mistakes.clone();
        }
        let checked = stacker::grow(stack_bytes(&self.source), || {
            let allocator = Allocator::default();
            let parsed = parse(&allocator, &self.source);
            let built = SemanticBuilder::new_compiler().build(&parsed.program);
            type_check(&parsed.program, &built.semantic.into_scoping(), registry)
        });
        let mistakes = checked.mistakes.clone();
        *cached = Some(checked);
        mistakes
    }

    fn has_type_check(&self, registry: &Registry) -> bool {
        let cached = self
            .type_check
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let known = cached.as_ref().map(|known| &known.registry);
        known.is_some_and(|known| registry.has_identity(known))
    }

    /// Returns about how much memory the script takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let names = self.declared_names.iter().chain(&self.undeclared_names);
        let names: usize = names.map(|name| name.len() + BYTES_PER_NAME).sum();
        size_of::<Self>()
            + self.source.len()
            + self.javascript.len()
            + names
            + self.position_map.memory_bytes()
    }

    /// Maps a position in the compiled code to the script as written.
    pub(crate) fn original_position(&self, compiled: Position) -> Option<Position> {
        self.position_map.original_position(compiled)
    }

    /// Whether the script tests if there is a tool with this path below `tools`.
    pub(crate) fn is_probed(&self, path: &str) -> bool {
        self.probed_tools.iter().any(|probed| probed == path)
    }

    /// Returns the position of a byte offset in the script.
    pub(crate) fn position_of_offset(&self, offset: u32) -> Position {
        self.lines.position(&self.source, offset)
    }
}

/// Compiles scripts, with a cache of the most recently used.
#[derive(Debug, Default)]
pub struct ScriptCompiler {
    cache: Mutex<ScriptCache>,
}

impl ScriptCompiler {
    /// Compiles a script. Returns it with whether it was in the cache.
    pub fn compile(
        &self,
        source: &str,
        max_bytes: usize,
    ) -> Result<(Arc<CompiledScript>, bool), ScriptError> {
        match self.look_up(source, max_bytes)? {
            CacheLookup::Hit(compiled) => Ok((compiled, true)),
            CacheLookup::Miss(script) => Ok((self.compile_new(&script, None)?, false)),
        }
    }

    /// Finds a script in the cache. Fails if the script is too long or too complex to be parsed.
    fn look_up<'s>(
        &self,
        source: &'s str,
        max_bytes: usize,
    ) -> Result<CacheLookup<'s>, ScriptError> {
        let source = strip_markdown_fence(source.strip_prefix('\u{feff}').unwrap_or(source));
        if source.len() > max_bytes {
            let bytes = source.len();
            let message = format!("the script has {bytes} bytes, the limit is {max_bytes}");
            return Err(rejected_error(message)
                .suggest("split it into several scripts")
                .with("bytes", bytes));
        }
        let key: [u8; 32] = Sha256::digest(source.as_ref()).into();
        if let Some(hit) = self.lock_cache().get(&key) {
            return Ok(CacheLookup::Hit(hit));
        }
        let parse_cost = bound_parse_cost(&source).map_err(|it| unparsable_error(&source, it))?;
        let is_quick = parse_cost <= MAX_INLINE_COST && is_short_and_shallow(&source);
        Ok(CacheLookup::Miss(NewScript {
            source,
            key,
            is_quick,
        }))
    }

    fn compile_new(
        &self,
        script: &NewScript<'_>,
        registry: Option<&Registry>,
    ) -> Result<Arc<CompiledScript>, ScriptError> {
        let sha256 = selvedge_text::hex(&script.key);
        let mut compiled = stacker::grow(stack_bytes(&script.source), || {
            compile_source(&script.source, sha256, registry)
        })?;
        compiled.is_quick = script.is_quick;
        let compiled = Arc::new(compiled);
        self.lock_cache().add(script.key, compiled.clone());
        Ok(compiled)
    }

    /// Compiles a script from bytes without blocking the async executor: one that is not certainly
    /// quick is compiled on another thread, in turn. With a registry, the types are checked, too.
    pub(crate) async fn compile_async(
        self: &Arc<Self>,
        source: &[u8],
        max_bytes: usize,
        registry: Option<&Registry>,
    ) -> Result<(Arc<CompiledScript>, bool), ScriptError> {
        let script = match self.look_up(utf8_text(source)?, max_bytes)? {
            CacheLookup::Hit(compiled) => {
                if let Some(registry) = registry
                    .filter(|registry| !compiled.is_quick && !compiled.has_type_check(registry))
                {
                    let (script, registry) = (compiled.clone(), registry.clone());
                    in_turn(move || script.type_mistakes(&registry)).await?;
                }
                return Ok((compiled, true));
            }
            CacheLookup::Miss(script) if script.is_quick => {
                return Ok((self.compile_new(&script, registry)?, false));
            }
            CacheLookup::Miss(script) => NewScript {
                source: Cow::Owned(script.source.into_owned()),
                ..script
            },
        };
        let (compiler, registry) = (self.clone(), registry.cloned());
        let compiled = in_turn(move || compiler.compile_new(&script, registry.as_ref())).await?;
        Ok((compiled?, false))
    }

    /// Compiles a script from bytes. Fails if they are not UTF-8.
    pub fn compile_bytes(
        &self,
        source: &[u8],
        max_bytes: usize,
    ) -> Result<(Arc<CompiledScript>, bool), ScriptError> {
        self.compile(utf8_text(source)?, max_bytes)
    }

    fn lock_cache(&self) -> std::sync::MutexGuard<'_, ScriptCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a script is in the cache.
enum CacheLookup<'s> {
    Hit(Arc<CompiledScript>),
    Miss(NewScript<'s>),
}

/// A script that may be parsed.
struct NewScript<'s> {
    source: Cow<'s, str>,
    /// Its key in the cache.
    key: [u8; 32],
    /// Whether it may be compiled on a thread of the async executor.
    is_quick: bool,
}

/// Runs costly work on a thread that may block, a few at a time.
async fn in_turn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ScriptError> {
    static COSTLY: Semaphore = Semaphore::const_new(MAX_CONCURRENT_COSTLY_SCRIPTS);
    let _turn = COSTLY.acquire().await;
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| rejected_error(format!("cannot compile: {error}")))
}

/// Returns a script as text. Fails if it is not UTF-8.
fn utf8_text(source: &[u8]) -> Result<&str, ScriptError> {
    std::str::from_utf8(source).map_err(|error| {
        let before = &source[..error.valid_up_to()];
        let lines: Vec<_> = before.split(|byte| *byte == b'\n').collect();
        let column = lines.last().map_or(0, |line| line.len()) + 1;
        rejected_error("the script is not UTF-8")
            .at(lines.len() as u32, column as u32)
            .suggest("save the file as UTF-8")
    })
}

/// Removes a Markdown fence around a script, which models sometimes write. The fence becomes an
/// empty line, so that line numbers stay the same.
fn strip_markdown_fence(source: &str) -> Cow<'_, str> {
    let Some(rest) = source.trim_start().strip_prefix("```") else {
        return source.into();
    };
    let Some((info, rest)) = rest.split_once('\n') else {
        return source.into();
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || " -_".contains(c);
    let plain_info = info.trim().chars().all(plain);
    match rest.trim_end().strip_suffix("```") {
        Some(body) if plain_info && (body.is_empty() || body.ends_with('\n')) => {
            let before = source.len() - source.trim_start().len();
            let blank_lines = source[..before].matches('\n').count() + 1;
            format!("{}{body}", "\n".repeat(blank_lines)).into()
        }
        _ => source.into(),
    }
}

/// Returns the native stack that parsing a script may need.
pub(crate) fn stack_bytes(source: &str) -> usize {
    STACK_BYTES_FOR_BRACKETS + source.len() * STACK_BYTES_PER_SOURCE_BYTE
}

/// Parses a script. Its cost must be bounded before.
pub(crate) fn parse<'a>(allocator: &'a Allocator, source: &'a str) -> ParserReturn<'a> {
    let options = ParseOptions {
        parse_regular_expression: true,
        allow_return_outside_function: true,
        ..ParseOptions::default()
    };
    let source_type = SourceType::ts().with_module(true);
    Parser::new(allocator, source, source_type)
        .with_options(options)
        .parse()
}

fn type_check(program: &Program<'_>, scoping: &Scoping, registry: &Registry) -> TypeCheck {
    TypeCheck {
        registry: registry.identity(),
        mistakes: find_mistakes(program, scoping, registry).into(),
    }
}

fn compile_source(
    source: &str,
    sha256: String,
    registry: Option<&Registry>,
) -> Result<CompiledScript, ScriptError> {
    let lines = LineStarts::new(source);
    let pragma = Pragma::parse(source)?;
    let at = |error: ScriptError, offset: u32| {
        let at = lines.position(source, offset);
        error.at(at.line, at.column)
    };
    let invalid =
        |message: String| ScriptError::new(ErrorCode::ScriptSyntaxError, Phase::Parsing, message);
    let syntax_error = |diagnostic: &OxcDiagnostic| {
        let mut error = invalid(without_full_stop(&diagnostic.message));
        if let Some(label) = diagnostic.labels.first() {
            error = at(error, label.offset());
        }
        let help = diagnostic.help.as_ref();
        error
            .suggestions
            .extend(help.map(|help| without_full_stop(help)));
        let offset = diagnostic.labels.first().map(|label| label.offset());
        if offset.is_some_and(|offset| is_after_backtick(source, offset)) {
            error.suggestions = vec![ESCAPE_BACKTICK_HINT.to_owned()];
        }
        error
    };

    let allocator = Allocator::default();
    let parsed = parse(&allocator, source);
    if let Some(diagnostic) = parsed.diagnostics.errors().next() {
        let error = syntax_error(diagnostic);
        let offset = diagnostic.labels.first().map(|label| label.offset());
        if !offset.is_some_and(|offset| is_jsx_before(source, offset)) {
            return Err(error);
        }
        let error = ScriptError {
            message: "JSX cannot be used in a script".to_owned(),
            ..error
        };
        return Err(error.suggest("return data or a string"));
    }
    let mut program = parsed.program;
    program.hashbang = None;

    if let Err(offset) = bound_enum_values(&program) {
        let error = rejected_error("the values of enums are too long");
        return Err(at(error, offset).suggest("build long strings with `const` instead of `enum`"));
    }
    let built = SemanticBuilder::new_compiler()
        .with_enum_eval(true)
        .build(&program);
    if let Some(diagnostic) = built.diagnostics.errors().next() {
        return Err(syntax_error(diagnostic));
    }
    let scoping = built.semantic.into_scoping();
    let mut analyzer = ScriptAnalyzer::new(&scoping);
    analyzer.visit_program(&program);
    let findings = analyzer.findings;
    if let Some(banned) = findings.banned.first() {
        let error = rejected_error(format!("`{}` cannot be used in a script", banned.construct));
        return Err(at(error, banned.span.start).suggest(banned.suggestion));
    }
    if let Some((name, span)) = findings.assigned_constants.first() {
        let error = invalid(format!("`{name}` is a const and cannot be changed"));
        return Err(at(error, span.start).suggest(format!("declare it with `let {name}`")));
    }
    let checked = registry.map(|registry| type_check(&program, &scoping, registry));
    // `declare const github: …` describes a global, it does not declare a variable.
    let is_ambient = |symbol| scoping.symbol_flags(symbol).contains(SymbolFlags::Ambient);
    let (ambient, variables): (Vec<_>, Vec<_>) =
        scoping.symbol_ids().partition(|id| is_ambient(*id));
    let names_of = |symbols: Vec<_>| -> BTreeSet<String> {
        let names = symbols
            .into_iter()
            .map(|symbol| scoping.symbol_name(symbol));
        names.map(str::to_owned).collect()
    };
    let variables = names_of(variables);
    let race_is_global = !variables.contains("Promise") && !variables.contains("tools");
    let names = scoping.symbol_names().map(str::to_owned).collect();
    let unresolved = scoping.root_unresolved_references().keys();
    let mut unresolved: BTreeSet<String> = unresolved.map(|name| name.to_string()).collect();
    unresolved.extend(names_of(ambient).difference(&variables).cloned());
    let may_hold_tools = |name: &&String| *name == "tools" || !is_reserved_name(name);
    let roots = unresolved.difference(&variables).filter(may_hold_tools);
    let roots = roots.cloned().collect();

    let (path, options) = (Path::new("script.ts"), TransformOptions::default());
    let transformer = Transformer::new(&allocator, path, &options);
    let transformed = transformer.build_with_scoping(scoping, &mut program);
    if let Some(diagnostic) = transformed.diagnostics.errors().next() {
        return Err(syntax_error(diagnostic));
    }
    if race_is_global {
        let builder = AstBuilder::new(&allocator);
        RaceRewriter { builder, roots }.visit_program(&mut program);
    }
    let (javascript, map) = generate_javascript(source, &program);
    Ok(CompiledScript {
        source: source.into(),
        sha256,
        pragma,
        javascript,
        calls: findings.calls,
        global_calls: findings.global_calls,
        probed_tools: findings.probed_tools,
        warnings: findings.warnings,
        mentions: findings.mentions,
        bare_calls: findings.bare_calls,
        declared_names: names,
        undeclared_names: unresolved,
        lines,
        position_map: map,
        type_check: Mutex::new(checked),
        is_quick: false,
    })
}

/// Whether the text that ends with a syntax error looks like JSX: a tag is opened shortly before
/// the error, and closed somewhere after it.
fn is_jsx_before(source: &str, error_offset: u32) -> bool {
    let end = source.floor_char_boundary(error_offset as usize + 1);
    let Some(tag) = source[..end].rfind('<') else {
        return false;
    };
    let starts_tag = |c: char| c.is_ascii_alphabetic() || "/>".contains(c);
    let is_tag = source[tag + 1..].starts_with(starts_tag) && !source[tag..end].contains(';');
    is_tag && (source[tag..].contains("</") || source[tag..].contains("/>"))
}

/// Whether a syntax error is directly after a backtick: a template literal may have ended too
/// early.
fn is_after_backtick(source: &str, error_offset: u32) -> bool {
    let at = error_offset as usize;
    let before = source.get(..at).is_some_and(|text| text.ends_with('`'));
    let after = source.get(at..).and_then(|text| text.chars().next());
    before && after.is_some_and(|next| !next.is_whitespace())
}

/// Returns the SHA-256 of a text, in hexadecimal.
pub(crate) fn sha256_hex(text: &str) -> String {
    selvedge_text::hex(&Sha256::digest(text))
}

/// Generates JavaScript: the program as the body of an async function, which the sandbox runs.
fn generate_javascript(source: &str, program: &Program<'_>) -> (String, PositionMap) {
    let options = CodegenOptions {
        source_map_path: Some("script.ts".into()),
        comments: CommentOptions::disabled(),
        // Otherwise the indentation of deeply nested code grows with the square of its depth.
        indent_width: 0,
        ..CodegenOptions::default()
    };
    let generated = Codegen::new()
        .with_options(options)
        .with_source_text(source)
        .build(program);
    let map = generated.map.as_ref();
    let map = map.map(|map| PositionMap::new(map.get_tokens(), WRAPPER_LINES));
    let map = map.unwrap_or_default();
    (format!("(async () => {{\n{}\n}})", generated.code), map)
}

/// Replaces `Promise.race([tools.a(), …])` by a race that cancels the losing calls: the script has
/// no other reference to them.
struct RaceRewriter<'a> {
    builder: AstBuilder<'a>,
    /// Names that the script does not declare and that may hold tools: `tools` and MCP servers.
    roots: BTreeSet<String>,
}

impl<'a> VisitMut<'a> for RaceRewriter<'a> {
    fn visit_call_expression(&mut self, call: &mut CallExpression<'a>) {
        walk_mut::walk_call_expression(self, call);
        if !is_promise_race(&call.callee) || call.arguments.len() != 1 {
            return;
        }
        let Some(Expression::ArrayExpression(array)) = call.arguments[0].as_expression() else {
            return;
        };
        let mask = inline_tool_calls(&array.elements, &self.roots);
        if mask != 0 {
            let (mask, base) = (f64::from(mask), NumberBase::Decimal);
            let mask = Expression::new_numeric_literal(SPAN, mask, None, base, &self.builder);
            call.arguments.push(Argument::from(mask));
            call.callee = Expression::new_identifier(SPAN, "__race", &self.builder);
        }
    }
}

fn is_promise_race(callee: &Expression<'_>) -> bool {
    matches!(callee, Expression::StaticMemberExpression(member)
        if member.property.name == "race" && member.object.is_specific_id("Promise"))
}

fn unparsable_error(source: &str, refused: UnparsableText) -> ScriptError {
    let at = LineStarts::new(source).position(source, refused.offset);
    refused.problem.to_error().at(at.line, at.column)
}

fn rejected_error(message: impl Into<String>) -> ScriptError {
    ScriptError::new(ErrorCode::ScriptRejectedError, Phase::Parsing, message)
}

/// Removes the full stop from a compiler's message, as our messages have none.
fn without_full_stop(message: &str) -> String {
    message.trim().trim_end_matches('.').to_owned()
}
