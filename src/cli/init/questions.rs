//! Questions on the terminal.

use crate::cli::terminal::output::tell;
use std::io::{self, BufRead, Write};

use crate::cli::CliError;
use crate::space::Bytes;

/// Asks, or takes the first choice where nobody is to be asked.
pub(super) struct Asker {
    asks: bool,
}

/// Choices that are shown of a long list.
const SHOWN: usize = 12;

impl Asker {
    pub(super) fn new(asks: bool) -> Self {
        Self { asks }
    }

    /// Asks for one of `choices`, or for what the user writes instead, and asks again where `check` refuses it.
    pub(super) fn choose(
        &mut self,
        question: &str,
        flag: &str,
        choices: &[String],
        check: impl Fn(&str) -> Result<(), CliError>,
    ) -> Result<String, CliError> {
        let missing = || CliError::bad_input(anyhow::anyhow!("{question}: nothing was found; give `{flag}`"));
        if !self.asks {
            return choices.first().cloned().ok_or_else(missing);
        }
        // Where one thing is there, there is nothing to ask; a flag names another.
        if let [only] = choices
            && check(only).is_ok()
        {
            tell(format_args!(
                "{question}: {only}, the only one found; {flag} names another"
            ));
            return Ok(only.clone());
        }
        tell(format_args!("{question}:"));
        for (number, choice) in choices.iter().take(SHOWN).enumerate() {
            tell(format_args!("  {}  {choice}", number + 1));
        }
        if let Some(more) = choices.len().checked_sub(SHOWN + 1) {
            tell(format_args!("     and {} more", more + 1));
        }
        let hint = match choices.len() {
            0 => "your own".to_owned(),
            count => format!("1 to {count}, or your own [1]"),
        };
        loop {
            let answer = line(&format!("{hint}: "))?;
            let chosen = match (answer.is_empty(), answer.parse::<usize>()) {
                (true, _) => choices.first().cloned(),
                (false, Ok(number)) => number.checked_sub(1).and_then(|index| choices.get(index)).cloned(),
                (false, Err(_)) => Some(answer),
            };
            match chosen.map(|chosen| check(&chosen).map(|()| chosen)) {
                Some(Ok(chosen)) => return Ok(chosen),
                Some(Err(error)) => tell(format_args!("{error}")),
                None => tell(format_args!("that is not one of the choices")),
            }
        }
    }

    /// A size; `default` is what `offered` says.
    pub(super) fn memory(&mut self, offered: &str, default: u64) -> Result<u64, CliError> {
        if !self.asks {
            return Ok(default);
        }
        loop {
            let answer = line(&format!("Device memory for trials [{offered}]: "))?;
            if answer.is_empty() {
                return Ok(default);
            }
            match answer.parse::<Bytes>() {
                Ok(size) => return Ok(size.0),
                Err(error) => tell(format_args!("{error}")),
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
            "no answer; give the flags, or `--yes`"
        )));
    }
    Ok(answer.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_choice_is_taken_without_a_question() {
        let chosen = Asker::new(true).choose("Base model", "--model", &["base".to_owned()], |_| Ok(()));
        assert_eq!(chosen.unwrap(), "base");
    }
}
