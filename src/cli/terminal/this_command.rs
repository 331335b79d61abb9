//! The command that this process was started with, to be printed.

use crate::shell::command_line;

/// The command line of this process as a shell takes it, without some of its flags and with others behind it.
pub(in crate::cli) fn this_command(without: &[&str], with: &[String]) -> String {
    let given = std::env::args_os().skip(1);
    let given: Vec<String> = given.map(|word| word.to_string_lossy().into_owned()).collect();
    command_line(words(&given, without, with))
}

fn words<'a>(given: &'a [String], without: &[&str], with: &'a [String]) -> Vec<&'a str> {
    let kept = given.iter().map(String::as_str).filter(|word| !without.contains(word));
    let mut words: Vec<&str> = ["peft-tune"].into_iter().chain(kept).collect();
    for word in with {
        if !words.contains(&word.as_str()) {
            words.push(word);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_training_resumes_with_all_that_it_was_given() {
        let given = ["train", "my recipe.yaml", "--force", "--threads", "2"].map(str::to_owned);
        let resume = ["--resume".to_owned()];
        let words = words(&given, &["--force"], &resume);
        assert_eq!(
            command_line(words),
            "peft-tune train 'my recipe.yaml' --threads 2 --resume"
        );
    }
}
