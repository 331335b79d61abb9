//! The summary of a study: what was tried, the Pareto front, the recommendation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::Serialize;

use super::baseline::against_baseline;
use super::basis::confirmation_text;
use super::counts::Counts;
use super::front_table::{FrontNotes, FrontRow, front_table};
use super::number::{duration, metric_words};
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
        [heading, self.front_text(width), self.recommendation_text()].concat()
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
        ];
        for line in known.into_iter().flatten() {
            let _ = writeln!(text, "  {line}");
        }
        text
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
mod tests {
    use super::*;
    use peft_tune_core::objective::{LOSS, PEAK_MEMORY, THROUGHPUT};
    use peft_tune_core::study::{FailReason, TrialState};
    use peft_tune_core::study::{Metrics, ParamValue, Params};

    fn complete(number: u64, params: &[(&str, ParamValue)], metrics: [(&str, f64); 3]) -> Trial {
        Trial {
            number: TrialNumber(number),
            params: params
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
            state: TrialState::Complete {
                metrics: metrics.into(),
            },
        }
    }

    fn sample() -> (Vec<Objective>, Vec<Trial>) {
        let gib = 1073741824.0;
        let objectives = [THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new).to_vec();
        let trials = vec![
            complete(
                0,
                &[
                    ("rank", 8i64.into()),
                    ("learning_rate", 2e-4.into()),
                    ("optimizer", "adamw".into()),
                ],
                [(THROUGHPUT, 5120.4), (PEAK_MEMORY, 1.5 * gib), (LOSS, 2.12345)],
            ),
            complete(
                1,
                &[
                    ("rank", 64i64.into()),
                    ("learning_rate", 3.4567891e-5.into()),
                    ("optimizer", "adamw".into()),
                ],
                [(THROUGHPUT, 12800.0), (PEAK_MEMORY, 2.25 * gib), (LOSS, 2.0)],
            ),
            Trial {
                number: TrialNumber(2),
                params: Params::new(),
                state: TrialState::Failed {
                    reason: FailReason::Invalid {
                        message: "rank".to_owned(),
                    },
                    metrics: Metrics::default(),
                },
            },
        ];
        (objectives, trials)
    }

    fn summary() -> Summary {
        let (objectives, trials) = sample();
        Summary::new(SummaryInput {
            study: "quickstart",
            objectives: &objectives,
            trials: &trials,
            front: &[TrialNumber(0), TrialNumber(1)],
            recommendation: Some(&Recommendation {
                trial: TrialNumber(1),
                reason: "trial 1 is the knee of the front".to_owned(),
            }),
            wall_s: 161.0,
        })
    }

    #[test]
    fn text_shows_counts_front_and_recommendation() {
        insta::assert_snapshot!(summary().to_text(None), @"
        study quickstart: 3 trials: 2 complete, 1 failed (invalid), 2m 41s

        Pareto front of throughput (max), peak memory (min), loss (min): 2 trials

         trial | tokens/s | peak memory |   loss | learning_rate | rank
        -------+----------+-------------+--------+---------------+------
           * 1 |   12,800 |    2.25 GiB | 2.0000 |      3.457e-5 |   64
             0 |    5,120 |    1.50 GiB | 2.1235 |          2e-4 |    8

        the same in all: optimizer adamw

        * recommended: trial 1 is the knee of the front
        ");
    }

    #[test]
    fn a_long_front_is_shown_in_part() {
        let mut summary = summary();
        summary.recommendation = None;
        let text = summary.showing([TrialNumber(0)]).to_text(None);
        assert!(text.contains("loss (min): 2 trials, of which 1 are shown\n"), "{text}");
        assert!(
            text.ends_with("\nthe whole front: `peft-tune pareto quickstart`\n"),
            "{text}"
        );
        assert!(!text.contains("12,800"), "{text}");
    }

    #[test]
    fn a_very_narrow_terminal_gets_one_block_a_trial() {
        insta::assert_snapshot!(summary().to_text(Some(15)), @"
        study quickstart: 3 trials: 2 complete, 1 failed (invalid), 2m 41s

        Pareto front of throughput (max), peak memory (min), loss (min): 2 trials

        trial          * 1
        tokens/s       12,800
        peak memory    2.25 GiB
        loss           2.0000
        learning_rate  3.457e-5
        rank           64

        trial          0
        tokens/s       5,120
        peak memory    1.50 GiB
        loss           2.1235
        learning_rate  2e-4
        rank           8

        the same in all: optimizer adamw

        * recommended: trial 1 is the knee of the front
        ");
    }

    #[test]
    fn what_was_predicted_stands_beside_what_was_measured_where_there_is_room() {
        let predicted = || {
            [
                (TrialNumber(0), THROUGHPUT.to_owned(), 5000.0),
                (TrialNumber(2), LOSS.to_owned(), 1.0),
            ]
        };
        let text = summary().with_predicted(predicted()).to_text(None);
        assert!(text.contains(" trial | tokens/s | predicted | peak memory |"), "{text}");
        assert!(text.contains("     0 |    5,120 |     5,000 |    1.50 GiB |"), "{text}");
        assert!(text.contains("   * 1 |   12,800 |         - |    2.25 GiB |"), "{text}");
        assert!(
            !summary()
                .with_predicted(predicted())
                .to_text(Some(70))
                .contains("predicted")
        );
    }

    #[test]
    fn json_has_raw_numbers() {
        let json: serde_json::Value = serde_json::from_str(&summary().to_json().unwrap()).unwrap();
        assert_eq!(json["trials"]["failures"]["invalid"], 1);
        assert_eq!(json["front"][0]["trial"], 1);
        assert_eq!(json["front"][1]["metrics"]["throughput"], 5120.4);
        assert_eq!(json["recommendation"]["trial"], 1);
    }

    #[test]
    fn a_study_without_a_front_says_so() {
        let summary = Summary::new(SummaryInput {
            study: "a\u{1b}[2J",
            objectives: &[],
            trials: &[],
            front: &[],
            recommendation: None,
            wall_s: f64::NAN,
        });
        insta::assert_snapshot!(summary.to_text(Some(80)), @r"
        study a\u{1b}[2J: no trials, 0 s

        no Pareto front: no trial is complete in every objective within the constraints
        ");
    }
}
