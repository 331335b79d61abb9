//! Selection by `target_modules`, `target_parameters` and `layers_to_transform`, as PEFT selects.
//!
//! A name t selects a module n if n == t or n ends in `.t`; it selects a parameter in the same way, by the name of its module and
//! its own. With `layers_to_transform`, only modules below a numbered layer count, and its number must be in the list.
//!
//! The experts of a layer are two parameters to PEFT. In some families it takes `gate_proj`, `up_proj` and `down_proj`, in Mixtral
//! `w1`, `w3` and `w2`, however they are spelt, for these two, and never for the shared expert or the layers without experts; gate and up together then
//! have twice the rank. `all-linear` means the router too there.

use super::error::PlanError;
use super::shape::{BaseShape, LinearKind, LinearShape, last_component};
use crate::architecture::Architecture;
use crate::recipe::{AdapterSettings, TargetModules, TargetPreset};

/// Endings of attention projections, and of what stands in attention's place; `qkv_proj` is the fused form (Phi-3), the ones behind it
/// are those of latent attention. LFM2 has `out_proj` in both kinds of layers.
const ATTENTION: &[&str] = &[
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "qkv_proj",
    "q_a_proj",
    "q_b_proj",
    "kv_a_proj_with_mqa",
    "kv_b_proj",
    "in_proj",
    "in_proj_qkv",
    "in_proj_z",
    "in_proj_b",
    "in_proj_a",
    "out_proj",
];
/// Endings of MLP projections; `gate_up_proj` is the fused form (Phi-3), `input_linear` and `output_linear` are Granite 4's, `w1` and
/// its kin LFM2's.
const MLP: &[&str] = &[
    "gate_proj",
    "up_proj",
    "down_proj",
    "gate_up_proj",
    "input_linear",
    "output_linear",
    "w1",
    "w3",
    "w2",
];
/// Endings of what latent attention has other modules for, and the ending of one of those.
const PLAIN_ATTENTION: [&str; 3] = ["q_proj", "k_proj", "v_proj"];
const LATENT: &str = "kv_a_proj_with_mqa";

/// Endings that PEFT passes over in a mixture where they stand for no module.
const EXPERTS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Ending that stands for the router where names stand for experts.
const ROUTER: &str = "gate";

/// Parameter that gets an adapter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Target<'a> {
    pub linear: &'a LinearShape,
    /// Whether PEFT adapts the parameter and not the module.
    pub by_parameter: bool,
    /// Projections whose adapters are joined to one.
    pub joined: usize,
}

/// Names of modules, with those that stand for experts taken out.
#[derive(Debug, Default)]
struct Named<'a> {
    modules: Vec<&'a str>,
    router: bool,
    gate_up: bool,
    down: bool,
}

/// Parameters of `base` that get an adapter, in the order of `base`.
pub(super) fn select<'a>(settings: &AdapterSettings, base: &'a BaseShape) -> Result<Vec<Target<'a>>, PlanError> {
    let named = Named::of(settings, base)?;
    check_names(settings, &named, base)?;
    check_layers(settings, base)?;
    let selected: Vec<_> = base
        .linears
        .iter()
        .filter_map(|linear| target(settings, &named, base, linear))
        .filter(|target| target.by_parameter || is_in_layers(settings, &target.linear.name))
        .collect();
    if selected.is_empty() {
        let known = known_modules(base);
        return Err(if base.has_experts() && base.expert_modules.is_none() {
            PlanError::NoTargetBesideExperts { known }
        } else {
            PlanError::NoTarget { known }
        });
    }
    Ok(selected)
}

/// Names of a list of `target_modules` that stand for no module of the model and are passed over beside others, as PEFT does: parts of
/// experts that are parameters, and projections that latent attention has in two parts. `None` where there are none; else a fragment
/// that ends in what to do.
pub fn passed_over(settings: &AdapterSettings, architecture: &Architecture) -> Option<String> {
    let TargetModules::Named(names) = &settings.target_modules else {
        return None;
    };
    let base = BaseShape::new(architecture);
    let is_module = |name: &str| base.linears.iter().any(|linear| ends_in(&linear.name, name));
    let is_of_experts = |name: &str| {
        let is_named = |experts: [&str; 3]| experts.iter().chain([&ROUTER]).any(|ending| ends_in(name, ending));
        base.has_experts() && base.expert_modules.is_some_and(is_named)
    };
    let passed_over = names.iter().filter(|name| !(is_module(name) || is_of_experts(name)));
    let quoted: Vec<String> = passed_over.map(|name| format!("`{name}`")).collect();
    if quoted.is_empty() {
        return None;
    }
    let experts = match base.has_experts() && base.expert_modules.is_none() {
        true => {
            ". Its experts are parameters, which `target_parameters: [experts.gate_up_proj, experts.down_proj]` names"
        }
        false => "",
    };
    Some(format!(
        "`target_modules` names {}, as no module of this model is called: they get no adapter, as in PEFT; name some of: {}{experts}",
        quoted.join(", "),
        known_modules(&base)
    ))
}

