//! What `--help` says beside the options: the commands in groups, and examples of each.

use std::fmt::Write;

use clap::Command;

use crate::cli::terminal::line_breaks::in_lines;
use crate::cli::terminal::output::terminal_width;

/// Commands by what they are for. Those that are missing here are hidden.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Find settings", &["quickstart", "init", "rows", "plan", "search"]),
    (
        "A search that runs",
        &["status", "attach", "stop", "dashboard", "track"],
    ),
    (
        "Look at results and use them",
        &["show", "pareto", "explain", "compare", "report", "query", "export"],
    ),
    (
        "Train and look at one setting",
        &[
            "train",
            "profile",
            "tune-step",
            "check",
            "watch",
            "infer-bench",
            "merge",
            "generate",
            "adopt",
        ],
    ),
    ("Keep results", &["studies", "import", "delete", "vacuum"]),
    (
        "This machine and its tools",
        &["doctor", "schema", "completions", "man", "mcp"],
    ),
];

/// Examples of each command: command lines that the program takes.
const EXAMPLES: [(&str, &[&str]); 35] = [
    (
        "quickstart",
        &["peft-tune quickstart", "peft-tune quickstart --output try"],
    ),
    (
        "init",
        &[
            "peft-tune init",
            "peft-tune init --model Qwen/Qwen2.5-0.5B --data train.jsonl --memory 16GiB",
            "peft-tune init --from axolotl.yaml --yes",
        ],
    ),
    (
        "rows",
        &[
            "peft-tune rows space.yaml",
            "peft-tune rows recipe.yaml --longest --tokens",
            "peft-tune rows space.yaml --without-targets",
            "peft-tune rows space.yaml --random --count 20 --html rows.html",
        ],
    ),
    (
        "plan",
        &[
            "peft-tune plan space.yaml",
            "peft-tune plan space.yaml --stack trl --device \"A100 40GB\"",
            "peft-tune plan --check axolotl.yaml --device L4",
            "peft-tune plan space.yaml --gpus --price \"L4=0.70/h\"",
            "peft-tune plan --step recipe.yaml --device \"H100 SXM\"",
        ],
    ),
    (
        "search",
        &[
            "peft-tune search space.yaml",
            "peft-tune search space.yaml --trials 20",
            "peft-tune search space.yaml --price 2.49/h --budget 5",
            "peft-tune search space.yaml --dry-run",
            "peft-tune search space.yaml --detach",
            "peft-tune search space.yaml --track tensorboard=runs",
        ],
    ),
    ("status", &["peft-tune status", "peft-tune status my-study --json"]),
    ("attach", &["peft-tune attach", "peft-tune attach my-study"]),
    ("stop", &["peft-tune stop", "peft-tune stop my-study"]),
    ("dashboard", &["peft-tune dashboard", "peft-tune dashboard my-study"]),
    (
        "track",
        &[
            "peft-tune track --to tensorboard=runs",
            "peft-tune track my-study --to mlflow=http://127.0.0.1:5000 --to optuna=optuna.db",
        ],
    ),
    ("show", &["peft-tune show", "peft-tune show my-study"]),
    (
        "pareto",
        &["peft-tune pareto", "peft-tune pareto --plot=throughput,loss"],
    ),
    ("explain", &["peft-tune explain", "peft-tune explain my-study"]),
    (
        "compare",
        &[
            "peft-tune compare 12 40",
            "peft-tune compare first-study/12 second-study/7",
        ],
    ),
    ("report", &["peft-tune report", "peft-tune report my-study"]),
    (
        "query",
        &["peft-tune query \"select trial, throughput, loss from trial_summary order by loss limit 5\""],
    ),
    (
        "export",
        &[
            "peft-tune export --format trl --output trl",
            "peft-tune export --format peft --trial 7 --output adapter",
            "peft-tune export --format recipe --max-memory 16GiB --output recipe",
            "peft-tune export --format trl --output trl --check --python .venv/bin/python",
            "peft-tune export --format trl --output trl --receipt --python .venv/bin/python",
        ],
    ),
    (
        "train",
        &[
            "peft-tune train recipe.yaml --output adapter",
            "peft-tune train recipe.yaml --output adapter --resume",
        ],
    ),
    (
        "profile",
        &[
            "peft-tune profile recipe.yaml",
            "peft-tune profile recipe.yaml --verify",
            "peft-tune profile --study my-study --trial 12",
        ],
    ),
    (
        "tune-step",
        &[
            "peft-tune tune-step recipe.yaml",
            "peft-tune tune-step recipe.yaml --allow packing,precision --time 10m",
            "peft-tune tune-step --trial 12 --output recipe.yaml",
        ],
    ),
    (
        "check",
        &[
            "peft-tune check",
            "peft-tune check recipe.yaml",
            "peft-tune check recipe.yaml --backend trl --python .venv/bin/python --steps 20",
        ],
    ),
    (
        "watch",
        &[
            "peft-tune watch -- axolotl train axolotl.yaml",
            "peft-tune watch --device \"A100 80GB\" -- accelerate launch --num_processes 2 train.py",
            "peft-tune watch --report new.json --against old.json -- trl sft --config sft.yaml",
        ],
    ),
    (
        "infer-bench",
        &[
            "peft-tune infer-bench --adapter adapter",
            "peft-tune infer-bench --model base --ranks 8,64 --batch-sizes 1,4,16",
            "peft-tune infer-bench --url http://127.0.0.1:8000 --model base --adapter tuned --prompts prompts.txt",
        ],
    ),
    ("merge", &["peft-tune merge --adapter adapter --output merged"]),
    (
        "generate",
        &["peft-tune generate --adapter adapter --chat \"Who was Ada?\""],
    ),
    (
        "adopt",
        &["peft-tune adopt house-model --as-family llama --output house-model-as-llama"],
    ),
    ("studies", &["peft-tune studies", "peft-tune studies --db other.db"]),
    ("import", &["peft-tune import other.db"]),
    ("delete", &["peft-tune delete my-study"]),
    ("vacuum", &["peft-tune vacuum"]),
    (
        "doctor",
        &[
            "peft-tune doctor",
            "peft-tune doctor --json",
            "peft-tune doctor --report",
        ],
    ),
    (
        "mcp",
        &[
            "peft-tune mcp --root runs",
            "peft-tune mcp --root runs --also-read models",
        ],
    ),
    ("schema", &["peft-tune schema space > space.schema.json"]),
    (
        "completions",
        &["peft-tune completions bash > ~/.local/share/bash-completion/completions/peft-tune"],
    ),
    ("man", &["peft-tune man ~/.local/share/man/man1"]),
];

