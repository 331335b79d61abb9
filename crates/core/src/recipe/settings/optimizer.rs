//! Settings of the optimizer and of the learning-rate schedule.

use super::effect::{Circumstance, Effects, Form, changes, form, same};
use super::field::{maybe, name_of, named, or_none, put, truth};
use super::{FloatRange, Legal, SettingRow};
use crate::recipe::{DecayType, OptimizerKind, OptimizerOffload, ScheduleKind};

/// The update rule does the same work whatever its constants.
const CONSTANT: &str = "a constant of the update rule";

const MOMENTUM: Circumstance = Circumstance(|recipe| recipe.updates_by(OptimizerKind::reads_momentum));
const NO_VELOCITY: Circumstance = Circumstance(|recipe| recipe.updates_by(OptimizerKind::drops_velocity));
const NESTEROV: Circumstance = Circumstance(|recipe| recipe.updates_by(OptimizerKind::reads_nesterov));
const BETAS: Circumstance = Circumstance(|recipe| recipe.updates_by(OptimizerKind::reads_betas));
const SCHEDULE: Circumstance = Circumstance(|recipe| !recipe.optimizer.kind.is_schedule_free());
const LOWEST_RATE: Circumstance = Circumstance(|recipe| recipe.schedules_by("min_lr_rate"));
const DECAY: Circumstance = Circumstance(|recipe| recipe.schedules_by("lr_decay"));
const EPSILON: Circumstance = Circumstance(|recipe| recipe.updates_by(OptimizerKind::reads_epsilon));

/// Form of a momentum: without it there is nothing to keep.
const ABOVE_ZERO: Form = Form {
    words: "whether it is above 0",
    of: |value| (value.as_f64() > Some(0.0)).into(),
};

/// The norm costs one pass whatever the limit.
const IS_SET: Form = Form {
    words: "whether it is `none`",
    of: |value| value.as_f64().is_some().into(),
};

/// Form of an optimizer by its arithmetic, wherever its states lie.
const UNPAGED: Form = Form {
    words: "the rule, not the paging",
    of: |value| match named(value).map(OptimizerKind::unpaged) {
        Some(kind) => kind.name().into(),
        None => value.clone(),
    },
};

