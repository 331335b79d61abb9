//! The summary of a study: what was tried, the Pareto front, the recommendation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::Serialize;

use super::baseline::against_baseline;
use super::basis::confirmation_text;
use super::counts::Counts;
use super::front_table::{FrontNotes, FrontRow, front_table};
use super::number::{duration, metric_words};
use super::scaling::{MOST_SCALED, MeasuredScaling};
use super::study_costs::StudyCosts;
use super::table::printable;
use super::target::{target_note, target_text};
use crate::shell::command_line;
use crate::space::Target;
use crate::store::{KernelsOfTrials, SpentTime, Variants};
use peft_tune_core::objective::{Direction, Objective};
use peft_tune_core::study::{Confirmations, Trial, TrialNumber};

/// What a summary is made from.
#[derive(Clone, Copy, Debug)]
pub struct SummaryInput<'a> {
    pub study: &'a str,
    pub objectives: &'a [Objective],
    pub trials: &'a [Trial],
    /// Numbers of the trials on the Pareto front.
    pub front: &'a [TrialNumber],
    pub recommendation: Option<&'a Recommendation>,
    /// Wall-clock seconds that the trials took.
    pub wall_s: f64,
}

/// Which trial is advised, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommendation {
    pub trial: TrialNumber,
    /// One sentence that names the trial, without full stop.
    pub reason: String,
}

/// A study in short: one value for the screen, for files and for scripts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub study: String,
    /// Wall-clock seconds that the trials took.
    pub wall_s: f64,
    pub trials: Counts,
    pub objectives: Vec<Objective>,
    /// Best in the first objective first.
    pub front: Vec<FrontRow>,
    pub recommendation: Option<Recommendation>,
    /// What repeats say, by trial and metric; the values of every other trial were measured once.
    pub confirmed: Confirmations,
    /// Trials of the front that took their loss over, each with the training that measured it.
    pub variants: Variants,
    /// What the recommended trial wins against the baseline, in words.
    pub against_baseline: Option<String>,
    /// What was predicted before a trial ran, by trial and metric.
    pub predicted: BTreeMap<TrialNumber, BTreeMap<String, f64>>,
    /// Kernels that the trials of the front ran in, where they are known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kernels: KernelsOfTrials,
    /// Seconds by what they went to, where a search tells them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spent: Option<SpentTime>,
    /// Costs in money, where the price of the devices is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub costs: Option<StudyCosts>,
    /// Trials on several devices, each beside one on one device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scaling: Vec<MeasuredScaling>,
    /// The stack that the study is for, where it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// The trials of the front that the text shows; all where absent.
    #[serde(skip)]
    pub shown: Option<BTreeSet<TrialNumber>>,
    /// The recommended trial where it is not on the front: others are better after a short training, and it after a longer one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside_front: Option<FrontRow>,
    /// The command that shows the whole front.
    #[serde(skip)]
    pub whole_front: String,
}

impl Summary {
    /// Puts a summary together. Front numbers without a trial are left out.
    pub fn new(input: SummaryInput<'_>) -> Self {
        let row = |number: TrialNumber| {
            let trial = input.trials.iter().find(|trial| trial.number == number)?;
            Some(FrontRow {
                trial: trial.number,
                params: trial.params.clone(),
                metrics: trial.state.metrics().cloned().unwrap_or_default(),
            })
        };
        let mut front: Vec<FrontRow> = input.front.iter().filter_map(|number| row(*number)).collect();
        let recommended = input.recommendation.map(|one| one.trial);
        let beside_front = recommended.filter(|number| !input.front.contains(number)).and_then(row);
        front.sort_by(|a, b| {
            let values = input.objectives.iter().map(|objective| {
                let value = |row: &FrontRow| row.metrics.value(&objective.metric).unwrap_or(f64::NAN);
                objective.minimised(value(a)).total_cmp(&objective.minimised(value(b)))
            });
            values
                .fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
                .then(a.trial.cmp(&b.trial))
        });
        Self {
            study: input.study.to_owned(),
            wall_s: if input.wall_s.is_finite() { input.wall_s } else { 0.0 },
            trials: Counts::of(input.trials),
            objectives: input.objectives.to_vec(),
            front,
            recommendation: input.recommendation.cloned(),
            confirmed: BTreeMap::new(),
            variants: BTreeMap::new(),
            against_baseline: None,
            predicted: BTreeMap::new(),
            kernels: BTreeMap::new(),
            spent: None,
            costs: None,
            scaling: Vec::new(),
            target: None,
            shown: None,
            beside_front,
            whole_front: command_line(["peft-tune", "pareto", input.study]),
        }
    }

