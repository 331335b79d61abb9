//! A model as a recipe trains it: which layers exist, what trains in them, and how large it is.
//!
//! The rules of `target_modules`, `layers_to_transform`, `rank_pattern`, `bias` and `modules_to_save` are PEFT's, as the
//! engine has them; layers that are alike share one [`LayerKind`], so that nothing here grows with the depth.

use regex::Regex;

use super::PredictError;
use crate::architecture::{Architecture, EMBEDDING, LM_HEAD, LinearModule, LinearRole};
use crate::recipe::{AdapterBias, AdapterInit, AdapterSettings, Recipe, TargetModules, TargetPreset};

/// One projection of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Projection {
    pub outputs: usize,
    pub bias: bool,
    /// Index into [`Group::ranks`].
    pub adapter: Option<usize>,
    pub weight_trains: bool,
    pub bias_trains: bool,
}

/// Projections of one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub inputs: usize,
    /// Rank of each adapter on the input.
    pub ranks: Vec<usize>,
    pub projections: Vec<Projection>,
}

impl Group {
    /// Whether backward needs the group's input.
    pub fn reads_input(&self) -> bool {
        !self.ranks.is_empty() || self.projections.iter().any(|projection| projection.weight_trains)
    }

    /// Rank of a projection's adapter, 0 without one.
    pub fn rank_of(&self, projection: &Projection) -> usize {
        projection.adapter.map_or(0, |index| self.ranks[index])
    }

    /// Outputs of all projections together.
    pub fn outputs(&self) -> usize {
        self.projections.iter().map(|projection| projection.outputs).sum()
    }
}

/// Decoder layers that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LayerKind {
    pub window: Option<usize>,
    pub qkv: Group,
    pub output: Group,
    pub gate_up: Group,
    pub down: Group,
    /// Whether the norm before attention trains: its gradient needs dx of the projections.
    pub input_norm_trains: bool,
    pub trains: bool,
}

/// Trained parameters of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    pub rows: usize,
    /// Absent for a vector.
    pub columns: Option<usize>,
    pub count: usize,
}

impl Slots {
    /// Elements of one.
    pub fn elements(&self) -> u64 {
        (self.rows * self.columns.unwrap_or(1)) as u64
    }
}

/// A model as a recipe trains it.
#[derive(Clone, Debug)]
pub(super) struct Network<'a> {
    pub architecture: &'a Architecture,
    pub kinds: Vec<LayerKind>,
    /// Kind of each layer.
    pub layers: Vec<usize>,
    pub head_trains: bool,
    pub embedding_trains: bool,
    pub slots: Vec<Slots>,
    /// Elements of linear weights that PiSSA replaces, by weight: (elements, how many).
    pub replaced: Vec<(u64, usize)>,
    /// Linear layers with an adapter.
    pub adapted: usize,
    /// Elements of A and B of all adapters.
    pub factor_elements: u64,
    pub dora: bool,
    pub lora_bias: bool,
    pub dropout: bool,
}

/// What a layer's parameters may be trained as.
struct Rules<'a> {
    /// `None` in full fine-tuning.
    adapter: Option<&'a AdapterSettings>,
    ranks: Vec<(Regex, usize)>,
}

impl<'a> Network<'a> {
    /// The network that `recipe` trains.
    ///
    /// # Errors
    /// Adapter settings that do not fit the model.
    pub fn new(architecture: &'a Architecture, recipe: &Recipe) -> Result<Self, PredictError> {
        if recipe.adapter.is_none() && recipe.precision.is_quantized() {
            return Err(PredictError::QuantizedWhole);
        }
        let rules = Rules::new(recipe.adapter.as_ref())?;
        let modules = architecture.linear_modules();
        if let Some(settings) = rules.adapter {
            check(settings, architecture, &modules)?;
        }
        let mut network = Self {
            architecture,
            kinds: Vec::new(),
            layers: Vec::with_capacity(architecture.layers.len()),
            head_trains: rules.trains_whole(if architecture.tied_embeddings {
                EMBEDDING
            } else {
                LM_HEAD
            }),
            embedding_trains: rules.trains_whole(EMBEDDING),
            slots: Vec::new(),
            replaced: Vec::new(),
            adapted: 0,
            factor_elements: 0,
            dora: rules.adapter.is_some_and(|adapter| adapter.dora),
            lora_bias: rules.adapter.is_some_and(|adapter| adapter.lora_bias),
            dropout: rules.adapter.is_some_and(|adapter| adapter.dropout > 0.0),
        };
        let uniform = rules.is_uniform();
        for (index, layer) in architecture.layers.iter().enumerate() {
            // Where no rule names single layers, a layer differs from the first in its window only.
            let alike = (0..index).find(|other| uniform && architecture.layers[*other].window == layer.window);
            let kind = match alike {
                Some(other) => network.layers[other],
                None => network.kind(&rules, &modules, index)?,
            };
            network.layers.push(kind);
        }
        network.count_slots(&rules, &modules);
        if network.adapted == 0 && rules.adapter.is_some() {
            return Err(PredictError::NoTarget { known: known(&modules) });
        }
        Ok(network)
    }

