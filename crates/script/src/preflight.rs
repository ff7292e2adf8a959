//! Checks a script before it runs: every tool call that is visible in its text, against the
//! registered tools.

use std::borrow::Cow;

use selvedge_protocol::{ErrorCode, Phase, ScriptError};
use selvedge_tools::{
    ArgumentError, ArgumentErrorKind, Orchestrator, RegisteredTool, ToolLookup, camel_case,
    check_partial, object_from_literal, snake_case,
};
use serde::Serialize;
use serde_json::Value;

use crate::analysis::{StaticArgs, StaticCall, StaticObject};
use crate::compile::CompiledScript;
use crate::globals::{callable_name, is_reserved_name, path_below_tools};
use crate::hints;
use crate::typecheck::{MistakeKind, TypeMistake};

/// After this many errors, no further call is checked.
const MAX_REPORTED_ERRORS: usize = 50;

/// The result of checking a script without running it.
#[derive(Debug, Clone, Serialize)]
pub struct Preflight {
    /// Whether the script has no errors and would be run.
    pub valid: bool,
    /// Calls that are visible in the text, in the order of the text.
    pub calls: Vec<PlannedCall>,
    /// Errors because of which the script would be rejected.
    pub errors: Vec<ScriptError>,
}

/// A call that is visible in the text. The run decides whether and how often it is made.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedCall {
    /// Canonical name of the tool.
    pub tool: String,
    /// Line of the call, counted from one.
    pub line: u32,
    /// The arguments whose values are literals.
    pub args: Value,
    /// Names of the arguments whose values are only known at run time.
    pub dynamic: Vec<String>,
    /// Whether the tool only reads.
    pub read_only: bool,
    /// Why the call cannot be checked: its tool is not available now. Absent if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// Checks a compiled script.
pub(crate) fn check(compiled: &CompiledScript, orchestrator: &Orchestrator) -> Preflight {
    // `github.createIssue(…)` is a tool call if there is such a server and no global of that name.
    let by_global = compiled.global_calls.iter().filter_map(|seen| {
        let path = path_below_tools(&seen.path, orchestrator.registry())?;
        Some((Cow::Owned(path), seen))
    });
    let by_path = compiled.calls.iter();
    let by_path = by_path.map(|seen| (Cow::Borrowed(seen.path.as_str()), seen));
    let mut seen_calls: Vec<_> = by_path.chain(by_global).collect();
    seen_calls.sort_by_key(|(_, seen)| seen.offset);
    let mut calls = Vec::new();
    let mut errors: Vec<(u32, ScriptError)> = Vec::new();
    for (path, seen) in seen_calls {
        if errors.len() >= MAX_REPORTED_ERRORS {
            break;
        }
        let checked = check_call(&path, seen, compiled, orchestrator);
        calls.extend(checked.planned);
        errors.extend(checked.errors.into_iter().map(|error| (seen.offset, error)));
    }
    let mistakes = compiled.type_mistakes(orchestrator.registry());
    let found = mistakes.iter().map(|mistake| {
        let error = type_error(mistake, compiled, orchestrator);
        (mistake.offset, error)
    });
    errors.extend(found);
    // All errors of one call stay together, in their order.
    errors.sort_by_key(|(offset, _)| *offset);
    let bare = compiled.bare_calls.iter();
    let bare =
        bare.filter_map(|(name, at)| missing_prefix_error(name, *at, compiled, orchestrator));
    let errors: Vec<ScriptError> = errors
        .into_iter()
        .map(|(_, error)| error)
        .chain(bare)
        .collect();
    Preflight {
        valid: errors.is_empty(),
        calls,
        errors,
    }
}

/// The result of checking one call.
#[derive(Default)]
struct CheckedCall {
    /// `None` if it is no call of a tool, or cannot be made.
    planned: Option<PlannedCall>,
    errors: Vec<ScriptError>,
}

impl CheckedCall {
    fn failed(error: ScriptError) -> Self {
        Self {
            planned: None,
            errors: vec![error],
        }
    }
}

