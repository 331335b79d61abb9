//! Adapters with tensors for each expert apart, as PEFT wrote them under transformers 4: `mlp.experts.3.up_proj.lora_A.weight`, with
//! the names of modules for those that the files of Mixtral have.
//!
//! They become adapters on stacked parameters. Gate and up share their input, so that their factors are joined: A_e is that of gate
//! above that of up, and B_e has both on its diagonal. The rank is the sum of both, and alpha keeps the scaling.
//!
//! PEFT 0.21 drops the tensors of shared experts and of layers without experts from such files without a word. Here they stay.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use peft_tune_core::plan::{PREFIX, last_component};
use peft_tune_core::recipe::{AdapterSettings, TargetModules};

use super::error::AdapterError;

const LORA_A: &str = "lora_A.weight";
const LORA_B: &str = "lora_B.weight";
const PARTS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Shape and F32 values.
type Stored = (Vec<usize>, Vec<f32>);

/// Shape and F32 values by PEFT's tensor name.
pub(super) type Tensors = BTreeMap<String, Stored>;

/// Ranks of what was joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Joined {
    /// Rank of gate and up together.
    gate_up: Option<usize>,
    down: Option<usize>,
}

/// One matrix, row-major.
#[derive(Clone, Debug, Default, PartialEq)]
struct Factor {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
}

/// One expert's A (r, in) and B (out, r) on one projection.
#[derive(Clone, Debug, Default, PartialEq)]
struct Pair {
    a: Factor,
    b: Factor,
}

/// Name of a tensor of a single expert, in its parts.
struct ExpertTensor<'a> {
    /// `…mlp.experts`
    module: &'a str,
    expert: usize,
    projection: &'a str,
    factor: &'a str,
}

/// Joins the tensors of single experts, where there are some.
///
/// # Errors
/// An expert whose tensors are missing or have other shapes than the others'.
pub(super) fn join(tensors: &mut Tensors, path: &Path) -> Result<Option<Joined>, AdapterError> {
    let modules: BTreeSet<String> = tensors
        .keys()
        .filter_map(|name| Some(ExpertTensor::parse(name)?.module.to_owned()))
        .collect();
    let mut joined: Option<Joined> = None;
    for module in modules {
        let parts = PARTS.map(|part| take(tensors, &module, part));
        let of_layer = Layer {
            module: &module,
            path,
            experts: parts.iter().flat_map(BTreeMap::keys).max().map_or(0, |last| last + 1),
        };
        let [gate, up, down] = parts;
        let gate_up = of_layer.gate_up(gate, up)?;
        let down = of_layer.whole(down, "down_proj")?;
        let ranks = Joined {
            gate_up: gate_up.first().map(|pair| pair.a.rows),
            down: down.first().map(|pair| pair.a.rows),
        };
        if joined.is_some_and(|known| known != ranks) {
            return Err(of_layer.odd("gate_proj"));
        }
        joined = Some(ranks);
        let inner = match down.is_empty() {
            true => module.clone(),
            false => format!("{module}.base_layer"),
        };
        for (name, pairs) in [(inner, gate_up), (module.clone(), down)] {
            if let Some([a, b]) = stacked(&pairs) {
                tensors.insert(format!("{name}.{LORA_A}"), a);
                tensors.insert(format!("{name}.{LORA_B}"), b);
            }
        }
    }
    Ok(joined)
}

impl Joined {
    /// The settings that select what the file holds: experts as parameters, and every other module by its full name.
    pub(super) fn settings(self, settings: AdapterSettings, modules: &[String]) -> AdapterSettings {
        let (is_expert, mut joined) = (|module: &&String| module.contains(".experts"), settings);
        let others = || modules.iter().filter(|module| !is_expert(module));
        // These names would stand for the experts.
        let (parameters, plain): (Vec<&String>, Vec<&String>) =
            others().partition(|module| PARTS.contains(&last_component(module)));
        joined.target_modules = TargetModules::Named(plain.into_iter().cloned().collect());
        joined.target_parameters = parameters.iter().map(|module| format!("{module}.weight")).collect();
        let scaling = joined.scaling(joined.rank, joined.alpha);
        for (name, rank) in [("gate_up_proj", self.gate_up), ("down_proj", self.down)] {
            let Some(rank) = rank else { continue };
            let parameter = format!("experts.{name}");
            joined.rank_pattern.insert(parameter.clone(), rank);
            let per_alpha = joined.scaling(rank, 1.0);
            joined.alpha_pattern.insert(parameter.clone(), scaling / per_alpha);
            joined.target_parameters.push(parameter);
        }
        joined
    }
}

