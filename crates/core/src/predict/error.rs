//! What cannot be predicted, and why.

/// A setting or a machine that no prediction can be made for.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PredictError {
    #[error("`target_modules` names `{name}`, which no linear layer ends in; the model has: {known}")]
    UnknownTarget { name: String, known: String },
    #[error("`target_modules` selects no linear layer; name some of: {known}, or `all-linear`")]
    NoTarget { known: String },
    #[error("`layers_to_transform` has {layer}, but the model has {layers} decoder layers; lower it")]
    UnknownLayer { layer: usize, layers: usize },
    #[error("`modules_to_save` names `{name}`, which no module ends in; take a name from the checkpoint")]
    UnknownModule { name: String },
    #[error("rank 0 for `{name}`; set `rank` (or its entry in `rank_pattern`) to 1 or more")]
    ZeroRank { name: String },
    #[error("rank {rank} is above the smaller dimension of `{name}` ({outputs} x {inputs}); lower `rank`")]
    RankAboveDimension {
        name: String,
        rank: usize,
        inputs: usize,
        outputs: usize,
    },
    #[error("key `{key}` of `rank_pattern` is not a pattern; write the end of a module name, such as `q_proj`")]
    BadPattern { key: String },
    #[error("`lora_bias` cannot be combined with `{other}`; leave one of them out")]
    BiasWith { other: &'static str },
    #[error(
        "full fine-tuning cannot train quantized weights; take `precision` fp32, bf16 or fp16, or train an adapter"
    )]
    QuantizedWhole,
    #[error("`{key}` is 0; set it to 1 or more")]
    Zero { key: &'static str },
    #[error("rows of {tokens} tokens are longer than the {most} positions of the model; lower `sequence_length`")]
    TooLong { tokens: usize, most: usize },
    #[error("there is no device `{name}` in the table; it has: {known}")]
    UnknownDevice { name: String, known: String },
}
