//! What tools built on transformers' `TrainingArguments` (TRL, axolotl, LLaMA-Factory, unsloth) share: the words for
//! optimizer, schedule, length and evaluation.

use serde_json::json;

use super::draft::{Draft, Word};
use super::step_counts::Warmup;
use crate::transformers::optimizer_name;
use peft_tune_core::predict::stack::takes_fsdp;
use peft_tune_core::recipe::{BatchSettings, TrainingLength};

/// How weights are shared out by the launcher of transformers' Trainer.
pub(crate) const TRAINER_SHARES: &str =
    "is not in this file: its launcher shares weights out; start it by `accelerate launch --use_fsdp --fsdp_version 2`";

/// What differs between the tools.
#[derive(Clone, Copy)]
pub(crate) struct TrainerWords {
    /// Key of a length in epochs.
    pub epochs: &'static str,
    /// Key of a warm-up that is a share of the steps.
    pub warmup_share: &'static str,
}

impl Draft<'_> {
    /// Optimizer and constants.
    pub(crate) fn optimizer_words(&mut self) -> Vec<Word> {
        let optimizer = &self.recipe().optimizer;
        let kind = optimizer.kind;
        self.said(&["optimizer.kind"]);
        // One that the tool lacks was refused before anything was written.
        let mut all = self.words(|keys| (keys.optimizer)(kind)).unwrap_or_default();
        all.extend(self.word("learning_rate"));
        all.extend(self.word("weight_decay"));
        all.extend(self.word_as("max_grad_norm", optimizer.max_grad_norm.unwrap_or(0.0)));
        // Only transformers' own optimizers read these.
        if kind.reads_momentum() && optimizer_name(kind).is_some() {
            // PyTorch refuses the form of a momentum that there is none of.
            let is_nesterov = kind.reads_nesterov() && optimizer.nesterov && optimizer.momentum > 0.0;
            let nesterov = if is_nesterov { ",nesterov=true" } else { "" };
            all.push((
                "optim_args",
                format!("momentum={}{nesterov}", optimizer.momentum).into(),
            ));
            self.said(&["optimizer.momentum", "optimizer.nesterov"]);
        }
        if optimizer_name(kind).is_some() {
            all.extend(self.word("beta1"));
            all.extend(self.word_as("beta2", optimizer.beta2()));
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

    /// How long the training runs, and the schedule of its learning rate. Steps where they can be known, since every version
    /// of transformers understands those.
    pub(crate) fn course_words(&mut self, words: TrainerWords) -> Vec<Word> {
        let recipe = self.recipe();
        let step_counts = self.input.step_counts();
        self.said(&["training.length", "schedule.warmup"]);
        let mut all: Vec<Word> = Vec::new();
        match recipe.training.length {
            TrainingLength::Steps(steps) => all.push(("max_steps", json!(steps))),
            TrainingLength::Epochs(epochs) => all.push((words.epochs, json!(epochs))),
            TrainingLength::Tokens(_) => {}
        }
        if let Some((steps, message)) = step_counts.of_tokens() {
            all.push(("max_steps", json!(steps)));
            self.warn("training.length", message);
        }
        all.extend(self.schedule_words());
        all.push(match step_counts.warmup {
            Warmup::Steps(steps) => ("warmup_steps", json!(steps)),
            // It takes a number of steps for its own warm-up.
            Warmup::Share(share) if recipe.optimizer.kind.is_schedule_free() => {
                self.warn(
                    "schedule.warmup",
                    format!(
                        "{} counts in steps; set `warmup_steps` to {share} of all steps",
                        recipe.optimizer.kind
                    ),
                );
                ("warmup_steps", json!(0))
            }
            Warmup::Share(share) => (words.warmup_share, json!(share)),
        });
        all
    }

    /// Keys that say when the training evaluates.
    pub(crate) fn evaluation_words(&mut self) -> Vec<Word> {
        self.said(&["training.evaluate_every"]);
        match self.recipe().training.evaluate_every {
            Some(steps) => vec![("eval_strategy", json!("steps")), ("eval_steps", json!(steps))],
            None => vec![("eval_strategy", json!("epoch"))],
        }
    }

    /// Threads, processes and depth of what reads rows, where the recipe says other than usual. A process of the loader keeps so many
    /// micro-batches ready.
    pub(crate) fn reading_words(&mut self, tokenizing_workers: &'static str) -> Vec<Word> {
        let recipe = self.recipe();
        self.said(&[
            "data.tokenizing_workers",
            "batch.prefetch_depth",
            "torch.dataloader_num_workers",
        ]);
        let workers = recipe.data.tokenizing_workers;
        let mut all: Vec<Word> = workers
            .map(|count| (tokenizing_workers, json!(count)))
            .into_iter()
            .collect();
        let readers = recipe.torch.dataloader_num_workers;
        match (readers, recipe.batch.prefetch_depth) {
            (0, BatchSettings::USUAL_PREFETCH_DEPTH) => {}
            (readers, BatchSettings::USUAL_PREFETCH_DEPTH) => all.push(("dataloader_num_workers", json!(readers))),
            (readers, 0) => {
                all.push(("dataloader_num_workers", json!(readers)));
                if readers > 0 {
                    self.warn(
                        "batch.prefetch_depth",
                        "processes that read rows are ahead of the step; write `dataloader_num_workers: 0`, or another depth",
                    );
                }
            }
            (readers, depth) => {
                let micro_batches = depth.saturating_mul(recipe.batch.gradient_accumulation);
                let readers = readers.max(1);
                all.push(("dataloader_num_workers", json!(readers)));
                all.push(("dataloader_prefetch_factor", json!(micro_batches.div_ceil(readers))));
            }
        }
        all
    }

    /// Whether FSDP is to share weights out, which the tool's file then says. Where the recipe asks for it and FSDP does not take what
    /// it trains, that is told.
    pub(crate) fn shares_weights(&mut self) -> bool {
        let recipe = self.recipe();
        if recipe.batch.sharding.is_none() {
            return false;
        }
        let field = "batch.sharding";
        if takes_fsdp(recipe) {
            self.said(&[field]);
            return true;
        }
        let title = self.title();
        self.warn(
            field,
            format!(
                "{title}'s FSDP takes neither int8 weights nor 8-bit or paged optimizers; change these, or train with `peft-tune train`"
            ),
        );
        false
    }

    /// The order of the rows.
    pub(crate) fn sampling_words(&mut self) -> Option<Word> {
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
