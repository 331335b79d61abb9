//! Objectives: the named numbers a study trades off, with their units and directions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the throughput metric: trained tokens per second, padding not counted.
pub const THROUGHPUT: &str = "throughput";
/// Name of the peak-memory metric: highest device bytes in use in measured steps.
pub const PEAK_MEMORY: &str = "peak_memory";
/// Name of the loss metric: mean cross-entropy in nats per target token on the held-out set.
pub const LOSS: &str = "loss";
/// Name of the metric that holds the median seconds of a measured step.
pub const STEP_S: &str = "step_s";
/// Name of the metric that holds the seconds of it in which the first of several devices waited for the gradients of others.
pub const LINK_S: &str = "link_s";
/// Name of the metric that holds the model FLOPs a second over the peak that the GPU's maker publishes for the compute dtype.
pub const MFU: &str = "mfu";
/// Name of the metric that holds the energy of a trained token, of a GPU and, where it may be read, of the processor.
pub const JOULES_PER_TOKEN: &str = "joules_per_token";
/// Name of the metric that holds the mean part of the measured time in which a GPU was busy, in [0, 1].
pub const GPU_UTILISATION: &str = "gpu_utilisation";
/// Name of the metric that holds a GPU's mean power, in watts.
pub const GPU_POWER_W: &str = "gpu_power_w";
/// Name of the metric that holds a GPU's highest temperature, in degrees Celsius.
pub const GPU_TEMPERATURE_C: &str = "gpu_temperature_c";
/// Name of the metric that holds the mean clock of a GPU's multiprocessors, in MHz.
pub const GPU_CLOCK_MHZ: &str = "gpu_clock_mhz";
/// Name of the metric that holds the loss before the training: what a setting that teaches nothing has.
pub const LOSS_BEFORE: &str = "loss_before";
/// Name of the metric that holds the same of the dense base model, where the setting's weights are sparse.
pub const LOSS_BEFORE_DENSE: &str = "loss_before_dense";
/// Name of the metric that holds the loss after a training longer than the study's others.
pub const LOSS_LONGER: &str = "loss_longer";
/// Name of the metric that says how many tokens that training had.
pub const LONGER_TOKENS: &str = "longer_tokens";
/// Name of the metric that says how many steps the throughput is measured by.
pub const MEASURED_STEPS: &str = "measured_steps";
/// Name of the metric of a repeat that says how many seconds it took, the wait for a quiet moment before it included.
pub const REPEAT_WALL_S: &str = "repeat_wall_s";
/// Name of the metric that says how many tokens the training will have that the setting is for.
pub const FULL_TOKENS: &str = "full_tokens";
/// Name of the metric that holds the share by which twice as many tokens as [`FULL_TOKENS`] are expected to lower the loss. A study has
/// it where the search is to find the length of the training.
pub const DOUBLING_GAIN: &str = "doubling_gain";
/// Name of the metric that holds the half width of that share's 95% interval.
pub const DOUBLING_GAIN_INTERVAL: &str = "doubling_gain_interval";
/// Name of the metric that says how many tokens one pass over the training rows has.
pub const EPOCH_TOKENS: &str = "epoch_tokens";
/// Name of the metric that says after which step of a training its loss was least, where it rose from there to the end.
pub const LEAST_LOSS_STEP: &str = "least_loss_step";
/// Name of the metric that says after how many tokens that was.
pub const LEAST_LOSS_TOKENS: &str = "least_loss_tokens";
/// Name of the metric that holds the share by which the loss at the end was above that least one.
pub const LOSS_RISE: &str = "loss_rise";
/// Metrics that only a training longer than the study's others tells: its trial did not measure them.
pub const OF_LONGER: [&str; 9] = [
    LOSS_LONGER,
    LONGER_TOKENS,
    FULL_TOKENS,
    DOUBLING_GAIN,
    DOUBLING_GAIN_INTERVAL,
    EPOCH_TOKENS,
    LEAST_LOSS_STEP,
    LEAST_LOSS_TOKENS,
    LOSS_RISE,
];
/// Name of the metric that says how many tokens a trial trained on.
pub const TRAIN_TOKENS: &str = "train_tokens";
/// Name of the metric that says how far another choice of held-out rows would move the loss: its standard error in nats. It is
/// no noise of the training; two trainings of one setting on the same rows have it in common.
pub const LOSS_STANDARD_ERROR: &str = "loss_standard_error";
/// Name of the metric that says on how many held-out rows the loss rests, where those are a part of them.
pub const LOSS_ROWS: &str = "loss_rows";
/// Name of the metric that says how many there are in all, beside [`LOSS_ROWS`].
pub const LOSS_ROWS_IN_ALL: &str = "loss_rows_in_all";
/// Name of the metric that holds the share of the held-out target tokens that the model finds the most likely ones, in [0, 1].
pub const TOKEN_ACCURACY: &str = "token_accuracy";
/// Name of the metric that says what a precision keeps of the loss: that of the trained values on base weights in fp32 over the
/// trial's own, in percent. Above 100 where rounding helped.
pub const LOSS_KEPT_PERCENT: &str = "loss_kept_percent";
/// Name of the metric that says at how many of the held-out target tokens the trained values find the same token most likely on
/// their own base weights and on those in fp32, in percent.
pub const TOP1_AGREEMENT_PERCENT: &str = "top1_agreement_percent";
/// Name of the metric that says how much of the token accuracy of the same recipe trained in fp32 a trial's own lacks, in percent
/// of that. Below 0 where it has more.
pub const TOKEN_ACCURACY_LOST_PERCENT: &str = "token_accuracy_lost_percent";
/// Name of the metric that says by which part of itself a training raised the loss on rows that it has nothing to do with. Below 0
/// where it lowered that loss.
pub const RETAINED_LOSS_INCREASE: &str = "retained_loss_increase";
/// Name of the metric that holds the mean divergence of the trained model's next-token distributions from those of the model before
/// the training, on that model's own continuations of held-out prompts, in nats.
pub const BASE_KL: &str = "base_kl";
/// Name of the metric that holds the milliseconds from one token to the next of a model that answers with what was trained.
pub const SERVE_MS_PER_TOKEN: &str = "serve_ms_per_token";
/// Name of the metric that holds the share of generated answers that are the held-out rows' own, in [0, 1].
pub const EXACT_MATCH: &str = "exact_match";
/// Name of the metric that holds the share of held-out pairs whose chosen answer the trained model rewards more than the rejected one, in
/// [0, 1]; of answers without a partner, the share among all pairs of a good one and a bad one.
pub const REWARD_ACCURACY: &str = "reward_accuracy";
/// Name of the metric that holds the mean reward of chosen answers above that of rejected ones, on the held-out rows.
pub const REWARD_MARGIN: &str = "reward_margin";

