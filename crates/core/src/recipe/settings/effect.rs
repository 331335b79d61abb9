//! Effects of settings: what each can change, where, and why.

use std::fmt;

use crate::objective::{LOSS, PEAK_MEMORY, THROUGHPUT};
use crate::recipe::{DataSettings, OptimizerKind, ParamValue, Precision, Recipe, ScheduleKind, TrainerKind};

/// Outcome of a training, as far as settings decide it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Throughput,
    PeakMemory,
    Loss,
}

impl Outcome {
    pub const ALL: [Self; 3] = [Self::Throughput, Self::PeakMemory, Self::Loss];

    /// The metric that says it.
    pub fn metric(self) -> &'static str {
        match self {
            Self::Throughput => THROUGHPUT,
            Self::PeakMemory => PEAK_MEMORY,
            Self::Loss => LOSS,
        }
    }
}

/// Part of a setting that one outcome depends on. In doubt it is too much: a reused number must be right, a number
/// measured once too often only costs time.
#[derive(Clone, Copy, Debug)]
pub struct Effect {
    pub reach: Reach,
    /// The recipes in which there is that reach; the others never read the setting. Absent: all.
    pub only: Option<Circumstance>,
    pub reason: &'static str,
}

/// How far a setting's values tell two trainings apart.
#[derive(Clone, Copy, Debug)]
pub enum Reach {
    /// Each value is another training.
    Value,
    /// Values of one form are the same training.
    Form(Form),
    /// Number of rows in a step alone: not where the study holds `global_batch`.
    GlobalBatch,
    Nothing,
}

/// Part of a value that counts.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// Words that fit after "only".
    pub words: &'static str,
    pub of: fn(&ParamValue) -> ParamValue,
}

/// Recipes that read a setting.
#[derive(Clone, Copy, Debug)]
pub struct Circumstance(pub fn(&Recipe) -> bool);

/// The effects of one setting.
#[derive(Clone, Copy, Debug)]
pub struct Effects {
    pub throughput: Effect,
    pub peak_memory: Effect,
    pub loss: Effect,
}

/// Effect of a setting that can change the outcome.
pub(super) const fn changes(reason: &'static str) -> Effect {
    let reach = Reach::Value;
    Effect {
        reach,
        only: None,
        reason,
    }
}

/// Effect of a setting that cannot change the outcome.
pub(super) const fn same(reason: &'static str) -> Effect {
    let reach = Reach::Nothing;
    Effect {
        reach,
        only: None,
        reason,
    }
}

/// Effect of a setting that changes the outcome only with its form.
pub(super) const fn form(form: Form, reason: &'static str) -> Effect {
    let reach = Reach::Form(form);
    Effect {
        reach,
        only: None,
        reason,
    }
}

/// Effect of a setting that changes the outcome only through the global batch.
pub(super) const fn through_global_batch(reason: &'static str) -> Effect {
    let reach = Reach::GlobalBatch;
    Effect {
        reach,
        only: None,
        reason,
    }
}

impl Effect {
    /// Limits the effect to some recipes.
    pub(super) const fn only(self, only: Circumstance) -> Self {
        Self {
            only: Some(only),
            ..self
        }
    }

    /// Whether the outcome can change in some recipe, the global batch being free to change too.
    pub fn changes(&self) -> bool {
        !matches!(self.reach, Reach::Nothing)
    }

    /// Part of the setting's value that the outcome of `recipe` depends on, if anything; `get` reads the value.
    pub(super) fn part(&self, get: fn(&Recipe) -> Option<ParamValue>, recipe: &Recipe) -> Option<ParamValue> {
        if self.only.is_some_and(|only| !(only.0)(recipe)) {
            return None;
        }
        match self.reach {
            Reach::Value => get(recipe),
            Reach::Form(form) => get(recipe).map(|value| (form.of)(&value)),
            // Rows that are compared with those of their micro-batch learn something else in another one.
            Reach::GlobalBatch if recipe.trainer.row().least_micro_batch > 1 => get(recipe),
            Reach::GlobalBatch => Some(ParamValue::Int(recipe.batch.global_batch() as i64)),
            Reach::Nothing => None,
        }
    }
}

/// Writes the effect as the table in docs/space-file.md has it.
impl fmt::Display for Effect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let only = self.only.map(|only| only.to_string());
        match (self.reach, only) {
            (Reach::Value, None) => formatter.write_str("yes")?,
            (Reach::Value, Some(only)) => formatter.write_str(&only)?,
            (Reach::Form(form), None) => write!(formatter, "only {}", form.words)?,
            (Reach::Form(form), Some(only)) => write!(formatter, "{only}, only {}", form.words)?,
            (Reach::GlobalBatch, _) => formatter.write_str("only with the global batch")?,
            (Reach::Nothing, _) => formatter.write_str("no")?,
        }
        write!(formatter, ": {}", self.reason)
    }
}