    /// Elements of all that trains.
    pub fn trained_elements(&self) -> u64 {
        self.slots
            .iter()
            .map(|slots| slots.elements() * slots.count as u64)
            .sum()
    }

    /// The lowest layer that a gradient must reach.
    pub fn first_on_tape(&self) -> usize {
        if self.embedding_trains {
            return 0;
        }
        let first = self.layers.iter().position(|kind| self.kinds[*kind].trains);
        first.unwrap_or(self.layers.len())
    }

    /// The kind of layer `index`, a new one where there is none like it.
    fn kind(&mut self, rules: &Rules<'_>, modules: &[LinearModule], index: usize) -> Result<usize, PredictError> {
        let group = |roles: &[LinearRole]| self.group(rules, modules, index, roles);
        let mut kind = LayerKind {
            window: self.architecture.layers[index].window,
            qkv: group(&[LinearRole::Query, LinearRole::Key, LinearRole::Value])?,
            output: group(&[LinearRole::Output])?,
            gate_up: group(&[LinearRole::Gate, LinearRole::Up])?,
            down: group(&[LinearRole::Down])?,
            input_norm_trains: rules
                .trains_whole(&format!("{}.input_layernorm.weight", Architecture::layer_name(index))),
            trains: false,
        };
        let groups = [&kind.qkv, &kind.output, &kind.gate_up, &kind.down];
        let in_groups = groups
            .iter()
            .any(|group| group.reads_input() || group.projections.iter().any(|projection| projection.bias_trains));
        let norms = self.architecture.layer_norms().iter();
        let mut names = norms.map(|norm| format!("{}.{norm}.weight", Architecture::layer_name(index)));
        kind.trains = in_groups || names.any(|name| rules.trains_whole(&name));
        if let Some(known) = self.kinds.iter().position(|known| *known == kind) {
            return Ok(known);
        }
        self.kinds.push(kind);
        Ok(self.kinds.len() - 1)
    }

    fn group(
        &self,
        rules: &Rules<'_>,
        modules: &[LinearModule],
        layer: usize,
        roles: &[LinearRole],
    ) -> Result<Group, PredictError> {
        let mut group = Group {
            inputs: 0,
            ranks: Vec::new(),
            projections: Vec::with_capacity(roles.len()),
        };
        let mut last: Option<&str> = None;
        for role in roles {
            let Some((module, outputs)) = self.part(modules, *role) else {
                continue;
            };
            let rank = rules.rank(layer, module)?;
            if rank.is_some_and(|_| last != Some(module.name)) {
                group.ranks.extend(rank);
            }
            last = Some(module.name);
            group.inputs = module.in_features;
            let name = || format!("{}.{}", Architecture::layer_name(layer), module.name);
            let adapted = rank.is_some();
            group.projections.push(Projection {
                outputs,
                bias: module.bias,
                adapter: adapted.then(|| group.ranks.len() - 1),
                weight_trains: rules.names_modules() && rules.trains_whole(&format!("{}.weight", name())),
                bias_trains: module.bias && rules.trains_bias(&name, adapted),
            });
        }
        Ok(group)
    }

