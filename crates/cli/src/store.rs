//! `selvedge store`: copies the journal and the memory into another database, and checks them.

use std::path::Path;

use anyhow::Result;
use clap::{Args, Subcommand};
use selvedge_journal::{CopiedTable, JournalLocation, PostgresUrl, check_store, copy_store};
use serde_json::json;

use crate::CliStatus;
use crate::output::{print_json, print_line};
use crate::problem::Problem;
use crate::runs::journal_error_problem;

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Copy everything that is stored into another database
    #[command(
        after_help = "A store is `sqlite` (the file in $SELVEDGE_HOME), a folder with such a \
                            file, or `postgres://user:password@host/database`. A password can also \
                            be in the variable SELVEDGE_STORE: `configured` is the store that \
                            commands use."
    )]
    Migrate(StoreMigrateArgs),
    /// Check that what is stored can be read and written, and is complete
    Check(StoreCheckArgs),
}

#[derive(Debug, Args)]
pub(crate) struct StoreMigrateArgs {
    /// Store to read: sqlite, a folder, postgres://… or configured
    #[arg(long, value_name = "STORE")]
    from: String,

    /// Store to write: sqlite, a folder, postgres://… or configured
    #[arg(long, value_name = "STORE")]
    to: String,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StoreCheckArgs {
    /// Store to check: sqlite, a folder, postgres://… or configured
    #[arg(value_name = "STORE", default_value = "configured")]
    store: String,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn store(command: StoreCommand) -> Result<CliStatus> {
    match command {
        StoreCommand::Migrate(args) => migrate(&args),
        StoreCommand::Check(args) => check(&args),
    }
}

/// Returns the store that an argument names.
fn named_store(argument: &str) -> Result<JournalLocation> {
    let home = selvedge_config::home()
        .ok_or_else(|| Problem::new("cannot find the home folder").hint("set SELVEDGE_HOME"))?;
    if argument == "configured" {
        let config = crate::setup::load_user_configuration(Some(&home))?;
        return crate::journal::journal_location(&home, &config.journal);
    }
    if PostgresUrl::is_postgres(argument) {
        let database = argument.parse().map_err(|error| {
            Problem::new(format!("the argument is {error}"))
                .hint("pass an address such as postgres://user:password@host/database")
        })?;
        return Ok(JournalLocation::postgres(&home, database));
    }
    match argument {
        "sqlite" => Ok(JournalLocation::file_in(&home)),
        folder if Path::new(folder).is_dir() => Ok(JournalLocation::file_in(Path::new(folder))),
        other => Err(Problem::new(format!("there is no store `{other}`"))
            .hint("pass sqlite, configured, a folder or postgres://user:password@host/database")
            .into()),
    }
}

fn migrate(args: &StoreMigrateArgs) -> Result<CliStatus> {
    let (from, to) = (named_store(&args.from)?, named_store(&args.to)?);
    let mut failed = None;
    let mut report = |table: &CopiedTable| {
        let state = if table.was_equal {
            "were equal"
        } else {
            "copied"
        };
        let line = format!("{}: {} rows {state}", table.table, table.rows);
        if !args.json && failed.is_none() {
            failed = print_line(&line).err();
        }
    };
    let memory = selvedge_memory::memory_schema();
    let tables = copy_store(&from, &to, &[memory], &mut report)
        .map_err(|error| journal_error_problem(&error))?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    if args.json {
        let tables = tables.iter().map(|table| {
            json!({
                "table": table.table,
                "rows": table.rows,
                "digest": table.digest,
                "was_equal": table.was_equal,
            })
        });
        return print_json(&json!({"tables": tables.collect::<Vec<_>>()}));
    }
    let rows: u64 = tables.iter().map(|table| table.rows).sum();
    print_line(&format!(
        "{} tables with {rows} rows are equal in both stores",
        tables.len()
    ))?;
    Ok(CliStatus::Success)
}

fn check(args: &StoreCheckArgs) -> Result<CliStatus> {
    let location = named_store(&args.store)?;
    let memory = selvedge_memory::memory_schema();
    let report =
        check_store(&location, &[memory]).map_err(|error| journal_error_problem(&error))?;
    let is_good = report.problems.is_empty();
    let answer_ms = report.answer_time.as_secs_f64() * 1000.0;
    if args.json {
        let tables = report.tables.iter();
        let tables = tables
            .map(|(table, rows, bytes)| json!({"table": table, "rows": rows, "bytes": bytes}));
        print_json(&json!({
            "store": report.place,
            "database": report.database,
            "answer_ms": answer_ms,
            "clock_ahead_ms": report.clock_ahead_ms,
            "problems": report.problems,
            "tables": tables.collect::<Vec<_>>(),
        }))?;
    } else {
        print_line(&format!("{}: {}", report.place, report.database))?;
        for (table, rows, bytes) in report.tables.iter().filter(|(_, rows, _)| *rows > 0) {
            print_line(&format!(
                "{table}: {rows} rows, {} kB",
                bytes.div_ceil(1024)
            ))?;
        }
        print_line(&format!("a statement takes {answer_ms:.2} ms"))?;
        if let Some(ahead) = report.clock_ahead_ms {
            print_line(&format!("the clock of the database is {ahead} ms ahead"))?;
        }
        for problem in &report.problems {
            print_line(&format!("problem: {problem}"))?;
        }
    }
    Ok(match is_good {
        true => CliStatus::Success,
        false => CliStatus::Failed,
    })
}
