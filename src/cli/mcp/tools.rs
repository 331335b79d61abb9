//! The tools: their arguments, and the command that each runs.

use std::any::Any;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use rmcp::handler::server::tool::{schema_for_output, schema_for_type};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::child::{Files, Output, Rows, Work};
use super::confines::Confines;
use crate::cli::CliError;
use crate::cli::export::{Format, Preference};
use crate::cli::options::database::DatabaseArgs;
use crate::cli::profile::source::{ProfileSource, SourceArgs};
use crate::cli::search::resume_command::backend_beside_file;
use crate::cli::search::study_status::StudyStatus;
use crate::report::explanation::Explained;
use crate::space::{Loader, ReadOptions, StudyFile};

/// All tools, in the order in which they are of use.
pub(super) const ROWS: [ToolRow; 9] = [
    ToolRow::of::<Plan>("plan", Effect::Adds),
    ToolRow::of::<Search>("search", Effect::Adds),
    ToolRow::of::<Status>("status", Effect::Reads),
    ToolRow::of::<Stop>("stop", Effect::Adds),
    ToolRow::of::<Resume>("resume", Effect::Adds),
    ToolRow::of::<Explain>("explain", Effect::Reads),
    ToolRow::of::<Query>("query", Effect::Reads),
    ToolRow::of::<Profile>("profile", Effect::Adds),
    ToolRow::of::<Export>("export", Effect::Adds),
];

/// A tool.
pub(super) struct ToolRow {
    pub name: &'static str,
    /// What a call with these arguments does.
    pub work: fn(JsonObject, &Confines) -> Result<Work, CliError>,
    effect: Effect,
    schema: fn() -> Arc<JsonObject>,
    answer_schema: fn() -> Arc<JsonObject>,
}

/// What a tool does to files and the database.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Reads,
    /// Adds to them, if only what a plan measures of this machine; nothing is overwritten or deleted.
    Adds,
}

impl ToolRow {
    const fn of<Call: ToolCall>(name: &'static str, effect: Effect) -> Self {
        Self {
            name,
            work: |arguments, confines| {
                let call: Call = serde_path_to_error::deserialize(Value::Object(arguments)).map_err(wrong_argument)?;
                call.work(confines)
            },
            effect,
            schema: schema_for_type::<Call>,
            answer_schema: schema_for_output::<Call::Answer>,
        }
    }

    /// The tool as a client learns of it: the first words of its arguments' schema say what it does.
    pub(super) fn described(&self) -> Tool {
        let mut schema = (*(self.schema)()).clone();
        schema.remove("title");
        let about = schema.remove("description");
        // Without the ends of the lines that it has here.
        let about = about
            .as_ref()
            .and_then(Value::as_str)
            .unwrap_or_default()
            .replace('\n', " ");
        let annotations = ToolAnnotations::new()
            .read_only(self.effect == Effect::Reads)
            .destructive(false)
            // Models of the hub are downloaded.
            .open_world(self.effect != Effect::Reads);
        Tool::new(self.name, about, schema)
            .with_raw_output_schema((self.answer_schema)())
            .with_annotations(annotations)
    }
}

fn wrong_argument(error: serde_path_to_error::Error<serde_json::Error>) -> CliError {
    let path = error.path().to_string();
    CliError::bad(match path.as_str() {
        // One that is missing or unknown, which the error names.
        "." => error.into_inner().to_string(),
        path => format!("argument `{path}`: {}", error.into_inner()),
    })
}

/// The arguments of a tool. Their text is what agents read.
trait ToolCall: DeserializeOwned + JsonSchema + Any {
    /// The object that it answers with.
    type Answer: JsonSchema + Any;

    /// Makes the command that the call stands for.
    ///
    /// # Errors
    /// Bad input: what leads out of the confines.
    fn work(self, confines: &Confines) -> Result<Work, CliError>;
}