    /// The module that holds the projection `role`, and the projection's outputs.
    fn part<'m>(&self, modules: &'m [LinearModule], role: LinearRole) -> Option<(&'m LinearModule, usize)> {
        if let Some(module) = modules.iter().find(|module| module.role == role) {
            return Some((module, module.out_features));
        }
        let (fused, outputs) = match role {
            LinearRole::Query => (LinearRole::QueryKeyValue, self.architecture.query_size()),
            LinearRole::Key | LinearRole::Value => (LinearRole::QueryKeyValue, self.architecture.kv_size()),
            LinearRole::Gate | LinearRole::Up => (LinearRole::GateUp, self.architecture.intermediate_size),
            _ => return None,
        };
        let module = modules.iter().find(|module| module.role == fused)?;
        Some((module, outputs))
    }

    fn count_slots(&mut self, rules: &Rules<'_>, modules: &[LinearModule]) {
        let Some(settings) = rules.adapter else {
            self.count_whole(|_| true);
            return;
        };
        for kind in 0..self.kinds.len() {
            let count = self.layers.iter().filter(|layer| **layer == kind).count();
            for (module, rank) in adapted_modules(&self.kinds[kind], modules) {
                let mut push = |rows, columns| self.slots.push(Slots { rows, columns, count });
                push(rank, Some(module.in_features));
                push(module.out_features, Some(rank));
                if self.lora_bias {
                    push(module.out_features, None);
                }
                if self.dora {
                    push(module.out_features, None);
                }
                self.adapted += count;
                self.factor_elements += (count * rank * (module.in_features + module.out_features)) as u64;
                if settings.init == AdapterInit::Pissa {
                    self.replaced
                        .push(((module.in_features * module.out_features) as u64, count));
                }
            }
        }
        if rules.names_modules() || settings.bias != AdapterBias::None {
            self.count_whole(|name| {
                let is_bias = name.ends_with(".bias") && settings.bias == AdapterBias::All;
                is_bias || rules.trains_whole(name)
            });
        }
    }

    /// Adds the base parameters that train whole.
    fn count_whole(&mut self, trains: impl Fn(&str) -> bool) {
        for tensor in self.architecture.tensors().iter().filter(|tensor| trains(&tensor.name)) {
            let columns = tensor.shape.get(1).copied();
            let rows = tensor.shape.first().copied().unwrap_or(1);
            match self
                .slots
                .iter_mut()
                .find(|slots| slots.rows == rows && slots.columns == columns)
            {
                Some(slots) => slots.count += 1,
                None => self.slots.push(Slots {
                    rows,
                    columns,
                    count: 1,
                }),
            }
        }
    }
}

/// The modules of a layer that have an adapter, with its rank: a fused module once.
fn adapted_modules<'m>(kind: &LayerKind, modules: &'m [LinearModule]) -> Vec<(&'m LinearModule, usize)> {
    let groups = [&kind.qkv, &kind.output, &kind.gate_up, &kind.down];
    let of_role = |role: LinearRole| -> Option<usize> {
        let (group, index) = match role {
            LinearRole::Query | LinearRole::QueryKeyValue => (0, 0),
            LinearRole::Key => (0, 1),
            LinearRole::Value => (0, 2),
            LinearRole::Output => (1, 0),
            LinearRole::Gate | LinearRole::GateUp => (2, 0),
            LinearRole::Up => (2, 1),
            LinearRole::Down => (3, 0),
        };
        let group: &Group = groups[group];
        Some(group.ranks[group.projections.get(index)?.adapter?])
    };
    modules
        .iter()
        .filter_map(|module| Some((module, of_role(module.role)?)))
        .collect()
}

impl<'a> Rules<'a> {
    fn new(adapter: Option<&'a AdapterSettings>) -> Result<Self, PredictError> {
        let mut ranks = Vec::new();
        for (key, rank) in adapter.iter().flat_map(|adapter| &adapter.rank_pattern) {
            let pattern = Regex::new(&format!(r"^(.*\.)?({key})$"));
            ranks.push((
                pattern.map_err(|_| PredictError::BadPattern { key: key.clone() })?,
                *rank,
            ));
        }
        Ok(Self { adapter, ranks })
    }

    /// Whether every layer is treated alike.
    fn is_uniform(&self) -> bool {
        self.adapter.is_none_or(|adapter| {
            self.ranks.is_empty()
                && adapter.modules_to_save.is_empty()
                && adapter.layers_to_transform.as_ref().is_none_or(Vec::is_empty)
                && !matches!(&adapter.target_modules, TargetModules::Named(names) if names.iter().any(|name| name.contains('.')))
        })
    }

    /// Whether base parameters may train whole.
    fn names_modules(&self) -> bool {
        self.adapter.is_none_or(|adapter| !adapter.modules_to_save.is_empty())
    }