    /// The summary whose text shows these trials of the front, and the recommended one.
    #[must_use]
    pub fn showing(mut self, trials: impl IntoIterator<Item = TrialNumber>) -> Self {
        let recommended = self.recommendation.as_ref().map(|recommendation| recommendation.trial);
        self.shown = Some(trials.into_iter().chain(recommended).collect());
        self
    }

    /// The summary that names this command for the whole front.
    #[must_use]
    pub fn with_whole_front(mut self, command: String) -> Self {
        self.whole_front = command;
        self
    }

    /// The summary with what was predicted of the front's trials before they ran.
    #[must_use]
    pub fn with_predicted(mut self, predicted: impl IntoIterator<Item = (TrialNumber, String, f64)>) -> Self {
        for (trial, metric, value) in predicted {
            if self.front.iter().any(|row| row.trial == trial) {
                self.predicted.entry(trial).or_default().insert(metric, value);
            }
        }
        self
    }

    /// The summary with the kernels that the front's trials ran in.
    #[must_use]
    pub fn with_kernels(mut self, mut kernels: KernelsOfTrials) -> Self {
        kernels.retain(|trial, _| self.front.iter().any(|row| row.trial == *trial));
        self.kernels = kernels;
        self
    }

    /// The summary with what the study's runs took.
    #[must_use]
    pub fn with_spent(mut self, spent: SpentTime) -> Self {
        self.spent = Some(spent);
        self
    }

    /// The summary with what the study and full trainings cost in money.
    #[must_use]
    pub fn with_costs(mut self, costs: Option<StudyCosts>) -> Self {
        self.costs = costs;
        self
    }

    /// The summary with the speed of trials on several devices.
    #[must_use]
    pub fn with_scaling(mut self, scaling: Vec<MeasuredScaling>) -> Self {
        self.scaling = scaling;
        self
    }

    /// The summary that says of which stack its predictions are.
    #[must_use]
    pub fn with_target(mut self, target: Option<Target>) -> Self {
        self.target = target;
        self
    }

    /// The summary with what the recommended trial wins against the baseline. Comes behind [`Summary::with_confirmed`].
    #[must_use]
    pub fn with_baseline(mut self, baseline: Option<TrialNumber>, trials: &[Trial]) -> Self {
        let of = |number: TrialNumber| trials.iter().find(|trial| trial.number == number);
        let recommended = self.recommendation.as_ref().and_then(|one| of(one.trial));
        self.against_baseline = recommended
            .zip(baseline.and_then(of))
            .map(|(recommended, baseline)| against_baseline(&self.objectives, recommended, baseline, &self.confirmed));
        self
    }

    /// The summary that tells variants from trainings.
    #[must_use]
    pub fn with_variants(mut self, trials: &[Trial], variants: Variants) -> Self {
        self.trials = self.trials.with_variants(trials, &variants);
        self.variants = variants;
        self.variants
            .retain(|number, _| self.front.iter().any(|row| row.trial == *number));
        self
    }

    /// The summary with what repeats say.
    #[must_use]
    pub fn with_confirmed(mut self, confirmed: Confirmations) -> Self {
        self.confirmed = confirmed;
        self
    }

    /// The summary as text of at most `width` columns of characters where one is given.
    pub fn to_text(&self, width: Option<usize>) -> String {
        let heading = format!(
            "study {}: {}, {}\n",
            printable(&self.study),
            self.trials.to_text(),
            duration(self.wall_s)
        );
        let costs = self.costs.as_ref();
        let costs = costs.map(|costs| format!("\nthe search cost {}\n", printable(&costs.search_text())));
        [
            heading,
            self.front_text(width),
            self.recommendation_text(),
            self.scaling_text(),
            costs.unwrap_or_default(),
        ]
        .concat()
    }

