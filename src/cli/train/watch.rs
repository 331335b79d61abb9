//! What a person or a script sees of a training while it runs: a progress bar, lines, or JSON.

use std::path::Path;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::spike_text;
use crate::cli::terminal::bar_target;
use crate::cli::terminal::line_breaks::cut;
use crate::cli::terminal::output::{keep_below, take_bar_away, tell, write_result};
use crate::report::duration;
use crate::tune::Interrupt;
use peft_tune_engine::profile::{DeviceMemory, TensorBoard};
use peft_tune_engine::{Control, Evaluation, PrecisionCause, PrecisionDecision, SpikeReport, StepEvent, StepObserver};

/// Lines that a training prints of its steps where there is no terminal to draw on.
const LINES: u64 = 20;

/// Columns of a bar, beside its numbers and its message.
const BAR: usize = 33;

/// Shows each step, adds it to the event file, and stops where a person asks for it.
pub(in crate::cli) struct TrainWatch {
    display: Display,
    tensorboard: Option<TensorBoard>,
    interrupt: Interrupt,
    due: LogEvery,
    /// Name of the training, where several run.
    name: Option<String>,
}

/// Which steps of a training are written down.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogEvery {
    /// Steps from one that is written down to the next, beside the first and the last.
    pub every: u64,
    /// Steps taken before this run.
    pub first: u64,
    pub total: u64,
}

impl LogEvery {
    fn is_due(&self, step: u64) -> bool {
        step == self.first + 1 || step == self.total || step.is_multiple_of(self.every.max(1))
    }
}

/// How a training is shown.
pub(super) enum Display {
    /// One JSON object per step and evaluation, on standard output.
    Json,
    /// A bar on standard error.
    Bar(ProgressBar, Pace),
    /// A line on standard error now and then.
    Lines(Pace),
    /// The text of a bar, put together and shown to nobody: for a profile, which measures what that takes.
    Unseen(Pace),
}

/// How fast the steps come.
pub(super) struct Pace {
    started: Instant,
    /// Steps taken before `started`.
    first: u64,
    total: u64,
}

impl TrainWatch {
    pub(super) fn new(display: Display, tensorboard: TensorBoard, interrupt: Interrupt, due: LogEvery) -> Self {
        Self {
            display,
            tensorboard: Some(tensorboard),
            interrupt,
            due,
            name: None,
        }
    }

    /// Names the training, as one of several.
    pub(super) fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// A line of text that says which training it is of.
    fn tell(&self, text: &str) {
        match &self.name {
            Some(name) => tell(format_args!("{name}: {text}")),
            None => tell(text),
        }
    }

    /// An object that says which training it is of.
    fn print(&self, mut line: serde_json::Value) {
        if let Some(name) = &self.name {
            line["training"] = json!(name);
        }
        print_line(&line);
    }

    /// Writes every step as a training does, into a file of no name in `folder` that is gone with this value.
    pub(in crate::cli) fn unseen(folder: &Path, memory: DeviceMemory) -> std::io::Result<Self> {
        /// Steps of a training that nobody reads of: only a number in its text.
        const TOTAL: u64 = 1000;
        let tensorboard = TensorBoard::nameless(folder, memory)?;
        let due = LogEvery {
            every: 1,
            first: 0,
            total: TOTAL,
        };
        let display = Display::Unseen(Pace::new(0, TOTAL));
        Ok(Self::new(display, tensorboard, Interrupt::default(), due))
    }

    /// Takes the bar off the screen.
    pub(super) fn finish(&self) {
        take_bar_away();
    }

    fn control(&self) -> Control {
        match self.interrupt.is_requested() {
            true => Control::Stop,
            false => Control::Continue,
        }
    }

    /// Says what was decided on the precision where it changes; among JSON it stands in the step's own line.
    fn tell_precision(&self, event: &StepEvent, decision: &PrecisionDecision) {
        if event.precision == Some(decision.precision) {
            return;
        }
        let text = format!(
            "step {}: from here on in {} ({})",
            event.step,
            decision.precision.name(),
            reason(decision)
        );
        match &self.display {
            Display::Bar(bar, _) => bar.println(text),
            Display::Lines(_) => self.tell(&text),
            Display::Json | Display::Unseen(_) => {}
        }
    }

    /// Adds to the event file; one that cannot be written is given up with a warning, as the training matters more.
    fn record(&mut self, add: impl FnOnce(&mut TensorBoard) -> std::io::Result<()>) {
        let Some(tensorboard) = &mut self.tensorboard else {
            return;
        };
        if let Err(error) = add(tensorboard) {
            let path = tensorboard.path().display();
            tell(format_args!(
                "warning: cannot write {path}: {error}; nothing more is written to it"
            ));
            self.tensorboard = None;
        }
    }
}

