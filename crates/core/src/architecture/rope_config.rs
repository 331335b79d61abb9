//! Reads position encodings in both spellings: `rope_theta` and `rope_scaling`, or `rope_parameters`.

use super::config::Config;
use super::family::{SlidingRope, Switches};
use super::{ArchitectureError, QueryGrowth, Rope, RopeOrder, RopeScaling};

/// Facts that a rope needs to know of the model around it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RopeContext {
    pub head_dim: usize,
    pub max_positions: usize,
    /// Base where the file names none.
    pub default_base: f64,
    /// Share of a head that is rotated where the file names none.
    pub share: f64,
    pub order: RopeOrder,
    /// Dimensions of a query before the head.
    pub plain_dims: usize,
    /// Whether the file may say how queries grow.
    pub query_growth: bool,
}

/// The ropes of a family, for heads of so many dimensions behind those that never turn.
pub(super) fn ropes(
    config: &Config,
    switches: &Switches,
    [plain_dims, head_dim]: [usize; 2],
    max_positions: usize,
) -> Result<Vec<Rope>, ArchitectureError> {
    let context = RopeContext {
        head_dim,
        plain_dims,
        max_positions,
        default_base: switches.rope_base,
        share: switches.rotary_share,
        order: match switches.rope_order_key {
            Some(key) if !config.flag(key, true)? => RopeOrder::Halves,
            _ => switches.rope_order,
        },
        query_growth: switches.query_growth,
    };
    match switches.sliding_rope {
        SlidingRope::Shared => Ok(vec![shared(config, context)?]),
        SlidingRope::OwnBase => {
            let base = config.optional_positive("rope_local_base_freq")?.unwrap_or(10_000.0);
            Ok(full_and_sliding(config, context, Some(base))?.to_vec())
        }
        SlidingRope::Unscaled => Ok(full_and_sliding(config, context, None)?.to_vec()),
        SlidingRope::Growth => {
            let turning = shared(config, context)?;
            let still = Rope {
                scaling: RopeScaling::Still,
                query_growth: temperature(config)?,
                rotary_dims: context.head_dim,
                ..turning.clone()
            };
            Ok(vec![turning, still])
        }
        // Full layers have heads of another width: `of_both` reads them once that is known.
        SlidingRope::Both => Ok(Vec::new()),
    }
}

/// The ropes of full and of sliding layers, each with a width of its heads and an object in `rope_parameters`.
pub(super) fn of_both(
    config: &Config,
    switches: &Switches,
    head_dims: [usize; 2],
    max_positions: usize,
) -> Result<Vec<Rope>, ArchitectureError> {
    const SLIDING_BASE: f64 = 10_000.0;
    const SHARE: f64 = 0.25;
    let [full, sliding] = head_dims.map(|head_dim| RopeContext {
        head_dim,
        max_positions,
        default_base: switches.rope_base,
        share: 1.0,
        plain_dims: 0,
        order: switches.rope_order,
        query_growth: false,
    });
    let sliding = RopeContext {
        default_base: SLIDING_BASE,
        ..sliding
    };
    let Some(parameters) = config.object("rope_parameters")? else {
        let turning = (full.head_dim as f64 * SHARE) as usize / 2;
        return Ok(vec![
            proportional(full, full.default_base, turning, 1.0),
            one(config, None, sliding)?,
        ]);
    };
    let of_kind = |kind: &str, context: RopeContext| {
        let Some(parameters) = parameters.object(kind)? else {
            return Err(parameters.missing(kind));
        };
        if parameters.optional_text(kind_key(&parameters))? == Some("proportional") {
            return read_proportional(&parameters, context);
        }
        if parameters.mentions("partial_rotary_factor") {
            let value = parameters.optional_positive("partial_rotary_factor")?.unwrap_or(1.0);
            if value != 1.0 {
                let rule = "1 where rope_type is not proportional".to_owned();
                return Err(parameters.impossible("partial_rotary_factor", value, rule));
            }
        }
        one(&parameters, Some(&parameters), context)
    };
    Ok(vec![
        of_kind("full_attention", full)?,
        of_kind("sliding_attention", sliding)?,
    ])
}

fn read_proportional(parameters: &Config, context: RopeContext) -> Result<Rope, ArchitectureError> {
    let base = parameters.optional_positive("rope_theta")?;
    let share = parameters.optional_positive("partial_rotary_factor")?.unwrap_or(1.0);
    if share > 1.0 {
        return Err(parameters.impossible("partial_rotary_factor", share, "at most 1".to_owned()));
    }
    if !context.head_dim.is_multiple_of(2) {
        let rule = "that of heads with an even width".to_owned();
        return Err(parameters.impossible("rope_type", "proportional", rule));
    }
    let turning = (share * context.head_dim as f64) as usize / 2;
    let factor = parameters.optional_positive("factor")?.unwrap_or(1.0);
    let base = base.unwrap_or(context.default_base);
    Ok(proportional(context, base, turning, factor))
}