/// Names the precisions, trainers, optimizers or schedules of the circumstance: found by asking it of a recipe for each.
impl fmt::Display for Circumstance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let precisions = self.names(
            &Precision::ALL,
            |recipe, precision| recipe.precision = precision,
            Precision::name,
        );
        if !precisions.is_empty() && precisions.len() < Precision::ALL.len() {
            return write!(formatter, "with precision {}", precisions.join(", "));
        }
        let trainers = self.names(
            &TrainerKind::ALL,
            |recipe, trainer| recipe.trainer = trainer,
            TrainerKind::name,
        );
        if !trainers.is_empty() && trainers.len() < TrainerKind::ALL.len() {
            return write!(formatter, "with trainer {}", trainers.join(", "));
        }
        let of_adapters = self.names(
            &OptimizerKind::ALL,
            |recipe, kind| {
                recipe.adapter = Some(Default::default());
                recipe.optimizer.kind = kind;
            },
            OptimizerKind::name,
        );
        let mut vectors = self.names(
            &OptimizerKind::ALL,
            |recipe, kind| {
                recipe.adapter = None;
                recipe.optimizer.kind = kind;
            },
            OptimizerKind::name,
        );
        vectors.retain(|name| !of_adapters.contains(name));
        if of_adapters.is_empty() && vectors.is_empty() {
            let schedules = self.names(
                &ScheduleKind::ALL,
                |recipe, kind| recipe.schedule.kind = kind,
                ScheduleKind::name,
            );
            return write!(formatter, "with {}", schedules.join(", "));
        }
        let others: Vec<_> = OptimizerKind::NAMES
            .into_iter()
            .filter(|name| !of_adapters.contains(name))
            .collect();
        match &others[..] {
            [other] => write!(formatter, "with all but {other}")?,
            _ => write!(formatter, "with {}", of_adapters.join(", "))?,
        }
        if !vectors.is_empty() {
            write!(formatter, ", and {} where vectors train", vectors.join(", "))?;
        }
        Ok(())
    }
}

impl Circumstance {
    /// Names of the kinds with which the usual recipe is one of these; `set` gives it a kind.
    fn names<Kind: Copy>(
        self,
        kinds: &[Kind],
        set: fn(&mut Recipe, Kind),
        name: fn(Kind) -> &'static str,
    ) -> Vec<&'static str> {
        let mut recipe = Recipe::new("", DataSettings::default());
        let found = kinds.iter().copied().filter(|kind| {
            set(&mut recipe, *kind);
            (self.0)(&recipe)
        });
        found.map(name).collect()
    }
}

impl Effects {
    /// A setting of the update rule or of the adapter's function: the same work on other numbers.
    pub(super) const fn loss_only(why_not_cost: &'static str, why_loss: &'static str) -> Self {
        Self {
            throughput: same(why_not_cost),
            peak_memory: same(why_not_cost),
            loss: changes(why_loss),
        }
    }

    /// Effects of a setting that changes the loss alone, and that only some recipes read.
    pub(super) const fn loss_only_where(
        only: Circumstance,
        why_not_cost: &'static str,
        why_loss: &'static str,
    ) -> Self {
        Self {
            loss: changes(why_loss).only(only),
            ..Self::loss_only(why_not_cost, why_loss)
        }
    }

    /// A setting that can change everything.
    pub(super) const fn all(throughput: &'static str, peak_memory: &'static str, loss: &'static str) -> Self {
        Self {
            throughput: changes(throughput),
            peak_memory: changes(peak_memory),
            loss: changes(loss),
        }
    }

    /// The effect on one outcome.
    pub fn on(&self, outcome: Outcome) -> &Effect {
        match outcome {
            Outcome::Throughput => &self.throughput,
            Outcome::PeakMemory => &self.peak_memory,
            Outcome::Loss => &self.loss,
        }
    }

    /// The metrics that the setting can change in a study, or `None` where it can change all. `holds_global_batch` says
    /// that the study gives `global_batch`, so that the micro-batch alone does not change the loss.
    pub fn affected_metrics(&self, holds_global_batch: bool) -> Option<Vec<String>> {
        let is_affected = |outcome: &Outcome| match self.on(*outcome).reach {
            Reach::Value | Reach::Form(_) => true,
            Reach::GlobalBatch => !holds_global_batch,
            Reach::Nothing => false,
        };
        let affected: Vec<_> = Outcome::ALL.into_iter().filter(is_affected).collect();
        let metrics = || affected.iter().map(|outcome| outcome.metric().to_owned());
        (affected.len() < Outcome::ALL.len()).then(|| metrics().collect())
    }
}
