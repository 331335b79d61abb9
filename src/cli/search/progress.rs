//! Progress of a search on standard error: a line that changes where that is a terminal, else a line for each trial.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::progress_line::{SearchStatus, named_value};
use super::resume_command::resume_command;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::bar_target;
use crate::cli::terminal::output::{keep_below, take_bar_away, tell};
use crate::cli::terminal::reading_progress::Reading;
use crate::cli::terminal::signals::{First, Reaction};
use crate::report::duration;
use crate::report::explanation::{failure_message, reason_message};
use crate::space::Study;
use crate::tune::{Confirming, Interrupt, KernelFault, Progress, Repeat, TuneObserver};
use crate::worker::TrialEvent;
use peft_tune_core::space::Widening;
use peft_tune_core::study::{FailReason, Metrics, Trial, TrialNumber, TrialState};
use peft_tune_kernels::Kernels;

/// Time between two drawings of a terminal's line.
const DRAW: Duration = Duration::from_millis(200);
/// Time between two lines about a long trial, where there is no terminal.
const LINE: Duration = Duration::from_secs(60);
/// Columns that the spinner takes.
const SPINNER: usize = 2;
/// Characters of a failed trial's reason that its line shows.
const REASON: usize = 240;

/// Shows where a search stands.
pub(super) struct SearchProgress {
    status: Shared,
    display: Display,
    /// Metrics that a finished trial's line shows.
    metrics: Vec<String>,
    /// The study's name and database, for the command that looks closer.
    study: (String, DatabaseArgs),
}

/// Form in which the progress is shown.
enum Display {
    Nothing,
    /// A line for each trial, and now and then one of a long trial.
    Lines {
        last: Option<Instant>,
    },
    Bar,
}

/// Status of a search, shared by all who show it.
#[derive(Clone)]
struct Shared(Arc<Mutex<SearchStatus>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, SearchStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a search says when it is interrupted.
pub(super) struct Interrupted {
    status: Shared,
    command: String,
}

impl SearchProgress {
    /// Shows a search of `study` from now on, or where `is_quiet` only its failures. `interrupt` is what signals request.
    pub(super) fn new(study: &Study, database: &DatabaseArgs, interrupt: Interrupt, is_quiet: bool) -> Self {
        let status = Shared(Arc::new(Mutex::new(SearchStatus::new(interrupt))));
        let target = bar_target::target();
        let display = match (is_quiet, target.is_hidden()) {
            (true, _) => Display::Nothing,
            (false, true) => Display::Lines { last: None },
            (false, false) => {
                draw_bar(target, &status);
                Display::Bar
            }
        };
        Self {
            status,
            display,
            metrics: study.objectives.iter().map(|one| one.metric.clone()).collect(),
            study: (study.name.clone(), database.clone()),
        }
    }

    /// Makes what signals say when they interrupt this search.
    pub(super) fn reaction(&self) -> Interrupted {
        Interrupted {
            status: self.status.clone(),
            command: resume_command(&self.study.1),
        }
    }

    /// Shows what is prepared before the first trial; `None` when the trials begin.
    pub(super) fn prepares(&self, what: Option<&str>) {
        self.status.lock().prepares(what.map(str::to_owned));
    }

    /// Shows how far the reading of the search's data is; how many bytes they are was said before.
    pub(super) fn reading(&self) -> Reading<'_> {
        match &self.display {
            Display::Nothing => Reading::unseen(),
            Display::Lines { .. } => Reading::lines(),
            Display::Bar => Reading::told_to(|text| self.prepares(Some(text))),
        }
        .told()
    }

    /// Takes the line off the screen.
    pub(super) fn finish(&self) {
        take_bar_away();
    }

    /// Prints a line about the search where there is no terminal, if none was printed for a while or `is_due`.
    fn say(&mut self, is_due: bool) {
        let Display::Lines { last } = &mut self.display else {
            return;
        };
        if is_due || last.is_none_or(|last| last.elapsed() >= LINE) {
            *last = Some(Instant::now());
            tell(self.status.lock().parts(Instant::now()).join(" · "));
        }
    }

    /// How a trial ended: `trial 7 (8 of 40) complete · 5,120 tokens/s · loss 2.6412 · 3 min left`.
    fn ended_line(&self, name: &str, trial: &Trial) -> String {
        let status = self.status.lock();
        let mut parts = vec![format!("{name} {}", trial.state.name())];
        let metrics = trial.state.metrics();
        let values = self
            .metrics
            .iter()
            .filter_map(|metric| Some(named_value(metric, metrics?.value(metric)?)));
        parts.extend(values);
        parts.extend(metrics.and_then(behind_training));
        parts.extend(
            status
                .parts(Instant::now())
                .into_iter()
                .filter(|part| part.ends_with(" left")),
        );
        parts.join(" · ")
    }

    /// A failed trial in a line: why, and the command that looks closer.
    fn failed_line(&self, trial: &Trial) -> Option<String> {
        let TrialState::Failed { reason, .. } = &trial.state else {
            return None;
        };
        let (study, database) = &self.study;
        let why = failure_message(&trial.state).unwrap_or_default();
        let why: String = match why.trim() {
            "" => String::new(),
            why => format!(", {}", why.chars().take(REASON).collect::<String>()),
        };
        let closer = database.command(&["show", "--trial", &trial.number.to_string()], Some(study));
        let name = reason.name().replace('_', " ");
        Some(format!(
            "trial {} failed: {name}{why}; look closer: `{closer}`",
            trial.number
        ))
    }
}

