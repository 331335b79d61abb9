//! Numbers as people read them. JSON and CSV carry the raw ones.

use peft_tune_core::objective::{
    EXACT_MATCH, GPU_CLOCK_MHZ, GPU_POWER_W, GPU_TEMPERATURE_C, GPU_UTILISATION, JOULES_PER_TOKEN, LOSS, MFU,
    PEAK_MEMORY, RETAINED_LOSS_INCREASE, REWARD_ACCURACY, SERVE_MS_PER_TOKEN, TARGET_PEAK_MEMORY, TARGET_THROUGHPUT,
    THROUGHPUT, TOKEN_ACCURACY,
};
use peft_tune_core::study::{ParamValue, Params};

/// Bytes with a binary unit: `512 B`, `3.4 MiB`, `21.37 GiB`.
pub fn bytes(value: f64) -> String {
    const UNITS: [(&str, f64, usize); 4] = [
        ("TiB", (1u64 << 40) as f64, 2),
        ("GiB", (1u64 << 30) as f64, 2),
        ("MiB", (1u64 << 20) as f64, 1),
        ("KiB", (1u64 << 10) as f64, 1),
    ];
    for (unit, size, digits) in UNITS {
        if value.abs() >= size {
            return format!("{:.digits$} {unit}", value / size);
        }
    }
    format!("{value:.0} B")
}

/// Seconds: `420 ms`, `12.3 s`, `2m 41s`, `3h 07m`, `2d 04h`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round();
    if !seconds.is_finite() || seconds < 0.0 {
        "-".to_owned()
    } else if seconds == 0.0 {
        "0 s".to_owned()
    } else if seconds < 0.9995 {
        match 1e3 * seconds {
            ms if ms < 10.0 => format!("{ms:.1} ms"),
            ms => format!("{ms:.0} ms"),
        }
    } else if whole < 60.0 {
        format!("{seconds:.1} s")
    } else {
        let whole = whole as u64;
        let (minutes, hours, days) = (whole / 60, whole / 3600, whole / 86_400);
        match (days, hours, minutes) {
            (0, 0, minutes) => format!("{minutes}m {:02}s", whole % 60),
            (0, hours, minutes) => format!("{hours}h {:02}m", minutes % 60),
            (days, hours, _) => format!("{days}d {:02}h", hours % 24),
        }
    }
}

/// A time that is only about so long: `40 s`, `3 min`, `2 h`, `3 days`.
pub fn about_duration(seconds: f64) -> String {
    let units = [(1.0, "s", 90.0), (60.0, "min", 5400.0), (3600.0, "h", 172_800.0)];
    match units.iter().find(|(_, _, below)| seconds < *below) {
        Some((size, unit, _)) => format!("{:.0} {unit}", (seconds / size).max(1.0)),
        None => format!("{:.0} days", seconds / 86_400.0),
    }
}

/// A metric's value with its unit, where its name tells one: ours, and names that end in `_bytes` or `_s`.
pub fn metric_value(name: &str, value: f64) -> String {
    match name {
        THROUGHPUT | TARGET_THROUGHPUT => grouped(value),
        PEAK_MEMORY | TARGET_PEAK_MEMORY => bytes(value),
        LOSS => format!("{value:.4}"),
        MFU | GPU_UTILISATION => format!("{:.1}%", 100.0 * value),
        TOKEN_ACCURACY
        | EXACT_MATCH
        | REWARD_ACCURACY
        | "token_accuracy_fp32"
        | "exact_match_low"
        | "exact_match_high" => {
            format!("{:.2}%", 100.0 * value)
        }
        SERVE_MS_PER_TOKEN => format!("{} ms", significant(value)),
        RETAINED_LOSS_INCREASE => format!("{:+.2}%", 100.0 * value),
        _ if name.ends_with("_percent") => format!("{value:.2}%"),
        GPU_POWER_W => format!("{value:.0} W"),
        GPU_TEMPERATURE_C => format!("{value:.0} °C"),
        GPU_CLOCK_MHZ => format!("{value:.0} MHz"),
        JOULES_PER_TOKEN => format!("{} J", significant(value)),
        _ if name.ends_with("_bytes") => bytes(value),
        _ if name.ends_with("_loss") => format!("{value:.4}"),
        _ if name.ends_with("tokens_per_s") => grouped(value),
        _ if name.ends_with("_s") && !name.ends_with("_per_s") => duration(value),
        _ => significant(value),
    }
}

/// A change in words: `+12.3%`, and where a percentage would be hard to read, `12 times`. `share` is 0.123 for 12.3% more.
pub fn change(share: f64) -> String {
    match share {
        share if share < 2.0 => format!("{:+.1}%", 100.0 * share),
        share => times(1.0 + share),
    }
}

/// How many times as much, to three digits at most: `3.2 times`, `12 times`.
pub(super) fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio < 9.95 => format!("{ratio:.1} times"),
        ratio => format!("{ratio:.0} times"),
    }
}

/// A metric's column heading: its name, or its unit where that says as much.
pub fn metric_heading(name: &str) -> String {
    match name {
        THROUGHPUT => "tokens/s".to_owned(),
        TARGET_THROUGHPUT => "target tokens/s (predicted)".to_owned(),
        TARGET_PEAK_MEMORY => "target peak memory (predicted)".to_owned(),
        name => metric_words(name),
    }
}

