//! One statement of SQLite, read on the calling thread.
//!
//! Design note: the driver steps through a statement on a thread of its own and hands each row over with all its values
//! copied, which takes more than a microsecond a row and most of the time of a long result. Here SQLite is called
//! directly, on a connection that the driver lends, and a row's values are read from where SQLite has them.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use libsqlite3_sys as ffi;
use sqlx::sqlite::LockedSqliteHandle;

use super::permission::{Asked, authorize};
use super::sql_value::SqlValue;

/// SQLite's words on a statement that it refused or could not finish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Extended result code.
    pub code: i32,
    pub message: String,
    /// Byte of the SQL text that the refusal is about.
    pub offset: Option<usize>,
    /// Word for what a query may not do, where that was the reason.
    pub not_reading: Option<String>,
}

/// The start of a text as SQLite prepared it.
pub(super) struct Prepared<'a> {
    /// The first statement; `None` where there is only a comment, or nothing before a semicolon.
    pub statement: Option<Statement<'a>>,
    /// Bytes of the text up to the end of the first statement.
    pub length: usize,
}

/// A prepared statement, and the row that it stands on. It borrows what is bound to it.
pub(super) struct Statement<'a> {
    statement: NonNull<ffi::sqlite3_stmt>,
    connection: NonNull<ffi::sqlite3>,
    columns: c_int,
    bound: PhantomData<&'a str>,
}

impl<'a> Statement<'a> {
    /// Prepares the first statement of `sql`, which may only read, on a connection that nothing else uses as long as the
    /// statement is there.
    pub(super) fn prepare(connection: &'a mut LockedSqliteHandle<'_>, sql: &str) -> Result<Prepared<'a>, Refusal> {
        let connection = connection.as_raw_handle();
        let Ok(bytes) = c_int::try_from(sql.len()) else {
            return Err(Refusal {
                code: ffi::SQLITE_TOOBIG,
                message: "the statement is too long".to_owned(),
                offset: None,
                not_reading: None,
            });
        };
        let mut asked = Asked::default();
        let (mut statement, mut tail) = (ptr::null_mut(), ptr::null());
        // SAFETY: the connection is open, the text has as many bytes as are said, and what SQLite asks is put to `asked`
        // for as long as this block runs.
        let code = unsafe {
            let (connection, text) = (connection.as_ptr(), sql.as_ptr().cast::<c_char>());
            ffi::sqlite3_set_authorizer(connection, Some(authorize), (&raw mut asked).cast());
            let code = ffi::sqlite3_prepare_v2(connection, text, bytes, &raw mut statement, &raw mut tail);
            ffi::sqlite3_set_authorizer(connection, None, ptr::null_mut());
            code
        };
        let statement = NonNull::new(statement).map(|statement| Self {
            // SAFETY: the statement has just been prepared.
            columns: unsafe { ffi::sqlite3_column_count(statement.as_ptr()) },
            statement,
            connection,
            bound: PhantomData,
        });
        if code != ffi::SQLITE_OK {
            return Err(Refusal {
                not_reading: asked.denied,
                ..refusal(connection)
            });
        }
        // SQLite asks nobody about `vacuum`. A pragma that reads may still be one that could write.
        if !asked.pragma && statement.as_ref().is_some_and(|statement| !statement.is_readonly()) {
            return Err(Refusal {
                not_reading: Some("vacuum".to_owned()),
                ..refusal(connection)
            });
        }
        Ok(Prepared {
            statement,
            length: tail.addr().saturating_sub(sql.as_ptr().addr()),
        })
    }

    fn is_readonly(&self) -> bool {
        // SAFETY: the statement is there until it is dropped.
        unsafe { ffi::sqlite3_stmt_readonly(self.statement.as_ptr()) != 0 }
    }

    /// Number of the statement's parameters.
    pub(super) fn parameters(&self) -> usize {
        // SAFETY: the statement is there until it is dropped.
        let count = unsafe { ffi::sqlite3_bind_parameter_count(self.statement.as_ptr()) };
        usize::try_from(count).unwrap_or(0)
    }

    /// Binds the first parameter.
    pub(super) fn bind(&mut self, text: &'a str) -> Result<(), Refusal> {
        let bytes = c_int::try_from(text.len()).unwrap_or(c_int::MAX);
        // SAFETY: the text has as many bytes as are said and outlives the statement, so that SQLite needs no copy and no
        // function to free it.
        let code =
            unsafe { ffi::sqlite3_bind_text(self.statement.as_ptr(), 1, text.as_ptr().cast::<c_char>(), bytes, None) };
        match code {
            ffi::SQLITE_OK => Ok(()),
            _ => Err(refusal(self.connection)),
        }
    }

    /// Names of the result's columns.
    pub(super) fn names(&self) -> Vec<String> {
        let name = |column| {
            // SAFETY: the name stays until the statement is gone or prepared again; null means that there is no memory.
            let name = unsafe { ffi::sqlite3_column_name(self.statement.as_ptr(), column) };
            match name.is_null() {
                true => String::new(),
                // SAFETY: not null, so it ends in a zero.
                false => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
            }
        };
        (0..self.columns).map(name).collect()
    }

    /// The next row; `None` behind the last.
    pub(super) fn next(&mut self) -> Result<Option<RowValues<'_>>, Refusal> {
        // SAFETY: the statement is there until it is dropped.
        match unsafe { ffi::sqlite3_step(self.statement.as_ptr()) } {
            ffi::SQLITE_ROW => Ok(Some(RowValues {
                statement: self.statement,
                columns: self.columns,
                row: PhantomData,
            })),
            ffi::SQLITE_DONE => Ok(None),
            _ => Err(refusal(self.connection)),
        }
    }
}