/// What a trial took behind its training: `12.3 s for accuracy`.
fn behind_training(metrics: &Metrics) -> Option<String> {
    let parts = [
        "accuracy_check_s",
        "fp32_training_s",
        "forgetting_s",
        "generate_s",
        "score_s",
    ];
    let seconds: f64 = parts.iter().filter_map(|part| metrics.value(part)).sum();
    (seconds > 0.0).then(|| format!("{} for accuracy", duration(seconds)))
}

impl TuneObserver for SearchProgress {
    fn trial_started(&mut self, trial: &Trial, progress: &Progress) {
        self.status.lock().begins(trial, progress);
        // The first trial at once.
        self.say(false);
    }

    fn trial_event(&mut self, event: &TrialEvent) {
        self.status.lock().takes(event);
        if let TrialEvent::Kernels {
            fault: Some(fault),
            kernels,
            ..
        } = event
        {
            tell(format_args!(
                "a kernel failed (`--kernels {}`): {fault}",
                kernels.flag()
            ));
        }
        self.say(false);
    }

    fn confirming(&mut self, one: &Confirming, progress: &Progress) {
        self.status.lock().confirms(one, progress);
        self.say(true);
    }

    fn repeat_failed(&mut self, number: TrialNumber, repeat: Repeat, reason: &FailReason) {
        if let (Repeat::Longer { tokens }, FailReason::Diverged { at_step, .. }) = (repeat, reason) {
            return tell(format_args!(
                "warning: trial {number} diverged at step {at_step} of a training of {tokens} tokens: its setting counts as \
                 far worse at that length than those that did not, and is not trained longer again"
            ));
        }
        let what = match repeat {
            Repeat::Cost => "measured once more",
            Repeat::Loss { .. } => "trained with another seed",
            Repeat::Longer { .. } => "trained longer",
        };
        tell(format_args!(
            "warning: trial {number} failed when it was {what} ({}: {}); it keeps what it measured before, and is not tried again",
            reason.name(),
            reason_message(reason)
        ));
    }

    fn paused(&mut self, is_paused: bool, progress: &Progress) {
        self.status.lock().pauses(is_paused, progress);
        match is_paused {
            true => tell(format_args!(
                "paused: somebody asked that no further trial starts; `{}` lets it go on",
                self.study.1.command(&["dashboard"], None)
            )),
            false => tell("the search goes on"),
        }
    }

    fn measuring_again(&mut self, number: TrialNumber, repeat: u64) {
        let what = format!("measuring trial {number} again, which something else disturbed (repeat {repeat})");
        self.status.lock().again(number, what);
        self.say(true);
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

    fn range_widened(&mut self, widening: &Widening) {
        tell(format_args!("{widening}; `fixed: true` keeps it"));
    }

    fn trial_ended(&mut self, trial: &Trial, progress: &Progress) {
        let name = self.status.lock().ends(trial.number, progress);
        if let Some(line) = self.failed_line(trial) {
            tell(line);
            return;
        }
        if let Display::Lines { last } = &mut self.display {
            *last = Some(Instant::now());
            tell(self.ended_line(&name, trial));
        }
    }
}

impl Reaction for Interrupted {
    fn first(&self) -> First {
        let status = self.status.lock();
        if status.is_preparing() {
            return First::Ends(format!(
                "stopped before the first trial of this search, and nothing is lost; `{}` begins again",
                self.command
            ));
        }
        First::GoesOn(match status.waits_for(Instant::now()) {
            Some(what) => format!("finishing {what}; Ctrl-C again stops at once, and the next search runs it again"),
            None => "stopping".to_owned(),
        })
    }

    fn second(&self) -> String {
        "stopping now: what is under way is dropped, and the next search runs it again".to_owned()
    }
}

/// Draws a bar that draws itself, above which messages stand.
fn draw_bar(target: ProgressDrawTarget, status: &Shared) {
    let bar = ProgressBar::with_draw_target(None, target);
    let status = status.clone();
    let lines = move |_: &ProgressState, out: &mut dyn fmt::Write| {
        let width = bar_target::width().saturating_sub(SPINNER);
        let lines = status.lock().lines(Instant::now(), width);
        let _ = out.write_str(&lines.join("\n  "));
    };
    if let Ok(style) = ProgressStyle::with_template("{spinner} {lines}") {
        bar.set_style(style.with_key("lines", lines));
    }
    bar.enable_steady_tick(DRAW);
    keep_below(bar);
}
