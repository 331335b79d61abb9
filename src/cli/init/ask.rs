//! Questions on the terminal.

use std::io::{self, BufRead, Write};

use crate::cli::CliError;
use crate::space::Bytes;

/// Asks, or takes the first choice where nobody is to be asked.
pub struct Asker {
    asks: bool,
}

/// Choices that are shown of a long list.
const SHOWN: usize = 12;

impl Asker {
    pub fn new(asks: bool) -> Self {
        Self { asks }
    }

    /// One of `choices`, or what the user writes instead.
    pub fn choose(&mut self, question: &str, flag: &str, choices: &[String]) -> Result<String, CliError> {
        let missing = || CliError::bad_input(anyhow::anyhow!("{question}: nothing was found; give `{flag}`"));
        if !self.asks {
            return choices.first().cloned().ok_or_else(missing);
        }
        for (number, choice) in choices.iter().take(SHOWN).enumerate() {
            eprintln!("  {}  {choice}", number + 1);
        }
        let hint = if choices.is_empty() {
            ""
        } else {
            " (a number, or your own; 1)"
        };
        loop {
            let answer = line(&format!("{question}{hint}: "))?;
            match (answer.is_empty(), answer.parse::<usize>()) {
                (true, _) => {
                    if let Some(first) = choices.first() {
                        return Ok(first.clone());
                    }
                }
                (false, Ok(number)) if (1..=choices.len()).contains(&number) => {
                    return Ok(choices[number - 1].clone());
                }
                (false, _) => return Ok(answer),
            }
        }
    }

    /// A size; `default` is what `offered` says.
    pub fn memory(&mut self, offered: &str, default: u64) -> Result<u64, CliError> {
        if !self.asks {
            return Ok(default);
        }
        loop {
            let answer = line(&format!("Device memory for trials ({offered}): "))?;
            if answer.is_empty() {
                return Ok(default);
            }
            match answer.parse::<Bytes>() {
                Ok(size) => return Ok(size.0),
                Err(error) => eprintln!("{error}"),
            }
        }
    }
}

/// A line from the terminal; its end is an interruption.
fn line(question: &str) -> Result<String, CliError> {
    let mut stderr = io::stderr();
    write!(stderr, "{question}")
        .and_then(|()| stderr.flush())
        .map_err(CliError::failed)?;
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer).map_err(CliError::failed)?;
    if read == 0 {
        return Err(CliError::bad_input(anyhow::anyhow!(
            "nobody answered; give the flags, or `--yes`"
        )));
    }
    Ok(answer.trim().to_owned())
}
