//! The plan of an adapter: every trained parameter, with its rank, scaling and place.
//!
//! The flat order is: all lora_a, all lora_b, lora_b biases, magnitudes, base biases, whole modules; each in the order
//! of the model's linears. Neighbours in the model that read the same input (q, k and v; gate and up) therefore have
//! their lora_a in one contiguous block: (r_q + r_k + r_v, in) is one product. It also makes LoRA+'s two learning
//! rates two ranges.

use crate::architecture::{EMBEDDING, LM_HEAD, name_within};
use crate::recipe::{AdapterInit, AdapterSettings};

use super::adapted_linear::AdaptedLinear;
use super::error::PlanError;
use super::parameters::{ParameterKind, ParameterLayout};
use super::pattern::Patterns;
use super::shape::{BaseShape, LinearKind, LinearShape, last_component};
use super::target::{Target, known_suffixes, select};
use super::whole::{PREFIX, WholeParameter, biases, modules_to_save};

/// Parameters that an adapter trains.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterPlan {
    pub settings: AdapterSettings,
    /// See [`Architecture::within`](crate::architecture::Architecture::within).
    pub within: Option<&'static str>,
    /// Adapted linear layers in the order of the base model's.
    pub linears: Vec<AdaptedLinear>,
    pub whole: Vec<WholeParameter>,
    /// Whether the LM head is the embedding.
    pub tied_embeddings: bool,
}

/// PEFT's names of both ends of an embedding that trains whole and is the LM head too: one parameter, of which PEFT writes and reads
/// two tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TiedEnds {
    /// Name of the parameter's slot, which is the embedding's.
    pub embedding: String,
    pub head: String,
}

/// Indices into a [`ParameterLayout`] of one adapted linear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearSlots {
    /// (rank, in)
    pub lora_a: usize,
    /// (out, rank)
    pub lora_b: usize,
    /// (out,), with `lora_bias`.
    pub lora_bias: Option<usize>,
    /// (out,), with `dora`.
    pub magnitude: Option<usize>,
}

/// Indices into a [`ParameterLayout`] of a whole plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterSlots {
    /// Slots of each of [`AdapterPlan::linears`].
    pub linears: Vec<LinearSlots>,
    /// Slot of each of [`AdapterPlan::whole`].
    pub whole: Vec<usize>,
}

impl AdapterPlan {
    /// Decides what is trained.
    ///
    /// # Errors
    /// Names, layers, ranks or patterns that do not fit the base model; each message says what does.
    pub fn new(settings: &AdapterSettings, base: &BaseShape) -> Result<Self, PlanError> {
        check_combination(settings)?;
        let targets = select(settings, base)?;
        check_parameters(settings, &targets)?;
        let names: Vec<&str> = targets.iter().map(|target| target.linear.name.as_str()).collect();
        let known = known_suffixes(names.iter().copied());
        let ranks = Patterns::new("rank_pattern", &settings.rank_pattern)?;
        let alphas = Patterns::new("alpha_pattern", &settings.alpha_pattern)?;
        ranks.check_used(&names, &known)?;
        alphas.check_used(&names, &known)?;
        let linears = targets
            .iter()
            .map(|target| {
                let linear = target.linear;
                // Where the names of modules stand for experts, gate and up have an adapter each, which PEFT joins to one.
                let rank = ranks.value(&linear.name, target.joined * settings.rank);
                let alpha = alphas.value(&linear.name, target.joined as f64 * settings.alpha);
                let adapted = adapted(settings, linear, rank, alpha)?;
                Ok(AdaptedLinear {
                    by_parameter: target.by_parameter,
                    joined: target.joined,
                    ..adapted
                })
            })
            .collect::<Result<Vec<_>, PlanError>>()?;
        let linears = with_modules(linears);
        let mut whole = biases(settings, base, &linears);
        whole.extend(modules_to_save(settings, base, &linears)?);
        Ok(Self {
            settings: settings.clone(),
            within: base.within,
            linears,
            whole,
            tied_embeddings: base.tied_embeddings,
        })
    }

    /// Names of both ends of the embedding, where it trains whole and is the LM head too.
    pub fn tied_ends(&self) -> Option<TiedEnds> {
        let is_embedding = |whole: &&WholeParameter| self.tied_embeddings && whole.base_name == EMBEDDING;
        self.whole.iter().find(is_embedding).map(|embedding| TiedEnds {
            embedding: embedding.name.clone(),
            head: format!("{PREFIX}{}", name_within(self.within, LM_HEAD)),
        })
    }

