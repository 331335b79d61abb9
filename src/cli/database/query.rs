//! `peft-tune query`: SQL over the results database, read-only.

use std::io::{self, BufWriter, IsTerminal};
use std::path::PathBuf;

use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::row_formats::{FinishRows, RowFormat};
use crate::cli::terminal::output::{terminal_width, unless_closed, write_exact, write_result};
use crate::cli::whole_output::WholeOutput;
use crate::report::{Align, TextTable};
use crate::store::{NamedQuery, QueryError, StoreError};

/// Run one SQL statement that reads over the results database, or a named query
///
/// Tables and views are listed in docs/database.md. The usual ones: trial_summary (a row per trial), pareto_front (the
/// same columns, only the front), best_by_objective, trial_param and trial_metric (study, trial, name, value).
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The statement, such as "select study, trial, loss from trial_summary order by loss limit 5", or the name of a
    /// query, such as front
    #[arg(required_unless_present = "list")]
    sql: Option<String>,
    /// List the named queries
    #[arg(long, conflicts_with_all = ["sql", "study", "format", "output"])]
    list: bool,
    /// Study that a named query is about; the latest where absent. In your own statement it is the parameter ?1
    #[arg(long, value_name = "NAME")]
    study: Option<String>,
    /// How the rows are written [default: table, or by the ending of --output]
    #[arg(long, value_enum)]
    format: Option<RowFormat>,
    /// File to write into, instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long, requires = "output")]
    force: bool,
    /// Print the statement of a named query, to start your own from
    #[arg(long, conflicts_with = "list")]
    print_sql: bool,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let Some(text) = args.sql.as_deref().filter(|_| !args.list) else {
        return write_result(&(list().to_text(terminal_width()) + "\n"));
    };
    let named = named(text)?;
    if args.print_sql {
        return print_sql(named);
    }
    let format = format_of(&args)?;
    let sql = named.map_or(text, |query| query.sql);
    // A statement of the user's own has the study only where it asks for it.
    let about_study = named.is_some() || args.study.is_some();
    let outcome = match &args.output {
        None => {
            let sink = format.sink(Box::new(BufWriter::new(io::stdout())), terminal_width());
            written(&args, sql, about_study, sink)
        }
        Some(path) => {
            let (whole, output) = WholeOutput::create(path, args.force)?;
            written(&args, sql, about_study, format.sink(output, None)).and_then(|()| whole.keep())
        }
    };
    match outcome {
        Err(CliError::Failed(error)) if is_closed_pipe(&error) => Ok(()),
        other => other,
    }
}

fn print_sql(named: Option<NamedQuery>) -> Result<(), CliError> {
    match named {
        Some(query) => write_exact(&format!("{}\n", query.sql)),
        None => Err(CliError::bad(
            "`--print-sql` prints the statement of a named query, and this is none: `peft-tune query --list` shows the names",
        )),
    }
}

/// The named query that `text` is the name of: a single word is not a statement.
fn named(text: &str) -> Result<Option<NamedQuery>, CliError> {
    let name = text.trim();
    let is_word = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if !is_word {
        return Ok(None);
    }
    NamedQuery::find(name).map(Some).ok_or_else(|| {
        let hint = match NamedQuery::nearest(name) {
            Some(nearest) => format!("did you mean `{nearest}`?"),
            None => "`peft-tune query --list` shows them".to_owned(),
        };
        CliError::bad_input(anyhow::anyhow!("there is no query `{name}`: {hint}"))
    })
}

fn format_of(args: &Args) -> Result<RowFormat, CliError> {
    let ending = args.output.as_ref().and_then(|path| path.extension()?.to_str());
    let format = args.format.unwrap_or(match ending {
        Some("csv") => RowFormat::Csv,
        Some("json") => RowFormat::Json,
        Some("parquet") => RowFormat::Parquet,
        _ => RowFormat::Table,
    });
    if format == RowFormat::Parquet && args.output.is_none() && io::stdout().is_terminal() {
        return Err(CliError::bad_input(anyhow::anyhow!(
            "Parquet is not for a terminal: give --output FILE, or pipe it"
        )));
    }
    Ok(format)
}

fn written(args: &Args, sql: &str, about_study: bool, mut sink: Box<dyn FinishRows>) -> Result<(), CliError> {
    args.database.read(async |store| {
        let study = match about_study {
            true => Some(store.studies().find(args.study.as_deref()).await?.name),
            false => None,
        };
        store.queries().run(sql, study.as_deref(), &mut *sink).await
    })?;
    unless_closed(sink.finish()).map_err(CliError::failed)
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<StoreError>() {
        Some(StoreError::Query(QueryError::Output(error))) => error.kind() == io::ErrorKind::BrokenPipe,
        _ => false,
    }
}

fn list() -> TextTable {
    let headings = ["name", "what it shows"].map(|heading| (heading.to_owned(), Align::Left));
    let mut table = TextTable::new(headings);
    for query in NamedQuery::all() {
        table.push([query.name.to_owned(), query.about.to_owned()]);
    }
    table
}
