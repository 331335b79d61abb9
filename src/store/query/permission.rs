//! Permissions of the user's own SQL, as SQLite asks for them while it prepares a statement
//! (<https://www.sqlite.org/c3ref/set_authorizer.html>).
//!
//! The connection cannot write in any case. This makes for a clear message, and keeps out what a connection that only
//! reads may still do: attach another file, begin a transaction, change a pragma, which some do while they are prepared.

use std::ffi::{CStr, c_char, c_int, c_void};

use libsqlite3_sys as ffi;

/// Pragmas that only read whatever their argument is: it names a table, an index or a number of rows.
const PRAGMAS_WITH_ARGUMENT: [&str; 10] = [
    "foreign_key_check",
    "foreign_key_list",
    "index_info",
    "index_list",
    "index_xinfo",
    "integrity_check",
    "quick_check",
    "table_info",
    "table_list",
    "table_xinfo",
];

/// Pragmas that only read as long as they have no argument, which would be the new value.
const PRAGMAS_WITHOUT_ARGUMENT: [&str; 13] = [
    "application_id",
    "auto_vacuum",
    "collation_list",
    "compile_options",
    "database_list",
    "encoding",
    "foreign_keys",
    "freelist_count",
    "journal_mode",
    "page_count",
    "page_size",
    "schema_version",
    "user_version",
];

/// The table that holds the schema.
const SCHEMA_TABLE: &str = "sqlite_master";

/// Questions that a statement asked while it was prepared.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// The word for what was denied.
    pub denied: Option<String>,
    /// Whether the statement is a pragma that reads.
    pub pragma: bool,
}

impl Asked {
    /// Answers one question: reading is allowed, and everything else denied and noted.
    fn answer(&mut self, action: c_int, name: &str, argument: Option<&str>) -> c_int {
        let allowed = match action {
            ffi::SQLITE_SELECT | ffi::SQLITE_READ | ffi::SQLITE_FUNCTION | ffi::SQLITE_RECURSIVE => true,
            ffi::SQLITE_PRAGMA => {
                self.pragma = is_reading_pragma(name, argument);
                self.pragma
            }
            // SQLite declares a table-valued function so; it takes no such statement from anyone.
            ffi::SQLITE_UPDATE => name == SCHEMA_TABLE,
            _ => false,
        };
        if allowed {
            return ffi::SQLITE_OK;
        }
        self.denied.get_or_insert_with(|| word(action, name));
        ffi::SQLITE_DENY
    }
}

/// SQLite's question, put to the [`Asked`] that `asked` points to.
///
/// # Safety
/// `asked` points to an [`Asked`] that nothing else uses meanwhile; the texts end in a zero or are null.
pub(super) unsafe extern "C" fn authorize(
    asked: *mut c_void,
    action: c_int,
    first: *const c_char,
    second: *const c_char,
    _database: *const c_char,
    _view: *const c_char,
) -> c_int {
    // SAFETY: as the caller promises.
    let (asked, name, argument) = unsafe { (&mut *asked.cast::<Asked>(), text(first), text(second)) };
    asked.answer(action, &name.unwrap_or_default(), argument.as_deref())
}

/// # Safety
/// `text` ends in a zero or is null.
unsafe fn text(text: *const c_char) -> Option<String> {
    // SAFETY: not null, so it ends in a zero.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

fn is_reading_pragma(name: &str, argument: Option<&str>) -> bool {
    let name = name.to_ascii_lowercase();
    PRAGMAS_WITH_ARGUMENT.contains(&name.as_str())
        || PRAGMAS_WITHOUT_ARGUMENT.contains(&name.as_str()) && argument.is_none()
}

/// The word of a statement that asks for an action. A schema is changed through the table that holds it.
fn word(action: c_int, name: &str) -> String {
    let is_schema = [SCHEMA_TABLE, "sqlite_temp_master"].contains(&name);
    let word = match action {
        ffi::SQLITE_INSERT if is_schema => "create",
        ffi::SQLITE_DELETE if is_schema => "drop",
        ffi::SQLITE_INSERT => "insert",
        ffi::SQLITE_DELETE => "delete",
        ffi::SQLITE_UPDATE => "update",
        ffi::SQLITE_ATTACH => "attach",
        ffi::SQLITE_DETACH => "detach",
        ffi::SQLITE_ALTER_TABLE => "alter",
        ffi::SQLITE_REINDEX => "reindex",
        ffi::SQLITE_SAVEPOINT => "savepoint",
        ffi::SQLITE_TRANSACTION => return name.to_ascii_lowercase(),
        ffi::SQLITE_PRAGMA => return format!("pragma {name}"),
        _ => "writing",
    };
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pragmas_read_where_their_argument_is_no_new_value() {
        for (name, argument, reads) in [
            ("table_info", Some("trial"), true),
            ("TABLE_INFO", Some("trial"), true),
            ("integrity_check", None, true),
            ("journal_mode", None, true),
            ("journal_mode", Some("delete"), false),
            ("foreign_keys", Some(""), false),
            ("query_only", None, false),
            ("no_such_pragma", None, false),
        ] {
            let mut asked = Asked::default();
            let code = asked.answer(ffi::SQLITE_PRAGMA, name, argument);
            assert_eq!((code == ffi::SQLITE_OK, asked.pragma), (reads, reads), "{name}");
            let word = (!reads).then(|| format!("pragma {name}"));
            assert_eq!(asked.denied, word);
        }
    }

    #[test]
    fn the_first_thing_that_was_denied_is_named() {
        let mut asked = Asked::default();
        assert_eq!(asked.answer(ffi::SQLITE_READ, "trial", Some("id")), ffi::SQLITE_OK);
        assert_eq!(asked.answer(ffi::SQLITE_DELETE, "trial", None), ffi::SQLITE_DENY);
        assert_eq!(asked.answer(ffi::SQLITE_ATTACH, "other.db", None), ffi::SQLITE_DENY);
        assert_eq!(asked.denied.as_deref(), Some("delete"));
    }
}
