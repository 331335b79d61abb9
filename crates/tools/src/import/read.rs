//! [`read_recipe`]: a settings file of any of the tools is read by the reader of its tool.

use std::path::Path;

use serde_json::{Map, Value};

use super::interpolation::interpolate;
use super::script::READS_SCRIPTS;
use super::settings_file::{Parsed, is_script, parsed, text_of, tool_of, tools_of_script, words_of};
use super::task::{FoundTask, trainer_of, trainer_of_script};
use super::told::{what_told, what_told_of_script};
use super::{Imported, Keys, Reader, Script, StackFileError, foreign, preference};
use crate::Tool;

/// Reads the recipe of a file of `asked`, or of the tool that the file's keys tell.
///
/// # Errors
/// A file that cannot be read, whose tool is not clear, or with a value that the tool would not take.
pub fn read_recipe(path: &Path, asked: Option<Tool>) -> Result<Imported, StackFileError> {
    parse_recipe(path, &text_of(path)?, asked)
}

/// Reads a file's text; `path` says what kind of file it is and where its relative paths begin, and stands in messages.
///
/// # Errors
/// Errors of [`read_recipe`] that are about what the file says.
pub fn parse_recipe(path: &Path, text: &str, asked: Option<Tool>) -> Result<Imported, StackFileError> {
    parse_changed(path, text, &Map::new(), asked)
}

/// Reads a file's text as [`parse_recipe`] does, with keys that a command changes. Those of a script stay as they are.
///
/// # Errors
/// Errors of [`parse_recipe`].
pub fn parse_changed(
    path: &Path,
    text: &str,
    changes: &Map<String, Value>,
    asked: Option<Tool>,
) -> Result<Imported, StackFileError> {
    if is_script(path) {
        if !READS_SCRIPTS {
            return Err(StackFileError::NoScripts { path: path.to_owned() });
        }
        let script = Script::read(path, text)?;
        let keys = Keys::new(path, &script.keys).at(&script.locations);
        let tools = tools_of_script(&script, asked);
        let mut reader = Reader::of_script(&keys, &script, tools);
        reader.recipe.trainer = trainer_of_script(&keys, &script, reader.tool)?;
        return read(reader, what_told_of_script(tools, asked));
    }
    let Parsed {
        mut values,
        is_command,
        unsaid,
        started,
        config,
        mut notes,
    } = parsed(path, text)?;
    for (key, value) in changes {
        put(&mut values, key, value.clone());
    }
    foreign::refuse(path, &started, &values)?;
    if let Some(config) = config {
        return Err(StackFileError::Starts {
            path: path.to_owned(),
            program: started.join(" "),
            config,
        });
    }
    // What looks alike in a script of a shell is a variable of its own.
    if !is_command {
        interpolate(&mut values);
    }
    let locations = unsaid.locations(path);
    let keys = Keys::new(path, &values).at(&locations);
    let trains = tool_of(&keys, asked)?;
    let words = words_of(trains, &keys);
    let mut reader = Reader::new(&keys, [trains, words]);
    if !is_command {
        reader.text = text;
    }
    reader.unsaid(&unsaid);
    let FoundTask { trainer, note } = trainer_of(&keys, words, text, &started)?;
    reader.recipe.trainer = trainer;
    notes.extend(note);
    for note in notes {
        reader.assume(note.clone());
        reader.note(note);
    }
    read(reader, what_told(trains, asked, &keys))
}

/// Sets a key, or with dots in it the key of a part.
fn put(keys: &mut Map<String, Value>, key: &str, value: Value) {
    if let Some((part, rest)) = key.split_once('.')
        && let Some(Value::Object(part)) = keys.get_mut(part)
    {
        put(part, rest, value);
        return;
    }
    keys.insert(key.to_owned(), value);
}

