//! Rows that a script trains on: files, data sets of the hub, parts and mixtures of them, followed back from what the trainer is given.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::Value;

use super::run::{Bound, Called, Run};
use super::syntax::Function;
use super::value::{Evaluated, Known};

/// Steps back that are taken at the most.
const MOST_STEPS: usize = 60;

/// Functions that read files: those of `Dataset`, and of pandas.
const READERS: &[&str] = &[
    "from_json",
    "from_csv",
    "from_parquet",
    "from_text",
    "read_json",
    "read_csv",
    "read_parquet",
];

/// What a method of rows does to them.
#[derive(Clone, Copy, Debug)]
enum Effect {
    /// The rows themselves stay as they are.
    Nothing,
    Map,
    Select,
    /// Some rows are left out, by a rule that is not followed.
    LeavesOut,
    Rename,
    ChooseColumns,
    SplitOff,
    /// Parts of a split, one after the other.
    Parts,
}

/// Methods of rows.
const METHODS: &[(&str, Effect)] = &[
    ("map", Effect::Map),
    ("select", Effect::Select),
    ("take", Effect::Select),
    ("filter", Effect::LeavesOut),
    ("skip", Effect::LeavesOut),
    ("shard", Effect::LeavesOut),
    ("rename_column", Effect::Rename),
    ("rename_columns", Effect::Rename),
    ("select_columns", Effect::ChooseColumns),
    ("train_test_split", Effect::SplitOff),
    ("values", Effect::Parts),
    ("shuffle", Effect::Nothing),
    ("sort", Effect::Nothing),
    ("remove_columns", Effect::Nothing),
    ("with_format", Effect::Nothing),
    ("with_transform", Effect::Nothing),
    ("cast", Effect::Nothing),
    ("cast_column", Effect::Nothing),
    ("flatten", Effect::Nothing),
    ("flatten_indices", Effect::Nothing),
    ("to_iterable_dataset", Effect::Nothing),
    ("add_column", Effect::Nothing),
    ("class_encode_column", Effect::Nothing),
    ("repeat", Effect::Nothing),
];

/// Functions whose first argument is rows, which they give back in another form.
const CHANGE_FORM: &[&str] = &[
    "standardize_sharegpt",
    "standardize_data_formats",
    "to_sharegpt",
    "from_pandas",
    "DatasetDict",
];

/// Rows as a script makes them.
#[derive(Clone, Debug, Default)]
pub(super) struct FoundRows {
    /// Files or addresses of each set, in the order of the text.
    pub sets: Vec<Vec<PathBuf>>,
    pub is_mixed: bool,
    /// Shares of the sets in a mixture.
    pub weights: Option<Vec<f64>>,
    /// Rows from the beginning, so many of each set.
    pub first: Option<usize>,
    /// A share of the rows from the beginning.
    pub share: Option<f64>,
    /// Share that a part of the rows was split off as, and whether the rows are that part.
    pub split_off: Option<(f64, bool)>,
    /// Columns by the names that they have behind a change of it.
    pub renames: BTreeMap<String, String>,
    /// Columns that are chosen of all, where some are.
    pub chosen: Vec<String>,
    /// Functions that rows go through, with the lines that say so.
    pub functions: Vec<(Rc<Function>, usize)>,
    pub is_text: bool,
    /// What is not as in the script, with what to do.
    pub notes: Vec<String>,
}

/// Follows rows back.
pub(super) struct RowsOf<'r> {
    pub(super) run: &'r Run<'r>,
    /// The script, which relative paths may begin beside.
    pub(super) file: &'r Path,
    pub(super) found: FoundRows,
    steps: usize,
}

impl<'r> RowsOf<'r> {
    /// The rows that a value stands for.
    pub(super) fn follow(run: &'r Run<'r>, file: &'r Path, rows: &Bound) -> FoundRows {
        let mut all = Self {
            run,
            file,
            found: FoundRows::default(),
            steps: 0,
        };
        if !all.value(&rows.value.known, None) {
            let (location, text) = (run.location(rows.line), &rows.text);
            all.found.notes.push(format!(
                "{location}: which rows `{text}` are cannot be told: name them with `--data`"
            ));
        }
        let grounds = rows.value.grounds.iter().map(|ground| ground.to_string());
        all.found.notes.extend(grounds);
        all.found
    }

    pub(super) fn note(&mut self, line: usize, message: impl std::fmt::Display) {
        let location = self.run.location(line);
        self.found.notes.push(format!("{location}: {message}"));
    }