fn proportional(context: RopeContext, base: f64, turning: usize, factor: f64) -> Rope {
    Rope {
        base,
        rotary_dims: context.head_dim,
        plain_dims: 0,
        order: context.order,
        scaling: RopeScaling::Proportional { turning, factor },
        query_growth: None,
    }
}

/// The one rope of a model whose layers all share it.
fn shared(config: &Config, context: RopeContext) -> Result<Rope, ArchitectureError> {
    match config.object("rope_parameters")? {
        Some(parameters) => one(config, Some(&parameters), context),
        None => one(config, config.object("rope_scaling")?.as_ref(), context),
    }
}

/// The ropes of full and of sliding layers, where they differ: in the base, or in the scaling alone.
fn full_and_sliding(
    config: &Config,
    context: RopeContext,
    sliding_base: Option<f64>,
) -> Result<[Rope; 2], ArchitectureError> {
    let Some(parameters) = config.object("rope_parameters")? else {
        let full = one(config, config.object("rope_scaling")?.as_ref(), context)?;
        let sliding = Rope {
            base: sliding_base.unwrap_or(full.base),
            scaling: RopeScaling::None,
            ..full.clone()
        };
        return Ok([full, sliding]);
    };
    let local = RopeContext {
        default_base: sliding_base.unwrap_or(context.default_base),
        ..context
    };
    let of_kind = |kind: &str, context| match parameters.object(kind)? {
        Some(parameters) => one(config, Some(&parameters), context),
        None => Err(parameters.missing(kind)),
    };
    Ok([
        of_kind("full_attention", context)?,
        of_kind("sliding_attention", local)?,
    ])
}

/// One rope from its own object, or from the top of the file where it has none.
fn one(config: &Config, parameters: Option<&Config>, context: RopeContext) -> Result<Rope, ArchitectureError> {
    let number = |key: &str| match parameters.map(|inner| inner.optional_positive(key)).transpose()? {
        Some(Some(number)) => Ok(Some(number)),
        _ => config.optional_positive(key),
    };
    let base = number("rope_theta")?.unwrap_or(context.default_base);
    let share = number("partial_rotary_factor")?.unwrap_or(context.share);
    if share > 1.0 {
        return Err(config.impossible("partial_rotary_factor", share, "at most 1".to_owned()));
    }
    let rotary_dims = (context.head_dim as f64 * share) as usize;
    if rotary_dims == 0 || !rotary_dims.is_multiple_of(2) {
        let rule = "such that an even number of a head's dimensions is rotated".to_owned();
        return Err(config.impossible("head_dim", context.head_dim, rule));
    }
    let mut rope = Rope {
        base,
        rotary_dims,
        plain_dims: context.plain_dims,
        order: context.order,
        scaling: RopeScaling::None,
        query_growth: None,
    };
    let Some(parameters) = parameters else {
        return Ok(rope);
    };
    if context.query_growth {
        rope.query_growth = query_growth(parameters, context)?;
        if rope.query_growth.is_some() && rotary_dims < context.head_dim {
            let rule = "1 where queries grow with their position".to_owned();
            return Err(config.impossible("partial_rotary_factor", share, rule));
        }
    }
    match dynamic_alpha(parameters)?.filter(|_| rotary_dims > 2) {
        // Hunyuan's form of it does not depend on the length.
        Some(alpha) => rope.base *= alpha.powf(rotary_dims as f64 / (rotary_dims as f64 - 2.0)),
        None => rope.scaling = scaling(config, parameters, context, rotary_dims)?,
    }
    Ok(rope)
}

/// Whether queries that do not turn grow with their position.
pub(super) fn grows(config: &Config) -> Result<bool, ArchitectureError> {
    match config.value("attn_temperature_tuning") {
        // The first files have a number here.
        Some(value) if value.is_number() => Ok(value.as_f64() != Some(0.0)),
        _ => config.flag("attn_temperature_tuning", true),
    }
}

/// The growth of queries that do not turn.
fn temperature(config: &Config) -> Result<Option<QueryGrowth>, ArchitectureError> {
    if !grows(config)? {
        return Ok(None);
    }
    Ok(Some(QueryGrowth {
        beta: config.optional_positive("attn_scale")?.unwrap_or(0.1),
        original_max_positions: config.optional_dimension("floor_scale")?.unwrap_or(8192),
        from: 1,
    }))
}

fn query_growth(parameters: &Config, context: RopeContext) -> Result<Option<QueryGrowth>, ArchitectureError> {
    let Some(beta) = parameters.optional_positive("llama_4_scaling_beta")? else {
        return Ok(None);
    };
    let original = parameters.optional_dimension("original_max_position_embeddings")?;
    Ok(Some(QueryGrowth {
        beta,
        original_max_positions: original.unwrap_or(context.max_positions),
        from: 0,
    }))
}

