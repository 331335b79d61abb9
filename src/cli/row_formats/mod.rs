//! Rows of values as a table, CSV, JSON or Parquet.

mod csv_rows;
mod finish_rows;
mod json_rows;
mod parquet_rows;
mod row_format;
mod table_rows;
mod value_text;

pub(super) use finish_rows::FinishRows;
pub(super) use row_format::RowFormat;
