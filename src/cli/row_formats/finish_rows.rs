//! What takes rows and ends its output behind the last one.

use std::io;

use crate::store::RowSink;

/// A sink that has something to write after the last row.
pub(in crate::cli) trait FinishRows: RowSink {
    /// Ends the output.
    fn finish(self: Box<Self>) -> io::Result<()>;
}