/// The `alpha` of a `dynamic` scaling that has one.
fn dynamic_alpha(parameters: &Config) -> Result<Option<f64>, ArchitectureError> {
    match parameters.optional_text(kind_key(parameters))? {
        Some("dynamic") => parameters.optional_positive("alpha"),
        _ => Ok(None),
    }
}

/// The key that names the scaling.
fn kind_key(parameters: &Config) -> &'static str {
    match parameters.mentions("rope_type") {
        true => "rope_type",
        false => "type",
    }
}

fn scaling(
    config: &Config,
    parameters: &Config,
    context: RopeContext,
    rotary_dims: usize,
) -> Result<RopeScaling, ArchitectureError> {
    let key = kind_key(parameters);
    match parameters.optional_text(key)?.unwrap_or("default") {
        // `mrope` counts rows and columns of images; positions of text are the same in all its sections.
        "default" | "mrope" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear {
            factor: parameters.positive("factor")?,
        }),
        "llama3" => llama3(parameters),
        "yarn" => yarn(parameters, context),
        // Phi-3's first files call it `su`.
        "longrope" | "su" => longrope(config, parameters, context, rotary_dims),
        other => Err(parameters.unsupported(
            key,
            other,
            "default, linear, llama3, yarn, longrope, dynamic with alpha",
        )),
    }
}

fn llama3(parameters: &Config) -> Result<RopeScaling, ArchitectureError> {
    let low_freq_factor = parameters.positive("low_freq_factor")?;
    let high_freq_factor = parameters.positive("high_freq_factor")?;
    if high_freq_factor < low_freq_factor {
        let rule = format!("at least low_freq_factor {low_freq_factor}");
        return Err(parameters.impossible("high_freq_factor", high_freq_factor, rule));
    }
    Ok(RopeScaling::Llama3 {
        factor: parameters.positive("factor")?,
        low_freq_factor,
        high_freq_factor,
        original_max_positions: parameters.dimension("original_max_position_embeddings")?,
    })
}

fn yarn(parameters: &Config, context: RopeContext) -> Result<RopeScaling, ArchitectureError> {
    let factor = parameters.positive("factor")?;
    let magnitude = |scale: f64| magnitude(factor, scale);
    let scales = (
        parameters.optional_positive("mscale")?,
        parameters.optional_positive("mscale_all_dim")?,
    );
    let default = match scales {
        (Some(one), Some(all)) => magnitude(one) / magnitude(all),
        _ => magnitude(1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast: parameters.optional_positive("beta_fast")?.unwrap_or(32.0),
        beta_slow: parameters.optional_positive("beta_slow")?.unwrap_or(1.0),
        original_max_positions: parameters
            .optional_dimension("original_max_position_embeddings")?
            .unwrap_or(context.max_positions),
        attention_factor: parameters.optional_positive("attention_factor")?.unwrap_or(default),
        truncate: parameters.flag("truncate", true)?,
    })
}

/// How much larger YaRN makes queries and keys together.
fn magnitude(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * scale * factor.ln() + 1.0
    }
}

/// The factor on queries and keys each that stands in the scale of scores (`mscale_all_dim`).
pub(super) fn score_magnitude(config: &Config) -> Result<f64, ArchitectureError> {
    let parameters = match config.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => config.object("rope_scaling")?,
    };
    let Some(parameters) = parameters else { return Ok(1.0) };
    let kind = parameters.optional_text(kind_key(&parameters))?.unwrap_or("default");
    match parameters.optional_positive("mscale_all_dim")? {
        Some(scale) if kind != "default" => Ok(magnitude(parameters.positive("factor")?, scale)),
        _ => Ok(1.0),
    }
}

fn longrope(
    config: &Config,
    parameters: &Config,
    context: RopeContext,
    rotary_dims: usize,
) -> Result<RopeScaling, ArchitectureError> {
    let key = "original_max_position_embeddings";
    let original = match parameters.optional_dimension(key)? {
        Some(original) => original,
        None => config.dimension(key)?,
    };
    let factors = |key: &str| {
        let factors = parameters.positives(key)?;
        if factors.len() != rotary_dims / 2 {
            let rule = format!("{} numbers, one for each rotated pair of dimensions", rotary_dims / 2);
            return Err(parameters.impossible(key, format!("{} numbers", factors.len()), rule));
        }
        Ok(factors)
    };
    let extension = match parameters.optional_positive("factor")? {
        Some(factor) => factor,
        None => context.max_positions as f64 / original as f64,
    };
    let default = if extension <= 1.0 {
        1.0
    } else {
        (1.0 + extension.ln() / (original as f64).ln()).sqrt()
    };
    Ok(RopeScaling::LongRope {
        short_factor: factors("short_factor")?,
        long_factor: factors("long_factor")?,
        original_max_positions: original,
        attention_factor: parameters.optional_positive("attention_factor")?.unwrap_or(default),
    })
}