/// A metric's name in words; a percentage's without that, as its values carry the sign.
pub fn metric_words(name: &str) -> String {
    name.strip_suffix("_percent").unwrap_or(name).replace('_', " ")
}

/// A param's value; a float to four significant digits, as a sampled one has up to 17.
pub fn param_value(value: &ParamValue) -> String {
    match value {
        ParamValue::Float(value) => {
            let rounded = format!("{value:.3e}").parse().unwrap_or(*value);
            ParamValue::Float(rounded).to_string()
        }
        value => value.to_string(),
    }
}

/// Params in words: `rank 16, learning_rate 3e-4`.
pub fn params_text(params: &Params) -> String {
    let parts: Vec<String> = params
        .iter()
        .map(|(name, value)| format!("{name} {}", param_value(value)))
        .collect();
    parts.join(", ")
}

/// A number to five significant digits, without an exponent where that is readable.
pub fn significant(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || (size < 1e15 && value.fract() == 0.0) {
        return format!("{value:.0}");
    }
    if !(1e-4..1e15).contains(&size) {
        return format!("{value:.4e}");
    }
    let digits = (4 - size.log10().floor() as i32).max(0) as usize;
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// `1 thread` or `2 threads`.
pub fn thread_count(count: usize) -> String {
    match count {
        1 => "1 thread".to_owned(),
        count => format!("{count} threads"),
    }
}

/// A rate: whole with thousands set apart from 100 on, with a digit after the point below.
pub fn grouped(value: f64) -> String {
    if !(value.abs() >= 100.0 && value.abs() < 1e15) {
        return format!("{value:.1}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < 0.0 { "-".to_owned() } else { String::new() };
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A stored time to the minute: `2025-11-20 10:50`.
pub fn minute(time: &str) -> String {
    time.get(..16).unwrap_or(time).replace('T', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_the_largest_unit_that_fits() {
        let shown = [0.0, 1023.0, 1024.0, 5.5 * 1048576.0, 22.0 * 1073741824.0].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "5.5 MiB", "22.00 GiB"]);
    }

    #[test]
    fn durations_have_two_parts_at_most() {
        let shown = [0.123, 59.4, 59.96, 161.0, 3600.0 * 3.0 + 425.0, 187_200.0, f64::NAN].map(duration);
        assert_eq!(shown, ["123 ms", "59.4 s", "1m 00s", "2m 41s", "3h 07m", "2d 04h", "-"]);
    }

    #[test]
    fn a_rough_time_has_one_part() {
        let shown = [0.2, 41.0, 170.0, 5000.0, 9000.0, 260_000.0].map(about_duration);
        assert_eq!(shown, ["1 s", "41 s", "3 min", "83 min", "2 h", "3 days"]);
    }

    #[test]
    fn metrics_are_shown_in_their_unit() {
        assert_eq!(metric_value(THROUGHPUT, 1234567.8), "1,234,568");
        assert_eq!(metric_value(THROUGHPUT, 42.25), "42.2");
        assert_eq!(metric_value(THROUGHPUT, 999.6), "1,000");
        assert_eq!(metric_value(PEAK_MEMORY, 1073741824.0), "1.00 GiB");
        assert_eq!(metric_value(LOSS, 2.0), "2.0000");
        assert_eq!(metric_value(TOKEN_ACCURACY, 0.62345), "62.34%");
        assert_eq!(metric_value("top1_agreement_percent", 98.8), "98.80%");
        assert_eq!(metric_heading("top1_agreement_percent"), "top1 agreement");
        let increases = [0.0213, -0.004].map(|value| metric_value(RETAINED_LOSS_INCREASE, value));
        assert_eq!(increases, ["+2.13%", "-0.40%"]);
        assert_eq!(metric_value("forward_s", 0.5), "500 ms");
        assert_eq!(metric_value("rss_bytes", 2048.0), "2.0 KiB");
    }

    #[test]
    fn what_a_gpu_did_is_shown_with_its_units() {
        let shown = [
            (MFU, 0.4561),
            (GPU_UTILISATION, 0.98),
            (GPU_POWER_W, 651.4),
            (GPU_TEMPERATURE_C, 71.0),
            (GPU_CLOCK_MHZ, 1755.2),
            (JOULES_PER_TOKEN, 0.0512345),
        ];
        let shown = shown.map(|(name, value)| metric_value(name, value));
        assert_eq!(shown, ["45.6%", "98.0%", "651 W", "71 °C", "1755 MHz", "0.051235 J"]);
    }

    #[test]
    fn large_changes_are_factors() {
        let shown = [0.123, -0.5, 1.248, 2.2, 11.344].map(change);
        assert_eq!(shown, ["+12.3%", "-50.0%", "+124.8%", "3.2 times", "12 times"]);
    }

    #[test]
    fn other_numbers_keep_five_digits() {
        let shown = [3.0, 0.123456789, 12345.678, 0.00001234567, 1e20, 0.5].map(significant);
        assert_eq!(shown, ["3", "0.12346", "12346", "1.2346e-5", "1.0000e20", "0.5"]);
    }
}