/// Metrics of what was learnt: only a training has them, and they differ by its seed.
pub const OF_LEARNING: [&str; 4] = [LOSS, TOKEN_ACCURACY, REWARD_ACCURACY, REWARD_MARGIN];

/// Name of the metric that holds the throughput predicted of another stack on its device, in tokens/s; padding is
/// not counted where the data's rows are known.
pub const TARGET_THROUGHPUT: &str = "target_throughput";
/// Name of the metric that holds the peak memory predicted of a process of another stack, in bytes.
pub const TARGET_PEAK_MEMORY: &str = "target_peak_memory";
/// Name of the metric that says by how many bytes less than the prediction's reserve is left there: whether it fits is uncertain.
/// A trial that surely fits has none.
pub const TARGET_SHORTFALL: &str = "target_shortfall_bytes";

/// Metrics of which more is better.
const MAXIMISED: [&str; 8] = [
    THROUGHPUT,
    TARGET_THROUGHPUT,
    TOKEN_ACCURACY,
    EXACT_MATCH,
    REWARD_ACCURACY,
    REWARD_MARGIN,
    LOSS_KEPT_PERCENT,
    TOP1_AGREEMENT_PERCENT,
];

/// Whether a metric is a share, from 0 to 1.
pub fn is_share(metric: &str) -> bool {
    [TOKEN_ACCURACY, EXACT_MATCH, REWARD_ACCURACY].contains(&metric)
}

/// Metrics that the engine measures, and those that are predicted of another stack in their place.
const TARGETS: [(&str, &str); 2] = [(THROUGHPUT, TARGET_THROUGHPUT), (PEAK_MEMORY, TARGET_PEAK_MEMORY)];

/// The metric that another stack's prediction of `metric` has, where one is predicted.
pub fn target_of(metric: &str) -> Option<&'static str> {
    let mut pairs = TARGETS.iter();
    pairs.find(|(own, _)| *own == metric).map(|(_, target)| *target)
}

/// The metric that the engine measures where `metric` is another stack's prediction of it.
pub fn measured_of(metric: &str) -> Option<&'static str> {
    let mut pairs = TARGETS.iter();
    pairs.find(|(_, target)| *target == metric).map(|(own, _)| *own)
}

/// Whether a metric is predicted of another stack, and not measured.
pub fn is_of_target(metric: &str) -> bool {
    metric == TARGET_SHORTFALL || measured_of(metric).is_some()
}

/// The name that people's word for a metric has among `metrics`: another stack's where they hold that, else itself.
pub fn counted_as<'a>(metric: &'a str, metrics: &[Objective]) -> &'a str {
    let target = target_of(metric).filter(|target| metrics.iter().any(|one| one.metric == *target));
    target.unwrap_or(metric)
}

/// Whether a smaller or a larger value is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    Minimize,
    Maximize,
}

