//! Parameters of the optimizer and of the learning-rate schedule.

use super::adapter::{name_of, named, put, truth};
use super::{Binding, Effect, Effects, FloatRange, Legal};
use peft_tune_core::study::ParamValue;

/// The update rule does the same work whatever its constants.
const CONSTANT: &str = "a constant of the update rule";

pub(super) const BINDINGS: &[Binding] = &[
    Binding {
        name: "optimizer",
        field: "optimizer.kind",
        about: "The update rule.",
        legal: Legal::Choice(&[
            "adamw",
            "sgd",
            "adamw_8bit",
            "paged_adamw",
            "paged_adamw_8bit",
            "lion",
            "lion_8bit",
            "adafactor",
            "muon",
        ]),
        elsewhere: &["optim", "optimiser"],
        derived_from: None,
        effects: Effects::all(
            "work per update",
            "optimizer state per parameter",
            "another update rule",
        ),
        get: |recipe| name_of(&recipe.optimizer.kind),
        set: |recipe, value| put(&mut recipe.optimizer.kind, named(value)),
    },
    Binding {
        name: "learning_rate",
        field: "optimizer.learning_rate",
        about: "Peak learning rate.",
        legal: Legal::Float(FloatRange::POSITIVE),
        elsewhere: &["lr", "learningrate", "max_lr", "peak_lr"],
        derived_from: None,
        effects: Effects::loss_only(CONSTANT, "length of every update"),
        get: |recipe| Some(recipe.optimizer.learning_rate.into()),
        set: |recipe, value| put(&mut recipe.optimizer.learning_rate, value.as_f64()),
    },
    Binding {
        name: "schedule",
        field: "schedule.kind",
        about: "Course of the learning rate after the warm-up.",
        legal: Legal::Choice(&["constant", "linear", "cosine"]),
        elsewhere: &["lr_scheduler_type", "lr_scheduler", "scheduler", "lr_schedule"],
        derived_from: None,
        effects: Effects::loss_only(CONSTANT, "length of every update"),
        get: |recipe| name_of(&recipe.schedule.kind),
        set: |recipe, value| put(&mut recipe.schedule.kind, named(value)),
    },
    Binding {
        name: "warmup",
        field: "schedule.warmup",
        about: "Linear warm-up: a number of steps (1 or more), or a fraction of all steps (below 1).",
        legal: Legal::Float(FloatRange::NOT_NEGATIVE),
        elsewhere: &["warmup_steps", "warmup_ratio", "num_warmup_steps"],
        derived_from: None,
        effects: Effects::loss_only(CONSTANT, "length of the first updates"),
        get: |recipe| Some(recipe.schedule.warmup.into()),
        set: |recipe, value| put(&mut recipe.schedule.warmup, value.as_f64()),
    },
    Binding {
        name: "weight_decay",
        field: "optimizer.weight_decay",
        about: "Decoupled weight decay (added to the gradient for SGD).",
        legal: Legal::Float(FloatRange::NOT_NEGATIVE),
        elsewhere: &["wd", "decay"],
        derived_from: None,
        effects: Effects::loss_only(CONSTANT, "regularisation"),
        get: |recipe| Some(recipe.optimizer.weight_decay.into()),
        set: |recipe, value| put(&mut recipe.optimizer.weight_decay, value.as_f64()),
    },
    Binding {
        name: "momentum",
        field: "optimizer.momentum",
        about: "Momentum of SGD and Muon.",
        legal: Legal::Float(FloatRange::BELOW_ONE),
        elsewhere: &["sgd_momentum"],
        derived_from: None,
        effects: Effects::all(
            "no velocity to update at 0",
            "no velocity to keep at 0",
            "how far an update remembers",
        ),
        get: |recipe| Some(recipe.optimizer.momentum.into()),
        set: |recipe, value| put(&mut recipe.optimizer.momentum, value.as_f64()),
    },
    Binding {
        name: "nesterov",
        field: "optimizer.nesterov",
        about: "Nesterov's form of SGD's momentum.",
        legal: Legal::Bool,
        elsewhere: &["use_nesterov"],
        derived_from: None,
        effects: Effects::loss_only(CONSTANT, "another form of the update"),
        get: |recipe| Some(recipe.optimizer.nesterov.into()),
        set: |recipe, value| put(&mut recipe.optimizer.nesterov, truth(value)),
    },
    Binding {
        name: "beta1",
        field: "optimizer.beta1",
        about: "Decay of the first moment (AdamW, Lion).",
        legal: Legal::Float(FloatRange::BELOW_ONE),
        elsewhere: &["adam_beta1"],
        derived_from: None,
        effects: Effects::loss_only(CONSTANT, "how far an update remembers"),
        get: |recipe| Some(recipe.optimizer.beta1.into()),
        set: |recipe, value| put(&mut recipe.optimizer.beta1, value.as_f64()),
    },
    Binding {
        name: "beta2",
        field: "optimizer.beta2",
        about: "Decay of the second moment; `none` takes the optimizer's own default.",
        legal: Legal::FloatOrNone(FloatRange::BELOW_ONE),
        elsewhere: &["adam_beta2"],
        derived_from: None,
        effects: Effects::loss_only(CONSTANT, "how far an update remembers"),
        get: |recipe| Some(or_none(recipe.optimizer.beta2)),
        set: |recipe, value| put(&mut recipe.optimizer.beta2, maybe(value)),
    },
    Binding {
        name: "epsilon",
        field: "optimizer.epsilon",
        about: "Term that keeps the update's denominator from zero.",
        legal: Legal::Float(FloatRange::POSITIVE),
        elsewhere: &["eps", "adam_epsilon"],
        derived_from: None,
        effects: Effects::loss_only(CONSTANT, "length of small updates"),
        get: |recipe| Some(recipe.optimizer.epsilon.into()),
        set: |recipe, value| put(&mut recipe.optimizer.epsilon, value.as_f64()),
    },
    Binding {
        name: "max_grad_norm",
        field: "optimizer.max_grad_norm",
        about: "Global gradient norm above which gradients are scaled down; `none` never clips.",
        legal: Legal::FloatOrNone(FloatRange::POSITIVE),
        elsewhere: &["clip_grad_norm", "gradient_clipping", "grad_clip", "clip"],
        derived_from: None,
        effects: Effects {
            throughput: Effect::Changes("one pass over the gradients; none at `none`"),
            peak_memory: Effect::Same("gradients are scaled in place"),
            loss: Effect::Changes("length of large updates"),
        },
        get: |recipe| Some(or_none(recipe.optimizer.max_grad_norm)),
        set: |recipe, value| put(&mut recipe.optimizer.max_grad_norm, maybe(value)),
    },
    Binding {
        name: "loraplus_ratio",
        field: "optimizer.loraplus_ratio",
        about: "Learning rate of lora_b over that of lora_a (LoRA+, arXiv:2402.12354); `none` for the same.",
        legal: Legal::FloatOrNone(FloatRange::POSITIVE),
        elsewhere: &["loraplus_lr_ratio", "loraplus", "lora_plus"],
        derived_from: None,
        effects: Effects::loss_only(CONSTANT, "length of lora_b's updates"),
        get: |recipe| Some(or_none(recipe.optimizer.loraplus_ratio)),
        set: |recipe, value| put(&mut recipe.optimizer.loraplus_ratio, maybe(value)),
    },
];

fn or_none(value: Option<f64>) -> ParamValue {
    value.map_or("none".into(), ParamValue::Float)
}

/// A number, or `none`; the outer `None` where it is neither.
fn maybe(value: &ParamValue) -> Option<Option<f64>> {
    match value {
        ParamValue::Text(name) if name.as_str() == "none" => Some(None),
        value => value.as_f64().map(Some),
    }
}
