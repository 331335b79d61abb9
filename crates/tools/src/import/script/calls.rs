//! Calls of libraries that say a training: trainers, their settings, models, adapters, quantization. A row for each, with the names that
//! its arguments have by position.

use super::run::Called;
use super::value::Known;
use peft_tune_core::recipe::TrainerKind;

/// Library whose trainer a script starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// TRL's trainers with unsloth's kernels.
    Unsloth,
    Trl,
    /// transformers' own Trainer.
    Transformers,
}

/// Trainer that a recipe can name, or that of transformers.
pub(super) struct TrainerRow {
    pub name: &'static str,
    pub kind: TrainerKind,
    pub positions: &'static [&'static str],
}

/// Trainers whose scripts are read.
const TRAINERS: &[TrainerRow] = &[
    TrainerRow {
        name: "SFTTrainer",
        kind: TrainerKind::Sft,
        positions: OF_ONE_MODEL,
    },
    TrainerRow {
        name: "UnslothTrainer",
        kind: TrainerKind::Sft,
        positions: OF_ONE_MODEL,
    },
    TrainerRow {
        name: "Trainer",
        kind: TrainerKind::Sft,
        positions: OF_ONE_MODEL,
    },
    TrainerRow {
        name: "DPOTrainer",
        kind: TrainerKind::Dpo,
        positions: WITH_REFERENCE,
    },
    TrainerRow {
        name: "KTOTrainer",
        kind: TrainerKind::Kto,
        positions: WITH_REFERENCE,
    },
    TrainerRow {
        name: "ORPOTrainer",
        kind: TrainerKind::Orpo,
        positions: OF_ONE_MODEL,
    },
];

const OF_ONE_MODEL: &[&str] = &["model", "args", "data_collator", "train_dataset", "eval_dataset"];
const WITH_REFERENCE: &[&str] = &[
    "model",
    "ref_model",
    "args",
    "data_collator",
    "train_dataset",
    "eval_dataset",
];

/// What is told to do about a script of another trainer.
pub(super) const GIVE_ANOTHER: &str =
    "give a script of TRL's SFTTrainer, DPOTrainer, KTOTrainer or ORPOTrainer, transformers' Trainer, or unsloth's";

/// Settings of trainers, each with the trainer that it is of.
const CONFIGS: &[(&str, TrainerKind)] = &[
    ("SFTConfig", TrainerKind::Sft),
    ("TrainingArguments", TrainerKind::Sft),
    ("UnslothTrainingArguments", TrainerKind::Sft),
    ("DPOConfig", TrainerKind::Dpo),
    ("KTOConfig", TrainerKind::Kto),
    ("ORPOConfig", TrainerKind::Orpo),
];

/// Parts of the names of other trainers, with what they do.
const OTHER_TRAINERS: &[(&str, &str)] = &[
    ("SentenceTransformer", "trains embeddings"),
    ("CrossEncoder", "trains a model that compares texts"),
    ("Seq2Seq", "trains a model with an encoder"),
    ("DDPO", "trains on images"),
    ("AlignProp", "trains on images"),
];

/// Parts of the names of models that are no language models alone, with what they are.
const OTHER_MODELS: &[(&str, &str)] = &[
    ("VisionModel", "loads a model that reads images"),
    ("SentenceTransformer", "loads a model that makes embeddings"),
    ("ValueHead", "loads a model that scores answers"),
    ("Classification", "loads a model that sorts texts and writes none"),
    ("QuestionAnswering", "loads a model that marks texts and writes none"),
    (
        "MultipleChoice",
        "loads a model that chooses among texts and writes none",
    ),
    ("MaskedLM", "loads a model that fills gaps"),
    ("SpeechSeq2Seq", "loads a model that reads sound"),
    ("Seq2SeqLM", "loads a model with an encoder"),
    (
        "ConditionalGeneration",
        "loads a model with an encoder, or one that reads images or sound",
    ),
    ("ImageTextToText", "loads a model that reads images"),
    ("Vision2Seq", "loads a model that reads images"),
    ("MultimodalLM", "loads a model that reads images or sound"),
];

/// What a class of transformers for another task is.
const OTHER_TASK: &str = "loads a model for another task than to write texts";
/// What the class for models without a head is.
const NO_HEAD: &str = "loads a model without the head that writes texts";