impl<'a> ExpertTensor<'a> {
    /// The parts of `name`; `None` where it is that of another tensor.
    fn parse(name: &'a str) -> Option<Self> {
        let (head, rest) = name.strip_prefix(PREFIX).and(name.split_once(".experts."))?;
        let (expert, rest) = rest.split_once('.')?;
        let (projection, factor) = rest.split_once('.')?;
        let known = PARTS.contains(&projection) && [LORA_A, LORA_B].contains(&factor);
        let parsed = Self {
            module: &name[..head.len() + ".experts".len()],
            expert: expert.parse().ok()?,
            projection,
            factor,
        };
        known.then_some(parsed)
    }
}

/// Takes the factors of all experts of a layer on one projection out of `tensors`; a missing one is empty.
fn take(tensors: &mut Tensors, module: &str, part: &str) -> BTreeMap<usize, Pair> {
    let names: Vec<String> = tensors.keys().cloned().collect();
    let mut pairs: BTreeMap<usize, Pair> = BTreeMap::new();
    for name in names {
        let Some(of) = ExpertTensor::parse(&name) else {
            continue;
        };
        if of.module != module || of.projection != part {
            continue;
        }
        let Some((shape, values)) = tensors.get(&name) else {
            continue;
        };
        let [rows, columns] = shape[..] else { continue };
        let factor = Factor {
            rows,
            columns,
            values: values.clone(),
        };
        let pair = pairs.entry(of.expert).or_default();
        match of.factor {
            LORA_A => pair.a = factor,
            _ => pair.b = factor,
        }
        tensors.remove(&name);
    }
    pairs
}

/// A layer whose experts are joined.
struct Layer<'a> {
    module: &'a str,
    path: &'a Path,
    experts: usize,
}

impl Layer<'_> {
    /// The factors of all experts, all of one shape; none where the projection has no adapter.
    fn whole(&self, pairs: BTreeMap<usize, Pair>, part: &str) -> Result<Vec<Pair>, AdapterError> {
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        let shape = |Pair { a, b }: &Pair| [a.rows, a.columns, b.rows, b.columns];
        for expert in 0..self.experts {
            if pairs
                .get(&expert)
                .is_none_or(|pair| pair.a.rows == 0 || pair.b.rows == 0)
            {
                return Err(AdapterError::MissingTensor {
                    path: self.path.to_owned(),
                    name: format!("{}.{expert}.{part}.{LORA_A}", self.module),
                });
            }
        }
        let pairs: Vec<Pair> = pairs.into_values().collect();
        let first = shape(&pairs[0]);
        match pairs.iter().all(|pair| shape(pair) == first && first[0] == first[3]) {
            true => Ok(pairs),
            false => Err(self.odd(part)),
        }
    }

    fn gate_up(&self, gate: BTreeMap<usize, Pair>, up: BTreeMap<usize, Pair>) -> Result<Vec<Pair>, AdapterError> {
        let (gate, up) = (self.whole(gate, "gate_proj")?, self.whole(up, "up_proj")?);
        if gate.len() != up.len() {
            return Err(self.odd(if gate.is_empty() { "gate_proj" } else { "up_proj" }));
        }
        if gate
            .iter()
            .zip(&up)
            .any(|(gate, up)| gate.a.columns != up.a.columns || gate.a.rows != up.a.rows)
        {
            return Err(self.odd("up_proj"));
        }
        Ok(gate.into_iter().zip(up).map(|(gate, up)| beside(gate, up)).collect())
    }

    fn odd(&self, part: &str) -> AdapterError {
        AdapterError::OddExpert {
            path: self.path.to_owned(),
            name: format!("{}.*.{part}", self.module),
        }
    }
}

/// Two updates of one input as one: A below A, B beside B on the diagonal.
fn beside(gate: Pair, up: Pair) -> Pair {
    let (gate_rank, rank) = (gate.a.rows, gate.a.rows + up.a.rows);
    let a = Factor {
        rows: rank,
        columns: gate.a.columns,
        values: [gate.a.values, up.a.values].concat(),
    };
    let mut b = Factor {
        rows: gate.b.rows + up.b.rows,
        columns: rank,
        values: Vec::new(),
    };
    b.values = vec![0.0; b.rows * rank];
    for (row, values) in gate.b.values.chunks_exact(gate.b.columns).enumerate() {
        b.values[row * rank..][..gate_rank].copy_from_slice(values);
    }
    for (row, values) in up.b.values.chunks_exact(up.b.columns).enumerate() {
        b.values[(gate.b.rows + row) * rank + gate_rank..][..up.b.columns].copy_from_slice(values);
    }
    Pair { a, b }
}

