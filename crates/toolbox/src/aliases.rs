//! One table for the names that callers use for the same field.

/// `(tool, alias, field)`; a tool of `*` means every tool that has the field.
const ALIASES: &[(&str, &str, &str)] = &[
    ("*", "file_path", "path"),
    ("*", "dir_path", "path"),
    ("*", "filename", "path"),
    ("read_file", "start_line", "offset"),
    ("read_file", "max_lines", "limit"),
    ("list_dir", "max_depth", "depth"),
    ("grep_files", "file_pattern", "include"),
    ("grep_files", "glob", "include"),
    ("grep_files", "max_results", "limit"),
    ("file_search", "query", "pattern"),
    ("file_search", "exclude", "exclude_patterns"),
    ("file_search", "path", "search_directory"),
    ("file_search", "dir_path", "search_directory"),
    ("file_search", "max_results", "limit"),
    ("write_file", "text", "content"),
    ("write_file", "contents", "content"),
    ("update_plan", "steps", "plan"),
    ("apply_patch", "input", "patch"),
    ("apply_patch", "diff", "patch"),
    ("apply_patch", "patch_text", "patch"),
    ("apply_patch", "workdir", "cwd"),
    ("apply_patch", "working_directory", "cwd"),
    ("apply_patch", "original", "original_content"),
    ("apply_patch", "old_content", "original_content"),
    ("apply_patch", "updated", "updated_content"),
    ("apply_patch", "new_content", "updated_content"),
    ("exec", "workdir", "cwd"),
    ("exec", "working_directory", "cwd"),
    ("exec", "timeout", "timeout_ms"),
    ("exec", "argv", "command"),
    ("exec", "args", "command"),
    ("exec_command", "command", "cmd"),
    ("exec_command", "cwd", "workdir"),
    ("write_stdin", "input", "chars"),
    ("write_stdin", "text", "chars"),
    ("web_search", "queries", "query"),
    ("web_search", "q", "query"),
    ("web_search", "limit", "max_results"),
    ("web_search", "count", "max_results"),
    ("fetch_url", "url", "urls"),
    ("fetch_url", "max_bytes", "max_length"),
    ("save_to_fc", "text", "content"),
    ("save_to_fc", "name", "title"),
    ("fetch_from_fc", "key", "file_key"),
    ("write_file", "key", "file_key"),
    ("prompts.save", "prompt", "prompts"),
    ("prompts.get", "key", "keys"),
];

/// Other names of tools: `(alias, tool)`.
pub(crate) const TOOL_ALIASES: &[(&str, &str)] = &[
    ("shell", "exec"),
    ("local_shell", "exec"),
    ("search_files", "file_search"),
    ("fetch", "fetch_url"),
    ("web_fetch", "fetch_url"),
    ("save_to_file_cabinet", "save_to_fc"),
    ("fetch_from_file_cabinet", "fetch_from_fc"),
];

/// The aliases of one tool.
pub(crate) fn aliases_of(tool: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let mine: Vec<_> = ALIASES
        .iter()
        .filter(|(of, ..)| *of == tool || *of == "*")
        .map(|(_, alias, field)| (*alias, *field))
        .collect();
    mine.into_iter()
}
