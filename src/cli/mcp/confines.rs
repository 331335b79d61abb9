//! What an agent may reach: files below one directory, and what its studies may read and start.

use std::io;
use std::path::{Path, PathBuf};

use crate::cli::CliError;
use crate::space::{Backend, Destination, Study};
use peft_tune_core::recipe::{AdapterSettings, DataSettings, HubDataSet, Recipe};
use peft_tune_core::study::{AccuracyPlan, TrainPlan, TrialPlan};

/// What an agent may reach. The paths are absolute, with symbolic links followed.
#[derive(Debug)]
pub(super) struct Confines {
    pub root: PathBuf,
    /// The results database, below the root.
    pub database: PathBuf,
    also_read: Vec<PathBuf>,
    allow_commands: bool,
}

impl Confines {
    /// Makes the confines of a server. A relative `database` lies below `root`.
    ///
    /// # Errors
    /// Bad input: a directory that is not there, a database outside of the root.
    pub(super) fn new(
        root: &Path,
        also_read: &[PathBuf],
        allow_commands: bool,
        database: &Path,
    ) -> Result<Self, CliError> {
        let directory = |path: &Path| match path.canonicalize() {
            Ok(path) if path.is_dir() => Ok(path),
            Ok(_) => Err(CliError::bad(format!("{} is no directory", path.display()))),
            Err(error) => Err(CliError::bad(format!("{}: {error}", path.display()))),
        };
        let mut confines = Self {
            root: directory(root)?,
            database: PathBuf::new(),
            also_read: also_read.iter().map(|path| directory(path)).collect::<Result<_, _>>()?,
            allow_commands,
        };
        confines.database = confines.path(database)?;
        Ok(confines)
    }

    /// Resolves a path that an agent gave, of something that is there or could be.
    ///
    /// # Errors
    /// Bad input: it leads out of the root.
    pub(super) fn path(&self, path: &Path) -> Result<PathBuf, CliError> {
        let whole = followed(&self.root.join(path)).map_err(|error| bad_path(path, &error))?;
        match whole.starts_with(&self.root) {
            true => Ok(whole),
            false => Err(CliError::bad(format!(
                "{} lies outside of {}, the directory that this server was started with: give a path below it",
                path.display(),
                self.root.display()
            ))),
        }
    }

    /// Refuses a study that reaches further than these confines.
    ///
    /// # Errors
    /// Bad input: the study runs programs that it names, to train or to score, or reads files from elsewhere.
    pub(super) fn check_study(&self, study: &Study) -> Result<(), CliError> {
        let Study {
            name,
            base,
            backend,
            engine_is_open,
            launcher,
            track,
            plan,
            // Numbers, choices, and names of other studies of the database.
            finds_length: _,
            fixed: _,
            space: _,
            baseline: _,
            objectives: _,
            constraints: _,
            budget: _,
            price: _,
            pruner: _,
            stop: _,
            confirm: _,
            warm_start: _,
            memory_limit_bytes: _,
            trial_timeout_s: _,
            seed: _,
            sampler: _,
            target: _,
            source: _,
        } = study;
        // An engine that is left open may turn out to be a Python.
        let is_own = *backend == Backend::Native && !engine_is_open && launcher.is_local();
        if !is_own && !self.allow_commands {
            return Err(CliError::bad(format!(
                "study {name} runs programs that its file names (`backend` or `launcher`): a person has to start this server \
                 with --allow-commands for that"
            )));
        }
        self.check_plan(name, plan)?;
        track.iter().try_for_each(|to| self.check_tracker(to))?;
        base.as_ref().map_or(Ok(()), |base| self.check_recipe(base))
    }

    /// Refuses an engine that a study goes on with beside its file, where that starts a program.
    ///
    /// # Errors
    /// Bad input: trials would train in a Python, and commands are not allowed.
    pub(super) fn check_backend(&self, study: &str, backend: Option<&str>) -> Result<(), CliError> {
        match backend.filter(|name| *name != Backend::Native.name() && !self.allow_commands) {
            None => Ok(()),
            Some(name) => Err(CliError::bad(format!(
                "study {study} trains in a Python on this machine (`backend: {name}`): a person has to start this server with \
                 --allow-commands for that"
            ))),
        }
    }

