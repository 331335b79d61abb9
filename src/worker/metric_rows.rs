//! Metrics of a trial of the native engine: one row for each, from which the documentation has its table.

use crate::store::LONGER_DIVERGED_STEP;
use peft_tune_core::objective::{
    BASE_KL, DOUBLING_GAIN, DOUBLING_GAIN_INTERVAL, EPOCH_TOKENS, EXACT_MATCH, FULL_TOKENS, GPU_CLOCK_MHZ, GPU_POWER_W,
    GPU_TEMPERATURE_C, GPU_UTILISATION, JOULES_PER_TOKEN, LEAST_LOSS_STEP, LEAST_LOSS_TOKENS, LINK_S, LONGER_TOKENS,
    LOSS, LOSS_BEFORE, LOSS_BEFORE_DENSE, LOSS_KEPT_PERCENT, LOSS_LONGER, LOSS_RISE, LOSS_ROWS, LOSS_ROWS_IN_ALL,
    LOSS_STANDARD_ERROR, MEASURED_STEPS, MFU, PEAK_MEMORY, REPEAT_WALL_S, RETAINED_LOSS_INCREASE, REWARD_ACCURACY,
    REWARD_MARGIN, SERVE_MS_PER_TOKEN, STEP_S, TARGET_PEAK_MEMORY, TARGET_SHORTFALL, TARGET_THROUGHPUT, THROUGHPUT,
    TOKEN_ACCURACY, TOKEN_ACCURACY_LOST_PERCENT, TOP1_AGREEMENT_PERCENT, TRAIN_TOKENS,
};
use peft_tune_core::study::{DISTURBED, NEIGHBOURS, PLANNED_STEPS, THROUGHPUT_INTERVAL};

/// Metric: seconds of measuring how a model is served. Without [`SERVE_MS_PER_TOKEN`] beside it, that failed.
pub(crate) const SERVE_S: &str = "serve_s";

/// One metric that trials have.
#[derive(Clone, Copy, Debug)]
pub struct MetricRow {
    pub name: &'static str,
    /// Unit of the metric; empty for counts and shares.
    pub unit: &'static str,
    pub part: MetricPart,
    /// Meaning of the metric, as Markdown of one line.
    pub about: &'static str,
}

/// Part of a trial that a metric belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricPart {
    /// The profile phase: what a setting costs.
    Cost,
    /// The training phase: what a setting teaches.
    Training,
    /// A trial that was stopped on its way: where its loss was going.
    Stop,
    /// A repeat of a finalist.
    Repeat,
    /// A prediction for another stack.
    Target,
}

impl MetricPart {
    /// Every part, in the order of the documentation.
    pub const ALL: [Self; 5] = [Self::Cost, Self::Training, Self::Stop, Self::Repeat, Self::Target];
}

use MetricPart::{Cost, Repeat, Stop, Target, Training};

const fn row(part: MetricPart, name: &'static str, unit: &'static str, about: &'static str) -> MetricRow {
    MetricRow {
        name,
        unit,
        part,
        about,
    }
}

