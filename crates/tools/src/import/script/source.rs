//! The code of a script or of a notebook, and where its lines stand there.

use std::path::Path;

use serde_json::Value;

use crate::import::StackFileError;
use crate::import::one_line::on_one_line;

/// Code that is longer is none that a person wrote.
const LONGEST: usize = 1 << 20;

/// Magics whose cell is Python but for their line.
const MAGICS_OF_PYTHON: [&str; 4] = ["capture", "time", "timeit", "prun"];

/// Code, in which a notebook's cells follow one another.
pub(super) struct Source {
    pub code: String,
    file: String,
    /// Lines that each cell begins at, with its number among all cells from 1 on; none of a script.
    cells: Vec<(usize, usize)>,
}

impl Source {
    /// Takes the code of a file's text.
    ///
    /// # Errors
    /// A notebook that is no JSON or has no code; code that is too long.
    pub(super) fn read(path: &Path, text: &str) -> Result<Self, StackFileError> {
        let file = path.display().to_string();
        let (code, cells) = match is_notebook(path) {
            true => of_notebook(path, text)?,
            false => (without_magics(text), Vec::new()),
        };
        if code.len() > LONGEST {
            return Err(StackFileError::LongScript { path: path.to_owned() });
        }
        Ok(Self { code, file, cells })
    }

    /// The file, as messages have it.
    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// Place of a line of the code, as messages have it: `train.py:12`, or with the cell of a notebook.
    pub(super) fn location(&self, line: usize) -> String {
        let (file, cell) = (&self.file, self.cells.iter().rev().find(|(start, _)| *start <= line));
        match cell {
            Some((start, number)) => format!("{file}, cell {number}, line {}", line - start + 1),
            None => format!("{file}:{}", line + 1),
        }
    }

    /// Some bytes of the code on one line, shortened.
    pub(super) fn excerpt(&self, bytes: &std::ops::Range<usize>) -> String {
        on_one_line(self.code.get(bytes.clone()).unwrap_or_default())
    }
}

/// Whether a file is a notebook, by the ending of its name.
pub(crate) fn is_notebook(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "ipynb")
}

/// The code of a notebook's cells, with the lines that they begin at.
fn of_notebook(path: &Path, text: &str) -> Result<(String, Vec<(usize, usize)>), StackFileError> {
    let wrong = |message: String| StackFileError::Notebook {
        path: path.to_owned(),
        message,
    };
    let notebook: Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    let cells = notebook.get("cells").and_then(Value::as_array);
    let cells = cells.ok_or_else(|| wrong("it has no `cells`".to_owned()))?;
    let (mut code, mut starts, mut line) = (String::new(), Vec::new(), 0);
    for (index, cell) in cells.iter().enumerate() {
        if cell.get("cell_type").and_then(Value::as_str) != Some("code") {
            continue;
        }
        let text = match cell.get("source") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(lines)) => lines.iter().filter_map(Value::as_str).collect(),
            _ => continue,
        };
        if is_of_another_language(&text) {
            continue;
        }
        let text = without_magics(&text);
        starts.push((line, index + 1));
        line += text.matches('\n').count() + 1;
        code.push_str(&text);
        code.push('\n');
    }
    match starts.is_empty() {
        true => Err(wrong("it has no cell of Python".to_owned())),
        false => Ok((code, starts)),
    }
}

/// Whether a cell begins with a magic that gives the cell to another program.
fn is_of_another_language(cell: &str) -> bool {
    let first = cell.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let magic = first.trim_start().strip_prefix("%%");
    magic.is_some_and(|magic| {
        let name = magic.split_whitespace().next().unwrap_or_default();
        !MAGICS_OF_PYTHON.contains(&name)
    })
}

/// Code whose magics (`%matplotlib inline`) and commands of the shell (`!pip install trl`) are `pass`, at the same lines. Magics for the
/// environment are assignments.
fn without_magics(code: &str) -> String {
    let mut goes_on = false;
    let lines = code.split('\n').map(|line| {
        let start = line.trim_start();
        let is_magic = start.starts_with('!')
            || start.strip_prefix('%').is_some_and(|rest| {
                let name = rest.trim_start_matches('%');
                name.starts_with(|first: char| first.is_ascii_alphabetic())
            });
        let was_magic = goes_on;
        goes_on = (is_magic || was_magic) && line.trim_end().ends_with('\\');
        match (was_magic, is_magic) {
            (true, _) => String::new(),
            (false, true) => {
                let statement = assignment_of(start).unwrap_or_else(|| "pass".to_owned());
                format!("{}{statement}", &line[..line.len() - start.len()])
            }
            (false, false) => line.to_owned(),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// What a magic for a variable of the environment sets: `%env NAME=VALUE`, `%env NAME VALUE`.
fn assignment_of(magic: &str) -> Option<String> {
    let (command, rest) = magic.trim().split_once(char::is_whitespace)?;
    if !["%env", "%set_env"].contains(&command) {
        return None;
    }
    let rest = rest.trim();
    let (name, value) = rest.split_once('=').or_else(|| rest.split_once(char::is_whitespace))?;
    let [name, value] = [name, value].map(|part| Value::from(part.trim()).to_string());
    Some(format!("os.environ[{name}] = {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notebook_is_the_code_of_its_cells_without_magics() {
        let text = r##"{"cells": [
            {"cell_type": "markdown", "source": ["r = 1"]},
            {"cell_type": "code", "source": ["%%capture\n", "!pip install \\\n", "    trl\n", "if True:\n", "    %cd x\n", "    r = 2"]},
            {"cell_type": "code", "source": "%%bash\nr = 3"},
            {"cell_type": "code", "source": "s = 4"}
        ], "nbformat": 4}"##;
        let source = Source::read(Path::new("a/b.ipynb"), text).unwrap();
        assert_eq!(source.code, "pass\npass\n\nif True:\n    pass\n    r = 2\ns = 4\n");
        assert_eq!(source.location(5), "a/b.ipynb, cell 2, line 6");
        assert_eq!(source.location(6), "a/b.ipynb, cell 4, line 1");
        for (text, part) in [
            ("{", "EOF"),
            ("[]", "cells"),
            (
                r#"{"cells": [{"cell_type": "markdown", "source": ""}]}"#,
                "no cell of Python",
            ),
        ] {
            let error = Source::read(Path::new("b.ipynb"), text).err().unwrap().to_string();
            assert!(error.contains("b.ipynb") && error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_script_keeps_its_lines() {
        for (magic, assignment) in [
            ("%env A=1", "os.environ[\"A\"] = \"1\""),
            ("%set_env A b c", "os.environ[\"A\"] = \"b c\""),
            ("%env", "pass"),
            ("%env A", "pass"),
        ] {
            assert_eq!(without_magics(magic), assignment);
        }
        let source = Source::read(Path::new("train.py"), "!pip install x\na = (3\n     % b)\n").unwrap();
        assert_eq!(source.code, "pass\na = (3\n     % b)\n");
        assert_eq!(source.location(1), "train.py:2");
        assert_eq!(source.excerpt(&(5..21)), "a = (3 % b)");
        let error = Source::read(Path::new("train.py"), &"a\n".repeat(LONGEST))
            .err()
            .unwrap();
        assert!(error.to_string().contains("train.py"));
    }
}
