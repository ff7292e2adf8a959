//! Tools of MCP servers as tools of the registry.

use std::sync::Arc;

use futures_util::FutureExt;
use selvedge_protocol::{
    ApprovalRequirement, CallReach, CallTimeout, McpApproval, Preview, ResultView, ResumeAs,
    ToolSpec,
};
use selvedge_tools::{CallContext, CallFuture, FieldCase, Risk, Tool, ToolError};
use serde_json::{Map, Value, json};

use crate::catalogue::CatalogueTool;
use crate::configured_server::{ConfiguredServer, MAX_CALL_DURATION};
use crate::error::ServerError;
use crate::settings::{ServerOrigin, ServerSettings};
use crate::tool_result::{is_error_result, parse_tool_result, raw_result_schema};

/// A tool of an MCP server.
#[derive(Clone)]
pub(crate) struct McpTool {
    server: Arc<ConfiguredServer>,
    /// Name of the tool on the server.
    server_tool_name: String,
    spec: ToolSpec,
    /// Risk of every call.
    risk: Risk,
    /// Whether a resumed run calls the tool again.
    read_only: bool,
    result_part: McpResultPart,
}

/// Which part of the result a script receives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum McpResultPart {
    Value,
    Raw,
}

impl McpTool {
    /// Creates the tool. `js_name` is its name in scripts.
    pub(crate) fn new(
        server: Arc<ConfiguredServer>,
        listed: &CatalogueTool,
        js_name: String,
    ) -> Self {
        let risk = call_risk(&server.settings, &listed.name, Some(listed));
        let mode = server.settings.approval_mode();
        let name = canonical_name(&server.settings.name, &listed.name);
        let description = match listed.description.trim() {
            "" => format!("`{}` of the server {}.", listed.name, server.settings.name),
            text => text.to_owned(),
        };
        let spec = ToolSpec {
            name,
            js_name,
            description,
            input_schema: listed.input_schema.clone(),
            output_schema: listed.output_schema.clone(),
            // The server's declaration counts only if the user trusts the server.
            read_only: listed.read_only && mode == McpApproval::Approve,
            approval: match &risk {
                Risk::Harmless => ApprovalRequirement::Never,
                Risk::NeedsApproval { .. } => ApprovalRequirement::Always,
                Risk::Moderate { .. } | Risk::UnknownEffect { .. } => {
                    ApprovalRequirement::ByArguments
                }
            },
            aliases: Vec::new(),
            positional: &[],
            explanatory: &[],
            reach: CallReach::Service,
            // The server itself may be silent for this long; progress extends the call.
            timeout: CallTimeout::new(server.settings.tool_timeout())
                .enforced_by_tool(MAX_CALL_DURATION),
            structured_defaults: &[],
            result_view: ResultView::Plain,
        };
        Self {
            read_only: is_read_only_tool(&server.settings, listed),
            server,
            server_tool_name: listed.name.clone(),
            spec,
            risk,
            result_part: McpResultPart::Value,
        }
    }
}

impl Tool for McpTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn field_case(&self) -> FieldCase {
        FieldCase::Verbatim
    }

    /// There may be hundreds: structured calls go through `mcp_call_tool`.
    fn is_script_only(&self) -> bool {
        true
    }

    fn risk(&self, _: &Value) -> Risk {
        self.risk.clone()
    }

    fn is_read_only(&self, _: &Value) -> bool {
        self.read_only
    }

    fn resume_as(&self, value: &Value) -> ResumeAs {
        match self.result_part {
            McpResultPart::Raw if is_error_result(value) => ResumeAs::Rerun,
            McpResultPart::Raw | McpResultPart::Value => ResumeAs::Reuse,
        }
    }

    fn preview(&self, args: &Value) -> Preview {
        call_preview(&self.spec.name, args)
    }

    fn raw(&self) -> Option<Box<dyn Tool>> {
        if self.result_part == McpResultPart::Raw {
            return None;
        }
        let mut raw = self.clone();
        raw.result_part = McpResultPart::Raw;
        raw.spec.output_schema = Some(raw_result_schema(self.spec.output_schema.as_ref()));
        raw.spec.name.push_str(".raw");
        raw.spec.js_name.push_str(".raw");
        Some(Box::new(raw))
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        async move {
            let args = match args {
                Value::Object(args) => args,
                _ => Map::new(),
            };
            let result = self
                .server
                .call_tool(&self.server_tool_name, args, &call)
                .await;
            let result = result.map_err(to_tool_error)?;
            match self.result_part {
                McpResultPart::Value => parse_tool_result(result),
                // An error result is returned, not thrown: the script checks `isError`.
                McpResultPart::Raw => Ok(result.into()),
            }
        }
        .boxed()
    }
}

