//! Tokens that a tool counts in its logs: all so far, or those of a second.

use super::log_fields::LogFields;
use peft_tune_engine::profile::median;

/// Fields with the tokens that were seen so far.
const TOTALS: [&str; 3] = ["num_tokens", "num_input_tokens_seen", "total_tokens"];
/// Fields with the tokens of a second.
const RATES: [&str; 4] = [
    "tokens_per_second",
    "tokens_per_sec",
    "tokens_per_s",
    "train_tokens_per_second",
];
/// Field of torchtune with the tokens of a second over the number of devices.
const RATE_OF_A_DEVICE: &str = "tokens_per_second_per_gpu";
/// Most rates of a kind that are kept.
const MOST_RATES: usize = 1 << 12;

/// Tokens as logs tell them.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenCount {
    /// Time and tokens of the first log and of the last one.
    first: Option<(f64, f64)>,
    last: Option<(f64, f64)>,
    rates: Vec<f64>,
    rates_of_a_device: Vec<f64>,
}

impl TokenCount {
    /// Takes what a log has of tokens.
    pub(super) fn take(&mut self, fields: &LogFields, at_s: f64) {
        let known = |names: &[&str]| {
            let values = names.iter().find_map(|name| fields.get(*name).copied());
            values.filter(|value| value.is_finite())
        };
        if let Some(tokens) = known(&TOTALS) {
            self.first.get_or_insert((at_s, tokens));
            self.last = Some((at_s, tokens));
        }
        for (names, rates) in [
            (&RATES[..], &mut self.rates),
            (&[RATE_OF_A_DEVICE][..], &mut self.rates_of_a_device),
        ] {
            if let Some(rate) = known(names).filter(|rate| *rate > 0.0)
                && rates.len() < MOST_RATES
            {
                rates.push(rate);
            }
        }
    }

    /// Tokens a second of all devices between the first and the last count; without counts the median of what logs say.
    pub(super) fn per_second(&self) -> Option<f64> {
        let counted = self.first.zip(self.last).and_then(|((began, first), (ended, last))| {
            (ended > began && last > first).then(|| (last - first) / (ended - began))
        });
        counted.or_else(|| median(self.rates.iter().copied()))
    }

    /// Tokens a second of one device: the median of what logs say.
    pub(super) fn per_second_of_a_device(&self) -> Option<f64> {
        median(self.rates_of_a_device.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(logs: &[(&str, f64, f64)]) -> Option<f64> {
        let mut count = TokenCount::default();
        for (name, value, at_s) in logs {
            count.take(&LogFields::from([((*name).to_owned(), *value)]), *at_s);
        }
        count.per_second()
    }

    #[test]
    fn counts_go_before_rates() {
        assert_eq!(
            of(&[("num_tokens", 100.0, 1.0), ("num_tokens", 300.0, 3.0)]),
            Some(100.0)
        );
        let rates = [("tokens_per_second", 5.0, 1.0), ("tokens_per_second", 7.0, 2.0)];
        assert_eq!(of(&rates), Some(6.0));
        assert_eq!(
            of(&[rates[0], ("num_tokens", 1.0, 1.0), ("num_tokens", 9.0, 2.0)]),
            Some(8.0)
        );
        assert_eq!(
            of(&[("num_tokens", f64::NAN, 1.0), ("tokens_per_sec", -1.0, 1.0)]),
            None
        );
    }

    #[test]
    fn rates_of_a_device_are_kept_apart() {
        let mut count = TokenCount::default();
        for rate in [4.0, 6.0] {
            count.take(&LogFields::from([(RATE_OF_A_DEVICE.to_owned(), rate)]), rate);
        }
        assert_eq!((count.per_second(), count.per_second_of_a_device()), (None, Some(5.0)));
    }
}
