//! [`read_setting`]: a settings file of any of the tools, as what it would need there.

use std::path::Path;

use serde_json::{Map, Value};

use super::setting::HARMLESS;
use super::{FileKind, Keys, StackFileError, script};
use crate::tools::Tool;
use peft_tune_core::predict::stack::StackSetting;

/// What a file says.
#[derive(Clone, Debug, PartialEq)]
pub struct StackConfig {
    pub setting: StackSetting,
    /// The model as the file names it.
    pub model: Option<String>,
    /// Keys that say nothing here, because this version does not know them.
    pub unread: Vec<String>,
    /// What had to be assumed, in words.
    pub notes: Vec<String>,
}

/// A file that is larger is none that a person wrote.
const LARGEST: u64 = 4 << 20;

/// Reads the settings of `asked`, or of the tool that the file's keys tell.
///
/// # Errors
/// A file that cannot be read, whose tool is not clear, or with a value that the tool would not take.
pub fn read_setting(path: &Path, asked: Option<Tool>) -> Result<StackConfig, StackFileError> {
    parse_setting(path, &text_of(path)?, asked)
}

/// The text of a settings file.
pub(in crate::tools) fn text_of(path: &Path) -> Result<String, StackFileError> {
    let failed = |source| StackFileError::Read {
        path: path.to_owned(),
        source,
    };
    if std::fs::metadata(path).map_err(failed)?.len() > LARGEST {
        return Err(StackFileError::TooLarge { path: path.to_owned() });
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a file's text; `path` says what kind of file it is, and stands in messages.
///
/// # Errors
/// Errors of [`read_setting`] that are about what the file says.
pub fn parse_setting(path: &Path, text: &str, asked: Option<Tool>) -> Result<StackConfig, StackFileError> {
    let values = parsed(path, text)?;
    let keys = Keys::new(path, &values);
    let tool = tool_of(&keys, text, asked)?;
    let mut config = (words_of(tool, &keys).import().setting)(tool, &keys)?;
    config.unread = keys.unread(HARMLESS);
    Ok(config)
}

/// The tool that trains from a file: what its keys tell, or the one that is asked for.
pub(in crate::tools) fn tool_of(keys: &Keys<'_>, text: &str, asked: Option<Tool>) -> Result<Tool, StackFileError> {
    let asked = asked.or_else(|| script_of(keys.path(), text));
    told_by(keys).map_or_else(
        || {
            asked.ok_or_else(|| StackFileError::UnknownTool {
                path: keys.path().to_owned(),
                known: titles_of_trainings(),
            })
        },
        |tool| Ok(asked_for(asked, tool)),
    )
}

/// The tool whose words a file has: an adapter's are those of the adapter's tool, whichever is to train it.
pub(in crate::tools) fn words_of(tool: Tool, keys: &Keys<'_>) -> Tool {
    let is_of = |one: &Tool| one.import().file == FileKind::Adapter && (one.import().has_own_keys)(keys);
    Tool::ALL.iter().copied().find(is_of).unwrap_or(tool)
}

/// The tools whose files say all of a training, as a sentence has them.
fn titles_of_trainings() -> String {
    let trainings = Tool::ALL.iter().filter(|tool| tool.import().file == FileKind::Training);
    let titles: Vec<&str> = trainings.map(|tool| tool.title()).collect();
    match titles.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => titles.concat(),
    }
}

/// Whether a file is a Python program.
pub(in crate::tools) fn is_script(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "py")
}

/// The tool whose scripts have a word that stands in this one.
fn script_of(path: &Path, text: &str) -> Option<Tool> {
    let is_its = |tool: &Tool| matches!(tool.import().file, FileKind::Script(word) if text.contains(word));
    Tool::ALL.iter().copied().find(|tool| is_script(path) && is_its(tool))
}

/// An adapter's config serves every tool that is built on PEFT; other files are their tool's.
fn asked_for(asked: Option<Tool>, found: ToldBy) -> Tool {
    let is_script = |tool: &Tool| matches!(tool.import().file, FileKind::Script(_));
    match (asked, found) {
        (Some(asked), ToldBy::OwnKeys(found)) if found.import().file == FileKind::Adapter => asked,
        // Programs with the same trainer.
        (Some(asked), ToldBy::SharedKeys(_)) if is_script(&asked) => asked,
        (_, ToldBy::OwnKeys(found) | ToldBy::SharedKeys(found)) => found,
    }
}

/// The keys of a file's text.
pub(in crate::tools) fn parsed(path: &Path, text: &str) -> Result<Map<String, Value>, StackFileError> {
    let syntax = |message: String| StackFileError::Syntax {
        path: path.to_owned(),
        message,
    };
    if is_script(path) {
        return Ok(script::python(text));
    }
    let read = match serde_json::from_str(text) {
        Ok(value) => Ok(value),
        Err(_) => serde_saphyr::from_str::<Value>(text).map_err(|error| error.to_string()),
    };
    match read {
        Ok(Value::Object(values)) => Ok(values),
        other => {
            let arguments = script::arguments(text);
            match (arguments.is_empty(), other) {
                (false, _) => Ok(arguments),
                (true, Ok(_)) => Err(syntax("it holds no keys".into())),
                (true, Err(message)) => Err(syntax(message)),
            }
        }
    }
}

/// A tool, and which of its keys a file has.
#[derive(Clone, Copy)]
enum ToldBy {
    OwnKeys(Tool),
    SharedKeys(Tool),
}