pub(super) const ROWS: &[SettingRow] = &[
    SettingRow {
        name: "optimizer",
        field: "optimizer.kind",
        about: "The update rule.",
        legal: Legal::Choice(&OptimizerKind::NAMES),
        widest: None,
        elsewhere: &["optimiser"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: changes("work per update"),
            peak_memory: changes("optimizer state per parameter"),
            loss: form(UNPAGED, "another update rule"),
        },
        get: |recipe| name_of(&recipe.optimizer.kind),
        set: |recipe, value| put(&mut recipe.optimizer.kind, named(value)),
    },
    SettingRow {
        name: "optimizer_offload",
        field: "optimizer.offload",
        about: "Where the optimizer's states lie and updates are computed: on the device, or in host memory on host threads.",
        legal: Legal::Choice(&OptimizerOffload::NAMES),
        widest: None,
        elsewhere: &[
            "offload_optimizer",
            "offload_optimizer_device",
            "optimizer_cpu_offload",
            "cpu_offload",
        ],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: changes("what computes an update, and gradients and values that are copied for it"),
            peak_memory: changes("whether states lie on the device"),
            loss: same("the same update of the same gradients"),
        },
        get: |recipe| name_of(&recipe.optimizer.offload),
        set: |recipe, value| put(&mut recipe.optimizer.offload, named(value)),
    },
    SettingRow {
        name: "learning_rate",
        field: "optimizer.learning_rate",
        about: "Peak learning rate.",
        legal: Legal::Float(FloatRange::POSITIVE),
        widest: Some(FloatRange::between(1e-8, 1.0)),
        elsewhere: &["learningrate", "max_lr", "peak_lr"],
        unit: None,
        derived_from: None,
        effects: Effects::loss_only(CONSTANT, "length of every update"),
        get: |recipe| Some(recipe.optimizer.learning_rate.into()),
        set: |recipe, value| put(&mut recipe.optimizer.learning_rate, value.as_f64()),
    },
    SettingRow {
        name: "schedule",
        field: "schedule.kind",
        about: "Course of the learning rate after the warm-up.",
        legal: Legal::Choice(&ScheduleKind::NAMES),
        widest: None,
        elsewhere: &["scheduler", "lr_schedule"],
        unit: None,
        derived_from: None,
        effects: Effects::loss_only_where(SCHEDULE, CONSTANT, "length of every update"),
        get: |recipe| name_of(&recipe.schedule.kind),
        set: |recipe, value| put(&mut recipe.schedule.kind, named(value)),
    },
    SettingRow {
        name: "warmup",
        field: "schedule.warmup",
        about: "Linear warm-up: a number of steps (1 or more), or a fraction of all steps (below 1).",
        legal: Legal::Float(FloatRange::NOT_NEGATIVE),
        widest: Some(FloatRange::between(0.0, 0.5)),
        elsewhere: &["warmup_ratio"],
        unit: Some("steps, or a fraction of them"),
        derived_from: None,
        effects: Effects::loss_only(CONSTANT, "length of the first updates"),
        get: |recipe| Some(recipe.schedule.warmup.into()),
        set: |recipe, value| put(&mut recipe.schedule.warmup, value.as_f64()),
    },
    SettingRow {
        name: "lr_decay",
        field: "schedule.decay",
        about: "Steps at the end over which `wsd` falls: a number (1 or more), or a fraction of all steps (below 1).",
        legal: Legal::Float(FloatRange::NOT_NEGATIVE),
        widest: None,
        elsewhere: &["num_decay_steps", "decay_steps"],
        unit: Some("steps, or a fraction of them"),
        derived_from: None,
        effects: Effects::loss_only_where(DECAY, CONSTANT, "length of the last updates"),
        get: |recipe| Some(recipe.schedule.decay().into()),
        set: |recipe, value| put(&mut recipe.schedule.decay, value.as_f64().map(Some)),
    },
    SettingRow {
        name: "lr_decay_type",
        field: "schedule.decay_type",
        about: "How `wsd` falls.",
        legal: Legal::Choice(&DecayType::NAMES),
        widest: None,
        elsewhere: &["decay_type"],
        unit: None,
        derived_from: None,
        effects: Effects::loss_only_where(DECAY, CONSTANT, "length of the last updates"),
        get: |recipe| name_of(&recipe.schedule.decay_type()),
        set: |recipe, value| put(&mut recipe.schedule.decay_type, named(value).map(Some)),
    },
    SettingRow {
        name: "min_lr_rate",
        field: "schedule.min_lr_rate",
        about: "Lowest learning rate over the peak, of `cosine_with_min_lr` and `wsd`.",
        legal: Legal::Float(FloatRange::BELOW_ONE),
        widest: None,
        elsewhere: &["min_lr_ratio", "cosine_min_lr_ratio", "min_lr"],
        unit: None,
        derived_from: None,
        effects: Effects::loss_only_where(LOWEST_RATE, CONSTANT, "length of the last updates"),
        get: |recipe| Some(recipe.schedule.min_lr_rate().into()),
        set: |recipe, value| put(&mut recipe.schedule.min_lr_rate, value.as_f64().map(Some)),
    },
    SettingRow {
        name: "weight_decay",
        field: "optimizer.weight_decay",
        about: "Decoupled weight decay (added to the gradient for SGD).",
        legal: Legal::Float(FloatRange::NOT_NEGATIVE),
        widest: Some(FloatRange::between(0.0, 1.0)),
        elsewhere: &["wd", "decay"],
        unit: None,
        derived_from: None,
        effects: Effects::loss_only(CONSTANT, "regularisation"),
        get: |recipe| Some(recipe.optimizer.weight_decay.into()),
        set: |recipe, value| put(&mut recipe.optimizer.weight_decay, value.as_f64()),
    },
    SettingRow {
        name: "momentum",
        field: "optimizer.momentum",
        about: "Momentum of SGD and Muon.",
        legal: Legal::Float(FloatRange::BELOW_ONE),
        widest: None,
        elsewhere: &["sgd_momentum"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: form(ABOVE_ZERO, "a velocity to update").only(NO_VELOCITY),
            peak_memory: form(ABOVE_ZERO, "a velocity to keep").only(NO_VELOCITY),
            loss: changes("how far an update remembers").only(MOMENTUM),
        },
        get: |recipe| Some(recipe.optimizer.momentum.into()),
        set: |recipe, value| put(&mut recipe.optimizer.momentum, value.as_f64()),
    },
    SettingRow {
        name: "nesterov",
        field: "optimizer.nesterov",
        about: "Nesterov's form of SGD's momentum.",
        legal: Legal::Bool,
        widest: None,
        elsewhere: &["use_nesterov"],
        unit: None,
        derived_from: None,
        effects: Effects::loss_only_where(NESTEROV, CONSTANT, "another form of the update"),
        get: |recipe| Some(recipe.optimizer.nesterov.into()),
        set: |recipe, value| put(&mut recipe.optimizer.nesterov, truth(value)),
    },
    SettingRow {
        name: "beta1",
        field: "optimizer.beta1",
        about: "Decay of the first moment (AdamW, Lion).",
        legal: Legal::Float(FloatRange::BELOW_ONE),
        widest: None,
        elsewhere: &[],
        unit: None,
        derived_from: None,
        effects: Effects::loss_only_where(BETAS, CONSTANT, "how far an update remembers"),
        get: |recipe| Some(recipe.optimizer.beta1.into()),
        set: |recipe, value| put(&mut recipe.optimizer.beta1, value.as_f64()),
    },
    SettingRow {
        name: "beta2",
        field: "optimizer.beta2",
        about: "Decay of the second moment; `none` takes the optimizer's own default.",
        legal: Legal::FloatOrNone(FloatRange::BELOW_ONE),
        widest: None,
        elsewhere: &[],
        unit: None,
        derived_from: None,
        effects: Effects::loss_only_where(BETAS, CONSTANT, "how far an update remembers"),
        get: |recipe| Some(or_none(recipe.optimizer.beta2)),
        set: |recipe, value| put(&mut recipe.optimizer.beta2, maybe(value)),
    },
    SettingRow {
        name: "epsilon",
        field: "optimizer.epsilon",
        about: "Term that keeps the update's denominator from zero.",
        legal: Legal::Float(FloatRange::POSITIVE),
        widest: None,
        elsewhere: &[],
        unit: None,
        derived_from: None,
        effects: Effects::loss_only_where(EPSILON, CONSTANT, "length of small updates"),
        get: |recipe| Some(recipe.optimizer.epsilon.into()),
        set: |recipe, value| put(&mut recipe.optimizer.epsilon, value.as_f64()),
    },
    SettingRow {
        name: "max_grad_norm",
        field: "optimizer.max_grad_norm",
        about: "Global gradient norm above which gradients are scaled down; `none` never clips.",
        legal: Legal::FloatOrNone(FloatRange::POSITIVE),
        widest: None,
        elsewhere: &["gradient_clipping", "grad_clip", "clip"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: form(IS_SET, "one pass over the gradients"),
            peak_memory: same("gradients are scaled in place"),
            loss: changes("length of large updates"),
        },
        get: |recipe| Some(or_none(recipe.optimizer.max_grad_norm)),
        set: |recipe, value| put(&mut recipe.optimizer.max_grad_norm, maybe(value)),
    },
    SettingRow {
        name: "loraplus_ratio",
        field: "optimizer.loraplus_ratio",
        about: "Learning rate of lora_b over that of lora_a (LoRA+, arXiv:2402.12354); `none` for the same.",
        legal: Legal::FloatOrNone(FloatRange::POSITIVE),
        widest: Some(FloatRange::between(0.01, 256.0)),
        elsewhere: &["loraplus", "lora_plus"],
        unit: None,
        derived_from: None,
        effects: Effects::loss_only(CONSTANT, "length of lora_b's updates"),
        get: |recipe| Some(or_none(recipe.optimizer.loraplus_ratio)),
        set: |recipe, value| put(&mut recipe.optimizer.loraplus_ratio, maybe(value)),
    },
];
