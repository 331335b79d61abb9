//! Commands of a shell that start a training: what they start, and its options.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::command_options::{name_of, options_of};
use super::one_line::on_one_line;
use super::program::{Program, file_name};
use super::shell::{Beside, Command, ShellScript, Word};
use super::unsaid::{Unsaid, set_elsewhere, unread_words};
use crate::known_keys::is_off;

/// Options of launchers that say how many devices there are.
const COUNTS: [&str; 3] = ["num_processes", "nproc_per_node", "num_gpus"];

/// Options of launchers by which devices share work or weights out.
const SHARES: [&str; 3] = ["config_file", "use_deepspeed", "use_fsdp"];

/// A command with options.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CommandLine {
    /// Program without what launches it, and what it is told to do: `trl dpo`; of a script or a module its name, as in `train`.
    pub started: Vec<String>,
    /// Options of the program, by name; those of a launcher are left out.
    pub options: Map<String, Value>,
    /// File that the program reads its settings from.
    pub config: Option<String>,
    /// Keys whose values have expansions in them that the script does not say.
    pub unsaid: Unsaid,
    /// Lines on options of the launcher that change memory and speed and on words that the script does not say, with what to do.
    pub notes: Vec<String>,
}

impl CommandLine {
    /// The commands of a shell script, as far as they have options or a file of them. Files beside it are followed where it runs them.
    pub(crate) fn all(text: &str, beside: Beside<'_>) -> Vec<Self> {
        let script = ShellScript::of(text, beside);
        let commands = script.commands.iter();
        commands.filter_map(|command| Self::of(&script, command)).collect()
    }

    /// The command that a file's heading says it is started by.
    pub(crate) fn in_comments(text: &str) -> Option<Self> {
        let comments = text.lines().filter_map(|line| line.trim_start().strip_prefix('#'));
        let mut commands = comments.flat_map(|text| Self::all(text, &|_| None));
        commands.find(|command| command.options.contains_key("config"))
    }

    fn of(script: &ShellScript, command: &Command) -> Option<Self> {
        let Words {
            words,
            lacking,
            unread,
            notes,
        } = Words::of(script, command);
        let program = Program::of(&words);
        let at = program.as_ref().map_or(0, |program| program.at);
        let own = words.get(at..).unwrap_or_default();
        let options = options_of(own);
        let config = program.as_ref().and_then(|_| config_of(own, &options));
        let of_launcher = notes_of(words.get(..at).unwrap_or_default());
        let names = || words.iter().take_while(|word| name_of(word).is_none()).cloned();
        let started = program.map_or_else(|| names().collect(), |program| program.names);
        (!options.is_empty() || config.is_some()).then(|| Self {
            started,
            unsaid: Unsaid {
                keys: unsaid(words.iter().zip(lacking).skip(at)),
                unread,
            },
            options,
            config,
            notes: [of_launcher, notes].concat(),
        })
    }
}

/// Words of a command, without those that may be any number of options.
struct Words {
    words: Vec<String>,
    /// Variables of each word that the script assigns nowhere; `None` where it says all of the word.
    lacking: Vec<Option<BTreeSet<String>>>,
    /// What may set such variables and is not followed.
    unread: String,
    /// Lines on what is read of them and what is not.
    notes: Vec<String>,
}

impl Words {
    fn of(script: &ShellScript, command: &Command) -> Self {
        let mut words: Vec<String> = Vec::new();
        let mut lacking = Vec::new();
        let (mut left_out, mut lacking_out) = (BTreeSet::new(), BTreeSet::new());
        let lacking_of = |word: &Word| -> BTreeSet<String> { script.lacking(word).map(str::to_owned).collect() };
        for word in &command.words {
            let last = words.last().and_then(|last| name_of(last));
            let is_value = last.is_some_and(|(_, own)| own.is_none());
            // What the script does not say behind a value, or without an option, may say options.
            if word.is_unsaid_list() || word.is_unsaid() && !is_value && !words.is_empty() {
                left_out.insert(on_one_line(&word.text()));
                lacking_out.extend(lacking_of(word));
                continue;
            }
            words.push(word.text());
            lacking.push((!word.is_said()).then(|| lacking_of(word)));
        }
        let defaults = command.words.iter().flat_map(Word::defaults);
        let defaults: BTreeSet<String> = defaults.map(on_one_line).collect();
        let unread = match lacking_out.is_empty() && lacking.iter().flatten().all(BTreeSet::is_empty) {
            true => String::new(),
            false => unread_words(script.unread_before(command)),
        };
        let of_left_out = told(
            left_out,
            "what stands there is not known and not read; write it in its place",
        );
        let of_left_out = of_left_out.map(|line| match set_elsewhere(&lacking_out, &unread) {
            Some(elsewhere) => format!("{line}; {elsewhere}"),
            None => line,
        });
        let of_defaults = told(
            defaults,
            "what the script takes there where it is given nothing else is read",
        );
        Self {
            words,
            lacking,
            unread,
            notes: of_left_out.into_iter().chain(of_defaults).collect(),
        }
    }
}

