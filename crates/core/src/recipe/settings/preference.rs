//! Settings of trainings on preferences, and which trainer there is at all.

use super::effect::{Circumstance, Effects, changes, same};
use super::field::{name_of, named, put};
use super::{FloatRange, Legal, SettingRow};
use crate::recipe::{ReferencePass, TrainerKind};

/// Supervised fine-tuning compares nothing.
const PREFERS: Circumstance = Circumstance(|recipe| !recipe.trainer.is_sft());
/// The others compare answers with one another alone.
const REFERS: Circumstance = Circumstance(|recipe| recipe.trainer.row().has_reference);

pub(super) const ROWS: &[SettingRow] = &[
    SettingRow {
        name: "trainer",
        field: "trainer",
        about: "What is learnt of the rows: answers (sft), or which are preferred, in TRL (dpo, kto, orpo). One in a study.",
        legal: Legal::Choice(&TrainerKind::NAMES),
        widest: None,
        elsewhere: &["rl", "training_type", "rlhf_type"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: changes("the sequences of a row, and what a reference says of them").only(PREFERS),
            peak_memory: changes("the sequences of a micro-batch").only(PREFERS),
            loss: changes("another loss").only(PREFERS),
        },
        get: |recipe| name_of(&recipe.trainer),
        set: |recipe, value| put(&mut recipe.trainer, named(value)),
    },
    SettingRow {
        name: "beta",
        field: "beta",
        about: "How much a preference counts beside staying near the reference (dpo, kto), or beside the answer (orpo).",
        legal: Legal::Float(FloatRange::POSITIVE),
        // Losses of different values do not compare.
        widest: None,
        elsewhere: &["pref_beta", "dpo_beta", "rl_beta", "orpo_alpha"],
        unit: None,
        derived_from: None,
        effects: Effects::loss_only_where(
            PREFERS,
            "a factor on numbers that are computed anyway",
            "the scale of what is learnt",
        ),
        get: |recipe| Some(recipe.beta().into()),
        set: |recipe, value| put(&mut recipe.beta, value.as_f64().map(Some)),
    },
    SettingRow {
        name: "reference",
        field: "reference",
        about: "When the reference of dpo and kto is asked: in each step, or for all rows before the first.",
        legal: Legal::Choice(&ReferencePass::NAMES),
        widest: None,
        elsewhere: &["precompute_ref_log_probs"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: changes("a pass of the reference in each step").only(REFERS),
            peak_memory: changes("a copy of the model beside the one that trains whole").only(REFERS),
            loss: same("the reference is frozen"),
        },
        get: |recipe| name_of(&recipe.reference),
        set: |recipe, value| put(&mut recipe.reference, named(value)),
    },
];