fn check_call(
    path: &str,
    seen: &StaticCall,
    compiled: &CompiledScript,
    orchestrator: &Orchestrator,
) -> CheckedCall {
    let at = compiled.position_of_offset(seen.offset);
    let tool = match orchestrator.registry().look_up(path) {
        ToolLookup::Tool(tool) => tool,
        ToolLookup::Namespace => return CheckedCall::default(),
        ToolLookup::NotFound(_) if compiled.is_probed(path) => {
            return CheckedCall::default();
        }
        // `.then`, `.raw` and the like on a tool or a namespace are checked at run time.
        ToolLookup::NotFound(_) if is_below_tool(path, orchestrator) => {
            return CheckedCall::default();
        }
        ToolLookup::NotFound(_) => {
            let failure = orchestrator.tool_not_found(path);
            let mut error = ScriptError::new(failure.code, Phase::Parsing, failure.message)
                .at(at.line, at.column);
            error.tool_name = Some(path.to_owned());
            error.suggestions = failure.suggestions;
            return CheckedCall::failed(error);
        }
    };
    if let Some(reason) = tool.tool.unavailable_reason() {
        return CheckedCall {
            planned: Some(PlannedCall {
                tool: seen.path.clone(),
                read_only: false,
                unavailable: Some(reason),
                ..planned_call(&tool.spec, at.line, &StaticObject::default())
            }),
            errors: Vec::new(),
        };
    }
    let object = match known_fields(tool, &seen.args) {
        Ok(object) => object,
        Err(problem) => {
            return CheckedCall::failed(argument_error(tool, problem).at(at.line, at.column));
        }
    };
    let Some(object) = object else {
        return CheckedCall {
            planned: Some(planned_call(&tool.spec, at.line, &StaticObject::default())),
            errors: Vec::new(),
        };
    };
    let problems = check_partial(
        tool,
        object.literals.clone(),
        &object.dynamic,
        object.has_unknown_fields,
    );
    let errors = problems.into_iter().map(|problem| {
        let offset = problem.field.as_ref().and_then(|field| {
            let same = |name: &str| name == field || camel_case(&snake_case(name)) == *field;
            let mut offsets = object.offsets.iter();
            Some(offsets.find(|(name, _)| same(name))?.1)
        });
        let position = match problem.kind {
            ArgumentErrorKind::Missing => at,
            _ => offset.map_or(at, |offset| compiled.position_of_offset(offset)),
        };
        argument_error(tool, problem).at(position.line, position.column)
    });
    CheckedCall {
        errors: errors.collect(),
        planned: Some(planned_call(&tool.spec, at.line, &object)),
    }
}

/// Returns the error for a mistake that the type check found.
fn type_error(
    mistake: &TypeMistake,
    compiled: &CompiledScript,
    orchestrator: &Orchestrator,
) -> ScriptError {
    let (code, phase) = match mistake.kind {
        MistakeKind::Argument => (ErrorCode::ToolValidationError, Phase::Parsing),
        MistakeKind::Property
        | MistakeKind::Await
        | MistakeKind::Dropped
        | MistakeKind::Readonly => (ErrorCode::ScriptTypeError, Phase::Preflight),
    };
    let at = compiled.position_of_offset(mistake.offset);
    let mut error = ScriptError::new(code, phase, mistake.message.clone()).at(at.line, at.column);
    let tool = mistake.tool.as_ref();
    let tool = tool.and_then(|name| orchestrator.registry().get(name));
    error.tool_name = tool.map(|tool| tool.spec.name.clone());
    error.suggestions = mistake.suggestions.clone();
    error.with("mistake", mistake.kind.as_str())
}

/// Returns the error for a tool that is called without `tools.` before its name.
fn missing_prefix_error(
    name: &str,
    offset: u32,
    compiled: &CompiledScript,
    orchestrator: &Orchestrator,
) -> Option<ScriptError> {
    // A name such as `fetch` is left undefined: a script may test for it.
    let tool = orchestrator
        .registry()
        .get(name)
        .filter(|_| !is_reserved_name(name) && !hints::is_unavailable_global(name))?;
    let at = compiled.position_of_offset(offset);
    let correct = callable_name(&tool.spec.js_name);
    let message = format!("`{name}` is not defined: did you mean `{correct}`?");
    let error = ScriptError::new(ErrorCode::ToolNotFoundError, Phase::Parsing, message);
    Some(error.at(at.line, at.column).suggest(correct))
}

/// Returns the fields of a call's arguments; `None` if even their names are only known at run time.
fn known_fields<'a>(
    tool: &RegisteredTool,
    args: &'a StaticArgs,
) -> Result<Option<Cow<'a, StaticObject>>, ArgumentError> {
    let fields = match args {
        StaticArgs::Object(object) => return Ok(Some(Cow::Borrowed(object))),
        StaticArgs::Other => return Ok(None),
        StaticArgs::Literal(value) => StaticObject {
            literals: object_from_literal(tool, value.clone())?,
            ..StaticObject::default()
        },
        StaticArgs::WithOptions(first, options) => {
            let positional = tool.spec.positional_fields();
            let mut fields = options.clone();
            match (&positional[..], first) {
                ([field], Some(value)) if !fields.literals.contains_key(*field) => {
                    fields.literals.insert((*field).to_owned(), value.clone());
                }
                ([field], None) => fields.dynamic.push((*field).to_owned()),
                _ => return Ok(None),
            }
            fields
        }
    };
    Ok(Some(Cow::Owned(fields)))
}

/// Returns the error of a script for one in the arguments of a call.
fn argument_error(tool: &RegisteredTool, problem: ArgumentError) -> ScriptError {
    let message = format!("{}: {}", tool.spec.js_name, problem.message);
    let mut error = ScriptError::new(ErrorCode::ToolValidationError, Phase::Parsing, message);
    error.tool_name = Some(tool.spec.name.clone());
    error.suggestions = problem.suggestions;
    error
}

fn planned_call(
    spec: &selvedge_protocol::ToolSpec,
    line: u32,
    object: &StaticObject,
) -> PlannedCall {
    PlannedCall {
        tool: spec.name.clone(),
        line,
        args: Value::Object(object.literals.clone()),
        dynamic: object.dynamic.clone(),
        read_only: spec.read_only,
        unavailable: None,
    }
}

/// Whether a prefix of the path is a tool.
fn is_below_tool(path: &str, orchestrator: &Orchestrator) -> bool {
    path.match_indices('.')
        .any(|(at, _)| orchestrator.registry().get(&path[..at]).is_some())
}
