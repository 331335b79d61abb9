//! Money as people read it. JSON carries the raw numbers.

use super::number::grouped;
use peft_tune_core::predict::DevicePrice;

/// Least sum that is told with its digits.
const LEAST_TOLD: f64 = 1e-4;

/// US dollars: `$0.0043`, `$0.43`, `$12.30`, `$1,234`.
pub fn dollars(value: f64) -> String {
    match value {
        value if !value.is_finite() || value < 0.0 => "-".to_owned(),
        value if value >= 999.995 => format!("${}", grouped(value)),
        value if value >= 0.0995 || value == 0.0 => format!("${value:.2}"),
        value if value < LEAST_TOLD => format!("under ${LEAST_TOLD}"),
        value => {
            // Two digits that say something.
            let digits = (1.0 - value.log10().floor()) as usize;
            format!("${value:.digits$}")
        }
    }
}

/// A price with whoever says so: `at $2.49 an hour of a device (the study file)`.
pub fn price_text(price: &DevicePrice) -> String {
    format!("at {} an hour of a device ({})", dollars(price.usd_per_h), price.source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_have_cents_and_small_ones_two_digits() {
        let shown = [0.0, 0.00001, 0.00432, 0.0432, 0.43, 12.3, 999.99, 1234.4, f64::NAN].map(dollars);
        assert_eq!(
            shown,
            [
                "$0.00",
                "under $0.0001",
                "$0.0043",
                "$0.043",
                "$0.43",
                "$12.30",
                "$999.99",
                "$1,234",
                "-"
            ]
        );
    }

    #[test]
    fn a_price_says_whose_it_is() {
        let price = DevicePrice {
            usd_per_h: 2.49,
            source: "the study file".to_owned(),
        };
        assert_eq!(price_text(&price), "at $2.49 an hour of a device (the study file)");
    }
}
