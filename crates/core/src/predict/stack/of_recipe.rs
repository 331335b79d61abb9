//! A recipe as another stack runs it: what its exported file says there.

use super::behaviour::{AttentionForm, HostUpdates, LossForm, Number, Raised, Recompute, StackBehaviour};
use super::comparison::Comparison;
use super::role::{ROLES, Role};
use super::setting::{OptimizerForm, Sharing, StackSetting, Trains};
use super::weight_form::WeightForm;
use crate::recipe::{
    AdapterSettings, AttentionImplementation, Checkpointing, OptimizerKind, Precision, Recipe, States, TargetModules,
    TargetPreset, TorchSettings, TrainerKind,
};

impl StackSetting {
    /// The setting that `recipe` becomes in `stack`.
    pub fn of_recipe(stack: &'static StackBehaviour, recipe: &Recipe) -> Self {
        let weights = weight_form(recipe.precision);
        let mut setting = Self::new(stack, weights);
        let number = match recipe.precision {
            Precision::Fp32 => Number::F32,
            _ => Number::Half,
        };
        (setting.loads, setting.computes) = (number, number);
        setting.autocast &= number == Number::Half;
        if number == Number::F32 {
            setting.adapters = Number::F32;
        }
        setting.trains = recipe.adapter.as_ref().map_or(Trains::Everything, trains);
        setting.dora = recipe.adapter.as_ref().is_some_and(|adapter| adapter.dora);
        let batch = &recipe.batch;
        setting.micro_batch = batch.micro_batch as u64;
        setting.gradient_accumulation = batch.gradient_accumulation as u64;
        setting.sequence_length = batch.sequence_length as u64;
        setting.devices = batch.devices as u64;
        if stack.says_sharding && !batch.sharding.is_none() && takes_fsdp(recipe) {
            setting.sharing = Sharing::Full;
        }
        setting.recompute = match recipe.gradient_checkpointing {
            Checkpointing::None => Recompute::Nothing,
            // No other stack can leave layers out: their files say `full`.
            Checkpointing::Every(_) | Checkpointing::Full => Recompute::Layers,
            Checkpointing::Offload => Recompute::LayersOffloaded,
        };
        setting.choose(&recipe.torch);
        setting.compare(recipe);
        setting.optimizer = optimizer_form(recipe.optimizer.kind, setting.optimizer.foreach);
        if recipe.optimizer.kind == OptimizerKind::Sgd && recipe.optimizer.momentum == 0.0 {
            setting.optimizer.states = 0;
        }
        if !recipe.optimizer.offload.is_none() {
            match stack.host_updates {
                HostUpdates::DeepSpeed if deepspeed_refuses(recipe).is_none() => {
                    (setting.sharing, setting.offloads) = (Sharing::Zero2, true);
                }
                HostUpdates::PagedAdamW if recipe.optimizer.kind == OptimizerKind::AdamW => {
                    setting.optimizer.is_paged = true;
                }
                HostUpdates::DeepSpeed | HostUpdates::PagedAdamW | HostUpdates::Unsaid => {}
            }
        }
        setting
    }

    /// Takes what a recipe's trainer compares. ORPO makes its loss of logits, and has PEFT prepare quantized models.
    fn compare(&mut self, recipe: &Recipe) {
        self.comparison = Comparison::of(recipe);
        if recipe.trainer == TrainerKind::Orpo {
            self.loss = LossForm::OddsRatio;
            self.holds_logits = false;
            self.raises = Raised::All;
        }
    }

    /// Takes the kernels that a recipe chooses. How far the loader reads ahead is the host's memory, which is no part of a setting.
    fn choose(&mut self, torch: &TorchSettings) {
        let TorchSettings {
            attn_implementation,
            torch_compile,
            use_liger_kernel,
            dataloader_num_workers: _,
        } = torch;
        self.attention = match attn_implementation {
            AttentionImplementation::Auto => self.attention,
            AttentionImplementation::Eager => AttentionForm::Eager,
            // Neither keeps scores.
            AttentionImplementation::Sdpa | AttentionImplementation::Flex => AttentionForm::Sdpa,
            AttentionImplementation::Flash2 | AttentionImplementation::Flash3 | AttentionImplementation::Flash4 => {
                AttentionForm::Flash
            }
        };
        self.compiled |= torch_compile;
        self.fused |= use_liger_kernel;
        if *use_liger_kernel && self.stack.liger_has_loss {
            self.loss = LossForm::FusedLinear;
            self.holds_logits = false;
        }
    }
}

/// Whether PyTorch's FSDP takes the weights and the optimizer of a recipe.
pub fn takes_fsdp(recipe: &Recipe) -> bool {
    let row = recipe.optimizer.kind.row();
    recipe.precision != Precision::Int8 && row.bits == 32 && !row.paged
}