    /// Appends a slot for each trained parameter, in the flat order of this file's head.
    pub fn push_slots(&self, layout: &mut ParameterLayout) -> AdapterSlots {
        type Shape<'a> = &'a dyn Fn(&AdaptedLinear) -> Vec<usize>;
        let mut push_all = |ending: &str, kind, shape: Shape<'_>| -> Vec<usize> {
            let name = |linear: &AdaptedLinear| {
                let module = name_within(self.within, &linear.module);
                format!("{PREFIX}{module}.{ending}")
            };
            let linears = self.linears.iter();
            linears
                .map(|linear| layout.push(name(linear), &shape(linear), kind))
                .collect()
        };
        let outputs = |adapted: &AdaptedLinear| vec![adapted.linear.outputs];
        let lora_a = push_all("lora_A.weight", ParameterKind::LoraA, &|adapted| {
            vec![adapted.linear.count() * adapted.rank, adapted.linear.inputs]
        });
        let lora_b = push_all("lora_B.weight", ParameterKind::LoraB, &|adapted| {
            vec![adapted.linear.outputs, adapted.linear.count() * adapted.rank]
        });
        let settings = &self.settings;
        let mut vectors = |wanted: bool, ending, kind| wanted.then(|| push_all(ending, kind, &outputs));
        let biases = vectors(settings.lora_bias, "lora_B.bias", ParameterKind::Bias);
        let magnitudes = vectors(settings.dora, "lora_magnitude_vector", ParameterKind::Magnitude);
        let linears = (0..self.linears.len()).map(|index| LinearSlots {
            lora_a: lora_a[index],
            lora_b: lora_b[index],
            lora_bias: biases.as_ref().map(|all| all[index]),
            magnitude: magnitudes.as_ref().map(|all| all[index]),
        });
        let whole = self
            .whole
            .iter()
            .map(|parameter| layout.push(parameter.name.clone(), &parameter.shape, parameter.kind))
            .collect();
        AdapterSlots {
            linears: linears.collect(),
            whole,
        }
    }
}

/// Combinations that PEFT refuses, so that an adapter that was trained can be loaded.
fn check_combination(settings: &AdapterSettings) -> Result<(), PlanError> {
    if settings.lora_bias && settings.dora {
        return Err(PlanError::BiasWith { other: "dora" });
    }
    if settings.lora_bias && settings.init != AdapterInit::Kaiming {
        return Err(PlanError::BiasWith { other: "init" });
    }
    Ok(())
}

