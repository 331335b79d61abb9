//! Options of a script that have their defaults, told in one line where there are many.

use super::script::OPTION_DEFAULT;

/// Options that are told in a line each, at the most.
const ALONE: usize = 4;

/// Lines of which those on options are one, where the first of them stood.
pub(super) fn merged(lines: Vec<String>) -> Vec<String> {
    let options: Vec<&str> = lines.iter().filter_map(|line| option_of(line)).collect();
    if options.len() <= ALONE {
        return lines;
    }
    let mut all = Some(format!(
        "options of the script have their defaults here: `{}`",
        options.join("`, `")
    ));
    let kept = lines.iter().filter_map(|line| match option_of(line) {
        Some(_) => all.take(),
        None => Some(line.clone()),
    });
    kept.collect()
}

/// The option that a line is on.
fn option_of(line: &str) -> Option<&str> {
    let (_, option) = line.strip_suffix(OPTION_DEFAULT)?.rsplit_once(": `")?;
    option.strip_suffix('`')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_options_are_one_line_and_few_a_line_each() {
        let line = |name: &str| format!("train.py:3: `--{name}`{OPTION_DEFAULT}");
        let few: Vec<String> = ["a", "b"].map(line).to_vec();
        assert_eq!(merged(few.clone()), few);
        let mut many: Vec<String> = ["a", "b", "c", "d", "e"].map(line).to_vec();
        many.insert(1, "another".to_owned());
        assert_eq!(
            merged(many),
            [
                "options of the script have their defaults here: `--a`, `--b`, `--c`, `--d`, `--e`",
                "another"
            ]
        );
    }
}
