//! Data sets that a script loads: files, and data sets of the hub with their splits.

use std::path::PathBuf;

use serde_json::Value;

use super::rows::RowsOf;
use super::run::Called;
use super::value::Evaluated;
use crate::import::data::{Split, hub_file, hub_split, is_file, located, names_of};

/// Builders of the `datasets` library that read files.
const BUILDERS: [&str; 5] = ["json", "csv", "parquet", "text", "pandas"];

impl<'r> RowsOf<'r> {
    /// The data set of a call of `load_dataset`.
    pub(super) fn load(&mut self, call: &'r Called, part: Option<&str>) -> bool {
        let Some(path) = self.text(call, "path", Some(0)) else {
            // One that cannot be evaluated was told.
            return call.argument("path", Some(0)).is_some();
        };
        let usual = part.unwrap_or("train").to_owned();
        let split = match call.argument("split", Some(4)).map(|bound| &bound.value) {
            None => Some(usual),
            // Splits of a list are told apart by their positions.
            Some(splits) => match (splits.members(), part.and_then(|part| part.parse::<usize>().ok())) {
                (Some(splits), Some(position)) => splits.get(position).and_then(Evaluated::text).map(str::to_owned),
                (None, _) if splits.is_nothing() => Some(usual),
                (None, _) => self.text(call, "split", Some(4)),
                (Some(_), None) => None,
            },
        };
        let Some(split) = split else {
            return !self.found.notes.is_empty();
        };
        self.assume(call);
        let before = self.found.sets.len();
        for split in split.split('+') {
            self.load_split(call, &path, split.trim());
        }
        self.found.sets.len() > before || !self.found.notes.is_empty()
    }

    /// One split of it.
    fn load_split(&mut self, call: &'r Called, path: &str, split: &str) {
        let name = split.split('[').next().unwrap_or_default();
        let files = call.argument("data_files", Some(3)).map(|bound| bound.value.plain());
        let paths: Vec<PathBuf> = match files {
            Some(Some(Value::Null)) | None => match BUILDERS.contains(&path) || is_file(self.file, path) {
                true if BUILDERS.contains(&path) => Vec::new(),
                true => vec![located(self.file, path)],
                false => self.on_hub(call, path, name).into_iter().collect(),
            },
            Some(None) => Vec::new(),
            Some(Some(files)) if BUILDERS.contains(&path) => {
                let names = names_of(&files, name);
                names.iter().map(|file| located(self.file, file)).collect()
            }
            Some(Some(files)) => {
                let revision = call.argument("revision", None).and_then(|bound| bound.value.text());
                let names = names_of(&files, name).into_iter();
                let addresses = names.filter_map(|file| hub_file(path, revision.map(str::to_owned), file));
                addresses.collect()
            }
        };
        if paths.is_empty() {
            return self.note(
                call.line,
                format_args!("`load_dataset(\"{path}\", ..)` names neither files of rows nor a data set of the hub: name one with `--data`"),
            );
        }
        self.found.is_text |= path == "text";
        self.found.sets.push(paths);
        self.part_of(call, split);
    }

    /// Rows of a split that a call reads.
    fn part_of(&mut self, call: &'r Called, split: &str) {
        match Split::of(split) {
            Some(Split::All) => {}
            Some(Split::First(rows)) => self.limit(call.line, rows),
            Some(Split::Percent(percent)) => self.found.share = Some(percent / 100.0),
            None => self.note(
                call.line,
                format_args!("`split=\"{split}\"` is not known here: all of the rows are taken; write `data.max_rows`"),
            ),
        }
    }

    fn on_hub(&self, call: &Called, id: &str, split: &str) -> Option<PathBuf> {
        let of = |name: &str, position| {
            let bound = call.argument(name, position)?;
            bound.value.text().map(str::to_owned)
        };
        hub_split(id, of("revision", None), of("name", Some(1)), split)
    }

    /// The text that an argument is; one that is not known is told.
    fn text(&mut self, call: &Called, name: &str, position: Option<usize>) -> Option<String> {
        let bound = call.argument(name, position)?;
        let text = bound.value.text().map(str::to_owned);
        if text.is_none() {
            self.note(
                bound.line,
                format_args!(
                    "`{name}={}` of the rows cannot be evaluated: name them with `--data`",
                    bound.text
                ),
            );
        }
        text
    }

    /// Tells what was assumed for arguments, and which of them are left out.
    fn assume(&mut self, call: &Called) {
        for (name, position) in [
            ("path", 0),
            ("name", 1),
            ("data_dir", 2),
            ("data_files", 3),
            ("split", 4),
        ] {
            let Some(bound) = call.argument(name, Some(position)) else {
                continue;
            };
            let grounds = bound.value.all_grounds().into_iter();
            self.found.notes.extend(grounds.map(|ground| ground.to_string()));
            let is_left_out = match bound.value.plain() {
                Some(value) => name == "data_dir" && !value.is_null(),
                None => true,
            };
            if is_left_out {
                self.note(
                    bound.line,
                    format_args!(
                        "`{name}={}` of the rows is left out: name them with `--data`",
                        bound.text
                    ),
                );
            }
        }
    }

    /// The file that a function reads.
    pub(super) fn read(&mut self, call: &'r Called) -> bool {
        let path = call.argument("path_or_paths", Some(0)).map(|bound| bound.value.plain());
        let paths = path.flatten().map(|path| names_of(&path, "train")).unwrap_or_default();
        let paths: Vec<PathBuf> = paths.iter().map(|path| located(self.file, path)).collect();
        let is_known = !paths.is_empty();
        if is_known {
            self.found.sets.push(paths);
        }
        is_known
    }
}