/// Predicts memory and throughput of a study file's settings and the time that the search will take, before anything runs.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Plan {
    /// Study file (YAML), relative to the server's root.
    file: PathBuf,
    /// A device other than this machine, such as `A100 80GB`.
    device: Option<String>,
    /// Plans for another training tool: peft, trl, axolotl, llamafactory, unsloth or torchtune.
    stack: Option<String>,
    /// Settings to show; 10 where absent. Not with `stack`, which plans one setting.
    top: Option<u32>,
}

impl ToolCall for Plan {
    type Answer = JsonObject;

    fn work(self, confines: &Confines) -> Result<Work, CliError> {
        let file = study_file(&self.file, confines)?.0;
        let mut words = Words::new("plan");
        words.flag("--json", true).option("--device", self.device);
        words.option("--stack", self.stack).option("--top", self.top);
        Ok(words.behind(Some(file)).printing(Output::Json, confines))
    }
}

/// Starts the search of a study file in the background and answers with its status. The same file again continues where it
/// stopped, and nothing that finished is run again. It may use all of the machine until its budget is spent.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Search {
    /// Study file (YAML), relative to the server's root.
    file: PathBuf,
    /// Runs the file as a study of this name.
    name: Option<String>,
    /// Trials of the study in all, instead of the file's.
    trials: Option<u64>,
    /// Time that all its trials may take, such as `30m`, instead of the file's.
    time: Option<String>,
    /// Trials to run side by side; 1 where absent.
    workers: Option<u32>,
}

/// How much a search may run, instead of what its file says.
struct Budget {
    trials: Option<u64>,
    time: Option<String>,
    workers: Option<u32>,
}

impl ToolCall for Search {
    type Answer = StudyStatus;

    fn work(self, confines: &Confines) -> Result<Work, CliError> {
        let (file, study) = study_file(&self.file, confines)?;
        let budget = Budget {
            trials: self.trials,
            time: self.time,
            workers: self.workers,
        };
        Ok(search(file, self.name.unwrap_or(study), None, budget, confines))
    }
}

/// Continues a search that was stopped, in the background, and answers with its status. With more trials or time than before
/// it goes beyond its first budget.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Resume {
    /// Name of the study; the latest where absent.
    study: Option<String>,
    /// Trials of the study in all, instead of the file's.
    trials: Option<u64>,
    /// Time that all its trials may take, such as `30m`, instead of the file's.
    time: Option<String>,
    /// Trials to run side by side; 1 where absent.
    workers: Option<u32>,
}

impl ToolCall for Resume {
    type Answer = StudyStatus;

    fn work(self, confines: &Confines) -> Result<Work, CliError> {
        let database = DatabaseArgs::at(confines.database.clone());
        let study = database.read(async |store| store.studies().find(self.study.as_deref()).await)?;
        let (file, _) = study_file(&study.space_path, confines)?;
        let backend = backend_beside_file(&study);
        confines.check_backend(&study.name, backend)?;
        let budget = Budget {
            trials: self.trials,
            time: self.time,
            workers: self.workers,
        };
        Ok(search(file, study.name, backend, budget, confines))
    }
}

/// Searches a file as a study of this name; `backend` is the engine, where the file does not say which.
fn search(file: PathBuf, study: String, backend: Option<&str>, budget: Budget, confines: &Confines) -> Work {
    let mut words = Words::new("search");
    words.flag("--detach", true).option("--as", Some(&study));
    words.option("--trials", budget.trials).option("--time", budget.time);
    words.option("--workers", budget.workers).option("--backend", backend);
    words.behind(Some(file)).then(status(Some(study)), confines)
}

/// Ends a running search after the trials under way, and answers with its status: it has ended once `running` is false.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Stop {
    /// Name of the study; the latest where absent.
    study: Option<String>,
    /// Ends it at once: trials under way are run again when it resumes.
    #[serde(default)]
    now: bool,
}

impl ToolCall for Stop {
    type Answer = StudyStatus;

