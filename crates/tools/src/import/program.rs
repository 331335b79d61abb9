//! [`Program`]: what a command starts, behind what launches it.

use std::path::Path;

use super::command_options::name_of;

/// Programs whose first word says what they are to do.
const TOOLS: [&str; 4] = ["trl", "llamafactory-cli", "axolotl", "tune"];

/// Packages whose modules under `cli` are what their command is told to do.
const PACKAGES: [&str; 1] = ["swift"];

/// Programs whose options may name scripts, none of which they start.
const NO_LAUNCHERS: [&str; 2] = ["swift", "megatron"];

/// Beginnings of modules that start a script.
const LAUNCHERS: [&str; 3] = ["torch.", "accelerate.", "deepspeed."];

/// What a command starts.
pub(super) struct Program {
    /// Number of words in front of it.
    pub at: usize,
    /// The program and what it is told to do: `trl dpo`; of a script or a module its name.
    pub names: Vec<String>,
}

impl Program {
    /// The program of a command; `None` where that is neither a tool, a script nor a module.
    pub(super) fn of(words: &[String]) -> Option<Self> {
        let first_option = words.iter().position(|word| name_of(word).is_some());
        let first_option = first_option.unwrap_or(words.len());
        let launches = !words[..first_option]
            .iter()
            .any(|word| NO_LAUNCHERS.contains(&file_name(word)));
        // The value of an option may have the name of a tool.
        let is_told = |at: usize| {
            let next = words.get(at + 1);
            next.is_some_and(|next| next.starts_with(char::is_alphabetic) && !next.ends_with(".py"))
        };
        let mut tools = words.iter().enumerate();
        let tool = tools
            .position(|(at, word)| TOOLS.contains(&file_name(word)) && (at < first_option || launches && is_told(at)));
        let mut scripts = words.iter().enumerate();
        let script = scripts.position(|(at, word)| word.ends_with(".py") && (at < first_option || launches));
        if let Some(at) = tool.filter(|tool| script.is_none_or(|script| *tool < script)) {
            let told = words[at..].iter().take(2).take_while(|word| name_of(word).is_none());
            let names = told.map(|word| file_name(word).to_owned()).collect();
            return Some(Self { at, names });
        }
        let module = words.iter().rposition(|word| word == "-m").map(|at| at + 1);
        let is_launcher = |at: usize| {
            let name = words.get(at);
            name.is_some_and(|name| LAUNCHERS.iter().any(|start| name.starts_with(start)))
        };
        let at = match (script, module) {
            (Some(script), Some(module)) if module < script && !is_launcher(module) => module,
            (script, module) => script.or(module)?,
        };
        let names = words.get(at).map(|word| script_names(word)).unwrap_or_default();
        Some(Self { at, names })
    }
}

/// The last part of a path.
pub(super) fn file_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// The name of a script or a module, behind its package where that has it as a command: `swift.cli.sft` is `swift sft`.
fn script_names(word: &str) -> Vec<String> {
    let mut folders = word.split(['/', '.']).skip_while(|part| !PACKAGES.contains(part));
    let package = folders.next().filter(|_| folders.next() == Some("cli"));
    let names = package.into_iter().chain([script_name(word)]);
    names.map(str::to_owned).collect()
}

/// The name of a script without its ending, or of a module without the package that it lies in.
fn script_name(word: &str) -> &str {
    let name = Path::new(word)
        .file_stem()
        .and_then(|name| name.to_str())
        .unwrap_or(word);
    match word.ends_with(".py") {
        true => name,
        false => word.rsplit('.').next().unwrap_or(word),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_told_from_the_values_of_options() {
        for (line, names) in [
            (
                "accelerate launch --config_file z.yaml train.py --hub_model_id me/trl --lora_r 8",
                "train",
            ),
            ("python train.py --project org/axolotl --lora_r 8", "train"),
            ("uv run --with trl train.py --lora_r 8", "train"),
            ("hf jobs uv run --with trl --secrets TOKEN train.py --lora_r 8", "train"),
            ("srun --nodes 2 trl sft --lora_r 8", "trl sft"),
            ("python -m poems.train --callbacks own.py --lora_r 8", "train"),
            (
                "python -m torch.distributed.launch --nproc_per_node 2 rhyme.py --lora_r 8",
                "rhyme",
            ),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let program = Program::of(&words).unwrap();
            assert_eq!(program.names.join(" "), names, "{line}");
        }
        let words = ["megatron", "rlhf", "--external_plugins", "plugin.py"].map(str::to_owned);
        assert!(Program::of(&words).is_none());
    }
}
