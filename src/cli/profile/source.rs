//! What `profile` measures: a recipe file, or the recipe of a stored trial.

use std::path::{Path, PathBuf};

use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::space::{Loader, RecipeFile};
use crate::store::StudyId;
use peft_tune_core::objective::LOSS;
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::{Trial, TrialNumber};
use peft_tune_engine::profile::diagnosis::RankLoss;

/// Options that say which recipe is measured.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::cli) struct SourceArgs {
    /// Recipe file (YAML).
    #[arg(conflicts_with = "trial")]
    recipe: Option<PathBuf>,
    /// Take the recipe of this trial from the database instead.
    #[arg(long, value_name = "NUMBER")]
    trial: Option<u64>,
    /// Study of the trial; the latest where absent.
    #[arg(long, value_name = "NAME", requires = "trial")]
    study: Option<String>,
}

impl SourceArgs {
    pub(in crate::cli) fn new(recipe: Option<PathBuf>, trial: Option<u64>, study: Option<String>) -> Self {
        Self { recipe, trial, study }
    }

    /// The recipe file, where it is one.
    pub(in crate::cli) fn recipe(&self) -> Option<&Path> {
        self.recipe.as_deref()
    }
}

/// A recipe with what is known of its surroundings.
#[derive(Clone, Debug)]
pub(in crate::cli) struct ProfileSource {
    /// Recipe file, or study and number of the trial.
    pub name: String,
    pub recipe: Recipe,
    pub trial: Option<(StudyId, TrialNumber)>,
    /// Losses of trials that differ from this one in their rank alone.
    pub losses_by_rank: Vec<RankLoss>,
    /// What loaded the model of a trial that trained in a Python.
    pub loader: Option<Loader>,
}

impl ProfileSource {
    /// Text that what follows is of another engine than the one that trained the trial; `None` where it is of the same.
    pub(in crate::cli) fn other_engine(&self) -> Option<String> {
        let (name, title) = (&self.name, self.loader?.title());
        Some(format!(
            "{name} trained in {title}: what follows is of the built-in engine on its recipe"
        ))
    }

    /// Reads the recipe.
    pub(in crate::cli) fn read(args: &SourceArgs, database: &DatabaseArgs) -> Result<Self, CliError> {
        match (&args.recipe, args.trial) {
            (Some(path), _) => Ok(Self {
                name: path.display().to_string(),
                recipe: RecipeFile::read(path)?,
                trial: None,
                losses_by_rank: Vec::new(),
                loader: None,
            }),
            (None, Some(number)) => Self::of_trial(args.study.as_deref(), TrialNumber(number), database),
            (None, None) => {
                let message = "name a recipe file, or a trial with `--trial`";
                Err(CliError::bad_input(anyhow::anyhow!(message)))
            }
        }
    }

    fn of_trial(study: Option<&str>, number: TrialNumber, database: &DatabaseArgs) -> Result<Self, CliError> {
        let (study, detail, trials) = database.read(async |store| {
            let study = store.studies().find(study).await?;
            let detail = store.trial_details().of(study.id, number).await?;
            let trials = store.history().trials(study.id).await?;
            Ok((study, detail, trials))
        })?;
        let name = format!("{}, trial {number}", study.name);
        let recipe = detail.recipe.ok_or_else(|| {
            let message = format!("{name} has no recipe: it ran a program, or its params made none");
            CliError::bad_input(anyhow::anyhow!(message))
        })?;
        let recipe = serde_json::from_value(recipe).map_err(|error| {
            let message = format!("the recipe of {name} was stored by another version of this program: {error}");
            CliError::bad_input(anyhow::anyhow!(message))
        })?;
        Ok(Self {
            name,
            recipe,
            trial: Some((study.id, number)),
            losses_by_rank: losses_by_rank(&detail.trial, &trials),
            loader: study.backend.loader(),
        })
    }
}

/// Ranks and losses of the trials whose other params are those of `trial`.
fn losses_by_rank(trial: &Trial, trials: &[Trial]) -> Vec<RankLoss> {
    let others = |trial: &Trial| {
        let mut params = trial.params.clone();
        params.remove("rank");
        params
    };
    let own = others(trial);
    let alike = trials.iter().filter(|other| others(other) == own);
    let known = alike.filter_map(|other| {
        let rank = other.params.get("rank")?.as_f64()? as usize;
        let loss = other.state.metrics()?.value(LOSS)?;
        Some(RankLoss { rank, loss })
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::study::{Metrics, Params, TrialState};

    #[test]
    fn only_trials_that_differ_in_rank_alone_tell_about_it() {
        let trial = |number: u64, rank: i64, rate: f64, loss: f64| Trial {
            number: TrialNumber(number),
            params: Params::from([
                ("rank".to_owned(), rank.into()),
                ("learning_rate".to_owned(), rate.into()),
            ]),
            state: TrialState::Complete {
                metrics: Metrics::from([(LOSS, loss)]),
            },
        };
        let trials = [trial(0, 8, 1e-3, 2.0), trial(1, 4, 1e-3, 2.1), trial(2, 4, 1e-4, 2.5)];
        let expected = [(8, 2.0), (4, 2.1)].map(|(rank, loss)| RankLoss { rank, loss });
        assert_eq!(losses_by_rank(&trials[0], &trials), expected);
    }
}