/// Reads a file by the words that it has.
fn read(mut reader: Reader<'_>, told_by: &'static str) -> Result<Imported, StackFileError> {
    (reader.tool.import().read)(&mut reader)?;
    let recipe = &reader.recipe;
    if recipe.adapter.is_none() && recipe.precision.is_quantized() {
        return Err(StackFileError::OtherTask {
            location: reader.keys.path().display().to_string(),
            what: format!(
                "it has no adapter, and full fine-tuning cannot train quantized weights (precision {})",
                recipe.precision
            ),
            instead: "name an adapter, or turn the quantization off",
        });
    }
    preference::settle(&mut reader)?;
    Ok(reader.finish(told_by))
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::predict::stack::{
        AttentionForm, LossForm, Number, Recompute, Sharing, StackSetting, Trains, WeightForm,
    };
    use peft_tune_core::recipe::{Checkpointing, OptimizerKind, Precision, TrainerKind};
    use serde_json::json;

    fn of(name: &str, text: &str, asked: Option<Tool>) -> (StackSetting, Imported) {
        let imported = parse_recipe(Path::new(name), text, asked).unwrap();
        (imported.setting(), imported)
    }

    fn of_yaml(text: &str) -> (StackSetting, Imported) {
        of("settings.yaml", text, None)
    }

    fn rank(setting: &StackSetting) -> u64 {
        match setting.trains {
            Trains::Adapters { rank, .. } => rank,
            Trains::Everything => 0,
        }
    }

    #[test]
    fn a_file_is_a_setting_of_its_tool_and_a_recipe_here() {
        let (trl, imported) = of_yaml(
            "model_name_or_path: m\nuse_peft: true\nlora_r: 8\nload_in_4bit: true\nmax_length: 512\ndtype: bfloat16\n",
        );
        assert_eq!((trl.stack.name, rank(&trl)), (Tool::Trl.name(), 8));
        assert_eq!((trl.sequence_length, trl.micro_batch), (512, 8));
        assert_eq!((trl.weights, trl.recompute), (WeightForm::Nf4, Recompute::Layers));
        assert_eq!(
            (imported.recipe.precision, imported.recipe.gradient_checkpointing),
            (Precision::Nf4, Checkpointing::Full)
        );
        let (axolotl, _) = of_yaml(
            "base_model: m\nadapter: lora\nlora_r: 32\nlora_target_linear: true\nmicro_batch_size: 2\nsequence_len: 4096\n\
             plugins:\n  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n\
             attn_implementation: flash_attention_2\n",
        );
        assert_eq!((axolotl.stack.name, rank(&axolotl)), (Tool::Axolotl.name(), 32));
        assert_eq!((axolotl.loss, axolotl.holds_logits), (LossForm::FusedLinear, false));
        assert_eq!(axolotl.attention, AttentionForm::Flash);
        let (factory, _) = of_yaml(
            "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\nlora_target: all\nquantization_bit: 4\n",
        );
        assert_eq!((factory.stack.name, rank(&factory)), (Tool::LlamaFactory.name(), 8));
        assert_eq!((factory.sequence_length, factory.optimizer.foreach), (2048, true));
        let (torchtune, imported) = of_yaml(
            "model:\n  _component_: torchtune.models.llama3_1.qlora_llama3_1_8b\n  lora_rank: 16\n\
             \x20 lora_attn_modules: [q_proj]\nbatch_size: 2\ncheckpointer:\n  checkpoint_dir: /m\n\
             tokenizer:\n  max_seq_len: 1024\n",
        );
        assert_eq!((torchtune.stack.name, rank(&torchtune)), (Tool::Torchtune.name(), 16));
        assert_eq!(
            (torchtune.weights, imported.recipe.model.as_str()),
            (WeightForm::Nf4Double, "/m")
        );
        let adapter = r#"{"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"], "base_model_name_or_path": "m"}"#;
        for tool in Tool::ALL {
            let (adapter, _) = of("adapter_config.json", adapter, Some(*tool));
            assert_eq!((adapter.stack.name, rank(&adapter)), (tool.name(), 4));
            assert_eq!(
                (adapter.micro_batch, adapter.recompute),
                (1, tool.behaviour().recompute)
            );
        }
        let layers = r#"{"peft_type": "LORA", "layers_to_transform": [0], "target_parameters": ["experts"]}"#;
        let (_, layers) = of("adapter_config.json", layers, None);
        let told = layers.assumed.join("\n");
        assert!(
            told.contains("some of the layers") && told.contains("not counted"),
            "{told}"
        );
        let line =
            "trl sft --model_name_or_path m --use_peft --lora_r 4 --per_device_train_batch_size=3 --dtype bfloat16";
        let (line, _) = of("run.sh", line, None);
        assert_eq!((line.micro_batch, line.loads), (3, Number::Half));
    }

    #[test]
    fn a_key_with_dots_is_that_of_a_part() {
        let mut keys = json!({"model": {"lora_rank": 8}}).as_object().unwrap().clone();
        put(&mut keys, "model.lora_rank", json!(4));
        put(&mut keys, "other.key", json!(1));
        assert_eq!(Value::Object(keys), json!({"model": {"lora_rank": 4}, "other.key": 1}));
    }

    #[test]
    fn a_file_with_changed_keys_keeps_the_trainer_of_its_heading() {
        let text = "# trl dpo --config c.yaml\nmodel_name_or_path: m\nuse_peft: true\nlora_r: 8\nmax_length: 64\n";
        let changes = json!({"lora_r": 4}).as_object().unwrap().clone();
        let changed = parse_changed(Path::new("c.yaml"), text, &changes, Some(Tool::Trl)).unwrap();
        assert_eq!(
            (changed.recipe.trainer, rank(&changed.setting())),
            (TrainerKind::Dpo, 4)
        );
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
            let (setting, imported) = of_yaml(text);
            assert!(setting.dora, "{text}");
            assert!(imported.uncounted.is_empty(), "{:?}", imported.uncounted);
            assert!(!of_yaml(&text.replace("true", "false")).0.dora, "{text}");
        }
        let (full, _) = of_yaml("model_name_or_path: m\nuse_peft: false\nuse_dora: true\nmax_length: 64\n");
        assert!(!full.dora, "all parameters are trained");
    }

    #[test]
    fn dtypes_that_no_recipe_has_are_those_of_the_tool() {
        let of = |text: &str| {
            let (setting, imported) = of_yaml(text);
            let numbers = (setting.loads, setting.computes, setting.autocast);
            (numbers, imported.recipe.precision)
        };
        let trl = "model_name_or_path: m\nlora_r: 8\n";
        let (half, whole) = (Number::Half, Number::F32);
        // It loads in F32 where nothing is said, and computes in BF16.
        for said in ["", "dtype: float32\n"] {
            let text = format!("{trl}{said}");
            assert_eq!(of(&text), ((whole, half, true), Precision::Bf16), "{said}");
        }
        let all_whole = ((whole, whole, false), Precision::Fp32);
        assert_eq!(of(&format!("{trl}dtype: float32\nbf16: false\n")), all_whole);
        // axolotl loads in what it computes in; LLaMA-Factory in the 16 bits of the model's files.
        let axolotl = "base_model: m\nadapter: lora\n";
        assert_eq!(of(&format!("{axolotl}bf16: false\nfp16: false\n")), all_whole);
        assert_eq!(
            of(&format!("{axolotl}bf16: full\n")),
            ((half, half, true), Precision::Bf16)
        );
        let factory = "model_name_or_path: m\nstage: sft\n";
        let off = of(&format!("{factory}bf16: false\n"));
        assert_eq!(off, ((half, half, false), Precision::Fp32));
        let pure = of(&format!("{factory}pure_bf16: true\n"));
        assert_eq!(pure, ((half, half, true), Precision::Bf16));
    }

    #[test]
    fn an_optimizer_that_no_recipe_has_keeps_what_its_name_tells() {
        let of = |name: &str| {
            let (setting, imported) = of_yaml(&format!("base_model: m\nadapter: lora\noptimizer: {name}\n"));
            let form = setting.optimizer;
            ((form.states, form.bytes, form.is_paged), imported.recipe.optimizer.kind)
        };
        assert_eq!(of("paged_lion_8bit"), ((0, 1, true), OptimizerKind::Lion8bit));
        assert_eq!(of("galore_adamw"), ((2, 0, false), OptimizerKind::AdamW));
        // The Trainer's has no momentum, and so no states, unless it is asked for.
        assert_eq!(of("sgd"), ((0, 0, false), OptimizerKind::Sgd));
        assert_eq!(of("sgd\noptim_args: momentum=0.9"), ((1, 0, false), OptimizerKind::Sgd));
    }

    #[test]
    fn sharing_is_told_by_the_name_of_deepspeeds_file_or_by_fsdps_keys() {
        let of = |line: &str| {
            let (setting, _) = of_yaml(&format!("base_model: m\nadapter: lora\n{line}\n"));
            (setting.sharing, setting.offloads)
        };
        assert_eq!(of("deepspeed: zero3_offload.json"), (Sharing::Zero3, true));
        assert_eq!(
            of("fsdp_config: {sharding_strategy: FULL_SHARD}"),
            (Sharing::Full, false)
        );
        assert_eq!(of("fsdp: []"), (Sharing::Copies, false));
        for line in [
            "fsdp: full_shard auto_wrap offload",
            "fsdp: [full_shard, offload]",
            "fsdp_config: {fsdp_offload_params: true}",
            "fsdp: true\nfsdp_config: {offload_params: true}",
        ] {
            assert_eq!(of(line), (Sharing::Full, true), "{line}");
        }
        assert_eq!(of("fsdp_config: {offload_params: false, a: 1}"), (Sharing::Full, false));
    }

    #[test]
    fn a_file_for_the_trainer_that_a_script_has_too_is_read_by_that_trainers_words() {
        let text = "model_name_or_path: m\nuse_peft: true\nlora_r: 8\ngradient_checkpointing: true\nwarp_drive: 9\n";
        let (setting, imported) = of("settings.yaml", text, Some(Tool::Unsloth));
        assert_eq!((setting.stack.name, rank(&setting)), (Tool::Unsloth.name(), 8));
        assert_eq!((setting.recompute, setting.loads), (Recompute::Layers, Number::Half));
        assert_eq!(imported.uncounted, ["warp_drive"]);
    }
}
