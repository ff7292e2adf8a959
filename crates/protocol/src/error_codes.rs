// The table of error codes: meaning, name, and whether trying again can help. A new code is one row
// here. `error.rs` makes the enum of it; `crates/sandbox/build.rs` makes the classes scripts see.
// Included in both, so it holds nothing but the rows.
error_codes! {
    /// The text is not TypeScript, or uses TypeScript that has no JavaScript equivalent here. The error has line and column.
    ScriptSyntaxError, Yes;
    /// The script was refused before it ran: too large, not UTF-8, a banned construct, a malformed block, or scripts are disabled.
    ScriptRejectedError, Yes;
    /// The script threw and nothing caught it. The name it threw is in `metadata.name`.
    ScriptRuntimeError, Yes;
    /// The script ran past its time limit. What its calls returned until then is in `partialResults`.
    ScriptTimeoutError, Maybe;
    /// The script reached its memory limit.
    ScriptMemoryError, Maybe;
    /// The script recursed too deeply.
    ScriptStackError, Maybe;
    /// Somebody stopped the script from outside.
    ScriptCancelledError, Maybe;
    /// The resumed run left calls whose outcome is unknown. The script must decide each one with `resume.repeat` or `resume.skip` before a call that may change something runs.
    OutcomeUnknownError, No;
    /// A replay left what was recorded: the script, the engine or the recording is another.
    ReplayDivergenceError, No;
    /// A person said no to this call.
    ApprovalDeniedError, No;
    /// Nobody answered in time whether this call may run.
    ApprovalTimeoutError, No;
    /// The tool ran and failed. Its own words are in the message.
    ToolExecutionError, Maybe;
    /// There is no tool of this name. `suggestions` holds the nearest ones.
    ToolNotFoundError, Yes;
    /// The arguments do not fit the tool's schema.
    ToolValidationError, Yes;
    /// The script made more calls than it may.
    ToolBudgetExceededError, Maybe;
    /// The call was stopped: the script ended, a race was decided, or somebody cancelled it.
    ToolAbortedError, Maybe;
    /// The script ended while a call was running, and the tool did not stop when asked.
    DetachedPromiseError, Maybe;
    /// The returned value cannot be written as JSON, or is too large. The message names the path.
    SerializationError, Yes;
    /// Selvedge itself failed. Tried again once by itself when no call had been dispatched.
    HarnessInternalError, Yes;
}
