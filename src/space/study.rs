//! A study read from its file and found sound: everything the study loop needs to begin.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::loader::Loader;
use super::yaml::Document;
use super::{Destination, SpaceError, Target};
use peft_tune_core::objective::{Constraint, Objective};
use peft_tune_core::predict::DevicePrice;
use peft_tune_core::recipe::Recipe;
use peft_tune_core::space::{ConfirmPlan, PrunerChoice, SearchSpace, StopRule};
use peft_tune_core::study::{LauncherSettings, Params, TrialPlan};
use peft_tune_search::SamplerChoice;

/// What a study file says.
#[derive(Clone, Debug, PartialEq)]
pub struct Study {
    pub name: String,
    /// The recipe that sampled values complete: defaults with the file's fixed values, paths absolute. `None` with a
    /// command backend.
    pub base: Option<Recipe>,
    /// Whether the search finds how long the exported recipe trains; one epoch then stands in for it in `base`.
    pub finds_length: bool,
    /// Values that the file fixes, by parameter name; they are part of every trial.
    pub fixed: Params,
    /// What is sampled; never empty.
    pub space: SearchSpace,
    /// What the file says of the setting that the recommended one is compared with; values may lie outside the space.
    pub baseline: Params,
    /// 1 to 4, each with a different metric.
    pub objectives: Vec<Objective>,
    pub constraints: Vec<Constraint>,
    /// The phases that tell the metrics of objectives and constraints; neither with a command backend.
    pub plan: TrialPlan,
    pub budget: Budget,
    /// Price of the devices that trials run on, where someone says it. It decides nothing of a trial.
    pub price: Option<DevicePrice>,
    pub pruner: PrunerChoice,
    /// Ends the study before its budget; `None` where only the budget does.
    pub stop: Option<StopRule>,
    /// How the recommendation is confirmed; `None` where it is not.
    pub confirm: Option<ConfirmPlan>,
    /// Earlier studies that it starts from.
    pub warm_start: WarmStart,
    /// Device memory above which a trial is out of memory, in bytes.
    pub memory_limit_bytes: Option<u64>,
    /// Wall time after which a trial is stopped, in seconds.
    pub trial_timeout_s: Option<f64>,
    pub seed: u64,
    pub sampler: SamplerChoice,
    pub backend: Backend,
    /// Whether the file leaves the engine to the search; `backend` is the built-in one until it has chosen.
    pub engine_is_open: bool,
    /// How trial processes are started.
    pub launcher: LauncherSettings,
    /// The stack that the settings are for, where it is another.
    pub target: Option<Target>,
    /// Destinations that the study is tracked in, paths absolute. They decide nothing of a trial.
    pub track: Vec<Destination>,
    pub source: Source,
}

/// Budget of a study: it ends at whichever comes first. At least one is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    pub trials: Option<u64>,
    pub time_s: Option<f64>,
}

/// Earlier studies of the database that a study may start from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WarmStart {
    /// No earlier study.
    #[default]
    Off,
    /// Studies on the same model, data and machine (with the same command, where one runs the trials).
    Alike,
    /// Studies of these names.
    Named(Vec<String>),
}

/// What runs the trials.
#[derive(Clone, Debug, PartialEq)]
pub enum Backend {
    /// The built-in training engine.
    Native,
    /// TRL's trainer on PyTorch, in an interpreter of the user's.
    Trl(TrlBackend),
    /// A program, run once per trial.
    Command(CommandBackend),
}

/// Kind of a backend, without what belongs to one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    Native,
    Trl,
    Unsloth,
    Command,
}

impl Backend {
    /// Kind of the backend.
    pub fn kind(&self) -> BackendKind {
        match self {
            Self::Native => BackendKind::Native,
            Self::Trl(backend) => match backend.loader {
                Loader::Transformers => BackendKind::Trl,
                Loader::Unsloth => BackendKind::Unsloth,
            },
            Self::Command(_) => BackendKind::Command,
        }
    }

    /// Whether a trial is the training of a recipe; see [`BackendKind::trains_recipes`].
    pub fn trains_recipes(&self) -> bool {
        self.kind().trains_recipes()
    }

    /// Name of the backend, as study files have it.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }
}

impl BackendKind {
    /// All kinds.
    const ALL: [Self; 4] = [Self::Native, Self::Trl, Self::Unsloth, Self::Command];

    /// Whether a trial is the training of a recipe, whose settings, phases and metrics are known; a command's trials are what it
    /// makes of its parameters.
    pub fn trains_recipes(self) -> bool {
        match self {
            Self::Native | Self::Trl | Self::Unsloth => true,
            Self::Command => false,
        }
    }

    /// Name of the kind, as study files have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Trl => "trl",
            Self::Unsloth => "unsloth",
            Self::Command => "command",
        }
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What loads the models of trials that run in a Python; `None` of all others.
    pub fn loader(self) -> Option<Loader> {
        match self {
            Self::Trl => Some(Loader::Transformers),
            Self::Unsloth => Some(Loader::Unsloth),
            Self::Native | Self::Command => None,
        }
    }
}

/// The Python that trains with TRL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrlBackend {
    pub loader: Loader,
    /// Path of the interpreter, absolute; that of the active environment where absent.
    pub python: Option<PathBuf>,
}

impl TrlBackend {
    /// Trials on models of this loader, in the interpreter of the active environment.
    pub fn by(loader: Loader) -> Self {
        Self { loader, python: None }
    }
}

/// A program that runs trials.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandBackend {
    /// Program and arguments; never empty.
    pub command: Vec<String>,
    /// Folder that the command runs in, absolute.
    pub folder: PathBuf,
    /// Environment variables that are set for it.
    pub env: BTreeMap<String, String>,
    /// Steps of a whole trial, where the file says so.
    pub steps: Option<u64>,
}

/// The file that a study came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// SHA-256 of the text, in hexadecimal.
    pub sha256: String,
    pub(super) document: Document,
}

impl Source {
    /// The file as it was named to the program.
    pub fn path(&self) -> &std::path::Path {
        self.document.path()
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        self.document.text()
    }
}

impl Study {
    /// A mistake that only someone above this floor can see (an unknown sampler option, say), pointing at the value
    /// under `keys`. `message` is a fragment that ends in what to do.
    pub fn reject(&self, keys: &[&str], message: impl Into<String>) -> SpaceError {
        SpaceError::Rejected {
            at: self.source.document.value(keys),
            message: message.into(),
        }
    }

    /// The fixed and the sampled values together, sampled ones first in rank.
    pub fn all_params(&self, sampled: &Params) -> Params {
        let mut params = self.fixed.clone();
        params.extend(sampled.iter().map(|(name, value)| (name.clone(), value.clone())));
        params
    }
}