/// A (E r, in) and B (out, r E), with the columns of all experts for one rank beside each other.
fn stacked(pairs: &[Pair]) -> Option<[Stored; 2]> {
    let (Pair { a, b }, experts) = (pairs.first()?, pairs.len());
    let (rank, outputs) = (a.rows, b.rows);
    let all_a: Vec<f32> = pairs.iter().flat_map(|pair| pair.a.values.iter().copied()).collect();
    let mut all_b = vec![0.0; outputs * rank * experts];
    for (expert, pair) in pairs.iter().enumerate() {
        for (place, value) in pair.b.values.iter().enumerate() {
            all_b[place * experts + expert] = *value;
        }
    }
    Some([
        (vec![experts * rank, a.columns], all_a),
        (vec![outputs, rank * experts], all_b),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two experts of one layer, H = 3, I = 2, r = 1.
    fn tensors() -> Tensors {
        let mut tensors = Tensors::new();
        for expert in 0..2 {
            for (part, inputs, outputs) in [("gate_proj", 3, 2), ("up_proj", 3, 2), ("down_proj", 2, 3)] {
                let module = format!("{PREFIX}model.layers.0.mlp.experts.{expert}.{part}");
                let start = 10.0 * expert as f32 + PARTS.iter().position(|known| *known == part).unwrap() as f32;
                tensors.insert(format!("{module}.{LORA_A}"), (vec![1, inputs], vec![start; inputs]));
                tensors.insert(format!("{module}.{LORA_B}"), (vec![outputs, 1], vec![-start; outputs]));
            }
        }
        tensors
    }

    #[test]
    fn gate_and_up_are_joined_and_experts_are_stacked() {
        let mut tensors = tensors();
        let joined = join(&mut tensors, Path::new("a.safetensors")).unwrap().unwrap();
        assert_eq!(
            joined,
            Joined {
                gate_up: Some(2),
                down: Some(1)
            }
        );
        let of = |name: &str| tensors[&format!("{PREFIX}model.layers.0.mlp.experts.{name}")].clone();
        let gate_up_a = [[0.0; 3], [1.0; 3], [10.0; 3], [11.0; 3]].concat();
        assert_eq!(of("base_layer.lora_A.weight"), (vec![4, 3], gate_up_a));
        // Columns: rank 0 of both experts, rank 1 of both; gate has rank 0, up rank 1.
        let gate = [0.0, -10.0, 0.0, 0.0];
        let up = [0.0, 0.0, -1.0, -11.0];
        let (shape, values) = of("base_layer.lora_B.weight");
        let same = values
            .iter()
            .zip([gate, gate, up, up].concat())
            .all(|(one, other)| *one == other);
        assert!(shape == [4, 4] && same, "{values:?}");
        assert_eq!(of("lora_B.weight"), (vec![3, 2], [[-2.0, -12.0]; 3].concat()));
        assert_eq!(tensors.len(), 4);
    }

    #[test]
    fn an_expert_that_is_missing_is_named() {
        let mut tensors = tensors();
        tensors.remove(&format!("{PREFIX}model.layers.0.mlp.experts.0.up_proj.{LORA_A}"));
        let error = join(&mut tensors, Path::new("a.safetensors")).unwrap_err().to_string();
        assert!(error.contains("experts.0.up_proj"), "{error}");
        let (mut tensors, mut other) = (self::tensors(), self::tensors());
        tensors.retain(|name, _| !name.contains("up_proj"));
        let error = join(&mut tensors, Path::new("a.safetensors")).unwrap_err().to_string();
        assert!(error.contains("up_proj"), "{error}");
        let name = format!("{PREFIX}model.layers.0.mlp.experts.1.down_proj.{LORA_A}");
        other.insert(name, (vec![2, 2], vec![0.0; 4]));
        assert!(join(&mut other, Path::new("a.safetensors")).is_err());
    }

    #[test]
    fn other_adapters_stay_as_they_are() {
        let mut tensors = Tensors::new();
        let name = format!("{PREFIX}model.layers.0.mlp.experts.base_layer.{LORA_A}");
        tensors.insert(name, (vec![1, 1], vec![0.0]));
        let before = tensors.clone();
        assert_eq!(join(&mut tensors, Path::new("a")).unwrap(), None);
        assert_eq!(tensors, before);
    }

    #[test]
    fn settings_keep_the_scaling_and_every_module() {
        let joined = Joined {
            gate_up: Some(8),
            down: Some(4),
        };
        let settings = AdapterSettings {
            rank: 4,
            alpha: 8.0,
            ..AdapterSettings::default()
        };
        let modules = [
            "model.layers.0.mlp.experts.down_proj",
            "model.layers.0.mlp.shared_expert.up_proj",
            "model.layers.0.self_attn.q_proj",
        ];
        let settings = joined.settings(settings, &modules.map(str::to_owned));
        assert_eq!(
            settings.target_modules,
            TargetModules::Named(vec![modules[2].to_owned()])
        );
        let parameters = [
            &format!("{}.weight", modules[1]),
            "experts.gate_up_proj",
            "experts.down_proj",
        ];
        assert_eq!(settings.target_parameters, parameters);
        assert_eq!(settings.alpha_pattern["experts.gate_up_proj"], 16.0);
        assert_eq!(settings.rank_pattern["experts.gate_up_proj"], 8);
    }
}