/// One objective of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// Name of the metric that trials report: [`THROUGHPUT`], [`PEAK_MEMORY`], [`LOSS`], or any name that a command
    /// backend prints.
    pub metric: String,
    pub direction: Direction,
    /// Reference value for the hypervolume, in the metric's own unit; chosen from the trials where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<f64>,
    /// Number of steps after which the metric is known; absent where only a finished trial knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_after: Option<u64>,
}

impl Objective {
    /// The objective for `metric` with its natural direction: throughput and accuracies are maximised, anything else minimised.
    pub fn new(metric: &str) -> Self {
        let direction = if MAXIMISED.contains(&metric) {
            Direction::Maximize
        } else {
            Direction::Minimize
        };
        Self {
            metric: metric.to_owned(),
            direction,
            reference: None,
            known_after: None,
        }
    }

    /// The metric's unit, where it is one of ours: `tokens/s`, `bytes`, `nats`, `%`; empty for shares and other metrics.
    pub fn unit(&self) -> &'static str {
        match self.metric.as_str() {
            THROUGHPUT | TARGET_THROUGHPUT => "tokens/s",
            PEAK_MEMORY | TARGET_PEAK_MEMORY => "bytes",
            LOSS | BASE_KL => "nats",
            SERVE_MS_PER_TOKEN => "ms",
            metric if metric.ends_with("_percent") => "%",
            _ => "",
        }
    }

    /// The nearest value that the metric can have: a share is neither below 0 nor above 1, a percentage of equal tokens is at most
    /// 100, a divergence is at least 0, and no loss falls by more than all of it.
    pub fn possible(&self, value: f64) -> f64 {
        match self.metric.as_str() {
            metric if is_share(metric) => value.clamp(0.0, 1.0),
            TOP1_AGREEMENT_PERCENT => value.clamp(0.0, 100.0),
            BASE_KL | SERVE_MS_PER_TOKEN => value.max(0.0),
            RETAINED_LOSS_INCREASE => value.max(-1.0),
            _ => value,
        }
    }

    /// Turns a metric value into one that is minimised (a maximised one changes its sign). Its own inverse.
    pub fn minimised(&self, value: f64) -> f64 {
        match self.direction {
            Direction::Minimize => value,
            Direction::Maximize => -value,
        }
    }
}

/// A bound that a setting must keep to be recommended or put on the front, such as `peak_memory <= 22 GiB`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constraint {
    pub metric: String,
    pub bound: Bound,
}

/// Side of a limit that is allowed; limits are in the metric's own unit and included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Constraint {
    /// Whether `value` keeps the bound.
    pub fn holds(&self, value: f64) -> bool {
        match self.bound {
            Bound::AtMost(limit) => value <= limit,
            Bound::AtLeast(limit) => value >= limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_stays_one() {
        let possible = |metric: &str, value: f64| Objective::new(metric).possible(value);
        assert_eq!(
            [possible(TOKEN_ACCURACY, 1.06), possible(EXACT_MATCH, -0.1)],
            [1.0, 0.0]
        );
        assert_eq!(possible(TOP1_AGREEMENT_PERCENT, 100.2), 100.0);
        assert_eq!(possible(LOSS_KEPT_PERCENT, 100.2), 100.2);
        assert_eq!([possible(BASE_KL, -0.1), possible(BASE_KL, 3.0)], [0.0, 3.0]);
        assert_eq!(possible(RETAINED_LOSS_INCREASE, -0.1), -0.1);
    }

    #[test]
    fn throughput_and_accuracies_are_maximised_and_the_rest_minimised() {
        assert_eq!(Objective::new(THROUGHPUT).minimised(2.0), -2.0);
        assert_eq!(Objective::new(LOSS).minimised(2.0), 2.0);
        assert_eq!(Objective::new("f1").direction, Direction::Minimize);
        for forgotten in [RETAINED_LOSS_INCREASE, BASE_KL] {
            assert_eq!(Objective::new(forgotten).minimised(0.5), 0.5);
        }
        for accuracy in [TOKEN_ACCURACY, EXACT_MATCH, LOSS_KEPT_PERCENT, TOP1_AGREEMENT_PERCENT] {
            assert_eq!(Objective::new(accuracy).minimised(0.5), -0.5);
        }
    }

    #[test]
    fn another_stack_s_predictions_count_where_they_are_objectives() {
        let objectives = [TARGET_THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new);
        let counted = [THROUGHPUT, PEAK_MEMORY, LOSS].map(|metric| counted_as(metric, &objectives));
        assert_eq!(counted, [TARGET_THROUGHPUT, PEAK_MEMORY, LOSS]);
        assert_eq!(objectives[0].direction, Direction::Maximize);
        assert!(is_of_target(TARGET_SHORTFALL) && !is_of_target(LOSS));
    }

    #[test]
    fn bounds_include_their_limit() {
        let at_most = Constraint {
            metric: PEAK_MEMORY.into(),
            bound: Bound::AtMost(2.0),
        };
        assert!(at_most.holds(2.0) && !at_most.holds(2.1) && !at_most.holds(f64::NAN));
    }
}