    fn work(self, confines: &Confines) -> Result<Work, CliError> {
        let mut words = Words::new("stop");
        words.flag("--now", self.now);
        Ok(words.behind(self.study.clone()).then(status(self.study), confines))
    }
}

/// Says where a study stands: whether it runs, trials by state, what is under way, how its last search ended.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Status {
    /// Name of the study; the latest where absent.
    study: Option<String>,
}

impl ToolCall for Status {
    type Answer = StudyStatus;

    fn work(self, confines: &Confines) -> Result<Work, CliError> {
        Ok(status(self.study).printing(Output::Json, confines))
    }
}

fn status(study: Option<String>) -> Words {
    let mut words = Words::new("status");
    words.flag("--json", true);
    words.behind(study)
}

/// Runs one SQL statement that only reads over the results database (SQLite), or a named query, and answers with its rows. Views:
/// trial_summary (a row per trial: study, trial, state, throughput, peak_memory, loss), pareto_front, best_by_objective,
/// trial_param and trial_metric (study, trial, name, value).
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Query {
    /// The statement, with a `limit` where there may be many rows, or the name of a query, such as front.
    sql: String,
    /// Study that a named query is about, the latest where absent; in a statement it is the parameter ?1.
    study: Option<String>,
}

impl ToolCall for Query {
    type Answer = Rows;

    fn work(self, confines: &Confines) -> Result<Work, CliError> {
        let mut words = Words::new("query");
        words.option("--format", Some("json")).option("--study", self.study);
        Ok(words.behind(Some(self.sql)).printing(Output::Json, confines))
    }
}

/// Says what a study found: the recommended trial and its neighbours, what each setting is worth, what is not known, and what to
/// try next.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Explain {
    /// Name of the study; the latest where absent.
    study: Option<String>,
    /// Trials to propose; 3 where absent.
    next: Option<u32>,
}

impl ToolCall for Explain {
    type Answer = Explained<'static>;

    fn work(self, confines: &Confines) -> Result<Work, CliError> {
        let mut words = Words::new("explain");
        words.flag("--json", true).option("--next", self.next);
        Ok(words.behind(self.study).printing(Output::Json, confines))
    }
}

/// Profiles one setting in depth: phases, modules, ops, memory at the peak, and a diagnosis with what would help. Computes on this
/// machine for up to a minute, and stores what it measured.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Profile {
    /// Recipe file (YAML), relative to the server's root. Give this or a trial.
    recipe: Option<PathBuf>,
    /// Takes the recipe of this trial.
    trial: Option<u64>,
    /// Study of the trial; the latest where absent.
    study: Option<String>,
    /// Time that measuring may take, such as `20s`.
    budget: Option<String>,
}

impl ToolCall for Profile {
    type Answer = JsonObject;

    fn work(self, confines: &Confines) -> Result<Work, CliError> {
        let recipe = self.recipe.map(|path| confines.path(&path)).transpose()?;
        let source = SourceArgs::new(recipe.clone(), self.trial, self.study.clone());
        let source = ProfileSource::read(&source, &DatabaseArgs::at(confines.database.clone()))?;
        confines.check_recipe(&source.recipe)?;
        confines.check_backend(&source.name, source.loader.map(Loader::name))?;
        let mut words = Words::new("profile");
        words.flag("--json", true).option("--trial", self.trial);
        words.option("--study", self.study).option("--budget", self.budget);
        Ok(words.behind(recipe).printing(Output::Json, confines))
    }
}

