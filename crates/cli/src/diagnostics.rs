//! Reports the problems of configuration files.

use std::sync::atomic::{AtomicBool, Ordering};

use selvedge_config::{Diagnostic, DiagnosticSubject, Severity};

use crate::problem::Problem;

/// Prints warnings on the first call only. Prints all errors except the last, and returns that.
pub(crate) fn report_diagnostics(diagnostics: &[Diagnostic]) -> Result<(), Problem> {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let warned = WARNED.swap(true, Ordering::Relaxed);
    if let Some(home) = selvedge_config::home().filter(|home| home.exists() && !home.is_dir()) {
        let message = format!("{} is not a folder", home.display());
        return Err(Problem::new(message).hint("set SELVEDGE_HOME to a folder"));
    }
    let mut sorted: Vec<&Diagnostic> = diagnostics.iter().collect();
    sorted.sort_by_key(|diagnostic| (&diagnostic.path, diagnostic.line));
    let mut last: Option<(Problem, &Diagnostic)> = None;
    for diagnostic in sorted {
        match diagnostic.severity {
            Severity::Warning if warned => {}
            Severity::Warning => eprint_line!("warning: {diagnostic}"),
            Severity::Error => {
                last.iter().for_each(|(problem, _)| problem.print());
                last = Some((Problem::new(diagnostic.to_string()), diagnostic));
            }
        }
    }
    match last {
        Some((problem, diagnostic)) => Err(problem.hint(diagnostic_hint(diagnostic))),
        None => Ok(()),
    }
}

fn diagnostic_hint(diagnostic: &Diagnostic) -> String {
    let path = diagnostic.path.display();
    match (diagnostic.subject, diagnostic.line) {
        (DiagnosticSubject::File, _) => format!("make {path} a readable text file, or rename it"),
        (_, Some(line)) => format!("correct line {line} of {path}"),
        (_, None) => format!("correct {path}"),
    }
}