/// The groups, each with its name and its commands.
pub(super) fn groups() -> &'static [(&'static str, &'static [&'static str])] {
    &GROUPS
}

/// The examples of one command.
pub(super) fn examples_of(command: &str) -> &'static [&'static str] {
    EXAMPLES
        .iter()
        .find(|(name, _)| *name == command)
        .map_or(&[], |(_, lines)| lines)
}

/// The program's command line with its commands in groups, and an example or more of each.
pub(in crate::cli) fn arranged(mut command: Command) -> Command {
    let template = template(&command, terminal_width().unwrap_or(100));
    for (name, lines) in EXAMPLES {
        let header = *command.get_styles().get_header();
        let examples: Vec<String> = lines.iter().map(|line| format!("  {line}")).collect();
        let text = format!("{header}Examples:{header:#}\n{}", examples.join("\n"));
        command = command.mut_subcommand(name, |one| one.after_help(text));
    }
    command.help_template(template)
}

/// The help of the whole program in `width` columns of characters.
fn template(command: &Command, width: usize) -> String {
    let (header, literal) = (command.get_styles().get_header(), command.get_styles().get_literal());
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (group, names) in GROUPS {
        let _ = write!(text, "\n{header}{group}:{header:#}\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let lines = in_lines(&about, width.saturating_sub(INDENT).max(20));
            let _ = writeln!(
                text,
                "  {literal}{name:NAME$}{literal:#}  {}",
                lines.join(&format!("\n{:INDENT$}", ""))
            );
        }
    }
    let _ = write!(text, "\n{header}Options:{header:#}\n{{options}}");
    text
}

/// Columns of characters of the longest name of a command.
const NAME: usize = 11;

/// Column at which the description of a command begins.
const INDENT: usize = NAME + 4;

#[cfg(test)]
pub(in crate::cli) mod tests {
    use super::*;

    /// Every command line that is an example.
    pub(in crate::cli) fn examples() -> impl Iterator<Item = &'static str> {
        EXAMPLES.iter().flat_map(|(_, lines)| lines.iter().copied())
    }

    /// Commands of the groups, in their order.
    pub(in crate::cli) fn grouped() -> Vec<&'static str> {
        GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect()
    }
}
