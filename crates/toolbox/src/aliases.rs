//! Alternative names of tools and of their fields.

use schemars::JsonSchema;
use selvedge_protocol::{CallReach, ToolSpec};
use selvedge_tools::{Registry, spec_of};

/// Aliases of fields by tool, as `alias=field`. The tool `*` means every tool with that field.
const FIELD_ALIASES: &[(&str, &str)] = &[
    ("*", "file_path=path dir_path=path filename=path"),
    ("read_file", "start_line=offset max_lines=limit"),
    ("list_dir", "max_depth=depth"),
    (
        "grep_files",
        "file_pattern=include glob=include max_results=limit",
    ),
    (
        "file_search",
        "query=pattern exclude=exclude_patterns path=search_directory \
         dir_path=search_directory max_results=limit",
    ),
    ("write_file", "text=content contents=content key=file_key"),
    (
        "edit_file",
        "old_string=old old_str=old old_text=old search=old find=old new_string=new new_str=new \
         new_text=new replace=new replacement=new replace_all=all",
    ),
    ("update_plan", "steps=plan"),
    (
        "apply_patch",
        "input=patch diff=patch patch_text=patch workdir=cwd working_directory=cwd \
         original=original_content old_content=original_content updated=updated_content \
         new_content=updated_content",
    ),
    (
        "exec",
        "workdir=cwd working_directory=cwd timeout=timeout_ms argv=command args=command \
         cmd=command",
    ),
    ("exec_command", "command=cmd cwd=workdir"),
    ("write_stdin", "input=chars text=chars"),
    (
        "web_search",
        "queries=query q=query limit=max_results count=max_results",
    ),
    ("fetch_url", "url=urls max_bytes=max_length"),
    ("save_to_fc", "text=content name=title"),
    ("fetch_from_fc", "key=file_key"),
    ("channels.follow", "name=channel"),
    (
        "channels.post",
        "name=channel text=message content=message body=message",
    ),
    ("channels.read", "name=channel since=after"),
    (
        "sessions.create",
        "environment=env name=title message=prompt",
    ),
    ("sessions.get", "session=id session_id=id"),
    ("sessions.list", "environment=env name=title"),
    (
        "sessions.send",
        "session=id session_id=id text=message prompt=message",
    ),
    ("prompts.save", "prompt=prompts"),
    ("prompts.get", "key=keys"),
];

/// Aliases of tools: `(alias, tool)`. A call by the alias works.
const TOOL_ALIASES: &[(&str, &str)] = &[
    ("shell", "exec"),
    ("local_shell", "exec"),
    ("search_files", "file_search"),
    ("fetch", "fetch_url"),
    ("web_fetch", "fetch_url"),
    ("save_to_file_cabinet", "save_to_fc"),
    ("fetch_from_file_cabinet", "fetch_from_fc"),
];

/// Names of similar tools in other agents, and the tools to suggest if a script calls one. A call
/// by such a name fails, unless it is also an alias or a registered tool.
const TOOL_SUGGESTIONS: &[(&str, &str)] = &[
    (
        "bash shell sh run run_command execute terminal cmd command exec_shell",
        "exec exec_command",
    ),
    (
        "read cat open_file view get_file file_read read_files",
        "read_file",
    ),
    (
        "write create_file save_file file_write",
        "write_file edit_file apply_patch",
    ),
    (
        "edit str_replace replace replace_in_file search_replace multi_edit",
        "edit_file apply_patch write_file",
    ),
    ("ls dir list list_files list_directory readdir", "list_dir"),
    (
        "grep search search_files ripgrep rg find_in_files",
        "grep_files file_search",
    ),
    ("find glob find_files locate", "file_search"),
    ("patch apply_diff diff", "apply_patch"),
    ("http get fetch curl browse", "fetch_url"),
    ("google search_web web", "web_search"),
];

/// Returns the spec of a built-in tool with its field aliases. It works on files and documents of
/// this machine. `positional` are the fields that can be passed by position.
pub(crate) fn built_in_spec<A: JsonSchema, R: JsonSchema>(
    name: &str,
    positional: &'static [&'static str],
    description: &str,
) -> ToolSpec {
    let rows = FIELD_ALIASES.iter();
    let rows = rows.filter(|(tool, _)| *tool == name || *tool == "*");
    let pairs = rows.flat_map(|(_, aliases)| aliases.split(' '));
    ToolSpec {
        aliases: pairs.filter_map(|pair| pair.split_once('=')).collect(),
        positional,
        ..spec_of::<A, R>(name, description).with_reach(CallReach::Local)
    }
}

/// Adds the aliases and the suggestions to a registry.
pub(crate) fn register_aliases(registry: &mut Registry) {
    for (alias, name) in TOOL_ALIASES {
        registry.add_alias(alias, name);
    }
    for (names, tools) in TOOL_SUGGESTIONS {
        registry.add_suggestions(names, tools);
    }
}
