//! Tools that work with every MCP server: list and read resources, list and get prompts, call a
//! tool by name.

use rmcp::model::{GetPromptRequestParams, PaginatedRequestParams, ReadResourceRequestParams};
use schemars::JsonSchema;
use selvedge_protocol::{McpApproval, Preview, ToolSpec};
use selvedge_tools::{
    Call, CallFuture, Registry, Risk, Tool, ToolError, spec_of, tool, typed_call,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::answer::value_of;
use crate::error::ServerError;
use crate::servers::Servers;
use crate::tool::{name_of, shown, tool_error};

/// Number of items after which no further page of a list is requested.
const MAX_ITEMS: usize = 2000;

/// Arguments of the tools that list resources, resource templates and prompts.
#[derive(Debug, Deserialize, JsonSchema)]
struct List {
    /// Name of the server; all servers by default.
    server: Option<String>,
    /// `nextCursor` of the previous page. Needs `server`.
    cursor: Option<String>,
}

/// A list of resources, resource templates or prompts.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Listing {
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
struct Read {
    /// Name of the server.
    server: String,
    /// URI of the resource.
    uri: String,
}

/// Contents of a resource.
#[derive(Debug, Serialize, JsonSchema)]
struct Resource {
    /// The text; JSON if the resource is binary or has several parts.
    content: String,
    /// All parts as the server sent them.
    contents: Vec<Value>,
    /// Always true: a failure is thrown.
    success: bool,
}

/// Arguments of `get_mcp_prompt`.
#[derive(Debug, Deserialize, JsonSchema)]
struct Prompt {
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
struct CallTool {
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
enum What {
    Resources,
    Templates,
    Prompts,
}

/// Registers the tools. A tool that is already registered under one of the names is kept.
pub(crate) fn register(registry: &mut Registry, servers: &Servers) {
    if servers.is_empty() {
        return;
    }
    let list = |name: &str, description: &str, what: What| {
        let servers = servers.clone();
        tool(name, description, move |args: List| {
            let servers = servers.clone();
            async move { listing(&servers, args, what).await }
        })
        .read_only()
        .render(|listing: &Listing| listing.content.clone())
    };
    let _ = registry.register(list(
        "list_mcp_resources",
        "Lists the resources of one MCP server, or of all.",
        What::Resources,
    ));
    let _ = registry.register(list(
        "list_mcp_resource_templates",
        "Lists the resource templates (URIs with variables) of one MCP server, or of all.",
        What::Templates,
    ));
    let _ = registry.register(list(
        "list_mcp_prompts",
        "Lists the prompts of one MCP server, or of all.",
        What::Prompts,
    ));
    for name in ["read_mcp_resource", "mcp_read_resource"] {
        let servers = servers.clone();
        let read = tool(
            name,
            "Reads a resource of an MCP server.",
            move |args: Read| {
                let servers = servers.clone();
                async move { read(&servers, args).await.map_err(tool_error) }
            },
        );
        let _ = registry.register(
            read.read_only()
                .render(|resource: &Resource| resource.content.clone()),
        );
    }
    let prompts = servers.clone();
    let prompt = tool(
        "get_mcp_prompt",
        "Gets a prompt of an MCP server, filled in with arguments.",
        move |args: Prompt| {
            let servers = prompts.clone();
            async move { prompt(&servers, args).await.map_err(tool_error) }
        },
    );
    let _ = registry.register(prompt.read_only());
    let _ = registry.register(McpCallTool(servers.clone()));
}

/// The tool `mcp_call_tool`.
struct McpCallTool(Servers);

impl Tool for McpCallTool {
    fn spec(&self) -> ToolSpec {
        let description = "Calls a tool of an MCP server by name. \
            In scripts, use tools.mcp.<server>.<tool>(args) instead.";
        spec_of::<CallTool, Value>("mcp_call_tool", description).judged_by_arguments()
    }

    /// Returns the risk of the tool that is called.
    fn risk(&self, args: &Value) -> Risk {
        let (server, name) = (
            args["server"].as_str().unwrap_or_default(),
            args["tool"].as_str().unwrap_or_default(),
        );
        let reason = format!("calls `{name}` of the server {server}");
        let Ok(server) = self.0.find(server) else {
            return Risk::Harmless;
        };
        let catalogue = server.catalogue();
        let listed = catalogue
            .as_ref()
            .and_then(|catalogue| catalogue.tools.iter().find(|tool| tool.name == name));
        match server.settings.options.default_tools_approval_mode {
            McpApproval::Approve => Risk::Harmless,
            McpApproval::Prompt => Risk::Ask { reason },
            McpApproval::Auto => match listed {
                Some(tool) if tool.destructive == Some(true) && !tool.read_only => Risk::Ask {
                    reason: format!(
                        "`{name}` of the server {} is marked as destructive",
                        server.settings.name
                    ),
                },
                Some(_) => Risk::Guarded { reason },
                // Not in the catalogue: its effect is unknown.
                None => Risk::Ask { reason },
            },
        }
    }

    /// Whether the server declares the tool read-only.
    fn reads_only(&self, args: &Value) -> bool {
        let server = args["server"]
            .as_str()
            .and_then(|name| self.0.find(name).ok());
        let catalogue = server.and_then(|server| server.catalogue());
        catalogue.is_some_and(|catalogue| {
            catalogue
                .tools
                .iter()
                .any(|tool| args["tool"] == tool.name && tool.read_only)
        })
    }

    fn preview(&self, args: &Value) -> Preview {
        let text = |name: &str| args[name].as_str().unwrap_or_default();
        // The argument may spell the server's name as an identifier.
        let server = match self.0.find(text("server")) {
            Ok(server) => &server.settings.name,
            Err(_) => text("server"),
        };
        let arguments = args.get("arguments").cloned().unwrap_or_else(|| json!({}));
        shown(&name_of(server, text("tool")), &arguments)
    }

    fn call(&self, args: Value, call: Call) -> CallFuture<'_> {
        let run = async move |args| call_tool(&self.0, args, &call).await;
        typed_call(args, run, |_: &Value| None)
    }
}

async fn call_tool(servers: &Servers, args: CallTool, call: &Call) -> Result<Value, ToolError> {
    let server = servers.find(&args.server).map_err(tool_error)?;
    if !server.settings.has(&args.tool) {
        return Err(ToolError::new(format!(
            "the MCP server `{}` has no enabled tool `{}`",
            args.server, args.tool
        )));
    }
    let result = server
        .call(&args.tool, args.arguments, call)
        .await
        .map_err(tool_error)?;
    value_of(result).map(|output| output.value)
}

async fn listing(servers: &Servers, args: List, what: What) -> Result<Listing, ToolError> {
    let (mut items, mut failed, mut next_cursor) = (Vec::new(), Vec::new(), None);
    match &args.server {
        Some(server) => {
            let page = page(servers, server, args.cursor, what)
                .await
                .map_err(tool_error)?;
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
            let pages = names.iter().map(|name| page(servers, name, None, what));
            for (name, page) in names
                .iter()
                .zip(futures_util::future::join_all(pages).await)
            {
                match page {
                    Ok((page, _)) => items.extend(page),
                    Err(ServerError::Disabled(_) | ServerError::Ourselves(_)) => {}
                    Err(error) => failed.push(format!("{name}: {error}")),
                }
            }
        }
    }
    let key = match what {
        What::Resources => "resources",
        What::Templates => "resourceTemplates",
        What::Prompts => "prompts",
    };
    let content = json!({"server": args.server, key: items, "nextCursor": next_cursor}).to_string();
    Ok(Listing {
        items,
        next_cursor,
        failed,
        content,
        success: true,
    })
}

/// Fetches the page at `cursor`; without a cursor, all pages up to [`MAX_ITEMS`] items.
async fn page(
    servers: &Servers,
    name: &str,
    cursor: Option<String>,
    what: What,
) -> Result<(Vec<Value>, Option<String>), ServerError> {
    let server = servers.find(name)?;
    let link = server.link().await?;
    let catalogue = server.catalogue().unwrap_or_default();
    let has = match what {
        What::Resources | What::Templates => catalogue.has_resources,
        What::Prompts => catalogue.has_prompts,
    };
    if !has {
        return Ok((Vec::new(), None));
    }
    let one_page = cursor.is_some();
    let (mut items, mut next) = (Vec::new(), cursor);
    loop {
        let mut params = PaginatedRequestParams::default();
        params.cursor = next.clone();
        let request = async {
            Ok(match what {
                What::Resources => {
                    let page = link.peer().list_resources(Some(params)).await?;
                    (values(&page.resources), page.next_cursor)
                }
                What::Templates => {
                    let page = link.peer().list_resource_templates(Some(params)).await?;
                    (values(&page.resource_templates), page.next_cursor)
                }
                What::Prompts => {
                    let page = link.peer().list_prompts(Some(params)).await?;
                    (values(&page.prompts), page.next_cursor)
                }
            })
        };
        let (page, following) = server.within(&link, request).await?;
        items.extend(page.into_iter().map(|mut item| {
            item["server"] = Value::from(server.settings.name.clone());
            item
        }));
        let has_more = following.is_some() && following != next;
        next = following;
        if one_page || !has_more || items.len() >= MAX_ITEMS {
            return Ok((items, next));
        }
    }
}

fn values<T: Serialize>(items: &[T]) -> Vec<Value> {
    items
        .iter()
        .filter_map(|item| serde_json::to_value(item).ok())
        .filter(Value::is_object)
        .collect()
}

async fn read(servers: &Servers, args: Read) -> Result<Resource, ServerError> {
    let server = servers.find(&args.server)?;
    let link = server.link().await?;
    let request = link
        .peer()
        .read_resource(ReadResourceRequestParams::new(args.uri));
    let contents = values(&server.within(&link, request).await?.contents);
    let content = match contents.as_slice() {
        [one] if one["text"].is_string() => one["text"].as_str().unwrap_or_default().to_owned(),
        all => Value::from(all.to_vec()).to_string(),
    };
    Ok(Resource {
        content,
        contents,
        success: true,
    })
}

async fn prompt(servers: &Servers, args: Prompt) -> Result<Value, ServerError> {
    let server = servers.find(&args.server)?;
    let link = server.link().await?;
    let params = GetPromptRequestParams::new(args.name).with_arguments(args.arguments);
    let result = server.within(&link, link.peer().get_prompt(params)).await?;
    serde_json::to_value(result).map_err(|error| ServerError::Nonsense {
        server: args.server,
        why: error.to_string(),
    })
}
