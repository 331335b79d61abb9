//! `peft-tune query`: SQL over the results database, read-only.

use std::io::{self, BufWriter, StdoutLock, Write};

use super::CliError;
use super::database::DatabaseArgs;
use super::output::{terminal_width, unless_closed, write_result};
use crate::report::{Align, TextTable};
use crate::store::{QueryError, RowSink, SqlValue, StoreError};

/// Run one SQL statement that reads over the results database
///
/// Tables and views are listed in docs/database.md. The usual ones: trial_summary (a row per trial), pareto_front (the
/// same columns, only the front), best_by_objective, trial_param and trial_metric (study, trial, name, value).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The statement, such as "select study, trial, loss from trial_summary order by loss limit 5"
    sql: String,
    /// How the rows are written
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// How rows are written.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    /// Columns for people, cut to the terminal's width
    Table,
    /// Comma-separated values with a heading line; null is empty, a blob hexadecimal
    Csv,
    /// A list of objects
    Json,
}

pub fn run(args: Args) -> Result<(), CliError> {
    let outcome = match args.format {
        Format::Table => return table(&args),
        Format::Csv => written(&args, CsvSink::new()),
        Format::Json => written(&args, JsonSink::new()),
    };
    match outcome {
        Err(CliError::Failed(error)) if is_closed_pipe(&error) => Ok(()),
        other => other,
    }
}

fn table(args: &Args) -> Result<(), CliError> {
    let mut sink = TableSink::default();
    args.database
        .read(async |store| store.query(&args.sql, &mut sink).await)?;
    write_result(&sink.to_text(terminal_width()))
}

fn written(args: &Args, mut sink: impl RowSink + Finish) -> Result<(), CliError> {
    args.database
        .read(async |store| store.query(&args.sql, &mut sink).await)?;
    unless_closed(sink.finish()).map_err(CliError::failed)
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<StoreError>() {
        Some(StoreError::Query(QueryError::Output(error))) => error.kind() == io::ErrorKind::BrokenPipe,
        _ => false,
    }
}

/// A sink that has something to write after the last row.
trait Finish {
    fn finish(self) -> io::Result<()>;
}

#[derive(Default)]
struct TableSink {
    names: Vec<String>,
    rows: Vec<Vec<SqlValue>>,
}

impl TableSink {
    fn to_text(&self, width: Option<usize>) -> String {
        let columns = self.names.iter().enumerate().map(|(column, name)| {
            let numbers = self
                .rows
                .iter()
                .all(|row| !matches!(row[column], SqlValue::Text(_) | SqlValue::Blob(_)));
            (name.clone(), if numbers { Align::Right } else { Align::Left })
        });
        let mut table = TextTable::new(columns);
        for row in &self.rows {
            table.push(row.iter().map(|value| match value {
                SqlValue::Null => "NULL".to_owned(),
                value => text(value),
            }));
        }
        let count = match self.rows.len() {
            1 => "1 row".to_owned(),
            count => format!("{count} rows"),
        };
        format!("{}\n({count})\n", table.to_text(width))
    }
}

impl RowSink for TableSink {
    fn columns(&mut self, names: &[String]) -> io::Result<()> {
        self.names = names.to_vec();
        Ok(())
    }

    fn row(&mut self, values: Vec<SqlValue>) -> io::Result<()> {
        self.rows.push(values);
        Ok(())
    }
}

struct CsvSink {
    writer: csv::Writer<StdoutLock<'static>>,
}

impl CsvSink {
    fn new() -> Self {
        Self {
            writer: csv::Writer::from_writer(io::stdout().lock()),
        }
    }
}

impl RowSink for CsvSink {
    fn columns(&mut self, names: &[String]) -> io::Result<()> {
        self.writer.write_record(names).map_err(to_io)
    }

    fn row(&mut self, values: Vec<SqlValue>) -> io::Result<()> {
        self.writer.write_record(values.iter().map(text)).map_err(to_io)
    }
}

impl Finish for CsvSink {
    fn finish(mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

struct JsonSink {
    writer: BufWriter<StdoutLock<'static>>,
    names: Vec<String>,
    rows: usize,
}

impl JsonSink {
    fn new() -> Self {
        Self {
            writer: BufWriter::new(io::stdout().lock()),
            names: Vec::new(),
            rows: 0,
        }
    }
}

impl RowSink for JsonSink {
    fn columns(&mut self, names: &[String]) -> io::Result<()> {
        self.names = distinct(names);
        self.writer.write_all(b"[")
    }

    fn row(&mut self, values: Vec<SqlValue>) -> io::Result<()> {
        let object: serde_json::Map<_, _> = self.names.iter().cloned().zip(values.iter().map(json)).collect();
        let separator: &[u8] = if self.rows == 0 { b"\n  " } else { b",\n  " };
        self.writer.write_all(separator)?;
        self.rows += 1;
        serde_json::to_writer(&mut self.writer, &object).map_err(io::Error::from)
    }
}

impl Finish for JsonSink {
    fn finish(mut self) -> io::Result<()> {
        let end: &[u8] = if self.rows == 0 { b"]\n" } else { b"\n]\n" };
        self.writer.write_all(end)?;
        self.writer.flush()
    }
}

/// Names that can be keys of one object: a name that comes again gets a number.
fn distinct(names: &[String]) -> Vec<String> {
    let mut seen: Vec<String> = Vec::with_capacity(names.len());
    for name in names {
        let numbered = (2..).map(|number| format!("{name}_{number}"));
        let free = std::iter::once(name.clone())
            .chain(numbered)
            .find(|candidate| !seen.contains(candidate));
        seen.extend(free);
    }
    seen
}

/// The value as text: numbers so that they read back as the same, blobs in hexadecimal, null as nothing.
fn text(value: &SqlValue) -> String {
    match value {
        SqlValue::Null => String::new(),
        SqlValue::Integer(value) => value.to_string(),
        SqlValue::Real(value) => format!("{value:?}"),
        SqlValue::Text(value) => value.clone(),
        SqlValue::Blob(bytes) => hexadecimal(bytes),
    }
}

fn json(value: &SqlValue) -> serde_json::Value {
    match value {
        SqlValue::Null => serde_json::Value::Null,
        SqlValue::Integer(value) => (*value).into(),
        // JSON has no infinity, which a query can make: null then.
        SqlValue::Real(value) => (*value).into(),
        SqlValue::Text(value) => value.as_str().into(),
        SqlValue::Blob(bytes) => hexadecimal(bytes).into(),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn to_io(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_one_name_stay_apart_in_json() {
        let names = ["id", "id", "id_2", "id"].map(str::to_owned);
        assert_eq!(distinct(&names), ["id", "id_2", "id_2_2", "id_3"]);
    }

    #[test]
    fn reals_read_back_as_the_same() {
        for value in [0.1 + 0.2, 1e-300, 3.0, -0.0] {
            assert_eq!(text(&SqlValue::Real(value)).parse::<f64>().unwrap(), value);
        }
    }
}