/// The endings of names that select something, each once: those of layers, and those that stand for experts.
fn known_modules(base: &BaseShape) -> String {
    let layers = base.linears.iter().filter(|linear| linear.kind == LinearKind::Layer);
    let experts = base.expert_modules.iter().flatten().copied();
    known_suffixes(layers.map(|linear| linear.name.as_str()).chain(experts))
}

/// The endings of `names`, each once, in their order.
pub(super) fn known_suffixes<'a>(names: impl Iterator<Item = &'a str>) -> String {
    each_once(names.map(last_component)).join(", ")
}

/// The names, each once, in their order.
pub(super) fn each_once<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut once = Vec::new();
    for name in names {
        if !once.contains(&name) {
            once.push(name);
        }
    }
    once
}

/// The regular expression that PEFT needs for modules of a language model inside of a multimodal one that end in `names`, of
/// some layers or of all. PEFT compares whole names with it, and takes no list of layers beside an expression.
pub fn expression_within(names: &[String], layers: Option<&[usize]>) -> String {
    let escaped = names.iter().map(|name| {
        let inside = name.strip_prefix("model.").unwrap_or(name);
        inside.replace('.', "\\.")
    });
    let any = escaped.collect::<Vec<_>>().join("|");
    let layers = match layers {
        None | Some([]) => String::new(),
        Some(layers) => {
            let numbers: Vec<String> = layers.iter().map(usize::to_string).collect();
            format!(r"layers\.(?:{})\.(?:.*\.)?", numbers.join("|"))
        }
    };
    format!(r".*language_model\.(?:.*\.)?{layers}(?:{any})")
}

/// The names and layers of an expression that [`expression_within`] made; `None` of others.
pub fn names_within(expression: &str) -> Option<(Vec<String>, Option<Vec<usize>>)> {
    let rest = expression.strip_prefix(r".*language_model\.(?:.*\.)?")?;
    let (layers, rest) = match rest.strip_prefix(r"layers\.(?:") {
        None => (None, rest),
        Some(rest) => {
            let (numbers, rest) = rest.split_once(r")\.(?:.*\.)?")?;
            let layers: Result<Vec<usize>, _> = numbers.split('|').map(str::parse).collect();
            (Some(layers.ok()?), rest)
        }
    };
    let names = rest.strip_prefix("(?:")?.strip_suffix(')')?.split('|');
    Some((names.map(|name| name.replace("\\.", ".")).collect(), layers))
}

/// Whether module `name` is `target` or lies at its end.
pub fn ends_in(name: &str, target: &str) -> bool {
    name == target || name.strip_suffix(target).is_some_and(|head| head.ends_with('.'))
}

impl<'a> Named<'a> {
    fn of(settings: &'a AdapterSettings, base: &BaseShape) -> Result<Self, PlanError> {
        let names = match &settings.target_modules {
            TargetModules::Named(names) => names.as_slice(),
            TargetModules::Preset(_) => return Ok(Self::default()),
        };
        let mut named = Self::default();
        let Some(experts) = base.expert_modules else {
            named.modules = names.iter().map(String::as_str).collect();
            return Ok(named);
        };
        let mut found = [false; 3];
        for name in names {
            match experts.iter().position(|ending| ends_in(name, ending)) {
                Some(expert) => found[expert] = true,
                None if ends_in(name, ROUTER) => named.router = true,
                None => named.modules.push(name),
            }
        }
        let [gate, up, down] = found;
        if gate != up {
            let [given, missing] = if gate {
                [experts[0], experts[1]]
            } else {
                [experts[1], experts[0]]
            };
            return Err(PlanError::HalfOfExperts { given, missing });
        }
        (named.gate_up, named.down) = (gate, down);
        Ok(named)
    }
}

fn target<'a>(
    settings: &AdapterSettings,
    named: &Named<'_>,
    base: &BaseShape,
    linear: &'a LinearShape,
) -> Option<Target<'a>> {
    let target = |by_parameter, joined| {
        Some(Target {
            linear,
            by_parameter,
            joined,
        })
    };
    let parameter = linear.parameter_name();
    if settings
        .target_parameters
        .iter()
        .any(|wanted| ends_in(&parameter, wanted))
    {
        return target(true, 1);
    }
    let is_gate_up = last_component(&linear.name) == "gate_up_proj";
    match (linear.kind, &settings.target_modules) {
        (LinearKind::Experts(_), TargetModules::Preset(TargetPreset::AllLinear | TargetPreset::Mlp)) => base
            .expert_modules
            .is_some()
            .then(|| target(true, if is_gate_up { 2 } else { 1 }))?,
        (LinearKind::Experts(_), TargetModules::Preset(TargetPreset::Attention)) => None,
        (LinearKind::Experts(_), TargetModules::Named(_)) if is_gate_up => named.gate_up.then(|| target(true, 2))?,
        (LinearKind::Experts(_), TargetModules::Named(_)) => named.down.then(|| target(true, 1))?,
        (LinearKind::Parameter, TargetModules::Preset(TargetPreset::AllLinear)) => {
            base.expert_modules.is_some().then(|| target(true, 1))?
        }
        (LinearKind::Parameter, TargetModules::Named(_)) => named.router.then(|| target(true, 1))?,
        (LinearKind::Parameter, TargetModules::Preset(_)) => None,
        (LinearKind::Layer, targets) => is_target(targets, named, base, &linear.name).then(|| target(false, 1))?,
    }
}