/// Writes the recommended trial's settings, or another trial's, as a config of a training tool, or a whole study for other tools,
/// into a directory. Answers with the files; existing ones are never overwritten.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Export {
    /// Tool to write for.
    #[schemars(schema_with = "formats")]
    format: String,
    /// Directory to write into, relative to the server's root; made if missing.
    output: PathBuf,
    /// Name of the study; the latest where absent.
    study: Option<String>,
    /// Trial to export; the recommended one where absent.
    trial: Option<u64>,
    /// Exports every trial of the front, each into a directory of its own.
    #[serde(default)]
    front: bool,
    /// Takes the best trial in this objective, or the knee of the front.
    #[schemars(schema_with = "preferences")]
    #[serde(default)]
    prefer: Option<String>,
    /// Considers only trials with at most this peak memory, such as `16GiB`.
    max_memory: Option<String>,
    /// The device that the tool will run on, such as `A100 40GB`.
    device: Option<String>,
    /// Leaves the rows as they are, also where the tool reads them otherwise than the trials did.
    #[serde(default)]
    no_data: bool,
}

impl ToolCall for Export {
    type Answer = Files;

    fn work(self, confines: &Confines) -> Result<Work, CliError> {
        let mut words = Words::new("export");
        let output = confines.path(&self.output)?.into_os_string();
        words
            .option("--format", Some(self.format))
            .option_of("--output", Some(output));
        words.option("--study", self.study).option("--trial", self.trial);
        words.flag("--front", self.front).option("--prefer", self.prefer);
        words.flag("--no-data", self.no_data);
        words
            .option("--max-memory", self.max_memory)
            .option("--device", self.device);
        Ok(words.printing(Output::Files, confines))
    }
}

fn formats(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": names::<Format>()})
}

fn preferences(_: &mut SchemaGenerator) -> Schema {
    let names = names::<Preference>().into_iter().map(Value::String);
    let with_none: Vec<Value> = names.chain([Value::Null]).collect();
    json_schema!({"type": ["string", "null"], "enum": with_none})
}

/// The values of an option of the command line.
fn names<Value: ValueEnum>() -> Vec<String> {
    let values = Value::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    values.map(|value| value.get_name().to_owned()).collect()
}

/// A study file inside the confines, with the name of its study.
fn study_file(path: &Path, confines: &Confines) -> Result<(PathBuf, String), CliError> {
    let file = confines.path(path)?;
    // Whether they are there, the command says.
    let study = StudyFile::read_with(&file, ReadOptions { check_files: false })?;
    confines.check_study(&study)?;
    Ok((file, study.name))
}

/// The words of a command. Values are joined to their flags, and what stands alone stands behind all flags: nothing that an agent
/// gives is taken for a flag.
struct Words {
    words: Vec<OsString>,
    behind: Option<OsString>,
}

impl Words {
    fn new(command: &str) -> Self {
        Self {
            words: vec![command.into()],
            behind: None,
        }
    }

    fn flag(&mut self, name: &str, is_set: bool) -> &mut Self {
        self.words.extend(is_set.then(|| name.into()));
        self
    }

    fn option(&mut self, name: &str, value: Option<impl ToString>) -> &mut Self {
        self.option_of(name, value.map(|value| value.to_string().into()))
    }

    fn option_of(&mut self, name: &str, value: Option<OsString>) -> &mut Self {
        self.words.extend(value.map(|value| {
            let mut word = OsString::from(name);
            word.push("=");
            word.push(value);
            word
        }));
        self
    }

    fn behind(mut self, value: Option<impl Into<OsString>>) -> Self {
        self.behind = value.map(Into::into);
        self
    }

    /// All words, on the results database of the confines.
    fn all(mut self, confines: &Confines) -> Vec<OsString> {
        self.option_of("--db", Some(confines.database.clone().into_os_string()));
        let behind = self.behind.map(|word| ["--".into(), word]);
        self.words.into_iter().chain(behind.into_iter().flatten()).collect()
    }

    fn printing(self, output: Output, confines: &Confines) -> Work {
        Work {
            words: self.all(confines),
            then: None,
            output,
        }
    }

    /// Runs this, and answers with what `last` prints.
    fn then(self, last: Self, confines: &Confines) -> Work {
        Work {
            words: self.all(confines),
            then: Some(last.all(confines)),
            output: Output::Json,
        }
    }
}
