//! The progress bar of a search: on standard error, and only where that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::database::DatabaseArgs;
use super::explain_failures::message;
use super::output::{keep_below, tell};
use crate::report::{bytes, duration, significant};
use crate::tune::{KernelFault, Progress, Repeat, TuneObserver};
use crate::worker::TrialEvent;
use peft_tune_core::objective::{PEAK_MEMORY, THROUGHPUT, measured_of};
use peft_tune_core::study::{ParamValue, Params, Trial, TrialNumber, TrialState};
use peft_tune_kernels::Kernels;

/// Positions of the bar: the budget may be one of trials or of time, so it counts thousandths.
const TICKS: u64 = 1000;

/// Characters of a failed trial's cause that its line shows.
const REASON: usize = 160;

/// Draws where a search stands.
pub(super) struct SearchProgress {
    bar: ProgressBar,
    trial: String,
    /// The study's name and database, for the command that looks closer.
    study: (String, DatabaseArgs),
}

impl SearchProgress {
    /// A bar on standard error for a study of this name and database; hidden where that is not a terminal, or where `quiet` asks for
    /// silence.
    pub(super) fn new((study, database): (&str, &DatabaseArgs), quiet: bool) -> Self {
        let target = if quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let bar = ProgressBar::with_draw_target(Some(TICKS), target);
        if let Ok(style) = ProgressStyle::with_template("{spinner} [{bar:28}] {prefix}\n  {wide_msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        keep_below(Some(bar.clone()));
        Self {
            bar,
            trial: String::new(),
            study: (study.to_owned(), database.clone()),
        }
    }

    /// Takes the bar off the screen.
    pub(super) fn finish(&self) {
        keep_below(None);
        self.bar.finish_and_clear();
    }

    fn show(&self, progress: &Progress) {
        if let Some(share) = progress.share() {
            self.bar.set_position((share * TICKS as f64) as u64);
        }
        self.bar.set_prefix(standing(progress));
    }
}

impl TuneObserver for SearchProgress {
    fn trial_started(&mut self, trial: &Trial, progress: &Progress) {
        self.trial = format!("trial {}: {}", trial.number, describe(&trial.params));
        self.show(progress);
        self.bar.set_message(self.trial.clone());
    }

    fn trial_event(&mut self, event: &TrialEvent) {
        let doing = match event {
            TrialEvent::Phase { phase, .. } => phase.name().to_owned(),
            TrialEvent::Step { phase, step, .. } => {
                format!("{} step {}, loss {:.3}", phase.name(), step.step, step.loss)
            }
            TrialEvent::Evaluation { evaluation, .. } => format!("held-out loss {:.4}", evaluation.loss),
            TrialEvent::Measured { .. } | TrialEvent::Training { .. } => return,
            TrialEvent::Report { step, .. } => format!("step {step}"),
            TrialEvent::Kernels {
                fault: Some(fault),
                kernels,
                ..
            } => format!("a kernel failed (`--kernels {}`): {fault}", kernels.flag()),
            TrialEvent::Kernels { .. } => return,
            TrialEvent::Lost { .. } => "lost its process".to_owned(),
            TrialEvent::Ended { .. } => return,
        };
        self.bar.set_message(format!("{} | {doing}", self.trial));
    }

    fn confirming(&mut self, number: TrialNumber, repeat: Repeat, count: u64) {
        self.trial = match repeat {
            Repeat::Cost => format!("confirming trial {number}, repeat {count}"),
            Repeat::Loss { seed_offset } => format!("confirming the loss of trial {number}, other seed {seed_offset}"),
            Repeat::Longer { tokens } => format!("training trial {number} longer, for {tokens} tokens"),
        };
        self.bar.set_message(self.trial.clone());
    }

    fn measuring_again(&mut self, number: TrialNumber, repeat: u64) {
        self.trial = format!("measuring trial {number} again, which was disturbed, repeat {repeat}");
        self.bar.set_message(self.trial.clone());
    }

    fn kernels_changed(&mut self, fault: &KernelFault, kernels: Kernels) {
        tell(format_args!(
            "warning: a kernel of `--kernels {}` failed ({}); with `--kernels {kernels}` the trial works, and the rest of the search \
             stays with that; please report it",
            fault.kernels.flag(),
            fault.message,
            kernels = kernels.flag()
        ));
    }

    fn trial_ended(&mut self, trial: &Trial, progress: &Progress) {
        if let TrialState::Failed { reason, .. } = &trial.state {
            let why = message(&trial.state).unwrap_or_default();
            let why: String = why.trim().chars().take(REASON).collect();
            let (study, database) = &self.study;
            let closer = database.command(&["show", "--trial", &trial.number.to_string()], Some(study));
            tell(format_args!(
                "trial {} failed: {}, {why}; look closer: `{closer}`",
                trial.number,
                reason.name().replace('_', " ")
            ));
        }
        self.show(progress);
    }
}

/// `12/40 trials, 1m 20s, about 3m left; best throughput 5120 tokens/s, loss 3.2100`.
fn standing(progress: &Progress) -> String {
    let mut text = match progress.budget_trials {
        Some(budget) => format!("{}/{budget} trials", progress.counted()),
        None => format!("{} trials", progress.counted()),
    };
    if progress.variants > 0 {
        text += &format!(" and {} variants", progress.variants);
    }
    text += &format!(", {}", duration(progress.spent_s));
    // Repeats for the recommendation come after the budget.
    if let Some(left) = progress.left_s().filter(|left| *left >= 1.0) {
        text += &format!(", about {} left", duration(left));
    }
    let best: Vec<_> = progress
        .best
        .iter()
        .map(|(metric, value)| best_value(metric, *value))
        .collect();
    if best.is_empty() {
        text
    } else {
        format!("{text}; best {}", best.join(", "))
    }
}

fn best_value(metric: &str, value: f64) -> String {
    if let Some(own) = measured_of(metric) {
        return format!("{} (predicted)", best_value(own, value));
    }
    match metric {
        THROUGHPUT => format!("{value:.0} tokens/s"),
        PEAK_MEMORY => bytes(value),
        _ => format!("{metric} {value:.4}"),
    }
}

/// `rank 16, learning_rate 3e-4, ...`.
fn describe(params: &Params) -> String {
    let parts: Vec<_> = params
        .iter()
        .map(|(name, value)| match value {
            ParamValue::Float(value) => format!("{name} {}", significant(*value)),
            value => format!("{name} {value}"),
        })
        .collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standing_is_one_line() {
        let mut progress = Progress {
            finished: 2,
            budget_trials: Some(4),
            spent_s: 10.0,
            ..Default::default()
        };
        assert_eq!(standing(&progress), "2/4 trials, 10.0 s, about 10.0 s left");
        progress.best.insert("loss".into(), 3.21);
        assert_eq!(
            standing(&progress),
            "2/4 trials, 10.0 s, about 10.0 s left; best loss 3.2100"
        );
    }
}