    /// Whether it is known which rows a value stands for, or told which are not.
    fn value(&mut self, known: &Known, part: Option<&str>) -> bool {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return false;
        }
        match known {
            Known::Part(whole, key) => self.value(whole, Some(key)),
            Known::Result(id) => match self.run.calls.get(*id) {
                Some(call) => self.call(call, part),
                None => false,
            },
            Known::Map(entries) => {
                let key = part.unwrap_or("train");
                let entry = entries.iter().rfind(|(name, _)| name == key);
                entry.is_some_and(|(_, value)| self.value(&value.known, None))
            }
            _ => false,
        }
    }

    fn call(&mut self, call: &'r Called, part: Option<&str>) -> bool {
        let name = call.short_name();
        let method = METHODS.iter().find(|(method, _)| *method == name);
        if let (Some((_, effect)), Some(receiver)) = (method, &call.receiver) {
            let part = self.change(*effect, call, part);
            return self.value(&receiver.known, part);
        }
        match name {
            "load_dataset" => self.load(call, part),
            "concatenate_datasets" => self.each(call, "dsets"),
            "interleave_datasets" => {
                self.found.is_mixed = true;
                let weights = call.argument("probabilities", Some(1));
                let weights = weights.and_then(|bound| bound.value.plain());
                self.found.weights = weights.and_then(|weights| numbers(&weights));
                self.each(call, "datasets")
            }
            _ if READERS.contains(&name) => self.read(call),
            _ if CHANGE_FORM.contains(&name) => {
                let first = call.arguments.positional.first();
                first.is_some_and(|first| self.value(&first.value.known, part))
            }
            _ => {
                self.note(
                    call.line,
                    format_args!("rows of `{name}(..)` are made in code: name a file of them with `--data`"),
                );
                true
            }
        }
    }

    /// Notes what a method does to rows, and gives the part of its receiver that is followed.
    fn change<'p>(&mut self, effect: Effect, call: &'r Called, part: Option<&'p str>) -> Option<&'p str> {
        match effect {
            Effect::Nothing => {}
            Effect::Map => self.map(call),
            Effect::Select => self.select(call),
            Effect::LeavesOut => {
                let name = call.short_name();
                self.note(
                    call.line,
                    format_args!("rows that `{name}` leaves out there are read here"),
                );
            }
            Effect::Rename => self.rename(call),
            Effect::ChooseColumns => {
                let columns = call.argument("column_names", Some(0));
                let columns = columns.and_then(|bound| bound.value.members()).unwrap_or_default();
                let names = columns.iter().filter_map(Evaluated::text).map(str::to_owned);
                self.found.chosen = names.collect();
            }
            Effect::SplitOff => {
                self.split_off(call, part);
                return None;
            }
            Effect::Parts => {
                return match part {
                    Some("0") => Some("train"),
                    Some("1") => Some("test"),
                    other => other,
                };
            }
        }
        part
    }

    /// Sets that are put together.
    fn each(&mut self, call: &'r Called, name: &str) -> bool {
        let sets = call.argument(name, Some(0)).and_then(|bound| bound.value.members());
        let Some(sets) = sets else {
            return false;
        };
        let mut is_read = true;
        for set in sets.iter() {
            is_read &= self.value(&set.known, None);
        }
        is_read
    }

    /// The share that is split off.
    fn split_off(&mut self, call: &'r Called, part: Option<&str>) {
        let is_rest = matches!(part, Some("test" | "1"));
        let of = |name: &str, position| {
            let bound = call.argument(name, position)?;
            bound.value.plain()?.as_f64()
        };
        let share = of("test_size", Some(0)).or_else(|| of("train_size", Some(1)).map(|share| 1.0 - share));
        match share {
            Some(share) if share > 0.0 && share < 1.0 => self.found.split_off = Some((share, is_rest)),
            Some(rows) => self.note(
                call.line,
                format_args!("{rows} rows are held out there: write their share in `data.held_out`"),
            ),
            // The library's own.
            None => self.found.split_off = Some((0.25, is_rest)),
        }
    }

    /// Rows that are chosen by their numbers.
    fn select(&mut self, call: &'r Called) {
        let chosen = call.argument("indices", Some(0)).or_else(|| call.argument("n", None));
        let run = self.run;
        let range = chosen.and_then(|bound| match &bound.value.known {
            Known::Result(id) => run.calls.get(*id).filter(|call| call.function == "range"),
            _ => None,
        });
        let bounds: Vec<Option<i64>> = match (range, chosen) {
            (Some(range), _) => {
                let all = range.arguments.positional.iter();
                all.map(|bound| bound.value.whole()).collect()
            }
            (None, Some(bound)) => vec![bound.value.whole()],
            (None, None) => Vec::new(),
        };
        let rows = match bounds[..] {
            [Some(rows)] | [Some(0), Some(rows)] => usize::try_from(rows).ok().filter(|rows| *rows > 0),
            _ => None,
        };
        match rows {
            Some(rows) => self.limit(call.line, rows),
            None => self.note(
                call.line,
                "which rows are chosen there is not known here: all of them are read; write `data.max_rows`",
            ),
        }
    }

    pub(super) fn limit(&mut self, line: usize, rows: usize) {
        match self.found.first {
            Some(own) if own != rows => {
                self.found.first = Some(own.min(rows));
                self.note(
                    line,
                    format_args!(
                        "{rows} rows are read there, and here the first {} of each set",
                        own.min(rows)
                    ),
                );
            }
            _ => self.found.first = Some(rows),
        }
    }

    fn rename(&mut self, call: &'r Called) {
        let of = |name: &str, position| {
            let bound: &Bound = call.argument(name, Some(position))?;
            bound.value.text().map(str::to_owned)
        };
        if let (Some(own), Some(name)) = (of("original_column_name", 0), of("new_column_name", 1)) {
            self.found.renames.insert(name, own);
        }
        let mapping = call.argument("column_mapping", Some(0)).map(|bound| &bound.value.known);
        if let Some(Known::Map(entries)) = mapping {
            for (own, name) in entries.iter() {
                self.found
                    .renames
                    .extend(name.text().map(|name| (name.to_owned(), own.clone())));
            }
        }
    }

    fn map(&mut self, call: &'r Called) {
        match call.argument("function", Some(0)) {
            Some(bound) => match &bound.value.known {
                Known::Function(function) => self.found.functions.push((Rc::clone(function), call.line)),
                _ => self.note(
                    bound.line,
                    format_args!(
                        "what `{}` makes of a row is not known here, and not taken over",
                        bound.text
                    ),
                ),
            },
            None => self.note(
                call.line,
                "what becomes of a row there is not known here, and not taken over",
            ),
        }
    }
}

fn numbers(value: &Value) -> Option<Vec<f64>> {
    value.as_array()?.iter().map(Value::as_f64).collect()
}