/// Returns the risk of a call of a server's tool. `listed` is `None` if the catalogue does not have
/// the tool.
///
/// A tool without annotations counts as one that changes something and reaches other systems.
pub(crate) fn call_risk(
    settings: &ServerSettings,
    tool: &str,
    listed: Option<&CatalogueTool>,
) -> Risk {
    let tool = format!("`{tool}` of the server {}", settings.name);
    let reason = format!("calls {tool}");
    let is_destructive = listed.is_some_and(|listed| match settings.origin {
        // The specification defines the hint only for tools that are not read-only.
        ServerOrigin::User => listed.destructive == Some(true) && !listed.read_only,
        ServerOrigin::Project => listed.destructive == Some(true),
    });
    match (settings.approval_mode(), settings.origin) {
        (McpApproval::Approve, _) => Risk::Harmless,
        (McpApproval::Prompt, _) => Risk::NeedsApproval { reason },
        (McpApproval::Auto, _) if is_destructive => Risk::NeedsApproval {
            reason: format!("{tool} is marked as destructive"),
        },
        (McpApproval::Auto, _) if listed.is_none() => Risk::NeedsApproval { reason },
        (McpApproval::Auto, ServerOrigin::User) => Risk::Moderate { reason },
        (McpApproval::Auto, ServerOrigin::Project) => Risk::UnknownEffect {
            reason: format!("{reason}, which files of this project configure"),
        },
    }
}

/// Whether a resumed run calls a tool again because it only reads. The declaration of a project's
/// server is ignored: its completed calls are reused.
pub(crate) fn is_read_only_tool(settings: &ServerSettings, listed: &CatalogueTool) -> bool {
    settings.origin == ServerOrigin::User && listed.read_only
}

/// Returns the preview of a call in approval questions.
pub(crate) fn call_preview(name: &str, args: &Value) -> Preview {
    Preview {
        view: Some(selvedge_protocol::PreviewContent::Text(format!(
            "{name} {args}"
        ))),
        rule: None,
    }
}

/// Returns the canonical name of a server's tool.
pub(crate) fn canonical_name(server: &str, tool: &str) -> String {
    format!("mcp.{server}.{tool}")
}

/// Converts an error of a server to the error that a script receives.
pub(crate) fn to_tool_error(error: ServerError) -> ToolError {
    let mut tool_error = ToolError::new(error.to_string());
    tool_error.retryable = error.is_retryable();
    tool_error.outcome_unknown = error.is_outcome_unknown();
    if let ServerError::TimedOut { .. } = &error {
        tool_error = tool_error.timed_out();
    }
    if let Some(hint) = error.hint() {
        tool_error = tool_error.suggest(hint);
    }
    if let ServerError::ErrorResponse { code, .. } = error {
        tool_error.metadata = Map::from_iter([("code".to_owned(), json!(code))]);
    }
    tool_error
}

/// Placeholder for all tools of a server whose tools are unknown. Each call fails with the reason.
pub(crate) struct UnavailableServerTool(pub(crate) Arc<ConfiguredServer>);

impl Tool for UnavailableServerTool {
    fn spec(&self) -> ToolSpec {
        let server = &self.0.settings.name;
        ToolSpec {
            name: format!("mcp.{server}"),
            js_name: format!("mcp.{}", crate::catalogue::to_identifier(server)),
            description: format!("The MCP server {server}, which is not available."),
            input_schema: json!({"type": "object"}),
            output_schema: None,
            read_only: true,
            approval: ApprovalRequirement::Never,
            aliases: Vec::new(),
            // A call by position fails with the reason too.
            positional: &["value"],
            explanatory: &[],
            reach: CallReach::Service,
            timeout: CallTimeout::new(self.0.settings.startup_timeout())
                .enforced_by_tool(MAX_CALL_DURATION),
            structured_defaults: &[],
            result_view: ResultView::Plain,
        }
    }

    fn unavailable_reason(&self) -> Option<String> {
        let failure = self.0.start_failure();
        let failure = failure.or_else(|| self.0.unavailable_reason());
        let unavailable = || format!("the MCP server `{}` is not available", self.0.settings.name);
        Some(failure.map_or_else(unavailable, |failure| failure.to_string()))
    }

    fn call(&self, _: Value, call: CallContext) -> CallFuture<'_> {
        async move {
            let started = tokio::select! {
                started = self.0.connect() => started.map_err(to_tool_error)?,
                () = call.cancel.cancelled() => {
                    return Err(ToolError::new("the call was cancelled"));
                }
            };
            drop(started);
            let server = &self.0.settings.name;
            let reason = format!(
                "the MCP server `{server}` has just started: run the script again to use its tools"
            );
            Err(ToolError::new(reason).retryable())
        }
        .boxed()
    }
}