    /// Refuses a plan of trials whose answers a program scores.
    ///
    /// # Errors
    /// Bad input: the plan names a program, and commands are not allowed.
    fn check_plan(&self, study: &str, plan: &TrialPlan) -> Result<(), CliError> {
        // A profile phase has numbers only.
        let TrialPlan { measure: _, train } = plan;
        let Some(train) = train else { return Ok(()) };
        let TrainPlan {
            accuracy,
            length: _,
            evaluations: _,
            evaluation_rows: _,
            seed_offset: _,
        } = train;
        let AccuracyPlan {
            score,
            check: _,
            fp32_training: _,
            retained_loss: _,
            base_kl: _,
            is_required: _,
        } = accuracy;
        let runs_program = score.as_ref().is_some_and(|score| score.command.is_some());
        match runs_program && !self.allow_commands {
            false => Ok(()),
            true => Err(CliError::bad(format!(
                "study {study} runs a program that its file names (`score.command`): a person has to start this server with \
                 --allow-commands for that"
            ))),
        }
    }

    /// Refuses a tracker's destination outside of these confines.
    ///
    /// # Errors
    /// Bad input: it sends the study to a server, or writes outside of the root.
    fn check_tracker(&self, to: &Destination) -> Result<(), CliError> {
        if to.is_address() {
            return Err(CliError::bad(format!(
                "`track: {to}` sends the study to a server, which an agent may not: remove it from the file; a person can run \
                 `peft-tune track --to {to}`"
            )));
        }
        self.path(Path::new(&to.place)).map(drop)
    }

    /// Refuses a recipe that reads files outside of these confines.
    ///
    /// # Errors
    /// Bad input: its model, its data or the adapter that it starts from lie elsewhere. Models and data sets of the hub lie
    /// nowhere.
    pub(super) fn check_recipe(&self, recipe: &Recipe) -> Result<(), CliError> {
        let Recipe {
            model,
            data,
            adapter,
            // Numbers and choices.
            precision: _,
            activation_quantization: _,
            weight_sparsity: _,
            quantization_aware: _,
            precision_schedule: _,
            batch: _,
            gradient_checkpointing: _,
            optimizer: _,
            schedule: _,
            training: _,
            torch: _,
            trainer: _,
            beta: _,
            reference: _,
        } = recipe;
        let DataSettings {
            train,
            held_out,
            retain,
            chat_template,
            held_out_length: _,
            format: _,
            columns: _,
            loss_on: _,
            template_targets: _,
            long_rows: _,
            max_rows: _,
            tokenizing_workers: _,
        } = data;
        let files = train.files().chain(held_out.files()).chain(retain).chain(chat_template);
        let model = Path::new(model);
        let is_path = model.is_absolute() || self.root.join(model).exists();
        let model = is_path.then_some(model);
        files
            .map(PathBuf::as_path)
            .filter(|path| !HubDataSet::is_written(path))
            .chain(model)
            .chain(adapter.as_ref().and_then(starting_folder))
            .try_for_each(|path| self.check_read(path))
    }

    fn check_read(&self, path: &Path) -> Result<(), CliError> {
        let whole = followed(&self.root.join(path)).map_err(|error| bad_path(path, &error))?;
        let mut folders = std::iter::once(&self.root).chain(&self.also_read);
        match folders.any(|folder| whole.starts_with(folder)) {
            true => Ok(()),
            false => Err(CliError::bad(format!(
                "{} lies outside of {}: a person has to start this server with --also-read for the directory that it lies in",
                path.display(),
                self.root.display()
            ))),
        }
    }
}

/// The folder of the adapter that an adapter's training starts from.
fn starting_folder(adapter: &AdapterSettings) -> Option<&Path> {
    let AdapterSettings {
        adapter_init,
        // Numbers, choices, and names within the model.
        rank: _,
        alpha: _,
        dropout: _,
        target_modules: _,
        target_parameters: _,
        rslora: _,
        dora: _,
        init: _,
        bias: _,
        lora_bias: _,
        rank_pattern: _,
        alpha_pattern: _,
        layers_to_transform: _,
        modules_to_save: _,
    } = adapter;
    adapter_init.as_deref()
}

fn bad_path(path: &Path, error: &io::Error) -> CliError {
    CliError::bad(format!("{}: {error}", path.display()))
}

