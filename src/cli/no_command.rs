//! The program alone, without a command: what to do next in this folder.

use std::fs;
use std::path::Path;

use crate::cli::CliError;
use crate::cli::init::found_here;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::output::write_result;
use crate::report::printable;
use crate::shell::command_line;
use crate::store::StudyOverview;

/// Largest file that may be a study file, in bytes.
const STUDY_FILE_BYTES: u64 = 1 << 20;

/// The state of this folder in words, and the commands that go on from it with what each does.
struct NextSteps {
    what: String,
    next: Vec<(String, &'static str)>,
}

pub(super) fn run() -> Result<(), CliError> {
    let here = NextSteps::look(&DatabaseArgs::default());
    let width = here.next.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    let next: Vec<String> = here
        .next
        .iter()
        .map(|(command, does)| format!("  {command:width$}   {does}\n"))
        .collect();
    write_result(&format!(
        "peft-tune finds the LoRA and QLoRA settings worth using for your model, data and machine.\nHere: {}\n{}All commands: \
         peft-tune --help\n",
        here.what,
        next.concat()
    ))
}

impl NextSteps {
    fn look(database: &DatabaseArgs) -> Self {
        let path = database.path();
        let file = study_file(Path::new("."));
        match path
            .exists()
            .then(|| database.read(async |store| store.studies().all().await))
        {
            Some(Ok(studies)) if !studies.is_empty() => Self::with_results(database, &studies),
            Some(Err(error)) => Self {
                what: printable(&format!("{}: {}", path.display(), error.shown())),
                next: vec![(
                    database.command(&["studies"], None),
                    "says what is wrong with the results",
                )],
            },
            _ => file.map_or_else(Self::without_study, |file| Self::with_study_file(&file)),
        }
    }

    fn with_results(database: &DatabaseArgs, studies: &[StudyOverview]) -> Self {
        let started = |study: &&StudyOverview| study.resumed_at.clone().unwrap_or_else(|| study.created_at.clone());
        let latest = studies.iter().max_by_key(started).map(|study| study.name.as_str());
        let count = match studies.len() {
            1 => "a study".to_owned(),
            count => format!("{count} studies"),
        };
        let what = format!(
            "results of {count} in {}; the latest is {}.",
            database.path().display(),
            latest.unwrap_or_default()
        );
        let command = |words: &[&str]| database.command(words, latest);
        Self {
            what: printable(&what),
            next: vec![
                (command(&["show"]), "its best settings, and the one to use"),
                (command(&["explain"]), "why that one, and what each setting changes"),
                (command(&["dashboard"]), "all of it in the browser"),
            ],
        }
    }

    fn with_study_file(file: &str) -> Self {
        Self {
            what: printable(&format!("the study file {file}, and no results yet.")),
            next: vec![
                (
                    of(&["plan", file]),
                    "what each setting would cost, before anything runs",
                ),
                (
                    of(&["search", file]),
                    "finds the best ones; Ctrl-C ends it, and nothing is lost",
                ),
            ],
        }
    }

    fn without_study() -> Self {
        let (model, data) = (found_here::models(), found_here::data_files(Path::new(".")));
        let what = match (model.first(), data.first()) {
            (Some(model), Some(data)) => format!("the model {model} and the data {data}, and no study file."),
            (Some(model), None) => format!("the model {model}, and no study file."),
            (None, Some(data)) => format!("the data {data}, and no study file."),
            (None, None) => "no study file and no results.".to_owned(),
        };
        Self {
            what: printable(&what),
            next: vec![
                (of(&["init"]), "asks for your model and data, and writes a study file"),
                (
                    of(&["quickstart"]),
                    "shows it all on a small model that is in the program, in two minutes",
                ),
            ],
        }
    }
}

fn of(words: &[&str]) -> String {
    command_line(["peft-tune"].into_iter().chain(words.iter().copied()))
}

/// The study file of a folder that was written last: a YAML file with a search space.
fn study_file(folder: &Path) -> Option<String> {
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let files = entries.filter_map(|entry| {
        let path = entry.path();
        let is_yaml = path
            .extension()
            .is_some_and(|ending| ending == "yaml" || ending == "yml");
        let about = is_yaml.then(|| fs::metadata(&path).ok()).flatten()?;
        let is_small = about.is_file() && about.len() <= STUDY_FILE_BYTES;
        let text = is_small.then(|| fs::read_to_string(&path).ok()).flatten()?;
        let has_space = text.lines().any(|line| line.starts_with("space:"));
        has_space.then(|| (about.modified().ok(), entry.file_name().to_string_lossy().into_owned()))
    });
    files.max().map(|(_, name)| name)
}
