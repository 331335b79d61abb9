//! Parameters of the base model that train beside the adapters: biases and `modules_to_save`.

use crate::architecture::{EMBEDDING, LM_HEAD, name_alone, name_within};
use crate::recipe::{AdapterBias, AdapterSettings};

use super::adapted_linear::AdaptedLinear;
use super::error::PlanError;
use super::parameters::ParameterKind;
use super::shape::{BaseShape, LinearShape};
use super::target::known_suffixes;

/// Prefix of every tensor name in a PEFT checkpoint.
pub const PREFIX: &str = "base_model.model.";

/// A parameter of the base model that is trained and saved whole (`modules_to_save`, `bias`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeParameter {
    /// Name in the base checkpoint: its values are where training starts from.
    pub base_name: String,
    /// Name in the PEFT checkpoint.
    pub name: String,
    pub shape: Vec<usize>,
    pub kind: ParameterKind,
}

/// Biases of the base model's linears that train: those beside an adapter, or all.
pub(super) fn biases(settings: &AdapterSettings, base: &BaseShape, linears: &[AdaptedLinear]) -> Vec<WholeParameter> {
    let with_bias = base.linears.iter().filter(|linear| linear.bias);
    let is_adapted = |linear: &LinearShape| linears.iter().any(|adapted| adapted.linear.name == linear.name);
    let mut found = Vec::new();
    for linear in with_bias {
        let wrapped = is_adapted(linear);
        let trained = match settings.bias {
            AdapterBias::None => false,
            AdapterBias::LoraOnly => wrapped,
            AdapterBias::All => true,
        };
        if trained {
            // PEFT moves a wrapped layer's own parameters below `base_layer`.
            let inner = if wrapped { ".base_layer" } else { "" };
            found.push(WholeParameter {
                base_name: format!("{}.bias", linear.name),
                name: format!("{PREFIX}{}{inner}.bias", name_within(base.within, &linear.name)),
                shape: vec![linear.outputs],
                kind: ParameterKind::Bias,
            });
        }
    }
    found
}

/// The parameters of the modules that `modules_to_save` names. PEFT compares the plain end of the module name, so that
/// `norm` also takes `model.layers.0.input_layernorm`. Where the LM head is the embedding, either name means both.
pub(super) fn modules_to_save(
    settings: &AdapterSettings,
    base: &BaseShape,
    linears: &[AdaptedLinear],
) -> Result<Vec<WholeParameter>, PlanError> {
    let candidates = base_parameters(base);
    let module = |parameter: &WholeParameter| {
        let name = &parameter.base_name;
        name.rsplit_once('.')
            .map_or(name.as_str(), |(module, _)| module)
            .to_owned()
    };
    for wanted in &settings.modules_to_save {
        if let Some(taken) = linears.iter().find(|adapted| adapted.linear.name.ends_with(wanted)) {
            return Err(PlanError::SavedTarget {
                name: taken.linear.name.clone(),
            });
        }
        if !candidates.iter().any(|parameter| is_named(parameter, wanted, base)) {
            let modules: Vec<_> = candidates.iter().map(module).collect();
            return Err(PlanError::UnknownModule {
                name: wanted.clone(),
                known: known_suffixes(modules.iter().map(String::as_str)),
            });
        }
    }
    let is_wanted = |parameter: &WholeParameter| {
        let mut names = settings.modules_to_save.iter();
        names.any(|wanted| is_named(parameter, wanted, base))
    };
    Ok(candidates.into_iter().filter(is_wanted).collect())
}

/// Whether `wanted` names the module of a parameter. PEFT's own files may have the whole name within a multimodal model.
fn is_named(parameter: &WholeParameter, wanted: &str, base: &BaseShape) -> bool {
    let wanted = name_alone(wanted);
    let is_in = |tensor: &str| {
        let module = tensor.rsplit_once('.').map_or(tensor, |(module, _)| module);
        module.ends_with(&wanted)
    };
    is_in(&parameter.base_name) || (base.tied_embeddings && parameter.base_name == EMBEDDING && is_in(LM_HEAD))
}

/// Every parameter of the base model as one that could be saved whole.
fn base_parameters(base: &BaseShape) -> Vec<WholeParameter> {
    let parameter = |name: String, shape: Vec<usize>| WholeParameter {
        name: format!("{PREFIX}{}", name_within(base.within, &name)),
        base_name: name,
        shape,
        kind: ParameterKind::Base,
    };
    let mut all = Vec::new();
    for linear in &base.linears {
        let shape = vec![linear.outputs, linear.inputs];
        all.push(parameter(format!("{}.weight", linear.name), shape));
        if linear.bias {
            all.push(parameter(format!("{}.bias", linear.name), vec![linear.outputs]));
        }
    }
    all.extend(
        base.others
            .iter()
            .map(|other| parameter(other.name.clone(), other.shape.clone())),
    );
    all
}