/// A line on expansions; `None` where there are none.
fn told(expansions: BTreeSet<String>, what: &str) -> Option<String> {
    let all: Vec<String> = expansions.into_iter().collect();
    (!all.is_empty()).then(|| format!("`{}`: {what}", all.join("`, `")))
}

/// Keys of options whose words the script does not say in whole, with the variables that it assigns nowhere.
fn unsaid<'w>(
    words: impl Iterator<Item = (&'w String, Option<BTreeSet<String>>)>,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut keys: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut key = None;
    for (word, lacking) in words {
        key = name_of(word).map(|(name, _)| name.replace('-', "_")).or(key);
        if let (Some(key), Some(lacking)) = (&key, lacking) {
            keys.entry(key.clone()).or_default().extend(lacking);
        }
    }
    keys
}

/// What a launcher says of devices, by its words.
fn notes_of(words: &[String]) -> Vec<String> {
    let options = options_of(words);
    let names = words.iter().take_while(|word| name_of(word).is_none());
    let names: Vec<&str> = names
        .filter(|word| !word.contains('='))
        .map(|word| file_name(word))
        .collect();
    let launcher = names.join(" ");
    let said = |name: &str| {
        let value = options.get(name).filter(|value| !is_off(value))?;
        // Behind the last option stands the word by which a module is started.
        let value = value.as_str().map(|words| words.split(',').next().unwrap_or_default());
        (value != Some("1")).then(|| match value {
            Some(value) => format!("`{launcher} --{name} {value}`"),
            None => format!("`{launcher} --{name}`"),
        })
    };
    let counts = COUNTS.iter().filter_map(|name| said(name)).map(|words| {
        format!(
            "{words}: so many devices share the work there; say so with `devices`, or `--devices` of `plan --check`"
        )
    });
    let shares = SHARES.iter().filter_map(|name| said(name)).map(|words| {
        format!("{words}: devices share work or weights out by it there; say so with `--sharing` of `plan --check`")
    });
    counts.chain(shares).collect()
}

