//! Experts of a family, and what a `config.json` says of them.

use serde::Serialize;

use super::config::Config;
use super::{ArchitectureError, ExpertGroups, ExpertNames, Experts, Router, Scores, SharedExpert};

/// Experts of a family, and the keys of `config.json` that decide on them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExpertSwitches {
    /// Key that says whether there are experts, where a family has models without.
    pub enabled: Option<&'static str>,
    /// Keys of E: the first that is there counts.
    pub count: &'static [&'static str],
    /// Key of k.
    pub chosen: &'static str,
    /// Key of I.
    pub intermediate_size: &'static str,
    pub scores: Scores,
    /// Whether weights are divided by their sum where the key of it is absent, or the family has none.
    pub normalised: bool,
    /// Key that says whether they are.
    pub normalised_key: Option<&'static str>,
    /// Whether `routed_scaling_factor`, `n_group` and `topk_group` count.
    pub grouping: Grouping,
    /// Keys that say this where they are there.
    pub settled: &'static [(&'static str, &'static str)],
    pub correction: bool,
    pub shared: SharedSwitch,
    pub biases: bool,
    /// Key of the limit, and what it is where that is absent.
    pub limit: Option<(&'static str, f64)>,
    /// Whether an expert's input has the weight, and not its output.
    pub weighs_input: bool,
    pub sparse: SparseLayers,
    pub names: ExpertNames,
}

/// Place where the width of the shared expert is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedSwitch {
    Never,
    /// Key of the width itself; the expert is gated.
    Gated(&'static str),
    /// Key of the number of experts that it is as wide as.
    Times(&'static str),
    /// Width of one expert.
    Same,
    /// Width of the MLP that other models of the family have; the shared expert is such an MLP, with norms of its own.
    Branch(&'static str),
}

/// Whether weights have a factor and experts are chosen from the best groups only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grouping {
    Never,
    Always,
    /// A factor always, groups where `topk_method` is `group_limited_greedy`.
    ByMethod,
}

/// Layers that have experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SparseLayers {
    All,
    /// Every `decoder_sparse_step`-th, those in `mlp_only_layers` left out.
    EveryStep,
    /// All but the first `first_k_dense_replace`.
    BehindDense,
    /// Layers that `mlp_layer_types` calls sparse; where it is absent all but the first.
    Typed,
    /// Layers in `moe_layers`; where it is absent every `interleave_moe_layer_step`-th.
    Listed,
}

/// Most experts of a layer; a larger number is a damaged file.
const MOST_EXPERTS: usize = 65_536;

impl Experts {
    /// Reads the experts of a model of `layers` layers, where it has some.
    ///
    /// # Errors
    /// A missing key, and sizes that cannot go together.
    pub(super) fn read(
        config: &Config,
        switches: &ExpertSwitches,
        layers: usize,
    ) -> Result<Option<Self>, ArchitectureError> {
        if let Some(key) = switches.enabled
            && !config.flag(key, false)?
        {
            return Ok(None);
        }
        if matches!(switches.shared, SharedSwitch::Branch(_)) {
            // The branch has one width in all layers.
            config.check_off("use_double_wide_mlp")?;
        }
        // Training with it would add a loss that nothing here computes.
        if config.flag("output_router_logits", false)? {
            return Err(config.unsupported("output_router_logits", "true", "false"));
        }
        for (key, value) in switches.settled {
            if let Some(other) = config.optional_text(key)?.filter(|text| text != value) {
                return Err(config.unsupported(key, other, value));
            }
        }
        let written = switches.count.iter().find(|key| config.mentions(key));
        let count_key = written.or(switches.count.first()).copied().unwrap_or_default();
        let count = config.dimension(count_key)?;
        if count > MOST_EXPERTS {
            return Err(config.impossible(count_key, count, format!("at most {MOST_EXPERTS}")));
        }
        let chosen = config.dimension(switches.chosen)?;
        if chosen > count {
            return Err(config.impossible(switches.chosen, chosen, format!("at most {count_key} {count}")));
        }
        let intermediate_size = config.dimension(switches.intermediate_size)?;
        Ok(Some(Self {
            count,
            chosen,
            intermediate_size,
            router: router(config, switches, count, chosen)?,
            shared: shared(config, switches, intermediate_size)?,
            biases: switches.biases,
            weighs_input: switches.weighs_input,
            branches: matches!(switches.shared, SharedSwitch::Branch(_)),
            limit: match switches.limit {
                Some((key, default)) => Some(config.optional_positive(key)?.unwrap_or(default)),
                None => None,
            },
            is_sparse: sparse_layers(config, switches.sparse, layers)?,
            draft_layers: config.optional_count("num_nextn_predict_layers")?.unwrap_or(0),
            names: switches.names,
        }))
    }
}