/// Why DeepSpeed, which files of tools on transformers' Trainer can name, does not update a recipe's parameters on the host; `None` where
/// it does.
pub fn deepspeed_refuses(recipe: &Recipe) -> Option<&'static str> {
    let optimizer = &recipe.optimizer;
    if optimizer.kind != OptimizerKind::AdamW {
        return Some("has no form in DeepSpeed but for `optimizer: adamw`");
    }
    if optimizer.loraplus_ratio.is_some() {
        return Some("does not go with LoRA+ in DeepSpeed, which makes the optimizer itself");
    }
    if !recipe.batch.sharding.is_none() {
        return Some("does not go with FSDP, which would have all frozen weights on the host as well");
    }
    None
}

fn weight_form(precision: Precision) -> WeightForm {
    match precision {
        Precision::Fp32 | Precision::Bf16 | Precision::Fp16 => WeightForm::Numbers,
        Precision::Int8 => WeightForm::Int8,
        Precision::Nf4 => WeightForm::Nf4,
        Precision::Nf4Double => WeightForm::Nf4Double,
    }
}

fn trains(adapter: &AdapterSettings) -> Trains {
    let targets = match &adapter.target_modules {
        TargetModules::Preset(TargetPreset::AllLinear) => ROLES.to_vec(),
        TargetModules::Preset(TargetPreset::Attention) => ROLES[..4].to_vec(),
        TargetModules::Preset(TargetPreset::Mlp) => ROLES[4..].to_vec(),
        TargetModules::Named(names) => roles(names),
    };
    // A pattern gives some modules another rank: the largest is safe to plan with.
    let rank = adapter.rank_pattern.values().copied().fold(adapter.rank, usize::max);
    Trains::Adapters {
        rank: rank as u64,
        targets,
        has_dropout: adapter.dropout > 0.0,
        whole_embeddings: adapter.modules_to_save.iter().any(|name| is_embedding(name)),
    }
}

/// Roles that module names stand for. Where no layer is known by its name, adapters on all of them are the safe
/// reading.
fn roles(names: &[String]) -> Vec<Role> {
    let known: Vec<Role> = names.iter().flat_map(|name| Role::of_module(name)).copied().collect();
    match known.is_empty() && names.iter().any(|name| !is_embedding(name)) {
        true => ROLES.to_vec(),
        false => known,
    }
}

/// Whether a module's name is that of the embedding or the head, in any family.
fn is_embedding(name: &str) -> bool {
    let end = name.rsplit('.').next().unwrap_or(name);
    end.contains("embed") || end.contains("head") || ["wte", "output"].contains(&end)
}