/// Part of the names of classes that put rows together.
pub(super) const COLLATOR: &str = "DataCollator";

/// What is collated by what takes images or sound.
pub(super) const MORE_THAN_TEXT: &str = "collates images or sound, and here it is text alone";

/// Parts of the names of collators of rows that are no texts.
const OTHER_COLLATORS: &[(&str, &str)] = &[
    ("Vision", MORE_THAN_TEXT),
    ("Speech", "collates sound, and here it is text alone"),
];

/// Kind of what `from_pretrained` loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelKind {
    /// A language model by unsloth's loader.
    Unsloth,
    /// A language model by transformers.
    Plain,
    /// A model and the adapter that was trained for it.
    WithAdapter,
    /// Another kind of model, with what it is.
    Other(&'static str),
}

/// Names of positional arguments of unsloth's loader.
pub(super) const UNSLOTH_LOADER: &[&str] = &[
    "model_name",
    "max_seq_length",
    "dtype",
    "load_in_4bit",
    "load_in_8bit",
    "load_in_16bit",
    "full_finetuning",
];
/// Names of positional arguments of transformers' loaders.
pub(super) const LOADER: &[&str] = &["pretrained_model_name_or_path"];
/// Names of positional arguments of unsloth's function for adapters.
pub(super) const UNSLOTH_ADAPTER: &[&str] = &[
    "model",
    "r",
    "target_modules",
    "lora_alpha",
    "lora_dropout",
    "bias",
    "layers_to_transform",
    "layers_pattern",
];
/// Names of positional arguments of bitsandbytes' settings.
pub(super) const QUANTIZATION: &[&str] = &["load_in_8bit", "load_in_4bit"];
/// Names of positional arguments of a trainer's settings.
pub(super) const CONFIG: &[&str] = &["output_dir"];

/// The row of a trainer that is read.
pub(super) fn trainer_row(call: &Called) -> Option<&'static TrainerRow> {
    TRAINERS.iter().find(|row| row.name == call.short_name())
}

/// The trainer whose settings a call makes.
pub(super) fn config_kind(call: &Called) -> Option<TrainerKind> {
    let found = CONFIGS.iter().find(|(name, _)| *name == call.short_name());
    found.map(|(_, kind)| *kind)
}

/// Whether settings have the defaults of transformers, and not those of TRL.
pub(super) fn is_of_transformers(config: &Called) -> bool {
    config.short_name().ends_with("TrainingArguments")
}

/// Why a trainer is none of those that are read, by its name.
pub(super) fn why_not(name: &str) -> &'static str {
    let other = OTHER_TRAINERS.iter().find(|(part, _)| name.contains(part));
    let reason = other.map(|(_, reason)| *reason);
    reason
        .or_else(|| TrainerKind::why_not(&snake_case(name)))
        .unwrap_or("is none of the trainers that are read")
}

/// The settings of a trainer that is not read, or the trainer itself.
pub(super) fn is_of_another_trainer(call: &Called) -> bool {
    let name = call.short_name();
    let has_reason = || TrainerKind::why_not(&snake_case(name)).is_some();
    call.makes_trainer() && trainer_row(call).is_none() || name.ends_with("Config") && has_reason()
}

/// The name of a trainer in `trainer: ..`: `nash_md` of `NashMDTrainer` and of `NashMDConfig`.
fn snake_case(name: &str) -> String {
    let name = name.trim_end_matches("Trainer").trim_end_matches("Config");
    let mut all = String::new();
    let mut was_lower = false;
    for letter in name.chars() {
        if was_lower && letter.is_uppercase() {
            all.push('_');
        }
        was_lower = letter.is_lowercase();
        all.extend(letter.to_lowercase());
    }
    all
}