/// The file of settings that stands behind a program or under its option `config`.
fn config_of(words: &[String], options: &Map<String, Value>) -> Option<String> {
    let is_file = |name: &&str| name.ends_with(".yaml") || name.ends_with(".yml");
    let named = options.get("config").and_then(Value::as_str);
    // Settings stand behind the name for torchtune, whose configs have names of their own.
    let named = named.and_then(|names| names.split(',').next());
    let is_of_torchtune = words.first().is_some_and(|word| file_name(word) == "tune");
    let named = named.filter(|name| is_of_torchtune || is_file(name) || name.contains('$'));
    let told = words.iter().skip(1).take_while(|word| name_of(word).is_none());
    let mut told = told.map(String::as_str);
    named.or_else(|| told.find(is_file)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn variables_of_the_script_are_their_values() {
        let text = "LR=1e-4\nBATCH=${1:-8}\nexport NAME=\"it's me\"\nARGS=(--lora_r 16 --bf16)\nMORE=\"--packing --seed 3\"\n\
                    trl sft --learning_rate $LR --per_device_train_batch_size ${BATCH} --run_name \"$NAME\" \\\n  \
                    \"${ARGS[@]}\" $MORE --max_length $((BATCH * 64)) \"$@\"\n";
        let line = one(text);
        let expected = json!({
            "learning_rate": "1e-4", "per_device_train_batch_size": "8", "run_name": "it's me", "lora_r": "16", "bf16": true,
            "packing": true, "seed": "3", "max_length": "512",
        });
        assert_eq!(Value::Object(line.options), expected);
        assert!(line.unsaid.keys.is_empty(), "{:?}", line.unsaid);
        assert_eq!(line.notes.len(), 2, "{:?}", line.notes);
        assert!(
            line.notes[0].starts_with("`$@`: what stands there is not known"),
            "{:?}",
            line.notes
        );
        assert!(
            line.notes[1].starts_with("`$((BATCH * 64))`, `${1:-8}`: what the script takes"),
            "{:?}",
            line.notes
        );
    }

    #[test]
    fn what_the_script_does_not_say_is_told_by_key() {
        let text = "OUT=$HOME/out\nfor LR in 1e-4 2e-4; do\n  $PYTHON train.py --learning-rate $LR --output_dir $OUT \\\n    \
                    --lora_r 8 $MORE --seed=$1 \"$@\" --beta 0.1\ndone\n";
        let line = one(text);
        let expected = json!({
            "learning_rate": "$LR", "output_dir": "$HOME/out", "lora_r": "8", "seed": "$1", "beta": "0.1",
        });
        assert_eq!(Value::Object(line.options), expected);
        let unsaid: Vec<&str> = line.unsaid.keys.keys().map(String::as_str).collect();
        assert_eq!(unsaid, ["learning_rate", "output_dir", "seed"]);
        assert_eq!(line.notes.len(), 1, "{:?}", line.notes);
        assert!(line.notes[0].starts_with("`$@`, `$MORE`: "), "{:?}", line.notes);
        let file = one("trl sft --config $CONFIG --learning_rate 1e-4");
        assert_eq!(file.config.as_deref(), Some("$CONFIG"));
    }

    #[test]
    fn what_is_not_followed_is_told_where_a_variable_is_not_known() {
        let text =
            "source ~/.bashrc\ntrl sft --lora_r $RANK --dtype bfloat16 $MORE --seed $1 \"${ARGS[@]}\"\neval $LATE\n";
        let line = one(text);
        assert_eq!(line.unsaid.unread, "`source ~/.bashrc` (line 1)");
        let lacking: Vec<(&str, usize)> = line
            .unsaid
            .keys
            .iter()
            .map(|(key, names)| (key.as_str(), names.len()))
            .collect();
        assert_eq!(lacking, [("lora_r", 1), ("seed", 0)]);
        let told = "`$MORE`, `${ARGS[@]}`: what stands there is not known and not read; write it in its place; `$ARGS`, `$MORE` may be \
                    set by `source ~/.bashrc` (line 1), which is not read here";
        assert_eq!(line.notes, [told]);
        let known = one("source ~/.bashrc\nRANK=8\ntrl sft --lora_r $RANK --seed $1");
        assert_eq!(known.unsaid.unread, "");
        assert_eq!(known.notes, [""; 0]);
    }

    #[test]
    fn a_file_beside_the_script_says_variables() {
        let beside = |path: &str| (path == "env.sh").then(|| "RANK=8\nexport MORE=\"--packing\"\n".to_owned());
        let all = CommandLine::all("source env.sh\ntrl sft --lora_r $RANK $MORE\n", &beside);
        let options = all[0].options.clone();
        assert_eq!(Value::Object(options), json!({"lora_r": "8", "packing": true}));
        assert!(all[0].notes.is_empty(), "{:?}", all[0].notes);
    }

    /// The commands of a script that no file lies beside.
    fn all(text: &str) -> Vec<CommandLine> {
        CommandLine::all(text, &|_| None)
    }

    fn one(text: &str) -> CommandLine {
        let all = all(text);
        assert_eq!(all.len(), 1, "{text}: {all:?}");
        all.into_iter().next().unwrap()
    }

    #[test]
    fn commands_are_split_as_a_shell_splits_them() {
        let text = "#!/bin/bash\nset -e   # --no option\nexport A=1\naccelerate launch --num_processes 2 \\\n  train.py \\\n  --lora_r 8 \\\n  \
                    --name \"it's # one\" --kwargs '{\"min_lr_rate\": 0.2}' --flag   # two: rows\necho done --quietly\n";
        let all = all(text);
        let started: Vec<String> = all.iter().map(|command| command.started.join(" ")).collect();
        assert_eq!(started, ["train", "echo done"]);
        let options = &all[0].options;
        assert_eq!(options["lora_r"], "8");
        assert_eq!(options["name"], "it's # one");
        assert_eq!(options["kwargs"], json!({"min_lr_rate": 0.2}));
        assert_eq!(options["flag"], true);
        assert!(!options.contains_key("num_processes"), "{options:?}");
    }

    #[test]
    fn what_a_tool_is_told_to_do_is_a_part_of_what_is_started() {
        for (text, started) in [
            ("trl dpo --beta 0.1", "trl dpo"),
            ("CUDA_VISIBLE_DEVICES=0 .venv/bin/trl sft --lora_r 4", "trl sft"),
            ("trl --lora_r 4", "trl"),
            ("python examples/scripts/orpo.py --beta 1", "orpo"),
            ("torchrun --nproc_per_node 2 -m trl.scripts.kto --beta 1", "kto"),
            ("python -m swift.cli.sft --lora_rank 8", "swift sft"),
            (
                "torchrun --nproc_per_node 2 ms/swift/cli/_megatron/pt.py --lora_rank 8",
                "swift pt",
            ),
            ("python swift/train.py --lora_rank 8", "train"),
            ("--lora_r 4", ""),
            (
                "swift sft --model m --external_plugins plugin.py --lora_rank 8",
                "swift sft",
            ),
        ] {
            assert_eq!(one(text).started.join(" "), started, "{text}");
        }
        let heading = "# trl dpo --config trl_dpo.yaml\n# written by hand\nbeta: 0.1\n";
        let heading = CommandLine::in_comments(heading).unwrap();
        assert_eq!(heading.started, ["trl", "dpo"]);
        assert_eq!(CommandLine::in_comments("# about --beta\nbeta: 0.1\n"), None);
    }

    #[test]
    fn lists_are_texts_with_commas_and_signs_of_the_shell_end_a_command() {
        let line = one("x --a q_proj v_proj --b [q_proj, v_proj] --c=1 --d -1 2>&1 | tee log.txt");
        let values = ["a", "b", "c", "d"].map(|key| line.options[key].clone());
        assert_eq!(json!(values), json!(["q_proj,v_proj", "q_proj,v_proj", "1", "-1"]));
        let lines = one("x --a 1\n  --b $(date +%s | cut -c 1-2) && echo done");
        assert_eq!(
            (&lines.options["a"], &lines.options["b"]),
            (&json!("1"), &json!("$(date +%s | cut -c 1-2)"))
        );
        assert_eq!(all("lora_r: 8\nnot: --an option\n").len(), 1);
        assert_eq!(all("just words\n---\n-x\n"), []);
    }

    #[test]
    fn options_are_called_with_dashes_too_and_turned_off_by_no() {
        let line = one("trl sft --learning-rate 7e-4 --use-peft --no-packing --no_shuffle --no_cuda --no_name 8");
        let expected = json!({
            "learning_rate": "7e-4", "use_peft": true, "packing": false, "shuffle": false, "no_cuda": true, "no_name": "8",
        });
        assert_eq!(Value::Object(line.options), expected);
    }

    #[test]
    fn what_a_launcher_says_of_devices_is_noted() {
        let cases: [(&str, &[&str]); 6] = [
            (
                "CUDA_HOME=/usr accelerate launch --num_processes 8 --config_file z3.yaml sft.py --lora_r 8",
                &[
                    "`accelerate launch --num_processes 8`: so many",
                    "`accelerate launch --config_file z3.yaml`: devices",
                ],
            ),
            (
                "torchrun --nproc-per-node=4 -m trl.scripts.sft --lora_r 8",
                &["`torchrun --nproc_per_node 4`"],
            ),
            ("torchrun --nproc_per_node 1 sft.py --lora_r 8", &[]),
            (
                "deepspeed --num_gpus 2 train.py --lora_r 8",
                &["`deepspeed --num_gpus 2`"],
            ),
            (
                "accelerate launch --use_fsdp trl sft --lora_r 8",
                &["`accelerate launch --use_fsdp`"],
            ),
            ("trl sft --num_processes 2 --lora_r 8", &[]),
        ];
        for (text, parts) in cases {
            let notes = one(text).notes;
            assert_eq!(notes.len(), parts.len(), "{text}: {notes:?}");
            for (note, part) in notes.iter().zip(parts) {
                assert!(note.starts_with(*part), "{text}: {note}");
            }
        }
    }

    #[test]
    fn files_that_commands_name_are_those_of_settings() {
        for (text, config) in [
            ("axolotl train config.yml", Some("config.yml")),
            ("axolotl train config.yml --learning-rate 1e-4", Some("config.yml")),
            ("accelerate launch -m axolotl.cli.train poems.yaml", Some("poems.yaml")),
            ("trl sft --config=sft.yaml --learning_rate 1e-4", Some("sft.yaml")),
            (
                "tune run lora --config llama3_1/8B_lora batch_size=4",
                Some("llama3_1/8B_lora"),
            ),
            ("accelerate launch --config_file z3.yaml sft.py --lora_r 8", None),
            ("trl sft --lora_r 8", None),
        ] {
            assert_eq!(one(text).config.as_deref(), config, "{text}");
        }
        assert_eq!(all("see config.yml"), []);
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(text in "[-# \\\\\n\"'$(){}@`|&;<>=+a-c.é]{0,60}") {
            all(&text);
            CommandLine::in_comments(&text);
        }

        #[test]
        fn what_is_written_is_read_back(options in proptest::collection::btree_map("[a-z_]{1,8}", "[a-z0-9. ]{1,8}", 1..6)) {
            let written: String = options.iter().map(|(name, value)| format!(" \\\n  --{name} '{value}'")).collect();
            let read = one(&format!("trl sft{written}\n"));
            for (name, value) in &options {
                prop_assert_eq!(&read.options[name], &Value::from(value.as_str()));
            }
        }
    }
}
