//! Variables of the environment whose values are looked at before anything runs: what reads them later takes a value
//! that it cannot read for none.

use std::time::Duration;

use crate::cli::CliError;

/// A variable, and the values that it takes.
struct Variable {
    name: &'static str,
    takes: fn(&str) -> bool,
    /// Words for a value that it takes.
    value: &'static str,
}

const VARIABLES: [Variable; 8] = [
    Variable {
        name: "PEFT_TUNE_CACHE_GIB",
        takes: is_amount,
        value: "a number of GiB, such as 50",
    },
    Variable {
        name: "PEFT_TUNE_GPU_CHECK_SECONDS",
        takes: is_amount,
        value: "a number of seconds, such as 300",
    },
    Variable {
        name: "PEFT_TUNE_MOCK",
        takes: is_amount,
        value: "a number of seconds, such as 0.05",
    },
    Variable {
        name: "PEFT_TUNE_PROBE_SECONDS",
        takes: is_amount,
        value: "a number of seconds, such as 60",
    },
    Variable {
        name: "PEFT_TUNE_PRODUCTS",
        takes: |text| text == "first",
        value: "`first`",
    },
    Variable {
        name: "PEFT_TUNE_READING_LINE_S",
        takes: is_amount,
        value: "a number of seconds, such as 30",
    },
    Variable {
        name: "PEFT_TUNE_ROW_TIMEOUT_S",
        takes: is_amount,
        value: "a number of seconds, such as 600",
    },
    Variable {
        name: "RAYON_NUM_THREADS",
        takes: |text| text.parse::<usize>().is_ok(),
        value: "a whole number of threads, such as 4",
    },
];

/// Refuses the value of a variable that cannot be read. A variable that is set to nothing counts as not set.
///
/// # Errors
/// Bad input, with the variable and what it takes.
pub(in crate::cli) fn check() -> Result<(), CliError> {
    for Variable { name, takes, value } in VARIABLES {
        let Some(given) = std::env::var_os(name).filter(|given| !given.is_empty()) else {
            continue;
        };
        if !given.to_str().is_some_and(takes) {
            let given = given.to_string_lossy();
            return Err(CliError::bad(format!(
                "the environment says {name}=`{given}`: set it to {value}, or unset it"
            )));
        }
    }
    Ok(())
}

/// Whether a text is a number of 0 or more that a time can have in seconds.
fn is_amount(text: &str) -> bool {
    let number = text.parse::<f64>();
    number.is_ok_and(|number| Duration::try_from_secs_f64(number).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_a_number_of_nothing_or_more() {
        for text in ["0", "0.05", "600", "1e3"] {
            assert!(is_amount(text), "{text}");
        }
        for text in ["", "ten", "10s", "-1", "nan", "inf", "1e300"] {
            assert!(!is_amount(text), "{text}");
        }
    }
}
