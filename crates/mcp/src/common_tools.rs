//! Tools that work with every MCP server: list and read resources, list and get prompts, call a
//! tool by name.

use rmcp::model::{GetPromptRequestParams, PaginatedRequestParams, ReadResourceRequestParams};
use schemars::JsonSchema;
use selvedge_protocol::{CallReach, CallTimeout, Preview, ToolSpec};
use selvedge_tools::{
    CallContext, CallFuture, Registry, Risk, Tool, ToolError, spec_of, tool, typed_call,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::configured_server::MAX_CALL_DURATION;
use crate::error::ServerError;
use crate::servers::Servers;
use crate::settings::ServerOrigin;
use crate::tool::{call_preview, call_risk, canonical_name, is_read_only_tool, to_tool_error};
use crate::tool_result::parse_tool_result;

/// Number of items after which no further page of a list is requested.
const MAX_LISTED_ITEMS: usize = 2000;

/// Pages of a list that are requested in one call.
const MAX_LIST_PAGES: usize = 200;

/// Arguments of the tools that list resources, resource templates and prompts.
#[derive(Debug, Deserialize, JsonSchema)]
struct McpListArgs {
    /// Name of the server; all servers by default.
    server: Option<String>,
    /// `nextCursor` of the previous page. Needs `server`.
    cursor: Option<String>,
}

/// A list of resources, resource templates or prompts.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct McpListOutput {
    /// The items, each with the name of its `server`.
    items: Vec<Value>,
    /// Cursor of the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// Servers that failed, each with its error.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<String>,
    /// The list as JSON text.
    content: String,
    /// Always true: a failure is thrown.
    success: bool,
}

/// Arguments of `read_mcp_resource`.
#[derive(Debug, Deserialize, JsonSchema)]
struct McpReadResourceArgs {
    /// Name of the server.
    server: String,
    /// URI of the resource.
    uri: String,
}

/// Contents of a resource.
#[derive(Debug, Serialize, JsonSchema)]
struct McpReadResourceOutput {
    /// The text; JSON if the resource is binary or has several parts.
    content: String,
    /// All parts as the server sent them.
    contents: Vec<Value>,
    /// Always true: a failure is thrown.
    success: bool,
}

/// Arguments of `get_mcp_prompt`.
#[derive(Debug, Deserialize, JsonSchema)]
struct McpGetPromptArgs {
    /// Name of the server.
    server: String,
    /// Name of the prompt.
    name: String,
    /// Values of the prompt's arguments.
    #[serde(default)]
    arguments: Map<String, Value>,
}

/// Arguments of `mcp_call_tool`.
#[derive(Debug, Deserialize, JsonSchema)]
struct McpCallToolArgs {
    /// Name of the server.
    server: String,
    /// Name of the tool on the server.
    tool: String,
    /// Arguments of the tool.
    #[serde(default)]
    arguments: Map<String, Value>,
}

/// Kind of list that a server offers besides its tools.
#[derive(Clone, Copy)]
enum McpListKind {
    Resources,
    Templates,
    Prompts,
}

/// Time limit of a request to a server. The settings of each server decide when it ends.
const REQUEST_TIMEOUT: CallTimeout =
    CallTimeout::new(CallReach::Service.default_timeout()).enforced_by_tool(MAX_CALL_DURATION);

/// Registers the tools. A tool that is already registered under one of the names is kept.
pub(crate) fn register_common_tools(registry: &mut Registry, servers: &Servers) {
    if servers.is_empty() {
        return;
    }
    let list = |name: &str, description: &str, what: McpListKind| {
        let (servers, servers_for_risk) = (servers.clone(), servers.clone());
        tool(name, description, move |args: McpListArgs| {
            let servers = servers.clone();
            async move { list_items(&servers, args, what).await }
        })
        .read_only()
        .timeout(REQUEST_TIMEOUT)
        .risk(request_risk(&servers_for_risk))
        .render(|listing: &McpListOutput| listing.content.clone())
    };
    let _ = registry.register(list(
        "list_mcp_resources",
        "Lists the resources of one MCP server, or of all.",
        McpListKind::Resources,
    ));
    let _ = registry.register(list(
        "list_mcp_resource_templates",
        "Lists the resource templates (URIs with variables) of one MCP server, or of all.",
        McpListKind::Templates,
    ));
    let _ = registry.register(list(
        "list_mcp_prompts",
        "Lists the prompts of one MCP server, or of all.",
        McpListKind::Prompts,
    ));
    for name in ["read_mcp_resource", "mcp_read_resource"] {
        let (servers, servers_for_risk) = (servers.clone(), servers.clone());
        let read = tool(
            name,
            "Reads a resource of an MCP server.",
            move |args: McpReadResourceArgs| {
                let servers = servers.clone();
                async move { read_resource(&servers, args).await.map_err(to_tool_error) }
            },
        );
        let _ = registry.register(
            read.read_only()
                .timeout(REQUEST_TIMEOUT)
                .risk(request_risk(&servers_for_risk))
                .render(|resource: &McpReadResourceOutput| resource.content.clone()),
        );
    }
    let prompts = servers.clone();
    let prompt = tool(
        "get_mcp_prompt",
        "Gets a prompt of an MCP server, filled in with arguments.",
        move |args: McpGetPromptArgs| {
            let servers = prompts.clone();
            async move { get_prompt(&servers, args).await.map_err(to_tool_error) }
        },
    );
    let prompt = prompt.read_only().timeout(REQUEST_TIMEOUT);
    let _ = registry.register(prompt.risk(request_risk(servers)));
    let _ = registry.register(McpCallTool(servers.clone()));
}