const ROWS: [MetricRow; 92] = [
    row(
        Cost,
        THROUGHPUT,
        "tokens/s",
        "Median over the measured steps of trained tokens a second, of all devices together. Padding is not counted.",
    ),
    row(
        Cost,
        "throughput_fp32_steps",
        "tokens/s",
        "With a `precision_schedule`: the throughput of its steps in fp32.",
    ),
    row(
        Cost,
        "throughput_own_steps",
        "tokens/s",
        "With a `precision_schedule`: the throughput of its other steps; `throughput` is that of all steps of the training.",
    ),
    row(
        Cost,
        "throughput_spread",
        "",
        "Spread of the measured steps around it, relative.",
    ),
    row(
        Cost,
        THROUGHPUT_INTERVAL,
        "",
        "Half the width of its 95% interval, relative.",
    ),
    row(
        Cost,
        PEAK_MEMORY,
        "bytes",
        "Highest bytes in use by the engine, weights included, over the worst-case step and the measured ones, on the device with the most.",
    ),
    row(Cost, "base_memory_bytes", "bytes", "The base weights' part of it."),
    row(
        Cost,
        "reserved_memory_bytes",
        "bytes",
        "Highest resident set of the whole process on a processor, size of the pool on a GPU.",
    ),
    row(Cost, STEP_S, "s", "Median time of a step."),
    row(Cost, "data_s", "s", "Its part for getting the rows."),
    row(Cost, "forward_s", "s", "Its part for the forward pass."),
    row(Cost, "backward_s", "s", "Its part for the backward pass."),
    row(
        Cost,
        LINK_S,
        "s",
        "Part of `backward_s` in which the first of several devices waited for others' gradients and added them up; gathers of shared-out \
         weights are not counted.",
    ),
    row(Cost, "optimizer_s", "s", "Its part for the update."),
    row(Cost, "warmup_steps", "", "Steps before the measured ones."),
    row(Cost, MEASURED_STEPS, "", "Steps that were measured."),
    row(
        Cost,
        "slow_steps",
        "",
        "Share of the measured steps that took over 1.5 times the median's time for a token.",
    ),
    row(Cost, "load_s", "s", "Time until the first step could start."),
    row(
        Cost,
        DISTURBED,
        "",
        "Share of the throughput that may have been lost to other programs; absent where it was quiet.",
    ),
    row(
        Cost,
        NEIGHBOURS,
        "",
        "Trials that computed on the same hardware during the profile phase, at most.",
    ),
    row(
        Cost,
        "own_cpu_share",
        "",
        "The program's processor time over what its threads could use.",
    ),
    row(
        Cost,
        "cpu_pressure",
        "",
        "Share of the time in which something waited for a processor.",
    ),
    row(Cost, "other_cores", "", "Processors that other programs kept busy."),
    row(Cost, "clock_mhz", "MHz", "Clock of the processor meanwhile."),
    row(
        Cost,
        GPU_UTILISATION,
        "",
        "Part of the measured time in which the GPU was busy, from 0 to 1.",
    ),
    row(Cost, GPU_POWER_W, "W", "Mean power of the GPU."),
    row(Cost, GPU_TEMPERATURE_C, "°C", "Highest temperature of the GPU."),
    row(Cost, GPU_CLOCK_MHZ, "MHz", "Mean clock of the GPU's multiprocessors."),
    row(
        Cost,
        JOULES_PER_TOKEN,
        "J",
        "Energy of a trained token, of all GPUs and, where it may be read, the processor.",
    ),
    row(
        Cost,
        MFU,
        "",
        "Model FLOPs a second over the peak that the GPU's maker publishes; absent where that is not known.",
    ),
    row(
        Cost,
        SERVE_MS_PER_TOKEN,
        "ms",
        "Where it is asked for: median time from one token of every sequence to the next, of a model served under the load of `serve`.",
    ),
    row(
        Cost,
        "serve_first_token_ms",
        "ms",
        "Median time of reading the prompts there.",
    ),
    row(
        Cost,
        "serve_tokens_per_s",
        "tokens/s",
        "Generated tokens a second of all sequences there.",
    ),
    row(
        Cost,
        SERVE_S,
        "s",
        "Time of measuring that; 0 where a setting that is served alike had been measured.",
    ),
    row(
        Training,
        LOSS,
        "nats",
        "Mean cross-entropy of a target token on the held-out rows after the training phase; with `trainer: dpo`, `kto` or `orpo` the mean \
         loss of a held-out row.",
    ),
    row(
        Training,
        LOSS_BEFORE,
        "nats",
        "The same before the first step: what a training that teaches nothing has. With a `weight_sparsity` that of the sparse weights.",
    ),
    row(
        Training,
        LOSS_BEFORE_DENSE,
        "nats",
        "With a `weight_sparsity`: the same of the dense base model, in the same precision.",
    ),
    row(
        Training,
        LOSS_STANDARD_ERROR,
        "nats",
        "How far another choice of held-out rows would move the loss; absent with a single micro-batch of them. Beside `loss_rows`: how far \
         the loss may be from that over all rows.",
    ),
    row(
        Training,
        LOSS_ROWS,
        "",
        "Held-out rows that the loss rests on, where it was surely more than 1% above the best one's after a part of them; else absent.",
    ),
    row(
        Training,
        LOSS_ROWS_IN_ALL,
        "",
        "Beside `loss_rows`: how many there are.",
    ),
    row(
        Training,
        TOKEN_ACCURACY,
        "",
        "Share of the held-out target tokens that the model finds the most likely ones, on the rows that the loss rests on.",
    ),
    row(
        Training,
        REWARD_ACCURACY,
        "",
        "Share of the held-out pairs whose chosen answer has the higher reward; with `trainer: kto`, of all pairs of a good and a bad answer.",
    ),
    row(
        Training,
        "reward_accuracy_interval",
        "",
        "The farther end of its 95% interval (Wilson's) as a distance from it, relative.",
    ),
    row(
        Training,
        REWARD_MARGIN,
        "",
        "Mean reward of chosen answers above that of rejected ones, in the trainer's own unit.",
    ),
    row(
        Training,
        "reward_margin_interval",
        "",
        "Half the width of its 95% interval, relative.",
    ),
    row(Training, "train_steps", "", "Steps of the training phase."),
    row(
        Training,
        "train_fp32_steps",
        "",
        "With a `precision_schedule`: its steps in fp32.",
    ),
    row(Training, TRAIN_TOKENS, "", "Tokens that it trained on."),
    row(Training, "train_epochs", "", "How often it went over its rows."),
    row(Training, "train_s", "s", "Time of its steps and evaluations."),
    row(
        Training,
        "trainings_beside",
        "",
        "Trainings that shared its steps (`--together`), at most; its times are a part of theirs.",
    ),
    row(
        Training,
        "loss_fp32",
        "nats",
        "With `accuracy_check`: the loss of the same model on base weights in F32.",
    ),
    row(
        Training,
        LOSS_KEPT_PERCENT,
        "%",
        "With `accuracy_check`: that loss over `loss`.",
    ),
    row(
        Training,
        TOP1_AGREEMENT_PERCENT,
        "%",
        "With `accuracy_check`: how often both find the same token most likely.",
    ),
    row(
        Training,
        "accuracy_check_s",
        "s",
        "With `accuracy_check`: the time that it took, loading the weights in F32 included.",
    ),
    row(
        Training,
        "token_accuracy_fp32",
        "",
        "With `fp32_training`: the token accuracy of the same recipe trained in F32.",
    ),
    row(
        Training,
        TOKEN_ACCURACY_LOST_PERCENT,
        "%",
        "With `fp32_training`: how much of that the trial's own lacks.",
    ),
    row(
        Training,
        "fp32_training_s",
        "s",
        "With `fp32_training`: the time that it took; 0 where an earlier trial had trained the same.",
    ),
    row(
        Training,
        RETAINED_LOSS_INCREASE,
        "",
        "With `data.retain`: the part by which the training raised the loss on those rows; below 0 where it lowered that.",
    ),
    row(
        Training,
        "retained_loss",
        "nats",
        "With `data.retain`: mean cross-entropy of a target token on those rows after the training phase.",
    ),
    row(
        Training,
        "retained_loss_before",
        "nats",
        "The same before the first step.",
    ),
    row(
        Training,
        BASE_KL,
        "nats",
        "Mean Kullback-Leibler divergence of the trained model's next-token distributions from those of the model before the training, on \
         that model's own continuations of held-out prompts.",
    ),
    row(Training, "base_kl_tokens", "", "Tokens of those continuations."),
    row(Training, "forgetting_s", "s", "Time of measuring what was forgotten."),
    row(
        Training,
        EXACT_MATCH,
        "",
        "With `score.exact_match`: share of the generated answers that are the rows' own.",
    ),
    row(Training, "exact_match_right", "", "How many that are."),
    row(
        Training,
        "exact_match_low",
        "",
        "Lower end of the share's 95% interval (Wilson's).",
    ),
    row(Training, "exact_match_high", "", "Upper end of it."),
    row(
        Training,
        "exact_match_interval",
        "",
        "Its farther end's distance from the share, relative.",
    ),
    row(
        Training,
        "answers",
        "",
        "With `score`: held-out rows that were answered.",
    ),
    row(
        Training,
        "answers_cut",
        "",
        "Answers that the model did not end itself.",
    ),
    row(Training, "generated_tokens", "", "Tokens of the answers."),
    row(Training, "generate_s", "s", "Time of generating them."),
    row(Training, "score_s", "s", "Time of the program that scored them."),
    row(Stop, PLANNED_STEPS, "", "Steps that the training would have had."),
    row(Stop, "loss_expected", "nats", "Where the curve was going."),
    row(Stop, "loss_expected_deviation", "nats", "Standard deviation of that."),
    row(
        Stop,
        "loss_at_least",
        "nats",
        "What the loss could not have fallen below, where there is no such value.",
    ),
    row(
        Repeat,
        LOSS_LONGER,
        "nats",
        "The loss after a training longer than the study's others.",
    ),
    row(Repeat, LONGER_TOKENS, "", "Tokens of that training."),
    row(
        Repeat,
        LONGER_DIVERGED_STEP,
        "",
        "Step at which that training diverged: `loss_longer` is then the trial's `loss` and `loss_before` together.",
    ),
    row(
        Repeat,
        REPEAT_WALL_S,
        "s",
        "Wall time of the repeat, with the wait for a quiet moment before it.",
    ),
    row(
        Repeat,
        FULL_TOKENS,
        "",
        "Tokens of the training that the study is for, at which losses are then expected.",
    ),
    row(
        Repeat,
        DOUBLING_GAIN,
        "",
        "With `length: auto`: the share by which twice as many tokens as `full_tokens` are expected to lower the loss.",
    ),
    row(
        Repeat,
        DOUBLING_GAIN_INTERVAL,
        "",
        "Half the width of its 95% interval, as a share of the loss too.",
    ),
    row(
        Repeat,
        EPOCH_TOKENS,
        "",
        "With `length: auto`: tokens of one pass over the training rows.",
    ),
    row(
        Repeat,
        LEAST_LOSS_STEP,
        "",
        "Step after which a longer training's loss was least, where it rose by over 1% from there; 0 where it did not.",
    ),
    row(Repeat, LEAST_LOSS_TOKENS, "", "Tokens after which that was."),
    row(
        Repeat,
        LOSS_RISE,
        "",
        "Share by which the loss at that training's end was above the least.",
    ),
    row(
        Target,
        TARGET_THROUGHPUT,
        "tokens/s",
        "Throughput predicted of another stack on its device. Padding is not counted where the rows are known.",
    ),
    row(
        Target,
        TARGET_PEAK_MEMORY,
        "bytes",
        "Peak memory predicted of a process of that stack.",
    ),
    row(
        Target,
        TARGET_SHORTFALL,
        "bytes",
        "What is missing of the prediction's reserve: whether it fits is uncertain. Absent where it surely fits.",
    ),
];

/// Metrics that trials of the native engine have. A command may report any others.
pub fn metric_rows() -> &'static [MetricRow] {
    &ROWS
}

/// Whether the training phase measures a metric: all that the other phases do not, as a study's program may name any.
pub(crate) fn is_of_training(metric: &str) -> bool {
    ROWS.iter().all(|row| row.part == Training || row.name != metric)
}

/// Whether a metric says where a trial that was stopped on its way was going.
pub(crate) fn is_of_stop(metric: &str) -> bool {
    ROWS.iter().any(|row| row.part == Stop && row.name == metric)
}
