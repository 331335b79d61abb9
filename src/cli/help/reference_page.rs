//! Every command and its options as a page of the documentation: `docs/reference/commands.md`.

use std::fmt::Write;

use clap::{Arg, ArgAction, Command};

use super::command_groups::{examples_of, groups};

/// The page that describes the commands of `program`, in the groups of its help.
pub(in crate::cli) fn page(program: &Command) -> String {
    let mut text = String::new();
    for (group, names) in groups() {
        let _ = write!(text, "\n## {group}\n");
        for command in names.iter().filter_map(|name| program.find_subcommand(name)) {
            text.push_str(&section(command));
        }
    }
    text
}

/// One command: what it does, how it is called, and its arguments.
fn section(command: &Command) -> String {
    let name = command.get_name();
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let usage = command
        .clone()
        .bin_name(format!("peft-tune {name}"))
        .render_usage()
        .to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let mut text = format!("\n### `{name}`\n\n{}\n\n`{usage}`\n", in_lines(&about));
    let arguments: Vec<&Arg> = command.get_arguments().filter(|one| is_told(one)).collect();
    if !arguments.is_empty() {
        text.push('\n');
        for argument in arguments {
            text.push_str(&entry(argument));
        }
    }
    let examples = examples_of(name).join("\n");
    let _ = write!(text, "\n```sh\n{examples}\n```\n");
    text
}

/// Whether the page tells of an argument: every command has `--help` and `--version`.
fn is_told(argument: &Arg) -> bool {
    let own = matches!(
        argument.get_action(),
        ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
    );
    !own && !argument.is_hide_set()
}

/// One argument as an entry of a list, with its values and its default.
fn entry(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let mut about = help.trim().trim_end_matches('.').to_owned();
    let values: Vec<_> = argument.get_possible_values();
    let named: Vec<String> = values
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !named.is_empty() && argument.get_action().takes_values() {
        let _ = write!(about, ". One of {}", named.join(", "));
    }
    let defaults: Vec<String> = argument
        .get_default_values()
        .iter()
        .map(|value| format!("`{}`", value.to_string_lossy()))
        .collect();
    if !defaults.is_empty() && argument.get_action().takes_values() {
        let _ = write!(about, ". Default: {}", defaults.join(", "));
    }
    if let Some(variable) = argument.get_env() {
        let _ = write!(about, ". Or the variable `{}`", variable.to_string_lossy());
    }
    let head = format!("- `{}`: {}", written(argument), plain(&about));
    format!("{}\n", folded(&head, "  "))
}

/// An argument as it is written on a command line.
fn written(argument: &Arg) -> String {
    let values: Vec<String> = argument
        .get_value_names()
        .unwrap_or_default()
        .iter()
        .filter(|_| argument.get_action().takes_values())
        .map(|name| format!("<{name}>"))
        .collect();
    let values = values.join(" ");
    match (argument.get_short(), argument.get_long()) {
        (Some(short), Some(long)) if values.is_empty() => format!("-{short}, --{long}"),
        (Some(short), Some(long)) => format!("-{short}, --{long} {values}"),
        (None, Some(long)) if values.is_empty() => format!("--{long}"),
        (None, Some(long)) => format!("--{long} {values}"),
        _ if argument.is_required_set() => values,
        _ => format!("[{}]", values.trim_start_matches('<').trim_end_matches('>')),
    }
}

/// One line without what Markdown would take for marks.
fn plain(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut code = false;
    let escaped = line.chars().map(|letter| {
        code ^= letter == '`';
        match letter {
            '<' if !code => "&lt;".to_owned(),
            '*' | '[' if !code => format!("\\{letter}"),
            _ => letter.to_string(),
        }
    });
    escaped.collect()
}

/// The paragraphs of a text in lines of the documents' width.
fn in_lines(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| folded(&plain(paragraph), ""));
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

/// Columns of characters of a line of the documents.
const LINE: usize = 106;

/// Words in lines of at most [`LINE`] columns of characters; all lines but the first begin with `indent`.
fn folded(text: &str, indent: &str) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > LINE {
            let _ = write!(lines, "\n{indent}");
            width = indent.len();
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_told_with_its_values_and_its_default() {
        let option = Arg::new("form")
            .long("form")
            .value_name("FORM")
            .help("How <it> is written")
            .value_parser(["a", "b"])
            .default_value("a");
        let command = Command::new("tell").arg(option);
        let argument = command.get_arguments().next().unwrap();
        assert_eq!(
            entry(argument),
            "- `--form <FORM>`: How &lt;it> is written. One of `a`, `b`. Default: `a`\n"
        );
    }

    #[test]
    fn a_flag_has_no_value_and_what_may_be_left_out_stands_in_brackets() {
        let flag = Arg::new("yes")
            .long("yes")
            .action(ArgAction::SetTrue)
            .help("Ask nothing");
        let study = Arg::new("study").value_name("STUDY").help("Name of the study");
        let command = Command::new("tell").arg(flag).arg(study);
        let entries: Vec<String> = command.get_arguments().map(entry).collect();
        assert_eq!(
            entries,
            ["- `--yes`: Ask nothing\n", "- `[STUDY]`: Name of the study\n"]
        );
    }

    #[test]
    fn lines_keep_to_their_width() {
        let text = folded(&"word ".repeat(60), "  ");
        assert!(text.lines().all(|line| line.chars().count() <= LINE));
        assert!(text.lines().skip(1).all(|line| line.starts_with("  word")));
    }
}