/// Returns the risk of a request that is not a tool call. If it names a server that project files
/// configure, it needs approval, because its arguments are sent to that server. A request to all
/// servers has no such arguments.
fn request_risk(servers: &Servers) -> impl Fn(&Value) -> Risk + Send + Sync + 'static {
    let servers = servers.clone();
    move |args| {
        let server = args["server"]
            .as_str()
            .and_then(|name| servers.find(name).ok());
        match server.map(|server| (&server.settings.name, server.settings.origin)) {
            Some((name, ServerOrigin::Project)) => Risk::UnknownEffect {
                reason: format!(
                    "sends {args} to the server {name}, which files of this project configure"
                ),
            },
            _ => Risk::Harmless,
        }
    }
}

/// The tool `mcp_call_tool`.
struct McpCallTool(Servers);

impl Tool for McpCallTool {
    fn spec(&self) -> ToolSpec {
        let description = "Calls a tool of an MCP server by name. \
            In scripts, use tools.mcp.<server>.<tool>(args) instead.";
        spec_of::<McpCallToolArgs, Value>("mcp_call_tool", description)
            .approval_by_arguments()
            .with_timeout(REQUEST_TIMEOUT)
    }

    /// Returns the risk of the tool that is called.
    fn risk(&self, args: &Value) -> Risk {
        let (server, name) = (
            args["server"].as_str().unwrap_or_default(),
            args["tool"].as_str().unwrap_or_default(),
        );
        let Ok(server) = self.0.find(server) else {
            return Risk::Harmless;
        };
        let catalogue = server.catalogue();
        let listed = catalogue
            .as_ref()
            .and_then(|catalogue| catalogue.tools.iter().find(|tool| tool.name == name));
        call_risk(&server.settings, name, listed)
    }

    fn is_read_only(&self, args: &Value) -> bool {
        let server = args["server"]
            .as_str()
            .and_then(|name| self.0.find(name).ok());
        let Some((server, catalogue)) =
            server.and_then(|server| Some((server, server.catalogue()?)))
        else {
            return false;
        };
        let mut tools = catalogue.tools.iter();
        let listed = tools.find(|tool| args["tool"] == tool.name);
        listed.is_some_and(|listed| is_read_only_tool(&server.settings, listed))
    }

    fn preview(&self, args: &Value) -> Preview {
        let text = |name: &str| args[name].as_str().unwrap_or_default();
        // The argument may spell the server's name as an identifier.
        let server = match self.0.find(text("server")) {
            Ok(server) => &server.settings.name,
            Err(_) => text("server"),
        };
        let arguments = args.get("arguments").cloned().unwrap_or_else(|| json!({}));
        call_preview(&canonical_name(server, text("tool")), &arguments)
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let run = async move |args| call_tool(&self.0, args, &call).await;
        typed_call(args, run, |_: &Value| None)
    }
}

async fn call_tool(
    servers: &Servers,
    args: McpCallToolArgs,
    call: &CallContext,
) -> Result<Value, ToolError> {
    let server = servers.find(&args.server).map_err(to_tool_error)?;
    if !server.settings.offers_tool(&args.tool) {
        return Err(ToolError::new(format!(
            "the MCP server `{}` has no enabled tool `{}`",
            args.server, args.tool
        )));
    }
    let result = server
        .call_tool(&args.tool, args.arguments, call)
        .await
        .map_err(to_tool_error)?;
    parse_tool_result(result).map(|output| output.value)
}

async fn list_items(
    servers: &Servers,
    args: McpListArgs,
    what: McpListKind,
) -> Result<McpListOutput, ToolError> {
    let (mut items, mut failed, mut next_cursor) = (Vec::new(), Vec::new(), None);
    match &args.server {
        Some(server) => {
            let page = fetch_items(servers, server, args.cursor, what)
                .await
                .map_err(to_tool_error)?;
            (items, next_cursor) = page;
        }
        None if args.cursor.is_some() => {
            return Err(ToolError::new("`cursor` needs `server`"));
        }
        None => {
            let names: Vec<String> = servers
                .iter()
                .map(|server| server.settings.name.clone())
                .collect();
            let pages = names
                .iter()
                .map(|name| fetch_items(servers, name, None, what));
            for (name, page) in names
                .iter()
                .zip(futures_util::future::join_all(pages).await)
            {
                match page {
                    Ok((page, _)) => items.extend(page),
                    Err(ServerError::Disabled(_) | ServerError::IsSelvedge(_)) => {}
                    Err(error) => failed.push(format!("{name}: {error}")),
                }
            }
        }
    }
    let key = match what {
        McpListKind::Resources => "resources",
        McpListKind::Templates => "resourceTemplates",
        McpListKind::Prompts => "prompts",
    };
    let content = json!({"server": args.server, key: items, "nextCursor": next_cursor}).to_string();
    Ok(McpListOutput {
        items,
        next_cursor,
        failed,
        content,
        success: true,
    })
}