/// The tool that a key belongs to and no other has, or the one that has keys which are no other's own.
fn told_by(keys: &Keys<'_>) -> Option<ToldBy> {
    let mut all = Tool::ALL.iter().copied();
    let own = all.find(|tool| (tool.import().has_own_keys)(keys));
    own.map(ToldBy::OwnKeys).or_else(|| {
        let mut all = Tool::ALL.iter().copied();
        all.find(|tool| (tool.import().has_shared_keys)(keys))
            .map(ToldBy::SharedKeys)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::predict::stack::{AttentionForm, LossForm, Number, Recompute, Trains, WeightForm};

    fn of(text: &str) -> Result<StackConfig, StackFileError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read_setting(file.path(), None)
    }

    fn rank(config: &StackConfig) -> u64 {
        match &config.setting.trains {
            Trains::Adapters { rank, .. } => *rank,
            Trains::Everything => 0,
        }
    }

    #[test]
    fn each_tools_file_is_told_by_its_keys_and_read() {
        let trl = of(
            "model_name_or_path: m\nuse_peft: true\nlora_r: 8\nload_in_4bit: true\nmax_length: 512\ndtype: bfloat16\n",
        );
        let trl = trl.unwrap();
        assert_eq!((trl.setting.stack.name, rank(&trl)), (Tool::Trl.name(), 8));
        assert_eq!((trl.setting.sequence_length, trl.setting.micro_batch), (512, 8));
        assert_eq!(
            (trl.setting.weights, trl.setting.recompute),
            (WeightForm::Nf4, Recompute::Layers)
        );
        let axolotl = of(
            "base_model: m\nadapter: lora\nlora_r: 32\nlora_target_linear: true\nmicro_batch_size: 2\nsequence_len: 4096\n\
             plugins:\n  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\nattn_implementation: flash_attention_2\n",
        );
        let axolotl = axolotl.unwrap();
        assert_eq!((axolotl.setting.stack.name, rank(&axolotl)), (Tool::Axolotl.name(), 32));
        assert_eq!(axolotl.setting.loss, LossForm::FusedLinear);
        assert_eq!(axolotl.setting.attention, AttentionForm::Flash);
        let factory =
            of("model_name_or_path: m\nstage: sft\nfinetuning_type: lora\nlora_target: all\nquantization_bit: 4\n")
                .unwrap();
        assert_eq!(
            (factory.setting.stack.name, rank(&factory)),
            (Tool::LlamaFactory.name(), 8)
        );
        assert_eq!(factory.setting.sequence_length, 2048);
        let torchtune = of(
            "model:\n  _component_: torchtune.models.llama3_1.qlora_llama3_1_8b\n  lora_rank: 16\n  lora_attn_modules: [q_proj]\n\
             batch_size: 2\ncheckpointer:\n  checkpoint_dir: /m\ntokenizer:\n  max_seq_len: 1024\n",
        );
        let torchtune = torchtune.unwrap();
        assert_eq!(
            (torchtune.setting.stack.name, rank(&torchtune)),
            (Tool::Torchtune.name(), 16)
        );
        assert_eq!(
            (torchtune.setting.weights, torchtune.model.as_deref()),
            (WeightForm::Nf4Double, Some("/m"))
        );
        let adapter =
            of(r#"{"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"], "base_model_name_or_path": "m"}"#)
                .unwrap();
        assert_eq!((adapter.setting.stack.name, rank(&adapter)), (Tool::Peft.name(), 4));
        let line =
            of("trl sft --model_name_or_path m --use_peft --lora_r 4 --per_device_train_batch_size=3 --dtype bfloat16")
                .unwrap();
        assert_eq!((line.setting.micro_batch, line.setting.loads), (3, Number::Half));
    }

    #[test]
    fn wrong_values_name_file_key_and_what_to_do() {
        for (text, parts) in [
            ("lora_r: many\n", ["`lora_r`", "whole number"]),
            (
                "model_name_or_path: [a]\nlora_r: 8\n",
                ["model_name_or_path", "write a text"],
            ),
            ("nothing: 1\n", ["tells its tool", "--stack"]),
            ("[1, 2]", ["holds no keys", "YAML"]),
            ("a: [", ["YAML", "tmp"]),
            ("base_model: m\nsequence_len: 0\n", ["`sequence_len`", "1 or more"]),
        ] {
            let error = of(text).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{text:?}: {error}");
        }
    }

    #[test]
    fn dora_is_read_by_each_tools_name_for_it() {
        for text in [
            "model_name_or_path: m\nuse_peft: true\nlora_r: 8\nuse_dora: true\n",
            "base_model: m\nadapter: lora\nsequence_len: 64\npeft_use_dora: true\n",
            "model_name_or_path: m\nstage: sft\nuse_dora: true\n",
            "model:\n  _component_: torchtune.models.llama3_1.lora_llama3_1_8b\n  lora_rank: 8\n  use_dora: true\n",
            r#"{"peft_type": "LORA", "r": 4, "use_dora": true, "base_model_name_or_path": "m"}"#,
        ] {
            let config = of(text).unwrap();
            assert!(config.setting.dora, "{text}");
            assert!(config.unread.is_empty(), "{:?}", config.unread);
            assert!(!of(&text.replace("true", "false")).unwrap().setting.dora, "{text}");
        }
        let full = of("model_name_or_path: m\nuse_peft: false\nuse_dora: true\nmax_length: 64\n").unwrap();
        assert!(!full.setting.dora, "all parameters are trained");
    }

    #[test]
    fn keys_of_another_version_are_named_and_do_no_harm() {
        let config = of("base_model: m\nsequence_len: 64\nwarp_drive: 9\nlearning_rate: 1e-4\n").unwrap();
        assert_eq!(config.unread, ["warp_drive"]);
    }
}