impl Drop for Statement<'_> {
    fn drop(&mut self) {
        // SAFETY: the statement is there and nothing reads its values any more. What the call returns is the error of
        // the last step, which is known.
        unsafe { ffi::sqlite3_finalize(self.statement.as_ptr()) };
    }
}

/// The row that a statement stands on: its values lie in SQLite's memory until the next step.
pub(super) struct RowValues<'row> {
    statement: NonNull<ffi::sqlite3_stmt>,
    columns: c_int,
    row: PhantomData<&'row ()>,
}

impl<'row> RowValues<'row> {
    /// The values by the type that each really has: SQLite's columns promise none.
    pub(super) fn read(&self) -> Vec<SqlValue<'row>> {
        (0..self.columns).map(|column| self.value(column)).collect()
    }

    fn value(&self, column: c_int) -> SqlValue<'row> {
        let statement = self.statement.as_ptr();
        // SAFETY: the statement stands on a row and the column is one of its own. A value is read as what it is, so that
        // SQLite converts nothing and its bytes stay where they are until the next step.
        unsafe {
            match ffi::sqlite3_column_type(statement, column) {
                ffi::SQLITE_INTEGER => SqlValue::Integer(ffi::sqlite3_column_int64(statement, column)),
                ffi::SQLITE_FLOAT => SqlValue::Real(ffi::sqlite3_column_double(statement, column)),
                ffi::SQLITE_TEXT => {
                    let start = ffi::sqlite3_column_text(statement, column);
                    // Text need not be UTF-8 in SQLite.
                    SqlValue::Text(String::from_utf8_lossy(self.bytes(start, column)))
                }
                ffi::SQLITE_BLOB => {
                    let start = ffi::sqlite3_column_blob(statement, column);
                    SqlValue::Blob(Cow::Borrowed(self.bytes(start.cast(), column)))
                }
                _ => SqlValue::Null,
            }
        }
    }

    /// # Safety
    /// `start` is what SQLite gave for the text or blob of `column`.
    unsafe fn bytes(&self, start: *const u8, column: c_int) -> &'row [u8] {
        // SAFETY: the column is one of the row's, and its pointer was asked for first, as SQLite wants it.
        let length = unsafe { ffi::sqlite3_column_bytes(self.statement.as_ptr(), column) };
        match usize::try_from(length) {
            // A blob of no bytes is a null pointer.
            Ok(length) if length > 0 && !start.is_null() => {
                // SAFETY: SQLite keeps so many bytes there until the next step, and the row does not outlive it.
                unsafe { std::slice::from_raw_parts(start, length) }
            }
            _ => &[],
        }
    }
}

/// The connection's last error.
fn refusal(connection: NonNull<ffi::sqlite3>) -> Refusal {
    // SAFETY: the connection is open, and its message is a text that ends in a zero and is copied at once.
    unsafe {
        let connection = connection.as_ptr();
        Refusal {
            code: ffi::sqlite3_extended_errcode(connection),
            message: CStr::from_ptr(ffi::sqlite3_errmsg(connection))
                .to_string_lossy()
                .into_owned(),
            offset: usize::try_from(ffi::sqlite3_error_offset(connection)).ok(),
            not_reading: None,
        }
    }
}
