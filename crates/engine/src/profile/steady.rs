//! Steady state: when the warm-up is over, and what the steps after it say about throughput.
//!
//! | name | unit | meaning |
//! |---|---|---|
//! | seconds per token | s | time of one step over its tokens; steps of different size compare |
//! | warm-up | steps | the first step, and those after it until two neighbours agree to [`AGREEMENT`] |
//! | spread | 1 | 1.4826 x median absolute deviation / median: the relative standard deviation of normal noise |
//! | interval | 1 | half width of the 95% confidence interval of the median (order statistics), over the median |

use peft_tune_core::{median, normal_deviation};

/// Two neighbouring steps within this relative distance end the warm-up.
const AGREEMENT: f64 = 0.1;

/// Decides step by step whether the warm-up is over.
#[derive(Clone, Debug)]
pub struct WarmupDetector {
    max_steps: u64,
    steps: u64,
    last: Option<f64>,
    over: bool,
}

impl WarmupDetector {
    /// A detector that gives up waiting after `max_steps` steps.
    pub fn new(max_steps: u64) -> Self {
        Self {
            max_steps,
            steps: 0,
            last: None,
            over: max_steps == 0,
        }
    }

    /// Whether the next step may be measured.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Takes a finished warm-up step of so many seconds and tokens.
    pub fn push(&mut self, seconds: f64, tokens: u64) {
        let seconds_per_token = seconds / tokens.max(1) as f64;
        self.steps += 1;
        // The first step pays for first allocations and cold caches, so it is never one of the two that must agree.
        if self.steps > 1 {
            let agrees = self
                .last
                .is_some_and(|last| (seconds_per_token - last).abs() <= AGREEMENT * last);
            self.over |= agrees;
            self.last = Some(seconds_per_token);
        }
        self.over |= self.steps >= self.max_steps;
    }
}

/// Throughput over measured steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Median over the steps of tokens per second.
    pub tokens_per_s: f64,
    /// Relative spread of single steps.
    pub spread: f64,
    /// Relative half width of the median's 95% confidence interval.
    pub interval: f64,
}

impl Throughput {
    /// Finds throughput from (seconds, tokens) of each measured step; `None` without a step.
    pub fn from_steps(steps: &[(f64, u64)]) -> Option<Self> {
        let mut rates: Vec<f64> = steps
            .iter()
            .map(|(seconds, tokens)| *tokens as f64 / seconds.max(1e-9))
            .collect();
        rates.sort_by(f64::total_cmp);
        let center = median(rates.iter().copied())?;
        let spread = normal_deviation(rates.iter().copied(), center)? / center;
        Some(Self {
            tokens_per_s: center,
            spread,
            interval: median_interval(&rates) / center,
        })
    }
}

/// A median with its confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Median {
    pub value: f64,
    /// Half width of the 95% confidence interval over the median; 0 where the median is.
    pub interval: f64,
}

impl Median {
    /// Finds the median of values; `None` without one.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let value = median(sorted.iter().copied())?;
        let interval = match value {
            0.0 => 0.0,
            value => median_interval(&sorted) / value.abs(),
        };
        Some(Self { value, interval })
    }
}

/// Half width of the 95% confidence interval of the median of sorted values, from the binomial distribution of the
/// number of values below it (normal approximation of the ranks); the whole range for fewer than six values.
fn median_interval(sorted: &[f64]) -> f64 {
    let n = sorted.len() as f64;
    let half = 1.96 * n.sqrt() / 2.0;
    let low = (n / 2.0 - half).floor().max(0.0) as usize;
    let high = ((n / 2.0 + half).ceil() as usize).min(sorted.len() - 1);
    (sorted[high] - sorted[low]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warmup_ends_when_two_steps_agree() {
        let mut detector = WarmupDetector::new(10);
        for seconds in [9.0, 4.0, 2.0] {
            detector.push(seconds, 100);
            assert!(!detector.is_over());
        }
        detector.push(2.1, 100);
        assert!(detector.is_over());
    }

    #[test]
    fn warmup_compares_seconds_per_token() {
        let mut detector = WarmupDetector::new(10);
        for (seconds, tokens) in [(5.0, 100), (1.0, 100), (2.0, 200)] {
            detector.push(seconds, tokens);
        }
        assert!(detector.is_over());
    }

    #[test]
    fn warmup_gives_up_at_its_limit() {
        let mut detector = WarmupDetector::new(2);
        detector.push(8.0, 1);
        detector.push(4.0, 1);
        assert!(detector.is_over() && WarmupDetector::new(0).is_over());
    }

    #[test]
    fn a_median_of_equal_values_is_sure() {
        let median = Median::of(&[2.0; 9]).unwrap();
        assert_eq!((median.value, median.interval), (2.0, 0.0));
        assert!(Median::of(&[1.0, 3.0]).unwrap().interval > 0.0 && Median::of(&[]).is_none());
    }

    #[test]
    fn one_slow_step_does_not_move_the_median() {
        let throughput = Throughput::from_steps(&[(1.0, 100), (1.0, 100), (5.0, 100)]).unwrap();
        assert_eq!((throughput.tokens_per_s, throughput.spread), (100.0, 0.0));
        assert!(throughput.interval > 0.0);
        assert_eq!(Throughput::from_steps(&[]), None);
    }
}