/// Fetches the page at `cursor`; without a cursor, all pages until [`MAX_LISTED_ITEMS`] items or
/// [`MAX_LIST_PAGES`] pages are reached. The time limit is that of one call of a tool.
async fn fetch_items(
    servers: &Servers,
    name: &str,
    cursor: Option<String>,
    what: McpListKind,
) -> Result<(Vec<Value>, Option<String>), ServerError> {
    let settings = &servers.find(name)?.settings;
    // Starting the server has its own time limit.
    let timeout = settings.startup_timeout() + settings.tool_timeout();
    let fetched = tokio::time::timeout(timeout, fetch_pages(servers, name, cursor, what));
    fetched.await.unwrap_or_else(|_| {
        Err(ServerError::TimedOut {
            server: settings.name.clone(),
            timeout,
        })
    })
}

async fn fetch_pages(
    servers: &Servers,
    name: &str,
    cursor: Option<String>,
    what: McpListKind,
) -> Result<(Vec<Value>, Option<String>), ServerError> {
    let server = servers.find(name)?;
    let connection = server.connect().await?;
    let catalogue = server.catalogue().unwrap_or_default();
    let has = match what {
        McpListKind::Resources | McpListKind::Templates => catalogue.has_resources,
        McpListKind::Prompts => catalogue.has_prompts,
    };
    if !has {
        return Ok((Vec::new(), None));
    }
    let one_page = cursor.is_some();
    let (mut items, mut next) = (Vec::new(), cursor);
    let mut pages = 0;
    loop {
        pages += 1;
        let mut params = PaginatedRequestParams::default();
        params.cursor = next.clone();
        let request = async {
            Ok(match what {
                McpListKind::Resources => {
                    let page = connection.peer().list_resources(Some(params)).await?;
                    (to_json_objects(&page.resources), page.next_cursor)
                }
                McpListKind::Templates => {
                    let page = connection
                        .peer()
                        .list_resource_templates(Some(params))
                        .await?;
                    (to_json_objects(&page.resource_templates), page.next_cursor)
                }
                McpListKind::Prompts => {
                    let page = connection.peer().list_prompts(Some(params)).await?;
                    (to_json_objects(&page.prompts), page.next_cursor)
                }
            })
        };
        let (page, following) = server.with_tool_timeout(&connection, request).await?;
        items.extend(page.into_iter().map(|mut item| {
            item["server"] = Value::from(server.settings.name.clone());
            item
        }));
        let has_more = following.is_some() && following != next;
        next = following;
        if one_page || !has_more || items.len() >= MAX_LISTED_ITEMS || pages >= MAX_LIST_PAGES {
            return Ok((items, next));
        }
    }
}

fn to_json_objects<T: Serialize>(items: &[T]) -> Vec<Value> {
    items
        .iter()
        .filter_map(|item| serde_json::to_value(item).ok())
        .filter(Value::is_object)
        .collect()
}

async fn read_resource(
    servers: &Servers,
    args: McpReadResourceArgs,
) -> Result<McpReadResourceOutput, ServerError> {
    let server = servers.find(&args.server)?;
    let connection = server.connect().await?;
    let request = connection
        .peer()
        .read_resource(ReadResourceRequestParams::new(args.uri));
    let contents = to_json_objects(
        &server
            .with_tool_timeout(&connection, request)
            .await?
            .contents,
    );
    let content = match contents.as_slice() {
        [one] if one["text"].is_string() => one["text"].as_str().unwrap_or_default().to_owned(),
        all => Value::from(all.to_vec()).to_string(),
    };
    Ok(McpReadResourceOutput {
        content,
        contents,
        success: true,
    })
}

async fn get_prompt(servers: &Servers, args: McpGetPromptArgs) -> Result<Value, ServerError> {
    let server = servers.find(&args.server)?;
    let connection = server.connect().await?;
    let params = GetPromptRequestParams::new(args.name).with_arguments(args.arguments);
    let result = server
        .with_tool_timeout(&connection, connection.peer().get_prompt(params))
        .await?;
    serde_json::to_value(result).map_err(|error| ServerError::InvalidResponse {
        server: args.server,
        reason: error.to_string(),
    })
}
