//! What the tables of optimizers, precisions, schedules and the like say in a tool's file.

use serde_json::{Value, json};

use super::draft::{Draft, Word};
use crate::{Tool, ToolKeys};
use peft_tune_core::recipe::settings::setting;
use peft_tune_core::recipe::{AdapterInit, Checkpointing, OptimizerKind, Precision, ScheduleKind};

impl Tool {
    /// Whether a recipe with this optimizer can be written for it: it has the optimizer, or its file says nothing of one.
    pub fn takes_optimizer(self, optimizer: OptimizerKind) -> bool {
        !self.says_training() || self.optimizer_words(optimizer).is_some()
    }
}

impl Draft<'_> {
    /// The tool's words for something; `None` where it has no such thing.
    pub(crate) fn words(&self, of: impl Fn(&ToolKeys) -> Option<Vec<Word>>) -> Option<Vec<Word>> {
        of(self.tool().keys())
    }

    /// The words for the precision or, where the tool has none, for the one that is nearest to it.
    pub(crate) fn precision_words(&mut self) -> Vec<Word> {
        self.said(&["precision"]);
        let (precision, title) = (self.recipe().precision, self.title());
        let (nearest, difference) = match precision {
            Precision::Nf4 => (
                Precision::Nf4Double,
                format!("{title} always quantizes the constants of NF4 too: a little less memory"),
            ),
            other => (
                other.compute(),
                format!(
                    "{title} has no {other} base weights, so they are {}: more memory",
                    other.compute()
                ),
            ),
        };
        self.words(|keys| (keys.precision)(precision)).unwrap_or_else(|| {
            self.warn("precision", difference);
            self.words(|keys| (keys.precision)(nearest)).unwrap_or_default()
        })
    }

    /// The words for what is recomputed; those for all layers where the tool cannot recompute some.
    pub(crate) fn checkpointing_words(&mut self) -> Vec<Word> {
        self.said(&["gradient_checkpointing"]);
        let checkpointing = self.recipe().gradient_checkpointing;
        self.words(|keys| (keys.checkpointing)(checkpointing))
            .unwrap_or_else(|| {
                self.warn_of_every_layer();
                self.words(|keys| (keys.checkpointing)(Checkpointing::Full))
                    .unwrap_or_default()
            })
    }

    /// The words for the attention that the recipe names, or leaves open.
    pub(crate) fn attention_words(&mut self) -> Vec<Word> {
        const FIELD: &str = "torch.attn_implementation";
        self.said(&[FIELD]);
        let recipe = self.recipe();
        let asked = recipe.torch.attn_implementation;
        // Rows of preferences are packed nowhere.
        let packs = recipe.batch.packing && recipe.trainer.is_sft();
        let open = self.tool().keys().attention_where_open(packs);
        let title = self.title();
        if packs && !asked.keeps_documents_apart() {
            let message = format!("packed documents attend to each other in `{asked}`; write auto or {open}");
            self.warn(FIELD, message);
        }
        let chosen = if asked.is_auto() { open } else { asked };
        self.words(|keys| (keys.attention)(chosen)).unwrap_or_else(|| {
            self.warn(FIELD, format!("{title} has no word for `{asked}`; {open} is written"));
            self.words(|keys| (keys.attention)(open)).unwrap_or_default()
        })
    }

    /// The words for the other kernels and compilers of PyTorch's stack, as far as the recipe chooses any.
    pub(crate) fn chosen_words(&mut self) -> Vec<Word> {
        let recipe = self.recipe();
        let chosen = ["torch_compile", "use_liger_kernel"].into_iter().filter(|name| {
            let row = setting(name);
            row.is_some_and(|row| (row.get)(recipe) != row.legal.off())
        });
        chosen.filter_map(|name| self.word(name)).collect()
    }

    /// The words for the start of an adapter; those for PEFT's where the tool has no other, which remains to be told.
    pub(crate) fn init_words(&mut self, init: AdapterInit) -> Vec<Word> {
        let said = self.words(|keys| (keys.init)(init));
        if said.is_some() {
            self.said(&["adapter.init"]);
        }
        said.or_else(|| self.words(|keys| (keys.init)(AdapterInit::default())))
            .unwrap_or_default()
    }

    /// The words for the schedule, which some tools call otherwise behind a warm-up, and for its arguments.
    pub(crate) fn schedule_words(&mut self) -> Vec<Word> {
        self.said(&["schedule.kind"]);
        if self.recipe().optimizer.kind.is_schedule_free() {
            // It warms up by itself.
            return self
                .words(|keys| (keys.schedule)(ScheduleKind::Constant))
                .unwrap_or_default();
        }
        let schedule = &self.recipe().schedule;
        let (kind, warms_up) = (schedule.kind, schedule.warmup > 0.0);
        let behind = warms_up
            .then(|| self.words(|keys| (keys.schedule_after_warmup)(kind)))
            .flatten();
        let mut all = behind
            .or_else(|| self.words(|keys| (keys.schedule)(kind)))
            .unwrap_or_default();
        let arguments = self.schedule_arguments();
        match self.tool().keys().schedule_arguments {
            None => all.extend(arguments),
            Some(_) if arguments.is_empty() => {}
            Some(key) => {
                let arguments = arguments.into_iter().map(|(name, value)| (name.to_owned(), value));
                all.push((key, Value::Object(arguments.collect())));
            }
        }
        all
    }

    fn schedule_arguments(&mut self) -> Vec<Word> {
        let (recipe, steps) = (self.recipe(), self.input.step_counts().steps);
        let mut all = Vec::new();
        for (argument, name) in recipe.schedule.kind.row().arguments {
            let Some(row) = setting(name) else { continue };
            self.said(&[row.field]);
            let decay = recipe.schedule.decay();
            match (*name, steps) {
                ("lr_decay", Some(total)) => all.push((*argument, json!(recipe.schedule.decay_steps(total)))),
                ("lr_decay", None) if decay < 1.0 => {
                    self.warn(
                        row.field,
                        format!("is counted in steps; set `{argument}` to {decay} of all steps"),
                    );
                }
                ("lr_decay", None) => all.push((*argument, json!(decay as u64))),
                _ => all.extend((row.get)(recipe).map(|value| (*argument, json!(value)))),
            }
        }
        all
    }
}

/// The value of a key among some words.
pub(crate) fn value_of(words: &[Word], key: &str) -> Value {
    let found = words.iter().find(|(name, _)| *name == key);
    found.map_or(Value::Null, |(_, value)| value.clone())
}