fn router(
    config: &Config,
    switches: &ExpertSwitches,
    count: usize,
    chosen: usize,
) -> Result<Router, ArchitectureError> {
    let mut router = Router {
        scores: switches.scores,
        normalised: match switches.normalised_key {
            Some(key) => config.flag(key, switches.normalised)?,
            None => switches.normalised,
        },
        scale: 1.0,
        correction: switches.correction,
        groups: None,
    };
    if switches.grouping == Grouping::Never {
        return Ok(router);
    }
    router.scale = config.optional_positive("routed_scaling_factor")?.unwrap_or(1.0);
    if switches.grouping == Grouping::ByMethod {
        const KEY: &str = "topk_method";
        match config.optional_text(KEY)?.unwrap_or("greedy") {
            "greedy" => return Ok(router),
            "group_limited_greedy" => {}
            other => return Err(config.unsupported(KEY, other, "greedy, group_limited_greedy")),
        }
    }
    let groups = ExpertGroups {
        count: config.optional_dimension("n_group")?.unwrap_or(1),
        chosen: config.optional_dimension("topk_group")?.unwrap_or(1),
    };
    if !count.is_multiple_of(groups.count) || groups.count == count && groups.count > 1 {
        let rule = format!("a divisor of the {count} experts, with two or more experts to a group");
        return Err(config.impossible("n_group", groups.count, rule));
    }
    if groups.chosen > groups.count || groups.chosen * (count / groups.count) < chosen {
        let rule = format!(
            "at most n_group {}, with {chosen} experts or more in its groups",
            groups.count
        );
        return Err(config.impossible("topk_group", groups.chosen, rule));
    }
    router.groups = (groups.count > 1).then_some(groups);
    Ok(router)
}

fn shared(
    config: &Config,
    switches: &ExpertSwitches,
    intermediate_size: usize,
) -> Result<Option<SharedExpert>, ArchitectureError> {
    let (width, gated) = match switches.shared {
        SharedSwitch::Never => (None, false),
        SharedSwitch::Gated(key) => (Some(config.dimension(key)?), true),
        SharedSwitch::Times(key) => {
            let times = config.optional_count(key)?.unwrap_or(0);
            ((times > 0).then_some(times * intermediate_size), false)
        }
        SharedSwitch::Same => (Some(intermediate_size), false),
        SharedSwitch::Branch(key) => (Some(config.dimension(key)?), false),
    };
    Ok(width.map(|intermediate_size| SharedExpert {
        intermediate_size,
        gated,
    }))
}

/// Key of the layers' kinds.
const TYPES: &str = "mlp_layer_types";

fn sparse_layers(config: &Config, sparse: SparseLayers, layers: usize) -> Result<Vec<bool>, ArchitectureError> {
    Ok(match sparse {
        SparseLayers::All => vec![true; layers],
        SparseLayers::EveryStep => {
            let step = config.optional_dimension("decoder_sparse_step")?.unwrap_or(1);
            let dense = config.optional_counts("mlp_only_layers")?.unwrap_or_default();
            (0..layers)
                .map(|index| !dense.contains(&index) && (index + 1).is_multiple_of(step))
                .collect()
        }
        SparseLayers::BehindDense => {
            let dense = config.optional_count("first_k_dense_replace")?.unwrap_or(0);
            (0..layers).map(|index| index >= dense).collect()
        }
        SparseLayers::Listed => match config.optional_counts("moe_layers")? {
            Some(sparse) => (0..layers).map(|index| sparse.contains(&index)).collect(),
            None => {
                let step = config.optional_dimension("interleave_moe_layer_step")?.unwrap_or(1);
                (0..layers).map(|index| (index + 1).is_multiple_of(step)).collect()
            }
        },
        SparseLayers::Typed => match config.optional_texts(TYPES)? {
            None => (0..layers).map(|index| index > 0).collect(),
            Some(kinds) if kinds.len() != layers => {
                let rule = format!("{layers} entries, one for each of num_hidden_layers");
                return Err(config.impossible(TYPES, format!("{} entries", kinds.len()), rule));
            }
            Some(kinds) => {
                let is_sparse = |kind: &str| match kind {
                    "sparse" => Ok(true),
                    "dense" => Ok(false),
                    other => Err(config.unsupported(TYPES, other, "dense, sparse")),
                };
                kinds.into_iter().map(is_sparse).collect::<Result<_, _>>()?
            }
        },
    })
}