/// What a call loads; `None` of calls that load no model.
pub(super) fn model_kind(call: &Called) -> Option<ModelKind> {
    if call.short_name() != "from_pretrained" {
        return None;
    }
    let owner = call.owner();
    // unsloth's loader may be told which class of transformers to load.
    let class = call.argument("auto_model", None).map(|bound| &bound.value.known);
    let class = match class {
        Some(Known::Name(name)) => name.as_str(),
        _ => "",
    };
    let is_such = |part: &str| owner.contains(part) || class.contains(part);
    if let Some((_, reason)) = OTHER_MODELS.iter().find(|(part, _)| is_such(part)) {
        return Some(ModelKind::Other(reason));
    }
    if is_of_unsloth(owner) {
        return Some(ModelKind::Unsloth);
    }
    match owner {
        owner if owner.contains("PeftModel") => Some(ModelKind::WithAdapter),
        owner if owner.ends_with("ForCausalLM") || owner.ends_with("LMHeadModel") => Some(ModelKind::Plain),
        owner if names_a_task(owner) => Some(ModelKind::Other(OTHER_TASK)),
        // Code of the model's own may have a head.
        "AutoModel" if call.argument("trust_remote_code", None).is_none() => Some(ModelKind::Other(NO_HEAD)),
        _ => None,
    }
}

/// Whether the name of a class says what its models are for, as `Wav2Vec2ForCTC` does.
fn names_a_task(class: &str) -> bool {
    let mut behind = class.split("For").skip(1);
    behind.any(|task| task.starts_with(|first: char| first.is_ascii_uppercase()))
}

/// Why rows that a collator puts together are no texts, by its name.
pub(super) fn why_no_texts(collator: &str) -> Option<&'static str> {
    let other = OTHER_COLLATORS.iter().find(|(part, _)| collator.contains(part));
    other.map(|(_, reason)| *reason)
}

/// Whether a library's name is that of what puts rows together, as a function or a class.
pub(super) fn is_collator(name: &str) -> bool {
    name.contains(COLLATOR) || name.contains("data_collator")
}

/// Whether a class is one of unsloth's models.
pub(super) fn is_of_unsloth(owner: &str) -> bool {
    owner.starts_with("Fast") && owner.ends_with("Model")
}

#[cfg(test)]
mod tests {
    use super::super::run::Arguments;
    use super::*;

    fn call(function: &str) -> Called {
        Called {
            function: function.to_owned(),
            receiver: None,
            arguments: Arguments::default(),
            line: 0,
            subclass: None,
        }
    }

    #[test]
    fn trainers_that_are_not_read_have_a_reason() {
        for (name, part) in [
            ("GRPOTrainer", "while it trains"),
            ("trl.NashMDTrainer", "while it trains"),
            ("OnlineDPOTrainer", "while it trains"),
            ("RewardTrainer", "scores answers"),
            ("SentenceTransformerTrainer", "embeddings"),
            ("CPOTrainer", "none of the trainers"),
        ] {
            let call = call(name);
            assert!(is_of_another_trainer(&call), "{name}");
            assert!(why_not(call.short_name()).contains(part), "{name}");
        }
        assert!(is_of_another_trainer(&call("GRPOConfig")));
        for name in ["SFTTrainer", "DPOConfig", "PatchDPOTrainer", "LoraConfig"] {
            assert!(!is_of_another_trainer(&call(name)), "{name}");
        }
    }

    #[test]
    fn models_are_told_by_their_class() {
        let of = |owner: &str| model_kind(&call(&format!("{owner}.from_pretrained")));
        assert_eq!(of("FastLanguageModel"), Some(ModelKind::Unsloth));
        assert_eq!(of("unsloth.FastModel"), Some(ModelKind::Unsloth));
        assert_eq!(of("AutoModelForCausalLM"), Some(ModelKind::Plain));
        assert_eq!(of("transformers.LlamaForCausalLM"), Some(ModelKind::Plain));
        assert_eq!(of("AutoPeftModelForCausalLM"), Some(ModelKind::WithAdapter));
        assert_eq!(
            (of("AutoTokenizer"), of("WhisperForte"), of("UNet2DModel")),
            (None, None, None)
        );
        for owner in [
            "FastVisionModel",
            "AutoModelForSequenceClassification",
            "AutoModelForSeq2SeqLM",
            "Wav2Vec2ForCTC",
            "transformers.SegformerForSemanticSegmentation",
            "MaskFormerForInstanceSegmentation",
            "AutoModel",
        ] {
            assert!(matches!(of(owner), Some(ModelKind::Other(_))), "{owner}");
        }
        assert_eq!(model_kind(&call("FastLanguageModel.get_peft_model")), None);
    }
}
