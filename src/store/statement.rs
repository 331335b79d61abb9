//! Splits SQL text into statements, just enough to tell how many there are and what the first word of each is.
//!
//! Lexical rules: <https://www.sqlite.org/lang_keywords.html>, <https://www.sqlite.org/lang_comment.html>.

use super::QueryError;

/// First words of statements that only read.
const READING: [&str; 4] = ["select", "with", "values", "explain"];

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

/// Checks that `sql` is one statement that reads.
///
/// The connection cannot write in any case; this makes for a clear message, and keeps out what reads too much, such as
/// `attach`.
pub(super) fn check_reading(sql: &str) -> Result<(), QueryError> {
    let statements = split(sql);
    let words = match statements.as_slice() {
        [] => return Err(QueryError::Empty),
        [words] => words,
        several => {
            return Err(QueryError::SeveralStatements { count: several.len() });
        }
    };
    let first = words[0].to_ascii_lowercase();
    if READING.contains(&first.as_str()) {
        return Ok(());
    }
    if first == "pragma" && is_reading_pragma(&words[1..]) {
        return Ok(());
    }
    let keyword = match words.get(1) {
        Some(name) if first == "pragma" => format!("pragma {name}"),
        _ => first,
    };
    Err(QueryError::NotReading { keyword })
}

/// The word of a statement that makes it write, where `with` hides it.
pub(super) fn writing_word(sql: &str) -> String {
    let words = split(sql).into_iter().flatten().map(str::to_ascii_lowercase);
    let mut writing = words.filter(|word| ["insert", "update", "delete", "replace"].contains(&word.as_str()));
    writing.next().unwrap_or_else(|| "writing".to_owned())
}

/// The words after `pragma`: `[schema .] name [= value | ( value )]`.
fn is_reading_pragma(words: &[&str]) -> bool {
    let words = match words {
        [_, ".", rest @ ..] => rest,
        words => words,
    };
    let Some((name, argument)) = words.split_first() else {
        return false;
    };
    let name = name.to_ascii_lowercase();
    PRAGMAS_WITH_ARGUMENT.contains(&name.as_str()) && argument.first() != Some(&"=")
        || PRAGMAS_WITHOUT_ARGUMENT.contains(&name.as_str()) && argument.is_empty()
}

/// The words of each statement: names, numbers, quoted text, single characters. Comments and empty statements are left
/// out.
fn split(sql: &str) -> Vec<Vec<&str>> {
    let mut statements = vec![Vec::new()];
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let length = word_length(rest, first);
        let (word, after) = rest.split_at(length);
        rest = after;
        match first {
            ';' => statements.push(Vec::new()),
            _ if first.is_whitespace() || word.starts_with("--") || word.starts_with("/*") => {}
            _ => {
                if let Some(statement) = statements.last_mut() {
                    statement.push(word);
                }
            }
        }
    }
    statements.retain(|statement| !statement.is_empty());
    statements
}

/// Bytes of the word that `text` begins with; `first` is its first character.
fn word_length(text: &str, first: char) -> usize {
    let to_end = |from: usize, end: &str| text[from..].find(end).map_or(text.len(), |at| from + at + end.len());
    if text.starts_with("--") {
        return to_end(2, "\n");
    }
    if text.starts_with("/*") {
        return to_end(2, "*/");
    }
    match first {
        '\'' | '"' | '`' => quoted_length(text, first),
        '[' => to_end(1, "]"),
        _ if is_name(first) => text.find(|c| !is_name(c)).unwrap_or(text.len()),
        _ => first.len_utf8(),
    }
}

/// Bytes of a quoted word; a doubled quote inside stands for itself.
fn quoted_length(text: &str, quote: char) -> usize {
    let mut at = 1;
    while let Some(found) = text[at..].find(quote) {
        at += found + 1;
        if !text[at..].starts_with(quote) {
            return at;
        }
        at += 1;
    }
    text.len()
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$' || !c.is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(sql: &str) -> String {
        check_reading(sql).unwrap_err().to_string()
    }

    #[test]
    fn reading_statements_pass() {
        for sql in [
            "select 1",
            " SELECT 1 ; ",
            "-- a comment; with a semicolon\nselect 1;",
            "/* a; b */ with a as (select ';') select * from a;",
            "values (1), (2)",
            "explain query plan select 1",
            "select ';', \"a;\"\"b\", [c;d], `e;`, 'it''s; one' from trial",
            "pragma integrity_check",
            "PRAGMA main.table_info(trial)",
            "pragma journal_mode;",
        ] {
            assert!(check_reading(sql).is_ok(), "{sql}");
        }
    }

    #[test]
    fn writing_statements_are_named() {
        for (sql, keyword) in [
            ("delete from trial", "`delete`"),
            ("attach 'other.db' as other", "`attach`"),
            ("/* x */ VACUUM into 'copy.db'", "`vacuum`"),
            ("pragma journal_mode = delete", "`pragma journal_mode`"),
            ("pragma journal_mode(delete)", "`pragma journal_mode`"),
            ("pragma query_only = off", "`pragma query_only`"),
            ("pragma", "`pragma`"),
            ("begin", "`begin`"),
        ] {
            assert!(refused(sql).starts_with(keyword), "{sql}: {}", refused(sql));
        }
    }

    #[test]
    fn the_word_that_writes_is_found_behind_with() {
        assert_eq!(
            writing_word("with a as (select 'delete') UPDATE trial set number = 1"),
            "update"
        );
        assert_eq!(writing_word("select 1"), "writing");
    }

    #[test]
    fn more_or_less_than_one_statement_is_refused() {
        assert!(refused("select 1; select 2").starts_with("2 statements"));
        assert!(refused("select 1; drop table trial; --").starts_with("2 statements"));
        for sql in ["", " ; ;", "-- nothing", "/* open"] {
            assert!(refused(sql).contains("empty"), "{sql}");
        }
    }

    #[test]
    fn text_that_is_never_closed_runs_to_the_end() {
        assert_eq!(split("select 'a; b").len(), 1);
        assert_eq!(split("select \"é").len(), 1);
    }
}