    /// Rank of the adapter on a module of a layer, where it gets one.
    fn rank(&self, layer: usize, module: &LinearModule) -> Result<Option<usize>, PredictError> {
        let Some(adapter) = self.adapter.filter(|adapter| is_target(adapter, layer, module)) else {
            return Ok(None);
        };
        let name = || format!("{}.{}", Architecture::layer_name(layer), module.name);
        let rank = match self.ranks.is_empty() {
            true => adapter.rank,
            false => {
                let name = name();
                let found = self.ranks.iter().find(|(pattern, _)| pattern.is_match(&name));
                found.map_or(adapter.rank, |(_, rank)| *rank)
            }
        };
        if rank == 0 {
            return Err(PredictError::ZeroRank { name: name() });
        }
        let (inputs, outputs) = (module.in_features, module.out_features);
        if rank > inputs.min(outputs) {
            return Err(PredictError::RankAboveDimension {
                name: name(),
                rank,
                inputs,
                outputs,
            });
        }
        Ok(Some(rank))
    }

    /// Whether the base parameter `name` trains as a whole.
    fn trains_whole(&self, name: &str) -> bool {
        let Some(adapter) = self.adapter else { return true };
        let module = name.rsplit_once('.').map_or(name, |(module, _)| module);
        adapter
            .modules_to_save
            .iter()
            .any(|wanted| module.ends_with(wanted.as_str()))
    }

    fn trains_bias(&self, name: &impl Fn() -> String, adapted: bool) -> bool {
        let Some(adapter) = self.adapter else { return true };
        match adapter.bias {
            AdapterBias::All => true,
            AdapterBias::LoraOnly if adapted => true,
            AdapterBias::None | AdapterBias::LoraOnly => {
                self.names_modules() && self.trains_whole(&format!("{}.bias", name()))
            }
        }
    }
}

fn is_target(adapter: &AdapterSettings, layer: usize, module: &LinearModule) -> bool {
    let layers = adapter.layers_to_transform.as_deref().unwrap_or_default();
    if !layers.is_empty() && !layers.contains(&layer) {
        return false;
    }
    match &adapter.target_modules {
        TargetModules::Preset(TargetPreset::AllLinear) => true,
        TargetModules::Preset(TargetPreset::Attention) => module.name.starts_with("self_attn."),
        TargetModules::Preset(TargetPreset::Mlp) => module.name.starts_with("mlp."),
        TargetModules::Named(names) => names.iter().any(|target| names_module(target, Some(layer), module)),
    }
}

/// Whether a target names a module: the whole of the module's name or its end behind a dot.
fn names_module(target: &str, layer: Option<usize>, module: &LinearModule) -> bool {
    let ends = |name: &str| name == target || name.strip_suffix(target).is_some_and(|head| head.ends_with('.'));
    match layer {
        Some(layer) if target.matches('.').count() > 1 => {
            ends(&format!("{}.{}", Architecture::layer_name(layer), module.name))
        }
        _ => ends(module.name),
    }
}

fn check(
    settings: &AdapterSettings,
    architecture: &Architecture,
    modules: &[LinearModule],
) -> Result<(), PredictError> {
    if settings.lora_bias && settings.dora {
        return Err(PredictError::BiasWith { other: "dora" });
    }
    if settings.lora_bias && settings.init != AdapterInit::Kaiming {
        return Err(PredictError::BiasWith { other: "init" });
    }
    let layers = architecture.layers.len();
    if let Some(layer) = settings
        .layers_to_transform
        .iter()
        .flatten()
        .find(|layer| **layer >= layers)
    {
        return Err(PredictError::UnknownLayer { layer: *layer, layers });
    }
    if let TargetModules::Named(names) = &settings.target_modules {
        let exists = |name: &str| {
            let named = |layer| modules.iter().any(|module| names_module(name, Some(layer), module));
            (0..layers).any(named)
        };
        if let Some(name) = names.iter().find(|name| !exists(name)) {
            return Err(PredictError::UnknownTarget {
                name: name.clone(),
                known: known(modules),
            });
        }
    }
    if !settings.modules_to_save.is_empty() {
        let tensors = architecture.tensors();
        let module = |name: &str| {
            name.rsplit_once('.')
                .map_or(name.to_owned(), |(module, _)| module.to_owned())
        };
        let exists = |wanted: &String| {
            tensors
                .iter()
                .any(|tensor| module(&tensor.name).ends_with(wanted.as_str()))
        };
        if let Some(name) = settings.modules_to_save.iter().find(|wanted| !exists(wanted)) {
            return Err(PredictError::UnknownModule { name: name.clone() });
        }
    }
    Ok(())
}

/// The last parts of the modules' names.
fn known(modules: &[LinearModule]) -> String {
    let ends: Vec<&str> = modules
        .iter()
        .map(|module| module.name.rsplit('.').next().unwrap_or(module.name))
        .collect();
    ends.join(", ")
}