/// Refuses what PEFT refuses on parameters: it computes their update as a whole, and there is no input to drop values
/// of.
fn check_parameters(settings: &AdapterSettings, targets: &[Target<'_>]) -> Result<(), PlanError> {
    let Some(first) = targets.iter().find(|target| target.by_parameter) else {
        return Ok(());
    };
    let setting = match settings {
        AdapterSettings { dora: true, .. } => "dora",
        AdapterSettings { lora_bias: true, .. } => "lora_bias",
        AdapterSettings { dropout, .. } if *dropout > 0.0 => "dropout",
        AdapterSettings {
            init: AdapterInit::Pissa,
            ..
        } => "init: pissa",
        AdapterSettings {
            layers_to_transform: Some(layers),
            ..
        } if !layers.is_empty() => "layers_to_transform",
        _ => return Ok(()),
    };
    Err(PlanError::ParameterWith {
        name: first.linear.name.clone(),
        setting,
    })
}

/// Names the modules of the adapters. PEFT wraps a module once for each of its parameters: what is wrapped first, gate and up, lies
/// below `base_layer` of what is wrapped next.
fn with_modules(mut linears: Vec<AdaptedLinear>) -> Vec<AdaptedLinear> {
    for index in 0..linears.len() {
        let LinearKind::Experts(_) = linears[index].linear.kind else {
            continue;
        };
        let module = |linear: &LinearShape| {
            let name = &linear.name;
            name.rsplit_once('.')
                .map_or(name.as_str(), |(module, _)| module)
                .to_owned()
        };
        let own = module(&linears[index].linear);
        let wrapped_again = linears[index + 1..]
            .iter()
            .any(|next| matches!(next.linear.kind, LinearKind::Experts(_)) && module(&next.linear) == own);
        linears[index].module = if wrapped_again {
            format!("{own}.base_layer")
        } else {
            own
        };
    }
    linears
}

fn adapted(
    settings: &AdapterSettings,
    linear: &LinearShape,
    rank: usize,
    alpha: f64,
) -> Result<AdaptedLinear, PlanError> {
    let name = linear.name.clone();
    if rank == 0 {
        return Err(PlanError::ZeroRank { name });
    }
    // One for each head is no bound either.
    let most = if linear.any_rank || is_of_heads(&linear.name) {
        linear.inputs
    } else {
        linear.inputs.min(linear.outputs)
    };
    if rank > most {
        return Err(PlanError::RankAboveDimension {
            name,
            rank,
            inputs: linear.inputs,
            outputs: linear.outputs,
        });
    }
    if !alpha.is_finite() {
        return Err(PlanError::BadAlpha { name, alpha });
    }
    Ok(AdaptedLinear {
        linear: linear.clone(),
        module: linear.name.clone(),
        by_parameter: false,
        joined: 1,
        rank,
        alpha,
        scaling: settings.scaling(rank, alpha),
        parts: Vec::new(),
    })
}

/// Whether a linear layer has an output for each head, as those that decide decay and step of a delta rule.
fn is_of_heads(name: &str) -> bool {
    matches!(last_component(name), "in_proj_a" | "in_proj_b")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::recipe::{AdapterBias, TargetModules, TargetPreset};

    fn tiny() -> BaseShape {
        let mut base = BaseShape {
            layers: 2,
            ..Default::default()
        };
        for layer in 0..2 {
            for (name, outputs, inputs, bias) in [
                ("self_attn.q_proj", 8, 8, true),
                ("self_attn.k_proj", 4, 8, true),
                ("self_attn.o_proj", 8, 8, false),
                ("mlp.up_proj", 12, 8, false),
            ] {
                base.linears.push(LinearShape {
                    name: format!("model.layers.{layer}.{name}"),
                    inputs,
                    outputs,
                    bias,
                    ..Default::default()
                });
            }
            base.others.push(super::super::ParameterShape {
                name: format!("model.layers.{layer}.input_layernorm.weight"),
                shape: vec![8],
            });
        }
        base
    }

    fn settings() -> AdapterSettings {
        AdapterSettings {
            rank: 2,
            alpha: 4.0,
            ..Default::default()
        }
    }

    fn slot_names(plan: &AdapterPlan) -> Vec<String> {
        let mut layout = ParameterLayout::default();
        plan.push_slots(&mut layout);
        layout.slots().iter().map(|slot| slot.name.clone()).collect()
    }

    #[test]
    fn presets_select_by_ending() {
        let endings = |preset| {
            let settings = AdapterSettings {
                target_modules: TargetModules::Preset(preset),
                ..settings()
            };
            let plan = AdapterPlan::new(&settings, &tiny()).unwrap();
            plan.linears
                .iter()
                .map(|l| l.linear.suffix().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(endings(TargetPreset::AllLinear).len(), 8);
        assert_eq!(endings(TargetPreset::Attention)[..3], ["q_proj", "k_proj", "o_proj"]);
        assert_eq!(endings(TargetPreset::Mlp), ["up_proj", "up_proj"]);
    }

    #[test]
    fn neighbours_have_their_lora_a_side_by_side() {
        let mut layout = ParameterLayout::default();
        let plan = AdapterPlan::new(&settings(), &tiny()).unwrap();
        let slots = plan.push_slots(&mut layout);
        let (q, k) = (
            &layout.slots()[slots.linears[0].lora_a],
            &layout.slots()[slots.linears[1].lora_a],
        );
        assert_eq!(q.name, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
        assert_eq!(
            (q.offset + q.elements(), q.shape.as_slice()),
            (k.offset, [2, 8].as_slice())
        );
    }

    #[test]
    fn patterns_change_rank_and_scaling() {
        let settings = AdapterSettings {
            rank_pattern: BTreeMap::from([("layers.1.self_attn.q_proj".to_owned(), 1)]),
            alpha_pattern: BTreeMap::from([("up_proj".to_owned(), 6.0)]),
            ..settings()
        };
        let plan = AdapterPlan::new(&settings, &tiny()).unwrap();
        let of = |name: &str| {
            let linear = plan.linears.iter().find(|one| one.linear.name == name).unwrap();
            (linear.rank, linear.scaling)
        };
        assert_eq!(of("model.layers.0.self_attn.q_proj"), (2, 2.0));
        assert_eq!(of("model.layers.1.self_attn.q_proj"), (1, 4.0));
        assert_eq!(of("model.layers.1.mlp.up_proj"), (2, 3.0));
    }

    #[test]
    fn layers_to_transform_keeps_only_those_layers() {
        let settings = AdapterSettings {
            layers_to_transform: Some(vec![1]),
            ..settings()
        };
        let plan = AdapterPlan::new(&settings, &tiny()).unwrap();
        assert!(
            plan.linears
                .iter()
                .all(|l| l.linear.name.starts_with("model.layers.1."))
        );
        assert_eq!(plan.linears.len(), 4);
    }

    #[test]
    fn biases_and_whole_modules_carry_pefts_names() {
        let settings = AdapterSettings {
            target_modules: TargetModules::Named(vec!["q_proj".into()]),
            bias: AdapterBias::All,
            modules_to_save: vec!["norm".into()],
            dora: true,
            layers_to_transform: Some(vec![0]),
            ..settings()
        };
        let names = slot_names(&AdapterPlan::new(&settings, &tiny()).unwrap());
        let expected = [
            "layers.0.self_attn.q_proj.lora_A.weight",
            "layers.0.self_attn.q_proj.lora_B.weight",
            "layers.0.self_attn.q_proj.lora_magnitude_vector",
            "layers.0.self_attn.q_proj.base_layer.bias",
            "layers.0.self_attn.k_proj.bias",
            "layers.1.self_attn.q_proj.bias",
            "layers.1.self_attn.k_proj.bias",
            "layers.0.input_layernorm.weight",
            "layers.1.input_layernorm.weight",
        ];
        assert_eq!(names, expected.map(|name| format!("base_model.model.model.{name}")));
    }

    #[test]
    fn either_end_of_tied_embeddings_means_both() {
        let plan = |name: &str, tied_embeddings| {
            let mut base = tiny();
            base.tied_embeddings = tied_embeddings;
            base.others.push(super::super::ParameterShape {
                name: EMBEDDING.to_owned(),
                shape: vec![16, 8],
            });
            let settings = AdapterSettings {
                modules_to_save: vec![name.to_owned()],
                ..settings()
            };
            AdapterPlan::new(&settings, &base)
        };
        for name in [
            "embed_tokens",
            "model.embed_tokens",
            "model.language_model.embed_tokens",
            "lm_head",
        ] {
            let plan = plan(name, true).unwrap();
            let ends = plan.tied_ends().unwrap();
            assert_eq!(plan.whole.len(), 1, "{name}");
            assert_eq!(ends.embedding, plan.whole[0].name);
            assert_eq!(ends.embedding, "base_model.model.model.embed_tokens.weight");
            assert_eq!(ends.head, "base_model.model.lm_head.weight");
        }
        assert!(plan("lm_head", false).is_err());
        assert_eq!(plan("embed_tokens", false).unwrap().tied_ends(), None);
        assert_eq!(plan("layernorm", true).unwrap().tied_ends(), None);
    }

    #[test]
    fn each_mistake_is_named_with_what_would_do() {
        let message = |settings: AdapterSettings| AdapterPlan::new(&settings, &tiny()).unwrap_err().to_string();
        let named = |name: &str| AdapterSettings {
            target_modules: TargetModules::Named(vec![name.to_owned()]),
            ..settings()
        };
        let pattern = |rank| AdapterSettings {
            rank_pattern: BTreeMap::from([("k_proj".to_owned(), rank)]),
            ..settings()
        };
        assert!(message(named("w1")).contains("the model has: q_proj, k_proj, o_proj, up_proj"));
        assert!(message(pattern(0)).contains("rank 0 for `model.layers.0.self_attn.k_proj`"));
        assert!(message(pattern(5)).contains("rank 5 is above the smaller dimension of"));
        assert!(message(pattern(5)).contains("lower `rank` to 4 or less"));
        let unused = AdapterSettings {
            rank_pattern: BTreeMap::from([("w1".to_owned(), 2)]),
            ..settings()
        };
        assert!(message(unused).contains("key `w1` of `rank_pattern` matches no module"));
        let layer = AdapterSettings {
            layers_to_transform: Some(vec![2]),
            ..settings()
        };
        assert!(message(layer).contains("has 2, but the model has 2 decoder layers (0 to 1)"));
        let saved = AdapterSettings {
            modules_to_save: vec!["lm_head".into()],
            ..settings()
        };
        assert!(message(saved).contains("which no module ends in"));
        let bias = AdapterSettings {
            lora_bias: true,
            dora: true,
            ..settings()
        };
        assert!(message(bias).contains("`lora_bias` cannot be combined with `dora`"));
    }
}
