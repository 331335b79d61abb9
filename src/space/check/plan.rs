//! What one trial does: phases and limits.

use super::Context;
use super::score::score_metrics;
use crate::space::SpaceError;
use crate::space::file::{StudyFile, TrialEntry};
use peft_tune_core::objective::{
    BASE_KL, Constraint, LOSS, LOSS_KEPT_PERCENT, OF_LEARNING, Objective, PEAK_MEMORY, RETAINED_LOSS_INCREASE,
    SERVE_MS_PER_TOKEN, THROUGHPUT, TOKEN_ACCURACY_LOST_PERCENT, TOP1_AGREEMENT_PERCENT,
};
use peft_tune_core::recipe::{StudyLength, TrainingLength, TrainingSettings};
use peft_tune_core::score::ScorePlan;
use peft_tune_core::space::ConfirmPlan;
use peft_tune_core::study::{AccuracyPlan, MeasurePlan, TrainPlan, TrialPlan};

const DEFAULT_PROFILE_STEPS: u64 = 5;
const DEFAULT_PROFILE_WARMUP: u64 = 10;
const DEFAULT_TRAINING_TOKENS: u64 = 100_000;
const DEFAULT_EVALUATIONS: u64 = 2;

impl Context<'_> {
    /// The phases that some objective, constraint or key of the file asks for.
    pub(super) fn plan(
        &self,
        file: &StudyFile,
        score: Option<ScorePlan>,
        objectives: &[Objective],
        constraints: &[Constraint],
        trains_recipes: bool,
    ) -> Result<TrialPlan, SpaceError> {
        if !trains_recipes {
            return Ok(TrialPlan {
                measure: None,
                train: None,
            });
        }
        let asked = |metric: &str| {
            objectives.iter().any(|objective| objective.metric == metric)
                || constraints.iter().any(|constraint| constraint.metric == metric)
        };
        let trial = &file.trial;
        let length = self.training_length(trial)?;
        let serve = self.serve(file, asked(SERVE_MS_PER_TOKEN))?;
        let is_cost_asked = asked(THROUGHPUT) || asked(PEAK_MEMORY) || serve.is_some();
        let measures = is_cost_asked || trial.profile_steps.is_some();
        let accuracy = self.accuracy(file, score, &asked)?;
        let measured = accuracy.is_required || accuracy.score.is_some() || accuracy.retained_loss;
        let is_learnt = OF_LEARNING.into_iter().any(asked);
        let trains = is_learnt || measured || length.is_some();
        Ok(TrialPlan {
            measure: measures.then(|| MeasurePlan {
                steps: trial.profile_steps.map_or(DEFAULT_PROFILE_STEPS, u64::from),
                max_warmup_steps: trial.profile_warmup.unwrap_or(DEFAULT_PROFILE_WARMUP),
                serve,
            }),
            train: trains.then(|| TrainPlan {
                length: length.unwrap_or(TrainingLength::Tokens(DEFAULT_TRAINING_TOKENS)),
                evaluations: trial.evaluation.times.map_or(DEFAULT_EVALUATIONS, u64::from),
                evaluation_rows: trial.evaluation.rows.map(usize::from),
                accuracy,
                seed_offset: 0,
            }),
        })
    }

    /// What objectives, constraints and the file ask to be measured of trained models beside the loss.
    fn accuracy(
        &self,
        file: &StudyFile,
        score: Option<ScorePlan>,
        asked: &dyn Fn(&str) -> bool,
    ) -> Result<AccuracyPlan, SpaceError> {
        let evaluation = &file.trial.evaluation;
        let compared = [LOSS_KEPT_PERCENT, TOP1_AGREEMENT_PERCENT]
            .into_iter()
            .find(|metric| asked(metric));
        let lost = Some(TOKEN_ACCURACY_LOST_PERCENT).filter(|metric| asked(metric));
        let strays = Some(BASE_KL).filter(|metric| asked(metric));
        for (key, is_on, wanted) in [
            ("accuracy_check", evaluation.accuracy_check, compared),
            ("fp32_training", evaluation.fp32_training, lost),
            ("base_kl", evaluation.base_kl, strays),
        ] {
            let keys = ["trial", "evaluation", key];
            if let Some(metric) = wanted.filter(|_| self.document.has(&keys) && !is_on) {
                return Err(SpaceError::Rejected {
                    at: self.document.value(&keys),
                    message: format!("`{metric}` is what this measures, and the study asks for it; remove this key"),
                });
            }
        }
        let scores = score_metrics(score.as_ref()).iter().any(|(name, _)| asked(name));
        Ok(AccuracyPlan {
            check: evaluation.accuracy_check || compared.is_some(),
            fp32_training: evaluation.fp32_training || lost.is_some(),
            retained_loss: file.data.as_ref().is_some_and(|data| !data.retain.is_empty()),
            base_kl: evaluation.base_kl || strays.is_some(),
            score: score.map(Box::new),
            is_required: compared.is_some()
                || lost.is_some()
                || strays.is_some()
                || asked(RETAINED_LOSS_INCREASE)
                || scores,
        })
    }

    fn training_length(&self, trial: &TrialEntry) -> Result<Option<TrainingLength>, SpaceError> {
        let given = [
            (
                "training_steps",
                trial.training_steps.map(|steps| TrainingLength::Steps(steps.get())),
            ),
            (
                "training_tokens",
                trial.training_tokens.map(|tokens| TrainingLength::Tokens(tokens.0)),
            ),
            ("training_epochs", trial.training_epochs.map(TrainingLength::Epochs)),
        ];
        let given: Vec<_> = given
            .into_iter()
            .filter_map(|(key, length)| Some((key, length?)))
            .collect();
        if let [(first, _), (second, _), ..] = given[..] {
            return Err(SpaceError::Conflict {
                at: self.document.key(&["trial", second]),
                other: format!("trial.{first}"),
                reason: "both say how long a trial trains",
            });
        }
        let Some((key, length)) = given.first() else {
            return Ok(None);
        };
        self.check_length(&["trial", key], length)?;
        Ok(Some(*length))
    }

    fn check_length(&self, keys: &[&str], length: &TrainingLength) -> Result<(), SpaceError> {
        let sound = match length {
            TrainingLength::Steps(count) | TrainingLength::Tokens(count) => *count > 0,
            TrainingLength::Epochs(epochs) => epochs.is_finite() && *epochs > 0.0,
        };
        if sound {
            return Ok(());
        }
        Err(SpaceError::Rejected {
            at: self.document.value(keys),
            message: "a training of length zero learns nothing; write a number above 0".into(),
        })
    }

    /// Whether the search is to find how long the exported recipe trains. It follows the loss over trainings of several lengths.
    pub(super) fn finds_length(
        &self,
        file: &StudyFile,
        objectives: &[Objective],
        constraints: &[Constraint],
        confirm: Option<&ConfirmPlan>,
    ) -> Result<bool, SpaceError> {
        let length = file.training.as_ref().map(|training| training.length);
        if length != Some(StudyLength::Auto) {
            return Ok(false);
        }
        let mut metrics = objectives.iter().map(|one| &one.metric);
        let is_loss_known = metrics.any(|metric| metric == LOSS) || constraints.iter().any(|one| one.metric == LOSS);
        let lacks = match confirm {
            _ if !is_loss_known => {
                "`auto` follows the loss, which this study does not measure: add `loss` to `objectives`"
            }
            Some(plan) if plan.longer > 0.0 => return Ok(true),
            _ => "`auto` rests on trainings made longer, which `confirm` leaves out: let it make some (`longer: 1`)",
        };
        Err(SpaceError::Rejected {
            at: self.document.value(&["training", "length"]),
            message: format!("{lacks}, or write a length, such as {{epochs: 1}}"),
        })
    }

    /// Refuses a length that only a search can find, in the file of a recipe.
    pub(super) fn check_recipe_length(&self) -> Result<(), SpaceError> {
        let keys = ["training", "length"];
        if self.document.word(&keys) != Some("auto") {
            return Ok(());
        }
        Err(SpaceError::Rejected {
            at: self.document.value(&keys),
            message: "`auto` is a length that a search finds, and a recipe trains at once: write {epochs: 1}, {tokens: 2M} or \
                      {steps: 500}, or export the recommendation of a study with `length: auto`"
                .into(),
        })
    }

    /// Checks the `training` section of a study or recipe file.
    pub(super) fn check_training(&self, training: &TrainingSettings) -> Result<(), SpaceError> {
        self.check_length(&["training", "length"], &training.length)?;
        for (key, zero) in [
            ("evaluate_every", training.evaluate_every == Some(0)),
            ("evaluation_rows", training.evaluation_rows == Some(0)),
        ] {
            if zero {
                return Err(SpaceError::Rejected {
                    at: self.document.value(&["training", key]),
                    message: "0 has no meaning here; write 1 or more, or remove the key".into(),
                });
            }
        }
        Ok(())
    }

    /// Memory limit in bytes and timeout in seconds of one trial.
    pub(super) fn limits(&self, trial: &TrialEntry) -> Result<(Option<u64>, Option<f64>), SpaceError> {
        let memory = trial.memory_limit.map(|limit| limit.0);
        let timeout = trial.timeout.map(|timeout| timeout.0);
        for (key, zero) in [("memory_limit", memory == Some(0)), ("timeout", timeout == Some(0.0))] {
            if zero {
                return Err(SpaceError::Rejected {
                    at: self.document.value(&["trial", key]),
                    message: "no trial can keep a limit of 0; raise it, or remove the key".into(),
                });
            }
        }
        Ok((memory, timeout))
    }
}