/// A path without symbolic links and `..`. What is not there yet keeps its name, below a folder that is followed.
///
/// # Errors
/// A link that leads nowhere; `..` behind something that is not there.
fn followed(path: &Path) -> io::Result<PathBuf> {
    if path.symlink_metadata().is_ok() {
        return path.canonicalize();
    }
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => Ok(followed(folder)?.join(name)),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{ReadOptions, StudyFile};

    fn confines(root: &Path) -> Confines {
        Confines::new(root, &[], false, Path::new("peft-tune.db")).unwrap()
    }

    #[test]
    fn paths_that_leave_the_root_are_refused_however_they_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("inside")).unwrap();
        std::fs::create_dir(folder.path().join("root-beside")).unwrap();
        let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, root.join(name)).unwrap();
        link(folder.path(), "out");
        link(&folder.path().join("missing"), "nowhere");
        link(&root.join("inside"), "in");
        let confines = confines(&root);
        for wrong in [
            "..",
            "../x",
            "inside/../../x",
            "missing/../../x",
            "out",
            "out/x",
            "nowhere",
            "/etc/passwd",
            "../root-beside",
        ] {
            assert!(confines.path(Path::new(wrong)).is_err(), "{wrong}");
        }
        let root = root.canonicalize().unwrap();
        for (right, whole) in [
            ("a/b", "a/b"),
            ("in/new", "inside/new"),
            ("inside/../x", "x"),
            ("./x", "x"),
        ] {
            assert_eq!(confines.path(Path::new(right)).unwrap(), root.join(whole), "{right}");
        }
    }

    #[test]
    fn models_and_data_of_elsewhere_need_a_persons_word() {
        let folder = tempfile::tempdir().unwrap();
        let (root, data) = (folder.path().join("root"), folder.path().join("data"));
        std::fs::create_dir(&root).unwrap();
        std::fs::create_dir(&data).unwrap();
        let recipe = |model: &str| Recipe::new(model, Default::default());
        let here = confines(&root);
        assert!(here.check_recipe(&recipe("Qwen/Qwen2.5-0.5B")).is_ok());
        let elsewhere = recipe(data.to_str().unwrap());
        assert!(
            here.check_recipe(&elsewhere)
                .unwrap_err()
                .to_string()
                .contains("--also-read")
        );
        let allowed = Confines::new(&root, std::slice::from_ref(&data), false, Path::new("peft-tune.db")).unwrap();
        assert!(allowed.check_recipe(&elsewhere).is_ok());
        assert!(Confines::new(&root, &[], false, &data.join("peft-tune.db")).is_err());
    }

    #[test]
    fn an_adapter_of_elsewhere_needs_a_persons_word() {
        let folder = tempfile::tempdir().unwrap();
        let (root, elsewhere) = (folder.path().join("root"), folder.path().join("adapter"));
        std::fs::create_dir_all(root.join("adapter")).unwrap();
        std::fs::create_dir(&elsewhere).unwrap();
        let recipe = |adapter: &Path| {
            let mut recipe = Recipe::new("Qwen/Qwen2.5-0.5B", Default::default());
            recipe.adapter = Some(AdapterSettings {
                adapter_init: Some(adapter.to_owned()),
                ..AdapterSettings::default()
            });
            recipe
        };
        let here = confines(&root);
        assert!(here.check_recipe(&recipe(&root.join("adapter"))).is_ok());
        let refused = here.check_recipe(&recipe(&elsewhere)).unwrap_err().to_string();
        assert!(refused.contains("--also-read"), "{refused}");
    }

    #[test]
    fn a_program_that_scores_answers_needs_a_persons_word() {
        let folder = tempfile::tempdir().unwrap();
        let text = "model: m\ndata: {train: [a.jsonl]}\nspace: {rank: [4, 8]}\nobjectives: [throughput, found]\n\
                    score: {command: [run], metrics: {found: maximize}}\n";
        let options = ReadOptions { check_files: false };
        let study = StudyFile::parse(&folder.path().join("space.yaml"), text, options).unwrap();
        let refused = confines(folder.path()).check_study(&study).unwrap_err().to_string();
        assert!(refused.contains("`score.command`"), "{refused}");
        assert!(refused.contains("--allow-commands"), "{refused}");
        let allowed = Confines::new(folder.path(), &[], true, Path::new("peft-tune.db")).unwrap();
        assert!(allowed.check_study(&study).is_ok());
    }
}