impl StepObserver for TrainWatch {
    fn step(&mut self, event: &StepEvent) -> Control {
        if let Some(decision) = &event.precision_decision {
            self.tell_precision(event, decision);
        }
        if !self.due.is_due(event.step) && event.precision_decision.is_none() {
            return self.control();
        }
        self.record(|tensorboard| tensorboard.step(event));
        match &self.display {
            Display::Json => self.print(step_line(event)),
            Display::Bar(bar, pace) => {
                bar.set_position(event.step);
                let used = BAR + 2 * pace.total.to_string().len();
                bar.set_message(cut(&describe(event, pace), bar_target::width().saturating_sub(used)));
            }
            Display::Lines(pace) if pace.is_line_due(event.step) => {
                self.tell(&format!(
                    "step {}/{}, {}",
                    event.step,
                    pace.total,
                    describe(event, pace)
                ));
            }
            Display::Lines(_) => {}
            Display::Unseen(pace) => drop(std::hint::black_box(describe(event, pace))),
        }
        self.control()
    }

    fn evaluation(&mut self, evaluation: &Evaluation) -> Control {
        self.record(|tensorboard| tensorboard.evaluation(evaluation));
        let text = format!(
            "step {}, held-out loss {:.4}, accuracy {:.1}%",
            evaluation.step,
            evaluation.loss,
            100.0 * evaluation.accuracy
        );
        match &self.display {
            Display::Json => self.print(evaluation_line(evaluation)),
            Display::Bar(bar, _) => bar.println(text),
            Display::Lines(_) => self.tell(&text),
            Display::Unseen(_) => {}
        }
        self.control()
    }

    fn spike(&mut self, report: &SpikeReport) {
        match &self.display {
            Display::Json => self.print(spike_line(report)),
            Display::Bar(bar, _) => spike_text::lines(report).iter().for_each(|line| bar.println(line)),
            Display::Lines(_) => spike_text::lines(report).iter().for_each(|line| self.tell(line)),
            Display::Unseen(_) => {}
        }
    }
}

impl Display {
    /// A bar, after `first` of `total` steps.
    pub(super) fn bar(first: u64, total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), bar_target::target()).with_position(first);
        if let Ok(style) = ProgressStyle::with_template("[{bar:28}] {pos}/{len} {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.tick();
        keep_below(bar.clone());
        Self::Bar(bar, Pace::new(first, total))
    }

    /// Lines, after `first` of `total` steps.
    pub(super) fn lines(first: u64, total: u64) -> Self {
        Self::Lines(Pace::new(first, total))
    }
}

impl Pace {
    fn new(first: u64, total: u64) -> Self {
        let started = Instant::now();
        Self { started, first, total }
    }

    /// Seconds that the steps after `step` will take if they continue as so far, evaluations and checkpoints included.
    fn left_s(&self, step: u64) -> f64 {
        let done = step.saturating_sub(self.first).max(1);
        let left = self.total.saturating_sub(step);
        self.started.elapsed().as_secs_f64() / done as f64 * left as f64
    }

    fn is_line_due(&self, step: u64) -> bool {
        step == self.first + 1 || step == self.total || step.is_multiple_of(self.total.div_ceil(LINES))
    }
}

/// Why a precision was decided on, with its numbers.
fn reason(decision: &PrecisionDecision) -> String {
    let scale = match decision.noise_scale {
        Some(scale) => format!("noise scale of {scale:.0} tokens"),
        None => "noise scale without end".to_owned(),
    };
    let tokens = decision.step_targets;
    match decision.cause {
        PrecisionCause::Schedule => "as the recipe says".to_owned(),
        PrecisionCause::Noise | PrecisionCause::Signal => format!("{scale}, steps of {tokens:.0}"),
        PrecisionCause::Undecided => "undecided".to_owned(),
        PrecisionCause::Overflows => format!("the gradients of {} steps overflowed", decision.overflows),
    }
}

/// `loss 2.3101, learning rate 2.00e-4, 5120 tokens/s, 1m 20s left`.
fn describe(event: &StepEvent, pace: &Pace) -> String {
    format!(
        "loss {:.4}, learning rate {:.2e}, {:.0} tokens/s, {} left",
        event.loss,
        event.learning_rate,
        event.tokens_per_s(),
        duration(pace.left_s(event.step)),
    )
}

fn step_line(event: &StepEvent) -> serde_json::Value {
    let mut line = json!({
        "event": "step",
        "step": event.step,
        "loss": event.loss,
        "learning_rate": event.learning_rate,
        "grad_norm": event.grad_norm,
        "tokens_per_s": event.tokens_per_s(),
        "tokens": event.tokens,
        "target_tokens": event.target_tokens,
        "seconds": event.seconds.total,
    });
    if let Some(precision) = event.precision {
        line["precision"] = json!(precision);
    }
    if let Some(decision) = event.precision_decision {
        line["precision_decision"] = json!(decision);
    }
    line
}

/// A report, as an event.
fn spike_line(report: &SpikeReport) -> serde_json::Value {
    let mut line = json!(report);
    line["event"] = json!("spike");
    line
}

fn evaluation_line(evaluation: &Evaluation) -> serde_json::Value {
    json!({
        "event": "evaluation",
        "step": evaluation.step,
        "held_out_loss": evaluation.loss,
        "held_out_accuracy": evaluation.accuracy,
        "target_tokens": evaluation.target_tokens,
        "seconds": evaluation.seconds,
    })
}

/// Prints a line; a training continues where nobody reads it any more.
fn print_line(line: &serde_json::Value) {
    if let Err(error) = write_result(&format!("{line}\n")) {
        tell(format_args!("warning: {error}"));
    }
}