fn is_target(targets: &TargetModules, named: &Named<'_>, base: &BaseShape, name: &str) -> bool {
    let is_mlp = MLP.contains(&last_component(name));
    match targets {
        TargetModules::Preset(TargetPreset::AllLinear) => !(base.expert_modules.is_some() && is_mlp),
        TargetModules::Preset(TargetPreset::Attention) => ATTENTION.contains(&last_component(name)),
        TargetModules::Preset(TargetPreset::Mlp) => is_mlp && base.expert_modules.is_none(),
        TargetModules::Named(_) => named.modules.iter().any(|target| ends_in(name, target)),
    }
}

fn is_in_layers(settings: &AdapterSettings, name: &str) -> bool {
    // PEFT takes an empty list as "all layers".
    match settings.layers_to_transform.as_deref() {
        None | Some([]) => true,
        Some(layers) => layer_index(name).is_some_and(|layer| layers.contains(&layer)),
    }
}

/// The number in `model.layers.3.mlp.up_proj`: the last numeric component that has two before and one behind it, as
/// PEFT's pattern `.*\.[^.]*\.(\d+)\.` finds it.
fn layer_index(name: &str) -> Option<usize> {
    let parts: Vec<_> = name.split('.').collect();
    let last = parts.len().checked_sub(1)?;
    let numbers = parts.get(2..last)?;
    numbers.iter().rev().find_map(|part| part.parse().ok())
}

fn check_names(settings: &AdapterSettings, named: &Named<'_>, base: &BaseShape) -> Result<(), PlanError> {
    let layers = || base.linears.iter().filter(|linear| linear.kind == LinearKind::Layer);
    // PEFT passes over the modules of an MLP that a mixture keeps as one parameter, as long as another name is found.
    let is_within_experts = |name: &str| base.has_experts() && EXPERTS.contains(&name);
    // Likewise the projections that latent attention has in two parts.
    let is_latent = layers().any(|linear| ends_in(&linear.name, LATENT));
    let is_in_parts = |name: &str| is_latent && PLAIN_ATTENTION.contains(&name);
    for name in &named.modules {
        let is_passed_over = is_within_experts(name) || is_in_parts(name);
        if !layers().any(|linear| ends_in(&linear.name, name)) && !is_passed_over {
            return Err(PlanError::UnknownTarget {
                name: (*name).to_owned(),
                known: known_modules(base),
            });
        }
    }
    for name in &settings.target_parameters {
        let parameters: Vec<String> = base.linears.iter().map(LinearShape::parameter_name).collect();
        if !parameters.iter().any(|parameter| ends_in(parameter, name)) {
            return Err(PlanError::UnknownParameter {
                name: name.clone(),
                known: known_parameters(&parameters),
            });
        }
    }
    Ok(())
}

/// The last components of the parameters' names, so many as tell them apart.
fn known_parameters(parameters: &[String]) -> String {
    let mut known: Vec<&str> = Vec::new();
    for parameter in parameters {
        let parts = parameter
            .rmatch_indices('.')
            .nth(if parameter.ends_with(".weight") { 2 } else { 1 });
        let ending = parts.map_or(parameter.as_str(), |(dot, _)| &parameter[dot + 1..]);
        if !known.contains(&ending) {
            known.push(ending);
        }
    }
    known.join(", ")
}

fn check_layers(settings: &AdapterSettings, base: &BaseShape) -> Result<(), PlanError> {
    for &layer in settings.layers_to_transform.iter().flatten() {
        if layer >= base.layers {
            return Err(PlanError::UnknownLayer {
                layer,
                layers: base.layers,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_ends_at_a_dot() {
        assert!(ends_in("model.layers.0.mlp.up_proj", "up_proj"));
        assert!(ends_in("model.layers.0.mlp.up_proj", "mlp.up_proj"));
        assert!(ends_in("up_proj", "up_proj"));
        assert!(!ends_in("model.layers.0.mlp.gate_up_proj", "up_proj"));
    }

    #[test]
    fn the_layer_number_is_found_below_a_prefix() {
        assert_eq!(layer_index("model.layers.12.mlp.up_proj"), Some(12));
        assert_eq!(layer_index("layers.12.mlp"), None);
        assert_eq!(layer_index("lm_head"), None);
    }
}
