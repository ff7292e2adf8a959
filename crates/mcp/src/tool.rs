//! Tools of MCP servers as tools of the registry.

use std::sync::Arc;

use futures_util::FutureExt;
use selvedge_protocol::{Approval, McpApproval, Preview, ToolSpec};
use selvedge_tools::{Call, CallFuture, FieldCase, Risk, Tool, ToolError};
use serde_json::{Map, Value, json};

use crate::answer::{raw_schema, value_of};
use crate::catalogue::Listed;
use crate::error::ServerError;
use crate::server::Server;

/// A tool of an MCP server.
#[derive(Clone)]
pub(crate) struct McpTool {
    server: Arc<Server>,
    /// Name of the tool on the server.
    name: String,
    spec: ToolSpec,
    /// Whether the server declares the tool destructive, and not read-only.
    destructive: bool,
    /// Whether the server declares the tool read-only. A resumed run calls such a tool again.
    /// Approval is decided by `spec.read_only`, which also needs the user's trust in the server.
    says_read_only: bool,
    form: Form,
}

/// Which part of the result a script receives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Value,
    Raw,
}

impl McpTool {
    /// Creates the tool. `js_name` is its name in scripts.
    pub(crate) fn new(server: Arc<Server>, listed: &Listed, js_name: String) -> Self {
        let mode = server.settings.options.default_tools_approval_mode;
        let name = name_of(&server.settings.name, &listed.name);
        let description = match listed.description.trim() {
            "" => format!("`{}` of the server {}.", listed.name, server.settings.name),
            text => text.to_owned(),
        };
        let destructive = listed.destructive == Some(true) && !listed.read_only;
        let spec = ToolSpec {
            name,
            js_name,
            description,
            input_schema: listed.input_schema.clone(),
            output_schema: listed.output_schema.clone(),
            // The server's declaration counts only if the user trusts the server.
            read_only: listed.read_only && mode == McpApproval::Approve,
            approval: match mode {
                McpApproval::Prompt => Approval::Always,
                McpApproval::Approve => Approval::Never,
                McpApproval::Auto if destructive => Approval::Always,
                McpApproval::Auto => Approval::ByArguments,
            },
            aliases: Vec::new(),
            positional: &[],
        };
        Self {
            server,
            name: listed.name.clone(),
            spec,
            destructive,
            says_read_only: listed.read_only,
            form: Form::Value,
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

    fn risk(&self, _: &Value) -> Risk {
        let tool = format!(
            "`{}` of the server {}",
            self.name, self.server.settings.name
        );
        let reason = format!("calls {tool}");
        match self.server.settings.options.default_tools_approval_mode {
            McpApproval::Approve => Risk::Harmless,
            McpApproval::Prompt => Risk::Ask { reason },
            McpApproval::Auto if self.destructive => Risk::Ask {
                reason: format!("{tool} is marked as destructive"),
            },
            McpApproval::Auto => Risk::Guarded { reason },
        }
    }

    fn reads_only(&self, _: &Value) -> bool {
        self.says_read_only
    }

    fn preview(&self, args: &Value) -> Preview {
        shown(&self.spec.name, args)
    }

    fn raw(&self) -> Option<Box<dyn Tool>> {
        if self.form == Form::Raw {
            return None;
        }
        let mut raw = self.clone();
        raw.form = Form::Raw;
        raw.spec.output_schema = Some(raw_schema(self.spec.output_schema.as_ref()));
        raw.spec.name.push_str(".raw");
        raw.spec.js_name.push_str(".raw");
        Some(Box::new(raw))
    }

    fn call(&self, args: Value, call: Call) -> CallFuture<'_> {
        async move {
            let args = match args {
                Value::Object(args) => args,
                _ => Map::new(),
            };
            let result = self.server.call(&self.name, args, &call).await;
            let result = result.map_err(tool_error)?;
            match self.form {
                Form::Value => value_of(result),
                // An error result is returned, not thrown: the script checks `isError`.
                Form::Raw => Ok(result.into()),
            }
        }
        .boxed()
    }
}

/// Returns the preview of a call in approval questions.
pub(crate) fn shown(name: &str, args: &Value) -> Preview {
    let text: String = args.to_string().chars().take(2000).collect();
    Preview {
        view: Some(selvedge_protocol::View::Commands(format!("{name} {text}"))),
        rule: None,
    }
}

/// Returns the canonical name of a server's tool.
pub(crate) fn name_of(server: &str, tool: &str) -> String {
    format!("mcp.{server}.{tool}")
}

/// Converts an error of a server to the error that a script receives.
pub(crate) fn tool_error(error: ServerError) -> ToolError {
    let mut tool_error = ToolError::new(error.to_string());
    tool_error.retryable = error.is_retryable();
    tool_error.outcome_unknown = error.leaves_in_doubt();
    if let ServerError::Refused { code, .. } = error {
        tool_error.metadata = Map::from_iter([("code".to_owned(), json!(code))]);
    }
    tool_error
}

/// Placeholder for all tools of a server whose tools are unknown. Each call fails with the reason.
pub(crate) struct Missing(pub(crate) Arc<Server>);

impl Tool for Missing {
    fn spec(&self) -> ToolSpec {
        let server = &self.0.settings.name;
        ToolSpec {
            name: format!("mcp.{server}"),
            js_name: format!("mcp.{}", crate::catalogue::identifier(server)),
            description: format!("The MCP server {server}, which did not start."),
            input_schema: json!({"type": "object"}),
            output_schema: None,
            read_only: true,
            approval: Approval::Never,
            aliases: Vec::new(),
            positional: &[],
        }
    }

    fn call(&self, _: Value, call: Call) -> CallFuture<'_> {
        async move {
            let started = tokio::select! {
                started = self.0.link() => started.map_err(tool_error)?,
                () = call.cancel.cancelled() => {
                    return Err(ToolError::new("the call was cancelled"));
                }
            };
            drop(started);
            let server = &self.0.settings.name;
            let why = format!(
                "the MCP server `{server}` has just started: run the script again to use its tools"
            );
            Err(ToolError::new(why).retryable())
        }
        .map(|result| {
            result.map_err(|error: ToolError| error.suggest("run `selvedge mcp list` for details"))
        })
        .boxed()
    }
}
