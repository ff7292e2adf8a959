// The table of error codes: meaning, name, and whether a retry can help. To add a code, add a row.
// `error.rs` generates the enum from it and `crates/sandbox/build.rs` the error classes of scripts.
// Both include this file, so it contains nothing but the rows.
error_codes! {
    /// The text is not valid TypeScript, or uses a TypeScript feature that cannot be compiled to
    /// JavaScript here. The error has line and column.
    ScriptSyntaxError, Yes;
    /// The script was rejected before it ran: too large, not UTF-8, a banned construct, a malformed
    /// block, or scripts are disabled.
    ScriptRejectedError, Yes;
    /// The type check found a certain mistake before the script ran: a property that a result does
    /// not have, a missing `await`, or a change of a frozen result. `metadata.otherErrors` lists
    /// further mistakes.
    ScriptTypeError, Yes;
    /// The script threw an exception and did not catch it. The exception's name is in
    /// `metadata.name`.
    ScriptRuntimeError, Yes;
    /// The script reached its own time limit, or the limit of the whole run. The results of its
    /// completed calls are in `partialResults`.
    ScriptTimeoutError, Maybe;
    /// The script reached its memory limit.
    ScriptMemoryError, Maybe;
    /// The script reached its stack limit.
    ScriptStackError, Maybe;
    /// The script was cancelled by its user or client.
    ScriptCancelledError, Maybe;
    /// The resumed run left calls whose outcome is unknown. The script must decide each one with
    /// `resume.repeat` or `resume.skip` before it makes a call that may change something.
    OutcomeUnknownError, No;
    /// A replay differs from the recording: the script, the engine or the recording has changed.
    ReplayDivergenceError, No;
    /// The call needed approval and was denied.
    ApprovalDeniedError, No;
    /// The call needed approval, and the approval timed out.
    ApprovalTimeoutError, No;
    /// The tool ran and failed. The message is the tool's own.
    ToolExecutionError, Maybe;
    /// The call reached its time limit and was stopped. What it did until then is not known.
    ToolTimeoutError, Maybe;
    /// The sandbox does not allow what the call tried: to write outside the workspace or to a
    /// protected path, or to read a secret.
    SandboxViolationError, No;
    /// There is no tool with this name. `suggestions` lists similar names.
    ToolNotFoundError, Yes;
    /// The arguments do not match the tool's schema.
    ToolValidationError, Yes;
    /// The script reached its limit of calls that leave the process, or of other calls.
    ToolBudgetExceededError, Maybe;
    /// The call was cancelled: the script ended, another call won a race, or the run was cancelled.
    ToolAbortedError, Maybe;
    /// The script ended while a call was running, and the tool did not stop when it was cancelled.
    DetachedPromiseError, Maybe;
    /// The returned value cannot be serialised as JSON, or is too large. The message names the
    /// path.
    SerializationError, Yes;
    /// Selvedge failed internally. The script was retried once if it had made no call.
    HarnessInternalError, Yes;
}