/// Form of an optimizer's states in stacks that take it from PyTorch and bitsandbytes.
pub fn optimizer_form(kind: OptimizerKind, foreach: bool) -> OptimizerForm {
    let row = kind.row();
    let states = match row.states {
        States::OfElements(count) => count,
        States::Velocity => 1,
        States::Factored => 0,
        States::ByShape { matrix, vector } => matrix.max(vector),
    };
    let in_codes = row.bits < 32;
    OptimizerForm {
        states: if in_codes { 0 } else { states },
        bytes: if in_codes { states * u64::from(row.bits) / 8 } else { 0 },
        is_paged: row.paged,
        foreach: foreach && kind == OptimizerKind::AdamW,
        in_backward: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::DataSettings;

    const WITH_FSDP: StackBehaviour = StackBehaviour {
        says_sharding: true,
        host_updates: HostUpdates::DeepSpeed,
        ..StackBehaviour::PLAIN
    };
    const WITH_PAGES: StackBehaviour = StackBehaviour {
        adapters: [Number::F32, Number::Half],
        host_updates: HostUpdates::PagedAdamW,
        ..StackBehaviour::PLAIN
    };

    #[test]
    fn a_recipe_becomes_what_its_exported_file_says() {
        let mut recipe = Recipe::new("model", DataSettings::default());
        recipe.precision = Precision::Nf4Double;
        recipe.optimizer.kind = OptimizerKind::PagedAdamW8bit;
        recipe.gradient_checkpointing = Checkpointing::EVERY_SECOND;
        recipe.batch.micro_batch = 3;
        let setting = StackSetting::of_recipe(&WITH_PAGES, &recipe);
        assert_eq!(setting.weights, WeightForm::Nf4Double);
        assert_eq!((setting.optimizer.bytes, setting.optimizer.is_paged), (2, true));
        assert_eq!((setting.recompute, setting.micro_batch), (Recompute::Layers, 3));
        assert_eq!(setting.adapters, Number::Half, "those beside quantized weights");
        assert!(!setting.dora);
        recipe.adapter.as_mut().unwrap().dora = true;
        assert!(StackSetting::of_recipe(&WITH_PAGES, &recipe).dora);
        (recipe.batch.devices, recipe.batch.sharding) = (4, crate::recipe::Sharding::Full);
        let sharing = |stack, recipe: &Recipe| StackSetting::of_recipe(stack, recipe).sharing;
        assert_eq!(
            sharing(&WITH_FSDP, &recipe),
            Sharing::Copies,
            "not with an optimizer of 8 bits"
        );
        recipe.optimizer.kind = OptimizerKind::AdamW;
        assert_eq!(sharing(&WITH_FSDP, &recipe), Sharing::Full);
        assert_eq!(
            sharing(&WITH_PAGES, &recipe),
            Sharing::Copies,
            "its file does not say it"
        );
        recipe.optimizer.offload = crate::recipe::OptimizerOffload::Host;
        let offload = |stack, recipe: &Recipe| {
            let setting = StackSetting::of_recipe(stack, recipe);
            (setting.sharing, setting.offloads, setting.optimizer.is_paged)
        };
        assert_eq!(
            offload(&WITH_FSDP, &recipe),
            (Sharing::Full, false, false),
            "FSDP is in the way"
        );
        recipe.batch.sharding = crate::recipe::Sharding::None;
        assert_eq!(offload(&WITH_FSDP, &recipe), (Sharing::Zero2, true, false));
        assert_eq!(offload(&WITH_PAGES, &recipe), (Sharing::Copies, false, true));
        assert_eq!(
            offload(&StackBehaviour::PLAIN, &recipe),
            (Sharing::Copies, false, false)
        );
        recipe.optimizer.kind = OptimizerKind::Lion;
        assert_eq!(
            offload(&WITH_FSDP, &recipe),
            (Sharing::Copies, false, false),
            "DeepSpeed has AdamW alone"
        );
        recipe.adapter = None;
        assert!(StackSetting::of_recipe(&WITH_PAGES, &recipe).trains == Trains::Everything);
    }

    #[test]
    fn kernels_that_a_recipe_chooses_are_those_of_the_setting() {
        const WITH_LOSS: StackBehaviour = StackBehaviour {
            liger_has_loss: true,
            ..StackBehaviour::PLAIN
        };
        let mut recipe = Recipe::new("model", DataSettings::default());
        let kernels = |stack, recipe: &Recipe| {
            let setting = StackSetting::of_recipe(stack, recipe);
            (setting.attention, setting.compiled, setting.fused, setting.loss)
        };
        let plain = (AttentionForm::Sdpa, false, false, LossForm::Full);
        assert_eq!(kernels(&StackBehaviour::PLAIN, &recipe), plain);
        recipe.torch.attn_implementation = AttentionImplementation::Eager;
        recipe.torch.torch_compile = true;
        recipe.torch.use_liger_kernel = true;
        let chosen = (AttentionForm::Eager, true, true, LossForm::Full);
        assert_eq!(kernels(&StackBehaviour::PLAIN, &recipe), chosen);
        let with_loss = kernels(&WITH_LOSS, &recipe);
        assert_eq!(with_loss.3, LossForm::FusedLinear);
    }

    #[test]
    fn trainers_of_preferences_have_their_sequences_and_orpo_its_logits() {
        let mut recipe = Recipe::new("model", DataSettings::default());
        let of = |recipe: &Recipe| {
            let setting = StackSetting::of_recipe(&StackBehaviour::PLAIN, recipe);
            (setting.sequences(), setting.loss, setting.comparison.reference_passes)
        };
        let rows = recipe.batch.micro_batch as u64;
        assert_eq!(of(&recipe), (rows, LossForm::Full, 0));
        recipe.trainer = TrainerKind::Dpo;
        assert_eq!(of(&recipe), (2 * rows, LossForm::Full, 1));
        recipe.trainer = TrainerKind::Orpo;
        assert_eq!(of(&recipe), (2 * rows, LossForm::OddsRatio, 0));
    }

    #[test]
    fn modules_of_unknown_names_count_as_all_layers() {
        let targets_of = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let adapter = AdapterSettings {
                target_modules: TargetModules::Named(names),
                modules_to_save: vec!["transformer.embed_out".into()],
                ..AdapterSettings::default()
            };
            match trains(&adapter) {
                Trains::Adapters {
                    targets,
                    whole_embeddings,
                    ..
                } => (targets.len(), whole_embeddings),
                Trains::Everything => (0, false),
            }
        };
        assert_eq!(targets_of(&["Wqkv"]), (ROLES.len(), true));
        assert_eq!(targets_of(&["q_proj", "Wqkv"]), (1, true));
        assert_eq!(targets_of(&["lm_head"]), (0, true));
    }
}
