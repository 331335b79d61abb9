//! What tools built on transformers' `TrainingArguments` (TRL, axolotl, LLaMA-Factory, unsloth) share: the words for
//! precision, optimizer, schedule, length and evaluation, and the names that these have there.

use serde_json::{Value, json};

use super::course::Warmup;
use super::draft::{Draft, Word};
use peft_tune_core::recipe::{
    OptimizerKind, OptimizerSettings, Precision, ScheduleKind, ScheduleSettings, TrainingLength,
};

/// What differs between the tools.
#[derive(Clone, Copy)]
pub(super) struct TrainerWords {
    /// Key of a length in epochs.
    pub epochs: &'static str,
    /// Key of a warm-up that is a share of the steps.
    pub warmup_share: &'static str,
    /// What to say where transformers has no such optimizer.
    pub own_optimizer: fn(&mut Draft<'_>) -> Word,
}

impl Draft<'_> {
    /// In which of the halves it computes.
    pub fn half_words(&self) -> [Word; 2] {
        let precision = self.recipe().precision;
        let fp16 = precision == Precision::Fp16;
        [
            ("bf16", json!(!fp16 && precision != Precision::Fp32)),
            ("fp16", json!(fp16)),
        ]
    }

    /// Optimizer and constants.
    pub fn optimizer_words(&mut self, words: TrainerWords) -> Vec<Word> {
        let optimizer = &self.recipe().optimizer;
        let kind = match optimizer_name(optimizer.kind) {
            Some(name) => self.word_as("optimizer", name),
            None => Some((words.own_optimizer)(self)),
        };
        self.said(&["optimizer.kind"]);
        let mut all: Vec<Word> = kind.into_iter().collect();
        all.extend(self.word("learning_rate"));
        all.extend(self.word("weight_decay"));
        all.extend(self.word_as("max_grad_norm", optimizer.max_grad_norm.unwrap_or(0.0)));
        if optimizer.kind == OptimizerKind::Sgd {
            let nesterov = if optimizer.nesterov { ",nesterov=true" } else { "" };
            let arguments = format!("momentum={}{nesterov}", optimizer.momentum);
            all.push(("optim_args", arguments.into()));
            self.said(&["optimizer.momentum", "optimizer.nesterov"]);
        }
        if optimizer_name(optimizer.kind).is_some() {
            all.extend(self.word("beta1"));
            all.extend(self.word_as("beta2", beta2(optimizer)));
            all.extend(self.word("epsilon"));
        }
        let loraplus = self.word("loraplus_ratio");
        if loraplus.is_none() && optimizer.loraplus_ratio.is_some() {
            self.warn(
                "optimizer.loraplus_ratio",
                "build the optimizer with peft.optimizers.create_loraplus_optimizer",
            );
        }
        all.extend(loraplus);
        all
    }

    /// How long the training runs, and the course of its learning rate. Steps where they can be known, since every version
    /// of transformers understands those.
    pub fn course_words(&mut self, words: TrainerWords) -> Vec<Word> {
        let recipe = self.recipe();
        let course = self.input.course();
        self.said(&["training.length", "schedule.warmup"]);
        let mut all: Vec<Word> = Vec::new();
        match recipe.training.length {
            TrainingLength::Steps(steps) => all.push(("max_steps", json!(steps))),
            TrainingLength::Epochs(epochs) => all.push((words.epochs, json!(epochs))),
            TrainingLength::Tokens(_) => {}
        }
        if let Some((steps, message)) = course.of_tokens() {
            all.push(("max_steps", json!(steps)));
            self.warn("training.length", message);
        }
        all.extend(self.word_as("schedule", schedule_name(&recipe.schedule)));
        all.push(match course.warmup {
            Warmup::Steps(steps) => ("warmup_steps", json!(steps)),
            Warmup::Share(share) => (words.warmup_share, json!(share)),
        });
        all
    }

    /// When it evaluates.
    pub fn evaluation_words(&mut self) -> Vec<Word> {
        self.said(&["training.evaluate_every"]);
        match self.recipe().training.evaluate_every {
            Some(steps) => vec![("eval_strategy", json!("steps")), ("eval_steps", json!(steps))],
            None => vec![("eval_strategy", json!("epoch"))],
        }
    }

    /// The order of the rows.
    pub fn sampling_words(&mut self) -> Option<Word> {
        let recipe = self.recipe();
        self.said(&["training.shuffle", "batch.group_by_length"]);
        let strategy = |name: &str| Some(("train_sampling_strategy", json!(name)));
        match (recipe.training.shuffle, recipe.batch.group_by_length) {
            (false, _) => strategy("sequential"),
            (true, true) => strategy("group_by_length"),
            (true, false) => None,
        }
    }
}

/// TRL's and unsloth's arguments have no Muon.
pub(super) fn adamw_for_muon(draft: &mut Draft<'_>) -> Word {
    draft.warn(
        "optimizer.kind",
        "transformers' arguments know no muon, so they say adamw; pass the optimizer in code",
    );
    ("optim", Value::from("adamw_torch"))
}

/// Name in transformers' `OptimizerNames`; `None` for muon, which it does not have.
pub(super) fn optimizer_name(kind: OptimizerKind) -> Option<&'static str> {
    Some(match kind {
        OptimizerKind::AdamW => "adamw_torch",
        OptimizerKind::Sgd => "sgd",
        OptimizerKind::AdamW8bit => "adamw_8bit",
        OptimizerKind::PagedAdamW => "paged_adamw_32bit",
        OptimizerKind::PagedAdamW8bit => "paged_adamw_8bit",
        OptimizerKind::Lion => "lion_32bit",
        OptimizerKind::Lion8bit => "lion_8bit",
        OptimizerKind::Adafactor => "adafactor",
        OptimizerKind::Muon => return None,
    })
}

/// Name in transformers' `SchedulerType`.
fn schedule_name(schedule: &ScheduleSettings) -> &'static str {
    match schedule.kind {
        ScheduleKind::Constant if schedule.warmup > 0.0 => "constant_with_warmup",
        ScheduleKind::Constant => "constant",
        ScheduleKind::Linear => "linear",
        ScheduleKind::Cosine => "cosine",
    }
}

/// Decay of the second moment: as set, or the optimizer's own.
pub(super) fn beta2(optimizer: &OptimizerSettings) -> f64 {
    let is_lion = matches!(optimizer.kind, OptimizerKind::Lion | OptimizerKind::Lion8bit);
    optimizer.beta2.unwrap_or(if is_lion { 0.99 } else { 0.999 })
}