    /// The front, or that there is none, and what is to be known of it.
    fn front_text(&self, width: Option<usize>) -> String {
        let count = self.front.len();
        if count == 0 {
            return "\nno Pareto front: no trial is complete in every objective within the constraints\n".to_owned();
        }
        let trials = if count == 1 { "trial" } else { "trials" };
        let is_shown = |row: &&FrontRow| self.shown.as_ref().is_none_or(|shown| shown.contains(&row.trial));
        let mut rows: Vec<FrontRow> = self.front.iter().filter(is_shown).cloned().collect();
        let shown = rows.len();
        let cut = match shown < count {
            true => format!(", of which {shown} are shown"),
            false => String::new(),
        };
        rows.extend(self.beside_front.clone());
        let mut text = format!(
            "\nPareto front of {}: {count} {trials}{cut}\n\n{}\n",
            objectives_text(&self.objectives),
            self.front_table(&rows, width)
        );
        // Writing to a string cannot fail.
        if let Some(row) = &self.beside_front {
            let _ = writeln!(
                text,
                "\ntrial {} is not on this front of short trainings: it is best after longer ones",
                row.trial
            );
        }
        if let Some(target) = self.target {
            let _ = writeln!(text, "\ntarget: {}", target_note(target));
        }
        if shown < count {
            let _ = writeln!(text, "\nthe whole front: `{}`", self.whole_front);
        }
        text
    }

    /// The recommendation with its reason, and what else is known of its trial.
    fn recommendation_text(&self) -> String {
        let Some(recommendation) = &self.recommendation else {
            return String::new();
        };
        let mut text = format!("\n* recommended: {}\n", printable(&recommendation.reason));
        let mut rows = self.front.iter().chain(&self.beside_front);
        let row = rows.find(|row| row.trial == recommendation.trial);
        let known = [
            row.and_then(|row| target_text(self.target, &row.metrics)),
            confirmation_text(self.confirmed.get(&recommendation.trial)).map(|text| printable(&text)),
            self.against_baseline.as_deref().map(printable),
            self.costs
                .as_ref()
                .and_then(|costs| costs.training_text(recommendation.trial))
                .map(|text| format!("full training: {}", printable(&text))),
        ];
        for line in known.into_iter().flatten() {
            let _ = writeln!(text, "  {line}");
        }
        text
    }

    /// The trials on several devices of the front, and of the recommendation; all where none of those has several.
    fn scaling_text(&self) -> String {
        let is_shown = |one: &&MeasuredScaling| {
            let mut rows = self.front.iter().chain(&self.beside_front);
            rows.any(|row| row.trial == one.trial)
        };
        let mut shown: Vec<&MeasuredScaling> = self.scaling.iter().filter(is_shown).collect();
        if shown.is_empty() {
            shown = self.scaling.iter().collect();
        }
        let lines = shown.into_iter().take(MOST_SCALED).map(|one| format!("  {one}\n"));
        match lines.collect::<String>() {
            none if none.is_empty() => none,
            lines => format!("\nseveral devices\n{lines}"),
        }
    }

    /// The table of the front, with what was predicted where that fits.
    fn front_table(&self, rows: &[FrontRow], width: Option<usize>) -> String {
        let recommended = self.recommendation.as_ref().map(|recommendation| recommendation.trial);
        let nothing = BTreeMap::new();
        let with = |predicted, width| {
            let notes = FrontNotes {
                recommended,
                confirmed: &self.confirmed,
                variants: &self.variants,
                predicted,
                costs: self.costs.as_ref(),
            };
            front_table(&self.objectives, rows, notes, width)
        };
        let columns = |text: &str| text.lines().next().map_or(0, |line| line.chars().count());
        let whole = with(&self.predicted, None);
        match width.is_none_or(|width| columns(&whole) <= width) {
            true => whole,
            false => with(&nothing, width),
        }
    }

    /// The summary as JSON, with raw numbers.
    ///
    /// # Errors
    /// Never in practice: every value has a JSON form.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self)
    }
}

/// The objectives in words: `throughput (max), loss (min)`.
fn objectives_text(objectives: &[Objective]) -> String {
    let parts: Vec<String> = objectives
        .iter()
        .map(|objective| {
            let direction = match objective.direction {
                Direction::Minimize => "min",
                Direction::Maximize => "max",
            };
            format!("{} ({direction})", printable(&metric_words(&objective.metric)))
        })
        .collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests;
